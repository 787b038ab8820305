//! Prepares one value column of the build side: builds what the aggregates over it need, from the collected column and
//! the sort permutation.

use std::cell::RefCell;
use std::sync::Arc;

use arrow::array::{ArrayRef, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::common::blocking::Waiting;
use crate::exec::common::statistic_copies::CopyDevices;
use crate::exec::range_join::aggregate_table::{Structure, Structures};
use crate::exec::range_join::build_side::lazy_structure::LazyStructure;
use crate::exec::range_join::build_side::on_demand::OnDemand;
use crate::exec::range_join::build_side::order_statistics::OrderStatistics;
use crate::exec::range_join::build_side::value_index::ValueIndex;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::spill::retaining_pool::is_out_of_memory;
use rmq_arrow::common::array_bytes::arrays_bytes;
use rmq_arrow::common::ordered_type::is_borrowed;
use rmq_arrow::common::range_function::IndexKind;
use rmq_arrow::common::workers::Workers;
use rmq_arrow::index::key_index::KeyIndex;
use rmq_arrow::index::sort_keys::{Chunks, Encoded, concatenated};
use rmq_arrow::range_agg::counts::Counts;
use rmq_arrow::range_agg::prefix_sums::Sums;
use rmq_arrow::range_agg::values::Values;
use rmq_arrow::sorted::arrange::{
    arrange, borrows_chunks, encode_chunks, estimate_arrange, permute_values,
};
use rmq_arrow::sorted::permutation::RowPermutation;
use rmq_engine::{BuildOptions, Extreme};

/// A value column as it was collected, not sorted.
pub(crate) struct CollectedColumn {
    pub(crate) chunks: Chunks,
    pub(crate) data_type: DataType,
    /// Registers the chunks.
    pub(crate) memory: Arc<MemoryReservation>,
}

/// What a structure consists of. A clone shares it.
#[derive(Debug, Clone)]
pub(crate) enum Built {
    Counts(Arc<Counts>),
    Sums(Arc<Sums>),
    /// Of [`Structure::Values`] and [`Structure::Rows`].
    Values(Arc<Values>),
    Array(ArrayRef),
    OrderStatistics(Arc<OrderStatistics>),
    Index(Arc<ValueIndex>),
}

impl Built {
    /// The structure, if it is built once ranges justify it.
    pub(crate) fn lazy(&self) -> Option<Arc<dyn LazyStructure>> {
        match self {
            Self::Index(index) => Some(Arc::<ValueIndex>::clone(index)),
            Self::OrderStatistics(index) => Some(Arc::<OrderStatistics>::clone(index)),
            Self::Counts(_) | Self::Sums(_) | Self::Values(_) | Self::Array(_) => None,
        }
    }
}

/// A structure with what registers its memory.
#[derive(Debug, Clone)]
struct BuiltStructure {
    structure: Structure,
    built: Built,
    /// Of a lazy one, none: it registers its own.
    memory: Vec<Arc<MemoryReservation>>,
}

/// The structures of one column, each once. A clone shares them.
#[derive(Debug, Default, Clone)]
pub(crate) struct PreparedColumn(Vec<BuiltStructure>);

impl PreparedColumn {
    /// The structure that serves as this one, if it was built.
    pub(crate) fn get(&self, structure: Structure) -> Option<&Built> {
        let mut structures = self.0.iter();
        let known = structures.find(|known| known.structure.serves(structure));
        known.map(|known| &known.built)
    }

    /// The values of rows that are returned.
    pub(crate) fn rows(&self) -> Option<&Arc<Values>> {
        match self.get(Structure::Rows)? {
            Built::Values(rows) => Some(rows),
            _ => None,
        }
    }

    /// The values in sorted order as one array.
    pub(crate) fn array(&self) -> Option<&ArrayRef> {
        match self.get(Structure::Array)? {
            Built::Array(array) => Some(array),
            _ => None,
        }
    }

    /// What is needed and has not been built.
    pub(crate) fn missing(&self, needs: &Structures) -> Structures {
        let needs = needs.iter();
        needs.filter(|needed| self.get(*needed).is_none()).collect()
    }

    /// Adds a structure whose memory these reservations register, unless another one serves as it.
    pub(crate) fn push(
        &mut self,
        structure: Structure,
        built: Built,
        memory: Vec<Arc<MemoryReservation>>,
    ) {
        if self.get(structure).is_none() {
            self.0.retain(|known| !structure.serves(known.structure));
            self.0.push(BuiltStructure {
                structure,
                built,
                memory,
            });
        }
    }

    /// Adds what was built of the same column later, or at the same time by another query.
    pub(crate) fn add(&mut self, other: Self) {
        for added in other.0 {
            self.push(added.structure, added.built, added.memory);
        }
    }

    /// Bytes that are registered for all of it.
    pub(crate) fn registered_bytes(&self) -> usize {
        // Several structures may share a sorted copy of the column.
        let mut distinct: Vec<Arc<MemoryReservation>> = vec![];
        for structure in &self.0 {
            let lazy = structure.built.lazy().map(|lazy| lazy.memory());
            for memory in structure.memory.iter().chain(lazy.iter().flatten()) {
                if !distinct.iter().any(|known| Arc::ptr_eq(known, memory)) {
                    distinct.push(Arc::clone(memory));
                }
            }
        }
        distinct.iter().map(|memory| memory.size()).sum()
    }
}

/// A column as keys, each at its position.
struct SortedColumn {
    /// One after another. Several where rows keep their positions and keys are borrowed from the collected arrays.
    keys: Vec<Encoded>,
    /// Registers the memory of the keys.
    memory: Arc<MemoryReservation>,
}

impl SortedColumn {
    /// The keys whose minimum is the `extreme` of the values.
    fn directed(&self, extreme: Extreme) -> Vec<Encoded> {
        let keys = self.keys.iter().map(|keys| Encoded {
            column: keys.column.directed(extreme),
            ..keys.clone()
        });
        keys.collect()
    }

    /// The values in arrays that share the memory of the keys; `None` if keys differ from values.
    fn arrays(&self) -> Result<Option<Vec<ArrayRef>>> {
        let arrays = self.keys.iter().map(Encoded::array);
        arrays.collect()
    }
}

/// Values in sorted order, one array after another, and what registers their memory.
type SortedArrays = (Vec<ArrayRef>, Arc<MemoryReservation>);

/// Prepares the columns of one build side. Everything that it builds has a reservation of its own, which is freed with
/// it.
pub(crate) struct ColumnPreparer<'a> {
    pub(crate) permutation: &'a RowPermutation,
    pub(crate) permutation_memory: &'a MemoryReservation,
    pub(crate) metrics: &'a BuildMetrics,
    pub(crate) devices: Option<&'a CopyDevices>,
    pub(crate) waiting: &'a Waiting,
    pub(crate) workers: Workers<'a>,
    /// Lazy structures that are not built, in the order of their creation.
    pub(crate) lazy: RefCell<Vec<Arc<dyn LazyStructure>>>,
}

