//! A value column of a build side on a device, in sorted order, as the structures that answer it.

use cudarc::driver::sys::CUdeviceptr;

use super::float_sums::{FloatSums, GatheredFloats};
use super::prefix_sums::PrefixSums;
use super::work::Work;
use crate::cuda::driver::module::Function;
use crate::cuda::driver::stream::argument;
use crate::cuda::kernels::RANGE_JOIN;
use crate::cuda::key::CudaKey;
use crate::cuda::memory::device_memory::DeviceMemory;
use crate::cuda::rmq::build::{BuildKernels, allocate, fill_paddings};
use crate::cuda::rmq::index::{KernelOutput, answer_kernel};
use crate::cuda::rmq::layout::{DeviceIndex, Layout};
use crate::cuda::rmq::shape::Shape;
use crate::{Addends, ColumnSize, Encoding, EngineError, Extreme, ExtremeIndex, RangeJoinColumn};

/// A value column on a device.
#[derive(Debug)]
pub struct DeviceColumn {
    pub value_bytes: usize,
    min: Option<ExtremeReplica>,
    max: Option<ExtremeReplica>,
    /// A bit per row that is not NULL; none without NULLs.
    valid: Option<DeviceMemory>,
    /// The number of set bits before each word of `valid`.
    valid_before: Option<DeviceMemory>,
    pub sums: Option<ColumnSums>,
    /// The values themselves.
    pub values: Option<DeviceMemory>,
    /// The kernel that takes single values.
    pub take: Function,
}

/// What sums of ranges are computed from.
#[derive(Debug)]
pub enum ColumnSums {
    /// The sum of the integers before each row.
    Integers(DeviceMemory),
    Floats(Box<FloatSums>),
}

impl DeviceColumn {
    /// The index of an extreme, if it was built.
    pub fn extreme(&self, extreme: Extreme) -> Option<&ExtremeReplica> {
        match extreme {
            Extreme::Min => self.min.as_ref(),
            Extreme::Max => self.max.as_ref(),
        }
    }

    /// The addresses of the validity bits and of the counts before their words; null without NULLs.
    pub fn valid_addresses(&self) -> (CUdeviceptr, CUdeviceptr) {
        let address =
            |memory: &Option<DeviceMemory>| memory.as_ref().map_or(0, DeviceMemory::address);
        (address(&self.valid), address(&self.valid_before))
    }

    /// Bytes of the device's memory.
    pub fn bytes(&self) -> usize {
        let parts = [&self.valid, &self.valid_before, &self.values];
        let indexes = [&self.min, &self.max].into_iter().flatten();
        let parts = parts.into_iter().flatten().map(DeviceMemory::bytes);
        let sums = self.sums.as_ref().map_or(0, |sums| match sums {
            ColumnSums::Integers(sums) => sums.bytes(),
            ColumnSums::Floats(sums) => sums.bytes(),
        });
        parts.sum::<usize>() + sums + indexes.map(|one| one.memory.bytes()).sum::<usize>()
    }
}

/// The index of one extreme.
#[derive(Debug)]
pub struct ExtremeReplica {
    /// Points into `memory`.
    pub index: Box<DeviceIndex>,
    memory: DeviceMemory,
    kernels: [Function; 3],
}

impl ExtremeReplica {
    /// The kernel that writes these outputs. Rows need an index with rows.
    pub fn kernel(&self, output: KernelOutput) -> Function {
        self.kernels[output as usize]
    }
}

/// The bytes of a sum of integers of this many bytes.
pub fn sum_bytes(value_bytes: usize) -> usize {
    value_bytes.max(size_of::<u64>())
}

/// A column as it came, on the device.
#[derive(Debug, Clone, Copy)]
pub struct StagedColumn<'a> {
    pub column: &'a RangeJoinColumn,
    pub values: CUdeviceptr,
    /// A bit per row; none without NULLs.
    pub valid: Option<CUdeviceptr>,
    /// The row at each position; null if rows came in order.
    pub order: CUdeviceptr,
    /// The rows that are in a group: one or more.
    pub rows: u64,
    pub shape: Option<Shape>,
}

/// A column whose values are in sorted order, and whose indexes and sums are not built yet.
#[derive(Debug)]
pub struct GatheredColumn {
    column: DeviceColumn,
    rows: u64,
    indexes: Vec<PendingIndex>,
    floats: Option<GatheredFloats>,
}

#[derive(Debug)]
struct PendingIndex {
    layout: Layout,
    index: DeviceIndex,
    kernels: BuildKernels,
}

