//! A subquery without GROUP BY that aggregates the rows whose key is between bounds of the outer query.
//! `scalar_subquery`, `lateral` and `table_function` share it.
//!
//! ```text
//!   subquery                                                     match
//!   Projection: min(p.v) + 1                                     values  min(p.v)#1 + 1
//!     Aggregate: min(p.v)                                        aggs    min(p.v)#1 = min(p.v)
//!       Filter: p.sym = outer(q.sym) AND p.k >= outer(q.a)       on      p.sym = q.sym, range p.k in [q.a, inf)
//!         p                                                      build   p
//! ```

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Operator, cast};
use datafusion::optimizer::OptimizerConfig;

use crate::common::ordered_type::is_ordered;
use crate::common::sql_text::{clause, sql_text};
use crate::expr::range_calls::is_volatile;
use crate::logical_plan::range_join::{RangeJoin, RangeJoinSpec, Unmatched};
use crate::logical_plan::range_lookup::is_same_plan;
use crate::optimizer::condition::{Operand, Sides, comparison};
use crate::optimizer::logical::aggregate_decomposition::{
    AggregateDecomposition, AggregateInput, is_row_count,
};
use crate::optimizer::logical::common::conditional::Branch;
use crate::optimizer::logical::common::names::{is_unused_name, unused_name};
use crate::optimizer::logical::common::outer_columns::{from_outer, has_outer_columns};
use crate::optimizer::logical::common::plans::{
    below_projection, below_projections, columns_of, extension, filtered, projected, replaced,
};
use crate::optimizer::logical::condition_parts::{Constants, conjuncts, guard, sides_of};
use crate::optimizer::logical::open_ends::compared_by_keys;
use crate::optimizer::logical::order_by::order_zeros;
use crate::optimizer::logical::threshold::{Threshold, key_of_extremes, match_condition};
use crate::optimizer::rejection::{Match, reject};

/// A correlated subquery as a range join without its probe side.
#[derive(Debug)]
pub(crate) struct CorrelatedAggregate {
    pub(crate) build: LogicalPlan,
    pub(crate) spec: RangeJoinSpec<Expr>,
    /// The subquery's columns as expressions over the range join's columns.
    pub(crate) values: Vec<Expr>,
    /// Whether the subquery has a row only if something matches. An aggregate has one always.
    pub(crate) needs_match: bool,
}

impl CorrelatedAggregate {
    /// Matches the plan of a subquery that is evaluated for rows of `probe`, in these branches only.
    pub(crate) fn try_match(
        subquery: &LogicalPlan,
        probe: &DFSchema,
        branches: &[Branch],
        config: &dyn OptimizerConfig,
    ) -> Match<Self> {
        Self::try_match_with(subquery, Constants::Filter, probe, branches, config)
    }

    /// As [`Self::try_match`], with a choice of what comparisons with constants mean.
    pub(crate) fn try_match_with(
        subquery: &LogicalPlan,
        constants: Constants,
        probe: &DFSchema,
        branches: &[Branch],
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
        let mut conditions: Vec<Expr> = conditions.collect::<Result<_>>()?;
        if constants == Constants::Filter {
            conditions = with_range(conditions, depends, probe, build.schema())?;
        }
        let mut conditions = compared_by_keys(conditions, constants, probe, build.schema())?;
        let mut threshold = match key_of_extremes(&calls, build.schema())? {
            Some(key) => Threshold::take_from(&mut conditions, key, probe, build.schema())?,
            None => None,
        };
        let finds_extremes = threshold.is_some();
        // Not `count(p.v)`: where rules for IN count rows with two range keys, a mark join stops at the first one.
        let counts_rows = !calls.is_empty() && calls.iter().all(is_row_count);
        let meaning = (constants, counts_rows);
        let (mut condition, counted) =
            match_condition(&[], conditions, meaning, probe, build.schema())?;
        threshold = threshold.or(counted);
        condition.guard(branches, probe)?;
        if finds_extremes {
            order_zeros(&mut condition, &build)?;
        }
        let input = AggregateInput::Subquery;
        let mut decomposition =
            AggregateDecomposition::new((probe, build.schema()), &condition, input, config);
        let mut row_values = vec![];
        for call in &calls {
            row_values.push(match &threshold {
                Some(threshold) if counts_rows => {
                    decomposition.count_crossing(threshold, call)?.row_value
                }
                Some(threshold) => decomposition.at_crossing(threshold, call)?,
                None => decomposition.decompose(call)?.row_value,
            });
        }
        let (aggregates, mut thresholds) = (decomposition.aggregates, decomposition.thresholds);
        for limit in &mut thresholds {
            guard(limit, branches, probe)?;
        }
        let build = condition.filter_build(build)?;
        let spec = condition.into_spec(Unmatched::Keep, thresholds, aggregates, probe.metadata());

        // The projections above the aggregate, as expressions over the range join's columns.
        let joined = RangeJoin::schema_of(probe, &spec)?;
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
        Ok(Self {
            build,
            spec,
            values,
            needs_match: false,
        })
    }

