//! Indexes in parts against a naive scan of all rows.

use std::sync::Arc;

use rmq_engine::cpu::{CpuEngine, SearchKey};
use rmq_engine::{
    BuildOptions, Column, Encoding, EngineError, Outputs, RangeIndex, SegmentedIndex,
};
use rmq_testing::{Random, runs};

use crate::oracle::{
    Case, DATA, NULLS, Naive, Width, chunks, compare, compare_crossings, compare_listings,
    naive_crossings, ranges, thresholds,
};
use crate::smallest;

/// The index of a column: of some rows together, as one in parts, or built on demand.
fn part<K: Width + SearchKey>(column: Column<K>, random: &mut Random) -> Arc<dyn RangeIndex<K>> {
    let options = BuildOptions::default();
    match random.below(4) {
        0 => K::lazy_index(vec![column], options).0,
        1 => {
            let index = K::index(&CpuEngine::new(), column, &options).expect("small");
            Arc::new(SegmentedIndex::new(vec![index]).expect("one part"))
        }
        _ => K::index(&CpuEngine::new(), column, &options).expect("small"),
    }
}

fn check<K: Width + SearchKey>(n: usize, random: &mut Random) {
    let (data, nulls) = (
        DATA[random.below(DATA.len())],
        NULLS[random.below(NULLS.len())],
    );
    let case = Case::<K>::new(data, nulls, n, random);
    let (mut parts, mut boundaries) = (vec![], vec![0_i64]);
    let empty = || Column::new(Arc::new(Vec::<K>::new()), case.encoding);
    let columns = chunks(&case, random).into_iter();
    for column in columns.chain([empty()]) {
        if random.below(8) == 0 {
            parts.push(part(empty(), random));
        }
        boundaries.push(boundaries[boundaries.len() - 1] + column.len() as i64);
        parts.push(part(column, random));
    }
    let index = SegmentedIndex::new(parts).expect("parts of one encoding");
    assert_eq!((index.len(), index.is_empty()), (n, n == 0));
    assert_eq!(index.encoding(), case.encoding);

    let (mut left, mut right) = ranges(n, 200, random);
    for _ in 0..200 {
        let mut near = || boundaries[random.below(boundaries.len())] + random.below(3) as i64 - 1;
        left.push(near());
        right.push(near());
    }
    let thresholds = thresholds(&case.keys, left.len(), random);
    let naive = Naive::new(&case.keys, &case.valid);
    let what = format!("parts end at {boundaries:?}, {}", case.what);
    compare(&index, &naive, case.encoding, &left, &right, &what);
    let expected = naive_crossings(&case, &left, &right, &thresholds);
    compare_crossings(&index, &expected, &left, &right, &thresholds, &what);
    compare_listings(&index, &case, &left, &right, &thresholds, &what);
    let last = left.len() - 24..;
    let (left, right) = (&left[last.clone()], &right[last.clone()]);
    compare_listings(&index, &case, left, right, &thresholds[last], &what);
    smallest::compare(&index, &case, random, &what);
}

#[test]
fn parts_answer_as_one_index() {
    for mut random in runs("indexes in parts", &[]) {
        for n in [0, 1, 2, 17, 300, 2_000] {
            for _ in 0..8 {
                check::<u32>(n, &mut random);
                check::<u64>(n, &mut random);
                check::<u128>(n, &mut random);
            }
        }
    }
}

#[test]
fn bad_input_is_an_error() {
    let index = |encoding, positions| {
        let options = BuildOptions {
            positions,
            threads: 1,
        };
        let column = Column::new(Arc::new(vec![5_u32, 3, 4]), encoding);
        u32::index(&CpuEngine::new(), column, &options).expect("small")
    };
    let (up, down) = (Encoding::unsigned(), Encoding::unsigned().reversed());
    for parts in [vec![], vec![index(up, true), index(down, true)]] {
        let result = SegmentedIndex::new(parts).map(|index| index.len());
        assert!(matches!(result, Err(EngineError::Invalid(_))), "{result:?}");
    }
    let parts = vec![index(up, true), index(up, false)];
    let index = SegmentedIndex::new(parts).expect("parts of one encoding");
    assert!(!index.has_positions());
    let mut out = Outputs::allocated(1, true, true);
    let result = index.answer(&[0], &[5], out.answers());
    assert_eq!(result, Err(EngineError::NoPositions));
    let result = index.answer(&[0], &[5, 6], out.answers());
    assert!(matches!(result, Err(EngineError::Lengths { .. })));
    let mut out = Outputs::allocated(1, true, false);
    index
        .answer(&[2], &[4], out.answers())
        .expect("lengths fit");
    assert_eq!(out.values.as_deref(), Some(&[3][..]));
}
