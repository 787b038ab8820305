//! A note above an operator, which EXPLAIN shows.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::ReplaceChildrenOptions;
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::common::inputs::inputs_of;
use crate::common::sql_text::tree_text;
use crate::exec::common::plan_methods::{no_expressions, row_for_row, with_new_children};

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

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    row_for_row!();

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    no_expressions!();

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [input] = inputs_of("NoteExec", children)?;
        Ok(Arc::new(Self::new(input, self.note.clone())))
    }

    with_new_children!();

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }

    fn statistics_from_inputs(
        &self,
        input_stats: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let [input] = inputs_of("NoteExec", input_stats.to_vec())?;
        Ok(input)
    }
}
