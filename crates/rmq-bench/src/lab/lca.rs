//! Lowest common ancestors in the Cartesian tree, `kernels/baselines/lca.cu`, on a column in the device's memory.

use cudarc::driver::sys::CUdeviceptr;
use rmq_engine::EngineError;
use rmq_engine::cuda::driver::module::Module;
use rmq_engine::cuda::driver::stream::argument;
use rmq_engine::cuda::memory::device_memory::DeviceMemory;
use rmq_engine::cuda::rmq::index::KernelOutput;

use super::device::{DeviceColumn, Lab};
use super::kernel::{KernelIndex, KernelUnderTest};
use super::lca_index::LcaIndex;
use super::paper::PaperKernel;

const LCA: Module = Module {
    name: "lca",
    ptx: include_str!("../../../../kernels/baselines/ptx/lca.ptx"),
};

/// The longest column: numbers of nodes have 32 bits.
pub const MAX_LCA_ROWS: u64 = 1 << 31;

/// Entries of a chunk of the levels that the tree is built from.
pub(super) const CHUNK: u32 = 8;

/// Values that a block sums at once.
pub(super) const TILE: u64 = 2048;

/// Threads of a block.
const BLOCK: u64 = 256;

impl Lab {
    /// Prepares the search by lowest common ancestors, whose tree it builds `rounds` times, levels of minima included.
    ///
    /// # Errors
    /// Those of the driver; [`EngineError::Unsupported`] for more than [`MAX_LCA_ROWS`] values.
    pub fn lca(
        &self,
        column: &DeviceColumn,
        output: KernelOutput,
        rounds: u32,
    ) -> Result<KernelUnderTest, EngineError> {
        if column.rows > MAX_LCA_ROWS {
            return Err(EngineError::Unsupported("a tree of more than 2^31 values"));
        }
        let key = if column.key_bytes == 4 { "u32" } else { "u64" };
        let find = |name: &str| self.gpu.modules.function(LCA, name);
        let function = find(&format!("lca_answer_{key}_p32_{}", output.name()))?;
        let tree = find(&format!("lca_tree_{key}"))?;
        let (paths, labels) = (find("lca_paths")?, find("lca_labels")?);

        let vector = PaperKernel::Vector {
            chunk: CHUNK,
            heat_map: false,
        };
        let levels = self.levels(column, vector, false, CHUNK.into())?;
        let fill = self.levels_kernel(column, "value")?;
        // Arrays of 4 bytes a value, padded to whole tiles: parents, labels (two of them), heads and levels stay.
        let array = column.rows.next_multiple_of(TILE) * 4;
        let memory = self.allocate(5 * array as usize)?;
        let only_build = self.allocate(2 * array as usize)?;
        let sums = self.sums_of_tiles(column.rows)?;
        let at = |number: u64| memory.address() + number * array;
        let index = LcaIndex {
            column: levels.index.column,
            parent: at(0),
            labels: at(1),
            head: at(3),
            level: at(4),
        };
        let (other, ascendants) = (only_build.address(), only_build.address() + array);
        let rows = column.rows;
        let build = self.time(rounds, || {
            self.fill(&levels, fill)?;
            // SAFETY: arrays are that long; arguments are those of `lca_tree` and `lca_paths`. On the stream, each
            // kernel follows those whose results it reads.
            unsafe {
                for differences in [index.level, ascendants] {
                    self.stream.memset(differences, 0, array as usize)?;
                }
                let arguments = [argument(&levels.index), argument(&index), argument(&other)];
                self.stream.launch(tree, rows, arguments)?;
                let arguments = [argument(&index), argument(&other), argument(&ascendants)];
                self.stream.launch(paths, rows, arguments)?;
            }
            self.scan(index.level, rows, sums.address())?;
            self.scan(ascendants, rows, sums.address())?;
            let arguments = [argument(&index), argument(&ascendants)];
            // SAFETY: as above, for `lca_labels`.
            unsafe { self.stream.launch(labels, rows, arguments) }
        })?;
        let build_bytes = levels.memory.bytes() + only_build.bytes() + sums.bytes();
        Ok(KernelUnderTest {
            function,
            index: KernelIndex::Lca(Box::new(index)),
            memory,
            build_seconds: build.median,
            build_bytes: build_bytes as u64,
            output,
            wide_positions: false,
            threads: 1,
            combines_in_answers: false,
        })
    }

    /// Allocates the sums of tiles for [`Lab::scan`] of `count` numbers.
    pub(super) fn sums_of_tiles(&self, count: u64) -> Result<DeviceMemory, EngineError> {
        let sums = self.allocate((count.div_ceil(TILE) * 4 + 2 * TILE * 4) as usize)?;
        // Sums of tiles that are not whole count numbers past the end, but no one reads these sums.
        // SAFETY: within the memory, which nothing else uses yet.
        unsafe { (self.stream).memset(sums.address(), 0, sums.bytes())? };
        Ok(sums)
    }

    /// Enqueues the replacement of each number by the sum of those up to it. `values` and the memory for `sums` are
    /// padded to tiles.
    pub(super) fn scan(
        &self,
        values: CUdeviceptr,
        count: u64,
        sums: CUdeviceptr,
    ) -> Result<(), EngineError> {
        let (sum, scan) = (
            self.gpu.modules.function(LCA, "lca_tile_sums")?,
            self.gpu.modules.function(LCA, "lca_scan")?,
        );
        let tiles = count.div_ceil(TILE);
        let no_sums = 0;
        let of_tiles = if tiles > 1 { &sums } else { &no_sums };
        if tiles > 1 {
            // SAFETY: there is room for a sum per tile; arguments are those of `lca_tile_sums`.
            unsafe {
                let arguments = [argument(&values), argument(&sums)];
                self.stream.launch(sum, tiles * BLOCK, arguments)?;
            }
            self.scan(sums, tiles, sums + tiles.next_multiple_of(TILE) * 4)?;
        }
        // SAFETY: as above, for `lca_scan`.
        unsafe {
            let arguments = [argument(&values), argument(of_tiles)];
            self.stream.launch(scan, tiles * BLOCK, arguments)
        }
    }
}
