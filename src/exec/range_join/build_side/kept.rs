//! Build sides that a session keeps between queries: sorted rows and what was built of their values.
//!
//! ```text
//!   first query    reads keys and values, sorts the rows, and prepares what it needs of the values
//!   a later one    finds the rows if what is scanned has the same version, the same rows are selected, and the keys are
//!                  the same. Values that no query has needed before are read and added; without any, nothing is read
//! ```
//!
//! Rows can be extended if they come in the same order each time, as those of most scans do. Others serve the queries
//! that need nothing else.
//!
//! Not kept are parts of a divided build side, and any where the memory pool has a limit, but by CREATE INDEX: other
//! operators could not get that memory back.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryLimit, MemoryReservation};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;

use crate::common::options::{ByteSize, RmqOptions};
use crate::exec::common::plan_key::{PlanKey, ScanPlan, in_order, is_repeatable, over};
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::column::{ColumnNeeds, PreparedColumn};
use crate::exec::range_join::build_side::row_order::RowOrder;
use crate::exec::range_join::build_side::side::{BuildSide, SortedSide};
use crate::exec::range_join::build_side::sort_and_index::SortAndIndex;
use crate::exec::range_join::build_side::threshold_index::ThresholdIndex;
use crate::exec::range_join::row_threshold::RowThreshold;
use crate::index::catalog::{IndexCatalog, SessionCatalog};
use crate::index::entries::KeptRows;
use crate::index::version::Version;
use crate::range_agg::values::Values;
use rmq_engine::Comparison;

/// Where a build side is looked for, and kept when it is built.
#[derive(Debug)]
pub(crate) struct BuildSideKeeper {
    catalog: Arc<IndexCatalog>,
    limit: ByteSize,
    key: Arc<RowsKey>,
    /// The value columns of the join.
    values: Vec<Value>,
    columns: BuildColumns,
    threshold: Option<(PhysicalExprRef, Comparison)>,
    /// The plan of the rows. They are in the same order each time if that can be had.
    plan: Arc<dyn ExecutionPlan>,
    is_in_order: bool,
    context: Arc<TaskContext>,
    version: Version,
    /// The time before the version was requested.
    requested: SystemTime,
    /// Whether what is built is kept. Otherwise it is only looked for.
    keeps: bool,
}

/// What tells sorted rows from others over the same version of their tables. The keys are expressions over the scan:
/// the equality keys, then the range key.
#[derive(Debug, PartialEq)]
struct RowsKey {
    plan: PlanKey,
    keys: Vec<PhysicalExprRef>,
    /// The rows of a batch: batches are dealt out to partitions, and moved into the order of their keys.
    batch_rows: usize,
}

/// A value of each row: an expression over the scan, and the version of the columns in memory that it reads.
#[derive(Debug, Clone)]
struct Value {
    expr: PhysicalExprRef,
    version: Option<Version>,
}

impl Value {
    fn is(&self, other: &Self) -> bool {
        let is_same_version = match (&self.version, &other.version) {
            (Some(version), Some(other)) => version.matches(other),
            (None, None) => true,
            _ => false,
        };
        is_same_version && self.expr.as_ref() == other.expr.as_ref()
    }
}

/// Sorted rows, and what queries have needed of their values.
#[derive(Debug)]
pub(crate) struct KeptSide {
    key: Arc<RowsKey>,
    /// The keys as EXPLAIN shows them.
    label: String,
    /// The type of the range key.
    key_type: DataType,
    sorted: Arc<SortedSide>,
    /// Whether a plan with the same key has the rows in the same order.
    is_in_order: bool,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default, Clone)]
struct Parts {
    values: Vec<(Value, PreparedColumn)>,
    orders: Vec<Arc<RowOrder>>,
    thresholds: Vec<Threshold>,
}

impl Parts {
    /// Drops values of a table that has changed without its keys, which can't be found any more, and what is built of
    /// them.
    fn drop_dead(&mut self) {
        self.values.retain(|(value, _)| {
            let version = value.version.as_ref();
            version.is_none_or(Version::is_whole)
        });
        let values = &self.values;
        let is_kept = |rows: &Arc<Values>| {
            let mut kept = values
                .iter()
                .filter_map(|(_, prepared)| prepared.rows.as_ref());
            kept.any(|kept| Arc::ptr_eq(kept, rows))
        };
        self.orders.retain(|order| is_kept(order.keys()));
        self.thresholds
            .retain(|threshold| threshold.columns.iter().all(&is_kept));
    }
}

