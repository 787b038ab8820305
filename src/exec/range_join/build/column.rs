//! Prepares one value column of the build side: builds what the aggregates over it need, from the collected column and the sort permutation.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::common::blocking::Waiting;
use crate::exec::range_join::build::device_side::build_index;
use crate::exec::range_join::build::value_index::ValueIndex;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::devices::JoinDevices;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::spill::retaining_pool::is_out_of_memory;
use crate::index::catalog::DeviceBytes;
use crate::index::column_index::ColumnIndex;
use crate::index::sort_keys::Chunks;
use crate::logical_plan::range_join::AggregateKind;
use crate::range_agg::counts::Counts;
use crate::range_agg::prefix_sums::Sums;
use crate::range_agg::values::Values;
use crate::sorted::arrange::{arrange, arrange_chunks, estimate_arrange};
use crate::sorted::permutation::RowPermutation;
use rmq_engine::cpu::CpuEngine;
use rmq_engine::{BuildOptions, Extreme};

/// A value column as it was collected, not sorted.
pub(crate) struct CollectedColumn {
    pub(crate) chunks: Chunks,
    data_type: DataType,
}

impl CollectedColumn {
    /// A column without rows.
    pub(crate) fn new(data_type: &DataType) -> Self {
        Self {
            chunks: Chunks {
                arrays: vec![],
                owned_elsewhere: true,
            },
            data_type: data_type.clone(),
        }
    }
}

/// What the aggregates need of one column.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "one for each structure")]
pub(crate) struct ColumnNeeds {
    counts: bool,
    sums: bool,
    values: bool,
    /// Whether single rows are taken.
    rows: bool,
    indexes: Vec<IndexNeeds>,
}

/// The index that aggregates need of a column.
#[derive(Debug, Clone, Copy)]
struct IndexNeeds {
    extreme: Extreme,
    /// Whether positions are queried besides values.
    positions: bool,
}

impl ColumnNeeds {
    /// What a join needs of the value column with this index.
    pub(crate) fn of_column(columns: &BuildColumns, column: usize) -> Self {
        let mut needs = Self {
            rows: columns.row_columns.contains(&column),
            ..Self::default()
        };
        for (function, arguments) in &columns.aggregates {
            let is_first = arguments.first() == Some(&column);
            let is_second = arguments.get(1) == Some(&column);
            match *function {
                AggregateKind::Count => needs.counts |= is_first,
                AggregateKind::Sum | AggregateKind::SumLow => {
                    needs.counts |= is_first;
                    needs.sums |= is_first;
                }
                AggregateKind::First | AggregateKind::Last => needs.values |= is_first,
                AggregateKind::Extreme(extreme) if is_first => needs.add_index(extreme, false),
                AggregateKind::CountRows | AggregateKind::Extreme(_) => {}
                AggregateKind::AtExtreme {
                    extreme,
                    nulls_first,
                } => {
                    needs.values |= is_first;
                    if is_second {
                        needs.add_index(extreme, true);
                        needs.counts |= nulls_first;
                    }
                }
            }
        }
        needs
    }

    fn add_index(&mut self, extreme: Extreme, positions: bool) {
        match self.indexes.iter_mut().find(|i| i.extreme == extreme) {
            Some(index) => index.positions |= positions,
            None => self.indexes.push(IndexNeeds { extreme, positions }),
        }
    }
}

/// What was built of one column for its aggregates.
#[derive(Debug, Default)]
pub(crate) struct PreparedColumn {
    pub(crate) counts: Option<Arc<Counts>>,
    pub(crate) sums: Option<Arc<Sums>>,
    pub(crate) values: Option<Arc<Values>>,
    /// The values in sorted order.
    pub(crate) rows: Option<Arc<Values>>,
    indexes: Vec<(Extreme, Arc<ValueIndex>)>,
    /// Reserves the device memory of the indexes.
    pub(crate) device_bytes: Vec<DeviceBytes>,
    /// Registers the memory of all but the indexes.
    pub(crate) memory: Vec<Arc<MemoryReservation>>,
    /// Registers the collected column while lazy indexes scan it.
    scanned_column: Weak<MemoryReservation>,
}

