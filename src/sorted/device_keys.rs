//! Searches on devices among the sorted keys of a build side.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};

use crate::common::ranges::Ranges;
use crate::sorted::id_table::number;
use crate::sorted::order_keys::{OrderKeys, encoded};
use rmq_engine::{
    CandidateRanges, Column, Comparison, EngineError, Key, KeyBound, KeyRanges, KeySearch,
};

/// Sorted keys on devices, by key width.
#[derive(Debug)]
pub(crate) enum DeviceKeys {
    W32(Arc<dyn KeySearch<u32>>),
    W64(Arc<dyn KeySearch<u64>>),
    W128(Arc<dyn KeySearch<u128>>),
}

/// Ranges of keys, gathered from batches to be searched at once. Each side has at most one bound.
#[derive(Debug)]
pub(crate) struct KeyRangeBatch {
    /// The first position of each row's segment.
    starts: Vec<u32>,
    /// The end of each row's segment, exclusive.
    ends: Vec<u32>,
    /// Whether a segment may be other than all positions.
    segmented: bool,
    low: Option<SideBounds>,
    high: Option<SideBounds>,
}

/// The bounds of one side, one per row.
#[derive(Debug)]
struct SideBounds {
    keys: OrderKeys,
    /// Whether a key that equals the bound is in the range.
    inclusive: bool,
}

impl KeyRangeBatch {
    /// Returns an empty list for keys of this type; `None` if a side has several bounds.
    ///
    /// # Errors
    /// An execution error for a type without an order.
    pub(crate) fn try_new(
        data_type: &DataType,
        bounds: impl IntoIterator<Item = Comparison>,
    ) -> Result<Option<Self>> {
        let (mut low, mut high) = (None, None);
        for comparison in bounds {
            let side = if comparison.is_lower() {
                &mut low
            } else {
                &mut high
            };
            let bounds = SideBounds {
                keys: OrderKeys::try_new(data_type)?,
                inclusive: !comparison.is_strict(),
            };
            if side.replace(bounds).is_some() {
                return Ok(None);
            }
        }
        Ok(Some(Self {
            starts: vec![],
            ends: vec![],
            segmented: false,
            low,
            high,
        }))
    }

    /// Adds the bounds of a batch, in the order of the comparisons, within these candidates. A row with a NULL bound
    /// has no range.
    ///
    /// # Errors
    /// An execution error if a bound was not announced to [`KeyRangeBatch::try_new`].
    pub(crate) fn add(
        &mut self,
        mut candidates: CandidateRanges,
        bounds: &[(Comparison, ArrayRef)],
    ) -> Result<()> {
        for (comparison, bounds) in bounds {
            let side = if comparison.is_lower() {
                &mut self.low
            } else {
                &mut self.high
            };
            let Some(side) = side else {
                return exec_err!("a range join has a bound more than it was planned with");
            };
            side.keys.append(bounds)?;
            if let Some(nulls) = bounds.logical_nulls().filter(|n| n.null_count() > 0) {
                self.segmented = true;
                candidates.retain_rows(&nulls);
            }
        }
        self.segmented |= candidates.has_groups();
        let positions = |ends: &[usize]| ends.iter().map(|end| number(*end)).collect::<Vec<_>>();
        self.starts.extend(positions(candidates.starts()));
        self.ends.extend(positions(candidates.ends()));
        Ok(())
    }

    /// Number of ranges.
    fn len(&self) -> usize {
        self.starts.len()
    }
}

impl DeviceKeys {
    /// Returns the positions whose keys are in the ranges.
    ///
    /// # Errors
    /// Errors of devices.
    pub(crate) fn find(&self, asked: &KeyRangeBatch) -> Result<Ranges, EngineError> {
        match self {
            Self::W32(keys) => find(&**keys, asked, |keys| match keys {
                OrderKeys::W32(columns) => Some(columns),
                _ => None,
            }),
            Self::W64(keys) => find(&**keys, asked, |keys| match keys {
                OrderKeys::W64(columns) => Some(columns),
                _ => None,
            }),
            Self::W128(keys) => find(&**keys, asked, |keys| match keys {
                OrderKeys::W128(columns) => Some(columns),
                _ => None,
            }),
        }
    }
}

/// Searches with bounds of one width; `columns` returns them if they have it.
fn find<K: Key>(
    search: &dyn KeySearch<K>,
    asked: &KeyRangeBatch,
    columns: impl Fn(&OrderKeys) -> Option<&Vec<Column<K>>>,
) -> Result<Ranges, EngineError> {
    // Bounds of another width give no keys, which is an error because the lengths differ.
    let keys_of = |side: &Option<SideBounds>| {
        let keys = side.as_ref().and_then(|side| columns(&side.keys));
        keys.map(|columns| encoded(columns)).unwrap_or_default()
    };
    let (low, high) = (keys_of(&asked.low), keys_of(&asked.high));
    let bound = |side: &Option<SideBounds>, keys| {
        let side = side.as_ref()?;
        let inside = side.inclusive;
        Some(KeyBound { keys, inside })
    };
    let ranges = KeyRanges {
        segments: asked.segmented.then_some((&*asked.starts, &*asked.ends)),
        low: bound(&asked.low, &low),
        high: bound(&asked.high, &high),
    };
    let (mut left, mut right) = (vec![0; asked.len()], vec![0; asked.len()]);
    search.search(ranges, &mut left, &mut right)?;
    Ok(Ranges::new(left, right))
}
