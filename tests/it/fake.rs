//! Devices that are threads: the CPU engine behind the interface of devices, with counters, configurable delays and
//! injected faults.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_rmq::{DeviceEngine, DeviceSource, register_with_devices};
use rmq_engine::cost_model::Costs;
use rmq_engine::cpu::CpuEngine;
use rmq_engine::cuda::{CudaOptions, CudaVersion, DeviceInfo, DeviceUse};
use rmq_engine::{
    Answers, BuildOptions, Column, ColumnSize, Crossings, Encoding, Engine, EngineError, Key,
    RangeEnd, RangeIndex, RangeJoinIndex, RangeJoinInput, RankIndex, RankLevels,
};

use crate::fake_range_join::{FakeRangeJoin, building_bytes};
use crate::fake_ranks::FakeRanks;
use crate::support::set;

/// The settings and counters of the devices.
#[derive(Debug)]
pub struct Fake {
    /// The number of devices. With none there is no driver.
    pub devices: usize,
    /// The memory of each device in bytes.
    pub memory: usize,
    pub costs: Costs,
    /// The time of a lookup, and of a build that is not stopped.
    pub delay: Mutex<Duration>,
    pub build_delay: Mutex<Duration>,
    /// The build that fails for lack of memory: fails when the count reaches 1.
    pub full_at: AtomicUsize,
    /// The build, and the lookup, at which all devices fail permanently.
    pub build_fails_at: AtomicUsize,
    pub answer_fails_at: AtomicUsize,
    /// Whether devices have range joins.
    pub joins: bool,
    /// The step of range joins that ends in this error, counted from 1.
    pub join_fault: Mutex<Option<(usize, EngineError)>>,
    pub failed: AtomicBool,
    /// The number of times that devices were opened, and their ordinals.
    pub opened: Mutex<Vec<Vec<usize>>>,
    /// The number of indexes built, and the bytes of those that exist.
    pub built: AtomicUsize,
    pub held: AtomicUsize,
    /// Value columns that were added to build sides.
    pub columns_added: AtomicUsize,
    /// Rows of all build sides and indexes that were built.
    pub rows_built: AtomicUsize,
    /// The number of ranges of each batch.
    pub batches: Mutex<Vec<usize>>,
    /// Batches in flight, and their maximum.
    pub under_way: AtomicUsize,
    pub most_under_way: AtomicUsize,
}

/// Costs with which devices are chosen for any work.
pub const FREE: Costs = Costs {
    cuda_range: 0.0,
    cuda_range_core: 0.0,
    cuda_search: 0.0,
    cuda_build_byte: 0.0,
    cuda_query: 0.0,
    cuda_open: 0.0,
    cuda_sort_row: 0.0,
    cuda_sort: 0.0,
    ..Costs::MEASURED
};

impl Default for Fake {
    fn default() -> Self {
        Self {
            devices: 2,
            memory: 1 << 30,
            costs: FREE,
            delay: Mutex::default(),
            build_delay: Mutex::default(),
            full_at: AtomicUsize::new(0),
            build_fails_at: AtomicUsize::new(0),
            answer_fails_at: AtomicUsize::new(0),
            joins: true,
            join_fault: Mutex::default(),
            failed: AtomicBool::new(false),
            opened: Mutex::default(),
            built: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            columns_added: AtomicUsize::new(0),
            rows_built: AtomicUsize::new(0),
            batches: Mutex::default(),
            under_way: AtomicUsize::new(0),
            most_under_way: AtomicUsize::new(0),
        }
    }
}

impl Fake {
    /// Devices with the costs of real ones.
    pub fn real() -> Arc<Self> {
        Arc::new(Self {
            costs: Costs::MEASURED,
            ..Self::default()
        })
    }

    /// A session with these devices and options.
    pub fn session(self: &Arc<Self>, options: &[(&str, &str)]) -> SessionContext {
        self.session_with(SessionConfig::new().with_target_partitions(4), options)
    }

    pub fn session_with(
        self: &Arc<Self>,
        config: SessionConfig,
        options: &[(&str, &str)],
    ) -> SessionContext {
        let config = config.with_information_schema(true);
        self.register(SessionContext::new_with_config(config), options)
    }

    pub fn register(
        self: &Arc<Self>,
        ctx: SessionContext,
        options: &[(&str, &str)],
    ) -> SessionContext {
        register_with_devices(&ctx, Arc::new(Source(Arc::clone(self))));
        for (name, value) in options {
            set(&ctx, name, value);
        }
        ctx
    }

