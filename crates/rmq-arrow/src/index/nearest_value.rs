//! Rounds values of one type to the nearest values of another, exactly: down to the greatest that is at most the value,
//! or up to the smallest that is at least that.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, PrimitiveArray,
    make_array, new_null_array,
};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowNativeType, DataType, Decimal256Type, Float16Type, Float32Type, Float64Type, TimeUnit,
    i256,
};
use datafusion_common::{Result, internal_datafusion_err};

use crate::common::ordered_type::value_type;
use crate::index::sort_keys::native;

/// What the integer 1 of a type means.
#[derive(Debug, Clone, Copy)]
pub enum Unit {
    /// A multiple of 10^-scale.
    Decimal(u32),
    /// A float.
    Float,
    /// Nanoseconds.
    Nanoseconds(i64),
}

impl Unit {
    /// The unit of a type of numbers, `None` for any other type.
    pub fn of_number(data_type: &DataType) -> Option<Self> {
        use DataType as T;
        match data_type {
            t if t.is_integer() => Some(Self::Decimal(0)),
            T::Float16 | T::Float32 | T::Float64 => Some(Self::Float),
            T::Decimal32(_, scale)
            | T::Decimal64(_, scale)
            | T::Decimal128(_, scale)
            | T::Decimal256(_, scale) => Some(Self::Decimal(u32::try_from(*scale).ok()?)),
            _ => None,
        }
    }

    fn of_type(data_type: &DataType) -> Option<Self> {
        use DataType as T;
        let nanoseconds = |unit: &TimeUnit| match unit {
            TimeUnit::Second => 1_000_000_000,
            TimeUnit::Millisecond => 1_000_000,
            TimeUnit::Microsecond => 1_000,
            TimeUnit::Nanosecond => 1,
        };
        Some(Self::Nanoseconds(match data_type {
            T::Timestamp(unit, _) | T::Time32(unit) | T::Time64(unit) | T::Duration(unit) => {
                nanoseconds(unit)
            }
            T::Date32 => 86_400_000_000_000,
            T::Date64 => 1_000_000,
            other => return Self::of_number(other),
        }))
    }
}

/// Thresholds as values of the column's type.
pub struct Converted {
    /// The greatest value that is at most the threshold, or the smallest that is at least that. NULL if there is none.
    pub values: ArrayRef,
    /// Whether it equals the threshold; `None` if all do.
    pub exact: Option<Vec<bool>>,
}

/// Converts thresholds to values of the type `column`, with which they are comparable. With `equal_zeros`, a zero
/// equals both zeros of floats also where both types are the same.
///
/// # Errors
/// Arrow's, and an internal error for types that are not comparable.
pub fn convert(
    thresholds: &ArrayRef,
    column: &DataType,
    rounds: Rounding,
    equal_zeros: bool,
) -> Result<Converted> {
    let given = value_type(thresholds.data_type());
    let thresholds = if given == *thresholds.data_type() {
        thresholds.clone()
    } else {
        cast(thresholds, &given)?
    };
    let whole = |values| Converted {
        values,
        exact: None,
    };
    if *column == DataType::Null {
        return Ok(whole(new_null_array(column, thresholds.len())));
    }
    if given == *column {
        let is_float = matches!(Unit::of_type(column), Some(Unit::Float));
        return Ok(whole(if is_float && equal_zeros {
            with_zeros(&thresholds, rounds.negative_zero)
        } else {
            thresholds
        }));
    }
    let (Some(from), Some(to)) = (Unit::of_type(&given), Unit::of_type(column)) else {
        // Casts between the kinds of strings, or of binaries, keep the values, and NULL has no others.
        return Ok(whole(cast(&thresholds, column)?));
    };
    let scaled = match from {
        Unit::Float => Scaled::Floats(cast(&thresholds, &DataType::Float64)?),
        Unit::Decimal(scale) => Scaled::Integers(integers(&thresholds)?, scale),
        Unit::Nanoseconds(_) => Scaled::Integers(integers(&thresholds)?, 0),
    };
    match to {
        Unit::Float => Ok(rounds.to_floats(&scaled, column)),
        Unit::Decimal(scale) => {
            let to_integer = |row| match &scaled {
                Scaled::Integers(values, given) => {
                    let value = values[row]?;
                    Some(rounds.integer(value, power_of_ten(scale), power_of_ten(*given)))
                }
                Scaled::Floats(values) => {
                    let values = values.as_primitive::<Float64Type>();
                    let value = values.is_valid(row).then(|| values.value(row))?;
                    Some(rounds.float(value, scale))
                }
            };
            rounds.to_integers(thresholds.len(), to_integer, column)
        }
        Unit::Nanoseconds(unit) => {
            let (Scaled::Integers(values, _), Unit::Nanoseconds(given)) = (&scaled, from) else {
                return Err(internal_datafusion_err!("a time is compared with a number"));
            };
            let (given, unit) = (i256::from(given), i256::from(unit));
            let to_integer = |row: usize| Some(rounds.integer(values[row]?, given, unit));
            rounds.to_integers(values.len(), to_integer, column)
        }
    }
}