impl ColumnPreparer<'_> {
    /// Builds what is needed of a column, and drops the column.
    pub(crate) fn prepare(
        &self,
        column: CollectedColumn,
        needs: &Structures,
    ) -> Result<PreparedColumn> {
        let mut prepared = PreparedColumn::default();
        let needs_values = needs.contains(Structure::Values);
        let statistics: Vec<_> = needs.order_statistics().collect();
        let keys_are_values = is_borrowed(&column.data_type);
        // Ranks of other values would need a copy of the column, which no median asks for alone.
        let copies = !keys_are_values && statistics.contains(&IndexKind::DistinctCounts);
        let needs_array = needs.contains(Structure::Array) || copies;
        let needs_sums = needs.contains(Structure::Sums);
        let has_indexes = needs.indexes().next().is_some();

        let mut counts = None;
        if needs.contains(Structure::Counts) || needs_sums {
            let (built, memory) = self.counts(&column)?;
            let shared = vec![Arc::clone(&memory)];
            prepared.push(Structure::Counts, Built::Counts(Arc::clone(&built)), shared);
            counts = Some((built, memory));
        }
        // One copy, sorted, serves all that is built of the column.
        let takes_values = needs_sums || needs_values || !statistics.is_empty();
        let takes_keys = has_indexes || takes_values && keys_are_values;
        let sorted = takes_keys.then(|| self.sort_column(&column, needs_values || needs_array));
        let sorted = sorted.transpose()?;
        let mut arrays: Option<SortedArrays> = match &sorted {
            Some(sorted) if keys_are_values && (takes_values || needs_array) => {
                let arrays = sorted.arrays()?;
                arrays.map(|arrays| (arrays, Arc::clone(&sorted.memory)))
            }
            _ => None,
        };
        let whole = match &arrays {
            Some((arrays, memory)) if let [array] = arrays.as_slice() => {
                Some((Arc::clone(array), Arc::clone(memory)))
            }
            _ => None,
        };
        if needs_values {
            let (values, memory) = match &whole {
                Some((array, memory)) => {
                    (Values::by_position(Arc::clone(array)), Arc::clone(memory))
                }
                None => self.values(&column, 1, Values::try_new)?,
            };
            let values = Built::Values(Arc::new(values));
            prepared.push(Structure::Values, values, vec![memory]);
        }
        if needs_sums && let Some(counts) = counts {
            let arrays = match &arrays {
                Some(arrays) => arrays.clone(),
                None => self.sorted_arrays(&column)?,
            };
            let (sums, memory) = self.sums(&column, counts, arrays)?;
            prepared.push(Structure::Sums, Built::Sums(sums), memory);
        }
        if needs_array {
            self.waiting.check()?;
            let (array, memory) = match whole {
                Some(whole) => whole,
                None => self.sorted_array(&column)?,
            };
            arrays = Some((vec![Arc::clone(&array)], Arc::clone(&memory)));
            prepared.push(Structure::Array, Built::Array(array), vec![memory]);
        }
        for kind in statistics {
            let (values, memory) = match &arrays {
                Some((arrays, memory)) => (arrays.clone(), vec![Arc::clone(memory)]),
                None => (vec![], vec![]),
            };
            let index = self.order_statistics(kind, values, &column);
            prepared.push(Structure::OrderStatistics(kind), index, memory);
        }
        if needs.contains(Structure::Rows) {
            self.waiting.check()?;
            // A copy as one array, and the sorted copy.
            let (rows, memory) = self.values(&column, 2, Values::sorted)?;
            let rows = Built::Values(Arc::new(rows));
            prepared.push(Structure::Rows, rows, vec![memory]);
        }
        // Indexes hold what they need of the sorted column.
        drop(column);
        if let Some(sorted) = sorted {
            self.lazy_indexes(sorted, needs, &mut prepared)?;
        }
        Ok(prepared)
    }

    /// Counts the values that are not NULL.
    fn counts(&self, column: &CollectedColumn) -> Result<(Arc<Counts>, Arc<MemoryReservation>)> {
        let chunks = &column.chunks.arrays;
        let bytes = Counts::estimate(chunks, self.permutation);
        let memory = self.reserve(&column.memory, bytes)?;
        let counts = Counts::try_new(chunks, self.permutation, self.workers)?;
        memory.try_resize(counts.bytes())?;
        Ok((Arc::new(counts), Arc::new(memory)))
    }

    /// Builds sums of sorted values. Also returns what registers the memory of all that they consist of.
    fn sums(
        &self,
        column: &CollectedColumn,
        (counts, counts_memory): (Arc<Counts>, Arc<MemoryReservation>),
        (arrays, arrays_memory): SortedArrays,
    ) -> Result<(Arc<Sums>, Vec<Arc<MemoryReservation>>)> {
        let data_type = &column.data_type;
        let bytes = Sums::estimate(&arrays, data_type, self.workers)?;
        let memory = self.reserve(&column.memory, bytes)?;
        let sums = Sums::try_new(&arrays, data_type, counts, self.workers)?;
        let mut all = vec![Arc::new(memory), counts_memory];
        if sums.borrows_column() {
            all.push(arrays_memory);
        }
        Ok((Arc::new(sums), all))
    }

    /// The values of a column that `make` sorts. While it does, the chunks exist as many more times as `copies` says.
    fn values(
        &self,
        column: &CollectedColumn,
        copies: usize,
        make: impl FnOnce(&[ArrayRef], &DataType, &RowPermutation, Workers) -> Result<Values>,
    ) -> Result<(Values, Arc<MemoryReservation>)> {
        let CollectedColumn {
            chunks, data_type, ..
        } = column;
        let memory = self.reserve(&column.memory, copies * chunks.bytes())?;
        let values =
            self.with_order(|| make(&chunks.arrays, data_type, self.permutation, self.workers))?;
        memory.try_resize(values.bytes())?;
        Ok((values, Arc::new(memory)))
    }

    /// Sorts a column as one array.
    fn sorted_array(&self, column: &CollectedColumn) -> Result<(ArrayRef, Arc<MemoryReservation>)> {
        let CollectedColumn {
            chunks, data_type, ..
        } = column;
        let (permutation, workers) = (self.permutation, self.workers);
        // The concatenated column and the sorted one exist at the same time.
        let copies = if permutation.is_identity() { 1 } else { 2 };
        let memory = self.reserve(&column.memory, copies * chunks.bytes())?;
        let sorted = self.with_order(|| {
            if let Some(sorted) = permute_values(&chunks.arrays, data_type, permutation, workers)? {
                return Ok(sorted);
            }
            let whole = concatenated(&chunks.arrays, data_type)?;
            Ok(match permutation.order(workers)? {
                None => whole,
                Some(order) => take(&whole, &UInt32Array::from(order.to_vec()), None)?,
            })
        })?;
        memory.try_resize(arrays_bytes(std::slice::from_ref(&sorted)))?;
        Ok((sorted, Arc::new(memory)))
    }

    /// Sorts the values of a column whose keys differ from values.
    fn sorted_arrays(&self, column: &CollectedColumn) -> Result<SortedArrays> {
        if self.permutation.is_identity() {
            return Ok((column.chunks.arrays.clone(), Arc::clone(&column.memory)));
        }
        let (sorted, memory) = self.sorted_array(column)?;
        Ok((vec![sorted], memory))
    }

    /// Sorts a column as keys. They are in one column if `one_column`.
    fn sort_column(&self, column: &CollectedColumn, one_column: bool) -> Result<SortedColumn> {
        let CollectedColumn {
            chunks, data_type, ..
        } = column;
        let is_whole = !one_column || chunks.arrays.len() == 1;
        if is_whole && borrows_chunks(data_type, self.permutation) {
            return Ok(SortedColumn {
                keys: encode_chunks(chunks, data_type, self.workers)?,
                memory: Arc::clone(&column.memory),
            });
        }
        let bytes = estimate_arrange(chunks, data_type, self.permutation);
        let memory = self.reserve(&column.memory, bytes)?;
        let mut keys = arrange(chunks, data_type, self.permutation, self.workers)?;
        // `memory` registers the copy.
        memory.try_resize(keys.copied_bytes + keys.decoder.bytes())?;
        keys.copied_bytes = 0;
        Ok(SortedColumn {
            keys: vec![keys],
            memory: Arc::new(memory),
        })
    }

    /// Sorts values by the order of the permutation, which is made and registered unless the values are permuted
    /// without it.
    fn with_order<T>(&self, sort: impl FnOnce() -> Result<T>) -> Result<T> {
        let bytes = self.permutation.order_bytes();
        self.grow(self.permutation_memory, bytes)?;
        let sorted = sort()?;
        self.permutation_memory
            .shrink(self.permutation.order_bytes());
        Ok(sorted)
    }

    /// Prepares the lazy indexes of a sorted column. Its memory is freed with the last one that scans it.
    fn lazy_indexes(
        &self,
        sorted: SortedColumn,
        needs: &Structures,
        prepared: &mut PreparedColumn,
    ) -> Result<()> {
        let mut built = vec![];
        for (extreme, positions) in needs.indexes() {
            self.waiting.check()?;
            let index = self.lazy_index(&sorted, extreme, positions)?;
            let structure = Structure::Index { extreme, positions };
            prepared.push(structure, Built::Index(Arc::clone(&index)), vec![]);
            built.push(index);
        }
        let SortedColumn { keys, memory } = sorted;
        drop(keys);
        for index in built {
            index.retain_scanned_column(&memory);
        }
        Ok(())
    }

    /// Prepares a lazy index of a sorted column.
    fn lazy_index(
        &self,
        sorted: &SortedColumn,
        extreme: Extreme,
        positions: bool,
    ) -> Result<Arc<ValueIndex>> {
        let keys = sorted.directed(extreme);
        let options = BuildOptions {
            positions,
            threads: self.workers.threads(),
        };
        let bytes = KeyIndex::estimate_lazy(&keys, &options);
        let memory = self.reserve(&sorted.memory, bytes)?;
        let index = KeyIndex::lazy(keys, options)?;
        let index = Arc::new(ValueIndex::new(index, memory, self.metrics.clone()));
        let lazy: Arc<dyn LazyStructure> = Arc::<ValueIndex>::clone(&index);
        self.lazy.borrow_mut().push(lazy);
        Ok(index)
    }

    /// The order statistics of sorted values of a column. Without any they are never built.
    fn order_statistics(
        &self,
        kind: IndexKind,
        values: Vec<ArrayRef>,
        column: &CollectedColumn,
    ) -> Built {
        Built::OrderStatistics(Arc::new(OrderStatistics {
            kind,
            values,
            threads: self.workers.threads(),
            devices: self.devices.cloned(),
            memory: column.memory.new_empty(),
            metrics: self.metrics.clone(),
            built: OnDemand::default(),
        }))
    }

    /// A new reservation in the pool of another, see [`Self::grow`].
    fn reserve(&self, pool_of: &MemoryReservation, bytes: usize) -> Result<MemoryReservation> {
        let memory = pool_of.new_empty();
        self.grow(&memory, bytes)?;
        Ok(memory)
    }

    /// Grows a reservation. If the pool has no more, all lazy structures are built first: one that is built takes less
    /// than it has registered.
    fn grow(&self, memory: &MemoryReservation, bytes: usize) -> Result<()> {
        match memory.try_grow(bytes) {
            Err(error) if is_out_of_memory(&error) && !self.lazy.borrow().is_empty() => {
                for structure in self.lazy.take() {
                    self.waiting.check()?;
                    structure.build()?;
                }
                memory.try_grow(bytes)
            }
            grown => grown,
        }
    }
}
