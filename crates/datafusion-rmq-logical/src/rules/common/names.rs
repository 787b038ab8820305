//! Column names: unused ones for added columns, and the original ones after an expression or a plan is rewritten.

use std::fmt::Display;
use std::sync::Arc;

use datafusion_common::{Column, DFSchema, Result};
use datafusion_expr::expr_rewriter::{NamePreserver, SavedName};
use datafusion_expr::{Expr, LogicalPlan, Projection};
use datafusion_optimizer::OptimizerConfig;

/// The longest description in a name: plans show it in each operator above.
const MAX_DESCRIPTION: usize = 30;

/// Generates a name that no column of the schema has, for a column that a rule adds: `min(p.v)#1`. Of a long
/// description, `min(CASE WHEN …)`, the name has the beginning only: `min#1`.
pub fn unused_name(
    config: &dyn OptimizerConfig,
    schema: &DFSchema,
    described: impl Display,
) -> String {
    let mut description = description(&described.to_string()).to_string();
    // DataFusion's tree of a plan has room for ASCII only.
    if description.len() > MAX_DESCRIPTION || !description.is_ascii() {
        description = description
            .split('(')
            .next()
            .unwrap_or("")
            .replace(|c: char| !c.is_ascii(), "?");
        description.truncate(MAX_DESCRIPTION);
    }
    loop {
        let number = config.alias_generator().next("");
        let name = format!("{description}#{}", number.trim_start_matches('_'));
        if !schema.has_column_with_unqualified_name(&name) {
            return name;
        }
    }
}

/// What the column of a name is, without the number of [`unused_name`].
pub fn description(name: &str) -> &str {
    without_number(name).unwrap_or(name)
}

fn without_number(name: &str) -> Option<&str> {
    let (description, number) = name.rsplit_once('#')?;
    let is_number = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then_some(description)
}

/// Saves the name to restore after rewriting `expr`. A grouping set is not a column; [`restore_columns`] restores the
/// names of its members.
pub fn save_name(preserver: &NamePreserver, expr: &Expr) -> SavedName {
    match expr {
        Expr::GroupingSet(_) => SavedName::None,
        expr => preserver.save(expr),
    }
}

/// Projects the plan to the columns of `schema` if it has others: drops columns that a rule has added, and restores the
/// names of columns that were named after a rewritten expression.
pub fn restore_columns(plan: LogicalPlan, schema: &DFSchema) -> Result<LogicalPlan> {
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
pub fn is_unused_name(name: &str) -> bool {
    without_number(name).is_some()
}
