//! The way of a batch of probe rows through a device.
//!
//! A batch is cut into chunks, which use two buffers in turn. For each chunk, all of this is enqueued on one stream:
//!
//! 1. the copy of group ids and bounds, as stored bits, from pinned memory,
//! 2. the search, which leaves ranges on the device,
//! 3. one kernel for each extreme that is requested as a value, as a row, or as both,
//! 4. the kernels for all other answers, which use the ranges and the rows of extremes,
//! 5. the copies of the answers, directly to their destination where that is pinned.

use std::ffi::c_void;
use std::ops::Range;

use cudarc::driver::sys::CUdeviceptr;

use super::build::BuildReplica;
use super::chunks::{BitmapChunks, SliceChunks, bits_of};
use super::column::ExtremeReplica;
use super::group_ids::{are_narrow, convert};
use super::outputs::{AnswerShape, Destination, Destinations};
use super::rows::{DeviceBound, DeviceSearch, MAX_BOUNDS};
use crate::cuda::batch_buffers::{BatchBuffers, Offsets, reserve_device, reserve_pinned};
use crate::cuda::driver::module::Function;
use crate::cuda::driver::stream::{Stream, argument};
use crate::cuda::key::CudaKey;
use crate::cuda::memory::device_memory::DeviceMemory;
use crate::cuda::rmq::index::KernelOutput;
use crate::cuda::tuning::BATCH;
use crate::{
    Comparison, Encoding, EngineError, Extreme, RangeJoinAnswer, RangeJoinOutput, RangeJoinProbe,
    RangeRow,
};

/// Flags of `BoundKind` in `kernels/range_join.cu`.
const LOWER: u32 = 1;
const AFTER_EQUAL: u32 = 2;

/// `Place` of `kernels/range_join.cu`.
const FIRST: u32 = 0;
const LAST: u32 = 1;
const FOUND: u32 = 2;

/// A batch as it is read for the device.
#[derive(Debug)]
pub struct ProbeBatch<'a, K> {
    rows: usize,
    ids: Option<SliceChunks<'a, u32>>,
    bounds: Vec<ProbeBound<'a, K>>,
    prevailing: bool,
}

#[derive(Debug)]
struct ProbeBound<'a, K> {
    comparison: Comparison,
    bits: SliceChunks<'a, K>,
    /// None if no bound is NULL.
    valid: Option<BitmapChunks<'a>>,
    encoding: Encoding<K>,
}

impl<'a, K: CudaKey> ProbeBatch<'a, K> {
    /// Reads a checked batch whose bounds have this width.
    pub fn new(probe: &'a RangeJoinProbe<'_>) -> Self {
        let bounds = probe.bounds.iter().map(|(comparison, bound)| {
            let chunks = K::chunks(bound).unwrap_or_default();
            ProbeBound {
                comparison: *comparison,
                bits: bits_of(chunks),
                valid: BitmapChunks::of_column(chunks),
                encoding: chunks
                    .first()
                    .map_or_else(Encoding::unsigned, crate::Column::encoding),
            }
        });
        let ids = probe.groups.as_ref();
        Self {
            rows: probe.rows,
            ids: ids.map(|ids| SliceChunks::new(ids.iter().copied())),
            bounds: bounds.collect(),
            prevailing: probe.prevailing,
        }
    }
}

/// The kernels' work for a batch: what is computed, wherever it is put.
#[derive(Debug)]
pub struct AnswerPlan<'a> {
    replica: &'a BuildReplica,
    answers: &'a [RangeJoinAnswer],
    shapes: &'a [AnswerShape],
    /// Distinct extremes, each searched once.
    extremes: Vec<PlannedExtreme<'a>>,
}

#[derive(Debug)]
struct PlannedExtreme<'a> {
    column: usize,
    extreme: Extreme,
    replica: &'a ExtremeReplica,
    value_bytes: usize,
    value: bool,
    row: bool,
}

impl<'a> AnswerPlan<'a> {
    /// Plans checked answers, which have these shapes.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for an extreme without an index.
    pub fn new(
        replica: &'a BuildReplica,
        answers: &'a [RangeJoinAnswer],
        shapes: &'a [AnswerShape],
    ) -> Result<Self, EngineError> {
        let mut plan = Self {
            replica,
            answers,
            shapes,
            extremes: vec![],
        };
        for answer in answers {
            match *answer {
                RangeJoinAnswer::Extreme { column, extreme } => {
                    plan.extreme(column, extreme)?.value = true;
                }
                RangeJoinAnswer::Value { at, .. } | RangeJoinAnswer::Row { at } => {
                    if let RangeRow::Extreme { column, extreme } = at {
                        plan.extreme(column, extreme)?.row = true;
                    }
                }
                _ => {}
            }
        }
        Ok(plan)
    }