/// An index on values that are compared with thresholds, which is built if ranges justify it.
#[derive(Debug, Clone)]
struct Threshold {
    value: PhysicalExprRef,
    comparison: Comparison,
    /// The columns that the value is computed of, among others.
    columns: Vec<Arc<Values>>,
    index: Arc<ThresholdIndex>,
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
        let ordered = in_order(plan);
        let is_in_order = ordered.is_some();
        let plan = ordered.unwrap_or_else(|| Arc::clone(plan));
        let scanned = ScanPlan::of(&plan)?;
        let expressions = columns.expressions().iter();
        let expressions = expressions.map(|expr| scanned.over_scan(expr));
        let mut keys: Vec<PhysicalExprRef> = expressions.collect::<Option<_>>()?;
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
        let values = values.into_iter().map(|expr| Value {
            version: scanned.version_of(&expr),
            expr,
        });
        let (values, plan_key) = (values.collect(), scanned.key);
        let is_limited = !matches!(context.memory_pool().memory_limit(), MemoryLimit::Infinite);
        Some(Self {
            catalog,
            limit: options.index_memory_limit,
            key: Arc::new(RowsKey {
                plan: plan_key,
                keys,
                batch_rows: context.session_config().batch_size(),
            }),
            values,
            columns: columns.clone(),
            threshold,
            plan,
            is_in_order,
            context: Arc::clone(context),
            version,
            requested,
            keeps: !is_limited,
        })
    }

    /// Whether values may be added to the rows, which come in the same order each time.
    pub(crate) fn is_in_order(&self) -> bool {
        self.is_in_order
    }

    /// The plan that reads the rows.
    pub(crate) fn plan(&self) -> &Arc<dyn ExecutionPlan> {
        &self.plan
    }

    /// The rows, if they are kept: with all values that the join needs, or those to which they can be added.
    pub(crate) fn find(&self) -> Option<Arc<KeptSide>> {
        let complete = self.find_if(|kept| self.missing(kept).is_empty());
        let is_complete = complete.is_some();
        let mut found =
            complete.or_else(|| self.find_if(|kept| self.is_in_order && kept.is_in_order))?;
        if !is_complete && !self.keeps {
            // The values are this query's own.
            found = Arc::new(found.copy());
        }
        // Indexes that queries have justified since it was kept take memory, too.
        self.catalog.shrink_to(self.limit);
        Some(found)
    }

    fn find_if(&self, matches: impl Fn(&KeptSide) -> bool) -> Option<Arc<KeptSide>> {
        let needs_order = self.columns.row_order_matters();
        let found = self.catalog.find_rows(&self.version, |rows| {
            KeptSide::of(rows).is_some_and(|kept| {
                kept.key == self.key
                    && (!needs_order || kept.is_in_order && !kept.sorted.is_restored)
                    && matches(kept)
            })
        });
        let found: Arc<dyn Any + Send + Sync> = found?;
        found.downcast().ok()
    }

    /// The columns of a side that are missing in it, as indexes among the values, and what of them.
    pub(crate) fn missing(&self, kept: &KeptSide) -> Vec<(usize, ColumnNeeds)> {
        let prepared = self.prepared(kept).into_iter().enumerate();
        let missing = prepared.map(|(i, prepared)| {
            let needs = ColumnNeeds::of_column(&self.columns, i);
            (i, needs.without(&prepared))
        });
        missing
            .filter(|(_, needs)| *needs != ColumnNeeds::default())
            .collect()
    }

    /// What is kept of each value.
    fn prepared(&self, kept: &KeptSide) -> Vec<PreparedColumn> {
        let parts = kept.parts();
        let prepared = self.values.iter().map(|value| {
            let mut values = parts.values.iter();
            let known = values.find(|(known, _)| known.is(value));
            known.map_or_else(PreparedColumn::default, |(_, prepared)| prepared.clone())
        });
        prepared.collect()
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

    /// Sorted rows, of whose values nothing is kept.
    ///
    /// # Errors
    /// An error if the range key has no type.
    pub(crate) fn kept_side(&self, sorted: SortedSide) -> Result<Arc<KeptSide>> {
        let columns = &self.columns;
        let range_key = columns.range_key(columns.expressions());
        Ok(Arc::new(KeptSide {
            key: Arc::clone(&self.key),
            label: columns.key_label(),
            key_type: range_key.data_type(&self.plan.schema())?,
            sorted: Arc::new(sorted),
            is_in_order: self.is_in_order,
            parts: Mutex::default(),
        }))
    }

    /// Adds what was built of these of the values.
    pub(crate) fn add(
        &self,
        kept: &KeptSide,
        prepared: impl IntoIterator<Item = (usize, PreparedColumn)>,
    ) {
        let mut parts = kept.parts();
        parts.drop_dead();
        for (column, prepared) in prepared {
            let value = &self.values[column];
            match parts.values.iter_mut().find(|(known, _)| known.is(value)) {
                Some((_, known)) => known.add(prepared),
                None => parts.values.push((value.clone(), prepared)),
            }
        }
    }

    /// The build side of the join, from rows of which no value is missing. What it takes is registered in the pool of
    /// `memory`.
    ///
    /// # Errors
    /// An internal error if a value is missing. An error if memory is short or the query is cancelled.
    pub(crate) fn side(
        &self,
        kept: &KeptSide,
        indexer: &SortAndIndex,
        memory: &MemoryReservation,
    ) -> Result<BuildSide> {
        if !self.missing(kept).is_empty() {
            return internal_err!("a kept build side lacks values");
        }
        let prepared = self.prepared(kept);
        let row_order = row_order(kept, indexer, &prepared)?;
        let threshold = self.threshold_index(kept, indexer.threads, &prepared);
        let sorted = Arc::clone(&kept.sorted);
        indexer.side(sorted, prepared, row_order, threshold, memory)
    }

    fn threshold_index(
        &self,
        kept: &KeptSide,
        threads: usize,
        prepared: &[PreparedColumn],
    ) -> Arc<ThresholdIndex> {
        let new = || Arc::new(ThresholdIndex::new(threads));
        let Some((value, comparison)) = &self.threshold else {
            return new();
        };
        let columns = self.columns.row_columns.iter();
        let columns: Vec<_> = columns
            .filter_map(|i| prepared.get(*i)?.rows.clone())
            .collect();
        let mut parts = kept.parts();
        let known = parts.thresholds.iter().find(|known| {
            (&known.value, &known.comparison) == (value, comparison)
                && known.columns.len() == columns.len()
                && known
                    .columns
                    .iter()
                    .zip(&columns)
                    .all(|(a, b)| Arc::ptr_eq(a, b))
        });
        if let Some(known) = known {
            return Arc::clone(&known.index);
        }
        let index = new();
        parts.thresholds.push(Threshold {
            value: Arc::clone(value),
            comparison: *comparison,
            columns,
            index: Arc::clone(&index),
        });
        index
    }

    /// The same keeper, which keeps rows even if the memory pool has a limit.
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
        !self.version.has_files() || self.version.is_settled_at(self.requested)
    }

    /// Keeps rows for later queries, unless a file has changed or may have while it was read.
    pub(crate) async fn keep(&self, kept: &Arc<KeptSide>) {
        if self.keeps && self.is_settled() && self.is_unchanged().await {
            let rows: Arc<dyn KeptRows> = Arc::clone(kept) as _;
            let version = self.version.clone();
            self.catalog.keep_rows(rows, version, self.limit);
        }
    }

    /// Evicts what the values that were added leave no memory for.
    pub(crate) fn shrink(&self) {
        self.catalog.shrink_to(self.limit);
    }
}

