//! Sorted build rows that a session keeps between queries, and what queries have built of their values.
//!
//! Rows that have been appended to a table are sorted by themselves, as another segment: a [`Segment`] that the CPU has
//! sorted, or one on devices (`kept_on_devices`).

use std::any::Any;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Schema};
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExprRef;

use crate::exec::common::plan_key::{PlanKey, ScanPlan};
use crate::exec::range_join::aggregate_table::Structures;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::block_states::{BlockStates, KeptStates, StatesKeeper};
use crate::exec::range_join::build_side::column::PreparedColumn;
use crate::exec::range_join::build_side::row_order::RowOrder;
use crate::exec::range_join::build_side::side::SortedSide;
use crate::exec::range_join::build_side::sort_and_index::SortAndIndex;
use crate::exec::range_join::build_side::threshold_index::ThresholdIndex;
use crate::kept::entries::{Description, Kept, KeptMemory};
use crate::kept::on_disk::OnDisk;
use crate::kept::version::Version;
use datafusion_rmq_logical::logical_plan::accumulator_call::AccumulatorCall;
use datafusion_rmq_logical::logical_plan::named_index::NamedIndex;
use rmq_arrow::index::devices::Target;
use rmq_arrow::range_agg::values::Values;
use rmq_engine::Comparison;

/// What tells sorted rows from others over the same version of their tables. The keys are expressions over the scan:
/// the equality keys, then the range key.
#[derive(Debug, PartialEq)]
pub(super) struct RowsKey {
    pub(super) plan: PlanKey,
    pub(super) keys: Vec<PhysicalExprRef>,
    /// The rows of a batch: batches are dealt out to partitions, and moved into the order of their keys.
    pub(super) batch_rows: usize,
}

impl RowsKey {
    /// Whether these may be the same rows and others.
    pub(super) fn may_extend(&self, older: &Self) -> bool {
        self.plan.may_succeed(&older.plan)
            && (&self.keys, self.batch_rows) == (&older.keys, older.batch_rows)
    }
}

/// A value of each row: an expression over the scan, and the version of the columns in memory that it reads.
#[derive(Debug, Clone)]
pub(super) struct Value {
    pub(super) expr: PhysicalExprRef,
    pub(super) version: Option<Version>,
}

impl Value {
    /// Of the batches whose numbers `is_read` selects.
    pub(super) fn new(
        expr: PhysicalExprRef,
        scanned: &ScanPlan<'_>,
        is_read: impl Fn(usize) -> bool,
    ) -> Self {
        Self {
            version: scanned.version_of(&expr, is_read),
            expr,
        }
    }

    /// Whether both are the same value of each row.
    pub(super) fn is(&self, other: &Self) -> bool {
        let is_same_version = match (&self.version, &other.version) {
            (Some(version), Some(other)) => version.matches(other),
            (None, None) => true,
            _ => false,
        };
        is_same_version && self.expr.as_ref() == other.expr.as_ref()
    }
}

/// The values that a join needs of its build side.
#[derive(Debug, Clone)]
pub(crate) struct JoinValues {
    /// The columns of the build side, and their types.
    pub(super) columns: BuildColumns,
    pub(super) types: Vec<DataType>,
    /// The value columns among them.
    pub(super) values: Vec<Value>,
}

impl JoinValues {
    /// Of columns over an input of this schema. `None` if one of them has no type.
    pub(super) fn new(columns: &BuildColumns, values: Vec<Value>, input: &Schema) -> Option<Self> {
        let schema = columns.schema(input).ok()?;
        let types = schema
            .fields()
            .iter()
            .map(|field| field.data_type().clone());
        Some(Self {
            columns: columns.clone(),
            types: types.collect(),
            values,
        })
    }

    /// The structures that the join needs of each.
    pub(super) fn needs(&self) -> Vec<Structures> {
        self.columns.structures(self.values.len())
    }

    /// What is missing, where this is built of each: the indexes of values, and what of them.
    pub(super) fn missing_in(&self, built: &[PreparedColumn]) -> Vec<(usize, Structures)> {
        let missing = built.iter().zip(self.needs()).enumerate();
        let missing = missing.map(|(i, (built, needs))| (i, built.missing(&needs)));
        missing.filter(|(_, needs)| !needs.is_empty()).collect()
    }
}

