//! Sums of ranges of floats, as accurate as if they were added exactly and rounded once.
//!
//! Differences of prefix sums won't do: one 1e20 in the column would spoil all windows behind it. So the column keeps sums of
//! blocks, and of blocks of blocks, and a range is put together of whole blocks and of the values beside them. Each sum is a pair: what
//! f64 has of it, and what rounding has left off so far.
//! (T. Ogita, S. M. Rump, S. Oishi: Accurate Sum and Dot Product. SIAM Journal on Scientific Computing 26(6), 2005.)
//!
//! - The error is half a unit in the last place of the sum, and some 2^-95 of the sum of the magnitudes at the very most. So the
//!   answer depends in practice neither on the order of the rows nor on how they lie in blocks and pieces. Adding one by one, as
//!   DataFusion does, errs by up to 2^-53 of the magnitudes a row.
//! - A range with a NaN, or with infinities of both signs, gives NaN; else one with an infinity gives that.
//! - A sum overflows only if it is greater than the greatest float itself, whatever it was in between: where adding one by one does
//!   not end in infinity, neither does this, but for what that rounded off. (Of a build side on disk, each piece overflows alone.)

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::Float64Type;

use crate::common::ranges::Ranges;
use crate::range_agg::prefix_sums::{Counts, index};
use crate::sorted::permutation::{RowPermutation, number};

/// How many values, or blocks, become one block of the level above.
const WIDTH: usize = 16;

/// 2^960. Fewer than 2^32 values below this can't overflow.
const HUGE: f64 = f64::from_bits((1023 + 960) << 52);

/// 2^64: by so much huge values are divided, that their sums don't overflow. They have no digits to lose by that.
const SCALE: f64 = f64::from_bits((1023 + 64) << 52);

/// The sums of ranges of one column.
#[derive(Debug)]
pub(crate) struct FloatSums {
    /// All values, but zeros for NULLs and for what is rare.
    blocks: Blocks,
    rare: Option<Outliers>,
    borrows: bool,
}

impl FloatSums {
    /// Of the column that `chunks` make up, whose rows go to `places`.
    pub(crate) fn of(chunks: &[ArrayRef], places: &RowPermutation) -> Self {
        if let Some(values) = as_they_are(chunks, places) {
            return Self {
                blocks: Blocks::of(values),
                rare: None,
                borrows: true,
            };
        }
        let mut values = vec![0.0; places.len()];
        let mut first = 0;
        for chunk in chunks {
            let floats = chunk.as_primitive::<Float64Type>();
            places.put(first, floats.values(), &mut values);
            if let Some(nulls) = floats.nulls().filter(|n| n.null_count() > 0) {
                for (row, place) in places.of_rows(first, chunk.len()).enumerate() {
                    if let Some(place) = place.filter(|_| nulls.is_null(row)) {
                        values[place] = 0.0;
                    }
                }
            }
            first += chunk.len();
        }
        let rare = Outliers::take_out(&mut values);
        Self {
            blocks: Blocks::of(values.into()),
            rare,
            borrows: false,
        }
    }

    /// About how many bytes the sums of such a column take.
    pub(crate) fn estimate(chunks: &[ArrayRef], places: &RowPermutation) -> usize {
        let blocks = |values: usize| values / (WIDTH - 1) * size_of::<DoubleDouble>();
        if as_they_are(chunks, places).is_some() {
            return blocks(places.len());
        }
        let rare = chunks.iter().map(|chunk| {
            let values = chunk.as_primitive::<Float64Type>().values();
            values.iter().filter(|value| is_rare(**value)).count()
        });
        let rare: usize = rare.sum();
        let plain = places.len() * size_of::<f64>() + blocks(places.len());
        let apart = size_of::<u32>() + size_of::<Specials>() + size_of::<f64>();
        plain + rare * apart + blocks(rare)
    }

    /// Whether they look at the memory of the column that they were given.
    pub(crate) fn borrows_column(&self) -> bool {
        self.borrows
    }

    /// The sums of many ranges within the column, NULL where a range holds no value.
    pub(crate) fn sums(&self, ranges: &Ranges, counts: &Counts) -> ArrayRef {
        self.answer(ranges, counts, |pair| pair.sum)
    }

