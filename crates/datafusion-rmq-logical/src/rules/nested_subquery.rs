//! A subquery of a subquery that refers to the query around both.
//!
//! ```text
//!   SELECT a.id, (SELECT min(p.v) FROM p WHERE p.s = a.s AND p.v > (SELECT avg(x.v) FROM x WHERE x.s = a.s)) AS low FROM a
//!
//!   SELECT a.id, (SELECT min(p.v) FROM p WHERE p.s = a.s AND p.v > a."avg(x.v)#1") AS low
//!   FROM (SELECT a.*, (SELECT avg(x.v) FROM x WHERE x.s = a.s) AS "avg(x.v)#1" FROM a) a
//! ```
//!
//! What is about the outermost row alone is computed once for each of these. A column of that row which must be equal
//! to one of the rows between gives way to it, so that the inner subquery is about the query next to it:
//!
//! ```text
//!   EXISTS (SELECT 1 FROM a WHERE a.s = o.s AND NOT EXISTS (SELECT 1 FROM p WHERE p.s = o.s AND p.ts < a.ts))
//!   EXISTS (SELECT 1 FROM a WHERE a.s = o.s AND NOT EXISTS (SELECT 1 FROM p WHERE p.s = a.s AND p.ts < a.ts))
//! ```
//!
//! DataFusion and the rules for subqueries know the next query only.

use std::sync::Arc;

use arrow::datatypes::Field;
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{Column, DFSchema, JoinType, Result};
use datafusion_dependent_join::{outer_of, subquery_of, subquery_of_mut};
use datafusion_expr::expr::BinaryExpr;
use datafusion_expr::utils::{conjunction, split_conjunction, split_conjunction_owned};
use datafusion_expr::{Expr, ExprSchemable, LogicalPlan, Operator, Subquery};
use datafusion_optimizer::OptimizerConfig;

use crate::expr::range_calls::is_volatile;
use crate::rules::common::names::{restore_columns, unused_name};
use crate::rules::common::outer_columns::{admits_subqueries, has_expression};
use crate::rules::common::plain_sql_rule::plain_sql_rule;
use crate::rules::common::plans::{filtered, map_expressions, replaced, with_columns, with_input};
use crate::rules::lateral::lateral;

plain_sql_rule!(
    /// Lets a subquery of a subquery refer to the query next to it, or computes it in the query that it refers to. Does
    /// nothing if `rmq.rewrite` is false. It must run before all rules for subqueries.
    NestedSubqueriesToColumns,
    "rmq_nested_subqueries_to_columns",
    replace
);

fn replace(plan: &LogicalPlan, config: &dyn OptimizerConfig) -> Result<Option<LogicalPlan>> {
    let is_subquery = |e: &Expr| subquery_of(e).is_some();
    let joined = match plan {
        LogicalPlan::Join(join) if lateral(&join.right).is_some() => Some(join),
        _ if admits_subqueries(plan) && has_expression(plan, is_subquery)? => None,
        _ => return Ok(None),
    };
    let input = plan.inputs()[0];
    let mut columns = Columns {
        outer: input.schema(),
        config,
        added: vec![],
    };
    let Some(joined) = joined else {
        let changed = map_expressions(plan.clone(), |expr| {
            expr.transform_down(|mut e| {
                let Some(subquery) = subquery_of_mut(&mut e) else {
                    return Ok(Transformed::no(e));
                };
                let is_new = columns.change(subquery)?;
                Ok(Transformed::new(e, is_new, TreeNodeRecursion::Continue))
            })
        })?;
        if !changed.transformed {
            return Ok(None);
        }
        let added = columns.added;
        if added.is_empty() {
            return Ok(Some(changed.data));
        }
        let input = with_columns(input.clone(), added)?;
        return with_input(&changed.data, input, plan.schema()).map(Some);
    };
    let changed = joined.right.as_ref().clone().transform_down(|node| {
        Ok(match node {
            LogicalPlan::Subquery(mut subquery) => {
                let is_new = columns.change(&mut subquery)?;
                let node = LogicalPlan::Subquery(subquery);
                Transformed::new(node, is_new, TreeNodeRecursion::Jump)
            }
            node => Transformed::no(node),
        })
    })?;
    let is_possible = matches!(joined.join_type, JoinType::Inner | JoinType::Left);
    if !changed.transformed || !is_possible {
        return Ok(None);
    }
    let left = with_columns(input.clone(), columns.added)?;
    let inputs = vec![left, changed.data];
    let joined = plan.with_new_exprs(plan.expressions(), inputs)?;
    restore_columns(joined, plan.schema()).map(Some)
}

