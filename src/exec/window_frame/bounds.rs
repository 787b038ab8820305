//! The frames of rows: from which row of its group to which each one goes.

use std::cmp::Ordering;
use std::ops::Range;

use arrow::array::{Array, ArrayRef, DynComparator, make_comparator, new_empty_array};
use arrow::buffer::NullBuffer;
use arrow::compute::kernels::numeric::{add, sub};
use arrow::compute::{SortOptions, cast};
use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::{WindowFrame, WindowFrameBound, WindowFrameUnits};

use datafusion_rmq_logical::expr::decimal_average::decimal_digits;
use datafusion_rmq_logical::expr::shifted_bound::{MOST_BACK, calendar_offset, saturating_sums};
use datafusion_rmq_logical::expr::ticks::opposite;

/// The frames of rows of sorted groups.
pub(crate) struct FrameBounds {
    start: Edge,
    end: Edge,
}

/// One end of each row's frame.
enum Edge {
    /// That of the row's group.
    Group,
    /// At this distance from the row.
    Rows(i64),
    /// By the keys of ORDER BY.
    Keys(Limits),
    /// By timestamps with days or months added, which may be earlier for a later key: of 02:59 in summer time it is the
    /// next day's 02:59, and of 02:00 in winter time, a minute later, the next day's 02:00.
    Calendar {
        limits: Limits,
        /// No limit of a later row is before these.
        earliest: Limits,
    },
}

/// Where frames of RANGE end.
struct Limits {
    /// Compares the keys of a row with the limit of a row, in the order of each expression.
    compare: Vec<DynComparator>,
    beyond: Option<Beyond>,
    is_preceding: bool,
}

/// Limits beyond all values of the key's type: all keys are on one side of them, but for NULLs, which have their place
/// before or after the others.
struct Beyond {
    /// The rows that have such a limit.
    rows: Vec<bool>,
    /// Which keys are NULL.
    nulls: Option<NullBuffer>,
    nulls_first: bool,
}

impl FrameBounds {
    /// Whether days or months are added to timestamps of these types in the calendar. DataFusion takes a time that the
    /// clocks leave out for one beyond all times.
    pub(crate) fn are_of_calendar(frame: &WindowFrame, keys: &[DataType]) -> bool {
        let bounds = [&frame.start_bound, &frame.end_bound];
        let is_of_calendar = |bound: &WindowFrameBound| match (bound, keys) {
            (WindowFrameBound::Preceding(offset) | WindowFrameBound::Following(offset), [key]) => {
                calendar_offset(key, offset, true).is_some()
            }
            _ => false,
        };
        frame.units == WindowFrameUnits::Range && bounds.into_iter().any(is_of_calendar)
    }

    /// Whether frames can be found of rows whose keys have these types. The rest is DataFusion's, such as GROUPS.
    pub(crate) fn supports(frame: &WindowFrame, keys: &[DataType]) -> bool {
        let bounds = [&frame.start_bound, &frame.end_bound];
        let mut distances = bounds.into_iter().filter_map(|bound| match bound {
            WindowFrameBound::Preceding(offset) | WindowFrameBound::Following(offset) => {
                Some(offset).filter(|offset| !offset.is_null())
            }
            WindowFrameBound::CurrentRow => None,
        });
        let can_compare = |key: &DataType| {
            let none = new_empty_array(key);
            make_comparator(&none, &none, SortOptions::default()).is_ok()
        };
        match frame.units {
            WindowFrameUnits::Rows => true,
            WindowFrameUnits::Range if !keys.iter().all(can_compare) => false,
            WindowFrameUnits::Range => distances.all(|offset| match keys {
                [key] => [true, false].into_iter().all(|forward| {
                    let moved = moved_type(key, offset, forward);
                    moved.is_ok_and(|moved| moved == *key || is_wider(&moved, key))
                }),
                _ => false,
            }),
            WindowFrameUnits::Groups => false,
        }
    }

