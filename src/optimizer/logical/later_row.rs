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

use datafusion::common::{DFSchema, Result};
use datafusion::functions_aggregate::expr_fn::{max, min};
use datafusion::logical_expr::expr::{BinaryExpr, Exists};
use datafusion::logical_expr::utils::{conjunction, split_conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Aggregate, Distinct, Expr, ExprSchemable, Filter, JoinType, LogicalPlan, Operator, Subquery,
};
use datafusion::optimizer::OptimizerConfig;

use crate::common::ordered_type::is_ordered;
use crate::logical_plan::range_lookup::is_same_plan;
use crate::optimizer::logical::common::outer_columns::{
    add_outer_columns, from_outer, has_outer_columns, scalar_subquery, to_outer,
};
use crate::optimizer::logical::common::plain_sql_rule::plain_sql_rule;
use crate::optimizer::logical::common::plans::{columns_of, filtered, replaced};
use crate::optimizer::logical::condition_parts::{check_joins, is_of, split_between};

plain_sql_rule!(
    /// Rewrites NOT EXISTS a later row to a comparison with the last key. Does nothing if `rmq.rewrite` is false.
    ///
    /// It must run before [`SubqueryToRangeJoin`](crate::optimizer::logical::scalar_subquery::SubqueryToRangeJoin),
    /// which finds that key.
    LaterRowsToLastKeys,
    "rmq_later_rows_to_last_keys",
    replace
);

fn replace(plan: &LogicalPlan, _: &dyn OptimizerConfig) -> Result<Option<LogicalPlan>> {
    let LogicalPlan::Filter(filter) = plan else {
        return Ok(None);
    };
    let conjuncts = split_conjunction(&filter.predicate);
    let Some(at) = conjuncts.iter().position(|e| excluded(e).is_some()) else {
        return Ok(None);
    };
    let mut conjuncts: Vec<Expr> = conjuncts.into_iter().cloned().collect();
    let later = conjuncts.remove(at);
    let mut joined = Joined {
        inputs: vec![],
        conditions: conjuncts.clone(),
    };
    joined.add(&filter.input);
    let Some(subquery) = excluded(&later).filter(|_| joined.inputs.len() > 1) else {
        return Ok(None);
    };
    let Some(is_last) = joined.is_last(subquery, filter)? else {
        return Ok(None);
    };
    conjuncts.push(is_last);
    let Some(predicate) = conjunction(conjuncts) else {
        return Ok(None);
    };
    filtered(filter.input.as_ref().clone(), predicate).map(Some)
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
            LogicalPlan::Join(join) if join.join_type == JoinType::Inner => {
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
    /// row.
    fn is_last(&self, subquery: &Subquery, filter: &Filter) -> Result<Option<Expr>> {
        let mut rows = subquery.subquery.as_ref();
        while let LogicalPlan::Projection(_) | LogicalPlan::Distinct(Distinct::All(_)) = rows {
            rows = rows.inputs()[0];
        }
        let LogicalPlan::Filter(of_rows) = rows else {
            return Ok(None);
        };
        let build = of_rows.input.as_ref();
        if has_outer_columns(build)? {
            return Ok(None);
        }
        for input in &self.inputs {
            if is_same_plan(without_alias(input), without_alias(build))
                && let Some(is_last) = self.is_last_of(input, of_rows, filter.input.schema())?
            {
                return Ok(Some(is_last));
            }
        }
        Ok(None)
    }

    /// The same for a row of this input, which is what the subquery filters.
    fn is_last_of(
        &self,
        input: &LogicalPlan,
        of_rows: &Filter,
        outer: &DFSchema,
    ) -> Result<Option<Expr>> {
        let build = of_rows.input.as_ref();
        let (old, new) = (build.schema().columns(), columns_of(input.schema()));
        let conditions: Vec<Expr> = conjuncts(self.conditions.iter().cloned());
        let mut kept = vec![];
        let mut last = None;
        for condition in conjuncts([of_rows.predicate.clone()]) {
            if check_joins(&from_outer(condition.clone())?).is_err() {
                return Ok(None);
            }
            let of_row = from_outer(replaced(condition.clone(), &old, &new, outer)?)?;
            match own_columns(&of_row) {
                // Of the row and of itself.
                Some((key, Operator::Gt | Operator::Lt)) if last.is_none() => {
                    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = condition else {
                        return Ok(None);
                    };
                    let (is_greater, of_rows) = if is_of(&left, build.schema()) {
                        (op == Operator::Gt, *left)
                    } else {
                        (op == Operator::Lt, *right)
                    };
                    last = Some((key, is_greater, of_rows));
                }
                Some((column, Operator::Eq)) => {
                    // The column of a row that is joined by it serves as well.
                    let Some(equal) = equal_to(&column, &conditions, input) else {
                        return Ok(None);
                    };
                    let Expr::BinaryExpr(BinaryExpr { left, right, .. }) = condition else {
                        return Ok(None);
                    };
                    let own = if left.contains_outer() { right } else { left };
                    kept.push((*own).eq(to_outer(equal, outer)?));
                }
                None if conditions.iter().any(|known| is_same(known, &of_row)) => {
                    kept.push(condition);
                }
                Some(_) | None => return Ok(None),
            }
        }
        let Some((key, is_greater, of_rows)) = last else {
            return Ok(None);
        };
        let key_type = key.get_type(outer)?;
        // A float would be found by its value, which zeros of both signs and NaN do not have alone.
        let is_searchable = is_ordered(&key_type) && !key_type.is_floating();
        let is_known = !key.nullable(outer)? || conditions.iter().any(|c| excludes_null(c, &key));
        if !is_searchable || !is_known {
            return Ok(None);
        }
        let mut outer_columns = vec![];
        for condition in &kept {
            add_outer_columns(&mut outer_columns, condition)?;
        }
        let of_all = match conjunction(kept) {
            Some(condition) => filtered(build.clone(), condition)?,
            None => build.clone(),
        };
        let extreme = if is_greater {
            max(of_rows)
        } else {
            min(of_rows)
        };
        let last = Aggregate::try_new(of_all.into(), vec![], vec![extreme])?;
        let last = scalar_subquery(LogicalPlan::Aggregate(last), outer_columns);
        Ok(Some(key.eq(last)))
    }
}

fn without_alias(plan: &LogicalPlan) -> &LogicalPlan {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => without_alias(&alias.input),
        plan => plan,
    }
}

fn conjuncts(conditions: impl IntoIterator<Item = Expr>) -> Vec<Expr> {
    let conjuncts = conditions.into_iter().flat_map(split_conjunction_owned);
    conjuncts.flat_map(split_between).collect()
}

/// The column that a comparison compares with itself, and the operator.
fn own_columns(expr: &Expr) -> Option<(Expr, Operator)> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right })
            if left == right && matches!(left.as_ref(), Expr::Column(_)) =>
        {
            Some((left.as_ref().clone(), *op))
        }
        _ => None,
    }
}

/// What a column is equal to that is not of this input.
fn equal_to(column: &Expr, conditions: &[Expr], input: &LogicalPlan) -> Option<Expr> {
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

/// Whether a condition, which is met, is not met by a key that is NULL.
fn excludes_null(condition: &Expr, key: &Expr) -> bool {
    match condition {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            use Operator::{Eq, Gt, GtEq, Lt, LtEq};
            matches!(op, Eq | Lt | LtEq | Gt | GtEq) && (**left == *key || **right == *key)
        }
        Expr::IsNotNull(operand) => **operand == *key,
        _ => false,
    }
}
