//! Variants of our search on the GPU: one table of all on a list of cases, beside today's search, VL and the model.

use rmq_engine::EngineError;
use rmq_engine::cuda::rmq::index::KernelOutput;
use rmq_engine::cuda::rmq::shape::Shape;

use rmq_bench::data::Data;
use rmq_bench::table::{Table, power_of_two, three_digits};
use rmq_bench::workload::Workload;

use crate::args::{Args, ResultKind, Width};
use crate::gpu;
use crate::lab::access::HostIndex;
use crate::lab::costs::UnitCosts;
use crate::lab::device::{DeviceAnswers, DeviceColumn, Lab};
use crate::lab::kernel::KernelUnderTest;
use crate::lab::paper::{BEST_VECTOR, PaperKernel};
use crate::lab::variants::{VARIANTS, Variant};
use crate::model::costs_table;
use crate::record::{Case, Record, Section, Setting};
use crate::run::Run;

/// The most entries of VL's highest level: the paper's.
const CUTOFF: u64 = 32;

/// The longest column of ascending values, as a power of two: it is made on the host.
const LONGEST_INCREASING: u32 = 30;

/// The column whose ranges are also measured in the order of their left bounds: sorting them takes seconds.
const ASCENDING: u32 = 28;

/// A short column, whose small ranges are as short as most windows: about 12 values.
const SHORT: u32 = 12;

/// Columns, as powers of two, on which other shapes of the index are measured.
const SHAPED: [u32; 3] = [20, 24, 28];

/// The variants that are measured there.
const OF_SHAPES: [&str; 4] = [
    "near_threads_threads_full",
    "near_threads_warp_full",
    "pack_threads_warp_full",
    "near_threads_count_full",
];

/// Bytes of a chunk, and entries of the highest level at most.
const SHAPES: [(u32, u64); 4] = [(64, 1 << 12), (64, 1 << 16), (128, 1 << 14), (128, 1 << 18)];

/// Columns, as pairs of data and the length as a power of two.
fn columns(args: &Args) -> Vec<(Data, u32)> {
    let short = std::iter::once((Data::Uniform, SHORT));
    let uniform = args.n.iter().map(|n| (Data::Uniform, *n));
    let increasing = args.n.iter().filter(|n| **n <= LONGEST_INCREASING);
    short
        .chain(uniform)
        .chain(increasing.map(|n| (Data::Increasing, *n)))
        .collect()
}

/// Lengths of ranges that are measured on a column.
fn workloads(data: Data, n: u32, result: ResultKind) -> Vec<Workload> {
    let mut workloads = vec![Workload::Mixed, Workload::Small];
    if data == Data::Uniform && result == ResultKind::Value {
        workloads.extend([Workload::Medium, Workload::Large]);
        if n == ASCENDING {
            workloads.push(Workload::Ascending);
        }
    }
    workloads
}

/// The variants that are measured on other shapes of the index.
fn of_shapes() -> impl Iterator<Item = Variant> {
    let all = VARIANTS.into_iter();
    all.filter(|variant| OF_SHAPES.contains(&variant.name))
}

/// Returns the number of steps.
pub fn steps(args: &Args) -> usize {
    columns(args).len()
}

/// A column and the memory for answers.
struct Bench<'a> {
    run: &'a mut Run,
    lab: &'a Lab,
    costs: &'a UnitCosts,
    column: DeviceColumn,
    data: Data,
    n: u32,
    reference: DeviceAnswers,
    answers: DeviceAnswers,
}

