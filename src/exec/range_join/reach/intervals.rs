//! Disjoint intervals of a range key that cover some windows.

use std::cmp::Ordering;

use arrow::array::{Array, ArrayRef, BooleanArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::kernels::cmp::{gt_eq, lt_eq};
use arrow::compute::{and, filter, is_not_null};
use arrow::datatypes::DataType;
use arrow::row::Rows;
use datafusion::common::{Result, ScalarValue, exec_err};

use crate::exec::range_join::spill::key_extent::{KeyOrder, comparable};
use rmq_engine::Comparison;

/// Windows are merged into at most this many intervals once all are known. More would cost a scan more than they save.
const MAX_INTERVALS: usize = 128;

/// The most intervals while windows are added, so that these are not merged at each batch.
const MAX_COLLECTED: usize = 32 * MAX_INTERVALS;

/// One end of an interval.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// The key in its order, as [`KeyOrder`] encodes it.
    bytes: Box<[u8]>,
    pub(crate) value: ScalarValue,
}

/// Keys from `low` to `high`, both included; an end that is `None` is that of all keys.
#[derive(Debug, Clone)]
pub(crate) struct Interval {
    pub(crate) low: Option<End>,
    pub(crate) high: Option<End>,
}

/// The values of one bound, one for each row of a batch.
struct BoundValues {
    is_lower: bool,
    values: ArrayRef,
    rows: Rows,
    nulls: Option<NullBuffer>,
}

/// Disjoint intervals in ascending order.
#[derive(Debug)]
pub(crate) struct Intervals {
    order: KeyOrder,
    data_type: DataType,
    all: Vec<Interval>,
}

impl Intervals {
    /// No intervals of keys of this type.
    ///
    /// # Errors
    /// If the type has no order.
    pub(crate) fn of_type(data_type: &DataType) -> Result<Self> {
        Ok(Self {
            order: KeyOrder::try_new(data_type)?,
            data_type: data_type.clone(),
            all: vec![],
        })
    }

    /// Adds the windows of a batch, given by the values of all bounds. A row with a bound that is NULL has no window.
    /// Returns for each row whether it has one.
    ///
    /// # Errors
    /// If a bound is of another type than the keys.
    pub(crate) fn add(&mut self, bounds: &[(Comparison, ArrayRef)]) -> Result<Vec<bool>> {
        let rows = bounds.first().map_or(0, |(_, values)| values.len());
        let bounds = bounds.iter().map(|(comparison, values)| {
            let values = comparable(values)?;
            if *values.data_type() != self.data_type {
                return exec_err!(
                    "a bound of type {} is compared with keys of type {}",
                    values.data_type(),
                    self.data_type
                );
            }
            Ok(BoundValues {
                is_lower: comparison.is_lower(),
                rows: self.order.encode(&values)?,
                nulls: values.logical_nulls(),
                values,
            })
        });
        let bounds: Vec<_> = bounds.collect::<Result<_>>()?;
        let windows: Vec<_> = (0..rows).map(|row| Window::of(&bounds, row)).collect();
        let has_window = windows.iter().map(Option::is_some).collect();
        let mut windows: Vec<_> = windows.into_iter().flatten().collect();
        windows.sort_unstable_by(|a, b| a.low_bytes(&bounds).cmp(&b.low_bytes(&bounds)));
        // The windows of a batch that overlap become one before their ends are copied.
        let mut merged: Vec<Window> = vec![];
        for window in windows {
            match merged.last_mut() {
                Some(last) if last.reaches(&window, &bounds) => last.extend_to(window, &bounds),
                _ => merged.push(window),
            }
        }
        for window in merged {
            self.all.push(window.interval(&bounds)?);
        }
        self.merge();
        if self.all.len() > MAX_COLLECTED {
            self.close_gaps(MAX_COLLECTED / 2);
        }
        Ok(has_window)
    }

    /// The intervals, the smallest gaps between which are closed if there are many.
    pub(crate) fn finish(mut self) -> Self {
        if self.all.len() > MAX_INTERVALS {
            self.close_gaps(MAX_INTERVALS);
        }
        self
    }

    /// All of them as one, with the gaps between them.
    pub(crate) fn hull(mut self) -> Self {
        self.close_gaps(1);
        self
    }

    pub(crate) fn all(&self) -> &[Interval] {
        &self.all
    }

