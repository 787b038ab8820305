//! The rules, and which subqueries they take.

use std::cell::Cell;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Result, plan_datafusion_err};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    Expr, Join, LogicalPlan, Projection, SubqueryAlias, check_subquery_expr,
};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{AnalyzerRule, OptimizerConfig, OptimizerRule};

use crate::domain::{columns, source};
use crate::elimination::joins::join_of;
use crate::elimination::{Elimination, named};
use crate::lifting::{Lifting, Place, lift};
use crate::null_safe::all_same;
use crate::outer::{has_outer, is_correlated, lateral, outer_of, outer_of_expr, subquery_of};
use crate::planned::{has_plan, is_key, is_pulled_up};
use crate::refusal::{Found, Refusal, refuse};

/// Makes lateral joins of the subqueries that DataFusion rejects before its first optimizer rule, and of ANY and ALL.
/// [`UnnestDependentJoins`] makes joins of these.
///
/// It also takes scalar subqueries whose column is NOT NULL and that may have no row: DataFusion takes their value to
/// be NOT NULL, too.
#[derive(Debug)]
pub struct SubqueriesToDependentJoins {
    /// Whether the subqueries below an expression stay as they are, such as those of functions that take a query as an
    /// argument, not its value.
    pub keeps: fn(&Expr) -> bool,
    /// Whether to leave scalar subqueries that are NOT NULL by mistake, as another rule mends them.
    pub keeps_not_null: bool,
}

impl Default for SubqueriesToDependentJoins {
    fn default() -> Self {
        Self {
            keeps: |_| false,
            keeps_not_null: false,
        }
    }
}

impl AnalyzerRule for SubqueriesToDependentJoins {
    fn name(&self) -> &'static str {
        "subqueries_to_dependent_joins"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        let lifting = Rejected {
            rule: self,
            names: Cell::new(0),
        };
        let mut is_new = false;
        let lifted = plan.transform_up_with_subqueries(|node| {
            let lifted = lift(node, &lifting)?;
            is_new |= lifted.transformed;
            match is_new {
                // Values of subqueries may be NULL.
                true => Ok(Transformed::yes(lifted.data.recompute_schema()?)),
                false => Ok(lifted),
            }
        });
        Ok(lifted?.data)
    }
}

/// The subqueries that DataFusion rejects.
struct Rejected<'a> {
    rule: &'a SubqueriesToDependentJoins,
    names: Cell<usize>,
}

impl Lifting for Rejected<'_> {
    fn takes(&self, subquery: &Expr, place: Place<'_>) -> Result<bool> {
        let inner = match subquery {
            Expr::Not(inner) => inner,
            other => other,
        };
        let Some(plan) = subquery_of(inner) else {
            return Ok(false);
        };
        let is_exists = matches!(inner, Expr::Exists(_));
        if !is_exists && plan.subquery.schema().fields().len() != 1 {
            return Ok(false);
        }
        // DataFusion takes a subquery that only subqueries of its own correlate for one that is not correlated.
        let is_missed = plan.outer_ref_columns.is_empty() && is_correlated(&plan.subquery)?;
        let is_comparison = matches!(inner, Expr::SetComparison(_));
        let fields = plan.subquery.schema().fields();
        let is_not_null = matches!(inner, Expr::ScalarSubquery(_))
            && !self.rule.keeps_not_null
            && fields.iter().all(|field| !field.is_nullable())
            && !has_some_row(&plan.subquery);
        Ok(is_missed
            || is_not_null
            || is_comparison
            || check_subquery_expr(place.node, &plan.subquery, inner).is_err())
    }

    fn keeps(&self, expr: &Expr) -> bool {
        (self.rule.keeps)(expr)
    }

    fn join(&self, join: Join) -> Found<LogicalPlan> {
        Ok(LogicalPlan::Join(join))
    }

    fn name(&self) -> String {
        self.names.set(self.names.get() + 1);
        format!("{LIFTED}{}", self.names.get())
    }
}

/// Whether a plan has a row, whatever is in the tables.
fn has_some_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => has_some_row(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => has_some_row(&alias.input),
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::EmptyRelation(relation) => relation.produce_one_row,
        _ => false,
    }
}

/// How the names of what was a subquery of an expression begin.
const LIFTED: &str = "__dependent_";

/// Makes joins of the subqueries that DataFusion rejects or answers wrongly: lateral joins and subqueries in
/// expressions. It must run before DataFusion's rules for subqueries.
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
        if let LogicalPlan::Join(join) = &plan
            && let Some(subquery) = lateral(&join.right)
        {
            let is_lifted = is_lifted(&join.right);
            return match unnested(join, &subquery.subquery, config) {
                Ok(LogicalPlan::Join(_)) => Ok(Transformed::no(plan)),
                Ok(unnested) => Ok(Transformed::yes(unnested)),
                Err(Refusal::Reason(reason)) if is_lifted => {
                    Err(plan_datafusion_err!("a subquery has no plan: {reason}"))
                }
                Err(Refusal::Reason(reason)) => {
                    log::debug!("a lateral join stays as it is: {reason}");
                    Ok(Transformed::no(plan))
                }
                Err(Refusal::Error(error)) => Err(error),
            };
        }
        lift(plan, &NotPlanned { config })
    }
}

fn is_lifted(right: &LogicalPlan) -> bool {
    matches!(right, LogicalPlan::SubqueryAlias(SubqueryAlias { alias, .. }) if alias.table().starts_with(LIFTED))
}

/// The subqueries that DataFusion does not plan rightly.
struct NotPlanned<'a> {
    config: &'a dyn OptimizerConfig,
}

impl Lifting for NotPlanned<'_> {
    fn takes(&self, subquery: &Expr, place: Place<'_>) -> Result<bool> {
        Ok(!has_plan(subquery, place)?)
    }

    fn join(&self, join: Join) -> Found<LogicalPlan> {
        let right = Arc::clone(&join.right);
        match lateral(&right) {
            Some(subquery) => unnested(&join, &subquery.subquery, self.config),
            None => Ok(LogicalPlan::Join(join)),
        }
    }

    fn name(&self) -> String {
        self.config.alias_generator().next("__subquery")
    }
}

fn unnested(
    join: &Join,
    subquery: &LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Found<LogicalPlan> {
    let outer = outer_of(subquery)?;
    if outer.is_empty() {
        return refuse("it is not correlated");
    }
    match join.join_type {
        JoinType::Inner | JoinType::Left if is_pulled_up(subquery)? => {
            // DataFusion has the right plan.
            return Ok(LogicalPlan::Join(join.clone()));
        }
        JoinType::Inner | JoinType::Left => {}
        JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {}
        _ => return refuse("it is a RIGHT or FULL JOIN"),
    }
    if !outer
        .iter()
        .all(|column| join.left.schema().has_column(column))
    {
        return refuse("it refers to a query further out");
    }
    if is_correlated(&join.left)? || has_outer(&LogicalPlan::Join(join.clone()))? {
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

/// Fails where DataFusion would have a wrong plan: it computes window functions and FULL JOINs before the conditions on
/// outer columns, and adds what these compare to DISTINCT and GROUP BY.
fn refuse_or_fail<T>(subquery: &LogicalPlan, reason: &str) -> Found<T> {
    let (mut is_early, mut is_grouped, mut has_other) = (false, false, false);
    subquery.apply(|node| {
        if !is_correlated(node)? {
            return Ok(TreeNodeRecursion::Jump);
        }
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
            "a subquery has no plan: {reason}"
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
