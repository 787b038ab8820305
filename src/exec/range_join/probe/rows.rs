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
//! 4. Where build rows must be returned by whether they have matched, pairs mark these in a bitmap. The partition that
//!    ends last returns them. Rows with a NULL key come after the sorted ones, so that they have positions, too.
//!
//! A batch is taken through all segments of the build side, one after the other. Probe rows that have matched nothing
//! follow the last one then.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::joins::utils::JoinFilter;
use futures::TryStreamExt;
use futures::stream::BoxStream;

use crate::common::row_number::row_number;
use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::range_join::build_side::matched_rows::MatchedRows;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::candidate_pairs::{NO_ROW, PairBuffer};
use crate::exec::range_join::probe::candidates::Candidates;
use crate::exec::range_join::probe::nearest::clip;
use crate::exec::range_join::probe::nearest_of_segments::NearestOfSegments;
use crate::exec::range_join::probe::nearest_search::NearestSearch;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::row_source::{RowSource, stream_rows};
use crate::exec::range_join::probe::segments::SegmentedSide;
use crate::exec::range_join::row_join::RowJoin;
use rmq_engine::SearchHints;

/// The most build rows that are marked before other tasks may run: it takes about 1 ms.
const MARKED_AT_ONCE: usize = 1 << 26;

/// How many batches of pairs are merged at once.
const MERGED_BATCHES: usize = 8;

/// Joins a partition of the probe side.
pub(crate) fn join_rows(
    partition: Arc<ProbePartition>,
    join: Arc<RowJoin>,
    side: Arc<SegmentedSide>,
    input: BoxStream<'static, Result<RecordBatch>>,
) -> BoxStream<'static, Result<RecordBatch>> {
    let hints = side.segments.iter().map(|_| SearchHints::default());
    let joined = RowStream {
        pairs: PairBuffer::default(),
        partition: Arc::clone(&partition),
        join,
        last_found: hints.collect(),
        side,
        segment: 0,
        input: Some(input),
        current: None,
        remainder: None,
        nearest: None,
        matched: vec![],
        unreturned: None,
    };
    stream_rows(partition, joined)
}

/// A partition that returns rows.
struct RowStream {
    partition: Arc<ProbePartition>,
    join: Arc<RowJoin>,
    /// The build side, in at least one segment, and the number of that which is probed.
    side: Arc<SegmentedSide>,
    segment: usize,
    /// `None` after its end.
    input: Option<BoxStream<'static, Result<RecordBatch>>>,
    /// Those of each segment.
    last_found: Vec<SearchHints>,
    /// The probe batch whose pairs are being returned.
    current: Option<Candidates>,
    /// Pairs of the current batch that are to be returned.
    pairs: PairBuffer,
    /// The rows of the last batch that have not been begun, where those that are returned of each are merged.
    remainder: Option<RecordBatch>,
    /// What the segments have for the rows of the current batch, if that is merged.
    nearest: Option<NearestOfSegments>,
    /// Whether each row of the current batch has matched; empty unless those that have not are to follow.
    matched: Vec<bool>,
    /// Positions of build rows of the segment, and of all rows of those after it, that this partition has still to
    /// return, by whether they have matched.
    unreturned: Option<Range<usize>>,
}

impl RowSource for RowStream {
    async fn next_rows(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        if let Some(mut candidates) = self.current.take() {
            let partition = Arc::clone(&self.partition);
            self.use_index(&mut candidates).await?;
            let timer = partition.metrics.time_query();
            let mut rows = self.rows_of(&mut candidates)?;
            drop(timer);
            if !candidates.is_done() || !self.pairs.is_empty() {
                self.current = Some(candidates);
            } else if self.segment + 1 < self.side.segments.len() {
                self.segment += 1;
                self.begin_segment(candidates.batch).await?;
            } else {
                rows.extend(self.rows_after_segments(&candidates.batch)?);
            }
            return Ok(Some(rows));
        }
        if let Some(batch) = self.remainder.take() {
            self.begin(batch).await?;
            return Ok(Some(vec![]));
        }
        if let Some(input) = &mut self.input {
            match input.try_next().await? {
                Some(batch) => {
                    self.partition.metrics.probe_rows.add(batch.num_rows());
                    self.side.record_search(batch.num_rows());
                    self.begin(batch).await?;
                }
                None => self.end()?,
            }
            return Ok(Some(vec![]));
        }
        self.build_rows()
    }
}

