//! A build side that devices sort, index and answer in one trip.
//!
//! The CPU only numbers the groups of equal keys. Keys, group ids and values go up as they came; the device sorts and
//! indexes them. A batch of probe rows goes up as group ids and bounds, and the aggregates come down: ranges of rows
//! never leave the device.
//!
//! The sorted rows may serve several joins (`kept_on_devices`): `DeviceSide` is what these share.
//!
//! A join with an aggregate that devices lack runs on the CPU as a whole (`device_aggregates`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::array::ArrayRef;
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result, SharedResult, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::errors::engine_error;
use crate::common::workers::Workers;
use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::collect_or_spill::CollectedRows;
use crate::exec::range_join::build_side::convert_keys::convert_keys;
use crate::exec::range_join::build_side::device_columns::{
    AggregateResult, ColumnsBuilder, DeviceColumn, answer,
};
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::build_side::sort_and_index::sort_and_index_blocking;
use crate::exec::range_join::devices::JoinDevices;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::index::decoder::buffer;
use crate::index::reserved_index::DeviceBytes;
use crate::sorted::group_sort::SortContext;
use crate::sorted::groups::Groups;
use crate::sorted::order_keys::OrderKeys;
use crate::sorted::permutation::GroupedRows;
use crate::sorted::sort_rows::group_rows;
use rmq_engine::{
    ColumnChunks, Comparison, RangeJoinAnswer, RangeJoinIndex, RangeJoinInput, RangeJoinProbe,
    RowGroups,
};

/// Build rows that devices have sorted and indexed, with what they have of the values.
#[derive(Debug)]
pub(crate) struct DeviceSide {
    index: Arc<dyn RangeJoinIndex>,
    /// The groups of the build rows, to number those of probe rows; none without equality keys.
    groups: Option<Groups>,
    /// Whether the device knows groups: there are equality keys, or rows that match nothing.
    has_ids: bool,
    key_type: DataType,
    values: Vec<DeviceColumn>,
    /// The rows as they were collected, for the CPU.
    rows: Arc<CollectedRows>,
    /// Whether devices have failed to answer.
    has_failed: AtomicBool,
    memory: MemoryReservation,
    _device_memory: DeviceBytes,
}

/// A build side on devices, and what a join needs of it.
#[derive(Debug)]
pub(crate) struct DeviceJoin {
    devices: JoinDevices,
    side: Arc<DeviceSide>,
    /// What devices answer: one per aggregate, then whether a row is matched.
    answers: Vec<RangeJoinAnswer>,
    /// What makes arrays of the answers, one per aggregate.
    results: Vec<AggregateResult>,
    fallback: CpuFallbackSide,
}

/// The same build side on the CPU, made when the devices first fail.
#[derive(Debug)]
struct CpuFallbackSide {
    columns: BuildColumns,
    /// The value columns of the join, as indexes among those of the rows.
    values: Vec<usize>,
    metrics: BuildMetrics,
    threads: usize,
    /// Registers a copy of the rows.
    memory: MemoryReservation,
    side: OnceLock<SharedResult<Arc<BuildSide>>>,
}

/// Probe rows of several batches.
#[derive(Debug)]
pub(crate) struct DeviceProbe {
    rows: usize,
    groups: Vec<Vec<u32>>,
    bounds: Vec<(Comparison, OrderKeys)>,
}

/// The aggregates of probe rows, one array per aggregate.
pub(crate) struct DeviceAnswers {
    pub(crate) matched: Vec<bool>,
    pub(crate) aggregates: Vec<ArrayRef>,
}

impl DeviceSide {
    /// Sorts and indexes collected rows on devices, on a thread that may block. `None` if these devices do not join.
    ///
    /// # Errors
    /// Errors of devices, for which the CPU may take over; if memory is exhausted or the query is cancelled.
    pub(crate) async fn build(
        columns: &BuildColumns,
        rows: &Arc<CollectedRows>,
        metrics: &BuildMetrics,
        threads: usize,
        devices: &JoinDevices,
    ) -> Result<Option<Self>> {
        let (columns, rows) = (columns.clone(), Arc::clone(rows));
        let (metrics, devices) = (metrics.clone(), devices.clone());
        let work = move |waiting: Waiting| {
            let side = Self::build_blocking(&columns, rows, &metrics, threads, &devices, &waiting);
            if side.is_err() {
                // A cancelled query makes devices fail.
                waiting.check()?;
            }
            side
        };
        blocking(work).await
    }

