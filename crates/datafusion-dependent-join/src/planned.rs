//! Which subqueries DataFusion has the right plan for.

use datafusion_common::tree_node::TreeNode;
use datafusion_common::{Column, Result};
use datafusion_expr::utils::{split_binary, split_conjunction};
use datafusion_expr::{BinaryExpr, Distinct, Expr, LogicalPlan, Operator};

use crate::branches::{CannotFail, may_fail};
use crate::domain::leaves_some;
use crate::exprs::has_grouping_sets;
use crate::input::Place;
use crate::membership::Membership;
use crate::outer::{has_outer, is_correlated, outer_of, outer_of_expr, subquery_of};

/// Whether DataFusion has the right plan for a subquery in an expression, or it is not about the query next to it.
pub(crate) fn has_plan(subquery: &Expr, place: Place<'_>, cannot_fail: CannotFail) -> Result<bool> {
    let is_filter = matches!(place.node, LogicalPlan::Filter(_));
    let membership = Membership::of(subquery);
    let (plan, compared) = match (&membership, subquery) {
        (Some(membership), _) => (&membership.subquery.subquery, membership.compared.as_ref()),
        (None, Expr::ScalarSubquery(subquery)) => (&subquery.subquery, None),
        _ => return Ok(true),
    };
    let outer = outer_of(plan)?;
    let inputs = place.node.inputs();
    let is_next = |column: &Column| inputs.iter().any(|input| input.schema().has_column(column));
    if !outer.iter().all(is_next) {
        return Ok(true);
    }
    if place.is_branch && !outer.is_empty() && may_fail(plan, cannot_fail)? {
        return Ok(false);
    }
    let Some(membership) = &membership else {
        // Without outer columns, it is evaluated before the query.
        let is_planned = is_filter || matches!(place.node, LogicalPlan::Projection(_));
        return Ok(outer.is_empty() || is_planned && is_pulled_up(plan)? && is_aggregated(plan));
    };
    if !is_filter {
        return Ok(false);
    }
    if let Some(compared) = compared {
        if membership.negated && !outer.is_empty() {
            // Its join for NOT IN ignores the conditions on outer columns where it looks for NULL.
            return Ok(false);
        }
        // Its joins take NULL for false, but that of a NOT IN which is not correlated.
        let is_plain_not_in = place.is_conjunct && membership.negated && is_column(&compared.expr);
        let is_true_only = place.is_condition && !membership.negated;
        let is_right = is_plain_not_in
            || is_true_only
            || membership.decisive(place.node.inputs()[0].schema())?.len() == 1;
        let is_plain = plan.schema().fields().len() == 1
            && !compared.expr.exists(|e| Ok(subquery_of(e).is_some()))?;
        if !is_right || !is_plain || matches!(subquery, Expr::SetComparison(_)) {
            return Ok(false);
        }
    }
    Ok(outer.is_empty() || is_filtered(plan, compared.is_some())?)
}

/// Whether there is a lateral join, which DataFusion's rules don't look below.
fn has_lateral(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| Ok(matches!(node, LogicalPlan::Subquery(_))))
}

fn is_aggregated(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => is_aggregated(&projection.input),
        LogicalPlan::Aggregate(_) => true,
        _ => false,
    }
}

/// Whether the outer columns are in conditions below projections only, of a subquery of EXISTS or, with a value, IN.
fn is_filtered(mut plan: &LogicalPlan, has_value: bool) -> Result<bool> {
    let mut names: Vec<Column> = vec![];
    loop {
        if !matches!(plan, LogicalPlan::Filter(_)) && has_outer(plan)? {
            return Ok(false);
        }
        plan = match plan {
            LogicalPlan::Projection(projection) => {
                names.extend(projection.schema.columns());
                &projection.input
            }
            LogicalPlan::Distinct(Distinct::All(input)) => input,
            // Further groups are no further values.
            LogicalPlan::Aggregate(aggregate)
                if aggregate.aggr_expr.is_empty() && !has_grouping_sets(aggregate) =>
            {
                &aggregate.input
            }
            LogicalPlan::Limit(limit) if !has_value && leaves_some(limit)? => &limit.input,
            LogicalPlan::Filter(filter) => {
                let mut inner: Vec<&Column> = vec![];
                for predicate in split_conjunction(&filter.predicate) {
                    if outer_of_expr(predicate, plan)?.is_empty() {
                        continue;
                    }
                    if predicate.exists(|e| Ok(subquery_of(e).is_some()))? {
                        return Ok(false);
                    }
                    inner.extend(predicate.column_refs());
                }
                return Ok(!is_ambiguous(&inner, &names)
                    && !is_correlated(&filter.input)?
                    && !has_lateral(&filter.input)?);
            }
            _ => return Ok(false),
        };
    }
}

