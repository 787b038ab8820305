//! Reads rows, finds their frames and returns the rows with the values of these.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::{SortOptions, concat, partition};
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use futures::TryStreamExt;

use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::common::metrics::OperatorMetrics;
use crate::exec::window_frame::bounds::FrameBounds;
use crate::exec::window_frame::call::FrameCall;
use rmq_arrow::common::array_bytes::arrays_bytes;

/// The rows of one partition of the input.
pub(crate) struct FrameStream {
    input: SendableRecordBatchStream,
    is_at_end: bool,
    schema: SchemaRef,
    calls: Arc<[FrameCall]>,
    /// The rows that later frames can reach, and those that are not returned yet.
    kept: Vec<Rows>,
    /// How many of these rows were returned.
    returned: usize,
    /// The frame of the last row that was returned, of each call.
    last: Vec<Range<usize>>,
    /// The input of the rows that are not returned yet.
    waiting: VecDeque<RecordBatch>,
    ready: VecDeque<RecordBatch>,
    memory: MemoryReservation,
    metrics: OperatorMetrics,
}

impl FrameStream {
    /// The rows of `input` with the values of the calls, one or more.
    pub(crate) fn new(
        input: SendableRecordBatchStream,
        schema: SchemaRef,
        calls: Arc<[FrameCall]>,
        memory: MemoryReservation,
        metrics: OperatorMetrics,
    ) -> Self {
        Self {
            input,
            is_at_end: false,
            schema,
            last: vec![0..0; calls.len()],
            calls,
            kept: vec![],
            returned: 0,
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            memory,
            metrics,
        }
    }

    /// The next rows.
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(Some(self.metrics.record(batch)));
            }
            if self.is_at_end {
                return Ok(None);
            }
            let kept: usize = self.kept.iter().map(|rows| rows.count).sum();
            let mut read = 0;
            // As many rows as are kept, so that each is looked at a constant number of times.
            while read < kept.max(1) && !self.is_at_end {
                let batch = self.input.try_next().await?;
                let time = self.metrics.elapsed_compute().clone();
                let _timer = time.timer();
                match batch {
                    None => self.is_at_end = true,
                    Some(batch) if batch.num_rows() == 0 => {}
                    Some(batch) => {
                        read += batch.num_rows();
                        let rows = Rows::try_new(&batch, &self.calls)?;
                        self.memory
                            .grow(rows.bytes() + arrays_bytes(batch.columns()));
                        self.kept.push(rows);
                        self.waiting.push_back(batch);
                    }
                }
            }
            let time = self.metrics.elapsed_compute().clone();
            let _timer = time.timer();
            if let Some(rows) = Rows::concat(std::mem::take(&mut self.kept))? {
                self.answer(&rows).await?;
                self.count_memory();
            }
        }
    }

    fn count_memory(&self) {
        let kept: usize = self.kept.iter().map(Rows::bytes).sum();
        let batches = self.waiting.iter().chain(&self.ready);
        let batches: usize = batches.map(|batch| arrays_bytes(batch.columns())).sum();
        self.memory.resize(kept + batches);
    }

    /// Answers the frames of these rows that are final, and keeps what is left.
    async fn answer(&mut self, rows: &Rows) -> Result<()> {
        let groups = rows.groups()?;
        let bounds = self.calls.iter().map(|call| rows.bounds(call));
        let bounds = bounds.collect::<Result<Vec<_>>>()?;
        let frames = bounds.iter().zip(&self.last);
        let frames = frames.map(|(bounds, last)| self.find(bounds, last, rows, &groups));
        let mut frames: Vec<_> = frames.collect();
        // Calls have other frames, and rows are returned with the values of all.
        let count = frames.iter().map(Vec::len).min().unwrap_or_default();
        for frames in &mut frames {
            frames.truncate(count);
        }
        let mut values = vec![];
        for ((call, arguments), frames) in self.calls.iter().zip(&rows.arguments).zip(&frames) {
            values.push(if call.reads_frames() {
                // On another thread, so that a query that is cancelled does not wait for it.
                let (call, arguments) = (call.clone(), arguments.clone());
                let (keys, frames) = (rows.keys.clone(), frames.clone());
                let memory = self.memory.new_empty();
                let work = move |waiting: Waiting| {
                    call.evaluate(&arguments, &keys, &frames, &waiting, &memory)
                };
                blocking(work).await?
            } else {
                let waiting = Waiting::forever();
                call.evaluate(arguments, &rows.keys, frames, &waiting, &self.memory)?
            });
        }
        self.hand_out(count, &values)?;

        let next = self.returned + count;
        let mut first = next;
        if let Some(open) = groups.last().filter(|group| group.start < next) {
            // Frames of this group go on from the last one.
            for ((last, frames), bounds) in self.last.iter_mut().zip(frames).zip(&bounds) {
                if let Some(frame) = frames.into_iter().next_back() {
                    *last = frame;
                }
                let reached = bounds.first_reached(next - 1, open, last.start);
                first = first.min(reached).min(next - 1);
            }
            for last in &mut self.last {
                *last = last.start - first..last.end - first;
            }
        }
        self.returned = next - first;
        if first < rows.count {
            self.kept.push(rows.slice(first..rows.count));
        }
        Ok(())
    }

    /// The frames of the rows that are not returned yet, as far as they are final.
    fn find(
        &self,
        bounds: &FrameBounds,
        last: &Range<usize>,
        rows: &Rows,
        groups: &[Range<usize>],
    ) -> Vec<Range<usize>> {
        let mut found = vec![];
        for group in groups.iter().filter(|group| group.end > self.returned) {
            let from = group.start.max(self.returned);
            let mut last = if group.start < from {
                last.clone()
            } else {
                from..from
            };
            let is_whole = self.is_at_end || group.end < rows.count;
            bounds.find(group, from..group.end, is_whole, &mut last, &mut found);
        }
        found
    }

    /// Makes the next `count` rows that wait ready, with these values.
    fn hand_out(&mut self, count: usize, values: &[ArrayRef]) -> Result<()> {
        let mut done = 0;
        while done < count
            && let Some(batch) = self.waiting.pop_front()
        {
            let len = batch.num_rows().min(count - done);
            if len < batch.num_rows() {
                let rest = batch.slice(len, batch.num_rows() - len);
                self.waiting.push_front(rest);
            }
            let mut columns = batch.slice(0, len).columns().to_vec();
            columns.extend(values.iter().map(|values| values.slice(done, len)));
            let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
            self.ready.push_back(batch);
            done += len;
        }
        Ok(())
    }
}

