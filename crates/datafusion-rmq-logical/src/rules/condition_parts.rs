//! The condition of a range join, sorted into its parts.
//!
//! ```text
//!   p.sym = q.sym AND p.k BETWEEN q.a AND q.b AND p.v > 0 AND q.on
//!     on            p.sym = q.sym          equality keys, also of IS NOT DISTINCT FROM (`null_safe_keys`)
//!     key, bounds   p.k >= q.a, p.k <= q.b one range key of the build side p, compared with expressions over the probe side q
//!     build filter  p.v > 0                below the build side
//!     probe filter  q.on                   in the first bound: CASE WHEN q.on THEN q.a END, NULL matches nothing
//! ```

use std::collections::HashMap;

use datafusion_common::tree_node::TreeNode;
use datafusion_common::{Column, DFSchema, Result, TableReference};
use datafusion_expr::expr::Between;
use datafusion_expr::utils::{conjunction, split_conjunction_owned};
use datafusion_expr::{Expr, ExprSchemable, LogicalPlan, Operator, when};

use crate::common::sql_text::sql_text;
use crate::conditions::condition::{
    Compared, Open, Operand, Range, Sides, comparison, convert_bound, drop_implied, key_and_bound,
};
use crate::conditions::infallible::is_infallible;
use crate::conditions::lossless_casts::without_lossless_casts;
use crate::conditions::null_safe_keys::null_safe_keys;
use crate::conditions::rejection::{Match, mixes_sides, reject};
use crate::conditions::written::written;
use crate::expr::key_bound::KeyBoundUdf;
use crate::expr::length_bound::LengthBoundUdf;
use crate::expr::range_calls::{calls_range_function, is_volatile};
use crate::logical_plan::range_join::{RangeAggregate, RangeJoinSpec, Unmatched};
use crate::rules::common::plans::filtered;
use crate::rules::range_key::one_key;
use rmq_arrow::common::ordered_type::{is_ordered, value_type};
use rmq_arrow::sorted::groups::Groups;
use rmq_engine::Comparison;

/// A condition between a probe side and a build side.
#[derive(Debug)]
pub struct Condition {
    /// Pairs of equality keys, over the probe side and over the build side.
    pub on: Vec<(Expr, Expr)>,
    /// The range key, over the build side.
    pub key: Expr,
    /// The comparisons of the range key with expressions over the probe side.
    pub bounds: Vec<(Comparison, Expr)>,
    /// Conditions on the build side only.
    build_filter: Vec<Expr>,
    /// Whether there were conditions on the probe side only, which are part of the first bound.
    filters_probe: bool,
    /// One of these conditions that may fail.
    fallible_filter: Option<Expr>,
}

/// The meaning of comparisons of the range key with constants, such as `k > 5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Constants {
    /// Filters of the build side, which reduce its rows.
    Filter,
    /// Bounds of the range. The row in force at the start of a range need not be in the range, so a filter would remove
    /// it wrongly.
    Bound,
}

/// The sides whose columns an expression has.
#[derive(Debug, PartialEq, Eq)]
enum Side {
    Probe,
    Build,
    Both,
    Neither,
}

impl Condition {
    /// Sorts a condition into its parts: `on` are pairs of equality keys, over the probe side and over the build side,
    /// `rest` the other conjuncts.
    pub fn try_match(
        on: Vec<(Expr, Expr)>,
        rest: Vec<Expr>,
        constants: Constants,
        probe: &DFSchema,
        build: &DFSchema,
    ) -> Match<Self> {
        Self::try_match_with_key(on, rest, constants, None, probe, build)
    }

