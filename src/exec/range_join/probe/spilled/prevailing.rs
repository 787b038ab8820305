//! The prevailing rows of windows over a spilled build side: any run may have the last row at or before a window's
//! lower bound.
//!
//! Each run offers its last such row. The one with the greatest key wins, and after the last run its aggregates are
//! merged with those of the window, unless the row is in the window anyway.

use arrow::array::{Array, ArrayRef, UInt32Array};
use datafusion::common::{Result, internal_err};

use crate::common::array_bytes::{arrays_bytes, compact};
use crate::common::dictionaries::select;
use crate::exec::range_join::probe::prevailing::Windows;
use crate::exec::range_join::probe::spilled::merge::{MergePlan, PartialAggregates};
use crate::exec::range_join::spill::key_extent::KeyOrder;
use crate::exec::range_join::spill::row_position::RowPosition;

/// The prevailing rows of some probe rows among the runs so far.
#[derive(Debug)]
pub(crate) struct PrevailingSoFar {
    rows: Vec<Option<PrevailingRow>>,
    /// The order of range keys, once there are any.
    key_order: Option<KeyOrder>,
    /// The partial aggregates over each row; empty before the first one.
    columns: Vec<ArrayRef>,
}

#[derive(Debug)]
struct PrevailingRow {
    key: Box<[u8]>,
    /// The position of the part of a run that it is in.
    found_in: RowPosition,
    is_in_window: bool,
}

impl PrevailingSoFar {
    /// Of `rows` probe rows, before the first run.
    pub(crate) fn new(rows: usize) -> Self {
        Self {
            rows: std::iter::repeat_with(|| None).take(rows).collect(),
            key_order: None,
            columns: vec![],
        }
    }

    /// Looks at the rows that a part of a run offers to the probe rows `selected`, or to all. `partials` has their
    /// aggregates, and their keys as the last column.
    pub(crate) fn offer(
        &mut self,
        found_in: RowPosition,
        selected: Option<&UInt32Array>,
        windows: &Windows,
        mut partials: Vec<ArrayRef>,
    ) -> Result<()> {
        let Some(keys) = partials.pop() else {
            return internal_err!("a spill run has not returned its prevailing keys");
        };
        let key_order = match &self.key_order {
            Some(key_order) => key_order,
            None => self.key_order.insert(KeyOrder::try_new(keys.data_type())?),
        };
        let keys = key_order.encode(&keys)?;
        let is_first = self.columns.is_empty();
        let mut chosen: Vec<Option<(usize, usize)>> = (0..self.rows.len())
            .map(|row| (!is_first && self.rows[row].is_some()).then_some((0, row)))
            .collect();
        let ranges = windows.prevailing.iter().zip(windows.rows.iter());
        for (i, ((position, last), (start, end))) in ranges.enumerate() {
            if position > last {
                continue;
            }
            let row = selected.map_or(i, |rows| rows.value(i) as usize);
            let offered = keys.row(i);
            let wins = self.rows[row]
                .as_ref()
                .is_none_or(|known| (offered.data(), found_in) > (&*known.key, known.found_in));
            if wins {
                self.rows[row] = Some(PrevailingRow {
                    key: offered.data().into(),
                    found_in,
                    is_in_window: start <= position && position <= end,
                });
                chosen[row] = Some((usize::from(!is_first), i));
            }
        }
        let columns = partials.iter().enumerate().map(|(i, new)| {
            let old = self.columns.get(i);
            let both: Vec<&dyn Array> = old.into_iter().chain([new]).map(AsRef::as_ref).collect();
            Ok(compact(&select(&both, &chosen)?))
        });
        self.columns = columns.collect::<Result<_>>()?;
        Ok(())
    }

    /// After the last run: merges the aggregates over the prevailing rows that are in no window into `aggregates`.
    pub(crate) fn merge_into(
        self,
        plan: &MergePlan,
        aggregates: &mut PartialAggregates,
    ) -> Result<()> {
        let rows = self.rows.iter();
        let counts = rows.map(|row| row.as_ref().is_some_and(|row| !row.is_in_window));
        // Its key decides before its position would.
        aggregates.merge(plan, RowPosition::default(), None, counts, self.columns)
    }

    /// About how many bytes this takes.
    pub(crate) fn bytes(&self) -> usize {
        let keys = self.rows.iter().flatten().map(|row| row.key.len());
        let rows = self.rows.len() * size_of::<Option<PrevailingRow>>();
        rows + keys.sum::<usize>() + arrays_bytes(&self.columns)
    }
}
