//! The condition of a range join: equality keys, and bounds of a range key.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{Between, BinaryExpr};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Cast, Expr, ExprSchemable, Filter, LogicalPlan, Operator, cast, lit, when,
};
use datafusion::scalar::ScalarValue;

use crate::index::sort_keys::{is_ordered, value_type};
use crate::rewrite::common::conditional::Branch;
use crate::rewrite::common::infallible::is_infallible;
use crate::rewrite::range_call::calls::has_range_call;
use crate::rewrite::range_join::rejection::{Recognised, no};
use crate::sorted::groups::Groups;
use rmq_engine::Comparison;

/// A condition between a probe side and a build side.
#[derive(Debug)]
pub(crate) struct Condition {
    /// Pairs of equality keys, of the probe side and of the build side.
    pub(crate) on: Vec<(Expr, Expr)>,
    /// The range key, of the build side.
    pub(crate) key: Expr,
    /// What it is compared with, of the probe side.
    pub(crate) bounds: Vec<(Comparison, Expr)>,
    /// What a row of the build side must meet.
    build_filter: Vec<Expr>,
    /// Whether the probe side has conditions of its own, which are part of the bounds now.
    filters_probe: bool,
    /// One of these that may end in an error.
    fallible_filter: Option<Expr>,
}

/// What comparisons of the range key with constants are, such as `k > 5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Constants {
    /// Conditions on the rows of the build side: fewer of them are to be searched.
    Filter,
    /// Bounds. It makes a difference to the row that prevails when a window opens, which need not be in the window.
    Bound,
}

/// Whose columns an expression has.
#[derive(Debug, PartialEq, Eq)]
enum Side {
    Probe,
    Build,
    Both,
    Neither,
}

impl Condition {
    /// Sorts out a condition: pairs that are equal, and all else.
    pub(crate) fn recognise(
        on: Vec<(Expr, Expr)>,
        rest: Vec<Expr>,
        constants: Constants,
        probe: &DFSchema,
        build: &DFSchema,
    ) -> Recognised<Self> {
        let side = |expr: &Expr| side(expr, probe, build);
        let mut pairs = on;
        let mut ranges: Vec<(Expr, Comparison, Expr)> = vec![];
        let mut constant_ranges: Vec<(Expr, (Expr, Comparison, Expr))> = vec![];
        let (mut probe_filter, mut build_filter) = (vec![], vec![]);
        let conjuncts = rest.into_iter().flat_map(split_conjunction_owned);
        for conjunct in conjuncts.flat_map(split_between) {
            check_repeats(&conjunct)?;
            match side(&conjunct) {
                Side::Probe => probe_filter.push(conjunct),
                Side::Build if constants == Constants::Bound => {
                    match compared_with(&conjunct, |bound| side(bound) == Side::Neither) {
                        Some(range) => constant_ranges.push((conjunct, range)),
                        None => build_filter.push(conjunct),
                    }
                }
                Side::Build | Side::Neither => build_filter.push(conjunct),
                Side::Both => {
                    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = conjunct else {
                        return no(format!("{conjunct} is no comparison of the two sides"));
                    };
                    let (key, op, bound) = match (side(&left), side(&right)) {
                        (Side::Build, Side::Probe) => (*left, Some(op), *right),
                        (Side::Probe, Side::Build) => (*right, op.swap(), *left),
                        _ => return no(format!("{left} {op} {right} mixes the sides")),
                    };
                    match (op, op.and_then(comparison)) {
                        (Some(Operator::Eq), _) => pairs.push((bound, key)),
                        (_, Some(comparison)) => ranges.push((key, comparison, bound)),
                        _ => return no("the sides are compared by other than =, <, <=, > and >="),
                    }
                }
            }
        }
        for (ours, theirs) in &pairs {
            check_repeats(ours)?;
            check_repeats(theirs)?;
            let (a, b) = (ours.get_type(probe)?, theirs.get_type(build)?);
            if side(ours) != Side::Probe || side(theirs) != Side::Build {
                return no(format!("{ours} = {theirs} does not compare the two sides"));
            }
            if a != b || !Groups::supports(&a) {
                return no(format!("{ours} = {theirs} compares a {a} and a {b}"));
            }
        }
        let first = ranges.first().map(|(key, ..)| key.clone());
        for (conjunct, range) in constant_ranges {
            match &first {
                Some(key)
                    if without_lossless_casts(&range.0, build)?
                        == without_lossless_casts(key, build)? =>
                {
                    ranges.push(range);
                }
                _ => build_filter.push(conjunct),
            }
        }
        let (key, mut bounds) = one_key(ranges, probe, build)?;
        let key_type = key.get_type(build)?;
        if !is_ordered(&key_type) {
            return no(format!("the range key {key} is a {key_type}"));
        }
        for (_, bound) in &bounds {
            let bound_type = bound.get_type(probe)?;
            if value_type(&bound_type) != value_type(&key_type) {
                return no(format!(
                    "the range key {key} is a {key_type} and its bound {bound} a {bound_type}"
                ));
            }
        }
        let filters_probe = !probe_filter.is_empty();
        let mut fallible_filter = None;
        for filter in &probe_filter {
            if !is_infallible(filter, probe)? {
                fallible_filter = Some(filter.clone());
            }
        }
        // A row that does not meet the condition on itself has no bound, and so matches nothing.
        if let (Some(filter), Some((_, bound))) = (conjunction(probe_filter), bounds.first_mut()) {
            *bound = when(filter, bound.clone()).end()?;
        }
        Ok(Self {
            on: pairs,
            key,
            bounds,
            build_filter,
            filters_probe,
            fallible_filter,
        })
    }

