//! The CUDA engine against a naive scan and, on larger columns, the CPU engine.
//!
//! Without a device these tests print `skipped: no CUDA device` and pass; `RMQ_TEST_CUDA=1` makes them fail instead.
//! `RMQ_TEST_QUERIES` is the number of queries of the random run, `RMQ_TEST_ROWS` the number of rows of the huge
//! column; seeds and `RMQ_TEST_SMALL` are as for the CPU engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rmq_engine::cpu::CpuEngine;
use rmq_engine::cuda::{CudaEngine, CudaOptions, Fault, Shape, devices};
use rmq_engine::{
    BuildOptions, Column, ColumnSize, Crossings, Encoding, Engine, EngineError, RangeEnd,
    RangeIndex,
};

use crate::oracle::{
    Case, DATA, Data, NULLS, Naive, Nulls, Width, compare, compare_crossings, compare_mode, keys,
    naive_crossings, ranges, small, thresholds,
};
use rmq_testing::Random;

/// Opens an engine; `None` if there is no device.
pub fn open(options: &CudaOptions) -> Option<CudaEngine> {
    match CudaEngine::open(options) {
        Ok(engine) => Some(engine),
        Err(EngineError::NoDevice { why }) if std::env::var_os("RMQ_TEST_CUDA").is_none() => {
            println!("skipped: no CUDA device ({why})");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Opens an engine of the first device, whose indexes have this shape.
fn open_shaped(shape: Option<Shape>) -> Option<CudaEngine> {
    open(&CudaOptions {
        shape,
        ..CudaOptions::default()
    })
}

/// The best shape, and flat and deep shapes whose boundaries small columns reach.
fn shapes(key_bytes: usize) -> Vec<Option<Shape>> {
    let mut shapes = vec![None];
    for chunk_bytes in [64, 128] {
        for (top_entries, wide_positions, by_groups) in [
            (8192, false, false),
            (3, true, true),
            (40, false, true),
            (3, false, false),
        ] {
            if chunk_bytes == 128 || key_bytes == 4 {
                shapes.push(Some(Shape {
                    chunk_bytes,
                    top_entries,
                    wide_positions,
                    levels_by_groups: by_groups && chunk_bytes == 128,
                }));
            }
        }
    }
    shapes
}

fn options(positions: bool) -> BuildOptions {
    BuildOptions {
        positions,
        threads: 4,
    }
}

/// Tests every pattern of values and NULLs at sizes around chunk boundaries, in every shape.
fn small_sizes<K: Width>() {
    let mut random = Random::new("small sizes");
    let edges: &[usize] = if small() {
        &[4, 32, 256, 1024]
    } else {
        &[4, 8, 16, 32, 64, 256, 1024, 4096, 8192, 32_768]
    };
    for shape in shapes(size_of::<K>()) {
        let Some(engine) = open_shaped(shape) else {
            return;
        };
        sizes_around::<K>(&engine, edges, &format!("{shape:?}"), &mut random);
    }
}

fn sizes_around<K: Width>(engine: &CudaEngine, edges: &[usize], what: &str, random: &mut Random) {
    let mut sizes = vec![0, 1, 2];
    sizes.extend(edges.iter().flat_map(|edge| [edge - 1, *edge, edge + 1]));
    for n in sizes {
        for nulls in NULLS {
            let data = DATA[random.below(DATA.len())];
            let case = Case::<K>::new(data, nulls, n, random);
            let naive = Naive::new(&case.keys, &case.valid);
            let (left, right) = ranges(n, if small() { 30 } else { 300 }, random);
            for positions in [true, false] {
                let options = options(positions);
                let index = K::index(engine, case.column.clone(), &options).expect("it fits");
                let size = ColumnSize {
                    rows: n,
                    key_bytes: size_of::<K>(),
                    nulls: true,
                };
                assert_eq!(index.len(), n);
                assert!(index.device_bytes() <= engine.device_bytes(size, &options));
                let what = format!("{}, {what}, positions {positions}", case.what);
                compare(&*index, &naive, case.encoding, &left, &right, &what);
            }
        }
    }
    assert_eq!(
        engine.devices()[0].used,
        0,
        "dropped indexes release their memory"
    );
}

#[test]
fn threshold_searches_of_every_width_shape_and_null_pattern() {
    fn check<K: Width>(random: &mut Random) {
        for shape in shapes(size_of::<K>()) {
            let Some(engine) = open_shaped(shape) else {
                return;
            };
            for edge in [0, 1, 8, 32, 256, 1024, 4096, 32_768] {
                for nulls in NULLS {
                    let n = edge + random.below(3);
                    let case = Case::<K>::new(DATA[random.below(DATA.len())], nulls, n, random);
                    let (left, right) = ranges(n, if small() { 30 } else { 200 }, random);
                    let limits = thresholds(&case.keys, left.len(), random);
                    let expected = naive_crossings(&case, &left, &right, &limits);
                    for positions in [true, false] {
                        let index = K::index(&engine, case.column.clone(), &options(positions));
                        let index = index.expect("it fits");
                        let what = format!("{}, {shape:?}, positions {positions}", case.what);
                        compare_crossings(&*index, &expected, &left, &right, &limits, &what);
                    }
                }
            }
        }
    }
    let random = &mut Random::new("threshold searches");
    check::<u32>(random);
    check::<u64>(random);
    check::<u128>(random);
}

/// Batches of several chunks, and a column of the best shape for many values.
#[test]
fn large_batches_of_threshold_searches_are_those_of_the_cpu() {
    fn check<K: Width>(engine: &CudaEngine, random: &mut Random) {
        let n = if small() { 5_000 } else { 20_000_000 };
        let case = Case::<K>::new(Data::Uniform, Nulls::Some, n, random);
        let count = if small() { 500 } else { 600_001 };
        let (left, right) = ranges(n, count, random);
        let limits = thresholds(&case.keys, left.len(), random);
        let build = |engine: &dyn Engine| {
            let index = K::index(engine, case.column.clone(), &options(false));
            index.expect("it fits")
        };
        let (gpu, cpu) = (build(engine), build(&CpuEngine::new()));
        for end in [RangeEnd::First, RangeEnd::Last] {
            let find = |index: &dyn RangeIndex<K>| {
                let mut positions = vec![-7; left.len()];
                let mut valid = vec![!0; left.len().div_ceil(64)];
                let out = Crossings {
                    positions: &mut positions,
                    valid: &mut valid,
                };
                let found = index.crossings(&left, &right, &limits, end, out);
                found.expect("slices fit");
                (positions, valid)
            };
            assert!(find(&*gpu) == find(&*cpu), "{}, {end:?}", case.what);
        }
    }
    let Some(engine) = open_shaped(None) else {
        return;
    };
    let random = &mut Random::new("large batches of threshold searches");
    check::<u32>(&engine, random);
    check::<u64>(&engine, random);
    check::<u128>(&engine, random);
}

#[test]
fn small_sizes_of_32_bits() {
    small_sizes::<u32>();
}

#[test]
fn small_sizes_of_64_bits() {
    small_sizes::<u64>();
}

#[test]
fn small_sizes_of_128_bits() {
    small_sizes::<u128>();
}

#[test]
fn every_pattern_at_a_million_values() {
    let mut random = Random::new("every pattern");
    let Some(engine) = open_shaped(None) else {
        return;
    };
    for data in DATA {
        for nulls in [Nulls::Absent, Nulls::Some, Nulls::Most, Nulls::Runs] {
            pattern::<u32>(&engine, data, nulls, &mut random);
            pattern::<u64>(&engine, data, nulls, &mut random);
            pattern::<u128>(&engine, data, nulls, &mut random);
        }
    }
}

fn pattern<K: Width>(engine: &CudaEngine, data: Data, nulls: Nulls, random: &mut Random) {
    let n = if small() { 5_000 } else { 1 << 20 };
    let case = Case::<K>::new(data, nulls, n - random.below(1000), random);
    let naive = Naive::new(&case.keys, &case.valid);
    let (left, right) = ranges(case.keys.len(), if small() { 500 } else { 20_000 }, random);
    let index = K::index(engine, case.column.clone(), &options(true)).expect("it fits");
    compare(&*index, &naive, case.encoding, &left, &right, &case.what);
}

#[test]
fn batches_of_any_length() {
    let mut random = Random::new("batch lengths");
    let Some(engine) = open_shaped(None) else {
        return;
    };
    let case = Case::<u32>::new(Data::Uniform, Nulls::Some, 50_000, &mut random);
    let naive = Naive::new(&case.keys, &case.valid);
    let index = u32::index(&engine, case.column.clone(), &options(true)).expect("it fits");
    let mut lengths: Vec<usize> = (0..400).step_by(if small() { 31 } else { 1 }).collect();
    if !small() {
        // At the boundaries of the chunks into which a batch is split.
        let chunk = 1 << 18;
        lengths.extend([
            chunk - 1,
            chunk,
            chunk + 1,
            chunk + 65,
            2 * chunk,
            3 * chunk + 33,
        ]);
    }
    let longest = lengths[lengths.len() - 1];
    let (left, right) = ranges(case.keys.len(), longest, &mut random);
    for m in lengths {
        let from = random.below(left.len() - m);
        let (left, right) = (&left[from..from + m], &right[from..from + m]);
        compare(&*index, &naive, case.encoding, left, right, "batch lengths");
    }
}

/// Returns the number of queries of a random run.
pub fn queries() -> u64 {
    let default = if small() { 5_000 } else { 4_000_000 };
    std::env::var("RMQ_TEST_QUERIES").map_or(default, |queries| {
        queries.parse().expect("RMQ_TEST_QUERIES is a number")
    })
}

/// Tests columns of random length, pattern and width concurrently; several threads query each column.
#[test]
fn many_random_queries() {
    let Some(engine) = open_shaped(None) else {
        return;
    };
    let (total, answered) = (queries(), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get().min(16));
    let mut random = Random::new("random queries");
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (engine, answered) = (&engine, &answered);
            let mut random = Random::from_seed(random.next());
            scope.spawn(move || {
                while answered.load(Ordering::Relaxed) < total {
                    let count = match random.below(4) {
                        0 | 1 => random_column::<u32>(engine, &mut random),
                        2 => random_column::<u64>(engine, &mut random),
                        _ => random_column::<u128>(engine, &mut random),
                    };
                    answered.fetch_add(count, Ordering::Relaxed);
                }
            });
        }
    });
    println!("{} queries", answered.into_inner());
}

