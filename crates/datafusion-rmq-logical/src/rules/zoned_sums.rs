//! Sums of a time in a time zone and days or months.
//!
//! ```text
//!   r.t <= l.t + INTERVAL '1 day'      r.t <= rmq_zoned_sum(l.t, INTERVAL '1 day')
//! ```
//!
//! Where the clocks of the zone leave the sum out, or show it twice, DataFusion has an error. A bound of a range join
//! is another time there, so that whether a query failed depended on the join that was chosen for it.

use arrow::datatypes::{DataType, IntervalMonthDayNano};
use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result, ScalarValue};
use datafusion_expr::expr::BinaryExpr;
use datafusion_expr::simplify::SimplifyContext;
use datafusion_expr::utils::merge_schema;
use datafusion_expr::{Expr, ExprSchemable, LogicalPlan, Operator, ScalarUDF, lit};
use datafusion_optimizer::AnalyzerRule;
use datafusion_optimizer::simplify_expressions::ExprSimplifier;

use crate::common::options::RmqOptions;
use crate::expr::shifted_bound::ZonedSumUdf;
use crate::expr::ticks::opposite;
use crate::rules::common::outer_columns::has_expression;
use crate::rules::common::plans::map_expressions;

/// Adds days and months to times in a zone without an error where its clocks change. Does nothing if `rmq.rewrite` is
/// false.
///
/// It must run after DataFusion has given both operands their types.
#[derive(Debug, Default)]
pub struct ZonedSums;

impl AnalyzerRule for ZonedSums {
    fn name(&self) -> &'static str {
        "rmq_zoned_sums"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        if !RmqOptions::rewrites(config) {
            return Ok(plan);
        }
        let plan = plan.transform_up_with_subqueries(|node| {
            if !has_expression(&node, |expr| operands(expr).is_some())? {
                return Ok(Transformed::no(node));
            }
            let schema = merge_schema(&node.inputs());
            map_expressions(node, |expr| {
                expr.transform_up(|expr| {
                    Ok(match zoned_sum(&expr, &schema)? {
                        Some(sum) => Transformed::yes(sum),
                        None => Transformed::no(expr),
                    })
                })
            })
        })?;
        Ok(plan.data)
    }
}

/// Whether an expression may be the sum of a time and an interval.
#[must_use]
pub fn may_be_zoned_sum(expr: &Expr) -> bool {
    let is_number =
        |e: &Expr| matches!(e, Expr::Literal(value, _) if value.data_type().is_numeric());
    operands(expr).is_some_and(|(left, _, right)| !is_number(left) && !is_number(right))
}

/// What is added to what, or subtracted from it.
fn operands(expr: &Expr) -> Option<(&Expr, Operator, &Expr)> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right })
            if matches!(op, Operator::Plus | Operator::Minus) =>
        {
            Some((left, *op, right))
        }
        _ => None,
    }
}

/// The sum of a time and an interval, if an expression is one in which clocks matter.
fn zoned_sum(expr: &Expr, schema: &DFSchema) -> Result<Option<Expr>> {
    let Some((left, op, right)) = operands(expr) else {
        return Ok(None);
    };
    let has_clocks = |of: &Expr| of.get_type(schema).is_ok_and(|of| changes_clocks(&of));
    let (time, interval) = if has_clocks(left) {
        (left, right)
    } else if op == Operator::Plus && has_clocks(right) {
        (right, left)
    } else {
        return Ok(None);
    };
    let Some(interval) = constant_interval(interval, schema)? else {
        return Ok(None);
    };
    let added = if op == Operator::Minus {
        opposite(interval)
    } else {
        Some(interval)
    };
    let added = added.filter(|added| (added.months, added.days) != (0, 0));
    Ok(added.map(|added| {
        let added = lit(ScalarValue::IntervalMonthDayNano(Some(added)));
        ScalarUDF::from(ZonedSumUdf::new()).call(vec![time.clone(), added])
    }))
}

/// Whether values of a type are times of a zone in which a day may have other than 24 hours.
fn changes_clocks(data_type: &DataType) -> bool {
    match data_type {
        DataType::Timestamp(_, Some(zone)) => {
            !zone.starts_with(['+', '-']) && !zone.eq_ignore_ascii_case("utc")
        }
        _ => false,
    }
}

/// The interval that an expression without columns is.
fn constant_interval(expr: &Expr, schema: &DFSchema) -> Result<Option<IntervalMonthDayNano>> {
    let is_interval = matches!(expr.get_type(schema)?, DataType::Interval(_));
    if !is_interval || expr.any_column_refs() || expr.is_volatile() {
        return Ok(None);
    }
    let simplifier = ExprSimplifier::new(SimplifyContext::default());
    Ok(match simplifier.simplify(expr.clone()) {
        Ok(Expr::Literal(ScalarValue::IntervalMonthDayNano(interval), _)) => interval,
        _ => None,
    })
}