/// Thresholds of any numeric type.
enum Scaled {
    /// Multiples of 10^-scale, and the scale.
    Integers(Vec<Option<i256>>, u32),
    Floats(ArrayRef),
}

/// 10^`scale`. Arrow's scales are at most 76.
fn power_of_ten(scale: u32) -> i256 {
    i256::from(10).wrapping_pow(scale)
}

/// Expands `$helper!(T)` with the integer type that values of `$data_type` are stored as, or `$wide` for those of 256
/// bits.
macro_rules! with_stored_type {
    ($data_type:expr, $helper:ident, $wide:expr) => {
        match ($data_type, $data_type.primitive_width()) {
            (DataType::Decimal256(..), _) => $wide,
            (t, Some(1)) if t.is_unsigned_integer() => $helper!(u8),
            (t, Some(2)) if t.is_unsigned_integer() => $helper!(u16),
            (t, Some(4)) if t.is_unsigned_integer() => $helper!(u32),
            (t, Some(8)) if t.is_unsigned_integer() => $helper!(u64),
            (_, Some(1)) => $helper!(i8),
            (_, Some(2)) => $helper!(i16),
            (_, Some(4)) => $helper!(i32),
            (_, Some(8)) => $helper!(i64),
            (_, Some(16)) => $helper!(i128),
            (other, _) => {
                return Err(internal_datafusion_err!(
                    "{other} is not stored as integers"
                ));
            }
        }
    };
}

/// The integers that a type of integers, decimals or times is stored as.
fn integers(values: &ArrayRef) -> Result<Vec<Option<i256>>> {
    macro_rules! stored {
        ($native:ty) => {{
            let bits = native::<$native>(values);
            let values = bits.iter().enumerate().map(|(row, value)| {
                values
                    .is_valid(row)
                    .then(|| i256::from_i128(i128::from(*value)))
            });
            values.collect()
        }};
    }
    let wide = || values.as_primitive::<Decimal256Type>().iter().collect();
    Ok(with_stored_type!(values.data_type(), stored, wide()))
}

/// A threshold in units of the column.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rounded {
    /// Below every value.
    Below,
    /// An integer, and whether it is the threshold and not its neighbour.
    At(i256, bool),
    /// Above every value.
    Above,
}

/// The direction in which thresholds are rounded.
#[derive(Clone, Copy)]
pub struct Rounding {
    /// To the greatest value at most the threshold, else to the smallest at least that.
    pub is_floor: bool,
    /// The sign of a zero that equals the threshold: the one with which it includes, or excludes, both zeros.
    pub negative_zero: bool,
}

