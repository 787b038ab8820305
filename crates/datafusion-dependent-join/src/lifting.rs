//! Subqueries in expressions become dependent joins: joins whose right side refers to columns of the left one.
//!
//! ```text
//!   SELECT q.id, (SELECT max(p.v) FROM p WHERE p.k < q.k) AS m FROM q WHERE EXISTS (SELECT 1 FROM r WHERE r.k > q.k)
//!
//!   Projection: q.id, __subquery_2.value AS m
//!     Left Join
//!       LeftSemi Join
//!         q
//!         SubqueryAlias: __subquery_1
//!           Subquery: Filter: r.k > outer(q.k) …
//!       SubqueryAlias: __subquery_2
//!         Subquery: Projection: max(p.v) AS value …
//!
//!   scalar subquery         Left Join, the value of at most one row
//!   EXISTS, IN, ANY, ALL    LeftSemi and LeftAnti Join as conjuncts of a filter, LeftMark Join elsewhere
//! ```
//!
//! All are evaluated for each row of the left side, also those in branches of a CASE that are not taken (`branches`).

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchemaRef, JoinType, Result};
use datafusion::logical_expr::expr_rewriter::{NamePreserver, SavedName};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, Join, LogicalPlan, Projection, Sort};

use crate::elimination::joins::join_of;
use crate::exprs::{columns, named};
use crate::input::{Input, Lifting, Place};
use crate::membership::Membership;
use crate::outer::{has_subquery, lateral, outer_of, outer_of_expr, subquery_of};

/// The node with joins in place of subqueries, and the same columns.
pub(crate) fn lift(node: LogicalPlan, lifting: &dyn Lifting) -> Result<Transformed<LogicalPlan>> {
    if !has_subquery(&node)? {
        return Ok(Transformed::no(node));
    }
    match &node {
        LogicalPlan::Filter(filter) => lift_filter(&node, filter, lifting),
        LogicalPlan::Join(join) => lift_condition(&node, join, lifting),
        LogicalPlan::Projection(_)
        | LogicalPlan::Aggregate(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::Sort(_) => lift_expressions(node, lifting),
        _ => Ok(Transformed::no(node)),
    }
}

fn lift_filter(
    node: &LogicalPlan,
    filter: &Filter,
    lifting: &dyn Lifting,
) -> Result<Transformed<LogicalPlan>> {
    let place = Place {
        node,
        is_conjunct: true,
        is_condition: true,
        is_branch: false,
    };
    // Conditions that need no join are evaluated below it, for which there are fewer rows then.
    let (mut before, mut conjuncts) = (vec![], vec![]);
    for conjunct in split_conjunction_owned(filter.predicate.clone()) {
        let waits = conjunct.is_volatile()
            || conjunct.exists(|e| {
                Ok(subquery_of(e).is_some() || matches!(e, Expr::OuterReferenceColumn(..)))
            })?;
        match waits {
            true => conjuncts.push(conjunct),
            false => before.push(conjunct),
        }
    }
    let below = match conjunction(before) {
        Some(predicate) => {
            let filter = Filter::try_new(predicate, Arc::clone(&filter.input))?;
            Arc::new(LogicalPlan::Filter(filter))
        }
        None => Arc::clone(&filter.input),
    };
    let mut input = Input::new(below, lifting);
    let mut kept = vec![];
    for conjunct in conjuncts {
        match Membership::of(&conjunct) {
            Some(membership) if lifting.takes(&conjunct, place)? => {
                kept.extend(input.without_rows(membership, place)?);
            }
            Some(_) => kept.push(conjunct),
            None => kept.push(input.replaced(conjunct, place)?),
        }
    }
    if !input.is_new {
        return Ok(Transformed::no(node.clone()));
    }
    let plan = match conjunction(kept) {
        Some(predicate) => LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(input.plan))?),
        None => input.plan,
    };
    Ok(Transformed::yes(with_columns(plan, node.schema())?))
}

fn lift_expressions(node: LogicalPlan, lifting: &dyn Lifting) -> Result<Transformed<LogicalPlan>> {
    let wide = match &node {
        LogicalPlan::Sort(sort) => {
            node.with_new_exprs(node.expressions(), vec![with_columns_of_order(sort)?])?
        }
        _ => node.clone(),
    };
    let place = Place {
        node: &wide,
        is_conjunct: false,
        is_condition: false,
        is_branch: false,
    };
    let inputs = wide.inputs();
    let [below] = inputs.as_slice() else {
        return Ok(Transformed::no(node));
    };
    let mut input = Input::new(Arc::new((*below).clone()), lifting);
    let preserver = NamePreserver::new(&node);
    let exprs = node.expressions().into_iter().map(|expr| {
        if !expr.exists(|e| Ok(subquery_of(e).is_some()))? {
            return Ok(expr);
        }
        // A grouping set is no column.
        let name = match &expr {
            Expr::GroupingSet(_) => SavedName::None,
            expr => preserver.save(expr),
        };
        Ok(name.restore(input.replaced(expr, place)?))
    });
    let exprs = exprs.collect::<Result<Vec<_>>>()?;
    if !input.is_new {
        return Ok(Transformed::no(node));
    }
    let plan = node.with_new_exprs(exprs, vec![input.plan])?;
    // A window has the columns of its input before its own ones.
    let plan = match (&node, plan) {
        (LogicalPlan::Window(old), new) => {
            let below = old.input.schema().fields().len();
            let own = node.schema().fields().len() - below;
            let mut all = new.schema().columns();
            let own = all.split_off(all.len() - own);
            all.truncate(below);
            projected(new, columns([all, own].concat()), node.schema())?
        }
        (_, new) => with_columns(new, node.schema())?,
    };
    Ok(Transformed::yes(plan))
}