    /// The frames of rows with these keys, which come in the order of `options`.
    ///
    /// # Errors
    /// An internal error for GROUPS, and what Arrow can't compare.
    pub(crate) fn try_new(
        frame: &WindowFrame,
        keys: &[ArrayRef],
        options: &[SortOptions],
    ) -> Result<Self> {
        let edge = |bound: &WindowFrameBound| -> Result<Edge> {
            let (offset, is_preceding) = match bound {
                WindowFrameBound::CurrentRow => (None, false),
                WindowFrameBound::Preceding(offset) => (Some(offset), true),
                WindowFrameBound::Following(offset) => (Some(offset), false),
            };
            if offset.is_some_and(ScalarValue::is_null) {
                return Ok(Edge::Group);
            }
            match frame.units {
                WindowFrameUnits::Rows => {
                    let distance = match offset {
                        None => 0,
                        // No group has more rows.
                        Some(ScalarValue::UInt64(Some(rows))) => {
                            i64::try_from(*rows).unwrap_or(i64::MAX).min(i64::MAX / 4)
                        }
                        Some(other) => return internal_err!("a frame of {other} rows"),
                    };
                    Ok(Edge::Rows(if is_preceding { -distance } else { distance }))
                }
                WindowFrameUnits::Range => Edge::of_keys(keys, options, offset, is_preceding),
                WindowFrameUnits::Groups => internal_err!("frames of GROUPS are DataFusion's"),
            }
        };
        Ok(Self {
            start: edge(&frame.start_bound)?,
            end: edge(&frame.end_bound)?,
        })
    }

    /// Finds the frames of the rows from `rows.start` on, one after the other, up to `rows.end` or the first one that
    /// is not final: rows that follow `group` would change it. `last` is the frame of the row before, or empty at the
    /// start of the group; of a group whose first rows are left out, the positions of the others count from 0.
    pub(crate) fn find(
        &self,
        group: &Range<usize>,
        rows: Range<usize>,
        is_whole: bool,
        last: &mut Range<usize>,
        frames: &mut Vec<Range<usize>>,
    ) {
        for row in rows {
            let (start, _) = self.start.find(row, group, last.start, Ordering::is_lt, 0);
            let (end, is_final) = self.end.find(row, group, last.end, Ordering::is_le, 1);
            if !is_final && !is_whole {
                return;
            }
            *last = start..end;
            frames.push(start..end.max(start));
        }
    }

    /// The first row of `group` that the frames of rows behind `row` can reach, whose own frame begins at `start`.
    pub(crate) fn first_reached(&self, row: usize, group: &Range<usize>, start: usize) -> usize {
        match &self.start {
            Edge::Calendar { earliest, .. } => {
                start.min(earliest.search(row, group, Ordering::is_lt))
            }
            _ => start,
        }
    }
}

impl Edge {
    fn of_keys(
        keys: &[ArrayRef],
        options: &[SortOptions],
        offset: Option<&ScalarValue>,
        is_preceding: bool,
    ) -> Result<Self> {
        let (Some(offset), [key], [order]) = (offset, keys, options) else {
            return Ok(Self::Keys(Limits::try_new(
                keys,
                options,
                offset,
                is_preceding,
            )?));
        };
        let forward = is_preceding == order.descending;
        let Some(interval) = calendar_offset(key.data_type(), offset, forward) else {
            let limits = Limits::try_new(keys, options, Some(offset), is_preceding)?;
            return Ok(Self::Keys(limits));
        };
        let (sums, beyond) = saturating_sums(key, interval)?;
        let back = if order.descending {
            Some(MOST_BACK)
        } else {
            opposite(MOST_BACK)
        };
        let (earliest, _) = saturating_sums(&sums, back.unwrap_or_default())?;
        let limits_at = |limits: ArrayRef| -> Result<Limits> {
            Ok(Limits {
                compare: vec![make_comparator(key, &limits, *order)?],
                beyond: None,
                is_preceding,
            })
        };
        let mut limits = limits_at(sums)?;
        limits.beyond = beyond
            .contains(&true)
            .then(|| Beyond::new(beyond, key, *order));
        Ok(Self::Calendar {
            limits,
            earliest: limits_at(earliest)?,
        })
    }

    /// The end of the frame of `row`, an offset from which rows are in it or no longer in it, and whether no later row
    /// of the group would change it. The search of a key begins at `from` and passes rows whose comparison `passes`.
    fn find(
        &self,
        row: usize,
        group: &Range<usize>,
        from: usize,
        passes: fn(Ordering) -> bool,
        after: i64,
    ) -> (usize, bool) {
        match self {
            Self::Group if after == 0 => (group.start, true),
            Self::Group => (group.end, false),
            Self::Rows(distance) => {
                let position = i64::try_from(row).unwrap_or(i64::MAX / 2) + distance + after;
                let position = usize::try_from(position).unwrap_or(0);
                (
                    position.clamp(group.start, group.end),
                    position <= group.end,
                )
            }
            Self::Keys(limits) => {
                let end = limits.find(row, from, group.end, passes);
                (end, end < group.end)
            }
            Self::Calendar { limits, .. } => {
                let end = limits.search(row, group, passes);
                (end, end < group.end)
            }
        }
    }
}

