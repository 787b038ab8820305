//! `range_min('table.column', l, r)` in any expression: the call becomes a column that a [`RangeLookup`] below the
//! expression's node adds.
//!
//! ```text
//!   SELECT w.id FROM windows w WHERE range_min('prices.close', w.l, w.r) > 5
//!
//!   before                                             after
//!   Projection: w.id                                   Projection: w.id
//!     Filter: range_min('prices.close', w.l, w.r) > 5    Projection: w.id, w.l, w.r
//!       TableScan: windows                                 Filter: range_min(prices.close)#1 > 5
//!                                                            RangeLookup: range_min(prices.close) over rows w.l to w.r
//!                                                              TableScan: windows
//! ```
//!
//! A call whose bounds contain calls goes into a second node above the first. In a join's condition, a call goes below
//! the side that has the columns of its bounds. If it needs both sides, the condition of an inner join moves above the
//! join; in another join the call stays an expression over an index that a `PrepareIndexes` below the join builds.
//!
//! [`RangeLookup`]: crate::logical_plan::range_lookup::RangeLookup

use std::sync::Arc;

use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion, TreeNodeRewriter};
use datafusion_common::{Column, JoinType, Result, not_impl_err, plan_err};
use datafusion_dependent_join::is_correlated;
use datafusion_expr::utils::merge_schema;
use datafusion_expr::{
    Case, Distinct, DistinctOn, Expr, ExprSchemable, Join, LogicalPlan, LogicalPlanBuilder, Values,
    lit,
};
use datafusion_optimizer::{OptimizerConfig, OptimizerRule};

use crate::expr::range_calls::{calls_range_function, range_udf};
use crate::rules::common::conditional::map_conjuncts;
use crate::rules::common::names::restore_columns;
use crate::rules::common::outer_columns::has_expression_anywhere;
use crate::rules::common::plans::{filtered, map_expressions, projected, with_input};
use crate::rules::range_call::calls::{Calls, inline_subqueries, look_up};
use crate::rules::range_call::guarded_bounds::guard_bounds;

/// Replaces scalar calls of range functions by columns of a `RangeLookup`.
///
/// It must run before DataFusion's rules, which fold literal bounds and drop an ORDER BY in the first argument, and
/// again after they have decorrelated subqueries: DataFusion cannot pull a correlated condition through a
/// `RangeLookup`, so calls in correlated subqueries are kept until these are joins.
#[derive(Debug, Default)]
pub struct RangeCallToLookup;

impl OptimizerRule for RangeCallToLookup {
    fn name(&self) -> &'static str {
        "rmq_range_call_to_join"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        if has_expression_anywhere(&plan, |e| range_udf(e).is_some())? {
            plan.rewrite(&mut TakeCalls { config })
        } else {
            Ok(Transformed::no(plan))
        }
    }
}

/// Visits the nodes of a plan and of its uncorrelated subqueries, inputs first.
struct TakeCalls<'a> {
    config: &'a dyn OptimizerConfig,
}

impl TreeNodeRewriter for TakeCalls<'_> {
    type Node = LogicalPlan;

    fn f_down(&mut self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        let next = match &plan {
            LogicalPlan::Subquery(s) if is_correlated(&s.subquery)? => TreeNodeRecursion::Jump,
            _ => TreeNodeRecursion::Continue,
        };
        Ok(Transformed::new(plan, false, next))
    }

    fn f_up(&mut self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        let subqueries_done = plan.map_subqueries(|subquery| subquery.rewrite(self))?;
        subqueries_done.transform_data(|plan| take_calls(plan, self.config))
    }
}

