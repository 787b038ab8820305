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
//! `SubqueryToRangeJoin` makes range joins of the counts. In a WHERE, EXISTS and IN as conjuncts or operands of OR are left to DataFusion, which makes
//! semi and mark joins of them: there a NULL counts as FALSE. In a SELECT list DataFusion has no plan for either, and it has none for a correlated NOT IN.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ExprSchema, Result, ScalarValue, Spans};
use datafusion::functions_aggregate::expr_fn::{count, min};
use datafusion::logical_expr::expr::{BinaryExpr, Exists, InSubquery};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{COUNT_STAR_EXPANSION, split_conjunction};
use datafusion::logical_expr::{
    Aggregate, Distinct, Expr, Filter, LogicalPlan, Operator, Subquery, lit, when,
};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::common::options::RmqOptions;
use crate::rewrite::common::names::save_name;
use crate::rewrite::range_join::condition::{check_repeats, compared_with, split_between};
use crate::rewrite::range_join::correlated_aggregate::CorrelatedAggregate;
use crate::rewrite::range_join::rejection::{Match, reject};

/// Rewrites EXISTS and IN over a range to comparisons of counts, where DataFusion has no join for them. Does nothing if `rmq.rewrite` is false.
///
/// It must run before [`SubqueryToRangeJoin`](crate::rewrite::range_join::scalar_subquery::SubqueryToRangeJoin).
#[derive(Debug, Default)]
pub struct ExistsToCounts;

impl OptimizerRule for ExistsToCounts {
    fn name(&self) -> &'static str {
        "rmq_exists_to_counts"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let is_filter = matches!(plan, LogicalPlan::Filter(_));
        let is_admitted = is_filter || matches!(plan, LogicalPlan::Projection(_));
        if !is_admitted || !has_correlated(&plan)? || !RmqOptions::of(&config.options()).rewrite {
            return Ok(Transformed::no(plan));
        }
        let inputs = plan.inputs();
        let [input] = inputs.as_slice() else {
            return Ok(Transformed::no(plan));
        };
        let outer = Arc::clone(input.schema());
        let preserver = NamePreserver::new(&plan);
        plan.map_expressions(|expr| {
            let name = save_name(&preserver, &expr);
            let replaced = if is_filter {
                in_condition(expr, &outer, config)
            } else {
                in_expression(expr, &outer, config)
            };
            Ok(replaced?.update_data(|expr| name.restore(expr)))
        })
    }
}

