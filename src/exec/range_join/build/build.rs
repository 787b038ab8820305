//! The build side of a range join by key, made ready: collected rows are sorted, and their columns indexed.

use std::cell::RefCell;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::array_bytes::arrays_bytes;
use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::range_join::build::collect::{BuildColumns, Collected};
use crate::exec::range_join::build::input_order::in_order;
use crate::exec::range_join::build::side::{BuildSide, Ready, answering};
use crate::exec::range_join::build::value_index::JoinIndex;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::probe::on_devices::Devices;
use crate::exec::range_join::spill::probe::is_exhausted;
use crate::index::catalog::DeviceBytes;
use crate::index::column_index::ColumnIndex;
use crate::index::sort_keys::Chunks;
use crate::logical_plan::range_join::AggregateKind;
use crate::range_agg::prefix_sums::{Counts, Sums};
use crate::range_agg::values::Values;
use crate::sorted::arrange::{arrange, arrange_in_pieces, arranging_bytes};
use crate::sorted::bucket_sort::SortContext;
use crate::sorted::permutation::RowPermutation;
use crate::sorted::sort_rows::SortedRowsBuilder;
use rmq_engine::cpu::CpuEngine;
use rmq_engine::{BuildOptions, Extreme};

/// Makes collected rows ready.
pub(crate) async fn build(
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
pub(crate) fn build_now(
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
    // An index that has begun can't be stopped; between them it is seen that nobody waits any more.
    let work = Work {
        columns,
        metrics,
        threads,
        devices,
        waiting,
        late: RefCell::default(),
    };
    work.build(&schema, batches, memory)
}

/// What the blocking part of the building needs. Each thing that is made has a reservation of its own, which goes with it.
struct Work {
    columns: BuildColumns,
    metrics: BuildMetrics,
    threads: usize,
    /// Where indexes are to lie on devices.
    devices: Option<Devices>,
    waiting: Waiting,
    /// Indexes that are to be built late.
    late: RefCell<Vec<Arc<JoinIndex>>>,
}

impl Work {
    /// The build side of these batches, which `memory` registers.
    fn build(
        self,
        schema: &Schema,
        batches: Vec<RecordBatch>,
        memory: MemoryReservation,
    ) -> Result<BuildSide> {
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
        let mut rows = SortedRowsBuilder::try_new(count, equal, key)?;
        let rows_memory = memory.new_empty();
        rows_memory.try_grow(rows.bytes())?;
        let values = self.columns.values(&types).iter();
        let mut values: Vec<Column> = values.map(Column::new).collect();
        for batch in batches {
            self.waiting.check()?;
            let arrays = batch.columns();
            for (column, array) in values.iter_mut().zip(self.columns.values(arrays)) {
                column.chunks.arrays.push(Arc::clone(array));
            }
            rows.add(self.columns.equal(arrays), self.columns.key(arrays))?;
            // From now on the rows account for the keys.
            let keys = &arrays[..arrays.len() - values.len()];
            drop(split_off(&memory, arrays_bytes(keys)));
            rows_memory.try_resize(rows.bytes())?;
        }
        self.metrics.build_rows.add(rows.len());
        let values = values.into_iter().map(|column| {
            let held = split_off(&memory, column.chunks.bytes());
            held.try_resize(column.chunks.bytes())?;
            Ok((column, Arc::new(held)))
        });
        let values: Vec<_> = values.collect::<Result<_>>()?;
        let places_memory = memory.new_empty();
        drop(memory);
        let (rows, places) = rows.sort(SortContext {
            memory: &places_memory,
            check: &|| self.waiting.check(),
        })?;
        // Sorting ends with less than it has taken.
        places_memory.try_resize(places.bytes())?;
        rows_memory.try_resize(rows.bytes())?;
        let was_sorted = places.are_as_they_came();
        self.metrics.already_sorted.add(usize::from(was_sorted));
        sort_timer.done();

        let index_timer = self.metrics.index_time.timer();
        let mut ready = vec![];
        for (i, (column, held)) in values.into_iter().enumerate() {
            let wanted = Wanted::of(&self.columns.aggregates, i);
            ready.push(self.prepare(column, held, wanted, &places, &places_memory)?);
        }
        let kept = places.order_kept();
        drop(places);
        places_memory.try_resize(kept)?;
        let mut answers = vec![];
        for (function, arguments) in &self.columns.aggregates {
            answers.push(answering(*function, arguments, &ready)?);
        }
        let mut memory = vec![Arc::new(rows_memory), Arc::new(places_memory)];
        let (mut in_indexes, mut on_devices) = (0, vec![]);
        for column in ready {
            in_indexes += column.indexes_registered();
            on_devices.extend(column.on_devices);
            memory.extend(column.memory);
        }
        let registered: usize = memory.iter().map(|m| m.size()).sum();
        let devices = match &self.devices {
            Some(devices) if !on_devices.is_empty() => {
                let on = devices.with_keys(&rows, on_devices, self.threads, &self.waiting)?;
                self.metrics.note_device_bytes(on.bytes);
                Some((devices.clone(), on))
            }
            _ => None,
        };
        index_timer.done();
        self.metrics.build_mem_used.set_max(registered + in_indexes);
        Ok(BuildSide {
            rows,
            key_type: self.columns.key(&types).clone(),
            answers,
            devices,
            _memory: memory,
        })
    }

    /// Makes all that is asked of a column, which `held` registers, and lets go of it.
    fn prepare(
        &self,
        column: Column,
        held: Arc<MemoryReservation>,
        wanted: Wanted,
        places: &RowPermutation,
        places_memory: &MemoryReservation,
    ) -> Result<Ready> {
        let Column { chunks, data_type } = &column;
        let mut borrowed = false;
        let mut ready = Ready::default();
        if wanted.counts {
            self.waiting.check()?;
            let memory = self.reserve(&held, Counts::estimate(&chunks.arrays, places))?;
            ready.counts = Some(Arc::new(Counts::of(&chunks.arrays, places)?));
            ready.memory.push(Arc::new(memory));
        }
        if let Some(counts) = ready.counts.as_ref().filter(|_| wanted.sums) {
            self.waiting.check()?;
            let memory = self.reserve(&held, Sums::estimate(&chunks.arrays, data_type, places))?;
            let sums = Sums::of(&chunks.arrays, data_type, Arc::clone(counts), places)?;
            borrowed |= sums.borrow_column();
            ready.sums = Some(Arc::new(sums));
            ready.memory.push(Arc::new(memory));
        }
        for wanted in wanted.extremes {
            self.waiting.check()?;
            let index = match self.on_devices(&column, &held, wanted, places)? {
                Some((index, on_devices)) => {
                    ready.on_devices.push(on_devices);
                    borrowed |= index.index().borrows_column();
                    Arc::new(index)
                }
                None => self.index(&column, &held, wanted, places)?,
            };
            ready.extremes.push((wanted.0, index));
        }
        if wanted.values {
            self.waiting.check()?;
            self.grow(places_memory, places.order_bytes())?;
            // The chunks and the whole are there at once.
            let memory = self.reserve(&held, chunks.bytes())?;
            let values = Values::of(&chunks.arrays, data_type, places)?;
            memory.try_resize(values.bytes())?;
            ready.values = Some(Arc::new(values));
            ready.memory.push(Arc::new(memory));
        }
        drop(column);
        if borrowed {
            ready.memory.push(held);
        } else {
            // Goes with the last index that scans it.
            ready.extremes.iter().for_each(|(_, i)| i.scans(&held));
            ready.scanned = Arc::downgrade(&held);
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
        held: &MemoryReservation,
        (extreme, positions): (Extreme, bool),
        places: &RowPermutation,
    ) -> Result<Option<(JoinIndex, DeviceBytes)>> {
        let Some(devices) = &self.devices else {
            return Ok(None);
        };
        let Column { chunks, data_type } = column;
        let options = self.options(positions);
        let memory = self.reserve(held, arranging_bytes(chunks, data_type, places))?;
        let arranged = arrange(chunks, data_type, extreme, places, &|| self.waiting.check())?;
        let bytes = ColumnIndex::estimate_on_devices(&*devices.engine, chunks, data_type);
        match devices.index(arranged, bytes, &options, &self.waiting) {
            Ok((index, on_devices)) => {
                memory.try_resize(index.memory_bytes())?;
                Ok(Some((JoinIndex::built(index, memory), on_devices)))
            }
            Err(error) => {
                drop(memory);
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
        held: &MemoryReservation,
        (extreme, positions): (Extreme, bool),
        places: &RowPermutation,
    ) -> Result<Arc<JoinIndex>> {
        let Column { chunks, data_type } = column;
        let options = self.options(positions);
        let engine = CpuEngine::default();
        let indexing = ColumnIndex::estimate_of(&engine, chunks, data_type, &options);
        let arranging = arranging_bytes(chunks, data_type, places);
        let memory = self.reserve(held, arranging + indexing)?;
        let pieces =
            arrange_in_pieces(chunks, data_type, extreme, places, &|| self.waiting.check())?;
        let index = ColumnIndex::late(pieces, options)?;
        if !index.borrows_column() {
            // It was arranged, and is not copied once more.
            memory.try_resize(index.memory_bytes() + indexing)?;
        }
        let index = Arc::new(JoinIndex::late(index, memory, self.metrics.clone()));
        if self.devices.is_some() {
            // Those who ask devices do not ask when to build.
            index.build()?;
        } else {
            self.late.borrow_mut().push(Arc::clone(&index));
        }
        Ok(index)
    }

    /// A reservation of so many bytes of the memory that another is of, see [`Self::grow`].
    fn reserve(&self, of: &MemoryReservation, bytes: usize) -> Result<MemoryReservation> {
        let memory = of.new_empty();
        self.grow(&memory, bytes)?;
        Ok(memory)
    }

    /// Registers more memory. Where there is no more, what was to be built late is built, as it takes less then.
    fn grow(&self, memory: &MemoryReservation, bytes: usize) -> Result<()> {
        match memory.try_grow(bytes) {
            Err(error) if is_exhausted(&error) && !self.late.borrow().is_empty() => {
                for index in self.late.take() {
                    self.waiting.check()?;
                    index.build()?;
                }
                memory.try_grow(bytes)
            }
            grown => grown,
        }
    }
}

/// So many bytes of what is registered, or all where that is less.
fn split_off(memory: &MemoryReservation, bytes: usize) -> MemoryReservation {
    memory.split(bytes.min(memory.size()))
}

/// Whether it matters which of several rows with equal keys came first. It does not for sums of floats, which are rounded once.
pub(crate) fn ties_matter(columns: &BuildColumns) -> bool {
    let chosen = |(function, _): &(AggregateKind, _)| match function {
        AggregateKind::First | AggregateKind::Last | AggregateKind::AtExtreme { .. } => true,
        AggregateKind::CountRows
        | AggregateKind::Count
        | AggregateKind::Sum
        | AggregateKind::SumLow
        | AggregateKind::Extreme(_) => false,
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
    fn of(aggregates: &[(AggregateKind, Vec<usize>)], column: usize) -> Self {
        let mut wanted = Self::default();
        for (function, arguments) in aggregates {
            let is_first = arguments.first() == Some(&column);
            let is_second = arguments.get(1) == Some(&column);
            match *function {
                AggregateKind::Count => wanted.counts |= is_first,
                AggregateKind::Sum | AggregateKind::SumLow => {
                    wanted.counts |= is_first;
                    wanted.sums |= is_first;
                }
                AggregateKind::First | AggregateKind::Last => wanted.values |= is_first,
                AggregateKind::Extreme(extreme) if is_first => wanted.extreme(extreme, false),
                AggregateKind::CountRows | AggregateKind::Extreme(_) => {}
                AggregateKind::AtExtreme {
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
