//! Sums of ranges of floats, as accurate as if they were added exactly and rounded once.
//!
//! Differences of prefix sums are too inaccurate: one 1e20 in the column would spoil the sums of all ranges behind it.
//! Instead the column has a [tree of block sums](crate::range_agg::sum_tree), and the sum of a range is composed of
//! whole blocks and of the values beside them. Each sum is a [`DoubleDouble`]: the rounded sum and its rounding error
//! so far. (T. Ogita, S. M. Rump, S. Oishi: Accurate Sum and Dot Product. SIAM Journal on Scientific Computing 26(6),
//! 2005.)
//!
//! - The error is half a unit in the last place of the sum, plus at most some 2^-95 of the sum of the magnitudes. In
//!   practice the result depends neither on the order of the rows nor on the limits of blocks and spill runs. Adding
//!   one by one, as DataFusion does, errs by up to 2^-53 of the magnitudes per row.
//! - A range with a NaN, or with infinities of both signs, gives NaN; else one with an infinity gives that.
//! - A sum overflows only if it exceeds the largest float, whatever the intermediate sums: where adding one by one does
//!   not end in infinity, neither does this, except for what that rounded off. (In a build side on disk, each spill run
//!   overflows by itself.)

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::Float64Type;
use datafusion_common::Result;

use crate::common::ranges::Ranges;
use crate::common::workers::Workers;
use crate::range_agg::accumulate::copy_values;
use crate::range_agg::counts::{Counts, to_index};
use crate::range_agg::double_double::DoubleDouble;
use crate::range_agg::outliers::{Outliers, count_outliers};
use crate::range_agg::sum_tree::SumTree;

/// The sums of ranges of one column.
#[derive(Debug)]
pub struct FloatSums {
    /// All values, zeros for NULLs and outliers.
    plain: SumTree,
    outliers: Option<Outliers>,
    borrows: bool,
}

impl FloatSums {
    /// Builds the sums of a column, given as arrays that follow one another, with each row at its position.
    ///
    /// # Errors
    /// If the query is cancelled.
    pub fn new(arrays: &[ArrayRef], workers: Workers) -> Result<Self> {
        if let Some(values) = borrow_values(arrays, workers)? {
            return Ok(Self {
                plain: SumTree::new(values, workers)?,
                outliers: None,
                borrows: true,
            });
        }
        let mut values = vec![0.0; arrays.iter().map(Array::len).sum()];
        copy_values::<Float64Type>(arrays, 0.0, &mut values, workers)?;
        let outliers = Outliers::take_out(&mut values, workers)?;
        Ok(Self {
            plain: SumTree::new(values.into(), workers)?,
            outliers,
            borrows: false,
        })
    }

    /// Estimates the bytes that the sums of a column take.
    ///
    /// # Errors
    /// If the query is cancelled.
    pub fn estimate(arrays: &[ArrayRef], workers: Workers) -> Result<usize> {
        let rows: usize = arrays.iter().map(Array::len).sum();
        if borrow_values(arrays, workers)?.is_some() {
            return Ok(SumTree::bytes(rows));
        }
        let outliers = arrays.iter().map(|array| {
            let values = array.as_primitive::<Float64Type>().values();
            count_outliers(values, workers)
        });
        let outliers = outliers.sum::<Result<usize>>()?;
        Ok(rows * size_of::<f64>() + SumTree::bytes(rows) + Outliers::estimate(outliers))
    }

    /// Whether the sums refer to the memory of the column that they were built of.
    pub fn borrows_column(&self) -> bool {
        self.borrows
    }

    /// Computes the sums of ranges within the column, NULL where a range has no value.
    pub fn sums(&self, ranges: &Ranges, counts: &Counts) -> ArrayRef {
        self.answer(ranges, counts, |sum| sum.hi)
    }

    /// Computes the rounding errors of [`Self::sums`].
    pub fn sums_low(&self, ranges: &Ranges, counts: &Counts) -> ArrayRef {
        self.answer(ranges, counts, |sum| sum.lo)
    }

