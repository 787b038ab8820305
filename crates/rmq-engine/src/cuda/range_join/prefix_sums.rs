//! Prefix sums on a device.

use cudarc::driver::sys::CUdeviceptr;

use super::work::Work;
use crate::EngineError;
use crate::cuda::driver::module::Function;
use crate::cuda::driver::stream::{BLOCK_THREADS, argument};
use crate::cuda::kernels::SORT;
use crate::cuda::memory::device_memory::DeviceMemory;

/// `SCAN_TILE` of `kernels/sort.cu`.
pub const TILE: u64 = 2048;

/// Numbers that can be summed.
pub trait Summand {
    /// The type as it appears in the names of kernels.
    const NAME: &'static str;
}

impl Summand for u32 {
    const NAME: &'static str = "u32";
}

impl Summand for u64 {
    const NAME: &'static str = "u64";
}

impl Summand for u128 {
    const NAME: &'static str = "u128";
}

/// The kernels for numbers of one width, and memory for the sums of tiles.
#[derive(Debug)]
pub struct PrefixSums {
    reduce: Function,
    apply: Function,
    /// The sums of tiles, then the sums of their tiles, and so on.
    sums: DeviceMemory,
    bytes: u64,
}

impl PrefixSums {
    /// Prepares sums of at most `len` numbers.
    ///
    /// # Errors
    /// Those of the device.
    pub fn new<T: Summand>(work: &Work<'_>, len: u64) -> Result<Self, EngineError> {
        let find = |step| work.kernel(SORT, &format!("scan_{step}_{}", T::NAME));
        let (mut tiles, mut all) = (len, 0);
        while tiles > 1 {
            tiles = tiles.div_ceil(TILE);
            all += tiles;
        }
        Ok(Self {
            reduce: find("reduce")?,
            apply: find("apply")?,
            sums: work.allocate::<T>(all)?,
            bytes: size_of::<T>() as u64,
        })
    }

    /// Enqueues the replacement of each of `len` numbers by the sum of those before it, modulo their width.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Safety
    /// The memory from `numbers` on has `len` numbers of this width, at most as many as prepared; nothing else uses it
    /// until the stream was waited for.
    pub unsafe fn run(
        &self,
        work: &Work<'_>,
        numbers: CUdeviceptr,
        len: u64,
    ) -> Result<(), EngineError> {
        // SAFETY: guaranteed by the caller; the sums are as long as `new` computed.
        unsafe { self.run_level(work, numbers, len, self.sums.address()) }
    }

    unsafe fn run_level(
        &self,
        work: &Work<'_>,
        numbers: CUdeviceptr,
        len: u64,
        sums: CUdeviceptr,
    ) -> Result<(), EngineError> {
        let tiles = len.div_ceil(TILE);
        let mut starts: CUdeviceptr = 0;
        if tiles > 1 {
            starts = sums;
            let arguments = [argument(&numbers), argument(&len), argument(&sums)];
            // SAFETY: arguments are those of `scan_reduce`; there is room for the sums of all tiles, and behind them
            // for those of their tiles.
            unsafe {
                work.launch(self.reduce, tiles * BLOCK_THREADS, arguments)?;
                self.run_level(work, sums, tiles, sums + tiles * self.bytes)?;
            }
        }
        let arguments = [argument(&numbers), argument(&len), argument(&starts)];
        // SAFETY: arguments are those of `scan_apply`; the starts of tiles are complete when it runs.
        unsafe { work.launch(self.apply, tiles * BLOCK_THREADS, arguments) }
    }
}