/// Whether DataFusion's rule has the right plan: conditions on outer columns below projections, and below an aggregate
/// without GROUP BY if they are equalities.
pub(crate) fn is_pulled_up(subquery: &LogicalPlan) -> Result<bool> {
    let mut plan = subquery;
    let (mut is_aggregated, mut is_filtered) = (false, false);
    let mut inner: Vec<&Column> = vec![];
    let names = subquery.schema().columns();
    let mut computed: Vec<String> = vec![];
    loop {
        if !is_correlated(plan)? {
            // Its rule adds what conditions compare to projections, where a cast has the name of its column.
            let is_named = |column: &&Column| computed.contains(&column.flat_name());
            let is_twice = is_ambiguous(&inner, &names) || inner.iter().any(is_named);
            return Ok(!is_twice && !has_lateral(plan)?);
        }
        let is_outer = has_outer(plan)?;
        plan = match plan {
            // Not an alias, above which its rule uses the names below it.
            LogicalPlan::Projection(projection) if !is_outer => {
                let exprs = projection.expr.iter();
                let casts = exprs.filter(|expr| !matches!(expr, Expr::Column(_)));
                computed.extend(casts.map(|expr| expr.schema_name().to_string()));
                &projection.input
            }
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
                let conjuncts = split_conjunction(&filter.predicate).into_iter();
                let parts: Vec<_> = match is_aggregated {
                    true => conjuncts.flat_map(factored).collect(),
                    false => conjuncts.map(|conjunct| (conjunct, true)).collect(),
                };
                for (predicate, is_conjunct) in parts {
                    let is_outer = !outer_of_expr(predicate, plan)?.is_empty();
                    let has_subquery = predicate.exists(|e| Ok(subquery_of(e).is_some()))?;
                    let is_key = is_conjunct && is_key(predicate);
                    if is_outer && (has_subquery || is_aggregated && !is_key) {
                        return Ok(false);
                    }
                    if is_outer {
                        inner.extend(predicate.column_refs());
                    }
                }
                is_filtered = true;
                &filter.input
            }
            _ => return Ok(false),
        };
    }
}

/// What all alternatives of a condition have, which are conjuncts, and the other parts of these. DataFusion takes it
/// out of them before it looks for keys.
fn factored(condition: &Expr) -> Vec<(&Expr, bool)> {
    let alternatives = split_binary(condition, Operator::Or).into_iter();
    let alternatives: Vec<_> = alternatives.map(split_conjunction).collect();
    let is_common = |e: &Expr| !e.is_volatile() && alternatives.iter().all(|all| all.contains(&e));
    let first = alternatives.first().into_iter().flatten().copied();
    let common: Vec<&Expr> = first.filter(|e| is_common(e)).collect();
    if common.is_empty() {
        return vec![(condition, true)];
    }
    let others = alternatives.iter().flatten().copied();
    let others = others.filter(|e| !common.contains(e)).map(|e| (e, false));
    let conjuncts = common.iter().map(|e| (*e, true));
    conjuncts.chain(others).collect()
}

/// Whether one of these columns has the name of another one: its joins know the columns that conditions compare by
/// their names alone.
fn is_ambiguous(compared: &[&Column], names: &[Column]) -> bool {
    compared.iter().any(|column| {
        let mut all = compared.iter().copied().chain(names);
        all.any(|other| other.name == column.name && other != *column)
    })
}

fn is_column(expr: &Expr) -> bool {
    match expr {
        Expr::Cast(cast) => matches!(*cast.expr, Expr::Column(_)),
        expr => matches!(expr, Expr::Column(_)),
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
    is_column(left) && !right.any_column_refs() || is_column(right) && !left.any_column_refs()
}