/// The input of ORDER BY, with the columns that its subqueries refer to. DataFusion's SQL planner adds those only that
/// ORDER BY itself has.
fn with_columns_of_order(sort: &Sort) -> Result<LogicalPlan> {
    let LogicalPlan::Projection(projection) = sort.input.as_ref() else {
        return Ok(LogicalPlan::clone(&sort.input));
    };
    let node = LogicalPlan::Sort(sort.clone());
    let mut exprs = projection.expr.clone();
    for by in &sort.expr {
        for column in outer_of_expr(&by.expr, &node)? {
            let is_missing = !projection.schema.has_column(&column);
            let column = Expr::Column(column);
            let mut used = column.column_refs().into_iter();
            if is_missing
                && !exprs.contains(&column)
                && used.all(|column| projection.input.schema().has_column(column))
            {
                exprs.push(column);
            }
        }
    }
    let projection = Projection::try_new(exprs, Arc::clone(&projection.input))?;
    Ok(LogicalPlan::Projection(projection))
}

/// Conditions of a join: of an inner one above it, of others at the side that they are about.
fn lift_condition(
    node: &LogicalPlan,
    join: &Join,
    lifting: &dyn Lifting,
) -> Result<Transformed<LogicalPlan>> {
    let is_inner = join.join_type == JoinType::Inner;
    let is_outer = matches!(
        join.join_type,
        JoinType::Left | JoinType::Right | JoinType::Full
    );
    if !is_inner && (!is_outer || lateral(&join.right).is_some()) {
        return Ok(Transformed::no(node.clone()));
    }
    let place = Place {
        node,
        is_conjunct: false,
        is_condition: false,
        is_branch: false,
    };
    let mut sides = [&join.left, &join.right].map(|side| Input::new(Arc::clone(side), lifting));
    let (mut kept, mut above) = (vec![], vec![]);
    let conditions = join.filter.clone().into_iter();
    for conjunct in conditions.flat_map(split_conjunction_owned) {
        if !conjunct.exists(|e| Ok(subquery_of(e).is_some() && lifting.takes(e, place)?))? {
            kept.push(conjunct);
        } else if is_inner {
            above.push(conjunct);
        } else {
            let replaced = conjunct.transform_up(|e| {
                let Some(subquery) = subquery_of(&e) else {
                    return Ok(Transformed::no(e));
                };
                let mut about = outer_of(&subquery.subquery)?;
                about.extend(e.column_refs().into_iter().cloned());
                let is_about = |side: &&mut Input<'_>| {
                    let schema = side.plan.schema();
                    about.iter().all(|column| schema.has_column(column))
                };
                match sides.iter_mut().find(is_about) {
                    Some(side) => Ok(Transformed::yes(side.replaced(e, place)?)),
                    None => Ok(Transformed::no(e)),
                }
            })?;
            kept.push(replaced.data);
        }
    }
    let [left, right] = sides;
    if above.is_empty() && !left.is_new && !right.is_new {
        return Ok(Transformed::no(node.clone()));
    }
    let (length, is_new) = (
        left.plan.schema().fields().len(),
        left.is_new || right.is_new,
    );
    let condition = conjunction(kept);
    let mut plan = join_of(left.plan, right.plan, join, condition)?;
    if is_new {
        let mut of_left = plan.schema().columns();
        let mut of_right = of_left.split_off(length);
        of_left.truncate(join.left.schema().fields().len());
        of_right.truncate(join.right.schema().fields().len());
        plan = projected(plan, columns([of_left, of_right].concat()), node.schema())?;
    }
    let Some(predicate) = conjunction(above) else {
        return Ok(Transformed::yes(plan));
    };
    let filter = LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(plan))?);
    Ok(Transformed::yes(lift(filter, lifting)?.data))
}

/// A plan whose first columns are those of `schema`, with these only.
fn with_columns(plan: LogicalPlan, schema: &DFSchemaRef) -> Result<LogicalPlan> {
    let mut all = plan.schema().columns();
    if all == schema.columns() {
        return Ok(plan);
    }
    all.truncate(schema.fields().len());
    projected(plan, columns(all), schema)
}

fn projected(plan: LogicalPlan, exprs: Vec<Expr>, schema: &DFSchemaRef) -> Result<LogicalPlan> {
    let projection = Projection::try_new(named(exprs, schema), Arc::new(plan))?;
    Ok(LogicalPlan::Projection(projection))
}
