//! What a session keeps between queries: indexes of columns, and the sorted rows of range joins. Looked up by key and
//! version, bounded in memory. What saves least for its memory is evicted first (`Entries`).

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err, resources_datafusion_err, resources_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::prelude::SessionConfig;
use tokio::sync::RwLock;

use crate::kept::entries::{Description, Entries, Entry, ExpectedRows, Kept};
use crate::kept::memory_scans::MemoryScans;
use crate::kept::pruned_reads::PrunedReads;
use crate::kept::reserved_index::{DeviceBytes, IndexMemory};
use crate::kept::table_version::VersionedTypes;
use crate::kept::version::Version;
use datafusion_rmq_logical::common::options::{ByteSize, FollowsOptions, RmqOptions};
use datafusion_rmq_logical::logical_plan::named_index::NamedIndex;
use rmq_arrow::common::range_function::IndexKind;
use rmq_arrow::index::devices::{DeviceEngine, DeviceSource, Devices, Machine, Target};
use rmq_engine::EngineError;

/// What a session keeps, and the devices that some of it is stored on.
#[derive(Debug)]
pub struct IndexCatalog {
    entries: Mutex<Entries>,
    /// Bytes of all indexes of columns, including those that are evicted but still in use by a query.
    total: Arc<AtomicUsize>,
    /// Bytes of each device, likewise: what is on devices is stored on all devices in use.
    device_total: Arc<AtomicUsize>,
    devices: Devices,
    versioned: VersionedTypes,
    /// The scans that queries share.
    pub(crate) memory_scans: MemoryScans,
    /// What queries have read of rows that are not kept.
    pub(crate) pruned_reads: PrunedReads,
    /// Held, shared, while memory for rows that stay in files is in use. What gets none waits for all to be free.
    pub(crate) reading: RwLock<()>,
}

impl Default for IndexCatalog {
    fn default() -> Self {
        Self::new(Arc::new(Machine))
    }
}

/// A description of what is kept: a row of `rmq_indexes()`.
#[derive(Debug, Clone)]
pub struct CachedIndexInfo {
    /// The name that CREATE INDEX gave it.
    pub name: Option<String>,
    /// The table, with its catalog and schema; `None` for the rows of a range join without a name.
    pub table: Option<String>,
    /// The column, or the keys by which rows are sorted.
    pub column: String,
    /// What the index of a column answers.
    pub kind: Option<IndexKind>,
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
    /// Whether it, or its column, is in files of `rmq.index_directory`: `writing`, `written`, `failed`, or `loaded`
    /// from there.
    pub disk: Option<&'static str>,
}

impl IndexCatalog {
    /// An empty catalog whose devices come from `devices`.
    pub(crate) fn new(devices: Arc<dyn DeviceSource>) -> Self {
        Self {
            entries: Mutex::default(),
            total: Arc::default(),
            device_total: Arc::default(),
            devices: Devices::new(devices),
            versioned: VersionedTypes::default(),
            memory_scans: MemoryScans::default(),
            pruned_reads: PrunedReads::default(),
            reading: RwLock::default(),
        }
    }

    /// The types of tables that state their versions.
    pub(crate) fn versioned(&self) -> &VersionedTypes {
        &self.versioned
    }

