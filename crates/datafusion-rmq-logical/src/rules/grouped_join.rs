//! An aggregate over a join on a range.
//!
//! ```text
//!   SELECT q.id, min(p.v) FROM q JOIN p ON p.sym = q.sym AND p.k BETWEEN q.a AND q.b GROUP BY q.id
//!
//!   before                                              after
//!   Aggregate: group by q.id, min(p.v)                  Projection: q.id, min(p.v)#2 AS min(p.v)
//!     Inner Join: q.sym = p.sym, p.k between q.a, q.b     Aggregate: group by q.id, min(min(p.v)#1) AS min(p.v)#2
//!       q                                                   RangeJoin: on=[sym], range=p.k in [q.a, q.b], aggs=[min(p.v)]
//!       p                                                     q
//!                                                             p
//! ```
//!
//! The joined rows are never produced. With equality keys a `JoinChoice` above keeps the plan before, too, unless an
//! aggregate has ORDER BY or there are placeholders. So it does where a difference of integers is compared, which the
//! planner may find to wrap around. Inner, left and right joins match; the side that groups are of is
//! the probe side. Aggregates without an index, such as `stddev(p.v)` beside `avg(p.v)`, are computed by their
//! accumulators (`merge_states`). Without any other, the join stays and returns its rows.
//!
//! GROUP BY stays DataFusion's, as groups need not be unique: the aggregate above takes the minimum of the minima, the
//! sum of the counts. MIN and MAX of floats are merged by `expr::total_order`; AVG of decimals ends in
//! `expr::decimal_average`. With a threshold, COUNT(*) counts crossings, and MIN and MAX of the range key are those of
//! the first and last one (see `threshold`). A filter drops the rows without any; the range join drops only those
//! without candidates. Aggregates over a part of the range have range joins of their own (`grouped_ranges`).

use std::collections::HashMap;
use std::sync::Arc;

use datafusion_common::{DFSchema, JoinType, NullEquality, Result};
use datafusion_dependent_join::is_correlated;
use datafusion_expr::expr::AggregateFunction;
use datafusion_expr::{Aggregate, AggregateUDF, Expr, ExprSchemable, Join, LogicalPlan, lit};
use datafusion_functions_aggregate::percentile_cont::PercentileCont;
use datafusion_optimizer::OptimizerConfig;

use crate::common::options::{RangeJoinChoice, RmqOptions};
use crate::common::sql_text::sql_text;
use crate::conditions::null_safe_keys::null_safe_keys;
use crate::conditions::rejection::{Match, or_log, reject};
use crate::expr::total_order::TotalOrderUdaf;
use crate::logical_plan::group_statistics::{GroupStatistic, GroupStatistics};
use crate::logical_plan::join_choice::JoinChoice;
use crate::logical_plan::range_join::{RangeJoin, Unmatched};
use crate::rules::accumulated_aggregate::has_small_states;
use crate::rules::aggregate_decomposition::{
    AggregateDecomposition, AggregateInput, counts_rows, extreme_of,
};
use crate::rules::common::max_rows::is_sort_wasteful;
use crate::rules::common::plain_sql_rule::plain_sql_rule;
use crate::rules::common::plans::{below_projections, extension, filtered, peeled, projected};
use crate::rules::common::unique_rows::{is_table, is_unique};
use crate::rules::condition_parts::{Condition, Constants, check_repeats, is_of};
use crate::rules::grouping::{check_fields, distinct, of_the_probe_side};
use crate::rules::narrowed_ranges::NarrowedRanges;
use crate::rules::no_later_row::is_the_same_each_time;
use crate::rules::open_ends::{compared_by_keys, without_differences};
use crate::rules::order_by::order_zeros;
use crate::rules::range_key::NO_RANGE;
use crate::rules::range_union::{split_alternatives, union_of};
use crate::rules::threshold::{Threshold, key_of_extremes, match_condition};

