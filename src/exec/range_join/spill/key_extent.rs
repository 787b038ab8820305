//! The smallest and the greatest range key of some rows, and the test whether bounds can match them.

use arrow::array::{Array, ArrayRef};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::Result;
use datafusion::common::utils::normalize_float_zero;

use rmq_arrow::common::ordered_type::value_type;
use rmq_engine::Comparison;

/// The order of range keys of one type, as Arrow's row format encodes it.
#[derive(Debug)]
pub(crate) struct KeyOrder {
    converter: RowConverter,
    data_type: DataType,
}

/// The smallest and the greatest of some range keys, encoded by [`KeyOrder`].
#[derive(Debug)]
pub(crate) struct KeyExtent {
    min: Box<[u8]>,
    max: Box<[u8]>,
}

/// One bound of the range key, with a value for each row of the probe side.
#[derive(Debug)]
pub(crate) struct EncodedBound {
    comparison: Comparison,
    rows: Rows,
    nulls: Option<NullBuffer>,
}

impl KeyOrder {
    pub(crate) fn try_new(data_type: &DataType) -> Result<Self> {
        let data_type = value_type(data_type);
        let converter = RowConverter::new(vec![SortField::new(data_type.clone())])?;
        Ok(Self {
            converter,
            data_type,
        })
    }

    /// The keys, as bytes in their order.
    pub(crate) fn encode(&self, keys: &ArrayRef) -> Result<Rows> {
        Ok(self.converter.convert_columns(&[comparable(keys)?])?)
    }

    /// The extent of these keys; `None` if all are NULL.
    pub(crate) fn extent(&self, keys: &ArrayRef) -> Result<Option<KeyExtent>> {
        let nulls = keys.logical_nulls();
        let rows = self.encode(keys)?;
        let valid = (0..keys.len()).filter(|i| nulls.as_ref().is_none_or(|n| n.is_valid(*i)));
        let (mut min, mut max) = (None, None);
        for key in valid.map(|i| rows.row(i).data()) {
            min = Some(min.map_or(key, |min: &[u8]| min.min(key)));
            max = Some(max.map_or(key, |max: &[u8]| max.max(key)));
        }
        let extent = min.zip(max);
        Ok(extent.map(|(min, max)| KeyExtent {
            min: min.into(),
            max: max.into(),
        }))
    }

    /// Encodes the values of a bound; `None` if their type is not that of the keys.
    pub(crate) fn encode_bound(
        &self,
        comparison: Comparison,
        values: &ArrayRef,
    ) -> Result<Option<EncodedBound>> {
        if value_type(values.data_type()) != self.data_type {
            return Ok(None);
        }
        Ok(Some(EncodedBound {
            comparison,
            rows: self.encode(values)?,
            nulls: values.logical_nulls(),
        }))
    }
}

impl EncodedBound {
    /// Bytes of the values.
    pub(crate) fn bytes(&self) -> usize {
        let nulls = self.nulls.as_ref();
        self.rows.size() + nulls.map_or(0, |nulls| nulls.len().div_ceil(8))
    }
}

impl KeyExtent {
    /// The extent of two sets of keys together.
    pub(crate) fn union(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(Self {
                min: one.min.min(other.min),
                max: one.max.max(other.max),
            }),
            (one, other) => one.or(other),
        }
    }

    /// Whether keys of this extent may be within all bounds of a row of the probe side.
    pub(crate) fn may_match(&self, bounds: &[EncodedBound], row: usize) -> bool {
        bounds.iter().all(|bound| {
            if bound.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                return false;
            }
            let value = bound.rows.row(row).data();
            match bound.comparison {
                Comparison::Above => *self.max > *value,
                Comparison::AtLeast => *self.max >= *value,
                Comparison::Below => *self.min < *value,
                Comparison::AtMost => *self.min <= *value,
            }
        })
    }
}

/// Range keys as they are compared: without a dictionary, and with -0.0 as 0.0.
pub(crate) fn comparable(keys: &ArrayRef) -> Result<ArrayRef> {
    Ok(cast(
        &normalize_float_zero(keys),
        &value_type(keys.data_type()),
    )?)
}
