//! Casts that keep every value and the order of values.

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::{Cast, Expr, ExprSchemable};

/// The expression below lossless casts and aliases.
pub(crate) fn without_lossless_casts<'a>(expr: &'a Expr, schema: &DFSchema) -> Result<&'a Expr> {
    match expr {
        Expr::Cast(Cast { expr: inner, field })
            if widens(&inner.get_type(schema)?, field.data_type()) =>
        {
            without_lossless_casts(inner, schema)
        }
        Expr::Alias(alias) => without_lossless_casts(&alias.expr, schema),
        other => Ok(other),
    }
}

/// The number of digits of an integer or decimal before and after the decimal point.
fn digits(data_type: &DataType) -> Option<(i16, i16)> {
    Some(match data_type {
        DataType::Int8 | DataType::UInt8 => (3, 0),
        DataType::Int16 | DataType::UInt16 => (5, 0),
        DataType::Int32 | DataType::UInt32 => (10, 0),
        DataType::Int64 => (19, 0),
        DataType::UInt64 => (20, 0),
        DataType::Decimal32(p, s)
        | DataType::Decimal64(p, s)
        | DataType::Decimal128(p, s)
        | DataType::Decimal256(p, s) => (i16::from(*p) - i16::from(*s), i16::from(*s)),
        _ => return None,
    })
}

/// Whether a cast from one type to the other keeps every value and the order of values.
pub(crate) fn widens(from: &DataType, to: &DataType) -> bool {
    let bits = |t: &DataType| t.primitive_width().map_or(0, |bytes| 8 * bytes);
    // A column of type Null has only NULLs.
    if from == to || from == &DataType::Null {
        return true;
    }
    if to.is_decimal() {
        let fits = |(digits, scale), (most, finest)| digits <= most && scale <= finest;
        return digits(from)
            .zip(digits(to))
            .is_some_and(|(from, to)| fits(from, to));
    }
    let float_bits = |t: &DataType| match t {
        DataType::Float32 => 24,
        DataType::Float64 => 53,
        _ => 0,
    };
    if from.is_signed_integer() && to.is_signed_integer()
        || from.is_unsigned_integer() && to.is_integer()
    {
        bits(from) < bits(to)
    } else if from.is_integer() && to.is_floating() {
        bits(from) <= float_bits(to)
    } else {
        matches!((from, to), (DataType::Float32, DataType::Float64))
    }
}