plain_sql_rule!(
    /// Rewrites an aggregate over a join on a range to an aggregate over a range join. Does nothing if `rmq.rewrite` is
    /// false.
    ///
    /// It must run last, when filters have been pushed to the sides of the join, and subqueries and cross joins have
    /// become joins.
    GroupedJoinToRangeJoin,
    "rmq_grouped_join_to_range_join",
    replace
);

plain_sql_rule!(
    /// The same rule for aggregates with DISTINCT. It must run before DataFusion's rule that makes two aggregates of
    /// them: the lower one is grouped by the values.
    DistinctGroupedJoinToRangeJoin,
    "rmq_distinct_grouped_join_to_range_join",
    replace_distinct
);

fn replace_distinct(
    plan: &LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Option<LogicalPlan>> {
    match plan {
        LogicalPlan::Aggregate(aggregate) if aggregate.aggr_expr.iter().any(is_distinct) => {
            replace(plan, config)
        }
        _ => Ok(None),
    }
}

fn is_distinct(call: &Expr) -> bool {
    match call {
        Expr::Alias(alias) => is_distinct(&alias.expr),
        Expr::AggregateFunction(call) => call.params.distinct,
        _ => false,
    }
}

fn replace(plan: &LogicalPlan, config: &dyn OptimizerConfig) -> Result<Option<LogicalPlan>> {
    let LogicalPlan::Aggregate(aggregate) = plan else {
        return Ok(None);
    };
    if !matches!(peeled(&aggregate.input), LogicalPlan::Join(_)) {
        return Ok(None);
    }
    let groups = aggregate.group_expr.iter();
    let mut groups: Vec<Expr> = groups.chain(&aggregate.aggr_expr).cloned().collect();
    let LogicalPlan::Join(join) = below_projections(&aggregate.input, &mut groups)? else {
        return Ok(None);
    };
    let calls = groups.split_off(aggregate.group_expr.len());
    let grouped = GroupedJoin {
        aggregate,
        join,
        groups,
        calls,
        config,
    };
    let text = LogicalPlan::Join(join.clone());
    Ok(or_log(grouped.try_match(), text.display()))
}

/// An aggregate over a join.
pub struct GroupedJoin<'a> {
    aggregate: &'a Aggregate,
    join: &'a Join,
    /// The grouping expressions over the join's columns.
    groups: Vec<Expr>,
    /// The aggregates over the join's columns.
    calls: Vec<Expr>,
    /// The options of the session.
    pub config: &'a dyn OptimizerConfig,
}

/// Range joins in place of the join.
pub struct Joined {
    /// The range joins.
    pub plan: LogicalPlan,
    /// The equality keys.
    pub on: Vec<(Expr, Expr)>,
    /// What merges the aggregates over a group.
    pub merges: Vec<Expr>,
    /// The values of the query's aggregates for a group.
    pub values: Vec<Expr>,
    /// The order statistics of a group, which the values have.
    pub statistics: Vec<GroupStatistic>,
    /// Whether accumulators compute all aggregates, by states that are small.
    pub only_accumulates: bool,
}

/// The probe side and the build side.
pub type Sides<'a> = (&'a Arc<LogicalPlan>, &'a Arc<LogicalPlan>);