impl PreparedColumn {
    /// Bytes that are registered for the indexes, and for the column that they scan.
    pub(crate) fn index_registered_bytes(&self) -> usize {
        let indexes = self.indexes.iter();
        let indexes = indexes.map(|(_, index)| index.registered_bytes());
        let scanned = self.scanned_column.upgrade();
        indexes.sum::<usize>() + scanned.map_or(0, |column| column.size())
    }

    /// The index for minima or for maxima, if it was needed.
    pub(crate) fn index(&self, extreme: Extreme) -> Option<Arc<ValueIndex>> {
        let mut indexes = self.indexes.iter();
        let (_, index) = indexes.find(|(e, _)| *e == extreme)?;
        Some(Arc::clone(index))
    }
}

/// Prepares the columns of one build side. Everything that it builds has a reservation of its own, which is freed with it.
pub(crate) struct ColumnPreparer<'a> {
    pub(crate) metrics: &'a BuildMetrics,
    pub(crate) threads: usize,
    /// The devices for the indexes, if any were selected.
    pub(crate) devices: Option<&'a JoinDevices>,
    pub(crate) waiting: &'a Waiting,
    /// Lazy indexes that are not built, in the order of their creation.
    pub(crate) lazy_indexes: RefCell<Vec<Arc<ValueIndex>>>,
}

