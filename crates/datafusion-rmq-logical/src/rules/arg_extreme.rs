//! `arg_min(x, y)` as `FIRST_VALUE`, which range joins and DataFusion's hash aggregation know.
//!
//! ```text
//!   arg_min(x, y)    first_value(CASE WHEN y IS NOT NULL THEN x END ORDER BY CASE WHEN x IS NOT NULL THEN y END)
//! ```
//!
//! Rows where one of them is NULL are left out: their key is NULL and comes last, and their value is NULL.

use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result};
use datafusion_expr::expr::{AggregateFunction, AggregateFunctionParams};
use datafusion_expr::expr_rewriter::NamePreserver;
use datafusion_expr::utils::merge_schema;
use datafusion_expr::{Expr, ExprSchemable, LogicalPlan, when};
use datafusion_functions_aggregate::first_last::first_value_udaf;
use datafusion_optimizer::AnalyzerRule;
use rmq_engine::Extreme;

use crate::common::options::RmqOptions;
use crate::expr::arg_extreme::ArgExtremeUdf;

/// Replaces `arg_min` and `arg_max`. Does nothing if `rmq.rewrite` is false.
#[derive(Debug, Default)]
pub struct ArgExtremesToFirstValues;

impl AnalyzerRule for ArgExtremesToFirstValues {
    fn name(&self) -> &'static str {
        "rmq_arg_extremes_to_first_values"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        if !RmqOptions::rewrites(config) {
            return Ok(plan);
        }
        let plan = plan.transform_up_with_subqueries(|node| {
            let schema = merge_schema(&node.inputs());
            let names = NamePreserver::new(&node);
            node.map_expressions(|expr| {
                let name = names.save(&expr);
                let replaced = expr.transform_up(|expr| first_value(expr, &schema))?;
                Ok(replaced.update_data(|expr| name.restore(expr)))
            })
        })?;
        Ok(plan.data)
    }
}

/// Whether an expression is `arg_min` or `arg_max`.
#[must_use]
pub fn is_arg_extreme(expr: &Expr) -> bool {
    matches!(expr, Expr::AggregateFunction(call) if call.func.inner().is::<ArgExtremeUdf>())
}

fn first_value(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::AggregateFunction(AggregateFunction { func, params }) = &expr else {
        return Ok(Transformed::no(expr));
    };
    let Some(udf) = func.inner().downcast_ref::<ArgExtremeUdf>() else {
        return Ok(Transformed::no(expr));
    };
    let [value, key] = params.args.as_slice() else {
        return Ok(Transformed::no(expr));
    };
    // Each only where the other is not NULL.
    let only_beside = |one: &Expr, other: &Expr| -> Result<Expr> {
        if other.nullable(schema)? {
            when(other.clone().is_not_null(), one.clone()).end()
        } else {
            Ok(one.clone())
        }
    };
    let order = only_beside(key, value)?.sort(udf.extreme() == Extreme::Min, false);
    let params = AggregateFunctionParams {
        args: vec![only_beside(value, key)?],
        // The same row is the best one without duplicates.
        distinct: false,
        order_by: vec![order],
        ..params.clone()
    };
    let func = first_value_udaf();
    Ok(Transformed::yes(Expr::AggregateFunction(
        AggregateFunction { func, params },
    )))
}
