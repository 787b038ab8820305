//! The session's cache of indexes, which queries share: looked up by column and version, bounded in memory, evicted in
//! least-recently-used order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow::datatypes::DataType;
use datafusion::common::{Result, resources_datafusion_err, resources_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};

use crate::common::column_ref::ColumnRef;
use crate::common::options::{ByteSize, RmqOptions};
use crate::index::column_index::ColumnIndex;
use crate::index::devices::{DeviceEngine, DeviceSource, Devices, Machine, Target};
use crate::index::version::Version;
use rmq_engine::{EngineError, Extreme};

/// The key of a cached index: the column, the direction and the engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct IndexKey {
    pub(crate) column: ColumnRef,
    pub(crate) extreme: Extreme,
    pub(crate) target: Target,
}

/// An index and the memory reserved for it, which is released when the last user drops it.
#[derive(Debug)]
pub(crate) struct ReservedIndex {
    pub(crate) index: ColumnIndex,
    memory: IndexMemory,
    on_device: Option<DeviceBytes>,
}

impl ReservedIndex {
    /// Ties an index to its reservations, whose estimated sizes are corrected to the index's actual size.
    pub(crate) fn new(
        index: ColumnIndex,
        mut memory: IndexMemory,
        mut on_device: Option<DeviceBytes>,
    ) -> Self {
        memory.resize(index.memory_bytes());
        if let Some(on_device) = &mut on_device {
            on_device.resize(index.device_bytes());
        }
        Self {
            index,
            memory,
            on_device,
        }
    }

    /// Bytes of host memory.
    fn bytes(&self) -> usize {
        self.memory.reservation.size()
    }

    /// Bytes of each device that stores the index.
    pub(crate) fn device_bytes(&self) -> usize {
        self.on_device.as_ref().map_or(0, |d| d.bytes)
    }
}

/// A reservation of device memory, counted against `rmq.device_memory_limit`: this many bytes of each device.
#[derive(Debug)]
pub(crate) struct DeviceBytes {
    bytes: usize,
    total: Arc<AtomicUsize>,
}

