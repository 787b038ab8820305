//! The range in the filter of a physical join.
//!
//! ```text
//!   p.ts >= q.a AND p.ts < q.b AND p.v > q.limit      build side p, probe side q
//!     key, bounds   p.ts in [q.a, q.b)
//!     residual      p.v > q.limit                     evaluated on the pairs that are left, or
//!     threshold     p.v > q.limit                     an index on p.v finds the rows of the range that qualify
//! ```
//!
//! DataFusion casts the coarser of two units, which fails for values that are too large. The bound is converted
//! instead, of thresholds and of further conditions, too.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion::common::{JoinSide, Result};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::{collect_columns, conjunction_opt, split_conjunction};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};

use crate::exec::range_join::row_threshold::{RowThreshold, with_columns};
use datafusion_rmq_logical::conditions::condition::{
    Compared, Open, Operand, Range, Sides, with_null_key,
};
use datafusion_rmq_logical::conditions::infallible::is_infallible;
use rmq_arrow::common::dictionaries::has_few_keys;
use rmq_arrow::common::ordered_type::{is_ordered, is_ranked, value_type};
use rmq_engine::Comparison;

/// A join's filter, split into the range of a key and what is left.
#[derive(Debug, Clone)]
pub(crate) struct RangeCondition {
    /// The range key, over the build side.
    pub(crate) key: PhysicalExprRef,
    /// The comparisons of the key with bounds over the probe side.
    pub(crate) bounds: Vec<(Comparison, PhysicalExprRef)>,
    /// The other conditions on pairs.
    pub(crate) residual: Option<JoinFilter>,
    /// The one of these that an index answers best: it compares a value of the build side with a limit of the probe
    /// side.
    pub(crate) threshold: Option<RowThreshold>,
}

impl RangeCondition {
    /// Splits a filter whose left side is the probe side. Of several keys, the one with bounds on both ends is taken,
    /// else the one with which a threshold bounds the pairs at the other end, else the first one. `None` if no key of
    /// the build side is compared with bounds over the probe side.
    pub(crate) fn find(
        filter: &JoinFilter,
        probe: &Schema,
        build: &Schema,
    ) -> Result<Option<Self>> {
        let conjuncts = split_conjunction(filter.expression()).into_iter();
        let conjuncts = conjuncts.map(|conjunct| {
            let found = sides_of(filter, |sides| sides.without_casts(conjunct))?;
            Ok(found.unwrap_or_else(|| Arc::clone(conjunct)))
        });
        let conjuncts: Vec<PhysicalExprRef> = conjuncts.collect::<Result<_>>()?;
        let mut comparisons: Vec<KeyComparison> = vec![];
        for (i, conjunct) in conjuncts.iter().enumerate() {
            comparisons.extend(key_comparisons(i, conjunct, filter, probe, build)?);
        }
        let is_range = |i| {
            let mut ranges = comparisons.iter().filter(|found| found.conjunct == i);
            ranges.any(|found| found.open != Open::Wrapping)
        };
        let others = (0..conjuncts.len()).filter(|i| !is_range(*i));
        let others: Vec<usize> = others.collect();
        for (n, &i) in others.iter().enumerate() {
            for &j in &others[n + 1..] {
                let ranges = sides_of(filter, |sides| sides.between(&conjuncts[i], &conjuncts[j]));
                for (conjunct, range) in [i, j].into_iter().zip(ranges?.into_iter().flatten()) {
                    let found = searchable(conjunct, range, filter, probe, build)?;
                    // Both ends need no key that wraps around by itself.
                    comparisons.retain(|of_one_end| {
                        let is_same = of_one_end.conjunct == conjunct && found.is_some();
                        !(is_same && of_one_end.open == Open::Wrapping)
                    });
                    comparisons.extend(found);
                }
            }
        }
        close_open_ends(&mut comparisons, probe, build)?;
        let Some((key, best)) = best_key(&comparisons) else {
            return Ok(None);
        };
        let is_of_key = |found: &KeyComparison| found.key.as_ref() == key.as_ref();
        let made = |i: usize| comparisons.iter().filter(move |found| found.conjunct == i);
        let is_exact = |i: usize| made(i).count() > 0 && made(i).all(|found| found.open.is_exact());
        let is_met = |i: usize| is_exact(i) && made(i).all(is_of_key);
        // The further condition says whether the error of a key is met.
        let may_fail = comparisons
            .iter()
            .any(|found| is_of_key(found) && found.may_fail);
        let keeps_all = may_fail && !(0..conjuncts.len()).all(is_met);
        let (mut residual, mut rest) = (vec![], vec![]);
        for (i, conjunct) in conjuncts.into_iter().enumerate() {
            if is_met(i) && !keeps_all {
                continue;
            }
            residual.push(Arc::clone(&conjunct));
            let threshold = best.and_then(|best| comparisons.get(best));
            let is_threshold = threshold.is_some_and(|threshold| threshold.conjunct == i);
            if !(is_threshold && is_exact(i) && made(i).count() == 1) {
                rest.push(conjunct);
            }
        }
        let (mut bounds, mut threshold) = (vec![], None);
        for (i, found) in comparisons.into_iter().enumerate() {
            if is_of_key(&found) {
                bounds.push((found.comparison, found.bound));
            } else if best == Some(i) {
                threshold = Some(found);
            }
        }
        let filter_of = |conjuncts| -> Result<Option<JoinFilter>> {
            let part = conjunction_opt(conjuncts);
            part.map(|part| with_its_columns(&part, filter)).transpose()
        };
        let rest = filter_of(rest)?;
        Ok(Some(Self {
            key,
            bounds,
            residual: filter_of(residual)?,
            threshold: threshold.map(|found| found.into_threshold(rest)),
        }))
    }