    fn answer(&self, ranges: &Ranges, counts: &Counts, part: fn(DoubleDouble) -> f64) -> ArrayRef {
        let parts = ranges.iter().map(|(left, right)| {
            let has_values = counts.count((left, right)) > 0;
            has_values.then(|| part(self.sum(to_index(left), to_index(right + 1))))
        });
        Arc::new(parts.collect::<Float64Array>())
    }

    /// The sum of the positions `from..to`.
    fn sum(&self, from: usize, to: usize) -> DoubleDouble {
        let plain = self.plain.sum(from, to);
        match &self.outliers {
            None => plain,
            Some(outliers) => outliers.add_to(plain, from, to),
        }
    }
}

/// Adds two partial results of the same ranges, each an array of sums and one of their rounding errors; NULL where both
/// are NULL.
pub fn add_float_sums(some: [&ArrayRef; 2], others: [&ArrayRef; 2]) -> [ArrayRef; 2] {
    let pairs = |[sums, errors]: [&ArrayRef; 2]| {
        let sums = sums.as_primitive::<Float64Type>().iter();
        let errors = errors.as_primitive::<Float64Type>().iter();
        let pairs = sums.zip(errors);
        let pairs = pairs.map(|(hi, lo)| {
            hi.map(|hi| DoubleDouble {
                hi,
                lo: lo.unwrap_or(0.0),
            })
        });
        pairs.collect::<Vec<_>>()
    };
    let both = pairs(some).into_iter().zip(pairs(others));
    let added = both.map(|pairs| match pairs {
        (Some(a), Some(b)) => {
            let mut sum = a;
            sum.add(b);
            // The computed error of an infinite sum, or of one that overflows, is NaN.
            if !(sum.hi.is_finite() && sum.lo.is_finite()) {
                sum = DoubleDouble {
                    hi: a.hi + b.hi,
                    lo: 0.0,
                };
            }
            Some(sum)
        }
        (one, other) => one.or(other),
    });
    let added: Vec<Option<DoubleDouble>> = added.collect();
    let sums = added.iter().map(|sum| sum.map(|sum| sum.hi));
    let errors = added.iter().map(|sum| sum.map(|sum| sum.lo));
    [
        Arc::new(sums.collect::<Float64Array>()),
        Arc::new(errors.collect::<Float64Array>()),
    ]
}

/// The column's own buffer, if it can serve as the plain values: one array without NULLs and outliers.
fn borrow_values(arrays: &[ArrayRef], workers: Workers) -> Result<Option<ScalarBuffer<f64>>> {
    let [array] = arrays else {
        return Ok(None);
    };
    let values = array.as_primitive::<Float64Type>().values();
    if array.null_count() > 0 || count_outliers(values, workers)? > 0 {
        return Ok(None);
    }
    Ok(Some(values.clone()))
}

#[cfg(test)]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::float_cmp,
    reason = "small numbers, and sums that are to be equal to the last bit"
)]
mod tests {
    use arrow::array::UInt32Array;
    use arrow::compute::take;

    use super::*;
    use crate::range_agg::outliers::HUGE;
    use crate::sorted::permutation::RowPermutation;

    /// An exact sum of finite floats: digits of 32 bits, the lowest of weight 2^-1088, with deferred carries.
    #[derive(Clone)]
    struct Exact([i64; 70]);

    impl Exact {
        fn sum_of(values: &[f64]) -> Self {
            let mut sum = Self([0; 70]);
            for value in values {
                sum.add(*value);
            }
            sum
        }

        fn add(&mut self, value: f64) {
            let bits = value.to_bits();
            let exponent = (bits >> 52 & 0x7FF) as usize;
            let fraction = bits & ((1 << 52) - 1);
            let digits = if exponent == 0 {
                fraction
            } else {
                fraction | 1 << 52
            };
            // The last bit of subnormal numbers has the weight 2^-1074.
            let shift = exponent.max(1) - 1 + 14;
            let shifted = u128::from(digits) << (shift % 32);
            for i in 0..3 {
                let digit = (shifted >> (32 * i) & 0xFFFF_FFFF) as i64;
                self.0[shift / 32 + i] += if value.is_sign_negative() {
                    -digit
                } else {
                    digit
                };
            }
        }

