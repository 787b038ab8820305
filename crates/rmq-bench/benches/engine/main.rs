//! The CPU engine beside its reference and the usual ways, on the workloads of the GPU-RMQ paper.
//!
//! Prints tables of nanoseconds per query and of ratios, then runs criterion on the engine. See `benches/README.md` of
//! the workspace.

mod contenders;
mod index;
mod rounds;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use rmq_bench::clock::{median, thread_time, timed};
use rmq_bench::data::{self, Data};
use rmq_bench::env::var_or;
use rmq_bench::memory::{MappedSlice, Pages};
use rmq_bench::workload::{Bounds, Workload, position_pairs};
use rmq_engine::BuildOptions;
use rmq_engine::cpu::{CpuEngine, Simd};

use crate::contenders::{SegmentTree, SparseTable, VersVecs, scan, two_lines};
use crate::index::{ColumnValue, Threshold};
use crate::rounds::{Contender, Cost, QUERIES, measure};

/// The size of the largest sparse table that is built.
const MAX_SPARSE_TABLE_BYTES: usize = 2 << 30;

struct Settings {
    /// Lengths of columns, as powers of two.
    sizes: Vec<u32>,
    types: Vec<String>,
    data: Vec<String>,
    rounds: usize,
    /// Only the engine and the reference.
    quick: bool,
}

impl Settings {
    fn new() -> Self {
        let list = |name: &str, default: &str| -> Vec<String> {
            let names = var_or(name, default.to_owned());
            names.split(',').map(str::to_owned).collect()
        };
        Self {
            sizes: list("RMQ_BENCH_N", "24")
                .iter()
                .map(|n| n.parse().expect("RMQ_BENCH_N is a list of powers of two"))
                .collect(),
            types: list("RMQ_BENCH_TYPES", "f32,i64"),
            data: list("RMQ_BENCH_DATA", "uniform,increasing,walk,constant"),
            rounds: var_or("RMQ_BENCH_ROUNDS", 5),
            quick: var_or("RMQ_BENCH_QUICK", 0) == 1,
        }
    }
}

fn filled<T: ColumnValue>(data: Data, n: usize, pages: Pages) -> Arc<MappedSlice<T>> {
    let mut column = MappedSlice::zeroed(n, pages);
    data::part(data, n, 0, &mut column);
    Arc::new(column)
}

fn workloads(n: usize) -> [Bounds; 4] {
    Workload::ALL.map(|workload| workload.bounds(n, QUERIES))
}

/// All contenders on one column.
fn table<T: ColumnValue>(settings: &Settings, n: usize, data: Data, csv: &mut String) {
    let workloads = workloads(n);
    let column = filled::<T>(data, n, Pages::Huge);
    let (a, b) = position_pairs(n, QUERIES);
    let zero = column[0];
    let out = || vec![zero; QUERIES];
    let (mut found, mut at) = (out(), vec![0; QUERIES]);

    let engine = CpuEngine::new();
    let options = BuildOptions::default();
    let index = std::cell::RefCell::new(T::index(column.clone(), &engine, &options));
    let mut contenders = vec![
        Contender {
            name: "engine, value".to_owned(),
            run: Box::new(|left, right| index.borrow_mut().values(left, right)),
            cost: Cost::Constant,
        },
        Contender {
            name: "engine, leftmost position".to_owned(),
            run: Box::new(|left, right| index.borrow_mut().positions(left, right)),
            cost: Cost::Constant,
        },
        Contender {
            name: "engine, first at most x".to_owned(),
            run: Box::new(|left, right| {
                index
                    .borrow_mut()
                    .crossings(left, right, Threshold::Minimum);
            }),
            cost: Cost::Constant,
        },
        Contender {
            name: "engine, first at most x, any distance".to_owned(),
            run: Box::new(|left, right| {
                index
                    .borrow_mut()
                    .crossings(left, right, Threshold::PartMinimum);
            }),
            cost: Cost::Constant,
        },
    ];
    if !settings.quick {
        let column = &column;
        if SparseTable::<T>::bytes(n) <= MAX_SPARSE_TABLE_BYTES {
            let sparse = SparseTable::new(column);
            contenders.push(Contender {
                name: "sparse table, value".to_owned(),
                run: Box::new({
                    let mut out = out();
                    move |left, right| sparse.answer(left, right, &mut out)
                }),
                cost: Cost::Constant,
            });
        }
        let tree = SegmentTree::new(column);
        contenders.push(Contender {
            name: "segment tree, value".to_owned(),
            run: Box::new({
                let mut out = out();
                move |left, right| tree.answer(left, right, &mut out)
            }),
            cost: Cost::Tree,
        });
        let vers = VersVecs::new(column);
        contenders.push(Contender {
            name: "vers-vecs FastRmq, position".to_owned(),
            run: Box::new(move |left, right| vers.answer(left, right, &mut at)),
            cost: Cost::Tree,
        });
        contenders.push(Contender {
            name: "naive scan, value".to_owned(),
            run: Box::new({
                let mut out = out();
                move |left, right| scan(column, left, right, &mut out)
            }),
            cost: Cost::Scan,
        });
    }
    let reference = || two_lines(&column, &a, &b, &mut found);
    let results = measure(n, settings.rounds, &workloads, reference, &mut contenders);
    let title = format!("{} {}, n = 2^{}", T::NAME, data.name(), n.ilog2());
    results.print(&title);
    *csv += &results.csv(T::NAME, n, data.name());
}