    /// The session's devices.
    pub(crate) fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Opens the devices that the options name, which takes some 300 ms the first time. Removes what is on other
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
            let known = entry.kept.target();
            *known != Target::Cpu && target.as_ref() != Some(known)
        });
        // Freeing device memory takes time: the lock is released first.
        drop(removed);
        opened
    }

    /// Locks the entries. A poisoned lock is safe to use: no panic leaves an entry incomplete.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops what belongs to tables that no longer exist.
    pub(crate) fn drop_dead(&self) {
        // They hold arrays that versions are of.
        self.memory_scans.drop_dead();
        // The lock is released before memory is freed.
        let dead = self.lock().remove(|entry| !entry.version.is_alive());
        drop(dead);
    }

    /// Returns the first of what `find` finds in something that is kept of a version, and counts the hit.
    pub(crate) fn find<T>(
        &self,
        find: impl Fn(&Arc<dyn Kept>, &Version) -> Option<T>,
    ) -> Option<T> {
        self.drop_dead();
        self.lock().hit(|entry| find(&entry.kept, &entry.version))
    }

    /// As [`Self::find`], which is no use of it.
    pub(crate) fn peek<T>(
        &self,
        find: impl Fn(&Arc<dyn Kept>, &Version) -> Option<T>,
    ) -> Option<T> {
        self.drop_dead();
        let entries = self.lock();
        let mut all = entries.all.iter();
        all.find_map(|entry| find(&entry.kept, &entry.version))
    }

    /// Whether something is kept that `matches` selects.
    pub(crate) fn has(&self, matches: impl Fn(&Arc<dyn Kept>, &Version) -> bool) -> bool {
        let found = self.peek(|kept, version| matches(kept, version).then_some(()));
        found.is_some()
    }

    /// Keeps something for later queries, within `limit` bytes of all that is kept. It takes the place of what it
    /// replaces, with its name.
    pub(crate) fn keep(&self, kept: Arc<dyn Kept>, version: Version, limit: ByteSize) {
        let mut entries = self.lock();
        let older =
            entries.remove(|entry| kept.replaces(&version, entry.kept.as_ref(), &entry.version));
        let name = older.iter().find_map(|entry| entry.name.clone());
        let mut evicted = vec![];
        let others = if kept.is_reserved() {
            Some(usize::MAX)
        } else {
            limit.0.checked_sub(kept.memory().host)
        };
        if let Some(others) = others {
            // What is new is not among what gives way to it.
            let mut held = self.total.load(Ordering::Relaxed) + entries.unreserved_bytes();
            while held > others
                && let Some(entry) = entries.evict(|kept| kept.memory().host > 0)
            {
                held = held.saturating_sub(entry.kept.memory().host);
                evicted.push(entry);
            }
            let name = name.or_else(|| entries.name_of(kept.as_ref(), &version));
            entries.add(kept, version, name);
        }
        // The lock is released before memory is freed.
        drop(entries);
        drop((older, evicted));
        self.shrink_to(limit);
    }

    /// Whether there is an index of this name.
    pub(crate) fn has_named(&self, name: &str) -> bool {
        self.lock().named.iter().any(|index| index.name == name)
    }

    /// The indexes with names.
    pub(crate) fn named(&self) -> Vec<NamedIndex> {
        self.lock().named.clone()
    }

    /// Checks that an index can have its name.
    ///
    /// # Errors
    /// An execution error if there is one of this name or of the same columns.
    pub(crate) fn check_name(&self, index: &NamedIndex) -> Result<()> {
        self.lock().check_name(index)
    }

    /// Names what `selects` selects of what is kept, and what takes its place later. Returns whether there is any.
    ///
    /// # Errors
    /// Those of [`Self::check_name`], and "resources exhausted" if the indexes with names would take more than `limit`.
    pub(crate) fn name(
        &self,
        index: &NamedIndex,
        selects: impl Fn(&dyn Kept, &Version) -> bool,
        limit: ByteSize,
    ) -> Result<bool> {
        self.drop_dead();
        let mut entries = self.lock();
        entries.check_name(index)?;
        let all = entries.all.iter_mut();
        let (selected, others): (Vec<_>, Vec<_>) =
            all.partition(|entry| selects(entry.kept.as_ref(), &entry.version));
        if selected.is_empty() {
            return Ok(false);
        }
        if let Some(known) = selected.iter().find_map(|entry| entry.name.as_ref()) {
            return exec_err!("these rows have the index {known} already");
        }
        let named = others.iter().filter(|entry| entry.name.is_some());
        let selected_bytes = selected.iter().map(|entry| entry.kept.memory().host);
        let bytes: usize = named
            .map(|entry| entry.kept.memory().host)
            .chain(selected_bytes)
            .sum();
        if bytes > limit.0 {
            return resources_err!(
                "the indexes with names would take {bytes} bytes, more than rmq.index_memory_limit = '{limit}'; raise it"
            );
        }
        for entry in selected {
            entry.name = Some(index.name.clone());
        }
        entries.named.push(index.clone());
        Ok(true)
    }

    /// Names an index of several columns whose table has no rows yet.
    ///
    /// # Errors
    /// Those of [`Self::check_name`].
    pub(crate) fn name_unbuilt(&self, index: &NamedIndex) -> Result<()> {
        let mut entries = self.lock();
        entries.check_name(index)?;
        entries.named.push(index.clone());
        Ok(())
    }

    /// The named indexes of several columns that are not built for any version of their table that exists.
    pub(crate) fn unbuilt(&self) -> Vec<NamedIndex> {
        if self.lock().named.is_empty() {
            return vec![];
        }
        self.drop_dead();
        let entries = self.lock();
        let is_built = |index: &&NamedIndex| {
            let mut all = entries.all.iter();
            all.any(|entry| entry.name.as_ref() == Some(&index.name))
        };
        let named = entries.named.iter().filter(|index| index.columns.len() > 1);
        named.filter(|index| !is_built(index)).cloned().collect()
    }

    /// Rows that are kept with this key and of this version will be those of a named index.
    pub(crate) fn expect(&self, name: &str, key: Arc<dyn Any + Send + Sync>, version: Version) {
        let expected = &mut self.lock().expected;
        expected.retain(|known| known.name != name);
        expected.push(ExpectedRows {
            name: name.to_string(),
            key,
            version,
        });
    }

    /// Drops the name of an index, which may be evicted then. Returns whether there was one.
    pub(crate) fn drop_named(&self, name: &str) -> bool {
        let mut entries = self.lock();
        for entry in &mut entries.all {
            entry.name.take_if(|known| known == name);
        }
        entries.expected.retain(|expected| expected.name != name);
        let before = entries.named.len();
        entries.named.retain(|index| index.name != name);
        entries.named.len() < before
    }

    /// Bytes of host memory of all that is kept, and of indexes that are evicted but still in use.
    fn bytes(&self) -> usize {
        self.total.load(Ordering::Relaxed) + self.lock().unreserved_bytes()
    }

    /// Evicts the least worthwhile indexes until all indexes take at most `limit` bytes of host memory.
    pub(crate) fn shrink_to(&self, limit: ByteSize) {
        while self.bytes() > limit.0 && self.evict(|kept| kept.memory().host > 0) {}
    }

    /// Evicts the least worthwhile indexes until all indexes take at most `limit` bytes of each device.
    pub(crate) fn shrink_devices_to(&self, limit: ByteSize) {
        while self.device_total.load(Ordering::Relaxed) > limit.0 && self.evict_from_device() {}
    }

    /// Evicts the least worthwhile index that is on devices; false if there is none.
    pub(crate) fn evict_from_device(&self) -> bool {
        self.evict(|kept| kept.memory().device > 0)
    }

    /// Bytes of host memory that [`Self::give_way`] may release.
    pub(crate) fn idle_bytes(&self) -> usize {
        self.lock().idle_bytes()
    }

    /// Calls `grow` until memory suffices. After each failure it evicts the least worthwhile of what no query uses, and
    /// in the end the values of rows with a name.
    ///
    /// # Errors
    /// That of `grow` when nothing is left to evict.
    pub(crate) fn give_way(&self, grow: impl Fn() -> Result<()>) -> Result<()> {
        loop {
            match grow() {
                Err(_)
                    if self.evict(|kept| kept.memory().host > 0 && kept.is_idle())
                        || self.lock().drop_values_of_named() => {}
                grown => return grown,
            }
        }
    }

    /// Evicts all that has no name.
    pub(crate) fn clear(&self) {
        self.memory_scans.clear();
        // The lock is released before memory is freed.
        let removed = self.lock().remove(|entry| entry.name.is_none());
        drop(removed);
    }

    fn evict(&self, matches: impl Fn(&dyn Kept) -> bool) -> bool {
        // The lock is released before the index is dropped.
        let evicted = self.lock().evict(matches);
        evicted.is_some()
    }

    /// Reserves `bytes` of each of the engine's devices. Evicts the least worthwhile indexes on devices until they fit.
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

    /// Reserves `bytes` for the index of `column`. Evicts the least worthwhile indexes until the bytes fit both the
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
            if !self.evict(|kept| kept.memory().host > 0) {
                return resources_err!(
                    "the index of {column} needs {bytes} bytes, but indexes that running queries use leave less than that of \
                     rmq.index_memory_limit = '{limit}'; raise it"
                );
            }
        }
        self.grow(&reservation, bytes).map_err(|error| {
            resources_datafusion_err!(
                "the index of {column} needs {bytes} bytes, which the session's memory pool does not have: {error}"
            )
        })?;
        self.total.fetch_add(bytes, Ordering::Relaxed);
        Ok(IndexMemory {
            reservation,
            total: Arc::clone(&self.total),
        })
    }

    /// Reserves `bytes` more in the memory pool of `reservation`, also in one that is not the session's, in which
    /// indexes would give way anyway.
    ///
    /// # Errors
    /// The pool's, if they don't fit without cached indexes either.
    pub(crate) fn grow(&self, reservation: &MemoryReservation, bytes: usize) -> Result<()> {
        self.give_way(|| reservation.try_grow(bytes))
    }

    /// The index of this name: what is kept for it, or one line if nothing is for the present version of its table.
    pub(crate) fn describe(&self, name: &str) -> Vec<CachedIndexInfo> {
        let mut described = self.list();
        described.retain(|index| index.name.as_deref() == Some(name));
        let named = self.named().into_iter();
        if described.is_empty() {
            described = named
                .filter(|index| index.name == name)
                .map(|index| CachedIndexInfo {
                    name: Some(index.name),
                    table: Some(index.table.to_string()),
                    column: index.columns.join(", "),
                    kind: None,
                    data_type: DataType::Null,
                    rows: 0,
                    bytes: 0,
                    device_bytes: 0,
                    engine: Target::Cpu.label(),
                    hits: 0,
                    age: Duration::ZERO,
                    disk: None,
                })
                .collect();
        }
        described
    }

    /// Lists what is kept, ordered by table, column, kind and engine.
    pub fn list(&self) -> Vec<CachedIndexInfo> {
        self.drop_dead();
        let entries = self.lock();
        let describe = |entry: &Entry| {
            let kept = &entry.kept;
            let memory = kept.memory();
            let Description {
                table,
                column,
                kind,
                data_type,
            } = kept.description();
            // The query that has sorted rows may have other names for the columns.
            let named = entries.named(entry.name.as_deref());
            CachedIndexInfo {
                name: entry.name.clone(),
                table: named.map(|index| index.table.to_string()).or(table),
                column: named.map_or(column, |index| index.columns.join(", ")),
                kind,
                data_type,
                rows: kept.rows(),
                bytes: memory.host,
                device_bytes: memory.device,
                engine: kept.target().label(),
                hits: entry.hits,
                age: entry.cached_at.elapsed(),
                disk: kept.disk(),
            }
        };
        let mut list: Vec<_> = entries.all.iter().map(describe).collect();
        list.sort_by_cached_key(|i| (i.table.clone(), i.column.clone(), i.kind, i.engine.clone()));
        list
    }
}

impl FollowsOptions for IndexCatalog {
    fn follow(&self, options: &RmqOptions) {
        if options.keep_indexes {
            self.shrink_to(options.index_memory_limit);
        } else {
            self.clear();
        }
        if let Some(limit) = options.device_memory_limit {
            self.shrink_devices_to(limit);
        }
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
