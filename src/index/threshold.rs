//! Thresholds as keys: what a value of any comparable type means for the keys of a column.
//!
//! A threshold is never rounded to the column's type. Instead it becomes the greatest value of that type that is at most the threshold (or the
//! smallest that is at least that), which the same rows satisfy: `int_col >= 2.5` means 3.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, PrimitiveArray,
    UInt32Array, make_array, make_comparator, new_null_array,
};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::compute::{SortOptions, cast};
use arrow::datatypes::{
    ArrowNativeType, DataType, Decimal256Type, Float16Type, Float32Type, Float64Type, TimeUnit,
    i256,
};
use datafusion::common::{Result, internal_datafusion_err, plan_err};

use crate::common::ordered_type::{is_ranked, value_type};
use crate::index::sort_keys::{Chunks, KeyColumn, encode};
use rmq_engine::{Encoding, Extreme, Key};

/// How rows are compared with a threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ThresholdTest {
    /// Whether rows qualify that are at most the threshold (`Min`), or at least that (`Max`).
    pub(crate) extreme: Extreme,
    /// Whether rows that are equal to the threshold don't qualify.
    pub(crate) strict: bool,
    /// Whether -0.0 equals 0.0 also where column and threshold are floats of one type. Otherwise it is below, as in IEEE 754's total order.
    pub(crate) equal_zeros: bool,
}

impl ThresholdTest {
    /// The test of `range_first_at_most` and its like.
    pub(crate) fn of_function(extreme: Extreme) -> Self {
        Self {
            extreme,
            strict: false,
            equal_zeros: false,
        }
    }
}

/// The keys of thresholds: in an index of `ThresholdTest::extreme`, the rows that qualify are those whose keys are at most these.
#[derive(Debug)]
pub(crate) struct ThresholdKeys {
    pub(crate) keys: AnyKeys,
    /// Not set where no row qualifies, as for a NULL threshold.
    pub(crate) valid: Option<NullBuffer>,
}

/// Keys of any width.
#[derive(Debug)]
pub(crate) enum AnyKeys {
    W32(Vec<u32>),
    W64(Vec<u64>),
    W128(Vec<u128>),
}

/// Checks that values of a column can be compared exactly with a threshold.
///
/// # Errors
/// A planning error that names the function and both types.
pub(crate) fn check_comparable(
    function: &str,
    column: &DataType,
    threshold: &DataType,
) -> Result<()> {
    let (column, threshold) = (value_type(column), value_type(threshold));
    if is_comparable(&column, &threshold) {
        return Ok(());
    }
    plan_err!(
        "{function}: the threshold is a {threshold}, which can't be compared exactly with a column of {column}; numbers are compared with \
         numbers, dates and timestamps with each other (all with or all without a time zone), strings with strings; cast it, for \
         example arrow_cast(x, '{column}')"
    )
}

fn is_comparable(column: &DataType, threshold: &DataType) -> bool {
    use DataType as T;
    let is_text = |t: &T| matches!(t, T::Utf8 | T::LargeUtf8 | T::Utf8View);
    let is_binary = |t: &T| matches!(t, T::Binary | T::LargeBinary | T::BinaryView);
    column == threshold
        || *threshold == T::Null
        || *column == T::Null
        || (is_text(column) && is_text(threshold))
        || (is_binary(column) && is_binary(threshold))
        || (Unit::of_number(column).is_some() && Unit::of_number(threshold).is_some())
        || match (column, threshold) {
            (T::Timestamp(_, a), T::Timestamp(_, b)) => a.is_some() == b.is_some(),
            (a, b) => {
                let instant = |t: &T| matches!(t, T::Timestamp(_, None) | T::Date32 | T::Date64);
                let time = |t: &T| matches!(t, T::Time32(_) | T::Time64(_));
                let duration = |t: &T| matches!(t, T::Duration(_));
                (instant(a) && instant(b)) || (time(a) && time(b)) || (duration(a) && duration(b))
            }
        }
}