        /// The absolute value, rounded.
        fn magnitude(&self) -> f64 {
            let mut digits = self.0;
            let carry = |digits: &mut [i64; 70]| {
                for i in 0..69 {
                    let over = digits[i] >> 32;
                    digits[i] -= over << 32;
                    digits[i + 1] += over;
                }
            };
            carry(&mut digits);
            if digits[69] < 0 {
                for digit in &mut digits {
                    *digit = -*digit;
                }
                carry(&mut digits);
            }
            let top = digits.iter().rposition(|digit| *digit != 0);
            let Some(top) = top else { return 0.0 };
            let mut magnitude = 0.0;
            for (i, digit) in digits[..=top]
                .iter()
                .enumerate()
                .skip(top.saturating_sub(3))
            {
                // In two steps, as 2^-1088 alone would be zero.
                let power = 32 * i as i32 - 1088;
                let half = 2_f64.powi(power / 2);
                magnitude += *digit as f64 * half * 2_f64.powi(power - power / 2);
            }
            magnitude
        }

        /// The distance of a float from the sum.
        fn error(&self, sum: f64) -> f64 {
            let mut difference = self.clone();
            difference.add(-sum);
            difference.magnitude()
        }
    }

    /// The distance to the next float.
    fn ulp(value: f64) -> f64 {
        f64::from_bits(value.to_bits() + 1) - value
    }

    fn one_by_one(values: &[f64]) -> f64 {
        values.iter().fold(0.0, |sum, value| sum + value)
    }

    fn sums_of(arrays: &[ArrayRef]) -> FloatSums {
        FloatSums::new(arrays, Workers::new(3, &|| Ok(()))).unwrap()
    }

    fn counts_of(arrays: &[ArrayRef]) -> Counts {
        let rows = arrays.iter().map(Array::len).sum();
        let workers = Workers::new(3, &|| Ok(()));
        Counts::try_new(arrays, &RowPermutation::identity(rows), workers).unwrap()
    }

    fn whole(values: &[f64]) -> FloatSums {
        let array: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
        sums_of(&[array])
    }

    /// Values of many magnitudes, `kind` telling which; some cancel others out.
    fn values(random: &mut fastrand::Rng, rows: usize, kind: u64) -> Vec<f64> {
        let mut values: Vec<f64> = vec![];
        for _ in 0..rows {
            let sign = if random.u64(..2) == 0 { 1.0 } else { -1.0 };
            let fraction = 1.0 + random.u64(..1 << 52) as f64 / (1_u64 << 52) as f64;
            let power = match kind {
                0 => random.u64(..2000) as i32 - 1000,
                1 => random.u64(..120) as i32 - 60,
                2 => random.u64(..4) as i32,
                3 => -1060 + random.u64(..60) as i32,
                _ => 950 + random.u64(..74) as i32,
            };
            let half = 2_f64.powi(power / 2);
            let value = sign * fraction * half * 2_f64.powi(power - power / 2);
            let earlier = random.usize(..rows);
            values.push(match values.get(earlier) {
                Some(earlier) if random.u64(..2) == 0 => -earlier,
                _ => value,
            });
        }
        values
    }