    /// As [`Self::try_match`]. Without any bound, the range key is `default_key`, if there is one.
    pub fn try_match_with_key(
        on: Vec<(Expr, Expr)>,
        rest: Vec<Expr>,
        constants: Constants,
        default_key: Option<&Expr>,
        probe: &DFSchema,
        build: &DFSchema,
    ) -> Match<Self> {
        let mut sorted = Conjuncts {
            probe,
            build,
            constants,
            on,
            ranges: vec![],
            open_keys: vec![],
            constant_ranges: vec![],
            probe_filter: vec![],
            build_filter: vec![],
        };
        for conjunct in conjuncts(rest) {
            sorted.add(conjunct)?;
        }
        sorted.check_open_keys()?;
        sorted.check_equality_keys()?;
        let (key, mut bounds) = sorted.key_and_bounds(default_key)?;
        let Conjuncts {
            on,
            probe_filter,
            build_filter,
            ..
        } = sorted;
        let filters_probe = !probe_filter.is_empty();
        let mut fallible_filter = None;
        for filter in &probe_filter {
            if !is_infallible(filter, probe)? {
                fallible_filter = Some(filter.clone());
            }
        }
        // A probe row that does not meet its own condition gets a NULL bound, which matches nothing.
        if let (Some(filter), Some((_, bound))) = (conjunction(probe_filter), bounds.first_mut()) {
            *bound = bound_where(filter, std::mem::take(bound))?;
        }
        Ok(Self {
            on,
            key,
            bounds,
            build_filter,
            filters_probe,
            fallible_filter,
        })
    }

    /// Rejects conditions that may fail for rows that the join would not evaluate them for: it evaluates them only for
    /// rows with equal keys. Errors of the range key are raised only for these, but for all of them, also for probe
    /// rows that don't meet their own condition, and pairs that don't cross a threshold if there is one.
    pub fn check_infallible(&self, has_threshold: bool, build: &DFSchema) -> Match<()> {
        let may_fail = |expr: &Expr| {
            reject(format!(
                "{} may end in an error for rows that match nothing, which arithmetic of floats can't",
                sql_text(expr)
            ))
        };
        if let Some(filter) = &self.fallible_filter
            && !self.on.is_empty()
        {
            return may_fail(filter);
        }
        let key = (self.filters_probe || has_threshold).then_some(&self.key);
        for expr in key.into_iter().chain(&self.build_filter) {
            if !is_infallible(expr, build)? {
                return may_fail(expr);
            }
        }
        Ok(())
    }

    /// Guards expressions over the probe side that may fail, so that they are evaluated only for rows that are
    /// `matched`. Other rows get NULL and match nothing.
    pub fn guard(&mut self, matched: &Expr, probe: &DFSchema) -> Result<()> {
        for (ours, _) in &mut self.on {
            guard(ours, matched, probe)?;
        }
        for (_, bound) in &mut self.bounds {
            if !is_infallible(bound, probe)? {
                *bound = bound_where(matched.clone(), std::mem::take(bound))?;
            }
        }
        Ok(())
    }

    /// Whether the condition excludes build rows whose range key is NULL.
    pub fn excludes_null_keys(&self, build: &DFSchema) -> Result<bool> {
        let is_null_checked = |filter: &Expr| match filter {
            Expr::IsNotNull(expr) => **expr == self.key,
            _ => false,
        };
        Ok(!self.bounds.is_empty()
            || !self.key.nullable(build)?
            || self.build_filter.iter().any(is_null_checked))
    }

    /// Adds a condition on the build side only.
    pub fn add_build_filter(&mut self, filter: Expr) {
        self.build_filter.push(filter);
    }

    /// The range join on this condition. Its output has the metadata of the probe side, or of what it replaces.
    pub fn into_spec(
        self,
        unmatched: Unmatched,
        thresholds: Vec<Expr>,
        aggregates: Vec<RangeAggregate<Expr>>,
        metadata: &HashMap<String, String>,
    ) -> RangeJoinSpec<Expr> {
        RangeJoinSpec {
            unmatched,
            on: self.on,
            key: self.key,
            bounds: self.bounds,
            prevailing: false,
            thresholds,
            aggregates,
            metadata: metadata.clone().into_iter().collect(),
        }
    }

    /// Puts the conditions on the build side above it, as a filter. Takes them out of the condition.
    pub fn filter_build(&mut self, build: LogicalPlan) -> Result<LogicalPlan> {
        match conjunction(std::mem::take(&mut self.build_filter)) {
            Some(condition) => filtered(build, condition),
            None => Ok(build),
        }
    }
}

/// The conjuncts of a condition by what they are about.
struct Conjuncts<'a> {
    probe: &'a DFSchema,
    build: &'a DFSchema,
    constants: Constants,
    on: Vec<(Expr, Expr)>,
    ranges: Vec<Compared<Expr>>,
    /// The keys that are in a range with an open end if they are NULL.
    open_keys: Vec<Expr>,
    /// Comparisons with constants, where these may bound the range.
    constant_ranges: Vec<(Expr, Compared<Expr>)>,
    probe_filter: Vec<Expr>,
    build_filter: Vec<Expr>,
}

