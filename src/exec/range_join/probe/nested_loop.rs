//! Joins a small probe side with an unsorted build side by comparing each probe row with all build rows.
//! `compare_or_build` decides when.
//!
//! 1. For each probe row, a bitmap over the build rows marks those whose equality keys are the same.
//! 2. Each bound clears the bits of the rows that it excludes.
//! 3. The rows that are left are aggregated as a build side of their own. If the result depends on the row order, on
//!    thresholds or on single rows, that is one sorted build side of all rows that match any probe row; else one per
//!    probe row, in any order.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Int32Array, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{concat, filter, filter_record_batch};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;

use crate::common::ranges::Ranges;
use crate::exec::common::blocking::Waiting;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::collect_or_spill::CollectedRows;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::build_side::sort_and_index::sort_and_index_blocking;
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::probe::bounds::{evaluate_bound, wrapped_bound};
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::sorted::groups::Groups;
use crate::sorted::id_table::NO_GROUP;
use crate::sorted::order_keys::OrderKeys;
use rmq_engine::SearchHints;

/// The build rows that match one probe row: a bitmap per batch of the build side.
type MatchBitmaps = Vec<BooleanBuffer>;

/// All rows of a small partition of the probe side, and all rows of the build side.
pub(crate) struct NestedLoop {
    pub(crate) partition: Arc<ProbePartition>,
    /// The rows of the probe side.
    pub(crate) batch: RecordBatch,
    pub(crate) columns: BuildColumns,
    /// The schema of `build`.
    pub(crate) schema: Arc<Schema>,
    pub(crate) build: Vec<RecordBatch>,
    pub(crate) threads: usize,
    /// An empty reservation for the working memory.
    pub(crate) memory: MemoryReservation,
}

impl NestedLoop {
    /// Joins the rows on the calling thread, which may block.
    pub(crate) fn run(self, waiting: &Waiting) -> Result<Vec<RecordBatch>> {
        let metrics = &self.partition.metrics;
        let search_timer = metrics.time_search();
        let matches = self.find_matches(waiting)?;
        drop(search_timer);
        let _timer = metrics.time_query();
        metrics.record_nested_loop_rows(self.batch.num_rows());
        if self.columns.row_order_matters()
            || self.columns.has_thresholds()
            || !self.columns.row_columns.is_empty()
        {
            return self.aggregate_sorted(&matches, waiting);
        }
        metrics.probe_rows.add(self.batch.num_rows());
        let mut aggregates: Vec<Vec<ArrayRef>> = vec![vec![]; self.columns.aggregates.len()];
        let mut is_matched = vec![];
        for matches in &matches {
            let (count, of_row) = self.aggregate_row(matches, waiting)?;
            is_matched.push(count > 0);
            for (aggregates, of_row) in aggregates.iter_mut().zip(of_row) {
                aggregates.push(of_row);
            }
        }
        let aggregates = aggregates.iter().map(|rows| {
            let rows: Vec<&dyn Array> = rows.iter().map(AsRef::as_ref).collect();
            Ok(concat(&rows)?)
        });
        let aggregates = aggregates.collect::<Result<_>>()?;
        self.partition
            .append_aggregates(&self.batch, &is_matched, aggregates)
    }

    /// Builds the rows that match any probe row, on the calling thread, which may block.
    pub(crate) fn build_matching(self, waiting: &Waiting) -> Result<BuildSide> {
        let metrics = &self.partition.metrics;
        let _timer = metrics.time_search();
        let matches = self.find_matches(waiting)?;
        metrics.record_nested_loop_rows(self.batch.num_rows());
        self.sorted_matches(&matches, waiting)
    }

