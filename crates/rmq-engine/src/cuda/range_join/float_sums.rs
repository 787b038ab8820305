//! Sums of ranges of floats on a device, bit for bit those of the CPU: sums of blocks of values, and of blocks of
//! blocks. `kernels/float_sums.cu` has the arithmetic.

use cudarc::driver::sys::CUdeviceptr;

use super::prefix_sums::PrefixSums;
use super::work::Work;
use crate::EngineError;
use crate::cuda::driver::module::Function;
use crate::cuda::driver::stream::argument;
use crate::cuda::kernels::{FLOAT_SUMS, RANGE_JOIN};
use crate::cuda::memory::device_memory::DeviceMemory;

/// `WIDTH_BITS` of `kernels/float_sums.cu`: 16 values, or blocks, form a block.
const WIDTH_BITS: u32 = 4;

/// Bytes of `Sum` in `kernels/float_sums.cu`.
const SUM_BYTES: u64 = 16;

/// The sums of a column.
#[derive(Debug)]
pub struct FloatSums {
    plain: SumTree,
    outliers: Option<Outliers>,
    /// Answers ranges.
    pub kernel: Function,
}

/// What kernels get of the sums of a column. Mirrors `FloatSums` in `kernels/float_sums.cu`, which documents the
/// fields.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceFloatSums {
    plain: DeviceSumTree,
    outliers: CUdeviceptr,
    outliers_before: CUdeviceptr,
    specials: CUdeviceptr,
    huge: DeviceSumTree,
}

/// Mirrors `SumTree` in `kernels/float_sums.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct DeviceSumTree {
    values: CUdeviceptr,
    blocks: CUdeviceptr,
    until: CUdeviceptr,
    since: CUdeviceptr,
    n: u64,
}

/// Values without outliers, and the sums of their blocks.
#[derive(Debug)]
struct SumTree {
    values: DeviceMemory,
    /// The arrays `blocks`, `until` and `since` of `SumTree` in `kernels/float_sums.cu`, one after another.
    sums: DeviceMemory,
    n: u64,
}

/// The values that blocks can't contain: NaN, infinities, and values so large that the sum of a few overflows.
#[derive(Debug)]
struct Outliers {
    /// A bit for each row, and the set bits before each word.
    rows: DeviceMemory,
    rows_before: DeviceMemory,
    specials: DeviceMemory,
    huge: SumTree,
}

/// Values in sorted order, before their sums are built.
#[derive(Debug)]
pub struct GatheredFloats {
    values: DeviceMemory,
    outliers: DeviceMemory,
    n: u64,
}

impl FloatSums {
    /// The sums as kernels get them, valid as long as `self`.
    pub fn on_device(&self) -> DeviceFloatSums {
        let plain = self.plain.on_device();
        let Some(outliers) = &self.outliers else {
            return DeviceFloatSums {
                plain,
                ..DeviceFloatSums::default()
            };
        };
        DeviceFloatSums {
            plain,
            outliers: outliers.rows.address(),
            outliers_before: outliers.rows_before.address(),
            specials: outliers.specials.address(),
            huge: outliers.huge.on_device(),
        }
    }

    /// Bytes of the device's memory.
    pub fn bytes(&self) -> usize {
        let outliers = self.outliers.as_ref().map_or(0, |outliers| {
            let rows = outliers.rows.bytes() + outliers.rows_before.bytes();
            rows + outliers.specials.bytes() + outliers.huge.bytes()
        });
        self.plain.bytes() + outliers
    }
}

/// The most bytes that the sums of `rows` values take, without outliers and with as many as there are values.
pub fn float_sum_bytes(rows: usize) -> [usize; 2] {
    let bitmap = rows.div_ceil(32) * 4;
    let tree = rows * 8 + 3 * num_blocks(rows as u64) as usize * SUM_BYTES as usize;
    // The counts of outliers are allocated to find that there are none.
    let plain = tree + 2 * bitmap + 4;
    [plain, plain + tree + 3 * 4 * (rows + 1)]
}

/// The number of blocks of all levels.
fn num_blocks(values: u64) -> u64 {
    let (mut level, mut all) = (values, 0);
    while level > 0 {
        level >>= WIDTH_BITS;
        all += level;
    }
    all
}

impl GatheredFloats {
    /// Enqueues the move of `n` values to sorted order, and the search for outliers.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Safety
    /// There are 64-bit floats at `from` for each row of `order` (null: as many as `n`), and unless `valid` is null as
    /// many bits in sorted order, until the stream was waited for.
    pub unsafe fn gather(
        work: &Work<'_>,
        from: CUdeviceptr,
        order: CUdeviceptr,
        valid: CUdeviceptr,
        n: u64,
    ) -> Result<Self, EngineError> {
        let values = work.allocate::<f64>(n)?;
        let outliers = work.allocate::<u32>(n.div_ceil(32))?;
        let (to, bits) = (values.address(), outliers.address());
        let arguments = [
            argument(&from),
            argument(&order),
            argument(&valid),
            argument(&n),
            argument(&to),
            argument(&bits),
        ];
        let kernel = work.kernel(FLOAT_SUMS, "float_gather")?;
        // SAFETY: arguments are those of `float_gather`; guaranteed by the caller.
        unsafe { work.launch(kernel, n, arguments)? };
        Ok(Self {
            values,
            outliers,
            n,
        })
    }