impl GroupedJoin<'_> {
    /// Returns the plan over a range join that replaces the aggregate.
    fn try_match(&self) -> Match<LogicalPlan> {
        let join = self.join;
        let (left, right) = (&join.left, &join.right);
        if join.filter.is_none() && !self.compares_sides() {
            // As most joins: what is below them is not looked at.
            return reject(NO_RANGE);
        }
        if is_correlated(left)? || is_correlated(right)? {
            // DataFusion decorrelates this later, which it could not do through a range join.
            return reject("one of its sides needs an outer query");
        }
        let as_written = &equality_keys(join)?;
        let flipped = as_written.iter().map(|(l, r)| (r.clone(), l.clone()));
        let flipped: Vec<_> = flipped.collect();
        match join.join_type {
            JoinType::Inner => self.between((left, right), as_written).or_else(|reason| {
                let second = self.between((right, left), &flipped);
                second.map_err(|_| reason)
            }),
            JoinType::Left => self.between((left, right), as_written),
            JoinType::Right => self.between((right, left), &flipped),
            other => reject(format!("it is a {other} join")),
        }
    }

    /// Whether an aggregate has columns of both sides, and so may have a range in its FILTER or in a CASE.
    fn compares_sides(&self) -> bool {
        let (left, right) = (self.join.left.schema(), self.join.right.schema());
        self.calls
            .iter()
            .any(|call| !call.column_refs().is_empty() && !is_of(call, left) && !is_of(call, right))
    }

    /// The calls of the aggregate, over the join's columns.
    fn calls(&self) -> Match<Vec<AggregateFunction>> {
        let calls = self.calls.iter().map(|call| match call.clone().unalias() {
            Expr::AggregateFunction(call) => Ok(call),
            other => reject(format!("{} is no aggregate", sql_text(&other))),
        });
        calls.collect()
    }

    /// The grouping columns, in terms of the probe side.
    fn groups(
        &self,
        unmatched: Unmatched,
        on: &[(Expr, Expr)],
        probe_schema: &DFSchema,
    ) -> Match<Vec<Expr>> {
        let groups = self.groups.iter().cloned().map(|mut group| {
            if unmatched == Unmatched::Drop {
                group = of_the_probe_side(group, on, probe_schema)?;
            }
            check_repeats(&group)?;
            if !group.column_refs().is_empty() && !is_of(&group, probe_schema) {
                return reject(format!("it is grouped by {}", sql_text(&group)));
            }
            Ok(group)
        });
        groups.collect()
    }

    /// Matches with a given probe side and build side.
    fn between(&self, (probe, build): Sides<'_>, on: &[(Expr, Expr)]) -> Match<LogicalPlan> {
        let Self {
            aggregate, join, ..
        } = *self;
        let unmatched = self.unmatched();
        let (probe_schema, build_schema) = (probe.schema(), build.schema());
        let calls = self.calls()?;
        let rest = join.filter.iter().cloned().collect();
        let rest = compared_by_keys(rest, Constants::Filter, probe_schema, build_schema)?;
        let (rest, may_wrap) = without_differences(rest, probe_schema, build_schema)?;
        if is_sort_wasteful(probe, build) {
            return reject("it has few rows on one side and many on the other");
        }
        let (of_probe, of_build): (Vec<_>, Vec<_>) = on.iter().cloned().unzip();
        let is_chosen = || {
            let options = RmqOptions::of(&self.config.options());
            options.range_joins == RangeJoinChoice::Always
        };
        if !is_table(build)
            && (is_unique(probe, &of_probe) || is_unique(build, &of_build))
            && !is_chosen()
        {
            return reject("rows of one side have one partner at most, which a hash join finds");
        }
        let may_be_empty = aggregate.group_expr.is_empty()
            || matches!(aggregate.group_expr.as_slice(), [Expr::GroupingSet(_)]);
        let ranges = NarrowedRanges::of(
            &calls,
            &rest,
            unmatched == Unmatched::Keep,
            may_be_empty,
            probe_schema,
            build_schema,
        )?;
        let in_ranges = ranges.map(|ranges| {
            let sides = (probe, build);
            self.join_in_ranges(sides, on, &rest, &ranges)
        });
        let joined = match in_ranges {
            Some(Ok(joined)) => joined,
            Some(Err(_)) | None => {
                let alternatives = self.alternatives(rest, &calls, probe_schema, build_schema)?;
                self.join_in_one((probe, build), on, alternatives, &calls)?
            }
        };
        let groups = self.groups(unmatched, &joined.on, probe_schema)?;
        // Statistics need the sorted rows in memory.
        let may_stay = !joined.on.is_empty()
            || joined.only_accumulates
            || !joined.statistics.is_empty()
            || may_wrap;
        let plan = self.grouped(joined, groups)?;
        if !may_stay {
            // DataFusion would aggregate all pairs of rows in a range.
            return Ok(plan);
        }
        self.with_choice(plan, &calls, probe_schema, may_wrap)
    }

    /// One range join, or one for each alternative of its range.
    fn join_in_one(
        &self,
        (probe, build): Sides<'_>,
        on: &[(Expr, Expr)],
        mut others: Vec<Vec<Expr>>,
        calls: &[AggregateFunction],
    ) -> Match<Joined> {
        let (probe_schema, build_schema) = (probe.schema(), build.schema());
        let unmatched = self.unmatched();
        let mut rest = others.remove(0);
        let of_build = calls
            .iter()
            .filter(|call| !is_extreme_of(call, probe_schema));
        let of_build: Vec<AggregateFunction> = of_build.cloned().collect();
        // The first, or last, key at which a value crosses a threshold.
        let crossed = match key_of_extremes(&of_build, build_schema)? {
            Some(key) => Threshold::take_from(&mut rest, key, probe_schema, build_schema)?,
            None => None,
        };
        let are_counts = only_count_rows(calls, probe_schema, build_schema);
        let meaning = (Constants::Filter, are_counts);
        let (mut condition, limits) =
            match_condition(on, rest, meaning, probe_schema, build_schema)?;
        let threshold = crossed.as_ref();
        let threshold = threshold.or(limits.as_ref().map(|limits| &limits.first));
        condition.check_infallible(threshold.is_some(), build_schema)?;
        let others = others.into_iter().map(|rest| {
            let constants = Constants::Filter;
            Condition::try_match(on.to_vec(), rest, constants, probe_schema, build_schema)
        });
        let mut others = others.collect::<Match<Vec<_>>>()?;
        if threshold.is_some() && !others.is_empty() {
            return reject("it has a threshold and alternatives of a range");
        }
        if let Some(threshold) = threshold {
            threshold.check_infallible(build_schema)?;
        }
        if crossed.is_some() {
            order_zeros(&mut condition, build)?;
        }
        let input = AggregateInput::Join(unmatched);
        let mut decomposition = AggregateDecomposition::new(
            (probe_schema, build_schema),
            &condition,
            input,
            self.config,
        );
        let (mut merges, mut values) = (vec![], vec![]);
        let mut is_kept = None;
        for call in calls {
            let found = match (&crossed, &limits) {
                (Some(threshold), _) if !is_extreme_of(call, probe_schema) => {
                    let found = decomposition.extreme_at_crossing(threshold, call)?;
                    is_kept = Some(found.row_value.clone().is_not_null());
                    found
                }
                (None, Some(limits)) if counts_rows(call, build_schema) => {
                    if unmatched == Unmatched::Drop {
                        is_kept = Some(decomposition.rows_within(limits)?.gt(lit(0_i64)));
                    }
                    decomposition.count_within(limits, call)?
                }
                _ => decomposition.decompose(call)?,
            };
            merges.extend(found.group_aggregates);
            values.push(found.group_value);
        }
        let only_accumulates = decomposition.only_accumulates();
        if !decomposition.aggregates.iter().all(has_small_states) {
            check_accumulators(&decomposition)?;
        }
        let (aggregates, thresholds) = (decomposition.aggregates, decomposition.thresholds);
        let statistics = decomposition.statistics;
        let on = condition.on.clone();
        others.insert(0, condition);
        let joined = others.into_iter().map(|mut condition| {
            let build = condition.filter_build(build.as_ref().clone())?;
            let (thresholds, aggregates) = (thresholds.clone(), aggregates.clone());
            let spec = condition.into_spec(unmatched, thresholds, aggregates, self.metadata());
            let joined = RangeJoin::try_new(probe.as_ref().clone(), build, spec)?;
            Ok(extension(joined))
        });
        let mut plan = union_of(joined.collect::<Result<_>>()?)?;
        if let Some(is_kept) = is_kept.filter(|_| unmatched == Unmatched::Drop) {
            // The range join drops the rows without candidates, not those of whose candidates none crosses the
            // threshold.
            plan = filtered(plan, is_kept)?;
        }
        Ok(Joined {
            plan,
            on,
            merges,
            values,
            statistics,
            only_accumulates,
        })
    }

    /// What becomes of a probe row without a match.
    pub fn unmatched(&self) -> Unmatched {
        match self.join.join_type {
            JoinType::Inner => Unmatched::Drop,
            _ => Unmatched::Keep,
        }
    }

    /// The metadata of the output.
    pub fn metadata(&self) -> &HashMap<String, String> {
        self.aggregate.input.schema().metadata()
    }

    /// The aggregate over a range join, with the columns of the one that it replaces.
    fn grouped(&self, joined: Joined, groups: Vec<Expr>) -> Match<LogicalPlan> {
        let Joined {
            plan,
            merges,
            values,
            statistics,
            ..
        } = joined;
        // The grouping columns come first in both schemas.
        let old = &self.aggregate.schema;
        let group_columns = old.fields().len() - values.len();
        let (groups, indexes) = distinct(groups, group_columns);
        let aggregate_columns = merges.len();
        let grouped = Aggregate::try_new(Arc::new(plan), groups, merges)?;
        let now = grouped.schema.columns();
        let here = now.len() - aggregate_columns;
        if indexes.len() != group_columns || indexes.iter().any(|index| *index >= here) {
            return reject("two of its groups are the same here");
        }
        let now = indexes
            .iter()
            .map(|index| Expr::Column(now[*index].clone()));
        let named = now.chain(values).zip(old.iter());
        let named = named.map(|(expr, (qualifier, field))| {
            expr.alias_qualified(qualifier.cloned(), field.name())
        });
        let mut plan = LogicalPlan::Aggregate(grouped);
        if !statistics.is_empty() {
            plan = extension(GroupStatistics::try_new(plan, statistics)?);
        }
        let plan = projected(plan, named.collect())?;
        check_fields(plan.schema(), old, group_columns)?;
        Ok(plan)
    }

    /// Offers the join as it was written beside a plan, if that can be planned later. It must be if a difference of
    /// integers may wrap around.
    fn with_choice(
        &self,
        plan: LogicalPlan,
        calls: &[AggregateFunction],
        probe: &DFSchema,
        may_wrap: bool,
    ) -> Match<LogicalPlan> {
        match self.as_written(calls, probe)? {
            Some(as_written) => {
                let choice = JoinChoice::try_new(plan, as_written)?;
                Ok(extension(choice.with_differences(may_wrap)))
            }
            None if may_wrap => reject(
                "a difference of integers may wrap around, and it can't be planned in two ways",
            ),
            None => Ok(plan),
        }
    }

    /// The conditions, once for each alternative of a range, if these may be joined one after the other: each row of
    /// the probe side that has a match has one row for each alternative then.
    fn alternatives(
        &self,
        rest: Vec<Expr>,
        calls: &[AggregateFunction],
        probe: &DFSchema,
        build: &DFSchema,
    ) -> Result<Vec<Vec<Expr>>> {
        let join = self.join;
        // Of ties of an ORDER BY, that in the first range would not be first.
        let is_ordered = calls.iter().any(depends_on_order);
        let may_be_split = join.join_type == JoinType::Inner
            && !is_ordered
            && is_the_same_each_time(&join.left)?
            && is_the_same_each_time(&join.right)?;
        let split = if may_be_split {
            split_alternatives(&rest, probe, build)?
        } else {
            None
        };
        Ok(split.unwrap_or_else(|| vec![rest]))
    }

    /// The aggregate over the join as it was written, if it has the same answer and can be planned later.
    fn as_written(
        &self,
        calls: &[AggregateFunction],
        probe: &DFSchema,
    ) -> Result<Option<LogicalPlan>> {
        // Of ties of an ORDER BY, DataFusion takes any.
        if calls.iter().any(depends_on_order) {
            return Ok(None);
        }
        let as_written = self.in_total_order(calls, probe)?;
        // A prepared statement replaces placeholders in inputs alone.
        let is_final = as_written.get_parameter_names()?.is_empty();
        Ok(is_final.then_some(as_written))
    }

    /// The aggregate over the join, with extremes of floats in total order, as a range join finds them.
    fn in_total_order(&self, calls: &[AggregateFunction], probe: &DFSchema) -> Result<LogicalPlan> {
        let mut aggregate = self.aggregate.clone();
        let groups = aggregate.schema.fields().len() - aggregate.aggr_expr.len();
        let fields = aggregate.schema.fields()[groups..].iter();
        let exprs = aggregate.aggr_expr.iter_mut().zip(calls).zip(fields);
        for ((expr, resolved), field) in exprs {
            let float = field.data_type();
            if let Expr::AggregateFunction(mut call) = expr.clone().unalias()
                && let Some(extreme) = extreme_of(&call)
                && float.is_floating()
                && !is_extreme_of(resolved, probe)
            {
                for argument in &mut call.params.args {
                    // Of dictionaries.
                    *argument = argument.clone().cast_to(float, aggregate.input.schema())?;
                }
                call.func = Arc::new(AggregateUDF::from(TotalOrderUdaf::new(extreme)));
                *expr = Expr::AggregateFunction(call).alias(field.name());
            }
        }
        Ok(LogicalPlan::Aggregate(aggregate))
    }
}

