//! Plans that rules put together.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Expr, Extension, Filter, LogicalPlan, Projection, UserDefinedLogicalNode,
};

use crate::optimizer::logical::common::names::{restore_columns, save_name};

/// Puts a filter above a plan.
pub(crate) fn filtered(plan: LogicalPlan, condition: Expr) -> Result<LogicalPlan> {
    let filter = Filter::try_new(condition, Arc::new(plan))?;
    Ok(LogicalPlan::Filter(filter))
}

/// Puts a projection above a plan.
pub(crate) fn projected(plan: LogicalPlan, exprs: Vec<Expr>) -> Result<LogicalPlan> {
    let projection = Projection::try_new(exprs, Arc::new(plan))?;
    Ok(LogicalPlan::Projection(projection))
}

/// Puts a projection above a plan that adds columns to its own.
pub(crate) fn with_columns(
    plan: LogicalPlan,
    added: impl IntoIterator<Item = Expr>,
) -> Result<LogicalPlan> {
    let exprs = columns_of(plan.schema()).into_iter().chain(added);
    let exprs = exprs.collect();
    projected(plan, exprs)
}

/// The plan of a node of this crate.
pub(crate) fn extension(node: impl UserDefinedLogicalNode + 'static) -> LogicalPlan {
    let node = Arc::new(node);
    LogicalPlan::Extension(Extension { node })
}

/// The columns of a schema as expressions.
pub(crate) fn columns_of(schema: &DFSchema) -> Vec<Expr> {
    schema.columns().into_iter().map(Expr::Column).collect()
}

/// Expressions with the names of the columns of `schema`.
pub(crate) fn renamed(exprs: Vec<Expr>, schema: &DFSchema) -> Vec<Expr> {
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

/// Rewrites the expressions of a node, whose columns keep their names.
pub(crate) fn map_expressions(
    plan: LogicalPlan,
    mut rewrite: impl FnMut(Expr) -> Result<Transformed<Expr>>,
) -> Result<Transformed<LogicalPlan>> {
    let preserver = NamePreserver::new(&plan);
    plan.map_expressions(|expr| {
        let name = save_name(&preserver, &expr);
        Ok(rewrite(expr)?.update_data(|expr| name.restore(expr)))
    })
}

/// Puts a node with one input above another one, which may have more columns, with the columns of `schema`.
pub(crate) fn with_input(
    node: &LogicalPlan,
    input: LogicalPlan,
    schema: &DFSchema,
) -> Result<LogicalPlan> {
    let node = node.with_new_exprs(node.expressions(), vec![input])?;
    restore_columns(node, schema)
}

/// An expression with the columns `old` replaced by `new`, and references to the outer query as they are.
pub(crate) fn replaced(expr: Expr, old: &[Column], new: &[Expr]) -> Result<Expr> {
    // Replaced expressions are not visited, because they may contain a column with the name of another.
    let replaced = expr.transform_down(|e| {
        let index = match &e {
            Expr::Column(column) => old.iter().position(|name| name == column),
            _ => None,
        };
        Ok(match index.and_then(|index| new.get(index)) {
            Some(new) => Transformed::new(new.clone(), true, TreeNodeRecursion::Jump),
            None => Transformed::no(e),
        })
    });
    Ok(replaced?.data)
}

/// The input of a projection or an alias. Expressions over the columns of `plan` become expressions over those of the
/// input. `None` for other plans.
pub(crate) fn below_projection<'a, 'e>(
    plan: &'a LogicalPlan,
    exprs: impl IntoIterator<Item = &'e mut Expr>,
) -> Result<Option<&'a LogicalPlan>> {
    let (input, new) = match plan {
        LogicalPlan::Projection(projection) => {
            let new = projection.expr.iter().cloned().map(Expr::unalias);
            (&projection.input, new.collect())
        }
        LogicalPlan::SubqueryAlias(alias) => (&alias.input, columns_of(alias.input.schema())),
        _ => return Ok(None),
    };
    let old = plan.schema().columns();
    for expr in exprs {
        *expr = replaced(std::mem::take(expr), &old, &new)?;
    }
    Ok(Some(input))
}

/// The plan below all projections and aliases at the top of a plan. Expressions over the columns of `plan` become
/// expressions over those of the plan that is returned.
pub(crate) fn below_projections<'a>(
    mut plan: &'a LogicalPlan,
    exprs: &mut [Expr],
) -> Result<&'a LogicalPlan> {
    while let Some(input) = below_projection(plan, exprs.iter_mut())? {
        plan = input;
    }
    Ok(plan)
}
