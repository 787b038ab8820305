//! The indexes that a session holds, which queries share: found by column and version, bounded in memory, the
//! least recently used going first.

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

/// What an index is of, and what holds it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct IndexKey {
    pub(crate) column: ColumnRef,
    pub(crate) extreme: Extreme,
    pub(crate) target: Target,
}

/// An index with the memory that is registered for it, given back when the last user lets go.
#[derive(Debug)]
pub(crate) struct HeldIndex {
    pub(crate) index: ColumnIndex,
    memory: IndexMemory,
    on_device: Option<DeviceBytes>,
}

impl HeldIndex {
    /// Ties an index to its memory, whose size is corrected to what was really taken.
    pub(crate) fn new(
        index: ColumnIndex,
        mut memory: IndexMemory,
        mut on_device: Option<DeviceBytes>,
    ) -> Self {
        memory.settle(index.memory_bytes());
        if let Some(on_device) = &mut on_device {
            on_device.settle(index.device_bytes());
        }
        Self {
            index,
            memory,
            on_device,
        }
    }

    /// Bytes of this machine's memory.
    fn bytes(&self) -> usize {
        self.memory.reservation.size()
    }

    /// Bytes of memory of each device that holds it.
    pub(crate) fn device_bytes(&self) -> usize {
        self.on_device.as_ref().map_or(0, |d| d.bytes)
    }
}

/// Memory of devices that an index takes, counted against `rmq.device_memory_limit`: so many bytes of each.
#[derive(Debug)]
pub(crate) struct DeviceBytes {
    bytes: usize,
    total: Arc<AtomicUsize>,
}

impl DeviceBytes {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn settle(&mut self, bytes: usize) {
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

/// Memory registered with the session's pool and counted against `rmq.index_memory_limit`.
#[derive(Debug)]
pub(crate) struct IndexMemory {
    reservation: MemoryReservation,
    total: Arc<AtomicUsize>,
}

impl IndexMemory {
    fn settle(&mut self, bytes: usize) {
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
    held: Arc<HeldIndex>,
    version: Version,
    made: Instant,
    hits: u64,
    last_used: u64,
}

#[derive(Debug, Default)]
struct Entries {
    by_key: HashMap<IndexKey, Entry>,
    /// Counts uses, to tell which is the least recent.
    clock: u64,
}

impl Entries {
    /// Takes out the least recently used of the indexes that have what is wanted; it goes when its last user lets go.
    fn evict(&mut self, has: impl Fn(&HeldIndex) -> bool) -> Option<Arc<HeldIndex>> {
        let oldest = self
            .by_key
            .iter()
            .filter(|(_, e)| has(&e.held))
            .min_by_key(|(_, e)| e.last_used)
            .map(|(k, _)| k.clone());
        Some(self.by_key.remove(&oldest?)?.held)
    }
}

/// The indexes that a session holds, and the devices that some of them lie on.
#[derive(Debug)]
pub struct IndexCatalog {
    entries: Mutex<Entries>,
    /// Bytes of all indexes there are, also of those that only a running query still uses.
    total: Arc<AtomicUsize>,
    /// The same of each device: every index lies on all devices in use.
    device_total: Arc<AtomicUsize>,
    devices: Devices,
}

impl Default for IndexCatalog {
    fn default() -> Self {
        Self::new(Arc::new(Machine))
    }
}

/// What is known of an index that a session holds: a row of `rmq_indexes()`.
#[derive(Debug, Clone)]
pub struct HeldIndexInfo {
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
    /// Bytes of the index, and of the copy of the column if there is one, in this machine's memory.
    pub bytes: usize,
    /// Bytes of each device that holds it.
    pub device_bytes: usize,
    /// The engine that answers: `cpu`, or `cuda` with the numbers of its devices.
    pub engine: String,
    /// How many queries found it ready.
    pub hits: u64,
    /// How long ago it was made.
    pub age: Duration,
}

impl IndexCatalog {
    /// An empty one.
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

    /// Opens the devices as the options want them, which takes some 300 ms the first time. Indexes on others go.
    ///
    /// # Errors
    /// Why they can't be used.
    pub(crate) fn open_devices(
        &self,
        options: &RmqOptions,
    ) -> Result<Arc<dyn DeviceEngine>, EngineError> {
        let opened = self.devices.open(&options.cuda());
        let target = opened.as_ref().ok().cloned().map(Target::Devices);
        let mut gone = vec![];
        {
            let mut entries = self.lock();
            let stays =
                |key: &IndexKey| key.target == Target::Cpu || target.as_ref() == Some(&key.target);
            let keys: Vec<_> = entries
                .by_key
                .keys()
                .filter(|k| !stays(k))
                .cloned()
                .collect();
            for key in keys {
                gone.extend(entries.by_key.remove(&key));
            }
        }
        // Devices free memory while nobody waits for the lock.
        drop(gone);
        opened
    }

