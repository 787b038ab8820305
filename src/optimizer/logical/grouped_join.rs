//! An aggregate over a join on a range.
//!
//! ```text
//!   SELECT q.id, min(p.v) FROM q JOIN p ON p.sym = q.sym AND p.k BETWEEN q.a AND q.b GROUP BY q.id
//!
//!   before                                              after
//!   Aggregate: group by q.id, min(p.v)                  Projection: q.id, __rmq_2 AS min(p.v)
//!     Inner Join: q.sym = p.sym, p.k between q.a, q.b     Aggregate: group by q.id, min(__rmq_1) AS __rmq_2
//!       q                                                   RangeJoin: on=[sym], range=p.k in [q.a, q.b], aggs=[min(p.v) AS __rmq_1]
//!       p                                                     q
//!                                                             p
//! ```
//!
//! The joined rows are never produced. With equality keys a `JoinChoice` above keeps the plan before, too, unless an
//! aggregate has ORDER BY or there are placeholders. Inner, left and right joins match; the side that groups are of is
//! the probe side. Aggregates without an index, such as `stddev(p.v)` beside `avg(p.v)`, are computed by their
//! accumulators (`merge_states`). Without any other, the join stays and returns its rows.
//!
//! GROUP BY stays DataFusion's, as groups need not be unique: the aggregate above takes the minimum of the minima, the
//! sum of the counts. MIN and MAX of floats are merged by `expr::total_order`; AVG of decimals ends in
//! `expr::decimal_average`. A filter drops the rows whose COUNT of crossings is 0; the range join drops only those
//! without candidates.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, JoinType, NullEquality, Result};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{
    Aggregate, AggregateUDF, Expr, ExprSchemable, Extension, Filter, Join, LogicalPlan, Projection,
    lit,
};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::common::options::RmqOptions;
use crate::common::ordered_type::value_type;
use crate::expr::total_order::TotalOrderUdaf;
use crate::logical_plan::join_choice::JoinChoice;
use crate::logical_plan::range_join::{RangeJoin, RangeJoinSpec, Unmatched};
use crate::optimizer::cost::decision::is_sort_wasteful;
use crate::optimizer::logical::aggregate_decomposition::{
    AggregateDecomposition, AggregateInput, extreme_of, is_row_count,
};
use crate::optimizer::logical::common::outer_columns::has_outer_columns;
use crate::optimizer::logical::condition_parts::{Constants, check_repeats, is_of};
use crate::optimizer::logical::threshold::match_condition;
use crate::optimizer::rejection::{Match, reject};

/// Rewrites an aggregate over a join on a range to an aggregate over a range join. Does nothing if `rmq.rewrite` is
/// false.
///
/// It must run last, when filters have been pushed to the sides of the join, and subqueries and cross joins have become
/// joins.
#[derive(Debug, Default)]
pub struct GroupedJoinToRangeJoin;

impl OptimizerRule for GroupedJoinToRangeJoin {
    fn name(&self) -> &'static str {
        "rmq_grouped_join_to_range_join"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        Ok(rewrite_aggregate(plan, config, |_| true))
    }
}

/// The same rule for aggregates with DISTINCT. It must run before DataFusion's rule that makes two aggregates of them,
/// of which the lower one is grouped by the values.
#[derive(Debug, Default)]
pub struct DistinctGroupedJoinToRangeJoin;

impl OptimizerRule for DistinctGroupedJoinToRangeJoin {
    fn name(&self) -> &'static str {
        "rmq_distinct_grouped_join_to_range_join"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let wanted = |aggregate: &Aggregate| {
            let mut calls = aggregate.aggr_expr.iter();
            calls.any(|call| {
                matches!(call.clone().unalias(), Expr::AggregateFunction(call) if call.params.distinct)
            })
        };
        Ok(rewrite_aggregate(plan, config, wanted))
    }
}

