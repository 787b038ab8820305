//! Sets of range keys that are whole numbers.

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;
use datafusion::common::Result;

use crate::exec::range_join::reach::intervals::{Intervals, comparable_with, with_smallest_gaps};
use crate::exec::range_join::reach::whole_keys::{number, numbers, value};
use rmq_engine::Comparison;

/// Whole numbers, as disjoint intervals in ascending order, both of whose ends are included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KeySet(Vec<(i128, i128)>);

impl KeySet {
    /// The keys in these intervals; `None` if they are no whole numbers, or have no end.
    pub(crate) fn within(intervals: &Intervals) -> Option<Self> {
        let intervals = intervals.all().iter().map(|interval| {
            let (low, high) = interval.ends();
            Some((number(low?)?, number(high?)?))
        });
        Some(Self::of(intervals.collect::<Option<_>>()?))
    }

    /// The keys in these intervals.
    #[expect(
        clippy::stable_sort_primitive,
        reason = "they come in a few ascending runs, which it merges"
    )]
    pub(crate) fn of(mut intervals: Vec<(i128, i128)>) -> Self {
        intervals.sort();
        let mut merged: Vec<(i128, i128)> = vec![];
        for (low, high) in intervals {
            match merged.last_mut() {
                Some((_, last)) if low <= last.saturating_add(1) => *last = high.max(*last),
                _ => merged.push((low, high)),
            }
        }
        Self(merged)
    }

    /// The same as intervals of keys of this type.
    ///
    /// # Errors
    /// If the type has no order.
    pub(crate) fn intervals(&self, data_type: &DataType) -> Result<Intervals> {
        let ends = self.0.iter();
        let ends = ends.map(|(low, high)| (value(*low, data_type), value(*high, data_type)));
        Intervals::of_disjoint(data_type, ends.collect())
    }

    /// Adds the windows of a batch, given by the values of all bounds of keys of this type, which end them on both
    /// sides. A row with a bound that is NULL has no window. Returns for each row whether it has one.
    ///
    /// # Errors
    /// If a bound is of another type than the keys.
    pub(super) fn add_windows(
        &mut self,
        bounds: &[(Comparison, ArrayRef)],
        data_type: &DataType,
    ) -> Result<Vec<bool>> {
        let rows = bounds.first().map_or(0, |(_, values)| values.len());
        let mut windows = vec![(i128::MIN, i128::MAX); rows];
        let mut has_window = vec![true; rows];
        for (comparison, values) in bounds {
            let ends = numbers(&comparable_with(values, data_type)?)?;
            for ((low, high), end) in windows.iter_mut().zip(ends.values()) {
                if comparison.is_lower() {
                    *low = (*low).max(*end);
                } else {
                    *high = (*high).min(*end);
                }
            }
            for (has, is_valid) in has_window
                .iter_mut()
                .zip(ends.nulls().into_iter().flatten())
            {
                *has &= is_valid;
            }
        }
        for (has, (low, high)) in has_window.iter_mut().zip(&windows) {
            *has &= low <= high;
        }
        let mut has = has_window.iter();
        windows.retain(|_| has.next().is_some_and(|has| *has));
        *self = self.or(&Self::of(windows));
        Ok(has_window)
    }

    /// The keys, and those of the smallest gaps between them, in at most `most` intervals.
    pub(super) fn with_gaps(self, most: usize) -> Self {
        if self.len() <= most {
            return self;
        }
        let gaps = self.0.windows(2).map(|pair| size(pair[0].1, pair[1].0));
        let (gaps, all) = (gaps.collect(), self.0.iter().copied());
        Self(with_smallest_gaps(all, gaps, most, |last, next| {
            last.1 = next.1;
        }))
    }

    /// The number of intervals.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many keys there are.
    pub(crate) fn size(&self) -> f64 {
        self.0.iter().map(|(low, high)| size(*low, *high)).sum()
    }

    /// Whether one of these keys is from `low` to `high`.
    pub(crate) fn meets(&self, (low, high): (i128, i128)) -> bool {
        let next = self.0.partition_point(|(_, end)| *end < low);
        self.0.get(next).is_some_and(|(begin, _)| *begin <= high)
    }

    /// All keys of both.
    pub(crate) fn or(&self, other: &Self) -> Self {
        Self::of([self.0.as_slice(), &other.0].concat())
    }

    /// The keys that both have.
    pub(crate) fn and(&self, other: &Self) -> Self {
        self.without(&self.without(other))
    }

    /// The keys that the other has not.
    pub(crate) fn without(&self, other: &Self) -> Self {
        let mut left = vec![];
        for &(mut low, high) in &self.0 {
            let first = other.0.partition_point(|(_, end)| *end < low);
            let mut is_left = true;
            for &(begin, end) in other.0[first..].iter().take_while(|(b, _)| *b <= high) {
                if low < begin {
                    left.push((low, begin - 1));
                }
                is_left = end < high;
                if !is_left {
                    break;
                }
                low = end + 1;
            }
            if is_left {
                left.push((low, high));
            }
        }
        Self(left)
    }
}

