//! The stream of one partition: evaluates the bounds of each batch, queries the indexes, appends the results.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::concat;
use arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, exec_err, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::common::device_batcher::{AnswerBatches, DeviceBatcher};
use crate::exec::common::metrics::OperatorMetrics;
use crate::exec::range_lookup::call::Search;
use crate::exec::range_lookup::index_builder::PreparedIndex;
use crate::exec::range_lookup::metrics::RangeLookupMetrics;
use crate::kept::ready_index::ReadyIndex;
use datafusion_rmq_logical::expr::index_lookup::RunIndex;
use rmq_arrow::common::range_function::RangeFunction;
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::index::best_positions::CountedRanges;
use rmq_arrow::index::key_index::Answer;
use rmq_arrow::index::threshold::ThresholdTest;

/// Batches that are answered together where rows are read for them, if they have come. They are in memory meanwhile.
const GATHERED_BATCHES: usize = 16;

/// The state of one partition.
#[derive(Debug)]
pub(crate) struct LookupStream {
    pub(crate) schema: SchemaRef,
    pub(crate) searches: Vec<Search>,
    pub(crate) metrics: RangeLookupMetrics,
    pub(crate) context: Arc<TaskContext>,
    /// Whether a partition has recorded the indexes in the metrics.
    pub(crate) recorded: Arc<AtomicBool>,
    /// The index of each search; empty until the first row arrives.
    pub(crate) prepared: Vec<PreparedIndex>,
}

type Batches = BoxStream<'static, Result<RecordBatch>>;

