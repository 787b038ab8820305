//! `SELECT q.id, MIN(p.v) FROM q JOIN p ON p.sym = q.sym AND p.k BETWEEN q.a AND q.b GROUP BY q.id`.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, JoinType, NullEquality, Result};
use datafusion::logical_expr::{
    Aggregate, Expr, ExprSchemable, Extension, Join, LogicalPlan, Projection,
};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::common::options::RmqOptions;
use crate::common::ordered_type::value_type;
use crate::logical_plan::range_join::{RangeJoin, RangeJoinSpec, Unmatched};
use crate::rewrite::range_join::aggregates::{Form, Partials};
use crate::rewrite::range_join::condition::{Condition, Constants, check_repeats, is_of};
use crate::rewrite::range_join::correlated::has_outer_columns;
use crate::rewrite::range_join::rejection::{Recognised, no};
use crate::rewrite::range_join::side_sizes::is_too_few;

/// An aggregate over a join by a range becomes an aggregate over a range join.
///
/// It stands last: by then filters have been pushed to the sides that they are about, and subqueries and cross joins have
/// become joins.
#[derive(Debug)]
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
        let LogicalPlan::Aggregate(aggregate) = &plan else {
            return Ok(Transformed::no(plan));
        };
        let Some((join, columns)) = join_below(&aggregate.input) else {
            return Ok(Transformed::no(plan));
        };
        if !RmqOptions::of(&config.options()).rewrite {
            return Ok(Transformed::no(plan));
        }
        let grouped = GroupedJoin {
            aggregate,
            join,
            columns: &columns,
            config,
        };
        match grouped.recognise() {
            Ok(found) => Ok(Transformed::yes(found)),
            Err(reason) => {
                log::debug!("{} stays as it is: {reason}", join_text(join));
                Ok(Transformed::no(plan))
            }
        }
    }
}

fn join_text(join: &Join) -> String {
    LogicalPlan::Join(join.clone()).display().to_string()
}

