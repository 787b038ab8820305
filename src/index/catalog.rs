//! The indexes that a session holds, which queries share: found by column and version, bounded in memory, the
//! least recently used going first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow::datatypes::DataType;
use datafusion::common::{Result, resources_datafusion_err, resources_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};

use super::{ColumnIndex, Version};
use crate::engine::Extreme;
use crate::functions::column_name::ColumnName;
use crate::options::ByteSize;

/// What an index is of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct IndexKey {
    pub(crate) column: ColumnName,
    pub(crate) extreme: Extreme,
}

/// An index with the memory that is registered for it, given back when the last user lets go.
#[derive(Debug)]
pub(crate) struct HeldIndex {
    pub(crate) index: ColumnIndex,
    memory: IndexMemory,
}

impl HeldIndex {
    /// Ties an index to its memory, whose size is corrected to what was really taken.
    pub(crate) fn new(index: ColumnIndex, mut memory: IndexMemory) -> Self {
        memory.settle(index.memory_bytes());
        Self { index, memory }
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
    /// Lets the least recently used index go; false if there is none.
    fn evict(&mut self) -> bool {
        let oldest = self
            .by_key
            .iter()
            .min_by_key(|(_, e)| e.last_used)
            .map(|(k, _)| k.clone());
        oldest.is_some_and(|key| self.by_key.remove(&key).is_some())
    }
}

/// The indexes that a session holds.
#[derive(Debug, Default)]
pub struct IndexCatalog {
    entries: Mutex<Entries>,
    /// Bytes of all indexes there are, also of those that only a running query still uses.
    total: Arc<AtomicUsize>,
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
    /// Bytes of the index, and of the copy of the column if there is one.
    pub bytes: usize,
    /// The engine that answers.
    pub engine: &'static str,
    /// How many queries found it ready.
    pub hits: u64,
    /// How long ago it was made.
    pub age: Duration,
}

impl IndexCatalog {
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
        while self.total.load(Ordering::Relaxed) > limit.0 && self.lock().evict() {}
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
            if !self.lock().evict() {
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
                    if !self.lock().evict() {
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

    /// All indexes held, ordered by table, column and direction.
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
                bytes: entry.held.memory.reservation.size(),
                engine: entry.held.index.engine(),
                hits: entry.hits,
                age: entry.made.elapsed(),
            })
            .collect();
        list.sort_by(|a, b| {
            (&a.table, &a.column, a.extreme).cmp(&(&b.table, &b.column, b.extreme))
        });
        list
    }
}
