//! Range joins on devices, compared with a stable sort and scans on the host.
//!
//! Environment variables and machines without a device: see `cuda.rs`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rmq_engine::cuda::{CudaEngine, CudaOptions, Fault, devices};
use rmq_engine::{
    Addends, Column, ColumnChunks, Comparison, Encoding, Engine, EngineError, Extreme,
    OutputValues, PartGroups, ProbeBound, RangeJoinAnswer, RangeJoinColumn, RangeJoinInput,
    RangeJoinProbe, RangeRow, RowGroups, RowIds, Validity,
};

use crate::cuda::open;
use crate::join_case::{Batch, Case, JoinWidth, all_answers, compare};
use crate::oracle::small;
use rmq_testing::Random;

fn open_default() -> Option<CudaEngine> {
    open(&CudaOptions::default())
}

/// Builds one case and queries some batches.
fn check<K: JoinWidth>(engine: &CudaEngine, n: usize, rows: usize, random: &mut Random) {
    let case = Case::<K>::new(n, random);
    let index = case.build(engine, random).expect("it fits");
    assert_eq!(index.rows(), case.order.len());
    for _ in 0..3 {
        let rows = random.below(rows + 1);
        let batch = Batch::new(&case, rows, random);
        let answers = all_answers();
        // All of them, or some in any order, maybe twice.
        let answers: Vec<_> = match random.below(3) {
            0 => answers,
            _ => (0..4)
                .map(|_| answers[random.below(answers.len())])
                .collect(),
        };
        let outputs = batch
            .answer(&case, &*index, &answers, random)
            .expect("it answers");
        compare(&case, &batch, &answers, &outputs);
    }
}

fn sizes<K: JoinWidth>(name: &str) {
    let mut random = Random::new(name);
    let Some(engine) = open_default() else { return };
    let some = if small() { 4 } else { 8 };
    for n in [0, 1, 2, 3, 31, 32, 33, 100, 1000, 4095, 4097, 9000] {
        for _ in 0..some {
            check::<K>(&engine, n, if n < 2000 { 150 } else { 30 }, &mut random);
        }
    }
    assert_eq!(
        engine.devices()[0].used,
        0,
        "dropped build sides release their memory"
    );
}

#[test]
fn build_sides_with_32_bit_keys() {
    sizes::<u32>("32-bit keys");
}

#[test]
fn build_sides_with_64_bit_keys() {
    sizes::<u64>("64-bit keys");
}

#[test]
fn build_sides_with_128_bit_keys() {
    sizes::<u128>("128-bit keys");
}

#[test]
fn large_build_sides() {
    let mut random = Random::new("large build sides");
    let Some(engine) = open_default() else { return };
    let large: &[usize] = if small() {
        &[70_000]
    } else {
        &[65_537, 1 << 20, 3_000_000]
    };
    for n in large {
        // The expected answers are scans of long ranges.
        for _ in 0..2 {
            check::<u64>(&engine, *n, 8, &mut random);
        }
    }
}

#[test]
fn batches_longer_than_a_chunk() {
    let mut random = Random::new("long batches");
    let Some(engine) = open_default() else { return };
    let case = Case::<u64>::new(300, &mut random);
    let index = case.build(&engine, &mut random).expect("it fits");
    let chunk = 1 << 18;
    let answers = [
        RangeJoinAnswer::Matched,
        RangeJoinAnswer::Extreme {
            column: 1,
            extreme: Extreme::Min,
        },
    ];
    let lengths: &[usize] = if small() {
        &[chunk + 77]
    } else {
        &[chunk - 1, chunk, chunk + 1, 3 * chunk + 77]
    };
    for rows in lengths {
        let batch = Batch::new(&case, *rows, &mut random);
        let outputs = batch
            .answer(&case, &*index, &answers, &mut random)
            .expect("it answers");
        compare(&case, &batch, &answers, &outputs);
    }
}