    /// Whether there is such an index, of whatever version.
    pub(crate) fn has(&self, key: &IndexKey) -> bool {
        let entries = self.lock();
        entries
            .by_key
            .get(key)
            .is_some_and(|entry| entry.version.is_alive())
    }

    /// How many rows such an index has, if it is held in this version.
    pub(crate) fn rows(&self, key: &IndexKey, version: &Version) -> Option<usize> {
        let entries = self.lock();
        let entry = entries.by_key.get(key)?;
        let serves = entry.version.is_alive() && entry.version.matches(version);
        serves.then(|| entry.held.index.rows())
    }

    /// A panic while the lock is held leaves no entry half made.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index of a column in this version, if it is held.
    pub(crate) fn find(
        &self,
        key: &IndexKey,
        version: &Version,
        value_type: &DataType,
    ) -> Option<Arc<HeldIndex>> {
        let mut entries = self.lock();
        entries.by_key.retain(|_, e| e.version.is_alive());
        entries.clock += 1;
        let clock = entries.clock;
        let entry = entries.by_key.get_mut(key)?;
        if !entry.version.matches(version) || entry.held.index.value_type() != value_type {
            return None;
        }
        entry.hits += 1;
        entry.last_used = clock;
        Some(Arc::clone(&entry.held))
    }

    /// Keeps an index for later queries, in place of an older version of it.
    pub(crate) fn keep(&self, key: IndexKey, version: Version, held: &Arc<HeldIndex>) {
        let mut entries = self.lock();
        entries.clock += 1;
        let last_used = entries.clock;
        let held = Arc::clone(held);
        let entry = Entry {
            held,
            version,
            made: Instant::now(),
            hits: 0,
            last_used,
        };
        entries.by_key.insert(key, entry);
    }

    /// Lets indexes go, the least recently used first, while they take more than `limit`.
    pub(crate) fn shrink_to(&self, limit: ByteSize) {
        while self.total.load(Ordering::Relaxed) > limit.0 && self.evict(|i| i.bytes() > 0) {}
    }

    /// The same for the memory of devices.
    pub(crate) fn shrink_devices_to(&self, limit: ByteSize) {
        while self.device_total.load(Ordering::Relaxed) > limit.0 && self.evict_from_device() {}
    }

    /// Lets the least recently used of the indexes go that hold memory of devices; false if there is none.
    pub(crate) fn evict_from_device(&self) -> bool {
        self.evict(|index| index.device_bytes() > 0)
    }

    fn evict(&self, has: impl Fn(&HeldIndex) -> bool) -> bool {
        // The lock is open again when the index goes.
        let gone = self.lock().evict(has);
        gone.is_some()
    }

    /// Counts `bytes` of each of the engine's devices. Indexes that lie there go, the least recently used first, until
    /// there is room.
    ///
    /// # Errors
    /// [`EngineError::DeviceMemory`] where even that does not make room.
    pub(crate) fn reserve_on_devices(
        &self,
        engine: &dyn DeviceEngine,
        bytes: usize,
        limit: Option<ByteSize>,
    ) -> Result<DeviceBytes, EngineError> {
        let devices = engine.devices();
        let working = devices.iter().filter(|device| device.failed.is_none());
        // What fits nowhere should not drive others out.
        let Some(roomiest) = working.max_by_key(|device| device.limit) else {
            return Err(EngineError::NoDevice {
                why: "all CUDA devices have failed".to_string(),
            });
        };
        let limit = roomiest
            .limit
            .min(limit.map_or(usize::MAX, |limit| limit.0));
        loop {
            let total = self.device_total.load(Ordering::Relaxed);
            if total.saturating_add(bytes) <= limit {
                break;
            }
            if bytes > limit || !self.evict_from_device() {
                return Err(EngineError::DeviceMemory {
                    ordinal: roomiest.ordinal,
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

    /// Registers `bytes` for the index of `column`. Held indexes go, the least recently used first, until both the
    /// option's limit and the session's pool have room.
    ///
    /// # Errors
    /// "Resources exhausted", naming the option or the pool, where even that does not make room.
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

    /// All indexes held, ordered by table, column, direction and engine.
    pub fn list(&self) -> Vec<HeldIndexInfo> {
        let mut entries = self.lock();
        entries.by_key.retain(|_, e| e.version.is_alive());
        let mut list: Vec<_> = entries
            .by_key
            .iter()
            .map(|(key, entry)| HeldIndexInfo {
                table: key.column.table_reference().to_string(),
                column: key.column.column.clone(),
                extreme: key.extreme,
                data_type: entry.held.index.value_type().clone(),
                rows: entry.held.index.rows(),
                bytes: entry.held.bytes(),
                device_bytes: entry.held.device_bytes(),
                engine: key.target.label(),
                hits: entry.hits,
                age: entry.made.elapsed(),
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