    fn extreme(
        &mut self,
        column: usize,
        extreme: Extreme,
    ) -> Result<&mut PlannedExtreme<'a>, EngineError> {
        if let Some(i) = self.find(column, extreme) {
            return Ok(&mut self.extremes[i]);
        }
        let of = &self.replica.columns[column];
        let replica = of.extreme(extreme).ok_or_else(|| {
            EngineError::Invalid(format!("value column {column} has no such index"))
        })?;
        self.extremes.push(PlannedExtreme {
            column,
            extreme,
            replica,
            value_bytes: of.value_bytes,
            value: false,
            row: false,
        });
        let last = self.extremes.len() - 1;
        Ok(&mut self.extremes[last])
    }

    fn find(&self, column: usize, extreme: Extreme) -> Option<usize> {
        let mut extremes = self.extremes.iter();
        extremes.position(|one| (one.column, one.extreme) == (column, extreme))
    }
}

/// Where parts of a chunk are, in bytes from the start of its memory.
#[derive(Debug)]
struct ChunkLayout {
    ids: usize,
    /// Bits and validity of each bound.
    bounds: Vec<(usize, usize)>,
    /// The end of what is copied to the device.
    inputs_end: usize,
    left: usize,
    right: usize,
    extremes: Vec<ExtremeOffsets>,
    /// Values and validity of each answer.
    answers: Vec<(usize, usize)>,
    end: usize,
}

#[derive(Debug, Clone, Copy)]
struct ExtremeOffsets {
    values: usize,
    rows: usize,
    valid: usize,
}

impl ChunkLayout {
    fn new<K: CudaKey>(plan: &AnswerPlan<'_>, batch: &ProbeBatch<'_, K>, m: usize) -> Self {
        let mut offsets = Offsets::default();
        let bitmap = m.div_ceil(32) * 4;
        let ids = offsets.add(if batch.ids.is_some() { m * 4 } else { 0 });
        let bounds = batch.bounds.iter().map(|bound| {
            let bits = offsets.add(m * size_of::<K>());
            let valid = offsets.add(if bound.valid.is_some() { bitmap } else { 0 });
            (bits, valid)
        });
        let bounds = bounds.collect();
        let inputs_end = offsets.end;
        let (left, right) = (offsets.add(m * 4), offsets.add(m * 4));
        let extremes = plan.extremes.iter().map(|extreme| ExtremeOffsets {
            values: offsets.add(m * extreme.value_bytes),
            rows: offsets.add(if extreme.row { m * 8 } else { 0 }),
            valid: offsets.add(bitmap),
        });
        let extremes: Vec<_> = extremes.collect();
        let answers = plan.answers.iter().zip(plan.shapes).map(|(answer, shape)| {
            if let RangeJoinAnswer::Extreme { column, extreme } = *answer
                && let Some(i) = plan.find(column, extreme)
            {
                return (extremes[i].values, extremes[i].valid);
            }
            (offsets.add(m * shape.value_bytes), offsets.add(bitmap))
        });
        Self {
            ids,
            bounds,
            inputs_end,
            left,
            right,
            answers: answers.collect(),
            extremes,
            end: offsets.end,
        }
    }
}

/// A copy out of the pinned block, once the chunk is done.
#[derive(Debug)]
struct StagedCopy {
    offset: usize,
    to: *mut u8,
    bytes: usize,
}

