//! Disjoint intervals of a range key that cover some windows.

use std::sync::OnceLock;

use arrow::array::{Array, ArrayRef, BooleanArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;
use arrow::row::Rows;
use datafusion::common::{Result, ScalarValue, exec_err};

use crate::exec::range_join::reach::whole_keys::number as whole_number;
use crate::exec::range_join::spill::key_extent::{KeyOrder, comparable};
use rmq_arrow::common::ordered_type::value_type;
use rmq_arrow::sorted::order_keys::{KeyIntervals, OrderKeys};
use rmq_engine::Comparison;

/// A scan is told at most this many intervals, as each is compared with the statistics of all files, row groups and
/// pages, unless these cover much more than [`MAX_FINE_INTERVALS`] do.
pub(crate) const MAX_SCAN_INTERVALS: usize = 128;

/// Then it is told at most this many.
pub(crate) const MAX_FINE_INTERVALS: usize = 8 * MAX_SCAN_INTERVALS;

/// How many times as many keys are much more.
const MUCH_MORE: f64 = 1.5;

/// Windows are merged into at most this many intervals: rows are compared with more of them in little more time.
pub(crate) const MAX_INTERVALS: usize = 32 * MAX_SCAN_INTERVALS;

/// One end of an interval.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// The key in its order, as [`KeyOrder`] encodes it.
    bytes: Box<[u8]>,
    pub(crate) value: ScalarValue,
}

/// Keys from `low` to `high`, both included; an end that is `None` is that of all keys.
#[derive(Debug, Clone)]
pub(crate) struct Interval<E = End> {
    pub(crate) low: Option<E>,
    pub(crate) high: Option<E>,
}

/// The end of a window: the value of a bound in a row of a batch, and its bytes.
struct RowEnd<'a> {
    bytes: &'a [u8],
    bound: usize,
    row: usize,
}

/// An end as bytes whose order is that of keys.
pub(crate) trait AsKeyBytes {
    fn bytes(&self) -> &[u8];
}

impl AsKeyBytes for End {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsKeyBytes for RowEnd<'_> {
    fn bytes(&self) -> &[u8] {
        self.bytes
    }
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
    /// The same, once keys are compared with them.
    encoded: OnceLock<KeyIntervals>,
}

impl Intervals {
    /// No intervals of keys of this type.
    ///
    /// # Errors
    /// If the type has no order.
    pub(crate) fn of_type(data_type: &DataType) -> Result<Self> {
        Ok(Self {
            order: KeyOrder::try_new(data_type)?,
            data_type: value_type(data_type),
            all: vec![],
            encoded: OnceLock::new(),
        })
    }

    /// Disjoint intervals in ascending order, with both ends included; an end that is `None` is that of all keys.
    ///
    /// # Errors
    /// If the type has no order, or an end is of another type.
    pub(crate) fn of_disjoint(
        data_type: &DataType,
        ends: Vec<(Option<ScalarValue>, Option<ScalarValue>)>,
    ) -> Result<Self> {
        let mut intervals = Self::of_type(data_type)?;
        let encoded = |ends: Vec<Option<ScalarValue>>| -> Result<Vec<Option<End>>> {
            let values: Vec<ScalarValue> = ends.iter().flatten().cloned().collect();
            if values.is_empty() {
                return Ok(ends.into_iter().map(|_| None).collect());
            }
            let rows = intervals
                .order
                .encode(&ScalarValue::iter_to_array(values)?)?;
            let mut rows = rows.iter();
            let ends = ends.into_iter().map(|value| {
                // An end without a value has no row.
                let value = value?;
                let bytes = rows.next()?.data().into();
                Some(End { bytes, value })
            });
            Ok(ends.collect())
        };
        let (lows, highs) = ends.into_iter().unzip();
        let ends = encoded(lows)?.into_iter().zip(encoded(highs)?);
        intervals.all = ends.map(|(low, high)| Interval { low, high }).collect();
        Ok(intervals)
    }