    /// What each of [`Self::sums`] lost when it was rounded.
    pub(crate) fn rests(&self, ranges: &Ranges, counts: &Counts) -> ArrayRef {
        self.answer(ranges, counts, |pair| pair.rest)
    }

    fn answer(&self, ranges: &Ranges, counts: &Counts, part: fn(DoubleDouble) -> f64) -> ArrayRef {
        let parts = ranges.iter().map(|(left, right)| {
            let found = counts.count((left, right)) > 0;
            found.then(|| part(self.sum(index(left), index(right + 1))))
        });
        Arc::new(parts.collect::<Float64Array>())
    }

    /// The sum from one place to before another.
    fn sum(&self, from: usize, to: usize) -> DoubleDouble {
        let plain = self.blocks.sum(from, to);
        match &self.rare {
            None => plain,
            Some(rare) => rare.added_to(plain, from, to),
        }
    }
}

/// Sums of parts of the same ranges, each with what it lost when it was rounded, as one; NULL where there is neither.
pub(crate) fn add_float_sums(some: [&ArrayRef; 2], others: [&ArrayRef; 2]) -> [ArrayRef; 2] {
    let pairs = |[sums, rests]: [&ArrayRef; 2]| {
        let sums = sums.as_primitive::<Float64Type>().iter();
        let rests = rests.as_primitive::<Float64Type>().iter();
        let pairs = sums.zip(rests);
        let pairs = pairs.map(|(sum, rest)| sum.map(|sum| (sum, rest.unwrap_or(0.0))));
        pairs.collect::<Vec<_>>()
    };
    let both = pairs(some).into_iter().zip(pairs(others));
    let added = both.map(|pairs| match pairs {
        (Some((a, left_off)), Some((b, others_left_off))) => {
            let mut sum = DoubleDouble {
                sum: a,
                rest: left_off,
            };
            sum.add_pair(DoubleDouble {
                sum: b,
                rest: others_left_off,
            });
            // Infinities have no rest, and what comes of computing it is NaN. Nor has what overflows.
            if !(sum.sum.is_finite() && sum.rest.is_finite()) {
                sum = DoubleDouble {
                    sum: a + b,
                    rest: 0.0,
                };
            }
            Some((sum.sum, sum.rest))
        }
        (one, other) => one.or(other),
    });
    let added: Vec<_> = added.collect();
    let sums = added.iter().map(|pair| pair.map(|(sum, _)| sum));
    let rests = added.iter().map(|pair| pair.map(|(_, rest)| rest));
    [
        Arc::new(sums.collect::<Float64Array>()),
        Arc::new(rests.collect::<Float64Array>()),
    ]
}

/// The values where they can stay: of one array, in its order, and all of them plain.
fn as_they_are(chunks: &[ArrayRef], places: &RowPermutation) -> Option<ScalarBuffer<f64>> {
    let [chunk] = chunks else {
        return None;
    };
    if !places.are_as_they_came() || chunk.null_count() > 0 {
        return None;
    }
    let values = chunk.as_primitive::<Float64Type>().values();
    (!values.iter().any(|value| is_rare(*value))).then(|| values.clone())
}

/// What blocks are not to hold: NaN, infinities, and values of which a few overflow.
fn is_rare(value: f64) -> bool {
    value.is_nan() || value.abs() >= HUGE
}

/// A sum that was not rounded: both parts together.
#[derive(Debug, Clone, Copy, Default)]
struct DoubleDouble {
    sum: f64,
    rest: f64,
}

impl DoubleDouble {
    /// Adds values that are not rare.
    fn add_all(&mut self, values: &[f64]) {
        // The errors are added beside the sum, which doesn't wait for them.
        let Self { mut sum, mut rest } = *self;
        for value in values {
            let (next, error) = two_sum(sum, *value);
            sum = next;
            rest += error;
        }
        (self.sum, self.rest) = two_sum(sum, rest);
    }

