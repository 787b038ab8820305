//! CASE evaluates a branch only for the rows that take it; a call taken out of the branch is answered for
//! all rows. Bounds that may fail, such as `10 / x`, must not see the other rows.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, DataFusionError, Result, ScalarValue};
use datafusion::logical_expr::{Case, Expr, ExprSchemable, Operator, lit};

use super::calls::range_udf;

/// A branch of a CASE by its number; `None` is ELSE.
pub(super) type Branch = (Case, Option<usize>);

/// Gives the bounds of the calls in the branches of each CASE in `expr` the branch's condition: they become NULL, an
/// empty range, for rows that go elsewhere.
pub(super) fn guard_bounds(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    expr.transform_up(|expr| {
        let Expr::Case(case) = expr else {
            return Ok(Transformed::no(expr));
        };
        let mut conditions = case
            .when_then_expr
            .iter()
            .map(|(when, _)| when)
            .chain(&case.expr);
        if conditions.try_fold(false, |found, c| {
            Ok::<_, DataFusionError>(found || !can_repeat(c)?)
        })? {
            return Ok(Transformed::no(Expr::Case(case)));
        }
        let mut guarded = case.clone();
        let mut changed = false;
        for (branch, (_, result)) in guarded.when_then_expr.iter_mut().enumerate() {
            changed |= guard(result, &case, Some(branch), schema)?;
        }
        if let Some(result) = &mut guarded.else_expr {
            changed |= guard(result, &case, None, schema)?;
        }
        let case = Expr::Case(if changed { guarded } else { case });
        Ok(Transformed::new_transformed(case, changed))
    })
}

/// Guards the bounds in `result`, the result of branch number `branch` of `case`, or its ELSE.
fn guard(
    result: &mut Box<Expr>,
    case: &Case,
    branch: Option<usize>,
    schema: &DFSchema,
) -> Result<bool> {
    let expr = std::mem::take(result.as_mut());
    let done = expr.transform_up(|expr| {
        if range_udf(&expr).is_none() {
            return Ok(Transformed::no(expr));
        }
        let Expr::ScalarFunction(mut call) = expr else {
            return Ok(Transformed::no(expr));
        };
        let mut changed = false;
        for bound in call.args.iter_mut().skip(1) {
            if may_fail(bound)? {
                let null = ScalarValue::try_from(&bound.get_type(schema)?)?;
                *bound = only_in(case, branch, std::mem::take(bound), &null);
                changed = true;
            }
        }
        Ok(Transformed::new_transformed(
            Expr::ScalarFunction(call),
            changed,
        ))
    })?;
    **result = done.data;
    Ok(done.transformed)
}

/// `bound` where `case` takes that branch, `null` elsewhere.
pub(super) fn only_in(case: &Case, branch: Option<usize>, bound: Expr, null: &ScalarValue) -> Expr {
    let mut only = case.clone();
    for (i, (_, result)) in only.when_then_expr.iter_mut().enumerate() {
        let kept = if branch == Some(i) {
            bound.clone()
        } else {
            lit(null.clone())
        };
        **result = kept;
    }
    only.else_expr = branch.is_none().then(|| Box::new(bound));
    Expr::Case(only)
}

/// Whether a condition can stand in a bound too: not if it differs each time that it is evaluated, nor with a subquery
/// that DataFusion takes in its own operators only.
fn can_repeat(condition: &Expr) -> Result<bool> {
    let subquery = condition.exists(|e| {
        Ok(matches!(
            e,
            Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_)
        ))
    })?;
    Ok(!subquery && !condition.is_volatile())
}

/// Whether evaluating `bound` can be an error for some row.
fn may_fail(bound: &Expr) -> Result<bool> {
    bound.exists(|e| {
        Ok(match e {
            Expr::Column(_)
            | Expr::Literal(..)
            | Expr::OuterReferenceColumn(..)
            | Expr::Alias(_)
            | Expr::Case(_)
            | Expr::IsNull(_)
            | Expr::IsNotNull(_) => false,
            // Integers wrap around.
            Expr::BinaryExpr(e) => !matches!(e.op, Operator::Plus | Operator::Minus),
            _ => range_udf(e).is_none(),
        })
    })
}
