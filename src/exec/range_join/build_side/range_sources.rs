//! Ranges of sorted rows as the values of a column, from which the aggregates of groups of ranges are computed later.
//!
//! The ranges leave a range join and go through GROUP BY, which collects those of a group. Rows are numbered within a
//! build side, so each range has the number of what aggregates it, in a list that the range join shares with the
//! operator above GROUP BY.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use arrow::array::{Array, ArrayRef, AsArray, ListArray, StructArray, UInt32Array};
use arrow::compute::interleave;
use arrow::datatypes::{ArrowNativeType, DataType, UInt32Type};
use datafusion::common::{
    DataFusionError, Result, ScalarValue, internal_datafusion_err, internal_err,
};

use crate::exec::common::once_per_run::lock;
use crate::exec::range_join::build_side::accumulator::{RangeAccumulator, accumulated};
use datafusion_rmq_logical::logical_plan::accumulator_call::AccumulatorCall;
use rmq_arrow::common::range_groups::RangeGroups;
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::common::row_number::{row_number, rows_between};

/// What aggregates the ranges of a run, each with its number.
#[derive(Debug, Default)]
pub(crate) struct RangeSources(Mutex<Vec<Arc<RangeAccumulator>>>);

impl RangeSources {
    /// Ranges of rows that this accumulator aggregates, as a column.
    ///
    /// # Errors
    /// An internal error for ranges that are not of rows.
    pub(crate) fn column(
        &self,
        accumulator: &Arc<RangeAccumulator>,
        ranges: &Ranges,
    ) -> Result<ArrayRef> {
        let number = self.number_of(accumulator)?;
        let (mut starts, mut ends) = (vec![], vec![]);
        for range in ranges.iter() {
            let rows = rows_between(range)?;
            starts.push(rows.start);
            ends.push(rows.end);
        }
        let DataType::Struct(fields) = AccumulatorCall::range_type() else {
            return internal_err!("ranges of rows are structs");
        };
        let columns = [vec![number; starts.len()], starts, ends];
        let columns = columns.map(|column| Arc::new(UInt32Array::from(column)) as ArrayRef);
        Ok(Arc::new(StructArray::try_new(
            fields,
            columns.to_vec(),
            None,
        )?))
    }

    /// The number of an accumulator, which gets one with its first ranges.
    fn number_of(&self, accumulator: &Arc<RangeAccumulator>) -> Result<u32> {
        let mut known = lock(&self.0);
        let number = known
            .iter()
            .position(|known| Arc::ptr_eq(known, accumulator));
        let number = number.unwrap_or_else(|| {
            known.push(Arc::clone(accumulator));
            known.len() - 1
        });
        row_number(number)
    }

    /// The aggregate of each list of ranges, and `of_none` of those without rows. Of ranges of several build sides all
    /// rows are read. Builds order statistics if the ranges justify it, and so may block. Calls `check` between ranges
    /// whose rows are read.
    ///
    /// # Errors
    /// An internal error for ranges of another run. Those of the accumulators.
    pub(crate) fn aggregate(
        &self,
        lists: &ArrayRef,
        of_none: &ScalarValue,
        check: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<ArrayRef> {
        let sources = lock(&self.0).clone();
        let mut groups = vec![RangeGroups::default(); sources.len()];
        let mut values_of_several = vec![];
        // Of each list, the number of the array that has its value, and the position there.
        let mut places = Vec::with_capacity(lists.len());
        let collected = CollectedRanges::new(lists)?;
        for list in 0..lists.len() {
            let ranges = collected.of_list(list);
            let mut numbers = ranges.clone().map(|(number, _)| number);
            places.push(match numbers.next() {
                None => (0, 0),
                Some(number) if numbers.all(|other| other == number) => {
                    let of_source = groups.get_mut(number).ok_or_else(of_another_run)?;
                    of_source.push(ranges.map(|(_, rows)| rows));
                    (2 + number, of_source.len() - 1)
                }
                Some(_) => {
                    let ranges = ranges.map(|(number, rows)| {
                        let source = sources.get(number).ok_or_else(of_another_run)?;
                        Ok((source.as_ref(), rows))
                    });
                    let ranges = ranges.collect::<Result<Vec<_>>>()?;
                    values_of_several.push(accumulated(&ranges, check)?);
                    (1, values_of_several.len() - 1)
                }
            });
        }
        let mut values = vec![of_none.to_array()?];
        let no_values = values[0].slice(0, 0);
        values.push(match values_of_several.as_slice() {
            [] => Arc::clone(&no_values),
            _ => ScalarValue::iter_to_array(values_of_several)?,
        });
        for (source, groups) in sources.iter().zip(groups) {
            values.push(match groups.len() {
                0 => Arc::clone(&no_values),
                _ => source.evaluate_groups(&groups, check)?,
            });
        }
        let values: Vec<&dyn Array> = values.iter().map(AsRef::as_ref).collect();
        Ok(interleave(&values, &places)?)
    }
}

/// A column of lists of ranges.
struct CollectedRanges<'a> {
    lists: &'a ListArray,
    numbers: &'a UInt32Array,
    starts: &'a UInt32Array,
    ends: &'a UInt32Array,
}

impl<'a> CollectedRanges<'a> {
    fn new(lists: &'a ArrayRef) -> Result<Self> {
        let found = lists.as_list_opt::<i32>().and_then(|lists| {
            let columns = lists.values().as_struct_opt()?.columns();
            let column = |i: usize| columns.get(i)?.as_primitive_opt::<UInt32Type>();
            Some(Self {
                lists,
                numbers: column(0)?,
                starts: column(1)?,
                ends: column(2)?,
            })
        });
        found.ok_or_else(|| internal_datafusion_err!("a {} has no ranges", lists.data_type()))
    }

    /// The ranges of a list that have rows, each with the number of what aggregates it.
    fn of_list(&self, list: usize) -> impl Iterator<Item = (usize, Range<u32>)> + Clone {
        let offsets = self.lists.value_offsets();
        let entries = if self.lists.is_null(list) {
            0..0
        } else {
            offsets[list].as_usize()..offsets[list + 1].as_usize()
        };
        entries.filter_map(|entry| {
            let rows = self.starts.value(entry)..self.ends.value(entry);
            (!rows.is_empty()).then(|| (self.numbers.value(entry) as usize, rows))
        })
    }
}

fn of_another_run() -> DataFusionError {
    internal_datafusion_err!("a group has a range of rows that this run does not know")
}
