//! Host memory of any kind to a device, at the bus's speed.
//!
//! Threads copy slices into pinned memory, from where the device fetches them: the bus moves one slice while others are filled.
//! What is to be done with a slice follows it on its stream.
//!
//! An upload runs to its end or to an error: whoever no longer wants the column waits for it, or lets its thread go on.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys::CUdeviceptr;

use super::gpu::Gpu;
use super::pinned::Block;
use super::stream::Stream;
use super::tuning::{SLICE, UPLOADERS};
use crate::engine::EngineError;

/// Copies `bytes` to the device and waits for that and for `then`, which is called for each slice, on a stream where
/// the slice is in place, on up to `threads` threads.
///
/// # Safety
/// The device's memory from `to` on is that long, and nothing else uses it meanwhile. The requirements of what `then` puts on the
/// stream hold where the slice is in place and the stream is waited for.
pub(super) unsafe fn upload(
    gpu: &Gpu,
    bytes: &[u8],
    to: CUdeviceptr,
    threads: usize,
    then: impl Fn(&Stream, Range<usize>) -> Result<(), EngineError> + Sync,
) -> Result<(), EngineError> {
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let work = || {
        let mut lanes = Lanes::default();
        let sent = lanes.send(gpu, bytes, to, &next, &then);
        if let Err(error) = sent {
            // The others find nothing more to do.
            next.store(bytes.len(), Ordering::Relaxed);
            if let Ok(mut failure) = failure.lock() {
                failure.get_or_insert(error);
            }
        }
    };
    let slices = bytes.len().div_ceil(SLICE);
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
    fn send(
        &mut self,
        gpu: &Gpu,
        bytes: &[u8],
        to: CUdeviceptr,
        next: &AtomicUsize,
        then: &impl Fn(&Stream, Range<usize>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut turn = 0;
        loop {
            let first = next.fetch_add(SLICE, Ordering::Relaxed);
            if first >= bytes.len() {
                break;
            }
            let slice = first..bytes.len().min(first + SLICE);
            if self.0.len() < 2 {
                self.0
                    .push((Stream::new(&gpu.device)?, gpu.pinned.take(slice.len())?));
                turn = self.0.len() - 1;
            } else {
                turn = 1 - turn;
                self.0[turn].0.wait()?;
            }
            let (stream, block) = &mut self.0[turn];
            block
                .numbers::<u8>(0, slice.len())
                .copy_from_slice(&bytes[slice.clone()]);
            // SAFETY: the slice lies within the device's memory; the block is left alone until its stream was waited for.
            unsafe { stream.copy_up(to + first as u64, block.start(), slice.len())? };
            then(stream, slice)?;
        }
        // On the way out of an error, dropping the streams waits.
        self.0.iter().try_for_each(|(stream, _)| stream.wait())
    }
}