    pub fn ranges(&self) -> usize {
        self.batches.lock().unwrap().iter().sum()
    }

    /// Takes the time of a lookup.
    pub fn wait(&self) {
        let delay = *self.delay.lock().unwrap();
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
    }

    /// Counts a step of a range join.
    ///
    /// # Errors
    /// The fault of this step. After one of a device, all steps fail.
    pub fn join_step(&self) -> Result<(), EngineError> {
        let mut fault = self.join_fault.lock().unwrap();
        if let Some((left, error)) = &mut *fault {
            *left -= 1;
            if *left == 0 {
                let error = error.clone();
                *fault = None;
                let lost = matches!(error, EngineError::Device { .. });
                self.failed.fetch_or(lost, Relaxed);
                return Err(error);
            }
        }
        if self.failed.load(Relaxed) {
            return Err(device_error(0));
        }
        Ok(())
    }
}

/// The error of a device that failed.
pub fn device_error(ordinal: usize) -> EngineError {
    EngineError::Device {
        ordinal,
        what: "do as it was told",
        why: "a test said so".to_string(),
    }
}

/// The errors that a step on devices may end in: the devices are lost, or their memory or the host's does not suffice.
pub fn step_faults() -> [EngineError; 3] {
    let full = EngineError::DeviceMemory {
        ordinal: 0,
        needed: 7,
        free: 5,
        limit: 9,
    };
    [device_error(0), full, EngineError::OutOfMemory { bytes: 7 }]
}

fn strikes(at: &AtomicUsize) -> bool {
    at.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) == Ok(1)
}

#[derive(Debug)]
struct Source(Arc<Fake>);

impl DeviceSource for Source {
    fn list(&self) -> Result<Vec<DeviceInfo>, EngineError> {
        if self.0.devices == 0 {
            return Err(EngineError::NoDevice {
                why: "no driver at all".to_string(),
            });
        }
        let info = |ordinal| DeviceInfo {
            ordinal,
            name: "Threads".to_string(),
            compute_capability: (9, 0),
            total_bytes: self.0.memory,
            driver: CudaVersion {
                major: 13,
                minor: 0,
            },
            unusable: None,
        };
        Ok((0..self.0.devices).map(info).collect())
    }

    fn open(&self, options: &CudaOptions) -> Result<Arc<dyn DeviceEngine>, EngineError> {
        let fake = Arc::clone(&self.0);
        let ordinals = options.devices.clone();
        fake.opened.lock().unwrap().push(ordinals.clone());
        self.list()?;
        if let Some(strange) = ordinals.iter().find(|o| **o >= fake.devices) {
            return Err(EngineError::NoDevice {
                why: format!("there is no device {strange}"),
            });
        }
        Ok(Arc::new(Threads {
            fake,
            ordinals,
            stop: Arc::default(),
        }))
    }

    fn costs(&self) -> Costs {
        self.0.costs
    }
}

#[derive(Debug)]
struct Threads {
    fake: Arc<Fake>,
    ordinals: Vec<usize>,
    stop: Arc<AtomicBool>,
}

impl Threads {
    fn bytes(size: ColumnSize) -> usize {
        size.rows * size.key_bytes * 9 / 8
    }

    fn error(&self) -> EngineError {
        device_error(self.ordinals[0])
    }

    fn wrap<K: Key>(
        &self,
        inner: Arc<dyn RangeIndex<K>>,
    ) -> Result<Arc<dyn RangeIndex<K>>, EngineError> {
        let fake = Arc::clone(&self.fake);
        if strikes(&fake.full_at) {
            return Err(EngineError::DeviceMemory {
                ordinal: self.ordinals[0],
                needed: 7,
                free: 5,
                limit: 9,
            });
        }
        if strikes(&fake.build_fails_at) {
            fake.failed.store(true, Relaxed);
        }
        if fake.failed.load(Relaxed) {
            return Err(self.error());
        }
        let bytes = Self::bytes(ColumnSize {
            rows: inner.len(),
            key_bytes: size_of::<K>(),
            nulls: false,
        });
        fake.built.fetch_add(1, Relaxed);
        fake.rows_built.fetch_add(inner.len(), Relaxed);
        fake.held.fetch_add(bytes, Relaxed);
        let until = Instant::now() + *fake.build_delay.lock().unwrap();
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            if self.stop.load(Relaxed) {
                fake.held.fetch_sub(bytes, Relaxed);
                return Err(EngineError::Stopped);
            }
        }
        let error = self.error();
        Ok(Arc::new(ThreadsIndex {
            inner,
            fake,
            bytes,
            error,
        }))
    }
}