impl DeviceBytes {
    fn resize(&mut self, bytes: usize) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for DeviceBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A reservation of host memory, in the session's memory pool and counted against `rmq.index_memory_limit`.
#[derive(Debug)]
pub(crate) struct IndexMemory {
    reservation: MemoryReservation,
    total: Arc<AtomicUsize>,
}

impl IndexMemory {
    fn resize(&mut self, bytes: usize) {
        let before = self.reservation.size();
        self.reservation.resize(bytes);
        if bytes >= before {
            self.total.fetch_add(bytes - before, Ordering::Relaxed);
        } else {
            self.total.fetch_sub(before - bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for IndexMemory {
    fn drop(&mut self) {
        self.total
            .fetch_sub(self.reservation.size(), Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Entry {
    reserved: Arc<ReservedIndex>,
    version: Version,
    cached_at: Instant,
    hits: u64,
    last_used: u64,
}

#[derive(Debug, Default)]
struct Entries {
    by_key: HashMap<IndexKey, Entry>,
    /// The number of uses so far, to find the least recently used entry.
    clock: u64,
}

impl Entries {
    /// Removes the least recently used of the indexes that `matches` selects. Its memory is released when its last user
    /// drops it.
    fn evict(&mut self, matches: impl Fn(&ReservedIndex) -> bool) -> Option<Arc<ReservedIndex>> {
        let oldest = self
            .by_key
            .iter()
            .filter(|(_, e)| matches(&e.reserved))
            .min_by_key(|(_, e)| e.last_used)
            .map(|(k, _)| k.clone());
        Some(self.by_key.remove(&oldest?)?.reserved)
    }
}

/// The indexes that a session caches, and the devices that some of them are stored on.
#[derive(Debug)]
pub struct IndexCatalog {
    entries: Mutex<Entries>,
    /// Bytes of all indexes, including those that are evicted but still in use by a query.
    total: Arc<AtomicUsize>,
    /// Bytes of each device, likewise: every index on devices is stored on all devices in use.
    device_total: Arc<AtomicUsize>,
    devices: Devices,
}

impl Default for IndexCatalog {
    fn default() -> Self {
        Self::new(Arc::new(Machine))
    }
}

/// A description of a cached index: a row of `rmq_indexes()`.
#[derive(Debug, Clone)]
pub struct CachedIndexInfo {
    /// The table, with its catalog and schema.
    pub table: String,
    /// The column.
    pub column: String,
    /// Whether the index finds minima or maxima.
    pub extreme: Extreme,
    /// The type of the values.
    pub data_type: DataType,
    /// Number of rows, NULLs included.
    pub rows: usize,
    /// Bytes of host memory: of the index, and of the copy of the column if there is one.
    pub bytes: usize,
    /// Bytes of each device that stores it.
    pub device_bytes: usize,
    /// The engine of the index: `cpu`, or `cuda` with the ordinals of its devices.
    pub engine: String,
    /// How many queries reused it.
    pub hits: u64,
    /// Time since it was cached.
    pub age: Duration,
}

impl IndexCatalog {
    /// An empty catalog whose devices come from `devices`.
    pub(crate) fn new(devices: Arc<dyn DeviceSource>) -> Self {
        Self {
            entries: Mutex::default(),
            total: Arc::default(),
            device_total: Arc::default(),
            devices: Devices::new(devices),
        }
    }

    /// The session's devices.
    pub(crate) fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Opens the devices that the options name, which takes some 300 ms the first time. Removes the indexes on other
    /// devices.
    ///
    /// # Errors
    /// The reason why the devices can't be used.
    pub(crate) fn open_devices(
        &self,
        options: &RmqOptions,
    ) -> Result<Arc<dyn DeviceEngine>, EngineError> {
        let opened = self.devices.open(&options.cuda());
        let target = opened.as_ref().ok().cloned().map(Target::Devices);
        let mut removed = vec![];
        {
            let mut entries = self.lock();
            let keep =
                |key: &IndexKey| key.target == Target::Cpu || target.as_ref() == Some(&key.target);
            let keys: Vec<_> = entries
                .by_key
                .keys()
                .filter(|k| !keep(k))
                .cloned()
                .collect();
            for key in keys {
                removed.extend(entries.by_key.remove(&key));
            }
        }
        // Freeing device memory takes time: the lock is released first.
        drop(removed);
        opened
    }

    /// Whether an index is cached under this key, for any version of the table.
    pub(crate) fn has(&self, key: &IndexKey) -> bool {
        let entries = self.lock();
        entries
            .by_key
            .get(key)
            .is_some_and(|entry| entry.version.is_alive())
    }

    /// The number of rows of an index, if it is cached for this version.
    pub(crate) fn rows(&self, key: &IndexKey, version: &Version) -> Option<usize> {
        let entries = self.lock();
        let entry = entries.by_key.get(key)?;
        let is_current = entry.version.is_alive() && entry.version.matches(version);
        is_current.then(|| entry.reserved.index.rows())
    }

    /// Locks the entries. A poisoned lock is safe to use: no panic leaves an entry incomplete.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the index of a column if it is cached for this version, and counts the hit.
    pub(crate) fn find(
        &self,
        key: &IndexKey,
        version: &Version,
        value_type: &DataType,
    ) -> Option<Arc<ReservedIndex>> {
        let mut entries = self.lock();
        entries.by_key.retain(|_, e| e.version.is_alive());
        entries.clock += 1;
        let clock = entries.clock;
        let entry = entries.by_key.get_mut(key)?;
        if !entry.version.matches(version) || entry.reserved.index.value_type() != value_type {
            return None;
        }
        entry.hits += 1;
        entry.last_used = clock;
        Some(Arc::clone(&entry.reserved))
    }

    /// Caches an index for later queries. Replaces an index of an older version.
    pub(crate) fn keep(&self, key: IndexKey, version: Version, reserved: &Arc<ReservedIndex>) {
        let mut entries = self.lock();
        entries.clock += 1;
        let last_used = entries.clock;
        let reserved = Arc::clone(reserved);
        let entry = Entry {
            reserved,
            version,
            cached_at: Instant::now(),
            hits: 0,
            last_used,
        };
        entries.by_key.insert(key, entry);
    }

    /// Evicts least recently used indexes until all indexes take at most `limit` bytes of host memory.
    pub(crate) fn shrink_to(&self, limit: ByteSize) {
        while self.total.load(Ordering::Relaxed) > limit.0 && self.evict(|i| i.bytes() > 0) {}
    }

    /// Evicts least recently used indexes until all indexes take at most `limit` bytes of each device.
    pub(crate) fn shrink_devices_to(&self, limit: ByteSize) {
        while self.device_total.load(Ordering::Relaxed) > limit.0 && self.evict_from_device() {}
    }

    /// Evicts the least recently used index that is on devices; false if there is none.
    pub(crate) fn evict_from_device(&self) -> bool {
        self.evict(|index| index.device_bytes() > 0)
    }

    fn evict(&self, matches: impl Fn(&ReservedIndex) -> bool) -> bool {
        // The lock is released before the index is dropped.
        let evicted = self.lock().evict(matches);
        evicted.is_some()
    }

    /// Reserves `bytes` of each of the engine's devices. Evicts least recently used indexes on devices until they fit.
    ///
    /// # Errors
    /// [`EngineError::DeviceMemory`] if they don't fit without these either.
    pub(crate) fn reserve_on_devices(
        &self,
        engine: &dyn DeviceEngine,
        bytes: usize,
        limit: Option<ByteSize>,
    ) -> Result<DeviceBytes, EngineError> {
        let devices = engine.devices();
        let working = devices.iter().filter(|device| device.failed.is_none());
        // A request that fits on no device must not evict anything.
        let Some(largest) = working.max_by_key(|device| device.limit) else {
            return Err(EngineError::NoDevice {
                why: "all CUDA devices have failed".to_string(),
            });
        };
        let limit = largest.limit.min(limit.map_or(usize::MAX, |limit| limit.0));
        loop {
            let total = self.device_total.load(Ordering::Relaxed);
            if total.saturating_add(bytes) <= limit {
                break;
            }
            if bytes > limit || !self.evict_from_device() {
                return Err(EngineError::DeviceMemory {
                    ordinal: largest.ordinal,
                    needed: bytes,
                    free: limit.saturating_sub(total),
                    limit,
                });
            }
        }
        self.device_total.fetch_add(bytes, Ordering::Relaxed);
        Ok(DeviceBytes {
            bytes,
            total: Arc::clone(&self.device_total),
        })
    }

    /// Reserves `bytes` for the index of `column`. Evicts least recently used indexes until the bytes fit both the
    /// option's limit and the session's memory pool.
    ///
    /// # Errors
    /// "Resources exhausted", naming the option or the pool, if they don't fit without cached indexes either.
    pub(crate) fn reserve(
        &self,
        column: &str,
        bytes: usize,
        limit: ByteSize,
        pool: &Arc<dyn MemoryPool>,
    ) -> Result<IndexMemory> {
        if bytes > limit.0 {
            return resources_err!(
                "the index of {column} needs {bytes} bytes, more than rmq.index_memory_limit = '{limit}'; raise it, for example \
                 SET rmq.index_memory_limit = '{}G'",
                (bytes >> 30) + 1
            );
        }
        let reservation = MemoryConsumer::new(format!("rmq index of {column}")).register(pool);
        while self.total.load(Ordering::Relaxed).saturating_add(bytes) > limit.0 {
            if !self.evict(|i| i.bytes() > 0) {
                return resources_err!(
                    "the index of {column} needs {bytes} bytes, but indexes that running queries use leave less than that of \
                     rmq.index_memory_limit = '{limit}'; raise it"
                );
            }
        }
        loop {
            match reservation.try_grow(bytes) {
                Ok(()) => break,
                Err(error) => {
                    if !self.evict(|i| i.bytes() > 0) {
                        return Err(resources_datafusion_err!(
                            "the index of {column} needs {bytes} bytes, which the session's memory pool does not have: {error}"
                        ));
                    }
                }
            }
        }
        self.total.fetch_add(bytes, Ordering::Relaxed);
        Ok(IndexMemory {
            reservation,
            total: Arc::clone(&self.total),
        })
    }

    /// Lists the cached indexes, ordered by table, column, direction and engine.
    pub fn list(&self) -> Vec<CachedIndexInfo> {
        let mut entries = self.lock();
        entries.by_key.retain(|_, e| e.version.is_alive());
        let mut list: Vec<_> = entries
            .by_key
            .iter()
            .map(|(key, entry)| CachedIndexInfo {
                table: key.column.table_reference().to_string(),
                column: key.column.column.clone(),
                extreme: key.extreme,
                data_type: entry.reserved.index.value_type().clone(),
                rows: entry.reserved.index.rows(),
                bytes: entry.reserved.bytes(),
                device_bytes: entry.reserved.device_bytes(),
                engine: key.target.label(),
                hits: entry.hits,
                age: entry.cached_at.elapsed(),
            })
            .collect();
        list.sort_by_cached_key(|i| {
            (
                i.table.clone(),
                i.column.clone(),
                i.extreme,
                i.engine.clone(),
            )
        });
        list
    }
}
