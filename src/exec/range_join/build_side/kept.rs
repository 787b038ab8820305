//! Build sides that a session keeps between queries: sorted rows and what was built of their values.
//!
//! ```text
//!   first query    reads keys and values, sorts the rows, and prepares what it needs of the values
//!   a later one    finds the rows if what is scanned has the same version, the same rows are selected, and the keys are
//!                  the same. Values that no query has needed before are read and added; without any, nothing is read
//!   after INSERTs  finds the rows that were there before, and sorts what has been appended (`kept_segments`)
//! ```
//!
//! Rows are found (`KeptLookup`) by which rows the input returns (`PlanKey`) and by the keys as expressions over its
//! scan. Their version is that of the arrays that keys and filters read, and of the files. Whatever could make two
//! inputs of one key differ must be in the key, or make the input incomparable: the number of batches of each scan (a
//! union has those of several tables), the types that a table reads a file's columns as, functions that are not
//! immutable, also within `FallibleUdf`.
//!
//! Values are kept beside the rows (`KeptSide`), each with its expression over the scan and the version of its own
//! arrays: an UPDATE of a value leaves the sorted rows as they are. They are added by the permutation, which is kept
//! for that, to rows that come in the same order each time, as those of most scans do (`ScanPlan::is_in_order`; scans
//! of several files are told to keep theirs). Other rows serve the queries that need no more values. Rows whose batches
//! were moved into the order of their keys serve no join in which the order of equal keys decides. Columns are put into
//! arrays of their own over the same buffers (`BuildColumns::evaluate`), so that the table's arrays end with the table.
//!
//! An index with a name is the same rows, not evicted. They pass the name on to those that take their place, and
//! `expect_named` finds its rows again where nothing of the old version is left.
//!
//! Not kept are parts of a divided build side, and any rows in a memory pool with a limit in which they would not give
//! way to operators (`GivingPool`), but by CREATE INDEX. Where memory is short for what a query adds to rows that are
//! kept, they give way, and it builds its own, which can be spilled. A table that has changed otherwise than by
//! appending is sorted anew as a whole. What devices have sorted is kept beside that, in the same way
//! (`kept_on_devices`).

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{Result, internal_err};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::common::blocking::blocking;
use crate::exec::common::plan_key::{ScanPlan, is_repeatable, over};
use crate::exec::range_join::aggregate_table::Structures;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::column::PreparedColumn;
use crate::exec::range_join::build_side::kept_lookup::KeptLookup;
use crate::exec::range_join::build_side::kept_side::{
    JoinValues, KeptSegment, KeptSide, Segment, SegmentedRows,
};
use crate::exec::range_join::build_side::persisted::{
    PersistedSide, SideFiles, SideWriter, read_values,
};
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::build_side::sort_and_index::{SideParts, SortAndIndex};
use crate::exec::range_join::build_side::threshold_index::ThresholdIndex;
use crate::exec::range_join::row_threshold::RowThreshold;
use crate::kept::catalog::{IndexCatalog, SessionCatalog};
use crate::kept::entries::Kept;
use crate::kept::giving_pool::GivingPool;
use crate::kept::version::Version;
use datafusion_rmq_logical::common::options::{ByteSize, RmqOptions};
use rmq_arrow::index::devices::Target;
use rmq_engine::Comparison;

/// Where a build side is looked for, and kept when it is built.
#[derive(Debug, Clone)]
pub(crate) struct BuildSideKeeper {
    pub(super) catalog: Arc<IndexCatalog>,
    pub(super) limit: ByteSize,
    pub(super) lookup: KeptLookup,
    threshold: Option<(PhysicalExprRef, Comparison)>,
    pub(super) context: Arc<TaskContext>,
    /// Whether what is built is kept. Otherwise it is only looked for.
    pub(super) keeps: bool,
    /// The files in which other processes find it, if they can.
    files: Option<Arc<SideFiles>>,
}

