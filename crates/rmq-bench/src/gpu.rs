//! Kernels alone: columns, ranges and answers stay in the device's memory, and its own clock measures.

use crate::lab::{self, Contestant, DeviceAnswers, DeviceBounds, DeviceColumn, Lab, Paper};
use rmq_engine::EngineError;

use rmq_bench::data::{self, Data};
use rmq_bench::workload::Workload;

use crate::args::{Kernel, Measure, ResultKind as Wanted, Width};
use crate::index::IndexableKey;
use crate::record::{Case, Record, Section, Setting};
use crate::report::{LIMIT, on_gpu};
use crate::run::Run;

/// CL in the shape that the paper found best.
const CL: (u32, u32) = (16, 32);

/// VL in the shape that was best on an H200.
const VL: u32 = 8;

/// Groups and chunks of the heat map, of those with kernels.
const GROUPS: [u32; 6] = [1, 2, 4, 8, 16, 32];
const CHUNKS: [u32; 5] = [8, 16, 32, 64, 128];

/// Values that a full scan may read in one launch.
const SCANNED: f64 = (1_u64 << 36) as f64;

/// A single range longer than this keeps one warp busy for a second.
const LONGEST_SCANNED: f64 = (1_u64 << 28) as f64;

impl Kernel {
    /// As the paper's kernels are set; `None` for our own.
    fn paper(self) -> Option<Paper> {
        match self {
            Self::Ours => None,
            Self::Cl => Some(coalesced(CL, true, false)),
            Self::Vl => Some(Paper::Vector { chunk: VL }),
            Self::FullScan => Some(Paper::FullScan),
        }
    }

    fn setting(self) -> Setting {
        match self {
            Self::Cl => setting(CL),
            Self::Vl => setting((1, VL)),
            Self::Ours | Self::FullScan => Setting::default(),
        }
    }
}

fn coalesced((group, chunk): (u32, u32), queue: bool, heat_map: bool) -> Paper {
    Paper::Coalesced {
        group,
        chunk,
        queue,
        heat_map,
    }
}

fn setting((group, chunk): (u32, u32)) -> Setting {
    Setting { group, chunk }
}

impl From<Wanted> for lab::Wanted {
    fn from(wanted: Wanted) -> Self {
        match wanted {
            Wanted::Value => Self::Value,
            Wanted::Position => Self::Position,
        }
    }
}

/// A column on the device with room for answers, one of which is the reference.
struct Bench<'a> {
    run: &'a mut Run,
    lab: &'a Lab,
    column: DeviceColumn,
    key: Width,
    data: Data,
    n: u32,
    /// Of our own kernel.
    reference: DeviceAnswers,
    answers: DeviceAnswers,
}

