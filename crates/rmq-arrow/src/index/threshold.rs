//! Thresholds as keys: what a value of any comparable type means for the keys of a column.
//!
//! A threshold is never rounded to the column's type. Instead it becomes the greatest value of that type that is at
//! most the threshold (or the smallest that is at least that), which the same rows satisfy: `int_col >= 2.5` means 3.
//!
//! Where no row can satisfy a threshold its range becomes empty. The engine's `crossings` reads at most three lines of
//! each level of chunk minima: below the nearest block of interest within the range, and at the two ends. The greatest
//! key is also that of NULL; for it the bitmaps of valid rows answer.

use std::cmp::Ordering;

use arrow::array::{Array, ArrayRef, UInt32Array, make_comparator};
use arrow::buffer::NullBuffer;
use arrow::compute::SortOptions;
use arrow::datatypes::DataType;
use datafusion_common::{Result, exec_err, internal_datafusion_err, plan_err};

use crate::common::ordered_type::{is_ranked, value_type};
use crate::common::row_number::row_number;
use crate::index::any_width::{AnyWidth, map_width};
use crate::index::nearest_value::{Rounding, Unit, convert};
use crate::index::sort_keys::{Chunks, encode};
use rmq_engine::{Column, Comparison, Encoding, Extreme, Key};

/// How rows are compared with a threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThresholdTest {
    /// Whether rows qualify that are at most the threshold (`Min`), or at least that (`Max`).
    pub extreme: Extreme,
    /// Whether rows that are equal to the threshold don't qualify.
    pub strict: bool,
    /// Whether -0.0 equals 0.0 also where column and threshold are floats of one type. Otherwise it is below, as in
    /// IEEE 754's total order.
    pub equal_zeros: bool,
}

impl ThresholdTest {
    /// The test of `range_first_at_most` and its like.
    pub fn of_function(extreme: Extreme) -> Self {
        Self {
            extreme,
            strict: false,
            equal_zeros: false,
        }
    }

    /// The test that a comparison with a threshold makes. Zeros of both signs are equal, as in SQL's comparisons.
    pub fn of_comparison(comparison: Comparison) -> Self {
        Self {
            extreme: if comparison.is_lower() {
                Extreme::Max
            } else {
                Extreme::Min
            },
            strict: comparison.is_strict(),
            equal_zeros: true,
        }
    }
}

/// The keys of thresholds: in an index of `ThresholdTest::extreme`, the rows that qualify are those whose keys are at
/// most these.
#[derive(Debug)]
pub struct ThresholdKeys {
    /// One for each threshold.
    pub keys: AnyKeys,
    /// Not set where no row qualifies, as for a NULL threshold.
    pub valid: Option<NullBuffer>,
}

/// Keys of any width.
pub type AnyKeys = AnyWidth<Vec<u32>, Vec<u64>, Vec<u128>>;

/// Checks that values of a column can be compared exactly with a threshold.
///
/// # Errors
/// A planning error that names the function and both types.
pub fn check_comparable(function: &str, column: &DataType, threshold: &DataType) -> Result<()> {
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

/// Computes the keys of `thresholds` for a column of type `column`, whose values by rank are `distinct` if its keys are
/// ranks.
///
/// # Errors
/// An execution error for types that can't be compared, and Arrow's own.
pub fn threshold_keys(
    thresholds: &ArrayRef,
    column: &DataType,
    distinct: Option<&ArrayRef>,
    test: ThresholdTest,
) -> Result<ThresholdKeys> {
    let given = value_type(thresholds.data_type());
    if !is_comparable(column, &given) {
        return exec_err!(
            "a threshold is a {given}, which can't be compared exactly with a column of {column}; if the column's type changed since the query \
             was planned, run the query again"
        );
    }
    let is_floor = test.extreme == Extreme::Min;
    let rounding = Rounding {
        is_floor,
        negative_zero: is_floor == test.strict,
    };
    let converted = convert(thresholds, column, rounding, test.equal_zeros)?;
    let is_strict =
        |row: usize| test.strict && converted.exact.as_ref().is_none_or(|exact| exact[row]);
    if is_ranked(column) {
        let distinct = distinct.ok_or_else(|| internal_datafusion_err!("ranks without values"))?;
        return ranks(&converted.values, distinct, test.extreme, is_strict);
    }
    let chunks = Chunks::borrowed(vec![converted.values]);
    let encoded = encode(&chunks, column, test.extreme)?;
    let mut valid = chunks.arrays[0].logical_nulls();
    let keys = map_width!(encoded.column, column => keys(&column, &mut valid, is_strict));
    Ok(ThresholdKeys { keys, valid })
}

/// The keys of a column; where `is_strict`, the next smaller key. Removes rows for which there is none from `valid`.
fn keys<K: Key>(
    column: &Column<K>,
    valid: &mut Option<NullBuffer>,
    is_strict: impl Fn(usize) -> bool,
) -> Vec<K> {
    let encoding = column.encoding();
    let mut missing = vec![];
    let keys = column.bits().iter().enumerate().map(|(row, bits)| {
        let key = encoding.encode(*bits);
        if !is_strict(row) {
            return key;
        }
        key.below().unwrap_or_else(|| {
            missing.push(row);
            key
        })
    });
    let keys: Vec<K> = keys.collect();
    if !missing.is_empty() {
        let mut found = vec![true; keys.len()];
        for row in missing {
            found[row] = false;
        }
        *valid = NullBuffer::union(valid.as_ref(), Some(&NullBuffer::from(found)));
    }
    keys
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
    let ranks = (0..thresholds.len()).map(|row| rank(row).map(row_number).transpose());
    let ranks: UInt32Array = ranks.collect::<Result<_>>()?;
    Ok(ThresholdKeys {
        keys: AnyKeys::W32(ranks.values().iter().map(|r| encoding.encode(*r)).collect()),
        valid: ranks.nulls().cloned(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        AsArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int8Array, Int64Array,
        StringArray, TimestampMillisecondArray, TimestampSecondArray, UInt64Array,
    };
    use arrow::compute::{cast, cast_with_options};
    use arrow::datatypes::{Float64Type, TimeUnit};

    use super::*;
    use crate::index::sort_keys::KeyColumn;

    fn test(extreme: Extreme, strict: bool) -> ThresholdTest {
        ThresholdTest {
            extreme,
            strict,
            equal_zeros: false,
        }
    }

    /// For each threshold and each row of a column, whether the row passes.
    fn passing(column: &ArrayRef, thresholds: &ArrayRef, test: ThresholdTest) -> Vec<Vec<bool>> {
        let chunks = Chunks::borrowed(vec![Arc::clone(column)]);
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

    /// Compares numbers of all types with numbers of all types, where all are multiples of 1/8 and so exact in
    /// thousandths.
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
