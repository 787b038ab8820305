//! A device to measure on, and the columns, queries and answers in its memory.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::{self, CUdevice_attribute};
use rmq_bench::clock::Timing;
use rmq_engine::cuda::devices;
use rmq_engine::cuda::driver::device::Device;
use rmq_engine::cuda::driver::stream::Stream;
use rmq_engine::cuda::gpu::Gpu;
use rmq_engine::cuda::memory::device_memory::DeviceMemory;
use rmq_engine::cuda::memory::upload::{copy_of, upload};
use rmq_engine::{ColumnSize, EngineError};

use super::event::TimedEvent;

/// Bytes past a column's end that kernels may read and ignore.
const PADDING: usize = 4096;

/// An open device with a stream and a clock.
#[derive(Debug)]
pub struct Lab {
    // Dropped first: it may have work in flight.
    pub stream: Stream,
    begin: TimedEvent,
    end: TimedEvent,
    pub gpu: Gpu,
}

/// A column in the device's memory.
#[derive(Debug)]
pub struct DeviceColumn {
    pub memory: DeviceMemory,
    pub rows: u64,
    /// Bytes of a value: 4 or 8.
    pub key_bytes: usize,
    /// Whether positions in it take 64 bits on the device.
    pub wide_positions: bool,
}

impl DeviceColumn {
    /// Returns what the engine's layout depends on.
    pub fn size(&self) -> ColumnSize {
        ColumnSize {
            rows: self.rows as usize,
            key_bytes: self.key_bytes,
            nulls: false,
        }
    }
}

/// Inclusive bounds of ranges in the device's memory.
#[derive(Debug)]
pub struct DeviceBounds {
    pub left: DeviceMemory,
    pub right: DeviceMemory,
    pub count: u32,
}

/// Memory for answers on the device: 8 bytes for each value and each position.
#[derive(Debug)]
pub struct DeviceAnswers {
    pub values: DeviceMemory,
    pub positions: DeviceMemory,
}

/// Whether positions in a column of `rows` values take 64 bits on the device. The paper's kernels compute positions up
/// to 255 past the last value.
pub fn needs_wide_positions(rows: u64) -> bool {
    rows > (1 << 32) - 256
}

impl Lab {
    /// Opens a device.
    ///
    /// # Errors
    /// Those of the driver, as for all functions here.
    pub fn open(ordinal: usize) -> Result<Self, EngineError> {
        let gpu = Gpu::open(ordinal, None)?;
        Ok(Self {
            stream: Stream::new(&gpu.device)?,
            begin: TimedEvent::new(&gpu.device)?,
            end: TimedEvent::new(&gpu.device)?,
            gpu,
        })
    }

    /// Describes the device and its driver in one line.
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

    fn device(&self) -> &Arc<Device> {
        &self.gpu.device
    }