/// What the integer 1 of a type stands for.
#[derive(Debug, Clone, Copy)]
enum Unit {
    /// A multiple of 10^-scale.
    Decimal(u32),
    /// A float.
    Float,
    /// Nanoseconds.
    Nanoseconds(i64),
}

impl Unit {
    fn of_number(data_type: &DataType) -> Option<Self> {
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

    fn of(data_type: &DataType) -> Option<Self> {
        use DataType as T;
        let of_time = |unit: &TimeUnit| match unit {
            TimeUnit::Second => 1_000_000_000,
            TimeUnit::Millisecond => 1_000_000,
            TimeUnit::Microsecond => 1_000,
            TimeUnit::Nanosecond => 1,
        };
        Some(Self::Nanoseconds(match data_type {
            T::Timestamp(unit, _) | T::Time32(unit) | T::Time64(unit) | T::Duration(unit) => {
                of_time(unit)
            }
            T::Date32 => 86_400_000_000_000,
            T::Date64 => 1_000_000,
            other => return Self::of_number(other),
        }))
    }
}

/// Computes the keys of `thresholds` for a column of type `column`, whose values by rank are `distinct` if its keys are ranks.
///
/// # Errors
/// An execution error for types that can't be compared, and Arrow's own.
pub(crate) fn threshold_keys(
    thresholds: &ArrayRef,
    column: &DataType,
    distinct: Option<&ArrayRef>,
    test: ThresholdTest,
) -> Result<ThresholdKeys> {
    let converted = convert(thresholds, column, test)?;
    let is_strict =
        |row: usize| test.strict && converted.exact.as_ref().is_none_or(|exact| exact[row]);
    if is_ranked(column) {
        let distinct = distinct.ok_or_else(|| internal_datafusion_err!("ranks without values"))?;
        return ranks(&converted.values, distinct, test.extreme, is_strict);
    }
    let chunks = Chunks {
        arrays: vec![converted.values],
        owned_elsewhere: true,
    };
    let encoded = encode(&chunks, column, test.extreme)?;
    let valid = chunks.arrays[0].logical_nulls();
    Ok(match encoded.column {
        KeyColumn::W32(column) => {
            let (keys, valid) = keys(
                column.bits(),
                column.encoding(),
                valid,
                is_strict,
                u32_below,
            );
            ThresholdKeys {
                keys: AnyKeys::W32(keys),
                valid,
            }
        }
        KeyColumn::W64(column) => {
            let (keys, valid) = keys(
                column.bits(),
                column.encoding(),
                valid,
                is_strict,
                u64_below,
            );
            ThresholdKeys {
                keys: AnyKeys::W64(keys),
                valid,
            }
        }
        KeyColumn::W128(column) => {
            let (keys, valid) = keys(
                column.bits(),
                column.encoding(),
                valid,
                is_strict,
                u128_below,
            );
            ThresholdKeys {
                keys: AnyKeys::W128(keys),
                valid,
            }
        }
    })
}

fn u32_below(key: u32) -> Option<u32> {
    key.checked_sub(1)
}

fn u64_below(key: u64) -> Option<u64> {
    key.checked_sub(1)
}

fn u128_below(key: u128) -> Option<u128> {
    key.checked_sub(1)
}

/// Encodes bits; where `is_strict`, returns the next smaller key.
fn keys<K: Key>(
    bits: &[K],
    encoding: Encoding<K>,
    valid: Option<NullBuffer>,
    is_strict: impl Fn(usize) -> bool,
    below: impl Fn(K) -> Option<K>,
) -> (Vec<K>, Option<NullBuffer>) {
    let mut missing = vec![];
    let keys = bits.iter().enumerate().map(|(row, bits)| {
        let key = encoding.encode(*bits);
        if !is_strict(row) {
            return key;
        }
        below(key).unwrap_or_else(|| {
            missing.push(row);
            key
        })
    });
    let keys: Vec<K> = keys.collect();
    if missing.is_empty() {
        return (keys, valid);
    }
    let mut found = vec![true; keys.len()];
    missing.into_iter().for_each(|row| found[row] = false);
    let valid = NullBuffer::union(valid.as_ref(), Some(&NullBuffer::from(found)));
    (keys, valid)
}

/// The keys of thresholds of a ranked column, from the ranks of their neighbours among the distinct values.
fn ranks(
    thresholds: &ArrayRef,
    distinct: &ArrayRef,
    extreme: Extreme,
    is_strict: impl Fn(usize) -> bool,
) -> Result<ThresholdKeys> {
    let compare = make_comparator(distinct, thresholds, SortOptions::default())?;
    let encoding = Encoding::<u32>::unsigned().directed(extreme);
    let count = distinct.len();
    let rank = |row: usize| {
        if thresholds.is_null(row) {
            return None;
        }
        let includes_equal = (extreme == Extreme::Min) != is_strict(row);
        let (mut low, mut high) = (0, count);
        // The first distinct value above the threshold, or at it unless equal ones are included below.
        while low < high {
            let middle = usize::midpoint(low, high);
            let is_below = match compare(middle, row) {
                Ordering::Less => true,
                Ordering::Equal => includes_equal,
                Ordering::Greater => false,
            };
            (low, high) = if is_below {
                (middle + 1, high)
            } else {
                (low, middle)
            };
        }
        match extreme {
            Extreme::Min => low.checked_sub(1),
            Extreme::Max => (low < count).then_some(low),
        }
    };
    // There are fewer than 2^32 ranks.
    let ranks: UInt32Array = (0..thresholds.len())
        .map(|row| rank(row).and_then(|rank| u32::try_from(rank).ok()))
        .collect();
    Ok(ThresholdKeys {
        keys: AnyKeys::W32(ranks.values().iter().map(|r| encoding.encode(*r)).collect()),
        valid: ranks.nulls().cloned(),
    })
}

/// Thresholds as values of the column's type.
struct Converted {
    /// The greatest value that is at most the threshold, or the smallest that is at least that. NULL if there is none.
    values: ArrayRef,
    /// Whether it equals the threshold; `None` if all do.
    exact: Option<Vec<bool>>,
}

fn convert(thresholds: &ArrayRef, column: &DataType, test: ThresholdTest) -> Result<Converted> {
    let given = value_type(thresholds.data_type());
    let thresholds = if given == *thresholds.data_type() {
        thresholds.clone()
    } else {
        cast(thresholds, &given)?
    };
    let is_floor = test.extreme == Extreme::Min;
    let whole = |values| Converted {
        values,
        exact: None,
    };
    if *column == DataType::Null {
        return Ok(whole(new_null_array(column, thresholds.len())));
    }
    if given == *column {
        let is_float = matches!(Unit::of(column), Some(Unit::Float));
        return Ok(whole(if is_float && test.equal_zeros {
            with_zeros(&thresholds, is_floor == test.strict)?
        } else {
            thresholds
        }));
    }
    let (Some(from), Some(to)) = (Unit::of(&given), Unit::of(column)) else {
        // Casts between the kinds of strings, or of binaries, keep the values, and NULL has no others.
        return Ok(whole(cast(&thresholds, column)?));
    };
    let scaled = match from {
        Unit::Float => Scaled::Floats(cast(&thresholds, &DataType::Float64)?),
        Unit::Decimal(scale) => Scaled::Integers(integers(&thresholds)?, power_of_ten(scale)),
        Unit::Nanoseconds(_) => Scaled::Integers(integers(&thresholds)?, i256::ONE),
    };
    let rounds = Rounding {
        is_floor,
        negative_zero: is_floor == test.strict,
    };
    match to {
        Unit::Float => rounds.to_floats(&scaled, column),
        Unit::Decimal(scale) => {
            let to_integer = |row| match &scaled {
                Scaled::Integers(values, unit) => {
                    let value = values[row]?;
                    Some(rounds.integer(value, power_of_ten(scale), *unit))
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
    /// `value / unit`.
    Integers(Vec<Option<i256>>, i256),
    Floats(ArrayRef),
}

/// 10^`scale`. Arrow's scales are at most 76.
fn power_of_ten(scale: u32) -> i256 {
    i256::from(10).wrapping_pow(scale)
}

/// The integers that a type of integers, decimals or times is stored as.
fn integers(values: &ArrayRef) -> Result<Vec<Option<i256>>> {
    macro_rules! stored {
        ($native:ty) => {{
            let bits = crate::index::sort_keys::native::<$native>(values);
            let values = bits.iter().enumerate().map(|(row, value)| {
                values
                    .is_valid(row)
                    .then(|| i256::from_i128(i128::from(*value)))
            });
            values.collect()
        }};
    }
    Ok(
        match (values.data_type(), values.data_type().primitive_width()) {
            (DataType::Decimal256(..), _) => {
                values.as_primitive::<Decimal256Type>().iter().collect()
            }
            (t, Some(1)) if t.is_unsigned_integer() => stored!(u8),
            (t, Some(2)) if t.is_unsigned_integer() => stored!(u16),
            (t, Some(4)) if t.is_unsigned_integer() => stored!(u32),
            (t, Some(8)) if t.is_unsigned_integer() => stored!(u64),
            (_, Some(1)) => stored!(i8),
            (_, Some(2)) => stored!(i16),
            (_, Some(4)) => stored!(i32),
            (_, Some(8)) => stored!(i64),
            (_, Some(16)) => stored!(i128),
            (other, _) => {
                return Err(internal_datafusion_err!(
                    "{other} is not stored as integers"
                ));
            }
        },
    )
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
struct Rounding {
    /// To the greatest value at most the threshold, else to the smallest at least that.
    is_floor: bool,
    /// The sign of a zero that equals the threshold: the one with which it includes, or excludes, both zeros.
    negative_zero: bool,
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
            // At most 2046.
            raw => (fraction | 1 << 52, i32::try_from(raw).unwrap_or(0) - 1075),
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
        let exponent = exponent + i32::try_from(scale).unwrap_or(0);
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
        let values: ArrayRef = match (column, column.primitive_width()) {
            (DataType::Decimal256(..), _) => {
                let values = (0..rows)
                    .map(|row| self.clamp(to_integer(row)?, i256::MIN, i256::MAX, &mut exact, row));
                let values: PrimitiveArray<Decimal256Type> = values.collect();
                Arc::new(values.with_data_type(column.clone()))
            }
            (t, Some(1)) if t.is_unsigned_integer() => stored!(u8),
            (t, Some(2)) if t.is_unsigned_integer() => stored!(u16),
            (t, Some(4)) if t.is_unsigned_integer() => stored!(u32),
            (t, Some(8)) if t.is_unsigned_integer() => stored!(u64),
            (_, Some(1)) => stored!(i8),
            (_, Some(2)) => stored!(i16),
            (_, Some(4)) => stored!(i32),
            (_, Some(8)) => stored!(i64),
            (_, Some(16)) => stored!(i128),
            (other, _) => {
                return Err(internal_datafusion_err!(
                    "{other} is not stored as integers"
                ));
            }
        };
        exact.resize(rows, false);
        Ok(Converted {
            values,
            exact: Some(exact),
        })
    }

    /// Returns the nearest value of a type from `least` to `most`; `None` if no value qualifies. Records whether it is the threshold.
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
    fn to_floats(self, thresholds: &Scaled, column: &DataType) -> Result<Converted> {
        match column {
            DataType::Float16 => self.to_floats_of::<Float16Type>(thresholds),
            DataType::Float32 => self.to_floats_of::<Float32Type>(thresholds),
            _ => self.to_floats_of::<Float64Type>(thresholds),
        }
    }

    fn to_floats_of<T: FloatType>(self, thresholds: &Scaled) -> Result<Converted> {
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
            Scaled::Integers(values, unit) => {
                let scale = scale_of(*unit);
                let rounded = values.iter().map(|value| match value {
                    Some(value) => {
                        let guess = approximate(*value) / 10_f64.powi(scale);
                        let compare = |float: f64| {
                            let up = Rounding {
                                is_floor: false,
                                ..self
                            };
                            match up.float(float, scale.unsigned_abs()) {
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
        Ok(Converted {
            values: Arc::new(values),
            exact: Some(exact),
        })
    }

    /// Returns the nearest float in this direction, and whether it equals the threshold, from a guess and how a float compares with the threshold.
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

/// The scale of which `unit` is the power of ten.
fn scale_of(unit: i256) -> i32 {
    (0..=76)
        .find(|scale| power_of_ten(*scale) == unit)
        .map_or(0, |scale| i32::try_from(scale).unwrap_or(0))
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
fn with_zeros(values: &ArrayRef, negative: bool) -> Result<ArrayRef> {
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
    Ok(match values.data_type() {
        DataType::Float16 => replaced::<Float16Type>(values, negative),
        DataType::Float32 => replaced::<Float32Type>(values, negative),
        _ => replaced::<Float64Type>(values, negative),
    })
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

#[cfg(test)]
mod tests {
    use arrow::array::{
        Date32Array, Decimal128Array, Float32Array, Float64Array, Int8Array, Int64Array,
        StringArray, TimestampMillisecondArray, TimestampSecondArray, UInt64Array,
    };
    use arrow::compute::cast_with_options;

    use super::*;

    fn test(extreme: Extreme, strict: bool) -> ThresholdTest {
        ThresholdTest {
            extreme,
            strict,
            equal_zeros: false,
        }
    }

    /// For each threshold and each row of a column, whether the row passes.
    fn passing(column: &ArrayRef, thresholds: &ArrayRef, test: ThresholdTest) -> Vec<Vec<bool>> {
        let chunks = Chunks {
            arrays: vec![Arc::clone(column)],
            owned_elsewhere: true,
        };
        let encoded = encode(&chunks, column.data_type(), test.extreme).unwrap();
        let distinct = encoded.decoder.distinct();
        let found = threshold_keys(thresholds, column.data_type(), distinct, test).unwrap();
        macro_rules! compare {
            ($column:ident, $keys:ident) => {
                (0..thresholds.len())
                    .map(|t| {
                        let row = |row: usize| {
                            found.valid.as_ref().is_none_or(|valid| valid.is_valid(t))
                                && column.is_valid(row)
                                && $column.encoding().encode($column.bits()[row]) <= $keys[t]
                        };
                        (0..column.len()).map(row).collect()
                    })
                    .collect()
            };
        }
        match (&encoded.column, &found.keys) {
            (KeyColumn::W32(column_keys), AnyKeys::W32(keys)) => compare!(column_keys, keys),
            (KeyColumn::W64(column_keys), AnyKeys::W64(keys)) => compare!(column_keys, keys),
            (KeyColumn::W128(column_keys), AnyKeys::W128(keys)) => compare!(column_keys, keys),
            _ => panic!("keys of two widths"),
        }
    }

    /// Compares numbers of all types with numbers of all types, where all are multiples of 1/8 and so exact in thousandths.
    #[test]
    fn numbers_of_any_types_are_compared_exactly() {
        let random = &mut fastrand::Rng::with_seed(81);
        let types = [
            DataType::Int8,
            DataType::Int32,
            DataType::Int64,
            DataType::UInt8,
            DataType::UInt64,
            DataType::Float16,
            DataType::Float32,
            DataType::Float64,
            DataType::Decimal32(7, 3),
            DataType::Decimal64(9, 0),
            DataType::Decimal128(20, 5),
            DataType::Decimal128(20, 1),
            DataType::Decimal256(60, 4),
        ];
        let numbers =
            |random: &mut fastrand::Rng, data_type: &DataType| -> (ArrayRef, Vec<Option<f64>>) {
                let values = (0..60).map(|_| {
                    let value = f64::from(random.i32(-300..300)) / 8.0;
                    (random.u32(..10) > 0).then_some(value)
                });
                let values: Float64Array = values.collect();
                let options = arrow::compute::CastOptions {
                    safe: true,
                    ..Default::default()
                };
                // Through decimals, which round as none of the code under test does.
                let values: ArrayRef = Arc::new(values);
                let array = cast_with_options(&values, data_type, &options).unwrap();
                let numbers = cast(&array, &DataType::Float64).unwrap();
                (
                    array,
                    numbers.as_primitive::<Float64Type>().iter().collect(),
                )
            };
        for column_type in &types {
            for threshold_type in &types {
                let (column, rows) = numbers(random, column_type);
                let (thresholds, limits) = numbers(random, threshold_type);
                for extreme in [Extreme::Min, Extreme::Max] {
                    for strict in [false, true] {
                        let found = passing(&column, &thresholds, test(extreme, strict));
                        for (t, found) in found.iter().enumerate() {
                            for (row, found) in found.iter().enumerate() {
                                let expected = match (rows[row], limits[t]) {
                                    (Some(value), Some(limit)) => match (extreme, strict) {
                                        (Extreme::Min, false) => value <= limit,
                                        (Extreme::Min, true) => value < limit,
                                        (Extreme::Max, false) => value >= limit,
                                        (Extreme::Max, true) => value > limit,
                                    },
                                    _ => false,
                                };
                                // -0.0 does not occur.
                                assert_eq!(
                                    *found, expected,
                                    "{column_type} {:?} {extreme:?} strict {strict} of {threshold_type} {:?}",
                                    rows[row], limits[t]
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    /// Rows that are at most, below, at least and above each threshold, as counts.
    fn counts(column: &ArrayRef, thresholds: &ArrayRef) -> Vec<[usize; 4]> {
        let count = |extreme, strict| {
            let passing = passing(column, thresholds, test(extreme, strict)).into_iter();
            passing.map(|rows| rows.into_iter().filter(|passes| *passes).count())
        };
        count(Extreme::Min, false)
            .zip(count(Extreme::Min, true))
            .zip(count(Extreme::Max, false).zip(count(Extreme::Max, true)))
            .map(|((a, b), (c, d))| [a, b, c, d])
            .collect()
    }

    fn array<T: Array + 'static>(values: T) -> ArrayRef {
        Arc::new(values)
    }

    #[test]
    fn thresholds_outside_of_a_type_are_passed_by_all_rows_or_none() {
        let small = array(Int8Array::from(vec![i8::MIN, -1, 0, i8::MAX]));
        let beyond = array(Float64Array::from(vec![
            1e300,
            -1e300,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            -f64::NAN,
            127.5,
            -128.5,
            -0.0,
            1e-300,
        ]));
        let (all, none) = ([4, 4, 0, 0], [0, 0, 4, 4]);
        assert_eq!(
            counts(&small, &beyond),
            [
                all,
                none,
                all,
                none,
                all,
                none,
                all,
                none,
                [3, 2, 2, 1],
                [3, 3, 1, 1]
            ]
        );
        let large = array(UInt64Array::from(vec![0, 1 << 63, u64::MAX]));
        let beyond = array(Float64Array::from(vec![
            18_446_744_073_709_551_616.0,
            9_223_372_036_854_775_808.0,
            -1.0,
        ]));
        assert_eq!(
            counts(&large, &beyond),
            [[3, 3, 0, 0], [2, 1, 2, 1], [0, 0, 3, 3]]
        );
        let exact = array(Int64Array::from(vec![1 << 53, (1 << 53) + 1, i64::MAX]));
        let floats = array(Float64Array::from(vec![9_007_199_254_740_992.0, 9.3e18]));
        assert_eq!(counts(&exact, &floats), [[1, 0, 3, 2], [3, 3, 0, 0]]);
        // The other way round: no float is 2^53 + 1, and 2^63 - 1 is below 2^63.
        let floats = array(Float64Array::from(vec![
            9_007_199_254_740_992.0,
            9_007_199_254_740_994.0,
            9_223_372_036_854_775_808.0,
        ]));
        assert_eq!(
            counts(&floats, &exact),
            [[1, 0, 3, 2], [1, 1, 2, 2], [2, 2, 1, 1]]
        );
        let narrow = array(Float32Array::from(vec![0.1, f32::MAX, f32::INFINITY]));
        let wide = array(Float64Array::from(vec![0.1, 1e39, f64::INFINITY, f64::NAN]));
        assert_eq!(
            counts(&narrow, &wide),
            [[0, 0, 3, 3], [2, 2, 1, 1], [3, 2, 1, 0], [3, 3, 0, 0]]
        );
        let tiny = array(
            Decimal128Array::from(vec![1, 2])
                .with_precision_and_scale(38, 38)
                .unwrap(),
        );
        let floats = array(Float64Array::from(vec![1e-38, 1.5e-38, 1e30]));
        // The nearest float of 10^-38 is not that number.
        assert_eq!(counts(&tiny, &floats)[1..], [[1, 1, 1, 1], [2, 2, 0, 0]]);
        assert_eq!(counts(&floats, &tiny)[1], [2, 2, 1, 1]);
    }

    #[test]
    fn zeros_are_in_total_order_unless_they_are_equal() {
        let zeros = array(Float64Array::from(vec![-1.0, -0.0, 0.0, 1.0]));
        assert_eq!(counts(&zeros, &zeros)[1..3], [[2, 1, 3, 2], [3, 2, 2, 1]]);
        let integer = array(Int8Array::from(vec![0]));
        assert_eq!(counts(&zeros, &integer), [[3, 1, 3, 1]]);
        for (extreme, strict, count) in [
            (Extreme::Min, false, 3),
            (Extreme::Min, true, 1),
            (Extreme::Max, false, 3),
            (Extreme::Max, true, 1),
        ] {
            let equal = ThresholdTest {
                equal_zeros: true,
                ..test(extreme, strict)
            };
            for rows in &passing(&zeros, &zeros, equal)[1..3] {
                let passing = rows.iter().filter(|passes| **passes).count();
                assert_eq!(passing, count, "{extreme:?} {strict}");
            }
        }
    }

    #[test]
    fn times_of_other_units_and_texts_are_compared_exactly() {
        let seconds = array(TimestampSecondArray::from(vec![-1, 0, 1, 86_400]));
        let millis = array(TimestampMillisecondArray::from(vec![
            -500, 0, 999, 86_400_000,
        ]));
        assert_eq!(
            counts(&seconds, &millis),
            [[1, 1, 3, 3], [2, 1, 3, 2], [2, 2, 2, 2], [4, 3, 1, 0]]
        );
        assert_eq!(
            counts(&millis, &seconds),
            [[0, 0, 4, 4], [2, 1, 3, 2], [3, 3, 1, 1], [4, 3, 1, 0]]
        );
        let days = array(Date32Array::from(vec![-1, 0, 1]));
        assert_eq!(
            counts(&days, &seconds),
            [[1, 1, 2, 2], [2, 1, 2, 1], [2, 2, 1, 1], [3, 2, 1, 0]]
        );
        let words = array(StringArray::from(vec![
            Some("b"),
            None,
            Some("d"),
            Some("b"),
        ]));
        let limits = array(StringArray::from(vec![
            Some("a"),
            Some("b"),
            Some("c"),
            Some("d"),
            Some("e"),
            None,
        ]));
        let expected = [
            [0, 0, 3, 3],
            [2, 0, 3, 1],
            [2, 2, 1, 1],
            [3, 2, 1, 0],
            [3, 3, 0, 0],
            [0, 0, 0, 0],
        ];
        assert_eq!(counts(&words, &limits), expected);
        let views = cast(&limits, &DataType::Utf8View).unwrap();
        assert_eq!(counts(&words, &views), expected);
    }

    #[test]
    fn types_that_have_no_common_order_are_rejected() {
        let utc = DataType::Timestamp(TimeUnit::Second, Some("UTC".into()));
        let naive = DataType::Timestamp(TimeUnit::Second, None);
        for (column, threshold) in [
            (DataType::Int8, DataType::Utf8),
            (DataType::Utf8, DataType::Binary),
            (utc.clone(), naive.clone()),
            (utc, DataType::Date32),
            (naive, DataType::Int64),
            (DataType::Boolean, DataType::Int8),
        ] {
            let error = check_comparable("range_first_at_most", &column, &threshold);
            let error = error.unwrap_err().to_string();
            assert!(
                error.contains("range_first_at_most: the threshold is a"),
                "{error}"
            );
        }
        assert!(check_comparable("f", &DataType::Int8, &DataType::Null).is_ok());
    }
}