    /// Adds another sum. Here each step rounds, as a great sum may have cancelled out and left what used to be a rest.
    fn add_pair(&mut self, other: Self) {
        let (sum, error) = two_sum(self.sum, other.sum);
        let (rest, lost) = two_sum(self.rest, other.rest);
        let (sum, rest) = two_sum(sum, error + rest);
        (self.sum, self.rest) = two_sum(sum, rest + lost);
    }

    /// Multiplied by a power of two.
    fn times(self, factor: f64) -> Self {
        Self {
            sum: self.sum * factor,
            rest: self.rest * factor,
        }
    }
}

/// A sum, rounded, and exactly what was rounded off: Knuth's `TwoSum`. Nothing may overflow.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

/// Values, none of them rare, and sums of their blocks.
#[derive(Debug)]
struct Blocks {
    values: ScalarBuffer<f64>,
    /// The sums of whole blocks of [`WIDTH`] values, of as many of these blocks, and so on.
    levels: Vec<Vec<DoubleDouble>>,
}

impl Blocks {
    fn of(values: ScalarBuffer<f64>) -> Self {
        let mut levels = vec![];
        let blocks = values.chunks_exact(WIDTH).map(|values| {
            let mut sum = DoubleDouble::default();
            sum.add_all(values);
            sum
        });
        let mut level: Vec<DoubleDouble> = blocks.collect();
        while !level.is_empty() {
            let above = level.chunks_exact(WIDTH).map(|blocks| {
                let mut sum = DoubleDouble::default();
                for block in blocks {
                    sum.add_pair(*block);
                }
                sum
            });
            let above = above.collect();
            levels.push(std::mem::replace(&mut level, above));
        }
        Self { values, levels }
    }

    /// The sum of the values from one place to before another, added from left to right: in that order all is exact that adding
    /// one by one does exactly.
    fn sum(&self, from: usize, to: usize) -> DoubleDouble {
        let mut sum = DoubleDouble::default();
        let (first, end) = (from.div_ceil(WIDTH), to / WIDTH);
        if first >= end {
            sum.add_all(&self.values[from..to]);
            return sum;
        }
        sum.add_all(&self.values[from..first * WIDTH]);
        add_blocks(&self.levels, first, end, &mut sum);
        sum.add_all(&self.values[end * WIDTH..to]);
        sum
    }
}

/// Adds blocks of the lowest of these levels, from one to before another.
fn add_blocks(levels: &[Vec<DoubleDouble>], from: usize, to: usize, sum: &mut DoubleDouble) {
    let Some((level, above)) = levels.split_first() else {
        return;
    };
    let add = |sum: &mut DoubleDouble, from: usize, to: usize| {
        level[from..to]
            .iter()
            .for_each(|block| sum.add_pair(*block));
    };
    let (first, end) = (from.div_ceil(WIDTH), to / WIDTH);
    if first >= end {
        return add(sum, from, to);
    }
    add(sum, from, first * WIDTH);
    add_blocks(above, first, end, sum);
    add(sum, end * WIDTH, to);
}

/// Values that would spoil blocks. They stand apart, so that ranges without one need not look at them.
#[derive(Debug)]
struct Outliers {
    /// Where they stand, in order.
    places: Vec<u32>,
    /// How many of those before each are no numbers to add, and of all.
    specials: Vec<Specials>,
    /// Those that are finite, over [`SCALE`]; zeros for the others.
    huge: Blocks,
}

/// How many there are of each kind.
#[derive(Debug, Clone, Copy, Default)]
struct Specials {
    nans: u32,
    infinite: u32,
    negative_infinite: u32,
}

impl Outliers {
    /// Leaves zeros in the place of what is rare. `None` where nothing is.
    fn take_out(values: &mut [f64]) -> Option<Self> {
        let count = values.iter().filter(|value| is_rare(**value)).count();
        if count == 0 {
            return None;
        }
        let mut places = Vec::with_capacity(count);
        let mut specials = Vec::with_capacity(count + 1);
        let mut huge = Vec::with_capacity(count);
        let mut seen = Specials::default();
        specials.push(seen);
        for (place, value) in values.iter_mut().enumerate() {
            if !is_rare(*value) {
                continue;
            }
            let value = std::mem::take(value);
            seen.nans += u32::from(value.is_nan());
            seen.infinite += u32::from(value == f64::INFINITY);
            seen.negative_infinite += u32::from(value == f64::NEG_INFINITY);
            places.push(number(place));
            specials.push(seen);
            let finite = if value.is_finite() { value } else { 0.0 };
            huge.push(finite / SCALE);
        }
        Some(Self {
            places,
            specials,
            huge: Blocks::of(huge.into()),
        })
    }

