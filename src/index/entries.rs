//! The entries of a session's catalog: what is kept, with its key, version and name.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};

use crate::common::column_ref::ColumnRef;
use crate::index::devices::Target;
use crate::index::named_index::NamedIndex;
use crate::index::reserved_index::ReservedIndex;
use crate::index::version::Version;
use rmq_engine::Extreme;

/// The rows of a range join's build side, sorted and indexed, with what tells them from others.
pub(crate) trait KeptRows: Any + Debug + Send + Sync {
    /// Whether they are sorted by this key, of the type that `self` has.
    fn has_key(&self, key: &dyn Any) -> bool;

    /// Whether these take the place of `other`, of an older version of the same tables or of the same version.
    fn replaces(&self, other: &dyn KeptRows, is_same_version: bool) -> bool;

    /// The keys by which they are sorted, as EXPLAIN shows them.
    fn label(&self) -> &str;

    /// The type of the last one, the range key.
    fn key_type(&self) -> &DataType;

    /// Their number.
    fn rows(&self) -> usize;

    /// Bytes of host memory now: indexes are built when queries justify it.
    fn bytes(&self) -> usize;

    /// Those of values that queries have needed, which can be read again.
    fn value_bytes(&self) -> usize;

    /// Drops these values of rows that no query uses.
    fn drop_values(&self);

    /// Bytes of each device that has them.
    fn device_bytes(&self) -> usize;

    /// Whether no query uses them.
    fn is_idle(&self) -> bool;

    /// Where they are sorted.
    fn target(&self) -> &Target;

    /// Whether they are in files: `writing`, `written`, `failed`, or `loaded` from there.
    fn disk(&self) -> Option<&'static str>;
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
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.is_as(other, SentRows::is_same)
    }

    /// Whether an index of this version takes the place of that of an older one.
    pub(super) fn succeeds(
        &self,
        version: &Version,
        (older, old_version): (&Self, &Version),
    ) -> bool {
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

    /// Whether it is that of the column of a named index.
    pub(super) fn is_of(&self, named: &NamedIndex) -> bool {
        self.plan.is_none() && named.is_of(&self.column)
    }

    /// The name of the table in `rmq_indexes()`.
    pub(super) fn table(&self) -> String {
        match self.plan {
            Some(_) => self.column.table.to_string(),
            None => self.column.table_reference().to_string(),
        }
    }
}

/// What is kept.
#[derive(Debug, Clone)]
pub(super) enum Item {
    Index(IndexKey, Arc<ReservedIndex>),
    Rows(Arc<dyn KeptRows>),
}

