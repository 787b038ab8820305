//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use rmq_bench::data::Data;
use rmq_bench::kinds::{EngineKind, ResultKind, Width, numbers_of_threads};
use rmq_bench::workload::Workload;

/// Measures range-minimum queries: our engines on CPU and GPU, the systems of the GPU-RMQ paper (Kreis et al., 2026),
/// and what the hardware allows, in one run. Every answer is compared; a difference makes the exit code 1. Without an
/// NVIDIA GPU, only the CPU is measured.
#[derive(Debug, Clone, Parser)]
#[command(name = "rmq-bench", version, max_term_width = 110, after_help = EXAMPLES)]
pub struct Args {
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "search")]
    pub measure: Vec<Measure>,

    /// Lengths of the column, as powers of two: 20 is 2^20 values [default: 20,24,28,30,33, on the CPU those
    /// up to 28; with `--measure paper` 20,22,24,26,28,30,31,33]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=36))]
    pub n: Vec<u32>,

    /// Lengths of the ranges, n being the length of the column [default: mixed; with `--measure paper` all but
    /// ascending]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub workload: Vec<Workload>,

    /// Values of the column. In uniform ones and walks, a search nearly always ends before it reads the column; in the
    /// others it seldom does
    #[arg(long, value_enum, value_delimiter = ',', default_value = "uniform")]
    pub data: Vec<Data>,

    /// Engines to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "cpu,cuda")]
    pub engine: Vec<EngineKind>,

    /// Kernels to measure on the GPU with `--measure search`. Ours always is
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "ours,cl,vl,vl-one-sided,lca,lca-tour,lca-tour-trip,full-scan,warp-scan"
    )]
    pub kernel: Vec<Kernel>,

    /// Result of a query: the value alone, or the leftmost position alone
    #[arg(long, value_enum, value_delimiter = ',', default_value = "value")]
    pub result: Vec<ResultKind>,

    /// Type of values, named after the keys that they are compared as
    #[arg(long, value_enum, value_delimiter = ',', default_value = "u32")]
    pub key: Vec<Width>,

    /// Queries of a launch on the GPU, as a power of two
    #[arg(long, default_value_t = 26, value_parser = clap::value_parser!(u32).range(6..=30))]
    pub batch: u32,

    /// Queries on the CPU, as a power of two
    #[arg(long, default_value_t = 22, value_parser = clap::value_parser!(u32).range(6..=30))]
    pub cpu_batch: u32,

    /// Threads of the CPU engine [default: 1, 2, 4 and so on to all]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Vec<u32>,

    /// How often each time is measured, after once that does not count. The median is reported
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// The most entries of the highest level in the paper's indexes (its t), never fewer than a chunk has. The first is
    /// used for all kernels, and VL is measured with each of them. The paper's plots have 64 for CL and 32 for VL
    #[arg(long, value_delimiter = ',', default_value = "32,8,64", value_parser = clap::value_parser!(u64).range(1..))]
    pub cutoff: Vec<u64>,

    /// Values of a block of RTXRMQ, as powers of two, for `--measure rays`: 15 is its authors' default. Which is best
    /// depends on the lengths of column and ranges
    #[arg(long, value_delimiter = ',', default_value = "6,9,11,13,15,17,19,20,22,23", value_parser = clap::value_parser!(u32).range(1..=23))]
    pub ray_block: Vec<u32>,

    /// Where the planes of RTXRMQ's triangles are
    #[arg(long, value_enum, value_delimiter = ',', default_value = "values")]
    pub ray_planes: Vec<RayPlanes>,

    /// How acceleration structures of rays are built
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "updatable,compacted"
    )]
    pub ray_build: Vec<RayBuild>,

    /// Entries of the level that CL searches by rays, at most, as powers of two
    #[arg(long, value_delimiter = ',', default_value = "6,10,15", value_parser = clap::value_parser!(u32).range(5..=20))]
    pub ray_level: Vec<u32>,

    /// The CUDA device, numbered from 0
    #[arg(long, default_value_t = 0)]
    pub device: usize,

    /// What is measured, for results.csv: a commit
    #[arg(long, default_value = "")]
    pub commit: String,

    /// Folder for results.csv and report.md, which are overwritten
    #[arg(long, default_value = "rmq-bench-results")]
    pub out: PathBuf,

    /// Use short columns [default: 14,16,18], few queries and at most 3 rounds, to see that it works
    #[arg(long)]
    pub quick: bool,

    /// Print the report as Markdown instead of plain text
    #[arg(long)]
    pub markdown: bool,

    /// The longest column in host memory, as a power of two.
    #[arg(skip)]
    pub max_host_n: u32,

    /// Whether all figures of the paper are measured.
    #[arg(skip)]
    pub paper: bool,
}

