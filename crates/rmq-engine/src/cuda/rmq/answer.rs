//! Range-minimum queries on a device.

use std::ffi::c_void;

use cudarc::driver::sys::CUdeviceptr;

use super::clip_bounds::{self, Bound};
use super::layout::DeviceIndex;
use crate::EngineError;
use crate::cuda::batch_buffers::{
    BatchBuffers, Offsets, StagedCopy, capacity, reserve_device, reserve_pinned,
};
use crate::cuda::driver::module::Function;
use crate::cuda::driver::stream::argument;
use crate::cuda::tuning::BATCH;

/// Consecutive queries of a batch that go to the device together. Their bounds may be in several slices.
#[derive(Debug, Default)]
pub struct QueryChunk<'a> {
    /// Left and right bounds, of the same length.
    bounds: Vec<(&'a [i64], &'a [i64])>,
    pub queries: usize,
}

impl<'a> QueryChunk<'a> {
    /// Splits a batch into chunks of [`BATCH`] queries. The two slices of a part have the same length.
    #[must_use]
    pub fn split(parts: &[(&'a [i64], &'a [i64])]) -> Vec<Self> {
        let mut chunks = vec![Self::default()];
        for &(mut left, mut right) in parts {
            while !left.is_empty() {
                let last = chunks.len() - 1;
                let chunk = &mut chunks[last];
                let taken = left.len().min(BATCH - chunk.queries);
                if taken == 0 {
                    chunks.push(Self::default());
                    continue;
                }
                chunk.bounds.push((&left[..taken], &right[..taken]));
                chunk.queries += taken;
                (left, right) = (&left[taken..], &right[taken..]);
            }
        }
        chunks
    }

    /// Writes the clipped bounds to `to`, all left ones before all right ones.
    fn clip<B: Bound>(&self, rows: u64, to: &mut [B]) {
        let (mut to_left, mut to_right) = to.split_at_mut(self.queries);
        for (left, right) in &self.bounds {
            let (here, rest) = to_left.split_at_mut(left.len());
            let (here_right, rest_right) = to_right.split_at_mut(left.len());
            clip_bounds::clip(left, right, rows, here, here_right);
            (to_left, to_right) = (rest, rest_right);
        }
    }
}

/// A kernel and the index that it searches.
#[derive(Debug, Clone, Copy)]
pub struct AnswerKernel<'a> {
    pub index: &'a DeviceIndex,
    pub function: Function,
    /// Whether its positions take 64 bits.
    pub wide_positions: bool,
}

/// The destinations of a batch's answers, from its first query on; null for answers that are not requested.
#[derive(Debug, Clone, Copy)]
pub struct OutputPointers {
    pub values: *mut u8,
    pub value_bytes: usize,
    pub positions: *mut i64,
    pub valid: *mut u64,
    /// Whether all of them are pinned, so that the device may copy to them directly.
    pub pinned: bool,
}