impl Conjuncts<'_> {
    fn add(&mut self, conjunct: Expr) -> Match<()> {
        let (probe, build) = (self.probe, self.build);
        check_repeats(&conjunct)?;
        check_level(&conjunct, probe, build)?;
        match side(&conjunct, probe, build) {
            Side::Probe => self.probe_filter.push(conjunct),
            Side::Build if self.constants == Constants::Bound => {
                let is_constant = |bound: &Expr| side(bound, probe, build) == Side::Neither;
                match compared_with(&conjunct, is_constant) {
                    Some(range) => self.constant_ranges.push((conjunct, range)),
                    None => self.build_filter.push(conjunct),
                }
            }
            Side::Build | Side::Neither => self.build_filter.push(conjunct),
            Side::Both => {
                if !self.add_ranges(&conjunct)? {
                    self.add_comparison(&conjunct)?;
                }
            }
        }
        Ok(())
    }

    /// Adds the ranges that a conjunct states in other words than `key < bound`, if it states exactly these.
    fn add_ranges(&mut self, conjunct: &Expr) -> Match<bool> {
        // With a row in force before the range, the bound itself matters, not only which keys it includes.
        if self.constants == Constants::Bound {
            return Ok(false);
        }
        let stated = sides_of(self.probe, self.build, |sides| sides.ranges(conjunct))?;
        if stated.iter().any(|range| range.open == Open::Key) {
            return reject(format!(
                "{} is about NULLs of the side that is searched",
                written(conjunct, self.probe, self.build)
            ));
        }
        if stated.is_empty() || !stated.iter().all(|range| range.open.is_exact()) {
            return Ok(false);
        }
        for Range { compared, open } in stated {
            if open == Open::Bound {
                self.open_keys.push(compared.0.clone());
            }
            self.ranges.push(compared);
        }
        Ok(true)
    }

    /// Adds the comparison of the two sides that a conjunct is.
    fn add_comparison(&mut self, conjunct: &Expr) -> Match<()> {
        let (probe, build) = (self.probe, self.build);
        let text = || written(conjunct, probe, build);
        let operands = sides_of(probe, build, |sides| sides.operands(conjunct));
        let Some((key, op, bound)) = operands else {
            return reject(match conjunct.as_binary() {
                None | Some((_, Operator::And | Operator::Or, _)) => no_comparison(&text()),
                Some(_) => mixes_sides(&text()),
            });
        };
        match (op, op.and_then(comparison)) {
            (Some(Operator::Eq), _) => self.on.push((bound.clone(), key.clone())),
            (Some(Operator::IsNotDistinctFrom), _) => {
                // DataFusion evaluates it only for rows whose other keys are equal.
                let cannot_fail = is_infallible(key, build)? && is_infallible(bound, probe)?;
                let keys = null_safe_keys((bound, probe), (key, build))?;
                let Some(keys) = keys.filter(|_| cannot_fail) else {
                    return reject(no_comparison(&text()));
                };
                self.on.extend(keys);
            }
            (_, Some(comparison)) => {
                self.ranges.push((key.clone(), comparison, bound.clone()));
            }
            _ => return reject(no_comparison(&text())),
        }
        Ok(())
    }

    fn check_open_keys(&self) -> Match<()> {
        for key in &self.open_keys {
            let ends = self
                .ranges
                .iter()
                .filter(|(other, ..)| other == key)
                .count();
            let open = self.open_keys.iter().filter(|other| *other == key).count();
            if ends == open && key.nullable(self.build)? {
                return reject(format!(
                    "{} may be NULL in a range whose ends are all open",
                    sql_text(key)
                ));
            }
        }
        Ok(())
    }

    fn check_equality_keys(&self) -> Match<()> {
        let (probe, build) = (self.probe, self.build);
        for (ours, theirs) in &self.on {
            check_repeats(ours)?;
            check_repeats(theirs)?;
            let (a, b) = (ours.get_type(probe)?, theirs.get_type(build)?);
            let sides = [ours, theirs].map(|key| side(key, probe, build));
            if sides != [Side::Probe, Side::Build] {
                return reject(format!(
                    "{} = {} does not compare the two sides",
                    sql_text(ours),
                    sql_text(theirs)
                ));
            }
            if a != b || !Groups::supports(&a) {
                return reject(format!(
                    "{} = {} compares a {a} and a {b}",
                    sql_text(ours),
                    sql_text(theirs)
                ));
            }
        }
        Ok(())
    }

    /// The one key of all ranges and its bounds, or `default_key` without any. Comparisons of other keys with constants
    /// become filters of the build side.
    fn key_and_bounds(
        &mut self,
        default_key: Option<&Expr>,
    ) -> Match<(Expr, Vec<(Comparison, Expr)>)> {
        let (probe, build) = (self.probe, self.build);
        let mut ranges = std::mem::take(&mut self.ranges);
        // As above: with a row in force before the range the bound itself matters.
        if self.constants == Constants::Filter {
            for range in &mut ranges {
                convert_bound(range, probe, build)?;
            }
        }
        let first = ranges.first().map(|(key, ..)| key.clone());
        for (conjunct, range) in std::mem::take(&mut self.constant_ranges) {
            let is_same = |key| -> Result<bool> {
                Ok(without_lossless_casts(&range.0, build)? == without_lossless_casts(key, build)?)
            };
            match &first {
                Some(key) if is_same(key)? => ranges.push(range),
                _ => self.build_filter.push(conjunct),
            }
        }
        let (key, mut bounds) = match default_key {
            Some(key) if ranges.is_empty() => {
                if let Some(filter) = self.probe_filter.first() {
                    return reject(format!(
                        "{} is about the outer query only",
                        sql_text(filter)
                    ));
                }
                (key.clone(), vec![])
            }
            _ => one_key(ranges, probe, build)?,
        };
        drop_implied(&mut bounds);
        let key_type = key.get_type(build)?;
        if !is_ordered(&key_type) {
            return reject(format!("the range key {} is a {key_type}", sql_text(&key)));
        }
        for (_, bound) in &bounds {
            let bound_type = bound.get_type(probe)?;
            if value_type(&bound_type) != value_type(&key_type) {
                return reject(format!(
                    "the range key {} is a {key_type} and its bound {} a {bound_type}",
                    sql_text(&key),
                    sql_text(bound)
                ));
            }
        }
        Ok((key, bounds))
    }
}