/// Rewrites a plan if it is an aggregate that is wanted.
fn rewrite_aggregate(
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
    is_wanted: impl Fn(&Aggregate) -> bool,
) -> Transformed<LogicalPlan> {
    let LogicalPlan::Aggregate(aggregate) = &plan else {
        return Transformed::no(plan);
    };
    if !is_wanted(aggregate) {
        return Transformed::no(plan);
    }
    let Some((join, columns)) = join_below(&aggregate.input) else {
        return Transformed::no(plan);
    };
    if !RmqOptions::of(&config.options()).rewrite {
        return Transformed::no(plan);
    }
    let grouped = GroupedJoin {
        aggregate,
        join,
        columns: &columns,
        config,
    };
    match grouped.try_match() {
        Ok(found) => Transformed::yes(found),
        Err(reason) => {
            log::debug!("{} stays as it is: {reason}", join_text(join));
            Transformed::no(plan)
        }
    }
}

fn join_text(join: &Join) -> String {
    LogicalPlan::Join(join.clone()).display().to_string()
}

/// The join below projections and aliases, and the columns above them in terms of the join's.
fn join_below(plan: &LogicalPlan) -> Option<(&Join, ColumnsBelow)> {
    let mut columns = ColumnsBelow(None);
    let mut plan = plan;
    loop {
        match plan {
            LogicalPlan::Join(join) => return Some((join, columns)),
            LogicalPlan::Projection(projection) => {
                let names = projection.schema.columns();
                let exprs = projection.expr.iter().map(|e| e.clone().unalias());
                columns = columns.through(names.into_iter().zip(exprs).collect())?;
                plan = &projection.input;
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let names = alias.schema.columns();
                let exprs = alias.input.schema().columns().into_iter().map(Expr::Column);
                columns = columns.through(names.into_iter().zip(exprs).collect())?;
                plan = &alias.input;
            }
            _ => return None,
        }
    }
}

/// Columns in terms of those of a plan further below; `None` if they are the same.
struct ColumnsBelow(Option<HashMap<Column, Expr>>);

impl ColumnsBelow {
    /// The columns in terms of the next plan below, whose projection is `below`.
    fn through(self, below: HashMap<Column, Expr>) -> Option<Self> {
        let Some(columns) = self.0 else {
            return Some(Self(Some(below)));
        };
        let below = Self(Some(below));
        let columns = columns.into_iter();
        let columns = columns.map(|(name, expr)| Some((name, below.resolve(expr).ok()?)));
        Some(Self(Some(columns.collect::<Option<_>>()?)))
    }

    /// Rewrites an expression to the columns below.
    fn resolve(&self, expr: Expr) -> Result<Expr> {
        let Some(columns) = &self.0 else {
            return Ok(expr);
        };
        let resolved = expr.transform_up(|e| {
            Ok(match &e {
                Expr::Column(column) => match columns.get(column) {
                    Some(below) => Transformed::yes(below.clone()),
                    None => Transformed::no(e),
                },
                _ => Transformed::no(e),
            })
        })?;
        Ok(resolved.data)
    }
}

/// An aggregate over a join.
struct GroupedJoin<'a> {
    aggregate: &'a Aggregate,
    join: &'a Join,
    /// The columns of the aggregate's input in terms of the join's.
    columns: &'a ColumnsBelow,
    config: &'a dyn OptimizerConfig,
}

/// The probe side and the build side.
type Sides<'a> = (&'a Arc<LogicalPlan>, &'a Arc<LogicalPlan>);

