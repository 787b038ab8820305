//! The rows that the domain is taken from.
//!
//! The outer side of a lateral join is evaluated twice: for its rows, and for the domain. A value that is missing from
//! the domain would lose rows, so the domain is taken from a plan that has the same rows each time. A plan with more
//! rows serves as well: what is below a LIMIT, or one side of a join.

use arrow::datatypes::DataType;
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_common::{Column, JoinType, Result, ScalarValue};
use datafusion_expr::{
    Distinct, Expr, FetchType, Join, Limit, LogicalPlan, LogicalPlanBuilder, SkipType,
    UserDefinedLogicalNode, lit,
};

use crate::exprs::{columns, group_keys, has_grouping_sets, substituted};
use crate::outer::subquery_of;
use crate::ties::{has_same_first_rows, has_same_values, is_total_sort, takes_same_rows};
use crate::work_tables::work_table;

/// Aggregates whose value does not depend on the order of rows.
const ORDERLESS: [&str; 10] = [
    "min", "max", "count", "sum", "avg", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor",
];

/// Whether a node of another crate has the same rows whenever its inputs have.
pub(crate) type RepeatsRows = fn(&dyn UserDefinedLogicalNode) -> bool;

/// A plan that has the same rows whenever it is evaluated, and expressions over it that have at least the values of
/// `exprs`, which are over `plan`.
pub(crate) fn source(
    plan: &LogicalPlan,
    exprs: Vec<Expr>,
    repeats_rows: RepeatsRows,
) -> Result<Option<(LogicalPlan, Vec<Expr>)>> {
    match plan {
        LogicalPlan::Projection(projection) => {
            let new = projection.expr.iter().cloned().map(Expr::unalias).collect();
            if let Some(source) = below(plan, &projection.input, new, exprs.clone(), repeats_rows)?
            {
                return Ok(Some(source));
            }
        }
        // A domain has no order.
        LogicalPlan::Sort(sort) if sort.fetch.is_none() && are_of(&exprs, &sort.input) => {
            return source(&sort.input, exprs, repeats_rows);
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let new = columns(alias.input.schema().columns());
            return below(plan, &alias.input, new, exprs, repeats_rows);
        }
        // These have all rows of the left side, or most, as where another subquery has become a join.
        LogicalPlan::Join(join)
            if matches!(
                join.join_type,
                JoinType::Left | JoinType::LeftMark | JoinType::LeftAnti
            ) && are_of(&exprs, &join.left) =>
        {
            return source(&join.left, exprs, repeats_rows);
        }
        LogicalPlan::Extension(_) => {
            // A node of another crate is taken to pass on the columns of an input; those of any but the first are NULL
            // where a row of that has no match.
            let has_all = |(_, input): &(usize, &LogicalPlan)| are_of(&exprs, input);
            if let Some((i, input)) = plan.inputs().into_iter().enumerate().find(has_all) {
                let of_nulls = (i > 0).then(|| over_nulls(&exprs, input)).transpose()?;
                return match (source(input, exprs, repeats_rows)?, of_nulls) {
                    (Some((rows, exprs)), Some(row)) => with_row(rows, exprs, row).map(Some),
                    (found, _) => Ok(found),
                };
            }
        }
        _ => {}
    }
    if is_repeatable(plan, repeats_rows)? {
        return Ok(Some((plan.clone(), exprs)));
    }
    match plan {
        LogicalPlan::Distinct(Distinct::On(on)) => {
            let new = on.select_expr.iter().cloned().map(Expr::unalias);
            below(plan, &on.input, new.collect(), exprs, repeats_rows)
        }
        LogicalPlan::Aggregate(aggregate) if !has_grouping_sets(aggregate) => {
            let keys = group_keys(aggregate);
            below(plan, &aggregate.input, keys, exprs, repeats_rows)
        }
        LogicalPlan::Join(join) => {
            let (left, right) = (are_of(&exprs, &join.left), are_of(&exprs, &join.right));
            match join.join_type {
                JoinType::Inner | JoinType::LeftSemi if left => {
                    source(&join.left, exprs, repeats_rows)
                }
                JoinType::Inner | JoinType::Right | JoinType::RightSemi | JoinType::RightAnti
                    if right =>
                {
                    source(&join.right, exprs, repeats_rows)
                }
                _ => Ok(None),
            }
        }
        // These keep rows, or leave some out.
        LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Distinct(Distinct::All(_))
        | LogicalPlan::Repartition(_)
        | LogicalPlan::Window(_) => {
            let has_all = |input: &&LogicalPlan| are_of(&exprs, input);
            match plan.inputs().into_iter().find(has_all) {
                Some(input) => source(input, exprs, repeats_rows),
                None => Ok(None),
            }
        }
        _ => Ok(None),
    }
}

