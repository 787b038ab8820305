//! A note above an operator, which EXPLAIN shows.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};

use crate::exec::common::plan_methods::{no_expressions, replace_input, rows_of_input};
use datafusion_rmq_logical::common::sql_text::tree_text;

/// Returns the rows of its input. Only plans of EXPLAIN and EXPLAIN ANALYZE have it.
#[derive(Debug)]
pub struct NoteExec {
    input: Arc<dyn ExecutionPlan>,
    note: String,
}

impl NoteExec {
    /// A note above `input`.
    #[must_use]
    pub fn new(input: Arc<dyn ExecutionPlan>, note: String) -> Self {
        Self { input, note }
    }

    /// The note.
    #[must_use]
    pub fn note(&self) -> &str {
        &self.note
    }
}

impl DisplayAs for NoteExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "NoteExec: {}", self.note)
            }
            // Here an equals sign is between a name and its value.
            DisplayFormatType::TreeRender => {
                let note = self.note.replace("<=", "at most").replace(">=", "at least");
                writeln!(f, "{}", tree_text(&note.replace('=', "equals")))
            }
        }
    }
}

impl ExecutionPlan for NoteExec {
    fn name(&self) -> &'static str {
        "NoteExec"
    }

    rows_of_input!();

    no_expressions!();

    replace_input!(|note, input| Self::new(input, note.note.clone()));

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}
