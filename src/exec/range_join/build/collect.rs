//! The rows of the build side of a range join, as they come.

use std::ops::Add;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::runtime::JoinSet;
use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_expr::PhysicalExprRef;
use futures::TryStreamExt;
use tokio::sync::Mutex;

use crate::common::array_bytes::arrays_bytes;
use crate::exec::range_join::build::build::ties_matter;
use crate::exec::range_join::spill::retaining_pool::RetainingPool;
use crate::exec::range_join::spill::write::{Spill, SpillRuns};
use crate::logical_plan::range_join::{AggregateKind, RangeJoinSpec};

/// Which columns of the build side a join needs.
#[derive(Debug, Clone)]
pub(crate) struct BuildColumns {
    /// The equality keys, the range key, then what the aggregates are over, each once.
    expressions: Vec<PhysicalExprRef>,
    /// How many equality keys there are, and so where the range key stands.
    pub(crate) equal: usize,
    /// The aggregates, with the places of their arguments among the values.
    pub(crate) aggregates: Vec<(AggregateKind, Vec<usize>)>,
    /// Whether rows from before a window count.
    pub(crate) prevailing: bool,
}

impl BuildColumns {
    pub(crate) fn of(spec: &RangeJoinSpec<PhysicalExprRef>) -> Self {
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
    pub(crate) fn with_aggregates(self, aggregates: Vec<(AggregateKind, Vec<usize>)>) -> Self {
        Self { aggregates, ..self }
    }

    /// The same without equality keys.
    pub(crate) fn of_one_group(self) -> Self {
        Self { equal: 0, ..self }
    }

    /// The columns by place, over an input of this schema.
    pub(crate) fn schema(&self, input: &Schema) -> Result<SchemaRef> {
        let fields = self.expressions.iter().enumerate().map(|(i, e)| {
            let nullable = true;
            Ok(Field::new(i.to_string(), e.data_type(input)?, nullable))
        });
        Ok(Arc::new(Schema::new(fields.collect::<Result<Vec<_>>>()?)))
    }

    /// The equality keys among all columns.
    pub(crate) fn equal<'a, T>(&self, columns: &'a [T]) -> &'a [T] {
        &columns[..self.equal]
    }

    /// The range key among all columns.
    pub(crate) fn key<'a, T>(&self, columns: &'a [T]) -> &'a T {
        &columns[self.equal]
    }

    /// The values among all columns.
    pub(crate) fn values<'a, T>(&self, columns: &'a [T]) -> &'a [T] {
        &columns[self.equal + 1..]
    }
}

/// The rows of the build side, each batch with the columns that [`BuildColumns`] names.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Vec<RecordBatch>,
    /// Registers the memory of the batches.
    pub(crate) memory: MemoryReservation,
}

/// Where the rows of the build side are.
pub(crate) enum Rows {
    InMemory(Collected),
    OnDisk(SpillRuns, Arc<Spill>),
}

/// The order of the rows of the build side: partition after partition, in each the rows as they come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RowOrder {
    pub(crate) partition: usize,
    /// How many rows of the partition come before.
    pub(crate) row: u64,
}

impl RowOrder {
    /// The row that comes so many rows later.
    pub(crate) fn after(self, rows: usize) -> Self {
        Self {
            row: self.row + rows as u64,
            ..self
        }
    }
}

impl Rows {
    /// Reads all partitions of the input at once. Their rows stand one after another, in the order of the partitions, whichever come first. Rows that
    /// the room can't hold are written to disk, if there is a way to.
    pub(crate) async fn collect(
        columns: &BuildColumns,
        schema: &SchemaRef,
        partitions: Vec<SendableRecordBatchStream>,
        room: &Arc<RetainingPool>,
        spill: Option<Arc<Spill>>,
    ) -> Result<Self> {
        let none_yet = || Partition {
            batches: vec![],
            size: Size::default(),
            memory: room.reservation(),
            written: 0,
        };
        let collecting = Arc::new(Mutex::new(Collecting {
            partitions: partitions.iter().map(|_| none_yet()).collect(),
            room: Arc::clone(room),
            spill,
            keeps_order: ties_matter(columns),
            pieces: SpillRuns::default(),
        }));
        let reading = partitions.into_iter().enumerate();
        let reading = reading.map(|(partition, input)| Reading {
            input,
            partition,
            columns: columns.clone(),
            schema: Arc::clone(schema),
            collecting: Arc::clone(&collecting),
        });
        let mut tasks = JoinSet::new();
        reading.for_each(|reading| {
            tasks.spawn(reading.run());
        });
        // An error ends all of them, as does dropping this future.
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap_or_else(|error| {
                if error.is_panic() {
                    std::panic::resume_unwind(error.into_panic());
                }
                internal_err!("reading the build side of a range join did not end: {error}")
            })?;
        }
        let mut collecting = collecting.lock().await;
        collecting.end(schema).await
    }
}

/// Reads one partition of the build side.
struct Reading {
    input: SendableRecordBatchStream,
    partition: usize,
    columns: BuildColumns,
    schema: SchemaRef,
    collecting: Arc<Mutex<Collecting>>,
}

