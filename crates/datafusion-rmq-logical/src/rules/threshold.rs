//! A threshold in the condition of an aggregate: the first, or last, key of a range where a value crosses it, and the
//! number of rows that do.
//!
//! ```text
//!   (SELECT min(p.k) FROM p WHERE p.sym = q.sym AND p.k >= q.a AND p.v <= q.x)
//!     threshold     p.v <= q.x
//!     the rest      p.sym = q.sym AND p.k >= q.a            the condition of the range join
//!     min(p.k)      first(p.k where p.v <= q.x)             max(p.k) is the last
//! ```
//!
//! ```text
//!   (SELECT count(*) FROM p WHERE p.sym = q.sym AND p.start <= q.stop AND p.stop >= q.start)      intervals that overlap
//!     threshold     p.stop >= q.start
//!     the rest      p.sym = q.sym AND p.start <= q.stop
//!     count(*)      count(* where p.stop >= q.start)
//! ```
//!
//! A condition with two range keys is no range join. But where the aggregates are minima and maxima of one of them, the
//! rows of the range are sorted by it, so the answer is in the first or last row of the range that crosses the
//! threshold. The rows to be counted are listed by the levels of chunk minima, or counted by a wavelet matrix. Two
//! searches, for starts and for stops, would count right only where no interval ends before it begins.
//!
//! ```text
//!   (SELECT count(*) FROM p WHERE p.k BETWEEN q.a AND q.b AND p.v BETWEEN q.x AND q.y)            points in a rectangle
//!     limits        p.v >= q.x, p.v <= q.y
//!     count(*)      count(* where p.v >= q.x) + count(* where p.v <= q.y) - count(p.v), and 0 where that is less
//! ```
//!
//! A condition that matches without a threshold is matched so: casts, which DataFusion adds to compare one key with
//! bounds of several types, are no second key. Joins that count crossings share nothing with others, which devices may
//! answer. Spilled runs return the range key of that row besides, and the least, or greatest, wins. A float as the key
//! is sorted by itself and by its inverse (`order_zeros`), as zeros of both signs are equal keys, and MIN and MAX tell
//! them apart.

use std::iter;

use datafusion_common::{DFSchema, Result};
use datafusion_expr::expr::AggregateFunction;
use datafusion_expr::utils::conjunction;
use datafusion_expr::{Expr, ExprSchemable, when};
use datafusion_functions_aggregate::min_max::{Max, Min};

use crate::common::sql_text::sql_text;
use crate::conditions::condition::{Compared, convert_bound};
use crate::conditions::infallible::is_infallible;
use crate::conditions::lossless_casts::without_lossless_casts;
use crate::conditions::rejection::{Match, reject};
use crate::rules::condition_parts::{
    Condition, Constants, check_repeats, conjuncts, is_of, sides_of,
};
use rmq_arrow::common::ordered_type::{is_ordered, value_type};
use rmq_engine::Comparison;

/// The comparison of a value of the build side with a threshold of the probe side.
#[derive(Debug, Clone)]
pub struct Threshold {
    /// The value, over the build side.
    pub value: Expr,
    pub comparison: Comparison,
    /// The threshold, over the probe side.
    pub limit: Expr,
}

/// The comparisons of a value of the build side that rows to be counted meet: one, or two from opposite sides.
#[derive(Debug, Clone)]
pub struct Limits {
    pub first: Threshold,
    /// Of the same value, except for lossless casts.
    pub second: Option<Threshold>,
}

impl Threshold {
    /// Takes the threshold out of `conditions`, if `key`, without lossless casts, is compared with bounds, and exactly
    /// one other expression of the build side is compared, once. Leaves the conditions as they are otherwise.
    pub fn take_from(
        conditions: &mut Vec<Expr>,
        key: &Expr,
        probe: &DFSchema,
        build: &DFSchema,
    ) -> Result<Option<Self>> {
        let Some((rest, thresholds)) = Self::beside_key(conditions, key, probe, build)? else {
            return Ok(None);
        };
        let Ok([threshold]) = <[Self; 1]>::try_from(thresholds) else {
            return Ok(None);
        };
        if !threshold.is_possible(probe, build)? {
            return Ok(None);
        }
        *conditions = rest;
        Ok(Some(threshold))
    }