/// Expressions over a plan as they are over a row of NULLs.
fn over_nulls(exprs: &[Expr], plan: &LogicalPlan) -> Result<Vec<Expr>> {
    let nulls = plan.schema().fields().iter();
    let nulls = nulls.map(|field| Ok(lit(ScalarValue::try_from(field.data_type())?)));
    let nulls = nulls.collect::<Result<Vec<_>>>()?;
    substituted(exprs.to_vec(), &plan.schema().columns(), &nulls)
}

/// The values of expressions over these rows, and another row of values.
fn with_row(
    rows: LogicalPlan,
    exprs: Vec<Expr>,
    row: Vec<Expr>,
) -> Result<(LogicalPlan, Vec<Expr>)> {
    let named = |exprs: Vec<Expr>| {
        let exprs = exprs.into_iter().enumerate();
        exprs.map(|(i, expr)| expr.alias(format!("__value_{i}")))
    };
    let row = LogicalPlanBuilder::empty(true).project(named(row))?;
    let rows = LogicalPlanBuilder::from(rows).project(named(exprs))?;
    let all = rows.union(row.build()?)?.build()?;
    let values = columns(all.schema().columns());
    Ok((all, values))
}

/// Whether a plan has all columns that expressions use.
fn are_of(exprs: &[Expr], plan: &LogicalPlan) -> bool {
    let mut used = exprs.iter().flat_map(Expr::column_refs);
    used.all(|column| plan.schema().has_column(column))
}

/// Goes on below a node whose first columns are the expressions `new` over its input.
fn below(
    plan: &LogicalPlan,
    input: &LogicalPlan,
    new: Vec<Expr>,
    exprs: Vec<Expr>,
    repeats_rows: RepeatsRows,
) -> Result<Option<(LogicalPlan, Vec<Expr>)>> {
    let old = plan.schema().columns();
    let is_known = |column: &&Column| old.iter().take(new.len()).any(|old| old == *column);
    if !exprs
        .iter()
        .flat_map(Expr::column_refs)
        .all(|column| is_known(&column))
    {
        return Ok(None);
    }
    let exprs = substituted(exprs, &old, &new)?;
    for expr in &exprs {
        if expr.is_volatile() || expr.exists(|e| Ok(subquery_of(e).is_some()))? {
            return Ok(None);
        }
    }
    source(input, exprs, repeats_rows)
}

/// Whether a join asks only whether there are rows on its right side.
pub(crate) fn is_set(join: &Join) -> bool {
    !matches!(join.join_type, JoinType::Inner | JoinType::Left)
}

/// Whether a LIMIT leaves a row where there is one.
pub(crate) fn leaves_some(limit: &Limit) -> Result<bool> {
    Ok(matches!(
        (limit.get_skip_type()?, limit.get_fetch_type()?),
        (SkipType::Literal(0), FetchType::Literal(Some(1..)))
    ))
}

