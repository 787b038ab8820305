//! EXISTS and IN over a range, where DataFusion has no join for them.
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
//! `SubqueryToRangeJoin` makes range joins of the counts. Where the subquery has another condition on both sides
//! besides equalities and one range, mark joins (`mark_join`) tell whether there is a row, a row with p.v = q.x, and a
//! row where p.v IS NULL. In a WHERE, EXISTS and IN as conjuncts or operands of OR are left to DataFusion, which makes
//! semi and mark joins of them: there a NULL counts as FALSE. Elsewhere in a WHERE, as in `(q.x IN (…)) IS FALSE`, an
//! IN that has no counts and no mark joins is made of EXISTS. In a SELECT list DataFusion has no plan for either, and
//! it has none for a correlated NOT IN.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result, ScalarValue, plan_err};
use datafusion::logical_expr::expr::{BinaryExpr, Exists, InSubquery};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Operator, lit, when};
use datafusion::optimizer::OptimizerConfig;
use datafusion::optimizer::simplify_expressions::ExprSimplifier;

use crate::optimizer::instead::Shape;
use crate::optimizer::logical::common::outer_columns::{admits_subqueries, has_expression};
use crate::optimizer::logical::common::plain_sql_rule::plain_sql_rule;
use crate::optimizer::logical::common::plans::{filtered, map_expressions, with_input};
use crate::optimizer::logical::in_as_exists::{ByExists, equality, three_valued};
use crate::optimizer::logical::mark_join::MarkJoins;
use crate::optimizer::logical::subquery_rows::{Members, Rows};
use crate::optimizer::logical::why_no_join::note_without_join;
use crate::optimizer::rejection::{Match, RejectedSubquery, note};

plain_sql_rule!(
    /// Rewrites EXISTS and IN over a range to comparisons of counts, where DataFusion has no join for them. Does
    /// nothing if `rmq.rewrite` is false.
    ///
    /// It must run before [`SubqueryToRangeJoin`](crate::optimizer::logical::scalar_subquery::SubqueryToRangeJoin).
    ExistsToCounts,
    "rmq_exists_to_counts",
    replace
);

fn replace(plan: &LogicalPlan, config: &dyn OptimizerConfig) -> Result<Option<LogicalPlan>> {
    let is_filter = matches!(plan, LogicalPlan::Filter(_));
    let may_change = |e: &Expr| is_correlated(e) || is_filter && matches!(e, Expr::InSubquery(_));
    let inputs = plan.inputs();
    let [input] = inputs.as_slice() else {
        return Ok(None);
    };
    if !admits_subqueries(plan) || !has_expression(plan, may_change)? {
        return Ok(None);
    }
    let mut subqueries = Subqueries {
        outer: input.schema(),
        config,
        marks: MarkJoins::new(input.schema(), config),
    };
    let replaced = map_expressions(plan.clone(), |expr| {
        if is_filter {
            subqueries.in_condition(expr, true)
        } else {
            subqueries.in_expression(expr)
        }
    })?;
    let marks = subqueries.marks;
    Ok(match replaced.transformed {
        _ if !marks.is_empty() => {
            let input = marks.above((*input).clone())?;
            Some(with_input(&replaced.data, input, plan.schema())?)
        }
        true => Some(replaced.data),
        false => None,
    })
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

/// The subqueries of one node, and what replaces them.
struct Subqueries<'a> {
    outer: &'a DFSchema,
    config: &'a dyn OptimizerConfig,
    marks: MarkJoins<'a>,
}

