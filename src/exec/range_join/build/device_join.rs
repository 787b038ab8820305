//! A build side that devices sort, index and answer in one trip.
//!
//! The CPU only numbers the groups of equal keys. Keys, group ids and values go up as they came; the device sorts and indexes them. A batch of
//! probe rows goes up as group ids and bounds, and the aggregates come down: ranges of rows never leave the device.
//!
//! Aggregates that need the rows on the CPU (sums of floats) leave the build side to the CPU ([`DeviceJoin::supports`]); then devices only
//! search its sorted keys and answer minima and maxima (`build::device_side`).

use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayDataBuilder, ArrayRef, AsArray, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{DataType, UInt32Type};
use datafusion::common::{
    DataFusionError, Result, SharedResult, internal_datafusion_err, internal_err,
};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::errors::engine_error;
use crate::common::ordered_type::{KeyLayout, is_ranked, key_layout};
use crate::common::workers::Workers;
use crate::exec::common::blocking::Waiting;
use crate::exec::range_join::build::collect::CollectedRows;
use crate::exec::range_join::build::column::ColumnNeeds;
use crate::exec::range_join::build::convert_keys::convert_keys;
use crate::exec::range_join::build::side::BuildSide;
use crate::exec::range_join::build::sort_and_index::sort_and_index_blocking;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::devices::JoinDevices;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::index::catalog::DeviceBytes;
use crate::index::decoder::{Decoder, buffer};
use crate::index::sort_keys::{Chunks, Encoded, KeyColumn};
use crate::logical_plan::range_join::AggregateKind;
use crate::range_agg::values::Values;
use crate::sorted::arrange::encode_chunks;
use crate::sorted::bucket_sort::SortContext;
use crate::sorted::groups::Groups;
use crate::sorted::order_keys::OrderKeys;
use crate::sorted::permutation::RowPermutation;
use crate::sorted::sort_rows::group_rows;
use rmq_engine::{
    Column, ColumnChunks, Comparison, Extreme, ExtremeIndex, IntegerKind, OutputValues,
    RangeJoinAnswer, RangeJoinColumn, RangeJoinIndex, RangeJoinInput, RangeJoinOutput,
    RangeJoinProbe, RangeRow, RowGroups,
};

/// A build side on devices.
#[derive(Debug)]
pub(crate) struct DeviceJoin {
    devices: JoinDevices,
    index: Arc<dyn RangeJoinIndex>,
    /// The groups of the build rows, to number those of probe rows; none without equality keys.
    groups: Option<Groups>,
    /// Whether the device knows groups: there are equality keys, or rows that match nothing.
    has_ids: bool,
    key_type: DataType,
    /// What devices answer: one per aggregate, then whether a row is matched.
    answers: Vec<RangeJoinAnswer>,
    /// What makes arrays of the answers, one per aggregate.
    results: Vec<AggregateResult>,
    prevailing: bool,
    fallback: CpuFallbackSide,
    _memory: [MemoryReservation; 2],
    _device_memory: DeviceBytes,
}

/// How an array is made of a device's answers.
#[derive(Debug)]
enum AggregateResult {
    /// 64-bit integers of this type, the answers themselves.
    Integers(DataType),
    /// Keys.
    Keys(Decoder),
    /// Numbers of rows, of which these are the values in input order.
    Rows(Arc<Values>),
}

/// The same build side on the CPU, made when the devices first fail.
#[derive(Debug)]
struct CpuFallbackSide {
    columns: BuildColumns,
    rows: Arc<CollectedRows>,
    metrics: BuildMetrics,
    threads: usize,
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
    pub(crate) matched: BooleanBuffer,
    pub(crate) aggregates: Vec<ArrayRef>,
}

impl DeviceJoin {
    /// Whether devices can answer all aggregates over columns of these types.
    pub(crate) fn supports(columns: &BuildColumns, types: &[DataType]) -> bool {
        let values = columns.values(types);
        let lower_bounds = columns.comparisons.iter().filter(|c| c.is_lower()).count();
        let aggregates = columns.aggregates.iter();
        let mut supported = aggregates.map(|(function, arguments)| {
            let argument = |i: usize| arguments.get(i).and_then(|column| values.get(*column));
            match function {
                AggregateKind::Count | AggregateKind::Extreme(_) => {
                    argument(0).is_some_and(|of| key_layout(of).is_some() && !is_ranked(of))
                }
                AggregateKind::Sum => matches!(
                    argument(0),
                    Some(DataType::Int64 | DataType::UInt64 | DataType::Duration(_))
                ),
                AggregateKind::SumLow
                | AggregateKind::AtCrossing { .. }
                | AggregateKind::Accumulate => false,
                AggregateKind::CountRows
                | AggregateKind::First
                | AggregateKind::Last
                | AggregateKind::Rightmost => true,
                AggregateKind::AtExtreme { .. } => {
                    argument(1).is_some_and(|by| key_layout(by).is_some() && !is_ranked(by))
                }
            }
        });
        !columns.returns_rows
            && !is_ranked(columns.range_key(types))
            && supported.all(|supported| supported)
            && (!columns.prevailing || lower_bounds == 1)
    }

