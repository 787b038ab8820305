//! Buffered probe rows on their way through the spill runs of a build side.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array, new_null_array};
use arrow::datatypes::SchemaRef;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, internal_err, resources_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::common::blocking::{Waiting, blocking, joined};
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::spilled::pairs::{PartPairs, Ready, mark_in_run};
use crate::exec::range_join::probe::spilled::partials::{Partials, answer_batch};
use crate::exec::range_join::probe::spilled::probe_buffer::ProbeBuffer;
use crate::exec::range_join::probe::spilled::run_cache::{PartPosition, RunPart};
use crate::exec::range_join::probe::spilled::run_set::RunSet;
use crate::exec::range_join::probe::spilled::side::SpilledSide;
use crate::exec::range_join::row_join::RowJoin;
use crate::exec::range_join::spill::key_extent::EncodedBound;
use crate::exec::range_join::spill::run::BuildRun;
use rmq_arrow::common::row_number::row_number;
use rmq_arrow::range_agg::values::Values;

/// Buffered probe rows.
pub(crate) struct Buffered {
    pub(crate) batches: Vec<RecordBatch>,
    /// Registers the batches.
    pub(crate) buffer: ProbeBuffer,
    /// Whether no rows follow.
    pub(crate) is_last: bool,
}

/// Buffered probe rows of one partition, and what has been found for them.
pub(crate) struct BufferedRows {
    partition: Arc<ProbePartition>,
    side: Arc<SpilledSide>,
    batches: Vec<BufferedBatch>,
    buffer: ProbeBuffer,
}

/// A buffered batch.
struct BufferedBatch {
    batch: RecordBatch,
    /// The bounds of its rows, to skip spill runs.
    bounds: Vec<EncodedBound>,
    results: BatchResults,
}

/// What the runs so far have for the rows of a batch.
enum BatchResults {
    Aggregates(Partials),
    /// Whether each row has matched; empty if the join returns nothing by that.
    Pairs(Arc<RowJoin>, Vec<bool>),
}

/// Buffered rows that visit runs.
pub(crate) struct RunVisit {
    rows: BufferedRows,
    runs: Arc<RunSet>,
    /// The schema of answers, if these are returned in place of the rows with their aggregates.
    answers: Option<SchemaRef>,
    /// Registers the rows of the last turn.
    returned: MemoryReservation,
    /// The numbers of the runs to visit, and for each whether batches have been taken through it, or it is in `work`,
    /// or matches none.
    numbers: Range<usize>,
    visited: Vec<bool>,
    /// What is left of the visited runs.
    work: Vec<UnvisitedPart>,
    /// The next of the probe rows to be returned after the last run: the batch, and the row in it.
    unreturned: (usize, usize),
}

/// Consecutive rows of a run that are still to be probed, with this probe row and those after it.
#[derive(Clone, Copy)]
struct UnvisitedPart {
    part: PartPosition,
    /// The batch, and the row in it.
    batch: usize,
    row: usize,
}

impl UnvisitedPart {
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

    /// About how many bytes this takes.
    fn bytes(&self) -> usize {
        let bounds: usize = self.bounds.iter().map(EncodedBound::bytes).sum();
        let results = match &self.results {
            BatchResults::Aggregates(partials) => partials.bytes(),
            BatchResults::Pairs(_, matched) => matched.len(),
        };
        DataSize::of_batch(&self.batch).bytes + bounds + results
    }
}

impl BufferedRows {
    /// Nothing has been found for these rows.
    pub(crate) fn try_new(
        partition: &Arc<ProbePartition>,
        side: &Arc<SpilledSide>,
        buffered: Buffered,
    ) -> Result<Self> {
        let Buffered {
            batches, buffer, ..
        } = buffered;
        let batches = batches.into_iter().map(|batch| {
            let rows = batch.num_rows();
            let bounds = partition.encode_bounds(&side.key_order, &batch);
            buffer.add(bounds.iter().map(EncodedBound::bytes).sum());
            let results = match (&side.merge_plan, &partition.row_join) {
                (Some(plan), _) => BatchResults::Aggregates(Partials::new(plan, partition, rows)),
                (None, Some(join)) => {
                    let rows = if join.keeps_probe_rows() { rows } else { 0 };
                    BatchResults::Pairs(Arc::clone(join), vec![false; rows])
                }
                (None, None) => return internal_err!("a range join returns neither"),
            };
            Ok(BufferedBatch {
                batch,
                bounds,
                results,
            })
        });
        let batches = batches.collect::<Result<_>>()?;
        Ok(Self {
            partition: Arc::clone(partition),
            side: Arc::clone(side),
            batches,
            buffer,
        })
    }