/// Answers a batch into outputs of its length.
///
/// # Errors
/// Those of the device.
pub fn answer<K: CudaKey>(
    plan: &AnswerPlan<'_>,
    batch: &ProbeBatch<'_, K>,
    outputs: &mut [RangeJoinOutput],
) -> Result<(), EngineError> {
    let pinned = &plan.replica.gpu.pinned;
    let outputs = outputs.iter_mut();
    let outputs: Vec<_> = outputs
        .map(|output| Destinations::of_output(output, pinned))
        .collect();
    plan.replica.gpu.with_buffers(|buffers| {
        let mut staged = [vec![], vec![]];
        for (i, first) in (0..batch.rows).step_by(BATCH).enumerate() {
            let rows = first..batch.rows.min(first + BATCH);
            let (buffers, staged) = (&mut buffers[i % 2], &mut staged[i % 2]);
            // SAFETY: the outputs have room for all rows, and outlive the buffers' work: on an error `with_buffers` drops the buffers, which
            // waits. So does the build side.
            unsafe {
                receive(buffers, staged)?;
                send(plan, batch, rows, buffers, &outputs, staged)?;
            }
        }
        for (buffers, staged) in buffers.iter_mut().zip(&mut staged) {
            // SAFETY: as above.
            unsafe { receive(buffers, staged)? };
        }
        Ok(())
    })
}

/// Waits for the chunk that uses these buffers, if any, and copies its answers from the pinned block.
///
/// # Safety
/// The destinations are still valid.
unsafe fn receive(
    buffers: &mut BatchBuffers,
    staged: &mut Vec<StagedCopy>,
) -> Result<(), EngineError> {
    buffers.stream.wait()?;
    for StagedCopy { offset, to, bytes } in staged.drain(..) {
        if let Some(block) = &mut buffers.answers {
            let answers = block.slice_mut::<u8>(offset, bytes);
            // SAFETY: the caller guarantees that `to` is valid; it does not overlap a block of the engine.
            unsafe { std::ptr::copy_nonoverlapping(answers.as_ptr(), to, bytes) };
        }
    }
    Ok(())
}

/// Enqueues all work of a chunk.
///
/// # Safety
/// The buffers are idle. `outputs` has room for all `rows`, which start at a multiple of 64, until [`receive`] returns or the buffers are dropped,
/// and so long the build side stays.
unsafe fn send<K: CudaKey>(
    plan: &AnswerPlan<'_>,
    batch: &ProbeBatch<'_, K>,
    rows: Range<usize>,
    buffers: &mut BatchBuffers,
    outputs: &[Destinations],
    staged: &mut Vec<StagedCopy>,
) -> Result<(), EngineError> {
    let m = rows.len();
    debug_assert!(m <= BATCH && rows.start.is_multiple_of(64));
    let layout = ChunkLayout::new(plan, batch, m);
    let BatchBuffers {
        stream,
        queries,
        answers,
        memory,
        pinned,
    } = buffers;
    let block = reserve_pinned(queries, layout.inputs_end.max(1), pinned)?;
    // A power of two, so that batches of similar sizes share memory.
    let memory = reserve_device(memory, layout.end.next_power_of_two(), pinned)?;
    let base = memory.address();

    let narrow = are_narrow(plan.replica.groups as usize);
    if let Some(ids) = &batch.ids {
        if narrow {
            let mut rest = block.slice_mut::<u16>(layout.ids, m);
            ids.visit(rows.clone(), |ids| {
                let (here, behind) = std::mem::take(&mut rest).split_at_mut(ids.len());
                convert(ids, plan.replica.groups, here);
                rest = behind;
            });
        } else {
            ids.copy(rows.start, block.slice_mut::<u32>(layout.ids, m));
        }
    }
    for (bound, (bits, valid)) in batch.bounds.iter().zip(&layout.bounds) {
        bound.bits.copy(rows.start, block.slice_mut::<K>(*bits, m));
        if let Some(bitmap) = &bound.valid {
            bitmap.copy(rows.start, block.slice_mut::<u32>(*valid, m.div_ceil(32)));
        }
    }
    // SAFETY: all parts are within the block and the memory, which belong to the buffers; kernels get addresses of parts with room for `m` rows.
    unsafe {
        if layout.inputs_end > 0 {
            stream.copy_to_device(base, block.start(), layout.inputs_end)?;
        }
        let launch = Launch {
            plan,
            stream,
            m: m as u32,
            base,
            layout: &layout,
        };
        launch.search(batch, narrow)?;
        launch.extremes()?;
        launch.answers()?;
    }

    let bitmap = m.div_ceil(32) * 4;
    for ((output, shape), (values, valid)) in outputs.iter().zip(plan.shapes).zip(&layout.answers) {
        let parts = [
            (
                output.values,
                *values,
                rows.start * shape.value_bytes,
                m * shape.value_bytes,
            ),
            (output.valid, *valid, rows.start / 8, bitmap),
        ];
        for (destination, from, offset, bytes) in parts {
            let Some(Destination {
                start,
                pinned: direct,
            }) = destination
            else {
                continue;
            };
            // SAFETY: within the output, which has room for all rows.
            let to = unsafe { start.add(offset) };
            let host = if direct {
                to
            } else {
                let at = from - layout.inputs_end;
                let block = reserve_pinned(answers, layout.end - layout.inputs_end, pinned)?;
                staged.push(StagedCopy {
                    offset: at,
                    to,
                    bytes,
                });
                // SAFETY: the block has room for all that follows the inputs.
                unsafe { block.start().add(at) }
            };
            // SAFETY: both sides have room for the rows and stay valid, as the caller guarantees.
            unsafe { stream.copy_to_host(host, base + from as u64, bytes)? };
        }
    }
    Ok(())
}

