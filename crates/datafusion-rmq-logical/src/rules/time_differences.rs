//! The difference of two times is a duration. DataFusion compares it with an interval field by field, and loses a part
//! of its seconds.
//!
//! ```text
//!   a.ts - b.ts <= INTERVAL '7 days'      CAST(a.ts - b.ts AS Interval) <= INTERVAL '168 hours'
//!   a.ts - b.ts <= a.span                 CAST(a.ts - b.ts AS Interval) <= rmq_days_as_time(a.span)
//!   coalesce(a.ts - b.ts, a.span) <= …    rmq_days_as_time(coalesce(CAST(a.ts - b.ts AS Interval), a.span)) <= …
//!   extract(epoch FROM a.ts - b.ts)       rmq_seconds(a.ts - b.ts)
//! ```
//!
//! As an interval a duration has no days, however long it is, so that DataFusion takes 30 days for less than
//! `INTERVAL '7 days'`. A day is 24 hours here, as where durations are shown. Months have no one length: compared with
//! these, a difference is an error.

use std::sync::Arc;

use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, Result, ScalarValue};
use datafusion_dependent_join::named;
use datafusion_expr::expr::{BinaryExpr, InSubquery, ScalarFunction, SetComparison};
use datafusion_expr::simplify::SimplifyContext;
use datafusion_expr::utils::merge_schema;
use datafusion_expr::{Expr, ExprSchemable, LogicalPlan, Operator, Projection, Subquery};
use datafusion_functions::{core, datetime};
use datafusion_optimizer::AnalyzerRule;
use datafusion_optimizer::simplify_expressions::ExprSimplifier;

use arrow::datatypes::{DataType, IntervalUnit};

use crate::common::options::RmqOptions;
use crate::expr::duration::{DaysAsTimeUdf, SecondsUdf, days_as_time};
use crate::rules::common::outer_columns::has_expression;
use crate::rules::common::plans::map_expressions;

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
            let node = map_expressions(node, |expr| expr.transform_up(|e| mended(e, &schema)))?;
            node.transform_data(|node| mended_keys(node, &schema))
        })?;
        Ok(plan.data)
    }
}

/// Whether an expression is what a duration is made to be compared, or its seconds.
#[must_use]
pub fn may_be_of_duration(expr: &Expr) -> bool {
    match expr {
        Expr::Cast(cast) => is_interval(cast.field.data_type()),
        Expr::ScalarFunction(call) => {
            let functions = [datetime::date_part(), core::arrow_cast()];
            functions.iter().any(|function| **function == *call.func)
        }
        // The cast may be one in the subquery.
        Expr::InSubquery(_) | Expr::SetComparison(_) => true,
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
    if let Expr::InSubquery(InSubquery {
        expr: left,
        subquery,
        ..
    })
    | Expr::SetComparison(SetComparison {
        expr: left,
        subquery,
        ..
    }) = &mut expr
    {
        let is_new = compared_with_rows(left, subquery, schema)?;
        return Ok(Transformed::new(expr, is_new, TreeNodeRecursion::Continue));
    }
    let mut operands = compared(&mut expr);
    if !operands
        .iter()
        .any(|operand| is_of_duration(operand, schema))
    {
        return Ok(Transformed::no(expr));
    }
    for operand in &mut operands {
        **operand = without_days(std::mem::take(*operand), schema)?;
    }
    Ok(Transformed::yes(expr))
}

/// A value and the rows that it is compared with. Returns whether one of them is a duration.
fn compared_with_rows(value: &mut Expr, rows: &mut Subquery, schema: &DFSchema) -> Result<bool> {
    let of_rows = match rows.subquery.as_ref() {
        LogicalPlan::Projection(projection) => match projection.expr.as_slice() {
            [column] => is_of_duration(column, projection.input.schema()),
            _ => false,
        },
        _ => false,
    };
    if !of_rows && !is_of_duration(value, schema) {
        return Ok(false);
    }
    *value = without_days(std::mem::take(value), schema)?;
    let plan = &rows.subquery;
    let columns = plan.schema().columns().into_iter().map(Expr::Column);
    let columns = columns.map(|column| without_days(column, plan.schema()));
    let columns = named(columns.collect::<Result<_>>()?, plan.schema());
    let plan = LogicalPlan::Projection(Projection::try_new(columns, Arc::clone(plan))?);
    *rows = rows.with_plan(Arc::new(plan));
    Ok(true)
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

/// The keys of a join with USING, which are no comparisons.
fn mended_keys(node: LogicalPlan, schema: &DFSchema) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Join(mut join) = node else {
        return Ok(Transformed::no(node));
    };
    let mut is_new = false;
    for (left, right) in &mut join.on {
        if is_of_duration(left, schema) || is_of_duration(right, schema) {
            for key in [left, right] {
                *key = without_days(std::mem::take(key), schema)?;
            }
            is_new = true;
        }
    }
    let node = LogicalPlan::Join(join);
    Ok(Transformed::new(node, is_new, TreeNodeRecursion::Continue))
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

/// Whether the value of an interval may be a duration, which DataFusion has made an interval.
fn is_of_duration(expr: &Expr, schema: &DFSchema) -> bool {
    let is_of = |expr: &Expr| is_of_duration(expr, schema);
    match expr {
        Expr::Cast(cast) => is_duration(expr, schema) || is_of(&cast.expr),
        Expr::Alias(alias) => is_of(&alias.expr),
        Expr::Negative(inner) => is_of(inner),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            matches!(op, Operator::Plus | Operator::Minus) && (is_of(left) || is_of(right))
        }
        Expr::Case(case) => {
            let mut values = case.when_then_expr.iter().map(|(_, then)| then);
            values.any(|value| is_of(value)) || case.else_expr.as_deref().is_some_and(is_of)
        }
        Expr::ScalarFunction(call) => {
            let is_interval = expr.get_type(schema).is_ok_and(|of| is_interval(&of));
            let is_duration =
                |arg: &Expr| matches!(arg.get_type(schema), Ok(DataType::Duration(_)));
            is_interval && call.args.iter().any(|arg| is_duration(arg) || is_of(arg))
        }
        _ => false,
    }
}

/// Whether an operand is a duration, which DataFusion has made an interval.
fn is_duration(expr: &Expr, schema: &DFSchema) -> bool {
    let Expr::Cast(cast) = expr else {
        return false;
    };
    let of = cast.expr.get_type(schema);
    is_interval(cast.field.data_type()) && matches!(of, Ok(DataType::Duration(_)))
}

/// An interval as one that is compared with a duration. One that is a duration has no days.
fn without_days(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    Ok(match expr {
        expr if is_duration(&expr, schema) => expr,
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