    /// Adds the windows of a batch, given by the values of all bounds. A row with a bound that is NULL has no window.
    /// Returns for each row whether it has one.
    ///
    /// # Errors
    /// If a bound is of another type than the keys.
    pub(crate) fn add(&mut self, bounds: &[(Comparison, ArrayRef)]) -> Result<Vec<bool>> {
        let rows = bounds.first().map_or(0, |(_, values)| values.len());
        let bounds = bounds.iter().map(|(comparison, values)| {
            let values = comparable_with(values, &self.data_type)?;
            Ok(BoundValues {
                is_lower: comparison.is_lower(),
                rows: self.order.encode(&values)?,
                nulls: values.logical_nulls(),
                values,
            })
        });
        let bounds: Vec<_> = bounds.collect::<Result<_>>()?;
        let windows: Vec<_> = (0..rows)
            .map(|row| Interval::of_row(&bounds, row))
            .collect();
        let has_window = windows.iter().map(Option::is_some).collect();
        // The windows of a batch that overlap become one before their ends are copied.
        for window in Interval::merged(windows.into_iter().flatten().collect()) {
            self.all.push(window.copied(&bounds)?);
        }
        self.encoded.take();
        self.all = Interval::merged(std::mem::take(&mut self.all));
        if self.all.len() > MAX_INTERVALS {
            // To so few that the next batch does not exceed them at once.
            self.close_gaps(MAX_INTERVALS / 2);
        }
        Ok(has_window)
    }

    /// At most this many intervals. If there are more, the smallest gaps between them are closed.
    pub(crate) fn finish(mut self, most: usize) -> Self {
        if self.all.len() > most {
            self.close_gaps(most);
        }
        self
    }

    pub(crate) fn all(&self) -> &[Interval] {
        &self.all
    }

    /// Whether each of these keys is in an interval. NULL is in none.
    ///
    /// # Errors
    /// If the keys are of another type.
    pub(crate) fn contain(&self, keys: &ArrayRef) -> Result<BooleanArray> {
        let (keys, nulls) = OrderKeys::from_values(&comparable(keys)?)?;
        let within = keys.within(self.encoded()?)?;
        let within = match nulls {
            Some(nulls) => &within & nulls.inner(),
            None => within,
        };
        Ok(BooleanArray::new(within, None))
    }

    /// The intervals as keys are compared with them.
    fn encoded(&self) -> Result<&KeyIntervals> {
        if let Some(encoded) = self.encoded.get() {
            return Ok(encoded);
        }
        let ends = self.all.iter().map(Interval::ends);
        let encoded = KeyIntervals::try_new(&self.data_type, ends)?;
        Ok(self.encoded.get_or_init(|| encoded))
    }

    /// The part of the keys from `min` to `max` that the intervals cover, if they were evenly distributed; `None` if
    /// that can't be told. Gaps of less than the part `gap` of the keys count as covered.
    pub(crate) fn share(&self, min: &ScalarValue, max: &ScalarValue, gap: f64) -> Option<f64> {
        let (min, max) = (number(min)?, number(max)?);
        let (mut covered, mut end) = (0.0, None);
        for interval in &self.all {
            let low = interval.low.as_ref();
            let low = low.map_or(Some(min), |low| number(&low.value))?.max(min);
            let high = interval.high.as_ref();
            let high = high.map_or(Some(max), |high| number(&high.value))?.min(max);
            let from = end.filter(|end| low - end < gap * (max - min));
            covered += (high - from.unwrap_or(low)).max(0.0);
            end = Some(high);
        }
        let share = covered / (max - min);
        // Both ends of a column of one value are the same.
        Some(if share.is_nan() { 1.0 } else { share })
    }

    /// The intervals that a scan is told. One that compares each row with them is told few.
    pub(crate) fn for_scan(&self, compares_rows: bool) -> Vec<Interval> {
        let few = self.at_most(MAX_SCAN_INTERVALS);
        if compares_rows || self.all.len() <= MAX_SCAN_INTERVALS {
            return few;
        }
        let fine = self.at_most(MAX_FINE_INTERVALS);
        match (length(&few), length(&fine)) {
            (Some(of_few), Some(of_fine)) if of_few > MUCH_MORE * of_fine => fine,
            _ => few,
        }
    }

