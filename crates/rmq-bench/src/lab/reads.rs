//! Random reads of groups of threads: how much of a memory's speed is left when a read is as long as a group is wide.

use rmq_bench::clock::Timing;
use rmq_engine::EngineError;
use rmq_engine::cuda::driver::stream::argument;
use rmq_engine::cuda::memory::device_memory::DeviceMemory;

use super::device::Lab;

/// Bytes that are read at random from the device's memory: far more than caches hold.
const DRAM_BYTES: usize = 4 << 30;

/// Bytes that are read at random from the L2 cache: they fit one of its halves.
pub const L2_BYTES: usize = 16 << 20;

/// Threads that read, and the reads of each.
const THREADS: u32 = 1 << 22;
const READS: u32 = 16;

/// What the threads of a group read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPattern {
    /// Neighbouring words, at a random position for each group.
    Segments,
    /// All the same word, at a random position for each group.
    SameAddress,
}

impl Lab {
    /// Measures one random read of each thread of a group in the first `bytes` of `memory`.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If the memory is shorter.
    pub fn random_read(
        &self,
        memory: &DeviceMemory,
        bytes: usize,
        (pattern, group): (ReadPattern, u32),
        rounds: u32,
    ) -> Result<Timing, EngineError> {
        let out = self.allocate(4)?;
        let time = self.time(rounds, || {
            self.read_at_random(memory, bytes, (pattern, group), THREADS, &out)
        })?;
        Ok(time.divided_by(f64::from(THREADS) * f64::from(READS)))
    }

    /// Launches random reads, without waiting for them. Where all words that a thread reads are `u32::MAX`, the first
    /// word of `out` becomes its number.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If `memory` has fewer than `bytes`, or `out` has no word.
    pub(super) fn read_at_random(
        &self,
        memory: &DeviceMemory,
        bytes: usize,
        (pattern, group): (ReadPattern, u32),
        threads: u32,
        out: &DeviceMemory,
    ) -> Result<(), EngineError> {
        assert!(bytes <= memory.bytes() && out.bytes() >= 4);
        let kind = match pattern {
            ReadPattern::Segments => "segments",
            ReadPattern::SameAddress => "same",
        };
        let kernel = self.limit(&format!("limit_random_{kind}_g{group}"))?;
        let (data, out) = (memory.address(), out.address());
        let segments = (bytes / 4 / group as usize) as u32;
        let arguments = [
            argument(&data),
            argument(&segments),
            argument(&READS),
            argument(&out),
        ];
        // SAFETY: the segments are within the memory; arguments are those of `limit_random`.
        unsafe { self.stream.launch(kernel, threads.into(), arguments) }
    }

    /// Allocates memory for random reads, as much as is good or a quarter of what is free.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn random_memory(&self) -> Result<DeviceMemory, EngineError> {
        let (free, _) = self.gpu.device.memory()?;
        let memory = self.allocate(DRAM_BYTES.min(free / 4).max(L2_BYTES))?;
        // SAFETY: the memory is that long.
        unsafe { (self.stream).memset(memory.address(), 0, memory.bytes())? };
        self.stream.wait()?;
        Ok(memory)
    }
}