/// Whether a call has an ORDER BY of which ties may be in any order. A percentile of the values that it orders by has
/// none.
fn depends_on_order(call: &AggregateFunction) -> bool {
    !call.params.order_by.is_empty() && !call.func.inner().is::<PercentileCont>()
}

/// Rejects a range join whose aggregates all read every row. Of those whose states are small, ranges that are wide
/// don't, which is known when the sides are planned.
pub fn check_accumulators(decomposition: &AggregateDecomposition<'_>) -> Match<()> {
    if !decomposition.only_accumulates() {
        return Ok(());
    }
    let calls = decomposition.aggregates.iter().map(ToString::to_string);
    let calls = calls.collect::<Vec<_>>().join(", ");
    // A join of rows reads as many rows, and DataFusion aggregates them faster than accumulators of single ranges.
    reject(format!("all of its aggregates read every row: {calls}"))
}

/// The pairs of equality keys of a join, of which none matches a NULL.
fn equality_keys(join: &Join) -> Match<Vec<(Expr, Expr)>> {
    if join.null_equality == NullEquality::NullEqualsNothing {
        return Ok(join.on.clone());
    }
    let mut keys = vec![];
    for (left, right) in &join.on {
        let pair = (
            (left, join.left.schema().as_ref()),
            (right, join.right.schema().as_ref()),
        );
        let Some(found) = null_safe_keys(pair.0, pair.1)? else {
            return reject(format!("it can't group by {}", sql_text(left)));
        };
        keys.extend(found);
    }
    Ok(keys)
}

/// Whether calls count rows, and nothing else is needed of them. Extremes of the probe side's columns need no count.
fn only_count_rows(calls: &[AggregateFunction], probe: &DFSchema, build: &DFSchema) -> bool {
    let counts = |call: &AggregateFunction| counts_rows(call, build);
    let mut of_build = calls.iter().filter(|call| !is_extreme_of(call, probe));
    calls.iter().any(counts) && of_build.all(counts)
}

/// Whether a call is a minimum or maximum of the columns of the probe side, which matching rows do not change.
fn is_extreme_of(call: &AggregateFunction, probe: &DFSchema) -> bool {
    let params = &call.params;
    let mut needed = params.args.iter().chain(params.filter.as_deref());
    extreme_of(call).is_some() && needed.all(|expr| is_of(expr, probe))
}
