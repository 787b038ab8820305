//! Range keys of several expressions, by which rows are sorted where one expression does not say in which order they
//! come.

use datafusion_common::{DFSchema, Result, ScalarValue};
use datafusion_expr::utils::split_conjunction;
use datafusion_expr::{Expr, ExprSchemable, LogicalPlan, ScalarUDF, SortExpr, lit};

use crate::common::sql_text::sql_text;
use crate::conditions::infallible::is_infallible;
use crate::conditions::lossless_casts::without_lossless_casts;
use crate::conditions::rejection::{Match, reject};
use crate::expr::late_error::{RaiseUdf, error_or_null, value_or_null};
use crate::expr::order_key::{OrderBoundUdf, OrderKeyUdf, order_key};
use crate::rules::condition_parts::Condition;

/// Makes the range key one of all expressions of ORDER BY, unless it is the only one and never NULL: a NULL is no range
/// key, but takes part in ORDER BY. Returns whether it has changed. The first expression must be in the order of the
/// range key.
pub fn order_by_all(
    condition: &mut Condition,
    first: &SortExpr,
    then_by: &[SortExpr],
    build: &LogicalPlan,
) -> Match<bool> {
    let schema = build.schema();
    let excludes_nulls =
        condition.excludes_null_keys(schema)? || filters_nulls(build, &condition.key);
    if then_by.is_empty() && excludes_nulls {
        return Ok(false);
    }
    let first = SortExpr {
        expr: condition.key.clone(),
        ..first.clone()
    };
    let mut orders = vec![first];
    orders.extend_from_slice(then_by);
    check_order(&orders, schema)?;
    let Some(ordered) = order_key(&orders) else {
        return Ok(false);
    };
    let key = std::mem::replace(&mut condition.key, ordered);
    if !condition.bounds.is_empty() {
        condition.add_build_filter(is_not_known_null(key, schema)?);
    }
    for (comparison, bound) in &mut condition.bounds {
        let of_all = OrderBoundUdf::new(Some(1 + then_by.len()));
        let udf = ScalarUDF::from(of_all.for_comparison(*comparison));
        *bound = udf.call(vec![std::mem::take(bound)]);
    }
    Ok(true)
}

/// That a key is not NULL. One that fails is kept: its error waits for rows with its equality keys.
fn is_not_known_null(key: Expr, schema: &DFSchema) -> Result<Expr> {
    if is_infallible(&key, schema)? {
        return Ok(key.is_not_null());
    }
    Ok(value_or_null(&key.is_null(), schema)?.is_not_true())
}

/// Makes the range key fail where an expression of another order may, and that expression NULL there: the errors of the
/// range key wait for rows with its equality keys. `key` is the range key as the query has it.
pub fn order_late(
    condition: &mut Condition,
    order_by: &mut [SortExpr],
    key: &Expr,
    build: &DFSchema,
) -> Result<()> {
    for order in order_by {
        if is_infallible(&order.expr, build)? {
            continue;
        }
        let value = value_or_null(&order.expr, build)?;
        if order.expr != *key
            && let Some(error) = error_or_null(&value)
        {
            condition.key = RaiseUdf::call(error, std::mem::take(&mut condition.key));
        }
        order.expr = value;
    }
    Ok(())
}

/// Rejects expressions by whose bytes rows can't be ordered.
pub fn check_order(order_by: &[SortExpr], schema: &DFSchema) -> Match<()> {
    for SortExpr { expr, .. } in order_by {
        let data_type = expr.get_type(schema)?;
        if !OrderKeyUdf::supports(&data_type) {
            return reject(format!("{} is a {data_type}", sql_text(expr)));
        }
    }
    Ok(())
}

/// Sorts rows whose range key is a zero by its sign, if the key is a float: MIN and MAX tell zeros apart, which are
/// equal keys.
pub fn order_zeros(condition: &mut Condition, build: &LogicalPlan) -> Match<()> {
    let key = without_lossless_casts(&condition.key, build.schema())?;
    let data_type = key.get_type(build.schema())?;
    if !data_type.is_floating() {
        return Ok(());
    }
    // Infinity with the sign of the zero. Other keys that are equal have equal inverses.
    let inverse = lit(ScalarValue::new_one(&data_type)?) / key.clone();
    let ascending = |by: Expr| SortExpr::new(by, true, false);
    let (first, then_by) = (ascending(condition.key.clone()), [ascending(inverse)]);
    order_by_all(condition, &first, &then_by, build)?;
    Ok(())
}

/// Whether a filter of the build side excludes NULLs of the key.
fn filters_nulls(build: &LogicalPlan, key: &Expr) -> bool {
    match build {
        LogicalPlan::Filter(filter) => {
            let conjuncts = split_conjunction(&filter.predicate);
            let excludes = |e: &&Expr| matches!(e, Expr::IsNotNull(checked) if **checked == *key);
            conjuncts.iter().any(excludes) || filters_nulls(&filter.input, key)
        }
        _ => false,
    }
}