    /// That no row ends in an error which a join would not meet, as it evaluates its condition for
    /// the rows alone whose equality keys match.
    pub(crate) fn check_infallible(&self, build: &DFSchema) -> Recognised<()> {
        if let Some(filter) = self
            .fallible_filter
            .as_ref()
            .filter(|_| !self.on.is_empty())
        {
            return no(format!(
                "{filter} may end in an error for rows that match nothing"
            ));
        }
        let evaluates_all = self.on.is_empty() && !self.filters_probe;
        if !evaluates_all && !is_infallible(&self.key, build)? {
            return no(format!(
                "{} may end in an error for rows that match nothing",
                self.key
            ));
        }
        for filter in &self.build_filter {
            if !is_infallible(filter, build)? {
                return no(format!(
                    "{filter} may end in an error for rows that match nothing"
                ));
            }
        }
        Ok(())
    }

    /// Leaves what may end in an error unevaluated but for the rows of the probe side that take all these branches. The others
    /// match nothing.
    pub(crate) fn guard(&mut self, branches: &[Branch], probe: &DFSchema) -> Result<()> {
        let keys = self.on.iter_mut().map(|(ours, _)| ours);
        for expr in keys.chain(self.bounds.iter_mut().map(|(_, bound)| bound)) {
            if is_infallible(expr, probe)? {
                continue;
            }
            let null = ScalarValue::try_from(&expr.get_type(probe)?)?;
            for branch in branches.iter().rev() {
                *expr = branch.guard(std::mem::take(expr), &null, probe)?;
            }
        }
        Ok(())
    }

    /// The rows of the build side that can match at all.
    pub(crate) fn filter_build(&mut self, build: LogicalPlan) -> Result<LogicalPlan> {
        match conjunction(std::mem::take(&mut self.build_filter)) {
            Some(filter) => Ok(LogicalPlan::Filter(Filter::try_new(filter, build.into())?)),
            None => Ok(build),
        }
    }
}

/// How an operator compares a range key with a bound, if so.
fn comparison(op: Operator) -> Option<Comparison> {
    match op {
        Operator::Gt => Some(Comparison::Above),
        Operator::GtEq => Some(Comparison::AtLeast),
        Operator::Lt => Some(Comparison::Below),
        Operator::LtEq => Some(Comparison::AtMost),
        _ => None,
    }
}

/// A comparison with a bound, if one side of it is one.
fn compared_with(
    conjunct: &Expr,
    is_bound: impl Fn(&Expr) -> bool,
) -> Option<(Expr, Comparison, Expr)> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = conjunct else {
        return None;
    };
    let (key, op, bound) = if is_bound(right) {
        (left, *op, right)
    } else if is_bound(left) {
        (right, op.swap()?, left)
    } else {
        return None;
    };
    Some((
        key.as_ref().clone(),
        comparison(op)?,
        bound.as_ref().clone(),
    ))
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

/// Whether an expression has columns of the build side alone, and some.
pub(crate) fn is_of(expr: &Expr, schema: &DFSchema) -> bool {
    let columns = expr.column_refs();
    !columns.is_empty() && columns.into_iter().all(|column| schema.has_column(column))
}

/// That an expression is the same each time it is evaluated, and needs no other plan.
pub(crate) fn check_repeats(expr: &Expr) -> Recognised<()> {
    if has_range_call(expr)? {
        return no(format!("{expr} calls a range function"));
    }
    if expr.is_volatile() {
        return no(format!("{expr} is another each time"));
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
        return no(format!("{expr} has a subquery"));
    }
    let is_async = expr.exists(|e| {
        Ok(matches!(e, Expr::ScalarFunction(call) if call.func.as_async().is_some()))
    })?;
    if is_async {
        return no(format!("{expr} calls an asynchronous function"));
    }
    Ok(())
}

