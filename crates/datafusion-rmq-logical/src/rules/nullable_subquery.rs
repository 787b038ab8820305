//! A scalar subquery is NULL where it has no row, whatever its column says.
//!
//! ```text
//!   SELECT q.id, (SELECT p.id FROM p WHERE p.ts <= q.ts ORDER BY p.ts DESC LIMIT 1) AS pid FROM q
//! ```
//!
//! DataFusion takes `pid` to be NOT NULL if `p.id` is, and so folds `pid IS NULL` to false in the queries around it.
//! The schemas of all nodes must be right before its first rule looks at them, so this is an analyzer rule.

use std::sync::Arc;

use arrow::datatypes::{Field, FieldRef};
use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{Column, ExprSchema, Result};
use datafusion_dependent_join::has_some_row;
use datafusion_expr::{Distinct, Expr, LogicalPlan, Subquery};
use datafusion_optimizer::AnalyzerRule;

use crate::common::options::RmqOptions;
use crate::expr::nullable::NullableUdf;
use crate::expr::range_udf::RangeUdf;
use crate::rules::common::outer_columns::has_expression_anywhere;
use crate::rules::common::plans::{map_expressions, with_new_schema};

/// Makes scalar subqueries nullable that may have no row, and the schemas of all nodes above them. Does
/// nothing if `rmq.rewrite` is false.
#[derive(Debug, Default)]
pub struct NullableSubqueries;

impl AnalyzerRule for NullableSubqueries {
    fn name(&self) -> &'static str {
        "rmq_nullable_subqueries"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        if !RmqOptions::rewrites(config) || !has_expression_anywhere(&plan, may_lack_row)? {
            return Ok(plan);
        }
        let plan = plan.transform_up_with_subqueries(|node| {
            let node = map_expressions(node, |expr| expr.transform_down(make_nullable))?;
            Ok(Transformed::yes(with_new_schema(node.data)?))
        })?;
        Ok(plan.data)
    }
}

/// Whether an expression is a scalar subquery of a column without NULLs that may have no row.
fn may_lack_row(expr: &Expr) -> bool {
    let Expr::ScalarSubquery(subquery) = expr else {
        return false;
    };
    let fields = subquery.subquery.schema().fields();
    let is_never_null = fields.first().is_some_and(|field| !field.is_nullable())
        || has_no_null_operand(&subquery.subquery, 0);
    is_never_null && !has_some_row(&subquery.subquery)
}

/// Whether a column is computed of columns without NULLs, so that other rules may find out that it has none:
/// `CASE WHEN true THEN 7 END` becomes 7.
fn has_no_null_operand(plan: &LogicalPlan, column: usize) -> bool {
    match plan {
        LogicalPlan::Filter(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Distinct(Distinct::All(_)) => {
            let mut inputs = plan.inputs().into_iter();
            inputs.all(|input| has_no_null_operand(input, column))
        }
        LogicalPlan::Projection(projection) => projection.expr.get(column).is_some_and(|expr| {
            let input = projection.input.schema();
            let is_filled = |column: &Column| {
                input.nullable(column).is_ok_and(|is_nullable| !is_nullable)
                    || input
                        .maybe_index_of_column(column)
                        .is_some_and(|i| has_no_null_operand(&projection.input, i))
            };
            !expr.contains_outer() && expr.column_refs().into_iter().all(is_filled)
        }),
        _ => false,
    }
}

fn make_nullable(expr: Expr) -> Result<Transformed<Expr>> {
    Ok(match expr {
        // The subquery that is the first argument is a column, not a value.
        Expr::ScalarFunction(mut call) if call.func.inner().is::<RangeUdf>() => {
            for bound in call.args.iter_mut().skip(1) {
                *bound = std::mem::take(bound).transform_down(make_nullable)?.data;
            }
            let call = Expr::ScalarFunction(call);
            Transformed::new(call, true, TreeNodeRecursion::Jump)
        }
        // Done before.
        call if NullableUdf::argument(&call).is_some() => {
            Transformed::new(call, false, TreeNodeRecursion::Jump)
        }
        Expr::OuterReferenceColumn(field, column) => {
            Transformed::yes(Expr::OuterReferenceColumn(nullable(&field), column))
        }
        Expr::ScalarSubquery(subquery) => {
            let is_wrapped = may_lack_row(&Expr::ScalarSubquery(subquery.clone()));
            let outer_ref_columns = subquery.outer_ref_columns.into_iter();
            let outer_ref_columns = outer_ref_columns.map(|column| match column {
                Expr::OuterReferenceColumn(field, column) => {
                    Expr::OuterReferenceColumn(nullable(&field), column)
                }
                other => other,
            });
            let subquery = Expr::ScalarSubquery(Subquery {
                outer_ref_columns: outer_ref_columns.collect(),
                ..subquery
            });
            let expr = if is_wrapped {
                NullableUdf::call(subquery)
            } else {
                subquery
            };
            Transformed::new(expr, true, TreeNodeRecursion::Jump)
        }
        other => Transformed::no(other),
    })
}

/// An outer column may come from a subquery that is made nullable.
fn nullable(field: &FieldRef) -> FieldRef {
    Arc::new(Field::clone(field).with_nullable(true))
}