    /// The sum of all values of a range, those that are not rare being given.
    fn added_to(&self, plain: DoubleDouble, from: usize, to: usize) -> DoubleDouble {
        let before = |end: usize| self.places.partition_point(|place| (*place as usize) < end);
        let (from, to) = (before(from), before(to));
        if from == to {
            return plain;
        }
        let (before, all) = (self.specials[from], self.specials[to]);
        let infinite = all.infinite > before.infinite;
        let negative_infinite = all.negative_infinite > before.negative_infinite;
        let special = if all.nans > before.nans || infinite && negative_infinite {
            Some(f64::NAN)
        } else if infinite {
            Some(f64::INFINITY)
        } else if negative_infinite {
            Some(f64::NEG_INFINITY)
        } else {
            None
        };
        if let Some(sum) = special {
            return DoubleDouble { sum, rest: 0.0 };
        }
        let mut sum = self.huge.sum(from, to);
        if sum.sum == 0.0 {
            // They cancel out. The others stay as they are: scaled, they might lose digits.
            return plain;
        }
        sum.add_pair(plain.times(1.0 / SCALE));
        let sum = sum.times(SCALE);
        if sum.sum.is_finite() {
            sum
        } else {
            DoubleDouble { rest: 0.0, ..sum }
        }
    }
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

    /// Any sum of finite floats without rounding: digits of 32 bits, the lowest worth 2^-1088, carries still to come.
    #[derive(Clone)]
    struct Exact([i64; 70]);

    impl Exact {
        fn of(values: &[f64]) -> Self {
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
            // The last bit of subnormal numbers is worth 2^-1074.
            let place = exponent.max(1) - 1 + 14;
            let shifted = u128::from(digits) << (place % 32);
            for i in 0..3 {
                let digit = (shifted >> (32 * i) & 0xFFFF_FFFF) as i64;
                self.0[place / 32 + i] += if value.is_sign_negative() {
                    -digit
                } else {
                    digit
                };
            }
        }

        /// About how large it is.
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

        /// By how much a sum differs.
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

