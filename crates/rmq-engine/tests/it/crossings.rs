//! Threshold searches and listings of the CPU engine, lazily built indexes and `Index` against a naive scan.

use std::sync::Arc;

use rmq_engine::cpu::{CpuEngine, SearchKey, Simd};
use rmq_engine::{BuildOptions, Column, Crossings, EngineError, Index, Key, RangeEnd};
use rmq_testing::{Random, runs};

use crate::oracle::{
    Case, DATA, NULLS, Nulls, Width, chunks, compare_all_listings, compare_crossings,
    compare_listings, naive_crossings, ranges, small, thresholds,
};

/// Checks one column with every instruction set, and its lazily built index before and after the build.
fn check<K: Width>(case: &Case<K>, queries: usize, random: &mut Random) {
    let n = case.keys.len();
    let (left, right) = ranges(n, queries, random);
    let thresholds = thresholds(&case.keys, left.len(), random);
    let expected = naive_crossings(case, &left, &right, &thresholds);
    for simd in Simd::ALL {
        let Ok(engine) = CpuEngine::with_simd(simd) else {
            continue;
        };
        for positions in [true, false] {
            let options = BuildOptions {
                positions,
                threads: 2,
            };
            let index = K::index(&engine, case.column.clone(), &options).expect("there is memory");
            let what = format!("{}, {simd:?}, positions {positions}", case.what);
            compare_crossings(&*index, &expected, &left, &right, &thresholds, &what);
            compare_listings(&*index, case, &left, &right, &thresholds, &what);
        }
    }
}

fn sizes() -> Vec<usize> {
    let mut sizes = vec![0, 1, 2, 3];
    for edge in [16, 32, 48, 256, 768, 4096] {
        sizes.extend([edge - 1, edge, edge + 1]);
    }
    sizes
}

#[test]
fn every_width_distribution_and_null_pattern_at_small_sizes() {
    for mut random in runs("crossings at small sizes", &[]) {
        for n in sizes() {
            for data in DATA {
                for nulls in NULLS {
                    let random = &mut random;
                    let queries = if small() { 15 } else { 60 };
                    check(&Case::<u32>::new(data, nulls, n, random), queries, random);
                    check(&Case::<u64>::new(data, nulls, n, random), queries, random);
                    check(&Case::<u128>::new(data, nulls, n, random), queries, random);
                }
            }
        }
    }
}

#[test]
fn sizes_at_level_boundaries_and_the_sparse_table() {
    for mut random in runs("crossings at edges of levels", &[]) {
        let edges: &[usize] = if small() {
            &[4096]
        } else {
            &[65_536, 196_608, 1_048_576]
        };
        for edge in edges {
            for n in [edge - 1, *edge, edge + 1] {
                for nulls in [Nulls::Absent, Nulls::Some, Nulls::Runs] {
                    let random = &mut random;
                    let data = DATA[random.below(DATA.len())];
                    match random.below(3) {
                        0 => check(&Case::<u32>::new(data, nulls, n, random), 2_000, random),
                        1 => check(&Case::<u64>::new(data, nulls, n, random), 2_000, random),
                        _ => check(&Case::<u128>::new(data, nulls, n, random), 2_000, random),
                    }
                }
            }
        }
    }
}

#[test]
fn batches_of_any_length() {
    for mut random in runs("lengths of batches of crossings", &[]) {
        let random = &mut random;
        let case = Case::<u32>::new(DATA[3], Nulls::Some, 5000, random);
        let (left, right) = ranges(5000, 1000, random);
        let thresholds = thresholds(&case.keys, left.len(), random);
        let expected = naive_crossings(&case, &left, &right, &thresholds);
        let index = u32::index(
            &CpuEngine::new(),
            case.column.clone(),
            &BuildOptions::default(),
        );
        let index = index.expect("small");
        for m in (0..400).chain([1000]) {
            let at = random.below(left.len() - m);
            let batch = at..at + m;
            let expected = &expected[batch.clone()];
            let (left, right) = (&left[batch.clone()], &right[batch.clone()]);
            compare_crossings(
                &*index,
                expected,
                left,
                right,
                &thresholds[batch],
                "lengths",
            );
        }
    }
}