impl RowStream {
    /// Begins with a probe batch, or with some of its rows.
    async fn begin(&mut self, mut batch: RecordBatch) -> Result<()> {
        // A join with an empty side evaluates no condition.
        let mut segments = self.side.segments.iter();
        let is_empty = segments.all(|segment| segment.rows().len() == 0);
        if is_empty && !self.join.keeps_probe_rows() || batch.num_rows() == 0 {
            return Ok(());
        }
        if self.side.segments.len() > 1 {
            if let Some(limit) = self.join.limit() {
                let most = limit.with_skipped().fetch.unwrap_or(usize::MAX);
                let pairs = MERGED_BATCHES * self.partition.batch_size / self.side.segments.len();
                let rows = (pairs / most.max(1)).max(1);
                if rows < batch.num_rows() {
                    self.remainder = Some(batch.slice(rows, batch.num_rows() - rows));
                    batch = batch.slice(0, rows);
                }
                self.nearest = Some(NearestOfSegments::new(self.side.segments.len()));
            } else if self.join.keeps_probe_rows() {
                self.matched = vec![false; batch.num_rows()];
            }
        }
        self.segment = 0;
        self.begin_segment(batch).await
    }

    /// The segment that is probed.
    fn build(&self) -> &Arc<BuildSide> {
        &self.side.segments[self.segment]
    }

    /// Whether probe rows that match nothing in the segment are returned.
    fn keeps_probe_rows(&self) -> bool {
        self.join.keeps_probe_rows() && self.side.segments.len() == 1
    }

