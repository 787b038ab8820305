//! What the hardware allows: the speed of the bus, and of copies on the device.

use std::time::Instant;

use cudarc::driver::sys;
use rmq_bench::clock::median;
use rmq_engine::EngineError;
use rmq_engine::cuda::driver::stream::Stream;
use rmq_engine::cuda::gpu::Gpu;
use rmq_engine::cuda::memory::device_memory::DeviceMemory;

/// Bytes that are copied over the bus, and on the device.
const BUS_BYTES: usize = 256 << 20;
const COPY_BYTES: usize = 1 << 30;

/// Copies of each kind, after one that does not count.
const ROUNDS: usize = 5;

/// Bytes per second.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Up and down the bus, each direction alone, from and to pinned memory.
    pub bus: [f64; 2],
    /// Read and written by a copy on the device.
    pub copy: f64,
}

impl Limits {
    /// Measures a device.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn measure(device: usize) -> Result<Self, EngineError> {
        let gpu = Gpu::open(device, None)?;
        let stream = Stream::new(&gpu.device)?;
        let memory = DeviceMemory::new(&gpu.device, BUS_BYTES)?;
        let block = gpu.pinned.take(BUS_BYTES)?;
        // SAFETY: both ends are that long; `seconds` waits for the stream.
        let up = seconds(&stream, || unsafe {
            stream.copy_to_device(memory.address(), block.start(), BUS_BYTES)
        })?;
        // SAFETY: as above.
        let down = seconds(&stream, || unsafe {
            stream.copy_to_host(block.start(), memory.address(), BUS_BYTES)
        })?;
        let (from, to) = (
            DeviceMemory::new(&gpu.device, COPY_BYTES)?,
            DeviceMemory::new(&gpu.device, COPY_BYTES)?,
        );
        let copied = seconds(&stream, || {
            // SAFETY: both are that long, and the copy, on the default stream, is waited for.
            gpu.device.call("copy on it", || unsafe {
                sys::cuMemcpyDtoD_v2(to.address(), from.address(), COPY_BYTES)
            })?;
            // SAFETY: the context is current within `call`.
            (gpu.device).call("copy on it", || unsafe { sys::cuCtxSynchronize() })
        })?;
        Ok(Self {
            bus: [up, down].map(|seconds| BUS_BYTES as f64 / seconds),
            copy: 2.0 * COPY_BYTES as f64 / copied,
        })
    }
}

/// Returns the median of the seconds that what `work` enqueues takes.
fn seconds(
    stream: &Stream,
    mut work: impl FnMut() -> Result<(), EngineError>,
) -> Result<f64, EngineError> {
    let mut times = Vec::new();
    for _ in 0..=ROUNDS {
        let start = Instant::now();
        work()?;
        stream.wait()?;
        times.push(start.elapsed().as_secs_f64());
    }
    Ok(median(times.split_off(1)))
}
