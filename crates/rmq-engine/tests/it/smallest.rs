//! The smallest values of ranges of the CPU engine, lazily built indexes and `Index` against a naive sort.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rmq_engine::cpu::{CpuEngine, SearchKey, Simd};
use rmq_engine::{BuildOptions, Column, EngineError, Index, RangeIndex, RowList};
use rmq_testing::{Random, runs};

use crate::oracle::{Case, DATA, NULLS, Width, ranges};

fn never() -> AtomicBool {
    AtomicBool::new(false)
}

/// Compares the smallest values of some ranges with those of a stable sort.
pub fn compare<K: Width>(
    index: &dyn RangeIndex<K>,
    case: &Case<K>,
    random: &mut Random,
    what: &str,
) {
    let n = case.keys.len();
    let (left, right) = ranges(n, 60, random);
    let most = [1, 4, 40, usize::MAX][random.below(4)];
    let counts = left.iter().map(|_| match random.below(4) {
        0 => most,
        _ => random.below(most.min(300)),
    });
    let counts: Vec<usize> = counts.collect();
    // Earlier contents must not be visible.
    let mut out = RowList {
        positions: vec![-7],
        ends: vec![1],
    };
    let listed = index.list_smallest(&left, &right, &counts, &never(), &mut out);
    listed.unwrap_or_else(|error| panic!("{error}: {what}"));
    assert_eq!(out.ends.len(), left.len(), "{what}");
    let mut start = 0;
    for (i, end) in out.ends.iter().enumerate() {
        let (l, r) = (left[i].max(0), right[i].min(n as i64 - 1));
        let rows = (l..=r).filter(|at| case.valid[*at as usize]);
        let mut expected: Vec<i64> = rows.collect();
        expected.sort_by_key(|at| case.keys[*at as usize]);
        expected.truncate(counts[i]);
        let found = &out.positions[start..*end];
        assert_eq!(
            found, expected,
            "{what}, {l}..={r}, {} of {}",
            counts[i], case.what
        );
        start = *end;
    }
}

fn check<K: Width + SearchKey>(n: usize, random: &mut Random) {
    let (data, nulls) = (
        DATA[random.below(DATA.len())],
        NULLS[random.below(NULLS.len())],
    );
    let case = Case::<K>::new(data, nulls, n, random);
    let options = BuildOptions::default();
    for simd in Simd::ALL {
        if let Ok(engine) = CpuEngine::with_simd(simd) {
            let index = K::index(&engine, case.column.clone(), &options).expect("small");
            compare(&*index, &case, random, "built");
        }
    }
    let (index, lazy) = K::lazy_index(vec![case.column.clone()], options);
    compare(&*index, &case, random, "scanned");
    assert_eq!(lazy.build(), Ok(true));
    compare(&*index, &case, random, "built lazily");
}

#[test]
fn the_smallest_values_are_those_of_a_stable_sort() {
    for mut random in runs("smallest values", &[]) {
        for n in [0, 1, 2, 15, 16, 17, 300, 4_000] {
            for _ in 0..3 {
                check::<u32>(n, &mut random);
                check::<u64>(n, &mut random);
                check::<u128>(n, &mut random);
            }
        }
    }
}

#[test]
fn many_ranges_are_searched_together() {
    for mut random in runs("smallest values of many ranges", &[]) {
        let n = 2_000;
        let values: Vec<f64> = (0..n).map(|_| random.below(90) as f64 - 30.0).collect();
        let (left, right) = ranges(n, 1_500, &mut random);
        let highs = Index::max(&values).expect("small");
        let found = highs.best(&left, &right, 5).expect("slices fit");
        for (i, found) in found.iter().enumerate() {
            let (l, r) = (left[i].max(0), right[i].min(n as i64 - 1));
            let mut expected: Vec<i64> = (l..=r).collect();
            expected.sort_by(|a, b| values[*b as usize].total_cmp(&values[*a as usize]));
            expected.truncate(5);
            assert_eq!(found, &expected, "{l}..={r}");
        }
    }
}

#[test]
fn bad_input_is_an_error() {
    let column = Column::new(
        Arc::new(vec![5_u32, 3, 4]),
        rmq_engine::Encoding::unsigned(),
    );
    let without = BuildOptions {
        positions: false,
        threads: 1,
    };
    let index = u32::index(&CpuEngine::new(), column.clone(), &without).expect("small");
    let mut out = RowList::default();
    let result = index.list_smallest(&[0], &[2], &[1], &never(), &mut out);
    assert!(
        matches!(result, Err(EngineError::NoPositions)),
        "{result:?}"
    );
    let index = u32::index(
        &CpuEngine::new(),
        column,
        &BuildOptions {
            positions: true,
            ..without
        },
    );
    let index = index.expect("small");
    let result = index.list_smallest(&[0], &[2], &[1], &AtomicBool::new(true), &mut out);
    assert!(matches!(result, Err(EngineError::Stopped)), "{result:?}");
    for (right, counts) in [(&[2][..], &[1, 1][..]), (&[2, 2], &[1])] {
        let result = index.list_smallest(&[0], right, counts, &never(), &mut out);
        assert!(
            matches!(result, Err(EngineError::Lengths { .. })),
            "{result:?}"
        );
    }
}