impl Rounding {
    /// Rounds `value * numerator / denominator`. Both are positive.
    fn integer(self, value: i256, numerator: i256, denominator: i256) -> Rounded {
        // One of them divides the other.
        let (numerator, denominator) = match numerator.div_checked(denominator) {
            Ok(factor) if factor != i256::ZERO => (factor, i256::ONE),
            _ => (i256::ONE, denominator.div_wrapping(numerator)),
        };
        let Some(product) = value.checked_mul(numerator) else {
            return if value < i256::ZERO {
                Rounded::Below
            } else {
                Rounded::Above
            };
        };
        let (quotient, rest) = (
            product.div_wrapping(denominator),
            product.mod_wrapping(denominator),
        );
        let adjust = match (self.is_floor, rest.cmp(&i256::ZERO)) {
            (true, Ordering::Less) => i256::MINUS_ONE,
            (false, Ordering::Greater) => i256::ONE,
            _ => i256::ZERO,
        };
        Rounded::At(quotient.wrapping_add(adjust), rest == i256::ZERO)
    }

    /// Rounds `value * 10^scale`.
    fn float(self, value: f64, scale: u32) -> Rounded {
        if !value.is_finite() {
            return if value.is_sign_negative() {
                Rounded::Below
            } else {
                Rounded::Above
            };
        }
        // value = mantissa * 2^exponent
        let bits = value.to_bits();
        let (raw, fraction) = ((bits >> 52) & 0x7FF, bits & ((1 << 52) - 1));
        let (mantissa, exponent) = match raw {
            0 => (fraction, -1074),
            #[expect(clippy::cast_possible_truncation, reason = "at most 2046")]
            raw => (fraction | 1 << 52, raw as i32 - 1075),
        };
        let mantissa = i256::from_i128(i128::from(mantissa));
        let mantissa = if value < 0.0 {
            mantissa.wrapping_neg()
        } else {
            mantissa
        };
        let beyond = if value < 0.0 {
            Rounded::Below
        } else {
            Rounded::Above
        };
        // With 10^scale = 5^scale * 2^scale, this has at most 230 bits.
        let product = mantissa.wrapping_mul(i256::from(5).wrapping_pow(scale));
        // A scale is at most 76.
        let exponent = exponent + scale.cast_signed();
        self.shifted(product, exponent, beyond)
    }

    /// Rounds `value * 2^exponent`.
    fn shifted(self, value: i256, exponent: i32, beyond: Rounded) -> Rounded {
        if value == i256::ZERO {
            return Rounded::At(value, true);
        }
        if exponent >= 0 {
            let factor = u8::try_from(exponent).ok().filter(|e| *e < 255);
            let factor = factor.map(|e| i256::ONE << e);
            let product = factor.and_then(|factor| value.checked_mul(factor));
            return product.map_or(beyond, |product| Rounded::At(product, true));
        }
        let shift = u8::try_from(-exponent).ok().filter(|shift| *shift < 255);
        let Some(shift) = shift else {
            // Less than 1.
            let nearest = match (self.is_floor, value < i256::ZERO) {
                (true, true) => i256::MINUS_ONE,
                (false, false) => i256::ONE,
                _ => i256::ZERO,
            };
            return Rounded::At(nearest, false);
        };
        // The shift keeps the sign, and so rounds down.
        let floor = value >> shift;
        let is_exact = floor << shift == value;
        let up = !is_exact && !self.is_floor;
        let floor = if up {
            floor.wrapping_add(i256::ONE)
        } else {
            floor
        };
        Rounded::At(floor, is_exact)
    }

