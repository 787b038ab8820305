//! The kernels of the paper: `kernels/baselines/paper.cu`.

use cudarc::driver::sys::CUdeviceptr;

use super::contestant::{Contestant, Wanted, Work};
use super::{DeviceColumn, Lab, wide};
use rmq_engine::EngineError;
use rmq_engine::cuda::layout::Index;
use rmq_engine::cuda::memory::DeviceMemory;
use rmq_engine::cuda::module::{Function, Module};
use rmq_engine::cuda::stream::argument;

const PAPER_LEVELS: usize = 12;

/// Levels begin at multiples of this.
const ALIGN: u64 = 256;

/// A kernel of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paper {
    /// CL: groups of `group` threads, chunks of `chunk` values.
    Coalesced {
        /// Threads of a group.
        group: u32,
        /// Entries of a chunk.
        chunk: u32,
        /// Whether a warp reads 32 queries at once and hands them round; else each group loads its query.
        queue: bool,
        /// Whether the kernel is of those made for the heat map.
        heat_map: bool,
    },
    /// VL: a thread a query, chunks of `chunk` values.
    Vector {
        /// Entries of a chunk.
        chunk: u32,
    },
    /// No index.
    FullScan,
}

/// The twin of `PaperIndex` in `kernels/baselines/paper.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct PaperIndex {
    column: Index,
    level: [CUdeviceptr; PAPER_LEVELS],
    position: [CUdeviceptr; PAPER_LEVELS],
    top: u32,
}

/// The index and what fills it.
pub(super) struct Levels {
    pub(super) index: PaperIndex,
    entries: Vec<u64>,
    shift: u32,
    build: Option<Function>,
    pub(super) bytes: u64,
}

impl Paper {
    fn chunk(self) -> Option<u32> {
        match self {
            Self::Coalesced { chunk, .. } | Self::Vector { chunk } => Some(chunk),
            Self::FullScan => None,
        }
    }

    fn kernel(self, key: &str, positions: &str, wanted: &str) -> (Module, String) {
        match self {
            Self::Coalesced {
                group,
                chunk,
                queue,
                heat_map,
            } => {
                let kind = if queue { "coalesced" } else { "multi_load" };
                let module = if heat_map {
                    Module::PaperHeatMap
                } else {
                    Module::Paper
                };
                let name = format!("paper_{kind}_{key}_g{group}_c{chunk}_{positions}_{wanted}");
                (module, name)
            }
            Self::Vector { chunk } => (
                Module::Paper,
                format!("paper_vector_{key}_c{chunk}_{positions}_{wanted}"),
            ),
            Self::FullScan => (
                Module::Paper,
                format!("paper_full_scan_{key}_{positions}_{wanted}"),
            ),
        }
    }

    /// Threads for `queries` queries.
    fn threads(self, queries: u64) -> u64 {
        match self {
            Self::Coalesced {
                group,
                queue: false,
                ..
            } => queries * u64::from(group),
            Self::Coalesced { .. } | Self::Vector { .. } => queries,
            Self::FullScan => queries * 32,
        }
    }
}

impl Lab {
    /// A kernel of the paper with its index, built `rounds` times; no level has more entries than `cutoff` but the column.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn paper(
        &self,
        column: &DeviceColumn,
        paper: Paper,
        wanted: Wanted,
        cutoff: u64,
        rounds: u32,
    ) -> Result<Contestant, EngineError> {
        let key = if column.key_bytes == 4 { "u32" } else { "u64" };
        let positions = if wide(column.rows) { "p64" } else { "p32" };
        let (module, name) = paper.kernel(key, positions, wanted.name());
        let kernel = self.gpu.modules.function(module, &name)?;
        let (levels, memory) = self.levels(column, paper, wanted, cutoff)?;
        let build_seconds = match levels.build {
            Some(build) => self.time(rounds, || levels.fill(self, build))?,
            None => 0.0,
        };
        Ok(Contestant {
            kernel,
            _memory: memory,
            index_bytes: levels.bytes,
            build_seconds,
            wanted,
            wide: wide(column.rows),
            work: Work::Paper(Box::new(levels.index), paper.threads(1)),
        })
    }

    fn levels(
        &self,
        column: &DeviceColumn,
        paper: Paper,
        wanted: Wanted,
        cutoff: u64,
    ) -> Result<(Levels, DeviceMemory), EngineError> {
        let mut index = PaperIndex {
            column: Index {
                n: column.rows,
                ..Index::default()
            },
            level: [0; PAPER_LEVELS],
            position: [0; PAPER_LEVELS],
            top: 0,
        };
        index.column.level[0] = column.memory.address();
        index.level[0] = column.memory.address();
        let mut entries = vec![column.rows];
        let mut bytes = 0;
        // Where parts of level k begin.
        let mut starts = vec![(0, 0)];
        let shift = paper.chunk().map_or(0, u32::ilog2);
        let at_bytes = match (wanted, wide(column.rows)) {
            (Wanted::Value, _) => 0,
            (Wanted::Position, false) => 4,
            (Wanted::Position, true) => 8,
        };
        while paper.chunk().is_some() && entries[entries.len() - 1] > cutoff {
            if entries.len() == PAPER_LEVELS {
                return Err(EngineError::Unsupported("so many levels of small chunks"));
            }
            let count = entries[entries.len() - 1].div_ceil(1 << shift);
            let mut part = |width: u64| {
                let start = bytes;
                bytes = (bytes + count * width).next_multiple_of(ALIGN);
                start
            };
            let keys = part(column.key_bytes as u64);
            let positions = part(at_bytes);
            starts.push((keys, positions));
            entries.push(count);
        }
        let memory = self.memory(bytes as usize)?;
        for (k, (keys, positions)) in starts.iter().enumerate().skip(1) {
            index.level[k] = memory.address() + keys;
            if at_bytes > 0 {
                index.position[k] = memory.address() + positions;
            }
        }
        index.top = entries.len() as u32 - 1;
        let build = if index.top == 0 {
            None
        } else {
            let key = if column.key_bytes == 4 { "u32" } else { "u64" };
            let kind = match at_bytes {
                0 => "value",
                4 => "p32",
                _ => "p64",
            };
            let name = format!("paper_build_{key}_{kind}");
            Some(self.gpu.modules.function(Module::Paper, &name)?)
        };
        let levels = Levels {
            index,
            entries,
            shift,
            build,
            bytes,
        };
        Ok((levels, memory))
    }
}

impl Levels {
    fn fill(&self, lab: &Lab, build: Function) -> Result<(), EngineError> {
        for k in 1..=self.index.top {
            let (index, entries) = (&self.index, self.entries[k as usize]);
            let arguments = [argument(index), argument(&k), argument(&self.shift)];
            // SAFETY: level k - 1 is complete, level k has room; arguments are those of `paper_build`.
            unsafe { lab.stream.launch(build, entries, arguments)? };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twin_has_the_size_of_the_kernels_struct() {
        assert_eq!(
            size_of::<PaperIndex>(),
            size_of::<Index>() + 2 * PAPER_LEVELS * 8 + 8
        );
    }
}
