//! A partition that returns rows of a spilled build side.
//!
//! 1. Buffer probe rows, and take them through the runs ([`RowVisit`]). Probe rows without a match follow if they are
//!    kept.
//! 2. Repeat that until the probe side ends.
//! 3. If build rows are returned by whether they have matched, the partition that ends last reads all runs once more
//!    and returns them.

use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch, UInt32Array};
use datafusion::common::{JoinType, Result};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};

use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::probe::output_batches::OutputBatches;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::spilled::row_side::SpilledRows;
use crate::exec::range_join::probe::spilled::row_visit::RowVisit;
use crate::exec::range_join::row_join::RowJoin;
use crate::exec::range_join::spill::reader::RunReader;
use crate::exec::range_join::spill::run::MIN_SPLIT_ROWS;
use crate::range_agg::values::Values;

/// Batches of one partition.
type BatchStream = BoxStream<'static, Result<RecordBatch>>;

/// Bytes of a candidate range and of the mark of a probe row.
const RANGE_BYTES: usize = 17;

/// Joins a partition of the probe side.
pub(crate) fn join_spilled_rows(
    partition: Arc<ProbePartition>,
    join: Arc<RowJoin>,
    side: Arc<SpilledRows>,
    input: BatchStream,
) -> BatchStream {
    let joined = RowStream {
        output: OutputBatches::new(&partition, true),
        partition,
        join,
        side,
        input: Some(input),
        remainder: None,
        visit: None,
        unreturned: None,
    };
    let batches = stream::try_unfold(joined, |mut this| async {
        let batch = this.next().await?;
        Ok(batch.map(|batch| (batch, this)))
    });
    batches.boxed()
}

struct RowStream {
    partition: Arc<ProbePartition>,
    join: Arc<RowJoin>,
    side: Arc<SpilledRows>,
    /// `None` after its end.
    input: Option<BatchStream>,
    /// The rows of a batch that did not fit into the last buffer.
    remainder: Option<RecordBatch>,
    visit: Option<RowVisit>,
    /// The build rows that this partition has still to return.
    unreturned: Option<Unreturned>,
    output: OutputBatches,
}

/// Build rows that are returned by whether they have matched.
#[derive(Default)]
struct Unreturned {
    run: usize,
    /// The next row of the run.
    row: usize,
    reader: Option<RunReader>,
}

impl RowStream {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.output.next()? {
                return Ok(Some(self.partition.metrics.baseline.record(batch)));
            }
            match self.next_rows().await? {
                Some(rows) => self.output.add(rows),
                None if self.output.finish()? => {}
                None => return Ok(None),
            }
            // Lets other tasks run, and lets a cancelled query end.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// More rows, possibly none; `None` at the end.
    async fn next_rows(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        if let Some(visit) = self.visit.take() {
            let (visit, rows) = visit.turn().await?;
            self.visit = visit;
            return Ok(Some(rows));
        }
        if self.input.is_some() {
            self.visit = self.next_visit().await?;
            if self.visit.is_none() {
                self.input = None;
                if self.join.marks_build_rows() && self.side.finish_partition() {
                    self.unreturned = Some(Unreturned::default());
                }
            }
            return Ok(Some(vec![]));
        }
        match self.unreturned.take() {
            Some(unreturned) => self.build_rows(unreturned).await,
            None => Ok(None),
        }
    }

    /// A visit of the next probe rows, as many as the buffer has room for; `None` at their end.
    async fn next_visit(&mut self) -> Result<Option<RowVisit>> {
        let buffer = self.side.new_buffer();
        let mut batches = vec![];
        while batches.is_empty() || buffer.has_room() {
            let Some(batch) = self.next_input().await? else {
                break;
            };
            let DataSize { rows, bytes } = DataSize::of_batch(&batch);
            let row_bytes = bytes.div_ceil(rows) + RANGE_BYTES;
            let fitting = (self.side.partition_bytes() / row_bytes)
                .clamp(MIN_SPLIT_ROWS, rows.max(MIN_SPLIT_ROWS));
            let fitting = fitting.min(rows);
            if fitting < rows {
                self.remainder = Some(batch.slice(fitting, rows - fitting));
            }
            buffer.add(fitting * row_bytes);
            batches.push(batch.slice(0, fitting));
        }
        if batches.is_empty() {
            return Ok(None);
        }
        let join = (&self.partition, &self.join);
        Ok(Some(RowVisit::new(join, &self.side, batches, buffer)))
    }

    /// The remainder of a batch, or the next batch with rows.
    async fn next_input(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(remainder) = self.remainder.take() {
            return Ok(Some(remainder));
        }
        let Some(input) = &mut self.input else {
            return Ok(None);
        };
        while let Some(batch) = input.try_next().await? {
            if batch.num_rows() > 0 {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// The next build rows to be returned by whether they have matched.
    async fn build_rows(&mut self, mut unreturned: Unreturned) -> Result<Option<Vec<RecordBatch>>> {
        let side = &self.side;
        let Some(run) = side.cache.loader.runs().get(unreturned.run) else {
            return Ok(None);
        };
        let reader = match &mut unreturned.reader {
            Some(reader) => reader,
            None => unreturned.reader.insert(run.read()?),
        };
        let Some(batch) = reader.next().await? else {
            self.unreturned = Some(Unreturned {
                run: unreturned.run + 1,
                ..Unreturned::default()
            });
            return Ok(Some(vec![]));
        };
        let matched = &side.matched[unreturned.run];
        let first = unreturned.row;
        unreturned.row += batch.num_rows();
        self.unreturned = Some(unreturned);
        let is_marked = |row: &u32| matched.is_marked(first + *row as usize);
        let all = (0_u32..).take(batch.num_rows());
        let marks: BooleanArray = all.clone().map(|row| Some(is_marked(&row))).collect();
        let wanted = match self.join.join_type() {
            JoinType::RightMark => None,
            JoinType::RightSemi => Some(true),
            _ => Some(false),
        };
        let rows = all.filter(|row| wanted.is_none_or(|wanted| wanted == is_marked(row)));
        let rows = UInt32Array::from_iter_values(rows);
        let values = side.columns.values(batch.columns());
        let columns = side.columns.row_columns.iter();
        let columns = columns.map(|i| Arc::new(Values::by_position(Arc::clone(&values[*i]))));
        let columns: Vec<Arc<Values>> = columns.collect();
        let no_rows = UInt32Array::from(Vec::<u32>::new());
        let marks = wanted.is_none().then_some(&marks);
        let pairs = (&no_rows, &rows);
        self.join.output(None, &columns, pairs, marks).map(Some)
    }
}