/// The kernels of one chunk.
struct Launch<'a> {
    plan: &'a AnswerPlan<'a>,
    stream: &'a Stream,
    m: u32,
    base: CUdeviceptr,
    layout: &'a ChunkLayout,
}

impl Launch<'_> {
    fn address(&self, offset: usize) -> CUdeviceptr {
        self.base + offset as u64
    }

    unsafe fn run<const N: usize>(
        &self,
        kernel: Function,
        arguments: [*mut c_void; N],
    ) -> Result<(), EngineError> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.stream.launch(kernel, u64::from(self.m), arguments) }
    }

    /// # Safety
    /// The chunk's memory is laid out so, and has its inputs when the kernel runs.
    unsafe fn search<K: CudaKey>(
        &self,
        batch: &ProbeBatch<'_, K>,
        narrow: bool,
    ) -> Result<(), EngineError> {
        let replica = self.plan.replica;
        let bounds = batch.bounds.iter().zip(&self.layout.bounds);
        let bounds: Vec<_> = bounds
            .map(|(bound, (bits, valid))| {
                let lower = if bound.comparison.is_lower() {
                    LOWER
                } else {
                    0
                };
                let after = if bound.comparison.is_before_equal() {
                    0
                } else {
                    AFTER_EQUAL
                };
                DeviceBound {
                    keys: self.address(*bits),
                    valid: bound.valid.as_ref().map_or(0, |_| self.address(*valid)),
                    fold: bound.encoding.fold().words(),
                    flip: bound.encoding.flip().words(),
                    kind: lower | after,
                    unused: 0,
                }
            })
            .collect();
        let (left, right) = (
            self.address(self.layout.left),
            self.address(self.layout.right),
        );
        // One launch takes the first bounds, also if there is none, and further ones take the rest.
        for i in 0..bounds.len().div_ceil(MAX_BOUNDS).max(1) {
            let some = &bounds[i * MAX_BOUNDS..bounds.len().min((i + 1) * MAX_BOUNDS)];
            let mut search = DeviceSearch {
                keys: replica.keys.address(),
                starts: replica.starts.address(),
                ids: batch
                    .ids
                    .as_ref()
                    .map_or(0, |_| self.address(self.layout.ids)),
                narrow_ids: u32::from(narrow),
                groups: replica.groups,
                bounds: some.len() as u32,
                again: u32::from(i > 0),
                prevailing: u32::from(batch.prevailing),
                ..DeviceSearch::default()
            };
            search.bound[..some.len()].copy_from_slice(some);
            let arguments = [
                argument(&search),
                argument(&self.m),
                argument(&left),
                argument(&right),
            ];
            // SAFETY: arguments are those of `join_search`.
            unsafe { self.run(replica.kernels.search, arguments)? };
        }
        Ok(())
    }

    /// # Safety
    /// As [`Self::search`], with the ranges.
    unsafe fn extremes(&self) -> Result<(), EngineError> {
        let (left, right) = (
            self.address(self.layout.left),
            self.address(self.layout.right),
        );
        for (extreme, offsets) in self.plan.extremes.iter().zip(&self.layout.extremes) {
            let output = match (extreme.value, extreme.row) {
                (_, false) => KernelOutput::Value,
                (false, true) => KernelOutput::Position,
                (true, true) => KernelOutput::Both,
            };
            let (values, rows, valid) = (
                self.address(offsets.values),
                self.address(offsets.rows),
                self.address(offsets.valid),
            );
            let arguments = [
                argument(&*extreme.replica.index),
                argument(&self.m),
                argument(&left),
                argument(&right),
                argument(&values),
                argument(&rows),
                argument(&valid),
            ];
            // SAFETY: arguments are those of the `answer` kernels with positions of 32 bits.
            unsafe { self.run(extreme.replica.kernel(output), arguments)? };
        }
        Ok(())
    }

    /// # Safety
    /// As [`Self::search`], with the ranges and the extremes.
    unsafe fn answers(&self) -> Result<(), EngineError> {
        let replica = self.plan.replica;
        let kernels = replica.kernels;
        let (left, right) = (
            self.address(self.layout.left),
            self.address(self.layout.right),
        );
        for (answer, (values, valid)) in self.plan.answers.iter().zip(&self.layout.answers) {
            let (to, to_valid) = (self.address(*values), self.address(*valid));
            // SAFETY: arguments are those of the kernels.
            unsafe {
                match *answer {
                    RangeJoinAnswer::Extreme { .. } => {}
                    RangeJoinAnswer::Matched => {
                        let arguments = [
                            argument(&left),
                            argument(&right),
                            argument(&self.m),
                            argument(&to_valid),
                        ];
                        self.run(kernels.matched, arguments)?;
                    }
                    RangeJoinAnswer::Count => self.count((0, 0), to)?,
                    RangeJoinAnswer::CountValid { column } => {
                        self.count(replica.columns[column].valid_addresses(), to)?;
                    }
                    RangeJoinAnswer::Sum { column } => {
                        let column = &replica.columns[column];
                        let sums = address(column.sums.as_ref());
                        let (valid, valid_before) = column.valid_addresses();
                        let arguments = [
                            argument(&left),
                            argument(&right),
                            argument(&self.m),
                            argument(&sums),
                            argument(&valid),
                            argument(&valid_before),
                            argument(&to),
                            argument(&to_valid),
                        ];
                        self.run(kernels.sums, arguments)?;
                    }
                    RangeJoinAnswer::Value { column, at } => {
                        let column = &replica.columns[column];
                        let values = address(column.values.as_ref());
                        let (valid, _) = column.valid_addresses();
                        self.take(column.take, at, (values, valid), (to, to_valid))?;
                    }
                    RangeJoinAnswer::Row { at } => {
                        let rows = address(replica.row_numbers.as_ref());
                        self.take(kernels.take_row, at, (rows, 0), (to, to_valid))?;
                    }
                }
            }
        }
        Ok(())
    }

    unsafe fn count(
        &self,
        (valid, valid_before): (CUdeviceptr, CUdeviceptr),
        to: CUdeviceptr,
    ) -> Result<(), EngineError> {
        let (left, right) = (
            self.address(self.layout.left),
            self.address(self.layout.right),
        );
        let arguments = [
            argument(&left),
            argument(&right),
            argument(&self.m),
            argument(&valid),
            argument(&valid_before),
            argument(&to),
        ];
        // SAFETY: arguments are those of `join_counts`; guaranteed by the caller.
        unsafe { self.run(self.plan.replica.kernels.counts, arguments) }
    }

    unsafe fn take(
        &self,
        kernel: Function,
        at: RangeRow,
        (values, valid): (CUdeviceptr, CUdeviceptr),
        (to, to_valid): (CUdeviceptr, CUdeviceptr),
    ) -> Result<(), EngineError> {
        let (left, right) = (
            self.address(self.layout.left),
            self.address(self.layout.right),
        );
        let (which, found, is_found): (_, CUdeviceptr, CUdeviceptr) = match at {
            RangeRow::First => (FIRST, 0, 0),
            RangeRow::Last => (LAST, 0, 0),
            RangeRow::Extreme { column, extreme } => {
                // `AnswerPlan::new` planned it.
                let i = self.plan.find(column, extreme).unwrap_or_default();
                let offsets = self.layout.extremes[i];
                (
                    FOUND,
                    self.address(offsets.rows),
                    self.address(offsets.valid),
                )
            }
        };
        let arguments = [
            argument(&left),
            argument(&right),
            argument(&self.m),
            argument(&which),
            argument(&found),
            argument(&is_found),
            argument(&values),
            argument(&valid),
            argument(&to),
            argument(&to_valid),
        ];
        // SAFETY: arguments are those of `join_take`; guaranteed by the caller.
        unsafe { self.run(kernel, arguments) }
    }
}

fn address(memory: Option<&DeviceMemory>) -> CUdeviceptr {
    memory.map_or(0, DeviceMemory::address)
}