    /// The conditions without comparisons of other expressions than `key`, and these comparisons; `None` if `key` is
    /// not compared.
    fn beside_key(
        conditions: &[Expr],
        key: &Expr,
        probe: &DFSchema,
        build: &DFSchema,
    ) -> Result<Option<(Vec<Expr>, Vec<Self>)>> {
        let (mut rest, mut thresholds) = (vec![], vec![]);
        let mut compares_key = false;
        for conjunct in conjuncts(conditions.iter().cloned()) {
            let Some((cast, converted)) = comparisons(&conjunct, probe, build)? else {
                rest.push(conjunct);
                continue;
            };
            let (value, comparison, limit) = converted;
            if without_lossless_casts(&cast, build)? == key
                || without_lossless_casts(&value, build)? == key
            {
                compares_key = true;
                rest.push(conjunct);
            } else {
                thresholds.push(Self {
                    value,
                    comparison,
                    limit,
                });
            }
        }
        Ok(compares_key.then_some((rest, thresholds)))
    }

    /// Whether an index can compare the value with the limit.
    fn is_possible(&self, probe: &DFSchema, build: &DFSchema) -> Result<bool> {
        let (value, limit) = (&self.value, &self.limit);
        if check_repeats(value).is_err() || check_repeats(limit).is_err() {
            return Ok(false);
        }
        let (value_kind, limit_kind) = (value.get_type(build)?, limit.get_type(probe)?);
        Ok(is_ordered(&value_kind) && value_type(&value_kind) == value_type(&limit_kind))
    }

    /// Rejects a value that may fail for rows that the join would not evaluate it for.
    pub fn check_infallible(&self, build: &DFSchema) -> Match<()> {
        let value = &self.value;
        if is_infallible(value, build)? {
            return Ok(());
        }
        reject(format!(
            "{} may end in an error for rows that match nothing",
            sql_text(value)
        ))
    }
}

impl Limits {
    /// Those of comparisons of one value, or `None` if they are not such, or an index can't answer them.
    fn try_new(
        thresholds: Vec<Threshold>,
        probe: &DFSchema,
        build: &DFSchema,
    ) -> Result<Option<Self>> {
        let mut thresholds = thresholds.into_iter();
        let (first, second) = (thresholds.next(), thresholds.next());
        let Some(first) = first.filter(|_| thresholds.next().is_none()) else {
            return Ok(None);
        };
        if let Some(second) = &second {
            let value = without_lossless_casts(&first.value, build)?;
            let is_same = without_lossless_casts(&second.value, build)? == value;
            let are_opposite = first.comparison.is_lower() != second.comparison.is_lower();
            if !is_same || !are_opposite || !second.is_possible(probe, build)? {
                return Ok(None);
            }
        }
        let is_possible = first.is_possible(probe, build)?;
        Ok(is_possible.then_some(Self { first, second }))
    }

    /// The limits that a condition is: comparisons of both sides, alone or with conditions on the build side, for whose
    /// other rows the value is NULL. `None` for other conditions.
    pub fn of_condition(
        condition: &Expr,
        probe: &DFSchema,
        build: &DFSchema,
    ) -> Result<Option<Self>> {
        let (mut thresholds, mut of_build) = (vec![], vec![]);
        for conjunct in conjuncts([condition.clone()]) {
            match comparisons(&conjunct, probe, build)? {
                Some((_, (value, comparison, limit))) => thresholds.push(Threshold {
                    value,
                    comparison,
                    limit,
                }),
                None if is_of(&conjunct, build) => of_build.push(conjunct),
                None => return Ok(None),
            }
        }
        let Some(limits) = Self::try_new(thresholds, probe, build)? else {
            return Ok(None);
        };
        let limits = limits.of_rows(of_build)?;
        let is_possible = limits.first.is_possible(probe, build)?;
        Ok(is_possible.then_some(limits))
    }

