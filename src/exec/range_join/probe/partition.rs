//! Joins batches of one partition of the probe side with a build side in memory.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{filter, filter_record_batch};
use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::joins::utils::JoinFilter;

use crate::exec::common::blocking::blocking;
use crate::exec::range_join::bounds::{
    evaluate_bound, evaluate_for_all, evaluate_threshold, wrapped_bound,
};
use crate::exec::range_join::build_side::lazy_structure::LazyStructure;
use crate::exec::range_join::build_side::range_sources::RangeSources;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::metrics::ProbeMetrics;
use crate::exec::range_join::pair_distance::PairDistance;
use crate::exec::range_join::probe::closest::Points;
use crate::exec::range_join::probe::first_match::first_matches;
use crate::exec::range_join::probe::prevailing::{PrevailingRows, Windows};
use crate::exec::range_join::probe::qualifying::QualifyingRows;
use crate::exec::range_join::row_join::RowJoin;
use crate::exec::range_join::row_threshold::{RowThreshold, with_columns};
use crate::exec::range_join::spill::key_extent::{EncodedBound, KeyOrder};
use datafusion_rmq_logical::logical_plan::range_join::{RangeJoinSpec, Unmatched};
use rmq_arrow::common::dictionaries::fit;
use rmq_arrow::common::ranges::Ranges;
use rmq_engine::CandidateRanges;
use rmq_engine::Comparison;

/// More pairs than these take longer than it takes to hand a batch to another thread, up to some milliseconds.
const MANY_CANDIDATES: usize = 1 << 16;

/// One partition of the probe side, without its input.
#[derive(Debug, Clone)]
pub(crate) struct ProbePartition {
    /// The schema of the output: the columns of the probe side, then one column per aggregate.
    pub(crate) schema: SchemaRef,
    pub(crate) spec: Arc<RangeJoinSpec<PhysicalExprRef>>,
    pub(crate) metrics: Arc<ProbeMetrics>,
    pub(crate) pool: Arc<dyn MemoryPool>,
    /// What is made of single pairs, if anything.
    pub(crate) row_join: Option<Arc<RowJoin>>,
    /// The number of partitions of the probe side.
    pub(crate) partitions: usize,
    /// Whether the probe side ends.
    pub(crate) is_bounded: bool,
    /// The number of rows of a batch.
    pub(crate) batch_size: usize,
    /// The most rows that the partition returns.
    pub(crate) fetch: Option<usize>,
    /// What aggregates the ranges that are returned, if any are.
    pub(crate) range_sources: Option<Arc<RangeSources>>,
}

/// The build rows that match the rows of a batch by keys.
pub(crate) struct KeyMatches {
    ranges: Ranges,
    /// Whether the index on the join's threshold searches the ranges.
    uses_threshold: bool,
    /// The structures of values that are to be built before the ranges are aggregated.
    unbuilt: Vec<Arc<dyn LazyStructure>>,
}

impl ProbePartition {
    /// The columns of the probe side that the join reads, and the same partition of only these; `None` if they are
    /// `all`, or if the rows are compared with a further condition.
    pub(crate) fn with_read_columns(&self, all: usize) -> Result<Option<(Vec<usize>, Self)>> {
        let expressions = self.spec.probe_expressions();
        let columns = expressions.flat_map(collect_columns);
        let mut columns: Vec<usize> = columns.map(|column| column.index()).collect();
        columns.sort_unstable();
        columns.dedup();
        if self.row_join.is_some() || columns.is_empty() || columns.len() == all {
            return Ok(None);
        }
        let renumbered = |expr: &PhysicalExprRef| {
            with_columns(expr, |column| {
                let index = columns.iter().position(|index| *index == column.index());
                Ok(index.map(|index| Column::new(column.name(), index)))
            })
        };
        let spec = self
            .spec
            .try_map(renumbered, |build| Ok(Arc::clone(build)))?;
        let partition = Self {
            spec: Arc::new(spec),
            ..self.clone()
        };
        Ok(Some((columns, partition)))
    }

