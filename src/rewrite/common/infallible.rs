//! Expressions that cannot fail.
//!
//! A range join evaluates expressions above a join for all rows of a side, whereas the join evaluates them for matching rows only. Such an
//! expression must not fail, because the query it replaces would not.

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{Between, BinaryExpr, InList};
use datafusion::logical_expr::{Case, Cast, Expr, ExprSchemable, Operator};
use datafusion::scalar::ScalarValue;

use crate::expr::decimal_average::decimal_digits;
use crate::rewrite::common::lossless_casts::widens;

/// Whether `expr` is known to have a value, or NULL, for every row.
pub(crate) fn is_infallible(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    let all = |exprs: &[&Expr]| {
        exprs
            .iter()
            .try_fold(true, |all, expr| Ok(all && is_infallible(expr, schema)?))
    };
    match expr {
        Expr::Column(_) | Expr::Literal(..) => Ok(true),
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
                | Operator::IsNotDistinctFrom => true,
                // Integer arithmetic wraps around.
                Operator::Plus | Operator::Minus | Operator::Multiply => {
                    let number = |t: DataType| t.is_integer() || t.is_floating();
                    number(left.get_type(schema)?) && number(right.get_type(schema)?)
                }
                Operator::Divide | Operator::Modulo => is_plain_divisor(right),
                _ => false,
            };
            Ok(known && all(&[left, right])?)
        }
        _ => Ok(false),
    }
}

/// Whether a cast cannot fail for any value.
pub(crate) fn keeps_values(from: &DataType, to: &DataType) -> bool {
    let decodes = matches!(from, DataType::Dictionary(_, value) if value.as_ref() == to);
    let text =
        |t: &DataType| matches!(t, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    // The same scale with at least as many digits.
    let wider_decimal = matches!(
        (decimal_digits(from), decimal_digits(to)),
        (Some((less, a)), Some((more, b))) if a == b && less <= more
    );
    let number = from.is_integer() || from.is_floating() || decimal_digits(from).is_some();
    let to_float = number && to == &DataType::Float64;
    decodes || wider_decimal || to_float || text(from) && text(to) || widens(from, to)
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
