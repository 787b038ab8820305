//! What benchmarks measure: engines, results, widths of values, numbers of threads.

use clap::ValueEnum;
use rmq_engine::cuda::rmq::index::KernelOutput;

/// An engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    /// The CPU engine
    Cpu,
    /// The CUDA engine, and kernels alone
    Cuda,
}

/// The result of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum ResultKind {
    /// The smallest value
    Value,
    /// Its leftmost position
    Position,
}

impl ResultKind {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Position => "position",
        }
    }
}

impl From<ResultKind> for KernelOutput {
    fn from(result: ResultKind) -> Self {
        match result {
            ResultKind::Value => Self::Value,
            ResultKind::Position => Self::Position,
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
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::U32 => "f32",
            Self::U64 => "f64",
        }
    }

    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Self::U32 => 4,
            Self::U64 => 8,
        }
    }
}

/// Returns 1, 2, 4 and so on up to the number of all threads.
pub fn numbers_of_threads() -> Vec<u32> {
    let all = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let powers = (0..32).map(|power| 1 << power);
    powers
        .take_while(|threads| *threads < all)
        .chain([all])
        .collect()
}
