//! Build sides that a session keeps between queries: sorted rows and what was built of their values.
//!
//! ```text
//!   first query    reads keys and values, sorts the rows, and prepares what it needs of the values
//!   a later one    finds the rows if what is scanned has the same version, the same rows are selected, and the keys are
//!                  the same. Values that no query has needed before are read and added; without any, nothing is read
//!   after INSERTs  finds the rows that were there before, and sorts what has been appended (`kept_segments`)
//! ```
//!
//! Rows are found by which rows the input returns (`PlanKey`) and by the keys as expressions over its scan. Their
//! version is that of the arrays that keys and filters read, and of the files. Whatever could make two inputs of one
//! key differ must be in the key, or make the input incomparable: the number of batches of each scan (a union has those
//! of several tables), the types that a table reads a file's columns as, functions that are not immutable, also within
//! `FallibleUdf`.
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
//! kept, it builds its own, which can be spilled. A table that has changed otherwise than by appending is sorted anew
//! as a whole. What devices have sorted is kept beside that, in the same way (`kept_on_devices`).

use std::sync::Arc;
use std::time::SystemTime;

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;

use crate::common::options::{ByteSize, RmqOptions};
use crate::exec::common::blocking::blocking;
use crate::exec::common::plan_key::{ScanPlan, is_repeatable, over};
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::column::{ColumnNeeds, PreparedColumn};
use crate::exec::range_join::build_side::kept_side::{
    KeptSegment, KeptSide, RowsKey, Segment, SegmentedRows, Value,
};
use crate::exec::range_join::build_side::persisted::{
    PersistedSide, SideFiles, SideWriter, read_values,
};
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::build_side::sort_and_index::SortAndIndex;
use crate::exec::range_join::build_side::threshold_index::ThresholdIndex;
use crate::exec::range_join::row_threshold::RowThreshold;
use crate::index::catalog::{IndexCatalog, SessionCatalog};
use crate::index::devices::Target;
use crate::index::entries::Kept;
use crate::index::giving_pool::GivingPool;
use crate::index::version::Version;
use rmq_engine::Comparison;

