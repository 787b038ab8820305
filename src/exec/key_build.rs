//! The build side of a range join by key: collected, sorted, indexed, and asked.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Int64Type, Schema};
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::blocking::{Waiting, blocking};
use super::key_collect::{BuildColumns, Collected};
use super::key_devices::{Devices, OnDevices};
use super::key_metrics::BuildMetrics;
use super::key_order::in_order;
use crate::engine::cpu::CpuEngine;
use crate::engine::{BuildOptions, Extreme};
use crate::functions::bounds::Ranges;
use crate::index::{
    Chunks, ColumnIndex, Counts, DeviceBytes, Places, SortedRows, Sums, Unsorted, Values, arrange,
    arrange_in_pieces, arranging_bytes, arrays_bytes,
};
use crate::plan::KeyFunction;

/// The rows of the build side, ready to be asked.
#[derive(Debug)]
pub(super) struct BuildSide {
    rows: SortedRows,
    key_type: DataType,
    answers: Vec<Answering>,
    /// Where devices answer: what they have, and whether the CPU may stand in.
    devices: Option<(Devices, OnDevices)>,
    /// Registers the memory of all this, and that of indexes which may be built yet.
    memory: Arc<MemoryReservation>,
    metrics: BuildMetrics,
}

/// What answers one aggregate.
#[derive(Debug)]
enum Answering {
    Extreme(Arc<ColumnIndex>),
    CountRows,
    Counts(Arc<Counts>),
    Sums(Arc<Sums>),
    SumRests(Arc<Sums>),
    First(Arc<Values>),
    Last(Arc<Values>),
    AtExtreme {
        values: Arc<Values>,
        by: Arc<ColumnIndex>,
        /// Where NULLs are to be found, if they come first.
        nulls: Option<Arc<Counts>>,
    },
}

/// Makes collected rows ready.
pub(super) async fn build(
    columns: &BuildColumns,
    collected: Collected,
    metrics: &BuildMetrics,
    threads: usize,
    devices: Option<Devices>,
) -> Result<BuildSide> {
    let (columns, metrics) = (columns.clone(), metrics.clone());
    blocking(move |waiting| build_now(columns, collected, metrics, threads, devices, waiting)).await
}

/// The same on a thread that may wait.
pub(super) fn build_now(
    columns: BuildColumns,
    collected: Collected,
    metrics: BuildMetrics,
    threads: usize,
    devices: Option<Devices>,
    waiting: Waiting,
) -> Result<BuildSide> {
    let Collected {
        schema,
        batches,
        memory,
    } = collected;
    // A sort or an index that has begun can't be stopped; between them it is seen that nobody waits any more.
    let work = Work {
        columns,
        memory,
        metrics,
        threads,
        devices,
        waiting,
    };
    work.build(&schema, batches)
}

/// What the blocking part of the building needs.
struct Work {
    columns: BuildColumns,
    memory: MemoryReservation,
    metrics: BuildMetrics,
    threads: usize,
    /// Where indexes are to lie on devices.
    devices: Option<Devices>,
    waiting: Waiting,
}

