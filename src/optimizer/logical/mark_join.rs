//! EXISTS and IN as columns of mark joins, whatever the correlated condition is.
//!
//! ```text
//!   SELECT q.id, EXISTS (SELECT 1 FROM p WHERE p.sym = q.sym AND p.k BETWEEN q.a AND q.b AND p.v > q.v) AS e FROM q
//!
//!   Projection: q.id, exists#1 AS e
//!     Projection: q.*, exists#1.mark AS exists#1
//!       LeftMark Join: c0 = q.sym, c1 BETWEEN q.a AND q.b, c2 > q.v       adds a Boolean column
//!         q
//!         SubqueryAlias: exists#1
//!           Projection: p.sym AS c0, p.k AS c1, p.v AS c2
//!             p
//! ```
//!
//! The join becomes a range join that returns probe rows (`optimizer/physical/joins_to_range_joins.rs`), or stays
//! DataFusion's.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, JoinConstraint, JoinType, NullEquality, Result};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, Join, Limit, LogicalPlan, SubqueryAlias, lit};
use datafusion::optimizer::OptimizerConfig;

use crate::expr::range_calls::range_udf;
use crate::optimizer::logical::common::names::unused_name;
use crate::optimizer::logical::common::outer_columns::from_outer;
use crate::optimizer::logical::common::plans::{columns_of, projected, replaced};
use crate::optimizer::logical::condition_parts::{Constants, check_joins, is_of};
use crate::optimizer::logical::correlated_aggregate::Filtered;
use crate::optimizer::rejection::{Match, reject};

/// The mark joins that one node needs below it.
pub(crate) struct MarkJoins<'a> {
    config: &'a dyn OptimizerConfig,
    outer: &'a DFSchema,
    joins: Vec<MarkJoin>,
}

/// A mark join without its left side.
struct MarkJoin {
    right: LogicalPlan,
    condition: Expr,
    /// The name of the right side, and of the column.
    alias: String,
}

/// The columns of the right side of a mark join.
struct RightSide<'a> {
    /// The name of the right side.
    alias: &'a str,
    projected: Vec<Expr>,
}

impl RightSide<'_> {
    /// Adds a column and returns a reference to it.
    fn add(&mut self, column: Expr) -> Expr {
        let name = format!("c{}", self.projected.len());
        self.projected.push(column.alias(&name));
        Expr::Column(Column::new(Some(self.alias), name))
    }

    /// Replaces the range functions of this side's columns by columns. A later rule would add columns to the right side
    /// for them, which changes the name of the mark.
    fn compute_calls(&mut self, condition: Expr, build: &DFSchema) -> Result<Expr> {
        let computed = condition.transform_down(|e| {
            if range_udf(&e).is_none() || e.contains_outer() || !is_of(&e, build) {
                return Ok(Transformed::no(e));
            }
            let column = self.add(e);
            Ok(Transformed::new(column, true, TreeNodeRecursion::Jump))
        });
        Ok(computed?.data)
    }
}

impl<'a> MarkJoins<'a> {
    /// None yet, above an input of this schema.
    pub(crate) fn new(outer: &'a DFSchema, config: &'a dyn OptimizerConfig) -> Self {
        let joins = vec![];
        Self {
            config,
            outer,
            joins,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.joins.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.joins.len()
    }

    /// Drops all but the first joins, whose columns are not used.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.joins.truncate(len);
    }

    /// The column that tells whether there is a row in `rows`, a plan that refers to the outer query in its filters.
    /// These are evaluated for all rows of the outer query, also for those for which a CASE or an OR does not need the
    /// column: DataFusion has no plan that would not.
    pub(crate) fn mark(&mut self, rows: &LogicalPlan) -> Match<Expr> {
        let Filtered {
            build, conditions, ..
        } = Filtered::below(rows, vec![], Constants::Filter, self.outer, self.config)?;
        let alias = unused_name(self.config, self.outer, "exists");
        let columns = build.schema().columns();
        let mut right = RightSide {
            alias: &alias,
            projected: vec![],
        };
        let named = columns_of(build.schema()).into_iter();
        let named: Vec<Expr> = named.map(|column| right.add(column)).collect();
        let conditions = conditions.into_iter().map(|condition| {
            let condition = right.compute_calls(condition, build.schema())?;
            from_outer(replaced(condition, &columns, &named, build.schema())?)
        });
        let conditions: Vec<Expr> = conditions.collect::<Result<_>>()?;
        let is_ours =
            |column: &Column| column.relation.as_ref().is_some_and(|r| r.table() == alias);
        for condition in &conditions {
            check_joins(condition)?;
            let columns = condition.column_refs();
            let mut others = columns.into_iter().filter(|c| !is_ours(c));
            if let Some(lost) = others.find(|c| !self.outer.has_column(c)) {
                // DataFusion's rules look for columns in use outside subqueries only.
                return reject(format!("{lost} is a column of the outer query no longer"));
            }
        }
        let compares_both = |c: &Expr| c.column_refs().into_iter().any(is_ours);
        let has_condition_on_rows = conditions.iter().any(compares_both);
        let condition = conjunction(conditions).unwrap_or_else(|| lit(true));
        if right.projected.is_empty() {
            // DataFusion's mark joins need a column on the right.
            right.add(lit(true));
        }
        let mut right = Arc::new(projected(build, right.projected)?);
        if !has_condition_on_rows {
            // Any row will do.
            right = Arc::new(LogicalPlan::Limit(Limit {
                skip: None,
                fetch: Some(Box::new(lit(1_i64))),
                input: right,
            }));
        }
        let right = LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(right, alias.as_str())?);
        self.joins.push(MarkJoin {
            right,
            condition,
            alias: alias.clone(),
        });
        Ok(Expr::Column(Column::new_unqualified(alias)))
    }

    /// Puts the joins above `input`.
    pub(crate) fn above(self, input: LogicalPlan) -> Result<LogicalPlan> {
        self.joins.into_iter().try_fold(input, |left, join| {
            let columns = left.schema().columns();
            let joined = Join::try_new(
                Arc::new(left),
                Arc::new(join.right),
                vec![],
                Some(join.condition),
                JoinType::LeftMark,
                JoinConstraint::On,
                NullEquality::NullEqualsNothing,
                false,
            )?;
            // The mark is the last column. Those of several joins would have the same name in a physical plan.
            let marks = joined.schema.columns().split_off(columns.len());
            let marks = marks
                .into_iter()
                .map(|mark| Expr::Column(mark).alias(&join.alias));
            let columns = columns.into_iter().map(Expr::Column).chain(marks).collect();
            projected(LogicalPlan::Join(joined), columns)
        })
    }
}