    /// Whether the range has a lower and an upper bound.
    pub(crate) fn is_closed(&self) -> bool {
        let is_lower = |(comparison, _): &(Comparison, _)| comparison.is_lower();
        self.bounds.iter().any(is_lower) && !self.bounds.iter().all(is_lower)
    }

    /// Whether the pairs are bounded at both ends: by the range, or at one end by the range and at the other by the
    /// threshold, as where two intervals overlap. The candidates of such a join are all rows up to a bound, which the
    /// index on the threshold narrows.
    pub(crate) fn is_bounded_twice(&self) -> bool {
        let is_opposite = |threshold: &RowThreshold| {
            let lower = threshold.comparison.is_lower();
            self.bounds
                .iter()
                .all(|(bound, _)| bound.is_lower() != lower)
        };
        self.is_closed() || self.threshold.as_ref().is_some_and(is_opposite)
    }

    /// Why the conditions besides the range can't be evaluated on pairs, if they can't.
    pub(crate) fn residual_rejection(&self) -> Option<String> {
        let residual = self.residual.as_ref()?;
        let columns = residual
            .column_indices()
            .iter()
            .zip(residual.schema().fields());
        let mut build_columns = columns.filter(|(column, _)| column.side == JoinSide::Right);
        let few = build_columns.find(|(_, field)| has_few_keys(field.data_type()));
        few.map(|(_, field)| {
            let (name, data_type) = (field.name(), field.data_type());
            format!("its condition needs {name}, a {data_type}")
        })
    }
}

/// Replaces comparisons with an open end that could hold for NULLs that a range does not have: those of a key, or of a
/// bound, that may be NULL where no other comparison excludes it. Those of a key get one in which NULL is a key, if
/// there is one; the others are dropped.
fn close_open_ends(
    comparisons: &mut Vec<KeyComparison>,
    probe: &Schema,
    build: &Schema,
) -> Result<()> {
    let mut safe = vec![];
    for found in &*comparisons {
        let mut closed = comparisons
            .iter()
            .filter(|c| !matches!(c.open, Open::Bound | Open::Key));
        safe.push(match found.open {
            Open::Never | Open::Implied | Open::Wrapping => true,
            Open::Bound => {
                !found.key.nullable(build)? || closed.any(|c| c.key.as_ref() == found.key.as_ref())
            }
            Open::Key => {
                !found.bound.nullable(probe)?
                    || closed.any(|c| c.bound.as_ref() == found.bound.as_ref())
            }
        });
    }
    for (found, is_safe) in std::mem::take(comparisons).into_iter().zip(safe) {
        if is_safe {
            comparisons.push(found);
        } else if found.open == Open::Bound {
            let compared = (found.key, found.comparison, found.bound);
            let with_null = with_null_key(&compared, probe, build)?;
            let with_null = with_null
                .map(|compared| KeyComparison::new(found.conjunct, compared, Open::Implied, build));
            comparisons.extend(with_null.transpose()?);
        }
    }
    Ok(())
}

