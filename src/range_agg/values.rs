//! A column of sorted rows from which single values are taken.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt64Array, new_empty_array};
use arrow::compute::{concat, take};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use datafusion::common::Result;

use crate::common::array_bytes::arrays_bytes;
use crate::common::dictionaries::{has_few_keys, number_of_keys, select, with_room};
use crate::sorted::permutation::RowPermutation;

/// Values by the positions of sorted rows. They stay as they came; which row stands at a position is looked up.
#[derive(Debug)]
pub(crate) struct Values {
    /// One, but where that would be too large for its type.
    parts: Vec<ArrayRef>,
    /// Where each part begins.
    starts: Vec<usize>,
    /// Which row stands at each position; `None` where rows stand as they came.
    order: Option<Arc<Vec<u32>>>,
}

impl Values {
    /// The column that `chunks` make up, whose rows go to `places`.
    pub(crate) fn of(
        chunks: &[ArrayRef],
        data_type: &DataType,
        places: &RowPermutation,
    ) -> Result<Self> {
        let parts = match chunks {
            [] => vec![new_empty_array(data_type)],
            [one] => vec![Arc::clone(one)],
            // Arrow would merge some kinds of values; with the others it panics.
            many if lack_keys(many, data_type) => many.to_vec(),
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
                    // More than 2 GiB of strings: each answer may still fit.
                    Err(ArrowError::OffsetOverflowError(_)) => roomy,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        Ok(Self::new(parts, places))
    }

    fn new(parts: Vec<ArrayRef>, places: &RowPermutation) -> Self {
        let starts = parts.iter().scan(0, |end, part| {
            let start = *end;
            *end += part.len();
            Some(start)
        });
        Self {
            starts: starts.collect(),
            parts,
            order: places.order().cloned(),
        }
    }

    /// Bytes of the values, the order not included.
    pub(crate) fn bytes(&self) -> usize {
        arrays_bytes(&self.parts)
    }

    /// The values at these positions, NULL for none, in the [roomy](crate::index::roomy_type) type.
    pub(crate) fn at(&self, positions: impl Iterator<Item = Option<i64>>) -> Result<ArrayRef> {
        let rows = positions.map(|position| {
            let position = usize::try_from(position?).ok()?;
            Some(match &self.order {
                None => position,
                Some(order) => order[position] as usize,
            })
        });
        if let [whole] = self.parts.as_slice() {
            let rows: UInt64Array = rows.map(|row| row.map(|row| row as u64)).collect();
            return with_room(&take(whole, &rows, None)?);
        }
        let places = rows.map(|row| {
            row.map(|row| {
                let part = self.starts.partition_point(|start| *start <= row) - 1;
                (part, row - self.starts[part])
            })
        });
        let parts: Vec<&dyn Array> = self.parts.iter().map(AsRef::as_ref).collect();
        select(&parts, &places.collect::<Vec<_>>())
    }
}

/// Whether these are dictionaries that have more values together than there are keys.
fn lack_keys(arrays: &[ArrayRef], data_type: &DataType) -> bool {
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
    fn values_in_parts_are_those_of_the_whole() {
        let text = |i: usize| (!i.is_multiple_of(4)).then(|| format!("value {i}"));
        let chunks: Vec<ArrayRef> = [0..5, 5..6, 6..6, 6..12]
            .into_iter()
            .map(|rows| Arc::new(rows.map(text).collect::<StringArray>()) as ArrayRef)
            .collect();
        // The rows but for two, backwards.
        let order = (0..12).rev().filter(|row| ![3, 8].contains(row));
        let moved = RowPermutation::of_order(order.collect(), 12).unwrap();
        for places in [RowPermutation::as_they_came(12), moved] {
            let whole = Values::of(&chunks, &DataType::Utf8, &places).unwrap();
            assert_eq!(whole.parts.len(), 1);
            let parts = Values::new(chunks.clone(), &places);
            let order = places.order();
            let len = i64::try_from(places.len()).unwrap();
            let positions = || (0..len).map(Some).chain([None, Some(2)]);
            let expected = positions().map(|position| {
                let position = usize::try_from(position?).unwrap();
                text(order.map_or(position, |order| order[position] as usize))
            });
            let expected: ArrayRef = Arc::new(expected.collect::<StringArray>());
            assert_eq!(&whole.at(positions()).unwrap(), &expected);
            assert_eq!(&parts.at(positions()).unwrap(), &expected);
        }
    }
}
