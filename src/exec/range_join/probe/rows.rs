//! Joins a partition of the probe side with a build side in memory, and returns rows: pairs that match, and rows of
//! either side.
//!
//! 1. For each probe batch, `ProbePartition::find_ranges` finds the range of build positions that matches each row.
//! 2. The pairs of the ranges that meet a further condition are found some at a time (`pair_search`), by probe row, and
//!    returned in batches, with the probe rows that have matched nothing where these are kept.
//! 3. Where build rows must be returned by whether they have matched, pairs mark these in a bitmap. The partition that
//!    ends last returns them. Rows with a NULL key come after the sorted ones, so that they have positions, too.
//!
//! A batch is taken through all segments of the build side, one after the other. Probe rows that have matched nothing
//! follow the last one then.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use futures::TryStreamExt;
use futures::stream::BoxStream;

use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::candidate_pairs::{NO_ROW, PairBuffer};
use crate::exec::range_join::probe::candidates::StepLimit;
use crate::exec::range_join::probe::nearest_of_segments::NearestOfSegments;
use crate::exec::range_join::probe::pair_search::{PairSearch, matched_rows};
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::row_source::{RowSource, stream_rows};
use crate::exec::range_join::probe::segments::SegmentedSide;
use crate::exec::range_join::row_join::RowJoin;
use rmq_arrow::common::row_number::row_number;

/// How many batches of pairs are merged at once.
const MERGED_BATCHES: usize = 8;

/// Joins a partition of the probe side.
pub(crate) fn join_rows(
    partition: Arc<ProbePartition>,
    join: Arc<RowJoin>,
    side: Arc<SegmentedSide>,
    input: BoxStream<'static, Result<RecordBatch>>,
) -> BoxStream<'static, Result<RecordBatch>> {
    let joined = RowStream {
        pairs: PairBuffer::default(),
        partition: Arc::clone(&partition),
        join,
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
    /// The search in the probe batch whose pairs are being returned.
    current: Option<PairSearch>,
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
        if let Some(mut search) = self.current.take() {
            let partition = Arc::clone(&self.partition);
            if let Some(unbuilt) = search.unbuilt() {
                let build = move |waiting: Waiting| {
                    unbuilt.build(&|| waiting.check());
                    Ok(())
                };
                blocking(build).await?;
            }
            let timer = partition.metrics.time_query();
            let mut rows = self.rows_of(&mut search)?;
            drop(timer);
            if !search.is_done() || !self.pairs.is_empty() {
                self.current = Some(search);
            } else if self.segment + 1 < self.side.segments.len() {
                self.segment += 1;
                self.begin_segment(search.batch)?;
            } else {
                rows.extend(self.rows_after_segments(&search.batch)?);
            }
            return Ok(Some(rows));
        }
        if let Some(batch) = self.remainder.take() {
            self.begin(batch)?;
            return Ok(Some(vec![]));
        }
        if let Some(input) = &mut self.input {
            match input.try_next().await? {
                Some(batch) => {
                    self.partition.metrics.probe_rows.add(batch.num_rows());
                    self.side.record_search(batch.num_rows());
                    self.begin(batch)?;
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
    fn begin(&mut self, mut batch: RecordBatch) -> Result<()> {
        // A join with an empty side evaluates no condition.
        let mut segments = self.side.segments.iter();
        let is_empty = segments.all(|segment| segment.rows().len() == 0);
        if is_empty && !self.join.keeps_probe_rows() || batch.num_rows() == 0 {
            return Ok(());
        }
        if self.side.segments.len() > 1 {
            if let Some(limit) = self.join.limit {
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
        self.begin_segment(batch)
    }

    /// The segment that is probed.
    fn build(&self) -> &Arc<BuildSide> {
        &self.side.segments[self.segment]
    }

    /// Begins with the pairs of a batch with a segment.
    fn begin_segment(&mut self, batch: RecordBatch) -> Result<()> {
        let build = Arc::clone(self.build());
        let limit = match self.join.limit {
            Some(limit) if self.nearest.is_some() => Some(limit.with_skipped()),
            limit => limit,
        };
        let size = self.partition.batch_size;
        let mut search = PairSearch::try_new(&self.partition, &build, batch, limit, size)?;
        search.keeps_probe_rows = self.join.keeps_probe_rows() && self.side.segments.len() == 1;
        self.current = Some(search);
        Ok(())
    }

    /// The next rows of a probe batch, at most one batch.
    fn rows_of(&mut self, search: &mut PairSearch) -> Result<Vec<RecordBatch>> {
        let size = self.partition.batch_size;
        if self.pairs.len() < size {
            search.step(StepLimit::of_pairs(size), &mut self.pairs)?;
            if self.pairs.len() < size && !search.is_done() {
                return Ok(vec![]);
            }
        }
        self.return_pairs(&search.batch)
    }

    /// Returns collected pairs, at most one batch.
    fn return_pairs(&mut self, batch: &RecordBatch) -> Result<Vec<RecordBatch>> {
        let pairs = self.pairs.take(self.partition.batch_size);
        if let Some(nearest) = &mut self.nearest {
            nearest.add(self.segment, pairs);
            return Ok(vec![]);
        }
        if pairs.is_empty() {
            return Ok(vec![]);
        }
        let build = &self.side.segments[self.segment];
        pairs.mark(build, &mut self.matched);
        let (rows, positions) = pairs.into_arrays();
        let pairs = (&rows, &positions);
        self.join
            .output(Some(batch), &build.row_columns, pairs, None)
    }

    /// After the last segment: the rows of a batch that have matched none, if these are to follow, or all rows, if what
    /// segments have for them is merged.
    fn rows_after_segments(&mut self, batch: &RecordBatch) -> Result<Vec<RecordBatch>> {
        if let Some((nearest, limit)) = self.nearest.take().zip(self.join.limit) {
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
