//! What a session keeps between queries: indexes of columns, and the sorted rows of range joins. Looked up by key and
//! version, bounded in memory, evicted in least-recently-used order.

use std::any::Any;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use arrow::datatypes::DataType;
use datafusion::common::{Result, resources_datafusion_err, resources_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::prelude::SessionConfig;

use crate::common::column_ref::ColumnRef;
use crate::common::options::{ByteSize, RmqOptions};
use crate::index::column_index::ColumnIndex;
use crate::index::devices::{DeviceEngine, DeviceSource, Devices, Machine, Target};
use crate::index::version::Version;
use rmq_engine::{EngineError, Extreme};

/// The rows of a range join's build side, sorted and indexed, with what tells them from others.
pub(crate) trait KeptRows: Any + Debug + Send + Sync {
    /// Whether both are the same rows for the same use, except for the version of their tables.
    fn is_of_same_use(&self, other: &dyn KeptRows) -> bool;

    /// The keys by which they are sorted, as EXPLAIN shows them.
    fn label(&self) -> &str;

    /// The type of the last one, the range key.
    fn key_type(&self) -> &DataType;

    /// Their number.
    fn rows(&self) -> usize;

    /// Bytes of host memory now: indexes are built when queries justify it.
    fn bytes(&self) -> usize;
}

/// A plan of rows that another process has sent: there is no table of the session that would tell what they are.
pub(crate) trait SentRows: Any + Debug + Send + Sync {
    /// Whether both are the same rows in the same order, if what is scanned has the same version.
    fn is_same(&self, other: &dyn SentRows) -> bool;

    /// Whether both are the same, except for what is scanned.
    fn is_of_same_plan(&self, other: &dyn SentRows) -> bool;
}

/// The key of a cached index: the column, the direction and the engine.
#[derive(Debug, Clone)]
pub(crate) struct IndexKey {
    pub(crate) column: ColumnRef,
    /// Of the rows of this plan; `None` for a table of the session.
    pub(crate) plan: Option<Arc<dyn SentRows>>,
    pub(crate) extreme: Extreme,
    pub(crate) target: Target,
}

impl IndexKey {
    fn is_same(&self, other: &Self) -> bool {
        self.is_as(other, SentRows::is_same)
    }

    /// Whether an index of this version takes the place of that of an older one.
    fn succeeds(&self, version: &Version, (older, old_version): (&Self, &Version)) -> bool {
        let is_later = self.plan.is_none() || version.may_succeed(old_version);
        is_later && self.is_as(older, SentRows::is_of_same_plan)
    }

    fn is_as(&self, other: &Self, is_as: impl Fn(&dyn SentRows, &dyn SentRows) -> bool) -> bool {
        let is_plan_as = match (&self.plan, &other.plan) {
            (Some(plan), Some(other)) => is_as(plan.as_ref(), other.as_ref()),
            (None, None) => true,
            _ => false,
        };
        let key = (&self.column, self.extreme, &self.target);
        is_plan_as && key == (&other.column, other.extreme, &other.target)
    }

    /// The name of the table in `rmq_indexes()`.
    fn table(&self) -> String {
        match self.plan {
            Some(_) => self.column.table.to_string(),
            None => self.column.table_reference().to_string(),
        }
    }
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

/// What is kept.
#[derive(Debug, Clone)]
enum Item {
    Index(IndexKey, Arc<ReservedIndex>),
    Rows(Arc<dyn KeptRows>),
}

impl Item {
    /// Bytes of host memory.
    fn bytes(&self) -> usize {
        match self {
            Self::Index(_, reserved) => reserved.bytes(),
            Self::Rows(rows) => rows.bytes(),
        }
    }

    /// Bytes of each device.
    fn device_bytes(&self) -> usize {
        match self {
            Self::Index(_, reserved) => reserved.device_bytes(),
            Self::Rows(_) => 0,
        }
    }

    fn index(&self) -> Option<(&IndexKey, &Arc<ReservedIndex>)> {
        match self {
            Self::Index(key, reserved) => Some((key, reserved)),
            Self::Rows(_) => None,
        }
    }
}

#[derive(Debug)]
struct Entry {
    item: Item,
    version: Version,
    cached_at: Instant,
    hits: u64,
    last_used: u64,
}

#[derive(Debug, Default)]
struct Entries {
    all: Vec<Entry>,
    /// The number of uses so far, to find the least recently used entry.
    clock: u64,
}

impl Entries {
    fn index(&self, key: &IndexKey) -> Option<(&Entry, &Arc<ReservedIndex>)> {
        self.all.iter().find_map(|entry| {
            let (known, reserved) = entry.item.index()?;
            known.is_same(key).then_some((entry, reserved))
        })
    }

    /// Removes the entries that `matches` selects.
    fn remove(&mut self, matches: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        self.all.extract_if(.., |entry| matches(entry)).collect()
    }

    /// Removes the least recently used of the items that `matches` selects. Its memory is released when its last user
    /// drops it.
    fn evict(&mut self, matches: impl Fn(&Item) -> bool) -> Option<Entry> {
        let entries = self.all.iter().enumerate();
        let oldest = entries
            .filter(|(_, entry)| matches(&entry.item))
            .min_by_key(|(_, entry)| entry.last_used);
        let (oldest, _) = oldest?;
        Some(self.all.swap_remove(oldest))
    }

    /// Adds an item, which has been used now.
    fn add(&mut self, item: Item, version: Version) {
        self.clock += 1;
        self.all.push(Entry {
            item,
            version,
            cached_at: Instant::now(),
            hits: 0,
            last_used: self.clock,
        });
    }

    /// Counts a hit of the first entry that `matches` selects.
    fn hit(&mut self, matches: impl Fn(&Entry) -> bool) -> Option<&Item> {
        self.clock += 1;
        let entry = self.all.iter_mut().find(|entry| matches(entry))?;
        entry.hits += 1;
        entry.last_used = self.clock;
        Some(&entry.item)
    }

    /// Bytes of host memory of the rows that are kept.
    fn bytes_of_rows(&self) -> usize {
        let rows = self.all.iter().filter(|entry| entry.item.index().is_none());
        rows.map(|entry| entry.item.bytes()).sum()
    }
}

/// What a session keeps, and the devices that some of it is stored on.
#[derive(Debug)]
pub struct IndexCatalog {
    entries: Mutex<Entries>,
    /// Bytes of all indexes of columns, including those that are evicted but still in use by a query.
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

/// A description of what is kept: a row of `rmq_indexes()`.
#[derive(Debug, Clone)]
pub struct CachedIndexInfo {
    /// The table, with its catalog and schema; `None` for the rows of a range join.
    pub table: Option<String>,
    /// The column, or the keys by which rows are sorted.
    pub column: String,
    /// Whether the index of a column finds minima or maxima.
    pub extreme: Option<Extreme>,
    /// The type of the values, or of the range key.
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
        let removed = self.lock().remove(|entry| {
            let on_other_devices =
                |key: &IndexKey| key.target != Target::Cpu && target.as_ref() != Some(&key.target);
            entry
                .item
                .index()
                .is_some_and(|(key, _)| on_other_devices(key))
        });
        // Freeing device memory takes time: the lock is released first.
        drop(removed);
        opened
    }

    /// Whether an index is cached under this key, for any version of the table.
    pub(crate) fn has(&self, key: &IndexKey) -> bool {
        let entries = self.lock();
        entries
            .index(key)
            .is_some_and(|(entry, _)| entry.version.is_alive())
    }

    /// The number of rows of an index, if it is cached for this version.
    pub(crate) fn rows(&self, key: &IndexKey, version: &Version) -> Option<usize> {
        let entries = self.lock();
        let (entry, reserved) = entries.index(key)?;
        let is_current = entry.version.is_alive() && entry.version.matches(version);
        is_current.then(|| reserved.index.rows())
    }

    /// Locks the entries. A poisoned lock is safe to use: no panic leaves an entry incomplete.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops what belongs to tables that no longer exist.
    fn drop_dead(&self) {
        // The lock is released before memory is freed.
        let dead = self.lock().remove(|entry| !entry.version.is_alive());
        drop(dead);
    }

    /// Returns the index of a column if it is cached for this version, and counts the hit.
    pub(crate) fn find(
        &self,
        key: &IndexKey,
        version: &Version,
        value_type: &DataType,
    ) -> Option<Arc<ReservedIndex>> {
        self.drop_dead();
        let mut entries = self.lock();
        let found = entries.hit(|entry| {
            entry.item.index().is_some_and(|(known, reserved)| {
                known.is_same(key)
                    && entry.version.matches(version)
                    && reserved.index.value_type() == value_type
            })
        });
        Some(Arc::clone(found?.index()?.1))
    }

    /// Caches an index for later queries. Replaces an index of an older version.
    pub(crate) fn keep(&self, key: IndexKey, version: Version, reserved: &Arc<ReservedIndex>) {
        let mut entries = self.lock();
        let older = entries.remove(|entry| {
            let known = entry.item.index();
            known.is_some_and(|(known, _)| key.succeeds(&version, (known, &entry.version)))
        });
        entries.add(Item::Index(key, Arc::clone(reserved)), version);
        drop(entries);
        drop(older);
    }

    /// Returns the rows that `matches` selects, if they are kept for this version, and counts the hit.
    pub(crate) fn find_rows(
        &self,
        version: &Version,
        matches: impl Fn(&dyn KeptRows) -> bool,
    ) -> Option<Arc<dyn KeptRows>> {
        self.drop_dead();
        let mut entries = self.lock();
        let found = entries.hit(|entry| match &entry.item {
            Item::Rows(rows) => matches(rows.as_ref()) && entry.version.matches(version),
            Item::Index(..) => false,
        });
        match found? {
            Item::Rows(rows) => Some(Arc::clone(rows)),
            Item::Index(..) => None,
        }
    }

    /// Keeps rows for later queries, within `limit` bytes of all that is kept. Replaces those of an older version of
    /// the table.
    pub(crate) fn keep_rows(&self, rows: Arc<dyn KeptRows>, version: Version, limit: ByteSize) {
        let bytes = rows.bytes();
        let mut entries = self.lock();
        let older = entries.remove(|entry| match &entry.item {
            Item::Rows(known) => {
                known.is_of_same_use(rows.as_ref()) && version.may_succeed(&entry.version)
            }
            Item::Index(..) => false,
        });
        if bytes <= limit.0 {
            entries.add(Item::Rows(rows), version);
        }
        drop(entries);
        drop(older);
        self.shrink_to(limit);
    }

    /// Bytes of host memory of all that is kept, and of indexes that are evicted but still in use.
    fn bytes(&self) -> usize {
        self.total.load(Ordering::Relaxed) + self.lock().bytes_of_rows()
    }

    /// Evicts least recently used indexes until all indexes take at most `limit` bytes of host memory.
    pub(crate) fn shrink_to(&self, limit: ByteSize) {
        while self.bytes() > limit.0 && self.evict(|item| item.bytes() > 0) {}
    }

    /// Evicts least recently used indexes until all indexes take at most `limit` bytes of each device.
    pub(crate) fn shrink_devices_to(&self, limit: ByteSize) {
        while self.device_total.load(Ordering::Relaxed) > limit.0 && self.evict_from_device() {}
    }

    /// Evicts the least recently used index that is on devices; false if there is none.
    pub(crate) fn evict_from_device(&self) -> bool {
        self.evict(|item| item.device_bytes() > 0)
    }

    fn evict(&self, matches: impl Fn(&Item) -> bool) -> bool {
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
        while self.bytes().saturating_add(bytes) > limit.0 {
            if !self.evict(|item| item.bytes() > 0) {
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
                    if !self.evict(|item| item.bytes() > 0) {
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

    /// Lists what is kept, ordered by table, column, direction and engine.
    pub fn list(&self) -> Vec<CachedIndexInfo> {
        self.drop_dead();
        let entries = self.lock();
        let describe = |entry: &Entry| {
            let (bytes, device_bytes) = (entry.item.bytes(), entry.item.device_bytes());
            let (hits, age) = (entry.hits, entry.cached_at.elapsed());
            match &entry.item {
                Item::Index(key, reserved) => CachedIndexInfo {
                    table: Some(key.table()),
                    column: key.column.column.clone(),
                    extreme: Some(key.extreme),
                    data_type: reserved.index.value_type().clone(),
                    rows: reserved.index.rows(),
                    bytes,
                    device_bytes,
                    engine: key.target.label(),
                    hits,
                    age,
                },
                Item::Rows(rows) => CachedIndexInfo {
                    table: None,
                    column: rows.label().to_string(),
                    extreme: None,
                    data_type: rows.key_type().clone(),
                    rows: rows.rows(),
                    bytes,
                    device_bytes,
                    engine: Target::Cpu.label(),
                    hits,
                    age,
                },
            }
        };
        let mut list: Vec<_> = entries.all.iter().map(describe).collect();
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

/// The indexes that sessions of a process share, and the devices that they have opened. A clone is the same indexes.
///
/// What is kept of a table is found by any of the sessions, if it is a table of files that have not changed, or the
/// same table in memory. It is dropped with the last session and the last clone.
#[derive(Debug, Clone, Default)]
pub struct SharedIndexes(pub(crate) Arc<IndexCatalog>);

/// The catalog of a session, as an extension of its configuration, where running queries find it. Configurations are
/// copied into task contexts and by callers, so it does not keep what is in the catalog: the session's functions do.
#[derive(Debug)]
pub(crate) struct SessionCatalog(Weak<IndexCatalog>);

impl SessionCatalog {
    /// Of this catalog.
    pub(crate) fn new(catalog: &Arc<IndexCatalog>) -> Self {
        Self(Arc::downgrade(catalog))
    }

    /// The catalog of the session that has this configuration, if it has one and still exists.
    pub(crate) fn of(config: &SessionConfig) -> Option<Arc<IndexCatalog>> {
        config.get_extension::<Self>()?.0.upgrade()
    }
}
