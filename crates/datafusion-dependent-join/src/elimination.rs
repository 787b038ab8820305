//! The domain is pushed down the plan of a subquery.
//!
//! A plan becomes one that has the rows which the subquery has for each row of the domain, beside this row: its first
//! columns are those of the plan, in the same order and with the same names, and the last ones are the columns of the
//! domain. Each node knows how to do this with its inputs. A plan without outer columns is joined with the domain.

mod grouping_sets;
pub(crate) mod joins;
mod recursion;
mod rows;

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion_common::{Column, DFSchema, Result};
use datafusion_expr::expr::Sort as SortExpr;
use datafusion_expr::simplify::SimplifyContext;
use datafusion_expr::{
    Aggregate, Distinct, EmptyRelation, Expr, Filter, Limit, LogicalPlan, LogicalPlanBuilder,
    Projection, SubqueryAlias, UserDefinedLogicalNode, Window, cast, lit,
};
use datafusion_functions::core::expr_fn::coalesce;
use datafusion_functions_aggregate::first_last::first_value_udaf;
use datafusion_optimizer::OptimizerConfig;
use datafusion_optimizer::simplify_expressions::ExprSimplifier;

use crate::exprs::{columns, group_keys, named};
use crate::outer::{Replacement, outer_of};
use crate::refusal::{Found, refuse};
use crate::unions::rows_of;
use crate::work_tables::WorkTable;

/// What is pushed down.
#[derive(Clone)]
pub(crate) struct Elimination<'a> {
    /// The outer columns that the subquery refers to.
    pub(crate) outer: Vec<Column>,
    /// The rows of the domain, and its columns over them.
    pub(crate) source: (LogicalPlan, Vec<Expr>),
    pub(crate) extends: fn(&dyn UserDefinedLogicalNode) -> bool,
    /// The work tables of the recursive queries around that have the domain.
    pub(crate) work_tables: Vec<WorkTable>,
    pub(crate) config: &'a dyn OptimizerConfig,
}

