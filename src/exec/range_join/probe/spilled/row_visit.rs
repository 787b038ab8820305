//! Buffered probe rows on their way through the spill runs of a build side of which rows are returned.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch, UInt32Array, new_null_array};
use arrow::datatypes::UInt32Type;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::row_number::row_numbers;
use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::range_join::build_side::matched_rows::MatchedRows;
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::probe::candidates::Candidates;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::spilled::probe_buffer::ProbeBuffer;
use crate::exec::range_join::probe::spilled::row_side::SpilledRows;
use crate::exec::range_join::probe::spilled::run_cache::{PartPosition, RunPart};
use crate::exec::range_join::row_join::RowJoin;
use crate::exec::range_join::spill::key_extent::EncodedBound;
use crate::exec::range_join::spill::run::BuildRun;
use crate::range_agg::values::Values;
use rmq_engine::SearchHints;

/// The buffered probe rows of one partition.
pub(crate) struct RowVisit {
    partition: Arc<ProbePartition>,
    join: Arc<RowJoin>,
    side: Arc<SpilledRows>,
    batches: Vec<BufferedBatch>,
    _buffer: ProbeBuffer,
    /// Registers the rows of the last turn.
    returned: MemoryReservation,
    /// The runs that batches have been taken through or are in `work`, and those that match none.
    visited: Vec<bool>,
    /// What is left of the visited runs.
    work: Vec<Work>,
    /// The next of the probe rows to be returned if it has not matched: the batch, and the row in it.
    unmatched: (usize, usize),
}

/// A buffered batch.
struct BufferedBatch {
    batch: RecordBatch,
    /// The bounds of its rows, to skip spill runs.
    bounds: Vec<EncodedBound>,
    /// Whether each row has matched; empty if no one wants to know.
    matched: Vec<bool>,
}

/// Consecutive rows of a run that are still to be probed, with this probe row and those after it.
#[derive(Clone, Copy)]
struct Work {
    part: PartPosition,
    /// The batch, and the row in it.
    batch: usize,
    row: usize,
}

impl Work {
    /// Divides the work into that with a part of its rows and that before and after it; `None` if the part has other
    /// rows.
    fn split(self, part: PartPosition) -> Option<(Self, [Self; 2])> {
        let PartPosition { run, start, end } = self.part;
        let is_within = part.run == run && start <= part.start && part.end <= end;
        let with = |start, end| Self {
            part: PartPosition { run, start, end },
            ..self
        };
        is_within.then(|| {
            let others = [with(start, part.start), with(part.end, end)];
            (with(part.start, part.end), others)
        })
    }
}

impl BufferedBatch {
    fn may_match(&self, run: &BuildRun) -> bool {
        (0..self.batch.num_rows()).any(|row| run.may_match(&self.bounds, row))
    }
}

impl RowVisit {
    /// A visit of these batches.
    pub(crate) fn new(
        (partition, join): (&Arc<ProbePartition>, &Arc<RowJoin>),
        side: &Arc<SpilledRows>,
        batches: Vec<RecordBatch>,
        buffer: ProbeBuffer,
    ) -> Self {
        let batches = batches.into_iter().map(|batch| {
            partition.metrics.probe_rows.add(batch.num_rows());
            let rows = if join.keeps_probe_rows() {
                batch.num_rows()
            } else {
                0
            };
            let bounds = partition.encode_bounds(&side.key_order, &batch);
            buffer.add(bounds.iter().map(EncodedBound::bytes).sum());
            BufferedBatch {
                bounds,
                matched: vec![false; rows],
                batch,
            }
        });
        Self {
            batches: batches.collect(),
            partition: Arc::clone(partition),
            join: Arc::clone(join),
            visited: vec![false; side.cache.loader.runs().len()],
            returned: side.reservation(),
            side: Arc::clone(side),
            _buffer: buffer,
            work: vec![],
            unmatched: (0, 0),
        }
    }

    /// Takes the next turn. Returns the rows of it, and the visit unless it has ended.
    pub(crate) async fn turn(mut self) -> Result<(Option<Self>, Vec<RecordBatch>)> {
        // The rows of the last turn have been taken.
        self.returned.free();
        let Some(work) = self.next_work().await else {
            let unmatched = self.unmatched_rows()?;
            return Ok((
                unmatched.is_some().then_some(self),
                unmatched.unwrap_or_default(),
            ));
        };
        // In a task of its own, so that the part is let go whether or not the partition's consumer goes on.
        let task = SpawnedTask::spawn(async move {
            let part = self.side.cache.load(work.part).await?;
            blocking(move |waiting| match part.part(work.part) {
                Some(part) => {
                    let rows = self.probe(part, work, &waiting)?;
                    Ok((Some(self), rows))
                }
                None => internal_err!("a part of a spill run is not in memory"),
            })
            .await
        });
        let ended = |e| internal_datafusion_err!("probing a spill run did not end: {e}");
        task.join_unwind().await.map_err(ended)?
    }