    /// Rounds rows to values of a type that is stored as integers.
    fn to_integers(
        self,
        rows: usize,
        to_integer: impl Fn(usize) -> Option<Rounded>,
        column: &DataType,
    ) -> Result<Converted> {
        let mut exact = Vec::with_capacity(rows);
        macro_rules! stored {
            ($native:ty) => {{
                let (least, most) = (
                    i256::from_i128(i128::from(<$native>::MIN)),
                    i256::from_i128(i128::from(<$native>::MAX)),
                );
                let values = (0..rows).map(|row| {
                    let value = self.clamp(to_integer(row)?, least, most, &mut exact, row)?;
                    <$native>::try_from(value.to_i128()?).ok()
                });
                let values: Vec<Option<$native>> = values.collect();
                stored_array(&values, column)?
            }};
        }
        let values: ArrayRef = with_stored_type!(column, stored, {
            let values = (0..rows)
                .map(|row| self.clamp(to_integer(row)?, i256::MIN, i256::MAX, &mut exact, row));
            let values: PrimitiveArray<Decimal256Type> = values.collect();
            Arc::new(values.with_data_type(column.clone()))
        });
        exact.resize(rows, false);
        Ok(Converted {
            values,
            exact: Some(exact),
        })
    }

    /// Returns the nearest value of a type from `least` to `most`; `None` if no value qualifies. Records whether it is
    /// the threshold.
    fn clamp(
        self,
        rounded: Rounded,
        least: i256,
        most: i256,
        exact: &mut Vec<bool>,
        row: usize,
    ) -> Option<i256> {
        exact.resize(row + 1, false);
        let all = Some(if self.is_floor { most } else { least });
        match rounded {
            Rounded::At(value, is_exact) if least <= value && value <= most => {
                exact[row] = is_exact;
                Some(value)
            }
            Rounded::At(value, _) if (value > most) == self.is_floor => all,
            Rounded::Above if self.is_floor => all,
            Rounded::Below if !self.is_floor => all,
            Rounded::At(..) | Rounded::Above | Rounded::Below => None,
        }
    }

    /// Rounds rows to floats.
    fn to_floats(self, thresholds: &Scaled, column: &DataType) -> Converted {
        match column {
            DataType::Float16 => self.to_floats_of::<Float16Type>(thresholds),
            DataType::Float32 => self.to_floats_of::<Float32Type>(thresholds),
            _ => self.to_floats_of::<Float64Type>(thresholds),
        }
    }

    fn to_floats_of<T: FloatType>(self, thresholds: &Scaled) -> Converted {
        let (rounded, exact): (Vec<Option<T::Native>>, Vec<bool>) = match thresholds {
            Scaled::Floats(values) => {
                let values = values.as_primitive::<Float64Type>().iter();
                let rounded = values.map(|value| match value {
                    Some(value) => self.nearest::<T>(value, |float| {
                        float.partial_cmp(&value).unwrap_or(Ordering::Equal)
                    }),
                    None => (None, false),
                });
                rounded.unzip()
            }
            Scaled::Integers(values, scale) => {
                let unit = 10_f64.powi(scale.cast_signed());
                let rounded = values.iter().map(|value| match value {
                    Some(value) => {
                        let guess = approximate(*value) / unit;
                        let compare = |float: f64| {
                            let up = Rounding {
                                is_floor: false,
                                ..self
                            };
                            match up.float(float, *scale) {
                                Rounded::Above => Ordering::Greater,
                                Rounded::Below => Ordering::Less,
                                Rounded::At(float, is_exact) => match float.cmp(value) {
                                    // Rounded up to the threshold, so below it.
                                    Ordering::Equal if !is_exact => Ordering::Less,
                                    ordering => ordering,
                                },
                            }
                        };
                        self.nearest::<T>(guess, compare)
                    }
                    None => (None, false),
                });
                rounded.unzip()
            }
        };
        let values: PrimitiveArray<T> = rounded.into_iter().collect();
        Converted {
            values: Arc::new(values),
            exact: Some(exact),
        }
    }

