//! The rows of the subquery of an EXISTS or IN, and scalar subqueries about them.

use std::sync::Arc;

use datafusion_common::{DFSchema, Result};
use datafusion_expr::expr::InSubquery;
use datafusion_expr::utils::{COUNT_STAR_EXPANSION, conjunction};
use datafusion_expr::{
    Aggregate, Distinct, Expr, ExprSchemable, FetchType, LogicalPlan, SkipType, Subquery, lit,
};
use datafusion_functions_aggregate::expr_fn::{count, min};
use datafusion_optimizer::OptimizerConfig;

use crate::common::sql_text::clause;
use crate::conditions::condition::convert_bound;
use crate::conditions::rejection::{Match, reject};
use crate::rules::common::outer_columns::{add_outer_columns, scalar_subquery};
use crate::rules::common::plans::{filtered, replaced};
use crate::rules::condition_parts::{check_joins, check_repeats, compared_with, conjuncts};
use crate::rules::correlated_aggregate::CorrelatedAggregate;

/// The parts of `x IN (SELECT value FROM rows)`.
pub struct Members<'a> {
    pub x: &'a Expr,
    pub rows: Rows<'a>,
    pub value: Expr,
}

impl<'a> Members<'a> {
    pub fn from_membership(membership: &'a InSubquery) -> Match<Self> {
        let x = membership.expr.as_ref();
        check_joins(x)?;
        let rows = Rows::from_subquery(&membership.subquery)?;
        let Some(value) = rows.value.clone() else {
            return reject("its subquery has not one column");
        };
        check_joins(&value)?;
        Ok(Self { x, rows, value })
    }
}

/// The rows of a subquery, without what does not matter to whether there is one.
pub struct Rows<'a> {
    subquery: &'a Subquery,
    pub input: LogicalPlan,
    /// The only column, over `input`.
    value: Option<Expr>,
}

impl<'a> Rows<'a> {
    /// The rows of `EXISTS (…)`. A LIMIT above 0 leaves at least one if there are any.
    pub fn of_exists(subquery: &'a Subquery) -> Match<Self> {
        let mut plan = subquery.subquery.as_ref();
        while let LogicalPlan::Limit(limit) = plan
            && let (SkipType::Literal(0), FetchType::Literal(fetch)) =
                (limit.get_skip_type()?, limit.get_fetch_type()?)
            && fetch != Some(0)
        {
            plan = &limit.input;
        }
        Self::from_plan(subquery, plan)
    }

    fn from_subquery(subquery: &'a Subquery) -> Match<Self> {
        Self::from_plan(subquery, subquery.subquery.as_ref())
    }

    fn from_plan(subquery: &'a Subquery, mut plan: &'a LogicalPlan) -> Match<Self> {
        loop {
            plan = match plan {
                LogicalPlan::Distinct(Distinct::All(input)) => input,
                LogicalPlan::Sort(sort) if sort.fetch.is_none() => &sort.input,
                _ => break,
            };
        }
        let LogicalPlan::Projection(projection) = plan else {
            return reject(format!("its subquery ends in {}", clause(plan)));
        };
        let value = match projection.expr.as_slice() {
            [value] => Some(value.clone().unalias()),
            _ => None,
        };
        let rows = Self {
            subquery,
            input: projection.input.as_ref().clone(),
            value,
        };
        rows.without_groups()
    }

    /// The rows below DISTINCT, and below a GROUP BY without aggregates, which is the same, with its HAVING.
    fn without_groups(mut self) -> Match<Self> {
        let mut having = vec![];
        let mut plan = &self.input;
        let aggregate = loop {
            plan = match plan {
                LogicalPlan::Filter(filter) => {
                    having.push(filter.predicate.clone());
                    &filter.input
                }
                LogicalPlan::Distinct(Distinct::All(input)) if having.is_empty() => {
                    self.input = input.as_ref().clone();
                    return Ok(self);
                }
                LogicalPlan::Aggregate(aggregate) => break aggregate,
                _ => return Ok(self),
            };
        };
        let is_set = |e: &Expr| matches!(e, Expr::GroupingSet(_)) || e.is_volatile();
        let groups = &aggregate.group_expr;
        if groups.is_empty() || !aggregate.aggr_expr.is_empty() || groups.iter().any(is_set) {
            return Ok(self);
        }
        let names = aggregate.schema.columns();
        let below = |expr: Expr| replaced(expr, &names, groups, aggregate.input.schema());
        let value = self.value.take().map(below).transpose()?;
        let having = having.into_iter().map(below);
        let having: Vec<Expr> = having.collect::<Result<_>>()?;
        let mut input = aggregate.input.as_ref().clone();
        if let Some(condition) = conjunction(having) {
            input = filtered(input, condition)?;
        }
        self.input = input;
        self.value = value;
        Ok(self)
    }

    /// The subquery that counts the rows where `value` is not NULL, or all, that meet a further condition. Rejects what
    /// would not become a range join.
    pub fn count(
        &self,
        value: Option<&Expr>,
        condition: Option<Expr>,
        outer: &DFSchema,
        config: &dyn OptimizerConfig,
    ) -> Match<Expr> {
        let mut input = Arc::new(self.input.clone());
        let mut outer_columns = self.subquery.outer_ref_columns.clone();
        if let Some(condition) = condition {
            add_outer_columns(&mut outer_columns, &condition)?;
            input = Arc::new(filtered(Arc::unwrap_or_clone(input), condition)?);
        }
        let counted = value.cloned().unwrap_or_else(|| lit(COUNT_STAR_EXPANSION));
        let aggregate = Aggregate::try_new(input, vec![], vec![count(counted)])?;
        let counts = LogicalPlan::Aggregate(aggregate);
        CorrelatedAggregate::try_match(&counts, outer, config)?;
        Ok(scalar_subquery(counts, outer_columns))
    }

    /// The subquery that returns the least range key of the rows that meet a threshold, NULL without any; `None` if
    /// there is no threshold.
    pub fn first_crossing(&self, outer: &DFSchema, config: &dyn OptimizerConfig) -> Option<Expr> {
        let mut plan = &self.input;
        while let LogicalPlan::Filter(filter) = plan {
            for conjunct in conjuncts([filter.predicate.clone()]) {
                let Some(mut range) = compared_with(&conjunct, Expr::contains_outer) else {
                    continue;
                };
                if range.0.contains_outer() || check_repeats(&range.0).is_err() {
                    continue;
                }
                if convert_bound(&mut range, outer, self.input.schema()).is_err() {
                    continue;
                }
                let (key, ..) = range;
                // A float would be sorted by two keys, for the sign of a zero that does not matter here.
                if !key
                    .get_type(self.input.schema())
                    .is_ok_and(|t| !t.is_floating())
                {
                    continue;
                }
                let input = Arc::new(self.input.clone());
                let Ok(aggregate) = Aggregate::try_new(input, vec![], vec![min(key)]) else {
                    continue;
                };
                let least = LogicalPlan::Aggregate(aggregate);
                let found = CorrelatedAggregate::try_match(&least, outer, config);
                if found.is_ok_and(|found| !found.spec.thresholds.is_empty()) {
                    let outer_columns = self.subquery.outer_ref_columns.clone();
                    return Some(scalar_subquery(least, outer_columns));
                }
            }
            plan = &filter.input;
        }
        None
    }
}
