//! NOT EXISTS a later row, in a join with the rows of the same table: the row with the last key.
//!
//! ```text
//!   SELECT q.id, p.v FROM q JOIN p ON p.sym = q.sym AND p.ts <= q.ts
//!   WHERE NOT EXISTS (SELECT 1 FROM p r WHERE r.sym = q.sym AND r.ts <= q.ts AND r.ts > p.ts)
//!
//!   p.ts = (SELECT max(r.ts) FROM p r WHERE r.sym = q.sym AND r.ts <= q.ts)
//! ```
//!
//! The row of the join is itself among the rows of the subquery, as the join has all conditions that they have. So no
//! key of theirs is greater if its own is the greatest. The subquery is about the rows of `q`, not about all pairs. All
//! rows that tie for the last key are left, as before. `r.ts < p.ts` makes a minimum of it.

use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, NullEquality, Result};
use datafusion_dependent_join::{from_outer, is_correlated};
use datafusion_expr::expr::{BinaryExpr, Exists};
use datafusion_expr::utils::{conjunction, split_conjunction, split_conjunction_owned};
use datafusion_expr::{
    Aggregate, Distinct, Expr, ExprSchemable, Filter, JoinType, LogicalPlan, Operator, Subquery,
};
use datafusion_functions_aggregate::expr_fn::{max, min};
use datafusion_optimizer::OptimizerConfig;

use crate::logical_plan::range_lookup::is_same_plan;
use crate::rules::common::excludes_null::excludes_null;
use crate::rules::common::outer_columns::{
    add_outer_columns, has_expression, scalar_subquery, to_outer,
};
use crate::rules::common::plain_sql_rule::plain_sql_rule;
use crate::rules::common::plans::{columns_of, filtered, replaced};
use crate::rules::condition_parts::{check_joins, conjuncts};
use crate::rules::correlated_aggregate::CorrelatedAggregate;
use rmq_arrow::common::ordered_type::is_ordered;

plain_sql_rule!(
    /// Rewrites NOT EXISTS a later row to a comparison with the last key. Does nothing if `rmq.rewrite` is false.
    ///
    /// It must run before subqueries become lateral joins: that key's becomes a range join.
    LaterRowsToLastKeys,
    "rmq_later_rows_to_last_keys",
    replace
);

fn replace(plan: &LogicalPlan, config: &dyn OptimizerConfig) -> Result<Option<LogicalPlan>> {
    let LogicalPlan::Filter(filter) = plan else {
        return Ok(None);
    };
    let mut written = split_conjunction(&filter.predicate).into_iter();
    if !written.any(|e| excluded(e).is_some()) {
        return Ok(None);
    }
    let mut conjuncts = split_conjunction_owned(filter.predicate.clone());
    let others = conjuncts.iter().filter(|e| excluded(e).is_none());
    let mut joined = Joined {
        inputs: vec![],
        conditions: others.cloned().collect(),
    };
    joined.add(&filter.input);
    if joined.inputs.len() < 2 {
        return Ok(None);
    }
    let mut is_new = false;
    for conjunct in &mut conjuncts {
        if let Some(subquery) = excluded(conjunct)
            && let Some(is_last) = joined.is_last(subquery, filter.input.schema(), config)?
        {
            *conjunct = is_last;
            is_new = true;
        }
    }
    let predicate = conjunction(conjuncts).filter(|_| is_new);
    let replaced = predicate.map(|predicate| filtered(filter.input.as_ref().clone(), predicate));
    replaced.transpose()
}

/// The subquery of NOT EXISTS.
fn excluded(expr: &Expr) -> Option<&Subquery> {
    let (exists, is_negated) = match expr {
        Expr::Not(inner) => (inner.as_ref(), true),
        expr => (expr, false),
    };
    match exists {
        Expr::Exists(Exists { subquery, negated }) if *negated != is_negated => Some(subquery),
        _ => None,
    }
}

/// What is joined by inner joins, and the conditions that the joined rows meet.
struct Joined<'a> {
    inputs: Vec<&'a LogicalPlan>,
    conditions: Vec<Expr>,
}

impl<'a> Joined<'a> {
    fn add(&mut self, plan: &'a LogicalPlan) {
        match plan {
            LogicalPlan::Join(join)
                if join.join_type == JoinType::Inner
                    && join.null_equality == NullEquality::NullEqualsNothing =>
            {
                let on = join.on.iter();
                let on = on.map(|(left, right)| left.clone().eq(right.clone()));
                self.conditions.extend(on);
                self.conditions.extend(join.filter.clone());
                self.add(&join.left);
                self.add(&join.right);
            }
            LogicalPlan::Filter(filter) => {
                self.conditions.push(filter.predicate.clone());
                self.add(&filter.input);
            }
            input => self.inputs.push(input),
        }
    }

    /// The condition that a row's key is the last one of the subquery, if it says the same as that there is no later
    /// row, and a range join finds that key.
    fn is_last(
        &self,
        subquery: &Subquery,
        outer: &DFSchema,
        config: &dyn OptimizerConfig,
    ) -> Result<Option<Expr>> {
        let mut rows = subquery.subquery.as_ref();
        while let LogicalPlan::Projection(_) | LogicalPlan::Distinct(Distinct::All(_)) = rows {
            rows = rows.inputs()[0];
        }
        let LogicalPlan::Filter(rows) = rows else {
            return Ok(None);
        };
        let table = rows.input.as_ref();
        if is_correlated(table)? || !is_the_same_each_time(table)? {
            return Ok(None);
        }
        for input in &self.inputs {
            if is_same_plan(without_alias(input), without_alias(table))
                && let Some((key, extreme, conditions)) = self.last_key(input, rows, outer)?
            {
                let mut outer_columns = vec![];
                for condition in &conditions {
                    add_outer_columns(&mut outer_columns, condition)?;
                }
                let rows = match conjunction(conditions) {
                    Some(condition) => filtered(table.clone(), condition)?,
                    None => table.clone(),
                };
                let last = Aggregate::try_new(rows.into(), vec![], vec![extreme])?;
                let last = LogicalPlan::Aggregate(last);
                let is_found = CorrelatedAggregate::try_match(&last, outer, config).is_ok();
                return Ok(is_found.then(|| key.eq(scalar_subquery(last, outer_columns))));
            }
        }
        Ok(None)
    }