#[test]
fn several_threads_and_devices() {
    let mut random = Random::new("threads and devices");
    let Ok(all) = devices() else {
        println!("skipped: no CUDA device");
        return;
    };
    let usable = all.iter().filter(|device| device.unusable.is_none());
    let options = CudaOptions {
        devices: usable.take(2).map(|device| device.ordinal).collect(),
        ..CudaOptions::default()
    };
    println!("devices {:?}", options.devices);
    let Some(engine) = open(&options) else { return };
    let case = Case::<u64>::new(if small() { 2000 } else { 200_000 }, &mut random);
    let index = case.build(&engine, &mut random).expect("it fits");
    let answers = all_answers();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            let (case, index, answers) = (&case, &*index, &answers);
            let mut random = Random::from_seed(random.next());
            scope.spawn(move || {
                for _ in 0..3 {
                    let rows = random.below(40);
                    let batch = Batch::new(case, rows, &mut random);
                    let outputs = batch.answer(case, index, answers, &mut random);
                    compare(case, &batch, answers, &outputs.expect("it answers"));
                }
            });
        }
    });
}

#[test]
fn what_does_not_fit_is_an_error() {
    let Some(engine) = open_default() else { return };
    let column = |n: u32| {
        let bits: Vec<u32> = (0..n).collect();
        ColumnChunks::W32(vec![Column::new(Arc::new(bits), Encoding::unsigned())])
    };
    let ids = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    let input = |ids| RangeJoinInput {
        keys: column(10),
        groups: Some(RowGroups {
            parts: vec![PartGroups {
                ids: RowIds::Wide(ids),
                groups: None,
            }],
            count: 10,
        }),
        columns: vec![RangeJoinColumn::new(column(10))],
        row_numbers: false,
    };
    let built = engine.build_range_join(&input(&ids), 1).expect("it fits");
    let index = built.expect("the engine builds range joins");
    let wrong_id = engine.build_range_join(&input(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 10]), 1);
    assert!(matches!(wrong_id, Err(EngineError::Invalid(_))));
    let mut wrong_group = input(&ids);
    if let Some(groups) = &mut wrong_group.groups {
        groups.parts[0].groups = Some(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 10]);
    }
    let wrong_group = engine.build_range_join(&wrong_group, 1);
    assert!(matches!(wrong_group, Err(EngineError::Invalid(_))));
    let short = engine.build_range_join(&input(&ids[1..]), 1);
    assert!(matches!(short, Err(EngineError::Lengths { .. })));
    let mut narrow_floats = input(&ids);
    narrow_floats.columns[0].sums = Some(Addends::Floats);
    let narrow_floats = engine.build_range_join(&narrow_floats, 1);
    assert!(matches!(narrow_floats, Err(EngineError::Lengths { .. })));
    let mut mixed = input(&ids);
    let bits = || Arc::new((0..5_u32).collect::<Vec<_>>());
    mixed.keys = ColumnChunks::W32(vec![
        Column::new(bits(), Encoding::unsigned()),
        Column::new(bits(), Encoding::signed()),
    ]);
    let mixed = engine.build_range_join(&mixed, 1);
    assert!(matches!(mixed, Err(EngineError::Invalid(_))));
    let stopped = engine.until(Arc::new(AtomicBool::new(true)));
    let stopped = stopped.build_range_join(&input(&ids), 1);
    assert!(matches!(stopped, Err(EngineError::Stopped)));
    let add = |columns: &[RangeJoinColumn], stop| {
        index.with_columns(&[0], columns, true, 1, &AtomicBool::new(stop))
    };
    let short = add(&[RangeJoinColumn::new(column(9))], false);
    assert!(matches!(short, Err(EngineError::Lengths { .. })));
    let mut narrow_floats = RangeJoinColumn::new(column(10));
    narrow_floats.sums = Some(Addends::Floats);
    let narrow_floats = add(&[narrow_floats], false);
    assert!(matches!(narrow_floats, Err(EngineError::Lengths { .. })));
    let missing = index.with_columns(&[0, 1], &[], false, 1, &AtomicBool::new(false));
    assert!(matches!(missing, Err(EngineError::Invalid(_))));
    let stopped = add(&[RangeJoinColumn::new(column(10))], true);
    assert!(matches!(stopped, Err(EngineError::Stopped)));

    let bound = |column, shift| ProbeBound {
        comparison: Comparison::AtMost,
        column,
        shift,
    };
    let probe = |groups: Option<Vec<&'static [u32]>>, columns: Vec<ColumnChunks>| RangeJoinProbe {
        rows: 2,
        groups,
        bounds: (0..columns.len()).map(|i| bound(i, 0)).collect(),
        columns,
        prevailing: false,
    };
    let groups = || Some(vec![&[0, 1][..]]);
    let count = [RangeJoinAnswer::Count];
    assert!(index.answer(&probe(groups(), vec![]), &count).is_ok());
    let unbuilt = [RangeJoinAnswer::Sum { column: 0 }];
    let error = [RangeJoinAnswer::SumError { column: 0 }];
    let row = [RangeJoinAnswer::Row {
        at: RangeRow::First,
    }];
    let missing = [RangeJoinAnswer::CountValid { column: 1 }];
    for answers in [unbuilt, error, row, missing] {
        let result = index.answer(&probe(groups(), vec![]), &answers);
        assert!(matches!(result, Err(EngineError::Invalid(_))));
    }
    let without = index.answer(&probe(None, vec![]), &count);
    assert!(matches!(without, Err(EngineError::Invalid(_))));
    let long = index.answer(&probe(groups(), vec![column(3)]), &count);
    assert!(matches!(long, Err(EngineError::Lengths { .. })));
    let signed = ColumnChunks::W32(vec![Column::new(Arc::new(vec![1, 2]), Encoding::signed())]);
    let wrong_bounds = [
        (column(2), bound(1, 0)),
        (column(2), bound(0, 1)),
        (signed, bound(0, 1 << 31)),
    ];
    for (column, bound) in wrong_bounds {
        let mut probe = probe(groups(), vec![column]);
        probe.bounds = vec![bound];
        let result = index.answer(&probe, &count);
        assert!(matches!(result, Err(EngineError::Invalid(_))), "{bound:?}");
    }
    let mut prevailing = probe(groups(), vec![column(2)]);
    prevailing.prevailing = true;
    let no_lower = index.answer(&prevailing, &count);
    assert!(matches!(no_lower, Err(EngineError::Invalid(_))));
    let wide = ColumnChunks::W64(vec![Column::new(
        Arc::new(vec![1, 2]),
        Encoding::unsigned(),
    )]);
    let wide = index.answer(&probe(groups(), vec![wide]), &count);
    assert!(matches!(wide, Err(EngineError::Lengths { .. })));
}

