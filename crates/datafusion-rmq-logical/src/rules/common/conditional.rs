//! Expressions that are evaluated for some rows only.
//!
//! CASE evaluates a branch only for the rows that take it, but a call or a subquery that a rule takes out of the branch
//! is evaluated for all rows. A bound that may fail, such as `10 / x`, therefore gets the branch's conditions: for rows
//! that take another branch it is NULL, which is an empty range.
//!
//! ```text
//!   CASE WHEN x <> 0 THEN range_min('t.v', 10 / x, 9) END
//!     bound 10 / x  →  CASE WHEN x <> 0 THEN 10 / x END
//! ```
//!
//! The same applies to:
//! - the conditions of a CASE, each of which is evaluated only for rows for which no earlier condition holds;
//! - functions that do not evaluate all arguments, such as COALESCE, which DataFusion rewrites to a CASE
//!   ([`expand_lazy`]);
//! - the right operand of AND and OR, which DataFusion evaluates only for the rows that need it if these are few.

use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion, TreeNodeVisitor};
use datafusion_common::{DFSchema, Result, ScalarValue, plan_err};
use datafusion_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion_expr::utils::{conjunction, split_conjunction_owned};
use datafusion_expr::{Case, Cast, Expr, ExprSchemable, Operator, lit};

use crate::conditions::lossless_casts::keeps_values;
use crate::expr::range_calls::range_udf;

/// The most parts of a guarded expression.
const MOST_PARTS: usize = 10_000;

/// The most CASE within one another in a guarded expression. DataFusion's search for the type of a CASE, which asks
/// whether each result is nullable, takes a time that is exponential in them.
const MOST_NESTED: usize = 8;

/// The rows for which a part of an expression is evaluated.
#[derive(Debug, Clone)]
pub struct Branch {
    case: Case,
    /// The index of the branch in `case`; `None` is ELSE.
    number: Option<usize>,
    /// Whether SQL guarantees that other rows do not evaluate the part. It does for CASE, not for AND and OR.
    is_promised: bool,
}

impl Branch {
    /// A branch of a CASE.
    pub fn of_case(case: Case, number: Option<usize>) -> Self {
        Self {
            case,
            number,
            is_promised: true,
        }
    }

    /// The right operand of AND or OR, for the rows whose result the left operand does not decide. `None` for other
    /// operators.
    pub fn of_operator(left: &Expr, op: Operator) -> Option<Self> {
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

    /// Makes an expression that is `expr` if the branch is taken and `null` otherwise. Returns `expr` itself if it
    /// needs no guard.
    pub fn guard(&self, expr: Expr, null: &ScalarValue, schema: &DFSchema) -> Result<Expr> {
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
        let guarded = Expr::Case(only);
        check_size(&guarded)?;
        Ok(guarded)
    }
}

/// Rejects a guarded expression that is too large. Guards of calls whose conditions have guarded calls grow
/// exponentially with the depth.
fn check_size(guarded: &Expr) -> Result<()> {
    let mut size = Size::default();
    guarded.visit(&mut size)?;
    if size.is_too_large() {
        return plan_err!(
            "an argument of a range function or a subquery is in CASE, COALESCE, AND or OR within too many others, whose \
             conditions it would have to repeat (at most {MOST_NESTED} CASE within one another, with {MOST_PARTS} parts); \
             compute the inner ones in a derived table"
        );
    }
    Ok(())
}

/// How large an expression is.
#[derive(Default)]
struct Size {
    parts: usize,
    /// The CASE around the part that is visited.
    depth: usize,
    deepest: usize,
}

impl Size {
    fn is_too_large(&self) -> bool {
        self.parts > MOST_PARTS || self.deepest > MOST_NESTED
    }
}

impl<'n> TreeNodeVisitor<'n> for Size {
    type Node = Expr;

    fn f_down(&mut self, expr: &'n Expr) -> Result<TreeNodeRecursion> {
        self.parts += 1;
        self.depth += usize::from(matches!(expr, Expr::Case(_)));
        self.deepest = self.deepest.max(self.depth);
        Ok(if self.is_too_large() {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    }

    fn f_up(&mut self, expr: &'n Expr) -> Result<TreeNodeRecursion> {
        self.depth -= usize::from(matches!(expr, Expr::Case(_)));
        Ok(TreeNodeRecursion::Continue)
    }
}

/// Rewrites COALESCE and other functions that do not evaluate all arguments to the CASE that DataFusion makes of them,
/// if `is_searched` holds for the call.
pub fn expand_lazy(
    expr: Expr,
    is_searched: impl Fn(&Expr) -> Result<bool>,
) -> Result<Transformed<Expr>> {
    expr.transform_up(|expr| {
        let Expr::ScalarFunction(call) = &expr else {
            return Ok(Transformed::no(expr));
        };
        if !call.func.short_circuits() || !is_searched(&expr)? {
            return Ok(Transformed::no(expr));
        }
        let context = SimplifyContext::default();
        match call.func.simplify(call.args.clone(), &context) {
            Ok(ExprSimplifyResult::Simplified(case)) => Ok(Transformed::yes(case)),
            // A function without such a form is kept.
            Ok(ExprSimplifyResult::Original(_)) | Err(_) => Ok(Transformed::no(expr)),
        }
    })
}

/// Applies `change` to an expression of a node; in a filter to each conjunct, because DataFusion may evaluate these in
/// any order.
pub fn map_conjuncts(
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

/// Whether this is a subquery that DataFusion allows in filters only.
pub fn is_in_or_exists(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_)
    )
}

/// Whether evaluating `bound` may fail for some row. Overflow of a sum or difference does not fail.
pub fn may_fail(bound: &Expr, schema: &DFSchema) -> Result<bool> {
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