    /// Closes the smallest gaps, until there are at most `most` intervals.
    fn close_gaps(&mut self, most: usize) {
        self.encoded.take();
        let gaps = self.gaps();
        let all = std::mem::take(&mut self.all).into_iter();
        self.all = with_smallest_gaps(all, gaps, most, Interval::take_end);
    }

    /// At most `most` intervals that cover all of these: the smallest gaps between them are closed.
    pub(crate) fn at_most(&self, most: usize) -> Vec<Interval> {
        with_smallest_gaps(
            self.all.iter().cloned(),
            self.gaps(),
            most,
            Interval::take_end,
        )
    }

    /// About how many keys are between two intervals.
    fn gaps(&self) -> Vec<f64> {
        let pairs = self.all.windows(2);
        let gaps = pairs.map(|pair| match (&pair[0].high, &pair[1].low) {
            (Some(high), Some(low)) => number(&low.value).zip(number(&high.value)),
            _ => None,
        });
        // Of keys that are no numbers, any gap may be the smallest.
        let gaps = gaps.map(|gap| gap.map_or(0.0, |(low, high)| low - high));
        gaps.collect()
    }
}

/// The values of a bound, as keys of this type are compared with them.
///
/// # Errors
/// If they are of another type.
pub(super) fn comparable_with(values: &ArrayRef, keys: &DataType) -> Result<ArrayRef> {
    let values = comparable(values)?;
    let (bound, keys) = (values.data_type(), value_type(keys));
    if *bound != keys {
        return exec_err!("a bound of type {bound} is compared with keys of type {keys}");
    }
    Ok(values)
}

/// At most `most` intervals that cover all of these, between which there are these gaps: `join` makes two of them one
/// where the gap is among the smallest.
pub(super) fn with_smallest_gaps<T>(
    all: impl Iterator<Item = T>,
    gaps: Vec<f64>,
    most: usize,
    join: impl Fn(&mut T, T),
) -> Vec<T> {
    let mut is_closed = vec![false; gaps.len() + 1];
    let smallest = is_closed.len().saturating_sub(most);
    let mut gaps: Vec<(usize, f64)> = gaps.into_iter().enumerate().collect();
    if smallest < gaps.len() {
        gaps.select_nth_unstable_by(smallest, |(_, a), (_, b)| a.total_cmp(b));
        gaps.truncate(smallest);
    }
    for (gap, _) in gaps {
        is_closed[gap + 1] = true;
    }
    let mut joined: Vec<T> = vec![];
    for (interval, is_closed) in all.zip(is_closed) {
        match joined.last_mut() {
            Some(last) if is_closed => join(last, interval),
            _ => joined.push(interval),
        }
    }
    joined
}

impl<'a> Interval<RowEnd<'a>> {
    /// The window of a row; `None` if no key is in it.
    fn of_row(bounds: &'a [BoundValues], row: usize) -> Option<Self> {
        let (mut low, mut high): (Option<RowEnd>, Option<RowEnd>) = (None, None);
        for (bound, values) in bounds.iter().enumerate() {
            let nulls = values.nulls.as_ref();
            if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                return None;
            }
            let bytes = values.rows.row(row).data();
            let (end, is_closer) = if values.is_lower {
                let is_closer = low.as_ref().is_none_or(|low| bytes > low.bytes);
                (&mut low, is_closer)
            } else {
                let is_closer = high.as_ref().is_none_or(|high| bytes < high.bytes);
                (&mut high, is_closer)
            };
            if is_closer {
                *end = Some(RowEnd { bytes, bound, row });
            }
        }
        let ends = low.as_ref().zip(high.as_ref());
        let is_empty = ends.is_some_and(|(low, high)| low.bytes > high.bytes);
        (!is_empty).then_some(Self { low, high })
    }

    fn copied(&self, bounds: &[BoundValues]) -> Result<Interval> {
        let end = |end: Option<&RowEnd>| {
            let end = end.map(|end| -> Result<End> {
                Ok(End {
                    bytes: end.bytes.into(),
                    value: ScalarValue::try_from_array(&bounds[end.bound].values, end.row)?,
                })
            });
            end.transpose()
        };
        Ok(Interval {
            low: end(self.low.as_ref())?,
            high: end(self.high.as_ref())?,
        })
    }
}

