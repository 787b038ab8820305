//! EXISTS, IN, ANY and ALL: whether a set has a row that matches.

use std::sync::Arc;

use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, Result};
use datafusion_expr::expr::{Exists, InSubquery, SetComparison, SetQuantifier};
use datafusion_expr::utils::split_conjunction;
use datafusion_expr::{
    Aggregate, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, Subquery,
    binary_expr, lit,
};

use crate::domain::is_set;
use crate::exprs::has_grouping_sets;
use crate::outer::{outer_of_expr, subquery_of};

/// Whether the rows of a subquery have one that matches.
pub(crate) struct Membership {
    pub(crate) subquery: Subquery,
    /// What is compared with the first column of each row. Without it, each row matches.
    pub(crate) compared: Option<Compared>,
    /// Whether it is true if none matches.
    pub(crate) negated: bool,
}

/// The left side of a comparison.
pub(crate) struct Compared {
    pub(crate) expr: Expr,
    op: Operator,
}

impl Membership {
    /// EXISTS, IN, ANY, ALL, or NOT one of them.
    ///
    /// `x < ALL (…)` is `NOT x >= ANY (…)`, with NULL where this is NULL.
    pub(crate) fn of(expr: &Expr) -> Option<Self> {
        match expr {
            Expr::Not(inner) => {
                let inner = Self::of(inner)?;
                Some(Self {
                    negated: !inner.negated,
                    ..inner
                })
            }
            Expr::Exists(Exists { subquery, negated }) => Some(Self {
                subquery: subquery.clone(),
                compared: None,
                negated: *negated,
            }),
            Expr::InSubquery(InSubquery {
                expr,
                subquery,
                negated,
            }) => Some(Self {
                subquery: subquery.clone(),
                compared: Some(Compared {
                    expr: expr.as_ref().clone(),
                    op: Operator::Eq,
                }),
                negated: *negated,
            }),
            Expr::SetComparison(SetComparison {
                expr,
                subquery,
                op,
                quantifier,
            }) => {
                let (op, negated) = match quantifier {
                    SetQuantifier::Any => (*op, false),
                    SetQuantifier::All => (op.negate()?, true),
                };
                Some(Self {
                    subquery: subquery.clone(),
                    compared: Some(Compared {
                        expr: expr.as_ref().clone(),
                        op,
                    }),
                    negated,
                })
            }
            _ => None,
        }
    }

    /// Whether the set is computed once only. Otherwise there is a join for each decisive condition, which finds rows
    /// by their values; but sets within sets would be computed three times as often with each level.
    pub(crate) fn is_computed_once(&self) -> Result<bool> {
        Ok(sets_of(&self.subquery.subquery)? > MOST_SETS)
    }

    /// The conditions on rows that decide, from the one that matters most. `outer` has the columns of the query around.
    pub(crate) fn decisive(&self, outer: &DFSchema) -> Result<Vec<Decisive>> {
        let mut all = vec![Decisive::Matches];
        if let Some(compared) = &self.compared {
            let fields = self.subquery.subquery.schema().fields();
            if fields.first().is_none_or(|field| field.is_nullable()) {
                all.push(Decisive::HasNull);
            }
            if compared.expr.nullable(outer)? {
                all.push(Decisive::OfNull);
            }
        }
        Ok(all)
    }

    /// A condition on a row whose first column is `value`. None if each row meets it.
    pub(crate) fn condition(&self, decisive: Decisive, value: Expr) -> Option<Expr> {
        let Compared { expr, op } = self.compared.as_ref()?;
        Some(match decisive {
            Decisive::Matches => binary_expr(expr.clone(), *op, value),
            Decisive::HasNull => value.is_null(),
            Decisive::OfNull => return None,
            Decisive::IsUnknown => binary_expr(expr.clone(), *op, value).is_null(),
            Decisive::IsNotFalse => binary_expr(expr.clone(), *op, value).is_not_false(),
        })
    }
}

/// EXISTS without what does not change whether there is a row: DISTINCT, ORDER BY, and GROUP BY without HAVING. Where
/// rows are compared by equality alone, DataFusion's join is faster with each value once.
pub(crate) fn of_any_row(expr: Expr) -> Result<Transformed<Expr>> {
    let Expr::Exists(exists) = &expr else {
        return Ok(Transformed::no(expr));
    };
    let (mut rows, mut is_found) = (&exists.subquery.subquery, false);
    loop {
        rows = match rows.as_ref() {
            LogicalPlan::Projection(projection) => &projection.input,
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => &sort.input,
            LogicalPlan::Distinct(distinct) => {
                is_found = true;
                distinct.input()
            }
            LogicalPlan::Aggregate(aggregate) if has_only_keys(aggregate) => {
                is_found = true;
                &aggregate.input
            }
            _ => break,
        };
    }
    if !is_found || only_equals_outer(rows)? {
        return Ok(Transformed::no(expr));
    }
    // Columns of several tables may have the same names.
    let rows = LogicalPlanBuilder::from(Arc::clone(rows)).project([lit(1_i64)])?;
    let rows = rows.build()?;
    Ok(Transformed::yes(Expr::Exists(Exists {
        subquery: Subquery {
            outer_ref_columns: rows.all_out_ref_exprs(),
            subquery: Arc::new(rows),
            spans: exists.subquery.spans.clone(),
        },
        negated: exists.negated,
    })))
}

/// Whether the conditions of a filter on outer columns are equalities.
fn only_equals_outer(plan: &LogicalPlan) -> Result<bool> {
    let LogicalPlan::Filter(filter) = plan else {
        return Ok(true);
    };
    for condition in split_conjunction(&filter.predicate) {
        let is_equality = matches!(condition, Expr::BinaryExpr(e) if e.op == Operator::Eq);
        if !is_equality && !outer_of_expr(condition, plan)?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether an aggregate has a row for each key, and none without rows.
fn has_only_keys(aggregate: &Aggregate) -> bool {
    !aggregate.group_expr.is_empty() && !has_grouping_sets(aggregate)
}

/// What one row of the set decides.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decisive {
    /// The comparison is true for it.
    Matches,
    /// It is NULL, so that the comparison with it is.
    HasNull,
    /// It is there, and what is compared with it is NULL.
    OfNull,
    /// The comparison is NULL for it: `HasNull` or `OfNull`.
    IsUnknown,
    /// The comparison is true or NULL for it: any of the others.
    IsNotFalse,
}

/// How often the sets of a plan are computed once its subqueries are joins.
fn sets_of(plan: &LogicalPlan) -> Result<usize> {
    let mut sets = 0;
    plan.apply(|node| {
        if let LogicalPlan::Join(join) = node {
            sets += usize::from(is_set(join));
        }
        node.apply_expressions(|expr| {
            expr.apply(|e| {
                if let Some(membership) = Membership::of(e) {
                    let within = sets_of(&membership.subquery.subquery)?;
                    let is_split = membership.compared.is_some() && within <= MOST_SETS;
                    let copies = if is_split { 3 } else { 1 };
                    sets += copies * (1 + within);
                    return Ok(TreeNodeRecursion::Jump);
                }
                if let Some(subquery) = subquery_of(e) {
                    sets += 1 + sets_of(&subquery.subquery)?;
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(sets)
}

/// A set in which more than these are computed is computed once.
const MOST_SETS: usize = 12;