#[test]
fn bounds_beyond_their_type_are_an_error() {
    let Some(engine) = open_default() else { return };
    let column = |values: Vec<i64>, valid: Option<u8>| {
        let bits: Vec<u64> = values.into_iter().map(i64::cast_unsigned).collect();
        let column = Column::new(Arc::new(bits), Encoding::signed());
        let column = match valid {
            Some(valid) => column.with_validity(Validity::new(Arc::new(vec![valid]), 0)),
            None => Ok(column),
        };
        ColumnChunks::W64(vec![column.expect("a bit a row")])
    };
    let input = RangeJoinInput {
        keys: column(vec![i64::MIN, -1, 7, i64::MAX], None),
        groups: None,
        columns: vec![],
        row_numbers: false,
    };
    let index = engine.build_range_join(&input, 1).expect("it fits");
    let index = index.expect("the engine builds range joins");
    let counts = |bounds: &[(Comparison, i64)], valid| {
        let bounds = bounds.iter().map(|(comparison, shift)| ProbeBound {
            comparison: *comparison,
            column: 0,
            shift: *shift,
        });
        let probe = RangeJoinProbe {
            rows: 3,
            groups: None,
            columns: vec![column(vec![0, i64::MAX - 1, -5], valid)],
            bounds: bounds.collect(),
            prevailing: false,
        };
        let outputs = index.answer(&probe, &[RangeJoinAnswer::Count])?;
        let OutputValues::W64(counts) = &outputs[0].values else {
            panic!("counts have 64 bits");
        };
        Ok::<_, EngineError>(counts.to_vec())
    };
    let (lower, upper) = (Comparison::AtLeast, Comparison::AtMost);
    assert_eq!(counts(&[(lower, -1), (upper, 1)], None), Ok(vec![1, 1, 0]));
    assert_eq!(
        counts(&[(lower, -1), (upper, 12)], None),
        Err(EngineError::Overflow)
    );
    // The second row is NULL.
    assert_eq!(
        counts(&[(lower, -1), (upper, 12)], Some(0b101)),
        Ok(vec![2, 0, 2])
    );
    assert_eq!(
        counts(&[(lower, i64::MIN)], None),
        Err(EngineError::Overflow)
    );
    assert_eq!(counts(&[(upper, i64::MIN)], Some(0b011)), Ok(vec![1, 1, 0]));
}

