//! The CPU engine against a naive scan.
//!
//! Every run prints its seed; `RMQ_TEST_SEED=<seed>` repeats it. `RMQ_TEST_SMALL=1` keeps columns small, for memory
//! checkers that make everything fifty times slower.

use std::sync::Arc;

use datafusion_rmq::engine::alone::Index;
use datafusion_rmq::engine::cpu::{CpuEngine, Simd};
use datafusion_rmq::engine::{
    Answers, BuildOptions, Column, ColumnSize, Encoding, Engine, EngineError, Extreme, Key,
    RangeIndex, Validity,
};

use crate::random::Random;

fn small() -> bool {
    std::env::var_os("RMQ_TEST_SMALL").is_some()
}

fn engines() -> Vec<CpuEngine> {
    let engines: Vec<_> = Simd::ALL
        .into_iter()
        .filter_map(|simd| CpuEngine::with_simd(simd).ok())
        .collect();
    assert!(!engines.is_empty(), "portable code runs everywhere");
    engines
}

/// A key width: how it is made of random bits, and the engine's method for it.
trait Width: Key {
    fn of(bits: u64) -> Self;
    fn index(
        engine: &CpuEngine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<Self>>, EngineError>;
}

impl Width for u32 {
    fn of(bits: u64) -> Self {
        bits as Self
    }
    fn index(
        engine: &CpuEngine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<Self>>, EngineError> {
        engine.build_u32(column, options)
    }
}

impl Width for u64 {
    fn of(bits: u64) -> Self {
        bits
    }
    fn index(
        engine: &CpuEngine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<Self>>, EngineError> {
        engine.build_u64(column, options)
    }
}

impl Width for u128 {
    fn of(bits: u64) -> Self {
        Self::from(bits) << 64 | Self::from(bits.rotate_left(17))
    }
    fn index(
        engine: &CpuEngine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<Self>>, EngineError> {
        engine.build_u128(column, options)
    }
}

/// What a column looks like.
#[derive(Debug, Clone, Copy)]
enum Data {
    Uniform,
    Increasing,
    Decreasing,
    Walk,
    Constant,
    /// A handful of different values, so that ties are everywhere.
    Ties,
    /// The greatest key almost everywhere: what the engine also takes for NULL.
    Greatest,
}

const DATA: [Data; 7] = [
    Data::Uniform,
    Data::Increasing,
    Data::Decreasing,
    Data::Walk,
    Data::Constant,
    Data::Ties,
    Data::Greatest,
];

/// Keys of that look; the stored bits follow by decoding, so that each encoding sees the same order.
fn keys<K: Width>(data: Data, n: usize, random: &mut Random) -> Vec<K> {
    let mut walk = 1_u64 << 40;
    let constant = random.next();
    (0..n)
        .map(|i| match data {
            Data::Uniform => K::of(random.next()),
            Data::Increasing => K::of(i as u64),
            Data::Decreasing => K::of((n - i) as u64),
            Data::Walk => {
                walk = walk.wrapping_add(random.next() % 201).wrapping_sub(100);
                K::of(walk)
            }
            Data::Constant => K::of(constant),
            Data::Ties => K::of(random.next() % 4),
            Data::Greatest => {
                if random.below(50) == 0 {
                    K::of(random.next())
                } else {
                    K::MAX
                }
            }
        })
        .collect()
}

/// Which values are NULL.
#[derive(Debug, Clone, Copy)]
enum Nulls {
    Absent,
    /// A bitmap without a NULL.
    Unused,
    Some,
    Most,
    Runs,
    All,
}

const NULLS: [Nulls; 6] = [
    Nulls::Absent,
    Nulls::Unused,
    Nulls::Some,
    Nulls::Most,
    Nulls::Runs,
    Nulls::All,
];

fn valid(nulls: Nulls, n: usize, random: &mut Random) -> Vec<bool> {
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
fn ranges(n: usize, count: usize, random: &mut Random) -> (Vec<i64>, Vec<i64>) {
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
            // On the edges of blocks.
            4 => (l / 16 * 16, (l + len as i64) / 16 * 16 - 1),
            5 => (l / 256 * 256, (l + len as i64) / 256 * 256),
            _ => (l, l + len as i64 - 1),
        };
        left.push(l);
        right.push(r);
    }
    (left, right)
}

/// The leftmost position of the smallest valid key of a range: by a scan up to some thousand values, by a sparse table
/// (another algorithm than the engine's) for longer ranges.
struct Naive<'a, K> {
    keys: &'a [K],
    valid: &'a [bool],
    /// Row `j`: the best position of `2^j` neighbours.
    table: Vec<Vec<u32>>,
}

impl<'a, K: Width> Naive<'a, K> {
    fn new(keys: &'a [K], valid: &'a [bool]) -> Self {
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

    fn answer(&self, left: i64, right: i64) -> Option<(K, i64)> {
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

/// Compares all that an index can be asked for with the naive answers.
fn compare<K: Width>(
    index: &dyn RangeIndex<K>,
    naive: &Naive<'_, K>,
    encoding: Encoding<K>,
    left: &[i64],
    right: &[i64],
    what: &str,
) {
    let m = left.len();
    let poison = K::of(0xDEAD_BEEF_DEAD_BEEF);
    let words = m.div_ceil(64);
    let modes = if index.has_positions() { 4 } else { 2 };
    for mode in 0..modes {
        let (mut values, mut positions) = (vec![poison; m], vec![-7; m]);
        let mut bits = vec![!0_u64; words];
        let out = Answers {
            values: (mode & 1 == 0).then_some(&mut values[..]),
            positions: (mode & 2 != 0).then_some(&mut positions[..]),
            valid: &mut bits,
        };
        index.answer(left, right, out).expect("slices fit");
        for i in 0..m {
            let expected = naive.answer(left[i], right[i]);
            let found = bits[i / 64] >> (i % 64) & 1 == 1;
            let place = || format!("{what}, mode {mode}, query {i}: {}..={}", left[i], right[i]);
            assert_eq!(found, expected.is_some(), "valid of {}", place());
            if mode & 1 == 0 {
                let expected = expected.map_or(K::MAX, |(key, _)| key);
                assert_eq!(values[i], encoding.decode(expected), "value of {}", place());
            }
            if mode & 2 != 0 {
                let expected = expected.map_or(0, |(_, at)| at);
                assert_eq!(positions[i], expected, "position of {}", place());
            }
        }
        if !m.is_multiple_of(64) {
            assert_eq!(bits[words - 1] >> (m % 64), 0, "bits past the end, {what}");
        }
    }
}

/// One column through every instruction set, with and without positions.
fn check<K: Width>(
    data: Data,
    nulls: Nulls,
    n: usize,
    queries: usize,
    threads: usize,
    random: &mut Random,
) {
    let keys = keys::<K>(data, n, random);
    let valid = valid(nulls, n, random);
    let naive = Naive::new(&keys, &valid);
    let (left, right) = ranges(n, queries, random);

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
    // The column begins anywhere in its memory, as a slice of an Arrow array does.
    let skip = random.below(40);
    let mut bits = vec![K::ZERO; skip];
    bits.extend(keys.iter().map(|key| encoding.decode(*key)));
    let bits = Arc::new(Skip { bits, skip });
    let offset = random.below(70);
    let mut bitmap = vec![0_u8; (offset + n).div_ceil(8)];
    for (i, valid) in valid.iter().enumerate() {
        bitmap[(offset + i) / 8] |= u8::from(*valid) << ((offset + i) % 8);
    }
    let bitmap = Arc::new(bitmap);

    for engine in engines() {
        for positions in [true, false] {
            let mut column = Column::new(bits.clone(), encoding);
            if !matches!(nulls, Nulls::Absent) {
                column = column
                    .with_validity(Validity::new(bitmap.clone(), offset))
                    .expect("the bitmap covers the column");
            }
            let options = BuildOptions { positions, threads };
            let index = K::index(&engine, column, &options).expect("there is memory");
            assert_eq!(index.len(), n);
            let size = ColumnSize {
                rows: n,
                key_bytes: size_of::<K>(),
                nulls: !matches!(nulls, Nulls::Absent),
            };
            assert!(index.memory_bytes() <= engine.memory_bytes(size, &options));
            let what = format!(
                "{data:?}, nulls {nulls:?}, n {n}, {} bytes, {encoding:?}, {:?}, positions {positions}, skip {skip}",
                size_of::<K>(),
                engine.simd(),
            );
            compare(&*index, &naive, encoding, &left, &right, &what);
        }
    }
}

/// Memory whose column begins `skip` values in.
struct Skip<K> {
    bits: Vec<K>,
    skip: usize,
}

impl<K> AsRef<[K]> for Skip<K> {
    fn as_ref(&self) -> &[K] {
        &self.bits[self.skip..]
    }
}

fn sizes() -> Vec<usize> {
    let mut sizes = vec![0, 1, 2, 3];
    let edges: &[usize] = if small() {
        &[16, 32, 256, 768]
    } else {
        &[16, 32, 48, 64, 256, 768, 4096, 12_288]
    };
    for edge in edges {
        sizes.extend([edge - 1, *edge, edge + 1]);
    }
    sizes
}

#[test]
fn every_width_look_and_null_pattern_at_small_sizes() {
    let mut random = Random::new("small sizes");
    for n in sizes() {
        for data in DATA {
            for nulls in NULLS {
                let queries = if small() { 30 } else { 120 };
                check::<u32>(data, nulls, n, queries, 1, &mut random);
                check::<u64>(data, nulls, n, queries, 1, &mut random);
                check::<u128>(data, nulls, n, queries, 1, &mut random);
            }
        }
    }
}

#[test]
fn sizes_around_the_edges_of_levels() {
    let mut random = Random::new("edges of levels");
    let edges: &[usize] = if small() {
        &[4096]
    } else {
        &[65_536, 196_608, 786_432, 1_048_576]
    };
    for edge in edges {
        for n in [edge - 1, *edge, edge + 1] {
            for nulls in [Nulls::Absent, Nulls::Some, Nulls::Runs] {
                let data = DATA[random.below(DATA.len())];
                check::<u32>(data, nulls, n, 5_000, 2, &mut random);
                let data = DATA[random.below(DATA.len())];
                check::<u64>(data, nulls, n, 5_000, 2, &mut random);
            }
        }
    }
}

#[test]
fn every_look_where_the_sparse_table_is_used() {
    let mut random = Random::new("sparse table");
    let n = if small() { 70_000 } else { 3_000_001 };
    for data in DATA {
        check::<u32>(data, Nulls::Absent, n, 20_000, 3, &mut random);
        if !small() {
            check::<u64>(data, Nulls::Most, n, 20_000, 3, &mut random);
        }
    }
    if !small() {
        check::<u128>(Data::Ties, Nulls::Some, n, 20_000, 3, &mut random);
    }
}

#[test]
fn a_batch_of_any_length() {
    let mut random = Random::new("batch lengths");
    let keys = keys::<u32>(Data::Uniform, 5000, &mut random);
    let valid = vec![true; keys.len()];
    let naive = Naive::new(&keys, &valid);
    let column = Column::new(Arc::new(keys.clone()), Encoding::unsigned());
    let (left, right) = ranges(keys.len(), 1000, &mut random);
    for engine in engines() {
        let index = engine
            .build_u32(column.clone(), &BuildOptions::default())
            .expect("small");
        for m in (0..400).chain([1000]) {
            let from = random.below(left.len() - m);
            let (left, right) = (&left[from..from + m], &right[from..from + m]);
            compare(
                &*index,
                &naive,
                Encoding::unsigned(),
                left,
                right,
                "batch lengths",
            );
        }
    }
}

fn answer(
    index: &dyn RangeIndex<u32>,
    right: &[i64],
    values: Option<&mut [u32]>,
    positions: Option<&mut [i64]>,
    valid: &mut [u64],
) -> Result<(), EngineError> {
    let out = Answers {
        values,
        positions,
        valid,
    };
    index.answer(&[0, 1], right, out)
}

#[test]
fn bad_input_is_an_error() {
    let engine = CpuEngine::new();
    let column = Column::new(Arc::new(vec![3_u32, 1, 2]), Encoding::unsigned());
    let short = Validity::new(Arc::new(vec![0_u8]), 6);
    assert_eq!(
        column.clone().with_validity(short).err(),
        Some(EngineError::Validity { bits: 9, bytes: 1 })
    );
    let far = Validity::new(Arc::new(vec![0_u8]), usize::MAX);
    assert!(column.clone().with_validity(far).is_err());

    let options = BuildOptions {
        positions: false,
        threads: 0,
    };
    let index = engine.build_u32(column, &options).expect("small");
    let (mut values, mut positions, mut valid) = ([0; 2], [0; 2], [0; 1]);
    let index = &*index;
    let lengths = |result: Result<(), EngineError>| {
        assert!(
            matches!(result, Err(EngineError::Lengths { .. })),
            "{result:?}"
        );
    };
    lengths(answer(index, &[1], None, None, &mut valid));
    lengths(answer(
        index,
        &[1, 1],
        Some(&mut values[..1]),
        None,
        &mut valid,
    ));
    lengths(answer(
        index,
        &[1, 1],
        None,
        Some(&mut positions[..1]),
        &mut valid,
    ));
    lengths(answer(index, &[1, 1], None, None, &mut []));
    assert_eq!(
        answer(index, &[1, 1], None, Some(&mut positions), &mut valid),
        Err(EngineError::NoPositions)
    );
    assert_eq!(
        answer(index, &[1, 2], Some(&mut values), None, &mut valid),
        Ok(())
    );
    assert_eq!((values, valid), ([1, 1], [3]));
}

/// A column whose memory changes under the index is refused, not searched.
#[test]
fn a_column_that_moves_is_refused() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    struct Shrinks(Vec<u32>, AtomicUsize);
    impl AsRef<[u32]> for Shrinks {
        fn as_ref(&self) -> &[u32] {
            &self.0[..self.1.load(Ordering::Relaxed)]
        }
    }
    let memory = Arc::new(Shrinks(vec![1; 1000], AtomicUsize::new(1000)));
    let column = Column::new(memory.clone(), Encoding::unsigned());
    let index = CpuEngine::new()
        .build_u32(column, &BuildOptions::default())
        .expect("small");
    memory.1.store(10, Ordering::Relaxed);
    let mut valid = [0];
    let out = Answers {
        values: None,
        positions: None,
        valid: &mut valid,
    };
    assert_eq!(
        index.answer(&[0], &[999], out),
        Err(EngineError::ColumnMoved)
    );
}

#[test]
fn alone_orders_floats_totally_in_both_directions() {
    let values = [0.0_f32, -0.0, f32::NAN, 1.0, f32::INFINITY, -0.0];
    let min = Index::min(&values).expect("small");
    let max = Index::max(&values).expect("small");
    assert!(
        min.value(..)
            .is_some_and(|v| v == 0.0 && v.is_sign_negative())
    );
    assert_eq!(min.position(..), Some(1));
    assert!(max.value(..).is_some_and(f32::is_nan));
    assert_eq!(max.position(3..), Some(4));
    assert_eq!(min.position(2..3), Some(2));
    assert_eq!(min.value(6..), None);
    assert_eq!(min.value(3..=usize::MAX), Some(-0.0));
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is tested")]
    {
        assert_eq!(min.value(3..2), None);
    }
    assert_eq!(min.value(0..0), None);

    let none: [i64; 0] = [];
    let empty = Index::max(&none).expect("small");
    assert!(empty.is_empty());
    assert_eq!(empty.value(..), None);
    let mut out = [1; 1];
    assert_eq!(empty.values(&[0], &[5], &mut out), Ok(()));
    assert_eq!(out, [i64::MIN]);
    assert_eq!(empty.positions(&[0], &[5], &mut out), Ok(()));
    assert_eq!(out, [-1]);
    assert!(empty.positions(&[0], &[5, 6], &mut out).is_err());
}

#[test]
fn alone_in_batches() {
    let mut random = Random::new("alone");
    let n = if small() { 3_000 } else { 50_000 };
    let values: Vec<i64> = (0..n).map(|_| random.next().cast_signed() >> 50).collect();
    let (left, right) = ranges(n, 3_000, &mut random);
    for extreme in [Extreme::Min, Extreme::Max] {
        let index = Index::build(&values, extreme, &BuildOptions::default()).expect("small");
        assert_eq!(index.len(), n);
        let (mut best, mut positions) = (vec![0; left.len()], vec![0; left.len()]);
        index.values(&left, &right, &mut best).expect("slices fit");
        index
            .positions(&left, &right, &mut positions)
            .expect("slices fit");
        for (i, (&l, &r)) in left.iter().zip(&right).enumerate() {
            let (l, r) = (l.max(0), r.min(n as i64 - 1));
            if l > r {
                let neutral = match extreme {
                    Extreme::Min => i64::MAX,
                    Extreme::Max => i64::MIN,
                };
                assert_eq!((best[i], positions[i]), (neutral, -1));
                continue;
            }
            let (l, r) = (l as usize, r as usize);
            let range = values[l..=r].iter().zip(l..);
            let expected = match extreme {
                Extreme::Min => range.min_by_key(|(value, at)| (**value, *at)),
                Extreme::Max => range.min_by_key(|(value, at)| (!**value, *at)),
            };
            let (value, at) = expected.expect("not empty");
            assert_eq!((best[i], positions[i]), (*value, at as i64));
            if i % 50 == 0 {
                assert_eq!(index.value(l..=r), Some(*value));
                assert_eq!(index.position(l..=r), Some(at));
            }
        }
    }
}
