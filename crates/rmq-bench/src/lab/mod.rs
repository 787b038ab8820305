//! What measurements of single kernels need: columns, ranges, answers and indexes in a device's memory, and the device's own
//! clock. Not part of the crate's interface.
//!
//! Columns here are of floats that are not negative, whose bits have the floats' order: bits are keys. So a column serves the
//! paper's kernels as it is, which expect keys, and our own, which make keys as they read.

mod clock;
mod contestant;
mod limit;
mod paper;

use std::sync::Arc;

pub(super) use clock::Mark;
pub use contestant::{Contestant, Wanted};
pub use limit::Ranges;
pub use paper::Paper;

use rmq_engine::EngineError;
use rmq_engine::cuda::device::Device;
use rmq_engine::cuda::devices;
use rmq_engine::cuda::gpu::Gpu;
use rmq_engine::cuda::memory::DeviceMemory;
use rmq_engine::cuda::stream::Stream;
use rmq_engine::cuda::upload::{copy_of, upload};

/// What is read past a column's end, and not used.
const PADDING: usize = 4096;

/// A device to measure on.
#[derive(Debug)]
pub struct Lab {
    // Before what works on it.
    stream: Stream,
    begin: Mark,
    end: Mark,
    gpu: Gpu,
}

/// A column in the device's memory.
#[derive(Debug)]
pub struct DeviceColumn {
    memory: DeviceMemory,
    rows: u64,
    key_bytes: usize,
}

/// Bounds of ranges in the device's memory.
#[derive(Debug)]
pub struct DeviceBounds {
    left: DeviceMemory,
    right: DeviceMemory,
    count: u32,
}

/// Room for answers in the device's memory.
#[derive(Debug)]
pub struct DeviceAnswers {
    values: DeviceMemory,
    positions: DeviceMemory,
}

/// Whether bounds in a column of so many values take 64 bits on the device. The paper's kernels count some
/// values past the last.
fn wide(rows: u64) -> bool {
    rows > (1 << 32) - 256
}

impl Lab {
    /// Opens a device.
    ///
    /// # Errors
    /// Those of the driver, as all functions here.
    pub fn open(ordinal: usize) -> Result<Self, EngineError> {
        let gpu = Gpu::open(ordinal, None)?;
        Ok(Self {
            stream: Stream::new(&gpu.device)?,
            begin: Mark::new(&gpu.device)?,
            end: Mark::new(&gpu.device)?,
            gpu,
        })
    }

    /// The device and its driver in words.
    #[must_use]
    pub fn describe(&self) -> String {
        let all = devices().unwrap_or_default();
        let ours = all
            .iter()
            .find(|one| one.ordinal == self.device().ordinal());
        ours.map_or_else(String::new, |info| {
            let (major, minor) = info.compute_capability;
            format!(
                "{}, {} GiB, compute capability {major}.{minor}, driver for CUDA {}",
                info.name,
                info.total_bytes >> 30,
                info.driver
            )
        })
    }

    /// Bytes of its memory that are free.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn free(&self) -> Result<usize, EngineError> {
        Ok(self.device().memory()?.0)
    }

    fn device(&self) -> &Arc<Device> {
        &self.gpu.device
    }

    fn memory(&self, bytes: usize) -> Result<DeviceMemory, EngineError> {
        DeviceMemory::new(self.device(), bytes)
    }

    /// Room for a column of so many values of 4 or 8 bytes, not filled.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn column(&self, rows: u64, key_bytes: usize) -> Result<DeviceColumn, EngineError> {
        let memory = self.memory(rows as usize * key_bytes + PADDING)?;
        // SAFETY: inside the memory, which nothing else uses yet.
        unsafe {
            let end = memory.address() + rows * key_bytes as u64;
            self.stream.fill(end, 0, PADDING)?;
        }
        self.stream.wait()?;
        Ok(DeviceColumn {
            memory,
            rows,
            key_bytes,
        })
    }

    /// Room for `count` answers.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn answers(&self, count: u32) -> Result<DeviceAnswers, EngineError> {
        Ok(DeviceAnswers {
            values: self.memory(count as usize * 8)?,
            positions: self.memory(count as usize * 8)?,
        })
    }

    /// Seconds that the device takes for what `work` puts on the stream: the median of `rounds`, after one that does not count.
    fn time(
        &self,
        rounds: u32,
        mut work: impl FnMut() -> Result<(), EngineError>,
    ) -> Result<f64, EngineError> {
        work()?;
        self.stream.wait()?;
        let mut times = Vec::new();
        for _ in 0..rounds.max(1) {
            self.stream.mark(self.begin.event)?;
            work()?;
            self.stream.mark(self.end.event)?;
            self.stream.wait()?;
            times.push(self.end.since(&self.begin)?);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    /// Copies bytes into a column, from that byte of it on.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// Where they reach past its end.
    pub fn put(&self, column: &DeviceColumn, at: usize, bytes: &[u8]) -> Result<(), EngineError> {
        assert!(at + bytes.len() <= column.rows as usize * column.key_bytes);
        let to = column.memory.address() + at as u64;
        // SAFETY: the column is that long, and nothing uses it meanwhile.
        unsafe { upload(&self.gpu, bytes.len(), copy_of(bytes), to, 8, |_, _| Ok(())) }
    }

    fn download(&self, from: u64, bytes: &mut [u8]) -> Result<(), EngineError> {
        let (to, count) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: callers pass memory of the device that is that long; it is waited for.
        unsafe { self.stream.copy_down(to, from, count)? };
        self.stream.wait()
    }
}