    /// What to do next: with the part in memory or the rows after it if anything is left to do with these, else with
    /// the next run that has not been visited, else with what is left of others. So partitions meet at the same run,
    /// and it is read once for all.
    async fn next_work(&mut self) -> Option<Work> {
        let current = self.side.cache.current();
        loop {
            if let Some(work) = current.and_then(|part| take_with(&mut self.work, part)) {
                return Some(work);
            }
            let first = current.map_or(0, |part| part.run);
            let is_current = |work: &Work| current.is_some_and(|part| work.part.run == part.run);
            match self.next_run(first).await {
                // Perhaps only a part of it is in memory.
                Some(work) if is_current(&work) => self.work.push(work),
                Some(work) => return Some(work),
                None => return take_after(&mut self.work, current),
            }
        }
    }

    /// All of the next run that has not been visited, from the `first` one on.
    async fn next_run(&mut self, first: usize) -> Option<Work> {
        let runs = self.side.cache.loader.runs();
        for run in (first..runs.len()).chain(0..first) {
            if std::mem::replace(&mut self.visited[run], true) {
                continue;
            }
            for batch in &self.batches {
                // Lets other tasks run, and lets a cancelled query end.
                tokio::task::coop::consume_budget().await;
                if batch.may_match(&runs[run]) {
                    let part = PartPosition {
                        run,
                        start: 0,
                        end: runs[run].rows,
                    };
                    return Some(Work {
                        part,
                        batch: 0,
                        row: 0,
                    });
                }
            }
        }
        None
    }

    /// Probes a part of a run until it has no more matches, or enough rows are ready.
    fn probe(
        &mut self,
        part: &RunPart,
        mut work: Work,
        waiting: &Waiting,
    ) -> Result<Vec<RecordBatch>> {
        if part.rows.end < work.part.end {
            let rest = PartPosition {
                start: part.rows.end,
                ..work.part
            };
            self.work.push(Work { part: rest, ..work });
            work.part.end = part.rows.end;
        }
        let run = &self.side.cache.loader.runs()[part.run];
        let mut ready = Ready {
            batches: vec![],
            memory: &self.returned,
            row_bytes: self.side.row_bytes(),
            limit: self.side.partition_bytes(),
            is_denied: false,
        };
        let mut last_found = SearchHints::default();
        while work.batch < self.batches.len() && !ready.is_full() {
            waiting.check()?;
            let buffered = &mut self.batches[work.batch];
            if buffered.may_match(run) {
                let (partition, side) = (&self.partition, &part.side);
                let ranges = partition.find_ranges(&buffered.batch, side, &mut last_found)?;
                let _timer = partition.metrics.time_query();
                let mut candidates = Candidates::new(buffered.batch.clone(), ranges, None);
                candidates.skip_to(work.row);
                let pairs = Pairs {
                    join: &self.join,
                    part,
                    slice_rows: partition.batch_size,
                };
                pairs.add_to(&mut ready, &mut candidates, &mut buffered.matched, waiting)?;
                if !candidates.is_done() {
                    work.row = candidates.row();
                    continue;
                }
            }
            work.batch += 1;
            work.row = 0;
        }
        if let (Some(here), Some(of_run)) = (&part.side.matched, self.side.matched.get(part.run)) {
            mark_in_run(here, of_run, &part.side.row_columns)?;
        }
        if work.batch < self.batches.len() {
            self.work.push(work);
        }
        Ok(ready.batches)
    }

