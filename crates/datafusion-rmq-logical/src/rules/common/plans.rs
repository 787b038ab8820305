//! Plans that rules put together.

use std::sync::Arc;

use arrow::datatypes::Field;
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{Column, DFSchema, DFSchemaRef, Result};
use datafusion_dependent_join::subquery_of_mut;
use datafusion_expr::expr_rewriter::NamePreserver;
use datafusion_expr::{
    Expr, Extension, Filter, LogicalPlan, Projection, Subquery, Union, UserDefinedLogicalNode,
};

use crate::rules::common::names::{restore_columns, save_name};
use crate::rules::common::outer_columns::to_outer;

/// Puts a filter above a plan.
pub fn filtered(plan: LogicalPlan, condition: Expr) -> Result<LogicalPlan> {
    let filter = Filter::try_new(condition, Arc::new(plan))?;
    Ok(LogicalPlan::Filter(filter))
}

/// Puts a projection above a plan.
pub fn projected(plan: LogicalPlan, exprs: Vec<Expr>) -> Result<LogicalPlan> {
    let projection = Projection::try_new(exprs, Arc::new(plan))?;
    Ok(LogicalPlan::Projection(projection))
}

/// Puts a projection above a plan that adds columns to its own.
pub fn with_columns(
    plan: LogicalPlan,
    added: impl IntoIterator<Item = Expr>,
) -> Result<LogicalPlan> {
    let exprs = columns_of(plan.schema()).into_iter().chain(added);
    let exprs = exprs.collect();
    projected(plan, exprs)
}

/// The plan of a node of this crate.
pub fn extension(node: impl UserDefinedLogicalNode + 'static) -> LogicalPlan {
    let node = Arc::new(node);
    LogicalPlan::Extension(Extension { node })
}

/// The columns of a schema as expressions.
pub fn columns_of(schema: &DFSchema) -> Vec<Expr> {
    schema.columns().into_iter().map(Expr::Column).collect()
}

/// Rewrites the expressions of a node, whose columns keep their names.
pub fn map_expressions(
    plan: LogicalPlan,
    mut rewrite: impl FnMut(Expr) -> Result<Transformed<Expr>>,
) -> Result<Transformed<LogicalPlan>> {
    let preserver = NamePreserver::new(&plan);
    plan.map_expressions(|expr| {
        let name = save_name(&preserver, &expr);
        Ok(rewrite(expr)?.update_data(|expr| name.restore(expr)))
    })
}

/// The node with a schema that fits its inputs and expressions.
pub fn with_new_schema(node: LogicalPlan) -> Result<LogicalPlan> {
    match node {
        // DataFusion keeps the schema of a union, and of a node of this crate.
        LogicalPlan::Union(union) => {
            let schema = with_nulls_of_inputs(&union)?;
            Ok(LogicalPlan::Union(Union { schema, ..union }))
        }
        LogicalPlan::Extension(_) => {
            let inputs = node.inputs().into_iter().cloned().collect();
            node.with_new_exprs(node.expressions(), inputs)
        }
        node => node.recompute_schema(),
    }
}

/// The schema of a union, whose columns may have NULLs where one of its inputs may.
pub fn with_nulls_of_inputs(union: &Union) -> Result<DFSchemaRef> {
    let fields = union.schema.iter().enumerate();
    let fields = fields.map(|(i, (qualifier, field))| {
        let mut inputs = union.inputs.iter();
        let may_be_null = inputs.any(|input| input.schema().field(i).is_nullable());
        let field = Field::clone(field).with_nullable(field.is_nullable() || may_be_null);
        (qualifier.cloned(), Arc::new(field))
    });
    let metadata = union.schema.metadata().clone();
    let schema = DFSchema::new_with_metadata(fields.collect(), metadata)?;
    Ok(Arc::new(schema))
}

/// Puts a node with one input above another one, which may have more columns, with the columns of `schema`.
pub fn with_input(
    node: &LogicalPlan,
    input: LogicalPlan,
    schema: &DFSchema,
) -> Result<LogicalPlan> {
    let node = node.with_new_exprs(node.expressions(), vec![input])?;
    restore_columns(node, schema)
}