/// The right side of a join that asks only whether it has a row, below the LIMIT that leaves any of them.
fn any_row(join: &Join) -> Option<&LogicalPlan> {
    let mut plan = join.right.as_ref();
    while let LogicalPlan::SubqueryAlias(alias) = plan {
        plan = &alias.input;
    }
    let LogicalPlan::Limit(limit) = plan else {
        return None;
    };
    let leaves_one = leaves_some(limit).unwrap_or(false);
    let is_about = |expr: &Expr| {
        let mut used = expr.column_refs().into_iter();
        used.any(|column| join.right.schema().has_column(column))
    };
    let is_any = join.on.is_empty() && !join.filter.as_ref().is_some_and(is_about);
    (is_set(join) && leaves_one && is_any).then_some(&limit.input)
}

/// Whether the value of an aggregate of this type does not depend on the order of rows.
fn is_orderless(name: &str, data_type: &DataType) -> bool {
    let is_sum = matches!(name, "sum" | "avg");
    ORDERLESS.contains(&name) && !(is_sum && data_type.is_floating())
}

/// Whether a plan has the same rows each time.
pub(crate) fn is_repeatable(plan: &LogicalPlan, repeats_rows: RepeatsRows) -> Result<bool> {
    let mut is_repeatable = true;
    let mut recursive = vec![];
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Join(join) = node
            && let Some(rows) = any_row(join)
        {
            is_repeatable &= !node.expressions().iter().any(Expr::is_volatile)
                && self::is_repeatable(&join.left, repeats_rows)?
                && self::is_repeatable(rows, repeats_rows)?;
            return Ok(TreeNodeRecursion::Jump);
        }
        is_repeatable &= match node {
            LogicalPlan::Limit(limit) => has_same_first_rows(&limit.input),
            LogicalPlan::Window(window) => {
                let fields = window.schema.fields().iter();
                let mut values = fields.rev().zip(window.window_expr.iter().rev());
                values.all(|(field, expr)| match expr.clone().unalias() {
                    Expr::WindowFunction(call) => {
                        let is_orderless = is_orderless(call.fun.name(), field.data_type());
                        has_same_values(&call, window.input.schema(), is_orderless)
                    }
                    _ => false,
                })
            }
            LogicalPlan::Distinct(Distinct::On(on)) => takes_same_rows(on),
            LogicalPlan::RecursiveQuery(query) => {
                recursive.push(query.name.clone());
                true
            }
            LogicalPlan::Extension(extension) => repeats_rows(extension.node.as_ref()),
            LogicalPlan::Sort(sort) => sort.fetch.is_none() || is_total_sort(sort),
            // A step of a recursive query around the plan reads its rows once.
            LogicalPlan::TableScan(scan) => {
                let is_within = |name: &String| recursive.contains(name);
                scan.fetch.is_none() && work_table(scan).as_ref().is_none_or(is_within)
            }
            LogicalPlan::Aggregate(aggregate) => {
                let fields = aggregate.schema.fields().iter();
                let values = fields.rev().zip(aggregate.aggr_expr.iter().rev());
                values
                    .into_iter()
                    .all(|(field, expr)| match expr.clone().unalias() {
                        Expr::AggregateFunction(call) => {
                            let args = &call.params.args;
                            // Of group keys, any aggregate, as the domain of a query around has it.
                            let is_of_keys = !args.is_empty()
                                && args.iter().all(|arg| aggregate.group_expr.contains(arg));
                            is_of_keys || is_orderless(call.func.name(), field.data_type())
                        }
                        _ => false,
                    })
            }
            _ => true,
        };
        node.apply_expressions(|expr| {
            is_repeatable &= !expr.is_volatile();
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(match is_repeatable {
            true => TreeNodeRecursion::Continue,
            false => TreeNodeRecursion::Stop,
        })
    })?;
    Ok(is_repeatable)
}

/// A function of a plan whose value changes from call to call, except those that repeat.
pub(crate) fn volatile_in(
    plan: &LogicalPlan,
    repeats: &dyn Fn(&Expr) -> bool,
) -> Result<Option<Expr>> {
    let mut found = None;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|e| {
                if e.is_volatile_node() && !repeats(e) {
                    found = Some(e.clone());
                    return Ok(TreeNodeRecursion::Stop);
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(found)
}