impl StagedColumn<'_> {
    /// Enqueues the moves of values to sorted order.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Safety
    /// The addresses are those of values of type `K` and of bits, one for each row of `order`, and stay valid until the
    /// stream was waited for.
    pub unsafe fn gather<K: CudaKey>(self, work: &Work<'_>) -> Result<GatheredColumn, EngineError> {
        let spec = self.column;
        let chunks = K::chunks(&spec.values);
        let chunk = chunks.and_then(<[_]>::first);
        let encoding = chunk.map_or_else(Encoding::unsigned, crate::Column::encoding);
        let mut column = DeviceColumn {
            value_bytes: size_of::<K>(),
            min: None,
            max: None,
            valid: None,
            valid_before: None,
            sums: None,
            values: None,
            take: work.kernel(RANGE_JOIN, &format!("join_take_{}", K::NAME))?,
        };
        let mut indexes = vec![];
        let mut floats = None;
        // SAFETY: each piece of memory is new and as long as what is written to it; guaranteed by the caller.
        unsafe {
            let sums_or_counts = spec.counts || spec.sums.is_some();
            if self.valid.is_some() && (sums_or_counts || spec.single_values) {
                let words = self.rows.div_ceil(32);
                let valid = work.allocate::<u32>(words)?;
                self.gather_valid(work, valid.address())?;
                if sums_or_counts {
                    let before = work.allocate::<u32>(words + 1)?;
                    let (from, to) = (valid.address(), before.address());
                    let kernel = work.kernel(RANGE_JOIN, "join_count_bits")?;
                    let arguments = [argument(&from), argument(&words), argument(&to)];
                    work.launch(kernel, words + 1, arguments)?;
                    column.valid_before = Some(before);
                }
                column.valid = Some(valid);
            }
            if spec.single_values {
                let values = work.allocate::<K>(self.rows)?;
                self.gather_values::<K>(work, values.address())?;
                column.values = Some(values);
            }
            let (valid, _) = column.valid_addresses();
            match spec.sums {
                None => {}
                Some(Addends::Floats) => {
                    let (from, order, rows) = (self.values, self.order, self.rows);
                    floats = Some(GatheredFloats::gather(work, from, order, valid, rows)?);
                }
                Some(addends) => {
                    let bytes = sum_bytes(size_of::<K>()) as u64;
                    let sums = work.allocate::<u8>((self.rows + 1) * bytes)?;
                    self.gather_addends::<K>(work, valid, addends, sums.address())?;
                    column.sums = Some(ColumnSums::Integers(sums));
                }
            }
            for extreme in [Extreme::Min, Extreme::Max] {
                let Some(kind) = spec.index_of(extreme) else {
                    continue;
                };
                let (replica, pending) =
                    self.gather_index::<K>(work, encoding.directed(extreme), kind)?;
                indexes.push(pending);
                match extreme {
                    Extreme::Min => column.min = Some(replica),
                    Extreme::Max => column.max = Some(replica),
                }
            }
        }
        Ok(GatheredColumn {
            column,
            rows: self.rows,
            indexes,
            floats,
        })
    }

    unsafe fn gather_values<K: CudaKey>(
        &self,
        work: &Work<'_>,
        to: CUdeviceptr,
    ) -> Result<(), EngineError> {
        // SAFETY: guaranteed by the caller.
        unsafe { gather::<K>(work, self.values, self.order, self.rows, None, to) }
    }

    unsafe fn gather_valid(&self, work: &Work<'_>, to: CUdeviceptr) -> Result<(), EngineError> {
        let from = self.valid.unwrap_or(0);
        let arguments = [
            argument(&from),
            argument(&self.order),
            argument(&self.rows),
            argument(&to),
        ];
        let kernel = work.kernel(RANGE_JOIN, "join_gather_bits")?;
        // SAFETY: arguments are those of `join_gather_bits`; guaranteed by the caller.
        unsafe { work.launch(kernel, self.rows, arguments) }
    }

    unsafe fn gather_addends<K: CudaKey>(
        &self,
        work: &Work<'_>,
        valid: CUdeviceptr,
        addends: Addends,
        to: CUdeviceptr,
    ) -> Result<(), EngineError> {
        let is_signed = u32::from(addends == Addends::Signed);
        let arguments = [
            argument(&self.values),
            argument(&self.order),
            argument(&valid),
            argument(&self.rows),
            argument(&is_signed),
            argument(&to),
        ];
        let kernel = work.kernel(RANGE_JOIN, &format!("join_addends_{}", K::NAME))?;
        // SAFETY: arguments are those of `join_addends`; guaranteed by the caller.
        unsafe { work.launch(kernel, self.rows + 1, arguments) }
    }

    unsafe fn gather_index<K: CudaKey>(
        &self,
        work: &Work<'_>,
        encoding: Encoding<K>,
        kind: ExtremeIndex,
    ) -> Result<(ExtremeReplica, PendingIndex), EngineError> {
        let size = ColumnSize {
            rows: self.rows as usize,
            key_bytes: size_of::<K>(),
            nulls: self.valid.is_some(),
        };
        let rows = kind == ExtremeIndex::Rows;
        let layout = Layout::new(size, rows, self.shape)?;
        let kernels = BuildKernels::find::<K>(work.gpu, &layout, rows)?;
        let find = |output| answer_kernel::<K>(work.gpu, layout.shape, false, output);
        let answer_kernels = [
            find(KernelOutput::Value)?,
            find(KernelOutput::Position)?,
            find(KernelOutput::Both)?,
        ];
        let (index, memory) = allocate(work.gpu, encoding, &layout)?;
        // SAFETY: level 0 has room for the column, and the lowest level of the validity tree for a bit of each row.
        unsafe {
            self.gather_values::<K>(work, index.level[0])?;
            if self.valid.is_some() {
                self.gather_valid(work, index.valid[0])?;
            }
        }
        let pending = PendingIndex {
            layout,
            index,
            kernels,
        };
        let replica = ExtremeReplica {
            index: Box::new(index),
            memory,
            kernels: answer_kernels,
        };
        Ok((replica, pending))
    }
}

