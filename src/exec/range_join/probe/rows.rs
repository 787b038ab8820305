//! Joins a partition of the probe side with a build side in memory, and returns rows: pairs that match, and rows of
//! either side.
//!
//! 1. For each probe batch, `ProbePartition::find_ranges` finds the range of build positions that matches each row.
//! 2. The pairs of the ranges are taken in slices of one output batch, by probe row, so that memory is bounded however
//!    many there are.
//! 3. A further condition is evaluated on each slice, or an index lists the rows that meet its threshold, and only the
//!    rest of it is evaluated. What is left is returned, with the probe rows that have matched nothing where these are
//!    kept. Where only the nearest pairs of a row are returned, without a condition its range is clipped first, with
//!    one, or in another order than that of the range key, see `nearest`, and `closest` for both sides of a point.
//! 4. Where build rows must be returned by whether they have matched, pairs mark these. The partition that ends last
//!    returns them.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::joins::utils::JoinFilter;
use futures::TryStreamExt;
use futures::stream::BoxStream;

use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::range_join::build_side::matched_rows::MatchedRows;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::candidate_pairs::{NO_ROW, PairBuffer};
use crate::exec::range_join::probe::candidates::Candidates;
use crate::exec::range_join::probe::nearest::clip;
use crate::exec::range_join::probe::nearest_search::NearestSearch;
use crate::exec::range_join::probe::output_batches::{RowSource, stream_rows};
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::row_join::RowJoin;
use rmq_engine::SearchHints;

/// The most build rows that are marked before other tasks may run: it takes about 1 ms.
const MARKED_AT_ONCE: usize = 1 << 26;

/// Joins a partition of the probe side.
pub(crate) fn join_rows(
    partition: Arc<ProbePartition>,
    join: Arc<RowJoin>,
    build: Arc<BuildSide>,
    input: BoxStream<'static, Result<RecordBatch>>,
) -> BoxStream<'static, Result<RecordBatch>> {
    let joined = RowStream {
        pairs: PairBuffer::default(),
        partition: Arc::clone(&partition),
        join,
        build,
        input: Some(input),
        last_found: SearchHints::default(),
        current: None,
        unreturned: 0..0,
    };
    stream_rows(partition, joined)
}

/// A partition that returns rows.
struct RowStream {
    partition: Arc<ProbePartition>,
    join: Arc<RowJoin>,
    build: Arc<BuildSide>,
    /// `None` after its end.
    input: Option<BoxStream<'static, Result<RecordBatch>>>,
    last_found: SearchHints,
    /// The probe batch whose pairs are being returned.
    current: Option<Candidates>,
    /// Pairs of the current batch that are to be returned.
    pairs: PairBuffer,
    /// Positions of build rows that this partition has still to return, by whether they have matched.
    unreturned: Range<usize>,
}

impl RowSource for RowStream {
    async fn next_rows(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        if let Some(mut candidates) = self.current.take() {
            let partition = Arc::clone(&self.partition);
            self.use_index(&mut candidates).await?;
            let _timer = partition.metrics.time_query();
            let rows = self.rows_of(&mut candidates)?;
            if !candidates.is_done() || !self.pairs.is_empty() {
                self.current = Some(candidates);
            }
            return Ok(Some(rows));
        }
        if let Some(input) = &mut self.input {
            match input.try_next().await? {
                Some(batch) => self.begin(batch).await?,
                None => self.end()?,
            }
            return Ok(Some(vec![]));
        }
        if self.unreturned.is_empty() {
            return Ok(None);
        }
        self.build_rows().map(Some)
    }
}

impl RowStream {
    /// Begins with a probe batch.
    async fn begin(&mut self, batch: RecordBatch) -> Result<()> {
        self.partition.metrics.probe_rows.add(batch.num_rows());
        // A join with an empty side evaluates no condition.
        let is_empty = self.build.rows().len() == 0 && !self.join.keeps_probe_rows();
        if is_empty || batch.num_rows() == 0 {
            return Ok(());
        }
        let last_found = &mut self.last_found;
        let ranges = self
            .partition
            .find_ranges(&batch, &self.build, last_found)?;
        let Some(limit) = self.join.limit() else {
            let qualifying = self.partition.qualifying_rows(&batch, &self.build, &ranges);
            let qualifying = qualifying.await?;
            self.current = Some(Candidates::new(batch, ranges, qualifying));
            return Ok(());
        };
        if let Some(order) = &self.build.row_order
            && order.should_build(&ranges)
        {
            let order = Arc::clone(order);
            let build = move |waiting: Waiting| {
                order.build(&|| waiting.check());
                Ok(())
            };
            blocking(build).await?;
        }
        let mut candidates = Candidates::new(batch, clip(&ranges, limit), None);
        candidates.descending = limit.descending;
        if let Some(limit) = self.join.searched_limit() {
            let (batch, build) = (&candidates.batch, &*self.build);
            let up_to_point =
                self.partition
                    .find_up_to_point((batch, &ranges), build, &mut self.last_found)?;
            let (all, size) = ((ranges, up_to_point), self.partition.batch_size);
            let nearest = NearestSearch::try_new(&self.join, limit, all, (batch, build), size)?;
            candidates.nearest = Some(nearest);
        }
        self.current = Some(candidates);
        Ok(())
    }

    /// Lets long searches for nearest rows go on by the index on the join's threshold, once they justify it.
    async fn use_index(&mut self, candidates: &mut Candidates) -> Result<()> {
        let Some(NearestSearch::FromEnd(nearest)) = &mut candidates.nearest else {
            return Ok(());
        };
        let read = nearest.take_long_candidates();
        if read > 0 && self.partition.prepares_index(&self.build, read).await? {
            let (batch, ranges) = (&candidates.batch, &nearest.ranges);
            let index = self.partition.find_qualifying(batch, &self.build, ranges)?;
            nearest.go_on_by(index);
        }
        Ok(())
    }

