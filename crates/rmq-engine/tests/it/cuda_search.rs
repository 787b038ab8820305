//! The search for ranges of keys on devices, compared with binary searches on the host.
//!
//! Environment variables and machines without a device: see `cuda.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rmq_engine::cuda::{CudaEngine, CudaOptions, Fault};
use rmq_engine::{EngineError, KeyBound, KeyRanges, KeySearch, SortedKeys};

use crate::cuda::{open, queries};
use crate::oracle::{Width, small};
use rmq_testing::Random;

type Search<K> = Result<Arc<dyn KeySearch<K>>, EngineError>;

trait Sorted: Width {
    fn sorted(engine: &CudaEngine, keys: SortedKeys<'_, Self>) -> Search<Self>;
}

impl Sorted for u32 {
    fn sorted(engine: &CudaEngine, keys: SortedKeys<'_, Self>) -> Search<Self> {
        engine.sorted_u32(keys, 4)
    }
}

impl Sorted for u64 {
    fn sorted(engine: &CudaEngine, keys: SortedKeys<'_, Self>) -> Search<Self> {
        engine.sorted_u64(keys, 4)
    }
}

impl Sorted for u128 {
    fn sorted(engine: &CudaEngine, keys: SortedKeys<'_, Self>) -> Search<Self> {
        engine.sorted_u128(keys, 4)
    }
}

fn sorted<K: Sorted>(engine: &CudaEngine, keys: &[K]) -> Search<K> {
    let fill = |from: usize, to: &mut [K]| to.copy_from_slice(&keys[from..from + to.len()]);
    K::sorted(
        engine,
        SortedKeys {
            len: keys.len(),
            fill: &fill,
        },
    )
}

/// Sorted segments and queries for ranges in them.
struct Case<K> {
    keys: Vec<K>,
    begin: Vec<u32>,
    end: Vec<u32>,
    low: Vec<K>,
    high: Vec<K>,
    segmented: bool,
}

impl<K: Sorted> Case<K> {
    fn new(n: usize, queries: usize, random: &mut Random) -> Self {
        // Few or many distinct keys; few distinct keys give many equal keys.
        let distinct = [3, 1000, usize::MAX][random.below(3)];
        let key = |random: &mut Random| match random.below(50) {
            0 => K::MAX,
            1 => K::ZERO,
            _ => K::from_bits(random.below(distinct) as u64),
        };
        let mut keys: Vec<K> = (0..n).map(|_| key(random)).collect();
        let segmented = random.below(3) > 0;
        let mut starts = vec![0];
        if segmented {
            for _ in 0..random.below(20) {
                starts.push(random.below(n + 1));
            }
            starts.sort_unstable();
        }
        starts.push(n);
        for ends in starts.windows(2) {
            keys[ends[0]..ends[1]].sort_unstable();
        }
        let segments: Vec<usize> = (0..queries)
            .map(|_| random.below(starts.len() - 1))
            .collect();
        let bound = |random: &mut Random| match random.below(2) {
            0 if n > 0 => keys[random.below(n)],
            _ => key(random),
        };
        Self {
            begin: segments.iter().map(|s| starts[*s] as u32).collect(),
            end: segments.iter().map(|s| starts[*s + 1] as u32).collect(),
            low: (0..queries).map(|_| bound(random)).collect(),
            high: (0..queries).map(|_| bound(random)).collect(),
            keys,
            segmented,
        }
    }

    /// Returns the queries with the given bounds; `Some(true)` is an inclusive bound.
    fn ranges(&self, low: Option<bool>, high: Option<bool>) -> KeyRanges<'_, K> {
        let bound = |inside: Option<bool>, keys| inside.map(|inside| KeyBound { keys, inside });
        KeyRanges {
            segments: self.segmented.then_some((&self.begin, &self.end)),
            low: bound(low, &self.low),
            high: bound(high, &self.high),
        }
    }

    /// Computes the result of a query by binary search.
    fn expected(&self, low: Option<bool>, high: Option<bool>, query: usize) -> (i64, i64) {
        let (begin, end) = (self.begin[query] as usize, self.end[query] as usize);
        let segment = &self.keys[begin..end];
        let (a, b) = (self.low[query], self.high[query]);
        let from = low.map_or(0, |inside| {
            segment.partition_point(|key| *key < a || !inside && *key == a)
        });
        let to = high.map_or(segment.len(), |inside| {
            segment.partition_point(|key| *key < b || inside && *key == b)
        });
        if from < to {
            ((begin + from) as i64, (begin + to) as i64 - 1)
        } else {
            (1, 0)
        }
    }

    /// Checks every combination of bounds; returns the number of queries.
    fn check(&self, search: &dyn KeySearch<K>) -> u64 {
        let kinds = [None, Some(true), Some(false)];
        let queries = self.begin.len();
        for low in kinds {
            for high in kinds {
                let (mut left, mut right) = (vec![7; queries], vec![7; queries]);
                search
                    .search(self.ranges(low, high), &mut left, &mut right)
                    .expect("slices fit");
                for query in 0..queries {
                    let found = (left[query], right[query]);
                    assert_eq!(
                        found,
                        self.expected(low, high, query),
                        "query {query} of {} keys, {low:?}, {high:?}",
                        self.keys.len()
                    );
                }
            }
        }
        9 * queries as u64
    }
}