/// Replaces the calls in one node's expressions.
fn take_calls(plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let mut has_calls = false;
    plan.apply_expressions(|expr| {
        has_calls |= calls_range_function(expr)?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    if !has_calls {
        return Ok(Transformed::no(plan));
    }
    if matches!(plan, LogicalPlan::Limit(_)) {
        return plan_err!(
            "range functions (range_min and its like) cannot be used in LIMIT or OFFSET, which need constants"
        );
    }
    let schema = merge_schema(&plan.inputs());
    // In a join's condition, a guard could need columns of the other side.
    let operators = !matches!(plan, LogicalPlan::Join(_));
    let is_filter = matches!(plan, LogicalPlan::Filter(_));
    let prepared = map_expressions(plan, |expr| {
        inline_subqueries(expr)?.transform_data(|e| {
            map_conjuncts(is_filter, e, |e| guard_bounds(e, &schema, operators))
        })
    })?;
    match prepared.data {
        LogicalPlan::Join(join) => rewrite_join(join, config),
        LogicalPlan::Values(values) => rewrite_values(values, config),
        plan => rewrite_single_input(plan, config),
    }
}

/// Rewrites a node with one input: the lookups go between the node and its input.
fn rewrite_single_input(
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let inputs = plan.inputs();
    let [input] = inputs.as_slice() else {
        return not_impl_err!(
            "range functions in {} are not supported; compute them in a subquery below it",
            plan.display()
        );
    };
    let input = (*input).clone();
    let mut calls = Calls::new(config, input.schema());
    let schema = Arc::clone(plan.schema());
    let replaced = map_expressions(plan, |expr| expr.rewrite(&mut calls))?;
    if calls.is_empty() {
        return Ok(replaced);
    }
    let input = calls.add_lookups(input)?;
    Ok(Transformed::yes(match replaced.data {
        // `with_new_exprs` does not accept the expressions of DISTINCT ON.
        LogicalPlan::Distinct(Distinct::On(distinct)) => {
            let input = Arc::new(input);
            let plan = LogicalPlan::Distinct(Distinct::On(DistinctOn { input, ..distinct }));
            restore_columns(plan, &schema)?
        }
        plan => with_input(&plan, input, &schema)?,
    }))
}

/// Rewrites a join: each call goes below the side that has the columns of its bounds. If a call needs both sides, the
/// condition of an inner join moves above the join; in another join the call stays an expression.
fn rewrite_join(join: Join, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let schema = Arc::clone(&join.schema);
    let both = Arc::new(join.left.schema().join(join.right.schema())?);
    let mut left = Calls::new(config, join.left.schema());
    let mut right = Calls::new(config, join.right.schema());
    // A call without columns would do on either side, but a key is of the columns of one.
    let keys = join.on.into_iter();
    let keys = keys.map(|(l, r)| Ok((l.rewrite(&mut left)?.data, r.rewrite(&mut right)?.data)));
    let on = keys.collect::<Result<Vec<_>>>()?;
    let filter = join.filter.map(|expr| -> Result<Expr> {
        let expr = expr.rewrite(&mut left)?.data;
        Ok(expr.rewrite(&mut right)?.data)
    });
    let filter = filter.transpose()?;
    let found = !left.is_empty() || !right.is_empty();

    let mut spanning = Calls::new(config, &both);
    let needs_both = match &filter {
        Some(filter) => filter.clone().rewrite(&mut spanning)?.transformed,
        None => false,
    };
    if !found && !needs_both {
        // The remaining calls are in subqueries that are not decorrelated yet.
        let join = Join { on, filter, ..join };
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    let left = Arc::new(left.add_lookups(Arc::unwrap_or_clone(join.left))?);
    let right = Arc::new(right.add_lookups(Arc::unwrap_or_clone(join.right))?);
    // Only an inner join's condition may move above the join.
    let (left, on_join, above) = match filter {
        Some(filter) if needs_both && join.join_type == JoinType::Inner => {
            (left, None, Some(filter))
        }
        Some(filter) if needs_both => {
            let (left, filter) = look_up(left, filter, &both, config)?;
            (left, Some(filter), None)
        }
        filter => (left, filter, None),
    };
    let mut plan = LogicalPlan::Join(Join::try_new(
        left,
        right,
        on,
        on_join,
        join.join_type,
        join.join_constraint,
        join.null_equality,
        join.null_aware,
    )?);
    if let Some(condition) = above {
        let mut calls = Calls::new(config, plan.schema());
        let condition = condition.rewrite(&mut calls)?.data;
        let input = calls.add_lookups(plan)?;
        plan = filtered(input, condition)?;
    }
    Ok(Transformed::yes(restore_columns(plan, &schema)?))
}

/// Rewrites VALUES, which has no input. The row numbers become the input, and each column becomes a CASE over them.
fn rewrite_values(
    values: Values,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let numbers = (0_i64..).take(values.values.len()).map(|i| vec![lit(i)]);
    let numbers = LogicalPlanBuilder::values(numbers.collect())?.build()?;
    let number = Expr::Column(Column::from(numbers.schema().qualified_field(0)));
    let mut calls = Calls::new(config, numbers.schema());
    let mut cases = vec![];
    for (i, (qualifier, field)) in values.schema.iter().enumerate() {
        let mut branches = vec![];
        for (row, cell) in (0_i64..).zip(&values.values) {
            let cell = cell[i].clone().rewrite(&mut calls)?.data;
            branches.push((Box::new(lit(row)), Box::new(cell)));
        }
        let case = Expr::Case(Case::new(Some(Box::new(number.clone())), branches, None));
        cases.push((case, qualifier, field));
    }
    if calls.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Values(values)));
    }
    let input = calls.add_lookups(numbers)?;
    let columns = cases.into_iter().map(|(case, qualifier, field)| {
        let typed = case.cast_to(field.data_type(), input.schema())?;
        Ok(typed.alias_qualified(qualifier.cloned(), field.name()))
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    Ok(Transformed::yes(projected(input, columns)?))
}
