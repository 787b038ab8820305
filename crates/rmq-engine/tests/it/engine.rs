//! The CPU engine against a naive scan.
//!
//! Every run writes its seed to the log; `RMQ_TEST_SEED=<seed>` repeats it. `RMQ_TEST_SMALL=1` keeps columns small, for
//! memory checkers, which are about fifty times slower.

use std::sync::Arc;

use rmq_engine::Index;
use rmq_engine::cpu::{CpuEngine, Simd};
use rmq_engine::{
    Answers, BuildOptions, Column, ColumnSize, Encoding, Engine, EngineError, Extreme, RangeIndex,
    Validity,
};

use crate::oracle::{
    Case, DATA, Data, NULLS, Naive, Nulls, Width, compare, compare_mode, keys, ranges, small,
};
use rmq_testing::{Random, runs};

fn engines() -> Vec<CpuEngine> {
    let engines: Vec<_> = Simd::ALL
        .into_iter()
        .filter_map(|simd| CpuEngine::with_simd(simd).ok())
        .collect();
    assert!(!engines.is_empty(), "portable code is always available");
    engines
}

/// Checks one column with every instruction set, with and without positions.
fn check<K: Width>(
    data: Data,
    nulls: Nulls,
    n: usize,
    queries: usize,
    threads: usize,
    random: &mut Random,
) {
    let case = Case::<K>::new(data, nulls, n, random);
    let naive = Naive::new(&case.keys, &case.valid);
    let (left, right) = ranges(n, queries, random);
    for engine in engines() {
        for positions in [true, false] {
            let options = BuildOptions { positions, threads };
            let index = K::index(&engine, case.column.clone(), &options).expect("there is memory");
            assert_eq!(index.len(), n);
            let size = ColumnSize {
                rows: n,
                key_bytes: size_of::<K>(),
                nulls: !matches!(case.nulls, Nulls::Absent),
            };
            assert!(index.memory_bytes() <= engine.memory_bytes(size, &options));
            let what = format!("{}, {:?}, positions {positions}", case.what, engine.simd());
            for mode in 0..if positions { 4 } else { 2 } {
                compare_mode(&*index, &naive, case.encoding, &left, &right, &what, mode);
            }
        }
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
fn every_width_distribution_and_null_pattern_at_small_sizes() {
    for mut random in runs("small sizes", &[]) {
        for n in sizes() {
            for data in DATA {
                for nulls in NULLS {
                    let queries = if small() { 15 } else { 60 };
                    check::<u32>(data, nulls, n, queries, 1, &mut random);
                    check::<u64>(data, nulls, n, queries, 1, &mut random);
                    check::<u128>(data, nulls, n, queries, 1, &mut random);
                }
            }
        }
    }
}

#[test]
fn sizes_at_level_boundaries() {
    for mut random in runs("edges of levels", &[]) {
        let edges: &[usize] = if small() {
            &[4096]
        } else {
            &[65_536, 196_608, 786_432, 1_048_576]
        };
        for edge in edges {
            for n in [edge - 1, *edge, edge + 1] {
                for nulls in [Nulls::Absent, Nulls::Some, Nulls::Runs] {
                    let data = DATA[random.below(DATA.len())];
                    // Tests one random width per case, to save time.
                    if random.below(2) == 0 {
                        check::<u32>(data, nulls, n, 5_000, 2, &mut random);
                    } else {
                        check::<u64>(data, nulls, n, 5_000, 2, &mut random);
                    }
                }
            }
        }
    }
}

#[test]
fn every_distribution_with_the_sparse_table() {
    for mut random in runs("sparse table", &[]) {
        let n = if small() { 70_000 } else { 3_000_001 };
        for data in DATA {
            if small() || random.below(2) == 0 {
                check::<u32>(data, Nulls::Absent, n, 20_000, 3, &mut random);
            } else {
                check::<u64>(data, Nulls::Most, n, 20_000, 3, &mut random);
            }
        }
        if !small() {
            check::<u128>(Data::Ties, Nulls::Some, n, 10_000, 3, &mut random);
        }
    }
}

#[test]
fn batches_of_any_length() {
    for mut random in runs("batch lengths", &[]) {
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

/// A column whose memory changes after the build is rejected, not searched.
#[test]
fn a_changed_column_is_rejected() {
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
fn index_uses_the_total_order_of_floats_for_both_extremes() {
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
    #[expect(
        clippy::reversed_empty_ranges,
        reason = "the test needs an empty range"
    )]
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
fn index_answers_batches() {
    for mut random in runs("index of a slice", &[]) {
        let n = if small() { 3_000 } else { 50_000 };
        let values: Vec<i64> = (0..n).map(|_| random.next().cast_signed() >> 50).collect();
        let (left, right) = ranges(n, 1_500, &mut random);
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
}
