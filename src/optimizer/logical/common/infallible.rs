//! Expressions that cannot fail.
//!
//! A range join evaluates expressions for all rows of a side that a join, or a subquery, evaluates for matching rows
//! only, and must not fail where the query that it replaces would not. Conditions on the build side must be such
//! expressions in a join. Arguments of aggregates and values that are compared with thresholds may be others: their
//! errors are kept until a row matches (`expr::late_error`). So may range keys, whose errors are kept until a row has
//! equal equality keys, and bounds, which are evaluated again for the rows that can match.

use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{Between, BinaryExpr, InList, Like};
use datafusion::logical_expr::{Case, Cast, Expr, ExprSchemable, Operator, TryCast};
use datafusion::scalar::ScalarValue;

use crate::optimizer::infallible_call::is_infallible_call;
use crate::optimizer::lossless_casts::{has_room, is_number, keeps_values};

/// Whether `expr` is known to have a value, or NULL, for every row.
pub(crate) fn is_infallible(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    let all = |exprs: &[&Expr]| {
        exprs
            .iter()
            .try_fold(true, |all, expr| Ok(all && is_infallible(expr, schema)?))
    };
    match expr {
        Expr::Column(_) | Expr::OuterReferenceColumn(..) | Expr::Literal(..) => Ok(true),
        Expr::Alias(alias) => is_infallible(&alias.expr, schema),
        Expr::Not(e)
        | Expr::IsNull(e)
        | Expr::IsNotNull(e)
        | Expr::IsTrue(e)
        | Expr::IsFalse(e)
        | Expr::IsUnknown(e)
        | Expr::IsNotTrue(e)
        | Expr::IsNotFalse(e)
        | Expr::IsNotUnknown(e) => is_infallible(e, schema),
        Expr::Between(Between {
            expr, low, high, ..
        }) => all(&[expr, low, high]),
        Expr::InList(InList { expr, list, .. }) => {
            let list_is = list.iter().all(|e| matches!(e, Expr::Literal(..)));
            Ok(list_is && is_infallible(expr, schema)?)
        }
        Expr::Case(Case {
            expr,
            when_then_expr,
            else_expr,
        }) => {
            let branches = when_then_expr.iter().flat_map(|(when, then)| [when, then]);
            let parts: Vec<&Expr> = expr
                .iter()
                .chain(branches)
                .chain(else_expr)
                .map(AsRef::as_ref)
                .collect();
            all(&parts)
        }
        Expr::TryCast(TryCast { expr, .. }) => is_infallible(expr, schema),
        Expr::Negative(e) => {
            // Integers wrap around.
            Ok(is_number(&e.get_type(schema)?) && is_infallible(e, schema)?)
        }
        Expr::Like(Like { expr, pattern, .. }) => {
            let is_plain = matches!(pattern.as_ref(), Expr::Literal(..));
            Ok(is_plain && is_infallible(expr, schema)?)
        }
        Expr::ScalarFunction(call) => {
            let args: Vec<&Expr> = call.args.iter().collect();
            Ok(is_infallible_call(&call.func, &call.args, schema)? && all(&args)?)
        }
        Expr::Cast(Cast { expr, field }) => {
            let (from, to) = (expr.get_type(schema)?, field.data_type());
            Ok(keeps_values(&from, to) && is_infallible(expr, schema)?)
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let known = match op {
                Operator::And
                | Operator::Or
                | Operator::Eq
                | Operator::NotEq
                | Operator::Lt
                | Operator::LtEq
                | Operator::Gt
                | Operator::GtEq
                | Operator::IsDistinctFrom
                | Operator::IsNotDistinctFrom
                | Operator::StringConcat => true,
                // Integer arithmetic wraps around.
                Operator::Plus | Operator::Minus | Operator::Multiply => {
                    let (left, right) = (left.get_type(schema)?, right.get_type(schema)?);
                    is_number(&left) && is_number(&right) || has_room(*op, &left, &right)
                }
                Operator::Divide | Operator::Modulo => {
                    // Floats are divided by 0, too.
                    let (left, divisor) = (left.get_type(schema)?, right.get_type(schema)?);
                    left.is_floating() && divisor.is_floating() || is_plain_divisor(right)
                }
                _ => false,
            };
            Ok(known && all(&[left, right])?)
        }
        _ => Ok(false),
    }
}

/// Whether every integer can be divided by this literal without an error.
fn is_plain_divisor(expr: &Expr) -> bool {
    let Expr::Literal(value, _) = expr else {
        return false;
    };
    match value {
        ScalarValue::Int8(Some(v)) => *v > 0,
        ScalarValue::Int16(Some(v)) => *v > 0,
        ScalarValue::Int32(Some(v)) => *v > 0,
        ScalarValue::Int64(Some(v)) => *v > 0,
        ScalarValue::UInt8(Some(v)) => *v > 0,
        ScalarValue::UInt16(Some(v)) => *v > 0,
        ScalarValue::UInt32(Some(v)) => *v > 0,
        ScalarValue::UInt64(Some(v)) => *v > 0,
        _ => false,
    }
}
