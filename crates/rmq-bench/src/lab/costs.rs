//! What reads cost on a device, and the model of our search: each read is charged once, by the memory that serves it.
//!
//! A search that is limited by nothing but its reads takes this long. It is the model of one access pattern; another
//! search has another sum.

use cudarc::driver::sys::{self, CUdevice_attribute};
use rmq_engine::EngineError;
use rmq_engine::cuda::driver::stream::argument;
use rmq_engine::cuda::memory::device_memory::DeviceMemory;

use super::access::{AccessPattern, Reads};
use super::device::Lab;

/// Bytes that are read at random from the device's memory: far more than caches hold.
const DRAM_BYTES: usize = 4 << 30;

/// Bytes that are read at random from the L2 cache: they fit one of its halves.
const L2_BYTES: usize = 16 << 20;

/// Bytes that are read at random from the L1 cache.
const L1_BYTES: usize = 32 << 10;

/// Bytes of an L1 cache that hold data beside the shared memory of our kernel.
const L1_CAPACITY: f64 = 128.0 * 1024.0;

/// The part of the L2 cache that keeps what is read again and again, beside bounds and answers that stream through it.
const L2_PART: f64 = 0.75;

/// Groups of threads that read, and the reads of each.
const GROUPS: u32 = 1 << 20;
const READS: u32 = 64;

/// Seconds of one read from the L2 cache and from the device's memory.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    pub l2: f64,
    pub dram: f64,
}

/// Seconds that reads take when nothing but reads limits a kernel.
#[derive(Debug, Clone, Copy)]
pub struct UnitCosts {
    /// 4 bytes from the L1 cache, by one thread.
    pub l1_entry: f64,
    /// 4 bytes, by one thread.
    pub entry: Cost,
    /// 64 bytes, by four threads.
    pub half: Cost,
    /// 128 bytes, by eight threads.
    pub line: Cost,
    /// A byte of a copy, read or written.
    pub streamed_byte: f64,
    /// Bytes of the L2 cache.
    pub l2_bytes: f64,
}

/// What our search would take if nothing but reads limited it, in seconds a query.
#[derive(Debug, Clone, Copy, Default)]
pub struct Model {
    /// Reads that caches serve.
    pub caches: f64,
    /// Reads that the device's memory serves, bounds and answers.
    pub dram: f64,
}

impl Model {
    pub fn sum(self) -> f64 {
        self.caches + self.dram
    }
}

/// The reads of a group of threads.
#[derive(Debug, Clone, Copy)]
pub struct ReadShape {
    /// Threads of a group, which read neighbouring words.
    pub group: u32,
    /// Bytes that a thread reads.
    pub width: u32,
    /// Whether the L1 cache is used.
    pub cached: bool,
}