    /// The matches of each probe row.
    fn find_matches(&self, waiting: &Waiting) -> Result<Vec<MatchBitmaps>> {
        let rows = self.batch.num_rows();
        let build_rows: usize = self.build.iter().map(RecordBatch::num_rows).sum();
        self.memory.try_grow(rows * build_rows.div_ceil(8))?;
        let mut matches = self.find_equal(waiting)?;
        for (comparison, bound) in &self.partition.spec.bounds {
            let can_match = || {
                let any = |rows: &MatchBitmaps| rows.iter().any(BooleanBuffer::has_true);
                matches.iter().map(any).collect()
            };
            let mut ends = vec![(*comparison, evaluate_bound(bound, &self.batch, can_match)?)];
            if let Some(wrapped) = wrapped_bound(bound) {
                let limits = wrapped.limits(&self.batch, can_match)?;
                ends.push((wrapped.comparison(), limits));
            }
            let ends = ends.into_iter().map(|(comparison, bounds)| {
                let (bounds, nulls) = OrderKeys::from_values(&bounds)?;
                Ok((comparison, bounds, nulls))
            });
            let ends: Vec<_> = ends.collect::<Result<_>>()?;
            // One batch at a time: the keys of some types are copied.
            for (i, batch) in self.build.iter().enumerate() {
                waiting.check()?;
                let range_key = self.columns.range_key(batch.columns());
                let mut keys = OrderKeys::try_new(range_key.data_type())?;
                let bytes = keys.append(range_key)?;
                self.memory.try_grow(bytes)?;
                for (row, matches) in matches.iter_mut().enumerate() {
                    waiting.check()?;
                    let matches = &mut matches[i];
                    let mut compared = BooleanBuffer::new_unset(matches.len());
                    for (comparison, bounds, nulls) in &ends {
                        if nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)) {
                            compared = &compared | &keys.compared(*comparison, bounds, row)?;
                        }
                    }
                    *matches = &*matches & &compared;
                }
                drop(keys);
                self.memory.shrink(bytes);
            }
        }
        Ok(matches)
    }

    /// The build rows with the equality keys of each probe row, without rows whose range key is NULL.
    fn find_equal(&self, waiting: &Waiting) -> Result<Vec<MatchBitmaps>> {
        let rows = self.batch.num_rows();
        let probe_keys = self.partition.equality_keys(&self.batch)?;
        let types = self.schema.fields().iter().map(|f| f.data_type().clone());
        let types: Vec<DataType> = types.collect();
        let mut groups = Groups::try_new(self.columns.equality_keys(&types))?;
        let mut probe_groups = vec![NO_GROUP; rows];
        groups.add(&probe_keys, &mut probe_groups)?;
        let mut matches = vec![vec![]; rows];
        for batch in &self.build {
            waiting.check()?;
            let arrays = batch.columns();
            let range_key_nulls = self.columns.range_key(arrays).logical_nulls();
            let build_groups = match self.columns.equality_keys(arrays) {
                [] => None,
                keys => Some(groups.find(keys)?),
            };
            for (matches, group) in matches.iter_mut().zip(&probe_groups) {
                waiting.check()?;
                let equal = match &build_groups {
                    None => BooleanBuffer::new_set(batch.num_rows()),
                    Some(_) if *group == NO_GROUP => BooleanBuffer::new_unset(batch.num_rows()),
                    Some(groups) => {
                        BooleanBuffer::collect_bool(groups.len(), |i| groups[i] == *group)
                    }
                };
                matches.push(match &range_key_nulls {
                    None => equal,
                    Some(nulls) => &equal & nulls.inner(),
                });
            }
        }
        Ok(matches)
    }

    /// The number of build rows that match one probe row, and the aggregates over them, each of one row. Their order
    /// does not matter, so a constant replaces the keys.
    fn aggregate_row(
        &self,
        matches: &MatchBitmaps,
        waiting: &Waiting,
    ) -> Result<(usize, Vec<ArrayRef>)> {
        let fields = self.columns.values(self.schema.fields()).iter().cloned();
        let key = Arc::new(Field::new("key", DataType::Int32, false));
        let schema = Arc::new(Schema::new(
            std::iter::once(key).chain(fields).collect::<Vec<_>>(),
        ));
        let longest = matches.iter().map(BooleanBuffer::len).max();
        let constant_keys = Int32Array::from(vec![0; longest.unwrap_or(0)]);
        let (mut batches, mut count) = (vec![], 0);
        for (batch, matches) in self.build.iter().zip(matches) {
            waiting.check()?;
            let rows = matches.count_set_bits();
            if rows == 0 {
                continue;
            }
            let mask = BooleanArray::new(matches.clone(), None);
            let mut arrays: Vec<ArrayRef> = vec![Arc::new(constant_keys.slice(0, rows))];
            for values in self.columns.values(batch.columns()) {
                arrays.push(filter(values, &mask)?);
            }
            batches.push(RecordBatch::try_new(Arc::clone(&schema), arrays)?);
            count += rows;
        }
        let columns = self.columns.clone().without_equality_keys();
        let side = self.build_side(columns, schema, batches, waiting)?;
        let last = i64::try_from(count).unwrap_or(i64::MAX) - 1;
        // There are no thresholds.
        let all = Ranges::new(vec![0], vec![last]);
        let aggregates = side.aggregate(&all, &[], &|| waiting.check())?;
        Ok((count, aggregates))
    }

    /// Joins all probe rows with a sorted build side of the rows that match any of them.
    fn aggregate_sorted(
        &self,
        matches: &[MatchBitmaps],
        waiting: &Waiting,
    ) -> Result<Vec<RecordBatch>> {
        let side = self.sorted_matches(matches, waiting)?;
        let mut last_found = SearchHints::default();
        self.partition
            .join_blocking(&self.batch, &side, &mut last_found, &|| waiting.check())
    }

    /// A sorted build side of the rows that match any probe row.
    fn sorted_matches(&self, matches: &[MatchBitmaps], waiting: &Waiting) -> Result<BuildSide> {
        let mut batches = vec![];
        for (i, batch) in self.build.iter().enumerate() {
            waiting.check()?;
            let any = matches.iter().map(|matches| matches[i].clone());
            if let Some(any) = any.reduce(|one, other| &one | &other) {
                let mask = BooleanArray::new(any, None);
                batches.push(filter_record_batch(batch, &mask)?);
            }
        }
        let (columns, schema) = (self.columns.clone(), Arc::clone(&self.schema));
        self.build_side(columns, schema, batches, waiting)
    }

    fn build_side(
        &self,
        columns: BuildColumns,
        schema: Arc<Schema>,
        batches: Vec<RecordBatch>,
        waiting: &Waiting,
    ) -> Result<BuildSide> {
        let memory = self.memory.new_empty();
        for batch in &batches {
            memory.try_grow(DataSize::of_batch(batch).bytes)?;
        }
        let rows = CollectedRows {
            schema,
            batches,
            memory,
        };
        // Discarded: the metrics of the build side are about all its rows.
        let metrics = BuildMetrics::new(&ExecutionPlanMetricsSet::new());
        let waiting = waiting.clone();
        sort_and_index_blocking(columns, rows, metrics, self.threads, waiting)
    }
}
