//! The build side of a range join by key: collected, sorted, indexed, and asked.

use std::sync::{Arc, Weak};
use std::time::Instant;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Int64Type, Schema};
use arrow::error::ArrowError;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, exec_err, internal_datafusion_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};

use super::key_collect::{BuildColumns, Collected};
use super::key_metrics::BuildMetrics;
use super::key_order::in_order;
use crate::engine::cpu::CpuEngine;
use crate::engine::{BuildOptions, Extreme};
use crate::functions::bounds::Ranges;
use crate::index::{
    Chunks, ColumnIndex, Counts, Places, SortedRows, Sums, Unsorted, Values, arrange,
    arranging_bytes,
};
use crate::options::RmqOptions;
use crate::plan::KeyFunction;

/// The rows of the build side, ready to be asked.
#[derive(Debug)]
pub(super) struct BuildSide {
    rows: SortedRows,
    answers: Vec<Answering>,
    /// Registers the memory of all this.
    _memory: MemoryReservation,
}

/// What answers one aggregate.
#[derive(Debug)]
enum Answering {
    Extreme(Arc<ColumnIndex>),
    CountRows,
    Counts(Arc<Counts>),
    Sums(Arc<Sums>),
    First(Arc<Values>),
    Last(Arc<Values>),
    AtExtreme {
        values: Arc<Values>,
        by: Arc<ColumnIndex>,
        /// Where NULLs are to be found, if they come first.
        nulls: Option<Arc<Counts>>,
    },
}

/// Collects the build side and makes it ready.
pub(super) async fn build(
    columns: BuildColumns,
    input: SendableRecordBatchStream,
    metrics: BuildMetrics,
    context: Arc<TaskContext>,
) -> Result<BuildSide> {
    let started = Instant::now();
    let memory = MemoryConsumer::new("rmq range join").register(context.memory_pool());
    let collected = Collected::collect(&columns, input, memory).await?;
    let threads = RmqOptions::of(context.session_config().options()).threads();
    // A sort or an index that has begun can't be stopped; between them it is seen that nobody waits any more.
    let waiting = Arc::new(());
    let Collected {
        schema,
        batches,
        memory,
    } = collected;
    let work = Work {
        columns,
        memory,
        metrics: metrics.clone(),
        threads,
        waiting: Arc::downgrade(&waiting),
    };
    let built = SpawnedTask::spawn_blocking(move || work.build(&schema, batches))
        .join_unwind()
        .await
        .map_err(|e| internal_datafusion_err!("building a range join did not end: {e}"))?;
    drop(waiting);
    metrics.build_time.add_duration(started.elapsed());
    built
}

/// What the blocking part of the building needs.
struct Work {
    columns: BuildColumns,
    memory: MemoryReservation,
    metrics: BuildMetrics,
    threads: usize,
    waiting: Weak<()>,
}

impl Work {
    fn check_waiting(&self) -> Result<()> {
        if self.waiting.strong_count() == 0 {
            return exec_err!("the query was cancelled");
        }
        Ok(())
    }

    /// The build side of these batches, whose memory is registered already.
    fn build(self, schema: &Schema, batches: Vec<RecordBatch>) -> Result<BuildSide> {
        let sort_timer = self.metrics.sort_time.timer();
        let types = schema.fields().iter().map(|f| f.data_type().clone());
        let types: Vec<DataType> = types.collect();
        let batches = if ties_matter(&self.columns.aggregates) {
            batches
        } else {
            let key = types.len() - self.columns.values(&types).len() - 1;
            in_order(batches, &[key..key + 1, 0..key + 1])?
        };
        let count = batches.iter().map(RecordBatch::num_rows).sum();
        let (equal, key) = (self.columns.equal(&types), self.columns.key(&types));
        let mut rows = Unsorted::try_new(count, equal, key)?;
        self.memory.try_grow(rows.bytes())?;
        let values = self.columns.values(&types).iter();
        let mut values: Vec<Column> = values.map(Column::new).collect();
        for batch in batches {
            self.check_waiting()?;
            let arrays = batch.columns();
            for (column, array) in values.iter_mut().zip(self.columns.values(arrays)) {
                column.chunks.arrays.push(Arc::clone(array));
            }
            let before = rows.bytes();
            rows.add(self.columns.equal(arrays), self.columns.key(arrays))?;
            // From now on the rows account for the keys.
            let given = &arrays[..arrays.len() - values.len()];
            self.replace(bytes(given)? + before, rows.bytes())?;
        }
        self.metrics.build_rows.add(rows.len());
        let (others, before) = (self.memory.size(), rows.bytes());
        let (rows, places) = rows.sort(&self.memory)?;
        // Sorting ends with less than it has taken.
        self.memory
            .try_resize(others.saturating_sub(before) + rows.bytes() + places.bytes())?;
        let was_sorted = places.are_as_they_came();
        self.metrics.already_sorted.add(usize::from(was_sorted));
        sort_timer.done();

        let index_timer = self.metrics.index_time.timer();
        let mut ready = vec![];
        for (i, column) in values.into_iter().enumerate() {
            let wanted = Wanted::of(&self.columns.aggregates, i);
            ready.push(self.prepare(column, wanted, &places)?);
        }
        let moved = places.bytes();
        let kept = places.order_kept();
        drop(places);
        self.replace(moved, kept)?;
        let mut answers = vec![];
        for (function, arguments) in &self.columns.aggregates {
            answers.push(answering(*function, arguments, &ready)?);
        }
        index_timer.done();
        self.metrics.build_mem_used.set_max(self.memory.size());
        Ok(BuildSide {
            rows,
            answers,
            _memory: self.memory,
        })
    }

