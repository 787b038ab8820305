//! A subquery without GROUP BY that aggregates the rows whose key is between bounds of the outer query.
//! `lateral` and `table_function` share it.
//!
//! ```text
//!   subquery                                                     match
//!   Projection: min(p.v) + 1                                     values  min(p.v)#1 + 1
//!     Aggregate: min(p.v)                                        aggs    min(p.v)#1 = min(p.v)
//!       Filter: p.sym = outer(q.sym) AND p.k >= outer(q.a)       on      p.sym = q.sym, range p.k in [q.a, inf)
//!         p                                                      build   p
//! ```

use datafusion_common::tree_node::TreeNodeRecursion;
use datafusion_common::{Column, DFSchema, Result};
use datafusion_dependent_join::{from_outer, has_outer_subquery, is_correlated, refers_to_outer};
use datafusion_expr::expr::AggregateFunction;
use datafusion_expr::utils::{conjunction, split_conjunction};
use datafusion_expr::{Expr, ExprSchemable, LogicalPlan, Operator, cast, lit};
use datafusion_optimizer::OptimizerConfig;

use crate::common::sql_text::{clause, sql_text};
use crate::conditions::condition::{Operand, Sides, comparison};
use crate::conditions::rejection::{Match, reject};
use crate::expr::range_calls::is_volatile;
use crate::logical_plan::range_join::{RangeJoin, RangeJoinSpec, Unmatched};
use crate::rules::aggregate_decomposition::{AggregateDecomposition, AggregateInput, is_row_count};
use crate::rules::common::names::unused_name;
use crate::rules::common::plans::{
    below_projection, below_projections, columns_of, filtered, projected, replaced,
};
use crate::rules::condition_parts::{Constants, conjuncts, equal_ends, guard, sides_of};
use crate::rules::narrowed_ranges::NarrowedRanges;
use crate::rules::open_ends::compared_by_keys;
use crate::rules::order_by::order_zeros;
use crate::rules::shared_join;
use crate::rules::threshold::{Threshold, key_of_extremes, match_condition};

/// A correlated subquery as a range join without its probe side.
#[derive(Debug)]
pub struct CorrelatedAggregate {
    pub build: LogicalPlan,
    pub spec: RangeJoinSpec<Expr>,
    /// The subquery's columns as expressions over the range join's columns.
    pub values: Vec<Expr>,
    /// Whether the subquery has a row only if something matches. An aggregate has one always.
    pub needs_match: bool,
    /// Range joins that go above this one, for aggregates over a part of the rows. They have no values.
    pub narrowed: Vec<Self>,
}

/// The rows that a subquery aggregates.
struct AggregatedRows<'a> {
    build: &'a LogicalPlan,
    /// The conditions that refer to the outer query.
    conditions: &'a [Expr],
    constants: Constants,
    /// Whether an aggregate depends on the outer query.
    depends: bool,
    config: &'a dyn OptimizerConfig,
}

impl CorrelatedAggregate {
    /// Matches the plan of a subquery that is evaluated for rows of `probe`.
    pub fn try_match(
        subquery: &LogicalPlan,
        probe: &DFSchema,
        config: &dyn OptimizerConfig,
    ) -> Match<Self> {
        Self::try_match_with(subquery, Constants::Filter, probe, config)
    }