    /// Builds the sums. Waits for the number of outliers, and enqueues the rest.
    ///
    /// # Errors
    /// Those of the device.
    pub fn build(self, work: &mut Work<'_>) -> Result<FloatSums, EngineError> {
        let Self {
            values,
            outliers,
            n,
        } = self;
        let words = n.div_ceil(32);
        let before = work.allocate::<u32>(words + 1)?;
        let (bits, counts) = (outliers.address(), before.address());
        let count_bits = work.kernel(RANGE_JOIN, "join_count_bits")?;
        let sums = PrefixSums::new::<u32>(work, words + 1)?;
        let arguments = [argument(&bits), argument(&words), argument(&counts)];
        // SAFETY: arguments are those of `join_count_bits`; there are this many words and counts.
        let [count] = unsafe {
            work.launch(count_bits, words + 1, arguments)?;
            sums.run(work, counts, words + 1)?;
            work.read::<u32, 1>(counts + words * 4)?
        };
        drop(sums);
        let outliers = if count > 0 {
            Some(Outliers::take_out(
                work,
                &values,
                n,
                (outliers, before),
                count,
            )?)
        } else {
            None
        };
        Ok(FloatSums {
            plain: SumTree::new(work, values, n)?,
            outliers,
            kernel: work.kernel(FLOAT_SUMS, "float_sums")?,
        })
    }
}

impl Outliers {
    /// Moves `count` outliers out of `n` values and leaves zeros. Waits for that.
    fn take_out(
        work: &Work<'_>,
        values: &DeviceMemory,
        n: u64,
        (rows, rows_before): (DeviceMemory, DeviceMemory),
        count: u32,
    ) -> Result<Self, EngineError> {
        let huge = work.allocate::<f64>(u64::from(count))?;
        let stride = u64::from(count) + 1;
        let specials = work.allocate::<u32>(3 * stride)?;
        let addresses = [values, &rows, &rows_before, &huge, &specials].map(DeviceMemory::address);
        let [from, bits, before, to, to_specials] = addresses;
        let arguments = [
            argument(&from),
            argument(&n),
            argument(&bits),
            argument(&before),
            argument(&count),
            argument(&to),
            argument(&to_specials),
        ];
        let kernel = work.kernel(FLOAT_SUMS, "float_take_outliers")?;
        let sums = PrefixSums::new::<u32>(work, stride)?;
        // SAFETY: arguments are those of `float_take_outliers`; `count` bits are set, and there is room for this many
        // outliers.
        unsafe {
            work.launch(kernel, n, arguments)?;
            for kind in 0..3 {
                sums.run(work, to_specials + kind * stride * 4, stride)?;
            }
        }
        let huge = SumTree::new(work, huge, u64::from(count))?;
        // The sums are freed.
        work.finish_step()?;
        Ok(Self {
            rows,
            rows_before,
            specials,
            huge,
        })
    }
}

impl SumTree {
    /// Enqueues the sums of blocks of `n` values, which are written by work that is enqueued already.
    fn new(work: &Work<'_>, values: DeviceMemory, n: u64) -> Result<Self, EngineError> {
        let array = num_blocks(n) * SUM_BYTES;
        let sums = work.allocate::<[f64; 2]>(3 * num_blocks(n))?;
        let sum_values = work.kernel(FLOAT_SUMS, "float_sum_values")?;
        let sum_blocks = work.kernel(FLOAT_SUMS, "float_sum_blocks")?;
        let (from, mut blocks) = (values.address(), sums.address());
        let mut count = n >> WIDTH_BITS;
        if count > 0 {
            let arguments = [argument(&from), argument(&count), argument(&blocks)];
            // SAFETY: arguments are those of `float_sum_values`; there are 16 values for each block, and room for all
            // blocks.
            unsafe { work.launch(sum_values, count, arguments)? };
        }
        while count > 0 {
            let (until, since) = (blocks + array, blocks + 2 * array);
            let above = blocks + count * SUM_BYTES;
            let arguments = [
                argument(&blocks),
                argument(&count),
                argument(&until),
                argument(&since),
                argument(&above),
            ];
            // SAFETY: arguments are those of `float_sum_blocks`; each array has room for the blocks of all levels, and
            // `above` for those of the next one.
            unsafe { work.launch(sum_blocks, count.div_ceil(1 << WIDTH_BITS), arguments)? };
            blocks = above;
            count >>= WIDTH_BITS;
        }
        Ok(Self { values, sums, n })
    }

    fn on_device(&self) -> DeviceSumTree {
        let (blocks, array) = (self.sums.address(), num_blocks(self.n) * SUM_BYTES);
        DeviceSumTree {
            values: self.values.address(),
            blocks,
            until: blocks + array,
            since: blocks + 2 * array,
            n: self.n,
        }
    }

    fn bytes(&self) -> usize {
        self.values.bytes() + self.sums.bytes()
    }
}