    /// The next rows of a probe batch, at most one batch.
    fn rows_of(&mut self, candidates: &mut Candidates) -> Result<Vec<RecordBatch>> {
        let join = Arc::clone(&self.join);
        if let Some(nearest) = &mut candidates.nearest {
            if self.pairs.len() < self.partition.batch_size {
                let indexed = nearest.step(&join, &candidates.batch, &self.build)?;
                if indexed > 0 {
                    self.partition.metrics.record_threshold_rows(indexed);
                }
                let keeps = join.keeps_probe_rows();
                nearest.take_found(|row, position| match position {
                    Some(position) => self.pairs.add(row, position),
                    None if keeps => self.pairs.add(row, NO_ROW),
                    None => {}
                });
            }
            if self.pairs.len() < self.partition.batch_size && !candidates.is_done() {
                return Ok(vec![]);
            }
            return self.return_pairs(&candidates.batch);
        }
        let Some(residual) = join.residual() else {
            if join.returns_build_rows() {
                let matched = matched_rows(&self.build)?;
                let mut room = MARKED_AT_ONCE;
                while room > 0 && !candidates.is_done() {
                    let (_, positions, _) = candidates.next_positions(room)?;
                    room = room.saturating_sub(positions.len().max(1));
                    matched.mark_range(positions.start as usize..positions.end as usize);
                }
                return Ok(vec![]);
            }
            let limit = self.partition.batch_size;
            candidates.take_all(limit, join.keeps_probe_rows(), &mut self.pairs)?;
            return self.return_pairs(&candidates.batch);
        };
        if self.pairs.len() < self.partition.batch_size {
            self.take_pairs(candidates, residual)?;
            if self.pairs.len() < self.partition.batch_size && !candidates.is_done() {
                return Ok(vec![]);
            }
        }
        self.return_pairs(&candidates.batch)
    }

    /// Takes some candidates, and collects, or marks, those that meet the further condition.
    fn take_pairs(&mut self, candidates: &mut Candidates, residual: &JoinFilter) -> Result<()> {
        let residual = match (&candidates.qualifying, self.join.threshold()) {
            (Some(_), Some(threshold)) => threshold.rest.as_ref(),
            _ => Some(residual),
        };
        let limit = self.partition.batch_size;
        if self.join.returns_build_rows() {
            let matched = matched_rows(&self.build)?;
            // A build row needs one match.
            let slice = candidates.take_slice(limit, Some(matched))?;
            let slice = slice.meeting(residual, &candidates.batch, &self.build)?;
            let positions = slice.positions.iter();
            positions.for_each(|position| matched.mark(*position as usize));
            return Ok(());
        }
        let limit = match residual {
            Some(_) => limit,
            None => limit - self.pairs.len(),
        };
        let slice = candidates.take_slice(limit, None)?;
        let slice = slice.meeting(residual, &candidates.batch, &self.build)?;
        if !self.join.keeps_probe_rows() {
            self.pairs.append(slice.rows, slice.positions);
            return Ok(());
        }
        let mut start = 0;
        for (row, end) in slice.ended {
            self.pairs.add_row(row, &slice.positions[start..end]);
            if start == end && !candidates.has_match {
                self.pairs.add(row, NO_ROW);
            }
            candidates.has_match = false;
            start = end;
        }
        if let [row, ..] = slice.rows[start..] {
            self.pairs.add_row(row, &slice.positions[start..]);
            candidates.has_match = true;
        }
        Ok(())
    }

    /// Returns collected pairs, at most one batch.
    fn return_pairs(&mut self, batch: &RecordBatch) -> Result<Vec<RecordBatch>> {
        let PairBuffer { rows, positions } = self.pairs.take(self.partition.batch_size);
        if rows.is_empty() {
            return Ok(vec![]);
        }
        if let Some(matched) = &self.build.matched {
            let positions = positions.iter().filter(|position| **position != NO_ROW);
            positions.for_each(|position| matched.mark(*position as usize));
        }
        let positions = if positions.contains(&NO_ROW) {
            let positions = positions.into_iter();
            positions.map(|p| (p != NO_ROW).then_some(p)).collect()
        } else {
            UInt32Array::from(positions)
        };
        let pairs = (&UInt32Array::from(rows), &positions);
        self.join
            .output(Some(batch), &self.build.row_columns, pairs, None)
    }

    /// Ends the input. The last partition has to return build rows.
    fn end(&mut self) -> Result<()> {
        self.input = None;
        if self.join.marks_build_rows() {
            let matched = matched_rows(&self.build)?;
            if matched.finish_partition(self.partition.partitions) {
                self.unreturned = 0..matched.rows();
            }
        }
        Ok(())
    }

    /// The next build rows to be returned by whether they have matched.
    fn build_rows(&mut self) -> Result<Vec<RecordBatch>> {
        let matched = matched_rows(&self.build)?;
        let slice = self.unreturned.start
            ..(self.unreturned.start + self.partition.batch_size).min(self.unreturned.end);
        self.unreturned.start = slice.end;
        let is_matched = |position| matched.is_marked(position);
        self.join
            .output_build_rows(&self.build.row_columns, slice, is_matched)
    }
}

fn matched_rows(build: &BuildSide) -> Result<&MatchedRows> {
    match &build.matched {
        Some(matched) => Ok(matched),
        None => internal_err!("a range join has not prepared to mark build rows"),
    }
}
