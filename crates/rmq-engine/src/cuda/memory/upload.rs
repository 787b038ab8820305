//! Uploads of numbers at the speed of the bus.
//!
//! 1. Threads write slices of the numbers into pinned memory, each thread into two blocks in turn.
//! 2. The device copies a slice while the threads fill others.
//! 3. Work on a slice, such as a kernel, follows the copy on its stream.
//!
//! An upload runs to its end or to an error. A caller that no longer needs the column makes `then` fail.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUdeviceptr;

use super::pinned::{DeviceValue, PinnedBlock, PinnedPool};
use crate::EngineError;
use crate::cuda::driver::stream::Stream;
use crate::cuda::tuning::SLICE_BYTES;

/// Copies `len` numbers to the device of `pinned` with up to `threads` threads, and waits for that and for the work of
/// `then`.
///
/// `fill` writes numbers from the given one on. `then` is called for each slice, a range of bytes, with a stream on
/// which the slice is in place.
///
/// # Errors
/// The first one of an allocation, a copy or `then`.
///
/// # Safety
/// The device's memory from `to` on is that long, and nothing else uses it meanwhile. The work that `then` enqueues
/// meets the requirements of [`Stream`], given that the slice is in place and the stream is waited for.
pub unsafe fn upload<T: DeviceValue>(
    pinned: &Arc<PinnedPool>,
    len: usize,
    fill: impl Fn(usize, &mut [T]) + Sync,
    to: CUdeviceptr,
    threads: usize,
    then: impl Fn(&Stream, Range<usize>) -> Result<(), EngineError> + Sync,
) -> Result<(), EngineError> {
    let bytes = len * size_of::<T>();
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let work = || {
        let mut uploader = Uploader::default();
        let sent = uploader.send(pinned, bytes, &fill, to, &next, &then);
        if let Err(error) = sent {
            // Ends the loops of the other threads.
            next.store(bytes, Ordering::Relaxed);
            if let Ok(mut failure) = failure.lock() {
                failure.get_or_insert(error);
            }
        }
    };
    let slices = bytes.div_ceil(SLICE_BYTES);
    std::thread::scope(|scope| {
        for _ in 1..threads.min(slices) {
            // If a thread can't be started, the others do its work.
            let _ = std::thread::Builder::new()
                .name("rmq-upload".to_owned())
                .spawn_scoped(scope, work);
        }
        work();
    });
    failure
        .into_inner()
        .map_or(Ok(()), |failure| match failure {
            Some(error) => Err(error),
            None => Ok(()),
        })
}

/// One thread's streams, each with the block of the slice in flight on it.
#[derive(Default)]
struct Uploader(Vec<(Stream, PinnedBlock)>);

impl Uploader {
    /// Sends slices until none is left.
    fn send<T: DeviceValue>(
        &mut self,
        pinned: &Arc<PinnedPool>,
        bytes: usize,
        fill: &(impl Fn(usize, &mut [T]) + Sync),
        to: CUdeviceptr,
        next: &AtomicUsize,
        then: &impl Fn(&Stream, Range<usize>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut turn = 0;
        loop {
            let first = next.fetch_add(SLICE_BYTES, Ordering::Relaxed);
            if first >= bytes {
                break;
            }
            let slice = first..bytes.min(first + SLICE_BYTES);
            if self.0.len() < 2 {
                self.0
                    .push((Stream::new(pinned.device())?, pinned.take(slice.len())?));
                turn = self.0.len() - 1;
            } else {
                turn = 1 - turn;
                self.0[turn].0.wait()?;
            }
            let (stream, block) = &mut self.0[turn];
            let numbers = slice.len() / size_of::<T>();
            fill(first / size_of::<T>(), block.slice_mut::<T>(0, numbers));
            // SAFETY: the slice is within the device's memory; the block is not used until its stream was waited for.
            unsafe { stream.copy_to_device(to + first as u64, block.start(), slice.len())? };
            then(stream, slice)?;
        }
        // On an error above, dropping the streams waits.
        self.0.iter().try_for_each(|(stream, _)| stream.wait())
    }
}

/// Returns a function for [`upload`] that copies from a slice.
pub fn copy_of(bytes: &[u8]) -> impl Fn(usize, &mut [u8]) + Sync {
    |first, to| to.copy_from_slice(&bytes[first..first + to.len()])
}
