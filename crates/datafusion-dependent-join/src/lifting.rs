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

use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{
    DFSchemaRef, ExprSchema, JoinType, NullEquality, Result, ScalarValue, plan_err,
};
use datafusion_expr::expr_rewriter::{NamePreserver, SavedName};
use datafusion_expr::utils::{conjunction, split_conjunction_owned};
use datafusion_expr::{
    Distinct, DistinctOn, Expr, Filter, Join, LogicalPlan, Operator, Projection, Sort, Union,
    binary_expr, exists, lit, not_exists,
};

use crate::domain::is_repeatable;
use crate::elimination::joins::join_of;
use crate::exprs::{columns, named};
use crate::input::{Input, Lifting, Place};
use crate::membership::Membership;
use crate::outer::{has_subquery, lateral, outer_of, outer_of_expr, subquery_of};
use crate::ties::without_ties;
use crate::unions::rows_of;

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
        LogicalPlan::Distinct(Distinct::On(on)) => lift_distinct_on(&node, on, lifting),
        LogicalPlan::Values(values) => Ok(Transformed::yes(
            rows_of(values)?
                .transform_down(|row| lift(row, lifting))?
                .data,
        )),
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
    let place = Place::of(&wide);
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

/// DISTINCT ON, whose expressions are also the first ones of its ORDER BY.
fn lift_distinct_on(
    node: &LogicalPlan,
    on: &DistinctOn,
    lifting: &dyn Lifting,
) -> Result<Transformed<LogicalPlan>> {
    let place = Place::of(node);
    let mut input = Input::new(Arc::clone(&on.input), lifting);
    let mut known: Vec<(Expr, Expr)> = vec![];
    let mut replaced = |expr: &Expr| {
        if let Some((_, column)) = known.iter().find(|(old, _)| old == expr) {
            return Ok(column.clone());
        }
        let column = input.replaced(expr.clone(), place)?;
        known.push((expr.clone(), column.clone()));
        Ok(column)
    };
    let keys = on.on_expr.iter().map(&mut replaced);
    let keys = keys.collect::<Result<_>>()?;
    let order = on.sort_expr.iter().flatten();
    let order = order.map(|key| Ok(key.with_expr(replaced(&key.expr)?)));
    let order = order.collect::<Result<Vec<_>>>()?;
    let order = on.sort_expr.is_some().then_some(order);
    let exprs = on.select_expr.iter().map(&mut replaced);
    let exprs = named(exprs.collect::<Result<_>>()?, &on.schema);
    if !input.is_new {
        return Ok(Transformed::no(node.clone()));
    }
    let on = DistinctOn::try_new(keys, exprs, order, Arc::new(input.plan))?;
    Ok(Transformed::yes(LogicalPlan::Distinct(Distinct::On(on))))
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
    if let Some(filter) = as_exists(node, join, lifting)? {
        return lift(filter, lifting);
    }
    let is_inner = join.join_type == JoinType::Inner;
    if !is_inner && (!is_outer(join) || lateral(&join.right).is_some()) {
        return Ok(Transformed::no(node.clone()));
    }
    let place = Place::of(node);
    let mut sides = [&join.left, &join.right].map(|side| Input::new(Arc::clone(side), lifting));
    let (mut kept, mut above) = (vec![], vec![]);
    let mut is_about_both = false;
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
                    None => {
                        is_about_both |= lifting.takes(&e, place)?;
                        Ok(Transformed::no(e))
                    }
                }
            })?;
            kept.push(replaced.data);
        }
    }
    if is_about_both {
        return Ok(Transformed::yes(pairs_and_others(join, lifting)?));
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

fn is_outer(join: &Join) -> bool {
    use JoinType::{Full, Left, Right};
    matches!(join.join_type, Left | Right | Full)
}

/// An outer join whose condition has a subquery about both sides, which are evaluated twice.
///
/// ```text
///   a LEFT JOIN b ON c
///
///   a JOIN b ON c  UNION ALL  SELECT a.*, NULL, … FROM a WHERE NOT EXISTS (SELECT … FROM b WHERE c)
/// ```
fn pairs_and_others(join: &Join, lifting: &dyn Lifting) -> Result<LogicalPlan> {
    let (left, right) = (without_ties(&join.left)?, without_ties(&join.right)?);
    let condition = condition_of(join);
    if condition.is_volatile()
        || !is_repeatable(&left, lifting.repeats_rows())?
        || !is_repeatable(&right, lifting.repeats_rows())?
    {
        return plan_err!(
            "a subquery in ON of an outer join that is about both sides has no plan where their rows may be others when \
             computed again; write them into tables first, with CREATE TABLE … AS SELECT …"
        );
    }
    let inner = Join {
        join_type: JoinType::Inner,
        ..join.clone()
    };
    let pairs = join_of(left.clone(), right.clone(), &inner, join.filter.clone())?;
    let pairs = lift(pairs, lifting)?.data;
    // The sides may have columns of one name.
    let names: Vec<String> = join
        .schema
        .fields()
        .iter()
        .map(|_| lifting.name())
        .collect();
    let part = |plan: LogicalPlan, exprs: Vec<Expr>| -> Result<Arc<LogicalPlan>> {
        let exprs = exprs.into_iter().zip(&names);
        let exprs = exprs.map(|(expr, name)| expr.alias(name)).collect();
        let part = Projection::try_new(exprs, Arc::new(plan))?;
        Ok(Arc::new(LogicalPlan::Projection(part)))
    };
    let all = columns(join.schema.columns());
    let mut parts = vec![part(pairs, all.clone())?];
    for (rows, others, other_type) in [
        (&left, &right, JoinType::Right),
        (&right, &left, JoinType::Left),
    ] {
        if join.join_type == other_type {
            continue;
        }
        let matches = matches_of(rows, others, condition.clone(), lifting)?;
        let alone = Filter::try_new(not_exists(Arc::new(matches)), Arc::new(rows.clone()))?;
        let alone = lift(LogicalPlan::Filter(alone), lifting)?.data;
        let rows_of = rows.schema();
        let exprs = all.iter().zip(join.schema.fields()).map(|(column, field)| {
            match column.column_refs().iter().all(|c| rows_of.has_column(c)) {
                true => Ok(column.clone()),
                false => Ok(lit(ScalarValue::try_from(field.data_type())?)),
            }
        });
        parts.push(part(alone, exprs.collect::<Result<_>>()?)?);
    }
    let union = LogicalPlan::Union(Union::try_new(parts)?);
    let all = columns(union.schema().columns());
    projected(union, all, &join.schema)
}

/// The condition of a join, with that of its keys.
fn condition_of(join: &Join) -> Expr {
    let is_same = match join.null_equality {
        NullEquality::NullEqualsNothing => Operator::Eq,
        NullEquality::NullEqualsNull => Operator::IsNotDistinctFrom,
    };
    let on = join.on.iter().cloned();
    let on = on.map(|(l, r)| binary_expr(l, is_same, r));
    conjunction(on.chain(join.filter.clone())).unwrap_or_else(|| lit(true))
}

/// The rows of one side of a join that match the row of the other side, whose columns are outer ones.
fn matches_of(
    row: &LogicalPlan,
    others: &LogicalPlan,
    condition: Expr,
    lifting: &dyn Lifting,
) -> Result<LogicalPlan> {
    let of_row = row.schema();
    let about_row = condition.transform_up(|e| match e {
        Expr::Column(column) if of_row.has_column(&column) => {
            let field = Arc::clone(of_row.field_from_column(&column)?);
            Ok(Transformed::yes(Expr::OuterReferenceColumn(field, column)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    let matches = Filter::try_new(about_row.data, Arc::new(others.clone()))?;
    Ok(lift(LogicalPlan::Filter(matches), lifting)?.data)
}

/// A semi or anti join with a subquery in its condition as EXISTS.
fn as_exists(
    node: &LogicalPlan,
    join: &Join,
    lifting: &dyn Lifting,
) -> Result<Option<LogicalPlan>> {
    let (rows, others, is_semi) = match join.join_type {
        JoinType::LeftSemi => (&join.left, &join.right, true),
        JoinType::LeftAnti => (&join.left, &join.right, false),
        JoinType::RightSemi => (&join.right, &join.left, true),
        JoinType::RightAnti => (&join.right, &join.left, false),
        _ => return Ok(None),
    };
    let place = Place::of(node);
    let is_taken = |e: &Expr| Ok(subquery_of(e).is_some() && lifting.takes(e, place)?);
    if lateral(&join.right).is_some()
        || !join
            .filter
            .as_ref()
            .map_or(Ok(false), |filter| filter.exists(is_taken))?
    {
        return Ok(None);
    }
    let matches = matches_of(rows, others, condition_of(join), lifting)?;
    let exists = if is_semi { exists } else { not_exists };
    let filter = Filter::try_new(exists(Arc::new(matches)), Arc::clone(rows))?;
    Ok(Some(LogicalPlan::Filter(filter)))
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