/// Tests one column; returns the number of queries.
fn random_column<K: Width>(engine: &CudaEngine, random: &mut Random) -> u64 {
    let most = if small() { 12 } else { 20 };
    let scale = random.below(most + 1);
    let n = 1 + random.below(1 << scale);
    let data = DATA[random.below(DATA.len())];
    let nulls = NULLS[random.below(NULLS.len())];
    let case = Case::<K>::new(data, nulls, n, random);
    let naive = Naive::new(&case.keys, &case.valid);
    let index = K::index(engine, case.column.clone(), &options(true)).expect("it fits");
    let seeds: Vec<u64> = (0..3).map(|_| random.next()).collect();
    let per_thread = if small() {
        200
    } else {
        1 + random.below(200_000)
    };
    let answered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in seeds {
            let (case, naive, index, answered) = (&case, &naive, &index, &answered);
            scope.spawn(move || {
                let mut random = Random::from_seed(seed);
                for mode in 0..8 {
                    let (left, right) = ranges(n, per_thread, &mut random);
                    compare_mode(
                        &**index,
                        naive,
                        case.encoding,
                        &left,
                        &right,
                        &case.what,
                        mode,
                    );
                    answered.fetch_add(left.len() as u64, Ordering::Relaxed);
                }
            });
        }
    });
    answered.into_inner()
}