/// The threshold among conditions on pairs, one filter each: the first, but values that an index has to sort come last.
/// Also its number. It has no rest.
pub(crate) fn best_threshold(
    conditions: &[JoinFilter],
    probe: &Schema,
    build: &Schema,
) -> Result<Option<(usize, RowThreshold)>> {
    let mut best: Option<(usize, RowThreshold)> = None;
    for (i, filter) in conditions.iter().enumerate() {
        let mut found = key_comparisons(i, filter.expression(), filter, probe, build)?;
        // Whether an open end is safe depends on the other conditions. One comparison must be all of a condition.
        found.retain(|found| found.open == Open::Never);
        let (Some(found), true) = (found.pop(), found.is_empty()) else {
            continue;
        };
        let is_better = |known: &(usize, RowThreshold)| known.1.is_ranked && !found.is_ranked;
        if best.as_ref().is_none_or(is_better) {
            best = Some((i, found.into_threshold(None)));
        }
    }
    Ok(best)
}

/// The key to sort by, and the number of the comparison that becomes the threshold; `None` if there is no comparison.
/// Of equally good ones the first.
///
/// A range that is open at one end may have nearly all rows. Then a threshold at the other end is worth most: both
/// together are an overlap of intervals. The two ends of an interval are of one type, by which they are told from
/// another value.
fn best_key(comparisons: &[KeyComparison]) -> Option<(PhysicalExprRef, Option<usize>)> {
    let all = || comparisons.iter().enumerate();
    let mut best: Option<((bool, ThresholdRank, bool), _)> = None;
    for (_, candidate) in all() {
        let is_of_key = |c: &KeyComparison| c.key.as_ref() == candidate.key.as_ref();
        let bounds = || {
            all()
                .filter(|(_, c)| is_of_key(c))
                .map(|(_, c)| c.comparison)
        };
        let is_closed = bounds().any(Comparison::is_lower) && !bounds().all(Comparison::is_lower);
        let rank = |c: &KeyComparison| {
            let is_opposite = c.comparison.is_lower() != candidate.comparison.is_lower();
            let closes = is_opposite && !is_closed;
            (
                closes,
                closes && c.key_type == candidate.key_type,
                !c.is_ranked,
                !c.may_fail,
            )
        };
        let mut threshold: Option<(ThresholdRank, usize)> = None;
        let may_be_threshold = |c: &KeyComparison| !is_of_key(c) && c.open != Open::Wrapping;
        for (i, other) in all().filter(|(_, c)| may_be_threshold(c)) {
            if threshold.is_none_or(|(known, _)| rank(other) > known) {
                threshold = Some((rank(other), i));
            }
        }
        let rank = (
            is_closed,
            threshold.map_or_else(Default::default, |(rank, _)| rank),
            !candidate.may_fail,
        );
        if best.as_ref().is_none_or(|(known, _)| rank > *known) {
            let threshold = threshold.map(|(_, i)| i);
            best = Some((rank, (Arc::clone(&candidate.key), threshold)));
        }
    }
    best.map(|(_, found)| found)
}

/// How good a threshold is, the greater the better: whether it bounds the pairs at the end where the range is open;
/// whether it is then of the type of the range key; whether its values need not be sorted for its index; whether it
/// can't fail, as its index can't be built then.
type ThresholdRank = (bool, bool, bool, bool);

/// A comparison of a key of the build side with a bound over the probe side.
struct KeyComparison {
    /// The number of the conjunct that makes it, or implies it.
    conjunct: usize,
    key: PhysicalExprRef,
    key_type: DataType,
    is_ranked: bool,
    comparison: Comparison,
    bound: PhysicalExprRef,
    open: Open,
    /// Whether the key may fail. Its errors are raised for rows with equal keys, as the join would meet them.
    may_fail: bool,
}

impl KeyComparison {
    fn new(
        conjunct: usize,
        (key, comparison, bound): Compared<PhysicalExprRef>,
        open: Open,
        build: &Schema,
    ) -> Result<Self> {
        let key_type = key.data_type(build)?;
        Ok(Self {
            conjunct,
            may_fail: !is_infallible(&key, build)?,
            key,
            is_ranked: is_ranked(&key_type),
            key_type: value_type(&key_type),
            comparison,
            bound,
            open,
        })
    }

    fn into_threshold(self, rest: Option<JoinFilter>) -> RowThreshold {
        RowThreshold {
            value: self.key,
            is_ranked: self.is_ranked,
            comparison: self.comparison,
            limit: self.bound,
            rest,
        }
    }
}

