//! A bound plus or minus a length of the same row, as a bound of a key: what `key_bound` converts where the length is a
//! constant.
//!
//! ```text
//!   q.id - p.id <= q.n           p.id >= rmq_bound_minus('>=', q.id, q.n)
//!   p.id - q.id <  q.n           p.id <= rmq_bound_plus('<', q.id, q.n)
//!   abs(p.id - q.id) <= q.n      p.id between rmq_distance_bound('>=', q.id, q.n) and rmq_distance_bound('<=', q.id, q.n)
//! ```
//!
//! Where the difference of the key and the bound wraps around, further keys compare as stated: those that
//! `LengthBoundUdf::wrapping` tells, or for a distance all keys, if there are any.

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion_common::{Result, ScalarValue, internal_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility};

use crate::expr::key_bound::{KeyBoundUdf, comparison_from, integer_limits, integers, of_type};
use rmq_engine::Comparison;

/// The function `(comparison, bound, length)` that returns the least or greatest key that compares as stated with the
/// bound plus or minus the length, which are integers, or a date and a number of days. NULL if there is no such key, or
/// if one of both is NULL.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct LengthBoundUdf {
    end: End,
    signature: Signature,
}

/// Where the key is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// At the bound plus the length.
    Plus,
    /// At the bound minus the length.
    Minus,
    /// At one of both, the lower or the upper one as the comparison has it, or nowhere if one of both is no key.
    Distance,
}

impl End {
    /// All ends.
    pub const ALL: [Self; 3] = [Self::Plus, Self::Minus, Self::Distance];
}

impl LengthBoundUdf {
    /// The function of this end.
    pub fn new(end: End) -> Self {
        Self {
            end,
            signature: Signature::any(3, Volatility::Immutable),
        }
    }

    /// The conversion that tells the keys for which the difference wraps around (`KeyBoundUdf::wrapped`), if keys are
    /// bounded at one end.
    pub fn wrapping(&self, comparison: &ScalarValue, key_type: &DataType) -> Option<KeyBoundUdf> {
        let comparison = comparison
            .try_as_str()
            .flatten()
            .and_then(comparison_from)?;
        let (least, greatest) = integer_limits(key_type).filter(|_| key_type.is_integer())?;
        let opposite = match (self.end, comparison.is_lower()) {
            (End::Plus, true) => greatest,
            (End::Plus, false) => least,
            (End::Minus, true) => -least,
            (End::Minus, false) => -greatest,
            (End::Distance, _) => return None,
        };
        let conversion = KeyBoundUdf::new(comparison, (1, 1), key_type.clone());
        Some(conversion.with_opposite(opposite))
    }
}

