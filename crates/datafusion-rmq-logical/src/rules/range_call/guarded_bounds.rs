//! Guards the bounds of calls in CASE, AND and OR, so that bounds that may fail are evaluated only for the rows that
//! reach the call.

use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result, ScalarValue};
use datafusion_expr::expr::BinaryExpr;
use datafusion_expr::{Case, Expr, ExprSchemable, lit};

use crate::expr::range_calls::{is_volatile, range_udf};
use crate::rules::common::conditional::{Branch, expand_lazy, is_in_or_exists, may_fail};

/// Guards the bounds of all calls in `expr` that are evaluated for some rows only. With `operators`, also in the right
/// operands of AND and OR.
pub fn guard_bounds(expr: Expr, schema: &DFSchema, operators: bool) -> Result<Transformed<Expr>> {
    let expanded = expand_lazy(expr, |e| e.exists(|e| Ok(range_udf(e).is_some())))?;
    expanded.transform_data(|expr| {
        expr.transform_up(|expr| match expr {
            Expr::Case(case) => guard_case(case, schema),
            Expr::BinaryExpr(binary) if operators => guard_operand(binary, schema),
            other => Ok(Transformed::no(other)),
        })
    })
}

fn guard_case(mut case: Case, schema: &DFSchema) -> Result<Transformed<Expr>> {
    if !has_call(&case)? {
        return Ok(Transformed::no(Expr::Case(case)));
    }
    let mut changed = false;
    // The branches so far.
    let mut known = Case::new(case.expr.clone(), vec![], None);
    let mut can_guard = case.expr.as_deref().map_or(Ok(true), can_repeat)?;
    for (i, (when, then)) in case.when_then_expr.iter_mut().enumerate() {
        if can_guard && i > 0 {
            changed |= guard(when, &Branch::of_case(known.clone(), None), schema)?;
        }
        can_guard = can_guard && can_repeat(when)?;
        // A guard does not use the results.
        let result = Box::new(lit(ScalarValue::Null));
        known.when_then_expr.push((when.clone(), result));
        if can_guard {
            changed |= guard(then, &Branch::of_case(known.clone(), Some(i)), schema)?;
        }
    }
    if let Some(result) = case.else_expr.as_mut().filter(|_| can_guard) {
        changed |= guard(result, &Branch::of_case(known, None), schema)?;
    }
    Ok(Transformed::new_transformed(Expr::Case(case), changed))
}

/// Whether a condition or a result of a CASE has a call of a range function.
fn has_call(case: &Case) -> Result<bool> {
    let parts = case
        .when_then_expr
        .iter()
        .flat_map(|(when, then)| [when, then]);
    for part in parts.chain(&case.else_expr) {
        if part.exists(|e| Ok(range_udf(e).is_some()))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn guard_operand(mut binary: BinaryExpr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let mut changed = false;
    if let Some(branch) = Branch::of_operator(&binary.left, binary.op)
        && can_repeat(&binary.left)?
    {
        changed = guard(&mut binary.right, &branch, schema)?;
    }
    Ok(Transformed::new_transformed(
        Expr::BinaryExpr(binary),
        changed,
    ))
}

/// Guards the bounds of the calls in `part`, which is evaluated in this branch only.
fn guard(part: &mut Box<Expr>, branch: &Branch, schema: &DFSchema) -> Result<bool> {
    let expr = std::mem::take(part.as_mut());
    let done = expr.transform_up(|expr| {
        if range_udf(&expr).is_none() {
            return Ok(Transformed::no(expr));
        }
        let Expr::ScalarFunction(mut call) = expr else {
            return Ok(Transformed::no(expr));
        };
        let mut changed = false;
        for bound in call.args.iter_mut().skip(1) {
            if may_fail(bound, schema)? {
                let null = ScalarValue::try_from(&bound.get_type(schema)?)?;
                *bound = branch.guard(std::mem::take(bound), &null, schema)?;
                changed = true;
            }
        }
        Ok(Transformed::new_transformed(
            Expr::ScalarFunction(call),
            changed,
        ))
    })?;
    **part = done.data;
    Ok(done.transformed)
}

/// Whether a condition can be repeated in a bound: not if it is volatile, nor with a subquery that DataFusion allows in
/// filters only. Calls of range functions can, because equal calls are evaluated once.
fn can_repeat(condition: &Expr) -> Result<bool> {
    Ok(!is_volatile(condition) && !condition.exists(|e| Ok(is_in_or_exists(e)))?)
}