/// The column and the index on huge and on small pages.
fn pages<T: ColumnValue>(settings: &Settings, n: usize) {
    let workloads = workloads(n);
    let (a, b) = position_pairs(n, QUERIES);
    for (column_pages, index_pages) in [
        (Pages::Huge, Pages::Huge),
        (Pages::Small, Pages::Huge),
        (Pages::Small, Pages::Small),
    ] {
        let column = filled::<T>(Data::Uniform, n, column_pages);
        let mut out = vec![column[0]; QUERIES];
        let index = index_pages
            .during(|| T::index(column.clone(), &CpuEngine::new(), &BuildOptions::default()));
        let index = std::cell::RefCell::new(index);
        let mut contenders = [
            Contender {
                name: "engine, value".to_owned(),
                run: Box::new(|left, right| index.borrow_mut().values(left, right)),
                cost: Cost::Constant,
            },
            Contender {
                name: "engine, leftmost position".to_owned(),
                run: Box::new(|left, right| index.borrow_mut().positions(left, right)),
                cost: Cost::Constant,
            },
        ];
        let reference = || two_lines(&column, &a, &b, &mut out);
        let results = measure(n, settings.rounds, &workloads, reference, &mut contenders);
        results.print(&format!(
            "{} uniform, n = 2^{}, column on {}, index on {}",
            T::NAME,
            n.ilog2(),
            column_pages.name(),
            index_pages.name()
        ));
    }
}

/// The engine with each set of vector instructions.
fn instructions<T: ColumnValue>(settings: &Settings, n: usize) {
    let workloads = workloads(n);
    let (a, b) = position_pairs(n, QUERIES);
    let column = filled::<T>(Data::Uniform, n, Pages::Huge);
    let mut out = vec![column[0]; QUERIES];
    let mut contenders = Vec::new();
    for simd in Simd::ALL {
        let Ok(engine) = CpuEngine::with_simd(simd) else {
            continue;
        };
        let mut index = T::index(column.clone(), &engine, &BuildOptions::default());
        contenders.push(Contender {
            name: format!("engine, value, {simd:?}"),
            run: Box::new(move |left, right| index.values(left, right)),
            cost: Cost::Constant,
        });
    }
    let reference = || two_lines(&column, &a, &b, &mut out);
    let results = measure(n, settings.rounds, &workloads, reference, &mut contenders);
    results.print(&format!("{} uniform, n = 2^{}", T::NAME, n.ilog2()));
}