impl GatheredColumn {
    /// Builds indexes and sums, and waits for them.
    ///
    /// # Errors
    /// [`EngineError::Stopped`], and those of the device.
    pub fn build(mut self, work: &mut Work<'_>) -> Result<DeviceColumn, EngineError> {
        for pending in &self.indexes {
            let PendingIndex {
                layout,
                index,
                kernels,
            } = pending;
            let tile = layout.chunk() * layout.chunk();
            let (first, tiles) = (0_u64, layout.rows.div_ceil(tile));
            let arguments = [argument(index), argument(&first), argument(&tiles)];
            // SAFETY: the index has this layout, its column and validity are complete when the kernels run, and its
            // memory outlives them; arguments are those of `build_bottom`.
            unsafe {
                fill_paddings(work.stream(), layout, index)?;
                if index.valid_levels > 0 {
                    layout
                        .validity
                        .build_above(work.gpu, work.stream(), index)?;
                }
                work.launch(kernels.bottom, tiles * 32, arguments)?;
                kernels.build_above(work.stream(), layout, index)?;
            }
        }
        // Lives until the stream was waited for.
        let mut scratch = vec![];
        if let Some(before) = &self.column.valid_before {
            let len = self.rows.div_ceil(32) + 1;
            let sums = PrefixSums::new::<u32>(work, len)?;
            // SAFETY: there are this many counts.
            unsafe { sums.run(work, before.address(), len)? };
            scratch.push(sums);
        }
        if let Some(ColumnSums::Integers(values)) = &self.column.sums {
            let len = self.rows + 1;
            let sums = if sum_bytes(self.column.value_bytes) == 16 {
                PrefixSums::new::<u128>(work, len)?
            } else {
                PrefixSums::new::<u64>(work, len)?
            };
            // SAFETY: there are this many values.
            unsafe { sums.run(work, values.address(), len)? };
            scratch.push(sums);
        }
        if let Some(floats) = self.floats {
            self.column.sums = Some(ColumnSums::Floats(Box::new(floats.build(work)?)));
        }
        work.finish_step()?;
        Ok(self.column)
    }
}

/// Enqueues the move of `rows` values to sorted order, encoded as keys if there is an encoding.
///
/// # Errors
/// Those of the device.
///
/// # Safety
/// There are values of type `K` at `from` for each row of `order`, and room for `rows` at `to`, until the stream was
/// waited for.
pub unsafe fn gather<K: CudaKey>(
    work: &Work<'_>,
    from: CUdeviceptr,
    order: CUdeviceptr,
    rows: u64,
    encoding: Option<Encoding<K>>,
    to: CUdeviceptr,
) -> Result<(), EngineError> {
    let (fold, flip) = encoding.map_or((K::ZERO, K::ZERO), |encoding| {
        (encoding.fold(), encoding.flip())
    });
    let arguments = [
        argument(&from),
        argument(&order),
        argument(&rows),
        argument(&fold),
        argument(&flip),
        argument(&to),
    ];
    let kernel = work.kernel(RANGE_JOIN, &format!("join_gather_{}", K::NAME))?;
    // SAFETY: arguments are those of `join_gather`; guaranteed by the caller.
    unsafe { work.launch(kernel, rows, arguments) }
}
