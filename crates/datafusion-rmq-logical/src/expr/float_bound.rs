//! The first and the last float key whose difference to a bound may have a length.
//!
//! ```text
//!   abs(p.x - q.x) <= 0.5      p.x >= rmq_lower_bound(q.x, -0.5), p.x <= rmq_upper_bound(q.x, 0.5)
//! ```
//!
//! A difference of floats is rounded, and so is the bound plus the length. Each is at most one float away from the
//! exact number, so the bound is moved by one float for each: all keys for which the comparison holds are in the range,
//! and perhaps some for which it does not.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use datafusion_common::{Result, ScalarValue, internal_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility};

/// The function `(bound, length)` that returns a float that is not above, or not below, any key whose rounded
/// difference to the bound is at least, or at most, `length`. The argument `length` shows the length. Keys and bounds
/// that are NaN have no such difference.
#[derive(Debug)]
pub struct FloatBoundUdf {
    pub is_lower: bool,
    pub length: f64,
    signature: Signature,
}

impl FloatBoundUdf {
    /// The lower or the upper bound of keys at a finite length.
    pub fn new(is_lower: bool, length: f64) -> Self {
        Self {
            is_lower,
            length,
            signature: Signature::any(2, Volatility::Immutable),
        }
    }

    /// The length, as plans show it.
    pub fn shown_length(&self) -> ScalarValue {
        ScalarValue::Float64(Some(self.length))
    }
}

impl PartialEq for FloatBoundUdf {
    fn eq(&self, other: &Self) -> bool {
        (self.is_lower, self.length.to_bits()) == (other.is_lower, other.length.to_bits())
    }
}

impl Eq for FloatBoundUdf {}

impl Hash for FloatBoundUdf {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.is_lower, self.length.to_bits()).hash(state);
    }
}

impl ScalarUDFImpl for FloatBoundUdf {
    fn name(&self) -> &'static str {
        if self.is_lower {
            "rmq_lower_bound"
        } else {
            "rmq_upper_bound"
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        match arg_types {
            [float @ (DataType::Float32 | DataType::Float64), _] => Ok(float.clone()),
            other => internal_err!("a bound at a length is a float, not of {other:?}"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        // The length may have been rounded to 32 bits, too: two steps are one for that and one for the difference.
        macro_rules! moved {
            ($array:expr, $type:ty, $length:expr) => {{
                let length = if self.is_lower {
                    $length.next_down().next_down()
                } else {
                    $length.next_up().next_up()
                };
                Arc::new($array.as_primitive::<$type>().unary::<_, $type>(|bound| {
                    let end = bound + length;
                    if self.is_lower {
                        end.next_down()
                    } else {
                        end.next_up()
                    }
                }))
            }};
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "it is rounded, and infinite where it is beyond all"
        )]
        let narrow = self.length as f32;
        Ok(ColumnarValue::Array(match arrays.as_slice() {
            [bounds, _] if bounds.data_type() == &DataType::Float32 => {
                moved!(bounds, Float32Type, narrow)
            }
            [bounds, _] if bounds.data_type() == &DataType::Float64 => {
                moved!(bounds, Float64Type, self.length)
            }
            _ => return internal_err!("a bound at a length is a float"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Float32Array, Float64Array};
    use arrow::datatypes::Field;
    use datafusion_common::config::ConfigOptions;

    use super::*;

    fn bound(is_lower: bool, length: f64, bound: ArrayRef) -> ArrayRef {
        let udf = FloatBoundUdf::new(is_lower, length);
        let field = Arc::new(Field::new("b", bound.data_type().clone(), true));
        let args = ScalarFunctionArgs {
            args: vec![
                ColumnarValue::Array(bound),
                ColumnarValue::Scalar(udf.shown_length()),
            ],
            arg_fields: vec![Arc::clone(&field)],
            number_rows: 1,
            return_field: field,
            config_options: Arc::new(ConfigOptions::default()),
        };
        let value = udf.invoke_with_args(args).expect("a float");
        value.into_array(1).expect("an array")
    }

    /// Keys near the ends, and the ends of all floats: none for which the comparison holds is outside.
    #[test]
    #[expect(clippy::cast_possible_truncation, reason = "any float will do")]
    fn all_keys_at_a_length_are_in_the_range() {
        let numbers = [
            0.0,
            -0.0,
            1e-310,
            0.1,
            -0.3,
            0.5,
            1.0,
            3.0,
            1e15,
            1e16,
            -1e16,
            1e300,
            f64::MAX,
            f64::MIN,
            f64::INFINITY,
            f64::NEG_INFINITY,
        ];
        for b in numbers {
            for length in [0.0, 0.1, 0.2, 0.5, 1.0, 1e-320, 1e16, f64::MAX] {
                let ends = [true, false].map(|is_lower| {
                    let length = if is_lower { -length } else { length };
                    let wide = bound(is_lower, length, Arc::new(Float64Array::from(vec![b])));
                    let narrow = Float32Array::from(vec![b as f32]);
                    let narrow = bound(is_lower, length, Arc::new(narrow));
                    (
                        wide.as_primitive::<Float64Type>().value(0),
                        narrow.as_primitive::<Float32Type>().value(0),
                    )
                });
                let near = numbers.into_iter().chain([b - length, b + length]);
                let near = near.flat_map(|key| {
                    let (mut down, mut up, mut all) = (key, key, vec![key]);
                    for _ in 0..3 {
                        (down, up) = (down.next_down(), up.next_up());
                        all.extend([down, up]);
                    }
                    all
                });
                for key in near {
                    if (key - b).abs() <= length {
                        let (low, high) = (ends[0].0, ends[1].0);
                        let is_in = key.total_cmp(&low).is_ge() && key.total_cmp(&high).is_le();
                        assert!(
                            is_in,
                            "{key:e} is {length:e} from {b:e}, in {low:e} to {high:e}"
                        );
                    }
                    let narrow = key as f32;
                    for key in [narrow, narrow.next_down(), narrow.next_up()] {
                        if f64::from((key - b as f32).abs()) <= length {
                            let (low, high) = (ends[0].1, ends[1].1);
                            let is_in = key.total_cmp(&low).is_ge() && key.total_cmp(&high).is_le();
                            assert!(
                                is_in,
                                "{key:e} is {length:e} from {b:e}, in {low:e} to {high:e}"
                            );
                        }
                    }
                }
            }
        }
    }
}
