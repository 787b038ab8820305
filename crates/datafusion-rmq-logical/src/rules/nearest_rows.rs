//! A correlated subquery that returns rows in the order of a key, as many as LIMIT allows: the nearest rows, or the top
//! n.
//!
//! ```text
//!   subquery                                                     match
//!   Limit: fetch=5                                               values     p.value
//!     Sort: p.ts DESC                                            on         p.sym = q.sym, range p.ts in (-inf, q.ts]
//!       Projection: p.value, p.ts                                residual   p.venue <> q.venue
//!         Filter: p.sym = outer(q.sym)                           limit      descending, 5
//!             AND p.ts <= outer(q.ts)                            build      p
//!             AND p.venue <> outer(q.venue)
//!           p
//! ```
//!
//! The range key is what ORDER BY sorts by, if that is compared with the outer query. Otherwise it is another
//! expression that is, and the rows of its range are ordered by themselves: `ORDER BY p.v DESC` of `p.ts <= q.ts`. So
//! it is, too, if that has two ends and what ORDER BY sorts by only one. Comparisons of the range key are bounds, in
//! other words, too, and equal columns are equality keys; what else compares the two sides is a further condition,
//! evaluated on rows in their order until there are as many as LIMIT allows. Without a bound, all rows with the
//! equality keys are in the range. Where ORDER BY is a distance of the range key from a point (see `distance`), rows
//! are taken on both sides of that.

use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{Column, DFSchema, Result};
use datafusion_expr::utils::conjunction;
use datafusion_expr::{
    Expr, ExprSchemable, LogicalPlan, Operator, ScalarUDF, SortExpr, cast, lit, when,
};
use datafusion_optimizer::OptimizerConfig;

use crate::common::sql_text::sql_text;
use crate::conditions::condition::{Open, Range};
use crate::conditions::infallible::is_infallible;
use crate::conditions::lossless_casts::widens;
use crate::conditions::prefixes::is_about_prefix;
use crate::conditions::rejection::{Match, reject};
use crate::expr::order_key::OrderBoundUdf;
use crate::logical_plan::nearest_rows::{Distance, NearestCondition, NearestRows, RowLimit};
use crate::logical_plan::range_join::Unmatched;
use crate::rules::common::names::unused_name;
use crate::rules::common::plans::{extension, with_columns};
use crate::rules::condition_parts::{
    Condition, Constants, check_repeats, conjuncts, is_of, sides_of, split_between,
};
use crate::rules::correlated_aggregate::of_types;
use crate::rules::distance::KeyDistance;
use crate::rules::nearest_row::{NearestQuery, NearestRow, orders_as};
use crate::rules::open_ends::as_comparison;
use crate::rules::order_by::{check_order, order_by_all, order_late};
use rmq_arrow::sorted::groups::Groups;
use rmq_engine::Comparison;

/// A correlated subquery as a join of nearest rows, without its probe side.
pub struct CorrelatedRows {
    build: LogicalPlan,
    condition: NearestCondition,
    /// The subquery's columns as expressions over the columns of both sides.
    pub values: Vec<Expr>,
}