    /// Checks one range. Returns the error in units of the last place, and whether adding one by one was at least as
    /// accurate.
    fn check(sums: &FloatSums, values: &[f64], from: usize, to: usize) -> (f64, bool) {
        let values = &values[from..to];
        let sum = sums.sum(from, to);
        let exact = Exact::sum_of(values);
        let size = exact.magnitude();
        let unit = ulp(size);
        let plain = one_by_one(values);
        if size >= f64::MAX {
            assert!(sum.hi.is_infinite() || size.is_finite(), "{values:?}");
            return (0.0, false);
        }
        let what = || format!("{from}..{to}: {} of {values:?}", sum.hi);
        assert!(sum.hi.is_finite() && sum.lo.is_finite(), "{}", what());
        let error = exact.error(sum.hi);
        let magnitudes: f64 = values
            .iter()
            .map(|value| value.abs() * 2_f64.powi(-95))
            .sum();
        assert!(error <= unit * 0.5001 + magnitudes, "{error}, {}", what());
        let plain_error = if plain.is_finite() {
            exact.error(plain)
        } else {
            f64::INFINITY
        };
        assert!(error <= plain_error.max(unit), "{plain}, {}", what());
        (error / unit, plain_error <= error)
    }

    #[test]
    fn the_exact_sum_of_the_tests_is_exact() {
        let exact = Exact::sum_of(&[1e300, 1.0, -1e300, 1e-300, 5e-324]);
        assert_eq!((exact.magnitude(), exact.error(1.0)), (1.0, 1e-300));
        assert_eq!(Exact::sum_of(&[5e-324, -1e-323]).magnitude(), 5e-324);
        assert_eq!(Exact::sum_of(&[f64::MAX, -f64::MAX]).magnitude(), 0.0);
        assert_eq!(Exact::sum_of(&[-f64::MAX; 2]).error(-f64::MAX), f64::MAX);
        assert_eq!(Exact::sum_of(&[0.1; 10]).error(1.0), 2_f64.powi(-54));
    }

    #[test]
    fn float_sums_are_rounded_once() {
        let random = &mut fastrand::Rng::with_seed(0x9E37_79B9_7F4A_7C15);
        let (mut ranges, mut worst, mut no_better) = (0, 0.0_f64, 0);
        for kind in 0..5 {
            for rows in [0, 1, 2, 15, 16, 17, 31, 33, 48, 255, 256, 257, 300, 5000] {
                let values = values(random, rows, kind);
                let sums = whole(&values);
                let mut check = |from, to| {
                    let (error, no_worse) = check(&sums, &values, from, to);
                    worst = worst.max(error);
                    ranges += 1;
                    no_better += usize::from(no_worse);
                };
                if rows <= 48 {
                    for from in 0..=rows {
                        (from..=rows).for_each(|to| check(from, to));
                    }
                    continue;
                }
                for _ in 0..600 {
                    let from = random.usize(..rows);
                    let rest = (rows - from) as u64;
                    let longest = [rest, rest.min(40), rest.min(400)][random.usize(..3)];
                    check(from, from + random.u64(..=longest) as usize);
                }
            }
        }
        println!(
            "{ranges} ranges, at most {worst} of a last place off; one by one was as good in {no_better}"
        );
    }

    /// Digits that cancelling makes visible are not lost.
    #[test]
    fn float_sums_keep_digits_when_large_values_cancel() {
        let mut column = vec![0.125; 5000];
        column[17] = 1e20;
        column[18] = -1e20;
        column[4000] = 1e300;
        column[4100] = -1e300;
        let sums = whole(&column);
        assert_eq!(sums.sum(0, 5000).hi, 4996.0 * 0.125);
        assert_eq!(sums.sum(17, 5000).hi, 4979.0 * 0.125);
        assert_eq!(sums.sum(19, 4000).hi, 3981.0 * 0.125);
        assert_eq!(sums.sum(18, 19).hi, -1e20);
        // Two values that cancel out in different blocks, and two smaller ones between them.
        let mut column = vec![0.0; 600];
        (column[10], column[40], column[70], column[550]) = (1e280, -1e280, 1e100, -1e100);
        column[580] = 1.5;
        assert_eq!(whole(&column).sum(0, 600).hi, 1.5);
        (column[69], column[300]) = (1e200, -1e200);
        assert_eq!(whole(&column).sum(0, 600).hi, 1.5);
    }