    /// Whether each of these keys is in an interval: true, or else false or NULL.
    ///
    /// # Errors
    /// If the keys are of another type.
    pub(crate) fn contain(&self, keys: &ArrayRef) -> Result<BooleanArray> {
        let keys = comparable(keys)?;
        // Most keys of a scan are outside of all intervals, or there is one: both are told by comparing whole arrays.
        let within = self.within_extent(&keys)?;
        if self.all.len() < 2 || within.true_count() == 0 {
            return Ok(within);
        }
        let rows = self.order.encode(&filter(&keys, &within)?)?;
        let (mut next, mut last) = (0, 0);
        let contained = within.iter().map(|is_within| {
            if is_within != Some(true) {
                return false;
            }
            let key = rows.row(next).data();
            next += 1;
            // Keys often come in their order, so the next one is often in the same interval.
            let is_in = |interval: &Interval| interval.compare(key) == Ordering::Equal;
            if self.all.get(last).is_some_and(is_in) {
                return true;
            }
            let found = self.all.binary_search_by(|interval| interval.compare(key));
            last = found.unwrap_or(last);
            found.is_ok()
        });
        Ok(contained.map(Some).collect())
    }

    /// Whether each of these keys is between the first and the last end.
    fn within_extent(&self, keys: &ArrayRef) -> Result<BooleanArray> {
        let (Some(first), Some(last)) = (self.all.first(), self.all.last()) else {
            return Ok(BooleanArray::new(
                BooleanBuffer::new_unset(keys.len()),
                None,
            ));
        };
        let above = match &first.low {
            Some(low) => gt_eq(keys, &low.value.to_scalar()?)?,
            None => is_not_null(keys)?,
        };
        Ok(match &last.high {
            Some(high) => and(&above, &lt_eq(keys, &high.value.to_scalar()?)?)?,
            None => above,
        })
    }

    /// The part of the keys from `min` to `max` that the intervals cover, if they were evenly distributed; `None` if
    /// that can't be told.
    pub(crate) fn share(&self, min: &ScalarValue, max: &ScalarValue) -> Option<f64> {
        let (min, max) = (number(min)?, number(max)?);
        let covered = self.all.iter().map(|interval| {
            let low = interval.low.as_ref();
            let low = low.map_or(Some(min), |low| number(&low.value))?.max(min);
            let high = interval.high.as_ref();
            let high = high.map_or(Some(max), |high| number(&high.value))?.min(max);
            Some((high - low).max(0.0))
        });
        let covered: f64 = covered.sum::<Option<f64>>()?;
        let share = covered / (max - min);
        // Both ends of a column of one value are the same.
        Some(if share.is_nan() { 1.0 } else { share })
    }

    /// Sorts the intervals and merges those that overlap.
    fn merge(&mut self) {
        let low = |interval: &Interval| interval.low.as_ref().map(|end| end.bytes.clone());
        self.all.sort_by_cached_key(low);
        let mut merged: Vec<Interval> = Vec::with_capacity(self.all.len());
        for interval in std::mem::take(&mut self.all) {
            match merged.last_mut() {
                Some(last) if last.reaches(&interval) => last.extend_to(interval),
                _ => merged.push(interval),
            }
        }
        self.all = merged;
    }

    /// Closes the smallest gaps, until there are at most `most` intervals.
    fn close_gaps(&mut self, most: usize) {
        let pairs = self.all.windows(2);
        let gaps = pairs.map(|pair| match (&pair[0].high, &pair[1].low) {
            (Some(high), Some(low)) => number(&low.value).zip(number(&high.value)),
            _ => None,
        });
        // Of keys that are no numbers, any gap may be the smallest.
        let gaps = gaps.map(|gap| gap.map_or(0.0, |(low, high)| low - high));
        let mut gaps: Vec<_> = gaps.enumerate().collect();
        gaps.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        gaps.truncate(self.all.len().saturating_sub(most));
        let mut closed = vec![false; self.all.len()];
        for (gap, _) in gaps {
            closed[gap + 1] = true;
        }
        let mut merged: Vec<Interval> = Vec::with_capacity(most);
        for (interval, is_closed) in std::mem::take(&mut self.all).into_iter().zip(closed) {
            match merged.last_mut() {
                Some(last) if is_closed => last.high = interval.high,
                _ => merged.push(interval),
            }
        }
        self.all = merged;
    }
}

/// The window of a row, as the bounds that are its ends and the row.
#[derive(Clone, Copy)]
struct Window {
    low: Option<(usize, usize)>,
    high: Option<(usize, usize)>,
}

