//! Threshold searches on a device.

use std::ffi::c_void;
use std::ops::Range;

use super::clip_bounds::{self, Bound};
use super::layout::DeviceIndex;
use crate::cuda::batch_buffers::{BatchBuffers, Offsets, capacity, reserve_device, reserve_pinned};
use crate::cuda::driver::module::Function;
use crate::cuda::driver::stream::argument;
use crate::cuda::gpu::Gpu;
use crate::cuda::key::CudaKey;
use crate::cuda::memory::pinned::{DeviceValue, PinnedBlock};
use crate::cuda::tuning::BATCH;
use crate::{Crossings, EngineError, RangeEnd};

/// Bytes of a position that was found.
const POSITION_BYTES: usize = size_of::<i64>();

/// Finds the kernel for one end of ranges.
///
/// # Errors
/// Those of [`Modules::function`](crate::cuda::driver::module::Modules::function).
pub fn crossing_kernel<K: CudaKey>(
    gpu: &Gpu,
    chunk_bytes: u32,
    wide_positions: bool,
    end: RangeEnd,
) -> Result<Function, EngineError> {
    let name = format!(
        "crossing_{}_c{chunk_bytes}_p{}_{}",
        K::NAME,
        if wide_positions { 64 } else { 32 },
        end.name()
    );
    gpu.modules.function(K::CROSSING, &name)
}

/// A kernel and the index that it searches.
#[derive(Debug, Clone, Copy)]
pub struct CrossingKernel<'a> {
    pub index: &'a DeviceIndex,
    pub function: Function,
    /// Whether its positions take 64 bits.
    pub wide_positions: bool,
}

/// Ranges and their thresholds, in slices of one length.
#[derive(Debug, Clone, Copy)]
pub struct CrossingQueries<'a, K> {
    pub left: &'a [i64],
    pub right: &'a [i64],
    pub thresholds: &'a [K],
}

impl<K> CrossingQueries<'_, K> {
    fn part(&self, queries: Range<usize>) -> Self {
        Self {
            left: &self.left[queries.clone()],
            right: &self.right[queries.clone()],
            thresholds: &self.thresholds[queries],
        }
    }
}

impl CrossingKernel<'_> {
    /// Searches a batch, whose slices and outputs have one length.
    ///
    /// # Errors
    /// Those of the device.
    pub fn search<K: CudaKey>(
        self,
        gpu: &Gpu,
        batch: &CrossingQueries<'_, K>,
        out: &mut Crossings<'_>,
    ) -> Result<(), EngineError> {
        gpu.in_chunks(
            batch.left.len(),
            |buffers, queries| {
                // SAFETY: the buffers are idle. The index outlives the work, for which `in_chunks` waits.
                unsafe { self.send(buffers, &batch.part(queries.clone()))? };
                Ok(queries)
            },
            |buffers, queries| {
                receive(buffers, queries, out);
                Ok(())
            },
        )
    }

    /// Enqueues at most [`BATCH`] searches: the copy of the queries, the kernel, and the copy of the results.
    ///
    /// # Errors
    /// Those of the device. The buffers' stream may then have unfinished work.
    ///
    /// # Safety
    /// The buffers are idle. The index stays valid until the stream was waited for or dropped.
    unsafe fn send<K: CudaKey>(
        self,
        buffers: &mut BatchBuffers,
        chunk: &CrossingQueries<'_, K>,
    ) -> Result<(), EngineError> {
        let m = chunk.left.len();
        debug_assert!(m <= BATCH);
        let BatchBuffers {
            stream,
            queries,
            answers,
            memory,
            pinned,
        } = buffers;
        let capacity = capacity(m);
        let bound_bytes = if self.wide_positions { 8 } else { 4 };
        let mut offsets = Offsets::default();
        let thresholds_offset = offsets.add(capacity * size_of::<K>());
        let left_offset = offsets.add(capacity * bound_bytes);
        let right_offset = offsets.add(capacity * bound_bytes);
        let query_bytes = offsets.end;
        let positions_offset = offsets.add(capacity * POSITION_BYTES);
        let valid_offset = offsets.add(capacity / 8);

        let staging = reserve_pinned(queries, query_bytes, pinned)?;
        let answer_bytes = offsets.end - positions_offset;
        let answers = reserve_pinned(answers, answer_bytes, pinned)?;
        let memory = reserve_device(memory, offsets.end, pinned)?;

        let to_thresholds = staging.slice_mut(thresholds_offset, m);
        to_thresholds.copy_from_slice(chunk.thresholds);
        let bounds_offsets = (left_offset, right_offset);
        if self.wide_positions {
            clip::<u64, K>(chunk, self.index.n, staging, bounds_offsets);
        } else {
            clip::<u32, K>(chunk, self.index.n, staging, bounds_offsets);
        }
        let address = |offset: usize| memory.address() + offset as u64;
        let (left, right) = (address(left_offset), address(right_offset));
        let thresholds = address(thresholds_offset);
        let (positions, valid) = (address(positions_offset), address(valid_offset));
        let queries = m as u32;
        let arguments: [*mut c_void; 7] = [
            argument(self.index),
            argument(&queries),
            argument(&left),
            argument(&right),
            argument(&thresholds),
            argument(&positions),
            argument(&valid),
        ];
        // SAFETY: the blocks and the memory belong to the buffers, whose stream is waited for before they are used
        // again, and have room for `m` queries and their answers. The arguments are those of the `crossing` kernels.
        unsafe {
            for (to, offset, bytes) in [
                (thresholds, thresholds_offset, m * size_of::<K>()),
                (left, left_offset, m * bound_bytes),
                (right, right_offset, m * bound_bytes),
            ] {
                stream.copy_to_device(to, staging.start().add(offset), bytes)?;
            }
            stream.launch(self.function, m as u64, arguments)?;
            stream.copy_to_host(answers.start(), positions, m * POSITION_BYTES)?;
            let to_valid = answers.start().add(valid_offset - positions_offset);
            stream.copy_to_host(to_valid, valid, m.div_ceil(32) * size_of::<u32>())
        }
    }
}

/// Writes the clipped bounds of a chunk to a block.
fn clip<B: Bound + DeviceValue, K>(
    chunk: &CrossingQueries<'_, K>,
    rows: u64,
    to: &mut PinnedBlock,
    (left_offset, right_offset): (usize, usize),
) {
    let m = chunk.left.len();
    // The two parts of the block as one slice, whose middle is padding.
    let padded = (right_offset - left_offset) / size_of::<B>();
    let bounds = to.slice_mut::<B>(left_offset, padded + m);
    let (to_left, to_right) = bounds.split_at_mut(padded);
    clip_bounds::clip(chunk.left, chunk.right, rows, &mut to_left[..m], to_right);
}

/// Writes the results of the searches that [`CrossingKernel::send`] enqueued to those of `queries`, whose start is a
/// multiple of 64.
fn receive(buffers: &mut BatchBuffers, queries: Range<usize>, out: &mut Crossings<'_>) {
    let Some(answers) = &mut buffers.answers else {
        return;
    };
    let (first, m) = (queries.start, queries.len());
    out.positions[queries].copy_from_slice(answers.slice_mut::<i64>(0, m));
    let mut offsets = Offsets::default();
    offsets.add(capacity(m) * POSITION_BYTES);
    let words = answers.slice_mut::<u32>(offsets.end, m.div_ceil(32));
    for (word, halves) in out.valid[first / 64..].iter_mut().zip(words.chunks(2)) {
        let high = halves.get(1).copied().unwrap_or(0);
        *word = u64::from(halves[0]) | u64::from(high) << 32;
    }
}