impl BuildSideKeeper {
    /// Of the build side of these columns of a plan. `None` if it is neither kept nor looked for.
    pub(crate) async fn of(
        plan: &Arc<dyn ExecutionPlan>,
        columns: &BuildColumns,
        threshold: Option<&RowThreshold>,
        context: &Arc<TaskContext>,
    ) -> Option<Self> {
        let options = RmqOptions::of(context.session_config().options());
        if !options.keep_indexes {
            return None;
        }
        let catalog = SessionCatalog::of(context.session_config())?;
        let batch_rows = context.session_config().batch_size();
        let mut lookup = KeptLookup::planned(plan, columns, batch_rows)?;
        let threshold = match threshold {
            Some(threshold) if !is_repeatable(threshold.value.as_ref()) => return None,
            Some(threshold) => {
                let rows = columns.row_columns.iter();
                let rows = rows.map(|i| Some(Arc::clone(&lookup.values.values.get(*i)?.expr)));
                let rows: Vec<_> = rows.collect::<Option<_>>()?;
                Some((over(&rows, &threshold.value)?, threshold.comparison))
            }
            None => None,
        };
        lookup.version = version_now(&lookup, context).await?;
        lookup.is_planned = false;
        let keeps = GivingPool::may_keep(context.memory_pool(), &catalog);
        let directory = options.index_directory.as_str();
        // Values may be missing in files, and added only to rows in order.
        let files = (!directory.is_empty() && lookup.is_in_order)
            .then(|| SideFiles::of(directory, &lookup.key, &lookup.version))
            .flatten();
        Some(Self {
            catalog,
            limit: options.index_memory_limit,
            lookup,
            threshold,
            context: Arc::clone(context),
            keeps,
            files: files.map(Arc::new),
        })
    }

    /// Whether values may be added to the rows, which come in the same order each time.
    pub(crate) fn is_in_order(&self) -> bool {
        self.lookup.is_in_order
    }

    /// Whether devices are open, which may have rows.
    pub(crate) fn has_devices(&self) -> bool {
        self.catalog.devices().in_use().is_some()
    }

    /// The plan that reads the rows.
    pub(crate) fn plan(&self) -> &Arc<dyn ExecutionPlan> {
        &self.lookup.plan
    }

    /// The rows, if the CPU has sorted them in one segment: with all values that the join needs, or those to which they
    /// can be added.
    pub(crate) fn find(&self) -> Option<Arc<Segment>> {
        let (mut found, _) = self.find_whole::<Segment>(true)?;
        if !self.keeps && !self.missing(&found).is_empty() {
            // The values are this query's own.
            found = Arc::new(found.copy());
        }
        // Indexes that queries have justified since it was kept take memory, too.
        self.shrink();
        Some(found)
    }

    /// The rows in the only segment of a side, and where they are: one with all values that the join needs, or else,
    /// with `may_add`, one to which they can be added.
    pub(super) fn find_whole<S: KeptSegment>(&self, may_add: bool) -> Option<(Arc<S>, Target)> {
        let find = |may_add| {
            self.catalog.find(|kept, version| {
                let kept = KeptSide::<S>::of(kept.as_ref())?;
                let segment = self.lookup.whole(kept, version, may_add)?;
                Some((Arc::clone(segment), kept.target.clone()))
            })
        };
        find(false).or_else(|| may_add.then(|| find(true))?)
    }

    /// Whether this is the rows in the order of the input, in however many segments.
    pub(crate) fn is_of(&self, kept: &dyn Kept, version: &Version) -> bool {
        kept.has_key(self.lookup.key.as_ref()) && version.matches(&self.lookup.version)
    }

    /// The columns of a segment that are missing in it, as indexes among the values, and what of them.
    pub(crate) fn missing(&self, kept: &Segment) -> Vec<(usize, Structures)> {
        kept.missing(&self.lookup.values)
    }

    /// Whether the rows that have been read are those of the version that was looked for.
    pub(crate) async fn is_unchanged(&self) -> bool {
        let now = version_now(&self.lookup, &self.context).await;
        now.is_some_and(|now| now.matches(&self.lookup.version))
    }