    /// Begins with the pairs of a batch with a segment.
    async fn begin_segment(&mut self, batch: RecordBatch) -> Result<()> {
        let build = Arc::clone(self.build());
        let last_found = &mut self.last_found[self.segment];
        let ranges = self.partition.find_ranges(&batch, &build, last_found)?;
        let limit = match self.join.limit() {
            Some(limit) if self.nearest.is_some() => Some(limit.with_skipped()),
            limit => limit,
        };
        let Some(limit) = limit else {
            let qualifying = self.partition.qualifying_rows(&batch, &build, &ranges);
            let qualifying = qualifying.await?;
            self.current = Some(Candidates::new(batch, ranges, qualifying));
            return Ok(());
        };
        if let Some(order) = &build.row_order
            && order.should_build(&ranges)
        {
            let order = Arc::clone(order);
            let work = move |waiting: Waiting| {
                order.build(&|| waiting.check());
                Ok(())
            };
            blocking(work).await?;
        }
        let mut candidates = Candidates::new(batch, clip(&ranges, limit), None);
        candidates.descending = limit.descending;
        if self.join.searched_limit().is_some() {
            let (batch, partition) = (&candidates.batch, &self.partition);
            let up_to_point = partition.find_up_to_point((batch, &ranges), &build, last_found)?;
            let (all, size) = ((ranges, up_to_point), partition.batch_size);
            let nearest = NearestSearch::try_new(&self.join, limit, all, (batch, &*build), size)?;
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
        let build = self.build();
        if read > 0 && self.partition.prepares_index(build, read).await? {
            let (batch, ranges) = (&candidates.batch, &nearest.ranges);
            let index = self.partition.find_qualifying(batch, build, ranges)?;
            nearest.go_on_by(index);
        }
        Ok(())
    }

    /// The next rows of a probe batch, at most one batch.
    fn rows_of(&mut self, candidates: &mut Candidates) -> Result<Vec<RecordBatch>> {
        let join = Arc::clone(&self.join);
        if let Some(nearest) = &mut candidates.nearest {
            if self.pairs.len() < self.partition.batch_size {
                let build = &self.side.segments[self.segment];
                let indexed = nearest.step(&join, &candidates.batch, build)?;
                if indexed > 0 {
                    self.partition.metrics.record_threshold_rows(indexed);
                }
                let keeps = self.keeps_probe_rows();
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
                let matched = matched_rows(self.build())?;
                let mut room = MARKED_AT_ONCE;
                while room > 0 && !candidates.is_done() {
                    let (_, positions, _) = candidates.next_positions(room)?;
                    room = room.saturating_sub(positions.len().max(1));
                    matched.mark_range(positions.start as usize..positions.end as usize);
                }
                return Ok(vec![]);
            }
            let limit = self.partition.batch_size;
            candidates.take_all(limit, self.keeps_probe_rows(), &mut self.pairs)?;
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
            let matched = matched_rows(self.build())?;
            // A build row needs one match.
            let slice = candidates.take_slice(limit, Some(matched))?;
            let slice = slice.meeting(residual, &candidates.batch, self.build())?;
            let positions = slice.positions.iter();
            positions.for_each(|position| matched.mark(*position as usize));
            return Ok(());
        }
        let limit = match residual {
            Some(_) => limit,
            None => limit - self.pairs.len(),
        };
        let slice = candidates.take_slice(limit, None)?;
        let slice = slice.meeting(residual, &candidates.batch, self.build())?;
        if !self.keeps_probe_rows() {
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
        let pairs = self.pairs.take(self.partition.batch_size);
        if let Some(nearest) = &mut self.nearest {
            nearest.add(self.segment, pairs);
            return Ok(vec![]);
        }
        let PairBuffer { rows, positions } = pairs;
        if rows.is_empty() {
            return Ok(vec![]);
        }
        let build = Arc::clone(self.build());
        if let Some(matched) = &build.matched {
            let positions = positions.iter().filter(|position| **position != NO_ROW);
            positions.for_each(|position| matched.mark(*position as usize));
        }
        if !self.matched.is_empty() {
            for row in &rows {
                self.matched[*row as usize] = true;
            }
        }
        let positions = if positions.contains(&NO_ROW) {
            let positions = positions.into_iter();
            positions.map(|p| (p != NO_ROW).then_some(p)).collect()
        } else {
            UInt32Array::from(positions)
        };
        let pairs = (&UInt32Array::from(rows), &positions);
        self.join
            .output(Some(batch), &build.row_columns, pairs, None)
    }

    /// After the last segment: the rows of a batch that have matched none, if these are to follow, or all rows, if what
    /// segments have for them is merged.
    fn rows_after_segments(&mut self, batch: &RecordBatch) -> Result<Vec<RecordBatch>> {
        if let Some((nearest, limit)) = self.nearest.take().zip(self.join.limit()) {
            let batch = (batch, self.partition.batch_size);
            return nearest.output(&self.join, batch, &self.side.segments, limit);
        }
        for (row, matched) in std::mem::take(&mut self.matched).into_iter().enumerate() {
            if !matched {
                self.pairs.add(row_number(row)?, NO_ROW);
            }
        }
        let mut returned = vec![];
        while !self.pairs.is_empty() {
            returned.extend(self.return_pairs(batch)?);
        }
        Ok(returned)
    }

    /// Ends the input. The last partition has to return build rows.
    fn end(&mut self) -> Result<()> {
        self.input = None;
        if self.join.marks_build_rows() {
            self.segment = 0;
            let matched = matched_rows(self.build())?;
            if matched.finish_partition(self.partition.partitions) {
                self.unreturned = Some(0..matched.rows());
            }
        }
        Ok(())
    }

    /// The next build rows to be returned by whether they have matched; `None` at the end.
    fn build_rows(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        let Some(Range { start, end }) = self.unreturned.take() else {
            return Ok(None);
        };
        if start == end {
            self.segment += 1;
            if let Some(next) = self.side.segments.get(self.segment) {
                self.unreturned = Some(0..matched_rows(next)?.rows());
            }
            return Ok(Some(vec![]));
        }
        let build = self.build();
        let matched = matched_rows(build)?;
        let slice = start..(start + self.partition.batch_size).min(end);
        let is_matched = |position| matched.is_marked(position);
        let columns = &build.row_columns;
        let rows = self
            .join
            .output_build_rows(columns, slice.clone(), is_matched)?;
        self.unreturned = Some(slice.end..end);
        Ok(Some(rows))
    }
}

fn matched_rows(build: &BuildSide) -> Result<&MatchedRows> {
    match &build.matched {
        Some(matched) => Ok(matched),
        None => internal_err!("a range join has not prepared to mark build rows"),
    }
}