/// Rows that are sorted together, and what queries have needed of their values.
pub(crate) trait KeptSegment: Debug + Send + Sync + 'static {
    /// The number of rows, with those that can't match.
    fn total_rows(&self) -> usize;

    /// Whether batches were moved into the order of their keys before the rows were numbered.
    fn is_restored(&self) -> bool;

    /// Whether what answers has failed.
    fn has_failed(&self) -> bool;

    /// Whether all that `other` has can be found here.
    fn has_all_of(&self, other: &Self) -> bool;

    /// Whether these values are there, with all that the join needs of them.
    fn has_all(&self, values: &JoinValues) -> bool;

    /// Whether no query uses the rows.
    fn is_idle(&self) -> bool;

    /// The memory that it takes.
    fn memory(&self) -> KeptMemory;

    /// Drops the values that can be read again.
    fn drop_values(&self);

    /// Whether the rows are in files, as `rmq_indexes()` tells.
    fn disk(&self) -> Option<&'static str>;
}

/// The rows of a version, in one or several segments.
#[derive(Debug)]
pub(crate) struct KeptSide<S> {
    pub(super) key: Arc<RowsKey>,
    /// The keys as EXPLAIN shows them.
    pub(super) label: String,
    /// The type of the range key.
    pub(super) key_type: DataType,
    /// Whether a plan with the same key has the rows in the same order.
    pub(super) is_in_order: bool,
    /// Where the rows are sorted.
    pub(super) target: Target,
    pub(super) rows: SegmentedRows<S>,
}

/// Rows in segments.
#[derive(Debug)]
pub(crate) struct SegmentedRows<S> {
    /// The first one has the first rows.
    pub(crate) segments: Vec<Arc<S>>,
    /// The number of the segment that has the rows of each batch or file; empty if all are in the first one.
    pub(crate) segment_of: Vec<usize>,
    pub(crate) searches: Searches,
}

impl<S> SegmentedRows<S> {
    /// Rows in one segment.
    pub(crate) fn one(segment: Arc<S>) -> Self {
        Self {
            segments: vec![segment],
            segment_of: vec![],
            searches: Searches::default(),
        }
    }
}

/// How many probe rows have been searched in segments besides the first one, since all rows were in one. A clone
/// counts on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Searches(Arc<AtomicUsize>);

impl Searches {
    /// Counts a search in this many segments.
    pub(crate) fn add(&self, probe_rows: usize, segments: usize) {
        let rows = probe_rows.saturating_mul(segments.saturating_sub(1));
        self.0.fetch_add(rows, Ordering::Relaxed);
    }

    /// Whether they have taken about as long as sorting this many rows.
    pub(super) fn justify_sorting(&self, rows: usize) -> bool {
        self.0.load(Ordering::Relaxed) > rows
    }
}

/// Rows that the CPU has sorted.
#[derive(Debug)]
pub(crate) struct Segment {
    sorted: Arc<SortedSide>,
    parts: Mutex<Parts>,
    disk: Arc<OnDisk>,
}

#[derive(Debug, Default, Clone)]
struct Parts {
    values: Vec<(Value, PreparedColumn)>,
    orders: Vec<Arc<RowOrder>>,
    thresholds: Vec<Threshold>,
    states: KeptStates,
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
            let mut kept = values.iter().filter_map(|(_, prepared)| prepared.rows());
            kept.any(|kept| Arc::ptr_eq(kept, rows))
        };
        self.orders.retain(|order| is_kept(order.keys()));
        self.thresholds
            .retain(|threshold| threshold.columns.iter().all(&is_kept));
        self.states.retain(|array| {
            let mut kept = values.iter().filter_map(|(_, prepared)| prepared.array());
            kept.any(|kept| Arc::ptr_eq(kept, array))
        });
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

impl<S: KeptSegment> KeptSide<S> {
    /// The side, if this is one.
    pub(super) fn of(kept: &dyn Kept) -> Option<&Self> {
        (kept as &dyn Any).downcast_ref()
    }

    /// The only segment.
    pub(super) fn only_segment(&self) -> Option<&Arc<S>> {
        match self.rows.segments.as_slice() {
            [segment] => Some(segment),
            _ => None,
        }
    }