/// The join below projections and aliases, and what the columns above them are in its columns.
fn join_below(plan: &LogicalPlan) -> Option<(&Join, Columns)> {
    let mut columns = Columns(None);
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

/// What columns are in those of a plan further below; `None` while they are the same.
struct Columns(Option<HashMap<Column, Expr>>);

impl Columns {
    /// The columns, one plan further down.
    fn through(self, below: HashMap<Column, Expr>) -> Option<Self> {
        let Some(columns) = self.0 else {
            return Some(Self(Some(below)));
        };
        let below = Self(Some(below));
        let columns = columns.into_iter();
        let columns = columns.map(|(name, expr)| Some((name, below.resolve(expr).ok()?)));
        Some(Self(Some(columns.collect::<Option<_>>()?)))
    }

    /// An expression in the columns below.
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

/// An aggregate over a join, and what it stands in.
struct GroupedJoin<'a> {
    aggregate: &'a Aggregate,
    join: &'a Join,
    /// What the aggregate's columns are in the join's.
    columns: &'a Columns,
    config: &'a dyn OptimizerConfig,
}

/// The probe side and the build side.
type Sides<'a> = (&'a Arc<LogicalPlan>, &'a Arc<LogicalPlan>);

impl GroupedJoin<'_> {
    /// The plan that gives what the aggregate gives.
    fn recognise(&self) -> Recognised<LogicalPlan> {
        let join = self.join;
        if join.null_equality != NullEquality::NullEqualsNothing {
            return no("its equality keys match NULLs");
        }
        let (left, right) = (&join.left, &join.right);
        if has_outer_columns(left)? || has_outer_columns(right)? {
            // DataFusion decorrelates later what it can't pull through a range join.
            return no("one of its sides needs an outer query");
        }
        let as_they_stand = || join.on.clone();
        let flipped = || {
            let pairs = join.on.iter();
            pairs.map(|(l, r)| (r.clone(), l.clone())).collect()
        };
        match join.join_type {
            JoinType::Inner => self
                .between((left, right), as_they_stand())
                .or_else(|reason| {
                    let second = self.between((right, left), flipped());
                    second.map_err(|_| reason)
                }),
            JoinType::Left => self.between((left, right), as_they_stand()),
            JoinType::Right => self.between((right, left), flipped()),
            other => no(format!("it is a {other} join")),
        }
    }

    /// The same, given which side is the probe side and which is the build side.
    fn between(&self, (probe, build): Sides<'_>, on: Vec<(Expr, Expr)>) -> Recognised<LogicalPlan> {
        let Self {
            aggregate,
            join,
            columns,
            config,
        } = *self;
        let unmatched = match join.join_type {
            JoinType::Inner => Unmatched::Drop,
            _ => Unmatched::Keep,
        };
        let (probe_schema, build_schema) = (probe.schema(), build.schema());
        let filter = join.filter.iter().cloned().collect();
        let mut condition =
            Condition::recognise(on, filter, Constants::Filter, probe_schema, build_schema)?;

        condition.check_infallible(build_schema)?;
        if is_too_few(probe, build) {
            return no("it has few rows on one side and many on the other");
        }

        let mut groups = vec![];
        for group in &aggregate.group_expr {
            let mut group = columns.resolve(group.clone())?;
            if unmatched == Unmatched::Drop {
                group = of_the_probe_side(group, &condition.on, probe_schema)?;
            }
            check_repeats(&group)?;
            if !group.column_refs().is_empty() && !is_of(&group, probe_schema) {
                return no(format!("it is grouped by {group}"));
            }
            groups.push(group);
        }
        let mut partials = Partials {
            config,
            probe: probe_schema,
            build: build_schema,
            key: &condition.key,
            form: Form::Joined(unmatched),
            found: vec![],
        };
        let (mut merges, mut values) = (vec![], vec![]);
        for expr in &aggregate.aggr_expr {
            let Expr::AggregateFunction(call) = columns.resolve(expr.clone())?.unalias() else {
                return no(format!("{expr} is no aggregate"));
            };
            let found = partials.merge(&call)?;
            merges.extend(found.aggregates);
            values.push(found.value);
        }
        let aggregates = partials.found;
        let build = condition.filter_build(build.as_ref().clone())?;
        let metadata = aggregate.input.schema().metadata();
        let spec = RangeJoinSpec {
            unmatched,
            on: condition.on,
            key: condition.key,
            bounds: condition.bounds,
            prevailing: false,
            aggregates,
            metadata: metadata.clone().into_iter().collect(),
        };
        let node = Arc::new(RangeJoin::try_new(probe.as_ref().clone(), build, spec)?);
        let joined = Arc::new(LogicalPlan::Extension(Extension { node }));
        // The groups' columns come first in both.
        let old = &aggregate.schema;
        let group_columns = old.fields().len() - values.len();
        let (groups, places) = distinct(groups, group_columns);
        let answers = merges.len();
        let grouped = Aggregate::try_new(joined, groups, merges)?;
        let now = grouped.schema.columns();
        let here = now.len() - answers;
        if places.len() != group_columns || places.iter().any(|place| *place >= here) {
            return no("two of its groups are the same here");
        }
        let now = places.iter().map(|place| Expr::Column(now[*place].clone()));
        let named = now.chain(values).zip(old.iter());
        let named = named.map(|(expr, (qualifier, field))| {
            expr.alias_qualified(qualifier.cloned(), field.name())
        });
        let grouped = Arc::new(LogicalPlan::Aggregate(grouped));
        let plan = Projection::try_new(named.collect(), grouped)?;
        for (i, (new, old)) in plan.schema.fields().iter().zip(old.fields()).enumerate() {
            if i < group_columns && new.is_nullable() && !old.is_nullable() {
                return no(format!("{} would be nullable", old.name()));
            }
            if new.data_type() != old.data_type() {
                let (new, old, name) = (new.data_type(), old.data_type(), old.name());
                return no(format!("{name} would be a {new} instead of a {old}"));
            }
            if new.metadata() != old.metadata() {
                return no(format!("{} would have other metadata", old.name()));
            }
        }
        Ok(LogicalPlan::Projection(plan))
    }
}

/// Each group once, as an aggregate has them, and where among them stands what each of so many columns is. Those of grouping sets
/// stay as they are.
fn distinct(groups: Vec<Expr>, columns: usize) -> (Vec<Expr>, Vec<usize>) {
    if groups.iter().any(|g| matches!(g, Expr::GroupingSet(_))) {
        return (groups, (0..columns).collect());
    }
    let mut distinct: Vec<Expr> = vec![];
    let places = groups.into_iter().map(|group| {
        let known = distinct.iter().position(|other| *other == group);
        known.unwrap_or_else(|| {
            distinct.push(group);
            distinct.len() - 1
        })
    });
    let places = places.collect();
    (distinct, places)
}

/// A group's expression in the columns of the probe side: an equality key of the other side is the same, unless zeros of
/// both signs, which are equal, tell them apart.
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