/// Generates a long float column of random bits with several threads.
fn float_column<K: Width>(n: usize, threads: usize, random: &mut Random) -> Column<K> {
    let seed = random.next();
    let mut bits = vec![K::ZERO; n];
    let share = n.div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        for (i, part) in bits.chunks_mut(share).enumerate() {
            scope.spawn(move || {
                let mut random = Random::from_seed(seed.wrapping_add(i as u64));
                part.fill_with(|| K::from_bits(random.next()));
            });
        }
    });
    Column::new(Arc::new(bits), Encoding::<K>::float())
}

/// Compares with the CPU engine: a naive scan of such columns takes too long.
fn against_cpu<K: Width>(engine: &CudaEngine, n: usize, count: usize, random: &mut Random) {
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
    let column = float_column::<K>(n, threads, random);
    let options = BuildOptions {
        positions: true,
        threads,
    };
    let expected = K::index(&CpuEngine::new(), column.clone(), &options).expect("there is memory");
    let found = K::index(engine, column, &options).expect("it fits");
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (expected, found) = (&expected, &found);
            let (left, right) = ranges(n, count / threads, random);
            scope.spawn(move || compare_indexes(&**expected, &**found, &left, &right));
        }
    });
}

fn compare_indexes<K: Width>(
    expected: &dyn RangeIndex<K>,
    found: &dyn RangeIndex<K>,
    left: &[i64],
    right: &[i64],
) {
    for (values, positions) in [(true, false), (false, true), (true, true)] {
        if positions && !found.has_positions() {
            continue;
        }
        let mut outs = [expected, found].map(|index| {
            let mut out = index.outputs(left.len(), values, positions);
            index
                .answer(left, right, out.answers())
                .expect("slices fit");
            out
        });
        let [expected, found] = &mut outs;
        for (i, (l, r)) in left.iter().zip(right).enumerate() {
            let value = |out: &[K]| out[i];
            let expected_value = expected.values.as_deref().map(value);
            let found_value = found.values.as_deref().map(value);
            assert_eq!(expected_value, found_value, "value of {l}..={r}");
            let position = |out: &[i64]| out[i];
            let expected_position = expected.positions.as_deref().map(position);
            let found_position = found.positions.as_deref().map(position);
            assert_eq!(expected_position, found_position, "position of {l}..={r}");
        }
        assert_eq!(&expected.valid[..], &found.valid[..]);
    }
}