    /// Makes all that is asked of a column, and lets go of it.
    fn prepare(&self, column: Column, wanted: Wanted, places: &Places) -> Result<Ready> {
        let Column { chunks, data_type } = column;
        let held = bytes(&chunks.arrays)?;
        let mut borrowed = false;
        let mut ready = Ready::default();
        if wanted.counts {
            self.check_waiting()?;
            self.memory
                .try_grow(Counts::estimate(&chunks.arrays, places))?;
            ready.counts = Some(Arc::new(Counts::of(&chunks.arrays, places)?));
        }
        if let Some(counts) = ready.counts.as_ref().filter(|_| wanted.sums) {
            self.check_waiting()?;
            self.memory.try_grow(Sums::estimate(&data_type, places))?;
            let sums = Sums::of(&chunks.arrays, &data_type, Arc::clone(counts), places)?;
            ready.sums = Some(Arc::new(sums));
        }
        for (extreme, positions) in wanted.extremes {
            self.check_waiting()?;
            let index = self.index(&chunks, &data_type, extreme, positions, places)?;
            // One without a copy of its own looks at what was given.
            borrowed |= index.memory_bytes() == index.index_bytes();
            ready.extremes.push((extreme, Arc::new(index)));
        }
        if wanted.values {
            self.check_waiting()?;
            let order = places.order_bytes();
            // The chunks and the whole are there at once.
            self.memory.try_grow(held + order)?;
            let values = Values::of(&chunks.arrays, &data_type, places)?;
            self.replace(held, values.bytes()?)?;
            ready.values = Some(Arc::new(values));
        }
        drop(chunks);
        if !borrowed {
            self.replace(held, 0)?;
        }
        Ok(ready)
    }

    /// The index of a column.
    fn index(
        &self,
        chunks: &Chunks,
        data_type: &DataType,
        extreme: Extreme,
        positions: bool,
        places: &Places,
    ) -> Result<ColumnIndex> {
        let engine = CpuEngine::default();
        let options = BuildOptions {
            positions,
            threads: self.threads,
        };
        let estimate = arranging_bytes(chunks, data_type, places)
            + ColumnIndex::estimate_of(&engine, chunks, data_type, &options);
        self.memory.try_grow(estimate)?;
        let arranged = arrange(chunks, data_type, extreme, places)?;
        let index = ColumnIndex::of(&engine, arranged, &options)?;
        self.replace(estimate, index.memory_bytes())?;
        self.metrics.index_bytes.add(index.index_bytes());
        Ok(index)
    }

    /// Registers so many bytes in the place of others.
    fn replace(&self, before: usize, now: usize) -> Result<()> {
        self.memory
            .try_resize(self.memory.size().saturating_sub(before) + now)
    }
}

/// Whether it matters which of several rows with equal keys came first.
fn ties_matter(aggregates: &[(KeyFunction, Vec<usize>)]) -> bool {
    aggregates.iter().any(|(function, _)| match function {
        KeyFunction::First | KeyFunction::Last | KeyFunction::AtExtreme { .. } => true,
        KeyFunction::CountRows
        | KeyFunction::Count
        | KeyFunction::Sum
        | KeyFunction::Extreme(_) => false,
    })
}

/// Bytes of arrays, as they were registered when they were collected.
fn bytes(arrays: &[ArrayRef]) -> Result<usize> {
    let bytes = arrays.iter().map(|a| a.to_data().get_slice_memory_size());
    Ok(bytes.sum::<Result<usize, ArrowError>>()?)
}

/// A column of the build side as it came.
struct Column {
    chunks: Chunks,
    data_type: DataType,
}

impl Column {
    fn new(data_type: &DataType) -> Self {
        Self {
            chunks: Chunks {
                arrays: vec![],
                held_by_table: true,
            },
            data_type: data_type.clone(),
        }
    }
}

/// What the aggregates ask of one column.
#[derive(Debug, Default)]
struct Wanted {
    counts: bool,
    sums: bool,
    values: bool,
    /// Each with whether positions are asked for.
    extremes: Vec<(Extreme, bool)>,
}

