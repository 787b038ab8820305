//! The search for the pairs of a probe batch with a build side in memory, some at a time, so that memory is bounded
//! however many there are.
//!
//! Without a further condition all pairs of the ranges are taken. Otherwise it is evaluated on slices of them, or an
//! index lists the rows that meet its threshold, and only the rest of it is evaluated. Where only the nearest pairs of
//! a row are returned, without a condition its range is clipped first, with one, or in another order than that of the
//! range key, see `nearest`, and `closest` for both sides of a point.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::joins::utils::JoinFilter;

use crate::exec::range_join::build_side::matched_rows::MatchedRows;
use crate::exec::range_join::build_side::row_order::RowOrder;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::candidate_pairs::{NO_ROW, PairBuffer};
use crate::exec::range_join::probe::candidates::{Candidates, StepLimit};
use crate::exec::range_join::probe::closest::ClosestMatches;
use crate::exec::range_join::probe::nearest::{NearestMatches, clip};
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::row_join::RowJoin;
use datafusion_rmq_logical::logical_plan::nearest_rows::RowLimit;

/// The most build rows that are marked in one step: it takes about 1 ms.
const MARKED_AT_ONCE: usize = 1 << 26;

/// The pairs of a probe batch that have not been found.
pub(crate) struct PairSearch {
    partition: Arc<ProbePartition>,
    join: Arc<RowJoin>,
    build: Arc<BuildSide>,
    pub(crate) batch: RecordBatch,
    /// Whether a probe row without a pair is found once, with [`NO_ROW`]. False at first.
    pub(crate) keeps_probe_rows: bool,
    rest: Rest,
    /// The ranks of rows, if the next step needs them and they are not built.
    unbuilt_order: Option<Arc<RowOrder>>,
    /// Whether the search is to go on by the index on the join's threshold.
    begins_threshold: bool,
}

/// Where the pairs that have not been found are.
enum Rest {
    /// All in the ranges of the probe rows.
    InRanges(Candidates),
    /// Those nearest an end of their range, or first in an order that is the same for all probe rows.
    FromEnd(NearestMatches),
    /// Those closest to a point.
    FromPoint(ClosestMatches),
}

/// What the next step of a search needs and is not built.
pub(crate) enum Unbuilt {
    Order(Arc<RowOrder>),
    Threshold(Arc<ProbePartition>, Arc<BuildSide>),
}

impl Unbuilt {
    /// Builds it, unless that has been tried. Blocks.
    pub(crate) fn build(&self, check: &dyn Fn() -> Result<()>) {
        match self {
            Self::Order(order) => order.build(check),
            Self::Threshold(partition, build) => partition.build_threshold_index(build, check),
        }
    }
}

impl PairSearch {
    /// The search for the pairs of a batch, of each probe row those that `limit` lets pass: the join's, or one of more
    /// rows. Looks at up to `slice_rows` candidates at once.
    pub(crate) fn try_new(
        partition: &Arc<ProbePartition>,
        build: &Arc<BuildSide>,
        batch: RecordBatch,
        limit: Option<RowLimit>,
        slice_rows: usize,
    ) -> Result<Self> {
        let Some(join) = &partition.row_join else {
            return internal_err!("a range join that returns aggregates has no pairs");
        };
        let ranges = partition.find_ranges(&batch, build)?;
        let (mut unbuilt_order, mut begins_threshold) = (None, false);
        let rest = match limit {
            None => {
                begins_threshold = partition.uses_threshold(build, &ranges);
                Rest::InRanges(Candidates::new(ranges, false))
            }
            Some(limit) if join.searched_limit().is_none() => {
                Rest::InRanges(Candidates::new(clip(&ranges, limit), limit.descending))
            }
            Some(limit) => {
                let order = build.row_order.as_ref();
                let has_condition = join.residual().is_some();
                unbuilt_order = order.filter(|order| order.should_build(&ranges)).cloned();
                match join.distance() {
                    Some(distance) => Rest::FromPoint(ClosestMatches::try_new(
                        partition.find_up_to_point(
                            distance,
                            &batch,
                            &ranges,
                            build,
                            has_condition,
                        )?,
                        ranges,
                        limit,
                        distance,
                        &batch,
                        build,
                        slice_rows,
                    )?),
                    None => {
                        let nearest = NearestMatches::new(ranges, limit, has_condition, slice_rows);
                        Rest::FromEnd(nearest)
                    }
                }
            }
        };
        Ok(Self {
            partition: Arc::clone(partition),
            join: Arc::clone(join),
            build: Arc::clone(build),
            batch,
            keeps_probe_rows: false,
            rest,
            unbuilt_order,
            begins_threshold,
        })
    }

    /// Whether all pairs have been found.
    pub(crate) fn is_done(&self) -> bool {
        match &self.rest {
            Rest::InRanges(candidates) => candidates.is_done(),
            Rest::FromEnd(nearest) => nearest.is_done(),
            Rest::FromPoint(closest) => closest.is_done(),
        }
    }

    /// The probe row of which another search may go on: no pair of it, nor of those after it, has been found, and all
    /// of those before it. `None` if no row is known to be one.
    pub(crate) fn next_row(&self) -> Option<usize> {
        match &self.rest {
            Rest::InRanges(candidates) => candidates.next_row(),
            // Rows that have been begun can't be told from others.
            _ => self.is_done().then(|| self.batch.num_rows()),
        }
    }