fn check_many_ranges<K: Width>(data: usize, nulls: Nulls, random: &mut Random) {
    let n = if small() { 3_000 } else { 80_000 };
    let case = Case::<K>::new(DATA[data], nulls, n, random);
    let (left, right) = ranges(n, 200, random);
    let thresholds = thresholds(&case.keys, left.len(), random);
    for simd in Simd::ALL {
        let Ok(engine) = CpuEngine::with_simd(simd) else {
            continue;
        };
        let options = BuildOptions::default();
        let index = K::index(&engine, case.column.clone(), &options).expect("there is memory");
        let what = format!("{}, {simd:?}", case.what);
        compare_all_listings(&*index, &case, &left, &right, &thresholds, &what);
    }
}

#[test]
fn listings_of_many_ranges_with_many_rows() {
    for mut random in runs("listings of many ranges", &[]) {
        let random = &mut random;
        for data in 0..DATA.len() {
            for nulls in [Nulls::Absent, Nulls::Some, Nulls::Runs] {
                match random.below(3) {
                    0 => check_many_ranges::<u32>(data, nulls, random),
                    1 => check_many_ranges::<u64>(data, nulls, random),
                    _ => check_many_ranges::<u128>(data, nulls, random),
                }
            }
        }
    }
}

fn check_lazy<K: Width + SearchKey>(random: &mut Random) {
    let (data, nulls) = (
        DATA[random.below(DATA.len())],
        NULLS[random.below(NULLS.len())],
    );
    let n = random.below(3000);
    let case = Case::<K>::new(data, nulls, n, random);
    let (left, right) = ranges(n, 200, random);
    let thresholds = thresholds(&case.keys, left.len(), random);
    let expected = naive_crossings(&case, &left, &right, &thresholds);
    let (index, lazy) = K::lazy_index(chunks(&case, random), BuildOptions::default());
    compare_crossings(&*index, &expected, &left, &right, &thresholds, "scanned");
    compare_listings(&*index, &case, &left, &right, &thresholds, "scanned");
    assert_eq!(lazy.build(), Ok(true));
    compare_crossings(&*index, &expected, &left, &right, &thresholds, "built");
    compare_listings(&*index, &case, &left, &right, &thresholds, "built");
}

#[test]
fn lazily_built_indexes_before_and_after_the_build() {
    for mut random in runs("crossings of lazy indexes", &[]) {
        for _ in 0..20 {
            check_lazy::<u32>(&mut random);
            check_lazy::<u64>(&mut random);
            check_lazy::<u128>(&mut random);
        }
    }
}

#[test]
fn index_compares_floats_in_total_order() {
    let values = [1.0_f64, 0.0, -0.0, f64::NAN, f64::NEG_INFINITY, -f64::NAN];
    let lows = Index::min(&values).expect("small");
    let highs = Index::max(&values).expect("small");
    let find = |index: &Index<f64>, end, threshold| {
        let mut out = [7; 3];
        let found = index.crossings(&[0, 2, 9], &[5, 3, 12], &[threshold; 3], end, &mut out);
        found.expect("slices fit");
        out
    };
    let (first, last) = (RangeEnd::First, RangeEnd::Last);
    assert_eq!(find(&lows, first, 0.0), [1, 2, -1]);
    assert_eq!(find(&lows, first, -0.0), [2, 2, -1]);
    assert_eq!(find(&lows, last, f64::NAN), [5, 3, -1]);
    assert_eq!(find(&lows, last, f64::INFINITY), [5, 2, -1]);
    assert_eq!(find(&lows, first, -f64::NAN), [5, -1, -1]);
    assert_eq!(find(&highs, first, 0.0), [0, 3, -1]);
    assert_eq!(find(&highs, last, 0.5), [3, 3, -1]);
    assert_eq!(find(&highs, last, -0.0), [3, 3, -1]);
    assert_eq!(find(&highs, first, f64::NAN), [3, 3, -1]);
    assert_eq!(find(&highs, last, -f64::NAN), [5, 3, -1]);
}