impl Window {
    /// `None` if no key is in the window.
    fn of(bounds: &[BoundValues], row: usize) -> Option<Self> {
        let bytes = |bound: usize| bounds[bound].rows.row(row).data();
        let (mut low, mut high): (Option<usize>, Option<usize>) = (None, None);
        for (bound, values) in bounds.iter().enumerate() {
            if values
                .nulls
                .as_ref()
                .is_some_and(|nulls| nulls.is_null(row))
            {
                return None;
            }
            let (end, is_closer) = if values.is_lower {
                let is_closer = low.is_none_or(|low| bytes(bound) > bytes(low));
                (&mut low, is_closer)
            } else {
                let is_closer = high.is_none_or(|high| bytes(bound) < bytes(high));
                (&mut high, is_closer)
            };
            if is_closer {
                *end = Some(bound);
            }
        }
        if low
            .zip(high)
            .is_some_and(|(low, high)| bytes(low) > bytes(high))
        {
            return None;
        }
        Some(Self {
            low: low.map(|bound| (bound, row)),
            high: high.map(|bound| (bound, row)),
        })
    }

    fn low_bytes<'a>(&self, bounds: &'a [BoundValues]) -> Option<&'a [u8]> {
        let (bound, row) = self.low?;
        Some(bounds[bound].rows.row(row).data())
    }

    fn high_bytes<'a>(&self, bounds: &'a [BoundValues]) -> Option<&'a [u8]> {
        let (bound, row) = self.high?;
        Some(bounds[bound].rows.row(row).data())
    }

    /// Whether `next`, whose low end is not below this one's, begins within this window.
    fn reaches(&self, next: &Self, bounds: &[BoundValues]) -> bool {
        match (self.high_bytes(bounds), next.low_bytes(bounds)) {
            (Some(high), Some(low)) => low <= high,
            _ => true,
        }
    }

    fn extend_to(&mut self, next: Self, bounds: &[BoundValues]) {
        match (self.high_bytes(bounds), next.high_bytes(bounds)) {
            (Some(high), Some(next_high)) if next_high <= high => {}
            (None, _) => {}
            _ => self.high = next.high,
        }
    }

    fn interval(&self, bounds: &[BoundValues]) -> Result<Interval> {
        let end = |end: Option<(usize, usize)>| {
            let end = end.map(|(bound, row)| -> Result<End> {
                Ok(End {
                    bytes: bounds[bound].rows.row(row).data().into(),
                    value: ScalarValue::try_from_array(&bounds[bound].values, row)?,
                })
            });
            end.transpose()
        };
        Ok(Interval {
            low: end(self.low)?,
            high: end(self.high)?,
        })
    }
}

impl Interval {
    /// Where the interval is, seen from a key: `Greater` if it begins after it, `Equal` if it has it.
    fn compare(&self, key: &[u8]) -> Ordering {
        if self.low.as_ref().is_some_and(|low| *low.bytes > *key) {
            Ordering::Greater
        } else if self.high.as_ref().is_some_and(|high| *high.bytes < *key) {
            Ordering::Less
        } else {
            Ordering::Equal
        }
    }

    /// Whether `next`, whose low end is not below this one's, begins within this interval.
    fn reaches(&self, next: &Self) -> bool {
        match (&self.high, &next.low) {
            (Some(high), Some(low)) => low.bytes <= high.bytes,
            _ => true,
        }
    }

    fn extend_to(&mut self, next: Self) {
        match (&self.high, &next.high) {
            (Some(high), Some(next_high)) if next_high.bytes <= high.bytes => {}
            (None, _) => {}
            _ => self.high = next.high,
        }
    }
}

/// The position of a value on a line, about; `None` for a value that is no number and no time.
pub(crate) fn number(value: &ScalarValue) -> Option<f64> {
    // Arrow casts no time to a float.
    let value = match value.data_type() {
        DataType::Date32 | DataType::Time32(_) => value.cast_to(&DataType::Int32).ok()?,
        DataType::Date64
        | DataType::Time64(_)
        | DataType::Timestamp(..)
        | DataType::Duration(_) => value.cast_to(&DataType::Int64).ok()?,
        data_type if data_type.is_numeric() => value.clone(),
        _ => return None,
    };
    match value.cast_to(&DataType::Float64).ok()? {
        ScalarValue::Float64(number) => number,
        _ => None,
    }
}
