//! The rows of a probe partition on disk, divided by hashes of the equality keys as the build side is.
//!
//! ```text
//!   probe rows ──▶ a file for each bucket            ──▶ probe its run ──▶ pairs, or a file of answers in the same order
//!              └─▶ all rows in order, with buckets   ────────────────────▶ each row takes the next answer of its bucket
//! ```
//!
//! Where aggregates are returned, the order of probe rows is kept without numbers: all rows are written in order with
//! the number of their bucket, and in the buckets only the columns that the join reads. Answers of a bucket are in the
//! order of its rows, so each row takes the next answer of its bucket.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, UInt16Array};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt16Type};
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use futures::TryStreamExt;

use crate::exec::common::blocking::blocking;
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::probe_input::BatchStream;
use crate::exec::range_join::probe::spilled::partials::answer_schema;
use crate::exec::range_join::probe::spilled::run_set::RunSet;
use crate::exec::range_join::probe::spilled::side::SpilledSide;
use crate::exec::range_join::spill::partition_writer::{BatchRow, PartitionWriter};
use crate::exec::range_join::spill::reader::SpilledRows;
use crate::exec::range_join::spill::routing::{hash_keys, valid_keys};
use rmq_arrow::common::dictionaries::select;

/// Writes the rows of a probe partition.
pub(crate) struct ProbeBucketsWriter {
    partition: Arc<ProbePartition>,
    runs: Arc<RunSet>,
    /// The columns that the join reads, if these alone are divided, and the partition of them.
    read: Option<(Vec<usize>, Arc<ProbePartition>)>,
    /// The schema of the rows that are divided.
    schema: SchemaRef,
    /// The rows of each run, then those that match nothing.
    buckets: PartitionWriter,
    /// All rows in order with the numbers of their buckets, and the schema of these, if the order is kept.
    in_order: Option<(SchemaRef, PartitionWriter)>,
}

/// The rows of a probe partition, divided.
pub(crate) struct ProbeBuckets {
    /// The partition of the divided rows.
    pub(crate) partition: Arc<ProbePartition>,
    pub(crate) runs: Arc<RunSet>,
    /// The rows of each run, then those that match nothing; `None` once they have been read.
    buckets: Vec<Option<SpilledRows>>,
    /// The numbers of the runs that the rows of the current bucket visit: one, or none if they match nothing.
    pub(crate) visited: Range<usize>,
    in_order: Option<SpilledRows>,
    answers: Option<BucketAnswers>,
}

/// The answers of the buckets that have been probed, each in the order of its rows.
struct BucketAnswers {
    schema: SchemaRef,
    written: Vec<Option<SpilledRows>>,
    /// The bucket whose answers are being written.
    open: Option<(usize, PartitionWriter)>,
    /// The target size of a batch: one of each bucket is in memory in the end.
    batch_bytes: usize,
}

impl ProbeBucketsWriter {
    /// For rows of this schema that probe `runs`.
    pub(crate) fn try_new(
        partition: &Arc<ProbePartition>,
        side: &SpilledSide,
        runs: Arc<RunSet>,
        schema: &Schema,
    ) -> Result<Self> {
        // Batches of one input may differ in what they say of NULLs.
        let nullable = |field: &Arc<Field>| Arc::new(Field::clone(field).with_nullable(true));
        let fields: Vec<_> = schema.fields().iter().map(nullable).collect();
        let mut read = None;
        let in_order = if side.merge_plan.is_some() {
            read = partition.with_read_columns(fields.len())?;
            let bucket = Arc::new(Field::new("bucket", DataType::UInt16, false));
            let fields = fields.iter().cloned().chain([bucket]);
            let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
            let files = Arc::new(side.files.for_schema(&schema));
            Some((schema, PartitionWriter::new(files, 1)))
        } else {
            None
        };
        let mut schema = Schema::new(fields);
        if let Some((columns, _)) = &read {
            schema = schema.project(columns)?;
        }
        let schema = Arc::new(schema);
        let files = Arc::new(side.files.for_schema(&schema));
        let buckets = runs.runs().len() + 1;
        Ok(Self {
            partition: Arc::clone(partition),
            runs,
            read: read.map(|(columns, partition)| (columns, Arc::new(partition))),
            schema,
            buckets: PartitionWriter::new(files, buckets),
            in_order,
        })
    }