/// `x BETWEEN a AND b` as its two comparisons.
fn split_between(conjunct: Expr) -> Vec<Expr> {
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

/// The one key that all comparisons are about. Where they differ by lossless casts alone, as DataFusion adds them for bounds
/// of several types, the widest serves all.
fn one_key(
    ranges: Vec<(Expr, Comparison, Expr)>,
    probe: &DFSchema,
    build: &DFSchema,
) -> Recognised<(Expr, Vec<(Comparison, Expr)>)> {
    let Some((first, ..)) = ranges.first() else {
        return no("there is no range between the two sides");
    };
    let base = without_lossless_casts(first, build)?;
    let base_type = base.get_type(build)?;
    if base_type == DataType::Null {
        for (key, ..) in &ranges {
            if without_lossless_casts(key, build)? != base {
                return no(format!("there are two range keys, {first} and {key}"));
            }
        }
        // The columns of a CSV file without rows are of this type. NULL matches nothing, whatever it is compared with.
        let null = lit(ScalarValue::Int64(None));
        let bounds = ranges.iter().map(|(_, c, _)| (*c, null.clone()));
        return Ok((cast(base.clone(), DataType::Int64), bounds.collect()));
    }
    if ranges.iter().all(|(key, ..)| key == first) {
        let key = first.clone();
        return Ok((
            key,
            ranges.into_iter().map(|(_, c, bound)| (c, bound)).collect(),
        ));
    }
    let mut widest: Option<(Expr, DataType)> = None;
    for (key, ..) in &ranges {
        let key_type = key.get_type(build)?;
        if without_lossless_casts(key, build)? != base || !widens(&base_type, &key_type) {
            return no(format!("there are two range keys, {first} and {key}"));
        }
        match &widest {
            Some((_, other)) if widens(&key_type, other) => {}
            Some((_, other)) if !widens(other, &key_type) => {
                return no(format!(
                    "{base} is compared as a {other} and as a {key_type}"
                ));
            }
            _ => widest = Some((key.clone(), key_type)),
        }
    }
    let Some((key, key_type)) = widest else {
        return no("there is no range between the two sides");
    };
    let bounds = ranges.into_iter().map(|(_, comparison, bound)| {
        let bound = if bound.get_type(probe)? == key_type {
            bound
        } else {
            cast(bound, key_type.clone())
        };
        Ok((comparison, bound))
    });
    Ok((key, bounds.collect::<Result<_>>()?))
}

/// An expression without the casts around it that keep every value and their order.
pub(crate) fn without_lossless_casts<'a>(expr: &'a Expr, schema: &DFSchema) -> Result<&'a Expr> {
    match expr {
        Expr::Cast(Cast { expr: inner, field })
            if widens(&inner.get_type(schema)?, field.data_type()) =>
        {
            without_lossless_casts(inner, schema)
        }
        Expr::Alias(alias) => without_lossless_casts(&alias.expr, schema),
        other => Ok(other),
    }
}

/// The digits of integers and decimals, before the point and behind it.
fn digits(data_type: &DataType) -> Option<(i16, i16)> {
    Some(match data_type {
        DataType::Int8 | DataType::UInt8 => (3, 0),
        DataType::Int16 | DataType::UInt16 => (5, 0),
        DataType::Int32 | DataType::UInt32 => (10, 0),
        DataType::Int64 => (19, 0),
        DataType::UInt64 => (20, 0),
        DataType::Decimal32(p, s)
        | DataType::Decimal64(p, s)
        | DataType::Decimal128(p, s)
        | DataType::Decimal256(p, s) => (i16::from(*p) - i16::from(*s), i16::from(*s)),
        _ => return None,
    })
}

/// Whether every value of one type is a value of the other, in the same order.
pub(crate) fn widens(from: &DataType, to: &DataType) -> bool {
    let bits = |t: &DataType| t.primitive_width().map_or(0, |bytes| 8 * bytes);
    // A column of the type Null has no value but NULL.
    if from == to || from == &DataType::Null {
        return true;
    }
    if to.is_decimal() {
        let fits = |(digits, scale), (most, finest)| digits <= most && scale <= finest;
        return digits(from)
            .zip(digits(to))
            .is_some_and(|(from, to)| fits(from, to));
    }
    let float_bits = |t: &DataType| match t {
        DataType::Float32 => 24,
        DataType::Float64 => 53,
        _ => 0,
    };
    if from.is_signed_integer() && to.is_signed_integer()
        || from.is_unsigned_integer() && to.is_integer()
    {
        bits(from) < bits(to)
    } else if from.is_integer() && to.is_floating() {
        bits(from) <= float_bits(to)
    } else {
        matches!((from, to), (DataType::Float32, DataType::Float64))
    }
}
