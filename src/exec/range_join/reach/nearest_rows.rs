//! Rows that are nearest to a bound, and how far they have to be sought.
//!
//! Of a window that is open at one end only the rows nearest to the other end may count: in as-of joins, nearest rows
//! and EXISTS. So may, of rows before a window, the one that is in force at its start. No bound tells where these rows
//! are, so slices of the range key are read, the first from the bounds as far as these are apart, each further one
//! twice as long:
//!
//! ```text
//!   bounds                                │ │  ││  │
//!   slices      third         │  second   │ first  │     sought below the bounds
//! ```
//!
//! It ends when each combination of equality keys has as many rows beyond all of its bounds as count. No row is in two
//! slices, so one that exists nowhere costs a read of all rows at most.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Decimal128Array, RecordBatch, UInt32Array};
use arrow::buffer::NullBuffer;
use arrow::compute::{concat, max, min, take};
use arrow::datatypes::{DataType, Schema};
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::{DataFusionError, JoinType, Result, exec_err};
use datafusion::physical_expr::PhysicalExprRef;

use crate::common::ordered_type::value_type;
use crate::common::row_number::row_number;
use crate::exec::range_join::bounds::wrapped_bound;
use crate::exec::range_join::reach::intervals::Intervals;
use crate::exec::range_join::reach::whole_keys::{is_whole_number, limits, numbers, value};
use crate::exec::range_join::reach::window_reach::{Reach, is_ordered_in_files};
use crate::exec::range_join::row_join::RowJoin;
use crate::exec::range_join::spill::key_extent::comparable;
use crate::logical_plan::range_join::{AggregateKind, RangeJoinSpec};
use rmq_engine::Extreme;

/// After so many slices all that is left is read.
const MAX_SLICES: usize = 24;

/// The first slice is at least this part of the extent of the keys, if that is known.
const LEAST_SHARE: i128 = 1 << 12;

/// Which rows count beside those in closed windows: the nearest ones to a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sought {
    /// The index of the bound.
    bound: usize,
    /// Whether rows are sought below the bound, or else above it.
    is_below: bool,
    /// Whether a row at the bound is one of them.
    or_equal: bool,
    /// How many count.
    rows: usize,
}

/// The rows that the windows of a probe side seek.
#[derive(Debug)]
pub(crate) struct SoughtRows {
    spec: Arc<RangeJoinSpec<PhysicalExprRef>>,
    sought: Sought,
    key_type: DataType,
    converter: Option<RowConverter>,
    /// The equality keys of all probe rows.
    keys: Vec<ArrayRef>,
    /// The combinations of equality keys whose rows have not been found.
    seekers: HashMap<Box<[u8]>, Seeker>,
    /// The keys of the slice that is read next; `None` if all have been read.
    next: Option<Slice>,
    slices: usize,
    /// The smallest and the greatest range key, as far as these are known.
    extremes: Option<(i128, i128)>,
}

/// Probe rows with the same equality keys.
#[derive(Debug)]
struct Seeker {
    /// The bound that is farthest from the other bounds' rows: the least one if rows below are sought.
    bound: i128,
    missing: usize,
    /// One of these probe rows.
    row: u32,
}

/// Range keys from `low` to `high`, both included; `None` for an end that is that of all keys.
#[derive(Debug, Clone, Copy)]
struct Slice {
    low: Option<i128>,
    high: Option<i128>,
    /// How long the slice is beyond the bounds.
    length: i128,
}

impl Sought {
    /// Of a join; `None` if all rows of its windows count and no others, or if they can't be sought.
    pub(crate) fn of(
        spec: &RangeJoinSpec<PhysicalExprRef>,
        row_join: Option<&RowJoin>,
        build: &Schema,
    ) -> Option<Self> {
        let key_type = spec.key.data_type(build).ok()?;
        let are_compared = |key: &PhysicalExprRef| {
            let data_type = key.data_type(build).ok();
            // Of equal floats some have other bytes.
            data_type.is_some_and(|key| {
                let value = value_type(&key);
                is_ordered_in_files(&value) && !value.is_floating()
            })
        };
        // Keys beyond the bound of a difference that wraps around may be in its range.
        let wraps = |(_, bound): &(_, PhysicalExprRef)| wrapped_bound(bound).is_some();
        if spec.bounds.iter().any(wraps) {
            return None;
        }
        if !is_whole_number(&key_type) || !spec.on.iter().all(|(_, key)| are_compared(key)) {
            return None;
        }
        if spec.prevailing {
            let mut bounds = spec.bounds.iter().enumerate();
            let (bound, _) = bounds.find(|(_, (comparison, _))| comparison.is_lower())?;
            return Some(Self {
                bound,
                is_below: true,
                or_equal: true,
                rows: 1,
            });
        }
        let [(comparison, _)] = &spec.bounds[..] else {
            return None;
        };
        let is_below = !comparison.is_lower();
        Some(Self {
            bound: 0,
            is_below,
            or_equal: !comparison.is_strict(),
            rows: rows_that_count(spec, row_join, is_below)?,
        })
    }
}

