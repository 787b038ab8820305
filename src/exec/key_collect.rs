//! The rows of the build side of a range join, as they come.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_expr::PhysicalExprRef;
use futures::TryStreamExt;

use crate::plan::{KeyFunction, KeyJoinSpec};

/// Which columns of the build side a join needs.
#[derive(Debug, Clone)]
pub(super) struct BuildColumns {
    /// The equality keys, the range key, then what the aggregates are over, each once.
    expressions: Vec<PhysicalExprRef>,
    /// How many equality keys there are.
    equal: usize,
    /// The aggregates, with the places of their arguments among the values.
    pub(super) aggregates: Vec<(KeyFunction, Vec<usize>)>,
}

impl BuildColumns {
    pub(super) fn of(spec: &KeyJoinSpec<PhysicalExprRef>) -> Self {
        let mut values: Vec<PhysicalExprRef> = vec![];
        let mut place = |value: &PhysicalExprRef| {
            let known = values.iter().position(|v| v.as_ref() == value.as_ref());
            known.unwrap_or_else(|| {
                values.push(Arc::clone(value));
                values.len() - 1
            })
        };
        let aggregates = spec.aggregates.iter().map(|aggregate| {
            let arguments = aggregate.arguments.iter().map(&mut place).collect();
            (aggregate.function, arguments)
        });
        let aggregates = aggregates.collect();
        let equal = spec.on.iter().map(|(_, build)| build);
        let expressions = equal.chain([&spec.key]).cloned().chain(values);
        Self {
            expressions: expressions.collect(),
            equal: spec.on.len(),
            aggregates,
        }
    }

    /// The columns by place, over an input of this schema.
    fn schema(&self, input: &Schema) -> Result<SchemaRef> {
        let fields = self.expressions.iter().enumerate().map(|(i, e)| {
            let nullable = true;
            Ok(Field::new(i.to_string(), e.data_type(input)?, nullable))
        });
        Ok(Arc::new(Schema::new(fields.collect::<Result<Vec<_>>>()?)))
    }

    /// The equality keys among all columns.
    pub(super) fn equal<'a, T>(&self, columns: &'a [T]) -> &'a [T] {
        &columns[..self.equal]
    }

    /// The range key among all columns.
    pub(super) fn key<'a, T>(&self, columns: &'a [T]) -> &'a T {
        &columns[self.equal]
    }

    /// The values among all columns.
    pub(super) fn values<'a, T>(&self, columns: &'a [T]) -> &'a [T] {
        &columns[self.equal + 1..]
    }
}

/// The rows of the build side, each batch with the columns that [`BuildColumns`] names.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) schema: SchemaRef,
    pub(super) batches: Vec<RecordBatch>,
    /// Registers the memory of the batches.
    pub(super) memory: MemoryReservation,
}

impl Collected {
    /// Reads the whole input.
    pub(super) async fn collect(
        columns: &BuildColumns,
        mut input: SendableRecordBatchStream,
        memory: MemoryReservation,
    ) -> Result<Self> {
        let schema = columns.schema(&input.schema())?;
        let mut batches = vec![];
        while let Some(batch) = input.try_next().await? {
            let rows = batch.num_rows();
            if rows == 0 {
                continue;
            }
            let evaluate = |e: &PhysicalExprRef| e.evaluate(&batch)?.into_array(rows);
            let arrays = columns.expressions.iter().map(evaluate);
            let arrays: Vec<ArrayRef> = arrays.collect::<Result<_>>()?;
            for array in &arrays {
                memory.try_grow(array.to_data().get_slice_memory_size()?)?;
            }
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let schema = Arc::clone(&schema);
            batches.push(RecordBatch::try_new_with_options(schema, arrays, &options)?);
        }
        Ok(Self {
            schema,
            batches,
            memory,
        })
    }
}
