//! Prepares one value column of the build side: builds what the aggregates over it need, from the collected column and
//! the sort permutation.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::ordered_type::is_borrowed;
use crate::common::workers::Workers;
use crate::exec::common::blocking::Waiting;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::crossing::threshold_test;
use crate::exec::range_join::build_side::sorted_values::sorted_values;
use crate::exec::range_join::build_side::value_index::ValueIndex;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::spill::retaining_pool::is_out_of_memory;
use crate::index::column_index::ColumnIndex;
use crate::index::sort_keys::{Chunks, Encoded};
use crate::logical_plan::range_join::AggregateKind;
use crate::range_agg::counts::Counts;
use crate::range_agg::prefix_sums::Sums;
use crate::range_agg::values::Values;
use crate::sorted::arrange::{arrange, borrows_chunks, encode_chunks, estimate_arrange};
use crate::sorted::permutation::RowPermutation;
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
#[derive(Debug, Default, Clone, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a structure of its own"
)]
pub(crate) struct ColumnNeeds {
    counts: bool,
    sums: bool,
    values: bool,
    /// The values in sorted order, as one array.
    sorted: bool,
    /// Whether single rows are taken.
    rows: bool,
    indexes: Vec<IndexNeeds>,
}

/// The index that aggregates need of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
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
                AggregateKind::First | AggregateKind::Last | AggregateKind::Rightmost => {
                    needs.values |= is_first;
                }
                AggregateKind::Accumulate => needs.sorted |= arguments.contains(&column),
                AggregateKind::Extreme(extreme) if is_first => needs.add_index(extreme, false),
                AggregateKind::CountCrossing { comparison, .. } if is_first => {
                    needs.add_index(threshold_test(comparison).extreme, false);
                }
                AggregateKind::CountRows
                | AggregateKind::CountCrossing { .. }
                | AggregateKind::Extreme(_) => {}
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
                AggregateKind::AtCrossing { comparison, .. } => {
                    needs.values |= is_first;
                    if is_second {
                        needs.add_index(threshold_test(comparison).extreme, false);
                    }
                }
            }
        }
        needs
    }

    /// What is needed and has not been built.
    pub(crate) fn without(&self, built: &PreparedColumn) -> Self {
        let sums = self.sums && built.sums.is_none();
        let missing = |index: &&IndexNeeds| !built.has_index(**index);
        Self {
            // Sums are built of counts.
            counts: self.counts && built.counts.is_none() || sums,
            sums,
            values: self.values && built.values.is_none(),
            sorted: self.sorted && built.sorted.is_none(),
            rows: self.rows && built.rows.is_none(),
            indexes: self.indexes.iter().filter(missing).copied().collect(),
        }
    }

    /// What is needed besides single rows, and whether these are.
    pub(crate) fn split_rows(self) -> (Self, bool) {
        let rows = self.rows;
        (
            Self {
                rows: false,
                ..self
            },
            rows,
        )
    }

    /// Whether counts of values that are not NULL are needed.
    pub(crate) fn has_counts(&self) -> bool {
        self.counts
    }

    /// Whether sums are needed.
    pub(crate) fn has_sums(&self) -> bool {
        self.sums
    }

    /// Whether single values are needed.
    pub(crate) fn has_values(&self) -> bool {
        self.values
    }

    /// Whether positions of an extreme are needed; `None` if its index is not.
    pub(crate) fn has_positions(&self, extreme: Extreme) -> Option<bool> {
        let index = self.indexes.iter().find(|index| index.extreme == extreme);
        index.map(|index| index.positions)
    }

    fn add_index(&mut self, extreme: Extreme, positions: bool) {
        match self.indexes.iter_mut().find(|i| i.extreme == extreme) {
            Some(index) => index.positions |= positions,
            None => self.indexes.push(IndexNeeds { extreme, positions }),
        }
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

/// What was built of one column for its aggregates. A clone shares it.
#[derive(Debug, Default, Clone)]
pub(crate) struct PreparedColumn {
    pub(crate) counts: Option<Arc<Counts>>,
    pub(crate) sums: Option<Arc<Sums>>,
    pub(crate) values: Option<Arc<Values>>,
    pub(crate) sorted: Option<ArrayRef>,
    /// The values in sorted order.
    pub(crate) rows: Option<Arc<Values>>,
    indexes: Vec<(IndexNeeds, Arc<ValueIndex>)>,
    /// Registers the memory of all but the indexes.
    pub(crate) memory: Vec<Arc<MemoryReservation>>,
    /// Registers the sorted columns while lazy indexes scan them.
    scanned_columns: Vec<Weak<MemoryReservation>>,
}

impl PreparedColumn {
    /// Bytes that are registered for the indexes, and for the column that they scan.
    pub(crate) fn index_registered_bytes(&self) -> usize {
        let indexes = self.indexes.iter();
        let indexes = indexes.map(|(_, index)| index.registered_bytes());
        let scanned = self.scanned_columns.iter().filter_map(Weak::upgrade);
        indexes.sum::<usize>() + scanned.map(|column| column.size()).sum::<usize>()
    }

    /// Bytes that are registered for all of it.
    pub(crate) fn registered_bytes(&self) -> usize {
        let memory = self.memory.iter().map(|memory| memory.size());
        memory.sum::<usize>() + self.index_registered_bytes()
    }

    fn has_index(&self, needs: IndexNeeds) -> bool {
        let mut indexes = self.indexes.iter();
        indexes.any(|(known, _)| {
            known.extreme == needs.extreme && (known.positions || !needs.positions)
        })
    }

    /// Adds what was built of the same column later, or at the same time by another query.
    pub(crate) fn add(&mut self, other: Self) {
        if self.has_all_of(&other) {
            return;
        }
        self.counts = self.counts.take().or(other.counts);
        self.sums = self.sums.take().or(other.sums);
        self.values = self.values.take().or(other.values);
        self.sorted = self.sorted.take().or(other.sorted);
        self.rows = self.rows.take().or(other.rows);
        // One with positions comes first, and serves also those who need none.
        self.indexes.splice(0..0, other.indexes);
        self.memory.extend(other.memory);
        self.scanned_columns.extend(other.scanned_columns);
    }

    fn has_all_of(&self, other: &Self) -> bool {
        let mut indexes = other.indexes.iter();
        self.counts.is_some() >= other.counts.is_some()
            && self.sums.is_some() >= other.sums.is_some()
            && self.values.is_some() >= other.values.is_some()
            && self.sorted.is_some() >= other.sorted.is_some()
            && self.rows.is_some() >= other.rows.is_some()
            && indexes.all(|(needs, _)| self.has_index(*needs))
    }

    /// The index for minima or for maxima, if it was needed.
    pub(crate) fn index(&self, extreme: Extreme) -> Option<Arc<ValueIndex>> {
        let mut indexes = self.indexes.iter();
        let (_, index) = indexes.find(|(needs, _)| needs.extreme == extreme)?;
        Some(Arc::clone(index))
    }
}

/// Prepares the columns of one build side. Everything that it builds has a reservation of its own, which is freed with
/// it.
pub(crate) struct ColumnPreparer<'a> {
    pub(crate) metrics: &'a BuildMetrics,
    pub(crate) waiting: &'a Waiting,
    pub(crate) workers: Workers<'a>,
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
        let data_type = column.data_type.clone();
        let mut prepared = PreparedColumn::default();
        if needs.counts {
            let chunks = &column.chunks.arrays;
            let bytes = Counts::estimate(chunks, permutation);
            let memory = self.reserve(&column_memory, bytes)?;
            let counts = Counts::try_new(chunks, permutation, self.workers)?;
            memory.try_resize(counts.bytes())?;
            prepared.counts = Some(Arc::new(counts));
            prepared.memory.push(Arc::new(memory));
        }
        // One copy, sorted, serves all that is built of the column.
        let has_values_as_keys = is_borrowed(&data_type);
        let from_values = needs.sums || needs.values;
        let sorted = if !needs.indexes.is_empty() || from_values && has_values_as_keys {
            Some(self.sort_column(&column, &column_memory, needs.values, permutation)?)
        } else {
            None
        };
        let values = match &sorted {
            Some(sorted) if from_values => {
                let arrays = sorted.arrays()?;
                arrays.map(|arrays| (arrays, Arc::clone(&sorted.memory)))
            }
            _ => None,
        };
        if needs.values {
            let values = match &values {
                Some((arrays, memory)) if let [array] = arrays.as_slice() => {
                    prepared.memory.push(Arc::clone(memory));
                    Values::by_position(Arc::clone(array))
                }
                _ => {
                    // The chunks and the copy exist at the same time.
                    let memory = self.reserve(&column_memory, column.chunks.bytes())?;
                    let chunks = &column.chunks.arrays;
                    let values = self.with_order(permutation, permutation_memory, || {
                        Values::try_new(chunks, &data_type, permutation, self.workers)
                    })?;
                    memory.try_resize(values.bytes())?;
                    prepared.memory.push(Arc::new(memory));
                    values
                }
            };
            prepared.values = Some(Arc::new(values));
        }
        if let Some(counts) = prepared.counts.as_ref().filter(|_| needs.sums) {
            let (arrays, memory) = match values {
                Some(values) => values,
                None => {
                    self.take_sorted(&column, &column_memory, permutation, permutation_memory)?
                }
            };
            let bytes = Sums::estimate(&arrays, &data_type, self.workers)?;
            let sums_memory = self.reserve(&column_memory, bytes)?;
            let sums = Sums::try_new(&arrays, &data_type, Arc::clone(counts), self.workers)?;
            if sums.borrows_column() {
                prepared.memory.push(memory);
            }
            prepared.sums = Some(Arc::new(sums));
            prepared.memory.push(Arc::new(sums_memory));
        }
        if needs.sorted {
            self.waiting.check()?;
            let reserve = |bytes| self.reserve(&column_memory, bytes);
            let chunks = &column.chunks.arrays;
            let (sorted, memory) = self.with_order(permutation, permutation_memory, || {
                sorted_values(chunks, &data_type, permutation, reserve, self.workers)
            })?;
            prepared.sorted = Some(sorted);
            prepared.memory.push(Arc::new(memory));
        }
        if needs.rows {
            self.waiting.check()?;
            // At most the chunks, a copy of them and the sorted copy exist at the same time.
            let memory = self.reserve(&column_memory, 2 * column.chunks.bytes())?;
            let chunks = &column.chunks.arrays;
            let values = self.with_order(permutation, permutation_memory, || {
                Values::sorted(chunks, &data_type, permutation, self.workers)
            })?;
            memory.try_resize(values.bytes())?;
            prepared.rows = Some(Arc::new(values));
            prepared.memory.push(Arc::new(memory));
        }
        // Indexes hold what they need of the sorted column.
        drop(column);
        drop(column_memory);
        if let Some(sorted) = sorted {
            for index_needs in needs.indexes {
                self.waiting.check()?;
                let index = self.lazy_index(&sorted, index_needs)?;
                prepared.indexes.push((index_needs, index));
            }
            let SortedColumn { keys, memory } = sorted;
            drop(keys);
            // Freed with the last index that scans the column.
            let indexes = prepared.indexes.iter();
            indexes.for_each(|(_, index)| index.retain_scanned_column(&memory));
            prepared.scanned_columns.push(Arc::downgrade(&memory));
        }
        Ok(prepared)
    }

    /// Sorts a column as keys. They are in one column if `one_column`.
    fn sort_column(
        &self,
        column: &CollectedColumn,
        column_memory: &Arc<MemoryReservation>,
        one_column: bool,
        permutation: &RowPermutation,
    ) -> Result<SortedColumn> {
        let CollectedColumn { chunks, data_type } = column;
        let is_whole = !one_column || chunks.arrays.len() == 1;
        if is_whole && borrows_chunks(data_type, permutation) {
            return Ok(SortedColumn {
                keys: encode_chunks(chunks, data_type, self.workers)?,
                memory: Arc::clone(column_memory),
            });
        }
        let bytes = estimate_arrange(chunks, data_type, permutation);
        let memory = self.reserve(column_memory, bytes)?;
        let mut keys = arrange(chunks, data_type, permutation, self.workers)?;
        // `memory` registers the copy.
        memory.try_resize(keys.copied_bytes + keys.decoder.bytes())?;
        keys.copied_bytes = 0;
        Ok(SortedColumn {
            keys: vec![keys],
            memory: Arc::new(memory),
        })
    }

    /// Sorts the values of a column whose keys differ from values. Also returns the reservation of their memory.
    fn take_sorted(
        &self,
        column: &CollectedColumn,
        column_memory: &Arc<MemoryReservation>,
        permutation: &RowPermutation,
        permutation_memory: &MemoryReservation,
    ) -> Result<(Vec<ArrayRef>, Arc<MemoryReservation>)> {
        let chunks = &column.chunks.arrays;
        if permutation.is_identity() {
            return Ok((chunks.clone(), Arc::clone(column_memory)));
        }
        let reserve = |bytes| self.reserve(column_memory, bytes);
        let (sorted, memory) = self.with_order(permutation, permutation_memory, || {
            sorted_values(
                chunks,
                &column.data_type,
                permutation,
                reserve,
                self.workers,
            )
        })?;
        Ok((vec![sorted], Arc::new(memory)))
    }

    /// Sorts values by the order of a permutation, which is made, and registered with `memory`, unless the values are
    /// permuted without it.
    fn with_order<T>(
        &self,
        permutation: &RowPermutation,
        memory: &MemoryReservation,
        sort: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.grow(memory, permutation.order_bytes())?;
        let sorted = sort()?;
        memory.shrink(permutation.order_bytes());
        Ok(sorted)
    }

    /// Prepares a lazy index of a sorted column.
    fn lazy_index(
        &self,
        sorted: &SortedColumn,
        IndexNeeds { extreme, positions }: IndexNeeds,
    ) -> Result<Arc<ValueIndex>> {
        let keys = sorted.directed(extreme);
        let options = BuildOptions {
            positions,
            threads: self.workers.threads(),
        };
        let bytes = ColumnIndex::estimate_lazy(&keys, &options);
        let memory = self.reserve(&sorted.memory, bytes)?;
        let index = ColumnIndex::lazy(keys, options)?;
        let index = Arc::new(ValueIndex::new(index, memory, self.metrics.clone()));
        self.lazy_indexes.borrow_mut().push(Arc::clone(&index));
        Ok(index)
    }

    /// A new reservation in the pool of another, see [`Self::grow`].
    fn reserve(&self, pool_of: &MemoryReservation, bytes: usize) -> Result<MemoryReservation> {
        let memory = pool_of.new_empty();
        self.grow(&memory, bytes)?;
        Ok(memory)
    }

    /// Grows a reservation. If the pool has no more, all lazy indexes are built first: a built index takes less than it
    /// has registered.
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
