//! The entries of a session's catalog: what is kept, with its version and name.

use std::any::Any;
use std::fmt::Debug;
use std::iter::Sum;
use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};

use crate::kept::version::Version;
use datafusion_rmq_logical::logical_plan::named_index::NamedIndex;
use rmq_arrow::common::range_function::IndexKind;
use rmq_arrow::index::devices::Target;

/// What a session keeps between queries: the index of a column, or the sorted rows of a range join's build side.
pub(crate) trait Kept: Any + Debug + Send + Sync {
    /// Whether this, of `version`, takes the place of `other`, of an older version of what is scanned or of the same.
    fn replaces(&self, version: &Version, other: &dyn Kept, other_version: &Version) -> bool;

    /// Whether it is the index of the one column that this names. Rows that several columns name are told by their key.
    fn is_of(&self, named: &NamedIndex) -> bool;

    /// Whether it is rows with this key, of the type that their own has.
    fn has_key(&self, key: &dyn Any) -> bool;

    /// What `rmq_indexes()` tells of it.
    fn description(&self) -> Description;

    /// The number of rows.
    fn rows(&self) -> usize;

    /// The memory that it takes now: indexes are built when queries justify it.
    fn memory(&self) -> KeptMemory;

    /// Whether the catalog has reserved the memory of the host ([`IndexCatalog::reserve`]).
    ///
    /// [`IndexCatalog::reserve`]: crate::kept::catalog::IndexCatalog::reserve
    fn is_reserved(&self) -> bool;

    /// Drops the values that can be read again.
    fn drop_values(&self);

    /// Whether no query uses it, so that its memory is free once it is evicted.
    fn is_idle(&self) -> bool;

    /// Whether rows are indexed where they are in memory, which takes a tenth of the time of reading and sorting them.
    fn is_in_place(&self) -> bool;

    /// The engine that has it.
    fn target(&self) -> &Target;

    /// Whether it is in files: `writing`, `written`, `failed`, or `loaded` from there.
    fn disk(&self) -> Option<&'static str>;
}

/// Bytes that something takes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KeptMemory {
    /// Of the host.
    pub(crate) host: usize,
    /// Those of them that are values which queries have needed and can read again.
    pub(crate) values: usize,
    /// Of each device that has it.
    pub(crate) device: usize,
}

impl Sum for KeptMemory {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            host: sum.host + one.host,
            values: sum.values + one.values,
            device: sum.device + one.device,
        })
    }
}

/// What is kept, as `rmq_indexes()` shows it where it has no name.
#[derive(Debug)]
pub(crate) struct Description {
    pub(crate) table: Option<String>,
    /// The column, or the keys by which rows are sorted.
    pub(crate) column: String,
    /// Of the index of a column.
    pub(crate) kind: Option<IndexKind>,
    /// The type of the values, or of the range key.
    pub(crate) data_type: DataType,
}

/// What building something again would take for each byte that it takes, in rows that are read and sorted or indexed:
/// about as long for all kinds, a tenth where the column is indexed in place, and a fifth to read it from files of
/// `rmq.index_directory`. A power of two, as it is an estimate: what is about as worthwhile goes in the order of use.
fn cost_per_byte(kept: &dyn Kept) -> f64 {
    let per_row = if kept.is_in_place() { 0.1 } else { 1.0 };
    let is_in_files = matches!(kept.disk(), Some("written" | "loaded"));
    let per_row = if is_in_files { per_row / 5.0 } else { per_row };
    let KeptMemory { host, device, .. } = kept.memory();
    let bytes = (host + device).max(1);
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let cost_per_byte = per_row * kept.rows().max(1) as f64 / bytes as f64;
    cost_per_byte.log2().round().exp2()
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) kept: Arc<dyn Kept>,
    /// The name of the index, which is not evicted then.
    pub(super) name: Option<String>,
    pub(super) version: Version,
    pub(super) cached_at: Instant,
    pub(super) hits: u64,
    last_used: u64,
    /// What has the least is evicted first.
    priority: f64,
}

/// The rows of a table as a named index has them.
#[derive(Debug)]
pub(super) struct ExpectedRows {
    pub(super) name: String,
    pub(super) key: Arc<dyn Any + Send + Sync>,
    pub(super) version: Version,
}

/// What is kept, evicted by what it would cost to build again for each byte: the least costly first, whose priority is
/// added to that of all that is used afterwards, so that what is not used goes in the end, however costly
/// ("GreedyDual-Size", Cao and Irani, Cost-Aware WWW Proxy Caching Algorithms, 1997).
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) all: Vec<Entry>,
    /// The indexes with names, whether they are built for the present version of their table or not.
    pub(super) named: Vec<NamedIndex>,
    /// What rows will be those of an index that is not built for the present version of its table.
    pub(super) expected: Vec<ExpectedRows>,
    /// The number of uses so far, to find the least recently used entry.
    clock: u64,
    /// The highest priority of an entry that was evicted.
    evicted: f64,
}

