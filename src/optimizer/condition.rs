//! The comparison of a key with a bound, as logical and physical rules recognise it: which operand is the bound, what
//! the operator means, and which casts between units, which may fail, a conversion of the bound replaces, which can't.
//! `logical::condition_parts` and `physical::join_filter` translate their expressions into it.

use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::logical_expr::Operator;

use crate::expr::key_bound::{KeyBoundUdf, integer_limits};
use crate::optimizer::casts::{keeps_values, linear_factor};
use rmq_engine::Comparison;

/// A key, how it compares, and the bound.
pub(crate) type Compared<E> = (E, Comparison, E);

/// An expression that is compared: a logical or a physical one.
pub(crate) trait Operand: Clone {
    /// What has the types of its columns.
    type Schema;

    /// The cast that it is, if it is one.
    fn as_cast(&self, schema: &Self::Schema) -> Result<Option<OperandCast<Self>>>;

    /// The converted bound.
    fn converted(self, conversion: KeyBoundUdf, schema: &Self::Schema) -> Result<Self>;
}

/// A cast of an operand.
pub(crate) struct OperandCast<E> {
    pub(crate) operand: E,
    pub(crate) from: DataType,
    pub(crate) to: DataType,
}

/// Tells key and bound apart: the key, the operator between key and bound, if it can be swapped to stand so, and the
/// bound. `None` if neither operand is a bound.
pub(crate) fn key_and_bound<E>(
    (left, op, right): (E, Operator, E),
    is_bound: impl Fn(&E) -> bool,
) -> Option<(E, Option<Operator>, E)> {
    if is_bound(&right) {
        Some((left, Some(op), right))
    } else if is_bound(&left) {
        Some((right, op.swap(), left))
    } else {
        None
    }
}

/// The comparison of a range key with a bound that an operator makes, if it makes one.
pub(crate) fn comparison(op: Operator) -> Option<Comparison> {
    match op {
        Operator::Gt => Some(Comparison::Above),
        Operator::GtEq => Some(Comparison::AtLeast),
        Operator::Lt => Some(Comparison::Below),
        Operator::LtEq => Some(Comparison::AtMost),
        _ => None,
    }
}

/// The operator of a comparison.
pub(crate) fn operator(comparison: Comparison) -> Operator {
    match comparison {
        Comparison::Above => Operator::Gt,
        Comparison::AtLeast => Operator::GtEq,
        Comparison::Below => Operator::Lt,
        Comparison::AtMost => Operator::LtEq,
    }
}

/// Replaces casts that may fail, of the key or of the bound, by a conversion of the bound that cannot. Returns whether
/// there were any.
pub(crate) fn convert_bound<E: Operand>(
    (key, comparison, bound): &mut Compared<E>,
    bounds: &E::Schema,
    keys: &E::Schema,
) -> Result<bool> {
    let mut is_converted = false;
    loop {
        let (of_key, of_bound) = (replaced(key, keys)?, replaced(bound, bounds)?);
        let key_type = match (&of_key, &of_bound) {
            (Some((_, cast)), _) => cast.from.clone(),
            (None, Some((_, cast))) => cast.to.clone(),
            (None, None) => return Ok(is_converted),
        };
        let mut factors = (1, 1);
        if let Some((factor, cast)) = of_key {
            factors.0 = factor;
            *key = cast.operand;
        }
        if let Some((factor, cast)) = of_bound {
            factors.1 = factor;
            *bound = cast.operand;
        }
        let conversion = KeyBoundUdf::new(*comparison, factors, key_type);
        *comparison = conversion.converted_comparison();
        *bound = bound.clone().converted(conversion, bounds)?;
        is_converted = true;
    }
}

/// The cast that an operand is, if it multiplies by a factor and may fail.
fn replaced<E: Operand>(operand: &E, schema: &E::Schema) -> Result<Option<(i128, OperandCast<E>)>> {
    let Some(cast) = operand.as_cast(schema)? else {
        return Ok(None);
    };
    let (from, to) = (&cast.from, &cast.to);
    let are_integers = integer_limits(from).is_some() && integer_limits(to).is_some();
    if keeps_values(from, to) || !are_integers {
        return Ok(None);
    }
    Ok(linear_factor(from, to).map(|factor| (factor, cast)))
}
