//! Joins a partition of the probe side with a build side in memory, and returns rows: pairs that match, and rows of either side.
//!
//! 1. For each probe batch, `ProbePartition::find_ranges` finds the range of build positions that matches each row.
//! 2. The pairs of the ranges are taken in slices of one output batch, by probe row, so that memory is bounded however many there are.
//! 3. A further condition is evaluated on each slice, or an index lists the rows that meet its threshold, and only the rest of it is evaluated. What
//!    is left is returned, with the probe rows that have matched nothing where these are kept.
//!    Where only the nearest pairs of a row are returned, without a condition its range is clipped first, with one see `nearest`.
//! 4. Where build rows must be returned by whether they have matched, pairs mark these. The partition that ends last returns them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::BatchCoalescer;
use datafusion::common::{JoinType, Result, internal_err};
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::metrics::RecordOutput;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};

use crate::common::dictionaries::has_few_keys;
use crate::common::ranges::Ranges;
use crate::exec::range_join::build::matched_rows::MatchedRows;
use crate::exec::range_join::build::side::BuildSide;
use crate::exec::range_join::probe::candidate_pairs::{CandidateSlice, NO_ROW, PairBuffer};
use crate::exec::range_join::probe::nearest::{NearestMatches, clip};
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::qualifying::QualifyingRows;
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
    let fields = partition.schema.fields();
    // Concatenating dictionaries whose keys are too narrow for the values of all batches fails or panics in Arrow.
    let merges = partition.is_bounded && !fields.iter().any(|f| has_few_keys(f.data_type()));
    let coalescer = merges.then(|| {
        let size = partition.batch_size;
        let coalescer = BatchCoalescer::new(Arc::clone(&partition.schema), size);
        coalescer.with_biggest_coalesce_batch_size(Some(size / 2))
    });
    let joined = RowStream {
        pairs: PairBuffer::default(),
        partition,
        join,
        build,
        input: Some(input),
        last_found: SearchHints::default(),
        current: None,
        unreturned: 0..0,
        ready: VecDeque::new(),
        coalescer,
    };
    let batches = stream::try_unfold(joined, |mut this| async {
        let batch = this.next().await?;
        Ok(batch.map(|batch| (batch, this)))
    });
    batches.boxed()
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
    ready: VecDeque<RecordBatch>,
    /// Merges small batches; `None` if each is returned as it is.
    coalescer: Option<BatchCoalescer>,
}

