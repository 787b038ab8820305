//! Which rows count of windows that are open, or that have a point instead of bounds.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion::common::{JoinSide, JoinType, ScalarValue};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, IsNotNullExpr, Literal};
use datafusion::physical_expr::{PhysicalExprRef, ScalarFunctionExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};

use crate::exec::range_join::bounds::wrapped_bound;
use crate::exec::range_join::pair_distance::PairDistance;
use crate::exec::range_join::reach::build_extent::BuildExtent;
use crate::exec::range_join::reach::row_groups::is_ordered_in_files;
use crate::exec::range_join::reach::whole_keys::is_whole_number;
use crate::exec::range_join::row_join::RowJoin;
use datafusion_rmq_logical::expr::order_key::{OrderBoundUdf, OrderKeyUdf};
use datafusion_rmq_logical::logical_plan::range_join::{AggregateKind, RangeJoinSpec};
use rmq_arrow::common::ordered_type::value_type;
use rmq_engine::{Comparison, Extreme, RangeEnd};

/// Which rows count beside those in closed windows: the nearest ones to a bound.
#[derive(Debug, Clone)]
pub(crate) struct Sought {
    /// The index of the bound.
    pub(super) bound: usize,
    /// Whether rows are sought below the bound, above it, or both.
    pub(super) sides: Vec<Side>,
    /// How many count on each side.
    pub(super) rows: usize,
    /// The further condition that they meet, if there is one.
    pub(super) residual: Option<Residual>,
    /// Whether rows without a key count where there are too few others.
    pub(super) or_without_key: bool,
}

/// One side of a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) is_below: bool,
    /// Whether a row at the bound is on this side.
    pub(super) or_equal: bool,
}

/// A condition on pairs.
#[derive(Debug, Clone)]
pub(super) struct Residual {
    pub(super) condition: JoinFilter,
    /// What it numbers of the probe side; `None` for its columns.
    pub(super) probe: Option<PhysicalExprRef>,
    /// What it numbers of the build side.
    pub(super) build: Vec<PhysicalExprRef>,
}

impl Side {
    /// Whether a row with this key counts for this bound.
    pub(super) fn has(self, key: i128, bound: i128) -> bool {
        let beyond = if self.is_below {
            key < bound
        } else {
            key > bound
        };
        beyond || self.or_equal && key == bound
    }
}

/// The same join, with the point from which it orders its pairs by a distance as its only bound. `None` for any other
/// join, and if it has bounds, too.
pub(crate) fn from_point(
    spec: &RangeJoinSpec<PhysicalExprRef>,
    row_join: Option<&RowJoin>,
) -> Option<RangeJoinSpec<PhysicalExprRef>> {
    let distance = row_join?.distance()?;
    if !spec.bounds.is_empty() {
        return None;
    }
    let plain = (&spec.key, &distance.point);
    let (key, point) = key_and_point(plain.0, plain.1).unwrap_or(plain);
    let (key, point) = (PhysicalExprRef::clone(key), PhysicalExprRef::clone(point));
    Some(RangeJoinSpec {
        key,
        bounds: vec![(Comparison::AtMost, point)],
        ..spec.clone()
    })
}

/// What the bytes of an order key are of, if they put NULL last, and the bound that is compared with them.
fn key_and_point<'a>(
    key: &'a PhysicalExprRef,
    point: &'a PhysicalExprRef,
) -> Option<(&'a PhysicalExprRef, &'a PhysicalExprRef)> {
    let key = key.downcast_ref::<ScalarFunctionExpr>()?;
    let order = key.fun().inner().downcast_ref::<OrderKeyUdf>()?;
    let point = point.downcast_ref::<ScalarFunctionExpr>()?;
    let is_bound = point.fun().inner().is::<OrderBoundUdf>();
    match (key.args(), point.args()) {
        ([key], [point]) if is_bound && order.is_ascending() => Some((key, point)),
        _ => None,
    }
}

impl Sought {
    /// Of a join; `None` if all rows of its windows count and no others, or if they can't be sought.
    pub(crate) fn of(
        spec: &RangeJoinSpec<PhysicalExprRef>,
        row_join: Option<&RowJoin>,
        build: &Schema,
    ) -> Option<Self> {
        let from_point = from_point(spec, row_join);
        let (or_without_key, is_from_point) = match &from_point {
            Some(point) => (point.key.as_ref() != spec.key.as_ref(), true),
            None => (false, false),
        };
        let spec = from_point.as_ref().unwrap_or(spec);
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
        let of_side = |bound, side, rows| Self {
            bound,
            sides: vec![side],
            rows,
            residual: None,
            or_without_key: false,
        };
        if spec.prevailing {
            let mut bounds = spec.bounds.iter().enumerate();
            let (bound, _) = bounds.find(|(_, (comparison, _))| comparison.is_lower())?;
            let side = Side {
                is_below: true,
                or_equal: true,
            };
            return Some(of_side(bound, side, 1));
        }
        let [(comparison, _)] = &spec.bounds[..] else {
            return None;
        };
        let is_below = !comparison.is_lower();
        let residual = match row_join {
            Some(join) => join.residual().map(|condition| Residual {
                condition: condition.clone(),
                probe: None,
                build: join.row_columns(build),
            }),
            None if crossing(spec).is_some() => Some(Residual::of_crossings(spec, build)?),
            None => None,
        };
        if residual
            .as_ref()
            .is_some_and(|r| is_volatile(r.condition.expression()))
        {
            return None;
        }
        let found = if is_from_point {
            let sides = [true, false].map(|is_below| Side {
                is_below,
                or_equal: true,
            });
            Self {
                sides: sides.to_vec(),
                or_without_key,
                ..of_side(0, sides[0], rows_at_both_sides(row_join?)?)
            }
        } else {
            let side = Side {
                is_below,
                or_equal: !comparison.is_strict(),
            };
            of_side(0, side, rows_that_count(spec, row_join, is_below)?)
        };
        Some(Self { residual, ..found })
    }