impl Reading {
    async fn run(mut self) -> Result<()> {
        while let Some(batch) = self.input.try_next().await? {
            let rows = batch.num_rows();
            if rows == 0 {
                continue;
            }
            let evaluate = |e: &PhysicalExprRef| e.evaluate(&batch)?.into_array(rows);
            let arrays = self.columns.expressions.iter().map(evaluate);
            let arrays: Vec<ArrayRef> = arrays.collect::<Result<_>>()?;
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let schema = Arc::clone(&self.schema);
            let batch = RecordBatch::try_new_with_options(schema, arrays, &options)?;
            let mut collecting = self.collecting.lock().await;
            collecting.add(self.partition, batch).await?;
        }
        Ok(())
    }
}

/// What was read so far of all partitions.
struct Collecting {
    partitions: Vec<Partition>,
    room: Arc<RetainingPool>,
    spill: Option<Arc<Spill>>,
    /// Whether rows on disk must tell in which order they stand.
    keeps_order: bool,
    pieces: SpillRuns,
}

/// The rows of a partition.
struct Partition {
    /// Those in memory.
    batches: Vec<RecordBatch>,
    size: Size,
    memory: MemoryReservation,
    /// How many went to disk before these.
    written: u64,
}

impl Partition {
    /// The rows in memory, and what registers them.
    fn take(&mut self) -> (Vec<RecordBatch>, MemoryReservation) {
        self.written += self.size.rows as u64;
        self.size = Size::default();
        (std::mem::take(&mut self.batches), self.memory.take())
    }
}

impl Collecting {
    /// Adds a batch to its partition. The other partitions wait while rows are written to disk.
    async fn add(&mut self, partition: usize, batch: RecordBatch) -> Result<()> {
        let more = Size::of(&batch);
        let mut fits = true;
        if let Some(spill) = self.spill.clone() {
            fits = self.holds(more);
            while !fits && self.write_some(&spill).await? {
                self.room.keep(self.pieces.retained_bytes());
                fits = self.holds(more);
            }
        }
        let rows = &mut self.partitions[partition];
        if fits {
            rows.memory.try_grow(more.bytes)?;
        }
        rows.size = rows.size + more;
        rows.batches.push(batch);
        match self.spill.clone() {
            Some(spill) if !fits => self.write_some(&spill).await.map(|_| ()),
            _ => Ok(()),
        }
    }

    /// The size of the rows in memory.
    fn size(&self) -> Size {
        let sizes = self.partitions.iter().map(|rows| rows.size);
        sizes.fold(Size::default(), Add::add)
    }

    /// Whether there is the memory to build the rows in memory and so many more.
    fn holds(&mut self, more: Size) -> bool {
        let holds = self.room.hold((self.size() + more).to_build()).is_ok();
        if !holds {
            self.pieces.room = self.pieces.room.max(self.room.granted());
        }
        holds
    }

    /// Writes rows to disk: where their order matters those of the partition that has most, as a piece then has rows of one partition; else
    /// all. Returns whether there were any.
    async fn write_some(&mut self, spill: &Arc<Spill>) -> Result<bool> {
        let partitions = self.partitions.iter_mut().enumerate();
        let partitions = partitions.filter(|(_, rows)| !rows.batches.is_empty());
        let (first_row, rows): (_, Vec<_>) = if self.keeps_order {
            let Some((partition, rows)) = partitions.max_by_key(|(_, rows)| rows.size.bytes) else {
                return Ok(false);
            };
            let row = rows.written;
            (RowOrder { partition, row }, vec![rows.take()])
        } else {
            let rows = partitions.map(|(_, rows)| rows.take());
            (RowOrder::default(), rows.collect())
        };
        let (batches, _memory): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let batches: Vec<RecordBatch> = batches.into_iter().flatten().collect();
        if batches.is_empty() {
            return Ok(false);
        }
        spill.write(batches, first_row, &mut self.pieces).await?;
        Ok(true)
    }

    /// All rows.
    async fn end(&mut self, schema: &SchemaRef) -> Result<Rows> {
        if let Some(spill) = self.spill.take().filter(|_| !self.pieces.are_none()) {
            while self.write_some(&spill).await? {}
            return Ok(Rows::OnDisk(std::mem::take(&mut self.pieces), spill));
        }
        let size = self.size();
        let batches = self.partitions.iter_mut().flat_map(|rows| rows.take().0);
        let batches = batches.collect();
        // What they registered one by one stays at hand.
        let memory = self.room.reservation();
        memory.try_grow(size.bytes)?;
        Ok(Rows::InMemory(Collected {
            schema: Arc::clone(schema),
            batches,
            memory,
        }))
    }
}

/// How large some rows are.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Size {
    pub(crate) rows: usize,
    pub(crate) bytes: usize,
}

impl Size {
    pub(crate) fn of(batch: &RecordBatch) -> Self {
        Self {
            rows: batch.num_rows(),
            bytes: arrays_bytes(batch.columns()),
        }
    }

    /// About what building takes at its height: the rows as they came and sorted, their keys, the order, indexes. If that
    /// is too little, building ends in an error, and is tried again with fewer rows.
    pub(crate) fn to_build(self) -> usize {
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