    #[test]
    fn only_a_sum_that_exceeds_the_largest_float_overflows() {
        let max = f64::MAX;
        let column: Vec<f64> = (0..400)
            .map(|i| if i % 20 < 10 { max } else { -max })
            .collect();
        let sums = whole(&column);
        assert_eq!(sums.sum(0, 400).hi, 0.0);
        assert_eq!(sums.sum(1, 20).hi, -max);
        assert_eq!(sums.sum(10, 31).hi, -max);
        assert_eq!(sums.sum(0, 2).hi, f64::INFINITY);
        assert_eq!(sums.sum(10, 20).hi, f64::NEG_INFINITY);
        let column = [max, 1.0, -max, 5e-324, HUGE, -HUGE];
        let sums = whole(&column);
        assert_eq!(sums.sum(0, 6).hi, 1.0);
        assert_eq!(sums.sum(2, 6).hi, -max);
        assert_eq!(sums.sum(3, 6).hi, 5e-324);
        // Half a unit in the last place of the greatest float.
        let half = ulp(max / 2.0);
        assert_eq!(whole(&[max, half]).sum(0, 2).hi, f64::INFINITY);
        assert_eq!(whole(&[max, half, -half]).sum(0, 3).hi, max);
    }

    /// NaN, infinities and NULLs anywhere, in one array or in two.
    #[test]
    fn float_sums_follow_ieee_for_nan_and_infinity_and_skip_nulls() {
        let random = &mut fastrand::Rng::with_seed(77);
        let specials = [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e308];
        for round in 0..60 {
            let rows = 1 + random.usize(..600);
            let every = 2 + random.u64(..200);
            let column: Vec<Option<f64>> = (0..rows)
                .map(|_| match random.u64(..every) {
                    0 => Some(specials[random.usize(..5)]),
                    1 => None,
                    _ => Some(random.u64(..1000) as f64 / 8.0 - 50.0),
                })
                .collect();
            let array: ArrayRef = Arc::new(Float64Array::from(column.clone()));
            let cut = random.usize(..=rows);
            let chunks = [array.slice(0, cut), array.slice(cut, rows - cut)];
            let chunks = if round % 3 == 0 {
                vec![array]
            } else {
                chunks.to_vec()
            };
            let (sums, counts) = (sums_of(&chunks), counts_of(&chunks));
            let ranges = (0..200).map(|_| {
                let from = random.u64(..column.len() as u64);
                let length = random.u64(..=column.len() as u64 - from);
                (from.cast_signed(), (from + length).cast_signed() - 1)
            });
            let ranges: Ranges = ranges.collect();
            let (found, errors) = (sums.sums(&ranges, &counts), sums.sums_low(&ranges, &counts));
            for (i, (left, right)) in ranges.iter().enumerate() {
                let values = &column[to_index(left)..to_index(right + 1)];
                let values: Vec<f64> = values.iter().copied().flatten().collect();
                let sum = found.as_primitive::<Float64Type>();
                assert_eq!(sum.is_null(i), values.is_empty());
                assert_eq!(errors.is_null(i), values.is_empty());
                let (sum, error) = (sum.value(i), errors.as_primitive::<Float64Type>().value(i));
                if values.is_empty() {
                    continue;
                }
                // A few values of 1e308 among multiples of 1/8: exact, or infinite at the end.
                let huge = values.iter().filter(|value| **value == 1e308).count();
                let others = values.iter().filter(|value| **value != 1e308);
                let others: f64 = others.sum();
                let expected = match huge {
                    0 => others,
                    _ if !others.is_finite() => others,
                    1 => 1e308,
                    _ => f64::INFINITY,
                };
                assert!(
                    sum == expected || sum.is_nan() && expected.is_nan(),
                    "{sum}, not {expected}: {values:?}"
                );
                assert!(error.is_finite());
            }
        }
    }

    #[test]
    fn sums_of_negative_zeros_are_positive_zero() {
        let sums = whole(&[-0.0; 40]);
        for range in [(0, 1), (3, 40), (15, 33)] {
            assert!(sums.sum(range.0, range.1).hi.is_sign_positive());
        }
    }