#[test]
fn memory_is_limited_and_estimated() {
    let mut random = Random::new("memory of range joins");
    let Some(engine) = open_default() else { return };
    for n in [1, 2, 40, 1000, 20_000] {
        let case = Case::<u64>::new(n, &mut random);
        let input = case.input(&mut random);
        let most = engine.range_join_bytes(&input);
        let limited = |bytes| {
            open(&CudaOptions {
                memory_limit: Some(bytes),
                ..CudaOptions::default()
            })
        };
        let Some(engine) = limited(most) else { return };
        let built = engine.build_range_join(&input, 2).expect("it fits");
        let index = built.expect("the engine builds range joins");
        assert_eq!(engine.devices()[0].used, index.device_bytes());
        drop(index);
        assert_eq!(engine.devices()[0].used, 0);

        let mut first = case.input(&mut random);
        let added = first.columns.split_off(random.below(4));
        first.row_numbers = false;
        let building = engine.range_join_bytes(&first);
        let built = engine.build_range_join(&first, 2).expect("it fits");
        let index = built.expect("the engine builds range joins");
        let adding = index.device_bytes() + index.adding_bytes(&added);
        drop(index);
        let Some(engine) = limited(building.max(adding)) else {
            return;
        };
        let built = engine.build_range_join(&first, 2).expect("it fits");
        let index = built.expect("the engine builds range joins");
        let kept: Vec<usize> = (0..first.columns.len()).collect();
        let more = index.with_columns(&kept, &added, true, 2, &AtomicBool::new(false));
        let more = more.expect("it fits, too");
        // They share what they have in common.
        assert_eq!(engine.devices()[0].used, more.device_bytes());
        drop(index);
        assert_eq!(engine.devices()[0].used, more.device_bytes());
        drop(more);
        assert_eq!(engine.devices()[0].used, 0);
        let Some(engine) = limited(most / 20) else {
            return;
        };
        let built = engine.build_range_join(&input, 2);
        assert!(
            matches!(built, Err(EngineError::DeviceMemory { .. })),
            "{n}"
        );
        assert_eq!(engine.devices()[0].used, 0);
    }
}

#[test]
fn any_fault_is_an_error() {
    let mut random = Random::new("faults of range joins");
    // Keeps the device's context while engines are opened and dropped.
    let Some(_open) = open_default() else { return };
    let mut case = Case::<u64>::new(900, &mut random);
    while case.order.is_empty() {
        case = Case::new(900, &mut random);
    }
    let batch = Batch::new(&case, 70, &mut random);
    // Some of each kind.
    let answers: Vec<_> = all_answers().into_iter().step_by(5).collect();
    let mut faults = 0;
    for fault in Fault::ALL {
        for nth in 1.. {
            let engine = open_default().expect("it was opened before");
            engine.inject(fault, nth);
            let outputs = case
                .build(&engine, &mut random)
                .and_then(|index| batch.answer(&case, &*index, &answers, &mut random));
            let failed = !engine.inject(fault, 0);
            assert_eq!(engine.devices()[0].used, 0);
            match outputs {
                Ok(outputs) => {
                    // Answers go to other memory if none can be pinned.
                    assert!(!failed || fault == Fault::Allocation, "{fault:?}, {nth}");
                    compare(&case, &batch, &answers, &outputs);
                }
                Err(error) => {
                    assert!(failed, "{error}");
                    assert!(
                        error.of_device() || matches!(error, EngineError::OutOfMemory { .. }),
                        "{error}"
                    );
                }
            }
            if !failed {
                assert!(nth > 1, "{fault:?} has not occurred");
                break;
            }
            faults += 1;
        }
    }
    println!("{faults} faults");
}
