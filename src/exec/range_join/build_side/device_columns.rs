//! The value columns of a build side as devices get them, and the arrays that are made of their answers.

use std::sync::Arc;

use arrow::array::{Array, ArrayDataBuilder, ArrayRef, AsArray, UInt32Array, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{DataType, UInt32Type};
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::range_join::aggregate_table::{Structure, Structures};
use crate::exec::range_join::build_columns::{BuildColumns, ValueAggregate};
use crate::exec::range_join::build_side::collect_or_spill::CollectedRows;
use crate::exec::range_join::device_aggregates::addends;
use datafusion_rmq_logical::logical_plan::range_join::AggregateKind;
use rmq_arrow::common::ordered_type::{KeyLayout, is_borrowed, key_layout};
use rmq_arrow::common::workers::Workers;
use rmq_arrow::index::decoder::{Decoder, buffer};
use rmq_arrow::index::sort_keys::{Chunks, Encoded, KeyColumn, encode};
use rmq_arrow::range_agg::values::Values;
use rmq_arrow::sorted::arrange::encode_chunks;
use rmq_arrow::sorted::permutation::RowPermutation;
use rmq_engine::{
    Extreme, ExtremeIndex, OutputValues, RangeJoinAnswer, RangeJoinColumn, RangeJoinOutput,
    RangeRow,
};

/// How an array is made of a device's answers.
#[derive(Debug)]
pub(crate) enum AggregateResult {
    /// Numbers of this type, the answers themselves.
    Numbers(DataType),
    /// Keys.
    Keys(Decoder),
    /// The numbers of the rows whose values these are, in input order.
    Rows(Arc<Values>),
}

impl AggregateResult {
    /// The array of a device's answers.
    pub(crate) fn array(&self, output: RangeJoinOutput, rows: usize) -> Result<ArrayRef> {
        let valid = match output.valid {
            Some(valid) => NullBuffer::new(BooleanBuffer::new(buffer(valid), 0, rows)),
            None => NullBuffer::new_valid(rows),
        };
        match (self, output.values) {
            (Self::Numbers(data_type), OutputValues::W64(values)) => {
                numbers_of(data_type, buffer(values), valid)
            }
            (Self::Numbers(data_type), OutputValues::W128(values)) => {
                numbers_of(data_type, buffer(values), valid)
            }
            (Self::Keys(decoder), keys) => decoder.decode(keys, valid),
            (Self::Rows(values), OutputValues::W32(numbers)) => {
                let rows = numbers_of(&DataType::UInt32, buffer(numbers), valid)?;
                let numbers = rows.as_primitive::<UInt32Type>().iter();
                values.at(numbers.map(|number| number.map(i64::from)))
            }
            _ => internal_err!("a device returned values of another width"),
        }
    }
}

/// Numbers of 32, 64 or 128 bits as an array of this type.
fn numbers_of(data_type: &DataType, values: Buffer, valid: NullBuffer) -> Result<ArrayRef> {
    let data = ArrayDataBuilder::new(data_type.clone())
        .len(valid.len())
        .nulls(Some(valid))
        .add_buffer(values)
        .build()?;
    Ok(make_array(data))
}

/// A value column that devices have, as far as aggregates need it.
#[derive(Debug, Clone)]
pub(crate) struct DeviceColumn {
    pub(crate) built: Structures,
    data_type: DataType,
    /// The index among the columns of devices, and the decoder of their keys.
    on_devices: Option<(usize, Decoder)>,
    /// The values in input order.
    on_host: Option<Arc<Values>>,
}

impl DeviceColumn {
    /// Whether the host takes single values of it, by the numbers of their rows.
    pub(crate) fn is_on_host(&self) -> bool {
        self.on_host.is_some()
    }

    /// Sets the index among the columns of devices, if they have it.
    pub(crate) fn move_to(&mut self, index: usize) {
        if let Some((on_devices, _)) = &mut self.on_devices {
            *on_devices = index;
        }
    }

    /// The index among the columns of devices, if they have it.
    pub(crate) fn index(&self) -> Option<usize> {
        self.on_devices.as_ref().map(|(index, _)| *index)
    }

    fn on_devices(&self) -> Result<(usize, Decoder)> {
        let known = self.on_devices.clone();
        known.ok_or_else(|| internal_datafusion_err!("a value column is not on devices"))
    }

    /// The value of this column at one row of each range.
    fn value(&self, at: RangeRow) -> Result<(RangeJoinAnswer, AggregateResult)> {
        if let Some(values) = &self.on_host {
            let result = AggregateResult::Rows(Arc::clone(values));
            return Ok((RangeJoinAnswer::Row { at }, result));
        }
        let (column, decoder) = self.on_devices()?;
        let answer = RangeJoinAnswer::Value { column, at };
        Ok((answer, AggregateResult::Keys(decoder)))
    }
}

/// What devices answer for an aggregate over these of the columns, and what makes an array of that.
///
/// # Errors
/// An internal error if devices do not compute the aggregate, or have not been given what it needs.
pub(crate) fn answer(
    aggregate: &ValueAggregate,
    columns: &[&DeviceColumn],
) -> Result<(RangeJoinAnswer, AggregateResult)> {
    let ValueAggregate {
        function,
        arguments,
        ..
    } = aggregate;
    let argument = |i: usize| {
        let column = arguments.get(i).and_then(|column| columns.get(*column));
        column.ok_or_else(|| internal_datafusion_err!("{function:?} has no argument {i}"))
    };
    let count = || AggregateResult::Numbers(DataType::Int64);
    Ok(match *function {
        AggregateKind::CountRows => (RangeJoinAnswer::Count, count()),
        AggregateKind::Count => {
            let (column, _) = argument(0)?.on_devices()?;
            (RangeJoinAnswer::CountValid { column }, count())
        }
        AggregateKind::Sum => {
            let (column, _) = argument(0)?.on_devices()?;
            let result = AggregateResult::Numbers(argument(0)?.data_type.clone());
            (RangeJoinAnswer::Sum { column }, result)
        }
        AggregateKind::SumLow => {
            let (column, _) = argument(0)?.on_devices()?;
            let result = AggregateResult::Numbers(DataType::Float64);
            (RangeJoinAnswer::SumError { column }, result)
        }
        AggregateKind::Extreme(extreme) => {
            let (column, decoder) = argument(0)?.on_devices()?;
            let answer = RangeJoinAnswer::Extreme { column, extreme };
            (answer, AggregateResult::Keys(decoder))
        }
        AggregateKind::First => argument(0)?.value(RangeRow::First)?,
        AggregateKind::Last => argument(0)?.value(RangeRow::FirstOfLast)?,
        AggregateKind::Rightmost => argument(0)?.value(RangeRow::Last)?,
        AggregateKind::AtExtreme {
            extreme,
            nulls_first,
        } => {
            let (column, _) = argument(1)?.on_devices()?;
            argument(0)?.value(RangeRow::FirstOrdered {
                column,
                extreme,
                nulls_first,
            })?
        }
        AggregateKind::AtCrossing { .. }
        | AggregateKind::CountCrossing { .. }
        | AggregateKind::Accumulate => {
            return internal_err!("devices do not compute {function:?}");
        }
    })
}

/// Describes the value columns for devices. What is copied for that is registered in `memory`.
pub(crate) struct ColumnsBuilder<'a> {
    pub(crate) rows: &'a CollectedRows,
    pub(crate) of: &'a BuildColumns,
    pub(crate) workers: Workers<'a>,
    pub(crate) memory: &'a MemoryReservation,
    /// Bytes of what makes arrays of answers, which stays when the devices have the columns.
    pub(crate) kept_bytes: usize,
    /// The columns that devices have already.
    pub(crate) known: usize,
    /// The columns that devices need.
    pub(crate) columns: Vec<RangeJoinColumn>,
}