    /// The next probe rows that have matched in no run, at most a batch, if they are kept; `None` at their end.
    fn unmatched_rows(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        loop {
            let (index, first) = self.unmatched;
            let Some(BufferedBatch { batch, matched, .. }) = self.batches.get(index) else {
                return Ok(None);
            };
            let rows = (0_u32..).zip(matched).skip(first);
            let rows = rows.filter(|(_, matched)| !**matched).map(|(row, _)| row);
            let rows = UInt32Array::from_iter_values(rows.take(self.partition.batch_size));
            let Some(last) = rows.values().last() else {
                self.unmatched = (index + 1, 0);
                continue;
            };
            self.unmatched.1 = *last as usize + 1;
            let mut ready = Ready {
                batches: vec![],
                memory: &self.returned,
                row_bytes: self.side.row_bytes(),
                limit: 0,
                is_denied: false,
            };
            let types = self.side.row_types();
            let nulls = types
                .iter()
                .map(|t| Arc::new(Values::by_position(new_null_array(t, 1))));
            let nulls: Vec<Arc<Values>> = nulls.collect();
            let positions = UInt32Array::new_null(rows.len());
            ready.add(&self.join, batch, &nulls, (&rows, &positions))?;
            return Ok(Some(ready.batches));
        }
    }
}

/// Takes the work with a part of a run, or else with the rows after it.
fn take_with(left: &mut Vec<Work>, part: PartPosition) -> Option<Work> {
    let mut numbered = (0..).zip(left.iter());
    let here = numbered.find_map(|(i, work)| Some((i, work.split(part)?)));
    if let Some((i, (here, others))) = here {
        left.swap_remove(i);
        let others = others.into_iter();
        left.extend(others.filter(|work| work.part.start < work.part.end));
        return Some(here);
    }
    let follows = |work: &Work| (work.part.run, work.part.start) == (part.run, part.end);
    let next = left.iter().position(follows)?;
    Some(left.swap_remove(next))
}

/// Takes the work that comes next after a part: in a circle, so that partitions meet.
fn take_after(left: &mut Vec<Work>, part: Option<PartPosition>) -> Option<Work> {
    let part = part.map(|part| (part.run, part.start));
    let next = (0..).zip(left.iter()).min_by_key(|(_, work)| {
        let place = (work.part.run, work.part.start);
        (Some(place) < part, place)
    });
    let (next, _) = next?;
    Some(left.swap_remove(next))
}

/// Marks the rows of a run that have matched in a part of it. The last row column has their places in the run.
fn mark_in_run(here: &MatchedRows, of_run: &MatchedRows, columns: &[Arc<Values>]) -> Result<()> {
    let Some(places) = columns.last() else {
        return internal_err!("a spill run has no row numbers");
    };
    let marked = (0..here.rows()).filter(|position| here.is_marked(*position));
    let places = places.take(&UInt32Array::from(row_numbers(marked)?))?;
    let places = places.as_primitive::<UInt32Type>();
    let places = places.values().iter();
    places.for_each(|place| of_run.mark(*place as usize));
    Ok(())
}

/// The rows that a turn returns.
struct Ready<'a> {
    batches: Vec<RecordBatch>,
    /// Registers the batches.
    memory: &'a MemoryReservation,
    /// The estimated bytes that a row has of the build side.
    row_bytes: usize,
    limit: usize,
    /// Whether the pool had no memory for the last rows.
    is_denied: bool,
}

impl Ready<'_> {
    fn is_full(&self) -> bool {
        !self.batches.is_empty() && (self.is_denied || self.memory.size() >= self.limit)
    }

    /// Adds the rows of these pairs of a probe batch. Their memory is registered first, even if the pool has no more:
    /// the turn ends soon then.
    fn add(
        &mut self,
        join: &RowJoin,
        batch: &RecordBatch,
        columns: &[Arc<Values>],
        pairs: (&UInt32Array, &UInt32Array),
    ) -> Result<()> {
        let DataSize { rows, bytes } = DataSize::of_batch(batch);
        let before = self.memory.size();
        let expected = pairs.0.len() * (bytes.div_ceil(rows.max(1)) + self.row_bytes);
        if self.memory.try_grow(expected).is_err() {
            self.is_denied = true;
            self.memory.grow(expected);
        }
        let mut bytes = 0;
        for batch in join.output(Some(batch), columns, pairs, None)? {
            if batch.num_rows() > 0 {
                bytes += DataSize::of_batch(&batch).bytes;
                self.batches.push(batch);
            }
        }
        self.memory.resize(before + bytes);
        Ok(())
    }
}

/// The pairs of probe rows with the rows of a part of a run.
struct Pairs<'a> {
    join: &'a RowJoin,
    part: &'a RunPart,
    slice_rows: usize,
}

