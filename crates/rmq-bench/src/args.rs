//! What is to be measured.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::data::Data;
use crate::workload::Workload;

/// Range-minimum queries: our engines beside the kernels of the GPU-RMQ paper (Kreis et al., 2026), in one run with what the
/// hardware can do. Every answer is compared bit by bit; a difference makes the exit code 1.
#[derive(Debug, Clone, Parser)]
#[command(name = "rmq-bench", version, max_term_width = 110)]
pub struct Args {
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "search")]
    pub measure: Vec<Measure>,

    /// Rows of the column, as powers of two [default: 20,24,28,30,33; the CPU stops at 28]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=36))]
    pub n: Vec<u32>,

    /// How long the ranges are
    #[arg(long, value_enum, value_delimiter = ',', default_value = "mixed")]
    pub workload: Vec<Workload>,

    /// What the column looks like; only uniform values let a search stop early nearly always
    #[arg(long, value_enum, value_delimiter = ',', default_value = "uniform")]
    pub data: Vec<Data>,

    /// Which engines
    #[arg(long, value_enum, value_delimiter = ',', default_value = "cpu,cuda")]
    pub engine: Vec<EngineKind>,

    /// Which kernels, of the engine for GPUs
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "ours,cl,vl,full-scan"
    )]
    pub kernel: Vec<Kernel>,

    /// What is asked for: the value alone, or the leftmost position alone
    #[arg(long, value_enum, value_delimiter = ',', default_value = "value")]
    pub result: Vec<Wanted>,

    /// Width of values: u32 stands for f32, u64 for f64
    #[arg(long, value_enum, value_delimiter = ',', default_value = "u32")]
    pub key: Vec<Width>,

    /// Queries on the GPU, as a power of two
    #[arg(long, default_value_t = 26, value_parser = clap::value_parser!(u32).range(6..=30))]
    pub batch: u32,

    /// Queries on the CPU, as a power of two
    #[arg(long, default_value_t = 22, value_parser = clap::value_parser!(u32).range(6..=30))]
    pub cpu_batch: u32,

    /// Threads of the CPU, and of those that ask the GPU in whole trips [default: 1, 2, 4 and so on to all]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Vec<u32>,

    /// Measurements of which the median counts, after one that does not
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// Entries that the highest level of the paper's indexes has at most
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    pub cutoff: u64,

    /// Which CUDA device
    #[arg(long, default_value_t = 0)]
    pub device: usize,

    /// Where results go: results.csv, report.md and a plot of each kind as SVG and PNG
    #[arg(long, default_value = "rmq-bench-results")]
    pub out: PathBuf,

    /// Small sizes and few rounds, to see that it works
    #[arg(long)]
    pub quick: bool,

    /// Print the report as Markdown, to be pasted into a document
    #[arg(long)]
    pub markdown: bool,

    /// The longest columns in memory of the host.
    #[arg(skip)]
    pub host_most: u32,
}

/// A section of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Nanoseconds a query of each kernel and engine, with build time and memory
    Search,
    /// GPU-RMQ (CL) over group sizes and chunk sizes
    Heat,
    /// GPU-RMQ (CL) with warp-local queuing and with multi-load
    Queuing,
    /// From host memory to host memory, by number of threads
    Trip,
    /// From how many rows and queries on the GPU is faster than the CPU
    Crossover,
    /// From ranges of keys to positions in sorted keys, as range joins do: host memory to host memory
    Keys,
}

/// Who answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    /// The engine for CPUs
    Cpu,
    /// The engine for NVIDIA GPUs
    Cuda,
}

/// A kernel, or the two random reads a query that no search can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Kernel {
    /// Our own search
    Ours,
    /// GPU-RMQ (CL): coalesced loads
    Cl,
    /// GPU-RMQ (VL): vector loads
    Vl,
    /// No index: each range is read from end to end
    FullScan,
}

impl Kernel {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Cl => "CL",
            Self::Vl => "VL",
            Self::FullScan => "full scan",
        }
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Wanted {
    /// The smallest value
    Value,
    /// The leftmost position of it
    Position,
}

impl Wanted {
    pub fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Position => "position",
        }
    }
}

/// Width of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Width {
    /// f32
    U32,
    /// f64
    U64,
}

impl Width {
    pub fn name(self) -> &'static str {
        match self {
            Self::U32 => "f32",
            Self::U64 => "f64",
        }
    }

    pub fn bytes(self) -> usize {
        match self {
            Self::U32 => 4,
            Self::U64 => 8,
        }
    }
}

impl Args {
    /// With what was not said filled in.
    pub fn complete(mut self) -> Self {
        if self.quick {
            if self.n.is_empty() {
                self.n = vec![14, 16, 18];
            }
            self.batch = self.batch.min(18);
            self.cpu_batch = self.cpu_batch.min(16);
            self.rounds = self.rounds.min(3);
        }
        self.host_most = 36;
        if self.n.is_empty() {
            self.n = vec![20, 24, 28, 30, 33];
            self.host_most = 28;
        }
        if self.threads.is_empty() {
            let all = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
            self.threads = (0..32)
                .map(|power| 1 << power)
                .take_while(|threads| *threads < all)
                .collect();
            self.threads.push(all);
        }
        self
    }

    pub fn measures(&self, measure: Measure) -> bool {
        self.measure.contains(&measure)
    }

    pub fn uses(&self, engine: EngineKind) -> bool {
        self.engine.contains(&engine)
    }
}
