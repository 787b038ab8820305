//! `(SELECT MIN(p.v) FROM p WHERE p.sym = q.sym AND p.k BETWEEN q.a AND q.b)` in an expression.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Case, Expr, Filter, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::condition::{check_repeats, is_of};
use super::conditional::Branch;
use super::correlated::Correlated;
use super::scalar_call::{restore_columns, save_name};
use crate::options::RmqOptions;

/// A correlated subquery over a range becomes a column that a range join below the expression's node adds.
///
/// It stands before DataFusion's own rules for subqueries, which take correlation by equality alone.
#[derive(Debug, Default)]
pub struct SubqueryToRangeJoin;

impl OptimizerRule for SubqueryToRangeJoin {
    fn name(&self) -> &'static str {
        "rmq_subquery_to_range_join"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        // The nodes in which DataFusion admits correlated subqueries.
        let is_admitted = matches!(
            plan,
            LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::Aggregate(_)
        );
        if !is_admitted || !has_correlated(&plan)? || !RmqOptions::of(&config.options()).rewrite {
            return Ok(Transformed::no(plan));
        }
        match with_joins(plan.clone(), config) {
            Ok(Some(joined)) => Ok(Transformed::yes(joined)),
            Ok(None) => Ok(Transformed::no(plan)),
            Err(error) => {
                log::debug!(
                    "the subqueries of {} stay as they are: {error}",
                    plan.display()
                );
                Ok(Transformed::no(plan))
            }
        }
    }
}

/// The node above range joins for its subqueries, if any of these is recognised.
fn with_joins(plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Option<LogicalPlan>> {
    let inputs = plan.inputs();
    let [input] = inputs.as_slice() else {
        return Ok(None);
    };
    let mut joins = Joins {
        probe: (*input).clone(),
        config,
        found: vec![],
    };
    let schema = Arc::clone(plan.schema());
    let preserver = NamePreserver::new(&plan);
    let mut below = vec![];
    let replaced = plan.map_expressions(|expr| {
        let name = save_name(&preserver, &expr);
        let replaced = joins.replace_in(expr, &[])?;
        Ok(Transformed::yes(name.restore(replaced)))
    })?;
    if joins.found.is_empty() {
        return Ok(None);
    }
    let mut plan = replaced.data;
    if let LogicalPlan::Filter(filter) = &mut plan {
        // What needs no answer is checked below, so that fewer rows are answered for.
        let conjuncts = split_conjunction_owned(filter.predicate.clone());
        let (now, later): (Vec<_>, Vec<_>) = conjuncts
            .into_iter()
            .partition(|e| is_of(e, joins.probe.schema()) && check_repeats(e).is_ok());
        if let Some(later) = conjunction(later) {
            filter.predicate = later;
            below = now;
        }
    }
    let mut input = joins.probe;
    if let Some(condition) = conjunction(below) {
        input = LogicalPlan::Filter(Filter::try_new(condition, Arc::new(input))?);
    }
    for join in joins.found {
        input = join.above(input)?;
    }
    let expressions = plan.expressions();
    let plan = plan.with_new_exprs(expressions, vec![input])?;
    Ok(Some(restore_columns(plan, &schema)?))
}

/// Whether the node's expressions have a correlated subquery at all: most have none, and stay without a copy.
fn has_correlated(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_expressions(|expr| {
        found |= expr.exists(|e| {
            Ok(matches!(e, Expr::ScalarSubquery(s) if !s.outer_ref_columns.is_empty()))
        })?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// The range joins that stand for the subqueries of one node.
struct Joins<'a> {
    probe: LogicalPlan,
    config: &'a dyn OptimizerConfig,
    found: Vec<Correlated>,
}

impl Joins<'_> {
    /// Replaces the subqueries in an expression whose value is needed in these branches, the outermost first.
    fn replace_in(&mut self, expr: Expr, branches: &[Branch]) -> Result<Expr> {
        let replaced = expr.transform_down(|e| {
            let replaced = match e {
                Expr::Case(case) => self.replace_in_branches(&case, branches)?,
                Expr::ScalarSubquery(_) => self.replace(e, branches),
                _ => return Ok(Transformed::no(e)),
            };
            Ok(Transformed::new(replaced, true, TreeNodeRecursion::Jump))
        })?;
        Ok(replaced.data)
    }

    fn replace_in_branches(&mut self, case: &Case, branches: &[Branch]) -> Result<Expr> {
        let conditions = case.when_then_expr.iter().map(|(when, _)| when);
        let mut conditions = conditions.chain(&case.expr);
        let is_known = conditions.all(|condition| check_repeats(condition).is_ok());
        let within = |branch: Option<usize>| {
            let this = is_known.then(|| (case.clone(), branch));
            branches.iter().cloned().chain(this).collect::<Vec<_>>()
        };
        let mut replaced = case.clone();
        if let Some(compared) = &mut replaced.expr {
            **compared = self.replace_in(std::mem::take(compared), branches)?;
        }
        for (i, (when, then)) in replaced.when_then_expr.iter_mut().enumerate() {
            **when = self.replace_in(std::mem::take(when), branches)?;
            **then = self.replace_in(std::mem::take(then), &within(Some(i)))?;
        }
        if let Some(otherwise) = &mut replaced.else_expr {
            **otherwise = self.replace_in(std::mem::take(otherwise), &within(None))?;
        }
        Ok(Expr::Case(replaced))
    }

    /// A subquery that is recognised, as the column of its answer.
    fn replace(&mut self, expr: Expr, branches: &[Branch]) -> Expr {
        let Expr::ScalarSubquery(subquery) = &expr else {
            return expr;
        };
        if subquery.outer_ref_columns.is_empty() {
            return expr;
        }
        let probe = self.probe.schema();
        match Correlated::recognise(&subquery.subquery, probe, branches, self.config) {
            Ok(mut found) => {
                let value = std::mem::take(&mut found.values).into_iter().next();
                let Some(value) = value else {
                    return expr;
                };
                // Subqueries over the same rows are answered together.
                let mut rest = Some(found);
                for known in &mut self.found {
                    rest = rest.and_then(|found| known.absorb(found));
                }
                self.found.extend(rest);
                value
            }
            Err(reason) => {
                log::debug!("the subquery {expr} stays as it is: {reason}");
                expr
            }
        }
    }
}