impl Engine for Threads {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn build_u32(
        &self,
        column: Column<u32>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u32>>, EngineError> {
        self.wrap(CpuEngine::default().build_u32(column, options)?)
    }

    fn build_u64(
        &self,
        column: Column<u64>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u64>>, EngineError> {
        self.wrap(CpuEngine::default().build_u64(column, options)?)
    }

    fn build_u128(
        &self,
        column: Column<u128>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u128>>, EngineError> {
        self.wrap(CpuEngine::default().build_u128(column, options)?)
    }

    fn copy_ranks(
        &self,
        levels: RankLevels<'_>,
        _: usize,
    ) -> Result<Option<Arc<dyn RankIndex>>, EngineError> {
        Ok(Some(Arc::new(FakeRanks::copy(&self.fake, levels)?)))
    }

    fn build_range_join(
        &self,
        input: &RangeJoinInput<'_>,
        _: usize,
    ) -> Result<Option<Arc<dyn RangeJoinIndex>>, EngineError> {
        if !self.fake.joins {
            return Ok(None);
        }
        let index = FakeRangeJoin::build(&self.fake, input, &self.stop)?;
        Ok(Some(Arc::new(index)))
    }

    fn range_join_bytes(&self, input: &RangeJoinInput<'_>) -> usize {
        if self.fake.joins {
            building_bytes(input)
        } else {
            0
        }
    }

    fn memory_bytes(&self, _: ColumnSize, _: &BuildOptions) -> usize {
        0
    }
}

impl DeviceEngine for Threads {
    fn devices(&self) -> Vec<DeviceUse> {
        let failed = self.fake.failed.load(Relaxed);
        let one = |ordinal: &usize| DeviceUse {
            ordinal: *ordinal,
            used: self.fake.held.load(Relaxed),
            limit: self.fake.memory,
            failed: failed.then(|| self.error().to_string()),
        };
        self.ordinals.iter().map(one).collect()
    }

    fn until(&self, stop: Arc<AtomicBool>) -> Arc<dyn DeviceEngine> {
        Arc::new(Self {
            fake: Arc::clone(&self.fake),
            ordinals: self.ordinals.clone(),
            stop,
        })
    }

    fn free_bytes(&self, _: usize) -> Option<usize> {
        Some(self.fake.memory - self.fake.held.load(Relaxed))
    }

    fn device_bytes(&self, size: ColumnSize, _: &BuildOptions) -> usize {
        Self::bytes(size)
    }
}

#[derive(Debug)]
struct ThreadsIndex<K> {
    inner: Arc<dyn RangeIndex<K>>,
    fake: Arc<Fake>,
    bytes: usize,
    error: EngineError,
}

impl<K> Drop for ThreadsIndex<K> {
    fn drop(&mut self) {
        self.fake.held.fetch_sub(self.bytes, Relaxed);
    }
}

impl<K: Key> RangeIndex<K> for ThreadsIndex<K> {
    fn len(&self) -> usize {
        self.inner.len()
    }

    fn encoding(&self) -> Encoding<K> {
        self.inner.encoding()
    }

    fn has_positions(&self) -> bool {
        true
    }

    fn index_bytes(&self) -> usize {
        self.inner.index_bytes()
    }

    fn memory_bytes(&self) -> usize {
        0
    }

    fn device_bytes(&self) -> usize {
        self.bytes
    }

    fn answer(&self, left: &[i64], right: &[i64], out: Answers<'_, K>) -> Result<(), EngineError> {
        let fake = &self.fake;
        let now = fake.under_way.fetch_add(1, Relaxed) + 1;
        fake.most_under_way.fetch_max(now, Relaxed);
        fake.batches.lock().unwrap().push(left.len());
        fake.wait();
        if strikes(&fake.answer_fails_at) {
            fake.failed.store(true, Relaxed);
        }
        let answered = if fake.failed.load(Relaxed) {
            Err(self.error.clone())
        } else {
            self.inner.answer(left, right, out)
        };
        fake.under_way.fetch_sub(1, Relaxed);
        answered
    }

    fn crossings(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
        end: RangeEnd,
        out: Crossings<'_>,
    ) -> Result<(), EngineError> {
        let fake = &self.fake;
        fake.batches.lock().unwrap().push(left.len());
        if strikes(&fake.answer_fails_at) {
            fake.failed.store(true, Relaxed);
        }
        if fake.failed.load(Relaxed) {
            return Err(self.error.clone());
        }
        self.inner.crossings(left, right, thresholds, end, out)
    }
}
