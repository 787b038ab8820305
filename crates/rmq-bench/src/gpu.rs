//! The sections that measure single kernels on the GPU: search, warp-local queuing, heat map.

use rmq_engine::EngineError;

use crate::lab::device::{DeviceAnswers, DeviceBounds, DeviceColumn, Lab};
use crate::lab::kernel::{DeviceQueries, KernelUnderTest};
use crate::lab::lca::MAX_LCA_ROWS;
use crate::lab::lca_tour::MAX_TOUR_ROWS;
use crate::lab::limit::Ranges;
use crate::lab::paper::{BEST_COALESCED, PaperKernel};

use rmq_bench::clock::Timing;
use rmq_bench::data::{self, Data};
use rmq_bench::workload::Workload;

use crate::args::{Kernel, Measure};
use crate::kernels::{
    LONGEST_SCANNED, coalesced, column_steps, heat_map, in_heat_map, level_readers, search_steps,
    setting, ways,
};
use crate::record::{Case, Record, Section, Setting};
use crate::report::{TWO_READS, on_gpu};
use crate::run::Run;
use rmq_bench::index::IndexableKey;
use rmq_bench::kinds::{ResultKind, Width};

/// The most values that a full scan reads in one launch.
const SCANNED: f64 = (1_u64 << 36) as f64;

/// How often a tour is built at most: most of it is done by few threads.
const TOUR_ROUNDS: u32 = 3;

/// A column on the device with memory for answers and for reference answers.
struct Bench<'a> {
    run: &'a mut Run,
    lab: &'a Lab,
    column: DeviceColumn,
    key: Width,
    data: Data,
    n: u32,
    /// Our kernel's answers.
    reference: DeviceAnswers,
    answers: DeviceAnswers,
}

/// Measures the requested sections.
///
/// # Errors
/// Those of the driver. A column that does not fit the device is skipped.
pub fn measure(run: &mut Run, lab: &Lab) -> Result<(), EngineError> {
    let sections = [Measure::Search, Measure::Heat, Measure::Queuing];
    if !sections.iter().any(|section| run.args.measures(*section)) {
        return Ok(());
    }
    for key in run.args.key.clone() {
        for n in run.args.n.clone() {
            for data in run.args.data.clone() {
                let before = run.progress.steps();
                match on_column(run, lab, key, n, data) {
                    Err(EngineError::DeviceMemory { .. }) => {
                        let steps = before + column_steps(&run.args, key, n);
                        run.progress.skip_to(steps);
                        run.progress.say(&format!(
                            "not measured further on the GPU, whose memory is too small: {} {} values, n = 2^{n}",
                            data.name(),
                            key.name()
                        ));
                    }
                    other => other?,
                }
            }
        }
    }
    Ok(())
}

fn on_column(run: &mut Run, lab: &Lab, key: Width, n: u32, data: Data) -> Result<(), EngineError> {
    run.progress
        .now(&format!("GPU: a column of 2^{n} {} values", data.name()));
    let column = lab.column(1 << n, key.bytes())?;
    match (data, key) {
        (Data::Uniform, _) => lab.fill_uniform(&column)?,
        (_, Width::U32) => fill::<u32>(lab, &column, data, n)?,
        (_, Width::U64) => fill::<u64>(lab, &column, data, n)?,
    }
    let most = 1 << run.args.batch;
    let mut bench = Bench {
        lab,
        column,
        key,
        data,
        n,
        reference: lab.answers(most)?,
        answers: lab.answers(most)?,
        run,
    };
    for result in bench.run.args.result.clone() {
        if bench.run.args.measures(Measure::Search) {
            bench.search(result)?;
        }
        if bench.run.args.measures(Measure::Queuing) {
            bench.queuing(result)?;
        }
        if bench.run.args.measures(Measure::Heat) {
            if in_heat_map(key, n, result) {
                bench.heat(result)?;
            }
            bench.level_readers(result)?;
        }
    }
    Ok(())
}

