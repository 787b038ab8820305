//! Sorted keys of a build side on devices, and the ranges of keys that are found there.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};

use crate::common::ranges::Ranges;
use crate::sorted::candidates::CandidateRanges;
use crate::sorted::order_keys::{OrderKeys, encoded};
use crate::sorted::sorted_rows::Comparison;
use rmq_engine::{Column, EngineError, Key, KeyBound, KeyRanges, KeySearch};

/// Sorted keys on devices.
#[derive(Debug)]
pub(crate) enum DeviceKeys {
    W32(Arc<dyn KeySearch<u32>>),
    W64(Arc<dyn KeySearch<u64>>),
    W128(Arc<dyn KeySearch<u128>>),
}

/// Ranges of keys, gathered from batches, to be found at once: with at most one bound a side.
#[derive(Debug)]
pub(crate) struct KeysAsked {
    /// Where the rows of each segment begin and end.
    begin: Vec<u32>,
    end: Vec<u32>,
    /// Whether a segment is other than all rows.
    segmented: bool,
    low: Option<(OrderKeys, bool)>,
    high: Option<(OrderKeys, bool)>,
}

impl KeysAsked {
    /// None yet, of keys of this type; `None` where a side has several bounds.
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
            let keys = OrderKeys::try_new(data_type)?;
            if side.replace((keys, !comparison.is_strict())).is_some() {
                return Ok(None);
            }
        }
        Ok(Some(Self {
            begin: vec![],
            end: vec![],
            segmented: false,
            low,
            high,
        }))
    }

    /// Adds the bounds of a batch, in the order of the comparisons, within these segments.
    pub(crate) fn add(
        &mut self,
        mut segments: CandidateRanges,
        bounds: &[(Comparison, ArrayRef)],
    ) -> Result<()> {
        for (comparison, bounds) in bounds {
            let side = if comparison.is_lower() {
                &mut self.low
            } else {
                &mut self.high
            };
            let Some((keys, _)) = side else {
                return exec_err!("a range join has a bound more than it was planned with");
            };
            keys.append(bounds)?;
            if let Some(nulls) = bounds.logical_nulls().filter(|n| n.null_count() > 0) {
                self.segmented = true;
                segments.leave_out(&nulls);
            }
        }
        self.segmented |= segments.are_of_groups();
        segments.append_to(&mut self.begin, &mut self.end);
        Ok(())
    }

    /// How many ranges there are.
    fn len(&self) -> usize {
        self.begin.len()
    }
}

impl DeviceKeys {
    /// The positions of the ranges.
    ///
    /// # Errors
    /// What devices fail with.
    pub(crate) fn find(&self, asked: &KeysAsked) -> Result<Ranges, EngineError> {
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

fn find<K: Key>(
    search: &dyn KeySearch<K>,
    asked: &KeysAsked,
    columns: impl Fn(&OrderKeys) -> Option<&Vec<Column<K>>>,
) -> Result<Ranges, EngineError> {
    // Of another width there are none: then the lengths differ, which is an error.
    let keys_of = |side: &Option<(OrderKeys, bool)>| {
        let keys = side.as_ref().and_then(|(keys, _)| columns(keys));
        keys.map(|columns| encoded(columns)).unwrap_or_default()
    };
    let (low, high) = (keys_of(&asked.low), keys_of(&asked.high));
    let inside = |side: &Option<(OrderKeys, bool)>| side.as_ref().map(|(_, inside)| *inside);
    let ranges = KeyRanges {
        segments: asked.segmented.then_some((&*asked.begin, &*asked.end)),
        low: inside(&asked.low).map(|inside| KeyBound { keys: &low, inside }),
        high: inside(&asked.high).map(|inside| KeyBound {
            keys: &high,
            inside,
        }),
    };
    let (mut left, mut right) = (vec![0; asked.len()], vec![0; asked.len()]);
    search.search(ranges, &mut left, &mut right)?;
    Ok(Ranges::new(left, right))
}