    /// Takes the limits out of `conditions`, if two expressions of the build side are compared. The other one, whose
    /// bounds stay, has bounds at both ends, or else comes first. Leaves the conditions as they are otherwise.
    fn take_from(
        conditions: &mut Vec<Expr>,
        probe: &DFSchema,
        build: &DFSchema,
    ) -> Result<Option<Self>> {
        let mut compared: Vec<(Expr, usize)> = vec![];
        for conjunct in conjuncts(conditions.iter().cloned()) {
            let Some((_, (value, ..))) = comparisons(&conjunct, probe, build)? else {
                continue;
            };
            let value = without_lossless_casts(&value, build)?;
            match compared.iter_mut().find(|(known, _)| known == value) {
                Some((_, times)) => *times += 1,
                None => compared.push((value.clone(), 1)),
            }
        }
        let key = match compared.as_slice() {
            [(first, _), (_, 1)] => first,
            [(_, 1), (second, _)] => second,
            [(first, _), _] => first,
            _ => return Ok(None),
        };
        let Some((rest, thresholds)) = Threshold::beside_key(conditions, key, probe, build)? else {
            return Ok(None);
        };
        let limits = Self::try_new(thresholds, probe, build)?;
        if limits.is_some() {
            *conditions = rest;
        }
        Ok(limits)
    }

    /// The same limits of values that are NULL where one of these conditions does not hold.
    pub fn of_rows(mut self, conditions: Vec<Expr>) -> Result<Self> {
        if let Some(condition) = conjunction(conditions) {
            for threshold in iter::once(&mut self.first).chain(&mut self.second) {
                let value = std::mem::take(&mut threshold.value);
                threshold.value = when(condition.clone(), value).end()?;
            }
        }
        Ok(self)
    }
}

/// The comparison of a value of the build side with an expression over the probe side, if the conjunct is one: the
/// value as it is written, and the comparison without casts that may fail.
fn comparisons(
    conjunct: &Expr,
    probe: &DFSchema,
    build: &DFSchema,
) -> Result<Option<(Expr, Compared<Expr>)>> {
    let Some(mut range) = sides_of(probe, build, |sides| sides.stated(conjunct)) else {
        return Ok(None);
    };
    let value = range.0.clone();
    convert_bound(&mut range, probe, build)?;
    Ok(Some((value, range)))
}

/// Matches a condition. If it has two range keys, and rows are only counted, the comparisons of one become limits.
pub fn match_condition(
    on: &[(Expr, Expr)],
    mut rest: Vec<Expr>,
    (constants, counts_rows): (Constants, bool),
    probe: &DFSchema,
    build: &DFSchema,
) -> Match<(Condition, Option<Limits>)> {
    let matched =
        |rest: &[Expr]| Condition::try_match(on.to_vec(), rest.to_vec(), constants, probe, build);
    match matched(&rest) {
        Err(reason) if counts_rows => {
            let found = Limits::take_from(&mut rest, probe, build)?;
            let limits = found.ok_or(reason)?;
            Ok((matched(&rest)?, Some(limits)))
        }
        matched => Ok((matched?, None)),
    }
}

/// The one expression whose minima and maxima all calls are, without lossless casts. Dictionaries are excluded, because
/// their minimum is of another type.
pub fn key_of_extremes<'a>(
    calls: &'a [AggregateFunction],
    build: &DFSchema,
) -> Result<Option<&'a Expr>> {
    let mut key = None;
    for call in calls {
        let inner = call.func.inner();
        let [argument] = call.params.args.as_slice() else {
            return Ok(None);
        };
        let is_extreme = inner.is::<Min>() || inner.is::<Max>();
        if !is_extreme || call.params.filter.is_some() || !is_of(argument, build) {
            return Ok(None);
        }
        let data_type = argument.get_type(build)?;
        if value_type(&data_type) != data_type {
            return Ok(None);
        }
        let base = without_lossless_casts(argument, build)?;
        if key.is_some_and(|key| key != base) {
            return Ok(None);
        }
        key = Some(base);
    }
    Ok(key)
}
