//! Build rows that devices have sorted and indexed.
//!
//! The CPU only numbers the groups of equal keys. Keys, group ids and values go up as they came; the device sorts and
//! indexes them. More values are moved by the order that stays there. The sorted rows may serve several joins
//! (`kept_on_devices`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::range_join::aggregate_table::Structures;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::collect_or_spill::CollectedRows;
use crate::exec::range_join::build_side::convert_keys::convert_keys;
use crate::exec::range_join::build_side::device_columns::{ColumnsBuilder, DeviceColumn};
use crate::exec::range_join::devices::JoinDevices;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::kept::reserved_index::DeviceBytes;
use rmq_arrow::common::errors::engine_error;
use rmq_arrow::common::workers::Workers;
use rmq_arrow::sorted::group_sort::SortContext;
use rmq_arrow::sorted::groups::Groups;
use rmq_arrow::sorted::order_keys::OrderKeys;
use rmq_arrow::sorted::permutation::GroupedRows;
use rmq_arrow::sorted::sort_rows::group_rows;
use rmq_engine::{ColumnChunks, RangeJoinIndex, RangeJoinInput, RowGroups};

/// Build rows that devices have sorted and indexed, with what they have of the values. One to which values are added
/// shares what is there.
#[derive(Debug)]
pub(crate) struct DeviceSide {
    pub(super) index: Arc<dyn RangeJoinIndex>,
    pub(super) keys: Arc<DeviceKeys>,
    pub(super) values: Vec<DeviceValue>,
    /// Whether devices have failed to answer.
    pub(super) has_failed: AtomicBool,
}

/// What the host has of the keys.
#[derive(Debug)]
pub(super) struct DeviceKeys {
    /// The groups of the build rows, to number those of probe rows; none without equality keys.
    pub(super) groups: Option<Groups>,
    /// Whether the device knows groups: there are equality keys, or rows that match nothing.
    pub(super) has_ids: bool,
    pub(super) key_type: DataType,
    /// Number of columns, with the range key.
    number: usize,
    read: Arc<ReadColumns>,
}

/// What devices have of a value, and the column that it is of what was read with it.
#[derive(Debug, Clone)]
pub(super) struct DeviceValue {
    pub(super) column: DeviceColumn,
    read: Arc<ReadColumns>,
    number: usize,
}

/// Columns that were read together, and the memory of what devices have of them.
#[derive(Debug)]
struct ReadColumns {
    /// The rows as they were collected, for the CPU.
    rows: Arc<CollectedRows>,
    memory: MemoryReservation,
    _device_memory: DeviceBytes,
}

/// What builds a side on devices for a join of these columns.
#[derive(Debug, Clone)]
pub(crate) struct DeviceBuilder {
    pub(crate) columns: BuildColumns,
    pub(crate) metrics: BuildMetrics,
    pub(crate) threads: usize,
    pub(crate) devices: JoinDevices,
}

/// The values of a join that a side lacks, and what stays of it.
#[derive(Debug)]
pub(crate) struct MissingValues {
    /// The value columns of the join, as indexes, and what is needed of them.
    pub(crate) added: Vec<(usize, Structures)>,
    /// The values of the side that stay, as indexes. The others are replaced by what is added, or can't be found.
    pub(crate) kept: Vec<usize>,
}

impl DeviceBuilder {
    /// Sorts and indexes collected rows on devices, on a thread that may block. `None` if these devices do not join.
    ///
    /// # Errors
    /// Errors of devices, for which the CPU may take over; if memory is exhausted or the query is cancelled.
    pub(crate) async fn build(self, rows: Arc<CollectedRows>) -> Result<Option<DeviceSide>> {
        self.blocking(move |this, waiting| this.build_blocking(rows, waiting))
            .await
    }

    /// The same rows as `side` with other values: those of it that stay, and then those that are added. `rows` are the
    /// same rows in the same order, with the columns of the join.
    ///
    /// # Errors
    /// As [`Self::build`].
    pub(crate) async fn add_values(
        self,
        side: Arc<DeviceSide>,
        rows: Arc<CollectedRows>,
        missing: MissingValues,
    ) -> Result<DeviceSide> {
        let add = move |this: &Self, waiting: &Waiting| {
            this.add_values_blocking(&side, &rows, &missing, waiting)
        };
        self.blocking(add).await
    }