    /// As [`Self::try_match`], with a choice of what comparisons with constants mean.
    pub fn try_match_with(
        subquery: &LogicalPlan,
        constants: Constants,
        probe: &DFSchema,
        config: &dyn OptimizerConfig,
    ) -> Match<Self> {
        let mut values = columns_of(subquery.schema());
        let aggregate = match below_projections(subquery, &mut values)? {
            LogicalPlan::Aggregate(aggregate) => aggregate,
            other => {
                return reject(format!(
                    "it has neither an aggregate nor ORDER BY with LIMIT, but ends in {}",
                    clause(other)
                ));
            }
        };
        if !aggregate.group_expr.is_empty() {
            return reject("it has GROUP BY");
        }
        let calls = aggregate.aggr_expr.clone();
        let Filtered {
            build,
            conditions,
            exprs,
        } = Filtered::below(&aggregate.input, calls, constants, probe, config)?;
        let depends = exprs.iter().any(Expr::contains_outer);
        let mut calls = vec![];
        for expr in exprs {
            match from_outer(expr)?.unalias() {
                Expr::AggregateFunction(call) => calls.push(call),
                expr => return reject(format!("{} is no aggregate", sql_text(&expr))),
            }
        }
        let conditions = conditions.into_iter().map(from_outer);
        let conditions: Vec<Expr> = conditions.collect::<Result<_>>()?;
        let conditions = compared_by_keys(conditions, constants, probe, build.schema())?;
        let rows = AggregatedRows {
            build: &build,
            conditions: &conditions,
            constants,
            depends,
            config,
        };
        let ranges = match constants {
            Constants::Filter => {
                NarrowedRanges::of(&calls, &conditions, false, true, probe, build.schema())?
            }
            // The row in force at the start of a range is one of the rows of any aggregate.
            Constants::Bound => None,
        };
        let in_ranges = ranges.map(|ranges| rows.join_in_ranges(ranges, probe));
        let (joins, row_values) = match in_ranges {
            Some(Ok(found)) => found,
            Some(Err(_)) | None => {
                let (join, row_values) = rows.join(&[], &calls, None, probe)?;
                (vec![join], row_values)
            }
        };

        // The projections above the aggregate, as expressions over the range joins' columns.
        let joined = schema_above(&joins, probe)?;
        let row_values = of_types(row_values, &aggregate.schema, &joined)?;
        let names = aggregate.schema.columns();
        for value in &mut values {
            if is_volatile(value) {
                return reject(format!("{} is another each time", sql_text(value)));
            }
            *value = from_outer(replaced(
                std::mem::take(value),
                &names,
                &row_values,
                &joined,
            )?)?;
        }
        let values = of_types(values, subquery.schema(), &joined)?;
        let mut joins = joins.into_iter();
        let Some(first) = joins.next() else {
            return reject("it aggregates nothing");
        };
        Ok(Self {
            values,
            narrowed: joins.collect(),
            ..first
        })
    }

    /// Includes the row in force at the start of a range. The join must have exactly one lower bound.
    pub fn include_prevailing(&mut self) {
        self.spec.prevailing = true;
    }

    /// Puts the range joins above `probe`.
    pub fn above(self, probe: LogicalPlan) -> Result<LogicalPlan> {
        let first = shared_join::joined(probe, &self.build, self.spec)?;
        let mut narrowed = self.narrowed.into_iter();
        narrowed.try_fold(first, |probe, join| {
            shared_join::joined(probe, &join.build, join.spec)
        })
    }
}

impl AggregatedRows<'_> {
    /// The range join that aggregates the rows which meet further conditions, without values, and the values of the
    /// aggregates for one row of `probe`. What may fail is evaluated only for rows that are `matched`.
    fn join(
        &self,
        narrowing: &[Expr],
        calls: &[AggregateFunction],
        matched: Option<&Expr>,
        probe: &DFSchema,
    ) -> Match<(CorrelatedAggregate, Vec<Expr>)> {
        let Self {
            build,
            constants,
            config,
            ..
        } = *self;
        let mut conditions = [self.conditions, narrowing].concat();
        if constants == Constants::Filter {
            conditions = with_range(conditions, self.depends, probe, build.schema())?;
        }
        let threshold = match key_of_extremes(calls, build.schema())? {
            Some(key) => Threshold::take_from(&mut conditions, key, probe, build.schema())?,
            None => None,
        };
        // Not `count(p.v)`: where rules for IN count rows with two range keys, a mark join stops at the first one.
        let counts_rows = !calls.is_empty() && calls.iter().all(is_row_count);
        let meaning = (constants, counts_rows);
        let (mut condition, limits) =
            match_condition(&[], conditions, meaning, probe, build.schema())?;
        if threshold.is_some() {
            order_zeros(&mut condition, build)?;
        }
        let input = AggregateInput::Subquery;
        let mut decomposition =
            AggregateDecomposition::new((probe, build.schema()), &condition, input, config);
        let mut row_values = vec![];
        for call in calls {
            row_values.push(match (&threshold, &limits) {
                (Some(threshold), _) => decomposition.at_crossing(threshold, call)?,
                (None, Some(limits)) => decomposition.count_within(limits, call)?.row_value,
                (None, None) => decomposition.decompose(call)?.row_value,
            });
        }
        let (aggregates, mut thresholds) = (decomposition.aggregates, decomposition.thresholds);
        if let Some(matched) = matched {
            condition.guard(matched, probe)?;
            for limit in &mut thresholds {
                guard(limit, matched, probe)?;
            }
        }
        let build = condition.filter_build(build.clone())?;
        let spec = condition.into_spec(Unmatched::Keep, thresholds, aggregates, probe.metadata());
        let join = CorrelatedAggregate {
            build,
            spec,
            values: vec![],
            needs_match: false,
            narrowed: vec![],
        };
        Ok((join, row_values))
    }

    /// The range joins that aggregate the rows in these ranges, the lowest first, and the values of the aggregates.
    fn join_in_ranges(
        &self,
        mut ranges: NarrowedRanges,
        probe: &DFSchema,
    ) -> Match<(Vec<CorrelatedAggregate>, Vec<Expr>)> {
        let may_fail = ranges.narrowed.iter().any(|range| range.may_fail);
        let row_count = may_fail.then(|| ranges.row_count());
        let (mut joins, mut all) = (vec![], vec![]);
        if !ranges.all.is_empty() {
            let (join, row_values) = self.join(&[], &ranges.all, None, probe)?;
            joins.push(join);
            all = row_values;
        }
        let above_all = schema_above(&joins, probe)?;
        let mut narrowed = vec![];
        for range in &ranges.narrowed {
            let (conditions, calls) = (&range.conditions, &range.calls);
            let (join, row_values) = match row_count.filter(|_| range.may_fail) {
                Some(row_count) => {
                    let matched = all[row_count].clone().gt(lit(0_i64));
                    self.join(conditions, calls, Some(&matched), &above_all)?
                }
                None => self.join(conditions, calls, None, probe)?,
            };
            joins.push(join);
            narrowed.push(row_values);
        }
        let row_values = ranges.values(&all, &narrowed)?;
        Ok((joins, row_values))
    }
}