impl Subqueries<'_> {
    /// Replaces what a WHERE evaluates: not EXISTS, and not IN where NULL is as good as FALSE. DataFusion's joins for
    /// NOT IN know NULLs only in a conjunct without correlation whose left side is a column.
    fn in_condition(&mut self, expr: Expr, is_conjunct: bool) -> Result<Transformed<Expr>> {
        match expr {
            Expr::BinaryExpr(BinaryExpr {
                left,
                op: op @ (Operator::And | Operator::Or),
                right,
            }) => {
                let is_conjunct = is_conjunct && op == Operator::And;
                let left = self.in_condition(*left, is_conjunct)?;
                let right = self.in_condition(*right, is_conjunct)?;
                let is_new = left.transformed || right.transformed;
                let both = BinaryExpr::new(Box::new(left.data), op, Box::new(right.data));
                let both = Expr::BinaryExpr(both);
                Ok(Transformed::new(both, is_new, TreeNodeRecursion::Continue))
            }
            Expr::InSubquery(InSubquery { negated: false, .. }) | Expr::Exists(_) => {
                note_without_join(&expr, self.config)?;
                Ok(Transformed::no(expr))
            }
            Expr::Not(inner) => match *inner {
                Expr::Exists(_) => {
                    note_without_join(&inner, self.config)?;
                    Ok(Transformed::no(Expr::Not(inner)))
                }
                Expr::InSubquery(membership) => {
                    let negated = !membership.negated;
                    let expr = InSubquery {
                        negated,
                        ..membership
                    };
                    self.in_condition(Expr::InSubquery(expr), is_conjunct)
                }
                inner => self.in_three_valued(Expr::Not(Box::new(inner))),
            },
            Expr::InSubquery(membership) => {
                let is_independent = membership.subquery.outer_ref_columns.is_empty();
                if is_conjunct && is_independent && !self.is_constant(&membership.expr)? {
                    return Ok(Transformed::no(Expr::InSubquery(membership)));
                }
                self.not_in_condition(&membership)
            }
            other => self.in_three_valued(other),
        }
    }

    /// Replaces the subqueries of an expression of a WHERE in which NULL is not as good as FALSE.
    fn in_three_valued(&mut self, expr: Expr) -> Result<Transformed<Expr>> {
        let replaced = self.in_expression(expr)?;
        replaced.transform_data(|expr| {
            expr.transform_up(|expr| match expr {
                Expr::InSubquery(membership) => self.in_three_values(membership),
                other => Ok(Transformed::no(other)),
            })
        })
    }

    /// Whether an expression has the same value for all rows, as the optimizer sees it.
    fn is_constant(&self, expr: &Expr) -> Result<bool> {
        let context = SimplifyContext::builder()
            .with_schema(Arc::new(self.outer.clone()))
            .with_config_options(self.config.options())
            .build();
        let simplified = ExprSimplifier::new(context).simplify(expr.clone())?;
        Ok(simplified.column_refs().is_empty())
    }

    /// Replaces a NOT IN where NULL is as good as FALSE. DataFusion must not get one with NULLs: its null-aware anti
    /// join ignores the correlated conditions where it looks for NULLs.
    fn not_in_condition(&mut self, membership: &InSubquery) -> Result<Transformed<Expr>> {
        let replaced = self.in_expression(Expr::InSubquery(membership.clone()))?;
        if replaced.transformed || !self.may_be_null(membership)? {
            return Ok(replaced);
        }
        let exists = self.by_exists(membership)?;
        Ok(Transformed::yes(exists.not_in(membership)))
    }

    /// Replaces an IN of a WHERE where NULL is not as good as FALSE, as in `(x IN (…)) IS FALSE`. DataFusion's mark
    /// join takes one for the other.
    fn in_three_values(&self, membership: InSubquery) -> Result<Transformed<Expr>> {
        if !self.may_be_null(&membership)? {
            return Ok(Transformed::no(Expr::InSubquery(membership)));
        }
        let exists = self.by_exists(&membership)?;
        Ok(Transformed::yes(exists.three_values(&membership)?))
    }

    fn may_be_null(&self, membership: &InSubquery) -> Result<bool> {
        let values = &membership.subquery.subquery;
        let has_nulls = values.schema().fields().iter().any(|f| f.is_nullable());
        Ok(has_nulls || membership.expr.nullable(self.outer)?)
    }

    fn by_exists(&self, membership: &InSubquery) -> Result<ByExists> {
        ByExists::from_membership(membership, self.outer).or_else(|reason| {
            let not = if membership.negated { "NOT " } else { "" };
            let subquery = &membership.subquery.subquery;
            let rejected = RejectedSubquery::new(Shape::In, subquery, &reason);
            plan_err!("there is no plan for {not}{rejected}")
        })
    }

    /// Replaces each EXISTS and IN that depends on the outer query in an expression.
    fn in_expression(&mut self, expr: Expr) -> Result<Transformed<Expr>> {
        expr.transform_up(|expr| {
            let joins = self.marks.len();
            let found = match &expr {
                Expr::Exists(exists) => self
                    .exists_by_count(exists)
                    .or_else(|_| self.exists_by_mark(exists)),
                Expr::InSubquery(membership) => self
                    .in_by_counts(membership)
                    .or_else(|_| self.in_by_marks(membership)),
                _ => return Ok(Transformed::no(expr)),
            };
            match found {
                Ok(found) => Ok(Transformed::yes(found)),
                Err(reason) => {
                    self.marks.truncate(joins);
                    let (shape, subquery) = match &expr {
                        Expr::InSubquery(membership) => (Shape::In, &membership.subquery),
                        Expr::Exists(exists) => (Shape::Exists, &exists.subquery),
                        _ => return Ok(Transformed::no(expr)),
                    };
                    note(self.config, shape, &subquery.subquery, &reason);
                    Ok(Transformed::no(expr))
                }
            }
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

    /// `[NOT] EXISTS (…)` as the column of a mark join.
    fn exists_by_mark(&mut self, exists: &Exists) -> Match<Expr> {
        let Exists { subquery, negated } = exists;
        let rows = Rows::of_exists(subquery)?;
        let mark = self.marks.mark(&rows.input)?;
        Ok(if *negated { !mark } else { mark })
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

    /// `x [NOT] IN (…)` by up to three mark joins:
    ///
    /// ```text
    ///   CASE WHEN <a row with p.v = x> THEN TRUE
    ///        WHEN x IS NULL AND <a row> OR <a row where p.v IS NULL> THEN NULL
    ///        ELSE FALSE END
    /// ```
    fn in_by_marks(&mut self, membership: &InSubquery) -> Match<Expr> {
        let Members { x, rows, value } = Members::from_membership(membership)?;
        let equal = equality(x, &value, self.outer)?;
        let mut mark = |rows: &LogicalPlan, equal: Option<Expr>| {
            let equal = equal.map(|equal| filtered(rows.clone(), equal));
            let rows = equal.transpose()?.unwrap_or_else(|| rows.clone());
            self.marks.mark(&rows)
        };
        let has_equal = mark(&rows.input, Some(equal))?;
        let mut is_unknown = vec![];
        if x.nullable(self.outer)? {
            is_unknown.push(x.clone().is_null().and(mark(&rows.input, None)?));
        }
        if value.nullable(rows.input.schema())? {
            is_unknown.push(mark(&rows.input, Some(value.clone().is_null()))?);
        }
        Ok(three_valued(has_equal, is_unknown, membership.negated)?)
    }
}