/// Makes a column on the host and copies it, part by part.
fn fill<K: IndexableKey>(
    lab: &Lab,
    column: &DeviceColumn,
    data: Data,
    n: u32,
) -> Result<(), EngineError> {
    const PART: usize = 1 << 25;
    let mut values = vec![K::ZERO; PART.min(1 << n)];
    for first in (0..1_usize << n).step_by(PART) {
        data::part(data, 1 << n, first, &mut values);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.bytes()).collect();
        lab.write(column, first * size_of::<K>(), &bytes)?;
    }
    Ok(())
}

/// A kernel and its name in the report.
struct Entry {
    contender: String,
    setting: Setting,
    kernel: KernelUnderTest,
    /// The longest range that it is measured with, where it reads whole ranges.
    longest_scanned: Option<f64>,
}

impl Bench<'_> {
    fn rounds(&self) -> u32 {
        self.run.args.rounds
    }

    /// The entries of the highest level in the paper's indexes, except where VL is measured with others.
    fn cutoff(&self) -> u64 {
        self.run.args.cutoff[0]
    }

    fn case(&self, result: ResultKind, workload: Workload) -> Case {
        Case::new(self.key, self.data, result, workload, self.n)
    }

    fn bounds(&self, workload: Workload) -> Result<DeviceBounds, EngineError> {
        let count = 1 << self.run.args.batch;
        let bounds = self.lab.bounds(workload.into(), &self.column, count)?;
        if workload == Workload::Ascending {
            self.lab.sort(&bounds, &self.column)?;
        }
        Ok(bounds)
    }

    fn paper(
        &self,
        paper: PaperKernel,
        result: ResultKind,
        cutoff: u64,
    ) -> Result<KernelUnderTest, EngineError> {
        let rounds = self.rounds();
        (self.lab).paper(&self.column, paper, result.into(), cutoff, rounds)
    }

    fn ours(&self, result: ResultKind) -> Result<KernelUnderTest, EngineError> {
        (self.lab).ours(&self.column, result.into(), None, self.rounds())
    }

    /// Returns the names under which a kernel is measured beside ours, with its settings.
    fn contenders(&self, kernel: Kernel) -> Vec<(String, Setting)> {
        let cutoffs = match kernel {
            Kernel::Ours => &[],
            Kernel::Vl => &self.run.args.cutoff[..],
            _ => &self.run.args.cutoff[..1],
        };
        let named = |cutoff: &u64| {
            let (name, setting) = (on_gpu(kernel), kernel.setting(*cutoff));
            if *cutoff == self.cutoff() {
                (name, setting)
            } else {
                (format!("{name}, t = {}", setting.cutoff), setting)
            }
        };
        cutoffs.iter().map(named).collect()
    }

    /// Builds the index of a kernel other than ours; `None` if it has none for such a column.
    fn prepare(
        &self,
        kernel: Kernel,
        setting: Setting,
        result: ResultKind,
    ) -> Result<Option<KernelUnderTest>, EngineError> {
        let (rows, rounds) = (self.column.rows, self.rounds());
        if kernel == Kernel::Lca && rows <= MAX_LCA_ROWS {
            let tree = (self.lab).lca(&self.column, result.into(), rounds)?;
            return Ok(Some(tree));
        }
        if let Some(time) = kernel.tour_time()
            && rows <= MAX_TOUR_ROWS
            && result == ResultKind::Value
        {
            let (queries, rounds) = (1 << self.run.args.batch, rounds.min(TOUR_ROUNDS));
            let tree = (self.lab).lca_tour(&self.column, time, queries, rounds)?;
            return Ok(Some(tree));
        }
        if kernel == Kernel::VlOneSided && result != ResultKind::Value {
            return Ok(None);
        }
        let paper = kernel.paper();
        paper
            .map(|paper| self.paper(paper, result, setting.cutoff))
            .transpose()
    }

    /// Measures the requested kernels on each workload, and the limit of the hardware.
    fn search(&mut self, result: ResultKind) -> Result<(), EngineError> {
        let ours = Entry {
            contender: on_gpu(Kernel::Ours),
            setting: Setting::default(),
            kernel: self.ours(result)?,
            longest_scanned: None,
        };
        let mut entries = Vec::new();
        for kernel in self.run.args.kernel.clone() {
            for (contender, setting) in self.contenders(kernel) {
                match self.prepare(kernel, setting, result) {
                    Ok(Some(prepared)) => entries.push(Entry {
                        contender,
                        setting,
                        kernel: prepared,
                        longest_scanned: kernel.longest_scanned(),
                    }),
                    Ok(None) => {}
                    Err(EngineError::DeviceMemory { .. }) => self.run.progress.say(&format!(
                        "not measured, the GPU's memory is too small: {contender}, n = 2^{}",
                        self.n
                    )),
                    Err(error) => return Err(error),
                }
            }
        }
        let workloads = self.run.args.workload.clone();
        let planned = search_steps(&self.run.args);
        let missing = planned - workloads.len() * (entries.len() + 2);
        self.run.progress.skip(missing);
        for workload in workloads {
            let case = self.case(result, workload);
            let bounds = self.bounds(workload)?;
            self.limit(case, &bounds)?;
            let wrong = self.check(&ours.kernel, result, workload)?;
            self.run
                .progress
                .now(&format!("{}: {}", ours.contender, case.title()));
            let asked = queries(&bounds, &self.reference, 1 << self.run.args.batch);
            let cold = self.lab.answer_cold(&ours.kernel, asked)?;
            let time = self.lab.answer(&ours.kernel, asked, self.rounds())?;
            self.record(
                Section::Search,
                case,
                &ours,
                (asked.count, time, Some(cold)),
                wrong,
            );
            for entry in &entries {
                self.compare(Section::Search, case, &bounds, entry)?;
            }
        }
        Ok(())
    }

    /// Measures a kernel and compares its answers with the reference.
    fn compare(
        &mut self,
        section: Section,
        case: Case,
        bounds: &DeviceBounds,
        entry: &Entry,
    ) -> Result<(), EngineError> {
        self.run
            .progress
            .now(&format!("{}: {}", entry.contender, case.title()));
        let (mut count, mut rounds) = (1_u32 << self.run.args.batch, self.rounds());
        if let Some(longest) = entry.longest_scanned {
            let scanned = scanned(case.workload, case.rows(), count, longest);
            let Some(fewer) = scanned else {
                self.run.progress.done();
                return Ok(());
            };
            (count, rounds) = (fewer, rounds.min(3));
        }
        let asked = queries(bounds, &self.answers, count);
        let measures_cold = section == Section::Search && entry.longest_scanned.is_none();
        let cold = measures_cold.then(|| self.lab.answer_cold(&entry.kernel, asked));
        let time = self.lab.answer(&entry.kernel, asked, rounds)?;
        let wrong = self.differ(case.result, count)?;
        self.record(
            section,
            case,
            entry,
            (count, time, cold.transpose()?),
            wrong,
        );
        Ok(())
    }

    fn differ(&self, result: ResultKind, count: u32) -> Result<u64, EngineError> {
        let width = self.key.bytes();
        (self.lab).differ(&self.reference, &self.answers, result.into(), width, count)
    }

    /// Counts the answers of our kernel that differ from those of scans, on samples: of a few ranges by all threads,
    /// and of many by a warp each, where they are not too long for that.
    fn check(
        &mut self,
        ours: &KernelUnderTest,
        result: ResultKind,
        workload: Workload,
    ) -> Result<u64, EngineError> {
        const FEW: u32 = 64;
        let bounds = self.bounds(workload)?;
        let few = queries(&bounds, &self.reference, FEW);
        self.lab.answer(ours, few, 1)?;
        let what = (result.into(), FEW);
        (self.lab).scan_by_all_threads(&self.column, &bounds, &self.answers, what)?;
        let wrong = self.differ(result, FEW)?;
        let most = (1 << self.run.args.batch).min(1 << 20);
        let Some(count) = scanned(workload, 1 << self.n, most, LONGEST_SCANNED) else {
            return Ok(wrong);
        };
        let scan = self.paper(PaperKernel::WarpScan, result, self.cutoff())?;
        let asked = |answers| queries(&bounds, answers, count);
        self.lab.answer(ours, asked(&self.reference), 1)?;
        self.lab.answer(&scan, asked(&self.answers), 1)?;
        Ok(wrong + self.differ(result, count)?)
    }

    fn limit(&mut self, case: Case, bounds: &DeviceBounds) -> Result<(), EngineError> {
        if case.key != Width::U32 {
            // The kernel reads values of 4 bytes.
            self.run.progress.done();
            return Ok(());
        }
        let count = 1 << self.run.args.batch;
        let time =
            (self.lab).two_reads(&self.column, bounds, &self.answers, count, self.rounds())?;
        self.run.found(Record {
            section: Section::Limit,
            case,
            contender: TWO_READS.to_owned(),
            setting: Setting::default(),
            queries: count.into(),
            threads: 0,
            time,
            cold_seconds: None,
            build_seconds: None,
            index_bytes: None,
            build_bytes: 0,
            wrong: 0,
        });
        self.run.progress.done();
        Ok(())
    }

    fn record(
        &mut self,
        section: Section,
        case: Case,
        entry: &Entry,
        (queries, time, cold_seconds): (u32, Timing, Option<f64>),
        wrong: u64,
    ) {
        self.run.found(Record {
            section,
            case,
            contender: entry.contender.clone(),
            setting: entry.setting,
            queries: queries.into(),
            threads: 0,
            time,
            cold_seconds,
            build_seconds: Some(entry.kernel.build_seconds),
            index_bytes: Some(entry.kernel.index_bytes()),
            build_bytes: entry.kernel.build_bytes,
            wrong,
        });
        self.run.progress.done();
    }

    /// Makes our kernel's answers the reference.
    fn set_reference(&self, result: ResultKind, bounds: &DeviceBounds) -> Result<(), EngineError> {
        let ours = self.ours(result)?;
        let asked = queries(bounds, &self.reference, 1 << self.run.args.batch);
        self.lab.answer(&ours, asked, 1)?;
        Ok(())
    }

    /// Measures the ways in which the threads of CL work together.
    fn queuing(&mut self, result: ResultKind) -> Result<(), EngineError> {
        for workload in self.run.args.workload.clone() {
            let case = self.case(result, workload);
            let bounds = self.bounds(workload)?;
            self.set_reference(result, &bounds)?;
            let mut entries = Vec::new();
            for (cooperation, name) in ways(result) {
                let setting = setting(BEST_COALESCED, self.cutoff());
                let kernel = coalesced(BEST_COALESCED, cooperation, false);
                entries.push(Entry {
                    contender: format!("CL, {name}"),
                    setting,
                    kernel: self.paper(kernel, result, setting.cutoff)?,
                    longest_scanned: None,
                });
            }
            self.compare_in_turns(Section::Queuing, case, &bounds, &entries)?;
        }
        Ok(())
    }

    /// Measures kernels that differ little: one round of each after the other, so that what slows a device down for a
    /// while slows all of them.
    fn compare_in_turns(
        &mut self,
        section: Section,
        case: Case,
        bounds: &DeviceBounds,
        entries: &[Entry],
    ) -> Result<(), EngineError> {
        let count = 1 << self.run.args.batch;
        let mut times = vec![Vec::new(); entries.len()];
        let mut wrong = vec![0; entries.len()];
        for round in 0..self.rounds() {
            for (i, entry) in entries.iter().enumerate() {
                self.run
                    .progress
                    .now(&format!("{}: {}", entry.contender, case.title()));
                let asked = queries(bounds, &self.answers, count);
                times[i].push(self.lab.answer(&entry.kernel, asked, 1)?.median);
                if round == 0 {
                    wrong[i] = self.differ(case.result, count)?;
                }
            }
        }
        for ((entry, times), wrong) in entries.iter().zip(times).zip(wrong) {
            let measured = (count, Timing::from_seconds(&times), None);
            self.record(section, case, entry, measured, wrong);
        }
        Ok(())
    }

    /// Measures CL over sizes of groups and chunks, and VL over those of chunks.
    fn heat(&mut self, result: ResultKind) -> Result<(), EngineError> {
        for workload in self.run.args.first_workload() {
            let case = self.case(result, workload);
            let bounds = self.bounds(workload)?;
            self.set_reference(result, &bounds)?;
            for (contender, pair, kernel) in heat_map() {
                let setting = setting(pair, self.cutoff());
                let kernel = match self.paper(kernel, result, setting.cutoff) {
                    // Small chunks of a large column.
                    Err(error @ EngineError::Unsupported(_)) => {
                        let (chunk, n) = (pair.1, self.n);
                        self.run.progress.skip(1);
                        self.run.progress.say(&format!(
                            "not measured: {contender} with chunks of {chunk}, n = 2^{n}: {error}"
                        ));
                        continue;
                    }
                    kernel => kernel?,
                };
                let entry = Entry {
                    contender: contender.to_owned(),
                    setting,
                    kernel,
                    longest_scanned: None,
                };
                self.compare(Section::Heat, case, &bounds, &entry)?;
            }
        }
        Ok(())
    }

    /// Measures ours with the levels above the column read by threads and by groups.
    fn level_readers(&mut self, result: ResultKind) -> Result<(), EngineError> {
        for workload in self.run.args.first_workload() {
            let case = self.case(result, workload);
            let bounds = self.bounds(workload)?;
            self.set_reference(result, &bounds)?;
            for (readers, shape) in level_readers(self.key, self.n) {
                let (output, rounds) = (result.into(), self.rounds());
                let entry = Entry {
                    contender: format!("ours, levels by {readers}"),
                    setting: Setting::default(),
                    kernel: (self.lab).ours(&self.column, output, Some(shape), rounds)?,
                    longest_scanned: None,
                };
                self.compare(Section::Readers, case, &bounds, &entry)?;
            }
        }
        Ok(())
    }
}