    /// Sorts and indexes collected rows on devices. Returns the rows as they were if the devices leave that to the CPU.
    ///
    /// # Errors
    /// Errors of devices, for which the CPU may take over; if memory is exhausted or the query is cancelled.
    pub(crate) fn build(
        columns: &BuildColumns,
        rows: &Arc<CollectedRows>,
        metrics: &BuildMetrics,
        threads: usize,
        devices: &JoinDevices,
        waiting: &Waiting,
    ) -> Result<Option<Self>> {
        let check = || waiting.check();
        let workers = Workers::new(threads, &check);
        let types = rows.schema.fields().iter().map(|f| f.data_type().clone());
        let types: Vec<DataType> = types.collect();
        let rows_memory = rows.memory.new_empty();
        let groups_memory = rows.memory.new_empty();
        let context = SortContext {
            memory: &groups_memory,
            workers,
        };
        // The collected keys stay registered: the rows are kept until the devices have answered.
        let none = rows.memory.new_empty();
        let batches = rows.batches.clone();
        let parts = convert_keys(columns, &types, batches, &none, &rows_memory, workers)?;
        let grouped = group_rows(parts, context)?;
        let mut builder = ColumnsBuilder {
            rows,
            needs: columns,
            types: &types,
            workers,
            columns: vec![],
            on_devices: vec![],
        };
        for column in 0..columns.values(&types).len() {
            builder.add_column(column)?;
        }
        let (mut answers, mut results) = (vec![], vec![]);
        for (function, arguments) in &columns.aggregates {
            let (answer, result) = builder.answer(*function, arguments)?;
            answers.push(answer);
            results.push(result);
        }
        answers.push(RangeJoinAnswer::Matched);
        let row_numbers = answers
            .iter()
            .any(|answer| matches!(answer, RangeJoinAnswer::Row { .. }));
        let groups = grouped.ids.as_ref().map(|ids| RowGroups {
            ids: vec![&ids[..]],
            count: grouped.groups.as_ref().map_or(1, Groups::len),
        });
        let input = RangeJoinInput {
            keys: chunks_of_keys(grouped.keys)?,
            groups,
            columns: builder.columns,
            row_numbers,
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
        metrics.record_device_bytes(index.device_bytes());
        metrics.build_rows.add(rows.num_rows());
        let has_ids = grouped.ids.is_some();
        drop(grouped.ids);
        groups_memory.try_resize(0)?;
        rows_memory.try_resize(grouped.groups.as_ref().map_or(0, Groups::bytes))?;
        let total = rows.memory.size() + rows_memory.size();
        metrics.build_mem_used.set_max(total);
        Ok(Some(Self {
            devices: devices.clone(),
            index,
            groups: grouped.groups,
            has_ids,
            key_type: columns.range_key(&types).clone(),
            answers,
            results,
            prevailing: columns.prevailing,
            fallback: CpuFallbackSide {
                columns: columns.clone(),
                rows: Arc::clone(rows),
                metrics: metrics.clone(),
                threads,
                side: OnceLock::new(),
            },
            _memory: [rows_memory, groups_memory],
            _device_memory: device_memory,
        }))
    }

    /// Number of build rows that can match.
    pub(crate) fn rows(&self) -> usize {
        self.index.rows()
    }

    /// Begins a batch of probe rows with these comparisons.
    ///
    /// # Errors
    /// An execution error for a range key without an order.
    pub(crate) fn probe(
        &self,
        comparisons: impl IntoIterator<Item = Comparison>,
    ) -> Result<DeviceProbe> {
        let bounds = comparisons.into_iter().map(|comparison| {
            let keys = OrderKeys::try_new(&self.key_type)?;
            Ok((comparison, keys))
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
        match &self.groups {
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
            groups: self.has_ids.then(|| groups.collect()),
            bounds: bounds.collect::<Result<_>>()?,
            prevailing: self.prevailing,
        };
        let outputs = self.index.answer(&request, &self.answers);
        let outputs = outputs.map_err(engine_error);
        let outputs = self.devices.or_cpu_fallback(outputs, record_fallback)?;
        let Some(mut outputs) = outputs else {
            return Ok(None);
        };
        let Some(matched) = outputs.pop().and_then(|matched| matched.valid) else {
            return internal_err!("a device did not tell which rows are matched");
        };
        let matched = BooleanBuffer::new(buffer(matched), 0, probe.rows);
        let aggregates = self.results.iter().zip(outputs);
        let aggregates = aggregates.map(|(result, output)| result.array(output, probe.rows));
        Ok(Some(DeviceAnswers {
            matched,
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
            rows,
            metrics,
            threads,
            side,
        } = &self.fallback;
        let build = || {
            // The copy is registered by itself, as sorting frees what it has read.
            let memory = rows.memory.new_empty();
            memory.try_grow(rows.memory.size())?;
            let rows = CollectedRows {
                schema: Arc::clone(&rows.schema),
                batches: rows.batches.clone(),
                memory,
            };
            let metrics = metrics.for_rebuild();
            let waiting = Waiting::forever();
            let side =
                sort_and_index_blocking(columns.clone(), rows, metrics, *threads, None, waiting)?;
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

impl AggregateResult {
    /// The array of a device's answers.
    fn array(&self, output: RangeJoinOutput, rows: usize) -> Result<ArrayRef> {
        let valid = match output.valid {
            Some(valid) => NullBuffer::new(BooleanBuffer::new(buffer(valid), 0, rows)),
            None => NullBuffer::new_valid(rows),
        };
        match (self, output.values) {
            (Self::Integers(data_type), OutputValues::W64(values)) => {
                Ok(integers(data_type, buffer(values), valid)?)
            }
            (Self::Keys(decoder), OutputValues::W32(keys)) => decoder.decode_32(keys, valid),
            (Self::Keys(decoder), OutputValues::W64(keys)) => decoder.decode_64(keys, valid),
            (Self::Keys(decoder), OutputValues::W128(keys)) => decoder.decode_128(keys, valid),
            (Self::Rows(values), OutputValues::W32(numbers)) => {
                let numbers = integers(&DataType::UInt32, buffer(numbers), valid)?;
                let numbers = numbers.as_primitive::<UInt32Type>().iter();
                values.at(numbers.map(|number| number.map(i64::from)))
            }
            _ => internal_err!("a device returned values of another width"),
        }
    }
}

/// 64- or 32-bit integers as an array of this type.
fn integers(data_type: &DataType, values: Buffer, valid: NullBuffer) -> Result<ArrayRef> {
    let data = ArrayDataBuilder::new(data_type.clone())
        .len(valid.len())
        .nulls(Some(valid))
        .add_buffer(values)
        .build()?;
    Ok(make_array(data))
}

/// Describes the value columns for devices.
struct ColumnsBuilder<'a> {
    rows: &'a CollectedRows,
    needs: &'a BuildColumns,
    types: &'a [DataType],
    workers: Workers<'a>,
    /// The columns that devices need.
    columns: Vec<RangeJoinColumn>,
    /// For each value column the index among those of devices, and the decoder of its keys.
    on_devices: Vec<Option<(usize, Decoder)>>,
}

impl ColumnsBuilder<'_> {
    /// The arrays of a value column.
    fn chunks(&self, column: usize) -> Chunks {
        let arrays = self.rows.batches.iter();
        let arrays = arrays.map(|batch| Arc::clone(&self.needs.values(batch.columns())[column]));
        Chunks {
            arrays: arrays.collect(),
            owned_elsewhere: true,
        }
    }

    /// Adds a value column with what the aggregates need of it, unless devices need nothing.
    fn add_column(&mut self, column: usize) -> Result<()> {
        let data_type = &self.needs.values(self.types)[column];
        let needs = ColumnNeeds::of_column(self.needs, column);
        let single_values = needs.has_values() && has_values_as_keys(data_type);
        let index = |extreme: Extreme| {
            let index = if needs.has_positions(extreme)? {
                ExtremeIndex::Rows
            } else {
                ExtremeIndex::Values
            };
            Some(index)
        };
        let (min, max) = (index(Extreme::Min), index(Extreme::Max));
        if !(single_values || needs.has_counts() || min.is_some() || max.is_some()) {
            self.on_devices.push(None);
            return Ok(());
        }
        let encoded = encode_chunks(&self.chunks(column), data_type, self.workers)?;
        let Some(decoder) = encoded.first().map(|encoded| encoded.decoder.clone()) else {
            return internal_err!("a value column without an array");
        };
        self.on_devices.push(Some((self.columns.len(), decoder)));
        self.columns.push(RangeJoinColumn {
            values: chunks_of_columns(encoded)?,
            min,
            max,
            counts: needs.has_counts(),
            sums: needs.has_sums().then_some(IntegerKind::Signed),
            single_values,
        });
        Ok(())
    }

    /// The index of a value column among those of devices, and the decoder of its keys.
    fn on_devices(&self, column: usize) -> Result<(usize, Decoder)> {
        let known = self.on_devices.get(column).cloned().flatten();
        known.ok_or_else(|| internal_datafusion_err!("value column {column} is not on devices"))
    }

    /// What devices answer for an aggregate over these columns, and what makes an array of that.
    fn answer(
        &self,
        function: AggregateKind,
        arguments: &[usize],
    ) -> Result<(RangeJoinAnswer, AggregateResult)> {
        let argument = |i: usize| arguments.get(i).copied().unwrap_or_default();
        let count = || AggregateResult::Integers(DataType::Int64);
        Ok(match function {
            AggregateKind::CountRows => (RangeJoinAnswer::Count, count()),
            AggregateKind::Count => {
                let (column, _) = self.on_devices(argument(0))?;
                (RangeJoinAnswer::CountValid { column }, count())
            }
            AggregateKind::Sum => {
                let (column, _) = self.on_devices(argument(0))?;
                let data_type = self.needs.values(self.types)[argument(0)].clone();
                let result = AggregateResult::Integers(data_type);
                (RangeJoinAnswer::Sum { column }, result)
            }
            AggregateKind::Extreme(extreme) => {
                let (column, decoder) = self.on_devices(argument(0))?;
                let answer = RangeJoinAnswer::Extreme { column, extreme };
                (answer, AggregateResult::Keys(decoder))
            }
            AggregateKind::First => return self.value(argument(0), RangeRow::First),
            AggregateKind::Last => return self.value(argument(0), RangeRow::FirstOfLast),
            AggregateKind::Rightmost => return self.value(argument(0), RangeRow::Last),
            AggregateKind::AtExtreme {
                extreme,
                nulls_first,
            } => {
                let (column, _) = self.on_devices(argument(1))?;
                let at = RangeRow::FirstOrdered {
                    column,
                    extreme,
                    nulls_first,
                };
                return self.value(argument(0), at);
            }
            AggregateKind::SumLow
            | AggregateKind::AtCrossing { .. }
            | AggregateKind::Accumulate => {
                return internal_err!("devices do not compute {function:?}");
            }
        })
    }

    /// The value of a column at one row of each range.
    fn value(&self, column: usize, at: RangeRow) -> Result<(RangeJoinAnswer, AggregateResult)> {
        let data_type = &self.needs.values(self.types)[column];
        if has_values_as_keys(data_type) {
            let (column, decoder) = self.on_devices(column)?;
            let answer = RangeJoinAnswer::Value { column, at };
            return Ok((answer, AggregateResult::Keys(decoder)));
        }
        let chunks = self.chunks(column);
        let identity = RowPermutation::identity(self.rows.num_rows());
        let values = Values::of(&chunks.arrays, data_type, &identity, self.workers)?;
        let result = AggregateResult::Rows(Arc::new(values));
        Ok((RangeJoinAnswer::Row { at }, result))
    }
}

/// Whether the values of a type, which is no dictionary, can be restored from keys of fixed width.
fn has_values_as_keys(data_type: &DataType) -> bool {
    let is_plain = !matches!(data_type, DataType::Dictionary(..));
    let layout = key_layout(data_type);
    is_plain && layout.is_some_and(|layout| !matches!(layout, KeyLayout::Rank | KeyLayout::AllNull))
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

/// Encoded chunks as devices get them.
fn chunks_of_columns(encoded: Vec<Encoded>) -> Result<ColumnChunks> {
    fn all<K>(
        encoded: Vec<Encoded>,
        of_width: fn(KeyColumn) -> Option<Column<K>>,
    ) -> Result<Vec<Column<K>>> {
        let columns = encoded.into_iter().map(|encoded| of_width(encoded.column));
        let columns: Option<Vec<_>> = columns.collect();
        match columns {
            Some(columns) => Ok(columns),
            None => internal_err!("a column has keys of different widths"),
        }
    }
    Ok(match encoded.first().map(|encoded| &encoded.column) {
        None | Some(KeyColumn::W32(_)) => ColumnChunks::W32(all(encoded, KeyColumn::into_32)?),
        Some(KeyColumn::W64(_)) => ColumnChunks::W64(all(encoded, KeyColumn::into_64)?),
        Some(KeyColumn::W128(_)) => ColumnChunks::W128(all(encoded, KeyColumn::into_128)?),
    })
}
