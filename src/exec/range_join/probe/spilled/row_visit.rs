//! Buffered probe rows on their way through the spill runs of a build side of which rows are returned.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch, UInt32Array, new_null_array};
use arrow::datatypes::UInt32Type;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::range_join::build::matched_rows::MatchedRows;
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::rows::Candidates;
use crate::exec::range_join::probe::spilled::probe_buffer::ProbeBuffer;
use crate::exec::range_join::probe::spilled::row_side::SpilledRows;
use crate::exec::range_join::probe::spilled::run_cache::{PartPosition, RunPart};
use crate::exec::range_join::row_join::RowJoin;
use crate::exec::range_join::spill::key_extent::EncodedBound;
use crate::exec::range_join::spill::run::SpillRun;
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
    /// The runs that all batches have been taken through, or that match none.
    visited: Vec<bool>,
    /// What is left of the current run, the next last.
    work: Vec<Work>,
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

impl BufferedBatch {
    fn may_match(&self, run: &SpillRun) -> bool {
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
            BufferedBatch {
                bounds: partition.encode_bounds(side.store.key_order(), &batch),
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
        }
    }

    /// Takes the next turn. Returns the rows of it, and the visit unless it has ended.
    pub(crate) async fn turn(mut self) -> Result<(Option<Self>, Vec<RecordBatch>)> {
        let Some(work) = self.work.pop().or_else(|| self.next_run()) else {
            return Ok((None, self.unmatched_rows()?));
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

    /// The beginning of the next run: the one in memory if it has not been visited, else the next one after it.
    fn next_run(&mut self) -> Option<Work> {
        let runs = self.side.cache.loader.runs();
        let first = self.side.cache.loaded_run().unwrap_or(0);
        for run in (first..runs.len()).chain(0..first) {
            if std::mem::replace(&mut self.visited[run], true) {
                continue;
            }
            if self.batches.iter().any(|batch| batch.may_match(&runs[run])) {
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
            bytes: 0,
            limit: self.side.partition_bytes(),
        };
        let mut last_found = SearchHints::default();
        while work.batch < self.batches.len() && !ready.is_full() {
            waiting.check()?;
            let buffered = &mut self.batches[work.batch];
            if buffered.may_match(run) {
                let (partition, side) = (&self.partition, &part.side);
                let ranges = partition.find_ranges(&buffered.batch, side, &mut last_found)?;
                let _timer = partition.metrics.query_time.timer();
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
        self.returned.resize(ready.bytes);
        Ok(ready.batches)
    }

    /// The probe rows that have matched in no run, if they are kept.
    fn unmatched_rows(&self) -> Result<Vec<RecordBatch>> {
        if !self.join.keeps_probe_rows() {
            return Ok(vec![]);
        }
        let types = self.side.row_types();
        let nulls = types
            .iter()
            .map(|t| Arc::new(Values::by_position(new_null_array(t, 1))));
        let nulls: Vec<Arc<Values>> = nulls.collect();
        let mut unmatched = vec![];
        for BufferedBatch { batch, matched, .. } in &self.batches {
            let rows = (0_u32..).zip(matched).filter(|(_, matched)| !**matched);
            let rows: UInt32Array = rows.map(|(row, _)| Some(row)).collect();
            if rows.is_empty() {
                continue;
            }
            let positions = UInt32Array::new_null(rows.len());
            let pairs = (&rows, &positions);
            unmatched.extend(self.join.output(Some(batch), &nulls, pairs, None)?);
        }
        Ok(unmatched)
    }
}

/// Marks the rows of a run that have matched in a part of it. The last row column has their places in the run.
fn mark_in_run(here: &MatchedRows, of_run: &MatchedRows, columns: &[Arc<Values>]) -> Result<()> {
    let Some(places) = columns.last() else {
        return internal_err!("a spill run has no row numbers");
    };
    let marked = (0..here.rows()).filter(|position| here.is_marked(*position));
    let marked = marked.filter_map(|position| u32::try_from(position).ok());
    let places = places.take(&UInt32Array::from_iter_values(marked))?;
    let places = places.as_primitive::<UInt32Type>();
    let places = places.values().iter();
    places.for_each(|place| of_run.mark(*place as usize));
    Ok(())
}

/// The rows that a turn returns.
struct Ready {
    batches: Vec<RecordBatch>,
    bytes: usize,
    limit: usize,
}

impl Ready {
    fn is_full(&self) -> bool {
        !self.batches.is_empty() && self.bytes >= self.limit
    }

    fn push(&mut self, batch: RecordBatch) {
        if batch.num_rows() > 0 {
            self.bytes += DataSize::of_batch(&batch).bytes;
            self.batches.push(batch);
        }
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
        ready: &mut Ready,
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
                let (row, range, is_last) = candidates.next_positions(self.slice_rows - seen);
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
                    candidates.batch(),
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
                let batch = Some(candidates.batch());
                let pairs = (&pairs.0, &pairs.1);
                let joined = self.join.output(batch, &side.row_columns, pairs, None)?;
                for batch in joined {
                    ready.push(batch);
                }
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