impl ScalarUDFImpl for LengthBoundUdf {
    fn name(&self) -> &'static str {
        match self.end {
            End::Plus => "rmq_bound_plus",
            End::Minus => "rmq_bound_minus",
            End::Distance => "rmq_distance_bound",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        match arg_types {
            [_, bound, _] => Ok(bound.clone()),
            _ => internal_err!("there is no bound"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [ColumnarValue::Scalar(shown), bound, length] = args.args.as_slice() else {
            return internal_err!("there is no bound with a length");
        };
        let Some(comparison) = shown.try_as_str().flatten().and_then(comparison_from) else {
            return internal_err!("there is no comparison {shown}");
        };
        let bounds: ArrayRef = bound.to_array(args.number_rows)?;
        let key_type = bounds.data_type();
        let Some(limits) = integer_limits(key_type) else {
            return internal_err!("a {key_type} is not stored as an integer");
        };
        let conversion = KeyBoundUdf::new(comparison, (1, 1), key_type.clone());
        let is_key = |end: i128| limits.0 <= end && end <= limits.1;
        let lengths = integers(&length.to_array(args.number_rows)?)?;
        let keys = integers(&bounds)?.into_iter().zip(lengths);
        let keys = keys.map(|(bound, length)| {
            // Both have 64 bits.
            let (bound, length) = (bound?, length?);
            let (lower, upper) = (bound - length, bound + length);
            let end = match self.end {
                End::Distance if !(is_key(lower) && is_key(upper)) => {
                    return Some(conversion.last(limits));
                }
                End::Distance if comparison.is_lower() => lower,
                End::Minus => lower,
                End::Plus | End::Distance => upper,
            };
            conversion.convert(end, limits)
        });
        Ok(ColumnarValue::Array(of_type(
            &keys.collect::<Vec<_>>(),
            key_type,
        )?))
    }
}

/// The argument that states a comparison.
pub fn shown(comparison: Comparison) -> ScalarValue {
    ScalarValue::from(match comparison {
        Comparison::AtLeast => ">=",
        Comparison::Above => ">",
        Comparison::AtMost => "<=",
        Comparison::Below => "<",
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::Int8Array;
    use arrow::datatypes::Field;
    use datafusion_common::config::ConfigOptions;

    use super::*;

    /// The keys of all bounds of 8 bits with one length.
    fn keys(end: End, comparison: Comparison, length: i8) -> Vec<Option<i128>> {
        let bounds: ArrayRef = Arc::new(Int8Array::from_iter_values(i8::MIN..=i8::MAX));
        let lengths: ArrayRef = Arc::new(Int8Array::from(vec![length; bounds.len()]));
        let field = |name| Arc::new(Field::new(name, DataType::Int8, true));
        let args = ScalarFunctionArgs {
            number_rows: bounds.len(),
            args: vec![
                ColumnarValue::Scalar(shown(comparison)),
                ColumnarValue::Array(bounds),
                ColumnarValue::Array(lengths),
            ],
            arg_fields: vec![field("c"), field("b"), field("n")],
            return_field: field("k"),
            config_options: Arc::new(ConfigOptions::default()),
        };
        let found = LengthBoundUdf::new(end).invoke_with_args(args).unwrap();
        integers(&found.into_array(256).unwrap()).unwrap()
    }

    fn in_range(comparison: Comparison, end: Option<i128>, key: i8) -> bool {
        let at = if comparison.is_lower() {
            Comparison::AtLeast
        } else {
            Comparison::AtMost
        };
        end.is_some_and(|end| at.holds(&i128::from(key), &end))
    }

    #[test]
    fn keys_at_a_length_are_in_the_range_or_wrap_around() {
        let all = || i8::MIN..=i8::MAX;
        let bounds: ArrayRef = Arc::new(Int8Array::from_iter_values(all()));
        for comparison in [
            Comparison::Above,
            Comparison::AtLeast,
            Comparison::Below,
            Comparison::AtMost,
        ] {
            for (length, end) in [-128, -7, 0, 3, 127]
                .into_iter()
                .flat_map(|length| [(length, End::Plus), (length, End::Minus)])
            {
                let found = keys(end, comparison, length);
                let udf = LengthBoundUdf::new(end);
                let wrapping = udf.wrapping(&shown(comparison), &DataType::Int8).unwrap();
                let wrapped = wrapping.wrapped().unwrap();
                let limits = integers(&wrapped.converted(&bounds, None).unwrap()).unwrap();
                for (row, bound) in all().enumerate() {
                    for key in all() {
                        // key >= bound - length is bound - key <= length.
                        let holds = if end == End::Plus {
                            comparison.holds(&key.wrapping_sub(bound), &length)
                        } else {
                            comparison.holds(&length, &bound.wrapping_sub(key))
                        };
                        let wraps = in_range(wrapped.converted_comparison(), limits[row], key);
                        let is_found = wraps || in_range(comparison, found[row], key);
                        assert!(is_found || !holds, "{key} {comparison:?} {bound} {length}");
                        let sum = i128::from(bound)
                            + if end == End::Plus {
                                i128::from(length)
                            } else {
                                -i128::from(length)
                            };
                        let is_stated = comparison.holds(&i128::from(key), &sum);
                        assert_eq!(in_range(comparison, found[row], key), is_stated);
                    }
                }
            }
        }
    }

    #[test]
    fn keys_at_a_distance_are_in_the_range() {
        for length in [-1, 0, 5, 127] {
            let lower = keys(End::Distance, Comparison::AtLeast, length);
            let upper = keys(End::Distance, Comparison::AtMost, length);
            for (row, bound) in (i8::MIN..=i8::MAX).enumerate() {
                for key in i8::MIN..=i8::MAX {
                    let distance = key.wrapping_sub(bound).checked_abs();
                    let is_found = in_range(Comparison::AtLeast, lower[row], key)
                        && in_range(Comparison::AtMost, upper[row], key);
                    let holds = distance.is_some_and(|distance| distance <= length);
                    assert!(is_found || !holds, "{key} {bound} {length}");
                }
            }
        }
    }
}