impl<E: AsKeyBytes> Interval<E> {
    /// These intervals in ascending order, those that overlap as one.
    fn merged(mut all: Vec<Self>) -> Vec<Self> {
        all.sort_unstable_by(|a, b| bytes(a.low.as_ref()).cmp(&bytes(b.low.as_ref())));
        let mut merged: Vec<Self> = Vec::with_capacity(all.len());
        for interval in all {
            match merged.last_mut() {
                Some(last) if last.reaches(&interval) => last.extend_to(interval),
                _ => merged.push(interval),
            }
        }
        merged
    }

    /// Whether `next`, whose low end is not below this one's, begins within this interval.
    fn reaches(&self, next: &Self) -> bool {
        match (bytes(self.high.as_ref()), bytes(next.low.as_ref())) {
            (Some(high), Some(low)) => low <= high,
            _ => true,
        }
    }

    fn extend_to(&mut self, next: Self) {
        match (bytes(self.high.as_ref()), bytes(next.high.as_ref())) {
            (Some(high), Some(next_high)) if next_high <= high => {}
            (None, _) => {}
            _ => self.high = next.high,
        }
    }
}

/// The bytes of an end; `None` for one that is that of all keys.
fn bytes<E: AsKeyBytes>(end: Option<&E>) -> Option<&[u8]> {
    end.map(AsKeyBytes::bytes)
}

impl Interval {
    /// Makes this interval end where the next one does.
    fn take_end(&mut self, next: Self) {
        self.high = next.high;
    }

    /// The ends; `None` for one that is that of all keys.
    pub(crate) fn ends(&self) -> (Option<&ScalarValue>, Option<&ScalarValue>) {
        let [low, high] = [&self.low, &self.high].map(|end| end.as_ref().map(|end| &end.value));
        (low, high)
    }
}

/// How many keys intervals cover, if that can be told.
fn length(intervals: &[Interval]) -> Option<f64> {
    let lengths = intervals.iter().map(|interval| {
        let (low, high) = interval.low.as_ref().zip(interval.high.as_ref())?;
        Some(number(&high.value)? - number(&low.value)?)
    });
    lengths.sum()
}

/// The position of a value on a line, about; `None` for a value that is no number and no time. Without a cast by Arrow
/// for most types, as windows are many.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(crate) fn number(value: &ScalarValue) -> Option<f64> {
    use ScalarValue as V;
    match value {
        V::Decimal128(number, _, scale) => Some((*number)? as f64 / 10_f64.powi((*scale).into())),
        V::Float64(number) => *number,
        V::Time32Second(number) | V::Time32Millisecond(number) => (*number).map(f64::from),
        V::Time64Microsecond(number)
        | V::Time64Nanosecond(number)
        | V::DurationSecond(number)
        | V::DurationMillisecond(number)
        | V::DurationMicrosecond(number)
        | V::DurationNanosecond(number) => Some((*number)? as f64),
        other => match whole_number(other) {
            Some(number) => Some(number as f64),
            None if other.data_type().is_numeric() => {
                match other.cast_to(&DataType::Float64).ok()? {
                    V::Float64(number) => number,
                    _ => None,
                }
            }
            None => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::Int64Array;

    use super::*;

    #[test]
    fn intervals_without_an_end_are_those_of_their_other_end() {
        let end = |end: Option<i64>| end.map(|end| ScalarValue::Int64(Some(end)));
        let ends = [(None, Some(2)), (Some(5), Some(6)), (Some(9), None)];
        let ends = ends.map(|(low, high)| (end(low), end(high)));
        let intervals = Intervals::of_disjoint(&DataType::Int64, ends.to_vec()).expect("integers");
        assert_eq!(intervals.all().len(), 3);
        for (interval, (low, high)) in intervals.all().iter().zip(&ends) {
            assert_eq!(interval.ends(), (low.as_ref(), high.as_ref()));
        }
        let keys: ArrayRef = Arc::new((0..12).collect::<Int64Array>());
        let contained = intervals.contain(&keys).expect("integers");
        let expected = (0..12).map(|key| Some(key <= 2 || (5..=6).contains(&key) || key >= 9));
        assert_eq!(contained, expected.collect::<BooleanArray>());
    }
}