    /// The added sums of two parts are the sums of the whole.
    #[test]
    fn float_sums_of_parts_add_up() {
        let random = &mut fastrand::Rng::with_seed(5);
        for kind in 0..5 {
            let column = values(random, 300, kind);
            let sums = whole(&column);
            let counts = counts_of(&[]);
            let part = |left: i64, right: i64| {
                let range = Ranges::new(vec![left], vec![right]);
                [sums.sums(&range, &counts), sums.sums_low(&range, &counts)]
            };
            for _ in 0..300 {
                let mut cuts = [0; 4].map(|_| i64::try_from(random.u64(..300)).unwrap());
                cuts.sort_unstable();
                let [a, b, c, d] = cuts;
                let [one, two, three] = [part(a, b), part(b + 1, c), part(c + 1, d)];
                let one = add_float_sums([&one[0], &one[1]], [&two[0], &two[1]]);
                let [found, _] = add_float_sums([&three[0], &three[1]], [&one[0], &one[1]]);
                let found = found.as_primitive::<Float64Type>().value(0);
                let values = &column[to_index(a)..=to_index(d)];
                let exact = Exact::sum_of(values);
                if !found.is_finite() {
                    assert!(kind == 4, "{values:?}");
                    continue;
                }
                let magnitudes: f64 = values.iter().map(|v| v.abs() * 2_f64.powi(-95)).sum();
                let error = exact.error(found);
                assert!(
                    error <= ulp(exact.magnitude()) * 0.5001 + magnitudes,
                    "{values:?}"
                );
            }
        }
        let infinite = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1.0];
        let array = |values: Vec<Option<f64>>| Arc::new(Float64Array::from(values)) as ArrayRef;
        for a in infinite {
            for b in infinite {
                let (some, others) = (array(vec![Some(a), None]), array(vec![Some(b), None]));
                let zero = array(vec![Some(0.0), None]);
                let [sums, errors] = add_float_sums([&some, &zero], [&others, &zero]);
                let sum = sums.as_primitive::<Float64Type>().value(0);
                assert!(
                    sum == a + b || sum.is_nan() && (a + b).is_nan(),
                    "{a} + {b}"
                );
                assert_eq!(errors.as_primitive::<Float64Type>().value(0), 0.0);
                assert!(sums.is_null(1) && errors.is_null(1));
            }
        }
    }

    /// Permuted rows have the same sums, bit for bit.
    #[test]
    fn float_sums_do_not_depend_on_the_order() {
        let random = &mut fastrand::Rng::with_seed(9);
        let column: Vec<f64> = (0..3000)
            .map(|_| random.u64(..1 << 40) as f64 * 0.1)
            .collect();
        let mut order: Vec<u32> = (0..3000).collect();
        for i in (1..3000).rev() {
            order.swap(i, random.usize(..=i));
        }
        let array: ArrayRef = Arc::new(Float64Array::from(column.clone()));
        let moved = take(&array, &UInt32Array::from(order), None).unwrap();
        let moved = sums_of(&[moved]);
        let bits = moved.sum(0, 3000).hi.to_bits();
        assert_eq!(bits, whole(&column).sum(0, 3000).hi.to_bits());
    }

    #[test]
    fn plain_floats_in_order_are_not_copied() {
        let plain: ArrayRef = Arc::new(Float64Array::from(vec![1.5; 160]));
        let sums = sums_of(std::slice::from_ref(&plain));
        assert!(sums.borrows_column());
        let workers = Workers::new(1, &|| Ok(()));
        assert_eq!(FloatSums::estimate(&[plain], workers).unwrap(), 30 * 16);
        let outlier: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN; 160]));
        let sums = sums_of(std::slice::from_ref(&outlier));
        assert!(!sums.borrows_column());
        assert_eq!(
            FloatSums::estimate(&[outlier], workers).unwrap(),
            160 * (8 + 24) + 2 * 30 * 16
        );
    }
}