const EXAMPLES: &str = "\
Examples:
  rmq-bench --measure paper --quick                     a trial run of less than a minute
  rmq-bench --measure paper                             all figures of the paper
  rmq-bench --engine cuda --kernel ours,cl,vl --n 28    our search beside the paper's on 2^28 values

docs/benchmarks.md lists more, explains how times are measured, and shows results.";

/// A section of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// All figures of the paper: search, reads, heat, queuing, succinct, and rays if built with the feature `rt`
    Paper,
    /// Nanoseconds per query of each kernel and engine, with build time and memory
    Search,
    /// Random reads of groups of threads on the GPU
    Reads,
    /// GPU-RMQ (CL) over group sizes and chunk sizes, (VL) over chunk sizes; ours with the levels above the column read
    /// by threads and by groups
    Heat,
    /// GPU-RMQ (CL) with warp-local queuing, with multi-load, without shuffles, without warp intrinsics
    Queuing,
    /// Succinct indexes on the CPU beside our engine, by number of threads
    Succinct,
    /// RTXRMQ and GPU-RMQ (CL) as ray-tracing pipelines of Vulkan, up to 2^26 values and 2^22 queries; needs the
    /// feature `rt`. What would take long without ray-tracing cores is left out, and the report says so
    Rays,
}

/// Where the planes of triangles are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RayPlanes {
    /// At the values, as published: answers may be off by the error of a hit
    Values,
    /// At the ranks of the values among the distinct ones, so far apart that answers are exact
    Ranks,
}

/// How acceleration structures are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RayBuild {
    /// As published: so that triangles may move later, for which a device does not split them, and all in one
    Updatable,
    /// Values and minima in structures of their own, compacted
    Compacted,
}

/// A kernel for range-minimum queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Kernel {
    /// Our own search
    Ours,
    /// GPU-RMQ (CL): coalesced loads
    Cl,
    /// GPU-RMQ (VL): vector loads
    Vl,
    /// The same for values alone, with the comparisons of the authors' program
    VlOneSided,
    /// Lowest common ancestors in the Cartesian tree
    Lca,
    /// The same by an Euler tour, as published, timed as the authors' program times itself: without the mapping of
    /// ranges to nodes, and of nodes to values
    LcaTour,
    /// The same, timed with both
    LcaTourTrip,
    /// No index: one thread reads a range from end to end, as published
    FullScan,
    /// No index: a warp reads a range from end to end
    WarpScan,
}

impl Kernel {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Cl => "CL",
            Self::Vl => "VL",
            Self::VlOneSided => "VL one-sided",
            Self::Lca => "LCA (inlabel)",
            Self::LcaTour => "LCA (Euler tour)",
            Self::LcaTourTrip => "LCA (Euler tour), whole trip",
            Self::FullScan => "full scan",
            Self::WarpScan => "full scan by warps",
        }
    }
}

impl Args {
    /// Fills in what depends on other arguments or on the machine.
    pub fn with_defaults(mut self) -> Self {
        self.paper = self.measures(Measure::Paper);
        if self.paper {
            let figures = [
                Measure::Search,
                Measure::Reads,
                Measure::Heat,
                Measure::Queuing,
                Measure::Succinct,
            ];
            self.measure.extend(figures);
            if cfg!(feature = "rt") {
                self.measure.push(Measure::Rays);
            }
        }
        if self.workload.is_empty() {
            self.workload.push(Workload::Mixed);
            if self.paper {
                (self.workload).extend([Workload::Small, Workload::Medium, Workload::Large]);
            }
        }
        if self.quick {
            if self.n.is_empty() {
                self.n = vec![14, 16, 18];
            }
            self.batch = self.batch.min(18);
            self.cpu_batch = self.cpu_batch.min(if self.paper { 13 } else { 16 });
            self.rounds = self.rounds.min(3);
        }
        self.max_host_n = if self.paper || self.n.is_empty() {
            28
        } else {
            36
        };
        if self.n.is_empty() {
            let all = [20, 22, 24, 26, 28, 30, 31, 33];
            let some = [20, 24, 28, 30, 33];
            self.n = if self.paper { all.into() } else { some.into() };
        }
        if self.threads.is_empty() {
            self.threads = numbers_of_threads();
        }
        self
    }

    pub fn measures(&self, measure: Measure) -> bool {
        self.measure.contains(&measure)
    }

    /// Returns the lengths of ranges for figures that the paper has for one only.
    pub fn first_workload(&self) -> Vec<Workload> {
        if self.paper {
            vec![self.workload[0]]
        } else {
            self.workload.clone()
        }
    }

    pub fn uses(&self, engine: EngineKind) -> bool {
        self.engine.contains(&engine)
    }
}
