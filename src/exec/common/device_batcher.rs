//! Batches on their way to devices, which want them large: gathered, answered by threads that may wait, and given on as
//! they came.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow::array::{Array, RecordBatch};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::physical_plan::metrics::{BaselineMetrics, RecordOutput};
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt};

/// Rows that go to a device at once: enough for it to be busy, few enough to stay in a core's cache.
const ROWS: usize = 1 << 18;

/// How many such batches of a partition are under way: one is copied while another is answered.
const UNDER_WAY: usize = 2;

/// What answers batches, on a thread that may wait.
pub(crate) trait AnswerBatches: Send + Sync + 'static {
    /// The batches with their answers, all asked at once.
    fn answer(&self, batches: &[RecordBatch]) -> Result<Vec<RecordBatch>>;

    /// About how many bytes a row's bounds and answers take.
    fn row_bytes(&self) -> usize;

    /// The memory that batches are registered with.
    fn pool(&self) -> &Arc<dyn MemoryPool>;

    /// Where rows that leave are counted.
    fn baseline(&self) -> &BaselineMetrics;
}

/// The input with the answers. While the device is busy, rows are gathered; when it has nothing to do, it gets those that are
/// there, so that a slow input's rows don't wait.
///
/// Dropping it lets go of everything once the batches under way are answered, some milliseconds later.
pub(crate) struct Gathering {
    answering: Arc<dyn AnswerBatches>,
    /// None when it has ended.
    input: Option<BoxStream<'static, Result<RecordBatch>>>,
    gathered: Vec<RecordBatch>,
    rows: usize,
    /// Registers what is gathered.
    memory: MemoryReservation,
    /// In the order of the input.
    under_way: VecDeque<SpawnedTask<Result<Answered>>>,
    done: VecDeque<RecordBatch>,
    /// Registers what is done.
    done_memory: Option<MemoryReservation>,
}

struct Answered {
    batches: Vec<RecordBatch>,
    memory: MemoryReservation,
}

impl Gathering {
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
            under_way: VecDeque::new(),
            done: VecDeque::new(),
            done_memory: None,
        }
    }

    /// Sends what is gathered on its way.
    fn send(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        self.rows = 0;
        let batches = std::mem::take(&mut self.gathered);
        let memory = self.memory.take();
        let answering = Arc::clone(&self.answering);
        self.under_way
            .push_back(SpawnedTask::spawn_blocking(move || {
                let batches = answering.answer(&batches)?;
                Ok(Answered { batches, memory })
            }));
    }

    /// Adds a batch, after those before it have gone where there is no memory for more.
    fn add(&mut self, batch: RecordBatch) {
        if batch.num_rows() == 0 {
            return;
        }
        let bytes = self.bytes(&batch);
        if self.memory.try_grow(bytes).is_err() {
            self.send();
            // What its input has in memory anyway; without room for its answers, these show where they are used.
            let _ = self.memory.try_grow(bytes);
        }
        self.rows += batch.num_rows();
        self.gathered.push(batch);
        if self.rows >= ROWS {
            self.send();
        }
    }

    /// About how many bytes a batch takes with its bounds and answers.
    fn bytes(&self, batch: &RecordBatch) -> usize {
        let column = |c: &Arc<dyn Array>| c.to_data().get_slice_memory_size().unwrap_or(0);
        let columns: usize = batch.columns().iter().map(column).sum();
        columns + batch.num_rows() * self.answering.row_bytes()
    }
}

impl Stream for Gathering {
    type Item = Result<RecordBatch>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(batch) = this.done.pop_front() {
                let batch = batch.record_output(this.answering.baseline());
                return Poll::Ready(Some(Ok(batch)));
            }
            this.done_memory = None;
            let mut pending = false;
            if let Some(first) = this.under_way.front_mut() {
                match first.poll_unpin(cx) {
                    Poll::Pending => pending = true,
                    Poll::Ready(ended) => {
                        this.under_way.pop_front();
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
            if this.under_way.len() >= UNDER_WAY {
                return Poll::Pending;
            }
            match input.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(batch))) => this.add(batch),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => {
                    this.input = None;
                    this.send();
                }
                Poll::Pending if this.under_way.is_empty() && !this.gathered.is_empty() => {
                    this.send();
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