    /// Writes the next rows.
    pub(crate) async fn write(mut self, batches: Vec<RecordBatch>) -> Result<Self> {
        blocking(move |waiting| {
            let mut rows: Vec<Vec<BatchRow>> = vec![vec![]; self.runs.runs().len() + 1];
            let mut written = Vec::with_capacity(batches.len());
            for (i, batch) in batches.iter().enumerate() {
                waiting.check()?;
                let buckets = self.buckets_of(batch)?;
                for (row, bucket) in buckets.iter().enumerate() {
                    rows[usize::from(*bucket)].push((i, row));
                }
                let columns = batch.columns().to_vec();
                let divided = match &self.read {
                    Some((read, _)) => read.iter().map(|i| Arc::clone(&columns[*i])).collect(),
                    None => columns.clone(),
                };
                written.push(RecordBatch::try_new(Arc::clone(&self.schema), divided)?);
                if let Some((schema, file)) = &mut self.in_order {
                    let buckets: ArrayRef = Arc::new(UInt16Array::from(buckets));
                    let columns = columns.into_iter().chain([buckets]).collect();
                    let schema = Arc::clone(schema);
                    file.append(0, &RecordBatch::try_new(schema, columns)?)?;
                }
            }
            let check = || waiting.check();
            self.buckets
                .append_rows(&written, &rows, &check, |_, _| Ok(()))?;
            Ok(self)
        })
        .await
    }

    /// The bucket of each row.
    fn buckets_of(&self, batch: &RecordBatch) -> Result<Vec<u16>> {
        let Some(routing) = &self.runs.routing else {
            return internal_err!("probe rows are to be divided as a build side is that was not");
        };
        let keys = self.partition.equality_keys(batch)?;
        let valid = valid_keys(&keys);
        let none = self.runs.runs().len();
        let hashes = hash_keys(&keys, batch.num_rows())?.into_iter().enumerate();
        let buckets = hashes.map(|(row, hash)| {
            let is_valid = valid.as_ref().is_none_or(|valid| valid.is_valid(row));
            let bucket = if is_valid {
                routing.partition(hash)
            } else {
                none
            };
            let number = u16::try_from(bucket);
            number.map_err(|_| internal_datafusion_err!("a build side has {bucket} buckets"))
        });
        buckets.collect()
    }

    /// Ends the files after the last row.
    pub(crate) async fn finish(self, side: &SpilledSide) -> Result<ProbeBuckets> {
        let (buckets, in_order) = blocking(move |_| {
            let in_order = self.in_order.map(|(_, file)| file.finish_one());
            let in_order = in_order.transpose()?;
            let partition = self.read.map_or(self.partition, |(_, partition)| partition);
            Ok(((self.buckets.finish()?, self.runs, partition), in_order))
        })
        .await?;
        let (buckets, runs, partition) = buckets;
        let buckets: Vec<_> = buckets.into_iter().map(|bucket| Some(bucket?.0)).collect();
        let answers = in_order.is_some().then(|| BucketAnswers {
            schema: answer_schema(&partition.spec.aggregates),
            written: vec![None; buckets.len()],
            open: None,
            batch_bytes: side.partition_bytes() / buckets.len(),
        });
        Ok(ProbeBuckets {
            partition,
            runs,
            buckets,
            visited: 0..0,
            in_order: in_order.flatten(),
            answers,
        })
    }
}

impl ProbeBuckets {
    /// Begins to read the rows of the next bucket: that of the run with the number `current`, or one that follows it in
    /// a circle. `None` if all have been read.
    pub(crate) fn next_bucket(&mut self, current: Option<usize>) -> Result<Option<BatchStream>> {
        let numbers = self.runs.numbers();
        let current = current.filter(|number| numbers.contains(number));
        let first = current.map_or(0, |number| number - numbers.start);
        let mut circle = (first..self.buckets.len()).chain(0..first);
        let Some((bucket, rows)) =
            circle.find_map(|bucket| Some((bucket, self.buckets[bucket].take()?)))
        else {
            return Ok(None);
        };
        if let Some(answers) = &mut self.answers {
            let files = Arc::new(rows.files.for_schema(&answers.schema));
            let writer = PartitionWriter::new(files, 1).with_batch_bytes(answers.batch_bytes);
            answers.open = Some((bucket, writer));
        }
        let first = (numbers.start + bucket).min(numbers.end);
        self.visited = first..(first + 1).min(numbers.end);
        rows.read(true).map(Some)
    }

    /// The schema of answers, if there are any.
    pub(crate) fn answer_schema(&self) -> Option<&SchemaRef> {
        self.answers.as_ref().map(|answers| &answers.schema)
    }

    /// Writes the next answers of the current bucket.
    pub(crate) async fn write_answers(&mut self, batches: Vec<RecordBatch>) -> Result<()> {
        let open = self
            .answers
            .as_mut()
            .and_then(|answers| answers.open.take());
        let Some((bucket, mut writer)) = open else {
            return internal_err!("there are answers of no bucket of the probe rows");
        };
        let writer = blocking(move |_| {
            for batch in batches {
                writer.append(0, &batch)?;
            }
            Ok(writer)
        });
        let writer = writer.await?;
        if let Some(answers) = &mut self.answers {
            answers.open = Some((bucket, writer));
        }
        Ok(())
    }