    /// Returns the nearest float in this direction, and whether it equals the threshold, from a guess and how a float
    /// compares with the threshold.
    fn nearest<T: FloatType>(
        self,
        guess: f64,
        compare: impl Fn(f64) -> Ordering,
    ) -> (Option<T::Native>, bool) {
        let mut float = T::nearest(guess);
        if guess.is_nan() {
            return (Some(float), true);
        }
        // The guess is at most a few floats away.
        while compare(T::widened(float)).is_lt() && T::widened(float) != f64::INFINITY {
            float = T::next_up(float);
        }
        while compare(T::widened(float)).is_gt() && T::widened(float) != f64::NEG_INFINITY {
            float = T::next_down(float);
        }
        // The greatest at most the threshold.
        let is_exact = compare(T::widened(float)).is_eq();
        if is_exact {
            let zero = if self.negative_zero { -0.0 } else { 0.0 };
            let is_zero = T::widened(float) == 0.0;
            return (Some(if is_zero { T::nearest(zero) } else { float }), true);
        }
        (
            Some(if self.is_floor {
                float
            } else {
                T::next_up(float)
            }),
            false,
        )
    }
}

/// The nearest float, or one beside it.
#[allow(clippy::cast_precision_loss, reason = "an approximation")]
fn approximate(value: i256) -> f64 {
    // The parts of a small negative number would cancel each other.
    let (low, high) = value.wrapping_abs().to_parts();
    let size = high as f64 * 2_f64.powi(128) + low as f64;
    if value < i256::ZERO { -size } else { size }
}

/// A floating-point type.
trait FloatType: ArrowPrimitiveType {
    fn nearest(value: f64) -> Self::Native;
    fn widened(float: Self::Native) -> f64;
    fn next_up(float: Self::Native) -> Self::Native;
    fn next_down(float: Self::Native) -> Self::Native;
}

macro_rules! float_type {
    ($arrow:ty, $sign:literal, $nearest:expr) => {
        impl FloatType for $arrow {
            fn nearest(value: f64) -> Self::Native {
                $nearest(value)
            }

            fn widened(float: Self::Native) -> f64 {
                f64::from(float)
            }

            fn next_up(float: Self::Native) -> Self::Native {
                match float.to_bits() {
                    // Both zeros.
                    0 | $sign => Self::Native::from_bits(1),
                    bits if bits < $sign => Self::Native::from_bits(bits + 1),
                    bits => Self::Native::from_bits(bits - 1),
                }
            }

            fn next_down(float: Self::Native) -> Self::Native {
                -Self::next_up(-float)
            }
        }
    };
}

#[allow(clippy::cast_possible_truncation, reason = "rounds to the nearest")]
fn nearest_32(value: f64) -> f32 {
    value as f32
}

float_type!(
    Float16Type,
    0x8000,
    <Self as ArrowPrimitiveType>::Native::from_f64
);
float_type!(Float32Type, 0x8000_0000, nearest_32);
float_type!(Float64Type, 0x8000_0000_0000_0000, std::convert::identity);

/// Replaces zeros by the zero of one sign.
fn with_zeros(values: &ArrayRef, negative: bool) -> ArrayRef {
    fn replaced<T: FloatType>(values: &ArrayRef, negative: bool) -> ArrayRef {
        let zero = T::nearest(if negative { -0.0 } else { 0.0 });
        let values = values.as_primitive::<T>();
        let values = values.unary::<_, T>(|value| {
            if T::widened(value) == 0.0 {
                zero
            } else {
                value
            }
        });
        Arc::new(values)
    }
    match values.data_type() {
        DataType::Float16 => replaced::<Float16Type>(values, negative),
        DataType::Float32 => replaced::<Float32Type>(values, negative),
        _ => replaced::<Float64Type>(values, negative),
    }
}

/// An array of a type that is stored as these integers.
fn stored_array<T: ArrowNativeType>(
    values: &[Option<T>],
    data_type: &DataType,
) -> Result<ArrayRef> {
    let nulls: NullBuffer = values
        .iter()
        .map(Option::is_some)
        .collect::<Vec<_>>()
        .into();
    let values: Vec<T> = values.iter().map(|v| v.unwrap_or_default()).collect();
    let data = ArrayData::builder(data_type.clone())
        .len(values.len())
        .nulls(Some(nulls))
        .add_buffer(Buffer::from_vec(values))
        .build()?;
    Ok(make_array(data))
}