    /// The number of the segment that has the rows of each batch or file, from the first on.
    pub(super) fn segment_numbers(&self) -> impl Iterator<Item = usize> {
        let numbers = self.rows.segment_of.iter().copied();
        numbers.chain(
            self.rows
                .segment_of
                .is_empty()
                .then_some(0)
                .into_iter()
                .cycle(),
        )
    }

    /// Whether batches were moved into the order of their keys before the rows of a segment were numbered.
    pub(super) fn is_restored(&self) -> bool {
        let mut segments = self.rows.segments.iter();
        segments.any(|segment| segment.is_restored())
    }

    /// Whether the rows have the order that a join of these columns needs.
    pub(super) fn may_serve(&self, columns: &BuildColumns) -> bool {
        !columns.row_order_matters() || self.is_in_order && !self.is_restored()
    }

    /// Whether one has failed of what answers.
    pub(super) fn has_failed(&self) -> bool {
        self.rows
            .segments
            .iter()
            .any(|segment| segment.has_failed())
    }

    /// Whether all that `other` has can be found here.
    fn has_all_of(&self, other: &Self) -> bool {
        match (self.only_segment(), other.only_segment()) {
            (Some(segment), Some(other)) => segment.has_all_of(other),
            _ => false,
        }
    }
}

impl Segment {
    /// Sorted rows, of whose values nothing is kept.
    pub(super) fn new(sorted: SortedSide) -> Self {
        Self {
            sorted: Arc::new(sorted),
            parts: Mutex::default(),
            disk: Arc::default(),
        }
    }

    /// Sorted rows that were read from files.
    pub(super) fn loaded(sorted: SortedSide) -> Self {
        let loaded = Self::new(sorted);
        loaded.disk.set_loaded();
        loaded
    }

    /// Whether the rows are in files.
    pub(super) fn disk(&self) -> &Arc<OnDisk> {
        &self.disk
    }

    /// The sorted rows.
    pub(crate) fn sorted(&self) -> &Arc<SortedSide> {
        &self.sorted
    }

    /// The same rows, to which values may be added that others don't see.
    pub(super) fn copy(&self) -> Self {
        Self {
            sorted: Arc::clone(&self.sorted),
            parts: Mutex::new(self.parts().clone()),
            disk: Arc::clone(&self.disk),
        }
    }

    /// The value columns that are missing, by their indexes, and what of them.
    pub(super) fn missing(&self, values: &JoinValues) -> Vec<(usize, Structures)> {
        values.missing_in(&self.prepared(&values.values))
    }

    /// What is kept of each value.
    pub(super) fn prepared(&self, values: &[Value]) -> Vec<PreparedColumn> {
        let parts = self.parts();
        let prepared = values.iter().map(|value| {
            let mut values = parts.values.iter();
            let known = values.find(|(known, _)| known.is(value));
            known.map_or_else(PreparedColumn::default, |(_, prepared)| prepared.clone())
        });
        prepared.collect()
    }

    /// Adds what was built of these of the values.
    pub(super) fn add(
        &self,
        values: &[Value],
        prepared: impl IntoIterator<Item = (usize, PreparedColumn)>,
    ) {
        let mut parts = self.parts();
        parts.drop_dead();
        for (column, prepared) in prepared {
            let value = &values[column];
            match parts.values.iter_mut().find(|(known, _)| known.is(value)) {
                Some((_, known)) => known.add(prepared),
                None => parts.values.push((value.clone(), prepared)),
            }
        }
    }

    /// The order in which the join returns rows, if it is not that of the range key.
    pub(super) fn row_order(
        &self,
        indexer: &SortAndIndex,
        prepared: &[PreparedColumn],
    ) -> Result<Option<Arc<RowOrder>>> {
        let Some(order) = indexer.row_order(&self.sorted, prepared)? else {
            return Ok(None);
        };
        let orders = &mut self.parts().orders;
        if let Some(known) = orders.iter().find(|known| known.is_same(&order)) {
            return Ok(Some(Arc::clone(known)));
        }
        orders.push(Arc::clone(&order));
        Ok(Some(order))
    }