impl Entries {
    /// Removes the entries that `matches` selects.
    pub(super) fn remove(&mut self, matches: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        self.all.extract_if(.., |entry| matches(entry)).collect()
    }

    /// Removes the least worthwhile entry without a name that `matches` selects, of several the least recently used.
    /// Its memory is released when its last user drops it.
    pub(super) fn evict(&mut self, matches: impl Fn(&dyn Kept) -> bool) -> Option<Entry> {
        let entries = self.all.iter().enumerate();
        let least = entries
            .filter(|(_, entry)| entry.name.is_none() && matches(entry.kept.as_ref()))
            .min_by(|(_, a), (_, b)| {
                let by_priority = a.priority.total_cmp(&b.priority);
                by_priority.then(a.last_used.cmp(&b.last_used))
            });
        let (least, entry) = least?;
        self.evicted = self.evicted.max(entry.priority);
        Some(self.all.swap_remove(least))
    }

    /// Adds what has been used now.
    pub(super) fn add(&mut self, kept: Arc<dyn Kept>, version: Version, name: Option<String>) {
        self.clock += 1;
        self.all.push(Entry {
            priority: self.evicted + cost_per_byte(kept.as_ref()),
            kept,
            name,
            version,
            cached_at: Instant::now(),
            hits: 0,
            last_used: self.clock,
        });
    }

    /// Bytes of host memory that give way: of what no query uses, without a name, and of the values of other rows.
    pub(super) fn idle_bytes(&self) -> usize {
        let idle = self.all.iter().filter(|entry| entry.kept.is_idle());
        let bytes = idle.map(|entry| match &entry.name {
            None => entry.kept.memory().host,
            Some(_) => entry.kept.memory().values,
        });
        bytes.sum()
    }

    /// Drops the values of rows that have a name and that no query uses. Returns whether there were any.
    pub(super) fn drop_values_of_named(&self) -> bool {
        let idle = self.all.iter().filter(|entry| entry.kept.is_idle());
        let named = idle.filter(|entry| entry.name.is_some());
        let with_values = named.filter(|entry| entry.kept.memory().values > 0);
        with_values.map(|entry| entry.kept.drop_values()).count() > 0
    }

    /// The index with this name.
    pub(super) fn named(&self, name: Option<&str>) -> Option<&NamedIndex> {
        let mut named = self.named.iter();
        named.find(|index| Some(index.name.as_str()) == name)
    }

    /// The name of the index that this is, where no older version of it was kept.
    pub(super) fn name_of(&mut self, kept: &dyn Kept, version: &Version) -> Option<String> {
        if let Some(named) = self.named.iter().find(|named| kept.is_of(named)) {
            return Some(named.name.clone());
        }
        let mut expected = self.expected.iter();
        let found = expected.position(|expected| {
            expected.version.matches(version) && kept.has_key(expected.key.as_ref())
        })?;
        Some(self.expected.swap_remove(found).name)
    }

    /// Why an index can't have its name.
    pub(super) fn check_name(&self, index: &NamedIndex) -> Result<()> {
        if self.named.iter().any(|known| known.name == index.name) {
            return exec_err!(
                "an index {} exists already: drop it first, or write IF NOT EXISTS",
                index.name
            );
        }
        let mut named = self.named.iter();
        if let Some(known) = named.find(|known| known.is_of_same_columns(index)) {
            return exec_err!("{} has the index {} already", index.label(), known.name);
        }
        Ok(())
    }

    /// The first of what `find` finds, with a hit of its entry.
    pub(super) fn hit<T>(&mut self, find: impl Fn(&Entry) -> Option<T>) -> Option<T> {
        self.clock += 1;
        let mut entries = self.all.iter_mut();
        let (found, entry) = entries.find_map(|entry| Some((find(entry)?, entry)))?;
        entry.hits += 1;
        entry.last_used = self.clock;
        // Indexes may have been built since.
        entry.priority = self.evicted + cost_per_byte(entry.kept.as_ref());
        Some(found)
    }

    /// Bytes of host memory that the catalog has not reserved.
    pub(super) fn unreserved_bytes(&self) -> usize {
        let entries = self.all.iter().filter(|entry| !entry.kept.is_reserved());
        entries.map(|entry| entry.kept.memory().host).sum()
    }
}
