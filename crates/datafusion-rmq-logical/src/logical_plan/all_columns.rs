//! The logical node that keeps all columns of its input.
//!
//! ```text
//!   PREPARE s AS SELECT q.id, x.v FROM q CROSS JOIN LATERAL (SELECT p.v FROM p WHERE p.ts <= q.ts ORDER BY p.ts LIMIT $1) AS x
//!
//!   Projection: q.id, x.v
//!     AllColumns
//!       Cross Join                                      q, and the subquery, as written
//! ```
//!
//! DataFusion optimizes a prepared statement before its parameters have values, and drops columns that only a lateral
//! subquery reads. Where the subquery can't become a range join before its values are known, they are kept.

use std::cmp::Ordering;
use std::fmt;

use datafusion_common::{DFSchemaRef, Result};
use datafusion_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use crate::common::inputs::inputs_of;

/// The rows of its input, whose columns no rule drops.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AllColumns {
    /// Where the rows come from.
    pub input: LogicalPlan,
}

impl UserDefinedLogicalNodeCore for AllColumns {
    fn name(&self) -> &'static str {
        "AllColumns"
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

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AllColumns")
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let [input] = inputs_of("AllColumns", inputs)?;
        Ok(Self { input })
    }
}

impl PartialOrd for AllColumns {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.input.partial_cmp(&other.input)
    }
}
