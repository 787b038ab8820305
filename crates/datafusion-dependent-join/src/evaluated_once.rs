//! A last aggregate over rows under conditions, where the outer rows may be others when they are computed again, so
//! that there is no domain.
//!
//! ```text
//!   SELECT (SELECT max(p.v) FROM p WHERE p.k < x.s) AS m FROM (SELECT sum(q.f) AS s FROM q GROUP BY q.g) AS x
//!
//!   Aggregate: groupBy=[row], aggr=[first_value(x.s), max(p.v) FILTER (WHERE matched)]
//!     Left Join: p.k < x.s
//!       WindowAggr: row_number() AS row
//!         x
//!       Projection: p.*, true AS matched
//!         p
//! ```

use std::sync::Arc;

use datafusion_common::tree_node::TreeNode;
use datafusion_common::{Column, JoinType};
use datafusion_expr::utils::conjunction;
use datafusion_expr::{Aggregate, Expr, Join, LogicalPlan, Projection, Window, lit, when};
use datafusion_functions_aggregate::first_last::first_value_udaf;
use datafusion_functions_window::expr_fn::row_number;
use datafusion_optimizer::OptimizerConfig;

use crate::elimination::joins::join_of;
use crate::exprs::{columns, named, substituted};
use crate::last_aggregate::LastAggregate;
use crate::outer::{from_outer, is_correlated, subquery_of};
use crate::refusal::{Found, refuse};
use crate::simple::Rows;

/// The columns of the outer side, and the values of the aggregate for each of its rows.
pub(crate) fn grouped_rows(
    join: &Join,
    last: &LastAggregate<'_>,
    config: &dyn OptimizerConfig,
) -> Found<(LogicalPlan, Vec<Expr>)> {
    let fresh = |name: &str| config.alias_generator().next(name);
    let rows = Rows::of_plan(&last.aggregate.input, config)?;
    if is_correlated(&rows.plan)? {
        return refuse("its rows depend on outer columns");
    }
    for call in &last.aggregate.aggr_expr {
        if call.exists(|e| Ok(subquery_of(e).is_some()))? {
            return refuse("it aggregates a subquery");
        }
    }
    let conditions = rows.conditions()?;
    // Both sides may have columns of one name.
    let old = rows.plan.schema().columns();
    let names: Vec<String> = old
        .iter()
        .map(|column| fresh(&column.flat_name()))
        .collect();
    let renamed = names.iter().map(Column::new_unqualified).collect();
    let renamed = columns(renamed);
    let matched = fresh("matched");
    let exprs = columns(old.clone()).into_iter().zip(&names);
    let exprs = exprs.map(|(column, name)| column.alias(name));
    let exprs = exprs.chain([lit(true).alias(&matched)]).collect();
    let right = LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(rows.plan))?);
    let matched = Expr::Column(Column::new_unqualified(matched));

    let left = join.left.schema().columns();
    let row = fresh("row");
    let numbered = Window::try_new(vec![row_number().alias(&row)], Arc::clone(&join.left))?;
    let conditions = substituted(conditions, &old, &renamed)?;
    let outer_join = Join {
        join_type: JoinType::Left,
        filter: None,
        ..join.clone()
    };
    let pairs = join_of(
        LogicalPlan::Window(numbered),
        right,
        &outer_join,
        conditions,
    )?;

    let first = columns(left.clone()).into_iter();
    let first = first.map(|column| first_value_udaf().call(vec![column]));
    let values = substituted(last.aggregate.aggr_expr.clone(), &old, &renamed)?;
    let values = values.into_iter().map(|value| of_matches(value, &matched));
    let mut calls: Vec<Expr> = first.collect();
    calls.extend(values.collect::<Found<Vec<_>>>()?);
    let row = Expr::Column(Column::new_unqualified(row));
    let grouped = Aggregate::try_new(Arc::new(pairs), vec![row], calls)?;
    let mut all = columns(grouped.schema.columns()).into_iter().skip(1);
    let of_left: Vec<Expr> = all.by_ref().take(left.len()).collect();
    let mut exprs = named(of_left, join.left.schema());
    let names: Vec<String> = all.clone().map(|_| fresh("__value")).collect();
    exprs.extend(all.zip(&names).map(|(value, name)| value.alias(name)));
    let grouped = Arc::new(LogicalPlan::Aggregate(grouped));
    let plan = LogicalPlan::Projection(Projection::try_new(exprs, grouped)?);
    let values = names.into_iter().map(Column::new_unqualified);
    Ok((plan, columns(values.collect())))
}

/// An aggregate of the rows that match alone: an outer row without any has one of NULLs.
fn of_matches(value: Expr, matched: &Expr) -> Found<Expr> {
    let Expr::AggregateFunction(mut call) = value.unalias_nested().data else {
        return refuse("it has an aggregate of an unknown kind");
    };
    for argument in &mut call.params.args {
        if argument.contains_outer() {
            *argument = when(matched.clone(), from_outer(argument.clone())?).end()?;
        }
    }
    for order in &mut call.params.order_by {
        order.expr = from_outer(order.expr.clone())?;
    }
    let filter = call.params.filter.take().map(|filter| from_outer(*filter));
    let filter = conjunction([matched.clone()].into_iter().chain(filter.transpose()?));
    call.params.filter = filter.map(Box::new);
    Ok(Expr::AggregateFunction(call))
}