impl CorrelatedRows {
    /// Matches the plan of a subquery with LIMIT that is evaluated for rows of `probe`. A probe row without a row of
    /// the subquery is kept with NULLs, or dropped.
    pub fn try_match(
        subquery: &LogicalPlan,
        unmatched: Unmatched,
        probe: &DFSchema,
        config: &dyn OptimizerConfig,
    ) -> Match<Self> {
        let Some(nearest) = NearestRow::of(subquery) else {
            return reject("it has no LIMIT");
        };
        let (skip, fetch) = nearest.rows()?;
        let NearestQuery {
            mut build,
            conditions,
            mut order,
            then_by,
            mut distance,
            columns,
        } = nearest
            .query(probe, config)?
            .with_names_of_its_own(probe, config)?;
        if distance.is_none() && is_by_prefix(&conditions, probe, build.schema())? {
            return reject("it is about a prefix, whose rows are in no range of one order");
        }
        let order_by = (&mut order.expr, &mut distance);
        let Matched {
            mut condition,
            residual,
            probe_filter,
            is_in_order,
        } = match_in_order(&conditions, order_by, probe, &build)?;
        let mut by_distance = None;
        let key = condition.key.clone();
        let mut order_by = if let Some(mut distance) = distance {
            // The point of a row that meets no condition is not evaluated.
            if let Some(filter) = probe_filter {
                distance.point = when(filter, distance.point).end()?;
            }
            if !is_in_order {
                return reject(format!(
                    "{} is a distance of another expression than that which has a range",
                    sql_text(&distance.by)
                ));
            }
            check_order(&then_by, build.schema())?;
            let distance = distance_from(&distance, &mut condition, &then_by, probe, &build)?;
            by_distance = Some(distance);
            then_by
        } else if is_in_order {
            order_by_all(&mut condition, &order, &then_by, &build)?;
            vec![]
        } else {
            let mut order_by = vec![order.clone()];
            order_by.extend(then_by);
            check_order(&order_by, build.schema())?;
            order_by
        };
        order_late(&mut condition, &mut order_by, &key, build.schema())?;
        build = condition.filter_build(build)?;

        // An expression has a value only where there is a row: a constant of the build side tells, which is NULL
        // otherwise.
        let is_of_row = |e: &Expr| matches!(e, Expr::Column(c) if build.schema().has_column(c));
        let needs_mark = unmatched == Unmatched::Keep && !columns.iter().all(is_of_row);
        for value in &columns {
            check_repeats(value)?;
        }
        let mut values = columns;
        if needs_mark {
            let name = unused_name(config, probe, "found");
            let mark = Expr::Column(Column::new_unqualified(&name));
            for value in values.iter_mut().filter(|value| !is_of_row(value)) {
                *value = when(mark.clone().is_not_null(), std::mem::take(value)).end()?;
            }
            build = with_columns(build, [lit(true).alias(name)])?;
        }
        let condition = NearestCondition {
            spec: condition.into_spec(unmatched, vec![], vec![], probe.metadata()),
            distance: by_distance,
            order_by,
            residual,
            limit: RowLimit {
                descending: !order.asc,
                skip,
                fetch,
            },
        };
        let joined = probe.join(build.schema())?;
        let values = of_types(values, subquery.schema(), &joined)?;
        Ok(Self {
            build,
            condition,
            values,
        })
    }

    /// Puts the join above `probe`.
    pub fn above(self, probe: LogicalPlan) -> Result<LogicalPlan> {
        let join = NearestRows::try_new(probe, self.build, self.condition)?;
        Ok(extension(join))
    }
}

/// The distance that rows are ordered by, from the point in terms of the range key.
fn distance_from(
    distance: &KeyDistance,
    condition: &mut Condition,
    then_by: &[SortExpr],
    probe: &DFSchema,
    build: &LogicalPlan,
) -> Match<Distance> {
    let schema = build.schema();
    let (key_type, point_type) = (
        condition.key.get_type(schema)?,
        distance.point.get_type(probe)?,
    );
    if !widens(&point_type, &key_type) {
        return reject(format!(
            "the range key {} is a {key_type} and its distance from a {point_type}",
            sql_text(&condition.key)
        ));
    }
    let nulls_last = SortExpr::new(condition.key.clone(), true, false);
    let mut point = distance.point.clone();
    if key_type != point_type {
        point = cast(point, key_type);
    }
    if order_by_all(condition, &nulls_last, &[], build)? {
        point = ScalarUDF::from(OrderBoundUdf::new(Some(1))).call(vec![point]);
    }
    Ok(Distance {
        point,
        by: distance.by.clone(),
        grows: distance.grows(then_by.is_empty(), schema)?,
    })
}

/// The conditions of a subquery.
struct Matched {
    condition: Condition,
    residual: Option<Expr>,
    /// The part of it that is on the probe side alone.
    probe_filter: Option<Expr>,
    /// Whether the order of the range key is what rows are ordered by first.
    is_in_order: bool,
}

/// Whether a condition is about a prefix, and none of the others is a range or an equality: few rows have the prefix of
/// another, which a join of both sides finds (`prefixes`), where nearest rows would look at all.
fn is_by_prefix(conditions: &[Expr], probe: &DFSchema, build: &DFSchema) -> Match<bool> {
    let conditions = conjuncts(conditions.to_vec());
    let (of_prefix, others): (Vec<_>, Vec<_>) =
        conditions.iter().partition(|e| is_about_prefix(*e));
    if of_prefix.is_empty() {
        return Ok(false);
    }
    let has_range = sides_of(probe, build, |sides| -> Result<bool> {
        let mut has_range = false;
        for other in others {
            has_range |= !sides.ranges(other)?.is_empty() || sides.compared(other)?.is_some();
        }
        Ok(has_range)
    })?;
    Ok(!has_range)
}

/// As [`match_condition`]. Where the range is not about the seconds whose distance is what rows are ordered by, these
/// become the distance of their times.
fn match_in_order(
    conditions: &[Expr],
    (order, distance): (&mut Expr, &mut Option<KeyDistance>),
    probe: &DFSchema,
    build: &LogicalPlan,
) -> Match<Matched> {
    let matched = match_condition(conditions, order, probe, build)?;
    if let Some(of_seconds) = distance.as_ref().filter(|_| !matched.is_in_order)
        && let Some(of_times) = of_seconds.of_times(probe, build.schema())?
    {
        *order = of_times.key.clone();
        *distance = Some(of_times);
        return match_condition(conditions, order, probe, build);
    }
    Ok(matched)
}

