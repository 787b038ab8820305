//! The speed of the bus to a device, measured once when the device is opened: it decides which work is worth the way.

use std::sync::Arc;
use std::time::Instant;

use super::driver::device::Device;
use super::driver::stream::Stream;
use super::memory::device_memory::DeviceMemory;
use super::memory::pinned::PinnedPool;
use crate::EngineError;

/// Bytes of a copy: long enough that its fixed cost is small. The block is kept for uploads.
const COPY_BYTES: usize = super::tuning::SLICE_BYTES;

/// Copies that are measured, in each direction.
const COPIES: usize = 4;

/// Returns the nanoseconds per byte of copies between pinned memory and the device, the mean of both directions. Takes
/// some 2 ms, most of it to pin the block.
///
/// # Errors
/// Those of the device.
pub fn measure(device: &Arc<Device>, pinned: &Arc<PinnedPool>) -> Result<f64, EngineError> {
    let block = pinned.take(COPY_BYTES)?;
    let memory = DeviceMemory::new(device, COPY_BYTES)?;
    let stream = Stream::new(device)?;
    let copy = |copies: usize| {
        for _ in 0..copies {
            // SAFETY: both sides have this many bytes. The stream is waited for below, or dropped, which waits, before
            // they are.
            unsafe {
                stream.copy_to_device(memory.address(), block.start(), COPY_BYTES)?;
                stream.copy_to_host(block.start(), memory.address(), COPY_BYTES)?;
            }
        }
        stream.wait()
    };
    // The first copies set up the way.
    copy(1)?;
    let started = Instant::now();
    copy(COPIES)?;
    let nanoseconds = started.elapsed().as_secs_f64() * 1e9;
    #[expect(clippy::cast_precision_loss, reason = "a small power of two")]
    let bytes = (2 * COPIES * COPY_BYTES) as f64;
    Ok(nanoseconds / bytes)
}
