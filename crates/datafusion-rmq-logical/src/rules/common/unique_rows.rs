//! Whether rows of a plan are unique by some columns.

use datafusion_common::Dependency;
use datafusion_expr::{Expr, LogicalPlan};

/// Whether no two rows of a plan have the same values for these columns, as the groups of an aggregate.
pub fn is_unique(plan: &LogicalPlan, columns: &[Expr]) -> bool {
    let schema = plan.schema();
    let known = columns.iter().filter_map(|expr| match expr {
        Expr::Column(column) => schema.maybe_index_of_column(column),
        _ => None,
    });
    let known: Vec<usize> = known.collect();
    let mut keys = schema.functional_dependencies().iter();
    keys.any(|key| {
        let mut source = key.source_indices.iter();
        key.mode == Dependency::Single && source.all(|column| known.contains(column))
    })
}

/// Whether a plan has rows of one table as they are. Their order may be kept for later queries.
pub fn is_table(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::TableScan(_) => true,
        LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_) => {
            plan.inputs().into_iter().all(is_table)
        }
        _ => false,
    }
}