    /// How many of these runs the rows may match.
    pub(crate) fn count_runs(&self, runs: &RunSet) -> usize {
        let runs = runs.runs().iter();
        runs.filter(|run| self.batches.iter().any(|batch| batch.may_match(run)))
            .count()
    }

    /// The rows, which are not the last, without what has been found for them.
    pub(crate) fn into_buffered(self) -> Buffered {
        Buffered {
            batches: self.batches.into_iter().map(|b| b.batch).collect(),
            buffer: self.buffer,
            is_last: false,
        }
    }
}

impl Buffered {
    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }
}

impl RunVisit {
    /// A visit of the runs with these numbers. Returns answers of this schema, or else rows.
    pub(crate) fn new(
        rows: BufferedRows,
        runs: Arc<RunSet>,
        numbers: Range<usize>,
        answers: Option<SchemaRef>,
    ) -> Self {
        Self {
            returned: rows.side.reservation(),
            rows,
            runs,
            answers,
            visited: vec![false; numbers.len()],
            numbers,
            work: vec![],
            unreturned: (0, 0),
        }
    }

    /// Takes the next turn. Returns the rows of it, and the visit unless it has ended.
    pub(crate) async fn turn(mut self) -> Result<(Option<Self>, Vec<RecordBatch>)> {
        // The rows of the last turn have been taken.
        self.returned.free();
        let side = Arc::clone(&self.rows.side);
        let current = side.cache.current();
        let Some(work) = self.next_work(current).await else {
            let rows = self.rows_after_runs()?;
            return Ok((rows.is_some().then_some(self), rows.unwrap_or_default()));
        };
        // In a task of its own, so that the part is let go whether or not the partition's consumer goes on.
        let task = SpawnedTask::spawn(async move {
            let Some(part) = side.cache.load(&self.runs, work.part, current).await? else {
                self.work.push(work);
                return Ok((Some(self), vec![]));
            };
            blocking(move |waiting| match part.part(work.part) {
                Some(part) => {
                    let rows = self.probe(part, work, &waiting)?;
                    Ok((Some(self), rows))
                }
                None => internal_err!("a part of a spill run is not in memory"),
            })
            .await
        });
        joined(task, "probing a spill run").await
    }

    /// What to do next: with the part in memory or the rows after it if anything is left to do with these, else with
    /// the next run that has not been visited, else with what is left of others. So partitions meet at the same run,
    /// and it is read once for all. `current` is the part in memory, or wanted.
    async fn next_work(&mut self, current: Option<PartPosition>) -> Option<UnvisitedPart> {
        loop {
            if let Some(work) = current.and_then(|part| take_with(&mut self.work, part)) {
                return Some(work);
            }
            let first = current.map(|part| part.run);
            let is_current = |work: &UnvisitedPart| first == Some(work.part.run);
            match self.next_run(first).await {
                // Perhaps only a part of it is in memory.
                Some(work) if is_current(&work) => self.work.push(work),
                Some(work) => return Some(work),
                None => return take_after(&mut self.work, current),
            }
        }
    }

