//! Column names: unused ones for added columns, and the original ones after an expression or a plan is rewritten.

use std::sync::Arc;

use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::expr_rewriter::{NamePreserver, SavedName};
use datafusion::logical_expr::{Expr, LogicalPlan, Projection};
use datafusion::optimizer::OptimizerConfig;

/// How the names of columns begin that rules add.
const UNUSED: &str = "__rmq";

/// Generates a name that no column of the schema has.
pub(crate) fn unused_name(config: &dyn OptimizerConfig, schema: &DFSchema) -> String {
    loop {
        let name = config.alias_generator().next(UNUSED);
        if !schema.has_column_with_unqualified_name(&name) {
            return name;
        }
    }
}

/// Saves the name to restore after rewriting `expr`. A grouping set is not a column; [`restore_columns`] restores the
/// names of its members.
pub(crate) fn save_name(preserver: &NamePreserver, expr: &Expr) -> SavedName {
    match expr {
        Expr::GroupingSet(_) => SavedName::None,
        expr => preserver.save(expr),
    }
}

/// Projects the plan to the columns of `schema` if it has others: drops columns that a rule has added, and restores the
/// names of columns that were named after a rewritten expression.
pub(crate) fn restore_columns(plan: LogicalPlan, schema: &DFSchema) -> Result<LogicalPlan> {
    let now = plan.schema();
    let same = now.fields().len() == schema.fields().len()
        && now
            .iter()
            .zip(schema.iter())
            .all(|((q, f), (old_q, old_f))| q == old_q && f.name() == old_f.name());
    if same {
        return Ok(plan);
    }
    let columns = if now.fields().len() == schema.fields().len() {
        let renamed = now.iter().zip(schema.iter()).map(|(new, (old_q, old_f))| {
            let column = Expr::Column(Column::from(new));
            column.alias_qualified(old_q.cloned(), old_f.name())
        });
        renamed.collect()
    } else {
        schema
            .iter()
            .map(|old| Expr::Column(Column::from(old)))
            .collect()
    };
    Ok(LogicalPlan::Projection(Projection::try_new(
        columns,
        Arc::new(plan),
    )?))
}

/// Whether a name is, or may be, one of [`unused_name`].
pub(crate) fn is_unused_name(name: &str) -> bool {
    name.starts_with(UNUSED)
}