/// The columns of range joins above a probe side.
fn schema_above(joins: &[CorrelatedAggregate], probe: &DFSchema) -> Result<DFSchema> {
    let above =
        |probe: DFSchema, join: &CorrelatedAggregate| RangeJoin::schema_of(&probe, &join.spec);
    joins.iter().try_fold(probe.clone(), above)
}

/// The same conditions with an equality as a range with two equal ends, `k >= b AND k <= b`, if there are equalities
/// only and DataFusion has no join for them: it has none where no operand is a column, and none where an aggregate
/// depends on the outer query.
fn with_range(
    conditions: Vec<Expr>,
    depends: bool,
    probe: &DFSchema,
    build: &DFSchema,
) -> Result<Vec<Expr>> {
    let mut conjuncts = conjuncts(conditions.iter().cloned());
    let is_column = |e: &Expr| {
        e.cast_operand()
            .map_or(e, |(operand, _)| operand)
            .is_column()
    };
    let only_equal = |sides: &Sides<'_, Expr>| -> Result<Option<(usize, [Expr; 2])>> {
        let mut found = None;
        for (i, conjunct) in conjuncts.iter().enumerate() {
            match sides.operands(conjunct) {
                Some((key, Some(Operator::Eq), bound)) => {
                    let range = equal_ends(key, bound, build)?;
                    if let Some(range) = range
                        && (depends || !(is_column(key) || is_column(bound)))
                    {
                        found = Some((i, range));
                    }
                }
                Some((_, Some(op), _)) if comparison(op).is_some() => return Ok(None),
                _ if !sides.ranges(conjunct)?.is_empty() => return Ok(None),
                _ => {}
            }
        }
        Ok(found)
    };
    let found = sides_of(probe, build, only_equal)?;
    let Some((i, range)) = found else {
        return Ok(conditions);
    };
    conjuncts.splice(i..=i, range);
    Ok(conjuncts)
}

/// Casts expressions over `schema` to the types of these columns where they have others.
pub fn of_types(exprs: Vec<Expr>, columns: &DFSchema, schema: &DFSchema) -> Result<Vec<Expr>> {
    let exprs = exprs.into_iter().zip(columns.fields());
    let exprs = exprs.map(|(expr, column)| {
        if &expr.get_type(schema)? == column.data_type() {
            return Ok(expr);
        }
        Ok(cast(expr, column.data_type().clone()))
    });
    exprs.collect()
}

/// The input of an aggregate, or of ORDER BY, without the filters that refer to the outer query.
pub struct Filtered {
    pub build: LogicalPlan,
    /// The filters that refer to the outer query, over `build`.
    pub conditions: Vec<Expr>,
    /// Expressions over the input as expressions over `build`.
    pub exprs: Vec<Expr>,
}