/// Whether the node's expressions have a correlated EXISTS or IN. Most nodes have none.
fn has_correlated(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_expressions(|expr| {
        found |= expr.exists(|e| {
            let (Expr::Exists(Exists { subquery, .. })
            | Expr::InSubquery(InSubquery { subquery, .. })) = e
            else {
                return Ok(false);
            };
            Ok(!subquery.outer_ref_columns.is_empty())
        })?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// Replaces what a WHERE evaluates: not EXISTS, and not IN where NULL is as good as FALSE.
fn in_condition(
    expr: Expr,
    outer: &DFSchema,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<Expr>> {
    match expr {
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: op @ (Operator::And | Operator::Or),
            right,
        }) => {
            let left = in_condition(*left, outer, config)?;
            let right = in_condition(*right, outer, config)?;
            let is_new = left.transformed || right.transformed;
            let both = BinaryExpr::new(Box::new(left.data), op, Box::new(right.data));
            let both = Expr::BinaryExpr(both);
            Ok(Transformed::new(both, is_new, TreeNodeRecursion::Continue))
        }
        Expr::InSubquery(InSubquery { negated: false, .. }) | Expr::Exists(_) => {
            Ok(Transformed::no(expr))
        }
        Expr::Not(inner) if matches!(*inner, Expr::Exists(_)) => {
            Ok(Transformed::no(Expr::Not(inner)))
        }
        other => in_expression(other, outer, config),
    }
}

/// Replaces each EXISTS and IN over a range in an expression.
fn in_expression(
    expr: Expr,
    outer: &DFSchema,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<Expr>> {
    expr.transform_up(|expr| {
        let found = match &expr {
            Expr::Exists(exists) => exists_by_count(exists, outer, config),
            Expr::InSubquery(membership) => in_by_counts(membership, outer, config),
            _ => return Ok(Transformed::no(expr)),
        };
        match found {
            Ok(found) => Ok(Transformed::yes(found)),
            Err(reason) => {
                log::debug!("{expr} stays as it is: {reason}");
                Ok(Transformed::no(expr))
            }
        }
    })
}

/// `[NOT] EXISTS (…)` as `(SELECT count(*) …) > 0`, or `= 0`. With a threshold, rows are not counted: `(SELECT min(k) …) IS NOT NULL`, or `IS NULL`, for
/// a range key k.
fn exists_by_count(exists: &Exists, outer: &DFSchema, config: &dyn OptimizerConfig) -> Match<Expr> {
    let Exists { subquery, negated } = exists;
    let rows = Rows::of(subquery)?;
    if let Some(first) = rows.first_crossing(outer, config) {
        return Ok(if *negated {
            first.is_null()
        } else {
            first.is_not_null()
        });
    }
    let matches = rows.count(None, None, outer, config)?;
    let zero = lit(0_i64);
    Ok(if *negated {
        matches.eq(zero)
    } else {
        matches.gt(zero)
    })
}

/// `x [NOT] IN (…)` by three counts.
fn in_by_counts(
    membership: &InSubquery,
    outer: &DFSchema,
    config: &dyn OptimizerConfig,
) -> Match<Expr> {
    let InSubquery {
        expr: x,
        subquery,
        negated,
    } = membership;
    check_repeats(x)?;
    let rows = Rows::of(subquery)?;
    let Some(value) = rows.value else {
        return reject("its subquery has not one column");
    };
    check_repeats(value)?;
    let all = || rows.count(None, None, outer, config);
    let of_outer = x.as_ref().clone().transform_up(|e| {
        let Expr::Column(column) = &e else {
            return Ok(Transformed::no(e));
        };
        let field = Arc::clone(outer.field_from_column(column)?);
        let reference = Expr::OuterReferenceColumn(field, column.clone());
        Ok(Transformed::yes(reference))
    })?;
    let equal = value.clone().eq(of_outer.data);
    let zero = || lit(0_i64);
    let null = lit(ScalarValue::Boolean(None));
    let (matched, unmatched) = (lit(!negated), lit(*negated));
    let case = when(all()?.eq(zero()), unmatched.clone())
        .when(x.as_ref().clone().is_null(), null.clone())
        .when(
            rows.count(None, Some(equal), outer, config)?.gt(zero()),
            matched,
        )
        .when(
            rows.count(Some(value), None, outer, config)?.lt(all()?),
            null,
        )
        .otherwise(unmatched)?;
    Ok(case)
}

/// A scalar subquery with these columns of the outer query.
fn subquery(plan: LogicalPlan, outer_ref_columns: Vec<Expr>) -> Expr {
    Expr::ScalarSubquery(Subquery {
        subquery: Arc::new(plan),
        outer_ref_columns,
        spans: Spans::new(),
    })
}

/// The rows of a subquery, without what does not matter to whether there is one.
struct Rows<'a> {
    subquery: &'a Subquery,
    input: &'a LogicalPlan,
    /// The only column, over `input`.
    value: Option<&'a Expr>,
}

impl<'a> Rows<'a> {
    fn of(subquery: &'a Subquery) -> Match<Self> {
        let mut plan = subquery.subquery.as_ref();
        while let LogicalPlan::Distinct(Distinct::All(input)) = plan {
            plan = input;
        }
        let LogicalPlan::Projection(projection) = plan else {
            return reject(format!("its subquery ends in {}", plan.display()));
        };
        let value = match projection.expr.as_slice() {
            [Expr::Alias(alias)] => Some(alias.expr.as_ref()),
            [value] => Some(value),
            _ => None,
        };
        Ok(Self {
            subquery,
            input: &projection.input,
            value,
        })
    }

    /// The subquery that counts the rows where `value` is not NULL, or all, that meet a further condition. Rejects what would not become a range join.
    fn count(
        &self,
        value: Option<&Expr>,
        condition: Option<Expr>,
        outer: &DFSchema,
        config: &dyn OptimizerConfig,
    ) -> Match<Expr> {
        let mut input = Arc::new(self.input.clone());
        let mut outer_columns = self.subquery.outer_ref_columns.clone();
        if let Some(condition) = condition {
            condition.apply(|e| {
                if matches!(e, Expr::OuterReferenceColumn(..)) && !outer_columns.contains(e) {
                    outer_columns.push(e.clone());
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
            input = Arc::new(LogicalPlan::Filter(Filter::try_new(condition, input)?));
        }
        let counted = value.cloned().unwrap_or_else(|| lit(COUNT_STAR_EXPANSION));
        let aggregate = Aggregate::try_new(input, vec![], vec![count(counted)])?;
        let counts = LogicalPlan::Aggregate(aggregate);
        CorrelatedAggregate::try_match(&counts, outer, &[], config)?;
        Ok(subquery(counts, outer_columns))
    }

    /// The subquery that returns the least range key of the rows that meet a threshold, NULL without any; `None` if there is no threshold.
    fn first_crossing(&self, outer: &DFSchema, config: &dyn OptimizerConfig) -> Option<Expr> {
        let mut plan = self.input;
        while let LogicalPlan::Filter(filter) = plan {
            let conjuncts = split_conjunction(&filter.predicate).into_iter().cloned();
            for conjunct in conjuncts.flat_map(split_between) {
                let Some((key, ..)) = compared_with(&conjunct, Expr::contains_outer) else {
                    continue;
                };
                if key.contains_outer() || check_repeats(&key).is_err() {
                    continue;
                }
                let input = Arc::new(self.input.clone());
                let Ok(aggregate) = Aggregate::try_new(input, vec![], vec![min(key)]) else {
                    continue;
                };
                let least = LogicalPlan::Aggregate(aggregate);
                let found = CorrelatedAggregate::try_match(&least, outer, &[], config);
                if found.is_ok_and(|found| !found.spec.thresholds.is_empty()) {
                    let outer_columns = self.subquery.outer_ref_columns.clone();
                    return Some(subquery(least, outer_columns));
                }
            }
            plan = &filter.input;
        }
        None
    }
}
