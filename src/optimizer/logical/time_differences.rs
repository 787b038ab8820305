//! The difference of two times is a duration. DataFusion compares it with an interval field by field, and loses a part
//! of its seconds.
//!
//! ```text
//!   a.ts - b.ts <= INTERVAL '7 days'      CAST(a.ts - b.ts AS Interval) <= INTERVAL '168 hours'
//!   a.ts - b.ts <= a.span                 CAST(a.ts - b.ts AS Interval) <= rmq_days_as_time(a.span)
//!   extract(epoch FROM a.ts - b.ts)       rmq_seconds(a.ts - b.ts)
//! ```
//!
//! As an interval a duration has no days, however long it is, so that DataFusion takes 30 days for less than
//! `INTERVAL '7 days'`. A day is 24 hours here, as where durations are shown. Months have no one length: compared with
//! these, a difference is an error.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::functions::{core, datetime};
use datafusion::logical_expr::expr::{BinaryExpr, ScalarFunction};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Operator};
use datafusion::optimizer::AnalyzerRule;
use datafusion::optimizer::simplify_expressions::ExprSimplifier;

use arrow::datatypes::{DataType, IntervalUnit};

use crate::common::options::RmqOptions;
use crate::expr::duration::{DaysAsTimeUdf, SecondsUdf, days_as_time};
use crate::optimizer::logical::common::outer_columns::has_expression;
use crate::optimizer::logical::common::plans::map_expressions;

/// Compares durations with intervals by their length, and takes their seconds with the fraction. Does nothing if
/// `rmq.rewrite` is false.
///
/// It must run after DataFusion has given both sides of comparisons one type.
#[derive(Debug, Default)]
pub struct TimeDifferences;

impl AnalyzerRule for TimeDifferences {
    fn name(&self) -> &'static str {
        "rmq_time_differences"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        if !RmqOptions::rewrites(config) {
            return Ok(plan);
        }
        let plan = plan.transform_up_with_subqueries(|node| {
            if !has_expression(&node, may_be_of_duration)? {
                return Ok(Transformed::no(node));
            }
            let schema = merge_schema(&node.inputs());
            map_expressions(node, |expr| expr.transform_up(|e| mended(e, &schema)))
        })?;
        Ok(plan.data)
    }
}

/// Whether an expression is what a duration is made to be compared, or its seconds.
fn may_be_of_duration(expr: &Expr) -> bool {
    match expr {
        Expr::Cast(cast) => is_interval(cast.field.data_type()),
        Expr::ScalarFunction(call) => *call.func == *datetime::date_part(),
        _ => false,
    }
}

fn is_interval(data_type: &DataType) -> bool {
    *data_type == DataType::Interval(IntervalUnit::MonthDayNano)
}

fn mended(mut expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    if let Some(duration) = extracted_from(&expr, schema) {
        return Ok(Transformed::yes(SecondsUdf::call(duration.clone())));
    }
    let mut operands = compared(&mut expr);
    if !operands.iter().any(|operand| is_duration(operand, schema)) {
        return Ok(Transformed::no(expr));
    }
    for operand in &mut operands {
        if !is_duration(operand, schema) {
            **operand = without_days(std::mem::take(*operand), schema)?;
        }
    }
    Ok(Transformed::yes(expr))
}

/// The duration that `extract(epoch FROM …)` is of, if it is that.
fn extracted_from<'a>(expr: &'a Expr, schema: &DFSchema) -> Option<&'a Expr> {
    let Expr::ScalarFunction(call) = expr else {
        return None;
    };
    let [Expr::Literal(part, _), of] = call.args.as_slice() else {
        return None;
    };
    let is_epoch = part.try_as_str()??.eq_ignore_ascii_case("epoch");
    let is_extract = is_epoch && *call.func == *datetime::date_part();
    let data_type = is_extract.then(|| of.get_type(schema).ok())??;
    matches!(data_type, DataType::Duration(_)).then_some(of)
}

/// What an expression compares with one another.
fn compared(expr: &mut Expr) -> Vec<&mut Expr> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(*op) => vec![left, right],
        Expr::Between(between) => vec![&mut between.expr, &mut between.low, &mut between.high],
        Expr::InList(list) => {
            let values = list.list.iter_mut();
            std::iter::once(list.expr.as_mut()).chain(values).collect()
        }
        Expr::Case(case) => match &mut case.expr {
            Some(compared) => {
                let values = case
                    .when_then_expr
                    .iter_mut()
                    .map(|(when, _)| when.as_mut());
                std::iter::once(compared.as_mut()).chain(values).collect()
            }
            None => vec![],
        },
        Expr::ScalarFunction(ScalarFunction { func, args }) => {
            let functions = [core::greatest(), core::least(), core::nullif()];
            if functions.iter().any(|function| **function == **func) {
                args.iter_mut().collect()
            } else {
                vec![]
            }
        }
        _ => vec![],
    }
}

fn is_comparison(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(
        op,
        Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom
    )
}

/// Whether an operand is a duration, which DataFusion has made an interval.
fn is_duration(expr: &Expr, schema: &DFSchema) -> bool {
    let Expr::Cast(cast) = expr else {
        return false;
    };
    let of = cast.expr.get_type(schema);
    is_interval(cast.field.data_type()) && matches!(of, Ok(DataType::Duration(_)))
}

/// An interval as one that is compared with a duration.
fn without_days(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    Ok(match expr {
        Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(interval)), metadata) => {
            let value = ScalarValue::IntervalMonthDayNano(Some(days_as_time(interval)?));
            Expr::Literal(value, metadata)
        }
        // Done before.
        Expr::ScalarFunction(call) if call.func.inner().is::<DaysAsTimeUdf>() => {
            Expr::ScalarFunction(call)
        }
        expr if is_interval(&expr.get_type(schema)?) => {
            let call = DaysAsTimeUdf::call(expr);
            // A length that is written as a sum or a product is found as a constant by the rules for joins.
            let simplifier = ExprSimplifier::new(SimplifyContext::default());
            simplifier.simplify(call.clone()).unwrap_or(call)
        }
        other => other,
    })
}
