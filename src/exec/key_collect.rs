//! The rows of the build side of a range join, as they come.

use std::ops::Add;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_expr::PhysicalExprRef;
use futures::TryStreamExt;

use super::key_room::Room;
use super::key_spill::{Pieces, Spill};
use crate::index::arrays_bytes;
use crate::plan::{KeyFunction, KeyJoinSpec};

/// Which columns of the build side a join needs.
#[derive(Debug, Clone)]
pub(super) struct BuildColumns {
    /// The equality keys, the range key, then what the aggregates are over, each once.
    expressions: Vec<PhysicalExprRef>,
    /// How many equality keys there are, and so where the range key stands.
    pub(super) equal: usize,
    /// The aggregates, with the places of their arguments among the values.
    pub(super) aggregates: Vec<(KeyFunction, Vec<usize>)>,
    /// Whether rows from before a window count.
    pub(super) prevailing: bool,
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
            prevailing: spec.prevailing,
        }
    }

    /// The same columns for other aggregates.
    pub(super) fn with_aggregates(self, aggregates: Vec<(KeyFunction, Vec<usize>)>) -> Self {
        Self { aggregates, ..self }
    }

    /// The same without equality keys.
    pub(super) fn of_one_group(self) -> Self {
        Self { equal: 0, ..self }
    }

    /// The columns by place, over an input of this schema.
    pub(super) fn schema(&self, input: &Schema) -> Result<SchemaRef> {
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

/// Where the rows of the build side are.
pub(super) enum Rows {
    InMemory(Collected),
    OnDisk(Pieces, Arc<Spill>),
}

impl Rows {
    /// Reads the whole input. Rows that the room can't hold are written to disk, if there is a way to.
    pub(super) async fn collect(
        columns: &BuildColumns,
        mut input: SendableRecordBatchStream,
        room: &Arc<Room>,
        spill: Option<Arc<Spill>>,
    ) -> Result<Self> {
        let schema = columns.schema(&input.schema())?;
        let memory = room.reservation();
        let (mut batches, mut size) = (vec![], Size::default());
        let mut pieces = Pieces::default();
        while let Some(batch) = input.try_next().await? {
            let rows = batch.num_rows();
            if rows == 0 {
                continue;
            }
            let evaluate = |e: &PhysicalExprRef| e.evaluate(&batch)?.into_array(rows);
            let arrays = columns.expressions.iter().map(evaluate);
            let arrays: Vec<ArrayRef> = arrays.collect::<Result<_>>()?;
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let schema = Arc::clone(&schema);
            let batch = RecordBatch::try_new_with_options(schema, arrays, &options)?;
            let more = Size::of(&batch);
            if let Some(spill) = &spill {
                if room.hold((size + more).to_build()).is_err() {
                    pieces.room = pieces.room.max(room.granted());
                    spill
                        .write(std::mem::take(&mut batches), &mut pieces)
                        .await?;
                    size = Size::default();
                    memory.free();
                    room.keep(pieces.kept_room());
                }
                if room.hold((size + more).to_build()).is_err() {
                    spill.write(vec![batch], &mut pieces).await?;
                    continue;
                }
            }
            memory.try_grow(more.bytes)?;
            size = size + more;
            batches.push(batch);
        }
        if let Some(spill) = spill.filter(|_| !pieces.are_none()) {
            spill.write(batches, &mut pieces).await?;
            return Ok(Self::OnDisk(pieces, spill));
        }
        Ok(Self::InMemory(Collected {
            schema,
            batches,
            memory,
        }))
    }
}

/// How large some rows are.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Size {
    pub(super) rows: usize,
    pub(super) bytes: usize,
}

impl Size {
    pub(super) fn of(batch: &RecordBatch) -> Self {
        Self {
            rows: batch.num_rows(),
            bytes: arrays_bytes(batch.columns()),
        }
    }

    /// About what building takes at its height: the rows as they came and sorted, their keys, the order, indexes. If that
    /// is too little, building ends in an error, and is tried again with fewer rows.
    pub(super) fn to_build(self) -> usize {
        3 * self.bytes + 32 * self.rows
    }
}

impl Add for Size {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            bytes: self.bytes + other.bytes,
        }
    }
}