/// Where a build side is looked for, and kept when it is built.
#[derive(Debug, Clone)]
pub(crate) struct BuildSideKeeper {
    pub(super) catalog: Arc<IndexCatalog>,
    pub(super) limit: ByteSize,
    pub(super) key: Arc<RowsKey>,
    /// The value columns of the join.
    pub(super) values: Vec<Value>,
    pub(super) columns: BuildColumns,
    threshold: Option<(PhysicalExprRef, Comparison)>,
    /// The plan of the rows. They are in the same order each time if that can be had.
    plan: Arc<dyn ExecutionPlan>,
    is_in_order: bool,
    pub(super) context: Arc<TaskContext>,
    pub(super) version: Version,
    /// The time before the version was requested.
    requested: SystemTime,
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
        let plan = &in_order(plan)?;
        let scanned = ScanPlan::of(plan)?;
        let is_in_order = scanned.is_in_order;
        let mut keys = over_scan(columns, &scanned)?;
        let values = keys.split_off(columns.num_equality_keys + 1);
        let threshold = match threshold {
            Some(threshold) if !is_repeatable(threshold.value.as_ref()) => return None,
            Some(threshold) => {
                let rows = columns.row_columns.iter().map(|i| values.get(*i).cloned());
                let rows: Vec<_> = rows.collect::<Option<_>>()?;
                Some((over(&rows, &threshold.value)?, threshold.comparison))
            }
            None => None,
        };
        let requested = SystemTime::now();
        let version = version(&scanned, &keys, context).await?;
        let values = values.into_iter();
        let values = values.map(|expr| Value::new(expr, &scanned, |_| true));
        let (values, plan_key) = (values.collect(), scanned.key);
        let keeps = GivingPool::may_keep(context.memory_pool(), &catalog);
        let key = RowsKey {
            plan: plan_key,
            keys,
            batch_rows: context.session_config().batch_size(),
        };
        let directory = options.index_directory.as_str();
        // Values may be missing in files, and added only to rows in order.
        let files = (!directory.is_empty() && is_in_order)
            .then(|| SideFiles::of(directory, &key, &version))
            .flatten();
        Some(Self {
            catalog,
            limit: options.index_memory_limit,
            files: files.map(Arc::new),
            key: Arc::new(key),
            values,
            columns: columns.clone(),
            threshold,
            plan: Arc::clone(plan),
            is_in_order,
            context: Arc::clone(context),
            version,
            requested,
            keeps,
        })
    }

    /// Whether values may be added to the rows, which come in the same order each time.
    pub(crate) fn is_in_order(&self) -> bool {
        self.is_in_order
    }

    /// Whether devices are open, which may have rows.
    pub(crate) fn has_devices(&self) -> bool {
        self.catalog.devices().in_use().is_some()
    }

    /// The plan that reads the rows.
    pub(crate) fn plan(&self) -> &Arc<dyn ExecutionPlan> {
        &self.plan
    }

    /// The rows, if they are kept in one segment: with all values that the join needs, or those to which they can be
    /// added.
    pub(crate) fn find(&self) -> Option<Arc<Segment>> {
        let complete = self.find_if::<Segment>(|_, segment| self.missing(segment).is_empty());
        let is_complete = complete.is_some();
        let (mut found, _) =
            complete.or_else(|| self.find_if(|kept, _| self.is_in_order && kept.is_in_order))?;
        if !is_complete && !self.keeps {
            // The values are this query's own.
            found = Arc::new(found.copy());
        }
        // Indexes that queries have justified since it was kept take memory, too.
        self.shrink();
        Some(found)
    }

    /// The rows in the only segment of a side that `matches` and may serve the join, and where they are.
    pub(super) fn find_if<S: KeptSegment>(
        &self,
        matches: impl Fn(&KeptSide<S>, &S) -> bool,
    ) -> Option<(Arc<S>, Target)> {
        self.catalog.find(|kept, version| {
            let kept = KeptSide::<S>::of(kept.as_ref())?;
            let segment = kept.only_segment()?;
            let is_found = kept.key == self.key
                && kept.may_serve(&self.columns)
                && !kept.has_failed()
                && matches(kept, segment)
                && version.matches(&self.version);
            is_found.then(|| (Arc::clone(segment), kept.target.clone()))
        })
    }

    /// Whether this is the rows in the order of the input, in however many segments.
    pub(crate) fn is_of(&self, kept: &dyn Kept, version: &Version) -> bool {
        kept.has_key(self.key.as_ref()) && version.matches(&self.version)
    }

    /// The columns of a segment that are missing in it, as indexes among the values, and what of them.
    pub(crate) fn missing(&self, kept: &Segment) -> Vec<(usize, ColumnNeeds)> {
        missing_in(&kept.prepared(&self.values), &self.columns)
    }

    /// Whether the rows that have been read are those of the version that was looked for.
    pub(crate) async fn is_unchanged(&self) -> bool {
        if !self.version.has_files() {
            return true;
        }
        let Some(scanned) = ScanPlan::of(&self.plan) else {
            return false;
        };
        let now = version(&scanned, &self.key.keys, &self.context).await;
        now.is_some_and(|now| now.matches(&self.version))
    }

    /// Adds what was built of these of the values.
    pub(crate) fn add(
        &self,
        kept: &Segment,
        prepared: impl IntoIterator<Item = (usize, PreparedColumn)>,
    ) {
        kept.add(&self.values, prepared);
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
        let prepared = kept.prepared(&self.values);
        if !missing_in(&prepared, &self.columns).is_empty() {
            return internal_err!("a kept build side lacks values");
        }
        let row_order = kept.row_order(indexer, &prepared)?;
        let rows = self.columns.row_columns.iter();
        let rows = rows.filter_map(|i| prepared.get(*i)?.rows.clone());
        let threshold = match &self.threshold {
            Some(compared) => kept.threshold_index(compared, rows.collect(), indexer.threads),
            None => Arc::new(ThresholdIndex::new(indexer.threads)),
        };
        let sorted = Arc::clone(kept.sorted());
        indexer.side(sorted, prepared, row_order, threshold, memory)
    }

    /// A keeper of a segment of the rows, with these values of other columns that have the same keys.
    pub(super) fn with_values(&self, columns: &BuildColumns, values: Vec<Value>) -> Self {
        Self {
            columns: columns.clone(),
            values,
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
        let key = Arc::clone(&self.key) as _;
        self.catalog.expect(name, key, self.version.clone());
    }

    /// Whether a change of the files since the version was requested would be seen.
    pub(crate) fn is_settled(&self) -> bool {
        self.version.is_settled_at(self.requested)
    }

    /// The rows in files, if other processes have written them.
    ///
    /// # Errors
    /// An internal error if the thread that opens the files does not end.
    pub(crate) async fn find_persisted(&self) -> Result<Option<PersistedSide>> {
        let Some(files) = self.files.clone().filter(|_| self.keeps) else {
            return Ok(None);
        };
        let may_be_restored = !self.columns.row_order_matters();
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
        let Some(sorted) = persisted.read(&self.types()?, indexer, memory)? else {
            return Ok(None);
        };
        let segment = Arc::new(Segment::loaded(sorted));
        self.load_values(&segment, indexer, memory)?;
        let segments = SegmentedRows::one(Arc::clone(&segment));
        self.keep_segments(segments, Target::Cpu)?;
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
        let missing = self.missing(kept).into_iter();
        let missing = missing.map(|(i, needs)| (i, &self.values[i], needs));
        let (missing, types) = (missing.collect(), self.types()?);
        let loaded = read_values(files, missing, &types, kept.sorted(), indexer, memory)?;
        self.add(kept, loaded);
        Ok(())
    }

    /// Whether what is built is written to files.
    pub(crate) fn persists(&self) -> bool {
        self.files.is_some() && self.keeps
    }

    /// Writes rows to files, or values that were added to rows. `batches` are the rows in the order in which they are
    /// numbered. Returns at once.
    ///
    /// # Errors
    /// An error if a column has no type.
    pub(crate) fn persist(
        &self,
        segment: &Arc<Segment>,
        batches: Vec<RecordBatch>,
        added: Option<&[usize]>,
        memory: MemoryReservation,
    ) -> Result<()> {
        let Some(files) = &self.files else {
            return Ok(());
        };
        let values = self.values.iter().cloned().enumerate();
        let values = values.filter(|(i, _)| added.is_none_or(|added| added.contains(i)));
        let writer = SideWriter {
            files: Arc::clone(files),
            columns: self.columns.clone(),
            types: self.types()?,
            segment: Arc::clone(segment),
            batches,
            values: values.collect(),
            writes_rows: added.is_none(),
            memory,
        };
        writer.spawn();
        Ok(())
    }

    /// The types of the columns.
    pub(super) fn types(&self) -> Result<Vec<DataType>> {
        let schema = self.columns.schema(&self.plan.schema())?;
        let fields = schema.fields().iter();
        Ok(fields.map(|field| field.data_type().clone()).collect())
    }

    /// Whether rows that have been read may be kept: not if a file has changed meanwhile, or may have.
    pub(super) async fn may_keep(&self) -> bool {
        self.keeps && self.is_settled() && self.is_unchanged().await
    }

    /// The type of the range key.
    pub(super) fn key_type(&self) -> Result<DataType> {
        let range_key = self.columns.range_key(self.columns.expressions());
        range_key.data_type(&self.plan.schema())
    }

    /// Keeps rows for later queries, unless a file has changed or may have while it was read; returns whether it does.
    ///
    /// # Errors
    /// An error if the range key has no type.
    pub(crate) async fn keep<S: KeptSegment>(
        &self,
        rows: SegmentedRows<S>,
        target: Target,
    ) -> Result<bool> {
        let keeps = self.may_keep().await;
        if keeps {
            self.keep_segments(rows, target)?;
        }
        Ok(keeps)
    }

    fn keep_segments<S: KeptSegment>(&self, rows: SegmentedRows<S>, target: Target) -> Result<()> {
        let kept = KeptSide {
            key: Arc::clone(&self.key),
            label: self.columns.key_label(),
            key_type: self.key_type()?,
            is_in_order: self.is_in_order,
            target,
            rows,
        };
        let version = self.version.clone();
        self.catalog.keep(Arc::new(kept), version, self.limit);
        Ok(())
    }

    /// Whether all `rows` should be read and kept: queries have read that number of them without keeping them. Counts
    /// anew then, as memory may not suffice to keep them.
    pub(crate) fn is_worth_keeping(&self, rows: usize) -> bool {
        let reads = &self.catalog.pruned_reads;
        let is_worth_keeping = self.keeps && reads.rows(self.key.as_ref()) >= rows;
        if is_worth_keeping {
            reads.forget(self.key.as_ref());
        }
        is_worth_keeping
    }

    /// Adds rows that a query has read of these rows without keeping them.
    pub(crate) fn add_read(&self, rows: usize) {
        let key = Arc::clone(&self.key);
        self.catalog.pruned_reads.add(key, rows);
    }

    /// Evicts what the values that were added leave no memory for.
    pub(crate) fn shrink(&self) {
        self.catalog.shrink_to(self.limit);
    }
}