    /// The index on a value, which is computed of these columns, for comparisons with thresholds.
    pub(super) fn threshold_index(
        &self,
        (value, comparison): &(PhysicalExprRef, Comparison),
        columns: Vec<Arc<Values>>,
        threads: usize,
    ) -> Arc<ThresholdIndex> {
        let mut parts = self.parts();
        let known = parts.thresholds.iter().find(|known| {
            let mut pairs = known.columns.iter().zip(&columns);
            (&known.value, &known.comparison) == (value, comparison)
                && known.columns.len() == columns.len()
                && pairs.all(|(a, b)| Arc::ptr_eq(a, b))
        });
        if let Some(known) = known {
            return Arc::clone(&known.index);
        }
        let index = Arc::new(ThresholdIndex::new(threads));
        parts.thresholds.push(Threshold {
            value: Arc::clone(value),
            comparison: *comparison,
            columns,
            index: Arc::clone(&index),
        });
        index
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        // A poisoned list is complete: no update of it can panic half-way.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StatesKeeper for Segment {
    fn states(
        &self,
        call: &AccumulatorCall,
        columns: &[ArrayRef],
        make: &dyn Fn() -> Option<BlockStates>,
    ) -> Option<Arc<BlockStates>> {
        self.parts().states.get_or_make(call, columns, make)
    }
}

impl KeptSegment for Segment {
    fn total_rows(&self) -> usize {
        self.sorted.total_rows
    }

    fn is_restored(&self) -> bool {
        self.sorted.is_restored
    }

    fn has_failed(&self) -> bool {
        false
    }

    fn has_all_of(&self, other: &Self) -> bool {
        let (parts, other) = (self.parts(), other.parts());
        other.values.iter().all(|(value, _)| {
            let mut values = parts.values.iter();
            values.any(|(known, _)| known.expr.as_ref() == value.expr.as_ref())
        })
    }

    fn has_all(&self, values: &JoinValues) -> bool {
        self.missing(values).is_empty()
    }

    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.sorted) == 1
    }

    fn memory(&self) -> KeptMemory {
        let parts = self.parts();
        let values = parts.values.iter().map(|(_, v)| v.registered_bytes());
        let orders = parts.orders.iter().map(|order| order.bytes());
        let thresholds = parts.thresholds.iter().map(|t| t.index.bytes());
        let states = parts.states.registered_bytes();
        let values = values.chain(orders).chain(thresholds).sum::<usize>() + states;
        KeptMemory {
            host: self.sorted.registered_bytes() + values,
            values,
            device: 0,
        }
    }

    fn drop_values(&self) {
        *self.parts() = Parts::default();
    }

    fn disk(&self) -> Option<&'static str> {
        self.disk.label()
    }
}

impl<S: KeptSegment> Kept for KeptSide<S> {
    fn has_key(&self, key: &dyn Any) -> bool {
        let key = key.downcast_ref::<RowsKey>();
        let is_same = key == Some(self.key.as_ref()) && self.is_in_order && !self.is_restored();
        // Indexes with names are on the CPU.
        is_same && self.target == Target::Cpu
    }

    fn is_of(&self, _named: &NamedIndex) -> bool {
        false
    }

    fn replaces(&self, version: &Version, other: &dyn Kept, other_version: &Version) -> bool {
        Self::of(other).is_some_and(|other| {
            let is_as_useful = self.target == other.target
                && (self.is_in_order || !other.is_in_order)
                && (!self.is_restored() || other.is_restored())
                && (self.is_in_order || self.has_all_of(other));
            version.may_succeed(other_version)
                && self.key.may_extend(&other.key)
                && (is_as_useful || other.has_failed() || !version.matches(other_version))
        })
    }

    fn description(&self) -> Description {
        Description {
            table: None,
            column: self.label.clone(),
            kind: None,
            data_type: self.key_type.clone(),
        }
    }

    fn rows(&self) -> usize {
        let segments = self.rows.segments.iter();
        segments.map(|segment| segment.total_rows()).sum()
    }

    fn memory(&self) -> KeptMemory {
        let segments = self.rows.segments.iter();
        segments.map(|segment| segment.memory()).sum()
    }

    fn is_reserved(&self) -> bool {
        false
    }

    fn drop_values(&self) {
        let segments = self.rows.segments.iter();
        segments.for_each(|segment| segment.drop_values());
    }

    fn is_idle(&self) -> bool {
        let mut segments = self.rows.segments.iter();
        segments.all(|segment| Arc::strong_count(segment) == 1 && segment.is_idle())
    }

    fn is_in_place(&self) -> bool {
        false
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn disk(&self) -> Option<&'static str> {
        self.only_segment()?.disk()
    }
}