impl Pairs<'_> {
    /// Adds the rows of these candidates, until all of a probe row have been taken and `ready` is full.
    fn add_to(
        &self,
        ready: &mut Ready<'_>,
        candidates: &mut Candidates,
        matched: &mut [bool],
        waiting: &Waiting,
    ) -> Result<()> {
        let side = &self.part.side;
        while !candidates.is_done() {
            waiting.check()?;
            let (mut rows, mut positions) = (vec![], vec![]);
            let (mut seen, mut is_between_rows) = (0, true);
            while seen < self.slice_rows && !candidates.is_done() {
                let (row, range, is_last) = candidates.next_positions(self.slice_rows - seen)?;
                seen += range.len().max(1);
                positions.extend(range);
                rows.resize(positions.len(), row);
                is_between_rows = is_last;
                if is_last && ready.is_full() {
                    break;
                }
            }
            let mut pairs = (UInt32Array::from(rows), UInt32Array::from(positions));
            if let Some(residual) = self.join.residual().filter(|_| !pairs.0.is_empty()) {
                let met = RowJoin::meet_residual(
                    residual,
                    &candidates.batch,
                    &side.row_columns,
                    (&pairs.0, &pairs.1),
                )?;
                pairs = (filtered(&pairs.0, &met)?, filtered(&pairs.1, &met)?);
            }
            if !matched.is_empty() {
                pairs
                    .0
                    .values()
                    .iter()
                    .for_each(|row| matched[*row as usize] = true);
            }
            if let Some(marks) = &side.matched {
                let positions = pairs.1.values().iter();
                positions.for_each(|position| marks.mark(*position as usize));
            }
            if !self.join.returns_build_rows() && !pairs.0.is_empty() {
                let pairs = (&pairs.0, &pairs.1);
                ready.add(self.join, &candidates.batch, &side.row_columns, pairs)?;
            }
            if is_between_rows && ready.is_full() {
                break;
            }
        }
        Ok(())
    }
}

fn filtered(numbers: &UInt32Array, met: &BooleanArray) -> Result<UInt32Array> {
    let filtered: ArrayRef = arrow::compute::filter(numbers, met)?;
    Ok(filtered.as_primitive::<UInt32Type>().clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(run: usize, start: usize, end: usize) -> PartPosition {
        PartPosition { run, start, end }
    }

    fn work(parts: &[(usize, usize, usize)]) -> Vec<Work> {
        let parts = parts.iter().map(|(run, start, end)| Work {
            part: part(*run, *start, *end),
            batch: 3,
            row: 5,
        });
        parts.collect()
    }

    fn places(work: impl IntoIterator<Item = Work>) -> Vec<(usize, usize, usize)> {
        let places = work
            .into_iter()
            .inspect(|work| assert_eq!((work.batch, work.row), (3, 5)));
        let mut places: Vec<_> = places
            .map(|work| (work.part.run, work.part.start, work.part.end))
            .collect();
        places.sort_unstable();
        places
    }

    #[test]
    fn work_with_the_part_in_memory_comes_first() {
        let mut left = work(&[(0, 0, 9), (1, 0, 9), (2, 4, 9)]);
        assert_eq!(places(take_with(&mut left, part(1, 3, 6))), [(1, 3, 6)]);
        let rest = [(0, 0, 9), (1, 0, 3), (1, 6, 9), (2, 4, 9)];
        assert_eq!(places(left.clone()), rest);
        // The rows after the part are read next, without beginning the run again.
        assert_eq!(places(take_with(&mut left, part(2, 0, 4))), [(2, 4, 9)]);
        assert_eq!(places(take_with(&mut left, part(1, 0, 3))), [(1, 0, 3)]);
        assert_eq!(places(take_with(&mut left, part(1, 4, 6))), [(1, 6, 9)]);
        assert_eq!(places(take_with(&mut left, part(1, 0, 9))), []);
        assert_eq!(places(left), [(0, 0, 9)]);
    }

    #[test]
    fn what_is_left_is_taken_in_a_circle() {
        let mut left = work(&[(0, 0, 9), (3, 0, 9), (1, 0, 4), (1, 4, 9)]);
        assert_eq!(
            places(take_after(&mut left, Some(part(1, 2, 4)))),
            [(1, 4, 9)]
        );
        assert_eq!(
            places(take_after(&mut left, Some(part(1, 4, 9)))),
            [(3, 0, 9)]
        );
        assert_eq!(
            places(take_after(&mut left, Some(part(3, 0, 9)))),
            [(0, 0, 9)]
        );
        assert_eq!(places(take_after(&mut left, None)), [(1, 0, 4)]);
        assert_eq!(places(take_after(&mut left, None)), []);
    }
}