impl Filtered {
    /// Looks through filters, and, as far as there are filters that refer to the outer query below them, through
    /// projections and aliases: derived tables, and what a rewritten subquery of the subquery leaves.
    pub fn below(
        input: &LogicalPlan,
        mut exprs: Vec<Expr>,
        constants: Constants,
        probe: &DFSchema,
        config: &dyn OptimizerConfig,
    ) -> Match<Self> {
        let (mut conditions, mut inner) = (vec![], vec![]);
        let mut plan = input;
        loop {
            if let LogicalPlan::Filter(filter) = plan {
                let rows = filter.input.schema();
                for conjunct in split_conjunction(&filter.predicate) {
                    let is_outer =
                        constants == Constants::Bound || refers_to_outer(conjunct, rows)?;
                    let to = if is_outer {
                        &mut conditions
                    } else {
                        &mut inner
                    };
                    to.push(conjunct.clone());
                }
                plan = &filter.input;
                continue;
            }
            if !is_correlated(plan)? {
                break;
            }
            let all = exprs.iter_mut().chain(&mut conditions).chain(&mut inner);
            plan = match below_projection(plan, all)? {
                Some(input) => input,
                None => return reject(needed_below(plan)),
            };
        }
        // The range join would evaluate it once for all rows of the outer query.
        let mut all = exprs.iter().chain(&inner);
        if let Some(volatile) = all.find(|e| is_volatile(e)) {
            return reject(format!("{} is another each time", sql_text(volatile)));
        }
        for expr in exprs.iter().chain(&conditions) {
            if has_outer_subquery(expr, plan.schema())? {
                let text = sql_text(expr);
                return reject(format!("{text} has a subquery about the query around both"));
            }
        }
        let mut build = plan.clone();
        if let Some(predicate) = conjunction(inner) {
            build = filtered(build, predicate)?;
        }
        let old = build.schema().columns();
        // DataFusion takes a column for one that is named as both its table and its name are, as those of nearest rows.
        let is_named = |column: &Column| {
            let is_of_table = column.relation.is_some();
            is_of_table && probe.has_column_with_unqualified_name(&column.flat_name())
        };
        let names_collide = old.iter().any(|c| probe.has_column(c) || is_named(c))
            || probe.columns().iter().any(|c| build.schema().has_column(c));
        if names_collide {
            // Both sides have columns of the same name, so those of the build side are renamed.
            let renamed = old.iter().map(|c| unused_name(config, probe, &c.name));
            let exprs = exprs.iter_mut().chain(&mut conditions);
            build = rename(build, renamed.collect(), exprs)?;
        }
        Ok(Self {
            build,
            conditions,
            exprs,
        })
    }
}

/// Why a subquery whose conditions on the outer query are below this node is rejected.
fn needed_below(node: &LogicalPlan) -> String {
    let mut found = None;
    let visited = node.apply_with_subqueries(|plan| {
        let condition = match plan {
            LogicalPlan::Filter(filter) => Some(&filter.predicate),
            LogicalPlan::Join(join) => join.filter.as_ref(),
            _ => None,
        };
        let mut conjuncts = condition.into_iter().flat_map(split_conjunction);
        found = conjuncts.find(|c| c.contains_outer()).map(sql_text);
        Ok(if found.is_some() {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    });
    let condition = found.filter(|_| visited.is_ok());
    let condition = condition
        .as_deref()
        .unwrap_or("a column of the outer query");
    format!("{condition} is below {} of the subquery", clause(node))
}

/// Renames the columns of a plan, also in expressions over them.
pub fn rename<'e>(
    plan: LogicalPlan,
    names: Vec<String>,
    exprs: impl IntoIterator<Item = &'e mut Expr>,
) -> Result<LogicalPlan> {
    let old = plan.schema().columns();
    let new = names.iter().map(Column::new_unqualified).map(Expr::Column);
    let new: Vec<Expr> = new.collect();
    let renamed = columns_of(plan.schema()).into_iter().zip(names);
    let renamed = renamed.map(|(column, name)| column.alias(name)).collect();
    let plan = projected(plan, renamed)?;
    for expr in exprs {
        *expr = replaced(std::mem::take(expr), &old, &new, plan.schema())?;
    }
    Ok(plan)
}
