//! Which kernels the sections measure on the GPU, with which settings, and how many steps that is.

use rmq_engine::cuda::rmq::shape::Shape;

use crate::args::{Args, Kernel, Measure};
use crate::lab::device::needs_wide_positions;
use crate::lab::paper::{BEST_COALESCED, BEST_VECTOR, Cooperation, PaperKernel};
use crate::lab::tour::TourTime;
use crate::record::Setting;
use rmq_bench::kinds::{ResultKind, Width};

/// Threads of a group and entries of a chunk in the heat map. There are kernels for the pairs whose chunk is not
/// smaller than the group.
const GROUPS: [u32; 6] = [1, 2, 4, 8, 16, 32];
const CHUNKS: [u32; 5] = [8, 16, 32, 64, 128];

/// Entries of a chunk of VL in the heat map.
const VECTOR_CHUNKS: [u32; 4] = [4, 8, 16, 32];

/// The longest range that a warp scans: it keeps one warp busy for about a second.
pub const LONGEST_SCANNED: f64 = (1_u64 << 28) as f64;

impl Kernel {
    /// The paper's kernel with its setting; `None` for those that have another index.
    pub fn paper(self) -> Option<PaperKernel> {
        match self {
            Self::Ours | Self::Lca | Self::LcaTour | Self::LcaTourTrip => None,
            Self::Cl => Some(coalesced(BEST_COALESCED, Cooperation::Queue, false)),
            Self::Vl => Some(PaperKernel::Vector {
                chunk: BEST_VECTOR,
                heat_map: false,
            }),
            Self::VlOneSided => Some(PaperKernel::OneSided { chunk: BEST_VECTOR }),
            Self::FullScan => Some(PaperKernel::FullScan),
            Self::WarpScan => Some(PaperKernel::WarpScan),
        }
    }

    /// What is timed of a search in a tree that an Euler tour numbers.
    pub fn tour_time(self) -> Option<TourTime> {
        match self {
            Self::LcaTour => Some(TourTime::Search),
            Self::LcaTourTrip => Some(TourTime::WholeTrip),
            _ => None,
        }
    }

    pub fn setting(self, cutoff: u64) -> Setting {
        match self {
            Self::Cl => setting(BEST_COALESCED, cutoff),
            Self::Vl | Self::VlOneSided => setting((1, BEST_VECTOR), cutoff),
            _ => Setting::default(),
        }
    }

    /// The longest range that it is measured with, where it reads whole ranges: it takes about a second.
    pub fn longest_scanned(self) -> Option<f64> {
        match self {
            Self::FullScan => Some((1_u64 << 23) as f64),
            Self::WarpScan => Some(LONGEST_SCANNED),
            _ => None,
        }
    }
}

pub fn coalesced(
    (group, chunk): (u32, u32),
    cooperation: Cooperation,
    heat_map: bool,
) -> PaperKernel {
    PaperKernel::Coalesced {
        group,
        chunk,
        cooperation,
        heat_map,
    }
}

pub fn setting((group, chunk): (u32, u32), cutoff: u64) -> Setting {
    Setting {
        group,
        chunk,
        cutoff: cutoff.max(chunk.into()),
    }
}

/// The ways in which the threads of CL work together. Some answer with values only.
pub fn ways(result: ResultKind) -> Vec<(Cooperation, &'static str)> {
    let mut ways = vec![
        (Cooperation::Queue, "warp-local queuing"),
        (Cooperation::MultiLoad, "multi-load"),
    ];
    if result == ResultKind::Value {
        ways.push((Cooperation::NoShuffle, "without shuffles"));
        ways.push((Cooperation::AtomicMin, "without warp intrinsics"));
    }
    ways
}

/// The kernels of the heat map, with the threads of a group and the entries of a chunk.
pub fn heat_map() -> Vec<(&'static str, (u32, u32), PaperKernel)> {
    let pairs = GROUPS
        .iter()
        .flat_map(|group| CHUNKS.map(|chunk| (*group, chunk)));
    let coalesced = pairs
        .filter(|(group, chunk)| group <= chunk)
        .map(|pair| ("CL", pair, coalesced(pair, Cooperation::Queue, true)));
    let vector = VECTOR_CHUNKS.map(|chunk| {
        let heat_map = true;
        ("VL", (1, chunk), PaperKernel::Vector { chunk, heat_map })
    });
    coalesced.chain(vector).collect()
}

/// Whether the heat map has kernels for a column of 2^n values and such results.
pub fn in_heat_map(key: Width, n: u32, result: ResultKind) -> bool {
    key == Width::U32 && result == ResultKind::Value && n < 32
}

/// Returns the shapes of our index by who reads the levels above the column, where both ways have kernels.
pub fn level_readers(key: Width, n: u32) -> Vec<(&'static str, Shape)> {
    let best = Shape::best(1 << n, key.bytes());
    if best.chunk_bytes != 128 || needs_wide_positions(1 << n) {
        return Vec::new();
    }
    let shape = |levels_by_groups| Shape {
        levels_by_groups,
        ..best
    };
    vec![("threads", shape(false)), ("groups", shape(true))]
}

/// Returns the number of steps of the search in one column.
pub fn search_steps(args: &Args) -> usize {
    let kernels = args.kernel.iter().map(|kernel| match kernel {
        Kernel::Ours => 0,
        Kernel::Vl => args.cutoff.len(),
        _ => 1,
    });
    // Ours is always measured, and so are two random reads.
    args.workload.len() * (2 + kernels.sum::<usize>())
}

/// Returns the number of steps in one column.
pub fn column_steps(args: &Args, key: Width, n: u32) -> usize {
    let workloads = args.first_workload().len();
    let steps = args.result.iter().map(|result| {
        let mut steps = 0;
        if args.measures(Measure::Search) {
            steps += search_steps(args);
        }
        if args.measures(Measure::Queuing) {
            steps += args.workload.len() * ways(*result).len();
        }
        if args.measures(Measure::Heat) {
            if in_heat_map(key, n, *result) {
                steps += workloads * heat_map().len();
            }
            steps += workloads * level_readers(key, n).len();
        }
        steps
    });
    steps.sum()
}

/// Returns the number of steps in all columns.
pub fn steps(args: &Args) -> usize {
    let columns = |key: &Width| {
        let steps = args.n.iter().map(|n| column_steps(args, *key, *n));
        steps.sum::<usize>() * args.data.len()
    };
    args.key.iter().map(columns).sum()
}
