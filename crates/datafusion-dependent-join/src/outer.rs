//! References of a subquery to columns of the query around it.
//!
//! DataFusion does not say how many queries out a reference leads. It names the next query around that has the column.

use std::sync::Arc;

use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{Column, DFSchema, DFSchemaRef, Result};
use datafusion_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion_expr::expr_rewriter::NamePreserver;
use datafusion_expr::{Expr, ExprSchemable, Join, LogicalPlan, Subquery};

/// The subquery, if this side of a join refers to the other side.
pub(crate) fn lateral(plan: &LogicalPlan) -> Option<&Subquery> {
    match plan {
        LogicalPlan::Subquery(subquery) => Some(subquery),
        LogicalPlan::SubqueryAlias(alias) => lateral(&alias.input),
        _ => None,
    }
}

/// Appends the columns that a plan refers to and none of the schemas `within`, of queries between, has.
fn collect_outer(
    plan: &LogicalPlan,
    within: &[DFSchemaRef],
    found: &mut Vec<Column>,
) -> Result<()> {
    let inner = within_node(plan, within);
    plan.apply_expressions(|expr| {
        collect_outer_of(expr, within, &inner, found)?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    for (input, within) in scopes(plan, within) {
        collect_outer(input, &within, found)?;
    }
    Ok(())
}

/// The columns of queries around it that a plan refers to, also in subqueries of its own.
pub fn outer_of(plan: &LogicalPlan) -> Result<Vec<Column>> {
    let mut found = vec![];
    collect_outer(plan, &[], &mut found)?;
    Ok(found)
}

/// How a plan refers to a column of a query around it.
pub(crate) fn reference_to(column: &Column, plan: &LogicalPlan) -> Result<Option<Expr>> {
    let mut found = None;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|e| {
                if matches!(e, Expr::OuterReferenceColumn(_, outer) if outer == column) {
                    found = Some(e.clone());
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(found)
}

/// Whether a plan refers to columns of queries around it.
pub fn is_correlated(plan: &LogicalPlan) -> Result<bool> {
    Ok(!outer_of(plan)?.is_empty())
}

/// Whether the expressions of a node refer to columns of queries around it.
pub(crate) fn has_outer(node: &LogicalPlan) -> Result<bool> {
    let mut has_outer = false;
    node.apply_expressions(|expr| {
        has_outer |= !outer_of_expr(expr, node)?.is_empty();
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(has_outer)
}

/// Whether an expression over the columns of `rows` refers to columns of queries around it, also in subqueries of its
/// own.
pub fn refers_to_outer(expr: &Expr, rows: &DFSchemaRef) -> Result<bool> {
    let mut found = vec![];
    collect_outer_of(expr, &[], &[Arc::clone(rows)], &mut found)?;
    Ok(!found.is_empty())
}

/// Whether a subquery in an expression over the columns of `rows` refers to columns of queries further out.
pub fn has_outer_subquery(expr: &Expr, rows: &DFSchemaRef) -> Result<bool> {
    expr.exists(|e| {
        let Some(subquery) = subquery_of(e) else {
            return Ok(false);
        };
        let outer = outer_of(&subquery.subquery)?;
        Ok(outer.iter().any(|column| !rows.has_column(column)))
    })
}

/// Appends the outer columns of an expression of `node`.
pub(crate) fn outer_of_expr(expr: &Expr, node: &LogicalPlan) -> Result<Vec<Column>> {
    let mut found = vec![];
    collect_outer_of(expr, &[], &within_node(node, &[]), &mut found)?;
    Ok(found)
}

fn collect_outer_of(
    expr: &Expr,
    within: &[DFSchemaRef],
    inner: &[DFSchemaRef],
    found: &mut Vec<Column>,
) -> Result<()> {
    expr.apply(|e| {
        if let Expr::OuterReferenceColumn(_, column) = e
            && !within.iter().any(|schema| schema.has_column(column))
            && !found.contains(column)
        {
            found.push(column.clone());
        }
        if let Some(subquery) = subquery_of(e) {
            collect_outer(&subquery.subquery, inner, found)?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// The schemas of the queries around a subquery in an expression of `node`.
pub(crate) fn within_node(node: &LogicalPlan, within: &[DFSchemaRef]) -> Vec<DFSchemaRef> {
    let inputs = node
        .inputs()
        .into_iter()
        .map(|input| input.schema().clone());
    within.iter().cloned().chain(inputs).collect()
}

/// The inputs of a node, with the schemas of the queries around them.
fn scopes<'a>(
    plan: &'a LogicalPlan,
    within: &[DFSchemaRef],
) -> Vec<(&'a LogicalPlan, Vec<DFSchemaRef>)> {
    match plan {
        LogicalPlan::Join(Join { left, right, .. }) if lateral(right).is_some() => {
            let left_schema = left.schema().clone();
            let inner = within.iter().cloned().chain([left_schema]).collect();
            vec![(left, within.to_vec()), (right, inner)]
        }
        _ => {
            let inputs = plan.inputs().into_iter();
            inputs.map(|input| (input, within.to_vec())).collect()
        }
    }
}

/// An expression with plain columns in place of outer ones.
pub fn from_outer(expr: Expr) -> Result<Expr> {
    let plain = expr.transform_up(|e| {
        Ok(match e {
            Expr::OuterReferenceColumn(_, column) => Transformed::yes(Expr::Column(column)),
            other => Transformed::no(other),
        })
    });
    Ok(plain?.data)
}

/// Which columns take the place of which expressions over outer columns.
pub(crate) struct Replacement<'a> {
    pub(crate) outer: &'a [Expr],
    pub(crate) by: &'a [Column],
}

impl Replacement<'_> {
    /// The column in place of an expression that has no columns but outer ones, and none of the schemas `within`.
    fn find(&self, expr: &Expr, within: &[DFSchemaRef]) -> Result<Option<&Column>> {
        let is_column = matches!(expr, Expr::OuterReferenceColumn(..));
        if !is_column
            && self
                .outer
                .iter()
                .all(|outer| matches!(outer, Expr::Column(_)))
        {
            return Ok(None);
        }
        let plain = from_outer(expr.clone())?;
        let Some(position) = self.outer.iter().position(|outer| *outer == plain) else {
            return Ok(None);
        };
        let of_outer = plain.column_refs();
        let is_within = |column: &&Column| within.iter().any(|schema| schema.has_column(column));
        let is_outer = !expr.any_column_refs() && !of_outer.iter().any(is_within);
        Ok(self.by.get(position).filter(|_| is_outer))
    }

    /// An expression of `node` with columns in place of outer columns.
    pub(crate) fn in_expr(&self, expr: Expr, node: &LogicalPlan) -> Result<Expr> {
        let inner = within_node(node, &[]);
        let replaced = expr.transform_down(|e| match self.find(&e, &[])? {
            Some(by) => Ok(Transformed::yes(Expr::Column(by.clone()))),
            None => self.in_subquery(e, &inner),
        });
        Ok(replaced?.data)
    }

    /// An expression with other outer columns in the subquery that it is.
    pub(crate) fn in_subquery(
        &self,
        mut expr: Expr,
        within: &[DFSchemaRef],
    ) -> Result<Transformed<Expr>> {
        let Some(subquery) = subquery_of_mut(&mut expr) else {
            return Ok(Transformed::no(expr));
        };
        let plan = self.in_plan(&subquery.subquery, within)?;
        *subquery = subquery.with_plan(Arc::new(plan));
        subquery.outer_ref_columns = subquery.subquery.all_out_ref_exprs();
        Ok(Transformed::yes(expr))
    }

    /// The plan of a subquery within that of the outer columns, with other outer columns in their place.
    pub(crate) fn in_plan(
        &self,
        plan: &LogicalPlan,
        within: &[DFSchemaRef],
    ) -> Result<LogicalPlan> {
        let inputs = scopes(plan, within).into_iter();
        let inputs = inputs.map(|(input, within)| self.in_plan(input, &within));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let mut inputs = inputs.into_iter();
        let node = plan.clone().map_children(|child| {
            // There is one for each child.
            Ok(Transformed::yes(inputs.next().unwrap_or(child)))
        })?;
        let inner = within_node(plan, within);
        let preserver = NamePreserver::new(plan);
        let node = node.data.map_expressions(|expr| {
            let name = preserver.save(&expr);
            let replaced = expr.transform_down(|e| match self.find(&e, within)? {
                Some(by) => {
                    let (_, field) = e.to_field(&DFSchema::empty())?;
                    let by = Expr::OuterReferenceColumn(field, by.clone());
                    Ok(Transformed::yes(by))
                }
                None => self.in_subquery(e, &inner),
            })?;
            Ok(replaced.update_data(|expr| name.restore(expr)))
        })?;
        Ok(match node.data {
            LogicalPlan::Subquery(mut subquery) => {
                subquery.outer_ref_columns = subquery.subquery.all_out_ref_exprs();
                LogicalPlan::Subquery(subquery)
            }
            node => node,
        })
    }
}

/// The subquery that an expression is.
pub fn subquery_of(expr: &Expr) -> Option<&Subquery> {
    match expr {
        Expr::ScalarSubquery(subquery)
        | Expr::Exists(Exists { subquery, .. })
        | Expr::InSubquery(InSubquery { subquery, .. })
        | Expr::SetComparison(SetComparison { subquery, .. }) => Some(subquery),
        _ => None,
    }
}

/// Whether any node of a plan has a subquery.
pub(crate) fn has_subqueries(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| Ok(matches!(node, LogicalPlan::Subquery(_)) || has_subquery(node)?))
}

/// Whether an expression of a node has a subquery.
pub(crate) fn has_subquery(node: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    node.apply_expressions(|expr| {
        found = expr.exists(|e| Ok(subquery_of(e).is_some()))?;
        Ok(match found {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(found)
}

/// The same, to be changed.
pub fn subquery_of_mut(expr: &mut Expr) -> Option<&mut Subquery> {
    match expr {
        Expr::ScalarSubquery(subquery)
        | Expr::Exists(Exists { subquery, .. })
        | Expr::InSubquery(InSubquery { subquery, .. })
        | Expr::SetComparison(SetComparison { subquery, .. }) => Some(subquery),
        _ => None,
    }
}
