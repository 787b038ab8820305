//! Single values of a column, by the positions of sorted rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array, UInt64Array, new_empty_array};
use arrow::compute::{concat, take};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use datafusion_common::Result;

use crate::common::array_bytes::arrays_bytes;
use crate::common::dictionaries::{has_few_keys, number_of_keys, select, with_room};
use crate::common::errors::engine_error;
use crate::common::row_number::row_number;
use crate::common::workers::Workers;
use crate::sorted::arrange::permute_values;
use crate::sorted::permutation::RowPermutation;
use rmq_engine::cpu::HugePageBuf;

/// The values of a column by position. They are stored by position, or in input order with the row at each position.
#[derive(Debug)]
pub struct Values {
    /// One array, or several where one would be too large for its type.
    parts: Vec<ArrayRef>,
    /// The first row of each part.
    starts: Vec<usize>,
    /// The row at each position; `None` for the identity.
    order: Option<Arc<HugePageBuf<u32>>>,
}

impl Values {
    /// The values of the column `chunks`, whose rows are permuted by `permutation`.
    ///
    /// # Errors
    /// Arrow's, if the chunks can't be concatenated; if the query is cancelled.
    pub fn try_new(
        chunks: &[ArrayRef],
        data_type: &DataType,
        permutation: &RowPermutation,
        workers: Workers,
    ) -> Result<Self> {
        let parts = match chunks {
            [] => vec![new_empty_array(data_type)],
            [one] => vec![Arc::clone(one)],
            // Arrow merges the values of some types; with others it panics.
            many if exceed_keys(many, data_type) => many.to_vec(),
            many => {
                let is_nested = !matches!(data_type, DataType::Dictionary(..));
                let roomy = if is_nested && has_few_keys(data_type) {
                    many.iter().map(with_room).collect::<Result<_>>()?
                } else {
                    many.to_vec()
                };
                let arrays: Vec<&dyn Array> = roomy.iter().map(AsRef::as_ref).collect();
                match concat(&arrays) {
                    Ok(whole) => vec![whole],
                    // More than 2 GiB of strings: each batch of results may still fit.
                    Err(ArrowError::OffsetOverflowError(_)) => roomy,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        Ok(Self::new(parts, permutation.order(workers)?.cloned()))
    }

    /// The values of a column, each at its position.
    pub fn by_position(values: ArrayRef) -> Self {
        Self::new(vec![values], None)
    }

    /// The values of a column in parts, each at its position.
    pub fn of_parts(parts: Vec<ArrayRef>) -> Self {
        Self::new(parts, None)
    }

    fn new(parts: Vec<ArrayRef>, order: Option<Arc<HugePageBuf<u32>>>) -> Self {
        let starts = parts.iter().scan(0, |end, part| {
            let start = *end;
            *end += part.len();
            Some(start)
        });
        Self {
            starts: starts.collect(),
            parts,
            order,
        }
    }

    /// The values in sorted order, for callers that take most of them. Rows that the permutation leaves out are at the
    /// positions after all others.
    ///
    /// # Errors
    /// As [`Self::try_new`].
    pub fn sorted(
        chunks: &[ArrayRef],
        data_type: &DataType,
        permutation: &RowPermutation,
        workers: Workers,
    ) -> Result<Self> {
        if let Some(whole) = permute_values(chunks, data_type, permutation, workers)? {
            if whole.len() == chunks.iter().map(Array::len).sum::<usize>() {
                return Ok(Self::by_position(whole));
            }
            let rows = Self::new(chunks.to_vec(), None);
            let left_out = permutation.left_out().into_iter();
            let left_out = rows.at(left_out.map(|row| Some(i64::from(row))))?;
            return Ok(Self::by_position(concat(&[&whole, &left_out])?));
        }
        let mut values = Self::try_new(chunks, data_type, permutation, workers)?;
        let Some(order) = values.order.take() else {
            return Ok(values);
        };
        let order = order.iter().copied().chain(permutation.left_out());
        let order: Vec<u32> = order.collect();
        if let [whole] = values.parts.as_mut_slice() {
            *whole = take(whole, &UInt32Array::from(order), None)?;
        } else {
            let mut all = HugePageBuf::zeroed(order.len()).map_err(engine_error)?;
            all.copy_from_slice(&order);
            values.order = Some(Arc::new(all));
        }
        Ok(values)
    }

    /// The values as one array, each at its position; `None` if they are not stored so.
    pub fn whole(&self) -> Option<&ArrayRef> {
        match (self.parts.as_slice(), &self.order) {
            ([whole], None) => Some(whole),
            _ => None,
        }
    }

    /// Bytes of the values, the permutation not included.
    pub fn bytes(&self) -> usize {
        arrays_bytes(&self.parts)
    }

    /// Takes the values at these positions, NULL for NULL, in the [roomy](crate::common::dictionaries::roomy_type)
    /// type.
    ///
    /// # Errors
    /// As [`Self::at`].
    pub fn take(&self, positions: &UInt32Array) -> Result<ArrayRef> {
        match (self.parts.as_slice(), &self.order) {
            ([whole], None) => with_room(&take(whole, positions, None)?),
            _ => self.at(positions.iter().map(|position| position.map(i64::from))),
        }
    }

    /// Takes the values at these positions, NULL for `None`, in the [roomy](crate::common::dictionaries::roomy_type)
    /// type.
    ///
    /// # Errors
    /// An internal error for a position of more than 32 bits; an execution error if the values have more bytes than
    /// offsets of their type can tell.
    pub fn at(&self, positions: impl Iterator<Item = Option<i64>>) -> Result<ArrayRef> {
        let row = |position: i64| {
            let position = row_number(position)? as usize;
            Ok(match &self.order {
                None => position,
                Some(order) => order[position] as usize,
            })
        };
        let rows = positions.map(|position| position.map(row).transpose());
        let rows: Vec<Option<usize>> = rows.collect::<Result<_>>()?;
        if let [whole] = self.parts.as_slice() {
            let rows = rows.into_iter().map(|row| row.map(|row| row as u64));
            let rows: UInt64Array = rows.collect();
            return with_room(&take(whole, &rows, None)?);
        }
        let rows = rows.into_iter().map(|row| {
            row.map(|row| {
                let part = self.starts.partition_point(|start| *start <= row) - 1;
                (part, row - self.starts[part])
            })
        });
        let parts: Vec<&dyn Array> = self.parts.iter().map(AsRef::as_ref).collect();
        select(&parts, &rows.collect::<Vec<_>>())
    }
}

/// Whether these are dictionaries with more values in all than their key type has keys.
fn exceed_keys(arrays: &[ArrayRef], data_type: &DataType) -> bool {
    let DataType::Dictionary(key, _) = data_type else {
        return false;
    };
    let values = arrays.iter().filter_map(|a| a.as_any_dictionary_opt());
    let values: usize = values.map(|dictionary| dictionary.values().len()).sum();
    values > number_of_keys(key)
}

#[cfg(test)]
mod tests {
    use arrow::array::StringArray;

    use super::*;

    #[test]
    fn a_position_that_no_row_has_is_an_error() {
        let chunks: [ArrayRef; 1] = [Arc::new(StringArray::from(vec!["a", "b"]))];
        let workers = Workers::new(1, &|| Ok(()));
        let identity = RowPermutation::identity(2);
        let values = Values::try_new(&chunks, &DataType::Utf8, &identity, workers).unwrap();
        for position in [-1, 1 << 32] {
            let error = values
                .at([Some(position)].into_iter())
                .unwrap_err()
                .to_string();
            assert!(error.contains("row number"), "{error}");
        }
    }

    #[test]
    fn values_in_parts_are_those_of_the_whole() {
        let text = |i: usize| (!i.is_multiple_of(4)).then(|| format!("value {i}"));
        let chunks: Vec<ArrayRef> = [0..5, 5..6, 6..6, 6..12]
            .into_iter()
            .map(|rows| Arc::new(rows.map(text).collect::<StringArray>()) as ArrayRef)
            .collect();
        // All rows except two, in reverse order.
        let order = (0..12).rev().filter(|row| ![3, 8].contains(row));
        let order: Vec<u32> = order.collect();
        let workers = Workers::new(2, &|| Ok(()));
        let reordered = RowPermutation::from_order(&order, 12, workers).unwrap();
        for permutation in [RowPermutation::identity(12), reordered] {
            let whole = Values::try_new(&chunks, &DataType::Utf8, &permutation, workers).unwrap();
            assert_eq!(whole.parts.len(), 1);
            let order = permutation.order(workers).unwrap();
            let parts = Values::new(chunks.clone(), order.cloned());
            let len = i64::try_from(permutation.len()).unwrap();
            let positions = || (0..len).map(Some).chain([None, Some(2)]);
            let expected = positions().map(|position| {
                let position = usize::try_from(position?).unwrap();
                text(order.map_or(position, |order| order[position] as usize))
            });
            let expected: ArrayRef = Arc::new(expected.collect::<StringArray>());
            assert_eq!(&whole.at(positions()).unwrap(), &expected);
            assert_eq!(&parts.at(positions()).unwrap(), &expected);
            let sorted = Values::sorted(&chunks, &DataType::Utf8, &permutation, workers).unwrap();
            let positions = positions().map(|p| p.map(|p| u32::try_from(p).unwrap()));
            let taken = sorted.take(&positions.collect()).unwrap();
            assert_eq!(&taken, &expected);
            if let Some(order) = order {
                let left_out = (0..12).filter(|row| !order.contains(row));
                let left_out = left_out.map(|row| text(row as usize));
                let left_out: ArrayRef = Arc::new(left_out.collect::<StringArray>());
                assert_eq!(&sorted.take(&vec![10, 11].into()).unwrap(), &left_out);
            }
        }
    }
}