/// How many keys there are from `low` to `high`.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn size(low: i128, high: i128) -> f64 {
    high as f64 - low as f64 + 1.0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::Int64Array;
    use rmq_testing::Random;

    use super::*;

    #[test]
    fn windows_are_those_of_intervals() {
        for case in 0..2000 {
            let random = &mut Random::of_case(case);
            let comparisons = [
                Comparison::AtLeast,
                Comparison::Above,
                Comparison::AtMost,
                Comparison::Below,
            ];
            let mut kinds = comparisons.to_vec();
            while kinds.len() > 2 && random.below(2) == 0 {
                kinds.remove(random.below(kinds.len()));
            }
            let has_lower = |is: bool| kinds.iter().any(|kind| kind.is_lower() == is);
            if !has_lower(true) || !has_lower(false) {
                continue;
            }
            let (mut keys, key) = (KeySet::default(), DataType::Int64);
            let mut intervals = Intervals::of_type(&key).expect("a type with an order");
            for _ in 0..=random.below(3) {
                let rows = random.below(6);
                let mut bound = || -> ArrayRef {
                    let values = (0..rows).map(|_| match random.below(8) {
                        0 => None,
                        _ => i64::try_from(random.below(60)).ok(),
                    });
                    Arc::new(values.collect::<Int64Array>())
                };
                let bounds = kinds.iter().map(|kind| (*kind, bound()));
                let bounds: Vec<_> = bounds.collect();
                let has_window = keys.add_windows(&bounds, &key).expect("integers");
                assert_eq!(has_window, intervals.add(&bounds).expect("integers"));
            }
            let all: ArrayRef = Arc::new((-1..62).collect::<Int64Array>());
            let contained = |intervals: &Intervals| intervals.contain(&all).expect("integers");
            let whole = keys.intervals(&key).expect("integers");
            assert_eq!(contained(&whole), contained(&intervals), "{keys:?}");
            // With the smallest gaps between them.
            let few = keys.clone().with_gaps(2);
            assert!(few.len() <= 2 && keys.without(&few).is_empty(), "{keys:?}");
            let gaps = |keys: &KeySet| {
                let gaps = keys.0.windows(2).map(|pair| pair[1].0 - pair[0].1);
                gaps.max()
            };
            assert_eq!(gaps(&few), gaps(&keys), "{keys:?}");
        }
    }

    #[test]
    fn sets_are_those_of_single_keys() {
        for case in 0..2000 {
            let random = &mut Random::of_case(case);
            let mut set = || {
                let intervals = (0..random.below(5)).map(|_| {
                    let low = random.below(20) as i128;
                    (low, low + random.below(5) as i128)
                });
                KeySet::of(intervals.collect())
            };
            let (a, b) = (set(), set());
            let has = |set: &KeySet, key: i128| set.meets((key, key));
            let (without, and, or) = (a.without(&b), a.and(&b), a.or(&b));
            for key in -1..30 {
                let (in_a, in_b) = (has(&a, key), has(&b, key));
                assert_eq!(has(&without, key), in_a && !in_b, "{a:?} {b:?} {key}");
                assert_eq!(has(&and, key), in_a && in_b, "{a:?} {b:?} {key}");
                assert_eq!(has(&or, key), in_a || in_b, "{a:?} {b:?} {key}");
            }
            let ends = |set: &KeySet| set.0.windows(2).all(|pair| pair[0].1 < pair[1].0);
            assert!(ends(&without) && ends(&and) && ends(&or), "{a:?} {b:?}");
            let keys: f64 = (-1..30).filter(|key| has(&a, *key)).map(|_| 1.0).sum();
            assert!((a.size() - keys).abs() < 0.1, "{a:?}");
        }
    }
}