    /// What is made of single pairs, if rows and not only aggregates are returned.
    pub(crate) fn returned_rows(&self) -> Option<Arc<RowJoin>> {
        let row_join = self.row_join.as_ref();
        row_join.filter(|join| !join.returns_probe_rows()).cloned()
    }

    /// Joins a batch, on a thread that may block where that may take long.
    pub(crate) async fn join(
        self: &Arc<Self>,
        batch: RecordBatch,
        build: &Arc<BuildSide>,
    ) -> Result<Vec<RecordBatch>> {
        let Some(matches) = self.find_matches(&batch, build)? else {
            return Ok(vec![]);
        };
        if !self.may_take_long(&matches, build) {
            return self.join_matches(&batch, build, matches, &|| Ok(()));
        }
        let (this, build) = (Arc::clone(self), Arc::clone(build));
        blocking(move |waiting| this.join_matches(&batch, &build, matches, &|| waiting.check()))
            .await
    }

    /// Joins a batch on the calling thread, which may block. Calls `check` between steps.
    pub(crate) fn join_blocking(
        &self,
        batch: &RecordBatch,
        build: &BuildSide,
        check: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<Vec<RecordBatch>> {
        match self.find_matches(batch, build)? {
            Some(matches) => self.join_matches(batch, build, matches, check),
            None => Ok(vec![]),
        }
    }

    fn join_matches(
        &self,
        batch: &RecordBatch,
        build: &BuildSide,
        matches: KeyMatches,
        check: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<Vec<RecordBatch>> {
        let ranges = self.refine(batch, build, matches, check)?;
        let (batch, ranges) = self.select_rows(batch, ranges)?;
        let aggregates = self.aggregate(&batch, &ranges, build, check)?;
        self.append_columns(&batch, &aggregates)
    }

    /// Whether a thread that other tasks wait for should not join these matches.
    fn may_take_long(&self, matches: &KeyMatches, build: &BuildSide) -> bool {
        let has_residual = || self.residual().is_some();
        let is_unbuilt = || matches.uses_threshold && !build.threshold_index.is_decided();
        let has_many_candidates = || matches.ranges.rows().0 > MANY_CANDIDATES;
        !matches.unbuilt.is_empty()
            || build.reads_rows()
            || has_residual() && (is_unbuilt() || has_many_candidates())
    }

    /// The matches of a batch by keys; `None` if no row of the batch is in the output.
    fn find_matches(&self, batch: &RecordBatch, build: &BuildSide) -> Result<Option<KeyMatches>> {
        self.metrics.probe_rows.add(batch.num_rows());
        if self.spec.unmatched == Unmatched::Drop && build.rows().len() == 0 {
            // A join with an empty side evaluates no condition.
            return Ok(None);
        }
        self.key_matches(batch, build).map(Some)
    }

    /// The positions of the build side that match each row of a batch by keys, and what is to be built before they are
    /// looked at. To be called once for a batch, as it counts them.
    pub(crate) fn key_matches(&self, batch: &RecordBatch, build: &BuildSide) -> Result<KeyMatches> {
        let ranges = self.find_ranges(batch, build)?;
        Ok(KeyMatches {
            uses_threshold: self.uses_threshold(build, &ranges),
            unbuilt: build.justified_structures(&ranges).collect(),
            ranges,
        })
    }

    /// The rows of a batch that are in the output, and their ranges.
    fn select_rows(&self, batch: &RecordBatch, ranges: Ranges) -> Result<(RecordBatch, Ranges)> {
        let Some(kept) = self.kept_rows(&ranges.matched().collect()) else {
            return Ok((batch.clone(), ranges));
        };
        let of_kept = ranges.iter().zip(kept.values());
        let of_kept = of_kept.filter_map(|(range, is_kept)| is_kept.then_some(range));
        Ok((filter_record_batch(batch, &kept)?, of_kept.collect()))
    }

    /// Which rows are in the output; `None` if all are.
    fn kept_rows(&self, matched: &BooleanBuffer) -> Option<BooleanArray> {
        let kept = match self.spec.unmatched {
            Unmatched::Keep => return None,
            Unmatched::Drop => matched.clone(),
            Unmatched::Only => !matched,
        };
        (kept.count_set_bits() < kept.len()).then(|| BooleanArray::new(kept, None))
    }

    /// The ranges of matches, each reduced to the first row that meets the further condition, if the join has one and
    /// only needs to know whether a row meets it. Builds what is to be built, and so may block.
    pub(crate) fn refine(
        &self,
        batch: &RecordBatch,
        build: &BuildSide,
        matches: KeyMatches,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Ranges> {
        let KeyMatches {
            ranges,
            uses_threshold,
            unbuilt,
        } = matches;
        unbuilt.iter().try_for_each(|structure| structure.build())?;
        let Some(residual) = self.residual() else {
            return Ok(ranges);
        };
        let mut qualifying = None;
        if uses_threshold {
            self.build_threshold_index(build, check);
            qualifying = self.find_qualifying(batch, build, &ranges)?;
            self.record_threshold_rows(qualifying.as_ref(), batch);
        }
        let _timer = self.metrics.time_query();
        let size = self.batch_size;
        match (&qualifying, self.threshold()) {
            (Some(rows), Some(threshold)) => match &threshold.rest {
                Some(rest) => first_matches(rest, Some(rows), batch, build, &ranges, size, check),
                None => rows.first(),
            },
            _ => first_matches(residual, None, batch, build, &ranges, size, check),
        }
    }

    /// The further condition of the join, if it has one.
    pub(crate) fn residual(&self) -> Option<&JoinFilter> {
        self.row_join.as_ref()?.residual()
    }

    /// The threshold of the join, if it has one.
    fn threshold(&self) -> Option<&RowThreshold> {
        self.row_join.as_ref()?.threshold()
    }

    /// Whether the index on the join's threshold, if it has one, is to search these ranges. Counts them.
    pub(crate) fn uses_threshold(&self, build: &BuildSide, ranges: &Ranges) -> bool {
        let (index, rows) = (&build.threshold_index, build.rows().len());
        self.threshold()
            .is_some_and(|threshold| index.is_justified(threshold, ranges, rows))
    }

    /// Whether it is to go on with searches for nearest rows that have read this many rows. Counts them.
    pub(crate) fn goes_on_by_threshold(&self, build: &BuildSide, read: usize) -> bool {
        let (index, rows) = (&build.threshold_index, build.rows().len());
        self.threshold()
            .is_some_and(|threshold| index.is_justified_by(threshold, read, rows))
    }

    /// Builds the index on the join's threshold, unless that has been tried. Blocks.
    pub(crate) fn build_threshold_index(&self, build: &BuildSide, check: &dyn Fn() -> Result<()>) {
        if let Some(threshold) = self.threshold() {
            let (index, columns) = (&build.threshold_index, &build.row_columns);
            index.build(threshold, columns, build.rows().len(), &self.pool, check);
        }
    }

    pub(crate) fn record_threshold_rows(
        &self,
        found: Option<&QualifyingRows>,
        batch: &RecordBatch,
    ) {
        if found.is_some() {
            self.metrics.record_threshold_rows(batch.num_rows());
        }
    }

    /// Prepares searches of the index, if it could be built.
    pub(crate) fn find_qualifying(
        &self,
        batch: &RecordBatch,
        build: &BuildSide,
        ranges: &Ranges,
    ) -> Result<Option<QualifyingRows>> {
        let (Some(threshold), Some(_)) = (self.threshold(), build.threshold_index.index()) else {
            return Ok(None);
        };
        let Ok(limits) = evaluate_threshold(&threshold.limit, batch, ranges) else {
            // The whole condition, evaluated pair by pair, may not come to the limit of the row that fails.
            return Ok(None);
        };
        let index = &build.threshold_index;
        QualifyingRows::try_new(index, ranges, &limits, threshold.comparison).map(Some)
    }

    /// The positions of the build side that match each row of a batch.
    pub(crate) fn find_ranges(&self, batch: &RecordBatch, build: &BuildSide) -> Result<Ranges> {
        let (mut windows, prevailing) = self.search(batch, build)?;
        if let Some(prevailing) = prevailing {
            prevailing.extend_windows(&mut windows, build.rows())?;
        }
        Ok(windows.into())
    }

    /// For each row of a batch, which matches these ranges, the positions of the build side with its equality keys up
    /// to the point from which its matches are ordered by their distance. `has_condition` says whether these must meet
    /// a further condition.
    pub(crate) fn find_up_to_point(
        &self,
        distance: &PairDistance,
        batch: &RecordBatch,
        ranges: &Ranges,
        build: &BuildSide,
        has_condition: bool,
    ) -> Result<Points> {
        let _timer = self.metrics.time_search();
        let mut up_to_point = self.candidates(batch, build)?;
        let points = evaluate_threshold(&distance.point, batch, ranges)?;
        let known = points.logical_nulls().filter(|_| !has_condition);
        let rows = build.rows();
        rows.narrow(&mut up_to_point, &[(Comparison::AtMost, points)])?;
        let up_to = up_to_point.into();
        Ok(Points { up_to, known })
    }

    /// The positions of the build side that match each row of a batch without prevailing rows, and the prevailing rows
    /// in this build side.
    pub(crate) fn find_windows(&self, batch: &RecordBatch, build: &BuildSide) -> Result<Windows> {
        let (windows, prevailing) = self.search(batch, build)?;
        let Some(prevailing) = prevailing else {
            return internal_err!("a range join without prevailing rows is asked for them");
        };
        Ok(Windows {
            rows: windows.into(),
            prevailing: prevailing.single_rows(build.rows())?,
        })
    }

    fn search(
        &self,
        batch: &RecordBatch,
        build: &BuildSide,
    ) -> Result<(CandidateRanges, Option<PrevailingRows>)> {
        let _timer = self.metrics.time_search();
        let rows = build.rows();
        let mut candidates = self.candidates(batch, build)?;
        let prevailing = self.spec.prevailing;
        let mut prevailing = prevailing.then(|| PrevailingRows::new(candidates.clone()));
        let mut bounds: Vec<_> = self.spec.bounds.iter().collect();
        // Those that depend on what the others leave come last.
        bounds.sort_by_key(|(_, bound)| wrapped_bound(bound).is_some());
        // Bounds that have been evaluated and not searched.
        let mut pending: Vec<(Comparison, ArrayRef)> = vec![];
        for (comparison, bound) in bounds {
            let wrapped = wrapped_bound(bound);
            let of_all = match wrapped {
                Some(_) => None,
                None => evaluate_for_all(bound, batch).ok(),
            };
            let bounds = match of_all {
                Some(bounds) => bounds,
                None => {
                    rows.narrow(&mut candidates, &std::mem::take(&mut pending))?;
                    let groups = prevailing
                        .as_ref()
                        .map_or(&candidates, PrevailingRows::groups);
                    let bounds = evaluate_bound(bound, batch, || groups.can_match())?;
                    match wrapped {
                        Some(wrapped) => {
                            let limits = wrapped.limits(batch, || candidates.can_match())?;
                            let mut beyond = candidates.clone();
                            rows.narrow(&mut beyond, &[(wrapped.comparison(), limits)])?;
                            wrapped.widened(&bounds, beyond.can_match())?
                        }
                        None => bounds,
                    }
                }
            };
            if let Some(prevailing) = &mut prevailing {
                prevailing.add_bound(*comparison, Arc::clone(&bounds))?;
            }
            pending.push((*comparison, bounds));
        }
        rows.narrow(&mut candidates, &pending)?;
        Ok((candidates, prevailing))
    }

    /// The positions of the build side with the equality keys of each row of a batch.
    fn candidates(&self, batch: &RecordBatch, build: &BuildSide) -> Result<CandidateRanges> {
        let equality_keys = self.equality_keys(batch)?;
        build.rows().candidates(batch.num_rows(), &equality_keys)
    }

    /// The bounds of a batch, to skip spill runs. A prevailing row may be anywhere up to the bounds, and at them. Keys
    /// for which a difference wraps around may be beyond its bound. None after an error, which may concern rows that
    /// match nothing; then no run is skipped.
    pub(crate) fn encode_bounds(
        &self,
        key_order: &KeyOrder,
        batch: &RecordBatch,
    ) -> Vec<EncodedBound> {
        let bounds = self.spec.bounds.iter();
        let bounds =
            bounds.filter(|(comparison, _)| !self.spec.prevailing || !comparison.is_lower());
        let bounds = bounds.filter(|(_, bound)| wrapped_bound(bound).is_none());
        let bounds = bounds.map(|(comparison, bound)| {
            let values = bound.evaluate(batch)?.into_array(batch.num_rows())?;
            let comparison = match comparison {
                Comparison::Below if self.spec.prevailing => Comparison::AtMost,
                other => *other,
            };
            key_order.encode_bound(comparison, &values)
        });
        let bounds = bounds.collect::<Result<Option<Vec<_>>>>();
        bounds.ok().flatten().unwrap_or_default()
    }

    /// The equality keys of a batch.
    pub(crate) fn equality_keys(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        let keys = self.spec.on.iter();
        let keys = keys.map(|(probe, _)| probe.evaluate(batch)?.into_array(batch.num_rows()));
        keys.collect()
    }

    /// The aggregates over ranges of the build side, one for each row of a batch. Calls `check` between ranges whose
    /// rows are read.
    pub(crate) fn aggregate(
        &self,
        batch: &RecordBatch,
        ranges: &Ranges,
        build: &BuildSide,
        check: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<Vec<ArrayRef>> {
        let thresholds = self.thresholds(batch, ranges)?;
        let _timer = self.metrics.time_query();
        build.aggregate(ranges, &thresholds, self.range_sources.as_deref(), check)
    }

    /// The thresholds of the rows of a batch that match these ranges.
    fn thresholds(&self, batch: &RecordBatch, ranges: &Ranges) -> Result<Vec<ArrayRef>> {
        let thresholds = self.spec.thresholds.iter();
        let thresholds = thresholds.map(|threshold| evaluate_threshold(threshold, batch, ranges));
        thresholds.collect()
    }

    /// Appends aggregates to a batch, and drops the rows that are not matched if the join drops them.
    pub(crate) fn append_aggregates(
        &self,
        batch: &RecordBatch,
        matched: &BooleanBuffer,
        mut aggregates: Vec<ArrayRef>,
    ) -> Result<Vec<RecordBatch>> {
        let mut batch = batch.clone();
        if let Some(kept) = self.kept_rows(matched) {
            batch = filter_record_batch(&batch, &kept)?;
            for aggregate in &mut aggregates {
                *aggregate = filter(aggregate, &kept)?;
            }
        }
        self.append_columns(&batch, &aggregates)
    }

    /// Appends aggregates of all rows of several batches to these, as [`Self::append_aggregates`] does to one batch.
    pub(crate) fn append_to_batches(
        &self,
        batches: &[RecordBatch],
        matched: &BooleanBuffer,
        aggregates: &[ArrayRef],
    ) -> Result<Vec<RecordBatch>> {
        let (mut start, mut joined) = (0, vec![]);
        for batch in batches {
            let rows = batch.num_rows();
            let matched = &matched.slice(start, rows);
            let aggregates = aggregates.iter().map(|a| a.slice(start, rows)).collect();
            joined.extend(self.append_aggregates(batch, matched, aggregates)?);
            start += rows;
        }
        Ok(joined)
    }

    /// Appends aggregates to a batch. Returns several batches if dictionaries of aggregates have too few keys for all
    /// values.
    fn append_columns(
        &self,
        batch: &RecordBatch,
        aggregates: &[ArrayRef],
    ) -> Result<Vec<RecordBatch>> {
        let fields = &self.schema.fields()[batch.num_columns()..];
        let types: Vec<_> = fields.iter().map(|field| field.data_type()).collect();
        let parts = fit(aggregates, &types, batch.num_rows())?.into_iter();
        let parts = parts.map(|(rows, aggregates)| {
            let batch = batch.slice(rows.start, rows.len());
            let columns = batch.columns().iter().cloned().chain(aggregates).collect();
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            let schema = Arc::clone(&self.schema);
            Ok(RecordBatch::try_new_with_options(
                schema, columns, &options,
            )?)
        });
        parts.collect()
    }
}
