//! EXISTS and IN over a range as expressions.
//!
//! ```text
//!   q.x NOT IN (SELECT p.v FROM p WHERE p.sym = q.sym AND p.k BETWEEN q.a AND q.b)
//!
//!   CASE WHEN (SELECT count(*) FROM p WHERE …) = 0 THEN TRUE               the set is empty
//!        WHEN q.x IS NULL THEN NULL
//!        WHEN (SELECT count(*) FROM p WHERE … AND p.v = q.x) > 0 THEN FALSE
//!        WHEN (SELECT count(p.v) FROM p WHERE …) < (SELECT count(*) FROM p WHERE …) THEN NULL      the set has a NULL
//!        ELSE TRUE END
//! ```
//!
//! The counts become lateral joins, and range joins (`lateral`). Where the subquery has another condition on both sides
//! besides equalities and one range, it is left to `datafusion_dependent_join`. In a WHERE, EXISTS and IN as conjuncts
//! or operands of OR are joins, which are range joins, too: there a NULL counts as FALSE.

use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, Result, ScalarValue};
use datafusion_expr::expr::{BinaryExpr, Exists, InSubquery};
use datafusion_expr::{Expr, LogicalPlan, Operator, lit, when};
use datafusion_optimizer::OptimizerConfig;

use crate::conditions::rejection::{Match, or_log};
use crate::rules::common::outer_columns::{admits_subqueries, has_expression, to_outer};
use crate::rules::common::plain_sql_rule::plain_sql_rule;
use crate::rules::common::plans::map_expressions;
use crate::rules::subquery_rows::{Members, Rows};

plain_sql_rule!(
    /// Rewrites EXISTS and IN over a range to comparisons of counts, where DataFusion has no join for them. Does
    /// nothing if `rmq.rewrite` is false.
    ///
    /// It must run before subqueries become lateral joins.
    ExistsToCounts,
    "rmq_exists_to_counts",
    replace
);

fn replace(plan: &LogicalPlan, config: &dyn OptimizerConfig) -> Result<Option<LogicalPlan>> {
    let inputs = plan.inputs();
    let [input] = inputs.as_slice() else {
        return Ok(None);
    };
    if !admits_subqueries(plan) || !has_expression(plan, is_correlated)? {
        return Ok(None);
    }
    let subqueries = Subqueries {
        outer: input.schema(),
        config,
    };
    let is_filter = matches!(plan, LogicalPlan::Filter(_));
    let replaced = map_expressions(plan.clone(), |expr| {
        if is_filter {
            subqueries.in_condition(expr)
        } else {
            subqueries.in_expression(expr)
        }
    })?;
    Ok(replaced.transformed.then_some(replaced.data))
}

/// Whether an expression is a correlated EXISTS or IN. Most nodes have none.
fn is_correlated(expr: &Expr) -> bool {
    match expr {
        Expr::Exists(Exists { subquery, .. }) | Expr::InSubquery(InSubquery { subquery, .. }) => {
            !subquery.outer_ref_columns.is_empty()
        }
        _ => false,
    }
}

/// The subqueries of one node.
struct Subqueries<'a> {
    outer: &'a DFSchema,
    config: &'a dyn OptimizerConfig,
}

impl Subqueries<'_> {
    /// Replaces what a WHERE evaluates: not EXISTS, and not IN where NULL is as good as FALSE.
    fn in_condition(&self, expr: Expr) -> Result<Transformed<Expr>> {
        match expr {
            Expr::BinaryExpr(BinaryExpr {
                left,
                op: op @ (Operator::And | Operator::Or),
                right,
            }) => {
                let left = self.in_condition(*left)?;
                let right = self.in_condition(*right)?;
                let is_new = left.transformed || right.transformed;
                let both = BinaryExpr::new(Box::new(left.data), op, Box::new(right.data));
                let both = Expr::BinaryExpr(both);
                Ok(Transformed::new(both, is_new, TreeNodeRecursion::Continue))
            }
            Expr::InSubquery(InSubquery { negated: false, .. }) | Expr::Exists(_) => {
                Ok(Transformed::no(expr))
            }
            Expr::Not(inner) => match *inner {
                Expr::Exists(_) => Ok(Transformed::no(Expr::Not(inner))),
                Expr::InSubquery(membership) => self.in_condition(Expr::InSubquery(InSubquery {
                    negated: !membership.negated,
                    ..membership
                })),
                inner => self.in_expression(Expr::Not(Box::new(inner))),
            },
            other => self.in_expression(other),
        }
    }

    /// Replaces each EXISTS and IN that depends on the outer query in an expression.
    fn in_expression(&self, expr: Expr) -> Result<Transformed<Expr>> {
        expr.transform_up(|expr| {
            let found = match &expr {
                Expr::Exists(exists) => self.exists_by_count(exists),
                Expr::InSubquery(membership) => self.in_by_counts(membership),
                _ => return Ok(Transformed::no(expr)),
            };
            Ok(match or_log(found, "EXISTS or IN") {
                Some(found) => Transformed::yes(found),
                None => Transformed::no(expr),
            })
        })
    }

    /// `[NOT] EXISTS (…)` as `(SELECT count(*) …) > 0`, or `= 0`. With a threshold, rows are not counted:
    /// `(SELECT min(k) …) IS NOT NULL`, or `IS NULL`, for a range key k.
    fn exists_by_count(&self, exists: &Exists) -> Match<Expr> {
        let Exists { subquery, negated } = exists;
        let rows = Rows::of_exists(subquery)?;
        if let Some(first) = rows.first_crossing(self.outer, self.config) {
            return Ok(if *negated {
                first.is_null()
            } else {
                first.is_not_null()
            });
        }
        let matches = rows.count(None, None, self.outer, self.config)?;
        let zero = lit(0_i64);
        Ok(if *negated {
            matches.eq(zero)
        } else {
            matches.gt(zero)
        })
    }

    /// `x [NOT] IN (…)` by three counts.
    fn in_by_counts(&self, membership: &InSubquery) -> Match<Expr> {
        let (outer, config) = (self.outer, self.config);
        let Members { x, rows, value } = Members::from_membership(membership)?;
        let all = || rows.count(None, None, outer, config);
        let equal = equality(x, &value, outer)?;
        let zero = || lit(0_i64);
        let null = lit(ScalarValue::Boolean(None));
        let (matched, unmatched) = (lit(!membership.negated), lit(membership.negated));
        let case = when(all()?.eq(zero()), unmatched.clone())
            .when(x.clone().is_null(), null.clone())
            .when(
                rows.count(None, Some(equal), outer, config)?.gt(zero()),
                matched,
            )
            .when(
                rows.count(Some(&value), None, outer, config)?.lt(all()?),
                null,
            )
            .otherwise(unmatched)?;
        Ok(case)
    }
}

/// `x = value`, with a constant on the right, where the optimizer puts it: DataFusion 55 takes `'a' = x AND x = 'a'`
/// for FALSE where it infers one of them.
fn equality(x: &Expr, value: &Expr, outer: &DFSchema) -> Result<Expr> {
    let (x, is_constant) = (to_outer(x.clone(), outer)?, x.column_refs().is_empty());
    let value = value.clone();
    Ok(if is_constant {
        value.eq(x)
    } else {
        x.eq(value)
    })
}