impl Wanted {
    fn of(aggregates: &[(KeyFunction, Vec<usize>)], column: usize) -> Self {
        let mut wanted = Self::default();
        for (function, arguments) in aggregates {
            let is_first = arguments.first() == Some(&column);
            let is_second = arguments.get(1) == Some(&column);
            match *function {
                KeyFunction::Count => wanted.counts |= is_first,
                KeyFunction::Sum => {
                    wanted.counts |= is_first;
                    wanted.sums |= is_first;
                }
                KeyFunction::First | KeyFunction::Last => wanted.values |= is_first,
                KeyFunction::Extreme(extreme) if is_first => wanted.extreme(extreme, false),
                KeyFunction::CountRows | KeyFunction::Extreme(_) => {}
                KeyFunction::AtExtreme {
                    extreme,
                    nulls_first,
                } => {
                    wanted.values |= is_first;
                    if is_second {
                        wanted.extreme(extreme, true);
                        wanted.counts |= nulls_first;
                    }
                }
            }
        }
        wanted
    }

    fn extreme(&mut self, extreme: Extreme, positions: bool) {
        match self.extremes.iter_mut().find(|(e, _)| *e == extreme) {
            Some((_, known)) => *known |= positions,
            None => self.extremes.push((extreme, positions)),
        }
    }
}

/// What was made of one column.
#[derive(Debug, Default)]
struct Ready {
    counts: Option<Arc<Counts>>,
    sums: Option<Arc<Sums>>,
    values: Option<Arc<Values>>,
    extremes: Vec<(Extreme, Arc<ColumnIndex>)>,
}

impl Ready {
    fn extreme(&self, extreme: Extreme) -> Option<Arc<ColumnIndex>> {
        let mut extremes = self.extremes.iter();
        let (_, index) = extremes.find(|(e, _)| *e == extreme)?;
        Some(Arc::clone(index))
    }
}

/// What answers an aggregate over columns.
fn answering(function: KeyFunction, arguments: &[usize], ready: &[Ready]) -> Result<Answering> {
    let column = |i: usize| arguments.get(i).and_then(|column| ready.get(*column));
    let first = column(0);
    let made = match function {
        KeyFunction::CountRows => Some(Answering::CountRows),
        KeyFunction::Count => first.and_then(|c| c.counts.clone()).map(Answering::Counts),
        KeyFunction::Sum => first.and_then(|c| c.sums.clone()).map(Answering::Sums),
        KeyFunction::First => first.and_then(|c| c.values.clone()).map(Answering::First),
        KeyFunction::Last => first.and_then(|c| c.values.clone()).map(Answering::Last),
        KeyFunction::Extreme(extreme) => first
            .and_then(|c| c.extreme(extreme))
            .map(Answering::Extreme),
        KeyFunction::AtExtreme {
            extreme,
            nulls_first,
        } => first
            .and_then(|c| c.values.clone())
            .zip(column(1).and_then(|c| c.extreme(extreme)))
            .map(|(values, by)| Answering::AtExtreme {
                values,
                by,
                nulls: column(1)
                    .filter(|_| nulls_first)
                    .and_then(|c| c.counts.clone()),
            }),
    };
    made.ok_or_else(|| {
        internal_datafusion_err!("{function:?} over a column that nothing was made of")
    })
}

impl BuildSide {
    /// The rows, to find positions in.
    pub(super) fn rows(&self) -> &SortedRows {
        &self.rows
    }

    /// What each aggregate is over these ranges.
    pub(super) fn answer(&self, ranges: &Ranges) -> Result<Vec<ArrayRef>> {
        self.answers
            .iter()
            .map(|a| self.answer_one(a, ranges))
            .collect()
    }

    fn answer_one(&self, answering: &Answering, ranges: &Ranges) -> Result<ArrayRef> {
        Ok(match answering {
            Answering::CountRows => {
                let counts = ranges.iter().map(|(l, r)| (r - l + 1).max(0));
                Arc::new(counts.collect::<Int64Array>())
            }
            Answering::Counts(counts) => Arc::new(counts.answer(ranges)),
            Answering::Sums(sums) => sums.answer(ranges),
            Answering::Extreme(index) => {
                let answer = index.answer(std::slice::from_ref(ranges), true, false, false)?;
                answer
                    .values
                    .ok_or_else(|| internal_datafusion_err!("an index gave no values"))?
            }
            Answering::First(values) => {
                values.at(ranges.iter().map(|(l, r)| (l <= r).then_some(l)))?
            }
            Answering::Last(values) => values.at(ranges.iter().map(|range| self.last(range)))?,
            Answering::AtExtreme { values, by, nulls } => {
                let positions = by
                    .answer(std::slice::from_ref(ranges), false, true, false)?
                    .positions
                    .ok_or_else(|| internal_datafusion_err!("an index gave no positions"))?;
                let positions = positions.as_primitive::<Int64Type>().iter();
                let rows = positions.zip(ranges.iter()).map(|(found, range)| {
                    let null = nulls.as_ref().and_then(|nulls| nulls.first_null(range));
                    // Where all that decides is NULL, any row will do: the first.
                    null.or(found).or((range.0 <= range.1).then_some(range.0))
                });
                values.at(rows)?
            }
        })
    }

    /// Of a range's rows with the greatest key, the first that came.
    fn last(&self, (left, right): (i64, i64)) -> Option<i64> {
        if left > right {
            return None;
        }
        let (left, right) = (usize::try_from(left).ok()?, usize::try_from(right).ok()?);
        i64::try_from(self.rows.first_equal(left, right)).ok()
    }
}
