//! Rows that are nearest to a bound, and how far they have to be sought.
//!
//! Of a window that is open at one end only the rows nearest to the other end may count: in as-of joins, nearest rows
//! and EXISTS. So may, of rows before a window, the one that is in force at its start, and of all rows those on both
//! sides of a point that are nearest to it. No bound tells where these rows are, so slices of the range key are read,
//! the first from the bounds as far as these are apart, but not far beyond them, each further one twice as long:
//!
//! ```text
//!   bounds                                │ │  ││  │
//!   slices      third         │  second   │ first  │     sought below the bounds
//!   slices        second      │        first          │      second       │     sought on both sides
//! ```
//!
//! It ends when each combination of equality keys has as many rows beyond all of its bounds as count, or with a further
//! condition on pairs each probe row as many that meet it. No row is in two slices, so one that exists nowhere costs a
//! read of all rows at most.

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use datafusion::common::Result;

use crate::exec::range_join::reach::intervals::Intervals;
use crate::exec::range_join::reach::seekers::{Seekers, Seeking};
use crate::exec::range_join::reach::whole_keys::{limits, value};
use crate::exec::range_join::reach::window_reach::Reach;

/// After so many slices all that is left is read.
const MAX_SLICES: usize = 24;

/// The first slice has at least this part of all keys beyond the bounds, if their extent is known.
const LEAST_SHARE: f64 = 1.0 / 4096.0;

/// And at most this part, as bounds that are far apart tell little of how far rows are from them.
pub(crate) const GREATEST_SHARE: f64 = 1.0 / 128.0;

/// The rows that the windows of a probe side seek.
#[derive(Debug)]
pub(crate) struct SoughtRows {
    seekers: Seekers,
    /// The keys of the slice that is read next on each side; `None` if all have been read.
    next: Vec<Option<Slice>>,
    slices: usize,
    /// The smallest and the greatest range key, as far as these are known.
    extremes: Option<(i128, i128)>,
}

/// Range keys from `low` to `high`, both included; `None` for an end that is that of all keys.
#[derive(Debug, Clone, Copy)]
struct Slice {
    low: Option<i128>,
    high: Option<i128>,
    /// How long the slice is beyond the bounds.
    length: i128,
}

impl SoughtRows {
    /// Those of all rows of a probe side. `extremes` are the smallest and the greatest range key, if they are known.
    pub(crate) fn new(seekers: Seekers, extremes: Option<(i128, i128)>) -> Self {
        Self {
            next: first_slices(&seekers, extremes),
            seekers,
            slices: 0,
            extremes,
        }
    }

    /// Whether each slice has smaller keys than the one before, or else greater ones. On both sides it is neither.
    pub(super) fn is_below(&self) -> bool {
        self.seekers
            .seeking
            .sought
            .sides
            .iter()
            .all(|side| side.is_below)
    }

    /// Whether so few rows have been found that some without a key may count.
    pub(super) fn may_be_without_key(&self) -> bool {
        self.seekers.may_be_without_key()
    }

    /// Makes the next slices the last ones, which have all keys that are left.
    pub(super) fn read_rest_next(&mut self) {
        for (next, side) in self.next.iter_mut().zip(&self.seekers.seeking.sought.sides) {
            if let Some(next) = next {
                let end = if side.is_below {
                    &mut next.low
                } else {
                    &mut next.high
                };
                *end = None;
            }
        }
    }

