//! Physical range calls, and the searches that answer them.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::physical_expr::PhysicalExpr;

use crate::exec::range_lookup::relation::Relation;
use rmq_arrow::common::range_function::{RangeFunction, RangeResult};
use rmq_engine::RangeEnd;

/// A call of a range function in physical expressions.
#[derive(Debug, Clone)]
pub struct PhysicalCall {
    /// The function.
    pub function: RangeFunction,
    pub(crate) relation: Arc<Relation>,
    /// The name of the indexed column.
    pub column: String,
    /// The first position, inclusive, over the input.
    pub left: Arc<dyn PhysicalExpr>,
    /// The last position, inclusive, over the input.
    pub right: Arc<dyn PhysicalExpr>,
    /// The threshold of a function that has one, or the number of positions of one that lists them, over the input.
    pub threshold: Option<Arc<dyn PhysicalExpr>>,
    /// The name of the appended column.
    pub output: String,
    /// The type of the appended column.
    pub data_type: DataType,
    /// Whether the bounds differ each time they are evaluated.
    pub volatile: bool,
}

impl PhysicalCall {
    /// The end from which a row that crosses the threshold is searched, if the function has a threshold.
    pub(crate) fn crossing(&self) -> Option<RangeEnd> {
        match self.function {
            RangeFunction::Extreme {
                result: RangeResult::Crossing(end),
                ..
            } => Some(end),
            _ => None,
        }
    }

    /// Whether each result is a list of positions.
    pub(crate) fn returns_lists(&self) -> bool {
        matches!(
            self.function,
            RangeFunction::Extreme {
                result: RangeResult::Positions,
                ..
            }
        )
    }

    /// The function and its arguments but the bounds.
    pub(crate) fn label(&self) -> String {
        let name = self.function.range_name();
        let column = self.relation.column_label(&self.column);
        match &self.threshold {
            Some(threshold) => format!("{name}({column}, {threshold})"),
            None => format!("{name}({column})"),
        }
    }

    /// Whether both calls query the same ranges of the same index, so that one search answers both.
    fn shares_search(&self, other: &Self) -> bool {
        !self.volatile
            && Arc::ptr_eq(&self.relation, &other.relation)
            && self.column == other.column
            && self.function.shares_answers(other.function)
            && self.left.as_ref() == other.left.as_ref()
            && self.right.as_ref() == other.right.as_ref()
            && self.threshold.as_deref() == other.threshold.as_deref()
            && self.crossing() == other.crossing()
    }
}

impl fmt::Display for PhysicalCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (label, left, right) = (self.label(), &self.left, &self.right);
        write!(f, "{label} over rows {left} to {right}")
    }
}

/// Calls that one search of one index answers.
#[derive(Debug)]
pub(crate) struct Search {
    /// The first of the calls, whose bounds and index are those of all.
    pub(crate) call: PhysicalCall,
    pub(crate) outputs: Vec<Output>,
}

/// The result of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// The call's index among the operator's calls.
    pub(crate) call: usize,
    /// Whether the result is the position instead of the value.
    pub(crate) position: bool,
}

impl Search {
    /// Groups calls by the search that answers them.
    pub(crate) fn group(calls: &[PhysicalCall]) -> Vec<Self> {
        let mut searches: Vec<Self> = vec![];
        for (i, call) in calls.iter().enumerate() {
            let output = Output {
                call: i,
                position: call.function.returns_positions(),
            };
            match searches.iter_mut().find(|s| s.call.shares_search(call)) {
                Some(search) => search.outputs.push(output),
                None => searches.push(Self {
                    call: call.clone(),
                    outputs: vec![output],
                }),
            }
        }
        searches
    }
}