/// Measures all variants on all cases.
///
/// # Errors
/// Those of the driver. A column that does not fit the device is skipped.
pub fn measure(run: &mut Run, lab: &Lab) -> Result<(), EngineError> {
    run.progress.now("GPU: what reads cost");
    let costs = lab.unit_costs(run.args.rounds)?;
    run.tables.push(costs_table(&costs));
    let header = ["", "model", "near", "VL", "today"].map(str::to_owned);
    let names = VARIANTS.map(|variant| variant.short.to_owned());
    let header = header
        .into_iter()
        .chain(names)
        .chain(["today / best".to_owned()]);
    let title = "Variants of our search, ns a query (wide ranges: n near, 4 four, k pack, p pair / levels: t threads, g groups / column: g groups, t threads, w warp, c by count)";
    let mut table = Table::new(title, header);
    let header = ["", "chunk, bytes", "top entries", "index, %", "today"].map(str::to_owned);
    let chosen = of_shapes().map(|variant| variant.short.to_owned());
    let header = header.into_iter().chain(chosen);
    let mut shapes = Table::new("Other shapes of the index, ns a query", header);
    for (data, n) in columns(&run.args) {
        run.progress
            .now(&format!("GPU: variants on 2^{n} {} values", data.name()));
        match on_column(run, lab, &costs, data, n, [&mut table, &mut shapes]) {
            Err(EngineError::DeviceMemory { .. }) => run.progress.say(&format!(
                "not measured further, the GPU's memory is too small: 2^{n} {} values",
                data.name()
            )),
            other => other?,
        }
        run.progress.done();
    }
    run.tables.extend([shapes, table]);
    Ok(())
}

fn on_column(
    run: &mut Run,
    lab: &Lab,
    costs: &UnitCosts,
    data: Data,
    n: u32,
    [table, shapes]: [&mut Table; 2],
) -> Result<(), EngineError> {
    let column = lab.column(1 << n, 4)?;
    if data == Data::Uniform {
        lab.fill_uniform(&column)?;
    } else {
        gpu::fill::<u32>(lab, &column, data, n)?;
    }
    let count = 1 << run.args.batch;
    let mut bench = Bench {
        lab,
        costs,
        column,
        data,
        n,
        reference: lab.answers(count)?,
        answers: lab.answers(count)?,
        run,
    };
    bench.measure(ResultKind::Value, table)?;
    bench.measure(ResultKind::Position, table)?;
    if data == Data::Uniform && SHAPED.contains(&n) {
        bench.measure_shapes(shapes)?;
    }
    Ok(())
}