/// Sorts conditions into those by keys and a further one on pairs of rows.
fn match_condition(
    conditions: &[Expr],
    order: &Expr,
    probe: &DFSchema,
    build: &LogicalPlan,
) -> Match<Matched> {
    let build = build.schema();
    let (mut keys, mut of_probe, mut others) = (vec![], vec![], vec![]);
    let mut ranges: Vec<KeyRange> = vec![];
    for conjunct in conjuncts(conditions.iter().cloned()) {
        check_repeats(&conjunct)?;
        for column in conjunct.column_refs() {
            if probe.has_column(column) == build.has_column(column) {
                return reject(format!("{column} is a column of not one of the sides"));
            }
        }
        if is_of(&conjunct, probe) {
            of_probe.push(conjunct);
        } else if is_of(&conjunct, build)
            || conjunct.column_refs().is_empty()
            || are_equality_keys(&conjunct, probe, build)?
        {
            keys.push(conjunct);
        } else if let Some((key, comparison)) = range_of(&conjunct, probe, build)? {
            KeyRange::add(&mut ranges, key, comparison, conjunct);
        } else {
            others.push(conjunct);
        }
    }
    let wider = in_other_words(&mut others, &mut ranges, order, probe, build)?;
    let condition_on = |rest: Vec<Expr>| {
        let constants = Constants::Filter;
        Condition::try_match_with_key(vec![], rest, constants, Some(order), probe, build)
    };
    let residual = |range: Option<usize>| -> Result<Option<Expr>> {
        let others = others
            .iter()
            .chain(&of_probe)
            .filter(|e| range.is_none() || !is_of(e, probe));
        let ranges = ranges.iter().enumerate().filter(|(i, _)| Some(*i) != range);
        let ranges = ranges.flat_map(|(_, range)| &range.conjuncts);
        let parts = ranges
            .filter(|conjunct| !wider.contains(conjunct))
            .chain(others)
            .map(|conjunct| {
                let found = sides_of(probe, build, |sides| sides.without_casts(conjunct))?;
                Ok(found.unwrap_or_else(|| conjunct.clone()))
            });
        Ok(conjunction(parts.collect::<Result<Vec<_>>>()?))
    };
    // First what ORDER BY sorts by, then the others as they come; but those with two ends before all others.
    let is_of_order = |range: &KeyRange| without_casts(&range.key) == without_casts(order);
    let mut by_rank: Vec<usize> = (0..ranges.len()).collect();
    by_rank.sort_by_key(|i| (!ranges[*i].is_closed(), !is_of_order(&ranges[*i])));
    for i in by_rank {
        // A condition on the probe side alone is a part of a bound.
        let all = keys.iter().chain(&ranges[i].conjuncts).chain(&of_probe);
        let Ok(condition) = condition_on(all.cloned().collect()) else {
            continue;
        };
        let is_in_order = orders_as(&condition.key, order, build)?;
        if is_in_order || !is_of_order(&ranges[i]) {
            return Ok(Matched {
                condition,
                residual: residual(Some(i))?,
                probe_filter: None,
                is_in_order,
            });
        }
    }
    Ok(Matched {
        condition: condition_on(keys.clone())?,
        residual: residual(None)?,
        probe_filter: conjunction(of_probe.iter().cloned()),
        is_in_order: true,
    })
}