fn open_default() -> Option<CudaEngine> {
    open(&CudaOptions::default())
}

fn sizes<K: Sorted>(engine: &CudaEngine, random: &mut Random) {
    let large: &[usize] = if small() { &[500] } else { &[65_537, 1 << 20] };
    for n in [0, 1, 2, 3, 7, 8, 9, 100].iter().chain(large) {
        for _ in 0..4 {
            let queries = random.below(if small() { 50 } else { 3000 });
            let case = Case::<K>::new(*n, queries, random);
            let search = sorted(engine, &case.keys).expect("it fits");
            assert!(search.device_bytes() <= *n * size_of::<K>());
            case.check(&*search);
        }
    }
    assert_eq!(
        engine.devices()[0].used,
        0,
        "dropped keys release their memory"
    );
}

#[test]
fn segments_of_any_size() {
    let mut random = Random::new("segments");
    let Some(engine) = open_default() else { return };
    sizes::<u32>(&engine, &mut random);
    sizes::<u64>(&engine, &mut random);
    sizes::<u128>(&engine, &mut random);
}

#[test]
fn batches_longer_than_a_chunk() {
    let mut random = Random::new("long batches");
    let Some(engine) = open_default() else { return };
    let chunk = if small() { 1 << 9 } else { 1 << 18 };
    for queries in [chunk - 1, chunk, chunk + 1, 3 * chunk + 77] {
        let case = Case::<u64>::new(50_000.min(chunk), queries, &mut random);
        case.check(&*sorted(&engine, &case.keys).expect("it fits"));
    }
}

#[test]
fn many_random_searches_from_several_threads() {
    let Some(engine) = open_default() else { return };
    let mut random = Random::new("random searches");
    let (total, answered) = (queries(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let (engine, answered) = (&engine, &answered);
            let mut random = Random::from_seed(random.next());
            scope.spawn(move || {
                while answered.load(Ordering::Relaxed) < total {
                    let most = if small() { 8 } else { 20 };
                    let scale = random.below(most + 1);
                    let n = random.below(1 << scale);
                    let queries = random.below(if small() { 100 } else { 40_000 });
                    let case = Case::<u64>::new(n, queries, &mut random);
                    let search = sorted(engine, &case.keys).expect("it fits");
                    answered.fetch_add(case.check(&*search), Ordering::Relaxed);
                }
            });
        }
    });
    println!("{} searches", answered.into_inner());
}

#[test]
fn mismatched_lengths_are_errors() {
    let Some(engine) = open_default() else { return };
    let keys: Vec<u32> = (0..10).collect();
    let search = sorted(&engine, &keys).expect("it fits");
    let ranges = KeyRanges {
        segments: Some((&[0, 0], &[10, 11])),
        low: None,
        high: None,
    };
    let (mut left, mut right) = ([0; 2], [0; 2]);
    let out_of_range = search.search(ranges, &mut left, &mut right);
    assert!(matches!(out_of_range, Err(EngineError::Lengths { .. })));
    let ranges = KeyRanges {
        segments: Some((&[0], &[10])),
        ..ranges
    };
    let short = search.search(ranges, &mut left, &mut right);
    assert!(matches!(short, Err(EngineError::Lengths { .. })));
    let fill = |_: usize, _: &mut [u32]| {};
    let too_long = engine.sorted_u32(
        SortedKeys {
            len: 1 << 32,
            fill: &fill,
        },
        1,
    );
    assert!(matches!(too_long, Err(EngineError::TooLong { .. })));
}

#[test]
fn any_fault_is_an_error() {
    let mut random = Random::new("faults of searches");
    // Keeps the device's context while engines are opened and dropped.
    let Some(_open) = open_default() else { return };
    let case = Case::<u64>::new(5_000, 700, &mut random);
    let mut faults = 0;
    for fault in Fault::ALL {
        for nth in 1.. {
            let engine = open_default().expect("it was opened before");
            engine.inject(fault, nth);
            let found = sorted(&engine, &case.keys).and_then(|search| {
                let (mut left, mut right) = (vec![7; 700], vec![7; 700]);
                let ranges = case.ranges(Some(true), Some(false));
                search.search(ranges, &mut left, &mut right)?;
                Ok((left, right))
            });
            let failed = !engine.inject(fault, 0);
            assert_eq!(failed, found.is_err(), "{fault:?}, {nth}");
            assert_eq!(engine.devices()[0].used, 0);
            if let Ok((left, right)) = found {
                for query in 0..700 {
                    let expected = case.expected(Some(true), Some(false), query);
                    assert_eq!((left[query], right[query]), expected);
                }
                assert!(nth > 1, "{fault:?} has not occurred");
                break;
            }
            faults += 1;
        }
    }
    println!("{faults} faults");
}
