//! Conditions that are not TRUE where an expression is NULL.

use datafusion_expr::expr::{Between, BinaryExpr, InList, Like};
use datafusion_expr::{Cast, Expr, Operator, TryCast};

/// Whether a condition, which is met, is not met where `key` is NULL.
pub fn excludes_null(condition: &Expr, key: &Expr) -> bool {
    match condition {
        Expr::IsNotNull(operand) | Expr::IsTrue(operand) | Expr::IsFalse(operand) => {
            is_null_with(operand, key)
        }
        Expr::Between(Between {
            expr,
            negated,
            low,
            high,
        }) => {
            let ends = [low, high].into_iter().filter(|_| !negated);
            is_null_with(expr, key) || ends.into_iter().any(|e| is_null_with(e, key))
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match op {
            Operator::And => excludes_null(left, key) || excludes_null(right, key),
            Operator::Or => excludes_null(left, key) && excludes_null(right, key),
            _ => is_null_with(condition, key),
        },
        condition => is_null_with(condition, key),
    }
}

/// Whether an expression is NULL where `key` is.
fn is_null_with(expr: &Expr, key: &Expr) -> bool {
    if expr == key {
        return true;
    }
    let is_null = |e: &Expr| is_null_with(e, key);
    match expr {
        Expr::Alias(alias) => is_null(&alias.expr),
        Expr::Cast(Cast { expr, .. })
        | Expr::TryCast(TryCast { expr, .. })
        | Expr::Negative(expr)
        | Expr::Not(expr)
        | Expr::InList(InList { expr, .. }) => is_null(expr),
        Expr::Like(Like { expr, pattern, .. }) => is_null(expr) || is_null(pattern),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            use Operator::{Divide, Eq, Gt, GtEq, Lt, LtEq, Minus, Modulo, Multiply, NotEq, Plus};
            let is_strict = matches!(
                op,
                Eq | NotEq | Lt | LtEq | Gt | GtEq | Plus | Minus | Multiply | Divide | Modulo
            );
            is_strict && (is_null(left) || is_null(right))
        }
        Expr::ScalarFunction(call) => call.func.is_strict() && call.args.iter().any(is_null),
        _ => false,
    }
}
