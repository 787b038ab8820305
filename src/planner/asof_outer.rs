//! ASOF RIGHT and FULL joins: a row of the right side is the nearest one of the rows of the left side up to the next
//! row of the right side.
//!
//! ```text
//!   FROM q ASOF RIGHT JOIN p ON p.sym = q.sym AND q.ts >= p.ts
//!
//!   FROM q RIGHT JOIN (SELECT *, lead(p.ts) OVER (PARTITION BY p.sym ORDER BY p.ts NULLS FIRST) AS next FROM p) AS p
//!   ON p.sym = q.sym AND q.ts >= p.ts AND (q.ts < next OR next IS NULL)
//! ```
//!
//! This is a join of rows, so that the rows of the right side that are nearest to none are known. Of several rows of
//! the right side with equal keys, one has the rows of the left side, and the others have none.

use arrow::datatypes::DataType;
use datafusion::common::{Column, JoinType, Result, ScalarValue, internal_err, plan_err};
use datafusion::functions_window::lead_lag::lead_udwf;
use datafusion::logical_expr::expr::{BinaryExpr, WindowFunction};
use datafusion::logical_expr::type_coercion::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    Expr, ExprFunctionExt, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator,
    WindowFunctionDefinition, binary_expr, cast, lit,
};

use datafusion_rmq_logical::conditions::condition::{comparison, key_and_bound};
use datafusion_rmq_logical::rules::condition_parts::{conjuncts, is_of};

/// The join of these sides, of type RIGHT or FULL. The first condition compares both sides, and its nearest row counts.
pub(super) fn outer_join(
    left: LogicalPlan,
    right: LogicalPlan,
    conditions: Vec<Expr>,
    join_type: JoinType,
) -> Result<LogicalPlan> {
    let mut conditions = conjuncts(conditions).into_iter();
    let sides = Sides { left, right };
    let first = conditions.next().map(|first| sides.compared(&first));
    let Some(Some((bound, op, key))) = first.transpose()? else {
        return internal_err!("an ASOF JOIN has a comparison");
    };
    let Some(compared) = comparison(op) else {
        return internal_err!("an ASOF JOIN compares by {op}");
    };
    let mut joined_by = vec![binary_expr(key.clone(), op, bound.clone())];
    let mut groups = vec![];
    for condition in conditions {
        if is_of(&condition, sides.right.schema()) {
            groups.push(condition.clone().is_true());
            joined_by.push(condition);
        } else if is_of(&condition, sides.left.schema()) || condition.column_refs().is_empty() {
            joined_by.push(condition);
        } else {
            let Some((ours, op @ (Operator::Eq | Operator::IsNotDistinctFrom), theirs)) =
                sides.compared(&condition)?
            else {
                return plan_err!(
                    "{condition} is a condition on both sides, of which an ASOF RIGHT or FULL JOIN may have one \
                     comparison by >=, >, <= or <, and others by = or IS NOT DISTINCT FROM"
                );
            };
            let data_type = theirs.get_type(sides.right.schema())?;
            // Zeros of both signs are equal, and groups of a window are not.
            groups.push(if data_type.is_floating() {
                theirs.clone() + lit(ScalarValue::new_zero(&data_type)?)
            } else {
                theirs.clone()
            });
            joined_by.push(binary_expr(theirs, op, ours));
        }
    }

    // The next row is farther from each row of the left side up to it.
    let is_ascending = !compared.is_lower();
    let arguments = vec![key.clone(), lit(1_i64)];
    let next = WindowFunction::new(WindowFunctionDefinition::WindowUDF(lead_udwf()), arguments);
    let next = Expr::from(next)
        .partition_by(groups)
        .order_by(vec![key.sort(is_ascending, true)])
        .build()?;
    let name = Column::new_unqualified(next.schema_name().to_string());
    let columns = sides.left.schema().columns().into_iter();
    let columns: Vec<Expr> = columns
        .chain(sides.right.schema().columns())
        .map(Expr::Column)
        .collect();
    let right = LogicalPlanBuilder::from(sides.right)
        .window([next])?
        .build()?;
    let next = Expr::Column(name);
    let is_before = match op {
        Operator::LtEq => Operator::Gt,
        Operator::Lt => Operator::GtEq,
        Operator::GtEq => Operator::Lt,
        _ => Operator::LtEq,
    };
    let is_before = binary_expr(next.clone(), is_before, bound);
    joined_by.push(is_before.or(next.is_null()));
    LogicalPlanBuilder::from(sides.left)
        .join_on(right, join_type, joined_by)?
        .project(columns)?
        .build()
}

struct Sides {
    left: LogicalPlan,
    right: LogicalPlan,
}

impl Sides {
    /// The operands of a comparison, the one of the left side first, in the type in which they are compared, and the
    /// operator between that of the right side and that of the left side.
    fn compared(&self, condition: &Expr) -> Result<Option<(Expr, Operator, Expr)>> {
        let (left, right) = (self.left.schema(), self.right.schema());
        let Expr::BinaryExpr(BinaryExpr {
            left: first,
            op,
            right: second,
        }) = condition
        else {
            return Ok(None);
        };
        let found = key_and_bound((first, *op, second), |e| is_of(e, left));
        let Some((theirs, Some(op), ours)) = found.filter(|(key, ..)| is_of(key, right)) else {
            return Ok(None);
        };
        let (from, to) = (theirs.get_type(right)?, ours.get_type(left)?);
        let (key_type, bound_type) = BinaryTypeCoercer::new(&from, &op, &to).get_input_types()?;
        let of_type = |e: &Expr, from: DataType, to: DataType| {
            if from == to {
                e.clone()
            } else {
                cast(e.clone(), to)
            }
        };
        let theirs = of_type(theirs, from, key_type);
        Ok(Some((of_type(ours, to, bound_type), op, theirs)))
    }
}
