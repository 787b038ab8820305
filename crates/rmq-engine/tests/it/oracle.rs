//! Columns of all distributions, ranges of all kinds, and the expected results by a naive scan.

use std::sync::Arc;

use rmq_engine::{
    BuildOptions, Column, Crossings, Encoding, Engine, EngineError, Key, ListLimits, Outputs,
    RangeEnd, RangeIndex, RowList, Validity,
};

use rmq_testing::Random;

/// Returns whether columns must be small, for memory checkers, which are about fifty times slower.
pub fn small() -> bool {
    std::env::var_os("RMQ_TEST_SMALL").is_some()
}

/// A key width: conversion from random bits, and the engine's build method.
pub trait Width: Key {
    fn from_bits(bits: u64) -> Self;
    fn index(
        engine: &dyn Engine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<Self>>, EngineError>;
}

impl Width for u32 {
    fn from_bits(bits: u64) -> Self {
        bits as Self
    }
    fn index(
        engine: &dyn Engine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<Self>>, EngineError> {
        engine.build_u32(column, options)
    }
}

impl Width for u64 {
    fn from_bits(bits: u64) -> Self {
        bits
    }
    fn index(
        engine: &dyn Engine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<Self>>, EngineError> {
        engine.build_u64(column, options)
    }
}

impl Width for u128 {
    fn from_bits(bits: u64) -> Self {
        Self::from(bits) << 64 | Self::from(bits.rotate_left(17))
    }
    fn index(
        engine: &dyn Engine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<Self>>, EngineError> {
        engine.build_u128(column, options)
    }
}

/// The distribution of a column.
#[derive(Debug, Clone, Copy)]
pub enum Data {
    Uniform,
    Increasing,
    Decreasing,
    Walk,
    Constant,
    /// A few distinct values, so that ties are frequent.
    Ties,
    /// Mostly the greatest key, which is also the key of NULL.
    Greatest,
}

pub const DATA: [Data; 7] = [
    Data::Uniform,
    Data::Increasing,
    Data::Decreasing,
    Data::Walk,
    Data::Constant,
    Data::Ties,
    Data::Greatest,
];

/// Returns keys of a distribution. The stored bits are decoded from them, so that each encoding has the same order.
pub fn keys<K: Width>(data: Data, n: usize, random: &mut Random) -> Vec<K> {
    let mut walk = 1_u64 << 40;
    let constant = random.next();
    (0..n)
        .map(|i| match data {
            Data::Uniform => K::from_bits(random.next()),
            Data::Increasing => K::from_bits(i as u64),
            Data::Decreasing => K::from_bits((n - i) as u64),
            Data::Walk => {
                walk = walk.wrapping_add(random.next() % 201).wrapping_sub(100);
                K::from_bits(walk)
            }
            Data::Constant => K::from_bits(constant),
            Data::Ties => K::from_bits(random.next() % 4),
            Data::Greatest => {
                if random.below(50) == 0 {
                    K::from_bits(random.next())
                } else {
                    K::MAX
                }
            }
        })
        .collect()
}

/// Which values are NULL.
#[derive(Debug, Clone, Copy)]
pub enum Nulls {
    Absent,
    /// A bitmap without a NULL.
    Unused,
    Some,
    Most,
    Runs,
    All,
}

pub const NULLS: [Nulls; 6] = [
    Nulls::Absent,
    Nulls::Unused,
    Nulls::Some,
    Nulls::Most,
    Nulls::Runs,
    Nulls::All,
];

pub fn valid(nulls: Nulls, n: usize, random: &mut Random) -> Vec<bool> {
    (0..n)
        .map(|i| match nulls {
            Nulls::Absent | Nulls::Unused => true,
            Nulls::Some => random.below(5) > 0,
            Nulls::Most => random.below(300) == 0,
            Nulls::Runs => (i / 700).is_multiple_of(2),
            Nulls::All => false,
        })
        .collect()
}

/// Bounds of every kind: short, of each level's size, whole, empty, reversed, outside.
pub fn ranges(n: usize, count: usize, random: &mut Random) -> (Vec<i64>, Vec<i64>) {
    let edges = [
        i64::MIN,
        i64::MIN + 1,
        -1,
        0,
        1,
        15,
        16,
        17,
        255,
        256,
        n as i64 - 1,
        n as i64,
        n as i64 + 1,
        i64::MAX - 1,
        i64::MAX,
    ];
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for l in edges {
        for r in edges {
            left.push(l);
            right.push(r);
        }
    }
    for i in 0..count {
        let scale = [
            1,
            3,
            20,
            100,
            700,
            1_000,
            14_000,
            20_000,
            200_000,
            usize::MAX,
        ];
        let longest = scale[i % scale.len()].min(n.max(1));
        let len = random.below(longest) + 1;
        let l = random.below((n + 1).saturating_sub(len).max(1)) as i64;
        let (l, r) = match random.below(20) {
            0 => (l, l - 1),
            1 => (l + len as i64, l),
            2 => (l - len as i64, l),
            3 => (l, l + 2 * len as i64),
            // At block boundaries.
            4 => (l / 16 * 16, (l + len as i64) / 16 * 16 - 1),
            5 => (l / 256 * 256, (l + len as i64) / 256 * 256),
            _ => (l, l + len as i64 - 1),
        };
        left.push(l);
        right.push(r);
    }
    (left, right)
}

/// Finds the leftmost position of the smallest valid key of a range: by a scan in short ranges, by a sparse table (a
/// different algorithm from the engine's) in longer ones.
pub struct Naive<'a, K> {
    keys: &'a [K],
    valid: &'a [bool],
    /// Row `j`: the best position of `2^j` neighbours.
    table: Vec<Vec<u32>>,
}

impl<'a, K: Width> Naive<'a, K> {
    pub fn new(keys: &'a [K], valid: &'a [bool]) -> Self {
        let n = keys.len();
        let mut naive = Self {
            keys,
            valid,
            table: vec![(0..n as u32).collect()],
        };
        let mut half = 1;
        while 2 * half <= n {
            let row = &naive.table[naive.table.len() - 1];
            let next = (0..=n - 2 * half)
                .map(|i| naive.better(row[i], row[i + half]))
                .collect();
            naive.table.push(next);
            half *= 2;
        }
        naive
    }