    /// The same of a build side of which so much is known.
    pub(crate) fn within(self, extent: &BuildExtent) -> Self {
        Self {
            or_without_key: self.or_without_key && !extent.has_all_keys,
            ..self
        }
    }

    /// Whether rows are sought that no window tells, so that nothing is known without them.
    pub(crate) fn is_beside_windows(&self, spec: &RangeJoinSpec<PhysicalExprRef>) -> bool {
        spec.prevailing || self.sides.len() > 1
    }
}

/// What a row has to cross to count, if all aggregates have the same condition: a value of it, which compares so with a
/// limit.
fn crossing(
    spec: &RangeJoinSpec<PhysicalExprRef>,
) -> Option<(&PhysicalExprRef, Comparison, &PhysicalExprRef)> {
    let crossings = spec
        .aggregates
        .iter()
        .map(|aggregate| match aggregate.function {
            AggregateKind::AtCrossing {
                comparison,
                threshold,
                ..
            } => Some((aggregate.arguments.get(1)?, comparison, threshold)),
            _ => None,
        });
    let crossings: Vec<_> = crossings.collect::<Option<_>>()?;
    let first @ (value, comparison, threshold) = *crossings.first()?;
    let is_one = crossings.iter().all(|crossing| *crossing == first);
    let limit = spec.thresholds.get(threshold)?;
    is_one.then_some((value, comparison, limit))
}

impl Residual {
    /// The condition of aggregates that are of the nearest row which crosses a limit. Not of floats, of which some are
    /// equal that are not the same.
    fn of_crossings(spec: &RangeJoinSpec<PhysicalExprRef>, build: &Schema) -> Option<Self> {
        let (value, comparison, limit) = crossing(spec)?;
        let data_type = value.data_type(build).ok()?;
        if value_type(&data_type).is_floating() {
            return None;
        }
        let field = |name: &str| Field::new(name, data_type.clone(), true);
        let schema = Arc::new(Schema::new(vec![field("value"), field("limit")]));
        let column = |name: &str, index| Arc::new(Column::new(name, index)) as PhysicalExprRef;
        let operator = match comparison {
            Comparison::Above => Operator::Gt,
            Comparison::AtLeast => Operator::GtEq,
            Comparison::Below => Operator::Lt,
            Comparison::AtMost => Operator::LtEq,
        };
        let condition = BinaryExpr::new(column("value", 0), operator, column("limit", 1));
        let sides = [JoinSide::Right, JoinSide::Left];
        let columns = sides.map(|side| ColumnIndex { index: 0, side });
        Some(Self {
            condition: JoinFilter::new(Arc::new(condition), columns.to_vec(), schema),
            probe: Some(PhysicalExprRef::clone(limit)),
            build: vec![PhysicalExprRef::clone(value)],
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
        // The condition is one of all rows that count: see `Residual::of_crossings`.
        AggregateKind::AtCrossing { end, .. } => {
            crossing(spec).is_some() && is_below == (end == RangeEnd::Last)
        }
        AggregateKind::Extreme(extreme) => {
            is_below == (extreme == Extreme::Max)
                && *arguments == [PhysicalExprRef::clone(&spec.key)]
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
    if join.distance.is_some() || join.order.is_some() {
        return None;
    }
    match (join.join_type, join.limit) {
        (JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark, None) => Some(1),
        (JoinType::Inner | JoinType::Left, Some(limit)) if limit.descending == is_below => {
            limit.with_skipped().fetch
        }
        _ => None,
    }
}

/// How many rows count on each side of the point from which a join orders its pairs by a distance; `None` for all. Of
/// rows as far away, those before the point come first, and of these the last one. So with as many rows on each side as
/// are returned, none that is farther away comes before them, even if its distance is rounded to the same.
fn rows_at_both_sides(join: &RowJoin) -> Option<usize> {
    let distance = join.distance()?;
    if join.orders_ties() || !always_grows(distance) {
        return None;
    }
    let returns_pairs = matches!(join.join_type, JoinType::Inner | JoinType::Left);
    join.limit?.with_skipped().fetch.filter(|_| returns_pairs)
}

/// Whether a distance grows from any point that is not NULL.
fn always_grows(distance: &PairDistance) -> bool {
    let grows = distance.grows.expression();
    let literal = grows.downcast_ref::<Literal>().map(Literal::value);
    grows.is::<IsNotNullExpr>() || literal == Some(&ScalarValue::Boolean(Some(true)))
}