/// The bound for rows that meet a condition, NULL for others. Of a difference that may wrap around, what it is of is
/// NULL there: operators know the keys that wrap around by the function on top.
fn bound_where(condition: Expr, bound: Expr) -> Result<Expr> {
    let Expr::ScalarFunction(mut call) = bound else {
        return when(condition, bound).end();
    };
    let inner = call.func.inner();
    let wraps = |bound: &KeyBoundUdf| bound.wrapped().is_some();
    let operands = if inner.is::<LengthBoundUdf>() {
        1..call.args.len()
    } else if inner.downcast_ref().is_some_and(wraps) {
        0..1
    } else {
        return when(condition, Expr::ScalarFunction(call)).end();
    };
    for operand in &mut call.args[operands] {
        *operand = when(condition.clone(), std::mem::take(operand)).end()?;
    }
    Ok(Expr::ScalarFunction(call))
}

/// Guards an expression over the probe side if it may fail: for rows that are not `matched` it is NULL.
pub fn guard(expr: &mut Expr, matched: &Expr, probe: &DFSchema) -> Result<()> {
    if !is_infallible(expr, probe)? {
        *expr = when(matched.clone(), std::mem::take(expr)).end()?;
    }
    Ok(())
}

/// Splits a comparison into range key, comparison and bound, if one of its operands is a bound.
pub fn compared_with(conjunct: &Expr, is_bound: impl Fn(&Expr) -> bool) -> Option<Compared<Expr>> {
    let (key, op, bound) = key_and_bound(conjunct.as_binary()?, |operand| is_bound(operand))?;
    Some((key.clone(), comparison(op?)?, bound.clone()))
}

fn side(expr: &Expr, probe: &DFSchema, build: &DFSchema) -> Side {
    let columns = expr.column_refs();
    let (mut ours, mut theirs) = (false, false);
    for column in columns {
        match (probe.has_column(column), build.has_column(column)) {
            (true, false) => ours = true,
            (false, true) => theirs = true,
            _ => return Side::Both,
        }
    }
    match (ours, theirs) {
        (true, false) => Side::Probe,
        (false, true) => Side::Build,
        (true, true) => Side::Both,
        (false, false) => Side::Neither,
    }
}