impl Lab {
    /// Returns the seconds of one random read of a group of threads in the first `bytes` of `memory`, when nothing else
    /// is done.
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
        shape: ReadShape,
        rounds: u32,
    ) -> Result<f64, EngineError> {
        assert!(bytes <= memory.bytes());
        let kind = if shape.cached { "cache" } else { "l2" };
        let name = format!("limit_random_g{}_w{}_{kind}", shape.group, shape.width);
        let kernel = self.limit(&name)?;
        let out = self.allocate(4)?;
        let (data, out) = (memory.address(), out.address());
        let segments = (bytes / (shape.group * shape.width) as usize) as u32;
        let seconds = self.time(rounds, || {
            let arguments = [
                argument(&data),
                argument(&segments),
                argument(&READS),
                argument(&out),
            ];
            // SAFETY: the segments are within the memory; arguments are those of `limit_random`.
            unsafe {
                let threads = u64::from(GROUPS) * u64::from(shape.group);
                self.stream.launch(kernel, threads, arguments)
            }
        })?;
        Ok(seconds / (f64::from(GROUPS) * f64::from(READS)))
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

    /// Measures what reads cost.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn unit_costs(&self, rounds: u32) -> Result<UnitCosts, EngineError> {
        let memory = self.random_memory()?;
        let read = |bytes: usize, group: u32, width: u32, cached: bool| {
            let shape = ReadShape {
                group,
                width,
                cached,
            };
            self.random_read(&memory, bytes, shape, rounds)
        };
        let cost = |group: u32, width: u32| {
            Ok::<_, EngineError>(Cost {
                l2: read(L2_BYTES, group, width, false)?,
                dram: read(memory.bytes(), group, width, false)?,
            })
        };
        Ok(UnitCosts {
            l1_entry: read(L1_BYTES, 1, 4, true)?,
            entry: cost(1, 4)?,
            half: cost(4, 16)?,
            line: cost(8, 16)?,
            streamed_byte: 1.0 / self.copy_speed()?,
            l2_bytes: self.l2_bytes()?,
        })
    }

    /// Returns the size of the L2 cache.
    fn l2_bytes(&self) -> Result<f64, EngineError> {
        let device = &self.gpu.device;
        let (mut handle, mut bytes) = (0, 0);
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
        // SAFETY: the pointers are valid for the calls, and the device exists.
        device.call("tell its caches", || unsafe {
            sys::cuDeviceGet(&raw mut handle, device.ordinal() as i32)
        })?;
        // SAFETY: as above.
        device.call("tell its caches", || unsafe {
            sys::cuDeviceGetAttribute(&raw mut bytes, attribute, handle)
        })?;
        Ok(f64::from(bytes))
    }
}

impl UnitCosts {
    /// Computes what an access pattern takes. Caches keep the arrays that are read most often for their size;
    /// `streamed` are the bytes of bounds and answers a query.
    pub fn model(&self, pattern: &AccessPattern, streamed: f64) -> Model {
        let mut arrays: Vec<&Reads> = pattern
            .arrays()
            .filter(|reads| reads.count() > 0.0)
            .collect();
        let density = |reads: &Reads| reads.count() / reads.bytes as f64;
        arrays.sort_by(|a, b| density(b).total_cmp(&density(a)));
        let (mut l1, mut l2) = (L1_CAPACITY, self.l2_bytes * L2_PART);
        let mut model = Model {
            caches: 0.0,
            dram: streamed * self.streamed_byte,
        };
        for reads in arrays {
            let bytes = reads.bytes as f64;
            let part = |capacity: &mut f64| {
                let kept = capacity.min(bytes);
                *capacity -= kept;
                kept / bytes
            };
            // Chunks are too many for the L1 cache, or hardly read.
            let in_l1 = if reads.entries > 0.0 {
                part(&mut l1)
            } else {
                0.0
            };
            let in_l2 = part(&mut l2);
            let kinds = [
                (reads.entries * (1.0 - in_l1), self.entry),
                (reads.halves, self.half),
                (reads.lines, self.line),
            ];
            model.caches += reads.entries * in_l1 * self.l1_entry;
            for (count, cost) in kinds {
                model.caches += count * in_l2 * cost.l2;
                model.dram += count * (1.0 - in_l2) * cost.dram;
            }
        }
        model
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_keep_what_is_read_most_for_its_size() {
        let cost = |l2, dram| Cost { l2, dram };
        let units = UnitCosts {
            l1_entry: 1.0,
            entry: cost(2.0, 10.0),
            half: cost(4.0, 20.0),
            line: cost(8.0, 40.0),
            streamed_byte: 0.5,
            l2_bytes: 4000.0 / 3.0,
        };
        let reads = |bytes, lines| Reads {
            bytes,
            lines,
            ..Reads::default()
        };
        // 1000 bytes of the L2 cache: all of the second array, and half of the first.
        let pattern = AccessPattern {
            levels: vec![reads(1000, 1.0), reads(500, 2.0)],
            table: Vec::new(),
        };
        let model = units.model(&pattern, 12.0);
        assert!((model.caches - (2.0 * 8.0 + 0.5 * 8.0)).abs() < 1e-9);
        assert!((model.dram - (6.0 + 0.5 * 40.0)).abs() < 1e-9);
    }
}
