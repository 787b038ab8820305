//! Lists of expressions.

use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{Column, DFSchema, Result};
use datafusion_expr::{Aggregate, Expr};

/// Expressions for columns.
pub(crate) fn columns(columns: Vec<Column>) -> Vec<Expr> {
    columns.into_iter().map(Expr::Column).collect()
}

/// Whether an aggregate has grouping sets.
pub(crate) fn has_grouping_sets(aggregate: &Aggregate) -> bool {
    matches!(aggregate.group_expr.as_slice(), [Expr::GroupingSet(_)])
}

/// The grouping expressions of an aggregate without grouping sets, one for each of the first columns of its schema: one
/// that is named twice is one column.
pub(crate) fn group_keys(aggregate: &Aggregate) -> Vec<Expr> {
    let mut keys: Vec<Expr> = vec![];
    for expr in &aggregate.group_expr {
        if !keys.contains(expr) {
            keys.push(expr.clone());
        }
    }
    keys
}

/// Expressions with other expressions in place of columns.
pub(crate) fn substituted(exprs: Vec<Expr>, old: &[Column], new: &[Expr]) -> Result<Vec<Expr>> {
    let substituted = exprs.into_iter().map(|expr| {
        let substituted = expr.transform_down(|e| {
            let Expr::Column(column) = &e else {
                return Ok(Transformed::no(e));
            };
            let position = old.iter().position(|old| old == column);
            Ok(match position.and_then(|position| new.get(position)) {
                Some(new) => Transformed::new(new.clone(), true, TreeNodeRecursion::Jump),
                None => Transformed::no(e),
            })
        });
        Ok(substituted?.data)
    });
    substituted.collect()
}

/// Expressions with the names of the columns of `schema`.
pub fn named(exprs: Vec<Expr>, schema: &DFSchema) -> Vec<Expr> {
    let named = exprs.into_iter().zip(schema.iter());
    let named = named.map(|(expr, (qualifier, field))| match expr {
        Expr::Column(column)
            if column.relation.as_ref() == qualifier && &column.name == field.name() =>
        {
            Expr::Column(column)
        }
        expr => expr.alias_qualified(qualifier.cloned(), field.name()),
    });
    named.collect()
}