/// Measures all that was asked for.
pub fn measure(run: &mut Run, lab: &Lab) -> Result<(), EngineError> {
    let sections = [Measure::Search, Measure::Heat, Measure::Queuing];
    if !sections.iter().any(|section| run.args.measures(*section)) {
        return Ok(());
    }
    for key in run.args.key.clone() {
        for n in run.args.n.clone() {
            for data in run.args.data.clone() {
                match on_column(run, lab, key, n, data) {
                    Err(EngineError::DeviceMemory { .. }) => run.progress.say(&format!(
                        "not measured on the GPU, whose memory is too small: {} {} values, n = 2^{n}",
                        data.name(),
                        key.name()
                    )),
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
    for wanted in bench.run.args.result.clone() {
        if bench.run.args.measures(Measure::Search) {
            bench.search(wanted)?;
        }
        if bench.run.args.measures(Measure::Queuing) {
            bench.queuing(wanted)?;
        }
        let in_heat_map = key == Width::U32 && wanted == Wanted::Value && n < 32;
        if bench.run.args.measures(Measure::Heat) && in_heat_map {
            bench.heat(wanted)?;
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
        lab.put(column, first * size_of::<K>(), &bytes)?;
    }
    Ok(())
}

/// A kernel under its name in the report.
struct Entry {
    contender: String,
    setting: Setting,
    kernel: Contestant,
    /// Whether it reads whole ranges.
    scans: bool,
}

impl Bench<'_> {
    fn rounds(&self) -> u32 {
        self.run.args.rounds
    }

    fn case(&self, wanted: Wanted, workload: Workload) -> Case {
        Case::new(self.key, self.data, wanted, workload, self.n)
    }

    fn bounds(&self, workload: Workload) -> Result<DeviceBounds, EngineError> {
        self.lab
            .bounds(workload.into(), 1 << self.n, 1 << self.run.args.batch)
    }

    fn paper(&self, paper: Paper, wanted: Wanted) -> Result<Contestant, EngineError> {
        self.lab.paper(
            &self.column,
            paper,
            wanted.into(),
            self.run.args.cutoff,
            self.rounds(),
        )
    }

    fn ours(&self, wanted: Wanted) -> Result<Contestant, EngineError> {
        self.lab
            .ours(&self.column, wanted.into(), None, self.rounds())
    }

    /// The kernels asked for, on each workload, beside the limit.
    fn search(&mut self, wanted: Wanted) -> Result<(), EngineError> {
        let ours = Entry {
            contender: on_gpu(Kernel::Ours),
            setting: Setting::default(),
            kernel: self.ours(wanted)?,
            scans: false,
        };
        let kernels = self.run.args.kernel.clone();
        let mut entries = Vec::new();
        for kernel in kernels.iter().filter(|kernel| **kernel != Kernel::Ours) {
            let Some(paper) = kernel.paper() else {
                continue;
            };
            entries.push(Entry {
                contender: on_gpu(*kernel),
                setting: kernel.setting(),
                kernel: self.paper(paper, wanted)?,
                scans: *kernel == Kernel::FullScan,
            });
        }
        let workloads = self.run.args.workload.clone();
        self.run
            .progress
            .expect(workloads.len() * (entries.len() + 2));
        for workload in workloads {
            let case = self.case(wanted, workload);
            let bounds = self.bounds(workload)?;
            self.limit(case, &bounds)?;
            let wrong = self.check(&ours.kernel, wanted, workload)?;
            self.run
                .progress
                .now(&format!("{}: {}", ours.contender, case.title()));
            let count = 1 << self.run.args.batch;
            let rounds = self.rounds();
            let seconds =
                (self.lab).search(&ours.kernel, &bounds, &self.reference, count, rounds)?;
            self.found(Section::Search, case, &ours, count, seconds, wrong);
            for entry in &entries {
                self.beside(Section::Search, case, &bounds, entry)?;
            }
        }
        Ok(())
    }

    /// Measures a kernel and compares its answers with the reference's.
    fn beside(
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
        if entry.scans {
            let scanned = scanned(case.workload, case.rows(), count);
            let Some(fewer) = scanned else {
                self.run.progress.done();
                return Ok(());
            };
            (count, rounds) = (fewer, rounds.min(3));
        }
        let seconds = (self.lab).search(&entry.kernel, bounds, &self.answers, count, rounds)?;
        let wrong = self.differ(case.result, count)?;
        self.found(section, case, entry, count, seconds, wrong);
        Ok(())
    }

    fn differ(&self, wanted: Wanted, count: u32) -> Result<u64, EngineError> {
        let width = self.key.bytes();
        (self.lab).differ(&self.reference, &self.answers, wanted.into(), width, count)
    }

    /// Answers of our kernel that differ from a full scan's, on a sample.
    fn check(
        &mut self,
        ours: &Contestant,
        wanted: Wanted,
        workload: Workload,
    ) -> Result<u64, EngineError> {
        let most = (1 << self.run.args.batch).min(1 << 20);
        // Where ranges are too long to be read from end to end, shorter ones stand for them.
        let (workload, count) = match scanned(workload, 1 << self.n, most) {
            Some(count) => (workload, count),
            None => {
                let medium = scanned(Workload::Medium, 1 << self.n, most);
                (Workload::Medium, medium.unwrap_or(64))
            }
        };
        let bounds = self.bounds(workload)?;
        let scan = self.paper(Paper::FullScan, wanted)?;
        self.lab.search(ours, &bounds, &self.reference, count, 1)?;
        self.lab.search(&scan, &bounds, &self.answers, count, 1)?;
        self.differ(wanted, count)
    }

    fn limit(&mut self, case: Case, bounds: &DeviceBounds) -> Result<(), EngineError> {
        if case.key != Width::U32 {
            // The reads are of values of 4 bytes.
            self.run.progress.done();
            return Ok(());
        }
        let count = 1 << self.run.args.batch;
        let seconds =
            (self.lab).two_reads(&self.column, bounds, &self.answers, count, self.rounds())?;
        self.run.found(Record {
            section: Section::Limit,
            case,
            contender: LIMIT.to_owned(),
            setting: Setting::default(),
            queries: count.into(),
            threads: 0,
            seconds,
            build_seconds: None,
            index_bytes: None,
            wrong: 0,
        });
        self.run.progress.done();
        Ok(())
    }

    fn found(
        &mut self,
        section: Section,
        case: Case,
        entry: &Entry,
        queries: u32,
        seconds: f64,
        wrong: u64,
    ) {
        self.run.found(Record {
            section,
            case,
            contender: entry.contender.clone(),
            setting: entry.setting,
            queries: queries.into(),
            threads: 0,
            seconds,
            build_seconds: Some(entry.kernel.build_seconds()),
            index_bytes: Some(entry.kernel.index_bytes()),
            wrong,
        });
        self.run.progress.done();
    }

    /// Makes our kernel's answers the reference.
    fn refer(&self, wanted: Wanted, bounds: &DeviceBounds) -> Result<(), EngineError> {
        let ours = self.ours(wanted)?;
        let count = 1 << self.run.args.batch;
        self.lab.search(&ours, bounds, &self.reference, count, 1)?;
        Ok(())
    }

    /// CL with and without warp-local queuing.
    fn queuing(&mut self, wanted: Wanted) -> Result<(), EngineError> {
        let workloads = self.run.args.workload.clone();
        self.run.progress.expect(workloads.len() * 2);
        for workload in workloads {
            let case = self.case(wanted, workload);
            let bounds = self.bounds(workload)?;
            self.refer(wanted, &bounds)?;
            for (queue, name) in [(true, "warp-local queuing"), (false, "multi-load")] {
                let entry = Entry {
                    contender: format!("CL, {name}"),
                    setting: setting(CL),
                    kernel: self.paper(coalesced(CL, queue, false), wanted)?,
                    scans: false,
                };
                self.beside(Section::Queuing, case, &bounds, &entry)?;
            }
        }
        Ok(())
    }

    /// CL over sizes of groups and chunks; a chunk has at least as many entries as a group has threads.
    fn heat(&mut self, wanted: Wanted) -> Result<(), EngineError> {
        let workloads = self.run.args.workload.clone();
        for workload in workloads {
            let case = self.case(wanted, workload);
            let bounds = self.bounds(workload)?;
            self.refer(wanted, &bounds)?;
            let pairs = GROUPS
                .iter()
                .flat_map(|group| CHUNKS.map(|chunk| (*group, chunk)));
            let pairs: Vec<_> = pairs.filter(|(group, chunk)| group <= chunk).collect();
            self.run.progress.expect(pairs.len());
            for pair in pairs {
                let entry = Entry {
                    contender: "CL".to_owned(),
                    setting: setting(pair),
                    kernel: self.paper(coalesced(pair, true, true), wanted)?,
                    scans: false,
                };
                self.beside(Section::Heat, case, &bounds, &entry)?;
            }
        }
        Ok(())
    }
}

/// How many of `most` ranges a full scan can read in reasonable time, if any.
fn scanned(workload: Workload, n: usize, most: u32) -> Option<u32> {
    let n = n as f64;
    let (mean, longest) = match workload {
        Workload::Small => (n.powf(0.3) * 1.05, n.powf(0.3) * 8.0),
        Workload::Medium => (n.powf(0.6) * 1.05, n.powf(0.6) * 8.0),
        Workload::Large => (n / 2.0, n),
        Workload::Mixed => (n / 6.0 + n.powf(0.6), n),
    };
    let count = (SCANNED / mean).max(1024.0);
    (longest <= LONGEST_SCANNED).then_some(most.min(count as u32))
}

impl From<Workload> for lab::Ranges {
    fn from(workload: Workload) -> Self {
        match workload {
            Workload::Small => Self::Small,
            Workload::Medium => Self::Medium,
            Workload::Large => Self::Large,
            Workload::Mixed => Self::Mixed,
        }
    }
}
