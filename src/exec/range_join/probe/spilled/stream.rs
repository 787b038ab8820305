//! The output stream of a partition that probes a build side on disk.
//!
//! 1. Buffer probe rows, and take them through the runs ([`RunVisit`]). Pairs are returned as they are found. Rows with
//!    their aggregates, or without a match if these are kept, follow.
//! 2. Repeat that until the probe side ends. If the buffered rows may match most of many runs, and are not all, the
//!    build side is divided by hashes of the equality keys, and so are they and the rest of the probe side: its rows
//!    are written to disk ([`ProbeBuckets`]), and each bucket of them visits one run.
//! 3. If build rows are returned by whether they have matched, the partition that ends last reads all runs once more
//!    and returns them.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{Result, internal_err};

use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::probe_input::{BatchStream, next_with_rows};
use crate::exec::range_join::probe::row_source::{RowSource, stream_rows};
use crate::exec::range_join::probe::spilled::probe_buckets::{
    AnsweredRows, ProbeBuckets, ProbeBucketsWriter,
};
use crate::exec::range_join::probe::spilled::run_set::RunSet;
use crate::exec::range_join::probe::spilled::side::SpilledSide;
use crate::exec::range_join::probe::spilled::visit::{Buffered, BufferedRows, RunVisit};
use crate::exec::range_join::spill::reader::RunReader;
use crate::exec::range_join::spill::run::MIN_SPLIT_ROWS;
use rmq_arrow::range_agg::values::Values;

/// A build side in fewer runs is not divided by hashes: they are read as often as the probe rows fill a buffer.
const MIN_DIVIDED_RUNS: usize = 3;

/// Joins a partition of the probe side.
pub(crate) fn join_spilled(
    partition: Arc<ProbePartition>,
    side: Arc<SpilledSide>,
    input: BatchStream,
) -> BatchStream {
    let joined = SpilledStream {
        partition: Arc::clone(&partition),
        side,
        input: Some(input),
        remainder: None,
        visit: None,
        buckets: None,
        in_order: None,
        unreturned: None,
        is_marking: true,
    };
    stream_rows(partition, joined)
}

struct SpilledStream {
    partition: Arc<ProbePartition>,
    side: Arc<SpilledSide>,
    /// The probe rows, or those of a bucket; `None` after its end.
    input: Option<BatchStream>,
    /// The rows of a batch that did not fit into the last buffer.
    remainder: Option<RecordBatch>,
    visit: Option<RunVisit>,
    /// The probe rows on disk, if they are divided. Those of the input are of its current bucket then.
    buckets: Option<ProbeBuckets>,
    /// The divided probe rows with their answers.
    in_order: Option<AnsweredRows>,
    /// Whether matches may still be marked.
    is_marking: bool,
    /// The build rows that this partition has still to return.
    unreturned: Option<Unreturned>,
}

/// Build rows that are returned by whether they have matched.
struct Unreturned {
    runs: Arc<RunSet>,
    /// The number of the run.
    run: usize,
    /// The next row of the run.
    row: usize,
    reader: Option<RunReader>,
}

impl RowSource for SpilledStream {
    async fn next_rows(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        if let Some(visit) = self.visit.take() {
            let (visit, rows) = visit.turn().await?;
            self.visit = visit;
            return match &mut self.buckets {
                Some(buckets) if buckets.answer_schema().is_some() => {
                    buckets.write_answers(rows).await?;
                    Ok(Some(vec![]))
                }
                _ => Ok(Some(rows)),
            };
        }
        if self.input.is_some() {
            match self.next_buffer().await? {
                Some(buffered) => self.begin(buffered).await?,
                None => self.input = None,
            }
            return Ok(Some(vec![]));
        }
        if let Some(mut buckets) = self.buckets.take() {
            buckets.end_bucket().await?;
            let current = self.side.cache.current().map(|part| part.run);
            if let Some(rows) = buckets.next_bucket(current)? {
                self.input = Some(rows);
                self.buckets = Some(buckets);
            } else {
                self.in_order = buckets.in_order(self.side.reservation())?;
            }
            return Ok(Some(vec![]));
        }
        if let Some(in_order) = &mut self.in_order {
            let Some((batch, matched, aggregates)) = in_order.next().await? else {
                self.in_order = None;
                return Ok(Some(vec![]));
            };
            let joined = self
                .partition
                .append_aggregates(&batch, &matched, aggregates)?;
            return Ok(Some(joined));
        }
        if std::mem::take(&mut self.is_marking)
            && self.side.columns.marks_rows
            && self.side.finish_partition()
        {
            let runs = self.side.runs();
            self.unreturned = Some(Unreturned {
                run: runs.numbers().start,
                runs,
                row: 0,
                reader: None,
            });
        }
        match self.unreturned.take() {
            Some(unreturned) => self.build_rows(unreturned).await,
            None => Ok(None),
        }
    }
}