    /// All of the next run that has not been visited, from the `first` one on.
    async fn next_run(&mut self, first: Option<usize>) -> Option<UnvisitedPart> {
        let Range { start, end } = self.numbers;
        let first = first
            .filter(|run| self.numbers.contains(run))
            .unwrap_or(start);
        for number in (first..end).chain(start..first) {
            if std::mem::replace(&mut self.visited[number - start], true) {
                continue;
            }
            let run = self.runs.run(number);
            for batch in &self.rows.batches {
                // Lets other tasks run, and lets a cancelled query end.
                tokio::task::coop::consume_budget().await;
                if batch.may_match(run) {
                    let part = PartPosition {
                        run: number,
                        start: 0,
                        end: run.rows.rows,
                    };
                    return Some(UnvisitedPart {
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
        work: UnvisitedPart,
        waiting: &Waiting,
    ) -> Result<Vec<RecordBatch>> {
        let mut work = self.begin_part(part, work)?;
        let run = self.runs.run(part.run);
        let BufferedRows {
            partition,
            side,
            batches,
            buffer,
        } = &mut self.rows;
        let mut ready = Ready::new(side, &self.returned);
        while work.batch < batches.len() && !ready.is_full() {
            waiting.check()?;
            let BufferedBatch {
                batch,
                bounds,
                results,
            } = &mut batches[work.batch];
            match results {
                BatchResults::Aggregates(partials) => {
                    partials.probe(batch, bounds, part, run, waiting)?;
                }
                BatchResults::Pairs(join, matched) => {
                    let mut pairs = PartPairs {
                        partition,
                        join,
                        side: &part.side,
                        slice_rows: side.pairs_at_once(partition.batch_size),
                        batch,
                        matched,
                    };
                    if !pairs.add_to(&mut ready, &mut work.row, waiting)? {
                        continue;
                    }
                }
            }
            work.batch += 1;
            work.row = 0;
        }
        if let (Some(here), Some(of_run)) = (&part.side.matched, self.runs.matched(part.run)) {
            mark_in_run(here, of_run, &part.side.row_columns)?;
        }
        buffer.register(batches.iter().map(BufferedBatch::bytes).sum());
        if work.batch < batches.len() {
            self.work.push(work);
        }
        Ok(ready.batches)
    }

    /// The work with a part of a run in memory; the rest is left for later.
    fn begin_part(&mut self, part: &RunPart, mut work: UnvisitedPart) -> Result<UnvisitedPart> {
        if part.rows.end < work.part.end {
            let rest = PartPosition {
                start: part.rows.end,
                ..work.part
            };
            self.work.push(UnvisitedPart { part: rest, ..work });
            work.part.end = part.rows.end;
        }
        let run = self.runs.run(part.run);
        if !self.rows.side.columns.may_merge() && part.rows.len() < run.rows.rows {
            return resources_err!(
                "The build side of a range join has {} rows with equal keys, or equal hashes of these, which do not fit into memory at once. An aggregate that reads all rows of a window, or the nearest rows, need that",
                run.rows.rows
            );
        }
        Ok(work)
    }

    /// After the last run, of the next batch: its rows with their aggregates, or the answers for them, or those without
    /// a match if these are kept. `None` at the end.
    fn rows_after_runs(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        loop {
            let (index, first) = self.unreturned;
            let partition = &self.rows.partition;
            let Some(BufferedBatch { batch, results, .. }) = self.rows.batches.get_mut(index)
            else {
                return Ok(None);
            };
            let (join, matched) = match results {
                BatchResults::Aggregates(partials) => {
                    self.unreturned = (index + 1, 0);
                    let (matched, aggregates) = partials.take().finish()?;
                    return Ok(Some(match &self.answers {
                        Some(schema) => vec![answer_batch(schema, matched, &aggregates)?],
                        None => partition.append_aggregates(batch, &matched, aggregates)?,
                    }));
                }
                BatchResults::Pairs(join, matched) => (join, matched),
            };
            let rows = matched.iter().enumerate().skip(first);
            let rows = rows
                .filter(|(_, matched)| !**matched)
                .map(|(row, _)| row_number(row));
            let rows = rows
                .take(partition.batch_size)
                .collect::<Result<Vec<u32>>>()?;
            let rows = UInt32Array::from(rows);
            let Some(last) = rows.values().last() else {
                self.unreturned = (index + 1, 0);
                continue;
            };
            self.unreturned.1 = *last as usize + 1;
            let side = &self.rows.side;
            let mut ready = Ready::new(side, &self.returned);
            let types = side.row_types();
            let nulls = types
                .iter()
                .map(|t| Arc::new(Values::by_position(new_null_array(t, 1))));
            let nulls: Vec<Arc<Values>> = nulls.collect();
            let positions = UInt32Array::new_null(rows.len());
            ready.add(join, batch, &nulls, (&rows, &positions))?;
            return Ok(Some(ready.batches));
        }
    }
}

/// Takes the work with a part of a run, or else with the rows after it.
fn take_with(left: &mut Vec<UnvisitedPart>, part: PartPosition) -> Option<UnvisitedPart> {
    let mut numbered = (0..).zip(left.iter());
    let here = numbered.find_map(|(i, work)| Some((i, work.split(part)?)));
    if let Some((i, (here, others))) = here {
        left.swap_remove(i);
        let others = others.into_iter();
        left.extend(others.filter(|work| work.part.start < work.part.end));
        return Some(here);
    }
    let follows = |work: &UnvisitedPart| (work.part.run, work.part.start) == (part.run, part.end);
    let next = left.iter().position(follows)?;
    Some(left.swap_remove(next))
}

/// Takes the work that comes next after a part: in a circle, so that partitions meet.
fn take_after(left: &mut Vec<UnvisitedPart>, part: Option<PartPosition>) -> Option<UnvisitedPart> {
    let part = part.map(|part| (part.run, part.start));
    let next = (0..).zip(left.iter()).min_by_key(|(_, work)| {
        let place = (work.part.run, work.part.start);
        (Some(place) < part, place)
    });
    let (next, _) = next?;
    Some(left.swap_remove(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(run: usize, start: usize, end: usize) -> PartPosition {
        PartPosition { run, start, end }
    }

    fn work(parts: &[(usize, usize, usize)]) -> Vec<UnvisitedPart> {
        let parts = parts.iter().map(|(run, start, end)| UnvisitedPart {
            part: part(*run, *start, *end),
            batch: 3,
            row: 5,
        });
        parts.collect()
    }

    fn places(work: impl IntoIterator<Item = UnvisitedPart>) -> Vec<(usize, usize, usize)> {
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