impl AnswerKernel<'_> {
    /// Enqueues at most [`BATCH`] queries. The first one is query `first` of its batch, a multiple of 64: the
    /// copy of the bounds, the kernel, and the copy of the answers to their destination. Answers whose destination is
    /// not pinned go to the pinned block, and the copies from there are returned.
    ///
    /// # Errors
    /// Those of the device. The buffers' stream may then have unfinished work.
    ///
    /// # Safety
    /// The buffers are idle. `out` has room for `first + chunk.queries` answers, which nothing else accesses until the
    /// stream was waited for or dropped, and so long the index stays. The kernel fits the index and the requested
    /// outputs.
    pub unsafe fn send(
        self,
        buffers: &mut BatchBuffers,
        chunk: &QueryChunk<'_>,
        first: usize,
        out: OutputPointers,
    ) -> Result<Vec<StagedCopy>, EngineError> {
        let m = chunk.queries;
        debug_assert!(m <= BATCH && first.is_multiple_of(64));
        let capacity = capacity(m);
        let bound_bytes = if self.wide_positions { 8 } else { 4 };
        let BatchBuffers {
            stream,
            queries,
            answers,
            memory,
            pinned,
        } = buffers;

        let bounds = reserve_pinned(queries, 2 * capacity * bound_bytes, pinned)?;
        if self.wide_positions {
            chunk.clip::<u64>(self.index.n, bounds.slice_mut(0, 2 * m));
        } else {
            chunk.clip::<u32>(self.index.n, bounds.slice_mut(0, 2 * m));
        }

        let mut offsets = Offsets::default();
        let bounds_offset = offsets.add(2 * capacity * bound_bytes);
        let values_offset = offsets.add(capacity * out.value_bytes);
        let positions_offset = offsets.add(capacity * 8);
        let valid_offset = offsets.add(capacity / 8);
        let memory = reserve_device(memory, offsets.end, pinned)?;
        let address = |offset: usize| memory.address() + offset as u64;
        let address_if = |requested: bool, offset: usize| {
            if requested { address(offset) } else { 0 }
        };
        // The kernels for values write them even if only the validity is requested.
        let writes_values = !out.values.is_null() || out.positions.is_null();
        let values = address_if(writes_values, values_offset);
        let positions = address_if(!out.positions.is_null(), positions_offset);
        let (left, valid) = (address(bounds_offset), address(valid_offset));
        let right = left + (m * bound_bytes) as u64;
        let queries = m as u32;
        // SAFETY: the block and the device's memory belong to the buffers and have room for `m` queries; they stay
        // valid, as the stream is waited for before they are used again or dropped. The arguments are those of the
        // `answer` kernels.
        unsafe {
            stream.copy_to_device(left, bounds.start(), 2 * m * bound_bytes)?;
            let arguments: [*mut c_void; 7] = [
                argument(self.index),
                argument(&queries),
                argument(&left),
                argument(&right),
                argument(&values),
                argument(&positions),
                argument(&valid),
            ];
            stream.launch(self.function, m as u64, arguments)?;
        }

        // SAFETY: the caller guarantees room for `m` answers from `first` on.
        let (to_values, to_positions, to_valid) = unsafe {
            // The device writes words of 32 bits, which may fill only half of the last word of 64.
            *out.valid.add((first + m - 1) / 64) = 0;
            (
                (!out.values.is_null()).then(|| out.values.add(first * out.value_bytes)),
                (!out.positions.is_null()).then(|| out.positions.add(first).cast()),
                out.valid.add(first / 64).cast(),
            )
        };
        if !out.pinned {
            reserve_pinned(answers, offsets.end - values_offset, pinned)?;
        }
        let copies: [(Option<*mut u8>, CUdeviceptr, usize, usize); 3] = [
            (to_values, values, values_offset, m * out.value_bytes),
            (to_positions, positions, positions_offset, m * 8),
            (Some(to_valid), valid, valid_offset, m.div_ceil(32) * 4),
        ];
        let mut staged = Vec::new();
        for (to, from, offset, bytes) in copies {
            let Some(to) = to else { continue };
            let destination = match answers {
                Some(block) if !out.pinned => {
                    let offset = offset - values_offset;
                    staged.push(StagedCopy { offset, to, bytes });
                    // SAFETY: the block has room for all answers.
                    unsafe { block.start().add(offset) }
                }
                _ => to,
            };
            // SAFETY: the destination has room for `bytes` and stays valid: it is the caller's, which is pinned, or the
            // block.
            unsafe { stream.copy_to_host(destination, from, bytes)? };
        }
        Ok(staged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_bounds_keep_their_order() {
        let lengths = [3, 0, 1, BATCH - 2, 2 * BATCH + 5, 7];
        let total: usize = lengths.iter().sum();
        let left: Vec<i64> = (0..).take(total).collect();
        let right: Vec<i64> = left.iter().map(|l| l + 1).collect();
        let mut parts = vec![];
        let mut from = 0;
        for length in lengths {
            let here = from..from + length;
            parts.push((&left[here.clone()], &right[here]));
            from += length;
        }
        let chunks = QueryChunk::split(&parts);
        let sizes: Vec<_> = chunks.iter().map(|chunk| chunk.queries).collect();
        assert_eq!(sizes, [BATCH, BATCH, BATCH, total - 3 * BATCH]);
        let mut next = 0;
        for chunk in &chunks {
            let mut to = vec![0_u32; 2 * chunk.queries];
            chunk.clip(u64::from(u32::MAX), &mut to);
            let (to_left, to_right) = to.split_at(chunk.queries);
            for (l, r) in to_left.iter().zip(to_right) {
                assert_eq!((*l, *r), (next, next + 1));
                next += 1;
            }
        }
        assert_eq!(QueryChunk::split(&[]).len(), 1);
    }
}