impl Bench<'_> {
    fn measure(&mut self, result: ResultKind, table: &mut Table) -> Result<(), EngineError> {
        let (lab, rounds, count) = (self.lab, self.run.args.rounds, 1 << self.run.args.batch);
        let output = KernelOutput::from(result);
        let today = lab.ours(&self.column, output, None, rounds)?;
        let vector = PaperKernel::Vector {
            chunk: BEST_VECTOR,
            heat_map: false,
        };
        let vector = lab.paper(&self.column, vector, output, CUTOFF, rounds)?;
        // The model counts reads of an index without positions.
        let mut index = (result == ResultKind::Value)
            .then(|| lab.host_index(&self.column, &today))
            .transpose()?;
        for workload in workloads(self.data, self.n, result) {
            let case = Case::new(Width::U32, self.data, result, workload, self.n);
            let bounds = lab.bounds(workload.into(), &self.column, count)?;
            if workload == Workload::Ascending {
                lab.sort(&bounds, &self.column)?;
            }
            let mut cells = Vec::new();
            for near in [false, true] {
                // Ranges in order find in the caches what those before them read.
                let index = index
                    .as_mut()
                    .filter(|_| workload != Workload::Ascending)
                    .map(|index: &mut HostIndex| {
                        index.near = near;
                        &*index
                    });
                let Some(index) = index else {
                    cells.push("-".to_owned());
                    continue;
                };
                let pattern = lab.count_reads_of(index, &self.column, &bounds)?;
                let streamed = if self.column.wide_positions {
                    20.0
                } else {
                    12.0
                };
                let seconds = self.costs.model(&pattern, streamed).sum();
                cells.push(three_digits(seconds * 1e9));
            }
            let seconds = lab.answer(&today, &bounds, &self.reference, count, rounds)?;
            let ours = ns(seconds, count);
            self.record(case, "today", &today, count, seconds, 0);
            let seconds = lab.answer(&vector, &bounds, &self.answers, count, rounds)?;
            cells.push(three_digits(ns(seconds, count)));
            let wrong = lab.differ(&self.reference, &self.answers, output, 4, count)?;
            self.record(case, "VL", &vector, count, seconds, wrong);
            cells.push(three_digits(ours));
            let mut best = ours;
            for variant in VARIANTS {
                let Some(kernel) = lab.variant(&self.column, &today, None, variant, rounds)? else {
                    cells.push("-".to_owned());
                    continue;
                };
                let seconds = lab.answer(&kernel, &bounds, &self.answers, count, rounds)?;
                let wrong = lab.differ(&self.reference, &self.answers, output, 4, count)?;
                self.record(case, variant.name, &kernel, count, seconds, wrong);
                let ns = ns(seconds, count);
                best = best.min(ns);
                let mark = if wrong > 0 { " WRONG" } else { "" };
                cells.push(format!("{}{mark}", three_digits(ns)));
            }
            cells.push(three_digits(ours / best));
            let name = format!(
                "{}, {}, {}, {}",
                workload.name(),
                result.name(),
                self.data.name(),
                power_of_two(self.n)
            );
            table.row(name, cells);
        }
        Ok(())
    }

    /// Measures values on indexes of other shapes.
    fn measure_shapes(&mut self, table: &mut Table) -> Result<(), EngineError> {
        let (lab, rounds, count) = (self.lab, self.run.args.rounds, 1 << self.run.args.batch);
        let output = KernelOutput::Value;
        let best = lab.ours(&self.column, output, None, 1)?;
        for workload in [Workload::Mixed, Workload::Small] {
            let case = Case::new(Width::U32, self.data, ResultKind::Value, workload, self.n);
            let bounds = lab.bounds(workload.into(), &self.column, count)?;
            lab.answer(&best, &bounds, &self.reference, count, 1)?;
            for (chunk_bytes, top_entries) in SHAPES {
                let other = Some(Shape {
                    chunk_bytes,
                    top_entries,
                    wide_positions: false,
                });
                let today = lab.ours(&self.column, output, other, rounds)?;
                let share = today.index_bytes() as f64 / case.column_bytes() as f64;
                let mut cells = vec![
                    chunk_bytes.to_string(),
                    top_entries.to_string(),
                    three_digits(share * 100.0),
                ];
                let mut answer = |name: &str, kernel: &KernelUnderTest| {
                    let seconds = lab.answer(kernel, &bounds, &self.answers, count, rounds)?;
                    let wrong = lab.differ(&self.reference, &self.answers, output, 4, count)?;
                    let mark = if wrong > 0 { " WRONG" } else { "" };
                    cells.push(format!("{}{mark}", three_digits(ns(seconds, count))));
                    Ok::<_, EngineError>((name.to_owned(), seconds, wrong))
                };
                let mut found = vec![answer("today", &today)?];
                for variant in of_shapes() {
                    let kernel = lab.variant(&self.column, &today, other, variant, rounds)?;
                    if let Some(kernel) = kernel {
                        found.push(answer(variant.name, &kernel)?);
                    }
                }
                for (name, seconds, wrong) in found {
                    let name = format!("{name}, {chunk_bytes} B, top {top_entries}");
                    self.record(case, &name, &today, count, seconds, wrong);
                }
                let title = format!("{}, {}", workload.name(), power_of_two(self.n));
                table.row(title, cells);
            }
        }
        Ok(())
    }

    fn record(
        &mut self,
        case: Case,
        contender: &str,
        kernel: &KernelUnderTest,
        queries: u32,
        seconds: f64,
        wrong: u64,
    ) {
        self.run.found(Record {
            section: Section::Variants,
            case,
            contender: contender.to_owned(),
            setting: Setting::default(),
            queries: queries.into(),
            threads: 0,
            seconds,
            build_seconds: Some(kernel.build_seconds),
            index_bytes: Some(kernel.index_bytes()),
            build_bytes: 0,
            wrong,
        });
    }
}

/// Nanoseconds a query.
fn ns(seconds: f64, queries: u32) -> f64 {
    seconds * 1e9 / f64::from(queries)
}