    /// The part of the rows that the first slices have, if keys were evenly distributed; `None` if that can't be told.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn first_share(&self) -> Option<f64> {
        let (min, max) = self.extremes?;
        let extent = max as f64 - min as f64;
        let shares = self.next.iter().flatten().map(|slice| {
            let low = slice.low.unwrap_or(min).max(min);
            let high = slice.high.unwrap_or(max).min(max);
            // Both are the same in a column of one value.
            if extent > 0.0 {
                ((high as f64 - low as f64) / extent).max(0.0)
            } else {
                1.0
            }
        });
        Some(shares.sum())
    }

    /// What the next slices have for those whose rows have not been found; `None` if nothing is left to be read.
    ///
    /// # Errors
    /// If an equality key can't be compared with its values.
    pub(crate) fn next_slice(&mut self, build: &Schema) -> Result<Option<Reach>> {
        let mut slices = vec![];
        for number in 0..self.next.len() {
            let is_missing = self.seekers.miss_rows(number);
            if let Some(slice) = self.next[number].filter(|_| is_missing) {
                self.next[number] =
                    self.after(slice, self.seekers.seeking.sought.sides[number].is_below);
                slices.push(slice);
            }
        }
        if slices.is_empty() {
            return Ok(None);
        }
        self.slices += 1;
        let Seeking { spec, key_type, .. } = &*self.seekers.seeking;
        let keys = self.seekers.keys_left()?;
        let end = |end: Option<i128>| value(end?, key_type);
        // Those below come first.
        let ends = slices.into_iter();
        let ends = ends.map(|slice| (end(slice.low), end(slice.high)));
        let intervals = Intervals::of_disjoint(key_type, ends.collect())?;
        Reach::of_keys(spec, intervals, &keys, build).map(Some)
    }

    /// The slice that is beyond this one; `None` if no key is.
    fn after(&self, slice: Slice, is_below: bool) -> Option<Slice> {
        let length = slice.length.saturating_mul(2);
        let (least, greatest) = limits(&self.seekers.seeking.key_type);
        // What is beyond all known keys is one slice, too.
        let is_last = |is_beyond_all: bool| is_beyond_all || self.slices + 2 >= MAX_SLICES;
        Some(if is_below {
            let high = slice.low?.checked_sub(1).filter(|high| *high >= least)?;
            let is_last = is_last(self.extremes.is_some_and(|(min, _)| high < min));
            let low = high.checked_sub(length).filter(|_| !is_last);
            let high = Some(high);
            Slice { low, high, length }
        } else {
            let low = slice.high?.checked_add(1).filter(|low| *low <= greatest)?;
            let is_last = is_last(self.extremes.is_some_and(|(_, max)| low > max));
            let high = low.checked_add(length).filter(|_| !is_last);
            let low = Some(low);
            Slice { low, high, length }
        })
    }

    /// Counts the rows of a slice that have been sought.
    ///
    /// # Errors
    /// Those of the keys.
    pub(crate) fn found(&mut self, batch: &RecordBatch) -> Result<()> {
        self.seekers.find(batch)?;
        if self.seekers.have_given_up() {
            self.read_rest_next();
        }
        Ok(())
    }
}

/// How long the first slice is beyond bounds that are so far apart.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "an estimate"
)]
fn first_length(span: i128, extremes: Option<(i128, i128)>) -> i128 {
    let length = match extremes {
        Some((min, max)) => {
            let extent = max.saturating_sub(min).max(0);
            let part = |share: f64| (extent as f64 * share) as i128;
            span.clamp(part(LEAST_SHARE), part(GREATEST_SHARE))
        }
        None => span,
    };
    length.max(1)
}

/// The part of the rows that the first slices have, if keys are evenly distributed between these and bounds are so far
/// apart.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(crate) fn first_share(extremes: (i128, i128), span: i128) -> f64 {
    let (min, max) = extremes;
    let length = first_length(span, Some(extremes));
    (span as f64 + length as f64) / (max as f64 - min as f64).max(1.0)
}

/// The slices that are read first, one for each side: from the bounds on, as far as these are apart.
fn first_slices(seekers: &Seekers, extremes: Option<(i128, i128)>) -> Vec<Option<Slice>> {
    let Seeking {
        spec,
        sought,
        key_type,
    } = &*seekers.seeking;
    // Without a bound there are no seekers either, and nothing is read.
    let (least, greatest) = seekers.ends().unwrap_or_default();
    let length = first_length(greatest.saturating_sub(least), extremes);
    let below = Slice {
        low: least.checked_sub(length),
        // Where windows end on the side that is not sought on.
        high: if spec.prevailing {
            seekers.other_end()
        } else {
            Some(greatest)
        },
        length,
    };
    let has_below = sought.sides.iter().any(|side| side.is_below);
    let next = sought.sides.iter().map(|side| {
        if side.is_below {
            return Some(below);
        }
        // On both sides, what is between the bounds is in the slice below.
        let low = if has_below {
            let next = greatest.checked_add(1);
            next.filter(|next| *next <= limits(key_type).1)?
        } else {
            least
        };
        Some(Slice {
            low: Some(low),
            high: greatest.checked_add(length),
            length,
        })
    });
    next.collect()
}