    /// What is to be built before the next step.
    pub(crate) fn unbuilt(&mut self) -> Option<Unbuilt> {
        if let Some(order) = self.unbuilt_order.take() {
            return Some(Unbuilt::Order(order));
        }
        let (partition, build) = (&self.partition, &self.build);
        if let Rest::FromEnd(nearest) = &mut self.rest {
            // Long searches go on by the index once they justify it.
            let read = nearest.take_long_candidates();
            self.begins_threshold |= read > 0 && partition.goes_on_by_threshold(build, read);
        }
        let is_unbuilt = self.begins_threshold && !build.threshold_index.is_decided();
        is_unbuilt.then(|| Unbuilt::Threshold(Arc::clone(partition), Arc::clone(build)))
    }

    /// Finds the next pairs, so that there are at most as many as the limit says, or looks at as many candidates. If
    /// the join returns build rows, marks these instead.
    pub(crate) fn step(&mut self, limit: StepLimit, pairs: &mut PairBuffer) -> Result<()> {
        if std::mem::take(&mut self.begins_threshold) {
            self.begin_threshold()?;
        }
        let join = Arc::clone(&self.join);
        let (batch, build) = (&self.batch, &self.build);
        let found = |row, position: Option<u32>| match position {
            Some(position) => pairs.add(row, position),
            None if self.keeps_probe_rows => pairs.add(row, NO_ROW),
            None => {}
        };
        let candidates = match &mut self.rest {
            Rest::InRanges(candidates) => candidates,
            Rest::FromEnd(nearest) => {
                let indexed = nearest.step(&join, batch, build)?;
                if indexed > 0 {
                    self.partition.metrics.record_threshold_rows(indexed);
                }
                nearest.take_found(found);
                return Ok(());
            }
            Rest::FromPoint(closest) => {
                closest.step(&join, batch, build)?;
                closest.take_found(found);
                return Ok(());
            }
        };
        match join.residual() {
            Some(residual) => self.take_pairs(residual, limit, pairs),
            None if join.returns_build_rows() => {
                candidates.mark_all(MARKED_AT_ONCE, matched_rows(&self.build)?)
            }
            None => candidates.take_all(limit, self.keeps_probe_rows, pairs),
        }
    }

    /// Lets the search go on by the index on the join's threshold, if it could be built.
    fn begin_threshold(&mut self) -> Result<()> {
        let (partition, batch) = (&self.partition, &self.batch);
        match &mut self.rest {
            Rest::InRanges(candidates) => {
                let ranges = &candidates.ranges;
                let found = partition.find_qualifying(batch, &self.build, ranges)?;
                partition.record_threshold_rows(found.as_ref(), batch);
                candidates.qualifying = found;
            }
            Rest::FromEnd(nearest) => {
                let ranges = nearest.ranges();
                nearest.go_on_by(partition.find_qualifying(batch, &self.build, ranges)?);
            }
            Rest::FromPoint(_) => {}
        }
        Ok(())
    }

    /// Takes some candidates, and adds, or marks, those that meet the further condition.
    fn take_pairs(
        &mut self,
        residual: &JoinFilter,
        limit: StepLimit,
        pairs: &mut PairBuffer,
    ) -> Result<()> {
        let Rest::InRanges(candidates) = &mut self.rest else {
            return internal_err!("the nearest pairs of a range join are not all pairs of ranges");
        };
        let residual = match (&candidates.qualifying, self.join.threshold()) {
            (Some(_), Some(threshold)) => threshold.rest.as_ref(),
            _ => Some(residual),
        };
        if self.join.returns_build_rows() {
            let matched = matched_rows(&self.build)?;
            // A build row needs one match.
            let slice = candidates.take_slice(limit, Some(matched))?;
            let slice = slice.meeting(residual, &self.batch, &self.build)?;
            let positions = slice.positions.iter();
            positions.for_each(|position| matched.mark(*position as usize));
            return Ok(());
        }
        let limit = match residual {
            Some(_) => limit,
            None => limit.without(pairs.len()),
        };
        let slice = candidates.take_slice(limit, None)?;
        let slice = slice.meeting(residual, &self.batch, &self.build)?;
        if !self.keeps_probe_rows {
            pairs.append(slice.rows, slice.positions);
            return Ok(());
        }
        let mut start = 0;
        for (row, end) in slice.ended {
            pairs.add_row(row, &slice.positions[start..end]);
            if start == end && !candidates.has_match {
                pairs.add(row, NO_ROW);
            }
            candidates.has_match = false;
            start = end;
        }
        if let [row, ..] = slice.rows[start..] {
            pairs.add_row(row, &slice.positions[start..]);
            candidates.has_match = true;
        }
        Ok(())
    }
}

/// The marks of a build side whose rows are returned by whether they have matched.
pub(crate) fn matched_rows(build: &BuildSide) -> Result<&MatchedRows> {
    match &build.matched {
        Some(matched) => Ok(matched),
        None => internal_err!("a range join has not prepared to mark build rows"),
    }
}
