//! IS [NOT] DISTINCT FROM before AND and OR.
//!
//! ```text
//!   a IS NOT DISTINCT FROM b AND c OR d
//!
//!   sqlparser    a IS NOT DISTINCT FROM (b AND c OR d)
//!   here         (a IS NOT DISTINCT FROM b) AND c OR d
//! ```
//!
//! sqlparser 0.62 reads all that follows as the right operand. What is in parentheses is an `Expr::Nested`, so an AND
//! or OR that is an operand without being one is not as it was written.

use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, UnaryOperator, Value, VisitMut, VisitorMut,
};

/// Gives IS [NOT] DISTINCT FROM its right operands. Returns whether there were other ones.
pub(crate) fn restore_precedence(sql: &mut impl VisitMut) -> bool {
    let mut precedence = Precedence { changed: false };
    let ControlFlow::Continue(()) = sql.visit(&mut precedence);
    precedence.changed
}

struct Precedence {
    changed: bool,
}

impl VisitorMut for Precedence {
    type Break = Infallible;

    // From the innermost expression on: what is lifted out of an operand is one of the next expression around it.
    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Infallible> {
        type IsLooser = fn(&BinaryOperator) -> bool;
        let is_and_or: IsLooser = |op| matches!(op, BinaryOperator::And | BinaryOperator::Or);
        let is_or: IsLooser = |op| matches!(op, BinaryOperator::Or);
        let (operand, looser) = match expr {
            Expr::IsDistinctFrom(_, operand) | Expr::IsNotDistinctFrom(_, operand) => {
                (operand, is_and_or)
            }
            Expr::UnaryOp {
                op: UnaryOperator::Not,
                expr: operand,
            } => (operand, is_and_or),
            Expr::BinaryOp {
                op: BinaryOperator::And,
                right: operand,
                ..
            } => (operand, is_or),
            _ => return ControlFlow::Continue(()),
        };
        if matches!(operand.as_ref(), Expr::BinaryOp { op, .. } if looser(op)) {
            let whole = std::mem::replace(operand.as_mut(), nothing());
            let inner = std::mem::replace(expr, whole);
            put_first(expr, inner, looser);
            self.changed = true;
        }
        ControlFlow::Continue(())
    }
}

/// Makes the first operand of `whole` that is no looser operator the last operand of `inner`, and puts `inner` in its
/// place.
fn put_first(whole: &mut Expr, mut inner: Expr, is_looser: fn(&BinaryOperator) -> bool) {
    let (mut depth, mut operand) = (0, &*whole);
    while let Expr::BinaryOp { left, op, .. } = operand
        && is_looser(op)
    {
        (depth, operand) = (depth + 1, left.as_ref());
    }
    let mut first = whole;
    for _ in 0..depth {
        let Expr::BinaryOp { left, .. } = first else {
            return;
        };
        first = left.as_mut();
    }
    let operand = std::mem::replace(first, nothing());
    if let Expr::IsDistinctFrom(_, right)
    | Expr::IsNotDistinctFrom(_, right)
    | Expr::UnaryOp { expr: right, .. }
    | Expr::BinaryOp { right, .. } = &mut inner
    {
        **right = operand;
    }
    // In parentheses, for a statement that is printed and parsed again.
    let is_distinct = matches!(
        inner,
        Expr::IsDistinctFrom(..) | Expr::IsNotDistinctFrom(..)
    );
    *first = if is_distinct {
        Expr::Nested(Box::new(inner))
    } else {
        inner
    };
}

/// What stands where an expression was taken, until another one does.
fn nothing() -> Expr {
    Expr::Value(Value::Null.into())
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    use super::*;

    fn restored(condition: &str) -> (String, bool) {
        let parser = Parser::new(&GenericDialect {});
        let mut expr = parser
            .try_with_sql(condition)
            .and_then(|mut parser| parser.parse_expr())
            .unwrap();
        let changed = restore_precedence(&mut expr);
        (expr.to_string(), changed)
    }

    #[test]
    fn what_follows_is_no_operand() {
        for (written, read) in [
            (
                "a IS NOT DISTINCT FROM b AND c",
                "(a IS NOT DISTINCT FROM b) AND c",
            ),
            (
                "x AND a IS DISTINCT FROM b + 1 AND c OR d AND e",
                "x AND (a IS DISTINCT FROM b + 1) AND c OR d AND e",
            ),
            (
                "NOT a IS DISTINCT FROM b OR c IS NOT DISTINCT FROM d AND e",
                "NOT (a IS DISTINCT FROM b) OR (c IS NOT DISTINCT FROM d) AND e",
            ),
        ] {
            assert_eq!(restored(written), (read.to_string(), true));
            // The tree is that of the text.
            let (again, changed) = restored(read);
            assert_eq!((again.as_str(), changed), (read, false));
        }
        for same in [
            "a IS DISTINCT FROM (b AND c)",
            "a IS NOT DISTINCT FROM b",
            "NOT (a OR b) AND (c OR d)",
        ] {
            assert_eq!(restored(same), (same.to_string(), false));
        }
    }

    #[test]
    fn trees_are_those_of_parentheses() {
        let tree = |text: &str| {
            let parser = Parser::new(&GenericDialect {});
            let mut parser = parser.try_with_sql(text).unwrap();
            let mut expr = parser.parse_expr().unwrap();
            restore_precedence(&mut expr);
            // Spans differ.
            let Expr::BinaryOp { left, op, right } = expr else {
                panic!("{text} is no operator");
            };
            (left.to_string(), op, right.to_string())
        };
        let text = "x AND a IS DISTINCT FROM b AND c OR d AND e";
        let (left, op, right) = tree(text);
        assert_eq!(op, BinaryOperator::Or);
        assert_eq!(left, "x AND (a IS DISTINCT FROM b) AND c");
        assert_eq!(right, "d AND e");
        let (left, op, right) = tree("NOT a IS DISTINCT FROM b AND c");
        assert_eq!(op, BinaryOperator::And);
        assert_eq!(left, "NOT (a IS DISTINCT FROM b)");
        assert_eq!(right, "c");
    }
}