    /// Adds what was built of these of the values.
    pub(crate) fn add(
        &self,
        kept: &Segment,
        prepared: impl IntoIterator<Item = (usize, PreparedColumn)>,
    ) {
        kept.add(&self.lookup.values.values, prepared);
    }

    /// The build side of the join, from rows that lack no value. What it takes is registered in the pool of
    /// `memory`.
    ///
    /// # Errors
    /// An internal error if a value is missing. An error if memory is short or the query is cancelled.
    pub(crate) fn side(
        &self,
        kept: &Segment,
        indexer: &SortAndIndex,
        memory: &MemoryReservation,
    ) -> Result<BuildSide> {
        let JoinValues {
            columns, values, ..
        } = &self.lookup.values;
        let prepared = kept.prepared(values);
        if !self.lookup.values.missing_in(&prepared).is_empty() {
            return internal_err!("a kept build side lacks values");
        }
        let row_order = kept.row_order(indexer, &prepared)?;
        let rows = columns.row_columns.iter();
        let rows = rows.filter_map(|i| prepared.get(*i)?.rows().cloned());
        let threshold = match &self.threshold {
            Some(compared) => kept.threshold_index(compared, rows.collect(), indexer.threads),
            None => Arc::new(ThresholdIndex::new(indexer.threads)),
        };
        let sorted = Arc::clone(kept.sorted());
        let parts = SideParts {
            prepared,
            row_order,
            threshold_index: threshold,
        };
        indexer.side(sorted, parts, kept, memory)
    }

    /// A keeper of a segment of the rows, with these values of other columns that have the same keys.
    pub(super) fn with_values(&self, values: JoinValues) -> Self {
        Self {
            lookup: KeptLookup {
                values,
                ..self.lookup.clone()
            },
            // Those of the whole side.
            files: None,
            ..self.clone()
        }
    }

    /// The same keeper, which keeps rows even if they don't give way in the memory pool.
    pub(crate) fn in_any_pool(self) -> Self {
        Self {
            keeps: true,
            ..self
        }
    }

    /// The rows of this version are those of a named index, once a query keeps them.
    pub(crate) fn expect(&self, name: &str) {
        let key = Arc::clone(&self.lookup.key) as _;
        self.catalog.expect(name, key, self.lookup.version.clone());
    }

    /// Whether a change of the files since the version was requested would be seen.
    pub(crate) fn is_settled(&self) -> bool {
        self.lookup.version.is_settled()
    }

    /// The rows in files, if other processes have written them.
    ///
    /// # Errors
    /// An internal error if the thread that opens the files does not end.
    pub(crate) async fn find_persisted(&self) -> Result<Option<PersistedSide>> {
        let Some(files) = self.files.clone().filter(|_| self.keeps) else {
            return Ok(None);
        };
        let may_be_restored = !self.lookup.values.columns.row_order_matters();
        blocking(move |_| Ok(PersistedSide::open(&files, may_be_restored))).await
    }

    /// Reads rows from files, and keeps them for later queries; `None` if the files are not as they were written.
    /// Blocks.
    ///
    /// # Errors
    /// If memory is short or the query is cancelled.
    pub(crate) fn load(
        &self,
        persisted: PersistedSide,
        indexer: &SortAndIndex,
        memory: &MemoryReservation,
    ) -> Result<Option<Arc<Segment>>> {
        let Some(sorted) = persisted.read(&self.lookup.values.types, indexer, memory)? else {
            return Ok(None);
        };
        let segment = Arc::new(Segment::loaded(sorted));
        self.load_values(&segment, indexer, memory)?;
        let segments = SegmentedRows::one(Arc::clone(&segment));
        self.keep_segments(segments, Target::Cpu);
        Ok(Some(segment))
    }