fn queries<'a>(
    bounds: &'a DeviceBounds,
    answers: &'a DeviceAnswers,
    count: u32,
) -> DeviceQueries<'a> {
    DeviceQueries {
        bounds,
        answers,
        count,
    }
}

/// Returns how many of `most` ranges a full scan reads in reasonable time; `None` if there are ranges of more than
/// `limit` values.
fn scanned(workload: Workload, n: usize, most: u32, limit: f64) -> Option<u32> {
    let n = n as f64;
    let (mean, longest) = match workload {
        Workload::Small => (n.powf(0.3) * 1.05, n.powf(0.3) * 8.0),
        Workload::Medium => (n.powf(0.6) * 1.05, n.powf(0.6) * 8.0),
        Workload::Large => (n / 2.0, n),
        Workload::Mixed | Workload::Ascending => (n / 6.0 + n.powf(0.6), n),
    };
    let count = (SCANNED / mean).max(1024.0);
    (longest <= limit).then_some(most.min(count as u32))
}

impl From<Workload> for Ranges {
    fn from(workload: Workload) -> Self {
        match workload {
            Workload::Small => Self::Small,
            Workload::Medium => Self::Medium,
            Workload::Large => Self::Large,
            Workload::Mixed | Workload::Ascending => Self::Mixed,
        }
    }
}
