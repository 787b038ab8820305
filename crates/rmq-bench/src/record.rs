//! Measurements, and their CSV file for other programs.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use rmq_bench::clock::Timing;
use rmq_bench::data::Data;
use rmq_bench::workload::Workload;

use rmq_bench::kinds::{ResultKind, Width};

/// What was measured: column, ranges and result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    pub key: Width,
    pub data: Data,
    pub result: ResultKind,
    pub workload: Workload,
    /// The length of the column, as a power of two.
    pub n: u32,
}

impl Case {
    pub fn new(key: Width, data: Data, result: ResultKind, workload: Workload, n: u32) -> Self {
        Self {
            key,
            data,
            result,
            workload,
            n,
        }
    }

    pub fn rows(self) -> usize {
        1 << self.n
    }

    pub fn column_bytes(self) -> usize {
        self.rows() * self.key.bytes()
    }

    /// Describes all but the length of the column.
    pub fn title(self) -> String {
        format!(
            "{} of {} {} values, {} ranges",
            self.result.name(),
            self.data.name(),
            self.key.name(),
            self.workload.name()
        )
    }
}

/// The part of the report that a measurement belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    Search,
    /// Two random reads per query.
    Limit,
    /// Random reads of groups of threads.
    Reads,
    Heat,
    /// Ours by who reads the levels above the column.
    Readers,
    Queuing,
    /// Ray-tracing pipelines.
    Rays,
    /// Succinct indexes on the CPU beside our engine, by number of threads.
    Succinct,
}

impl Section {
    fn name(self) -> &'static str {
        match self {
            Self::Search => "search",
            Self::Limit => "limit",
            Self::Reads => "reads",
            Self::Heat => "heat",
            Self::Readers => "readers",
            Self::Queuing => "queuing",
            Self::Rays => "rays",
            Self::Succinct => "succinct",
        }
    }
}

/// One measurement.
#[derive(Debug, Clone)]
pub struct Record {
    pub section: Section,
    pub case: Case,
    /// The kernel or engine.
    pub contender: String,
    pub setting: Setting,
    pub queries: u64,
    /// Threads of the CPU; 0 where a kernel alone was measured.
    pub threads: u32,
    /// The time for all queries.
    pub time: Timing,
    /// The same by the wall clock, the mean of four launches; the paper's script starts a process for each.
    pub cold_seconds: Option<f64>,
    pub build_seconds: Option<f64>,
    /// The size of the index without the column.
    pub index_bytes: Option<u64>,
    /// The bytes that only the build needed.
    pub build_bytes: u64,
    /// The number of answers that differ from the reference.
    pub wrong: u64,
}

/// The parameters of a kernel of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Setting {
    /// Threads per group; 0 for kernels without groups.
    pub group: u32,
    /// Entries per chunk; 0 for kernels without chunks.
    pub chunk: u32,
    /// Entries that the highest level has at most; 0 for kernels without levels.
    pub cutoff: u64,
}

impl Record {
    pub fn ns_per_query(&self) -> f64 {
        self.time.median * 1e9 / self.queries as f64
    }

    /// Returns the bytes of the column, the index and what only the build needs.
    pub fn total_bytes(&self) -> Option<u64> {
        Some(self.index_bytes? + self.build_bytes + self.case.column_bytes() as u64)
    }

    /// Returns the size of the index divided by that of the column.
    pub fn overhead(&self) -> Option<f64> {
        Some(self.index_bytes? as f64 / self.case.column_bytes() as f64)
    }
}

/// What all records of a run have in common.
#[derive(Debug, Clone, Default)]
pub struct Origin {
    pub gpu: String,
    /// The version of NVIDIA's driver; empty where it does not tell.
    pub driver: String,
    /// The greatest clock rate of its multiprocessors, in MHz; 0 without a device.
    pub clock_mhz: u32,
    pub cpu: String,
    /// What was measured, as `--commit` names it.
    pub commit: String,
    /// The day in UTC, `2026-11-25`.
    pub date: String,
}

/// Writes all records of a machine as comma-separated values. `figures` beside `src` reads them.
pub fn write_csv(records: &[Record], origin: &Origin, path: &Path) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    writeln!(
        out,
        "section,contender,group,chunk,cutoff,key,data,result,workload,log2_n,queries,threads,ns,least_ns,most_ns,\
         cold_ns,build_ms,index_bytes,build_bytes,column_bytes,wrong,gpu,driver,clock_mhz,cpu,commit,date"
    )?;
    let field = |text: &str| text.replace(',', ";");
    for record in records {
        let case = &record.case;
        let ns = |seconds: f64| format!("{:.8}", seconds * 1e9 / record.queries as f64);
        let or_empty = |number: Option<String>| number.unwrap_or_default();
        let build = record
            .build_seconds
            .map(|seconds| format!("{:.4}", seconds * 1e3));
        writeln!(
            out,
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            record.section.name(),
            record.contender.replace(',', ""),
            record.setting.group,
            record.setting.chunk,
            record.setting.cutoff,
            case.key.name(),
            case.data.name(),
            case.result.name(),
            case.workload.name(),
            case.n,
            record.queries,
            record.threads,
            ns(record.time.median),
            ns(record.time.least),
            ns(record.time.most),
            or_empty(record.cold_seconds.map(ns)),
            or_empty(build),
            or_empty(record.index_bytes.map(|bytes| bytes.to_string())),
            record.build_bytes,
            case.column_bytes(),
            record.wrong,
            field(&origin.gpu),
            field(&origin.driver),
            origin.clock_mhz,
            field(&origin.cpu),
            field(&origin.commit),
            origin.date,
        )?;
    }
    out.flush()
}
