//! One part of a batch on its way: up, through the kernel, down.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use super::device::Device;
use super::gpu::Gpu;
use super::memory::DeviceMemory;
use super::module::Function;
use super::narrow::{self, Bound};
use super::pinned::Block;
use super::plan::AnyIndex;
use super::stream::{Stream, argument};
use super::tuning::BATCH;
use crate::EngineError;

/// What a thread that answers a batch works with: while one lane's part is on the device, the other's is prepared.
#[derive(Debug)]
pub struct Slot {
    pub lanes: [QueryPipeline; 2],
}

impl Slot {
    pub fn new(device: &Arc<Device>) -> Result<Self, EngineError> {
        Ok(Self {
            lanes: [QueryPipeline::new(device)?, QueryPipeline::new(device)?],
        })
    }
}

/// A stream with memory for one part on both ends.
#[derive(Debug)]
pub struct QueryPipeline {
    pub device: Arc<Device>,
    // Before the memory, so that it is idle when that is dropped.
    pub stream: Stream,
    pub bounds: Option<Block>,
    pub answers: Option<Block>,
    pub memory: Option<DeviceMemory>,
    /// Whether a part was started and not yet waited for.
    under_way: bool,
    /// Answers that are on their way to a block, to be copied on.
    staged: Vec<Staged>,
}

/// Bytes of a block and where they go.
#[derive(Debug)]
struct Staged {
    offset: usize,
    to: *mut u8,
    bytes: usize,
}

// SAFETY: `staged`, which alone holds pointers, is used by the thread that filled it only: a lane goes to another one
// after it was waited for.
unsafe impl Send for QueryPipeline {}

/// Where answers of a batch go, from its first query on: null where they are not wanted.
#[derive(Debug, Clone, Copy)]
pub struct Targets {
    pub values: *mut u8,
    pub value_bytes: usize,
    pub positions: *mut i64,
    pub valid: *mut u64,
    /// Whether a device may copy to all of them directly.
    pub pinned: bool,
}

/// Bounds that go to the device together, wherever they lie.
#[derive(Debug, Default)]
pub struct Run<'a> {
    parts: Vec<(&'a [i64], &'a [i64])>,
    pub ranges: usize,
}

impl<'a> Run<'a> {
    /// Cuts `parts`, whose left and right bounds are as many, into runs of [`BATCH`] ranges.
    pub fn cut(parts: &[(&'a [i64], &'a [i64])]) -> Vec<Self> {
        let mut runs = vec![Self::default()];
        for &(mut left, mut right) in parts {
            while !left.is_empty() {
                let last = runs.len() - 1;
                let run = &mut runs[last];
                let taken = left.len().min(BATCH - run.ranges);
                if taken == 0 {
                    runs.push(Self::default());
                    continue;
                }
                run.parts.push((&left[..taken], &right[..taken]));
                run.ranges += taken;
                (left, right) = (&left[taken..], &right[taken..]);
            }
        }
        runs
    }

    /// Writes the bounds as kernels take them, the left ones before the right ones.
    fn clip<B: Bound>(&self, rows: u64, to: &mut [B]) {
        let (mut to_left, mut to_right) = to.split_at_mut(self.ranges);
        for (left, right) in &self.parts {
            let (here, rest) = to_left.split_at_mut(left.len());
            let (here_right, rest_right) = to_right.split_at_mut(left.len());
            narrow::clip(left, right, rows, here, here_right);
            (to_left, to_right) = (rest, rest_right);
        }
    }
}

/// What answers a part.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    pub index: &'a AnyIndex,
    pub kernel: Function,
    /// Threads that it takes for a query. Where it is more than one, each that finds a value sets its bit of the validity,
    /// which must be 0 before.
    pub threads: u64,
    /// Whether positions take 64 bits.
    pub wide: bool,
}

impl QueryPipeline {
    fn new(device: &Arc<Device>) -> Result<Self, EngineError> {
        Ok(Self {
            device: Arc::clone(device),
            stream: Stream::new(device)?,
            bounds: None,
            answers: None,
            memory: None,
            under_way: false,
            staged: Vec::new(),
        })
    }

