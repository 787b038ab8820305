//! Numbers to a device, at the bus's speed.
//!
//! Threads write slices of them into pinned memory, from where the device fetches them: the bus moves one slice while others are filled.
//! What is to be done with a slice follows it on its stream.
//!
//! An upload runs to its end or to an error: whoever no longer wants the column waits for it, or lets its thread go on.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys::CUdeviceptr;

use super::gpu::Gpu;
use super::pinned::{Block, Pod};
use super::stream::Stream;
use super::tuning::{SLICE, UPLOADERS};
use crate::EngineError;

/// Copies `len` numbers to the device and waits for that and for `then`, which is called for each slice (of bytes), on a stream where
/// the slice is in place, on up to `threads` threads. `fill` writes numbers from that one on.
///
/// # Safety
/// The device's memory from `to` on is that long, and nothing else uses it meanwhile. The requirements of what `then` puts on the
/// stream hold where the slice is in place and the stream is waited for.
pub unsafe fn upload<T: Pod>(
    gpu: &Gpu,
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
        let mut lanes = Lanes::default();
        let sent = lanes.send(gpu, bytes, &fill, to, &next, &then);
        if let Err(error) = sent {
            // The others find nothing more to do.
            next.store(bytes, Ordering::Relaxed);
            if let Ok(mut failure) = failure.lock() {
                failure.get_or_insert(error);
            }
        }
    };
    let slices = bytes.div_ceil(SLICE);
    std::thread::scope(|scope| {
        for _ in 1..threads.min(slices).min(UPLOADERS) {
            // Where no thread can be started, the others do its work.
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

/// One thread's streams, each with the slice that is under way on it.
#[derive(Default)]
struct Lanes(Vec<(Stream, Block)>);

impl Lanes {
    /// Sends slices until there are none left.
    fn send<T: Pod>(
        &mut self,
        gpu: &Gpu,
        bytes: usize,
        fill: &(impl Fn(usize, &mut [T]) + Sync),
        to: CUdeviceptr,
        next: &AtomicUsize,
        then: &impl Fn(&Stream, Range<usize>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut turn = 0;
        loop {
            let first = next.fetch_add(SLICE, Ordering::Relaxed);
            if first >= bytes {
                break;
            }
            let slice = first..bytes.min(first + SLICE);
            if self.0.len() < 2 {
                self.0
                    .push((Stream::new(&gpu.device)?, gpu.pinned.take(slice.len())?));
                turn = self.0.len() - 1;
            } else {
                turn = 1 - turn;
                self.0[turn].0.wait()?;
            }
            let (stream, block) = &mut self.0[turn];
            let numbers = slice.len() / size_of::<T>();
            fill(first / size_of::<T>(), block.numbers::<T>(0, numbers));
            // SAFETY: the slice lies within the device's memory; the block is left alone until its stream was waited for.
            unsafe { stream.copy_up(to + first as u64, block.start(), slice.len())? };
            then(stream, slice)?;
        }
        // On the way out of an error, dropping the streams waits.
        self.0.iter().try_for_each(|(stream, _)| stream.wait())
    }
}

/// What fills slices with these bytes.
pub fn copy_of(bytes: &[u8]) -> impl Fn(usize, &mut [u8]) + Sync {
    |first, to| to.copy_from_slice(&bytes[first..first + to.len()])
}