/// Adds the ranges of conditions in other words. Those that are ranges exactly are taken out of the conditions; the
/// comparisons of those that only imply one are returned. A difference of integers that is compared at one end implies
/// one if its key is what rows are ordered by: another key would be ranked before that.
fn in_other_words(
    conditions: &mut Vec<Expr>,
    ranges: &mut Vec<KeyRange>,
    order: &Expr,
    probe: &DFSchema,
    build: &DFSchema,
) -> Result<Vec<Expr>> {
    let mut rest: Vec<Expr> = vec![];
    let mut wider = vec![];
    let mut of_one_end: Vec<(Expr, Vec<Range<Expr>>)> = vec![];
    let is_of_order = |key: &Expr| without_casts(key) == without_casts(order);
    let mut add = |found: Vec<Range<Expr>>, is_exact: bool| {
        for range in found {
            let (key, comparison) = (range.compared.0.clone(), range.compared.1);
            let compared = as_comparison(range);
            if !is_exact {
                wider.push(compared.clone());
            }
            KeyRange::add(ranges, key, comparison, compared);
        }
    };
    sides_of(probe, build, |sides| -> Result<()> {
        for condition in conditions.drain(..) {
            let condition = without_between(condition)?;
            // Of a prefix the range of either side has an end only, and its rows are found by the other.
            if is_about_prefix(&condition) {
                rest.push(condition);
                continue;
            }
            let mut found = match sides.seconds(&condition)? {
                Some(found) => found.into(),
                None => sides.ranges(&condition)?,
            };
            let wraps = found.iter().any(|range| range.open == Open::Wrapping);
            let has_no_null = |range: &Range<Expr>| !matches!(range.open, Open::Bound | Open::Key);
            let is_exact = found.iter().all(|range| range.open == Open::Never);
            if wraps || found.is_empty() || !found.iter().all(has_no_null) {
                found.retain(|range| wraps && is_of_order(&range.compared.0));
                for other in &rest {
                    if let Some(both) = sides.between(other, &condition)? {
                        // Both ends need no key that wraps around by itself.
                        of_one_end.retain(|(of, _)| of != other);
                        found.clear();
                        add(both.into(), false);
                    }
                }
                if !found.is_empty() {
                    of_one_end.push((condition.clone(), found));
                }
                rest.push(condition);
            } else {
                add(found, is_exact);
                if !is_exact {
                    rest.push(condition);
                }
            }
        }
        for (_, found) in of_one_end {
            add(found, false);
        }
        Ok(())
    })?;
    *conditions = rest;
    Ok(wider)
}

/// A condition with both comparisons of each BETWEEN.
fn without_between(condition: Expr) -> Result<Expr> {
    let compared = condition.transform_up(|expr| {
        let is_between = matches!(expr, Expr::Between(_));
        Ok(match conjunction(split_between(expr.clone())) {
            Some(compared) if is_between => Transformed::yes(compared),
            _ => Transformed::no(expr),
        })
    })?;
    Ok(compared.data)
}

/// The comparisons of one key.
struct KeyRange {
    key: Expr,
    has_lower: bool,
    has_upper: bool,
    conjuncts: Vec<Expr>,
}

impl KeyRange {
    fn is_closed(&self) -> bool {
        self.has_lower && self.has_upper
    }

    /// Adds a comparison to those of the same key.
    fn add(ranges: &mut Vec<Self>, key: Expr, comparison: Comparison, conjunct: Expr) {
        let known = ranges
            .iter()
            .position(|range| without_casts(&range.key) == without_casts(&key));
        let index = known.unwrap_or_else(|| {
            ranges.push(Self {
                key,
                has_lower: false,
                has_upper: false,
                conjuncts: vec![],
            });
            ranges.len() - 1
        });
        let range = &mut ranges[index];
        range.has_lower |= comparison.is_lower();
        range.has_upper |= !comparison.is_lower();
        range.conjuncts.push(conjunct);
    }
}

/// The key that a conjunct compares with the other side, and how.
fn range_of(
    conjunct: &Expr,
    probe: &DFSchema,
    build: &DFSchema,
) -> Result<Option<(Expr, Comparison)>> {
    sides_of(probe, build, |sides| {
        if let Some((key, comparison, _)) = sides.stated(conjunct) {
            return Ok(Some((key, comparison)));
        }
        let mut ranges = sides.ranges(conjunct)?.into_iter();
        Ok(match (ranges.next(), ranges.next()) {
            (Some(range), None) if range.open.is_exact() => {
                Some((range.compared.0, range.compared.1))
            }
            _ => None,
        })
    })
}

/// Whether a condition compares a column of each side for equality in a way that a range join can.
fn are_equality_keys(condition: &Expr, probe: &DFSchema, build: &DFSchema) -> Result<bool> {
    let operands = sides_of(probe, build, |sides| sides.operands(condition));
    let Some((theirs, Some(op @ (Operator::Eq | Operator::IsNotDistinctFrom)), ours)) = operands
    else {
        return Ok(false);
    };
    let data_type = ours.get_type(probe)?;
    let are_keys = data_type == theirs.get_type(build)? && Groups::supports(&data_type);
    // What may fail is a further condition, evaluated only for rows whose other keys are equal.
    let cannot_fail =
        op == Operator::Eq || is_infallible(ours, probe)? && is_infallible(theirs, build)?;
    Ok(are_keys && cannot_fail)
}

/// The expression below all casts and aliases.
pub fn without_casts(expr: &Expr) -> &Expr {
    match expr {
        Expr::Cast(cast) => without_casts(&cast.expr),
        Expr::Alias(alias) => without_casts(&alias.expr),
        other => other,
    }
}
