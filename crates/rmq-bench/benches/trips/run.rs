//! A run: its arguments, its progress, and the tables of what was measured.

use clap::{Parser, ValueEnum};
use rmq_bench::data::Data;
use rmq_bench::kinds::{EngineKind, ResultKind, Width, numbers_of_threads};
use rmq_bench::memory;
use rmq_bench::progress::Progress;
use rmq_bench::table::Table;
use rmq_bench::workload::Workload;

/// Measures whole trips through the engines, from host memory to host memory.
#[derive(Debug, Clone, Parser)]
pub struct Args {
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "trip")]
    pub measure: Vec<Measure>,

    /// Lengths of the column, as powers of two; those that do not fit the host's memory are left out
    #[arg(long, value_delimiter = ',', default_value = "20,24,28", value_parser = clap::value_parser!(u32).range(1..=36))]
    pub n: Vec<u32>,

    /// Lengths of the ranges
    #[arg(long, value_enum, default_value = "mixed")]
    pub workload: Workload,

    /// Values of the column
    #[arg(long, value_enum, default_value = "uniform")]
    pub data: Data,

    /// Engines to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "cpu,cuda")]
    pub engine: Vec<EngineKind>,

    /// Result of a query
    #[arg(long, value_enum, default_value = "value")]
    pub result: ResultKind,

    /// Type of values, named after the keys that they are compared as
    #[arg(long, value_enum, value_delimiter = ',', default_value = "u32")]
    pub key: Vec<Width>,

    /// Queries for the GPU, as a power of two
    #[arg(long, default_value_t = 26, value_parser = clap::value_parser!(u32).range(6..=30))]
    pub batch: u32,

    /// Queries for the CPU, as a power of two
    #[arg(long, default_value_t = 22, value_parser = clap::value_parser!(u32).range(6..=30))]
    pub cpu_batch: u32,

    /// Threads that answer queries, or send them to the GPU [default: 1, 2, 4 and so on to all]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Vec<u32>,

    /// Rows of the build side of a range join
    #[arg(long, default_value_t = 50_000_000)]
    pub rows: usize,

    /// Probe rows of a range join
    #[arg(long, default_value_t = 5_000_000)]
    pub probes: usize,

    /// How often each time is measured, after once that does not count. The median is reported
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// The CUDA device, numbered from 0
    #[arg(long, default_value_t = 0)]
    pub device: usize,

    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// A kind of trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Queries, by number of threads
    Trip,
    /// Rows and queries from which on the GPU is faster than the CPU
    Crossover,
    /// A range join: build side and probe rows from host memory, answers to host memory
    Join,
}

impl Args {
    /// Fills in what depends on the machine.
    pub fn with_defaults(mut self) -> Self {
        if self.threads.is_empty() {
            self.threads = numbers_of_threads();
        }
        self
    }

    pub fn uses(&self, engine: EngineKind) -> bool {
        self.engine.contains(&engine)
    }
}

/// The state of a run, to which each section adds.
pub struct Run {
    pub args: Args,
    pub progress: Progress,
    pub tables: Vec<Table>,
}

impl Run {
    /// Creates a run without measurements.
    pub fn new(args: Args) -> Self {
        Self {
            args,
            progress: Progress::default(),
            tables: Vec::new(),
        }
    }

    /// Returns the largest number of threads that may be used.
    pub fn threads(&self) -> u32 {
        self.args.threads.iter().copied().max().unwrap_or(1)
    }

    /// Returns the lengths of columns, as powers of two, that fit in host memory.
    pub fn host_sizes(&self, key: Width) -> Vec<u32> {
        let fits = |n: &u32| memory::has_room((key.bytes() as u64) << n);
        self.args.n.iter().copied().filter(fits).collect()
    }
}