impl Limits {
    fn try_new(
        keys: &[ArrayRef],
        options: &[SortOptions],
        offset: Option<&ScalarValue>,
        is_preceding: bool,
    ) -> Result<Self> {
        let (keys, limits, beyond) = match (offset, keys, options) {
            (None, ..) => (keys.to_vec(), keys.to_vec(), None),
            (Some(offset), [key], [order]) => {
                let (limits, rows) = move_keys(key, offset, is_preceding == order.descending)?;
                let beyond = rows.map(|rows| Beyond::new(rows, key, *order));
                // The sum of decimals has more digits.
                (vec![cast(key, limits.data_type())?], vec![limits], beyond)
            }
            _ => return internal_err!("a distance needs one expression in ORDER BY"),
        };
        let compare = keys.iter().zip(&limits).zip(options);
        let compare =
            compare.map(|((keys, limits), options)| make_comparator(keys, limits, *options));
        Ok(Self {
            compare: compare.collect::<Result<_, _>>()?,
            beyond,
            is_preceding,
        })
    }

    /// The first of the rows `from..to` whose keys don't pass the limit of `row`.
    fn find(&self, row: usize, from: usize, to: usize, passes: fn(Ordering) -> bool) -> usize {
        let mut end = from;
        while end < to && passes(self.order(end, row)) {
            end += 1;
        }
        end
    }

    /// The same of the rows of a group, by halving them.
    fn search(&self, row: usize, group: &Range<usize>, passes: fn(Ordering) -> bool) -> usize {
        let (mut start, mut end) = (group.start, group.end);
        while start < end {
            let middle = start.midpoint(end);
            if passes(self.order(middle, row)) {
                start = middle + 1;
            } else {
                end = middle;
            }
        }
        start
    }

    /// How the key at `position` compares with the limit of `row`.
    fn order(&self, position: usize, row: usize) -> Ordering {
        match self.beyond.as_ref().filter(|beyond| beyond.rows[row]) {
            Some(beyond) => beyond.order(position, self.is_preceding),
            None => {
                let orders = self.compare.iter().map(|compare| compare(position, row));
                orders.fold(Ordering::Equal, Ordering::then)
            }
        }
    }
}

impl Beyond {
    fn new(rows: Vec<bool>, keys: &ArrayRef, order: SortOptions) -> Self {
        Self {
            rows,
            nulls: keys.logical_nulls(),
            nulls_first: order.nulls_first,
        }
    }

    /// How the key at `position` compares with a limit before, or after, all values.
    fn order(&self, position: usize, is_before: bool) -> Ordering {
        let is_null = self
            .nulls
            .as_ref()
            .is_some_and(|nulls| nulls.is_null(position));
        let is_less = if is_null {
            self.nulls_first
        } else {
            !is_before
        };
        if is_less {
            Ordering::Less
        } else {
            Ordering::Greater
        }
    }
}

/// The type of keys with `offset` added or subtracted.
fn moved_type(key: &DataType, offset: &ScalarValue, forward: bool) -> Result<DataType> {
    let (none, by) = (new_empty_array(key), offset.to_scalar()?);
    let moved = if forward {
        add(&none, &by)
    } else {
        sub(&none, &by)
    };
    Ok(moved?.data_type().clone())
}

/// Whether it is a decimal type with the values of `key`, or more.
fn is_wider(moved: &DataType, key: &DataType) -> bool {
    match (decimal_digits(moved), decimal_digits(key)) {
        (Some((digits, scale)), Some((key_digits, key_scale))) => {
            scale == key_scale && digits >= key_digits
        }
        _ => false,
    }
}

/// The keys with `offset` added or subtracted, and for which rows the result is beyond the type. NULL stays NULL.
fn move_keys(
    keys: &ArrayRef,
    offset: &ScalarValue,
    forward: bool,
) -> Result<(ArrayRef, Option<Vec<bool>>)> {
    let by = offset.to_scalar()?;
    let moved = if forward {
        add(keys, &by)
    } else {
        sub(keys, &by)
    };
    if let Ok(moved) = moved {
        return Ok((moved, None));
    }
    // Some key is near the end of its type.
    let data_type = moved_type(keys.data_type(), offset, forward)?;
    let (mut limits, mut beyond) = (vec![], vec![]);
    for row in 0..keys.len() {
        let key = ScalarValue::try_from_array(keys, row)?;
        let moved = if key.is_null() {
            Ok(key.clone())
        } else if forward {
            key.add_checked(offset)
        } else {
            key.sub_checked(offset)
        };
        beyond.push(moved.is_err());
        limits.push(moved.unwrap_or(key).cast_to(&data_type)?);
    }
    Ok((ScalarValue::iter_to_array(limits)?, Some(beyond)))
}