    /// Does the same on the calling thread.
    fn build_blocking(
        columns: &BuildColumns,
        rows: Arc<CollectedRows>,
        metrics: &BuildMetrics,
        threads: usize,
        devices: &JoinDevices,
        waiting: &Waiting,
    ) -> Result<Option<Self>> {
        let check = || waiting.check();
        let workers = Workers::new(threads, &check);
        let types = rows.schema.fields().iter().map(|f| f.data_type().clone());
        let types: Vec<DataType> = types.collect();
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
            needs: columns,
            workers,
            memory: &values_memory,
            kept_bytes: 0,
            columns: vec![],
        };
        let values = columns.values(&types).iter().enumerate();
        let values = values.map(|(column, data_type)| builder.add_column(column, data_type));
        let values: Vec<DeviceColumn> = values.collect::<Result<_>>()?;
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
            .build_range_join(&input, threads)
            .map_err(engine_error)?;
        drop(input);
        let Some(index) = index else {
            return Ok(None);
        };
        drop(reserved);
        let device_memory = devices.reserve(index.device_bytes())?;
        let times = index.build_times();
        metrics
            .sort_time
            .add_duration(times.upload + times.sort + times.gather);
        metrics.index_time.add_duration(times.index);
        metrics.build_rows.add(rows.num_rows());
        let has_ids = grouped.parts.is_some();
        drop(grouped.parts);
        drop(groups_memory);
        drop(values_memory);
        let groups_bytes = grouped.groups.as_ref().map_or(0, Groups::bytes);
        memory.try_resize(groups_bytes + kept_bytes)?;
        let side = Self {
            index,
            groups: grouped.groups,
            has_ids,
            key_type: columns.range_key(&types).clone(),
            values,
            rows,
            has_failed: AtomicBool::new(false),
            memory,
            _device_memory: device_memory,
        };
        metrics.build_mem_used.set_max(side.bytes());
        Ok(Some(side))
    }

    /// Bytes of host memory.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.memory.size() + self.memory.size()
    }

    /// Bytes on each device.
    pub(crate) fn device_bytes(&self) -> usize {
        self.index.device_bytes()
    }

    /// Number of build rows that were collected.
    pub(crate) fn total_rows(&self) -> usize {
        self.rows.num_rows()
    }

    /// What devices have of each value.
    pub(crate) fn values(&self) -> &[DeviceColumn] {
        &self.values
    }

    /// Whether devices have failed to answer.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}

impl DeviceJoin {
    /// A join of these columns, whose values are those with the indexes `values` of the side.
    ///
    /// # Errors
    /// An internal error if devices lack what an aggregate needs.
    pub(crate) fn try_new(
        columns: &BuildColumns,
        (side, values): (Arc<DeviceSide>, Vec<usize>),
        metrics: &BuildMetrics,
        threads: usize,
        devices: JoinDevices,
        memory: MemoryReservation,
    ) -> Result<Self> {
        let known: Vec<&DeviceColumn> = values.iter().map(|i| &side.values[*i]).collect();
        let (mut answers, mut results) = (vec![], vec![]);
        for (function, arguments) in &columns.aggregates {
            let (answer, result) = answer(*function, arguments, &known)?;
            answers.push(answer);
            results.push(result);
        }
        answers.push(RangeJoinAnswer::Matched);
        metrics.record_device_bytes(side.device_bytes());
        Ok(Self {
            devices,
            side,
            answers,
            results,
            fallback: CpuFallbackSide {
                columns: columns.clone(),
                values,
                metrics: metrics.clone(),
                threads,
                memory,
                side: OnceLock::new(),
            },
        })
    }

    /// Number of build rows that can match.
    pub(crate) fn rows(&self) -> usize {
        self.side.index.rows()
    }

    /// Begins a batch of probe rows.
    ///
    /// # Errors
    /// An execution error for a range key without an order.
    pub(crate) fn probe(&self) -> Result<DeviceProbe> {
        let bounds = self.fallback.columns.comparisons.iter();
        let bounds = bounds.map(|comparison| {
            let keys = OrderKeys::try_new(&self.side.key_type)?;
            Ok((*comparison, keys))
        });
        Ok(DeviceProbe {
            rows: 0,
            groups: vec![],
            bounds: bounds.collect::<Result<_>>()?,
        })
    }

