//! Casts between units in a comparison, which may fail, and the conversion of the bound that replaces them, which can't.

use arrow::datatypes::DataType;

use crate::expr::key_bound::{KeyBoundUdf, integer_limits};
use crate::optimizer::casts::keeps_values;
use crate::optimizer::casts::linear_factor;
use rmq_engine::Comparison;

/// A cast from one type to another.
pub(crate) type Types = (DataType, DataType);

/// The comparison of a key with a bound without casts that may fail.
pub(crate) struct ExactBound {
    /// Converts the bound.
    pub(crate) conversion: KeyBoundUdf,
    /// Whether the key is compared without its cast.
    pub(crate) uncasts_key: bool,
    /// Whether the bound is converted without its cast.
    pub(crate) uncasts_bound: bool,
}

impl ExactBound {
    /// Finds which of the casts of a key and of its bound, if they are casts, can be replaced; `None` if neither can, or need be.
    pub(crate) fn of(
        comparison: Comparison,
        key: Option<&Types>,
        bound: Option<&Types>,
    ) -> Option<Self> {
        let of_key = key.and_then(replaced_factor);
        let of_bound = bound.and_then(replaced_factor);
        let key_type = match (key, bound) {
            (Some((from, _)), _) if of_key.is_some() => from,
            (_, Some((_, to))) if of_bound.is_some() => to,
            _ => return None,
        };
        let factors = (of_key.unwrap_or(1), of_bound.unwrap_or(1));
        Some(Self {
            conversion: KeyBoundUdf::new(comparison, factors, key_type.clone()),
            uncasts_key: of_key.is_some(),
            uncasts_bound: of_bound.is_some(),
        })
    }
}

/// The factor by which a cast multiplies, if it may fail.
fn replaced_factor((from, to): &Types) -> Option<i128> {
    let are_integers = integer_limits(from).is_some() && integer_limits(to).is_some();
    if keeps_values(from, to) || !are_integers {
        return None;
    }
    linear_factor(from, to)
}
