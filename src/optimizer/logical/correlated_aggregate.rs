//! A subquery without GROUP BY that aggregates the rows whose key is between bounds of the outer query.
//! `scalar_subquery`, `lateral` and `table_function` share it.
//!
//! ```text
//!   subquery                                                     match
//!   Projection: min(p.v) + 1                                     values  __rmq_1 + 1
//!     Aggregate: min(p.v)                                        aggs    __rmq_1 = min(p.v)
//!       Filter: p.sym = outer(q.sym) AND p.k >= outer(q.a)       on      p.sym = q.sym, range p.k in [q.a, inf)
//!         p                                                      build   p
//! ```

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{
    Expr, ExprSchemable, Extension, Filter, LogicalPlan, Projection, cast,
};
use datafusion::optimizer::OptimizerConfig;

use crate::logical_plan::range_join::{RangeJoin, RangeJoinSpec, Unmatched};
use crate::logical_plan::range_lookup::is_same_plan;
use crate::optimizer::logical::aggregate_decomposition::{
    AggregateDecomposition, AggregateInput, is_row_count,
};
use crate::optimizer::logical::common::conditional::Branch;
use crate::optimizer::logical::common::names::{is_unused_name, unused_name};
use crate::optimizer::logical::common::outer_columns::{from_outer, has_outer_columns};
use crate::optimizer::logical::common::range_functions::is_volatile;
use crate::optimizer::logical::condition_parts::Constants;
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
        let schema = subquery.schema();
        let mut plan = subquery;
        let mut projections: Vec<&Projection> = vec![];
        let aggregate = loop {
            match plan {
                LogicalPlan::Projection(projection) => {
                    projections.push(projection);
                    plan = &projection.input;
                }
                LogicalPlan::Aggregate(aggregate) => break aggregate,
                other => return reject(format!("it ends in {}", other.display())),
            }
        };
        if !aggregate.group_expr.is_empty() {
            return reject("it has GROUP BY");
        }
        let filtered = Filtered::below(&aggregate.input, constants, probe, config)?;
        let mut calls = vec![];
        for expr in &aggregate.aggr_expr {
            let call = from_outer(filtered.over_build(expr.clone())?)?;
            let Expr::AggregateFunction(call) = call.unalias() else {
                return reject(format!("{expr} is no aggregate"));
            };
            calls.push(call);
        }
        let build = filtered.build;
        let conditions = filtered.conditions.into_iter().map(from_outer);
        let mut conditions: Vec<Expr> = conditions.collect::<Result<_>>()?;
        let mut threshold = match key_of_extremes(&calls, build.schema())? {
            Some(key) => Threshold::take_from(&mut conditions, key, probe, build.schema())?,
            None => None,
        };
        let finds_extremes = threshold.is_some();
        let counts_rows = !calls.is_empty() && calls.iter().all(is_row_count);
        let meaning = (constants, counts_rows);
        let (mut condition, counted) =
            match_condition(&[], conditions, meaning, probe, build.schema())?;
        threshold = threshold.or(counted);
        if let Some(threshold) = &mut threshold {
            threshold.guard(branches, probe)?;
        }
        condition.guard(branches, probe)?;
        if finds_extremes {
            order_zeros(&mut condition, &build)?;
        }
        let mut decomposition = AggregateDecomposition {
            config,
            probe,
            build: build.schema(),
            key: &condition.key,
            input: AggregateInput::Subquery,
            aggregates: vec![],
        };
        let mut row_values = vec![];
        for call in &calls {
            row_values.push(match &threshold {
                Some(threshold) if counts_rows => {
                    decomposition.count_crossing(threshold)?.row_value
                }
                Some(threshold) => decomposition.at_crossing(threshold, call)?,
                None => decomposition.decompose(call)?.row_value,
            });
        }
        let aggregates = decomposition.aggregates;
        let build = condition.filter_build(build)?;
        let spec = RangeJoinSpec {
            unmatched: Unmatched::Keep,
            on: condition.on,
            key: condition.key,
            bounds: condition.bounds,
            prevailing: false,
            thresholds: threshold.map(|t| t.limit).into_iter().collect(),
            aggregates,
            metadata: probe.metadata().clone().into_iter().collect(),
        };

        // The projections above the aggregate, as expressions over the range join's columns.
        let mut names = aggregate.schema.columns();
        let types = aggregate.schema.fields().iter().map(|f| f.data_type());
        let joined = RangeJoin::schema_of(probe, &spec)?;
        let mut values = of_types(row_values, types, &joined)?;
        for projection in projections.iter().rev() {
            values = above(projection, &names, &values)?;
            names = projection.schema.columns();
        }
        let types = schema.fields().iter().map(|f| f.data_type());
        let values = of_types(values, types, &joined)?;
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
        let node = Arc::new(RangeJoin::try_new(probe, self.build, self.spec)?);
        Ok(LogicalPlan::Extension(Extension { node }))
    }
}

/// Casts expressions to these types where they have others.
pub(crate) fn of_types<'a>(
    exprs: Vec<Expr>,
    types: impl Iterator<Item = &'a DataType>,
    schema: &DFSchema,
) -> Result<Vec<Expr>> {
    let exprs = exprs.into_iter().zip(types);
    let exprs = exprs.map(|(expr, data_type)| {
        if &expr.get_type(schema)? == data_type {
            return Ok(expr);
        }
        Ok(cast(expr, data_type.clone()))
    });
    exprs.collect()
}