impl GroupedJoin<'_> {
    /// Returns the plan over a range join that replaces the aggregate.
    fn try_match(&self) -> Match<LogicalPlan> {
        let join = self.join;
        if join.null_equality != NullEquality::NullEqualsNothing {
            return reject("its equality keys match NULLs");
        }
        let (left, right) = (&join.left, &join.right);
        if has_outer_columns(left)? || has_outer_columns(right)? {
            // DataFusion decorrelates this later, which it could not do through a range join.
            return reject("one of its sides needs an outer query");
        }
        let as_written = &join.on;
        let flipped = join.on.iter().map(|(l, r)| (r.clone(), l.clone()));
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

    /// The calls of the aggregate, over the join's columns.
    fn calls(&self) -> Match<Vec<AggregateFunction>> {
        let calls = self.aggregate.aggr_expr.iter().map(|expr| {
            match self.columns.resolve(expr.clone())?.unalias() {
                Expr::AggregateFunction(call) => Ok(call),
                _ => reject(format!("{expr} is no aggregate")),
            }
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
        let groups = self.aggregate.group_expr.iter().map(|group| {
            let mut group = self.columns.resolve(group.clone())?;
            if unmatched == Unmatched::Drop {
                group = of_the_probe_side(group, on, probe_schema)?;
            }
            check_repeats(&group)?;
            if !group.column_refs().is_empty() && !is_of(&group, probe_schema) {
                return reject(format!("it is grouped by {group}"));
            }
            Ok(group)
        });
        groups.collect()
    }

    /// Matches with a given probe side and build side.
    fn between(&self, (probe, build): Sides<'_>, on: &[(Expr, Expr)]) -> Match<LogicalPlan> {
        let Self {
            aggregate,
            join,
            config,
            ..
        } = *self;
        let unmatched = match join.join_type {
            JoinType::Inner => Unmatched::Drop,
            _ => Unmatched::Keep,
        };
        let (probe_schema, build_schema) = (probe.schema(), build.schema());
        let calls = self.calls()?;
        let filter = join.filter.iter().cloned().collect();
        let meaning = (Constants::Filter, counts_rows(&calls, probe_schema));
        let (mut condition, threshold) =
            match_condition(on, filter, meaning, probe_schema, build_schema)?;

        condition.check_infallible(build_schema)?;
        if let Some(threshold) = &threshold {
            threshold.check_infallible(build_schema)?;
        }
        if is_sort_wasteful(probe, build) {
            return reject("it has few rows on one side and many on the other");
        }

        let groups = self.groups(unmatched, &condition.on, probe_schema)?;
        let mut decomposition = AggregateDecomposition {
            config,
            probe: probe_schema,
            build: build_schema,
            key: &condition.key,
            input: AggregateInput::Join(unmatched),
            aggregates: vec![],
        };
        let (mut merges, mut values) = (vec![], vec![]);
        let mut count = None;
        for call in &calls {
            let found = match &threshold {
                Some(threshold) if is_row_count(call) => {
                    let found = decomposition.count_crossing(threshold)?;
                    count = Some(found.row_value.clone());
                    found
                }
                _ => decomposition.decompose(call)?,
            };
            merges.extend(found.group_aggregates);
            values.push(found.group_value);
        }
        if decomposition.only_accumulates() {
            let calls = decomposition.aggregates.iter().map(ToString::to_string);
            let calls = calls.collect::<Vec<_>>().join(", ");
            // A join of rows reads as many rows, and DataFusion aggregates them faster than accumulators of single
            // ranges.
            return reject(format!("all of its aggregates read every row: {calls}"));
        }
        let aggregates = decomposition.aggregates;
        let build = condition.filter_build(build.as_ref().clone())?;
        let metadata = aggregate.input.schema().metadata();
        let has_equality_keys = !condition.on.is_empty();
        let spec = RangeJoinSpec {
            unmatched,
            on: condition.on,
            key: condition.key,
            bounds: condition.bounds,
            prevailing: false,
            thresholds: threshold.map(|t| t.limit).into_iter().collect(),
            aggregates,
            metadata: metadata.clone().into_iter().collect(),
        };
        let node = Arc::new(RangeJoin::try_new(probe.as_ref().clone(), build, spec)?);
        let mut joined = Arc::new(LogicalPlan::Extension(Extension { node }));
        if let Some(count) = count.filter(|_| unmatched == Unmatched::Drop) {
            // The range join drops the rows without candidates, not those of whose candidates none crosses the
            // threshold.
            let counted = Filter::try_new(count.gt(lit(0_i64)), joined)?;
            joined = Arc::new(LogicalPlan::Filter(counted));
        }
        // The grouping columns come first in both schemas.
        let old = &aggregate.schema;
        let group_columns = old.fields().len() - values.len();
        let (groups, indexes) = distinct(groups, group_columns);
        let aggregate_columns = merges.len();
        let grouped = Aggregate::try_new(joined, groups, merges)?;
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
        let grouped = Arc::new(LogicalPlan::Aggregate(grouped));
        let plan = Projection::try_new(named.collect(), grouped)?;
        check_fields(&plan.schema, old, group_columns)?;
        let plan = LogicalPlan::Projection(plan);
        if !has_equality_keys {
            // DataFusion would compare all rows of one side with all of the other.
            return Ok(plan);
        }
        self.with_choice(plan, &calls, probe_schema)
    }

    /// Offers the join as it was written beside a plan, if it has the same answer.
    fn with_choice(
        &self,
        plan: LogicalPlan,
        calls: &[AggregateFunction],
        probe: &DFSchema,
    ) -> Match<LogicalPlan> {
        // Of ties of an ORDER BY, DataFusion takes any.
        if calls.iter().any(|call| !call.params.order_by.is_empty()) {
            return Ok(plan);
        }
        let as_written = self.as_written(calls, probe)?;
        if !as_written.get_parameter_names()?.is_empty() {
            // A prepared statement replaces placeholders in inputs alone.
            return Ok(plan);
        }
        let node = Arc::new(JoinChoice::try_new(plan, as_written)?);
        Ok(LogicalPlan::Extension(Extension { node }))
    }

    /// The aggregate over the join, with extremes of floats in total order, as a range join finds them.
    fn as_written(&self, calls: &[AggregateFunction], probe: &DFSchema) -> Result<LogicalPlan> {
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

/// Whether calls count rows, and nothing else is needed of them. Extremes of the probe side's columns need no count.
fn counts_rows(calls: &[AggregateFunction], probe: &DFSchema) -> bool {
    let mut of_build = calls.iter().filter(|call| !is_extreme_of(call, probe));
    calls.iter().any(is_row_count) && of_build.all(is_row_count)
}

/// Whether a call is a minimum or maximum of the columns of the probe side, which matching rows do not change.
fn is_extreme_of(call: &AggregateFunction, probe: &DFSchema) -> bool {
    let params = &call.params;
    let mut needed = params.args.iter().chain(params.filter.as_deref());
    extreme_of(call).is_some() && needed.all(|expr| is_of(expr, probe))
}

/// Checks that the columns of a plan are those of the plan that it replaces.
fn check_fields(new: &DFSchema, old: &DFSchema, group_columns: usize) -> Match<()> {
    for (i, (new, old)) in new.fields().iter().zip(old.fields()).enumerate() {
        if i < group_columns && new.is_nullable() && !old.is_nullable() {
            return reject(format!("{} would be nullable", old.name()));
        }
        if new.data_type() != old.data_type() {
            let (new, old, name) = (new.data_type(), old.data_type(), old.name());
            return reject(format!("{name} would be a {new} instead of a {old}"));
        }
        if new.metadata() != old.metadata() {
            return reject(format!("{} would have other metadata", old.name()));
        }
    }
    Ok(())
}

/// Removes duplicates from grouping expressions. Also returns, for each of the `columns` grouping columns, the index of
/// its expression. Grouping sets are kept as they are.
fn distinct(groups: Vec<Expr>, columns: usize) -> (Vec<Expr>, Vec<usize>) {
    if groups.iter().any(|g| matches!(g, Expr::GroupingSet(_))) {
        return (groups, (0..columns).collect());
    }
    let mut distinct: Vec<Expr> = vec![];
    let indexes = groups.into_iter().map(|group| {
        let known = distinct.iter().position(|other| *other == group);
        known.unwrap_or_else(|| {
            distinct.push(group);
            distinct.len() - 1
        })
    });
    let indexes = indexes.collect();
    (distinct, indexes)
}

/// Rewrites a grouping expression to the columns of the probe side: equality keys of the build side are replaced by
/// those of the probe side. Float keys are not, because equal zeros may have different signs.
fn of_the_probe_side(group: Expr, on: &[(Expr, Expr)], probe: &DFSchema) -> Result<Expr> {
    let replaced = group.transform_up(|expr| {
        let same = on.iter().find(|(_, build)| *build == expr);
        Ok(match (&expr, same) {
            (Expr::Column(_), Some((ours @ Expr::Column(_), _)))
                if !value_type(&ours.get_type(probe)?).is_floating() =>
            {
                Transformed::yes(ours.clone())
            }
            _ => Transformed::no(expr),
        })
    })?;
    Ok(replaced.data)
}