impl Work {
    /// The build side of these batches, whose memory is registered already.
    fn build(self, schema: &Schema, batches: Vec<RecordBatch>) -> Result<BuildSide> {
        let sort_timer = self.metrics.sort_time.timer();
        let types = schema.fields().iter().map(|f| f.data_type().clone());
        let types: Vec<DataType> = types.collect();
        let batches = if ties_matter(&self.columns) {
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
            self.waiting.check()?;
            let arrays = batch.columns();
            for (column, array) in values.iter_mut().zip(self.columns.values(arrays)) {
                column.chunks.arrays.push(Arc::clone(array));
            }
            let before = rows.bytes();
            rows.add(self.columns.equal(arrays), self.columns.key(arrays))?;
            // From now on the rows account for the keys.
            let given = &arrays[..arrays.len() - values.len()];
            self.replace(arrays_bytes(given) + before, rows.bytes())?;
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
        let held: Vec<_> = ready.into_iter().flat_map(|r| r.on_devices).collect();
        let devices = match &self.devices {
            Some(devices) if !held.is_empty() => {
                let on = devices.with_keys(&rows, held, self.threads, &self.waiting)?;
                self.metrics.note_device_bytes(on.bytes);
                Some((devices.clone(), on))
            }
            _ => None,
        };
        index_timer.done();
        self.metrics.build_mem_used.set_max(self.memory.size());
        Ok(BuildSide {
            rows,
            key_type: self.columns.key(&types).clone(),
            answers,
            devices,
            memory: Arc::new(self.memory),
            metrics: self.metrics,
        })
    }

    /// Makes all that is asked of a column, and lets go of it.
    fn prepare(&self, column: Column, wanted: Wanted, places: &Places) -> Result<Ready> {
        let Column { chunks, data_type } = column;
        let held = chunks.bytes();
        let mut borrowed = false;
        let mut ready = Ready::default();
        if wanted.counts {
            self.waiting.check()?;
            self.memory
                .try_grow(Counts::estimate(&chunks.arrays, places))?;
            ready.counts = Some(Arc::new(Counts::of(&chunks.arrays, places)?));
        }
        if let Some(counts) = ready.counts.as_ref().filter(|_| wanted.sums) {
            self.waiting.check()?;
            self.memory
                .try_grow(Sums::estimate(&chunks.arrays, &data_type, places))?;
            let sums = Sums::of(&chunks.arrays, &data_type, Arc::clone(counts), places)?;
            borrowed |= sums.borrow_column();
            ready.sums = Some(Arc::new(sums));
        }
        for (extreme, positions) in wanted.extremes {
            self.waiting.check()?;
            let index = self.index(
                &chunks,
                &data_type,
                extreme,
                positions,
                places,
                &mut ready.on_devices,
            )?;
            // One without a copy of its own looks at what was given.
            borrowed |= index.borrows_column();
            ready.extremes.push((extreme, Arc::new(index)));
        }
        if wanted.values {
            self.waiting.check()?;
            let order = places.order_bytes();
            // The chunks and the whole are there at once.
            self.memory.try_grow(held + order)?;
            let values = Values::of(&chunks.arrays, &data_type, places)?;
            self.replace(held, values.bytes())?;
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
        on_devices: &mut Vec<DeviceBytes>,
    ) -> Result<ColumnIndex> {
        let engine = CpuEngine::default();
        let options = BuildOptions {
            positions,
            threads: self.threads,
        };
        let copied = arranging_bytes(chunks, data_type, places);
        self.memory.try_grow(copied)?;
        if let Some(devices) = &self.devices {
            let arranged = arrange(chunks, data_type, extreme, places)?;
            let bytes = ColumnIndex::estimate_on_devices(&*devices.engine, chunks, data_type);
            match devices.index(arranged, bytes, &options, &self.waiting) {
                Ok((index, held)) => {
                    on_devices.push(held);
                    self.replace(copied, index.memory_bytes())?;
                    return Ok(index);
                }
                Err(error) => {
                    self.waiting.check()?;
                    devices.cpu_instead(error)?;
                    self.metrics.note_fallback();
                }
            }
        }
        // Nothing can be had any more when it turns out that an index pays.
        let indexing = ColumnIndex::estimate_of(&engine, chunks, data_type, &options);
        self.memory.try_grow(indexing)?;
        let pieces = arrange_in_pieces(chunks, data_type, extreme, places)?;
        let index = ColumnIndex::late(pieces, options)?;
        if self.devices.is_some() {
            // Those who ask devices do not ask when to build.
            index.build_now()?;
        }
        Ok(index)
    }

    /// Registers so many bytes in the place of others.
    fn replace(&self, before: usize, now: usize) -> Result<()> {
        self.memory
            .try_resize(self.memory.size().saturating_sub(before) + now)
    }
}

/// Whether it matters which of several rows with equal keys came first. It does not for sums of floats, which are rounded once.
pub(super) fn ties_matter(columns: &BuildColumns) -> bool {
    let chosen = |(function, _): &(KeyFunction, _)| match function {
        KeyFunction::First | KeyFunction::Last | KeyFunction::AtExtreme { .. } => true,
        KeyFunction::CountRows
        | KeyFunction::Count
        | KeyFunction::Sum
        | KeyFunction::SumRest
        | KeyFunction::Extreme(_) => false,
    };
    columns.prevailing || columns.aggregates.iter().any(chosen)
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
                KeyFunction::Sum | KeyFunction::SumRest => {
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
    on_devices: Vec<DeviceBytes>,
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
        KeyFunction::SumRest => first.and_then(|c| c.sums.clone()).map(Answering::SumRests),
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

    /// The type of the range key.
    pub(super) fn key_type(&self) -> &DataType {
        &self.key_type
    }

    /// What lies on devices, if anything does.
    pub(super) fn on_devices(&self) -> Option<&OnDevices> {
        self.devices.as_ref().map(|(_, on)| on)
    }

    /// See [`Devices::cpu_instead`].
    pub(super) fn cpu_instead(&self, error: DataFusionError) -> Result<()> {
        match &self.devices {
            Some((devices, _)) => devices.cpu_instead(error),
            None => Err(error),
        }
    }

    /// Builds those indexes that ranges had better wait for: see [`ColumnIndex::late`].
    pub(super) async fn make_ready(&self, ranges: &Ranges) -> Result<()> {
        for answering in &self.answers {
            let (Answering::Extreme(index) | Answering::AtExtreme { by: index, .. }) = answering
            else {
                continue;
            };
            let Some(late) = index.paying_for(ranges) else {
                continue;
            };
            let (index, late) = (Arc::clone(index), Arc::clone(late));
            // Building can't be stopped: until it ends its memory stays registered.
            let (metrics, memory) = (self.metrics.clone(), Arc::clone(&self.memory));
            let building = move |_| {
                let started = Instant::now();
                if late.build()? {
                    metrics.index_time.add_elapsed(started);
                    metrics.index_bytes.add(index.index_bytes());
                }
                drop(memory);
                Ok(())
            };
            blocking(building).await?;
        }
        Ok(())
    }

    /// What each aggregate is over these ranges, and whether the CPU answered in the place of devices.
    pub(super) fn answer(&self, ranges: &Ranges) -> Result<(Vec<ArrayRef>, bool)> {
        let mut stood_in = false;
        let answers = self.answers.iter();
        let answers = answers.map(|a| self.answer_one(a, ranges, &mut stood_in));
        let answers = answers.collect::<Result<_>>()?;
        Ok((answers, stood_in))
    }

    /// Asks an index for values or for positions.
    fn ask(
        &self,
        index: &ColumnIndex,
        ranges: &Ranges,
        position: bool,
        stood_in: &mut bool,
    ) -> Result<ArrayRef> {
        let may_stand_in = self.devices.as_ref().is_some_and(|(d, _)| !d.demanded);
        let ranges = std::slice::from_ref(ranges);
        let answer = index.answer(ranges, !position, position, may_stand_in)?;
        *stood_in |= answer.stood_in;
        let wanted = if position {
            answer.positions
        } else {
            answer.values
        };
        wanted.ok_or_else(|| internal_datafusion_err!("an index did not answer what it was asked"))
    }

    fn answer_one(
        &self,
        answering: &Answering,
        ranges: &Ranges,
        stood_in: &mut bool,
    ) -> Result<ArrayRef> {
        Ok(match answering {
            Answering::CountRows => {
                let counts = ranges.iter().map(|(l, r)| (r - l + 1).max(0));
                Arc::new(counts.collect::<Int64Array>())
            }
            Answering::Counts(counts) => Arc::new(counts.answer(ranges)),
            Answering::Sums(sums) => sums.answer(ranges),
            Answering::SumRests(sums) => sums.rests(ranges)?,
            Answering::Extreme(index) => self.ask(index, ranges, false, stood_in)?,
            Answering::First(values) => {
                values.at(ranges.iter().map(|(l, r)| (l <= r).then_some(l)))?
            }
            Answering::Last(values) => values.at(ranges.iter().map(|range| self.last(range)))?,
            Answering::AtExtreme { values, by, nulls } => {
                let positions = self.ask(by, ranges, true, stood_in)?;
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