/// What window functions need of some rows.
struct Rows {
    count: usize,
    partition_by: Vec<ArrayRef>,
    keys: Vec<ArrayRef>,
    /// Of each call.
    arguments: Vec<Vec<ArrayRef>>,
}

impl Rows {
    /// Evaluates the expressions of the calls, which have the same PARTITION BY and ORDER BY.
    fn try_new(batch: &RecordBatch, calls: &[FrameCall]) -> Result<Self> {
        let count = batch.num_rows();
        let first = &calls[0].expr;
        let partition_by = first.partition_by().iter();
        let partition_by = partition_by.map(|e| e.evaluate(batch)?.into_array(count));
        let keys = first.order_by_columns(batch)?;
        let arguments = calls.iter().map(|call| call.expr.evaluate_args(batch));
        Ok(Self {
            count,
            partition_by: partition_by.collect::<Result<_>>()?,
            keys: keys.into_iter().map(|key| key.values).collect(),
            arguments: arguments.collect::<Result<_>>()?,
        })
    }

    /// Where the frames of a call end.
    fn bounds(&self, call: &FrameCall) -> Result<FrameBounds> {
        let order = call.expr.order_by().iter().map(|key| key.options);
        let order: Vec<SortOptions> = order.collect();
        FrameBounds::try_new(call.expr.get_window_frame(), &self.keys, &order)
    }

    /// One after the other; `None` without any.
    fn concat(mut parts: Vec<Self>) -> Result<Option<Self>> {
        if parts.len() < 2 {
            return Ok(parts.pop());
        }
        let column = |part: &dyn Fn(&Self) -> &ArrayRef| {
            let arrays: Vec<_> = parts.iter().map(|rows| part(rows).as_ref()).collect();
            Ok(concat(&arrays)?)
        };
        let first = &parts[0];
        let partition_by = (0..first.partition_by.len()).map(|i| column(&|r| &r.partition_by[i]));
        let keys = (0..first.keys.len()).map(|i| column(&|r| &r.keys[i]));
        let arguments = first.arguments.iter().enumerate().map(|(call, arguments)| {
            let arguments = (0..arguments.len()).map(|i| column(&|r| &r.arguments[call][i]));
            arguments.collect::<Result<_>>()
        });
        Ok(Some(Self {
            count: parts.iter().map(|rows| rows.count).sum(),
            partition_by: partition_by.collect::<Result<_>>()?,
            keys: keys.collect::<Result<_>>()?,
            arguments: arguments.collect::<Result<_>>()?,
        }))
    }

    /// The rows of each group, in order.
    fn groups(&self) -> Result<Vec<Range<usize>>> {
        Ok(match self.partition_by.as_slice() {
            [] => std::iter::once(0..self.count).collect(),
            columns => partition(columns)?.ranges(),
        })
    }

    fn slice(&self, rows: Range<usize>) -> Self {
        let part = |columns: &[ArrayRef]| -> Vec<ArrayRef> {
            let columns = columns.iter();
            columns.map(|c| c.slice(rows.start, rows.len())).collect()
        };
        Self {
            count: rows.len(),
            partition_by: part(&self.partition_by),
            keys: part(&self.keys),
            arguments: self.arguments.iter().map(|columns| part(columns)).collect(),
        }
    }

    fn bytes(&self) -> usize {
        let arguments = self.arguments.iter();
        let arguments: usize = arguments.map(|columns| arrays_bytes(columns)).sum();
        arrays_bytes(&self.partition_by) + arrays_bytes(&self.keys) + arguments
    }
}
