//! Joins, windows and unions have the columns of their inputs again after DataFusion has decorrelated what is in these.
//!
//! ```text
//!   LeftMark Join                             columns: q.id, range_min(t.c)#1, mark
//!     RangeLookup: …                            columns: q.id, x.g, x.__always_true, range_min(t.c)#1
//!       Left Join: q.g = x.g                  the decorrelated join, which has two columns more
//!
//!   Union                                     columns: n, NOT NULL
//!     Projection: CASE … END AS n               columns: n, which was count(*), NOT NULL
//! ```
//!
//! `decorrelate_lateral_join` leaves the columns of the joins and windows above as they were. Then
//! `optimize_projections`, which counts columns, takes `x.g` for `range_min(t.c)#1`. And a union keeps its columns, so
//! that an aggregate above it has other columns as a plan than as an operator, which is an error of DataFusion, as is a
//! recursive query without the NULLs of what it repeats.

use datafusion_common::Result;
use datafusion_common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion_expr::{Join, JoinType, LogicalPlan};
use datafusion_optimizer::{OptimizerConfig, OptimizerRule};

use crate::rules::common::plans::with_new_schema;

/// Gives joins and windows whose number of columns is not that of their inputs, and unions and recursive queries whose
/// inputs may have NULLs that they have not, their columns anew; of the latter, also the nodes above.
///
/// It must run right after `decorrelate_lateral_join`.
#[derive(Debug, Default)]
pub struct RenewSchemas;

impl OptimizerRule for RenewSchemas {
    fn name(&self) -> &'static str {
        "rmq_renew_schemas"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let (mut lacks_columns, mut has_union) = (false, false);
        plan.apply_with_subqueries(|node| {
            lacks_columns |= has_other_columns(node);
            has_union |= is_stale_union(node);
            Ok(TreeNodeRecursion::Continue)
        })?;
        if !lacks_columns && !has_union {
            return Ok(Transformed::no(plan));
        }
        plan.transform_up_with_subqueries(|node| {
            if has_union || has_other_columns(&node) {
                return Ok(Transformed::yes(with_new_schema(node)?));
            }
            Ok(Transformed::no(node))
        })
    }
}

/// Whether a join or a window has another number of columns than its inputs give it.
fn has_other_columns(node: &LogicalPlan) -> bool {
    match node {
        LogicalPlan::Join(join) => join.schema.fields().len() != num_columns(join),
        LogicalPlan::Window(window) => {
            let of_input = window.input.schema().fields().len();
            window.schema.fields().len() != of_input + window.window_expr.len()
        }
        _ => false,
    }
}

/// Whether an input of a union, or of a recursive query, has NULLs where that has none.
fn is_stale_union(node: &LogicalPlan) -> bool {
    if !matches!(node, LogicalPlan::Union(_) | LogicalPlan::RecursiveQuery(_)) {
        return false;
    }
    let mut fields = node.schema().fields().iter().enumerate();
    fields.any(|(i, field)| {
        let may_be_null = |input: &LogicalPlan| input.schema().field(i).is_nullable();
        !field.is_nullable() && node.inputs().into_iter().any(may_be_null)
    })
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
