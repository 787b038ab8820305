//! Joins have the columns of their inputs again after DataFusion has decorrelated a lateral join in one of them.
//!
//! ```text
//!   LeftMark Join                             columns: q.id, range_min(t.c)#1, mark
//!     RangeLookup: …                            columns: q.id, x.g, x.__always_true, range_min(t.c)#1
//!       Left Join: q.g = x.g                  the decorrelated join, which has two columns more
//! ```
//!
//! `decorrelate_lateral_join` leaves the columns of the joins above as they were. Then `optimize_projections`, which
//! counts columns, takes `x.g` for `range_min(t.c)#1`.

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Join, JoinType, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// Gives joins whose number of columns is not that of their inputs their columns anew.
///
/// It must run right after `decorrelate_lateral_join`.
#[derive(Debug, Default)]
pub struct RenewJoinSchemas;

impl OptimizerRule for RenewJoinSchemas {
    fn name(&self) -> &'static str {
        "rmq_renew_join_schemas"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        match &plan {
            LogicalPlan::Join(join) if join.schema.fields().len() != num_columns(join) => {
                Ok(Transformed::yes(plan.recompute_schema()?))
            }
            _ => Ok(Transformed::no(plan)),
        }
    }
}

/// The number of columns that a join of its inputs has.
fn num_columns(join: &Join) -> usize {
    let left = join.left.schema().fields().len();
    let right = join.right.schema().fields().len();
    match join.join_type {
        JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full => left + right,
        JoinType::LeftSemi | JoinType::LeftAnti => left,
        JoinType::RightSemi | JoinType::RightAnti => right,
        JoinType::LeftMark => left + 1,
        JoinType::RightMark => right + 1,
    }
}