    /// The group of each of `rows` probe rows with these equality keys.
    ///
    /// # Errors
    /// An execution error for keys of other types than those of the build side.
    pub(crate) fn groups(&self, rows: usize, equality_keys: &[ArrayRef]) -> Result<Vec<u32>> {
        match &self.side.groups {
            Some(groups) => groups.find(equality_keys),
            None => Ok(vec![0; rows]),
        }
    }

    /// Answers probe rows; `None` if devices fail and the CPU may take over.
    ///
    /// # Errors
    /// A failure of forced devices, or Arrow's errors.
    pub(crate) fn answer(
        &self,
        probe: DeviceProbe,
        record_fallback: impl FnOnce(),
    ) -> Result<Option<DeviceAnswers>> {
        let bounds = probe.bounds.into_iter().map(|(comparison, keys)| {
            let keys = chunks_of_keys(keys)?;
            Ok((comparison, keys))
        });
        let groups = probe.groups.iter().map(Vec::as_slice);
        let request = RangeJoinProbe {
            rows: probe.rows,
            groups: self.side.has_ids.then(|| groups.collect()),
            bounds: bounds.collect::<Result<_>>()?,
            prevailing: self.fallback.columns.prevailing,
        };
        let mut outputs = match self.side.index.answer(&request, &self.answers) {
            Ok(outputs) => outputs,
            Err(failure) => {
                self.side.has_failed.store(true, Ordering::Relaxed);
                self.devices.why_cpu(engine_error(failure))?;
                record_fallback();
                return Ok(None);
            }
        };
        let Some(matched) = outputs.pop().and_then(|matched| matched.valid) else {
            return internal_err!("a device did not tell which rows are matched");
        };
        let matched = BooleanBuffer::new(buffer(matched), 0, probe.rows);
        let aggregates = self.results.iter().zip(outputs);
        let aggregates = aggregates.map(|(result, output)| result.array(output, probe.rows));
        Ok(Some(DeviceAnswers {
            matched: matched.iter().collect(),
            aggregates: aggregates.collect::<Result<_>>()?,
        }))
    }

    /// The build side on the CPU, which the first call builds. Blocks the thread.
    ///
    /// # Errors
    /// Those of building it; the same at each further call.
    pub(crate) fn on_cpu(&self) -> Result<Arc<BuildSide>> {
        let CpuFallbackSide {
            columns,
            values,
            metrics,
            threads,
            memory,
            side,
        } = &self.fallback;
        let rows = &self.side.rows;
        let build = || {
            // The copy is registered by itself, as sorting frees what it has read.
            let memory = memory.new_empty();
            memory.try_grow(rows.memory.size())?;
            let keys = columns.num_equality_keys + 1;
            let values = values.iter().map(|value| keys + value);
            let of_join: Vec<usize> = (0..keys).chain(values).collect();
            let batches = rows.batches.iter();
            let batches = batches.map(|batch| batch.project(&of_join));
            let rows = CollectedRows {
                schema: Arc::new(rows.schema.project(&of_join)?),
                batches: batches.collect::<Result<_, _>>()?,
                memory,
            };
            let metrics = metrics.for_rebuild();
            let waiting = Waiting::forever();
            let side = sort_and_index_blocking(columns.clone(), rows, metrics, *threads, waiting)?;
            Ok(Arc::new(side))
        };
        let side = side.get_or_init(|| build().map_err(Arc::new));
        side.clone().map_err(DataFusionError::Shared)
    }
}

impl DeviceProbe {
    /// Adds a batch: the group of each row, and its bounds in the order of the comparisons.
    ///
    /// # Errors
    /// An execution error for bounds of another type than the range key.
    pub(crate) fn add(&mut self, groups: Vec<u32>, bounds: &[ArrayRef]) -> Result<()> {
        self.rows += groups.len();
        self.groups.push(groups);
        for ((_, keys), bounds) in self.bounds.iter_mut().zip(bounds) {
            keys.append(bounds)?;
        }
        Ok(())
    }
}

/// The keys of several batches as devices get them.
fn chunks_of_keys(keys: OrderKeys) -> Result<ColumnChunks> {
    Ok(match keys {
        OrderKeys::W32(columns) => ColumnChunks::W32(columns),
        OrderKeys::W64(columns) => ColumnChunks::W64(columns),
        OrderKeys::W128(columns) => ColumnChunks::W128(columns),
        OrderKeys::Bytes(..) => return internal_err!("devices have no keys of variable length"),
    })
}