impl Item {
    /// Bytes of host memory.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Index(_, reserved) => reserved.bytes(),
            Self::Rows(rows) => rows.bytes(),
        }
    }

    /// Bytes of each device.
    pub(super) fn device_bytes(&self) -> usize {
        match self {
            Self::Index(_, reserved) => reserved.device_bytes(),
            Self::Rows(rows) => rows.device_bytes(),
        }
    }

    /// Whether no query uses it, so that its memory is free once it is evicted.
    pub(super) fn is_idle(&self) -> bool {
        match self {
            Self::Index(_, reserved) => ReservedIndex::is_idle(reserved),
            Self::Rows(rows) => rows.is_idle(),
        }
    }

    /// What building it again would take for each byte that it takes, in rows that are read and sorted or indexed:
    /// about as long for all kinds, a tenth where the column is indexed in place, and a fifth to read it from
    /// files of `rmq.index_directory`. A power of two, as it is an estimate: what is about as worthwhile goes in the
    /// order of use.
    fn cost_per_byte(&self) -> f64 {
        let (rows, per_row, disk) = match self {
            Self::Index(_, reserved) => {
                let index = &reserved.index;
                let per_row = if index.borrows_column() { 0.1 } else { 1.0 };
                (index.rows(), per_row, reserved.disk.label())
            }
            Self::Rows(rows) => (rows.rows(), 1.0, rows.disk()),
        };
        let is_in_files = matches!(disk, Some("written" | "loaded"));
        let per_row = if is_in_files { per_row / 5.0 } else { per_row };
        let bytes = (self.bytes() + self.device_bytes()).max(1);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let cost_per_byte = per_row * rows.max(1) as f64 / bytes as f64;
        cost_per_byte.log2().round().exp2()
    }

    /// The engine that has it.
    pub(super) fn target(&self) -> &Target {
        match self {
            Self::Index(key, _) => &key.target,
            Self::Rows(rows) => rows.target(),
        }
    }

    pub(super) fn index(&self) -> Option<(&IndexKey, &Arc<ReservedIndex>)> {
        match self {
            Self::Index(key, reserved) => Some((key, reserved)),
            Self::Rows(_) => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) item: Item,
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
    pub(super) fn index(&self, key: &IndexKey) -> Option<(&Entry, &Arc<ReservedIndex>)> {
        self.all.iter().find_map(|entry| {
            let (known, reserved) = entry.item.index()?;
            known.is_same(key).then_some((entry, reserved))
        })
    }

    /// Removes the entries that `matches` selects.
    pub(super) fn remove(&mut self, matches: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        self.all.extract_if(.., |entry| matches(entry)).collect()
    }

    /// Removes the least worthwhile of the items without a name that `matches` selects, of several the least recently
    /// used. Its memory is released when its last user drops it.
    pub(super) fn evict(&mut self, matches: impl Fn(&Item) -> bool) -> Option<Entry> {
        let entries = self.all.iter().enumerate();
        let least = entries
            .filter(|(_, entry)| entry.name.is_none() && matches(&entry.item))
            .min_by(|(_, a), (_, b)| {
                let by_priority = a.priority.total_cmp(&b.priority);
                by_priority.then(a.last_used.cmp(&b.last_used))
            });
        let (least, entry) = least?;
        self.evicted = self.evicted.max(entry.priority);
        Some(self.all.swap_remove(least))
    }

    /// Adds an item, which has been used now.
    pub(super) fn add(&mut self, item: Item, version: Version, name: Option<String>) {
        self.clock += 1;
        self.all.push(Entry {
            priority: self.evicted + item.cost_per_byte(),
            item,
            name,
            version,
            cached_at: Instant::now(),
            hits: 0,
            last_used: self.clock,
        });
    }

    /// Bytes of host memory that give way: of what no query uses, without a name, and of the values of other rows.
    pub(super) fn idle_bytes(&self) -> usize {
        let idle = self.all.iter().filter(|entry| entry.item.is_idle());
        let bytes = idle.map(|entry| match (&entry.name, &entry.item) {
            (None, item) => item.bytes(),
            (Some(_), Item::Rows(rows)) => rows.value_bytes(),
            (Some(_), Item::Index(..)) => 0,
        });
        bytes.sum()
    }

    /// Drops the values of rows that have a name and that no query uses. Returns whether there were any.
    pub(super) fn drop_values_of_named(&self) -> bool {
        let idle = self.all.iter().filter(|entry| entry.item.is_idle());
        let named = idle.filter(|entry| entry.name.is_some());
        let rows = named.filter_map(|entry| match &entry.item {
            Item::Rows(rows) if rows.value_bytes() > 0 => Some(rows),
            _ => None,
        });
        rows.map(|rows| rows.drop_values()).count() > 0
    }

    /// The index with this name.
    pub(super) fn named(&self, name: Option<&str>) -> Option<&NamedIndex> {
        let mut named = self.named.iter();
        named.find(|index| Some(index.name.as_str()) == name)
    }

    /// The name of an index that these rows are of, where it is not built for this version yet.
    pub(super) fn expected_name(
        &mut self,
        rows: &dyn KeptRows,
        version: &Version,
    ) -> Option<String> {
        let mut expected = self.expected.iter();
        let found = expected.position(|expected| {
            expected.version.matches(version) && rows.has_key(expected.key.as_ref())
        })?;
        Some(self.expected.swap_remove(found).name)
    }

    /// The name of the index of a column.
    pub(super) fn name_of(&self, key: &IndexKey) -> Option<String> {
        let named = self.named.iter().find(|named| key.is_of(named))?;
        Some(named.name.clone())
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
        entry.priority = self.evicted + entry.item.cost_per_byte();
        Some(found)
    }

    /// Bytes of host memory of the rows that are kept.
    pub(super) fn bytes_of_rows(&self) -> usize {
        let rows = self.all.iter().filter(|entry| entry.item.index().is_none());
        rows.map(|entry| entry.item.bytes()).sum()
    }
}