impl Elimination<'_> {
    /// The plan with the domain pushed down.
    pub(crate) fn push(&self, plan: &LogicalPlan) -> Found<LogicalPlan> {
        if !self.is_correlated(plan)? {
            return self.with_domain(plan);
        }
        match plan {
            LogicalPlan::Projection(projection) => {
                let input = self.push(&projection.input)?;
                let exprs = self.replaced(plan, &input, projection.expr.clone())?;
                let domain = self.domain_of(&input);
                self.with_names(input, exprs, domain, &projection.schema)
            }
            LogicalPlan::Filter(filter) => {
                let input = self.push(&filter.input)?;
                let predicate = self.replaced_one(plan, &input, filter.predicate.clone())?;
                filtered(input, predicate)
            }
            LogicalPlan::Subquery(subquery) => self.push(&subquery.subquery),
            LogicalPlan::SubqueryAlias(alias) => {
                let input = Arc::new(self.push(&alias.input)?);
                let alias = SubqueryAlias::try_new(input, alias.alias.clone())?;
                Ok(LogicalPlan::SubqueryAlias(alias))
            }
            LogicalPlan::Aggregate(aggregate) => match grouping_sets::united(aggregate)? {
                Some(united) => self.push(&united),
                None => self.push_aggregate(plan, aggregate),
            },
            LogicalPlan::Window(window) => {
                let input = self.push(&window.input)?;
                let domain = self.domain_of(&input);
                let windows = self.replaced(plan, &input, window.window_expr.clone())?;
                let windows = windows.into_iter().map(|expr| partitioned(expr, &domain));
                let windows = windows.collect::<Found<Vec<_>>>()?;
                let node = Window::try_new(windows, Arc::new(input))?;
                let all = node.schema.columns();
                let (orig, rest) = all.split_at(window.input.schema().fields().len());
                let (domain, windows) = rest.split_at(domain.len());
                let exprs = columns([orig, windows].concat());
                let node = LogicalPlan::Window(node);
                self.with_names(node, exprs, domain.to_vec(), &window.schema)
            }
            LogicalPlan::Distinct(Distinct::All(input)) => {
                let input = Arc::new(self.push(input)?);
                Ok(LogicalPlan::Distinct(Distinct::All(input)))
            }
            LogicalPlan::Distinct(Distinct::On(on)) => {
                let input = self.push(&on.input)?;
                let mut keys = self.replaced(plan, &input, on.on_expr.clone())?;
                keys.extend(columns(self.domain_of(&input)));
                let order = on.sort_expr.clone().unwrap_or_default();
                let order = self.replaced_order(plan, &input, order)?;
                let exprs = self.replaced(plan, &input, on.select_expr.clone())?;
                let domain = self.domain_of(&input);
                let first = self.numbered(input, keys, order, None, Some(number(1)))?;
                self.with_names(first, exprs, domain, &on.schema)
            }
            LogicalPlan::Sort(sort) => match sort.fetch {
                Some(fetch) => self.push_limit(plan, &sort.input, None, Some(number(fetch))),
                None => self.push(&sort.input),
            },
            LogicalPlan::Limit(limit) => {
                let literal = |rows: &Option<Box<Expr>>| {
                    let rows = rows.as_deref().cloned();
                    rows.map(literal).transpose()
                };
                let (skip, fetch) = (literal(&limit.skip)?, literal(&limit.fetch)?);
                let known = Limit {
                    skip: skip.clone().map(Box::new),
                    fetch: fetch.clone().map(Box::new),
                    input: Arc::clone(&limit.input),
                };
                // An error where one is negative.
                known.get_skip_type()?;
                known.get_fetch_type()?;
                self.push_limit(plan, &limit.input, skip, fetch)
            }
            LogicalPlan::Join(join) => self.push_join(plan, join),
            LogicalPlan::Union(union) => self.push_union(union),
            LogicalPlan::Values(values) => self.push(&rows_of(values)?),
            LogicalPlan::Unnest(unnest) => self.push_unnest(unnest),
            LogicalPlan::Repartition(repartition) => self.push(&repartition.input),
            LogicalPlan::Extension(extension) if (self.extends)(extension.node.as_ref()) => {
                self.push_extending(plan)
            }
            LogicalPlan::RecursiveQuery(query) => self.push_recursive(query),
            LogicalPlan::TableScan(scan) => self.push_work_table(scan),
            other => refuse(format!(
                "it refers to outer columns in or below {}",
                other.display()
            )),
        }
    }

    fn is_correlated(&self, plan: &LogicalPlan) -> Found<bool> {
        let found = outer_of(plan)?;
        Ok(
            found.iter().any(|column| self.outer.contains(column))
                || self.reads_work_table(plan)?,
        )
    }

    /// The distinct values of the outer columns, under names that are used once.
    ///
    /// They are values of aggregates, and not the columns that are grouped by: DataFusion knows these to be unique, and
    /// takes them for a key still of what is grouped by them and by further columns.
    fn domain(&self) -> Found<LogicalPlan> {
        let (source, exprs) = &self.source;
        let keys = self.domain_names();
        let named = exprs.iter().zip(&keys);
        let named = named.map(|(expr, name)| expr.clone().alias(name)).collect();
        let rows = LogicalPlan::Projection(Projection::try_new(named, Arc::new(source.clone()))?);
        let keys: Vec<Expr> = columns(rows.schema().columns());
        let values = keys
            .iter()
            .map(|key| first_value_udaf().call(vec![key.clone()]));
        let groups = Aggregate::try_new(Arc::new(rows), keys.clone(), values.collect())?;
        let values = groups.schema.columns().split_off(keys.len());
        let values = columns(values).into_iter().zip(self.domain_names());
        let values = values.map(|(value, name)| value.alias(name)).collect();
        let groups = Arc::new(LogicalPlan::Aggregate(groups));
        Ok(LogicalPlan::Projection(Projection::try_new(
            values, groups,
        )?))
    }

    /// A name that is used once.
    fn fresh(&self, name: &str) -> String {
        self.config.alias_generator().next(name)
    }

    /// Names for the columns of the domain.
    fn domain_names(&self) -> Vec<String> {
        let names = self
            .outer
            .iter()
            .map(|outer| self.fresh(&outer.flat_name()));
        names.collect()
    }

    /// Each row of a plan with each row of the domain.
    fn with_domain(&self, plan: &LogicalPlan) -> Found<LogicalPlan> {
        let domain = self.domain()?;
        match plan {
            LogicalPlan::EmptyRelation(EmptyRelation {
                produce_one_row: true,
                schema,
            }) if schema.fields().is_empty() => Ok(domain),
            _ => Ok(LogicalPlanBuilder::from(plan.clone())
                .cross_join(domain)?
                .build()?),
        }
    }

    /// The columns of the domain in a plan into which it was pushed.
    pub(crate) fn domain_of(&self, plan: &LogicalPlan) -> Vec<Column> {
        let mut all = plan.schema().columns();
        all.split_off(all.len().saturating_sub(self.outer.len()))
    }

    /// Expressions of `node` over `input`, into which the domain was pushed.
    fn replaced(
        &self,
        node: &LogicalPlan,
        input: &LogicalPlan,
        exprs: Vec<Expr>,
    ) -> Found<Vec<Expr>> {
        let exprs = exprs.into_iter();
        exprs
            .map(|expr| self.replaced_one(node, input, expr))
            .collect()
    }

    fn replaced_one(&self, node: &LogicalPlan, input: &LogicalPlan, expr: Expr) -> Found<Expr> {
        let by = self.domain_of(input);
        let replacement = Replacement {
            outer: &columns(self.outer.clone()),
            by: &by,
        };
        Ok(replacement.in_expr(expr, node)?)
    }

    fn replaced_order(
        &self,
        node: &LogicalPlan,
        input: &LogicalPlan,
        order: Vec<SortExpr>,
    ) -> Found<Vec<SortExpr>> {
        let order = order.into_iter().map(|key| {
            let expr = self.replaced_one(node, input, key.expr.clone())?;
            Ok(key.with_expr(expr))
        });
        order.collect()
    }

    /// Expressions over a plan with the names of `schema`, and the columns of the domain.
    fn with_names(
        &self,
        plan: LogicalPlan,
        exprs: Vec<Expr>,
        domain: Vec<Column>,
        schema: &DFSchema,
    ) -> Found<LogicalPlan> {
        self.with_names_and(plan, exprs, columns(domain), schema)
    }

    fn with_names_and(
        &self,
        plan: LogicalPlan,
        exprs: Vec<Expr>,
        domain: Vec<Expr>,
        schema: &DFSchema,
    ) -> Found<LogicalPlan> {
        let domain = domain.into_iter().zip(self.domain_names());
        let domain = domain.map(|(expr, name)| expr.alias(name));
        let exprs = named(exprs, schema).into_iter().chain(domain).collect();
        let projection = Projection::try_new(exprs, Arc::new(plan))?;
        Ok(LogicalPlan::Projection(projection))
    }

    /// The domain below the first input of a node that passes on its rows.
    fn push_extending(&self, plan: &LogicalPlan) -> Found<LogicalPlan> {
        let mut inputs: Vec<LogicalPlan> = plan.inputs().into_iter().cloned().collect();
        for input in inputs.iter().skip(1) {
            if self.is_correlated(input)? {
                return refuse(format!(
                    "outer columns are on the searched side of {}",
                    plan.display()
                ));
            }
        }
        let Some(first) = inputs.first_mut() else {
            return refuse(format!("{} has no input", plan.display()));
        };
        let length = first.schema().fields().len();
        *first = self.push(first)?;
        let domain = self.domain_of(first);
        let exprs = self.replaced(plan, first, plan.expressions())?;
        let node = plan.with_new_exprs(exprs, inputs)?;
        let mut all = node.schema().columns();
        all.drain(length..length + domain.len());
        self.with_names(node, columns(all), domain, plan.schema())
    }

    fn push_aggregate(&self, plan: &LogicalPlan, aggregate: &Aggregate) -> Found<LogicalPlan> {
        let Grouped {
            plan: grouped,
            keys,
            domain,
            values,
        } = self.grouped(plan, aggregate)?;
        if !keys.is_empty() {
            let exprs = columns([keys, values].concat());
            return self.with_names(grouped, exprs, domain, &aggregate.schema);
        }
        // One row for each row of the domain, also where there is nothing to aggregate.
        let all_groups = self.domain()?;
        let all_domain = self.domain_of(&all_groups);
        let joined = self.left_join(all_groups, grouped, &domain)?;
        let values = or_of_nothing(aggregate, &values)?;
        self.with_names(joined, values, all_domain, &aggregate.schema)
    }

    /// The groups of an aggregate for each row of the domain that has any.
    fn grouped(&self, plan: &LogicalPlan, aggregate: &Aggregate) -> Found<Grouped> {
        let input = self.push(&aggregate.input)?;
        let domain = self.domain_of(&input);
        let old_keys = group_keys(aggregate);
        let groups = self.replaced(plan, &input, old_keys.clone())?;
        // Two groups by the same column would be one.
        let groups = groups
            .into_iter()
            .zip(&old_keys)
            .map(|(new, old)| match new {
                new if new == *old => new,
                new => new.alias(self.fresh("__group")),
            });
        let keys = groups.chain(columns(domain.clone())).collect();
        let values = self.replaced(plan, &input, aggregate.aggr_expr.clone())?;
        let grouped = Aggregate::try_new(Arc::new(input), keys, values)?;
        let mut keys = grouped.schema.columns();
        let mut domain_and_values = keys.split_off(old_keys.len());
        let values = domain_and_values.split_off(domain.len());
        Ok(Grouped {
            plan: LogicalPlan::Aggregate(grouped),
            keys,
            domain: domain_and_values,
            values,
        })
    }

    /// The right side of a LEFT JOIN with the groups of an aggregate, and its values above that join.
    pub(crate) fn push_last(
        &self,
        plan: &LogicalPlan,
        aggregate: &Aggregate,
    ) -> Found<(LogicalPlan, Vec<Expr>)> {
        let grouped = self.grouped(plan, aggregate)?;
        let names = grouped.values.iter().map(|value| self.fresh(&value.name));
        let names = names.chain(self.domain_names());
        let all = [grouped.values.clone(), grouped.domain].concat();
        let all = columns(all).into_iter().zip(names);
        let all = all.map(|(expr, name)| expr.alias(name)).collect();
        let right = Projection::try_new(all, Arc::new(grouped.plan))?;
        let mut values = right.schema.columns();
        values.truncate(aggregate.aggr_expr.len());
        let values = or_of_nothing(aggregate, &values)?;
        Ok((LogicalPlan::Projection(right), values))
    }

    /// The rows of each row of the domain that LIMIT and OFFSET leave. They are those of `node`.
    fn push_limit(
        &self,
        node: &LogicalPlan,
        input: &LogicalPlan,
        skip: Option<Expr>,
        fetch: Option<Expr>,
    ) -> Found<LogicalPlan> {
        let limited = |below: &Arc<LogicalPlan>| {
            Arc::new(LogicalPlan::Limit(Limit {
                skip: skip.clone().map(Box::new),
                fetch: fetch.clone().map(Box::new),
                input: Arc::clone(below),
            }))
        };
        match input {
            // The order is known below.
            LogicalPlan::Projection(projection) => {
                let exprs = projection.expr.clone();
                let projection = Projection::try_new(exprs, limited(&projection.input))?;
                return self.push(&LogicalPlan::Projection(projection));
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let alias = SubqueryAlias::try_new(limited(&alias.input), alias.alias.clone())?;
                return self.push(&LogicalPlan::SubqueryAlias(alias));
            }
            _ => {}
        }
        let (below, order) = match input {
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => {
                let below = self.push(&sort.input)?;
                let order = self.replaced_order(input, &below, sort.expr.clone())?;
                (below, order)
            }
            _ => (self.push(input)?, vec![]),
        };
        let keys = columns(self.domain_of(&below));
        let replaced = |rows: Option<Expr>| {
            let rows = rows.map(|rows| self.replaced_one(node, &below, rows));
            rows.transpose()
        };
        let (skip, fetch) = (replaced(skip)?, replaced(fetch)?);
        self.numbered(below, keys, order, skip, fetch)
    }
}