    fn whole(values: &[f64]) -> FloatSums {
        let array: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
        FloatSums::of(&[array], &RowPermutation::as_they_came(values.len()))
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

    /// Compares one range. What it gives is the error as a part of the last place, and whether one by one was no worse.
    fn check(sums: &FloatSums, values: &[f64], from: usize, to: usize) -> (f64, bool) {
        let values = &values[from..to];
        let pair = sums.sum(from, to);
        let exact = Exact::of(values);
        let size = exact.magnitude();
        let unit = ulp(size);
        let plain = one_by_one(values);
        if size >= f64::MAX {
            assert!(pair.sum.is_infinite() || size.is_finite(), "{values:?}");
            return (0.0, false);
        }
        let what = || format!("{from}..{to}: {} of {values:?}", pair.sum);
        assert!(pair.sum.is_finite() && pair.rest.is_finite(), "{}", what());
        let error = exact.error(pair.sum);
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
        let exact = Exact::of(&[1e300, 1.0, -1e300, 1e-300, 5e-324]);
        assert_eq!((exact.magnitude(), exact.error(1.0)), (1.0, 1e-300));
        assert_eq!(Exact::of(&[5e-324, -1e-323]).magnitude(), 5e-324);
        assert_eq!(Exact::of(&[f64::MAX, -f64::MAX]).magnitude(), 0.0);
        assert_eq!(Exact::of(&[-f64::MAX; 2]).error(-f64::MAX), f64::MAX);
        assert_eq!(Exact::of(&[0.1; 10]).error(1.0), 2_f64.powi(-54));
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
                    check(from, from + random.u64(..longest + 1) as usize);
                }
            }
        }
        println!(
            "{ranges} ranges, at most {worst} of a last place off; one by one was as good in {no_better}"
        );
    }

    /// What one value loses, a sum of all must not.
    #[test]
    fn float_sums_keep_what_cancelling_leaves() {
        let mut column = vec![0.125; 5000];
        column[17] = 1e20;
        column[18] = -1e20;
        column[4000] = 1e300;
        column[4100] = -1e300;
        let sums = whole(&column);
        assert_eq!(sums.sum(0, 5000).sum, 4996.0 * 0.125);
        assert_eq!(sums.sum(17, 5000).sum, 4979.0 * 0.125);
        assert_eq!(sums.sum(19, 4000).sum, 3981.0 * 0.125);
        assert_eq!(sums.sum(18, 19).sum, -1e20);
        // Two that cancel out in blocks of their own, and two within what those leave.
        let mut column = vec![0.0; 600];
        (column[10], column[40], column[70], column[550]) = (1e280, -1e280, 1e100, -1e100);
        column[580] = 1.5;
        assert_eq!(whole(&column).sum(0, 600).sum, 1.5);
        (column[69], column[300]) = (1e200, -1e200);
        assert_eq!(whole(&column).sum(0, 600).sum, 1.5);
    }

    #[test]
    fn float_sums_overflow_only_in_the_end() {
        let max = f64::MAX;
        let column: Vec<f64> = (0..400)
            .map(|i| if i % 20 < 10 { max } else { -max })
            .collect();
        let sums = whole(&column);
        assert_eq!(sums.sum(0, 400).sum, 0.0);
        assert_eq!(sums.sum(1, 20).sum, -max);
        assert_eq!(sums.sum(10, 31).sum, -max);
        assert_eq!(sums.sum(0, 2).sum, f64::INFINITY);
        assert_eq!(sums.sum(10, 20).sum, f64::NEG_INFINITY);
        let column = [max, 1.0, -max, 5e-324, HUGE, -HUGE];
        let sums = whole(&column);
        assert_eq!(sums.sum(0, 6).sum, 1.0);
        assert_eq!(sums.sum(2, 6).sum, -max);
        assert_eq!(sums.sum(3, 6).sum, 5e-324);
        // Half a unit in the last place of the greatest float.
        let half = ulp(max / 2.0);
        assert_eq!(whole(&[max, half]).sum(0, 2).sum, f64::INFINITY);
        assert_eq!(whole(&[max, half, -half]).sum(0, 3).sum, max);
    }

    /// NaN, infinities and NULLs anywhere, in several arrays, whose rows stay or move.
    #[test]
    fn float_sums_know_nan_infinity_and_null() {
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
            let cut = random.usize(..rows + 1);
            let chunks = [array.slice(0, cut), array.slice(cut, rows - cut)];
            let chunks = if round % 3 == 0 {
                vec![array]
            } else {
                chunks.to_vec()
            };
            // All rows, or all but some, in another order.
            let (places, order) = if round % 2 == 0 {
                let order = (0..u32::try_from(rows).unwrap()).collect::<Vec<_>>();
                (RowPermutation::as_they_came(rows), order)
            } else {
                let order: Vec<u32> = (0..u32::try_from(rows).unwrap())
                    .rev()
                    .filter(|row| row % 7 != 3)
                    .collect();
                (
                    RowPermutation::of_order(order.clone(), rows).unwrap(),
                    order,
                )
            };
            let column: Vec<_> = order.iter().map(|row| column[*row as usize]).collect();
            let sums = FloatSums::of(&chunks, &places);
            let counts = Counts::of(&chunks, &places).unwrap();
            let ranges = (0..200).map(|_| {
                let from = random.u64(..column.len() as u64);
                let length = random.u64(..column.len() as u64 - from + 1);
                (from.cast_signed(), (from + length).cast_signed() - 1)
            });
            let ranges: Ranges = ranges.collect();
            let (found, rests) = (sums.sums(&ranges, &counts), sums.rests(&ranges, &counts));
            for (i, (left, right)) in ranges.iter().enumerate() {
                let values = &column[index(left)..index(right + 1)];
                let values: Vec<f64> = values.iter().copied().flatten().collect();
                let sum = found.as_primitive::<Float64Type>();
                assert_eq!(sum.is_null(i), values.is_empty());
                assert_eq!(rests.is_null(i), values.is_empty());
                let (sum, rest) = (sum.value(i), rests.as_primitive::<Float64Type>().value(i));
                if values.is_empty() {
                    continue;
                }
                // Few of 1e308 among multiples of 1/8: exact, or infinite in the end.
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
                assert!(rest.is_finite());
            }
        }
    }

    #[test]
    fn float_sums_begin_with_a_zero() {
        let sums = whole(&[-0.0; 40]);
        for range in [(0, 1), (3, 40), (15, 33)] {
            assert!(sums.sum(range.0, range.1).sum.is_sign_positive());
        }
    }

    /// Sums of two parts, added, are those of the whole.
    #[test]
    fn float_sums_of_parts_add_up() {
        let random = &mut fastrand::Rng::with_seed(5);
        for kind in 0..5 {
            let column = values(random, 300, kind);
            let sums = whole(&column);
            let counts = Counts::of(&[], &RowPermutation::as_they_came(300)).unwrap();
            let part = |left: i64, right: i64| {
                let range = Ranges::new(vec![left], vec![right]);
                [sums.sums(&range, &counts), sums.rests(&range, &counts)]
            };
            for _ in 0..300 {
                let mut cuts = [0; 4].map(|_| i64::try_from(random.u64(..300)).unwrap());
                cuts.sort_unstable();
                let [a, b, c, d] = cuts;
                let [one, two, three] = [part(a, b), part(b + 1, c), part(c + 1, d)];
                let one = add_float_sums([&one[0], &one[1]], [&two[0], &two[1]]);
                let [found, _] = add_float_sums([&three[0], &three[1]], [&one[0], &one[1]]);
                let found = found.as_primitive::<Float64Type>().value(0);
                let values = &column[index(a)..=index(d)];
                let exact = Exact::of(values);
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
                let [sums, rests] = add_float_sums([&some, &zero], [&others, &zero]);
                let sum = sums.as_primitive::<Float64Type>().value(0);
                assert!(
                    sum == a + b || sum.is_nan() && (a + b).is_nan(),
                    "{a} + {b}"
                );
                assert_eq!(rests.as_primitive::<Float64Type>().value(0), 0.0);
                assert!(sums.is_null(1) && rests.is_null(1));
            }
        }
    }

    /// Rows in another order have the same sums, to the last bit.
    #[test]
    fn float_sums_do_not_depend_on_the_order() {
        let random = &mut fastrand::Rng::with_seed(9);
        let column: Vec<f64> = (0..3000)
            .map(|_| random.u64(..1 << 40) as f64 * 0.1)
            .collect();
        let mut order: Vec<u32> = (0..3000).collect();
        for i in (1..3000).rev() {
            order.swap(i, random.usize(..i + 1));
        }
        let array: ArrayRef = Arc::new(Float64Array::from(column.clone()));
        let moved = take(&array, &UInt32Array::from(order), None).unwrap();
        let moved = FloatSums::of(&[moved], &RowPermutation::as_they_came(3000));
        let bits = moved.sum(0, 3000).sum.to_bits();
        assert_eq!(bits, whole(&column).sum(0, 3000).sum.to_bits());
    }

    #[test]
    fn plain_floats_in_order_are_not_copied() {
        let plain: ArrayRef = Arc::new(Float64Array::from(vec![1.5; 160]));
        let places = RowPermutation::as_they_came(160);
        let sums = FloatSums::of(std::slice::from_ref(&plain), &places);
        assert!(sums.borrows_column());
        assert_eq!(FloatSums::estimate(&[plain], &places), 10 * 16);
        let rare: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN; 160]));
        let sums = FloatSums::of(std::slice::from_ref(&rare), &places);
        assert!(!sums.borrows_column());
        assert_eq!(FloatSums::estimate(&[rare], &places), 160 * (8 + 24) + 320);
    }
}