impl LookupStream {
    /// Returns the stream of the input with the results.
    pub(crate) fn start(self, input: SendableRecordBatchStream) -> SendableRecordBatchStream {
        let schema = Arc::clone(&self.schema);
        let batches = futures::stream::once(self.answer_input(input)).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(schema, batches.fuse()))
    }

    /// Waits for the first row, then for the indexes, then answers batches.
    async fn answer_input(mut self, mut input: SendableRecordBatchStream) -> Result<Batches> {
        let first = loop {
            match input.try_next().await? {
                None => return Ok(futures::stream::empty().boxed()),
                Some(batch) if batch.num_rows() == 0 => {}
                Some(batch) => break batch,
            }
        };
        self.prepare().await?;
        let input = futures::stream::iter([Ok(first)]).chain(input).boxed();
        if self.prepared.iter().any(|one| one.files.is_some()) {
            return Ok(Arc::new(self).answer_by_reading(input));
        }
        let on_devices = |one: &PreparedIndex| one.ready.reserved.index.is_on_devices();
        if self.prepared.iter().any(on_devices) {
            return Ok(DeviceBatcher::new(Arc::new(self), input).boxed());
        }
        let returns_lists = self
            .searches
            .iter()
            .any(|search| search.call.returns_lists());
        let this = Arc::new(self);
        let answers = input.then(move |batch| {
            let this = Arc::clone(&this);
            async move {
                let batch = batch?;
                let mut answered = if returns_lists {
                    // Long lists take long. On another thread, a query that is cancelled does not wait for them.
                    let lists = Arc::clone(&this);
                    blocking(move |waiting| lists.answer_until(waiting.stop(), &[batch])).await?
                } else {
                    // The CPU engine answers a batch faster than another thread wakes up.
                    this.answer(std::slice::from_ref(&batch))?
                };
                let answered = answered.pop();
                let answered =
                    answered.ok_or_else(|| internal_datafusion_err!("a batch has no answers"))?;
                Ok::<_, DataFusionError>(this.metrics.baseline.record(answered))
            }
        });
        Ok(answers.boxed())
    }

    /// Answers batches where columns are in files. The more ranges are gathered, the fewer pages are read repeatedly.
    fn answer_by_reading(self: Arc<Self>, input: Batches) -> Batches {
        let gathered = input.ready_chunks(GATHERED_BATCHES);
        let answered = gathered.then(move |batches| {
            let this = Arc::clone(&self);
            async move {
                let batches = batches.into_iter().collect::<Result<Vec<_>>>()?;
                let mut answers = Answers::of(&this.searches);
                for (number, prepared) in this.prepared.iter().enumerate() {
                    let arguments = Arguments::evaluate(&this.searches[number], &batches)?;
                    let _timer = this.metrics.query_time.timer();
                    let answer = match &prepared.files {
                        Some(files) => {
                            let ranges = arguments.ranges()?;
                            let ranges = ranges.iter().flat_map(Ranges::iter).collect();
                            let index = &prepared.ready.reserved.index;
                            let (answer, rows) =
                                files.answer(index, &ranges, &this.context).await?;
                            this.metrics.record_rows_read(rows);
                            answer
                        }
                        None => {
                            let on_thread = Arc::clone(&this);
                            let search = move |waiting: Waiting| {
                                on_thread.search(number, &arguments, waiting.stop())
                            };
                            blocking(search).await?
                        }
                    };
                    this.metrics.record_answer(prepared, &answer);
                    answers.add(&this.searches[number], &answer);
                }
                let answered = this.with_answers(&batches, &answers)?.into_iter();
                let baseline = &this.metrics.baseline;
                let answered: Vec<_> = answered.map(|batch| Ok(baseline.record(batch))).collect();
                Ok::<_, DataFusionError>(futures::stream::iter(answered))
            }
        });
        answered.try_flatten().boxed()
    }

    /// Answers batches; an error soon after `stop` is set.
    fn answer_until(&self, stop: &AtomicBool, batches: &[RecordBatch]) -> Result<Vec<RecordBatch>> {
        let compute = self.metrics.baseline.elapsed_compute().clone();
        let _timer = compute.timer();
        let mut answers = Answers::of(&self.searches);
        for (number, (search, prepared)) in self.searches.iter().zip(&self.prepared).enumerate() {
            let arguments = Arguments::evaluate(search, batches)?;
            let query_timer = self.metrics.query_time.timer();
            let answer = self.search(number, &arguments, stop)?;
            query_timer.done();
            self.metrics.record_answer(prepared, &answer);
            answers.add(search, &answer);
        }
        self.with_answers(batches, &answers)
    }

    /// Answers the search of this number by an index of all rows.
    fn search(&self, number: usize, arguments: &Arguments, stop: &AtomicBool) -> Result<Answer> {
        let search = &self.searches[number];
        let ready = &self.prepared[number].ready;
        let extreme = match search.call.function {
            RangeFunction::Extreme { extreme, .. } => extreme,
            RangeFunction::Statistic(_) => return arguments.call(ready, search.call.function),
        };
        let returns = |position| {
            search
                .outputs
                .iter()
                .any(|output| output.position == position)
        };
        match (search.call.crossing(), &arguments.last) {
            (None, Some(counts)) => {
                let name = search.call.function.range_name();
                let bounds = arguments.left.iter().zip(&arguments.right);
                let counted = bounds.zip(counts).map(|((left, right), counts)| {
                    CountedRanges::try_new(name, left, right, counts)
                });
                let counted = counted.collect::<Result<Vec<_>>>()?;
                ready.answer_by(|index| index.best_positions(&counted, stop))
            }
            (Some(end), Some(thresholds)) => {
                let ranges = arguments.ranges()?;
                let test = ThresholdTest::of_function(extreme);
                ready.answer_by(|index| index.crossings(&ranges, thresholds, end, test))
            }
            _ => {
                let ranges = arguments.ranges()?;
                let (values, positions) = (returns(false), returns(true));
                ready.answer_by(|index| index.answer(&ranges, values, positions))
            }
        }
    }

    /// Appends the answers to the batches.
    fn with_answers(&self, batches: &[RecordBatch], answers: &Answers) -> Result<Vec<RecordBatch>> {
        let mut first = 0;
        let answered = batches.iter().map(|batch| {
            let rows = batch.num_rows();
            let mut columns = batch.columns().to_vec();
            for answer in &answers.0 {
                let answer = answer
                    .as_ref()
                    .ok_or_else(|| internal_datafusion_err!("a call has no answer"))?;
                columns.push(if batches.len() == 1 {
                    Arc::clone(answer)
                } else {
                    answer.slice(first, rows)
                });
            }
            first += rows;
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let schema = Arc::clone(&self.schema);
            Ok(RecordBatch::try_new_with_options(
                schema, columns, &options,
            )?)
        });
        answered.collect()
    }
}