    async fn blocking<T: Send + 'static>(
        self,
        work: impl FnOnce(&Self, &Waiting) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let work = move |waiting: Waiting| {
            let done = work(&self, &waiting);
            if done.is_err() {
                // A cancelled query makes devices fail.
                waiting.check()?;
            }
            done
        };
        blocking(work).await
    }

    fn build_blocking(
        &self,
        rows: Arc<CollectedRows>,
        waiting: &Waiting,
    ) -> Result<Option<DeviceSide>> {
        let Self {
            columns,
            metrics,
            threads,
            devices,
        } = self;
        let check = || waiting.check();
        let workers = Workers::new(*threads, &check);
        let types = rows.types();
        let memory = rows.memory.new_empty();
        let groups_memory = rows.memory.new_empty();
        let values_memory = rows.memory.new_empty();
        let context = SortContext {
            memory: &groups_memory,
            workers,
        };
        // The collected keys stay registered: the rows are kept until the devices have answered.
        let none = rows.memory.new_empty();
        let batches = rows.batches.clone();
        let parts = convert_keys(columns, &types, batches, &none, &memory, workers)?;
        let grouped = group_rows(parts, context)?;
        let mut builder = ColumnsBuilder {
            rows: &rows,
            of: columns,
            workers,
            memory: &values_memory,
            kept_bytes: 0,
            known: 0,
            columns: vec![],
        };
        let needs = columns.structures(columns.values(&types).len());
        let needs = needs.into_iter().enumerate();
        let values = builder.add_columns(needs)?;
        let groups = grouped.parts.as_ref().map(|parts| RowGroups {
            parts: parts.iter().map(GroupedRows::for_devices).collect(),
            count: grouped.groups.as_ref().map_or(1, Groups::len),
        });
        let kept_bytes = builder.kept_bytes;
        let input = RangeJoinInput {
            keys: chunks_of_keys(grouped.keys)?,
            groups,
            columns: builder.columns,
            row_numbers: values.iter().any(DeviceColumn::is_on_host),
        };
        let engine = devices.cancellable_engine(waiting);
        let reserved = devices.reserve(engine.range_join_bytes(&input))?;
        let index = engine
            .build_range_join(&input, *threads)
            .map_err(engine_error)?;
        drop(input);
        let Some(index) = index else {
            return Ok(None);
        };
        drop(reserved);
        let device_memory = devices.reserve(index.device_bytes())?;
        metrics.record_build_on_devices(index.build_times());
        metrics.build_rows.add(rows.num_rows());
        let has_ids = grouped.parts.is_some();
        drop(grouped.parts);
        drop(groups_memory);
        drop(values_memory);
        let groups_bytes = grouped.groups.as_ref().map_or(0, Groups::bytes);
        memory.try_resize(groups_bytes + kept_bytes)?;
        let keys = columns.num_equality_keys + 1;
        let read = Arc::new(ReadColumns {
            rows,
            memory,
            _device_memory: device_memory,
        });
        let side = DeviceSide {
            index,
            values: DeviceValue::all(values, &read, keys),
            keys: Arc::new(DeviceKeys {
                groups: grouped.groups,
                has_ids,
                number: keys,
                key_type: columns.range_key(&types).clone(),
                read,
            }),
            has_failed: AtomicBool::new(false),
        };
        metrics.build_mem_used.set_max(side.bytes());
        Ok(Some(side))
    }

    fn add_values_blocking(
        &self,
        side: &DeviceSide,
        rows: &CollectedRows,
        missing: &MissingValues,
        waiting: &Waiting,
    ) -> Result<DeviceSide> {
        if rows.num_rows() != side.total_rows() {
            return internal_err!("a kept build side has other rows than its table");
        }
        let check = || waiting.check();
        let (metrics, devices) = (&self.metrics, &self.devices);
        let kept = missing.kept.iter();
        let mut values: Vec<DeviceValue> = kept.map(|i| side.values[*i].clone()).collect();
        let mut on_devices = vec![];
        for column in values.iter_mut().map(|value| &mut value.column) {
            if let Some(index) = column.index() {
                column.move_to(on_devices.len());
                on_devices.push(index);
            }
        }
        let memory = rows.memory.new_empty();
        let values_memory = rows.memory.new_empty();
        let mut builder = ColumnsBuilder {
            rows,
            of: &self.columns,
            workers: Workers::new(self.threads, &check),
            memory: &values_memory,
            kept_bytes: 0,
            known: on_devices.len(),
            columns: vec![],
        };
        let added = builder.add_columns(missing.added.iter().cloned())?;
        let row_numbers = added.iter().any(DeviceColumn::is_on_host);
        let (columns, threads) = (&builder.columns, self.threads);
        let reserved = devices.reserve(side.index.adding_bytes(columns))?;
        let index = side
            .index
            .with_columns(&on_devices, columns, row_numbers, threads, waiting.stop())
            .map_err(engine_error)?;
        drop(reserved);
        let device_memory = devices.reserve(index.added_bytes())?;
        metrics.record_build_on_devices(index.build_times());
        memory.try_resize(builder.kept_bytes)?;
        let keys = self.columns.num_equality_keys + 1;
        let numbers = missing.added.iter().map(|(value, _)| keys + value);
        let read = Arc::new(ReadColumns {
            rows: Arc::new(rows.only(&numbers.collect::<Vec<_>>())?),
            memory,
            _device_memory: device_memory,
        });
        values.extend(DeviceValue::all(added, &read, 0));
        let side = DeviceSide {
            index,
            keys: Arc::clone(&side.keys),
            values,
            has_failed: AtomicBool::new(side.has_failed()),
        };
        metrics.build_mem_used.set_max(side.bytes());
        Ok(side)
    }
}

