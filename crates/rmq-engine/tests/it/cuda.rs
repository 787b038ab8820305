//! The CUDA engine against a naive scan and, on larger columns, the CPU engine.
//!
//! Without a device these tests say `skipped: no CUDA device` and pass; `RMQ_TEST_CUDA=1` makes them fail instead.
//! `RMQ_TEST_QUERIES` says how many queries the random run asks, `RMQ_TEST_ROWS` how many rows the huge column has; seeds and
//! `RMQ_TEST_SMALL` are as for the CPU engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rmq_engine::cpu::CpuEngine;
use rmq_engine::cuda::{CudaEngine, CudaKernel, CudaOptions, Fault, Shape, devices};
use rmq_engine::{BuildOptions, Column, ColumnSize, Encoding, Engine, EngineError, RangeIndex};

use crate::oracle::{
    Case, DATA, Data, NULLS, Naive, Nulls, Width, compare, compare_mode, keys, ranges, small,
};
use rmq_testing::Random;

/// An engine of the first device, or nothing where there is none.
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

/// One that does not hide failures behind the CPU.
fn strict(shape: Option<Shape>) -> Option<CudaEngine> {
    with_kernel(CudaKernel::Auto, shape)
}

/// As [`strict`], asked with that kernel.
fn with_kernel(kernel: CudaKernel, shape: Option<Shape>) -> Option<CudaEngine> {
    open(&CudaOptions {
        fallback: false,
        kernel,
        shape,
        ..CudaOptions::default()
    })
}

/// The kernels that are not ours.
const PAPERS: [CudaKernel; 4] = [
    CudaKernel::Coalesced,
    CudaKernel::MultiLoad,
    CudaKernel::Vector,
    CudaKernel::FullScan,
];