/// The comparisons that a conjunct makes, those that sorted keys can answer.
fn key_comparisons(
    number: usize,
    conjunct: &PhysicalExprRef,
    filter: &JoinFilter,
    probe: &Schema,
    build: &Schema,
) -> Result<Vec<KeyComparison>> {
    let ranges = match compared_sides(conjunct, filter) {
        Some(compared) => vec![Range {
            compared,
            open: Open::Never,
        }],
        None => sides_of(filter, |sides| sides.ranges(conjunct))?,
    };
    let stated = ranges.len();
    let mut comparisons = vec![];
    for range in ranges {
        comparisons.extend(searchable(number, range, filter, probe, build)?);
    }
    // Without the others a comparison is less than the conjunct states.
    if comparisons.len() < stated {
        for comparison in &mut comparisons {
            comparison.open = match comparison.open {
                Open::Never => Open::Implied,
                other => other,
            };
        }
    }
    Ok(comparisons)
}

/// The comparison of a range, if sorted keys can answer it.
fn searchable(
    conjunct: usize,
    range: Range<PhysicalExprRef>,
    filter: &JoinFilter,
    probe: &Schema,
    build: &Schema,
) -> Result<Option<KeyComparison>> {
    let Range {
        compared: (key, comparison, bound),
        open,
    } = range;
    let (key, bound) = (over_side(&key, filter)?, over_side(&bound, filter)?);
    let (key_type, bound_type) = (key.data_type(build)?, bound.data_type(probe)?);
    let is_searchable = is_ordered(&key_type)
        && value_type(&key_type) == value_type(&bound_type)
        && !is_volatile(&key)
        && !is_volatile(&bound);
    let compared = (key, comparison, bound);
    let found = is_searchable.then(|| KeyComparison::new(conjunct, compared, open, build));
    found.transpose()
}

/// Calls a function with the sides of a filter.
pub(super) fn sides_of<T>(
    filter: &JoinFilter,
    call: impl FnOnce(&Sides<'_, PhysicalExprRef>) -> T,
) -> T {
    call(&Sides {
        is_bound: &|e| side(e, filter) == Some(JoinSide::Left),
        is_key: &|e| side(e, filter) == Some(JoinSide::Right),
        bounds: filter.schema().as_ref(),
        keys: filter.schema().as_ref(),
    })
}

/// What a conjunct compares, if it compares the two sides: the expression over the build side, and that over the probe
/// side.
pub(crate) fn compared_sides(
    conjunct: &PhysicalExprRef,
    filter: &JoinFilter,
) -> Option<Compared<PhysicalExprRef>> {
    sides_of(filter, |sides| sides.stated(conjunct))
}

/// Whether a conjunct bounds a key of the build side, perhaps among other things.
pub(crate) fn has_ranges(conjunct: &PhysicalExprRef, filter: &JoinFilter) -> bool {
    let ranges = sides_of(filter, |sides| sides.ranges(conjunct));
    ranges.is_ok_and(|ranges| !ranges.is_empty())
}

/// The one side that an expression has columns of.
fn side(expr: &PhysicalExprRef, filter: &JoinFilter) -> Option<JoinSide> {
    let columns = collect_columns(expr);
    let mut sides = columns
        .iter()
        .map(|c| filter.column_indices().get(c.index()));
    let first = sides.next()??.side;
    sides
        .all(|column| column.is_some_and(|column| column.side == first))
        .then_some(first)
}

/// An expression over the columns of a filter as one over the columns of its side.
pub(super) fn over_side(expr: &PhysicalExprRef, filter: &JoinFilter) -> Result<PhysicalExprRef> {
    with_columns(expr, |column| {
        let of_side = filter.column_indices().get(column.index());
        Ok(of_side.map(|of_side| Column::new(column.name(), of_side.index)))
    })
}

/// A filter of this part of a filter's expression, with only the columns that it needs.
pub(super) fn with_its_columns(part: &PhysicalExprRef, filter: &JoinFilter) -> Result<JoinFilter> {
    let columns = collect_columns(part);
    let mut indices: Vec<usize> = columns.iter().map(Column::index).collect();
    indices.sort_unstable();
    let expression = with_columns(part, |column| {
        let index = indices.binary_search(&column.index()).ok();
        Ok(index.map(|index| Column::new(column.name(), index)))
    })?;
    let of_filter = indices.iter().map(|i| filter.column_indices()[*i].clone());
    let columns: Vec<ColumnIndex> = of_filter.collect();
    let schema = Arc::new(filter.schema().project(&indices)?);
    Ok(JoinFilter::new(expression, columns, schema))
}