    /// The key of a row of this input, which is what the subquery filters, the aggregate that finds the last key of the
    /// subquery's rows, and the conditions of these.
    fn last_key(
        &self,
        input: &LogicalPlan,
        rows: &Filter,
        outer: &DFSchema,
    ) -> Result<Option<(Expr, Expr, Vec<Expr>)>> {
        let table = rows.input.as_ref();
        let (old, new) = (table.schema().columns(), columns_of(input.schema()));
        let conditions: Vec<Expr> = conjuncts(self.conditions.iter().cloned());
        let mut kept = vec![];
        let mut later = None;
        for condition in conjuncts([rows.predicate.clone()]) {
            if check_joins(&from_outer(condition.clone())?).is_err() {
                return Ok(None);
            }
            let of_row = from_outer(replaced(condition.clone(), &old, &new, outer)?)?;
            if conditions.iter().any(|known| is_same(known, &of_row)) {
                kept.push(condition);
                continue;
            }
            // Otherwise a column of the subquery's rows is compared with that of the row itself.
            let Some((own, op)) = with_own_column(&condition, &of_row) else {
                return Ok(None);
            };
            let Expr::BinaryExpr(BinaryExpr { left: column, .. }) = of_row else {
                return Ok(None);
            };
            match op {
                Operator::Gt | Operator::Lt if later.is_none() => {
                    later = Some((*column, own, op == Operator::Gt));
                }
                Operator::Eq => {
                    // The column of a row that is joined by it serves as well.
                    let Some(equal) = equal_to(&column, &conditions, input) else {
                        return Ok(None);
                    };
                    kept.push(own.eq(to_outer(equal, outer)?));
                }
                _ => return Ok(None),
            }
        }
        let Some((key, of_rows, is_greater)) = later else {
            return Ok(None);
        };
        let extreme = if is_greater {
            max(of_rows)
        } else {
            min(of_rows)
        };
        let key_type = key.get_type(outer)?;
        // A float would be found by its value, which zeros of both signs and NaN do not have alone.
        let is_searchable = is_ordered(&key_type)
            && !key_type.is_floating()
            && extreme.get_type(table.schema())? == key_type;
        let is_known = !key.nullable(outer)? || conditions.iter().any(|c| excludes_null(c, &key));
        if !is_searchable || !is_known {
            return Ok(None);
        }
        Ok(Some((key, extreme, kept)))
    }
}

/// Whether a plan has the same rows each time: a table, perhaps filtered and projected.
pub fn is_the_same_each_time(plan: &LogicalPlan) -> Result<bool> {
    let mut is_same = true;
    plan.apply(|node| {
        let is_simple = matches!(
            node,
            LogicalPlan::TableScan(_)
                | LogicalPlan::SubqueryAlias(_)
                | LogicalPlan::Projection(_)
                | LogicalPlan::Filter(_)
        );
        is_same &= is_simple && !has_expression(node, |e| check_joins(e).is_err())?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(is_same)
}

fn without_alias(plan: &LogicalPlan) -> &LogicalPlan {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => without_alias(&alias.input),
        plan => plan,
    }
}

/// The column of the subquery's rows that a condition compares with the same column of the row, and how. `of_row` is
/// the condition for the row itself.
fn with_own_column(condition: &Expr, of_row: &Expr) -> Option<(Expr, Operator)> {
    let (Expr::BinaryExpr(condition), Expr::BinaryExpr(of_row)) = (condition, of_row) else {
        return None;
    };
    if of_row.left != of_row.right || !matches!(of_row.left.as_ref(), Expr::Column(_)) {
        return None;
    }
    match (condition.left.as_ref(), condition.right.as_ref()) {
        (own @ Expr::Column(_), Expr::OuterReferenceColumn(..)) => {
            Some((own.clone(), condition.op))
        }
        (Expr::OuterReferenceColumn(..), own @ Expr::Column(_)) => {
            Some((own.clone(), condition.op.swap()?))
        }
        _ => None,
    }
}

/// What an expression is equal to that is not of this input.
pub fn equal_to(column: &Expr, conditions: &[Expr], input: &LogicalPlan) -> Option<Expr> {
    conditions.iter().find_map(|condition| {
        let Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Eq,
            right,
        }) = condition
        else {
            return None;
        };
        let other = match (left.as_ref() == column, right.as_ref() == column) {
            (true, false) => right,
            (false, true) => left,
            _ => return None,
        };
        let columns = other.column_refs();
        let is_other = columns.iter().all(|c| !input.schema().has_column(c));
        (is_other && !columns.is_empty() && check_joins(other).is_ok())
            .then(|| other.as_ref().clone())
    })
}

/// Whether two conditions are the same, perhaps the other way round.
fn is_same(one: &Expr, other: &Expr) -> bool {
    if one == other {
        return true;
    }
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = one else {
        return false;
    };
    let swapped = op
        .swap()
        .map(|op| BinaryExpr::new(right.clone(), op, left.clone()));
    swapped.is_some_and(|swapped| Expr::BinaryExpr(swapped) == *other)
}
