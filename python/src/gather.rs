//! Columns of frames that are taken by row number, after a query has joined what it compares.
//!
//! The join functions plan few columns, whatever the frames have: keys, and columns that number the rows. `DataFusion`
//! looks names of columns up one by one, in each rule, so that planning takes time in proportion to the square of their
//! number. The other columns never enter the plan, and the join does not move them.
//!
//! ```text
//!   the query's rows                   the result's rows
//!   __left.__row  __right.__row        ts   price   bid
//!             0              7    ──▶  the left frame's row 0, the right frame's row 7
//!             1           NULL         the left frame's row 1, NULL
//! ```

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt64Array, new_null_array,
};
use arrow::compute::{interleave, take};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;

/// What the columns of a result are.
pub struct Gather {
    schema: SchemaRef,
    columns: Vec<Source>,
    frames: Vec<Numbered>,
}

enum Source {
    /// A column of the query.
    Query(usize),
    /// A column of one of the frames.
    Frame { frame: usize, column: usize },
}

/// A frame, and the column of the query that has numbers of its rows.
struct Numbered {
    number: usize,
    batches: Arc<[RecordBatch]>,
    /// The number of each batch's first row.
    starts: Vec<u64>,
}

/// Rows of a frame.
enum Rows {
    /// Consecutive ones of one batch.
    Run {
        batch: usize,
        start: usize,
        rows: usize,
    },
    /// Those of the only batch, by number.
    One(UInt64Array),
    /// Pairs of a batch, or one more than there are for NULL, and a row in it.
    Several(Vec<(usize, usize)>),
}

/// A column of a result by its name: a column of the query, and the frame's column if that numbers rows of a frame.
pub type Shown = (String, usize, Option<usize>);

impl Gather {
    /// The columns of a result. `frames` has those that columns of the query number, with these columns.
    pub fn new(
        query: &Schema,
        shown: Vec<Shown>,
        frames: Vec<(usize, SchemaRef, Arc<[RecordBatch]>)>,
    ) -> Self {
        let mut fields = vec![];
        let mut columns = vec![];
        for (name, column, of_frame) in shown {
            let numbered = frames.iter().position(|(number, ..)| *number == column);
            let field = query.field(column);
            let (source, field) = match (of_frame, numbered) {
                (Some(of_frame), Some(frame)) => {
                    let taken = frames[frame].1.field(of_frame);
                    let is_nullable = taken.is_nullable() || field.is_nullable();
                    let source = Source::Frame {
                        frame,
                        column: of_frame,
                    };
                    (source, taken.clone().with_nullable(is_nullable))
                }
                _ => (Source::Query(column), field.clone()),
            };
            columns.push(source);
            fields.push(field.with_name(name));
        }
        let frames = frames.into_iter().map(|(number, _, batches)| {
            let mut next = 0;
            let starts = batches.iter().map(|batch| {
                let start = next;
                next += batch.num_rows() as u64;
                start
            });
            Numbered {
                number,
                starts: starts.collect(),
                batches,
            }
        });
        Self {
            frames: frames.collect(),
            schema: Arc::new(Schema::new_with_metadata(fields, query.metadata().clone())),
            columns,
        }
    }

    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The result's rows of the query's, in their order, on several threads.
    pub fn applied(
        self: &Arc<Self>,
        rows: SendableRecordBatchStream,
        threads: usize,
    ) -> SendableRecordBatchStream {
        let gather = Arc::clone(self);
        let taken = rows.map(move |batch| {
            let gather = Arc::clone(&gather);
            async move {
                let batch = batch?;
                let task = SpawnedTask::spawn_blocking(move || gather.gathered(&batch));
                let joined = task.join_unwind().await;
                joined.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?
            }
        });
        let taken = taken.buffered(threads);
        Box::pin(RecordBatchStreamAdapter::new(self.schema(), taken))
    }

    fn gathered(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let frames = self.frames.iter();
        let rows: Vec<Rows> = frames.map(|frame| frame.rows(batch)).collect();
        let columns = self.columns.iter().zip(self.schema.fields());
        let columns = columns.map(|(source, field)| match source {
            Source::Query(column) => Ok(Arc::clone(batch.column(*column))),
            Source::Frame { frame, column } => {
                self.frames[*frame].taken(&rows[*frame], *column, field)
            }
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let schema = Arc::clone(&self.schema);
        Ok(RecordBatch::try_new_with_options(
            schema, columns, &options,
        )?)
    }
}

impl Numbered {
    /// The rows that the query numbers.
    fn rows(&self, query: &RecordBatch) -> Rows {
        let numbers = query.column(self.number).as_primitive::<UInt64Type>();
        if let Some((first, last)) = numbers.values().first().zip(numbers.values().last())
            && numbers.null_count() == 0
            && numbers
                .values()
                .windows(2)
                .all(|pair| pair[1] == pair[0] + 1)
            && self.batch_of(*first) == self.batch_of(*last)
        {
            let batch = self.batch_of(*first);
            return Rows::Run {
                batch,
                start: position(first - self.starts[batch]),
                rows: numbers.len(),
            };
        }
        if self.batches.len() == 1 {
            return Rows::One(numbers.clone());
        }
        Rows::Several(self.pairs(numbers))
    }

    fn pairs(&self, numbers: &UInt64Array) -> Vec<(usize, usize)> {
        let pairs = numbers.iter().map(|number| match number {
            Some(number) => {
                let batch = self.batch_of(number);
                (batch, position(number - self.starts[batch]))
            }
            None => (self.batches.len(), 0),
        });
        pairs.collect()
    }

    /// The batch that has a row.
    fn batch_of(&self, number: u64) -> usize {
        self.starts.partition_point(|start| *start <= number) - 1
    }

    fn taken(&self, rows: &Rows, column: usize, field: &Field) -> Result<ArrayRef> {
        let interleaved = |pairs: &[(usize, usize)]| {
            let none = new_null_array(field.data_type(), 1);
            let batches = self.batches.iter();
            let mut arrays: Vec<&dyn Array> =
                batches.map(|batch| batch.column(column).as_ref()).collect();
            arrays.push(&none);
            interleave(&arrays, pairs)
        };
        // `take` sets bits for NULL, which these have none for.
        let has_bits = !matches!(
            field.data_type(),
            DataType::Union(..) | DataType::RunEndEncoded(..)
        );
        Ok(match rows {
            Rows::Run { batch, start, rows } => {
                self.batches[*batch].column(column).slice(*start, *rows)
            }
            Rows::One(numbers) if has_bits || numbers.null_count() == 0 => {
                take(self.batches[0].column(column), numbers, None)?
            }
            Rows::One(numbers) => interleaved(&self.pairs(numbers))?,
            Rows::Several(pairs) => interleaved(pairs)?,
        })
    }
}

/// A position in a batch.
fn position(number: u64) -> usize {
    usize::try_from(number).expect("a batch has no more rows than a usize counts")
}