#[test]
fn large_columns_match_the_cpu_engine() {
    let mut random = Random::new("large columns");
    let Some(engine) = open_shaped(None) else {
        return;
    };
    let sizes: &[u32] = if small() { &[12] } else { &[22, 24, 25] };
    for size in sizes {
        let n = (1 << size) + random.below(100_000) - 50_000.min(1 << (size - 1));
        against_cpu::<u32>(&engine, n, 400_000, &mut random);
        against_cpu::<u64>(&engine, n / 2, 400_000, &mut random);
        against_cpu::<u128>(&engine, n / 4, 400_000, &mut random);
    }
}

/// Tests a column of `RMQ_TEST_ROWS` values, for lengths past 2^31 and 2^32. 2^32 values of 32 bits take 40 GB.
#[test]
fn a_huge_column_matches_the_cpu_engine() {
    let Ok(rows) = std::env::var("RMQ_TEST_ROWS") else {
        println!("skipped: RMQ_TEST_ROWS is not set");
        return;
    };
    let mut random = Random::new("huge column");
    let Some(engine) = open_shaped(None) else {
        return;
    };
    let rows = rows.parse().expect("RMQ_TEST_ROWS is a number");
    against_cpu::<u32>(&engine, rows, 4_000_000, &mut random);
}

#[test]
fn memory_is_limited_and_released() {
    let Some(engine) = open_shaped(None) else {
        return;
    };
    let size = |rows| ColumnSize {
        rows,
        key_bytes: 4,
        nulls: false,
    };
    let needed = engine.device_bytes(size(50_000), &options(true));
    let limit = needed / 2 * 3;
    let Some(engine) = open(&CudaOptions {
        memory_limit: Some(limit),
        ..CudaOptions::default()
    }) else {
        return;
    };
    let build = |rows: usize| {
        let column = Column::new(Arc::new(vec![7_u32; rows]), Encoding::unsigned());
        engine.build_u32(column, &options(true))
    };
    let too_large = EngineError::DeviceMemory {
        ordinal: engine.devices()[0].ordinal,
        needed: engine.device_bytes(size(200_000), &options(true)),
        free: limit,
        limit,
    };
    assert_eq!(build(200_000).err(), Some(too_large));
    let first = build(50_000).expect("it fits");
    assert_eq!(first.device_bytes(), needed);
    assert_eq!(engine.devices()[0].used, needed);
    assert!(build(50_000).is_err());
    drop(first);
    assert_eq!(engine.devices()[0].used, 0);
    build(50_000).expect("it fits again");
}

#[test]
fn any_fault_is_an_error() {
    let mut random = Random::new("faults");
    // Keeps the device's context while engines are opened and dropped.
    let Some(_open) = open_shaped(None) else {
        return;
    };
    let case = Case::<u32>::new(Data::Uniform, Nulls::Some, 40_000, &mut random);
    let naive = Naive::new(&case.keys, &case.valid);
    let (left, right) = ranges(case.keys.len(), 2_000, &mut random);
    let mut faults = 0;
    for fault in Fault::ALL {
        for during_build in [true, false] {
            let mut nth = 1;
            while fails(fault, during_build, nth, &case, &naive, &left, &right) {
                nth += 1;
            }
            // Both a build and a batch allocate, copy, launch and wait.
            assert!(nth > 1, "{fault:?} has not occurred");
            faults += nth - 1;
        }
    }
    println!("{faults} faults");
}