/// The columns that subqueries of the subqueries of one node become.
struct Columns<'a> {
    outer: &'a DFSchema,
    config: &'a dyn OptimizerConfig,
    added: Vec<Expr>,
}

impl Columns<'_> {
    /// Changes the subqueries of the conditions of a subquery. Returns whether there are any that change.
    fn change(&mut self, subquery: &mut Subquery) -> Result<bool> {
        let changed = subquery.subquery.as_ref().clone().transform_up(|node| {
            let LogicalPlan::Filter(filter) = &node else {
                return Ok(Transformed::no(node));
            };
            if !has_expression(&node, |e| subquery_of(e).is_some())? {
                return Ok(Transformed::no(node));
            }
            let rows = filter.input.schema();
            let (old, new) = equal_columns(&filter.predicate, rows)?;
            let mut is_new = false;
            let conjuncts = split_conjunction_owned(filter.predicate.clone()).into_iter();
            let conjuncts = conjuncts.map(|conjunct| {
                let taken = self.taken_out(conjunct.clone(), rows)?;
                let found = replaced(taken, &old, &new, rows)?;
                is_new |= found != conjunct;
                Ok(found)
            });
            let conjuncts: Vec<Expr> = conjuncts.collect::<Result<_>>()?;
            Ok(match conjunction(conjuncts) {
                Some(predicate) if is_new => {
                    Transformed::yes(filtered(filter.input.as_ref().clone(), predicate)?)
                }
                _ => Transformed::no(node),
            })
        })?;
        if changed.transformed {
            subquery.outer_ref_columns = changed.data.all_out_ref_exprs();
            subquery.subquery = Arc::new(changed.data);
        }
        Ok(changed.transformed)
    }

    /// A condition on these rows with columns of the outer query for the scalar subqueries that are about it alone.
    fn taken_out(&mut self, condition: Expr, rows: &DFSchema) -> Result<Expr> {
        // A branch may keep an error from being evaluated.
        if condition.exists(|e| Ok(matches!(e, Expr::Case(_))))? {
            return Ok(condition);
        }
        let taken = condition.transform_down(|e| {
            let Expr::ScalarSubquery(subquery) = &e else {
                return Ok(Transformed::no(e));
            };
            if !self.is_outer(subquery, rows)? {
                return Ok(Transformed::no(e));
            }
            let name = unused_name(self.config, self.outer, e.schema_name());
            let data_type = e.get_type(self.outer)?;
            self.added.push(e.alias(&name));
            let field = Arc::new(Field::new(&name, data_type, true));
            let column = Expr::OuterReferenceColumn(field, Column::new_unqualified(name));
            Ok(Transformed::new(column, true, TreeNodeRecursion::Jump))
        })?;
        Ok(taken.data)
    }

    /// Whether a subquery refers to the outer query and not to these rows, and is the same each time.
    fn is_outer(&self, subquery: &Subquery, rows: &DFSchema) -> Result<bool> {
        let columns = outer_of(&subquery.subquery)?;
        let is_outer = |column: &Column| self.outer.has_column(column) && !rows.has_column(column);
        if columns.is_empty() || !columns.iter().all(is_outer) {
            return Ok(false);
        }
        let varies = |node: &LogicalPlan| has_expression(node, is_volatile);
        Ok(!subquery.subquery.exists(varies)?)
    }
}

/// Columns of an outer query, and the columns of rows that a condition makes equal to them.
fn equal_columns(condition: &Expr, rows: &DFSchema) -> Result<(Vec<Column>, Vec<Expr>)> {
    let (mut old, mut new) = (vec![], vec![]);
    for conjunct in split_conjunction(condition) {
        let Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Eq,
            right,
        }) = conjunct
        else {
            continue;
        };
        let ((own @ Expr::Column(_), Expr::OuterReferenceColumn(field, outer))
        | (Expr::OuterReferenceColumn(field, outer), own @ Expr::Column(_))) =
            (left.as_ref(), right.as_ref())
        else {
            continue;
        };
        // Zeros of both signs are equal.
        let own_type = own.get_type(rows)?;
        if own_type == *field.data_type() && !own_type.is_floating() && !old.contains(outer) {
            old.push(outer.clone());
            new.push(own.clone());
        }
    }
    Ok((old, new))
}
