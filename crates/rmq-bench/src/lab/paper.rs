//! The kernels of the paper, `kernels/baselines/paper.cu`, on a column in the device's memory.

use rmq_engine::EngineError;
use rmq_engine::cuda::driver::module::{Function, Module};
use rmq_engine::cuda::driver::stream::argument;
use rmq_engine::cuda::memory::device_memory::DeviceMemory;
use rmq_engine::cuda::rmq::index::KernelOutput;
use rmq_engine::cuda::rmq::layout::DeviceIndex;

use super::device::{DeviceColumn, Lab};
use super::kernel::{KernelIndex, KernelUnderTest};
use super::paper_index::{MAX_PAPER_LEVELS, PaperIndex};

const PAPER: Module = Module {
    name: "paper",
    ptx: include_str!("../../../../kernels/baselines/ptx/paper.ptx"),
};

const PAPER_HEAT_MAP: Module = Module {
    name: "paper_heat_map",
    ptx: include_str!("../../../../kernels/baselines/ptx/paper_heat_map.ptx"),
};

/// Levels begin at multiples of this many bytes.
const ALIGN: u64 = 256;

/// Threads of a group and entries of a chunk of CL that the paper found best.
pub const BEST_COALESCED: (u32, u32) = (16, 32);

/// Entries of a chunk of VL that were best on an H200.
pub const BEST_VECTOR: u32 = 8;

/// How the threads of a group get their queries and combine their minima.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cooperation {
    /// A warp loads 32 queries at once and its groups take turns (warp-local queuing).
    Queue,
    /// All threads of a group load its query.
    MultiLoad,
    /// The groups take turns, and all threads of a group load the query of each turn; for values only.
    NoShuffle,
    /// The same, and they combine their minima in global memory, without warp intrinsics; for values only.
    AtomicMin,
}

/// A kernel of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PaperKernel {
    /// CL: groups of threads with coalesced loads.
    Coalesced {
        /// Threads of a group.
        group: u32,
        /// Entries of a chunk.
        chunk: u32,
        /// How they work together.
        cooperation: Cooperation,
        /// Whether the kernel is from the module with all sizes of groups and chunks.
        heat_map: bool,
    },
    /// VL: one thread per query with vector loads.
    Vector {
        /// Entries of a chunk.
        chunk: u32,
        /// Whether the kernel is from the module with all sizes of chunks.
        heat_map: bool,
    },
    /// VL for values alone, which compares only the end of a range that is within a chunk, as its authors' does.
    OneSided {
        /// Entries of a chunk.
        chunk: u32,
    },
    /// A scan without an index, as published: one thread per query, one value a load.
    FullScan,
    /// A scan without an index: a warp per query, 16-byte loads.
    WarpScan,
}

impl PaperKernel {
    /// Entries of a chunk; `None` for a kernel without an index.
    fn chunk(self) -> Option<u32> {
        match self {
            Self::Coalesced { chunk, .. }
            | Self::Vector { chunk, .. }
            | Self::OneSided { chunk } => Some(chunk),
            Self::FullScan | Self::WarpScan => None,
        }
    }

    /// The kernel's module and its name up to the width of positions.
    fn module_and_name(self, key: &str) -> (Module, String) {
        let module = |heat_map| if heat_map { PAPER_HEAT_MAP } else { PAPER };
        match self {
            Self::Coalesced {
                group,
                chunk,
                cooperation,
                heat_map,
            } => {
                let kind = match cooperation {
                    Cooperation::Queue => "coalesced",
                    Cooperation::MultiLoad => "multi_load",
                    Cooperation::NoShuffle => "no_shuffle",
                    Cooperation::AtomicMin => "atomic_min",
                };
                let name = format!("paper_{kind}_{key}_g{group}_c{chunk}");
                (module(heat_map), name)
            }
            Self::Vector { chunk, heat_map } => {
                (module(heat_map), format!("paper_vector_{key}_c{chunk}"))
            }
            Self::OneSided { chunk } => (PAPER, format!("paper_one_sided_{key}_c{chunk}")),
            Self::FullScan => (PAPER, format!("paper_full_scan_{key}")),
            Self::WarpScan => (PAPER, format!("paper_warp_scan_{key}")),
        }
    }

    /// Threads per query.
    fn threads(self) -> u64 {
        match self {
            Self::Coalesced {
                group,
                cooperation: Cooperation::MultiLoad,
                ..
            } => group.into(),
            Self::Coalesced { .. }
            | Self::Vector { .. }
            | Self::OneSided { .. }
            | Self::FullScan => 1,
            Self::WarpScan => 32,
        }
    }

    /// Whether threads combine minima in the memory of the answers, which must hold the greatest key before.
    fn combines_in_answers(self) -> bool {
        matches!(
            self,
            Self::Coalesced {
                cooperation: Cooperation::AtomicMin,
                ..
            }
        )
    }
}