    /// Merges the aggregates of `other` into this join if both aggregate the same rows, on the same engines: only the
    /// CPU counts rows that cross a threshold. Returns `other` if they do not.
    pub(crate) fn absorb(&mut self, other: Self) -> Option<Self> {
        let same = self.spec.on == other.spec.on
            && self.spec.key == other.spec.key
            && self.spec.bounds == other.spec.bounds
            && self.spec.prevailing == other.spec.prevailing
            && self.spec.counts_crossings() == other.spec.counts_crossings()
            && other
                .spec
                .thresholds
                .iter()
                .all(|limit| self.may_add(limit))
            && is_same_plan(&self.build, &other.build);
        if !same {
            return Some(other);
        }
        let before = self.spec.thresholds.len();
        self.spec.thresholds.extend(other.spec.thresholds);
        let aggregates = other.spec.aggregates.into_iter().map(|mut aggregate| {
            if let Some(threshold) = aggregate.function.threshold_mut() {
                *threshold += before;
            }
            aggregate
        });
        self.spec.aggregates.extend(aggregates);
        None
    }

    /// Whether a threshold of another join can be one of this join. One that is guarded by a condition may read a
    /// column that is added above this join.
    fn may_add(&self, limit: &Expr) -> bool {
        let mut columns = limit.column_refs().into_iter();
        self.spec.thresholds.contains(limit) || columns.all(|column| !is_unused_name(&column.name))
    }

    /// Includes the row in force at the start of a range. The join must have exactly one lower bound.
    pub(crate) fn include_prevailing(&mut self) {
        self.spec.prevailing = true;
    }

    /// Puts the range join above `probe`.
    pub(crate) fn above(self, probe: LogicalPlan) -> Result<LogicalPlan> {
        let join = RangeJoin::try_new(probe, self.build, self.spec)?;
        Ok(extension(join))
    }
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
    let only_equal = |sides: &Sides<'_, Expr>| -> Result<Option<(usize, Expr, Expr)>> {
        let mut found = None;
        for (i, conjunct) in conjuncts.iter().enumerate() {
            match sides.operands(conjunct) {
                Some((key, Some(Operator::Eq), bound)) => {
                    let key_type = key.get_type(build)?;
                    let is_range = is_ordered(&key_type) && !key_type.is_floating();
                    if is_range && (depends || !(is_column(key) || is_column(bound))) {
                        found = Some((i, key.clone(), bound.clone()));
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
    let Some((i, key, bound)) = found else {
        return Ok(conditions);
    };
    let range = [key.clone().gt_eq(bound.clone()), key.lt_eq(bound)];
    conjuncts.splice(i..=i, range);
    Ok(conjuncts)
}

/// Casts expressions over `schema` to the types of these columns where they have others.
pub(crate) fn of_types(
    exprs: Vec<Expr>,
    columns: &DFSchema,
    schema: &DFSchema,
) -> Result<Vec<Expr>> {
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
pub(crate) struct Filtered {
    pub(crate) build: LogicalPlan,
    /// The filters that refer to the outer query, over `build`.
    pub(crate) conditions: Vec<Expr>,
    /// Expressions over the input as expressions over `build`.
    pub(crate) exprs: Vec<Expr>,
}

impl Filtered {
    /// Looks through filters, and, as far as there are filters that refer to the outer query below them, through
    /// projections and aliases: derived tables, and what a rewritten subquery of the subquery leaves.
    pub(crate) fn below(
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
                let conjuncts = split_conjunction(&filter.predicate).into_iter().cloned();
                let (outer, others): (Vec<_>, Vec<_>) =
                    conjuncts.partition(|c| constants == Constants::Bound || c.contains_outer());
                conditions.extend(outer);
                inner.extend(others);
                plan = &filter.input;
                continue;
            }
            if !has_outer_columns(plan)? {
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
        let mut build = plan.clone();
        if let Some(predicate) = conjunction(inner) {
            build = filtered(build, predicate)?;
        }
        let old = build.schema().columns();
        let names_collide = old.iter().any(|column| probe.has_column(column))
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
pub(crate) fn rename<'e>(
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
