//! The way of a batch of probe rows through a device.
//!
//! For each chunk of a batch, all of this is enqueued on one stream:
//!
//! 1. the copy of group ids and of the columns of bounds, as stored bits, from pinned memory,
//! 2. the search, which makes the bounds and leaves ranges on the device,
//! 3. one kernel for each extreme that is requested as a value, as a row, or as both,
//! 4. the kernels for all other answers, which use the ranges and the rows of extremes,
//! 5. the copies of the answers, directly to their destination where that is pinned.

use std::ops::Range;

use super::answer_plan::{AnswerPlan, ChunkLayout};
use super::batch::ProbeBatch;
use super::group_ids::convert;
use super::launch::Launch;
use super::outputs::{Destination, Destinations};
use crate::cuda::batch_buffers::{BatchBuffers, StagedCopy, reserve_device, reserve_pinned};
use crate::cuda::key::CudaKey;
use crate::cuda::tuning::BATCH;
use crate::{EngineError, RangeJoinOutput};

/// What the host has to do once a chunk is done.
#[derive(Debug, Default)]
struct Pending {
    copies: Vec<StagedCopy>,
    /// Where the chunk's inputs have come back to tell whether a bound is moved beyond its type.
    overflow: Option<usize>,
}

/// Answers a batch into outputs of its length.
///
/// # Errors
/// [`EngineError::Overflow`], and those of the device.
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
    plan.replica.gpu.in_chunks(
        batch.rows,
        // SAFETY: the buffers are idle. The outputs have room for all rows, and outlive the work, for which `in_chunks`
        // waits. So does the build side.
        |buffers, rows| unsafe { send(plan, batch, rows, buffers, &outputs) },
        // SAFETY: as above.
        |buffers, pending| unsafe { receive(buffers, pending) },
    )
}

/// Copies the answers of a chunk that is done from the pinned block.
///
/// # Safety
/// The destinations are still valid.
unsafe fn receive(buffers: &mut BatchBuffers, pending: Pending) -> Result<(), EngineError> {
    if let Some(offset) = pending.overflow
        && let Some(block) = &mut buffers.queries
        && block.slice_mut::<u32>(offset, 1) != [0]
    {
        return Err(EngineError::Overflow);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { buffers.deliver(pending.copies) };
    Ok(())
}

/// Enqueues all work of a chunk.
///
/// # Safety
/// The buffers are idle. `outputs` has room for all `rows`, which start at a multiple of 64, until [`receive`] returns
/// or the buffers are dropped, and so long the build side stays.
unsafe fn send<K: CudaKey>(
    plan: &AnswerPlan<'_>,
    batch: &ProbeBatch<'_, K>,
    rows: Range<usize>,
    buffers: &mut BatchBuffers,
    outputs: &[Destinations],
) -> Result<Pending, EngineError> {
    let m = rows.len();
    let mut pending = Pending::default();
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

    if let Some(ids) = &batch.ids {
        if plan.has_narrow_ids() {
            let mut rest = block.slice_mut::<u16>(layout.ids, m);
            ids.visit(rows.clone(), |ids| {
                let (here, behind) = std::mem::take(&mut rest).split_at_mut(ids.len());
                convert(ids, plan.replica.sorted.groups, here);
                rest = behind;
            });
        } else {
            ids.copy(rows.start, block.slice_mut::<u32>(layout.ids, m));
        }
    }
    for (column, (bits, valid)) in batch.columns.iter().zip(&layout.columns) {
        column.bits.copy(rows.start, block.slice_mut::<K>(*bits, m));
        if let Some(bitmap) = &column.valid {
            bitmap.copy(rows.start, block.slice_mut::<u32>(*valid, m.div_ceil(32)));
        }
    }
    if let Some(overflow) = layout.overflow {
        block.slice_mut::<u32>(overflow, 1).fill(0);
    }
    // SAFETY: all parts are within the block and the memory, which belong to the buffers; kernels get addresses of
    // parts with room for `m` rows.
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
        launch.search(batch)?;
        if let Some(overflow) = layout.overflow {
            let word = block.start().add(overflow);
            stream.copy_to_host(word, base + overflow as u64, size_of::<u32>())?;
            pending.overflow = Some(overflow);
        }
        launch.extremes()?;
        launch.places()?;
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
                pending.copies.push(StagedCopy {
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
    Ok(pending)
}