/// An index, not yet filled.
pub(super) struct Levels {
    pub(super) index: PaperIndex,
    pub(super) memory: DeviceMemory,
    /// Entries of each level.
    entries: Vec<u64>,
    /// The binary logarithm of the entries of a chunk.
    shift: u32,
}

impl Lab {
    /// Prepares a kernel of the paper, whose index it builds `rounds` times. Levels are added until one has at most
    /// `cutoff` entries.
    ///
    /// # Errors
    /// Those of the driver; [`EngineError::Unsupported`] if the index has too many levels.
    pub fn paper(
        &self,
        column: &DeviceColumn,
        kernel: PaperKernel,
        output: KernelOutput,
        cutoff: u64,
        rounds: u32,
    ) -> Result<KernelUnderTest, EngineError> {
        let key = if column.key_bytes == 4 { "u32" } else { "u64" };
        let width = if column.wide_positions { "p64" } else { "p32" };
        let (module, name) = kernel.module_and_name(key);
        let name = format!("{name}_{width}_{}", output.name());
        let function = self.gpu.modules.function(module, &name)?;
        let positions = output != KernelOutput::Value;
        let levels = self.levels(column, kernel, positions, cutoff)?;
        let build_seconds = if levels.index.top == 0 {
            0.0
        } else {
            let build = self.levels_kernel(column, if positions { width } else { "value" })?;
            self.time(rounds, || self.fill(&levels, build))?.median
        };
        Ok(KernelUnderTest {
            function,
            index: KernelIndex::Paper(Box::new(levels.index)),
            memory: levels.memory,
            build_seconds,
            build_bytes: 0,
            output,
            wide_positions: column.wide_positions,
            threads: kernel.threads(),
            combines_in_answers: kernel.combines_in_answers(),
        })
    }

    /// Returns the kernel that fills levels of minima, with positions of that width or for values alone.
    pub(super) fn levels_kernel(
        &self,
        column: &DeviceColumn,
        kind: &str,
    ) -> Result<Function, EngineError> {
        let key = if column.key_bytes == 4 { "u32" } else { "u64" };
        let name = format!("paper_build_{key}_{kind}");
        self.gpu.modules.function(PAPER, &name)
    }

    /// Allocates the levels of an index.
    pub(super) fn levels(
        &self,
        column: &DeviceColumn,
        kernel: PaperKernel,
        positions: bool,
        cutoff: u64,
    ) -> Result<Levels, EngineError> {
        let mut index = PaperIndex {
            column: DeviceIndex {
                n: column.rows,
                ..DeviceIndex::default()
            },
            level: [0; MAX_PAPER_LEVELS],
            position: [0; MAX_PAPER_LEVELS],
            top: 0,
        };
        index.column.level[0] = column.memory.address();
        index.level[0] = column.memory.address();
        let mut entries = vec![column.rows];
        let mut bytes = 0;
        // The offsets of each level's keys and positions.
        let mut offsets = vec![(0, 0)];
        let shift = kernel.chunk().map_or(0, u32::ilog2);
        let position_bytes = match (positions, column.wide_positions) {
            (false, _) => 0,
            (true, false) => 4,
            (true, true) => 8,
        };
        while kernel.chunk().is_some() && entries[entries.len() - 1] > cutoff {
            if entries.len() == MAX_PAPER_LEVELS {
                return Err(EngineError::Unsupported("this many levels of small chunks"));
            }
            let count = entries[entries.len() - 1].div_ceil(1 << shift);
            let mut append = |width: u64| {
                let start = bytes;
                bytes = (bytes + count * width).next_multiple_of(ALIGN);
                start
            };
            offsets.push((append(column.key_bytes as u64), append(position_bytes)));
            entries.push(count);
        }
        let memory = self.allocate(bytes as usize)?;
        // Kernels read the padding of levels and ignore it.
        // SAFETY: within the memory, which nothing else uses yet.
        unsafe { self.stream.memset(memory.address(), 0, memory.bytes())? };
        for (k, (keys, positions)) in offsets.iter().enumerate().skip(1) {
            index.level[k] = memory.address() + keys;
            if position_bytes > 0 {
                index.position[k] = memory.address() + positions;
            }
        }
        index.top = entries.len() as u32 - 1;
        Ok(Levels {
            index,
            memory,
            entries,
            shift,
        })
    }

    /// Enqueues the build of all levels.
    pub(super) fn fill(&self, levels: &Levels, build: Function) -> Result<(), EngineError> {
        for k in 1..=levels.index.top {
            let (index, entries) = (&levels.index, levels.entries[k as usize]);
            let arguments = [argument(index), argument(&k), argument(&levels.shift)];
            // SAFETY: level k - 1 is complete, level k has room; arguments are those of `paper_build`.
            unsafe { self.stream.launch(build, entries, arguments)? };
        }
        Ok(())
    }
}
