//! Equality in which NULL is equal to NULL.

use datafusion_common::{Column, Result, ScalarValue};
use datafusion_expr::utils::conjunction;
use datafusion_expr::{Expr, ExprSchemable, LogicalPlan, Operator, binary_expr, lit};
use datafusion_functions::core::expr_fn::coalesce;

/// The condition that columns of two plans are pairwise equal or both NULL.
///
/// The pairs are plain equalities. DataFusion makes keys of a hash join of IS NOT DISTINCT FROM, too, but then compares
/// the keys that it adds later from `=` in the same way.
pub(crate) fn all_same(
    left: (&LogicalPlan, &[Column]),
    right: (&LogicalPlan, &[Column]),
) -> Result<Option<Expr>> {
    let mut conditions = vec![];
    for (l, r) in left.1.iter().zip(right.1) {
        let l = Expr::Column(l.clone());
        let r = Expr::Column(r.clone());
        // A NULL is equal to none of a column without NULLs in either way.
        let is_nullable = l.nullable(left.0.schema())? && r.nullable(right.0.schema())?;
        let data_type = l.get_type(left.0.schema())?;
        match ScalarValue::new_default(&data_type) {
            _ if !is_nullable => conditions.push(l.eq(r)),
            Ok(zero) if !data_type.is_nested() => {
                let or_zero = |e: &Expr| coalesce(vec![e.clone(), lit(zero.clone())]);
                // The type of NULL has no other value.
                if !zero.is_null() {
                    conditions.push(or_zero(&l).eq(or_zero(&r)));
                }
                conditions.push(l.is_null().eq(r.is_null()));
            }
            _ => conditions.push(binary_expr(l, Operator::IsNotDistinctFrom, r)),
        }
    }
    Ok(conjunction(conditions))
}