impl ColumnsBuilder<'_> {
    /// The arrays of a value column.
    fn chunks(&self, column: usize) -> Chunks {
        let arrays = self.rows.batches.iter();
        let arrays = arrays.map(|batch| Arc::clone(&self.of.values(batch.columns())[column]));
        Chunks::borrowed(arrays.collect())
    }

    /// Adds these of the value columns with what is needed of them.
    pub(crate) fn add_columns(
        &mut self,
        needs: impl IntoIterator<Item = (usize, Structures)>,
    ) -> Result<Vec<DeviceColumn>> {
        let types = self.rows.types();
        let types = self.of.values(&types);
        let needs = needs.into_iter();
        let columns = needs.map(|(column, needs)| self.add_column(column, &types[column], needs));
        columns.collect()
    }

    /// Adds a value column of this type with what is needed of it, unless devices need nothing.
    fn add_column(
        &mut self,
        column: usize,
        data_type: &DataType,
        needs: Structures,
    ) -> Result<DeviceColumn> {
        let needs_values = needs.contains(Structure::Values);
        let needs_sums = needs.contains(Structure::Sums);
        let needs_counts = needs.contains(Structure::Counts);
        let index = |extreme| {
            let index = |positions| Structure::Index { extreme, positions };
            if needs.contains(index(true)) {
                Some(ExtremeIndex::Rows)
            } else {
                needs.contains(index(false)).then_some(ExtremeIndex::Values)
            }
        };
        let (min, max) = (index(Extreme::Min), index(Extreme::Max));
        // The host takes values that devices can't store.
        let single_values = needs_values && has_values_as_keys(data_type);
        let reads_values = single_values || needs_sums || min.is_some() || max.is_some();
        let mut added = DeviceColumn {
            built: needs,
            data_type: data_type.clone(),
            on_devices: None,
            on_host: None,
        };
        if needs_values && !single_values {
            added.on_host = Some(Arc::new(self.values_on_host(column, data_type)?));
        }
        if !reads_values && !needs_counts {
            return Ok(added);
        }
        // Otherwise only which values are NULL.
        let encoded = if reads_values || is_borrowed(data_type) {
            self.encode(&self.chunks(column), data_type)?
        } else {
            self.encode_nulls(&self.chunks(column))?
        };
        let Some(decoder) = encoded.first().map(|encoded| encoded.decoder.clone()) else {
            return internal_err!("a value column without an array");
        };
        self.kept_bytes += decoder.bytes();
        added.on_devices = Some((self.known + self.columns.len(), decoder));
        self.columns.push(RangeJoinColumn {
            values: KeyColumn::together(encoded.into_iter().map(|e| e.column).collect())?,
            min,
            max,
            counts: needs_counts,
            sums: addends(data_type).filter(|_| needs_sums),
            single_values,
        });
        Ok(added)
    }

    /// The keys of a column: ranks among all its values, or its own chunks.
    fn encode(&self, chunks: &Chunks, data_type: &DataType) -> Result<Vec<Encoded>> {
        if is_borrowed(data_type) {
            return encode_chunks(chunks, data_type, self.workers);
        }
        let peak = chunks.copy_bytes(data_type);
        self.memory.try_grow(peak)?;
        let encoded = encode_chunks(chunks, data_type, self.workers)?;
        let kept = encoded.iter().map(|e| e.copied_bytes + e.decoder.bytes());
        self.memory.shrink(peak.saturating_sub(kept.sum()));
        Ok(encoded)
    }

    /// Keys of a column whose NULLs alone matter: all zero.
    fn encode_nulls(&self, chunks: &Chunks) -> Result<Vec<Encoded>> {
        self.memory.try_grow(chunks.rows() * size_of::<u32>())?;
        let encoded = chunks.arrays.iter().map(|array| {
            let zeros = UInt32Array::new(vec![0; array.len()].into(), array.logical_nulls());
            let chunk = Chunks::borrowed(vec![Arc::new(zeros)]);
            encode(&chunk, &DataType::UInt32, Extreme::Min)
        });
        encoded.collect()
    }

    /// The values of a column in input order.
    fn values_on_host(&mut self, column: usize, data_type: &DataType) -> Result<Values> {
        let chunks = self.chunks(column);
        let bytes = chunks.bytes();
        self.memory.try_grow(bytes)?;
        self.kept_bytes += bytes;
        let identity = RowPermutation::identity(self.rows.num_rows());
        Values::try_new(&chunks.arrays, data_type, &identity, self.workers)
    }
}

/// Whether the values of a type, which is no dictionary, can be restored from keys of fixed width.
fn has_values_as_keys(data_type: &DataType) -> bool {
    let is_plain = !matches!(data_type, DataType::Dictionary(..));
    let layout = key_layout(data_type);
    is_plain && layout.is_some_and(|layout| !matches!(layout, KeyLayout::Rank | KeyLayout::AllNull))
}
