//! CASE evaluates a branch only for the rows that take it; a call or subquery taken out of the branch is answered for all rows. Bounds
//! that may fail, such as `10 / x`, must not see the other rows, so they get the branch's conditions: they become NULL, an empty range,
//! for rows that go elsewhere. The same holds for:
//! - the conditions of a CASE, which see only rows that no earlier one holds for;
//! - COALESCE, NVL and their like, which DataFusion makes a CASE ([`expand_lazy`]);
//! - the right operand of AND and OR, which DataFusion evaluates for the rows that need it if there are few of them.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Case, Cast, Expr, ExprSchemable, Operator, lit};

use crate::rewrite::common::infallible::keeps_values;
use crate::rewrite::common::range_functions::range_udf;

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

/// Whether this is a subquery that DataFusion takes in filters only.
pub(crate) fn is_in_or_exists(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_)
    )
}

/// Whether evaluating `bound` can be an error for some row, apart from the overflow of a sum or difference.
pub(crate) fn may_fail(bound: &Expr, schema: &DFSchema) -> Result<bool> {
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