/// An aggregate with the columns of the domain among its keys.
struct Grouped {
    plan: LogicalPlan,
    keys: Vec<Column>,
    domain: Vec<Column>,
    values: Vec<Column>,
}

/// Values of an aggregate, in these columns of an outer join, with what they are where there is nothing to aggregate.
fn or_of_nothing(aggregate: &Aggregate, values: &[Column]) -> Found<Vec<Expr>> {
    let fields = aggregate.schema.fields().iter();
    let values = aggregate.aggr_expr.iter().zip(fields).zip(values);
    let values = values.map(|((expr, field), value)| {
        let value = Expr::Column(value.clone());
        let Expr::AggregateFunction(call) = expr.clone().unalias_nested().data else {
            return refuse("it has an aggregate of an unknown kind");
        };
        let of_nothing = call.func.default_value(field.data_type())?;
        Ok(match of_nothing {
            of_nothing if of_nothing.is_null() => value,
            of_nothing => coalesce(vec![value, lit(of_nothing)]),
        })
    });
    values.collect()
}

fn filtered(input: LogicalPlan, predicate: Expr) -> Found<LogicalPlan> {
    let filter = Filter::try_new(predicate, Arc::new(input))?;
    Ok(LogicalPlan::Filter(filter))
}

/// A window function for each row of the domain.
fn partitioned(expr: Expr, domain: &[Column]) -> Found<Expr> {
    match expr {
        Expr::WindowFunction(mut function) => {
            function
                .params
                .partition_by
                .extend(columns(domain.to_vec()));
            Ok(Expr::WindowFunction(function))
        }
        Expr::Alias(mut alias) => {
            *alias.expr = partitioned(*alias.expr, domain)?;
            Ok(Expr::Alias(alias))
        }
        _ => refuse("it has a window function of an unknown kind"),
    }
}

/// A number of rows as a constant, if it does not differ by row.
fn literal(rows: Expr) -> Result<Expr> {
    if rows.any_column_refs() || rows.contains_outer() {
        return Ok(rows);
    }
    let context = SimplifyContext::default();
    let rows = cast(rows, DataType::Int64);
    ExprSimplifier::new(context).simplify(rows)
}

/// A number of rows as a constant.
fn number(rows: usize) -> Expr {
    lit(i64::try_from(rows).unwrap_or(i64::MAX))
}