#[test]
fn index_answers_batches() {
    for mut random in runs("crossings of a slice", &[]) {
        let n = 5_000;
        let values: Vec<i64> = (0..n).map(|_| random.next().cast_signed() >> 50).collect();
        let (left, right) = ranges(n, 3_000, &mut random);
        let thresholds: Vec<i64> = left
            .iter()
            .map(|_| random.next().cast_signed() >> (50 + random.below(10)))
            .collect();
        let index = Index::max(&values).expect("small");
        let mut out = vec![0; left.len()];
        for end in [RangeEnd::First, RangeEnd::Last] {
            let result = index.crossings(&left, &right, &thresholds, end, &mut out);
            result.expect("slices fit");
            for (i, found) in out.iter().enumerate() {
                let (l, r) = (left[i].max(0), right[i].min(n as i64 - 1));
                let mut rows = (l..=r).filter(|at| values[*at as usize] >= thresholds[i]);
                let expected = match end {
                    RangeEnd::First => rows.next(),
                    RangeEnd::Last => rows.next_back(),
                };
                assert_eq!(*found, expected.unwrap_or(-1));
            }
        }
    }
}

#[test]
fn bad_input_is_an_error() {
    let values = vec![5_u32, 3, 4, 1];
    let index = Index::min(&values).expect("small");
    let mut out = [0; 2];
    let wrong = [
        index.crossings(&[0, 1], &[1], &[1, 2], RangeEnd::First, &mut out),
        index.crossings(&[0, 1], &[1, 2], &[1], RangeEnd::First, &mut out),
        index.crossings(&[0, 1], &[1, 2], &[1, 2], RangeEnd::First, &mut out[..1]),
    ];
    for result in wrong {
        assert!(
            matches!(result, Err(EngineError::Lengths { .. })),
            "{result:?}"
        );
    }
    let column = Column::new(Arc::new(values.clone()), rmq_engine::Encoding::unsigned());
    let index = u32::index(&CpuEngine::new(), column, &BuildOptions::default()).expect("small");
    let out = Crossings {
        positions: &mut [0; 2],
        valid: &mut [],
    };
    let result = index.crossings(&[0, 1], &[1, 2], &[u32::ZERO; 2], RangeEnd::Last, out);
    assert!(
        matches!(result, Err(EngineError::Lengths { .. })),
        "{result:?}"
    );
}

/// An index that leaves listings to the trait.
#[derive(Debug)]
struct OnlyCrossings(Arc<dyn rmq_engine::RangeIndex<u64>>);

impl rmq_engine::RangeIndex<u64> for OnlyCrossings {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn encoding(&self) -> rmq_engine::Encoding<u64> {
        self.0.encoding()
    }

    fn has_positions(&self) -> bool {
        self.0.has_positions()
    }

    fn index_bytes(&self) -> usize {
        self.0.index_bytes()
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }

    fn answer(
        &self,
        left: &[i64],
        right: &[i64],
        out: rmq_engine::Answers<'_, u64>,
    ) -> Result<(), EngineError> {
        self.0.answer(left, right, out)
    }

    fn crossings(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[u64],
        end: RangeEnd,
        out: Crossings<'_>,
    ) -> Result<(), EngineError> {
        self.0.crossings(left, right, thresholds, end, out)
    }
}

#[test]
fn an_index_without_listings_of_its_own_searches_row_by_row() {
    for mut random in runs("listings by searches", &[]) {
        for nulls in NULLS {
            let case = Case::<u64>::new(DATA[2], nulls, 700, &mut random);
            let (left, right) = ranges(700, 60, &mut random);
            let thresholds = thresholds(&case.keys, left.len(), &mut random);
            let options = BuildOptions::default();
            let index = u64::index(&CpuEngine::new(), case.column.clone(), &options);
            let index = OnlyCrossings(index.expect("small"));
            compare_listings(&index, &case, &left, &right, &thresholds, "row by row");
        }
    }
}
