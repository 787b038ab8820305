//! Outer columns have the types that these columns will have.
//!
//! ```text
//!   SELECT (SELECT count(*) FROM p WHERE p.n < x.c)
//!   FROM (SELECT CASE WHEN q.b THEN 1 ELSE q.price END AS c FROM q) AS x
//! ```
//!
//! DataFusion notes the type of an outer column when it parses a query. `x.c` is an integer then, and a number with a
//! fraction once the types of all branches have been made one. What compares integers fails on such numbers, or cuts
//! the fraction off.

use std::sync::Arc;

use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchemaRef, ExprSchema, Result};
use datafusion_expr::{Expr, LogicalPlan};
use datafusion_optimizer::AnalyzerRule;
use datafusion_optimizer::analyzer::type_coercion::TypeCoercion;

use crate::outer::{has_subqueries, is_correlated, lateral, subquery_of};

/// Gives outer columns the types that their columns have after `type_coercion`. It must run before that.
#[derive(Debug, Default)]
pub struct OuterColumnTypes;

impl AnalyzerRule for OuterColumnTypes {
    fn name(&self) -> &'static str {
        "outer_column_types"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        // Most plans have no subquery, and need no copy.
        if !has_subqueries(&plan)? {
            return Ok(plan);
        }
        with_coerced_types(plan, &[], config)
    }
}

/// A plan below queries with these rows, whose types have been made one.
fn with_coerced_types(
    plan: LogicalPlan,
    around: &[DFSchemaRef],
    config: &ConfigOptions,
) -> Result<LogicalPlan> {
    let plan = plan.map_expressions(|expr| {
        expr.transform_up(|e| {
            let Expr::OuterReferenceColumn(known, column) = &e else {
                return Ok(Transformed::no(e));
            };
            let rows = around.iter().rev().find(|rows| rows.has_column(column));
            let field = rows
                .map(|rows| rows.field_from_column(column))
                .transpose()?;
            Ok(match field {
                Some(field) if field.data_type() != known.data_type() => {
                    let typed = known
                        .as_ref()
                        .clone()
                        .with_data_type(field.data_type().clone());
                    Transformed::yes(Expr::OuterReferenceColumn(Arc::new(typed), column.clone()))
                }
                _ => Transformed::no(e),
            })
        })
    })?;
    // The right side of a lateral join is the last.
    let mut of_inputs = vec![];
    if let LogicalPlan::Join(join) = &plan.data
        && lateral(&join.right).is_some()
    {
        let left = coerced(&join.left, config);
        of_inputs.push(around.iter().cloned().chain([left]).collect());
        of_inputs.push(around.to_vec());
    }
    let plan = plan.data.map_children(|input| {
        let around = of_inputs.pop().unwrap_or_else(|| around.to_vec());
        with_coerced_types(input, &around, config).map(Transformed::yes)
    })?;
    let plan = plan.data;
    if !has_correlated(&plan)? {
        return Ok(plan);
    }
    let inputs = plan.inputs().into_iter();
    let inputs = inputs.map(|input| coerced(input, config));
    let of_exprs: Vec<DFSchemaRef> = around.iter().cloned().chain(inputs).collect();
    let plan = plan.map_subqueries(|subquery| {
        with_coerced_types(subquery, &of_exprs, config).map(Transformed::yes)
    })?;
    Ok(plan.data)
}

/// Whether an expression of a node has a subquery that depends on queries around it.
fn has_correlated(node: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    node.apply_expressions(|expr| {
        found |= expr.exists(|e| {
            subquery_of(e).map_or(Ok(false), |subquery| is_correlated(&subquery.subquery))
        })?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// The columns of a plan after type coercion; as they are if that fails, which is told later.
fn coerced(plan: &LogicalPlan, config: &ConfigOptions) -> DFSchemaRef {
    let coerced = TypeCoercion::new().analyze(plan.clone(), config);
    coerced.map_or_else(
        |_| Arc::clone(plan.schema()),
        |plan| Arc::clone(plan.schema()),
    )
}
