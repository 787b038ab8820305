//! The optimizer rule, and which lateral joins it takes.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Result, plan_datafusion_err};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, Join, LogicalPlan, Operator, Projection};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::domain::{columns, source};
use crate::elimination::joins::join_of;
use crate::elimination::{Elimination, named};
use crate::null_safe::all_same;
use crate::outer::{collect_outer, lateral, outer_of_expr, subquery_of};
use crate::refusal::{Found, Refusal, refuse};

/// Makes joins of the lateral joins that DataFusion rejects or answers wrongly. It must run before DataFusion's rules
/// for subqueries.
#[derive(Debug, Default)]
pub struct UnnestDependentJoins;

impl OptimizerRule for UnnestDependentJoins {
    fn name(&self) -> &'static str {
        "unnest_dependent_joins"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        // A subquery within another one refers to columns of its own outer side only, once the outer one is a join.
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Join(join) = &plan else {
            return Ok(Transformed::no(plan));
        };
        let Some(subquery) = lateral(&join.right) else {
            return Ok(Transformed::no(plan));
        };
        match unnested(&plan, join, &subquery.subquery, config) {
            Ok(unnested) => Ok(Transformed::yes(unnested)),
            Err(Refusal::Reason(reason)) => {
                log::debug!("a lateral join stays as it is: {reason}");
                Ok(Transformed::no(plan))
            }
            Err(Refusal::Error(error)) => Err(error),
        }
    }
}

fn unnested(
    plan: &LogicalPlan,
    join: &Join,
    subquery: &LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Found<LogicalPlan> {
    let mut outer = vec![];
    collect_outer(subquery, &[], &mut outer)?;
    if !matches!(join.join_type, JoinType::Inner | JoinType::Left) || outer.is_empty() {
        return refuse("it is not correlated, or no INNER or LEFT JOIN");
    }
    if is_pulled_up(subquery)? {
        return refuse("DataFusion has a plan for it");
    }
    if !outer
        .iter()
        .all(|column| join.left.schema().has_column(column))
    {
        return refuse("it refers to a query further out");
    }
    let mut of_left = vec![];
    collect_outer(&join.left, &[], &mut of_left)?;
    let on = join.on.iter().flat_map(|(l, r)| [l, r]);
    for expr in on.chain(&join.filter) {
        of_left.extend(outer_of_expr(expr, plan)?);
    }
    if !of_left.is_empty() {
        return refuse("its outer side refers to a query further out");
    }
    if !subquery.get_parameter_names()?.is_empty() {
        return refuse("it has parameters without values");
    }
    if is_volatile(subquery)? {
        return refuse_or_fail(
            subquery,
            "it has a function whose value changes from call to call",
        );
    }
    let Some(source) = source(&join.left, columns(outer.clone()))? else {
        let reason = "its outer columns may have other values when they are computed again";
        return refuse_or_fail(subquery, reason);
    };
    let elimination = Elimination {
        outer,
        source,
        config,
    };
    let right = elimination.push(&join.right)?;
    let domain = elimination.domain_of(&right);
    let left = LogicalPlan::clone(&join.left);
    let same = all_same((&left, &elimination.outer), (&right, &domain))?;
    let conditions = join.filter.iter().cloned().chain(same);
    let joined = join_of(left, right, join, conditions)?;
    let mut exprs = columns(joined.schema().columns());
    exprs.truncate(join.schema.fields().len());
    let projection = Projection::try_new(named(exprs, &join.schema), Arc::new(joined))?;
    Ok(LogicalPlan::Projection(projection))
}

/// Whether DataFusion's rule has the right plan: conditions on outer columns below projections, and below an aggregate
/// without GROUP BY if they are equalities.
fn is_pulled_up(subquery: &LogicalPlan) -> Found<bool> {
    let mut plan = subquery;
    let (mut is_aggregated, mut is_filtered) = (false, false);
    loop {
        let mut below = vec![];
        collect_outer(plan, &[], &mut below)?;
        if below.is_empty() {
            return Ok(true);
        }
        let mut is_outer = false;
        plan.apply_expressions(|expr| {
            is_outer |= !outer_of_expr(expr, plan)?.is_empty();
            Ok(TreeNodeRecursion::Continue)
        })?;
        plan = match plan {
            // Not an alias, above which its rule uses the names below it.
            LogicalPlan::Projection(projection) if !is_outer => &projection.input,
            LogicalPlan::Aggregate(aggregate)
                if !is_outer
                    && !is_aggregated
                    && !is_filtered
                    && aggregate.group_expr.is_empty() =>
            {
                is_aggregated = true;
                &aggregate.input
            }
            LogicalPlan::Filter(filter) => {
                for predicate in split_conjunction(&filter.predicate) {
                    let is_outer = !outer_of_expr(predicate, plan)?.is_empty();
                    let has_subquery = predicate.exists(|e| Ok(subquery_of(e).is_some()))?;
                    if is_outer && (has_subquery || is_aggregated && !is_key(predicate)) {
                        return Ok(false);
                    }
                }
                is_filtered = true;
                &filter.input
            }
            _ => return Ok(false),
        };
    }
}

/// Whether a condition says that a column is equal to what the outer query gives.
fn is_key(predicate: &Expr) -> bool {
    let Expr::BinaryExpr(BinaryExpr {
        left,
        op: Operator::Eq,
        right,
    }) = predicate
    else {
        return false;
    };
    let is_column = |expr: &Expr| match expr {
        Expr::Cast(cast) => matches!(*cast.expr, Expr::Column(_)),
        expr => matches!(expr, Expr::Column(_)),
    };
    is_column(left) && !right.any_column_refs() || is_column(right) && !left.any_column_refs()
}

/// Fails where DataFusion would have a wrong plan: it computes window functions and FULL JOINs before the conditions on
/// outer columns, and adds what these compare to DISTINCT and GROUP BY.
fn refuse_or_fail<T>(subquery: &LogicalPlan, reason: &str) -> Found<T> {
    let (mut is_early, mut is_grouped, mut has_other) = (false, false, false);
    subquery.apply(|node| {
        match node {
            LogicalPlan::Window(_) => is_early = true,
            LogicalPlan::Join(join) => is_early |= join.join_type == JoinType::Full,
            LogicalPlan::Distinct(_) => is_grouped = true,
            LogicalPlan::Aggregate(aggregate) => is_grouped |= !aggregate.group_expr.is_empty(),
            LogicalPlan::Filter(filter) => {
                for predicate in split_conjunction(&filter.predicate) {
                    has_other |= !is_key(predicate) && !outer_of_expr(predicate, node)?.is_empty();
                }
            }
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    match is_early || is_grouped && has_other {
        true => Err(Refusal::Error(plan_datafusion_err!(
            "a LATERAL subquery has no plan: {reason}"
        ))),
        false => refuse(reason),
    }
}

fn is_volatile(plan: &LogicalPlan) -> Result<bool> {
    let mut is_volatile = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            is_volatile |= expr.is_volatile();
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(is_volatile)
}
