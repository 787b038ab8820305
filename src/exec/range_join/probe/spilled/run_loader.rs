//! Builds runs, in as many parts as memory requires.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::Result;

use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::builder::BuildSideBuilder;
use crate::exec::range_join::build_side::collect_or_spill::CollectedRows;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::build_side::sort_and_index::sort_and_index;
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::spill::reader::RunReader;
use crate::exec::range_join::spill::retaining_pool::{RetainingPool, is_out_of_memory};
use crate::exec::range_join::spill::row_position::RowPosition;
use crate::exec::range_join::spill::run::MIN_SPLIT_ROWS;
use rmq_arrow::common::row_number::row_numbers;

/// Builds the runs of one build side.
pub(crate) struct RunLoader {
    /// The columns of the build side, with the aggregates that merging needs.
    columns: BuildColumns,
    /// The schema of the columns, and the range key once more, as an argument of aggregates.
    schema: SchemaRef,
    memory: Arc<RetainingPool>,
    /// Memory that is retained between runs.
    retained_bytes: usize,
    /// Whether the last row column is the position of each row in its run.
    has_row_numbers: bool,
    metrics: BuildMetrics,
    threads: usize,
}

impl RunLoader {
    /// A loader that builds the aggregates of `columns`, which may have the range key as the argument after the values.
    /// If rows are marked, another row column is the position of each row in its run.
    pub(crate) fn new(
        mut columns: BuildColumns,
        builder: &BuildSideBuilder,
        retained_bytes: usize,
    ) -> Self {
        let fields = builder.schema.fields();
        let key = columns.range_key(fields).as_ref().clone().with_name("key");
        let mut all_fields: Vec<_> = fields.iter().cloned().chain([Arc::new(key)]).collect();
        let has_row_numbers = columns.marks_rows;
        if has_row_numbers {
            // The values are followed by the range key, and that by the number.
            columns.row_columns.push(columns.values(fields).len() + 1);
            all_fields.push(Arc::new(Field::new("row", DataType::UInt32, false)));
        }
        Self {
            schema: Arc::new(Schema::new(all_fields)),
            retained_bytes,
            columns,
            memory: Arc::clone(&builder.memory),
            has_row_numbers,
            metrics: builder.metrics.for_rebuild(),
            threads: builder.options.threads(),
        }
    }

    /// Releases memory that is not retained between runs.
    pub(crate) fn release_memory(&self) {
        self.memory.retain(self.retained_bytes);
    }

    /// Builds as many of the next rows of a run as fit into `build_bytes`, which is lowered if they turn out not to, at
    /// most `max_rows`. Returns them with the position of the first; `None` at the end of the run.
    pub(crate) async fn load(
        &self,
        reader: &mut RunReader,
        build_bytes: &mut usize,
        max_rows: usize,
    ) -> Result<Option<(Arc<BuildSide>, RowPosition)>> {
        loop {
            let (batches, size) = self.read_batches(reader, *build_bytes, max_rows).await?;
            if batches.is_empty() {
                return Ok(None);
            }
            match self.build(&batches, size, reader.rows_before()).await {
                Ok(part) => return Ok(Some((part, reader.advance(size.rows)))),
                Err(error) if is_out_of_memory(&error) => {
                    *build_bytes = size.build_bytes() / 2;
                    match batches.as_slice() {
                        [one] => reader.put_back(halves(one).ok_or(error)?),
                        _ => reader.put_back(batches),
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads the next batches whose build fits into `build_bytes`, but at least one unless the run has ended, and at
    /// most `max_rows` rows. A batch for which memory does not suffice is halved.
    async fn read_batches(
        &self,
        reader: &mut RunReader,
        build_bytes: usize,
        max_rows: usize,
    ) -> Result<(Vec<RecordBatch>, DataSize)> {
        let (mut batches, mut size) = (vec![], DataSize::default());
        while size.rows < max_rows
            && let Some(mut batch) = reader.next().await?
        {
            let left = max_rows - size.rows;
            if batch.num_rows() > left {
                reader.put_back([batch.slice(left, batch.num_rows() - left)]);
                batch = batch.slice(0, left);
            }
            let larger = size + DataSize::of_batch(&batch);
            let fits = batches.is_empty() || larger.build_bytes() <= build_bytes;
            match fits.then(|| self.memory.ensure_granted(larger.build_bytes())) {
                Some(Ok(())) => {}
                Some(Err(error)) if batches.is_empty() => {
                    reader.put_back(halves(&batch).ok_or(error)?);
                    continue;
                }
                _ => {
                    reader.put_back([batch]);
                    break;
                }
            }
            size = larger;
            batches.push(batch);
        }
        Ok((batches, size))
    }

    /// Sorts and indexes batches of this size, with this many rows of the run before them.
    async fn build(
        &self,
        batches: &[RecordBatch],
        size: DataSize,
        rows_before: usize,
    ) -> Result<Arc<BuildSide>> {
        let memory = self.memory.reservation();
        memory.try_grow(size.bytes)?;
        // The batches are kept, to be read in smaller groups if building runs out of memory.
        let kept = self.memory.reservation();
        kept.try_grow(size.bytes)?;
        let rows = CollectedRows {
            schema: Arc::clone(&self.schema),
            batches: self.append_columns(batches, rows_before)?,
            memory,
        };
        let (columns, metrics, threads) = (&self.columns, &self.metrics, self.threads);
        let built = sort_and_index(columns, rows, metrics, threads).await?;
        Ok(Arc::new(built))
    }

    /// Appends the range key as a value column, and the row numbers if they are needed.
    fn append_columns(
        &self,
        batches: &[RecordBatch],
        rows_before: usize,
    ) -> Result<Vec<RecordBatch>> {
        let mut first = rows_before;
        let batches = batches.iter().map(|batch| {
            let key = Arc::clone(self.columns.range_key(batch.columns()));
            let mut columns: Vec<ArrayRef> = batch.columns().iter().cloned().chain([key]).collect();
            let rows = first..first + batch.num_rows();
            first = rows.end;
            if self.has_row_numbers {
                columns.push(Arc::new(UInt32Array::from(row_numbers(rows)?)));
            }
            Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
        });
        batches.collect()
    }
}

/// The halves of a batch; `None` if it has too few rows to be split.
fn halves(batch: &RecordBatch) -> Option<[RecordBatch; 2]> {
    let rows = batch.num_rows();
    (rows >= MIN_SPLIT_ROWS).then(|| {
        let half = rows / 2;
        [batch.slice(0, half), batch.slice(half, rows - half)]
    })
}