/// The input of an aggregate, or of ORDER BY, without the filters that refer to the outer query.
pub(crate) struct Filtered {
    pub(crate) build: LogicalPlan,
    /// The filters that refer to the outer query, over `build`.
    pub(crate) conditions: Vec<Expr>,
    /// The columns of the input.
    pub(crate) names: Vec<Column>,
    /// These columns as expressions over `build`.
    pub(crate) values: Vec<Expr>,
}

impl Filtered {
    /// Looks through filters, and, as far as there are filters that refer to the outer query below them, through
    /// projections and aliases: derived tables, and what a rewritten subquery of the subquery leaves.
    pub(crate) fn below(
        input: &LogicalPlan,
        constants: Constants,
        probe: &DFSchema,
        config: &dyn OptimizerConfig,
    ) -> Match<Self> {
        let names = input.schema().columns();
        let mut values: Vec<Expr> = names.iter().cloned().map(Expr::Column).collect();
        let (mut outer, mut inner) = (vec![], vec![]);
        let mut plan = input;
        loop {
            let (old, new) = match plan {
                LogicalPlan::Filter(filter) => {
                    for conjunct in split_conjunction(&filter.predicate) {
                        if constants == Constants::Bound || conjunct.contains_outer() {
                            outer.push(conjunct.clone());
                        } else if is_volatile(conjunct) {
                            // The range join would evaluate it once for all rows of the outer query.
                            return reject(format!("{conjunct} is another each time"));
                        } else {
                            inner.push(conjunct.clone());
                        }
                    }
                    plan = &filter.input;
                    continue;
                }
                _ if !has_outer_columns(plan)? => break,
                LogicalPlan::Projection(projection) => {
                    if let Some(volatile) = projection.expr.iter().find(|e| is_volatile(e)) {
                        return reject(format!("{volatile} is another each time"));
                    }
                    let exprs = projection.expr.iter().cloned().map(Expr::unalias);
                    let old = plan.schema().columns();
                    plan = &projection.input;
                    (old, exprs.collect::<Vec<_>>())
                }
                LogicalPlan::SubqueryAlias(alias) => {
                    let old = plan.schema().columns();
                    plan = &alias.input;
                    let new = plan.schema().columns().into_iter().map(Expr::Column);
                    (old, new.collect())
                }
                _ => return reject("it needs the outer query further below"),
            };
            for expr in values.iter_mut().chain(&mut outer).chain(&mut inner) {
                *expr = replaced(std::mem::take(expr), &old, &new)?;
            }
        }
        let mut build = plan.clone();
        if let Some(predicate) = conjunction(inner) {
            build = LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(build))?);
        }
        let theirs = probe.columns();
        let old = build.schema().columns();
        let names_collide = old.iter().any(|column| probe.has_column(column))
            || theirs
                .iter()
                .any(|column| build.schema().has_column(column));
        if names_collide {
            // Both sides have columns of the same name, so those of the build side are renamed.
            let new = old.iter().map(|_| unused_name(config, probe));
            let new: Vec<String> = new.collect();
            let columns = old.iter().cloned().map(Expr::Column).zip(&new);
            let columns = columns.map(|(old, new)| old.alias(new)).collect();
            build = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(build))?);
            let new = new.iter().map(Column::new_unqualified).map(Expr::Column);
            let new: Vec<Expr> = new.collect();
            for expr in values.iter_mut().chain(&mut outer) {
                *expr = replaced(std::mem::take(expr), &old, &new)?;
            }
        }
        Ok(Self {
            build,
            conditions: outer,
            names,
            values,
        })
    }

    /// An expression over the input as one over `build`.
    pub(crate) fn over_build(&self, expr: Expr) -> Result<Expr> {
        replaced(expr, &self.names, &self.values)
    }
}

/// An expression with the columns `old` replaced by `new`, and references to the outer query as they are.
pub(crate) fn replaced(expr: Expr, old: &[Column], new: &[Expr]) -> Result<Expr> {
    // Replaced expressions are not visited, because they may contain a column with the name of another.
    let replaced = expr.transform_down(|e| {
        let index = match &e {
            Expr::Column(column) => old.iter().position(|name| name == column),
            _ => None,
        };
        Ok(match index.and_then(|index| new.get(index)) {
            Some(new) => Transformed::new(new.clone(), true, TreeNodeRecursion::Jump),
            None => Transformed::no(e),
        })
    });
    Ok(replaced?.data)
}

/// A projection's expressions, with the columns of its input, `names`, replaced by `values`.
pub(crate) fn above(
    projection: &Projection,
    names: &[Column],
    values: &[Expr],
) -> Match<Vec<Expr>> {
    let exprs = projection.expr.iter();
    exprs.map(|expr| substitute(expr, names, values)).collect()
}

/// An expression over the columns `names`, with these replaced by `values`.
pub(crate) fn substitute(expr: &Expr, names: &[Column], values: &[Expr]) -> Match<Expr> {
    if expr.is_volatile() {
        return reject(format!("{expr} is another each time"));
    }
    // Replaced expressions are not visited, because they may contain a column with the name of another.
    let value = expr.clone().unalias().transform_down(|e| {
        let replaced = match &e {
            Expr::Column(column) => {
                let index = names.iter().position(|name| name == column);
                index.map(|index| values[index].clone())
            }
            Expr::OuterReferenceColumn(_, column) => Some(Expr::Column(column.clone())),
            _ => None,
        };
        Ok(match replaced {
            Some(expr) => Transformed::new(expr, true, TreeNodeRecursion::Jump),
            None => Transformed::no(e),
        })
    })?;
    Ok(value.data)
}