/// What is missing of the value columns, as their indexes, and what of them.
pub(super) fn missing_in(
    prepared: &[PreparedColumn],
    columns: &BuildColumns,
) -> Vec<(usize, ColumnNeeds)> {
    let missing = prepared.iter().enumerate().map(|(i, prepared)| {
        let needs = ColumnNeeds::of_column(columns, i);
        (i, needs.without(prepared))
    });
    missing
        .filter(|(_, needs)| *needs != ColumnNeeds::default())
        .collect()
}

/// The same plan, in the same order each time if that can be had; `None` if it can't be compared with others.
pub(super) fn in_order(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let is_in_order = ScanPlan::of(plan)?.is_in_order;
    // Of a scan. Operators above one would have to be replaced, too, and their metrics with them.
    let ordered = (!is_in_order).then(|| plan.with_preserve_order(true));
    Some(ordered.flatten().unwrap_or_else(|| Arc::clone(plan)))
}

/// Columns as expressions over the scan; `None` if one may have another value for the same row the next time.
pub(super) fn over_scan(
    columns: &BuildColumns,
    scanned: &ScanPlan<'_>,
) -> Option<Vec<PhysicalExprRef>> {
    let expressions = columns.expressions().iter();
    expressions.map(|expr| scanned.over_scan(expr)).collect()
}

/// The version of what is scanned, if it can be told. That a file is gone is for its scan to say.
async fn version(
    scanned: &ScanPlan<'_>,
    keys: &[PhysicalExprRef],
    context: &TaskContext,
) -> Option<Version> {
    let version = scanned.version("of a range join", keys, context).await;
    version.unwrap_or_else(|error| {
        log::debug!("the rows of a range join are not kept: {error}");
        None
    })
}