    /// Sends the bounds of a part, of at most [`BATCH`] queries beginning at query `first` of its batch, a multiple of 64.
    ///
    /// # Safety
    /// The lane has been waited for. `targets` hold at least `first + asked.ranges` answers, which nobody else touches
    /// until the lane has been waited for or dropped; the kernel is for the index and for what `targets` want.
    pub unsafe fn start(
        &mut self,
        gpu: &Gpu,
        question: Question<'_>,
        asked: &Run<'_>,
        first: usize,
        targets: Targets,
    ) -> Result<(), EngineError> {
        let m = asked.ranges;
        self.under_way = true;
        debug_assert!(m <= BATCH && first.is_multiple_of(64));
        // Memory grows in steps, so that batches that differ a little don't make it anew.
        let room = m.next_power_of_two().max(1 << 12);
        let bound_bytes = if question.wide { 8 } else { 4 };

        let bounds = room_for(
            &mut self.bounds,
            2 * room * bound_bytes,
            Block::bytes,
            |n| gpu.pinned.take(n),
        )?;
        if question.wide {
            asked.clip::<u64>(question.index.rows(), bounds.numbers(0, 2 * m));
        } else {
            asked.clip::<u32>(question.index.rows(), bounds.numbers(0, 2 * m));
        }

        let mut parts = Parts::default();
        let at_bounds = parts.add(2 * room * bound_bytes);
        let at_values = parts.add(room * targets.value_bytes);
        let at_positions = parts.add(room * 8);
        let at_valid = parts.add(room / 8);
        let device = &self.device;
        let memory = room_for(&mut self.memory, parts.end, DeviceMemory::bytes, |n| {
            DeviceMemory::new(device, n)
        })?;
        let at = |part: usize, wanted: bool| {
            if wanted {
                memory.address() + part as u64
            } else {
                0
            }
        };
        // Without positions the kernel writes values, wanted or not.
        let values = at(
            at_values,
            !targets.values.is_null() || targets.positions.is_null(),
        );
        let positions = at(at_positions, !targets.positions.is_null());
        let (bounds_at, valid) = (at(at_bounds, true), at(at_valid, true));
        let right_at = bounds_at + (m * bound_bytes) as u64;
        let queries = m as u32;
        // SAFETY: the block and the device's memory are this lane's and long enough for `m` queries; they stay, as the lane is
        // waited for before it is used again. The arguments are those of the `answer` kernels.
        unsafe {
            self.stream
                .copy_up(bounds_at, bounds.start(), 2 * m * bound_bytes)?;
            let arguments: [*mut c_void; 7] = [
                question.index.argument(),
                argument(&queries),
                argument(&bounds_at),
                argument(&right_at),
                argument(&values),
                argument(&positions),
                argument(&valid),
            ];
            if question.threads > 1 {
                self.stream.fill(valid, 0, m.div_ceil(32) * 4)?;
            }
            let threads = m as u64 * question.threads;
            self.stream.launch(question.kernel, threads, arguments)?;
        }

        // SAFETY: the caller vouches for room for `m` answers from `first` on.
        let (to_values, to_positions, to_valid) = unsafe {
            // The device writes words of 32 bits, of which the last of 64 may lack one.
            *targets.valid.add((first + m - 1) / 64) = 0;
            (
                (!targets.values.is_null())
                    .then(|| targets.values.add(first * targets.value_bytes)),
                (!targets.positions.is_null()).then(|| targets.positions.add(first).cast()),
                targets.valid.add(first / 64).cast(),
            )
        };
        let copies = [
            (to_values, values, at_values, m * targets.value_bytes),
            (to_positions, positions, at_positions, m * 8),
            (Some(to_valid), valid, at_valid, m.div_ceil(32) * 4),
        ];
        if !targets.pinned {
            room_for(
                &mut self.answers,
                parts.end - at_values,
                Block::bytes,
                |n| gpu.pinned.take(n),
            )?;
        }
        for (to, from, part, bytes) in copies {
            let Some(to) = to else { continue };
            // SAFETY: `to` has room for `bytes` and is pinned, or the bytes go to a block of this lane with that much room.
            unsafe { self.fetch(to, from, part - at_values, bytes, targets.pinned)? };
        }
        Ok(())
    }

    /// Copies answers down, to `to` or to byte `offset` of the lane's block and later on from there.
    ///
    /// # Safety
    /// `from` has `bytes` bytes and `to` room for them, also when the lane is waited for.
    unsafe fn fetch(
        &mut self,
        to: *mut u8,
        from: CUdeviceptr,
        offset: usize,
        bytes: usize,
        pinned: bool,
    ) -> Result<(), EngineError> {
        let end = match (&self.answers, pinned) {
            (Some(block), false) => {
                self.staged.push(Staged { offset, to, bytes });
                // SAFETY: the block has room for all parts of answers.
                unsafe { block.start().add(offset) }
            }
            _ => to,
        };
        // SAFETY: as the caller vouches.
        unsafe { self.stream.copy_down(end, from, bytes) }
    }

    /// Waits for the part that was started, if one was. Its answers are then in place.
    ///
    /// # Safety
    /// The targets that the part was started with are still there.
    pub unsafe fn finish(&mut self) -> Result<(), EngineError> {
        if !self.under_way {
            return Ok(());
        }
        self.stream.wait()?;
        self.under_way = false;
        for Staged { offset, to, bytes } in self.staged.drain(..) {
            if let Some(block) = &mut self.answers {
                let answers = block.numbers::<u8>(offset, bytes);
                // SAFETY: the caller vouches for `to`; a block lent by us is not the caller's memory.
                unsafe { std::ptr::copy_nonoverlapping(answers.as_ptr(), to, bytes) };
            }
        }
        Ok(())
    }
}

/// What `held` holds, made anew where it has less than `bytes`.
pub fn room_for<T>(
    held: &mut Option<T>,
    bytes: usize,
    has: impl Fn(&T) -> usize,
    make: impl FnOnce(usize) -> Result<T, EngineError>,
) -> Result<&mut T, EngineError> {
    if held.as_ref().is_some_and(|held| has(held) < bytes) {
        *held = None;
    }
    match held {
        Some(held) => Ok(held),
        None => Ok(held.insert(make(bytes)?)),
    }
}

/// Parts of memory that follow each other.
#[derive(Default)]
pub struct Parts {
    pub end: usize,
}

impl Parts {
    pub fn add(&mut self, bytes: usize) -> usize {
        let start = self.end;
        self.end = (start + bytes).next_multiple_of(256);
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_bounds_arrive_in_their_order() {
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
        let runs = Run::cut(&parts);
        let sizes: Vec<_> = runs.iter().map(|run| run.ranges).collect();
        assert_eq!(sizes, [BATCH, BATCH, BATCH, total - 3 * BATCH]);
        let mut next = 0;
        for run in &runs {
            let mut to = vec![0_u32; 2 * run.ranges];
            run.clip(u64::from(u32::MAX), &mut to);
            let (to_left, to_right) = to.split_at(run.ranges);
            for (l, r) in to_left.iter().zip(to_right) {
                assert_eq!((*l, *r), (next, next + 1));
                next += 1;
            }
        }
        assert_eq!(Run::cut(&[]).len(), 1);
    }
}