    /// Reads what is missing of the values of a segment from files, as far as there are any. Blocks.
    ///
    /// # Errors
    /// If memory is short or the query is cancelled.
    pub(crate) fn load_values(
        &self,
        kept: &Segment,
        indexer: &SortAndIndex,
        memory: &MemoryReservation,
    ) -> Result<()> {
        let Some(files) = self.files.as_ref().filter(|_| self.keeps) else {
            return Ok(());
        };
        let JoinValues { types, values, .. } = &self.lookup.values;
        let missing = self.missing(kept).into_iter();
        let missing = missing.map(|(i, needs)| (i, &values[i], needs));
        let missing = missing.collect();
        let loaded = read_values(files, missing, types, kept.sorted(), indexer, memory)?;
        self.add(kept, loaded);
        Ok(())
    }

    /// Whether what is built is written to files.
    pub(crate) fn persists(&self) -> bool {
        self.files.is_some() && self.keeps
    }

    /// Writes rows to files, or values that were added to rows. `batches` are the rows in the order in which they are
    /// numbered. Returns at once.
    pub(crate) fn persist(
        &self,
        segment: &Arc<Segment>,
        batches: Vec<RecordBatch>,
        added: Option<&[usize]>,
        memory: MemoryReservation,
    ) {
        let Some(files) = &self.files else {
            return;
        };
        let writer = SideWriter {
            files: Arc::clone(files),
            values: self.lookup.values.clone(),
            segment: Arc::clone(segment),
            batches,
            added: added.map(<[usize]>::to_vec),
            memory,
        };
        writer.spawn();
    }

    /// Whether rows that have been read may be kept: not if a file has changed meanwhile, or may have.
    pub(super) async fn may_keep(&self) -> bool {
        self.keeps && self.is_settled() && self.is_unchanged().await
    }

    /// Keeps rows for later queries, unless a file has changed or may have while it was read; returns whether it does.
    pub(crate) async fn keep<S: KeptSegment>(
        &self,
        rows: SegmentedRows<S>,
        target: Target,
    ) -> bool {
        let keeps = self.may_keep().await;
        if keeps {
            self.keep_segments(rows, target);
        }
        keeps
    }

    fn keep_segments<S: KeptSegment>(&self, rows: SegmentedRows<S>, target: Target) {
        let JoinValues { columns, types, .. } = &self.lookup.values;
        let kept = KeptSide {
            key: Arc::clone(&self.lookup.key),
            label: columns.key_label(),
            key_type: columns.range_key(types).clone(),
            is_in_order: self.lookup.is_in_order,
            target,
            rows,
        };
        let version = self.lookup.version.clone();
        self.catalog.keep(Arc::new(kept), version, self.limit);
    }

    /// Whether all `rows` should be read and kept: queries have read that number of them without keeping them. Counts
    /// anew then, as memory may not suffice to keep them.
    pub(crate) fn is_worth_keeping(&self, rows: usize) -> bool {
        let reads = &self.catalog.pruned_reads;
        let key = self.lookup.key.as_ref();
        let is_worth_keeping = self.keeps && reads.rows(key) >= rows;
        if is_worth_keeping {
            reads.forget(key);
        }
        is_worth_keeping
    }

    /// Adds rows that a query has read of these rows without keeping them.
    pub(crate) fn add_read(&self, rows: usize) {
        let key = Arc::clone(&self.lookup.key);
        self.catalog.pruned_reads.add(key, rows);
    }

    /// Evicts what the values that were added leave no memory for.
    pub(crate) fn shrink(&self) {
        self.catalog.shrink_to(self.limit);
    }
}

/// The present version of what is looked for, if it can be told. That a file is gone is for its scan to say.
async fn version_now(lookup: &KeptLookup, context: &TaskContext) -> Option<Version> {
    if !lookup.version.has_files() {
        return Some(lookup.version.clone());
    }
    let scanned = ScanPlan::of(&lookup.plan)?;
    let planned = lookup.version.clone();
    let version = scanned.present_version(planned, "of a range join", context);
    match version.await {
        Ok(version) => Some(version),
        Err(error) => {
            log::debug!("the rows of a range join are not kept: {error}");
            None
        }
    }
}