/// Injects a fault into a build or into batches; returns whether the `nth` call of that kind was reached.
fn fails(
    fault: Fault,
    during_build: bool,
    nth: u64,
    case: &Case<u32>,
    naive: &Naive<'_, u32>,
    left: &[i64],
    right: &[i64],
) -> bool {
    // A fault retires the device, so each fault has its own engine.
    let engine = CudaEngine::open(&CudaOptions::default()).expect("it was opened before");
    if during_build {
        engine.inject(fault, nth);
    }
    let built = engine.build_u32(case.column.clone(), &options(true));
    let failed = during_build && !engine.inject(fault, 0);
    let index = match built {
        Ok(index) => index,
        Err(error) => {
            assert!(failed, "{error}");
            assert_eq!(engine.devices()[0].used, 0);
            return true;
        }
    };
    assert!(!failed, "a fault during a build is an error");
    if during_build {
        return false;
    }
    engine.inject(fault, nth);
    let mut failed = false;
    for _ in 0..4 {
        let mut out = index.outputs(left.len(), true, true);
        let result = index.answer(left, right, out.answers());
        // Memory may be available the next time; a retired device stays retired.
        assert!(!failed || fault == Fault::Allocation || result.is_err());
        if let Err(error) = &result {
            assert!(
                error.of_device() || matches!(error, EngineError::OutOfMemory { .. }),
                "{error}"
            );
        }
        failed |= result.is_err();
    }
    let retired = engine.devices()[0].failed.is_some();
    assert_eq!(retired, failed && fault != Fault::Allocation);
    let reached = !engine.inject(fault, 0);
    if !retired {
        // A failed allocation does not affect later batches.
        for mode in 0..8 {
            compare_mode(&*index, naive, case.encoding, left, right, "faults", mode);
        }
    }
    reached
}

/// Outputs outlive their index and engine; the last user of an index drops it.
#[test]
fn indexes_are_dropped_while_other_threads_query() {
    let mut random = Random::new("dropping");
    let Some(engine) = open_shaped(None) else {
        return;
    };
    let n = 30_000;
    let keys = keys::<u64>(Data::Walk, n, &mut random);
    let valid = vec![true; n];
    let naive = Naive::new(&keys, &valid);
    let column = Column::new(Arc::new(keys.clone()), Encoding::unsigned());
    let (left, right) = ranges(n, 5_000, &mut random);
    let mut outputs = Vec::new();
    for _ in 0..10 {
        let index = engine
            .build_u64(column.clone(), &options(true))
            .expect("it fits");
        std::thread::scope(|scope| {
            for mode in 0..8 {
                let index = Arc::clone(&index);
                let (left, right, naive) = (&left, &right, &naive);
                scope.spawn(move || {
                    let encoding = Encoding::unsigned();
                    compare_mode(&*index, naive, encoding, left, right, "dropping", mode);
                });
            }
            let mut out = index.outputs(left.len(), true, false);
            index
                .answer(&left, &right, out.answers())
                .expect("slices fit");
            outputs.push(out);
            drop(index);
        });
        assert_eq!(engine.devices()[0].used, 0);
    }
    drop(engine);
    for out in &outputs {
        let values = out.values.as_deref().expect("requested");
        assert_eq!(values, outputs[0].values.as_deref().expect("requested"));
    }
}

#[test]
fn one_index_on_all_devices() {
    let mut random = Random::new("all devices");
    let Ok(all) = devices() else {
        println!("skipped: no CUDA device");
        return;
    };
    let options_of_all = CudaOptions {
        devices: all.iter().map(|device| device.ordinal).collect(),
        ..CudaOptions::default()
    };
    let Some(engine) = open(&options_of_all) else {
        return;
    };
    assert_eq!(engine.devices().len(), all.len());
    println!("{} devices", all.len());
    let total = queries() / 10;
    let mut answered = 0;
    while answered < total {
        answered += random_column::<u64>(&engine, &mut random);
    }
}

/// Runs with and without a driver.
#[test]
fn devices_are_listed_or_the_reason_is_one_line() {
    match devices() {
        Ok(devices) => {
            assert!(!devices.is_empty());
            for device in devices {
                println!("{device:?}");
            }
        }
        Err(error) => {
            println!("{error}");
            assert!(error.of_device());
            assert!(!error.to_string().contains('\n'));
            assert_eq!(CudaEngine::open(&CudaOptions::default()).err(), Some(error));
        }
    }
    let options = CudaOptions {
        devices: vec![12_345],
        ..CudaOptions::default()
    };
    let error = CudaEngine::open(&options).expect_err("no such device");
    assert!(matches!(error, EngineError::NoDevice { .. }), "{error:?}");
}
