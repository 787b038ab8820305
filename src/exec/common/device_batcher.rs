//! Combines input batches to large batches for devices, answers them on threads that may block, and returns them in
//! input order.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow::array::{Array, RecordBatch};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt};

use crate::exec::common::metrics::OperatorMetrics;

/// Rows per device batch: enough to utilize a device, few enough for a core's cache.
pub(crate) const BATCH_ROWS: usize = 1 << 18;

/// Device batches of a partition in flight: one is transferred while another is answered.
const IN_FLIGHT: usize = 2;

/// Answers batches on a thread that may block.
pub(crate) trait AnswerBatches: Send + Sync + 'static {
    /// Answers batches in one request to the device. Returns the batches with the results appended.
    ///
    /// # Errors
    /// Those of the bounds' expressions and of the engine.
    fn answer(&self, batches: &[RecordBatch]) -> Result<Vec<RecordBatch>>;

    /// Estimates the bytes of a row's bounds and results.
    fn row_bytes(&self) -> usize;

    /// The pool that the memory of batches is reserved in.
    fn pool(&self) -> &Arc<dyn MemoryPool>;

    /// The metrics that output rows are counted in.
    fn baseline(&self) -> &OperatorMetrics;
}

/// The stream of the input with the results. While the device is busy, rows are gathered; an idle device gets the rows
/// that are gathered so far, so that rows of a slow input don't wait.
///
/// Dropping the stream frees its memory once the batches in flight are answered, within milliseconds.
pub(crate) struct DeviceBatcher {
    answering: Arc<dyn AnswerBatches>,
    /// `None` after the end of the input.
    input: Option<BoxStream<'static, Result<RecordBatch>>>,
    gathered: Vec<RecordBatch>,
    rows: usize,
    /// Reserves the memory of the gathered batches.
    memory: MemoryReservation,
    /// In input order.
    in_flight: VecDeque<SpawnedTask<Result<Answered>>>,
    done: VecDeque<RecordBatch>,
    /// Reserves the memory of the finished batches.
    done_memory: Option<MemoryReservation>,
}

struct Answered {
    batches: Vec<RecordBatch>,
    memory: MemoryReservation,
}

impl DeviceBatcher {
    pub(crate) fn new(
        answering: Arc<dyn AnswerBatches>,
        input: BoxStream<'static, Result<RecordBatch>>,
    ) -> Self {
        let pool = answering.pool();
        Self {
            memory: MemoryConsumer::new("rmq batches for devices").register(pool),
            answering,
            input: Some(input),
            gathered: vec![],
            rows: 0,
            in_flight: VecDeque::new(),
            done: VecDeque::new(),
            done_memory: None,
        }
    }

    /// Starts answering the gathered batches.
    fn send(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        self.rows = 0;
        let batches = std::mem::take(&mut self.gathered);
        let memory = self.memory.take();
        let answering = Arc::clone(&self.answering);
        self.in_flight
            .push_back(SpawnedTask::spawn_blocking(move || {
                let batches = answering.answer(&batches)?;
                Ok(Answered { batches, memory })
            }));
    }

    /// Gathers a batch. If there is no memory for it, the batches before it are sent first.
    fn add(&mut self, batch: RecordBatch) {
        if batch.num_rows() == 0 {
            return;
        }
        let bytes = self.bytes(&batch);
        if self.memory.try_grow(bytes).is_err() {
            self.send();
            // The input has allocated the batch already. Results that can't be reserved here are accounted for by their
            // consumer.
            let _ = self.memory.try_grow(bytes);
        }
        self.rows += batch.num_rows();
        self.gathered.push(batch);
        if self.rows >= BATCH_ROWS {
            self.send();
        }
    }

    /// Estimates the bytes of a batch with its bounds and results.
    fn bytes(&self, batch: &RecordBatch) -> usize {
        let column = |c: &Arc<dyn Array>| c.to_data().get_slice_memory_size().unwrap_or(0);
        let columns: usize = batch.columns().iter().map(column).sum();
        columns + batch.num_rows() * self.answering.row_bytes()
    }
}

impl Stream for DeviceBatcher {
    type Item = Result<RecordBatch>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(batch) = this.done.pop_front() {
                let batch = this.answering.baseline().record(batch);
                return Poll::Ready(Some(Ok(batch)));
            }
            this.done_memory = None;
            let mut pending = false;
            if let Some(first) = this.in_flight.front_mut() {
                match first.poll_unpin(cx) {
                    Poll::Pending => pending = true,
                    Poll::Ready(ended) => {
                        this.in_flight.pop_front();
                        let answered = ended.unwrap_or_else(|error| {
                            if error.is_panic() {
                                std::panic::resume_unwind(error.into_panic());
                            }
                            Err(internal_datafusion_err!("answering did not end: {error}"))
                        });
                        match answered {
                            Err(error) => return Poll::Ready(Some(Err(error))),
                            Ok(Answered { batches, memory }) => {
                                this.done.extend(batches);
                                this.done_memory = Some(memory);
                            }
                        }
                        continue;
                    }
                }
            }
            let Some(input) = &mut this.input else {
                return if pending {
                    Poll::Pending
                } else {
                    Poll::Ready(None)
                };
            };
            if this.in_flight.len() >= IN_FLIGHT {
                return Poll::Pending;
            }
            match input.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(batch))) => this.add(batch),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => {
                    this.input = None;
                    this.send();
                }
                Poll::Pending if this.in_flight.is_empty() && !this.gathered.is_empty() => {
                    this.send();
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