/// Rejects a condition of a subquery within a subquery on columns of neither: they are of the query around both.
pub fn check_level(conjunct: &Expr, probe: &DFSchema, build: &DFSchema) -> Match<()> {
    let is_known = |column: &&Column| probe.has_column(column) || build.has_column(column);
    let columns = conjunct.column_refs();
    let Some(column) = columns.iter().find(|column| !is_known(column)) else {
        return Ok(());
    };
    let tables = [column.relation.as_ref(), table_of(probe)];
    let [outer, between] = tables.map(|table| table.map_or("…".to_string(), ToString::to_string));
    reject(format!(
        "{} needs {column}, which is of a query two levels up: write FROM (SELECT {column} AS outer_{}, {between}.* FROM {outer} \
         CROSS JOIN {between}) AS y, and use the columns of y in it",
        written(conjunct, probe, build),
        column.name
    ))
}

/// The table of the first column.
fn table_of(schema: &DFSchema) -> Option<&TableReference> {
    schema.iter().find_map(|(table, _)| table)
}

/// Whether an expression has columns, all of this schema.
pub fn is_of(expr: &Expr, schema: &DFSchema) -> bool {
    let columns = expr.column_refs();
    !columns.is_empty() && columns.into_iter().all(|column| schema.has_column(column))
}

/// Rejects expressions that are volatile, asynchronous, contain a subquery, or call a range function.
pub fn check_repeats(expr: &Expr) -> Match<()> {
    if calls_range_function(expr)? {
        return reject(format!("{} calls a range function", sql_text(expr)));
    }
    check_joins(expr)
}

/// As [`check_repeats`], but range functions are allowed: a later rule takes them out of the condition of a join.
pub fn check_joins(expr: &Expr) -> Match<()> {
    if is_volatile(expr) {
        return reject(format!("{} is another each time", sql_text(expr)));
    }
    let special = expr.exists(|e| {
        Ok(matches!(
            e,
            Expr::ScalarSubquery(_)
                | Expr::InSubquery(_)
                | Expr::Exists(_)
                | Expr::SetComparison(_)
                | Expr::OuterReferenceColumn(..)
        ))
    })?;
    if special {
        return reject(format!("{} has a subquery", sql_text(expr)));
    }
    let is_async = expr.exists(|e| {
        Ok(matches!(e, Expr::ScalarFunction(call) if call.func.as_async().is_some()))
    })?;
    if is_async {
        return reject(format!("{} calls an asynchronous function", sql_text(expr)));
    }
    Ok(())
}

/// The conjuncts of conditions, with both comparisons of each BETWEEN.
pub fn conjuncts(conditions: impl IntoIterator<Item = Expr>) -> Vec<Expr> {
    let conjuncts = conditions.into_iter().flat_map(split_conjunction_owned);
    conjuncts.flat_map(split_between).collect()
}

/// The range with two equal ends that an equality of a key with a bound is. `None` for a type without ranges, and for
/// floats, of which zeros of both signs are one equality key and two values.
pub fn equal_ends(key: &Expr, bound: &Expr, build: &DFSchema) -> Result<Option<[Expr; 2]>> {
    let key_type = key.get_type(build)?;
    let is_range = is_ordered(&key_type) && !value_type(&key_type).is_floating();
    Ok(is_range.then(|| {
        let (key, bound) = (key.clone(), bound.clone());
        [key.clone().gt_eq(bound.clone()), key.lt_eq(bound)]
    }))
}

/// Calls a function with the sides of conditions on rows of `probe` and `build`.
pub fn sides_of<T>(
    probe: &DFSchema,
    build: &DFSchema,
    call: impl FnOnce(&Sides<'_, Expr>) -> T,
) -> T {
    call(&Sides {
        is_bound: &|e| side(e, probe, build) == Side::Probe,
        is_key: &|e| side(e, probe, build) == Side::Build,
        bounds: probe,
        keys: build,
    })
}

/// Splits `x BETWEEN a AND b` into its two comparisons.
pub fn split_between(conjunct: Expr) -> Vec<Expr> {
    match conjunct {
        Expr::Between(Between {
            expr,
            negated: false,
            low,
            high,
        }) => vec![expr.clone().gt_eq(*low), expr.lt_eq(*high)],
        other => vec![other],
    }
}

fn no_comparison(conjunct: &str) -> String {
    format!("{conjunct} is no comparison of the two sides by =, <, <=, > or >=")
}