/// An expression with the columns `old` replaced by `new`, over the columns of `input`, and references to the outer
/// query as they are. So are the references to `old` in subqueries, which become references to columns of `input`.
pub fn replaced(expr: Expr, old: &[Column], new: &[Expr], input: &DFSchema) -> Result<Expr> {
    let find = |column: &Column| new.get(old.iter().position(|name| name == column)?);
    // Replaced expressions are not visited, because they may contain a column with the name of another.
    let replaced = expr.transform_down(|e| {
        let found = match &e {
            Expr::Column(column) => find(column),
            _ => None,
        };
        if let Some(new) = found {
            return Ok(Transformed::new(new.clone(), true, TreeNodeRecursion::Jump));
        }
        map_subquery(e, |plan| replace_outer(plan, &[], &find, input))
    });
    Ok(replaced?.data)
}

/// Rewrites the plan of an expression that is a subquery.
fn map_subquery(
    mut expr: Expr,
    rewrite: impl FnOnce(LogicalPlan) -> Result<Transformed<LogicalPlan>>,
) -> Result<Transformed<Expr>> {
    let Some(subquery) = subquery_of_mut(&mut expr) else {
        return Ok(Transformed::no(expr));
    };
    let plan = rewrite(subquery.subquery.as_ref().clone())?;
    if plan.transformed {
        let outer_ref_columns = plan.data.all_out_ref_exprs();
        *subquery = Subquery {
            subquery: Arc::new(plan.data),
            outer_ref_columns,
            spans: subquery.spans.clone(),
        };
    }
    Ok(Transformed::new(
        expr,
        plan.transformed,
        TreeNodeRecursion::Continue,
    ))
}

/// The plan of a subquery with its references to the columns of the outer query that `find` knows replaced. Columns of
/// `within`, the inputs of nodes between both, are others.
fn replace_outer<'e>(
    plan: LogicalPlan,
    within: &[DFSchemaRef],
    find: &impl Fn(&Column) -> Option<&'e Expr>,
    input: &DFSchema,
) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up(|node| {
        let inputs = node.inputs().into_iter().map(LogicalPlan::schema).cloned();
        let within_node: Vec<DFSchemaRef> = within.iter().cloned().chain(inputs).collect();
        map_expressions(node, |expr| {
            expr.transform_down(|e| {
                if let Expr::OuterReferenceColumn(field, column) = &e
                    && !within.iter().any(|schema| schema.has_column(column))
                    && let Some(new) = find(column)
                {
                    let new = match new {
                        Expr::Column(new) => {
                            Expr::OuterReferenceColumn(Arc::clone(field), new.clone())
                        }
                        new => to_outer(new.clone(), input)?,
                    };
                    return Ok(Transformed::new(new, true, TreeNodeRecursion::Jump));
                }
                map_subquery(e, |plan| replace_outer(plan, &within_node, find, input))
            })
        })
    })
}

/// The input of a projection or an alias. Expressions over the columns of `plan` become expressions over those of the
/// input. `None` for other plans.
pub fn below_projection<'a, 'e>(
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
        *expr = replaced(std::mem::take(expr), &old, &new, input.schema())?;
    }
    Ok(Some(input))
}

/// The plan below all projections and aliases at the top of a plan.
#[must_use]
pub fn peeled(mut plan: &LogicalPlan) -> &LogicalPlan {
    loop {
        plan = match plan {
            LogicalPlan::Projection(projection) => &projection.input,
            LogicalPlan::SubqueryAlias(alias) => &alias.input,
            _ => return plan,
        };
    }
}

/// The plan below all projections and aliases at the top of a plan. Expressions over the columns of `plan` become
/// expressions over those of the plan that is returned.
pub fn below_projections<'a>(
    mut plan: &'a LogicalPlan,
    exprs: &mut [Expr],
) -> Result<&'a LogicalPlan> {
    while let Some(input) = below_projection(plan, exprs.iter_mut())? {
        plan = input;
    }
    Ok(plan)
}
