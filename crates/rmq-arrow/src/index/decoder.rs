//! Arrow's values of the keys that an engine returns.

#![allow(
    clippy::cast_possible_truncation,
    reason = "keys are cut into the parts they are made of"
)]

use std::sync::Arc;

use arrow::array::{Array, ArrayDataBuilder, ArrayRef, BooleanArray, make_array, new_null_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::compute::take;
use arrow::datatypes::DataType;
use bytes::Bytes;
use datafusion_common::{Result, exec_datafusion_err, internal_err};

use crate::common::ordered_type::KeyLayout;
use crate::index::narrow_keys::{SIGN_32, day_time, fold_16, month_day_nano};
use bytemuck::Pod;
use rmq_engine::{OutputBuffer, OutputValues};

/// Converts the keys that an engine returns back to Arrow's values.
#[derive(Debug, Clone)]
pub struct Decoder {
    value_type: DataType,
    layout: KeyLayout,
    /// The distinct values in ascending order, where keys are ranks.
    distinct: Option<ArrayRef>,
}

impl Decoder {
    /// A decoder for keys of this layout; `distinct` are the values by rank, where keys are ranks.
    pub fn new(value_type: DataType, layout: KeyLayout, distinct: Option<ArrayRef>) -> Self {
        Self {
            value_type,
            layout,
            distinct,
        }
    }

    /// Bytes of the distinct values, where keys are ranks.
    pub fn bytes(&self) -> usize {
        self.distinct
            .as_ref()
            .map_or(0, Array::get_array_memory_size)
    }

    /// The distinct values in ascending order, where keys are ranks.
    pub fn distinct(&self) -> Option<&ArrayRef> {
        self.distinct.as_ref()
    }

    /// Whether keys are ranks among the values of the whole column.
    pub fn has_ranks(&self) -> bool {
        self.layout == KeyLayout::Rank
    }

    /// The type of the decoded values.
    pub fn value_type(&self) -> &DataType {
        &self.value_type
    }

    /// An array of these values; `None` if the bits of keys are not Arrow's.
    ///
    /// # Errors
    /// Arrow's.
    pub fn array(&self, values: Buffer, valid: NullBuffer) -> Result<Option<ArrayRef>> {
        if !matches!(self.layout, KeyLayout::Native(..)) {
            return Ok(None);
        }
        self.native(values, valid).map(Some)
    }

    /// Decodes keys; NULL where `valid` is not set.
    ///
    /// # Errors
    /// An internal error without keys, or if they are of another width than the type's.
    pub fn decode(&self, keys: OutputValues, valid: NullBuffer) -> Result<ArrayRef> {
        match keys {
            OutputValues::W32(keys) => self.decode_32(keys, valid),
            OutputValues::W64(keys) => self.decode_64(keys, valid),
            OutputValues::W128(keys) => self.decode_128(keys, valid),
            OutputValues::None => internal_err!("an engine returned no keys"),
        }
    }

    fn decode_32(&self, keys: OutputBuffer<u32>, valid: NullBuffer) -> Result<ArrayRef> {
        match self.layout {
            KeyLayout::Native(..) => self.native(buffer(keys), valid),
            KeyLayout::Narrow => self.narrow(&keys, valid),
            KeyLayout::AllNull => Ok(new_null_array(&self.value_type, keys.len())),
            _ => {
                let ranks = ScalarBuffer::new(buffer(keys), 0, valid.len());
                let ranks = arrow::array::UInt32Array::new(ranks, Some(valid));
                let distinct = self
                    .distinct
                    .as_ref()
                    .ok_or_else(|| exec_datafusion_err!("ranks without their values"))?;
                Ok(take(distinct, &ranks, None)?)
            }
        }
    }

    fn decode_64(&self, keys: OutputBuffer<u64>, valid: NullBuffer) -> Result<ArrayRef> {
        match self.layout {
            KeyLayout::Native(..) => self.native(buffer(keys), valid),
            _ => {
                let values: Vec<_> = keys.iter().map(|key| day_time(*key)).collect();
                self.native(Buffer::from_vec(values), valid)
            }
        }
    }

    fn decode_128(&self, keys: OutputBuffer<u128>, valid: NullBuffer) -> Result<ArrayRef> {
        if self.layout == KeyLayout::MonthDayNano {
            let values: Vec<_> = keys.iter().map(|key| month_day_nano(*key)).collect();
            return self.native(Buffer::from_vec(values), valid);
        }
        self.native(buffer(keys), valid)
    }

    fn native(&self, values: Buffer, valid: NullBuffer) -> Result<ArrayRef> {
        let data = ArrayDataBuilder::new(self.value_type.clone())
            .len(valid.len())
            .nulls(Some(valid))
            .add_buffer(values)
            .build()?;
        Ok(make_array(data))
    }

    fn narrow(&self, keys: &[u32], valid: NullBuffer) -> Result<ArrayRef> {
        let signed = |key: &u32| (key ^ SIGN_32).cast_signed();
        // The key of a NULL may not fit the narrow type, so every conversion truncates.
        let values = match self.value_type {
            DataType::Boolean => {
                let values = BooleanBuffer::collect_bool(keys.len(), |i| keys[i] == 1);
                return Ok(Arc::new(BooleanArray::new(values, Some(valid))));
            }
            DataType::Int8 => Buffer::from_vec(keys.iter().map(|k| signed(k) as i8).collect()),
            DataType::UInt8 => Buffer::from_vec(keys.iter().map(|k| *k as u8).collect()),
            DataType::Int16 => Buffer::from_vec(keys.iter().map(|k| signed(k) as i16).collect()),
            DataType::UInt16 => Buffer::from_vec(keys.iter().map(|k| *k as u16).collect()),
            // The only other narrow type is the 16-bit float.
            _ => Buffer::from_vec(keys.iter().map(|k| fold_16(signed(k) as i16)).collect()),
        };
        self.native(values, valid)
    }
}

/// Wraps an engine's memory in an Arrow buffer, without a copy.
pub fn buffer<T: Pod + Send + Sync + 'static>(numbers: OutputBuffer<T>) -> Buffer {
    Buffer::from(Bytes::from_owner(numbers))
}