/// The arguments of a search: of each batch an array.
struct Arguments {
    left: Vec<ArrayRef>,
    right: Vec<ArrayRef>,
    last: Option<Vec<ArrayRef>>,
}

impl Arguments {
    fn evaluate(search: &Search, batches: &[RecordBatch]) -> Result<Self> {
        let evaluate = |expr: &Arc<dyn PhysicalExpr>| {
            let arrays = batches.iter().map(|batch| {
                let value = expr.evaluate(batch)?;
                value.into_array(batch.num_rows())
            });
            arrays.collect::<Result<Vec<ArrayRef>>>()
        };
        Ok(Self {
            left: evaluate(&search.call.left)?,
            right: evaluate(&search.call.right)?,
            last: search.call.threshold.as_ref().map(evaluate).transpose()?,
        })
    }

    /// Answers a function batch by batch.
    fn call(&self, ready: &ReadyIndex, function: RangeFunction) -> Result<Answer> {
        let bounds = self.left.iter().zip(&self.right);
        let values = bounds.enumerate().map(|(i, bounds)| {
            let last = self.last.as_ref().map_or(&[][..], |last| &last[i..=i]);
            let answer = ready.call(function, function.range_name(), bounds, last)?;
            answer.into_values()
        });
        let values = values.collect::<Result<Vec<_>>>()?;
        Ok(Answer::of_values(match values.as_slice() {
            [one] => Arc::clone(one),
            several => concat(&several.iter().map(AsRef::as_ref).collect::<Vec<_>>())?,
        }))
    }

    fn ranges(&self) -> Result<Vec<Ranges>> {
        let bounds = self.left.iter().zip(&self.right);
        bounds
            .map(|(left, right)| Ranges::try_new(left, right))
            .collect()
    }
}

/// The results of the calls, in their order.
struct Answers(Vec<Option<ArrayRef>>);

impl Answers {
    /// None yet.
    fn of(searches: &[Search]) -> Self {
        let calls = searches.iter().map(|s| s.outputs.len()).sum();
        Self(vec![None; calls])
    }

    fn add(&mut self, search: &Search, answer: &Answer) {
        for output in &search.outputs {
            self.0[output.call] = if output.position {
                answer.positions.clone()
            } else {
                answer.values.clone()
            };
        }
    }
}

impl AnswerBatches for LookupStream {
    fn answer(&self, batches: &[RecordBatch]) -> Result<Vec<RecordBatch>> {
        self.answer_until(&AtomicBool::new(false), batches)
    }

    fn row_bytes(&self) -> usize {
        32 * self.searches.len()
    }

    fn pool(&self) -> &Arc<dyn MemoryPool> {
        self.context.memory_pool()
    }

    fn baseline(&self) -> &OperatorMetrics {
        &self.metrics.baseline
    }
}

impl LookupStream {
    /// Prepares the index of each search.
    ///
    /// # Errors
    /// Those of the preparation; an execution error if the type of a column changed since the query was planned.
    async fn prepare(&mut self) -> Result<()> {
        let mut prepared = vec![];
        for Search { call, .. } in &self.searches {
            let kind = call.function.index_kind();
            let index = call
                .relation
                .index(&call.column, kind, &self.context)
                .await?;
            let found = call
                .function
                .result_type(index.ready.reserved.index.value_type());
            if found != call.data_type {
                return exec_err!(
                    "{call}: the column was a {} when the query was planned and now is a {found}; run the query again",
                    call.data_type
                );
            }
            prepared.push(index);
        }
        if !self.recorded.swap(true, Ordering::Relaxed) {
            for index in &prepared {
                self.metrics.record_index(index);
            }
        }
        self.prepared = prepared;
        Ok(())
    }
}
