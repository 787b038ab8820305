//! The logical node of `CREATE INDEX`.

use std::cmp::Ordering;
use std::fmt;

use datafusion_common::{DFSchemaRef, Result};
use datafusion_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use crate::common::inputs::inputs_of;
use crate::logical_plan::named_index::NamedIndex;
use crate::logical_plan::node_methods::node_methods;

/// Builds an index, which is kept under a name. Returns no rows.
///
/// ```text
///   CREATE INDEX by_time ON quotes USING rmq (sym, ts)     CREATE INDEX lowest ON prices USING rmq (close)
///
///   CreateIndex: by_time                                   CreateIndex: lowest
///     TableScan: quotes projection=[sym, ts]                 RangeLookup: range_min(prices.close), range_max(prices.close)
///                                                              EmptyRelation: rows=1
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CreateIndex {
    /// The name, the table and its columns.
    pub index: NamedIndex,
    /// Whether an index of this name is left as it is. Otherwise it is an error.
    pub if_not_exists: bool,
    /// The rows that are sorted, or a lookup whose indexes are kept.
    pub input: LogicalPlan,
    /// No columns.
    pub schema: DFSchemaRef,
}

impl PartialOrd for CreateIndex {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let order = self.index.name.cmp(&other.index.name);
        (order != Ordering::Equal || self == other).then_some(order)
    }
}

impl UserDefinedLogicalNodeCore for CreateIndex {
    node_methods!("CreateIndex", [input]);

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CreateIndex: {} on {}",
            self.index.name,
            self.index.label()
        )
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let [input] = inputs_of("CreateIndex", inputs)?;
        Ok(Self {
            input,
            ..self.clone()
        })
    }
}
