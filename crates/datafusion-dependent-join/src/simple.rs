//! Subqueries whose outer columns are in conditions on rows alone: the conditions become those of the join.
//!
//! ```text
//!   EXISTS (SELECT 1 FROM p JOIN r ON r.k = p.k WHERE p.v > q.v)
//!
//!   LeftMark Join: __subquery_1."p.v_2" > q.v
//!     q
//!     SubqueryAlias: __subquery_1
//!       Projection: 1 AS value, p.v AS "p.v_2"
//!         Inner Join: r.k = p.k
//! ```
//!
//! The subquery needs no domain then: Neumann's "simple unnesting".

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use datafusion_common::tree_node::TreeNode;
use datafusion_common::{Column, JoinType, Result};
use datafusion_expr::utils::{conjunction, split_conjunction_owned};
use datafusion_expr::{
    Distinct, Expr, Filter, Join, LogicalPlan, LogicalPlanBuilder, Projection, SubqueryAlias,
};
use datafusion_optimizer::OptimizerConfig;

use crate::domain::{is_set, leaves_some};
use crate::elimination::joins::join_of;
use crate::exprs::{columns, group_keys, has_grouping_sets, named, substituted};
use crate::outer::{from_outer, has_outer, is_correlated, lateral, outer_of_expr, subquery_of};
use crate::refusal::{Found, refuse};

/// The rows of a subquery whatever the outer row is, and the conditions under which the subquery has them.
pub(crate) struct Rows {
    /// The columns of the subquery, and those that the conditions need.
    pub(crate) plan: LogicalPlan,
    /// Over columns of the plan and outer columns.
    conditions: Vec<Expr>,
}

impl Rows {
    /// The rows of a plan without outer columns.
    pub(crate) fn new(plan: LogicalPlan) -> Self {
        let conditions = vec![];
        Self { plan, conditions }
    }

    /// The right side of a dependent join.
    pub(crate) fn of(join: &Join, config: &dyn OptimizerConfig) -> Found<Self> {
        let is_set = is_set(join);
        let pulling = Pulling {
            is_set,
            is_any: Cell::new(is_set && join.filter.is_none()),
            added: RefCell::default(),
            config,
        };
        pulling.rows(&join.right)
    }

    /// All rows of a plan.
    pub(crate) fn of_plan(plan: &LogicalPlan, config: &dyn OptimizerConfig) -> Found<Self> {
        let pulling = Pulling {
            is_set: false,
            is_any: Cell::new(false),
            added: RefCell::default(),
            config,
        };
        pulling.rows(plan)
    }

    /// The conditions with plain columns in place of outer ones.
    pub(crate) fn conditions(&self) -> Result<Vec<Expr>> {
        self.conditions.iter().cloned().map(from_outer).collect()
    }
}

struct Pulling<'a> {
    /// Whether it does not matter how often a row is there.
    is_set: bool,
    /// Whether it does not matter which rows are there: not below conditions.
    is_any: Cell<bool>,
    /// Columns that conditions need and projections pass on.
    added: RefCell<Vec<Column>>,
    config: &'a dyn OptimizerConfig,
}

