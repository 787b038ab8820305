//! Sets of range keys that are whole numbers.

use arrow::datatypes::DataType;
use datafusion::common::Result;

use crate::exec::range_join::reach::intervals::Intervals;
use crate::exec::range_join::reach::whole_keys::{number, value};

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
    pub(crate) fn of(mut intervals: Vec<(i128, i128)>) -> Self {
        intervals.sort_unstable();
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
        let ends = self.0.iter().map(|(low, high)| {
            let [low, high] = [low, high].map(|end| value(*end, data_type));
            Ok((low?, high?))
        });
        Intervals::of_disjoint(data_type, ends.collect::<Result<_>>()?)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many keys there are.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn size(&self) -> f64 {
        let sizes = self.0.iter();
        let sizes = sizes.map(|(low, high)| *high as f64 - *low as f64 + 1.0);
        sizes.sum()
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

#[cfg(test)]
mod tests {
    use rmq_testing::Random;

    use super::*;

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