    /// Allocates memory on the device.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn allocate(&self, bytes: usize) -> Result<DeviceMemory, EngineError> {
        DeviceMemory::new(self.device(), bytes)
    }

    /// Allocates a column of `rows` values of 4 or 8 bytes, not filled.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn column(&self, rows: u64, key_bytes: usize) -> Result<DeviceColumn, EngineError> {
        let memory = self.allocate(rows as usize * key_bytes + PADDING)?;
        // SAFETY: within the memory, which nothing else uses yet.
        unsafe {
            let end = memory.address() + rows * key_bytes as u64;
            self.stream.memset(end, 0, PADDING)?;
        }
        self.stream.wait()?;
        Ok(DeviceColumn {
            memory,
            rows,
            key_bytes,
            wide_positions: needs_wide_positions(rows),
        })
    }

    /// Allocates memory for `count` answers.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn answers(&self, count: u32) -> Result<DeviceAnswers, EngineError> {
        Ok(DeviceAnswers {
            values: self.allocate(count as usize * 8)?,
            positions: self.allocate(count as usize * 8)?,
        })
    }

    /// Measures what `work` enqueues by the device's clock: `rounds`, after one that is not counted.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn time(
        &self,
        rounds: u32,
        mut work: impl FnMut() -> Result<(), EngineError>,
    ) -> Result<Timing, EngineError> {
        work()?;
        self.stream.wait()?;
        let mut times = Vec::new();
        for _ in 0..rounds.max(1) {
            // SAFETY: the event is of this device and lives as long as the lab.
            unsafe { self.stream.record(self.begin.handle)? };
            work()?;
            // SAFETY: as above.
            unsafe { self.stream.record(self.end.handle)? };
            self.stream.wait()?;
            times.push(self.end.seconds_since(&self.begin)?);
        }
        Ok(Timing::from_seconds(&times))
    }

    /// Measures what `work` enqueues by the wall clock: the mean of four times. The paper's script starts a process for
    /// each, so that all are cold.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn time_cold(
        &self,
        mut work: impl FnMut() -> Result<(), EngineError>,
    ) -> Result<f64, EngineError> {
        const TIMES: u32 = 4;
        let start = Instant::now();
        for _ in 0..TIMES {
            work()?;
            self.stream.wait()?;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(TIMES))
    }

    /// Returns the greatest clock rate of the device's multiprocessors, in MHz.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn clock_mhz(&self) -> Result<u32, EngineError> {
        let (mut handle, mut khz) = (0, 0);
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE;
        // SAFETY: the pointers are valid for the calls, and the device exists.
        (self.device()).call("tell its clock rate", || unsafe {
            sys::cuDeviceGet(&raw mut handle, self.device().ordinal() as i32)
        })?;
        // SAFETY: as above.
        (self.device()).call("tell its clock rate", || unsafe {
            sys::cuDeviceGetAttribute(&raw mut khz, attribute, handle)
        })?;
        Ok(khz as u32 / 1000)
    }

    /// Copies bytes into a column, from its byte `offset` on.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If they reach past its end.
    pub fn write(
        &self,
        column: &DeviceColumn,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        assert!(offset + bytes.len() <= column.rows as usize * column.key_bytes);
        self.upload(&column.memory, offset, bytes)
    }

    /// Copies bytes to the device, from byte `offset` of `memory` on.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If they reach past its end.
    pub fn upload(
        &self,
        memory: &DeviceMemory,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        assert!(offset + bytes.len() <= memory.bytes());
        let (to, pinned) = (memory.address() + offset as u64, &self.gpu.pinned);
        // SAFETY: the memory is that long, and nothing else uses it meanwhile.
        unsafe { upload(pinned, bytes.len(), copy_of(bytes), to, 8, |_, _| Ok(())) }
    }

    /// Copies the first `count` words of 4 bytes of `memory` to the host, after the work on the lab's stream.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If the memory has fewer.
    pub fn words(&self, memory: &DeviceMemory, count: usize) -> Result<Vec<u32>, EngineError> {
        self.words_from(memory, 0, count)
    }

    /// Copies `count` words of 4 bytes, from byte `offset` of `memory` on, to the host, after the work on the lab's
    /// stream.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If the memory has fewer.
    pub fn words_from(
        &self,
        memory: &DeviceMemory,
        offset: usize,
        count: usize,
    ) -> Result<Vec<u32>, EngineError> {
        let mut words = vec![0_u32; count];
        // SAFETY: these are the bytes of the words, and any bytes are words.
        let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), count * 4) };
        self.download(memory, offset, bytes)?;
        Ok(words)
    }

    /// Copies bytes from byte `offset` of `memory` on to the host, after the work on the lab's stream.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If the memory has fewer.
    pub fn download(
        &self,
        memory: &DeviceMemory,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), EngineError> {
        assert!(offset + bytes.len() <= memory.bytes());
        let from = memory.address() + offset as u64;
        let (to, count) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: both ends are that long, and the copy is waited for.
        unsafe { self.stream.copy_to_host(to, from, count)? };
        self.stream.wait()
    }
}
