//! Threshold searches of a batch of ranges, as an engine's index takes them.

use arrow::array::{Array, ArrayRef, Int64Array, new_empty_array};
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::compute::concat;
use datafusion_common::Result;

use crate::common::ranges::Ranges;
use crate::index::any_width::{AnyWidth, map_width};
use crate::index::decoder::{Decoder, buffer};
use crate::index::threshold::{AnyKeys, ThresholdTest, threshold_keys};
use rmq_engine::{Crossings, EngineError, Key, Outputs, RangeEnd, RangeIndex};

/// Threshold searches of a batch: ranges, empty where no row can qualify, and the keys of thresholds.
#[derive(Debug)]
pub struct ThresholdQueries {
    /// The first position of each range.
    pub left: Vec<i64>,
    /// The last position of each range, inclusive.
    pub right: Vec<i64>,
    /// The key of each threshold.
    pub keys: AnyKeys,
}

impl ThresholdQueries {
    /// The searches of one or several record batches' ranges, for a column whose keys this decoder reads.
    ///
    /// # Errors
    /// An execution error for thresholds that can't be compared with the column.
    pub fn try_new(
        ranges: &[Ranges],
        thresholds: &[ArrayRef],
        decoder: &Decoder,
        test: ThresholdTest,
    ) -> Result<Self> {
        let thresholds: Vec<&dyn Array> = thresholds.iter().map(AsRef::as_ref).collect();
        let thresholds = match thresholds.as_slice() {
            [] => new_empty_array(decoder.value_type()),
            many => concat(many)?,
        };
        let found = threshold_keys(&thresholds, decoder.value_type(), decoder.distinct(), test)?;
        let mut left: Vec<i64> = ranges.iter().flat_map(Ranges::left).copied().collect();
        let mut right: Vec<i64> = ranges.iter().flat_map(Ranges::right).copied().collect();
        if let Some(valid) = found.valid {
            for ((left, right), valid) in left.iter_mut().zip(&mut right).zip(&valid) {
                if !valid {
                    (*left, *right) = (0, -1);
                }
            }
        }
        Ok(Self {
            left,
            right,
            keys: found.keys,
        })
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.left.len()
    }

    /// The searches with these numbers, each only from the first given position to the second.
    pub fn select(&self, searches: &[(usize, (i64, i64))]) -> Self {
        let numbers = || searches.iter().map(|(number, _)| *number);
        let within = |(number, (left, right)): &(usize, (i64, i64))| {
            (
                *left.max(&self.left[*number]),
                *right.min(&self.right[*number]),
            )
        };
        let (left, right) = searches.iter().map(within).unzip();
        Self {
            left,
            right,
            keys: map_width!(&self.keys, keys => numbers().map(|n| keys[n]).collect()),
        }
    }

    /// Finds the first or last row of each range: its position, NULL if there is none. `keys` are those of the
    /// searches.
    ///
    /// # Errors
    /// The engine's.
    pub fn find<K: Key>(
        &self,
        index: &dyn RangeIndex<K>,
        keys: &[K],
        end: RangeEnd,
    ) -> Result<Int64Array, EngineError> {
        let n = self.left.len();
        let mut outputs = index.outputs(n, false, true);
        let Outputs {
            positions: Some(positions),
            valid,
            ..
        } = &mut outputs
        else {
            return Err(EngineError::NoPositions);
        };
        let out = Crossings { positions, valid };
        index.crossings(&self.left, &self.right, keys, end, out)?;
        let valid = NullBuffer::new(BooleanBuffer::new(buffer(outputs.valid), 0, n));
        let positions = outputs.positions.ok_or(EngineError::NoPositions)?;
        let positions = ScalarBuffer::new(buffer(positions), 0, n);
        Ok(Int64Array::new(positions, Some(valid)))
    }
}