/// The shapes in use, and flat and deep ones whose edges small columns reach.
fn shapes(key_bytes: usize) -> Vec<Option<Shape>> {
    let mut shapes = vec![None];
    for chunk_bytes in [64, 128] {
        for (top_entries, wide_positions) in [(8192, false), (3, true), (40, false)] {
            if chunk_bytes == 128 || key_bytes == 4 {
                shapes.push(Some(Shape {
                    chunk_bytes,
                    top_entries,
                    wide_positions,
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

/// Every look and null pattern at sizes around the edges of chunks, in every shape.
fn small_sizes<K: Width>() {
    let mut random = Random::new("small sizes");
    let edges: &[usize] = if small() {
        &[4, 32, 256, 1024]
    } else {
        &[4, 8, 16, 32, 64, 256, 1024, 4096, 8192, 32_768]
    };
    for shape in shapes(size_of::<K>()) {
        let Some(engine) = strict(shape) else { return };
        sizes_around::<K>(&engine, edges, &format!("{shape:?}"), &mut random);
    }
}

/// The same of the paper's kernels.
fn small_sizes_of_the_papers<K: Width>() {
    let mut random = Random::new("small sizes of the paper's");
    let edges: &[usize] = if small() {
        &[64, 600]
    } else {
        &[8, 32, 64, 512, 2048, 4096, 32_768]
    };
    let shape = |top_entries, wide_positions| {
        Some(Shape {
            chunk_bytes: 128,
            top_entries,
            wide_positions,
        })
    };
    for kernel in PAPERS {
        for shape in [None, shape(1, false), shape(5, true)] {
            let Some(engine) = with_kernel(kernel, shape) else {
                return;
            };
            sizes_around::<K>(
                &engine,
                edges,
                &format!("{kernel:?}, {shape:?}"),
                &mut random,
            );
        }
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
        "indexes give their memory back"
    );
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
fn small_sizes_of_the_papers_kernels_and_32_bits() {
    small_sizes_of_the_papers::<u32>();
}

#[test]
fn small_sizes_of_the_papers_kernels_and_64_bits() {
    small_sizes_of_the_papers::<u64>();
}

#[test]
fn small_sizes_of_the_papers_kernels_and_128_bits() {
    small_sizes_of_the_papers::<u128>();
}

#[test]
fn every_look_at_a_million_values() {
    let mut random = Random::new("every look");
    let Some(engine) = strict(None) else { return };
    for data in DATA {
        for nulls in [Nulls::Absent, Nulls::Some, Nulls::Most, Nulls::Runs] {
            look::<u32>(&engine, data, nulls, &mut random);
            look::<u64>(&engine, data, nulls, &mut random);
            look::<u128>(&engine, data, nulls, &mut random);
        }
    }
}

fn look<K: Width>(engine: &CudaEngine, data: Data, nulls: Nulls, random: &mut Random) {
    let n = if small() { 5_000 } else { 1 << 20 };
    let case = Case::<K>::new(data, nulls, n - random.below(1000), random);
    let naive = Naive::new(&case.keys, &case.valid);
    let (left, right) = ranges(case.keys.len(), if small() { 500 } else { 20_000 }, random);
    let index = K::index(engine, case.column.clone(), &options(true)).expect("it fits");
    compare(&*index, &naive, case.encoding, &left, &right, &case.what);
}

#[test]
fn a_batch_of_any_length() {
    let mut random = Random::new("batch lengths");
    let Some(engine) = strict(None) else { return };
    let case = Case::<u32>::new(Data::Uniform, Nulls::Some, 50_000, &mut random);
    let naive = Naive::new(&case.keys, &case.valid);
    let index = u32::index(&engine, case.column.clone(), &options(true)).expect("it fits");
    let mut lengths: Vec<usize> = (0..400).step_by(if small() { 31 } else { 1 }).collect();
    if !small() {
        // Around the parts that a batch is cut into.
        let part = 1 << 18;
        lengths.extend([part - 1, part, part + 1, part + 65, 2 * part, 3 * part + 33]);
    }
    let longest = lengths[lengths.len() - 1];
    let (left, right) = ranges(case.keys.len(), longest, &mut random);
    for m in lengths {
        let from = random.below(left.len() - m);
        let (left, right) = (&left[from..from + m], &right[from..from + m]);
        compare(&*index, &naive, case.encoding, left, right, "batch lengths");
    }
}

/// How many queries a random run asks.
pub fn queries() -> u64 {
    let default = if small() { 5_000 } else { 4_000_000 };
    std::env::var("RMQ_TEST_QUERIES").map_or(default, |queries| {
        queries.parse().expect("RMQ_TEST_QUERIES is a number")
    })
}

/// Columns of random length, look and width, several at a time, each asked by several threads at once.
#[test]
fn many_random_queries() {
    let Some(engine) = strict(None) else { return };
    let (wanted, asked) = (queries(), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get().min(16));
    let mut random = Random::new("random queries");
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (engine, asked) = (&engine, &asked);
            let mut random = Random::from_seed(random.next());
            scope.spawn(move || {
                while asked.load(Ordering::Relaxed) < wanted {
                    let count = match random.below(4) {
                        0 | 1 => random_column::<u32>(engine, &mut random),
                        2 => random_column::<u64>(engine, &mut random),
                        _ => random_column::<u128>(engine, &mut random),
                    };
                    asked.fetch_add(count, Ordering::Relaxed);
                }
            });
        }
    });
    println!("{} queries", asked.into_inner());
}

/// Returns how many queries it asked.
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
    let asked = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in seeds {
            let (case, naive, index, asked) = (&case, &naive, &index, &asked);
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
                    asked.fetch_add(left.len() as u64, Ordering::Relaxed);
                }
            });
        }
    });
    asked.into_inner()
}

/// A long column of random bits, made by several threads.
fn many_floats<K: Width>(n: usize, threads: usize, random: &mut Random) -> Column<K> {
    let seed = random.next();
    let mut bits = vec![K::ZERO; n];
    let share = n.div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        for (i, part) in bits.chunks_mut(share).enumerate() {
            scope.spawn(move || {
                let mut random = Random::from_seed(seed.wrapping_add(i as u64));
                part.fill_with(|| K::of(random.next()));
            });
        }
    });
    Column::new(Arc::new(bits), Encoding::<K>::float())
}

/// Beyond what a naive scan can do: the CPU engine is the measure.
fn against_cpu<K: Width>(engine: &CudaEngine, n: usize, count: usize, random: &mut Random) {
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
    let column = many_floats::<K>(n, threads, random);
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
            scope.spawn(move || same(&**expected, &**found, &left, &right));
        }
    });
}

