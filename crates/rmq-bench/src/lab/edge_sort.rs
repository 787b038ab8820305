//! A stable sort of edges by where they begin, with the engine's kernels.

use cudarc::driver::sys::CUdeviceptr;
use rmq_engine::EngineError;
use rmq_engine::cuda::driver::stream::{BLOCK_THREADS, argument};
use rmq_engine::cuda::kernels::SORT;
use rmq_engine::cuda::memory::device_memory::DeviceMemory;

use super::device::Lab;

/// `TILE` of `kernels/sort.cu`: words that a block sorts.
const TILE: u64 = 4096;

/// `SCAN_TILE` of `kernels/sort.cu`: numbers that a block sums.
const SCAN_TILE: u64 = 2048;

/// The most bits of a pass.
const PASS_BITS: u32 = 8;

/// Memory of a sort, besides that of the edges.
#[derive(Debug)]
pub struct EdgeSort {
    count: u32,
    counts: DeviceMemory,
    sums: DeviceMemory,
}

impl EdgeSort {
    /// Prepares a sort of `count` edges.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(lab: &Lab, count: u32) -> Result<Self, EngineError> {
        let counts = u64::from(count).div_ceil(TILE) << PASS_BITS;
        // Sums of tiles, of their tiles, and so on: each a small part of the one before.
        let sums = counts.div_ceil(SCAN_TILE) * 2 + 64;
        Ok(Self {
            count,
            counts: lab.allocate(counts as usize * 4)?,
            sums: lab.allocate(sums as usize * 4)?,
        })
    }

    /// The bytes of its memory.
    pub fn bytes(&self) -> usize {
        self.counts.bytes() + self.sums.bytes()
    }

    /// Enqueues a sort by the lowest `bits` of words. Words and edges, which are numbered as they come, move between
    /// two arrays each; returns which of them have the result.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Safety
    /// Each array has a word for each edge, and nothing else uses them meanwhile.
    pub unsafe fn run(
        &self,
        lab: &Lab,
        bits: u32,
        words: [CUdeviceptr; 2],
        edges: [CUdeviceptr; 2],
    ) -> Result<usize, EngineError> {
        let modules = &lab.gpu.modules;
        let (count, scatter) = (
            modules.function(SORT, "sort_count")?,
            modules.function(SORT, "sort_scatter")?,
        );
        let counts = self.counts.address();
        let tiles = u64::from(self.count).div_ceil(TILE);
        let (tile_count, threads) = (tiles as u32, tiles * BLOCK_THREADS);
        let mut from = 0;
        for shift in (0..bits).step_by(PASS_BITS as usize) {
            let digit_bits = PASS_BITS.min(bits - shift);
            let to = 1 - from;
            let numbered = if shift == 0 { 0 } else { edges[from] };
            let arguments = [
                argument(&words[from]),
                argument(&self.count),
                argument(&shift),
                argument(&digit_bits),
                argument(&tile_count),
                argument(&counts),
            ];
            // SAFETY: arguments are those of `sort_count`; there is room for all digits of all tiles.
            unsafe { lab.stream.launch(count, threads, arguments)? };
            sum_before(lab, counts, tiles << digit_bits, self.sums.address())?;
            let arguments = [
                argument(&words[from]),
                argument(&numbered),
                argument(&self.count),
                argument(&shift),
                argument(&digit_bits),
                argument(&tile_count),
                argument(&counts),
                argument(&words[to]),
                argument(&edges[to]),
            ];
            // SAFETY: arguments are those of `sort_scatter`; the rest is guaranteed by the caller.
            unsafe { lab.stream.launch(scatter, threads, arguments)? };
            from = to;
        }
        Ok(from)
    }
}

/// Enqueues the replacement of each number by the sum of those before it.
fn sum_before(
    lab: &Lab,
    numbers: CUdeviceptr,
    count: u64,
    sums: CUdeviceptr,
) -> Result<(), EngineError> {
    let find = |name| lab.gpu.modules.function(SORT, name);
    let (reduce, apply) = (find("scan_reduce_u32")?, find("scan_apply_u32")?);
    let tiles = count.div_ceil(SCAN_TILE);
    let starts = if tiles > 1 { sums } else { 0 };
    if tiles > 1 {
        let arguments = [argument(&numbers), argument(&count), argument(&sums)];
        // SAFETY: arguments are those of `scan_reduce`; there is room for the sums of all tiles, and of theirs.
        unsafe { (lab.stream).launch(reduce, tiles * BLOCK_THREADS, arguments)? };
        sum_before(lab, sums, tiles, sums + tiles * 4)?;
    }
    let arguments = [argument(&numbers), argument(&count), argument(&starts)];
    // SAFETY: arguments are those of `scan_apply`.
    unsafe { (lab.stream).launch(apply, tiles * BLOCK_THREADS, arguments) }
}
