//! Subqueries in parts of an expression that are evaluated for some rows only.
//!
//! ```text
//!   CASE WHEN q.k > 0 THEN (SELECT min(p.v / q.k) FROM p WHERE p.v > q.k) END
//!
//!   Left Join
//!     Projection: q.*, CASE WHEN q.k > 0 THEN q.k END AS "__subquery_1"
//!       q
//!     Subquery:
//!       Aggregate: min(p.v / outer("__subquery_1"))
//!         Filter: p.v > outer("__subquery_1")
//! ```
//!
//! A dependent join is evaluated for all rows. What may fail in it gets NULL in place of the outer columns of a row
//! that does not need it.

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{Case, Expr, LogicalPlan, Operator};

use crate::outer::subquery_of;

/// What is done with the subqueries of an expression.
pub(crate) trait Replacing {
    /// Whether the subqueries below an expression stay as they are.
    fn keeps(&self, expr: &Expr) -> bool;

    /// What takes the place of an expression, whose parts have been replaced, for the rows for which all `taken` are
    /// true.
    fn replace(&mut self, expr: Expr, taken: &[Expr]) -> Result<Expr>;
}

/// Replaces subqueries in an expression that is evaluated for the rows for which all `taken` are true.
pub(crate) fn replaced_in(
    expr: Expr,
    taken: &[Expr],
    replacing: &mut dyn Replacing,
) -> Result<Expr> {
    if replacing.keeps(&expr) || !expr.exists(|e| Ok(subquery_of(e).is_some()))? {
        return Ok(expr);
    }
    match expr {
        Expr::Case(case) => replaced_in_case(case, taken, replacing),
        Expr::BinaryExpr(mut binary) if matches!(binary.op, Operator::And | Operator::Or) => {
            *binary.left = replaced_in(*binary.left, taken, replacing)?;
            let left = (*binary.left).clone();
            let open = match binary.op {
                Operator::And => left.is_not_false(),
                _ => left.is_not_true(),
            };
            *binary.right = replaced_in(*binary.right, &with(taken, open), replacing)?;
            Ok(Expr::BinaryExpr(binary))
        }
        Expr::ScalarFunction(call) if call.func.short_circuits() => {
            // COALESCE and the like are CASE in other words.
            let args = call.args.clone();
            match call.func.simplify(args, &SimplifyContext::default()) {
                Ok(ExprSimplifyResult::Simplified(case)) => replaced_in(case, taken, replacing),
                _ => replaced_below(Expr::ScalarFunction(call), taken, replacing),
            }
        }
        other => {
            let other = replaced_below(other, taken, replacing)?;
            replacing.replace(other, taken)
        }
    }
}

fn replaced_below(expr: Expr, taken: &[Expr], replacing: &mut dyn Replacing) -> Result<Expr> {
    let replaced = expr.map_children(|e| Ok(Transformed::yes(replaced_in(e, taken, replacing)?)));
    Ok(replaced?.data)
}

fn replaced_in_case(mut case: Case, taken: &[Expr], replacing: &mut dyn Replacing) -> Result<Expr> {
    if let Some(compared) = &mut case.expr {
        **compared = replaced_in((**compared).clone(), taken, replacing)?;
    }
    let mut taken = taken.to_vec();
    for (when, then) in &mut case.when_then_expr {
        **when = replaced_in((**when).clone(), &taken, replacing)?;
        let condition = match &case.expr {
            Some(compared) => (**compared).clone().eq((**when).clone()),
            None => (**when).clone(),
        };
        **then = replaced_in(
            (**then).clone(),
            &with(&taken, condition.clone()),
            replacing,
        )?;
        taken = with(&taken, condition.is_not_true());
    }
    if let Some(otherwise) = &mut case.else_expr {
        **otherwise = replaced_in((**otherwise).clone(), &taken, replacing)?;
    }
    Ok(Expr::Case(case))
}

fn with(taken: &[Expr], condition: Expr) -> Vec<Expr> {
    let mut taken = taken.to_vec();
    // One that changes from call to call guards nothing.
    if !condition.is_volatile() {
        taken.push(condition);
    }
    taken
}

/// Whether an expression of a subquery with outer columns may fail: whether it does more than compare.
pub(crate) fn may_fail(subquery: &LogicalPlan) -> Result<bool> {
    let mut may_fail = false;
    subquery.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            may_fail |= expr.contains_outer() && expr.exists(|e| Ok(!compares(e)))?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(match may_fail {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(may_fail)
}

fn compares(expr: &Expr) -> bool {
    match expr {
        Expr::BinaryExpr(binary) => matches!(
            binary.op,
            Operator::Eq
                | Operator::NotEq
                | Operator::Lt
                | Operator::LtEq
                | Operator::Gt
                | Operator::GtEq
                | Operator::IsDistinctFrom
                | Operator::IsNotDistinctFrom
                | Operator::And
                | Operator::Or
        ),
        Expr::Column(_)
        | Expr::OuterReferenceColumn(..)
        | Expr::Literal(..)
        | Expr::Alias(_)
        | Expr::Between(_)
        | Expr::Not(_)
        | Expr::IsNull(_)
        | Expr::IsNotNull(_) => true,
        _ => false,
    }
}
