//! The grouping expressions, and the columns, of an aggregate over a join that becomes one over a range join.

use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result};
use datafusion_expr::{Expr, ExprSchemable};

use crate::conditions::rejection::{Match, reject};
use rmq_arrow::common::ordered_type::value_type;

/// Checks that the columns of a plan are those of the plan that it replaces.
pub fn check_fields(new: &DFSchema, old: &DFSchema, group_columns: usize) -> Match<()> {
    for (i, (new, old)) in new.fields().iter().zip(old.fields()).enumerate() {
        if i < group_columns && new.is_nullable() && !old.is_nullable() {
            return reject(format!("{} would be nullable", old.name()));
        }
        if new.data_type() != old.data_type() {
            let (new, old, name) = (new.data_type(), old.data_type(), old.name());
            return reject(format!("{name} would be a {new} instead of a {old}"));
        }
        if new.metadata() != old.metadata() {
            return reject(format!("{} would have other metadata", old.name()));
        }
    }
    Ok(())
}

/// Removes duplicates from grouping expressions. Also returns, for each of the `columns` grouping columns, the index of
/// its expression. Grouping sets are kept as they are.
pub fn distinct(groups: Vec<Expr>, columns: usize) -> (Vec<Expr>, Vec<usize>) {
    if groups.iter().any(|g| matches!(g, Expr::GroupingSet(_))) {
        return (groups, (0..columns).collect());
    }
    let mut distinct: Vec<Expr> = vec![];
    let indexes = groups.into_iter().map(|group| {
        let known = distinct.iter().position(|other| *other == group);
        known.unwrap_or_else(|| {
            distinct.push(group);
            distinct.len() - 1
        })
    });
    let indexes = indexes.collect();
    (distinct, indexes)
}

/// Rewrites a grouping expression to the columns of the probe side: equality keys of the build side are replaced by
/// those of the probe side. Float keys are not, because equal zeros may have different signs.
pub fn of_the_probe_side(group: Expr, on: &[(Expr, Expr)], probe: &DFSchema) -> Result<Expr> {
    let replaced = group.transform_up(|expr| {
        let same = on.iter().find(|(_, build)| *build == expr);
        Ok(match (&expr, same) {
            (Expr::Column(_), Some((ours @ Expr::Column(_), _)))
                if !value_type(&ours.get_type(probe)?).is_floating() =>
            {
                Transformed::yes(ours.clone())
            }
            _ => Transformed::no(expr),
        })
    })?;
    Ok(replaced.data)
}
