//! Ordered categories, pandas' ordered Categorical and polars' Enum, which must not be compared as texts.
//!
//! They come as dictionaries of texts that are marked as ordered. `DataFusion` compares the texts, by which `high` is
//! below `low`: that is an error here, rather than another answer than that of the frame. They may be grouped by,
//! joined by equality, sorted for display, and compared as the texts that a cast makes of them.

use arrow::datatypes::Field;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ExprSchema, Result, plan_err};
use datafusion::logical_expr::expr::{Between, BinaryExpr};
use datafusion::logical_expr::{Expr, LogicalPlan, Operator};
use datafusion::optimizer::AnalyzerRule;
use datafusion_rmq::RangeFunction;
use datafusion_rmq::parts::ranged_column;

/// Refuses plans that compare ordered categories. It comes before all rules that add casts.
#[derive(Debug)]
pub struct OrderedCategories;

impl AnalyzerRule for OrderedCategories {
    fn name(&self) -> &'static str {
        "ordered_categories"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        plan.apply_with_subqueries(|node| {
            let schemas: Vec<&DFSchema> = node
                .inputs()
                .into_iter()
                .map(|input| input.schema().as_ref())
                .collect();
            node.apply_expressions(|expr| {
                expr.apply(|expr| {
                    check(expr, &schemas)?;
                    Ok(TreeNodeRecursion::Continue)
                })
            })
        })?;
        Ok(plan)
    }
}

fn check(expr: &Expr, schemas: &[&DFSchema]) -> Result<()> {
    let (what, compared): (&str, Vec<&Expr>) = match expr {
        Expr::AggregateFunction(call) => (
            call.func.name(),
            compared_by(call.func.name(), &call.params.args),
        ),
        Expr::WindowFunction(call) => {
            let name = call.fun.name();
            let mut compared = compared_by(name, &call.params.args);
            // Its bounds are values of the ORDER BY expression.
            if name.starts_with("range_frame_") {
                compared.extend(call.params.order_by.iter().map(|sort| &sort.expr));
            }
            (name, compared)
        }
        Expr::ScalarFunction(call) => {
            let name = call.func.name();
            let goes_by_order = RangeFunction::ALL
                .iter()
                .any(|f| f.range_name() == name && f.goes_by_order());
            if let Some(column) = ranged_column(call).filter(|column| is_ordered(column))
                && goes_by_order
            {
                return refuse(column.name(), name);
            }
            (name, compared_by(name, &call.args))
        }
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq,
            right,
        }) => ("a comparison", vec![left.as_ref(), right.as_ref()]),
        Expr::Between(Between {
            expr, low, high, ..
        }) => ("BETWEEN", vec![expr.as_ref(), low.as_ref(), high.as_ref()]),
        _ => return Ok(()),
    };
    for expr in compared {
        if let Some(name) = ordered(expr, schemas) {
            return refuse(name, what);
        }
    }
    Ok(())
}

fn refuse(name: &str, what: &str) -> Result<()> {
    plan_err!(
        "{name} is an ordered category, and {what} would go by its text, not by its order: take the numbers of the \
         categories (.cat.codes in pandas, .to_physical() in polars), or {name}::TEXT if the text is meant"
    )
}

/// The arguments that a function compares.
fn compared_by<'a>(function: &str, args: &'a [Expr]) -> Vec<&'a Expr> {
    match function {
        "min" | "max" => args.iter().take(1).collect(),
        "arg_min" | "arg_max" => args.iter().skip(1).collect(),
        "greatest" | "least" => args.iter().collect(),
        _ if is_ordering_frame_function(function) => args.iter().collect(),
        _ => vec![],
    }
}

/// Whether it is `frame_min`, `range_frame_min` or one of their like, and goes by the order of values.
fn is_ordering_frame_function(function: &str) -> bool {
    let name = function.strip_prefix("range_").unwrap_or(function);
    RangeFunction::ALL
        .iter()
        .any(|f| f.frame_name() == name && f.goes_by_order())
}

fn is_ordered(field: &Field) -> bool {
    field.dict_is_ordered() == Some(true)
}

/// The name of the column that an expression is, if that has ordered categories.
fn ordered<'a>(expr: &'a Expr, schemas: &[&DFSchema]) -> Option<&'a str> {
    match expr {
        Expr::Alias(alias) => ordered(&alias.expr, schemas),
        Expr::Column(column) => {
            let mut fields = schemas
                .iter()
                .filter_map(|schema| schema.field_from_column(column).ok());
            let is_any = fields.any(|field| is_ordered(field));
            is_any.then_some(column.name.as_str())
        }
        Expr::OuterReferenceColumn(field, column) => {
            is_ordered(field).then_some(column.name.as_str())
        }
        Expr::ScalarSubquery(query) => {
            let field = query.subquery.schema().fields().first()?;
            is_ordered(field).then_some(field.name().as_str())
        }
        _ => None,
    }
}