/// The speed of building an index, beside that of a copy of the column, and its size.
fn build<T: ColumnValue>(settings: &Settings, n: usize) {
    let column = filled::<T>(Data::Uniform, n, Pages::Huge);
    let bytes = n * size_of::<T>();
    let speed = |mut work: Box<dyn FnMut() + '_>| {
        let rounds = 0..settings.rounds.max(1);
        median(
            rounds
                .map(|_| bytes as f64 / timed(&mut work).as_nanos() as f64)
                .collect(),
        )
    };
    println!("\n{} n = 2^{}, one thread:", T::NAME, n.ilog2());
    let mut warm = MappedSlice::zeroed(n, Pages::Huge);
    warm.copy_from_slice(&column);
    println!(
        "  memcpy of the column  {:5.2} GB/s into fresh memory, {:.2} into memory already touched",
        speed(Box::new(|| {
            let mut copy = MappedSlice::zeroed(n, Pages::Huge);
            copy.copy_from_slice(&column);
            black_box(&copy[n / 2]);
        })),
        speed(Box::new(|| {
            warm.copy_from_slice(&column);
            black_box(&warm[n / 2]);
        })),
    );
    for positions in [false, true] {
        let options = BuildOptions {
            positions,
            threads: 1,
        };
        let build = || T::index(column.clone(), &CpuEngine::new(), &options);
        let size = build().bytes() as f64 / n as f64;
        let start = speed(Box::new(|| {
            black_box(build().bytes());
        }));
        let what = if positions { "with   " } else { "without" };
        println!("  index {what} positions {start:5.2} GB/s, {size:.4} bytes a value");
    }
    if n <= 1 << 24 {
        println!(
            "  vers-vecs FastRmq     {:.4} bytes a value besides its copy of the values",
            VersVecs::new(&column).bytes() as f64 / n as f64
        );
    }
}

/// The engine by criterion, in CPU time.
fn criterion<T: ColumnValue>(criterion: &mut Criterion, n: usize) {
    let column = filled::<T>(Data::Uniform, n, Pages::Huge);
    let mut index = T::index(column, &CpuEngine::new(), &BuildOptions::default());
    let mut group = criterion.benchmark_group(format!("engine/{}/2^{}", T::NAME, n.ilog2()));
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500))
        .throughput(Throughput::Elements(QUERIES as u64));
    for workload in Workload::ALL {
        let Bounds { left, right } = workload.bounds(n, QUERIES);
        for positions in [false, true] {
            let what = if positions { "position" } else { "value" };
            group.bench_function(BenchmarkId::new(what, workload.name()), |bencher| {
                bencher.iter_custom(|times| {
                    let start = thread_time();
                    for _ in 0..times {
                        if positions {
                            index.positions(&left, &right);
                        } else {
                            index.values(&left, &right);
                        }
                    }
                    thread_time() - start
                });
            });
        }
    }
    group.finish();
}

fn measure_type<T: ColumnValue>(settings: &Settings, c: &mut Criterion, csv: &mut String) {
    if !settings.types.iter().any(|name| name == T::NAME) {
        return;
    }
    for &log in &settings.sizes {
        let n = 1_usize << log;
        build::<T>(settings, n);
        for data in Data::ALL {
            if settings.data.iter().any(|name| name == data.name()) {
                table::<T>(settings, n, data, csv);
            }
        }
        if !settings.quick {
            instructions::<T>(settings, n);
            pages::<T>(settings, n);
            criterion::<T>(c, n);
        }
    }
}

fn main() {
    let settings = Settings::new();
    let mut criterion = Criterion::default().configure_from_args();
    let mut csv = "type,log n,data,contender,ranges,ns,ratio\n".to_owned();
    println!(
        "One thread, CPU time, median of {} rounds, {QUERIES} queries a batch, {:?}.",
        settings.rounds,
        CpuEngine::new().simd()
    );
    measure_type::<f32>(&settings, &mut criterion, &mut csv);
    measure_type::<i64>(&settings, &mut criterion, &mut csv);
    if let Ok(path) = std::env::var("RMQ_BENCH_CSV") {
        std::fs::write(&path, csv).expect("RMQ_BENCH_CSV is a file that can be written");
    }
    criterion.final_summary();
}
