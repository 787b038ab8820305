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

use std::sync::Arc;

use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, Result};
use datafusion_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion_expr::utils::{merge_schema, split_conjunction};
use datafusion_expr::{Case, Expr, LogicalPlan, Operator};

use crate::outer::{refers_to_outer, subquery_of};

/// The rows for which a part of an expression is evaluated, and what for.
#[derive(Clone, Default)]
pub(crate) struct Branch {
    /// What is true for these rows.
    pub(crate) taken: Vec<Expr>,
    /// Whether NULL is as good as FALSE.
    pub(crate) is_condition: bool,
}

impl Branch {
    fn with(&self, condition: Expr) -> Self {
        let mut branch = self.clone();
        // One that changes from call to call guards nothing.
        if !condition.is_volatile() {
            branch.taken.push(condition);
        }
        branch
    }

    fn of_value(&self) -> Self {
        Self {
            is_condition: false,
            ..self.clone()
        }
    }
}

/// What is done with the subqueries of an expression.
pub(crate) trait Replacing {
    /// Whether the subqueries below an expression stay as they are.
    fn keeps(&self, expr: &Expr) -> bool;

    /// The value of a volatile condition of the rows of this branch, the same each time.
    fn evaluate_once(&mut self, condition: Expr, branch: &Branch) -> Result<Expr>;

    /// What takes the place of an expression, whose parts have been replaced.
    fn replace(&mut self, expr: Expr, branch: &Branch) -> Result<Expr>;
}

/// Replaces subqueries in an expression.
pub(crate) fn replaced_in(
    expr: Expr,
    branch: &Branch,
    replacing: &mut dyn Replacing,
) -> Result<Expr> {
    if replacing.keeps(&expr) || !expr.exists(|e| Ok(subquery_of(e).is_some()))? {
        return Ok(expr);
    }
    match expr {
        Expr::Case(case) => replaced_in_case(case, &branch.of_value(), replacing),
        Expr::BinaryExpr(mut binary) if matches!(binary.op, Operator::And | Operator::Or) => {
            *binary.left = replaced_in(*binary.left, branch, replacing)?;
            let left = (*binary.left).clone();
            let open = match binary.op {
                Operator::And => left.is_not_false(),
                _ => left.is_not_true(),
            };
            *binary.right = replaced_in(*binary.right, &branch.with(open), replacing)?;
            Ok(Expr::BinaryExpr(binary))
        }
        Expr::ScalarFunction(call) if call.func.short_circuits() => {
            // COALESCE and the like are CASE in other words.
            let args = call.args.clone();
            match call.func.simplify(args, &SimplifyContext::default()) {
                Ok(ExprSimplifyResult::Simplified(case)) => replaced_in(case, branch, replacing),
                _ => replaced_below(Expr::ScalarFunction(call), branch, replacing),
            }
        }
        other => {
            let other = replaced_below(other, branch, replacing)?;
            replacing.replace(other, branch)
        }
    }
}

fn replaced_below(expr: Expr, branch: &Branch, replacing: &mut dyn Replacing) -> Result<Expr> {
    let branch = branch.of_value();
    let replaced = expr.map_children(|e| Ok(Transformed::yes(replaced_in(e, &branch, replacing)?)));
    Ok(replaced?.data)
}

fn replaced_in_case(
    mut case: Case,
    branch: &Branch,
    replacing: &mut dyn Replacing,
) -> Result<Expr> {
    if let Some(compared) = &mut case.expr {
        **compared = replaced_in((**compared).clone(), branch, replacing)?;
    }
    let mut branch = branch.clone();
    let has_subquery = has_subquery_in_result(&case)?;
    for (when, then) in &mut case.when_then_expr {
        **when = replaced_in((**when).clone(), &branch, replacing)?;
        if has_subquery && case.expr.is_none() && when.is_volatile() {
            **when = replacing.evaluate_once((**when).clone(), &branch)?;
        }
        let condition = match &case.expr {
            Some(compared) => (**compared).clone().eq((**when).clone()),
            None => (**when).clone(),
        };
        let of_then = branch.with(condition.clone());
        **then = replaced_in((**then).clone(), &of_then, replacing)?;
        branch = branch.with(condition.is_not_true());
    }
    if let Some(otherwise) = &mut case.else_expr {
        **otherwise = replaced_in((**otherwise).clone(), &branch, replacing)?;
    }
    Ok(Expr::Case(case))
}

fn has_subquery_in_result(case: &Case) -> Result<bool> {
    let results = case.when_then_expr.iter().map(|(_, then)| then);
    for result in results.chain(&case.else_expr) {
        if result.exists(|e| Ok(subquery_of(e).is_some()))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether an expression over these columns, and columns of the query around, has a value whatever these are.
pub(crate) type CannotFail = fn(&Expr, &DFSchema) -> Result<bool>;

/// Whether an expression of a subquery with outer columns may fail.
pub(crate) fn may_fail(subquery: &LogicalPlan, cannot_fail: CannotFail) -> Result<bool> {
    let mut may_fail = false;
    subquery.apply_with_subqueries(|node| {
        let schema = Arc::new(merge_schema(&node.inputs()));
        node.apply_expressions(|expr| {
            for conjunct in split_conjunction(expr) {
                may_fail |= refers_to_outer(conjunct, &schema)? && !cannot_fail(conjunct, &schema)?;
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(match may_fail {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(may_fail)
}

/// Whether an expression does nothing but compare.
pub(crate) fn only_compares(expr: &Expr, _columns: &DFSchema) -> Result<bool> {
    Ok(!expr.exists(|e| Ok(!compares(e)))?)
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