impl DeviceValue {
    /// Values that were read together; the first one is the column with this number.
    fn all(columns: Vec<DeviceColumn>, read: &Arc<ReadColumns>, first: usize) -> Vec<Self> {
        let columns = columns.into_iter().zip(first..);
        let values = columns.map(|(column, number)| Self {
            column,
            read: Arc::clone(read),
            number,
        });
        values.collect()
    }
}

impl DeviceSide {
    /// Bytes of host memory.
    pub(crate) fn bytes(&self) -> usize {
        let memory = self.read().into_iter().map(|read| read.memory.size());
        self.rows_bytes() + memory.sum::<usize>()
    }

    /// Bytes of the rows as they were collected.
    pub(super) fn rows_bytes(&self) -> usize {
        let rows = self.read().into_iter();
        rows.map(|read| read.rows.memory.size()).sum()
    }

    /// All that was read.
    fn read(&self) -> Vec<&ReadColumns> {
        let mut all: Vec<&Arc<ReadColumns>> = vec![&self.keys.read];
        for value in &self.values {
            if !all.iter().any(|known| Arc::ptr_eq(known, &value.read)) {
                all.push(&value.read);
            }
        }
        all.into_iter().map(AsRef::as_ref).collect()
    }

    /// Bytes on each device.
    pub(crate) fn device_bytes(&self) -> usize {
        self.index.device_bytes()
    }

    /// Number of build rows that were collected.
    pub(crate) fn total_rows(&self) -> usize {
        self.keys.read.rows.num_rows()
    }

    /// What devices have of each value.
    pub(crate) fn values(&self) -> impl Iterator<Item = &DeviceColumn> {
        self.values.iter().map(|value| &value.column)
    }

    /// Whether devices have failed to answer.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// The rows as they were collected, with these of the values.
    ///
    /// # Errors
    /// Arrow's, if arrays are too long to be put together.
    pub(super) fn collected(&self, values: &[usize]) -> Result<(SchemaRef, Vec<RecordBatch>)> {
        let keys = (0..self.keys.number).map(|number| (&*self.keys.read.rows, number));
        let values = values.iter().map(|value| {
            let value = &self.values[*value];
            (&*value.read.rows, value.number)
        });
        CollectedRows::beside_each_other(&keys.chain(values).collect::<Vec<_>>())
    }
}

/// The keys of several batches as devices get them.
pub(super) fn chunks_of_keys(keys: OrderKeys) -> Result<ColumnChunks> {
    Ok(match keys {
        OrderKeys::W32(columns) => ColumnChunks::W32(columns),
        OrderKeys::W64(columns) => ColumnChunks::W64(columns),
        OrderKeys::W128(columns) => ColumnChunks::W128(columns),
        OrderKeys::Bytes(..) => return internal_err!("devices have no keys of variable length"),
    })
}