fn same<K: Width>(
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
                .expect("it answers");
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
fn large_columns_answer_as_the_cpu_does() {
    let mut random = Random::new("large columns");
    let Some(engine) = strict(None) else { return };
    let sizes: &[u32] = if small() { &[12] } else { &[22, 24, 25] };
    for size in sizes {
        let n = (1 << size) + random.below(100_000) - 50_000.min(1 << (size - 1));
        against_cpu::<u32>(&engine, n, 400_000, &mut random);
        against_cpu::<u64>(&engine, n / 2, 400_000, &mut random);
        against_cpu::<u128>(&engine, n / 4, 400_000, &mut random);
    }
}

/// A column longer than 2^31 and 2^32 values, where `RMQ_TEST_ROWS` asks for it: 2^32 values of 32 bits take 40 GB.
#[test]
fn a_huge_column_answers_as_the_cpu_does() {
    let Ok(rows) = std::env::var("RMQ_TEST_ROWS") else {
        println!("skipped: RMQ_TEST_ROWS says how many rows");
        return;
    };
    let mut random = Random::new("huge column");
    let Some(engine) = strict(None) else { return };
    let rows = rows.parse().expect("RMQ_TEST_ROWS is a number");
    against_cpu::<u32>(&engine, rows, 4_000_000, &mut random);
}

/// Our kernel, which the tests above measure, is the measure of the paper's. A scan of the column takes it fewer ranges.
fn papers_against_ours<K: Width>(
    column: &Column<K>,
    count: usize,
    scans: usize,
    random: &mut Random,
) {
    let Some(ours) = strict(None) else { return };
    let expected = K::index(&ours, column.clone(), &options(true)).expect("it fits");
    for kernel in PAPERS {
        let Some(engine) = with_kernel(kernel, None) else {
            return;
        };
        let count = if kernel == CudaKernel::FullScan {
            scans
        } else {
            count
        };
        for positions in [true, false] {
            let found = K::index(&engine, column.clone(), &options(positions)).expect("it fits");
            let (left, right) = ranges(column.len(), count, random);
            same(&*expected, &*found, &left, &right);
        }
    }
}

#[test]
fn the_papers_kernels_answer_large_columns_as_ours_does() {
    let mut random = Random::new("large columns of the paper's");
    let Some(_open) = strict(None) else { return };
    let scale = if small() { 12 } else { 23 };
    let n = (1 << scale) + random.below(1000) - 500;
    let count = if small() { 200 } else { 600_000 };
    let scans = if small() { 200 } else { 20_000 };
    for nulls in [Nulls::Absent, Nulls::Some, Nulls::Most] {
        let data = [Data::Uniform, Data::Ties, Data::Greatest][random.below(3)];
        let case = Case::<u32>::new(data, nulls, n, &mut random);
        papers_against_ours(&case.column, count, scans, &mut random);
        let case = Case::<u64>::new(data, nulls, n / 2, &mut random);
        papers_against_ours(&case.column, count, scans, &mut random);
        let case = Case::<u128>::new(data, nulls, n / 4, &mut random);
        papers_against_ours(&case.column, count, scans, &mut random);
    }
}

/// As long as `RMQ_TEST_ROWS` says, as our own kernel's.
#[test]
fn the_papers_kernels_answer_a_huge_column_as_ours_does() {
    let Ok(rows) = std::env::var("RMQ_TEST_ROWS") else {
        println!("skipped: RMQ_TEST_ROWS says how many rows");
        return;
    };
    let mut random = Random::new("huge column of the paper's");
    let Some(_open) = strict(None) else { return };
    let rows = rows.parse().expect("RMQ_TEST_ROWS is a number");
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
    let column = many_floats::<u32>(rows, threads, &mut random);
    papers_against_ours(&column, 1_000_000, 1_000, &mut random);
}

#[test]
fn memory_is_limited_and_comes_back() {
    let Some(engine) = strict(None) else { return };
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
    let held = build(50_000).expect("it fits");
    assert_eq!(held.device_bytes(), needed);
    assert_eq!(engine.devices()[0].used, needed);
    assert!(build(50_000).is_err());
    drop(held);
    assert_eq!(engine.devices()[0].used, 0);
    build(50_000).expect("it fits again");
}

#[test]
fn any_fault_ends_in_an_error_or_in_the_right_answer() {
    let mut random = Random::new("faults");
    // Keeps the device's context while engines come and go.
    let Some(_open) = strict(None) else { return };
    let case = Case::<u32>::new(Data::Uniform, Nulls::Some, 40_000, &mut random);
    let naive = Naive::new(&case.keys, &case.valid);
    let (left, right) = ranges(case.keys.len(), 2_000, &mut random);
    let mut faults = 0;
    // Of the paper's, one that does all that they do.
    let kernels = [CudaKernel::Auto, CudaKernel::MultiLoad];
    for (fault, kernel) in Fault::ALL
        .iter()
        .flat_map(|fault| kernels.map(|kernel| (*fault, kernel)))
    {
        for fallback in [true, false] {
            for during_build in [true, false] {
                let mut nth = 1;
                while strikes(
                    fault,
                    kernel,
                    fallback,
                    during_build,
                    nth,
                    &case,
                    &naive,
                    &left,
                    &right,
                ) {
                    nth += 1;
                }
                // Building allocates, copies, launches and waits, and so does answering.
                assert!(nth > 1, "{fault:?} has not struck");
                faults += nth - 1;
            }
        }
    }
    println!("{faults} faults");
}

/// Whether the `nth` call of that kind was reached and failed, with all that may follow.
#[expect(clippy::too_many_arguments, reason = "the case and the fault")]
fn strikes(
    fault: Fault,
    kernel: CudaKernel,
    fallback: bool,
    during_build: bool,
    nth: u64,
    case: &Case<u32>,
    naive: &Naive<'_, u32>,
    left: &[i64],
    right: &[i64],
) -> bool {
    // A device that failed is not used again, so each fault has an engine of its own.
    let engine = CudaEngine::open(&CudaOptions {
        fallback,
        kernel,
        ..CudaOptions::default()
    })
    .expect("it was opened before");
    if during_build {
        engine.inject(fault, nth);
    }
    let built = engine.build_u32(case.column.clone(), &options(true));
    let struck = during_build && !engine.inject(fault, 0);
    let index = match built {
        Ok(index) => index,
        Err(error) => {
            assert!(struck, "{error}");
            assert_eq!(engine.devices()[0].used, 0);
            return true;
        }
    };
    assert!(!struck, "a fault while building is told");
    if during_build {
        return false;
    }
    engine.inject(fault, nth);
    if fallback {
        for mode in 0..8 {
            compare_mode(&*index, naive, case.encoding, left, right, "faults", mode);
        }
        return !engine.inject(fault, 0);
    }
    let mut failed = false;
    for _ in 0..4 {
        let mut out = index.outputs(left.len(), true, true);
        let result = index.answer(left, right, out.answers());
        // Memory that could not be had may be there the next time; a device that failed stays so.
        assert!(!failed || fault == Fault::Allocation || result.is_err());
        failed |= result.is_err();
    }
    let retired = engine.devices()[0].failed.is_some();
    assert_eq!(retired, failed && fault != Fault::Allocation);
    !engine.inject(fault, 0)
}

/// What was lent outlives index and engine; an index goes when the last of those that ask lets go of it.
#[test]
fn dropping_while_others_answer() {
    let mut random = Random::new("dropping");
    let Some(engine) = strict(None) else { return };
    let n = 30_000;
    let keys = keys::<u64>(Data::Walk, n, &mut random);
    let valid = vec![true; n];
    let naive = Naive::new(&keys, &valid);
    let column = Column::new(Arc::new(keys.clone()), Encoding::unsigned());
    let (left, right) = ranges(n, 5_000, &mut random);
    let mut kept = Vec::new();
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
                .expect("it answers");
            kept.push(out);
            drop(index);
        });
        assert_eq!(engine.devices()[0].used, 0);
    }
    drop(engine);
    for out in &kept {
        let values = out.values.as_deref().expect("asked for");
        assert_eq!(values, kept[0].values.as_deref().expect("asked for"));
    }
}

#[test]
fn all_devices_answer_together() {
    let mut random = Random::new("all devices");
    let Ok(all) = devices() else {
        println!("skipped: no CUDA device");
        return;
    };
    let options_of_all = CudaOptions {
        devices: all.iter().map(|device| device.ordinal).collect(),
        fallback: false,
        ..CudaOptions::default()
    };
    let Some(engine) = open(&options_of_all) else {
        return;
    };
    assert_eq!(engine.devices().len(), all.len());
    println!("{} devices", all.len());
    let wanted = queries() / 10;
    let mut asked = 0;
    while asked < wanted {
        asked += random_column::<u64>(&engine, &mut random);
    }
}

/// Whatever this machine has, asking it is no panic.
#[test]
fn devices_are_told_or_the_reason_why_there_are_none() {
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