/// The order in which the join returns rows, if it is not that of the range key.
fn row_order(
    kept: &KeptSide,
    indexer: &SortAndIndex,
    prepared: &[PreparedColumn],
) -> Result<Option<Arc<RowOrder>>> {
    let Some(order) = indexer.row_order(&kept.sorted, prepared)? else {
        return Ok(None);
    };
    let orders = &mut kept.parts().orders;
    match orders.iter().find(|known| known.is_same(&order)) {
        Some(known) => Ok(Some(Arc::clone(known))),
        None => {
            orders.push(Arc::clone(&order));
            Ok(Some(order))
        }
    }
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

impl KeptSide {
    fn of(rows: &dyn KeptRows) -> Option<&Self> {
        (rows as &dyn Any).downcast_ref()
    }

    /// The sorted rows.
    pub(crate) fn sorted(&self) -> &SortedSide {
        &self.sorted
    }

    /// The same rows, to which values may be added that others don't see.
    fn copy(&self) -> Self {
        Self {
            key: Arc::clone(&self.key),
            label: self.label.clone(),
            key_type: self.key_type.clone(),
            sorted: Arc::clone(&self.sorted),
            is_in_order: self.is_in_order,
            parts: Mutex::new(self.parts().clone()),
        }
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        // A poisoned list is complete: no update of it can panic half-way.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all that `other` has can be found here.
    fn has_all_of(&self, other: &Self) -> bool {
        let (parts, other) = (self.parts(), other.parts());
        other.values.iter().all(|(value, _)| {
            let mut values = parts.values.iter();
            values.any(|(known, _)| known.expr.as_ref() == value.expr.as_ref())
        })
    }
}

impl KeptRows for KeptSide {
    fn has_key(&self, key: &dyn Any) -> bool {
        let key = key.downcast_ref::<RowsKey>();
        key == Some(self.key.as_ref()) && self.is_in_order && !self.sorted.is_restored
    }

    fn replaces(&self, other: &dyn KeptRows, is_same_version: bool) -> bool {
        Self::of(other).is_some_and(|other| {
            let is_of_same_rows = self.key.plan.may_succeed(&other.key.plan)
                && (&self.key.keys, self.key.batch_rows) == (&other.key.keys, other.key.batch_rows);
            let is_as_useful = (self.is_in_order || !other.is_in_order)
                && (!self.sorted.is_restored || other.sorted.is_restored)
                && (self.is_in_order || self.has_all_of(other));
            is_of_same_rows && (!is_same_version || is_as_useful)
        })
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn key_type(&self) -> &DataType {
        &self.key_type
    }

    fn rows(&self) -> usize {
        self.sorted.total_rows
    }

    fn bytes(&self) -> usize {
        let parts = self.parts();
        let values = parts.values.iter().map(|(_, v)| v.registered_bytes());
        let orders = parts.orders.iter().map(|order| order.bytes());
        let thresholds = parts.thresholds.iter().map(|t| t.index.bytes());
        let parts: usize = values.chain(orders).chain(thresholds).sum();
        self.sorted.registered_bytes() + parts
    }
}
