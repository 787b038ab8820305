//! What was measured, and its table for other programs.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::args::{Wanted, Width};
use crate::data::Data;
use crate::workload::Workload;

/// What a question was: columns, ranges, answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    pub key: Width,
    pub data: Data,
    pub wanted: Wanted,
    pub workload: Workload,
    /// Values of the column are 2 to this.
    pub n: u32,
}

impl Case {
    pub fn rows(self) -> usize {
        1 << self.n
    }

    pub fn column_bytes(self) -> usize {
        self.rows() * self.key.bytes()
    }

    /// All but the length of the column.
    pub fn title(self) -> String {
        format!(
            "{} of {} {} values, {} ranges",
            self.wanted.name(),
            self.data.name(),
            self.key.name(),
            self.workload.name()
        )
    }
}

/// Which part of the report a measurement belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    Search,
    /// Two random reads a query: what no search can beat.
    Limit,
    Heat,
    Queuing,
    Trip,
    Crossover,
}

impl Section {
    fn name(self) -> &'static str {
        match self {
            Self::Search => "search",
            Self::Limit => "limit",
            Self::Heat => "heat",
            Self::Queuing => "queuing",
            Self::Trip => "trip",
            Self::Crossover => "crossover",
        }
    }
}

/// One measurement.
#[derive(Debug, Clone)]
pub struct Record {
    pub section: Section,
    pub case: Case,
    /// Who answered: a kernel or an engine.
    pub contender: String,
    /// How it was set, such as `g=16 c=32`.
    pub setting: Setting,
    pub queries: u64,
    /// Of the CPU; 0 where a kernel alone was measured.
    pub threads: u32,
    /// For all queries.
    pub seconds: f64,
    pub build_seconds: Option<f64>,
    /// Without the column.
    pub index_bytes: Option<u64>,
    /// Answers that differ from those of the reference.
    pub wrong: u64,
}

/// The parameters of a kernel of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Setting {
    /// Threads of a group; 0 where there are none.
    pub group: u32,
    /// Entries of a chunk; 0 where there are none.
    pub chunk: u32,
}

impl Record {
    pub fn ns_per_query(&self) -> f64 {
        self.seconds * 1e9 / self.queries as f64
    }

    /// Index bytes over column bytes.
    pub fn overhead(&self) -> Option<f64> {
        Some(self.index_bytes? as f64 / self.case.column_bytes() as f64)
    }
}

/// Writes all of them as comma-separated values.
pub fn write_csv(records: &[Record], path: &Path) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    writeln!(
        out,
        "section,contender,group,chunk,key,data,result,workload,log2_n,queries,threads,seconds,ns_per_query,\
         build_ms,index_bytes,column_bytes,wrong"
    )?;
    for record in records {
        let case = &record.case;
        let or_empty = |number: Option<String>| number.unwrap_or_default();
        writeln!(
            out,
            "{},{},{},{},{},{},{},{},{},{},{},{:.9},{:.6},{},{},{},{}",
            record.section.name(),
            record.contender.replace(',', ""),
            record.setting.group,
            record.setting.chunk,
            case.key.name(),
            case.data.name(),
            case.wanted.name(),
            case.workload.name(),
            case.n,
            record.queries,
            record.threads,
            record.seconds,
            record.ns_per_query(),
            or_empty(
                record
                    .build_seconds
                    .map(|seconds| format!("{:.4}", seconds * 1e3))
            ),
            or_empty(record.index_bytes.map(|bytes| bytes.to_string())),
            case.column_bytes(),
            record.wrong,
        )?;
    }
    out.flush()
}
