//! Rows that are nearest to a bound, and how far they have to be sought.
//!
//! Of a window that is open at one end only the rows nearest to the other end may count: in as-of joins, nearest rows
//! and EXISTS. So may, of rows before a window, the one that is in force at its start, and of all rows those on both
//! sides of a point that are nearest to it. No bound tells where these rows are, so slices of the range key are read,
//! the first from the bounds as far as these are apart, each further one twice as long:
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

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Decimal128Array, RecordBatch, UInt32Array};
use arrow::compute::{concat, concat_batches, max, min, take};
use arrow::datatypes::{DataType, Schema};
use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::physical_expr::PhysicalExprRef;

use crate::exec::range_join::reach::intervals::Intervals;
use crate::exec::range_join::reach::sought::{Residual, Side, Sought};
use crate::exec::range_join::reach::whole_keys::{limits, numbers, value};
use crate::exec::range_join::reach::window_reach::Reach;
use crate::exec::range_join::row_join::RowJoin;
use crate::exec::range_join::spill::key_extent::comparable;
use datafusion_rmq_logical::logical_plan::range_join::RangeJoinSpec;
use rmq_arrow::common::row_number::row_number;
use rmq_arrow::range_agg::values::Values;
use rmq_arrow::sorted::groups::Groups;

/// After so many slices all that is left is read.
const MAX_SLICES: usize = 24;

/// The first slice is at least this part of the extent of the keys, if that is known.
const LEAST_SHARE: i128 = 1 << 12;

/// A further condition is evaluated for at most so many pairs, which takes some tenths of a second. Then all that is
/// left is read.
const MAX_PAIRS: usize = 1 << 22;

/// The most pairs that are evaluated at once.
const PAIRS: usize = 1 << 13;

/// The rows that the windows of a probe side seek.
#[derive(Debug)]
pub(crate) struct SoughtRows {
    spec: Arc<RangeJoinSpec<PhysicalExprRef>>,
    sought: Sought,
    key_type: DataType,
    /// The equality keys of all probe rows, and their groups.
    keys: Vec<ArrayRef>,
    groups: Groups,
    /// Those in each group whose rows have not been found, and the number of all.
    seekers: Vec<Vec<Seeker>>,
    num_seekers: usize,
    /// The keys of the slice that is read next on each side; `None` if all have been read.
    next: Vec<Option<Slice>>,
    slices: usize,
    /// The smallest and the greatest range key, as far as these are known.
    extremes: Option<(i128, i128)>,
    /// The probe rows, if a further condition is evaluated.
    probe: Option<RecordBatch>,
    /// The number of pairs for which it has been evaluated.
    pairs: usize,
}

/// Probe rows with the same equality keys, or one of them where each seeks rows of its own.
#[derive(Debug)]
struct Seeker {
    /// One of these probe rows.
    row: u32,
    /// For each side the bound that is farthest from the other bounds' rows, the least one if rows below are sought,
    /// and how many rows are missing.
    missing: Vec<(i128, usize)>,
    /// How many rows have been found, on any side.
    found: usize,
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
    /// Those of these probe rows, which have one. `extremes` are the smallest and the greatest
    /// range key, if they are known.
    ///
    /// # Errors
    /// Those of the bounds and equality keys: the join may meet none of them.
    pub(crate) fn try_new(
        spec: &Arc<RangeJoinSpec<PhysicalExprRef>>,
        sought: Sought,
        probe: &[RecordBatch],
        build: &Schema,
        extremes: Option<(i128, i128)>,
    ) -> Result<Self> {
        let evaluated = |expr: &PhysicalExprRef| -> Result<ArrayRef> {
            let parts = probe.iter();
            let parts = parts.map(|batch| {
                let values = expr.evaluate(batch)?.into_array(batch.num_rows())?;
                comparable(&values)
            });
            let parts: Vec<_> = parts.collect::<Result<_>>()?;
            let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
            Ok(concat(&parts)?)
        };
        let bounds = spec.bounds.iter().map(|(_, bound)| evaluated(bound));
        let bounds: Vec<_> = bounds.collect::<Result<_>>()?;
        let keys = spec.on.iter().map(|(key, _)| evaluated(key));
        let keys: Vec<_> = keys.collect::<Result<_>>()?;
        let key_type = spec.key.data_type(build)?;
        if let Some(other) = bounds.iter().find(|bound| *bound.data_type() != key_type) {
            let other = other.data_type();
            return exec_err!("a bound of type {other} is compared with keys of type {key_type}");
        }
        let sought_from = numbers(&bounds[sought.bound])?;
        if sought.is_beside_windows(spec) && !spec.prevailing && sought_from.null_count() > 0 {
            return exec_err!("no row is nearest to a point that is NULL");
        }
        let next = first_slices(&sought, &sought_from, &bounds, extremes, spec.prevailing)?;
        let types: Vec<_> = keys.iter().map(|key| key.data_type().clone()).collect();
        let probe = match (&sought.residual, probe.first()) {
            (Some(residual), Some(first)) => Some(match &residual.probe {
                Some(limit) => RecordBatch::try_from_iter([("limit", evaluated(limit)?)])?,
                None => concat_batches(first.schema_ref(), probe)?,
            }),
            _ => None,
        };
        let mut all = Self {
            spec: Arc::clone(spec),
            key_type,
            groups: Groups::try_new(&types)?,
            keys,
            seekers: vec![],
            num_seekers: 0,
            next,
            sought,
            slices: 0,
            extremes,
            probe,
            pairs: 0,
        };
        all.add_seekers(&sought_from)?;
        Ok(all)
    }

