//! The build side of a range join by key, made ready: collected rows are sorted, and their columns indexed.

use std::cell::RefCell;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::blocking::{Waiting, blocking};
use super::key_answers::{BuildSide, Ready, answering};
use super::key_collect::{BuildColumns, Collected};
use super::key_devices::Devices;
use super::key_index::{JoinIndex, Reserve, Scanned};
use super::key_metrics::BuildMetrics;
use super::key_order::in_order;
use super::key_pieces::is_exhausted;
use crate::engine::cpu::CpuEngine;
use crate::engine::{BuildOptions, Extreme};
use crate::index::{
    Chunks, ColumnIndex, Counts, DeviceBytes, Places, Sums, Unsorted, Values, arrange,
    arrange_in_pieces, arranging_bytes, arrays_bytes,
};
use crate::plan::KeyFunction;

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
        memory: Arc::new(memory),
        metrics,
        threads,
        devices,
        waiting,
        late: RefCell::default(),
    };
    work.build(&schema, batches)
}

/// What the blocking part of the building needs.
struct Work {
    columns: BuildColumns,
    memory: Arc<MemoryReservation>,
    metrics: BuildMetrics,
    threads: usize,
    /// Where indexes are to lie on devices.
    devices: Option<Devices>,
    waiting: Waiting,
    /// Indexes that are to be built late.
    late: RefCell<Vec<Arc<JoinIndex>>>,
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
            _memory: self.memory,
        })
    }

    /// Makes all that is asked of a column, and lets go of it.
    fn prepare(&self, column: Column, wanted: Wanted, places: &Places) -> Result<Ready> {
        let Column { chunks, data_type } = &column;
        let held = chunks.bytes();
        let mut borrowed = false;
        let mut ready = Ready::default();
        if wanted.counts {
            self.waiting.check()?;
            self.grow(Counts::estimate(&chunks.arrays, places))?;
            ready.counts = Some(Arc::new(Counts::of(&chunks.arrays, places)?));
        }
        if let Some(counts) = ready.counts.as_ref().filter(|_| wanted.sums) {
            self.waiting.check()?;
            self.grow(Sums::estimate(&chunks.arrays, data_type, places))?;
            let sums = Sums::of(&chunks.arrays, data_type, Arc::clone(counts), places)?;
            borrowed |= sums.borrow_column();
            ready.sums = Some(Arc::new(sums));
        }
        for wanted in wanted.extremes {
            self.waiting.check()?;
            let index = match self.on_devices(&column, wanted, places)? {
                Some((index, held)) => {
                    ready.on_devices.push(held);
                    borrowed |= index.borrows_column();
                    Arc::new(JoinIndex::built(index))
                }
                None => self.index(&column, wanted, places)?,
            };
            ready.extremes.push((wanted.0, index));
        }
        if wanted.values {
            self.waiting.check()?;
            let order = places.order_bytes();
            // The chunks and the whole are there at once.
            self.grow(held + order)?;
            let values = Values::of(&chunks.arrays, data_type, places)?;
            self.replace(held, values.bytes())?;
            ready.values = Some(Arc::new(values));
        }
        drop(column);
        if !borrowed {
            // Goes with the last index that scans it.
            let scanned = Scanned::new(Arc::clone(&self.memory), held);
            ready.extremes.iter().for_each(|(_, i)| i.scans(&scanned));
        }
        Ok(ready)
    }

    fn options(&self, positions: bool) -> BuildOptions {
        BuildOptions {
            positions,
            threads: self.threads,
        }
    }

    /// The index of a column on devices, if it is to lie there and does.
    fn on_devices(
        &self,
        column: &Column,
        (extreme, positions): (Extreme, bool),
        places: &Places,
    ) -> Result<Option<(ColumnIndex, DeviceBytes)>> {
        let Some(devices) = &self.devices else {
            return Ok(None);
        };
        let Column { chunks, data_type } = column;
        let options = self.options(positions);
        let copied = arranging_bytes(chunks, data_type, places);
        self.grow(copied)?;
        let arranged = arrange(chunks, data_type, extreme, places)?;
        let bytes = ColumnIndex::estimate_on_devices(&*devices.engine, chunks, data_type);
        match devices.index(arranged, bytes, &options, &self.waiting) {
            Ok((index, held)) => {
                self.replace(copied, index.memory_bytes())?;
                Ok(Some((index, held)))
            }
            Err(error) => {
                self.replace(copied, 0)?;
                self.waiting.check()?;
                devices.cpu_instead(error)?;
                self.metrics.note_fallback();
                Ok(None)
            }
        }
    }

    /// The CPU's index of a column, which is built late.
    fn index(
        &self,
        column: &Column,
        (extreme, positions): (Extreme, bool),
        places: &Places,
    ) -> Result<Arc<JoinIndex>> {
        let Column { chunks, data_type } = column;
        let options = self.options(positions);
        let engine = CpuEngine::default();
        let indexing = ColumnIndex::estimate_of(&engine, chunks, data_type, &options);
        let mut bytes = arranging_bytes(chunks, data_type, places) + indexing;
        self.grow(bytes)?;
        let pieces = arrange_in_pieces(chunks, data_type, extreme, places)?;
        let index = ColumnIndex::late(pieces, options)?;
        if !index.borrows_column() {
            // It was arranged, and is not copied once more.
            let rest = index.memory_bytes() + indexing;
            self.replace(bytes, rest)?;
            bytes = rest;
        }
        let reserve = Reserve::new(Arc::clone(&self.memory), bytes, self.metrics.clone());
        let index = Arc::new(JoinIndex::late(index, reserve));
        if self.devices.is_some() {
            // Those who ask devices do not ask when to build.
            index.build()?;
        } else {
            self.late.borrow_mut().push(Arc::clone(&index));
        }
        Ok(index)
    }

    /// Registers memory. Where there is no more, what was to be built late is built, as it takes less then.
    fn grow(&self, bytes: usize) -> Result<()> {
        match self.memory.try_grow(bytes) {
            Err(error) if is_exhausted(&error) && !self.late.borrow().is_empty() => {
                for index in self.late.take() {
                    self.waiting.check()?;
                    index.build()?;
                }
                self.memory.try_grow(bytes)
            }
            grown => grown,
        }
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