impl SpilledStream {
    /// Begins with buffered rows.
    async fn begin(&mut self, buffered: Buffered) -> Result<()> {
        let (partition, side) = (&self.partition, &self.side);
        if let Some(buckets) = &self.buckets {
            let rows = BufferedRows::try_new(&buckets.partition, side, buffered)?;
            let runs = Arc::clone(&buckets.runs);
            let (visited, answers) = (buckets.visited.clone(), buckets.answer_schema().cloned());
            self.visit = Some(RunVisit::new(rows, runs, visited, answers));
            return Ok(());
        }
        partition.metrics.probe_rows.add(buffered.rows());
        let runs = side.runs();
        if runs.routing.is_some() {
            return self.divide(buffered, runs).await;
        }
        let is_last = buffered.is_last;
        let rows = BufferedRows::try_new(partition, side, buffered)?;
        let divides = side.columns.may_divide && {
            let touched = rows.count_runs(&runs);
            let is_worthwhile = touched >= MIN_DIVIDED_RUNS && touched > runs.runs().len() / 2;
            is_worthwhile && !is_last || !side.columns.may_merge()
        };
        let runs = side.runs_for(divides).await?;
        if runs.routing.is_some() {
            return self.divide(rows.into_buffered(), runs).await;
        }
        let numbers = runs.numbers();
        self.visit = Some(RunVisit::new(rows, runs, numbers, None));
        Ok(())
    }

    /// Writes these rows and the rest of the input to disk, divided as the runs are.
    async fn divide(&mut self, first: Buffered, runs: Arc<RunSet>) -> Result<()> {
        let Some(schema) = first.batches.first().map(RecordBatch::schema) else {
            return internal_err!("no probe rows are to be divided");
        };
        let (partition, side) = (&self.partition, Arc::clone(&self.side));
        let mut writer = ProbeBucketsWriter::try_new(partition, &side, runs, &schema)?;
        let mut next = Some(first);
        while let Some(Buffered {
            batches, buffer, ..
        }) = next
        {
            writer = writer.write(batches).await?;
            drop(buffer);
            next = self.next_buffer().await?;
            let rows = next.as_ref().map_or(0, Buffered::rows);
            self.partition.metrics.probe_rows.add(rows);
        }
        self.input = None;
        self.buckets = Some(writer.finish(&side).await?);
        Ok(())
    }

    /// The next probe rows, as many as the buffer has room for; `None` at the end of the input.
    async fn next_buffer(&mut self) -> Result<Option<Buffered>> {
        let buffer = self.side.new_buffer();
        let mut batches = vec![];
        let mut is_last = false;
        while batches.is_empty() || buffer.has_room() {
            let Some(batch) = self.next_input().await? else {
                is_last = true;
                break;
            };
            let rows = batch.num_rows();
            let row_bytes = self.side.buffered_row_bytes(&batch).max(1);
            let most = (self.side.partition_bytes() / row_bytes).max(MIN_SPLIT_ROWS);
            // With fewer rows runs would be read too often.
            let least = (most / 4).max(MIN_SPLIT_ROWS).min(rows);
            let most = most.min(rows);
            let taken = buffer.add_rows(row_bytes, least, most);
            batches.push(batch.slice(0, taken));
            if taken < rows {
                self.remainder = Some(batch.slice(taken, rows - taken));
            }
            if taken < most {
                break;
            }
        }
        let buffered = Buffered {
            batches,
            buffer,
            is_last,
        };
        Ok(Some(buffered).filter(|buffered| !buffered.batches.is_empty()))
    }

    /// The remainder of a batch, or the next batch with rows.
    async fn next_input(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(remainder) = self.remainder.take() {
            return Ok(Some(remainder));
        }
        match &mut self.input {
            Some(input) => next_with_rows(input).await,
            None => Ok(None),
        }
    }

    /// The next build rows to be returned by whether they have matched.
    async fn build_rows(&mut self, mut unreturned: Unreturned) -> Result<Option<Vec<RecordBatch>>> {
        let side = &self.side;
        let Some(join) = &self.partition.row_join else {
            return internal_err!("a range join that returns aggregates has marked build rows");
        };
        if !unreturned.runs.numbers().contains(&unreturned.run) {
            return Ok(None);
        }
        let run = unreturned.runs.run(unreturned.run);
        let reader = match &mut unreturned.reader {
            Some(reader) => reader,
            None => unreturned.reader.insert(run.read()?),
        };
        let Some(batch) = reader.next().await? else {
            self.unreturned = Some(Unreturned {
                run: unreturned.run + 1,
                row: 0,
                reader: None,
                ..unreturned
            });
            return Ok(Some(vec![]));
        };
        let runs = Arc::clone(&unreturned.runs);
        let Some(matched) = runs.matched(unreturned.run) else {
            return internal_err!("a range join has not prepared to mark build rows");
        };
        let first = unreturned.row;
        unreturned.row += batch.num_rows();
        self.unreturned = Some(unreturned);
        let values = side.columns.values(batch.columns());
        let columns = side.columns.row_columns.iter();
        let columns = columns.map(|i| Arc::new(Values::by_position(Arc::clone(&values[*i]))));
        let columns: Vec<Arc<Values>> = columns.collect();
        let is_matched = |row| matched.is_marked(first + row);
        join.output_build_rows(&columns, 0..batch.num_rows(), is_matched)
            .map(Some)
    }
}