impl Pulling<'_> {
    fn rows(&self, plan: &LogicalPlan) -> Found<Rows> {
        if !is_correlated(plan)? {
            return Ok(Rows::new(plan.clone()));
        }
        match plan {
            LogicalPlan::Filter(filter) => {
                self.is_any.set(false);
                let mut below = self.rows(&filter.input)?;
                let (kept, outer) = divided(filter.predicate.clone(), plan)?;
                if let Some(predicate) = conjunction(kept) {
                    let filter = Filter::try_new(predicate, Arc::new(below.plan))?;
                    below.plan = LogicalPlan::Filter(filter);
                }
                below.conditions.extend(outer);
                Ok(below)
            }
            LogicalPlan::Projection(projection) if !has_outer(plan)? => {
                self.projected(self.rows(&projection.input)?, projection)
            }
            LogicalPlan::Aggregate(aggregate)
                if self.is_set
                    && aggregate.aggr_expr.is_empty()
                    && !has_grouping_sets(aggregate) =>
            {
                let exprs = named(group_keys(aggregate), &aggregate.schema);
                let projection = Projection::try_new(exprs, Arc::clone(&aggregate.input))?;
                self.rows(&LogicalPlan::Projection(projection))
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let below = self.rows(&alias.input)?;
                let old = below.plan.schema().columns();
                let aliased = SubqueryAlias::try_new(Arc::new(below.plan), alias.alias.clone())?;
                let new = aliased.schema.columns();
                Ok(Rows {
                    plan: LogicalPlan::SubqueryAlias(aliased),
                    conditions: renamed(below.conditions, &old, &new)?,
                })
            }
            LogicalPlan::Join(join)
                if join.join_type == JoinType::Inner && lateral(&join.right).is_none() =>
            {
                self.is_any.set(false);
                self.joined(plan, join)
            }
            LogicalPlan::Subquery(subquery) => self.rows(&subquery.subquery),
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => self.rows(&sort.input),
            LogicalPlan::Distinct(Distinct::All(input)) if self.is_set => self.rows(input),
            LogicalPlan::Limit(limit) if self.is_any.get() && leaves_some(limit)? => {
                self.rows(&limit.input)
            }
            other => refuse(format!("it needs a domain below {}", other.display())),
        }
    }

    /// The rows with the columns of a projection, and those that the conditions need.
    fn projected(&self, below: Rows, projection: &Projection) -> Found<Rows> {
        let mut exprs = projection.expr.clone();
        let names = projection.schema.columns();
        let (mut old, mut new) = (vec![], vec![]);
        for column in below.conditions.iter().flat_map(Expr::column_refs) {
            if old.contains(column) {
                continue;
            }
            if self.added.borrow().contains(column) {
                exprs.push(Expr::Column(column.clone()));
                new.push(column.clone());
                old.push(column.clone());
                continue;
            }
            let same =
                |expr: &Expr| matches!(expr.clone().unalias(), Expr::Column(c) if c == *column);
            let known = projection.expr.iter().position(same);
            new.push(match known.and_then(|known| names.get(known)) {
                Some(name) => name.clone(),
                None => {
                    let name = self.config.alias_generator().next(&column.flat_name());
                    exprs.push(Expr::Column(column.clone()).alias(&name));
                    let added = Column::new_unqualified(name);
                    self.added.borrow_mut().push(added.clone());
                    added
                }
            });
            old.push(column.clone());
        }
        let plan = Projection::try_new(exprs, Arc::new(below.plan))?;
        Ok(Rows {
            plan: LogicalPlan::Projection(plan),
            conditions: renamed(below.conditions, &old, &new)?,
        })
    }

    fn joined(&self, plan: &LogicalPlan, join: &Join) -> Found<Rows> {
        for (left, right) in &join.on {
            for side in [left, right] {
                if !outer_of_expr(side, plan)?.is_empty() {
                    return refuse("an equality of its join has outer columns");
                }
            }
        }
        let (kept, outer) = match &join.filter {
            Some(filter) => divided(filter.clone(), plan)?,
            None => (vec![], vec![]),
        };
        let (left, right) = (self.rows(&join.left)?, self.rows(&join.right)?);
        let has = [&join.left, &join.right].map(|side| side.schema().fields().len());
        let [mut of_left, mut of_right] = [&left, &right].map(|side| side.plan.schema().columns());
        let added = [of_left.split_off(has[0]), of_right.split_off(has[1])].concat();
        let all = [of_left, of_right, added].concat();
        let joined = join_of(left.plan, right.plan, join, kept)?;
        let plan = LogicalPlanBuilder::from(joined)
            .project(columns(all))?
            .build()?;
        let conditions = left.conditions.into_iter().chain(right.conditions);
        let conditions = conditions.chain(outer).collect();
        Ok(Rows { plan, conditions })
    }
}

/// The conjuncts of a condition of `node` without outer columns, and those with.
fn divided(condition: Expr, node: &LogicalPlan) -> Found<(Vec<Expr>, Vec<Expr>)> {
    let (mut kept, mut outer) = (vec![], vec![]);
    for conjunct in split_conjunction_owned(condition) {
        if outer_of_expr(&conjunct, node)?.is_empty() {
            kept.push(conjunct);
        } else if conjunct.exists(|e| Ok(subquery_of(e).is_some()))? {
            return refuse("a condition on outer columns has a subquery");
        } else {
            outer.push(conjunct);
        }
    }
    Ok((kept, outer))
}

/// Expressions with columns under other names.
fn renamed(exprs: Vec<Expr>, old: &[Column], new: &[Column]) -> Result<Vec<Expr>> {
    substituted(exprs, old, &columns(new.to_vec()))
}
