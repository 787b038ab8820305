//! CASE evaluates a branch only for the rows that take it; a call or subquery taken out of the branch is answered for all rows. Bounds
//! that may fail, such as `10 / x`, must not see the other rows, so they get the branch's conditions: they become NULL, an empty range,
//! for rows that go elsewhere. The same holds for:
//! - the conditions of a CASE, which see only rows that no earlier one holds for;
//! - COALESCE, NVL and their like, which DataFusion makes a CASE ([`expand_lazy`]);
//! - the right operand of AND and OR, which DataFusion evaluates for the rows that need it if there are few of them.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::BinaryExpr;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Case, Cast, Expr, ExprSchemable, Operator, lit};

use crate::rewrite::common::infallible::keeps_values;
use crate::rewrite::range_call::calls::range_udf;

/// The rows for which a part of an expression is evaluated.
#[derive(Debug, Clone)]
pub(crate) struct Branch {
    case: Case,
    /// The number of the branch of `case`; `None` is ELSE.
    number: Option<usize>,
    /// Whether the other rows never see the part. AND and OR leave that open.
    is_promised: bool,
}

impl Branch {
    /// A branch of a CASE.
    pub(crate) fn of_case(case: Case, number: Option<usize>) -> Self {
        Self {
            case,
            number,
            is_promised: true,
        }
    }

    /// The right operand of AND or OR: the rows whose result the left one leaves open.
    pub(crate) fn of_operator(left: &Expr, op: Operator) -> Option<Self> {
        let open = match op {
            Operator::And => left.clone().is_not_false(),
            Operator::Or => left.clone().is_not_true(),
            _ => return None,
        };
        let result = Box::new(lit(ScalarValue::Null));
        Some(Self {
            case: Case::new(None, vec![(Box::new(open), result)], None),
            number: Some(0),
            is_promised: false,
        })
    }

    /// `expr` where the branch is taken, `null` elsewhere. `expr` itself if it need not be guarded from the other rows.
    pub(crate) fn guard(&self, expr: Expr, null: &ScalarValue, schema: &DFSchema) -> Result<Expr> {
        if !self.is_promised && !may_fail(&expr, schema)? {
            return Ok(expr);
        }
        let mut only = self.case.clone();
        for (i, (_, result)) in only.when_then_expr.iter_mut().enumerate() {
            let kept = if self.number == Some(i) {
                expr.clone()
            } else {
                lit(null.clone())
            };
            **result = kept;
        }
        only.else_expr = self.number.is_none().then(|| Box::new(expr));
        Ok(Expr::Case(only))
    }
}

/// COALESCE, NVL and their like as the CASE that DataFusion makes of them, where `is_wanted` finds something in their arguments.
pub(crate) fn expand_lazy(
    expr: Expr,
    is_wanted: impl Fn(&Expr) -> Result<bool>,
) -> Result<Transformed<Expr>> {
    expr.transform_up(|expr| {
        let Expr::ScalarFunction(call) = &expr else {
            return Ok(Transformed::no(expr));
        };
        if !call.func.short_circuits() || !is_wanted(&expr)? {
            return Ok(Transformed::no(expr));
        }
        let context = SimplifyContext::default();
        match call.func.simplify(call.args.clone(), &context) {
            Ok(ExprSimplifyResult::Simplified(case)) => Ok(Transformed::yes(case)),
            // A function that can't say it without knowing more stays as it is.
            Ok(ExprSimplifyResult::Original(_)) | Err(_) => Ok(Transformed::no(expr)),
        }
    })
}

/// Applies `change` to an expression of a node; in a filter to each conjunct, as DataFusion may check these in any order.
pub(crate) fn map_conjuncts(
    is_filter: bool,
    expr: Expr,
    mut change: impl FnMut(Expr) -> Result<Transformed<Expr>>,
) -> Result<Transformed<Expr>> {
    if !is_filter {
        return change(expr);
    }
    let mut changed = false;
    let mut conjuncts = vec![];
    for conjunct in split_conjunction_owned(expr.clone()) {
        let conjunct = change(conjunct)?;
        changed |= conjunct.transformed;
        conjuncts.push(conjunct.data);
    }
    Ok(match conjunction(conjuncts) {
        Some(all) if changed => Transformed::yes(all),
        _ => Transformed::no(expr),
    })
}

/// Guards the bounds of all calls in `expr` that are evaluated for some rows only.
pub(crate) fn guard_bounds(
    expr: Expr,
    schema: &DFSchema,
    operators: bool,
) -> Result<Transformed<Expr>> {
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
    // The conditions so far.
    let mut known = Case::new(case.expr.clone(), vec![], None);
    let mut can_guard = case.expr.as_deref().map_or(Ok(true), can_repeat)?;
    for (i, (when, then)) in case.when_then_expr.iter_mut().enumerate() {
        if can_guard && i > 0 {
            changed |= guard(when, &Branch::of_case(known.clone(), None), schema)?;
        }
        can_guard = can_guard && can_repeat(when)?;
        // In place of the result, which no guard takes.
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

/// Guards the bounds in `part`, which is evaluated in this branch only.
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

/// Whether a condition can stand in a bound too: not if it differs each time that it is evaluated, nor with a subquery
/// that DataFusion takes in its own operators only. Range functions are evaluated once, however often they stand there.
fn can_repeat(condition: &Expr) -> Result<bool> {
    let differs = condition.exists(|e| {
        let is_volatile = e.is_volatile_node() && range_udf(e).is_none();
        Ok(is_volatile || is_in_or_exists(e))
    })?;
    Ok(!differs)
}

/// Whether this is a subquery that DataFusion takes in filters only.
pub(crate) fn is_in_or_exists(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_)
    )
}

/// Whether evaluating `bound` can be an error for some row, apart from the overflow of a sum or difference.
fn may_fail(bound: &Expr, schema: &DFSchema) -> Result<bool> {
    bound.exists(|e| {
        Ok(match e {
            Expr::Column(_)
            | Expr::Literal(..)
            | Expr::OuterReferenceColumn(..)
            | Expr::Alias(_)
            | Expr::Case(_)
            | Expr::IsNull(_)
            | Expr::IsNotNull(_) => false,
            Expr::Cast(Cast { expr, field }) => match expr.get_type(schema) {
                Ok(from) => !keeps_values(&from, field.data_type()),
                Err(_) => true,
            },
            // Integers wrap around.
            Expr::BinaryExpr(e) => !matches!(e.op, Operator::Plus | Operator::Minus),
            _ => range_udf(e).is_none(),
        })
    })
}