    fn add_seekers(&mut self, bounds: &Decimal128Array) -> Result<()> {
        let mut groups = vec![0; bounds.len()];
        self.groups.add(&self.keys, &mut groups)?;
        // Without equality keys there is one.
        self.seekers.resize_with(self.groups.len().max(1), Vec::new);
        for (row, (bound, group)) in bounds.iter().zip(groups).enumerate() {
            // NULL is in no group.
            let (Some(bound), Some(known)) = (bound, self.seekers.get_mut(group as usize)) else {
                continue;
            };
            match known.first_mut() {
                Some(seeker) if self.probe.is_none() => {
                    for ((farthest, _), side) in seeker.missing.iter_mut().zip(&self.sought.sides) {
                        let farther = if side.is_below { i128::min } else { i128::max };
                        *farthest = farther(*farthest, bound);
                    }
                }
                _ => {
                    self.num_seekers += 1;
                    known.push(Seeker {
                        row: row_number(row)?,
                        missing: vec![(bound, self.sought.rows); self.sought.sides.len()],
                        found: 0,
                    });
                }
            }
        }
        Ok(())
    }

    /// Whether each slice has smaller keys than the one before, or else greater ones. On both sides it is neither.
    pub(super) fn is_below(&self) -> bool {
        self.sought.sides.iter().all(|side| side.is_below)
    }

    /// Whether so few rows have been found that some without a key may count.
    pub(super) fn may_be_without_key(&self) -> bool {
        let mut seekers = self.seekers.iter().flatten();
        self.sought.or_without_key && seekers.any(|seeker| seeker.found < self.sought.rows)
    }

    /// Makes the next slices the last ones, which have all keys that are left.
    pub(super) fn read_rest_next(&mut self) {
        for (next, side) in self.next.iter_mut().zip(&self.sought.sides) {
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
            let mut seekers = self.seekers.iter().flatten();
            let is_missing = seekers.any(|seeker| seeker.missing[number].1 > 0);
            if let Some(slice) = self.next[number].filter(|_| is_missing) {
                self.next[number] = self.after(slice, self.sought.sides[number].is_below);
                slices.push(slice);
            }
        }
        if slices.is_empty() {
            return Ok(None);
        }
        self.slices += 1;
        let rows = self.seekers.iter().filter_map(|seekers| seekers.first());
        let rows: UInt32Array = rows.map(|seeker| seeker.row).collect();
        let keys = self.keys.iter().map(|keys| Ok(take(keys, &rows, None)?));
        let keys: Vec<_> = keys.collect::<Result<_>>()?;
        let end = |end: Option<i128>| {
            let value = end.map(|end| value(end, &self.key_type));
            Ok::<_, DataFusionError>(value.transpose()?.flatten())
        };
        // Those below come first.
        let ends = slices.into_iter();
        let ends = ends.map(|slice| Ok((end(slice.low)?, end(slice.high)?)));
        let intervals = Intervals::of_disjoint(&self.key_type, ends.collect::<Result<_>>()?)?;
        Reach::of_keys(&self.spec, intervals, &keys, build).map(Some)
    }

    /// The slice that is beyond this one; `None` if no key is.
    fn after(&self, slice: Slice, is_below: bool) -> Option<Slice> {
        let length = slice.length.saturating_mul(2);
        let (least, greatest) = limits(&self.key_type);
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
        if self.num_seekers == 0 {
            return Ok(());
        }
        if self.pairs > MAX_PAIRS {
            self.read_rest_next();
            return Ok(());
        }
        let evaluated = |expr: &PhysicalExprRef| -> Result<ArrayRef> {
            comparable(&expr.evaluate(batch)?.into_array(batch.num_rows())?)
        };
        let range_keys = numbers(&evaluated(&self.spec.key)?)?;
        let keys = self.spec.on.iter().map(|(_, key)| evaluated(key));
        let keys: Vec<_> = keys.collect::<Result<_>>()?;
        let groups = self.groups.find(&keys, batch.num_rows())?;
        let rows = range_keys.iter().zip(groups).enumerate();
        let rows = rows.filter_map(|(row, (range_key, group))| {
            let group = group as usize;
            let is_sought = self.seekers.get(group).is_some_and(|s| !s.is_empty());
            Some((row, range_key.filter(|_| is_sought)?, group))
        });
        let rows: Vec<_> = rows.collect();
        let found = match (self.sought.residual.clone(), self.probe.clone()) {
            (Some(residual), Some(probe)) => self.found_pairs(rows, (&residual, &probe, batch)),
            _ => {
                for (_, range_key, group) in rows {
                    self.found_row(range_key, group);
                }
                Ok(())
            }
        };
        if found.is_err() {
            // The join need not evaluate the condition for these pairs.
            self.pairs = usize::MAX;
        }
        if self.pairs > MAX_PAIRS {
            self.read_rest_next();
        }
        Ok(())
    }