/// How many rows count of a window that is open below, or above: those nearest to its only bound; `None` for all.
fn rows_that_count(
    spec: &RangeJoinSpec<PhysicalExprRef>,
    row_join: Option<&RowJoin>,
    is_below: bool,
) -> Option<usize> {
    let is_nearest = |function, arguments: &[PhysicalExprRef]| match function {
        AggregateKind::Last | AggregateKind::Rightmost => is_below,
        AggregateKind::First => !is_below,
        AggregateKind::Extreme(extreme) => {
            is_below == (extreme == Extreme::Max) && *arguments == [Arc::clone(&spec.key)]
        }
        _ => false,
    };
    let mut aggregates = spec.aggregates.iter();
    if !aggregates.all(|aggregate| is_nearest(aggregate.function, &aggregate.arguments)) {
        return None;
    }
    let Some(join) = row_join else {
        return Some(1);
    };
    if join.residual.is_some() || join.distance.is_some() || join.order.is_some() {
        return None;
    }
    match (join.join_type, join.limit) {
        (JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark, None) => Some(1),
        (JoinType::Inner | JoinType::Left, Some(limit)) if limit.descending == is_below => {
            limit.fetch.map(|fetch| fetch.saturating_add(limit.skip))
        }
        _ => None,
    }
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
        // Without a bound there are no seekers either, and nothing is read.
        let (least, greatest) = min(&sought_from).zip(max(&sought_from)).unwrap_or_default();
        // Where windows end on the side that is not sought on.
        let is_other_end =
            |(index, _): &(usize, &ArrayRef)| spec.prevailing && *index != sought.bound;
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
        let next = if sought.is_below {
            Slice {
                low: least.checked_sub(length),
                high: if spec.prevailing { end } else { Some(greatest) },
                length,
            }
        } else {
            Slice {
                low: Some(least),
                high: greatest.checked_add(length),
                length,
            }
        };
        let fields = keys
            .iter()
            .map(|key| SortField::new(key.data_type().clone()));
        let fields: Vec<_> = fields.collect();
        let converter = (!fields.is_empty())
            .then(|| RowConverter::new(fields))
            .transpose()?;
        let mut all = Self {
            spec: Arc::clone(spec),
            sought,
            key_type,
            converter,
            keys,
            seekers: HashMap::new(),
            next: Some(next),
            slices: 0,
            extremes,
        };
        all.add_seekers(&sought_from)?;
        Ok(all)
    }

    fn add_seekers(&mut self, bounds: &Decimal128Array) -> Result<()> {
        let groups = Groups::of(self.converter.as_ref(), &self.keys)?;
        let is_below = self.sought.is_below;
        for (row, bound) in bounds.iter().enumerate() {
            let (Some(bound), Some(group)) = (bound, groups.of_row(row)) else {
                continue;
            };
            if let Some(seeker) = self.seekers.get_mut(group) {
                let farther = if is_below { i128::min } else { i128::max };
                seeker.bound = farther(seeker.bound, bound);
                continue;
            }
            let seeker = Seeker {
                bound,
                missing: self.sought.rows,
                row: row_number(row)?,
            };
            self.seekers.insert(group.into(), seeker);
        }
        Ok(())
    }

    /// Whether each slice has smaller keys than the one before, or else greater ones.
    pub(super) fn is_below(&self) -> bool {
        self.sought.is_below
    }

    /// Makes the next slice the last one, which has all keys that are left.
    pub(super) fn read_rest_next(&mut self) {
        if let Some(next) = &mut self.next {
            let end = if self.sought.is_below {
                &mut next.low
            } else {
                &mut next.high
            };
            *end = None;
        }
    }

    /// The part of the rows that the first slice has, if keys were evenly distributed; `None` if that can't be told.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn first_share(&self) -> Option<f64> {
        let ((min, max), slice) = self.extremes.zip(self.next)?;
        let extent = max as f64 - min as f64;
        let low = slice.low.unwrap_or(min).max(min);
        let high = slice.high.unwrap_or(max).min(max);
        // Both are the same in a column of one value.
        Some(if extent > 0.0 {
            ((high as f64 - low as f64) / extent).max(0.0)
        } else {
            1.0
        })
    }

    /// What the next slice has for those whose rows have not been found; `None` if nothing is left to be read.
    ///
    /// # Errors
    /// If an equality key can't be compared with its values.
    pub(crate) fn next_slice(&mut self, build: &Schema) -> Result<Option<Reach>> {
        let Some(slice) = self.next.filter(|_| !self.seekers.is_empty()) else {
            return Ok(None);
        };
        self.next = self.after(slice);
        self.slices += 1;
        let rows = self.seekers.values().map(|seeker| seeker.row);
        let rows: UInt32Array = rows.collect();
        let keys = self.keys.iter().map(|keys| Ok(take(keys, &rows, None)?));
        let keys: Vec<_> = keys.collect::<Result<_>>()?;
        let end = |end: Option<i128>| {
            let value = end.map(|end| value(end, &self.key_type));
            Ok::<_, DataFusionError>(value.transpose()?.flatten())
        };
        let ends = vec![(end(slice.low)?, end(slice.high)?)];
        let intervals = Intervals::of_disjoint(&self.key_type, ends)?;
        Reach::of_keys(&self.spec, intervals, &keys, build).map(Some)
    }

    /// The slice that is beyond this one; `None` if no key is.
    fn after(&self, slice: Slice) -> Option<Slice> {
        let length = slice.length.saturating_mul(2);
        let (least, greatest) = limits(&self.key_type);
        // What is beyond all known keys is one slice, too.
        let is_last = |is_beyond_all: bool| is_beyond_all || self.slices + 2 >= MAX_SLICES;
        Some(if self.sought.is_below {
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
        if self.seekers.is_empty() {
            return Ok(());
        }
        let evaluated = |expr: &PhysicalExprRef| -> Result<ArrayRef> {
            comparable(&expr.evaluate(batch)?.into_array(batch.num_rows())?)
        };
        let range_keys = numbers(&evaluated(&self.spec.key)?)?;
        let keys = self.spec.on.iter().map(|(_, key)| evaluated(key));
        let keys: Vec<_> = keys.collect::<Result<_>>()?;
        let groups = Groups::of(self.converter.as_ref(), &keys)?;
        let Sought {
            is_below, or_equal, ..
        } = self.sought;
        for (row, range_key) in range_keys.iter().enumerate() {
            let (Some(range_key), Some(group)) = (range_key, groups.of_row(row)) else {
                continue;
            };
            let Some(seeker) = self.seekers.get_mut(group) else {
                continue;
            };
            let beyond = if is_below {
                Ordering::Less
            } else {
                Ordering::Greater
            };
            match range_key.cmp(&seeker.bound) {
                Ordering::Equal if or_equal => {}
                side if side == beyond => {}
                _ => continue,
            }
            seeker.missing = seeker.missing.saturating_sub(1);
            if seeker.missing == 0 {
                self.seekers.remove(group);
            }
        }
        Ok(())
    }
}

/// The equality keys of some rows as bytes; no row has any where there are no such keys.
struct Groups {
    rows: Option<Rows>,
    nulls: Option<NullBuffer>,
}

impl Groups {
    fn of(converter: Option<&RowConverter>, keys: &[ArrayRef]) -> Result<Self> {
        let rows = converter.map(|converter| converter.convert_columns(keys));
        let nulls = keys.iter().map(Array::logical_nulls);
        let nulls = nulls.fold(None, |all, nulls| {
            NullBuffer::union(all.as_ref(), nulls.as_ref())
        });
        Ok(Self {
            rows: rows.transpose()?,
            nulls,
        })
    }

    /// `None` if a key is NULL, which matches nothing.
    fn of_row(&self, row: usize) -> Option<&[u8]> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return None;
        }
        Some(match &self.rows {
            Some(rows) => rows.row(row).data(),
            None => &[],
        })
    }
}