    fn better(&self, a: u32, b: u32) -> u32 {
        let rank = |at: u32| (!self.valid[at as usize], self.keys[at as usize], at);
        if rank(b) < rank(a) { b } else { a }
    }

    pub fn answer(&self, left: i64, right: i64) -> Option<(K, i64)> {
        let left = left.max(0);
        let right = right.min(self.keys.len() as i64 - 1);
        if left > right {
            return None;
        }
        let (l, r) = (left as usize, right as usize);
        if r - l < 100 {
            return (l..=r)
                .filter(|&i| self.valid[i])
                .map(|i| (self.keys[i], i as i64))
                .min();
        }
        let row = (r - l + 1).ilog2() as usize;
        let at = self.better(self.table[row][l], self.table[row][r + 1 - (1 << row)]) as usize;
        self.valid[at].then(|| (self.keys[at], at as i64))
    }
}

/// A column for engines, with its keys and validity for the naive scan.
pub struct Case<K> {
    pub keys: Vec<K>,
    pub valid: Vec<bool>,
    pub encoding: Encoding<K>,
    pub column: Column<K>,
    pub nulls: Nulls,
    pub what: String,
}

impl<K: Width> Case<K> {
    /// Creates a column with a random encoding and a random alignment offset.
    pub fn new(data: Data, nulls: Nulls, n: usize, random: &mut Random) -> Self {
        let keys = keys::<K>(data, n, random);
        let valid = valid(nulls, n, random);
        let encodings = [
            Encoding::<K>::unsigned(),
            Encoding::signed(),
            Encoding::float(),
        ];
        let encoding = encodings[random.below(3)];
        let encoding = if random.below(2) == 0 {
            encoding
        } else {
            encoding.reversed()
        };
        // The column starts at an offset, like a slice of an Arrow array.
        let skip = random.below(40);
        let mut bits = vec![K::ZERO; skip];
        bits.extend(keys.iter().map(|key| encoding.decode(*key)));
        let mut column = Column::new(Arc::new(Skip { bits, skip }), encoding);
        if !matches!(nulls, Nulls::Absent) {
            let offset = random.below(70);
            let mut bitmap = vec![0_u8; (offset + n).div_ceil(8)];
            for (i, valid) in valid.iter().enumerate() {
                bitmap[(offset + i) / 8] |= u8::from(*valid) << ((offset + i) % 8);
            }
            column = column
                .with_validity(Validity::new(Arc::new(bitmap), offset))
                .expect("the bitmap covers the column");
        }
        let what = format!(
            "{data:?}, nulls {nulls:?}, n {n}, {} bytes, {encoding:?}, skip {skip}",
            size_of::<K>()
        );
        Self {
            keys,
            valid,
            encoding,
            column,
            nulls,
            what,
        }
    }
}

/// Compares all outputs of an index with the naive results, in memory provided by the index and in `Vec`s.
pub fn compare<K: Width>(
    index: &dyn RangeIndex<K>,
    naive: &Naive<'_, K>,
    encoding: Encoding<K>,
    left: &[i64],
    right: &[i64],
    what: &str,
) {
    for mode in 0..8 {
        compare_mode(index, naive, encoding, left, right, what, mode);
    }
}

/// Compares one mode: bit 0 omits values, bit 1 requests positions, bit 2 uses memory of the index.
pub fn compare_mode<K: Width>(
    index: &dyn RangeIndex<K>,
    naive: &Naive<'_, K>,
    encoding: Encoding<K>,
    left: &[i64],
    right: &[i64],
    what: &str,
    mode: usize,
) {
    let m = left.len();
    let words = m.div_ceil(64);
    let requested = (mode & 1 == 0, mode & 2 != 0 && index.has_positions());
    let mut out = if mode & 4 != 0 {
        index.outputs(m, requested.0, requested.1)
    } else {
        Outputs {
            values: requested.0.then(|| vec![K::ZERO; m].into()),
            positions: requested.1.then(|| vec![0; m].into()),
            valid: vec![0; words].into(),
        }
    };
    if let Some(values) = &mut out.values {
        values.fill(K::from_bits(0xDEAD_BEEF_DEAD_BEEF));
    }
    if let Some(positions) = &mut out.positions {
        positions.fill(-7);
    }
    out.valid.fill(!0);
    index
        .answer(left, right, out.answers())
        .expect("slices fit");
    for i in 0..m {
        let expected = naive.answer(left[i], right[i]);
        let found = out.valid[i / 64] >> (i % 64) & 1 == 1;
        let context = || format!("{what}, mode {mode}, query {i}: {}..={}", left[i], right[i]);
        assert_eq!(found, expected.is_some(), "valid of {}", context());
        if let Some(values) = &out.values {
            let expected = encoding.decode(expected.map_or(K::MAX, |(key, _)| key));
            assert_eq!(values[i], expected, "value of {}", context());
        }
        if let Some(positions) = &out.positions {
            let expected = expected.map_or(0, |(_, at)| at);
            assert_eq!(positions[i], expected, "position of {}", context());
        }
    }
    if !m.is_multiple_of(64) {
        assert_eq!(
            out.valid[words - 1] >> (m % 64),
            0,
            "bits past the end, {what}"
        );
    }
}

/// Memory whose column starts at value `skip`.
struct Skip<K> {
    bits: Vec<K>,
    skip: usize,
}

impl<K> AsRef<[K]> for Skip<K> {
    fn as_ref(&self) -> &[K] {
        &self.bits[self.skip..]
    }
}

/// Returns thresholds of every kind: keys of the column, their neighbours, any others, the ends.
pub fn thresholds<K: Width>(keys: &[K], count: usize, random: &mut Random) -> Vec<K> {
    let mut smallest = keys.to_vec();
    smallest.sort_unstable();
    smallest.truncate(keys.len() / 500 + 2);
    let pick = |keys: &[K], random: &mut Random| match keys.len() {
        0 => K::from_bits(random.next()),
        len => keys[random.below(len)],
    };
    (0..count)
        .map(|_| match random.below(12) {
            0 => K::ZERO,
            1 => K::MAX,
            2 => K::from_bits(random.next()),
            3 | 4 => pick(keys, random),
            // Rare ones, so that searches reach far.
            _ => pick(&smallest, random),
        })
        .collect()
}

/// The first and the last row of each range whose keys are at most its threshold, by a scan.
pub fn naive_crossings<K: Width>(
    case: &Case<K>,
    left: &[i64],
    right: &[i64],
    thresholds: &[K],
) -> Vec<[Option<i64>; 2]> {
    let rows = |i: usize| rows_at_most(case, left[i], right[i], thresholds[i]);
    let ends = |i: usize| [rows(i).next(), rows(i).next_back()];
    (0..left.len()).map(ends).collect()
}

/// Compares the threshold searches of an index from both ends with those of [`naive_crossings`].
pub fn compare_crossings<K: Width>(
    index: &dyn RangeIndex<K>,
    expected: &[[Option<i64>; 2]],
    left: &[i64],
    right: &[i64],
    thresholds: &[K],
    what: &str,
) {
    let n = left.len();
    for (end, number) in [(RangeEnd::First, 0), (RangeEnd::Last, 1)] {
        let (mut positions, mut valid) = (vec![-7; n], vec![!0; n.div_ceil(64)]);
        let out = Crossings {
            positions: &mut positions,
            valid: &mut valid,
        };
        let result = index.crossings(left, right, thresholds, end, out);
        result.unwrap_or_else(|error| panic!("{error}: {what}"));
        for (i, expected) in expected.iter().enumerate() {
            let expected = expected[number];
            let found = valid[i / 64] >> (i % 64) & 1 == 1;
            assert_eq!(
                (found, positions[i]),
                (expected.is_some(), expected.unwrap_or(0)),
                "{what}, {end:?} of query {i}: {}..={}, at most {:?}",
                left[i],
                right[i],
                thresholds[i]
            );
        }
        if !n.is_multiple_of(64) {
            assert_eq!(valid[n / 64] >> (n % 64), 0, "bits past the end, {what}");
        }
    }
}

/// The rows of a range whose keys are at most a threshold, by a scan.
fn rows_at_most<K: Width>(
    case: &Case<K>,
    left: i64,
    right: i64,
    threshold: K,
) -> impl DoubleEndedIterator<Item = i64> {
    let (l, r) = (left.max(0), right.min(case.keys.len() as i64 - 1));
    (l..=r).filter(move |at| {
        let at = *at as usize;
        case.valid[at] && case.keys[at] <= threshold
    })
}

/// Compares the listings and counts of an index with naive scans. Of long columns it takes a few of the ranges.
pub fn compare_listings<K: Width>(
    index: &dyn RangeIndex<K>,
    case: &Case<K>,
    left: &[i64],
    right: &[i64],
    thresholds: &[K],
    what: &str,
) {
    let n = left.len().min(24).min(1 + 200_000 / (case.keys.len() + 1));
    compare_all_listings(index, case, &left[..n], &right[..n], &thresholds[..n], what);
}

/// Compares the listings and counts of an index with naive scans.
pub fn compare_all_listings<K: Width>(
    index: &dyn RangeIndex<K>,
    case: &Case<K>,
    left: &[i64],
    right: &[i64],
    thresholds: &[K],
    what: &str,
) {
    let n = left.len();
    let expected = (0..n).map(|i| rows_at_most(case, left[i], right[i], thresholds[i]));
    let expected: Vec<Vec<i64>> = expected.map(Iterator::collect).collect();
    let mut counts = vec![-7; n];
    let result = index.count_at_most(left, right, thresholds, &mut counts);
    result.unwrap_or_else(|error| panic!("{error}: {what}"));
    for (i, rows) in expected.iter().enumerate() {
        assert_eq!(counts[i], rows.len() as i64, "{what}, count of query {i}");
    }
    let rows: usize = expected.iter().map(Vec::len).sum();
    let mut out = RowList::default();
    for total in [1 + rows / 3, 1 + rows / 50, usize::MAX] {
        for per_range in [1, 3, usize::MAX] {
            let (mut left, mut found) = (left.to_vec(), vec![Vec::<i64>::new(); n]);
            let mut first = 0;
            while first < n {
                // What is left of the limit of the range that was listed in part.
                let limits = ListLimits {
                    per_range: per_range - found[first].len().min(per_range),
                    total,
                };
                let ends = if found[first].is_empty() {
                    first..n
                } else {
                    first..first + 1
                };
                let result = index.list_at_most(
                    &left[ends.clone()],
                    &right[ends.clone()],
                    &thresholds[ends],
                    limits,
                    &mut out,
                );
                result.unwrap_or_else(|error| panic!("{error}: {what}"));
                assert!(out.positions.len() <= total, "{what}");
                let mut start = 0;
                for end in &out.ends {
                    found[first].extend(&out.positions[start..*end]);
                    (start, first) = (*end, first + 1);
                }
                if let [.., last] = &out.positions[start..] {
                    left[first] = last + 1;
                    found[first].extend(&out.positions[start..]);
                } else {
                    assert!(first == n || !out.ends.is_empty(), "no progress, {what}");
                }
            }
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let most = expected.len().min(per_range);
                assert_eq!(
                    found,
                    &expected[..most],
                    "{what}, rows of query {i}: {}..={}, at most {:?}, {per_range} per range, {total} in all",
                    left[i],
                    right[i],
                    thresholds[i]
                );
            }
        }
    }
}

/// Splits a column into chunks of any length.
pub fn chunks<K: Width>(case: &Case<K>, random: &mut Random) -> Vec<Column<K>> {
    let (mut chunks, mut from) = (vec![], 0);
    let most = random.below(300) + 1;
    while from < case.keys.len() {
        let to = case.keys.len().min(from + random.below(most) + 1);
        let bits = case.keys[from..to].iter();
        let bits: Vec<K> = bits.map(|key| case.encoding.decode(*key)).collect();
        let mut bitmap = vec![0_u8; (to - from).div_ceil(8)];
        for (i, valid) in case.valid[from..to].iter().enumerate() {
            bitmap[i / 8] |= u8::from(*valid) << (i % 8);
        }
        let column = Column::new(Arc::new(bits), case.encoding);
        let column = column.with_validity(Validity::new(Arc::new(bitmap), 0));
        chunks.push(column.expect("the bitmap covers the chunk"));
        from = to;
    }
    chunks
}
