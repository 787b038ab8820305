//! The logical node that makes indexes ready for the expressions of the node above.

use std::cmp::Ordering;
use std::fmt;

use datafusion::common::{DFSchemaRef, Result, internal_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use super::Source;
use crate::functions::{IndexSlot, RangeFunction};

/// An index that an expression above will ask.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lookup {
    /// The question.
    pub function: RangeFunction,
    /// The rows that are asked.
    pub source: Source,
    /// Where the expression will find the index.
    pub slot: IndexSlot,
}

/// Passes its input on, once the indexes are ready.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PrepareIndexes {
    input: LogicalPlan,
    lookups: Vec<Lookup>,
}

impl PrepareIndexes {
    /// Indexes that must be ready before `input` gives its first row.
    pub fn new(input: LogicalPlan, lookups: Vec<Lookup>) -> Self {
        Self { input, lookups }
    }

    /// The indexes.
    pub fn lookups(&self) -> &[Lookup] {
        &self.lookups
    }
}

impl UserDefinedLogicalNodeCore for PrepareIndexes {
    fn name(&self) -> &'static str {
        "PrepareIndexes"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.input.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    fn prevent_predicate_push_down_columns(&self) -> std::collections::HashSet<String> {
        std::collections::HashSet::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self
            .lookups
            .iter()
            .map(|l| format!("{}({})", l.function.range_name(), l.source));
        write!(
            f,
            "PrepareIndexes: {}",
            names.collect::<Vec<_>>().join(", ")
        )
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let [input] = <[LogicalPlan; 1]>::try_from(inputs).or_else(|inputs| {
            internal_err!("PrepareIndexes has one input, not {}", inputs.len())
        })?;
        Ok(Self::new(input, self.lookups.clone()))
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![output_columns.to_vec()])
    }
}

/// Slots have no order.
impl PartialOrd for PrepareIndexes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self == other).then_some(Ordering::Equal)
    }
}
