//! The order of a build side: a stable sort of row numbers by group and key on a device.
//!
//! 1. Rows that come in order are not sorted.
//! 2. Rows whose keys ascend within each group are sorted by group id alone. That is tried first where the groups are
//!    not in order, as checking it costs less than a sort by keys.
//! 3. Other rows are sorted by the bits in which keys differ, and above them the bits of group ids.
//!
//! The bits to sort by are taken 32 at a time, from the lowest up. A pass sorts by at most 8 of them.

use cudarc::driver::sys::CUdeviceptr;

use super::prefix_sums::PrefixSums;
use super::rows::DeviceRows;
use super::work::Work;
use crate::EngineError;
use crate::cuda::driver::module::Function;
use crate::cuda::driver::stream::{BLOCK_THREADS, argument};
use crate::cuda::kernels::{RANGE_JOIN, SORT};
use crate::cuda::key::CudaKey;
use crate::cuda::memory::device_memory::DeviceMemory;

/// `TILE` of `kernels/sort.cu`: rows that a block sorts.
pub const TILE: u64 = 4096;

/// The most bits of a pass.
pub const PASS_BITS: u32 = 8;

/// Bits of `Disorder` in `kernels/range_join.cu`.
const GROUPS_DESCEND: u32 = 1;
const KEYS_DESCEND: u32 = 2;
const KEYS_DESCEND_ANYWHERE: u32 = 4;

/// `KEYS_A_THREAD` of `kernels/range_join.cu`.
const KEYS_A_THREAD: u64 = 16;

/// The rows of a build side in sorted order.
#[derive(Debug)]
pub struct SortedOrder {
    /// The row at each position; `None` if rows came in order.
    pub order: Option<DeviceMemory>,
    /// The first position of each group, and the end of the last one.
    pub starts: DeviceMemory,
    /// The rows that are in a group, which come first.
    pub rows: u64,
}

impl SortedOrder {
    /// The address of the row numbers; null if rows came in order.
    pub fn address(&self) -> CUdeviceptr {
        self.order.as_ref().map_or(0, DeviceMemory::address)
    }
}

/// Sorts the rows, one or more.
///
/// # Errors
/// [`EngineError::Stopped`], and those of the device.
///
/// # Safety
/// `rows` refers to memory of the device with `n` keys of type `K` and `n` ids, none above `groups`.
pub unsafe fn sort_rows<K: CudaKey>(
    work: &mut Work<'_>,
    rows: &DeviceRows,
) -> Result<SortedOrder, EngineError> {
    // SAFETY: guaranteed by the caller; orders are permutations of the rows.
    unsafe {
        let order = order_rows::<K>(work, rows)?;
        let address = order.as_ref().map_or(0, DeviceMemory::address);
        let starts = work.allocate::<u32>(u64::from(rows.groups) + 1)?;
        let to = starts.address();
        let arguments = [argument(rows), argument(&address), argument(&to)];
        let kernel = work.kernel(RANGE_JOIN, "join_group_starts")?;
        work.launch(kernel, u64::from(rows.groups) + 1, arguments)?;
        let [end] = work.read::<u32, 1>(to + u64::from(rows.groups) * 4)?;
        work.check_stopped()?;
        Ok(SortedOrder {
            order,
            starts,
            rows: u64::from(end),
        })
    }
}

/// Returns the row numbers in sorted order; `None` if that is the rows' own order.
///
/// # Safety
/// As [`sort_rows`].
unsafe fn order_rows<K: CudaKey>(
    work: &mut Work<'_>,
    rows: &DeviceRows,
) -> Result<Option<DeviceMemory>, EngineError> {
    let results = work.allocate::<u64>(3)?;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let disorder = check::<K>(work, rows, 0, &results)?;
        if disorder & (GROUPS_DESCEND | KEYS_DESCEND) == 0 {
            return Ok(None);
        }
        let group_bits = if rows.ids == 0 {
            0
        } else {
            u32::BITS - rows.groups.leading_zeros()
        };
        if disorder & GROUPS_DESCEND != 0 {
            let by_group = SortBits {
                shift: 0,
                width: 0,
                total: group_bits,
            };
            let order = by_group.sort::<K>(work, rows)?;
            if disorder & KEYS_DESCEND_ANYWHERE == 0
                || check::<K>(work, rows, order.address(), &results)? & KEYS_DESCEND == 0
            {
                return Ok(Some(order));
            }
        }
        let differ = differing_bits::<K>(work, rows, &results)?;
        let shift = differ.trailing_zeros().min(u128::BITS - 1);
        let width = u128::BITS - (differ >> shift).leading_zeros();
        let by_group_and_key = SortBits {
            shift,
            width,
            total: width + group_bits,
        };
        by_group_and_key.sort::<K>(work, rows).map(Some)
    }
}

/// Returns how positions are out of order.
unsafe fn check<K: CudaKey>(
    work: &mut Work<'_>,
    rows: &DeviceRows,
    order: CUdeviceptr,
    results: &DeviceMemory,
) -> Result<u32, EngineError> {
    let kernel = work.kernel(RANGE_JOIN, &format!("join_check_{}", K::NAME))?;
    let disorder = results.address();
    let arguments = [argument(rows), argument(&order), argument(&disorder)];
    // SAFETY: the result is a word; arguments are those of `join_check`, guaranteed by the caller.
    unsafe {
        work.stream().memset(disorder, 0, size_of::<u32>())?;
        work.launch(kernel, rows.n, arguments)?;
        Ok(work.read::<u32, 1>(disorder)?[0])
    }
}