    /// Counts one row for the seekers of its group.
    fn found_row(&mut self, range_key: i128, group: usize) {
        for seeker in &mut self.seekers[group] {
            seeker.find(range_key, &self.sought.sides);
        }
        self.drop_done(group);
    }

    /// Drops the seekers of a group whose rows have been found.
    fn drop_done(&mut self, group: usize) {
        let seekers = &mut self.seekers[group];
        let before = seekers.len();
        seekers.retain(|seeker| !seeker.is_done());
        self.num_seekers -= before - seekers.len();
    }

    /// Counts the rows that meet the further condition with seekers of their group.
    fn found_pairs(
        &mut self,
        rows: Vec<(usize, i128, usize)>,
        (residual, probe, batch): (&Residual, &RecordBatch, &RecordBatch),
    ) -> Result<()> {
        let columns = residual.build.iter().map(|column| {
            let values = column.evaluate(batch)?.into_array(batch.num_rows())?;
            Ok(Arc::new(Values::by_position(values)))
        });
        let columns: Vec<_> = columns.collect::<Result<_>>()?;
        let (mut pairs, mut rows) = (vec![], rows.into_iter().peekable());
        let mut groups_with_found = BTreeSet::new();
        while let Some((row, range_key, group)) = rows.next() {
            let (row, sides) = (row_number(row)?, &self.sought.sides);
            let seekers = self.seekers[group].iter();
            let seekers = seekers.filter(|seeker| seeker.seeks(range_key, sides));
            pairs.extend(seekers.map(|seeker| (seeker.row, row, range_key, group)));
            if pairs.len() < PAIRS && rows.peek().is_some() {
                continue;
            }
            self.pairs = self.pairs.saturating_add(pairs.len());
            let of_probe: UInt32Array = pairs.iter().map(|(row, ..)| *row).collect();
            let of_build: UInt32Array = pairs.iter().map(|(_, row, ..)| *row).collect();
            let numbers = (&of_probe, &of_build);
            let met = RowJoin::meet_residual(&residual.condition, probe, &columns, numbers)?;
            for ((row, _, range_key, group), met) in pairs.drain(..).zip(met.values()) {
                let seekers = &mut self.seekers[group];
                // They are in the order of their rows.
                if met && let Ok(at) = seekers.binary_search_by_key(&row, |seeker| seeker.row) {
                    seekers[at].find(range_key, &self.sought.sides);
                    groups_with_found.insert(group);
                }
            }
            if self.pairs > MAX_PAIRS {
                break;
            }
        }
        for group in groups_with_found {
            self.drop_done(group);
        }
        Ok(())
    }
}

/// The slices that are read first, one for each side: from the bounds `sought_from` on, as far as these are apart.
fn first_slices(
    sought: &Sought,
    sought_from: &Decimal128Array,
    bounds: &[ArrayRef],
    extremes: Option<(i128, i128)>,
    is_prevailing: bool,
) -> Result<Vec<Option<Slice>>> {
    let key_type = bounds[sought.bound].data_type();
    // Without a bound there are no seekers either, and nothing is read.
    let (least, greatest) = min(sought_from).zip(max(sought_from)).unwrap_or_default();
    // Where windows end on the side that is not sought on.
    let is_other_end = |(index, _): &(usize, &ArrayRef)| is_prevailing && *index != sought.bound;
    let ends = bounds.iter().enumerate().filter(is_other_end);
    let ends = ends.map(|(_, values)| Ok(max(&numbers(values)?)));
    let end = ends
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .flatten()
        .min();
    let span = greatest.saturating_sub(least);
    let extent = extremes.map_or(0, |(min, max)| max.saturating_sub(min));
    let length = span.max(extent / LEAST_SHARE).max(1);
    let below = Slice {
        low: least.checked_sub(length),
        high: if is_prevailing { end } else { Some(greatest) },
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
    Ok(next.collect())
}

impl Seeker {
    /// Whether a row with this key counts for it.
    fn seeks(&self, range_key: i128, sides: &[Side]) -> bool {
        let mut missing = self.missing.iter().zip(sides);
        missing.any(|((bound, missing), side)| *missing > 0 && side.has(range_key, *bound))
    }

    /// Counts a row with this key.
    fn find(&mut self, range_key: i128, sides: &[Side]) {
        self.found += 1;
        for ((bound, missing), side) in self.missing.iter_mut().zip(sides) {
            if side.has(range_key, *bound) {
                *missing = missing.saturating_sub(1);
            }
        }
    }

    fn is_done(&self) -> bool {
        self.missing.iter().all(|(_, missing)| *missing == 0)
    }
}