    /// Ends the current bucket.
    pub(crate) async fn end_bucket(&mut self) -> Result<()> {
        if let Some(answers) = &mut self.answers
            && let Some((bucket, writer)) = answers.open.take()
        {
            answers.written[bucket] = blocking(move |_| writer.finish_one()).await?;
        }
        Ok(())
    }

    /// After the last bucket: the rows in order with their answers, if these are written.
    pub(crate) fn in_order(self, memory: MemoryReservation) -> Result<Option<AnsweredRows>> {
        let (Some(rows), Some(answers)) = (self.in_order, self.answers) else {
            return Ok(None);
        };
        let answers = answers.written.into_iter();
        Ok(Some(AnsweredRows {
            rows: rows.read(true)?,
            answers: answers
                .map(|rows| NextAnswers {
                    rows,
                    stream: None,
                    batch: None,
                    next: 0,
                })
                .collect(),
            memory,
        }))
    }
}

/// Probe rows in their order, with their answers.
pub(crate) struct AnsweredRows {
    rows: BatchStream,
    answers: Vec<NextAnswers>,
    /// Registers the batches of answers.
    memory: MemoryReservation,
}

/// The answers of a bucket that have not been taken.
struct NextAnswers {
    rows: Option<SpilledRows>,
    stream: Option<BatchStream>,
    batch: Option<RecordBatch>,
    /// The next row of the batch.
    next: usize,
}

impl NextAnswers {
    /// Reads the next batch if all rows of the last have been taken. Returns whether it did.
    async fn read(&mut self, memory: &MemoryReservation) -> Result<bool> {
        if self
            .batch
            .as_ref()
            .is_some_and(|batch| self.next < batch.num_rows())
        {
            return Ok(false);
        }
        if let Some(read) = self.batch.take() {
            memory.shrink(DataSize::of_batch(&read).bytes.min(memory.size()));
        }
        if self.stream.is_none() {
            let rows = self.rows.take();
            self.stream = rows.map(|rows| rows.read(false)).transpose()?;
        }
        while let Some(stream) = &mut self.stream {
            match stream.try_next().await? {
                Some(batch) if batch.num_rows() == 0 => {}
                Some(batch) => {
                    // It is one of the smallest that are written.
                    memory.try_grow(DataSize::of_batch(&batch).bytes).ok();
                    self.batch = Some(batch);
                    self.next = 0;
                    return Ok(true);
                }
                None => break,
            }
        }
        internal_err!("a bucket of the probe rows has more rows than answers")
    }
}

impl AnsweredRows {
    /// The next rows with the columns of their answers; `None` at the end.
    pub(crate) async fn next(
        &mut self,
    ) -> Result<Option<(RecordBatch, BooleanBuffer, Vec<ArrayRef>)>> {
        let Some(batch) = self.rows.try_next().await? else {
            return Ok(None);
        };
        let columns = batch.num_columns() - 1;
        let buckets = batch.column(columns).as_primitive::<UInt16Type>().clone();
        // Batches of answers, and the one of each bucket that the next answer is in.
        let mut sources: Vec<RecordBatch> = vec![];
        let mut source_of: Vec<Option<usize>> = vec![None; self.answers.len()];
        let mut picked = Vec::with_capacity(batch.num_rows());
        for bucket in buckets.values() {
            let bucket = usize::from(*bucket);
            let answers = &mut self.answers[bucket];
            let is_new = answers.read(&self.memory).await?;
            let source = match (source_of[bucket], &answers.batch) {
                (Some(source), _) if !is_new => source,
                (_, Some(batch)) => {
                    sources.push(batch.clone());
                    source_of[bucket] = Some(sources.len() - 1);
                    sources.len() - 1
                }
                (_, None) => return internal_err!("a bucket of the probe rows has no answers"),
            };
            picked.push(Some((source, answers.next)));
            answers.next += 1;
        }
        let numbers: Vec<usize> = (0..columns).collect();
        let answer = |column: usize| {
            let arrays = sources.iter().map(|source| source.column(column).as_ref());
            select(&arrays.collect::<Vec<_>>(), &picked)
        };
        let matched = answer(0)?;
        let matched = matched.as_boolean().values().clone();
        let answer_columns = sources.first().map_or(0, RecordBatch::num_columns);
        let aggregates = (1..answer_columns).map(answer).collect::<Result<_>>()?;
        Ok(Some((batch.project(&numbers)?, matched, aggregates)))
    }
}