/// Returns the bits in which keys differ.
unsafe fn differing_bits<K: CudaKey>(
    work: &mut Work<'_>,
    rows: &DeviceRows,
    results: &DeviceMemory,
) -> Result<u128, EngineError> {
    let kernel = work.kernel(RANGE_JOIN, &format!("join_key_bits_{}", K::NAME))?;
    let differ = results.address() + 8;
    let arguments = [argument(rows), argument(&differ)];
    // SAFETY: the result is two words of 64 bits; arguments are those of `join_key_bits`, guaranteed by the caller.
    unsafe {
        work.stream().memset(differ, 0, 2 * size_of::<u64>())?;
        work.launch(kernel, rows.n.div_ceil(KEYS_A_THREAD), arguments)?;
        let [low, high] = work.read::<u64, 2>(differ)?;
        Ok(u128::from(high) << 64 | u128::from(low))
    }
}

/// What rows are sorted by.
#[derive(Debug, Clone, Copy)]
struct SortBits {
    /// The lowest bit of keys that counts.
    shift: u32,
    /// The number of bits of keys.
    width: u32,
    /// The number of bits, with those of group ids.
    total: u32,
}

impl SortBits {
    /// Returns the sorted row numbers.
    ///
    /// # Safety
    /// As [`sort_rows`].
    unsafe fn sort<K: CudaKey>(
        self,
        work: &Work<'_>,
        rows: &DeviceRows,
    ) -> Result<DeviceMemory, EngineError> {
        let take_words = work.kernel(RANGE_JOIN, &format!("join_sort_words_{}", K::NAME))?;
        let passes = Passes::new(work, rows.n)?;
        let mut words = [work.allocate::<u32>(rows.n)?, work.allocate::<u32>(rows.n)?];
        let mut orders = [work.allocate::<u32>(rows.n)?, work.allocate::<u32>(rows.n)?];
        let mut order: CUdeviceptr = 0;
        for from in (0..self.total).step_by(32) {
            let to = words[0].address();
            let arguments = [
                argument(rows),
                argument(&order),
                argument(&self.shift),
                argument(&self.width),
                argument(&from),
                argument(&to),
            ];
            // SAFETY: arguments are those of `join_sort_words`.
            unsafe { work.launch(take_words, rows.n, arguments)? };
            let width = (self.total - from).min(32);
            let count = width.div_ceil(PASS_BITS);
            let mut shift = 0;
            for pass in 0..count {
                // The bits are spread evenly over the passes.
                let bits = (width - shift).div_ceil(count - pass);
                let digit = Digit { shift, bits };
                let to = [words[1].address(), orders[1].address()];
                // SAFETY: there is memory for all rows; the results are other memory than the input.
                unsafe { passes.run(work, digit, [words[0].address(), order], to)? };
                words.swap(0, 1);
                orders.swap(0, 1);
                order = orders[0].address();
                shift += bits;
            }
            work.check_stopped()?;
        }
        work.stream().wait()?;
        let [order, _] = orders;
        Ok(order)
    }
}

/// Bits of a word that a pass sorts by.
#[derive(Debug, Clone, Copy)]
struct Digit {
    shift: u32,
    bits: u32,
}

/// The kernels of passes over `n` rows, and memory for their counts.
#[derive(Debug)]
struct Passes {
    count: Function,
    scatter: Function,
    n: u32,
    tiles: u64,
    counts: DeviceMemory,
    sums: PrefixSums,
}

impl Passes {
    fn new(work: &Work<'_>, n: u64) -> Result<Self, EngineError> {
        let tiles = n.div_ceil(TILE);
        let counts = tiles << PASS_BITS;
        Ok(Self {
            count: work.kernel(SORT, "sort_count")?,
            scatter: work.kernel(SORT, "sort_scatter")?,
            n: n as u32,
            tiles,
            counts: work.allocate::<u32>(counts)?,
            sums: PrefixSums::new::<u32>(work, counts)?,
        })
    }

    /// Enqueues a pass `from` words and row numbers (null: 0, 1, 2 and so on) `to` others.
    ///
    /// # Safety
    /// All have memory for `n` numbers.
    unsafe fn run(
        &self,
        work: &Work<'_>,
        digit: Digit,
        from: [CUdeviceptr; 2],
        to: [CUdeviceptr; 2],
    ) -> Result<(), EngineError> {
        let (counts, tiles) = (self.counts.address(), self.tiles as u32);
        let threads = self.tiles * BLOCK_THREADS;
        let arguments = [
            argument(&from[0]),
            argument(&self.n),
            argument(&digit.shift),
            argument(&digit.bits),
            argument(&tiles),
            argument(&counts),
        ];
        // SAFETY: arguments are those of the kernels; the counts have room for all digits of all tiles.
        unsafe {
            work.launch(self.count, threads, arguments)?;
            self.sums.run(work, counts, self.tiles << digit.bits)?;
        }
        let arguments = [
            argument(&from[0]),
            argument(&from[1]),
            argument(&self.n),
            argument(&digit.shift),
            argument(&digit.bits),
            argument(&tiles),
            argument(&counts),
            argument(&to[0]),
            argument(&to[1]),
        ];
        // SAFETY: as above.
        unsafe { work.launch(self.scatter, threads, arguments) }
    }
}