impl ColumnPreparer<'_> {
    /// Builds what is needed of a column, whose memory `column_memory` registers, and drops the column.
    pub(crate) fn prepare(
        &self,
        column: CollectedColumn,
        column_memory: Arc<MemoryReservation>,
        needs: ColumnNeeds,
        permutation: &RowPermutation,
        permutation_memory: &MemoryReservation,
    ) -> Result<PreparedColumn> {
        let CollectedColumn { chunks, data_type } = &column;
        let mut is_borrowed = false;
        let mut prepared = PreparedColumn::default();
        if needs.counts {
            self.waiting.check()?;
            let bytes = Counts::estimate(&chunks.arrays, permutation);
            let memory = self.reserve(&column_memory, bytes)?;
            prepared.counts = Some(Arc::new(Counts::of(&chunks.arrays, permutation)?));
            prepared.memory.push(Arc::new(memory));
        }
        if let Some(counts) = prepared.counts.as_ref().filter(|_| needs.sums) {
            self.waiting.check()?;
            let bytes = Sums::estimate(&chunks.arrays, data_type, permutation);
            let memory = self.reserve(&column_memory, bytes)?;
            let sums = Sums::of(&chunks.arrays, data_type, Arc::clone(counts), permutation)?;
            is_borrowed |= sums.borrows_column();
            prepared.sums = Some(Arc::new(sums));
            prepared.memory.push(Arc::new(memory));
        }
        for index_needs in needs.indexes {
            self.waiting.check()?;
            let on_devices =
                self.build_on_devices(&column, &column_memory, index_needs, permutation)?;
            let index = match on_devices {
                Some((index, device_bytes)) => {
                    prepared.device_bytes.push(device_bytes);
                    is_borrowed |= index.index().borrows_column();
                    Arc::new(index)
                }
                None => self.lazy_index(&column, &column_memory, index_needs, permutation)?,
            };
            prepared.indexes.push((index_needs.extreme, index));
        }
        if needs.values {
            self.waiting.check()?;
            self.grow(permutation_memory, permutation.order_bytes())?;
            // The chunks and the sorted copy exist at the same time.
            let memory = self.reserve(&column_memory, chunks.bytes())?;
            let values = Values::of(&chunks.arrays, data_type, permutation)?;
            memory.try_resize(values.bytes())?;
            prepared.values = Some(Arc::new(values));
            prepared.memory.push(Arc::new(memory));
        }
        if needs.rows {
            self.waiting.check()?;
            self.grow(permutation_memory, permutation.order_bytes())?;
            // The chunks, a copy of them and the sorted copy exist at the same time.
            let memory = self.reserve(&column_memory, 2 * chunks.bytes())?;
            let values = Values::sorted(&chunks.arrays, data_type, permutation)?;
            memory.try_resize(values.bytes())?;
            prepared.rows = Some(Arc::new(values));
            prepared.memory.push(Arc::new(memory));
        }
        drop(column);
        if is_borrowed {
            prepared.memory.push(column_memory);
        } else {
            // Freed with the last index that scans the column.
            let indexes = prepared.indexes.iter();
            indexes.for_each(|(_, index)| index.retain_scanned_column(&column_memory));
            prepared.scanned_column = Arc::downgrade(&column_memory);
        }
        Ok(prepared)
    }

    fn build_options(&self, positions: bool) -> BuildOptions {
        BuildOptions {
            positions,
            threads: self.threads,
        }
    }

    /// Builds an index on devices; `None` if none were selected, or if they failed and the CPU may take over.
    fn build_on_devices(
        &self,
        column: &CollectedColumn,
        column_memory: &MemoryReservation,
        IndexNeeds { extreme, positions }: IndexNeeds,
        permutation: &RowPermutation,
    ) -> Result<Option<(ValueIndex, DeviceBytes)>> {
        let Some(devices) = self.devices else {
            return Ok(None);
        };
        let CollectedColumn { chunks, data_type } = column;
        let options = self.build_options(positions);
        let bytes = estimate_arrange(chunks, data_type, permutation);
        let memory = self.reserve(column_memory, bytes)?;
        let check = || self.waiting.check();
        let sorted = arrange(chunks, data_type, extreme, permutation, &check)?;
        let bytes = ColumnIndex::estimate_on_devices(&*devices.engine, chunks, data_type);
        let built = build_index(devices, sorted, bytes, &options, self.waiting);
        if built.is_err() {
            // A cancelled query makes devices fail.
            self.waiting.check()?;
        }
        let record_fallback = || self.metrics.record_cpu_fallback();
        let built = devices.or_cpu_fallback(built, record_fallback)?;
        let Some((index, device_bytes)) = built else {
            return Ok(None);
        };
        memory.try_resize(index.memory_bytes())?;
        Ok(Some((ValueIndex::built(index, memory), device_bytes)))
    }

    /// Prepares a lazy index on the CPU. Where devices were selected it is built at once.
    fn lazy_index(
        &self,
        column: &CollectedColumn,
        column_memory: &MemoryReservation,
        IndexNeeds { extreme, positions }: IndexNeeds,
        permutation: &RowPermutation,
    ) -> Result<Arc<ValueIndex>> {
        let CollectedColumn { chunks, data_type } = column;
        let options = self.build_options(positions);
        let engine = CpuEngine::default();
        let index_bytes = ColumnIndex::estimate_index(&engine, chunks, data_type, &options);
        let sorted_bytes = estimate_arrange(chunks, data_type, permutation);
        let memory = self.reserve(column_memory, sorted_bytes + index_bytes)?;
        let check = || self.waiting.check();
        let sorted = arrange_chunks(chunks, data_type, extreme, permutation, &check)?;
        let index = ColumnIndex::late(sorted, options)?;
        if !index.borrows_column() {
            // The sorted copy is the only one.
            memory.try_resize(index.memory_bytes() + index_bytes)?;
        }
        let index = Arc::new(ValueIndex::lazy(index, memory, self.metrics.clone()));
        if self.devices.is_some() {
            // The probing of devices does not check whether an index should be built.
            index.build()?;
        } else {
            self.lazy_indexes.borrow_mut().push(Arc::clone(&index));
        }
        Ok(index)
    }

    /// A new reservation in the pool of another, see [`Self::grow`].
    fn reserve(&self, pool_of: &MemoryReservation, bytes: usize) -> Result<MemoryReservation> {
        let memory = pool_of.new_empty();
        self.grow(&memory, bytes)?;
        Ok(memory)
    }

    /// Grows a reservation. If the pool has no more, all lazy indexes are built first: a built index takes less than it has registered.
    fn grow(&self, memory: &MemoryReservation, bytes: usize) -> Result<()> {
        match memory.try_grow(bytes) {
            Err(error) if is_out_of_memory(&error) && !self.lazy_indexes.borrow().is_empty() => {
                for index in self.lazy_indexes.take() {
                    self.waiting.check()?;
                    index.build()?;
                }
                memory.try_grow(bytes)
            }
            grown => grown,
        }
    }
}