impl RowStream {
    /// The next batch of rows.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let merged = self.coalescer.as_mut();
            let ready = merged.and_then(BatchCoalescer::next_completed_batch);
            if let Some(batch) = ready.or_else(|| self.ready.pop_front()) {
                return Ok(Some(batch.record_output(&self.partition.metrics.baseline)));
            }
            let Some(rows) = self.next_rows().await? else {
                let finished = match self.coalescer.as_mut() {
                    Some(coalescer) if !coalescer.is_empty() => coalescer.finish_buffered_batch(),
                    _ => return Ok(None),
                };
                finished?;
                continue;
            };
            for batch in rows {
                match self.coalescer.as_mut() {
                    _ if batch.num_rows() == 0 => {}
                    Some(coalescer) => coalescer.push_batch(batch)?,
                    None => self.ready.push_back(batch),
                }
            }
            // Lets other tasks run, and lets a cancelled query end.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// More rows, possibly none; `None` at the end.
    async fn next_rows(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        if let Some(mut candidates) = self.current.take() {
            let partition = Arc::clone(&self.partition);
            let _timer = partition.metrics.baseline.elapsed_compute().timer();
            let _timer = partition.metrics.query_time.timer();
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
        let size = self.partition.batch_size;
        self.current = Some(Candidates {
            descending: limit.descending,
            nearest: (self.join.residual()).map(|_| NearestMatches::new(&ranges, limit, size)),
            ..Candidates::new(batch, clip(&ranges, limit), None)
        });
        Ok(())
    }

    /// The next rows of a probe batch, at most one batch.
    fn rows_of(&mut self, candidates: &mut Candidates) -> Result<Vec<RecordBatch>> {
        let join = Arc::clone(&self.join);
        let Some(residual) = join.residual() else {
            if join.returns_build_rows() {
                let matched = matched_rows(&self.build)?;
                let mut room = MARKED_AT_ONCE;
                while room > 0 && !candidates.is_done() {
                    let (_, positions, _) = candidates.next_positions(room);
                    room = room.saturating_sub(positions.len().max(1));
                    matched.mark_range(positions.start as usize..positions.end as usize);
                }
                return Ok(vec![]);
            }
            let limit = self.partition.batch_size;
            candidates.take_all(limit, join.keeps_probe_rows(), &mut self.pairs);
            return self.return_pairs(&candidates.batch);
        };
        if let Some(nearest) = &mut candidates.nearest {
            if self.pairs.len() < self.partition.batch_size {
                nearest.step(residual, &candidates.batch, &self.build)?;
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
        let wanted = match self.join.join_type() {
            JoinType::RightMark => None,
            JoinType::RightSemi => Some(true),
            _ => Some(false),
        };
        let positions = slice
            .clone()
            .filter(|p| wanted.is_none_or(|w| w == matched.is_marked(*p)));
        let positions = positions.filter_map(|position| u32::try_from(position).ok());
        let positions = UInt32Array::from(positions.collect::<Vec<_>>());
        let marks: BooleanArray = slice.map(|p| Some(matched.is_marked(p))).collect();
        let no_rows = UInt32Array::from(Vec::<u32>::new());
        let marks = wanted.is_none().then_some(&marks);
        self.join
            .output(None, &self.build.row_columns, (&no_rows, &positions), marks)
    }
}

fn matched_rows(build: &BuildSide) -> Result<&MatchedRows> {
    match &build.matched {
        Some(matched) => Ok(matched),
        None => internal_err!("a range join has not prepared to mark build rows"),
    }
}

/// The positions of a range; `None` if it is empty.
fn range_of((left, right): (i64, i64)) -> Option<Range<usize>> {
    let (left, right) = (usize::try_from(left).ok()?, usize::try_from(right).ok()?);
    (left <= right).then(|| left..right + 1)
}

/// The pairs of a probe batch that match by equality keys and range, as far as they have not been taken. They are in the order of probe rows, then
/// of positions.
pub(crate) struct Candidates {
    batch: RecordBatch,
    ranges: Ranges,
    /// The candidates of the ranges that meet the join's threshold, if its index is used.
    qualifying: Option<QualifyingRows>,
    /// The current probe row.
    row: usize,
    /// How many positions of its range have been taken.
    taken: usize,
    /// Whether a pair of the current probe row has met the further condition.
    has_match: bool,
    /// Whether positions are taken from the end of each range on.
    descending: bool,
    /// The search for pairs that meet the further condition, if only the nearest are returned.
    nearest: Option<NearestMatches>,
}

impl Candidates {
    pub(crate) fn new(
        batch: RecordBatch,
        ranges: Ranges,
        qualifying: Option<QualifyingRows>,
    ) -> Self {
        Self {
            batch,
            ranges,
            qualifying,
            row: 0,
            taken: 0,
            has_match: false,
            descending: false,
            nearest: None,
        }
    }

    pub(crate) fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// The current probe row.
    pub(crate) fn row(&self) -> usize {
        self.row
    }

    /// Leaves out the probe rows before this one.
    pub(crate) fn skip_to(&mut self, row: usize) {
        self.row = row;
    }

    pub(crate) fn is_done(&self) -> bool {
        match &self.nearest {
            Some(nearest) => nearest.is_done(),
            None => self.row >= self.ranges.len(),
        }
    }

    /// The number of the current probe row, and the positions of it that are not taken, at most `limit`. If these are all, the next row becomes the
    /// current one.
    pub(crate) fn next_positions(&mut self, limit: usize) -> (u32, Range<u32>, bool) {
        let row = self.row;
        let range = (self.ranges.left()[row], self.ranges.right()[row]);
        let range = range_of(range).unwrap_or(0..0);
        let rest = range.len() - self.taken;
        let rows = rest.min(limit);
        let start = if self.descending {
            range.start + rest - rows
        } else {
            range.start + self.taken
        };
        let end = start + rows;
        self.taken += rows;
        let is_last = rows == rest;
        if is_last {
            self.row += 1;
            self.taken = 0;
        }
        // Build sides have fewer than 2^32 rows, and batches too.
        let number = |n: usize| u32::try_from(n).unwrap_or(NO_ROW);
        (number(row), number(start)..number(end), is_last)
    }

    /// Takes candidates until `pairs` has `limit` pairs, and rows of NULLs for probe rows without any if these are kept.
    fn take_all(&mut self, limit: usize, keeps_probe_rows: bool, pairs: &mut PairBuffer) {
        while pairs.len() < limit && !self.is_done() {
            let (row, positions, _) = self.next_positions(limit - pairs.len());
            if positions.is_empty() && keeps_probe_rows {
                pairs.add(row, NO_ROW);
            }
            pairs.rows.resize(pairs.rows.len() + positions.len(), row);
            if self.descending {
                pairs.positions.extend(positions.rev());
            } else {
                pairs.positions.extend(positions);
            }
        }
    }

    /// Takes up to `limit` candidates, without those that are `matched`.
    fn take_slice(
        &mut self,
        limit: usize,
        matched: Option<&MatchedRows>,
    ) -> Result<CandidateSlice> {
        let mut slice = CandidateSlice::default();
        if let Some(qualifying) = &mut self.qualifying {
            let listed = qualifying.next(self.row, limit)?;
            slice.add_listed(listed, self.row, matched);
            self.row += listed.ends.len();
            return Ok(slice);
        }
        let mut seen = 0;
        while seen < limit && !self.is_done() {
            let (row, positions, is_last) = self.next_positions(limit - seen);
            // A row without candidates takes time, too.
            seen += positions.len().max(1);
            slice.add(row, positions, matched);
            if is_last {
                slice.ended.push((row, slice.rows.len()));
            }
        }
        Ok(slice)
    }
}
