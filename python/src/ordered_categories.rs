//! Ordered categories, pandas' ordered Categorical and polars' Enum, which must not be compared as texts.
//!
//! They come as dictionaries of texts that are marked as ordered. `DataFusion` compares the texts, by which `high` is
//! below `low`: that is an error here, rather than another answer than that of the frame. They may be grouped by,
//! joined by equality, and compared as the texts that a cast makes of them.
//!
//! UNION, CASE, functions and arrays lose the mark, so that the columns are followed through the plan: a value that may
//! be a category's is one.

use std::collections::HashMap;

use arrow::datatypes::{DataType, Field};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result, plan_err};
use datafusion::functions::{crypto, encoding, regex, string, unicode};
use datafusion::logical_expr::expr::{Between, BinaryExpr, SetComparison};
use datafusion::logical_expr::{
    Distinct, Expr, ExprSchemable, LogicalPlan, Operator, ScalarUDF, SortExpr,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion_rmq::RangeFunction;
use datafusion_rmq::parts::ranged_column;

/// Refuses plans that compare or order ordered categories. It comes before all rules that add casts.
#[derive(Debug)]
pub struct OrderedCategories;

impl AnalyzerRule for OrderedCategories {
    fn name(&self) -> &'static str {
        "ordered_categories"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        check_query(&plan)?;
        Ok(plan)
    }
}

/// Checks that a plan neither compares nor orders ordered categories.
///
/// # Errors
/// A planning error otherwise.
pub fn check_query(plan: &LogicalPlan) -> Result<()> {
    if has_categories(plan)? {
        carrying_columns(plan, &Scope::default())?;
    }
    Ok(())
}

/// Checks that a table that is made of a query keeps the order of categories, which only columns that are marked do.
///
/// # Errors
/// A planning error otherwise.
pub fn check_created(query: &LogicalPlan) -> Result<()> {
    if !has_categories(query)? {
        return Ok(());
    }
    let carrying = carrying_columns(query, &Scope::default())?;
    let mut columns = query.schema().fields().iter().zip(carrying);
    match columns.find(|(field, carries)| *carries && !is_ordered(field)) {
        Some((field, _)) => refuse(field.name(), "a comparison in the new table"),
        None => Ok(()),
    }
}

/// Whether a plan reads ordered categories.
fn has_categories(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            found |= scan.projected_schema.fields().iter().any(|f| is_ordered(f));
        }
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::ScalarFunction(call) = expr {
                    found |= ranged_column(call).is_some_and(|column| is_ordered(&column));
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(if found {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    })?;
    Ok(found)
}

fn is_ordered(field: &Field) -> bool {
    field.dict_is_ordered() == Some(true)
}

/// The columns that expressions see.
#[derive(Default)]
struct Scope<'a> {
    inputs: Vec<Input<'a>>,
    /// Those of the query around it.
    outer: Option<&'a Scope<'a>>,
    /// What the recursive queries around it carry, by name.
    recursive: HashMap<String, Vec<bool>>,
}

/// An input of a plan, and which of its columns may have values of ordered categories.
struct Input<'a> {
    schema: &'a DFSchema,
    carrying: Vec<bool>,
}

impl Scope<'_> {
    fn carries(&self, column: &Column) -> bool {
        let mut inputs = self.inputs.iter();
        inputs.any(|input| {
            let index = input.schema.maybe_index_of_column(column);
            index.is_some_and(|index| input.carrying[index])
        })
    }

    fn outer_carries(&self, column: &Column) -> bool {
        let outer = self.outer;
        outer.is_some_and(|outer| outer.carries(column) || outer.outer_carries(column))
    }

    fn recursive(&self, name: &str) -> Option<&Vec<bool>> {
        let outer = || self.outer?.recursive(name);
        self.recursive.get(name).or_else(outer)
    }
}

/// Which columns of a plan may have values of ordered categories.
///
/// # Errors
/// A planning error if the plan compares or orders some.
fn carrying_columns(plan: &LogicalPlan, outer: &Scope) -> Result<Vec<bool>> {
    let mut scope = Scope {
        outer: Some(outer),
        ..Scope::default()
    };
    for input in plan.inputs() {
        let carrying = match plan {
            // The right side of a lateral join refers to the left one, and a recursive term to the rows before.
            LogicalPlan::Join(_) => carrying_columns(input, &scope)?,
            LogicalPlan::RecursiveQuery(query) => {
                if let Some(rows) = scope.inputs.first() {
                    let carrying = rows.carrying.clone();
                    scope.recursive.insert(query.name.clone(), carrying);
                }
                carrying_columns(input, &scope)?
            }
            _ => carrying_columns(input, outer)?,
        };
        scope.inputs.push(Input {
            schema: input.schema(),
            carrying,
        });
    }
    plan.apply_expressions(|expr| {
        expr.apply(|expr| {
            check(expr, &scope)?;
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    check_node(plan, &scope)?;
    let mut carrying = outputs(plan, &scope)?;
    carrying.resize(plan.schema().fields().len(), false);
    for (carrying, field) in carrying.iter_mut().zip(plan.schema().fields()) {
        *carrying |= is_ordered(field);
    }
    Ok(carrying)
}

/// Which columns that a node returns may have values of ordered categories, besides those that are marked.
fn outputs(plan: &LogicalPlan, scope: &Scope) -> Result<Vec<bool>> {
    let of = |exprs: &[Expr]| -> Result<Vec<bool>> {
        let carrying = exprs.iter().map(|e| Ok(carrier(e, scope)?.is_some()));
        carrying.collect()
    };
    let inputs = || scope.inputs.iter().map(|input| input.carrying.as_slice());
    let count = plan.schema().fields().len();
    Ok(match plan {
        LogicalPlan::Projection(projection) => of(&projection.expr)?,
        LogicalPlan::Distinct(Distinct::On(distinct)) => of(&distinct.select_expr)?,
        LogicalPlan::Aggregate(aggregate) => {
            let groups = plan.schema().fields().len() - aggregate.aggr_expr.len();
            let mut carrying = match of(&aggregate.group_expr)? {
                carrying if carrying.len() == groups => carrying,
                // Those of GROUPING SETS are columns.
                _ => by_name(plan, scope)[..groups].to_vec(),
            };
            carrying.extend(of(&aggregate.aggr_expr)?);
            carrying
        }
        LogicalPlan::Window(window) => {
            let mut carrying = inputs().flatten().copied().collect::<Vec<_>>();
            carrying.extend(of(&window.window_expr)?);
            carrying
        }
        LogicalPlan::Union(_) => {
            let mut carrying = vec![false; count];
            for input in inputs() {
                carrying
                    .iter_mut()
                    .zip(input)
                    .for_each(|(any, one)| *any |= one);
            }
            carrying
        }
        LogicalPlan::Values(values) => {
            let mut carrying = vec![false; count];
            for row in &values.values {
                carrying
                    .iter_mut()
                    .zip(of(row)?)
                    .for_each(|(any, one)| *any |= one);
            }
            carrying
        }
        LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Repartition(_)
        | LogicalPlan::Subquery(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::RecursiveQuery(_)
        | LogicalPlan::Distinct(Distinct::All(_)) => {
            inputs().next().map(<[bool]>::to_vec).unwrap_or_default()
        }
        LogicalPlan::TableScan(scan) => {
            let rows = scope.recursive(scan.table_name.table());
            let full = scan.source.schema();
            let all = (0..full.fields().len()).collect();
            let columns = scan.projection.as_ref().unwrap_or(&all);
            let carries = |i: &usize| rows.and_then(|rows| rows.get(*i)).copied();
            columns
                .iter()
                .map(|i| carries(i).unwrap_or(false))
                .collect()
        }
        _ => by_name(plan, scope),
    })
}

/// Of a node of any kind: the columns that it has from its inputs, and new ones that may be made of theirs.
fn by_name(plan: &LogicalPlan, scope: &Scope) -> Vec<bool> {
    let any = scope
        .inputs
        .iter()
        .any(|input| input.carrying.contains(&true));
    let columns = plan.schema().iter().map(|(qualifier, field)| {
        let column = Column::new(qualifier.cloned(), field.name());
        let mut inputs = scope.inputs.iter();
        let known = inputs.any(|input| input.schema.maybe_index_of_column(&column).is_some());
        if known {
            scope.carries(&column)
        } else {
            any && may_hold_texts(field.data_type())
        }
    });
    columns.collect()
}

/// Checks what only a node compares.
fn check_node(plan: &LogicalPlan, scope: &Scope) -> Result<()> {
    match plan {
        LogicalPlan::Sort(sort) => check_order(&sort.expr, scope),
        LogicalPlan::Distinct(Distinct::On(distinct)) => {
            check_order(distinct.sort_expr.as_deref().unwrap_or_default(), scope)
        }
        _ => Ok(()),
    }
}

fn check_order(order: &[SortExpr], scope: &Scope) -> Result<()> {
    for sort in order {
        if let Some(name) = carrier(&sort.expr, scope)? {
            return refuse(&name, "ORDER BY");
        }
    }
    Ok(())
}

/// Checks what an expression compares, without its parts.
fn check(expr: &Expr, scope: &Scope) -> Result<()> {
    let (what, compared): (&str, Vec<&Expr>) = match expr {
        Expr::AggregateFunction(call) => {
            check_order(&call.params.order_by, scope)?;
            let name = call.func.name();
            (name, compared_by(name, &call.params.args))
        }
        Expr::WindowFunction(call) => {
            let name = call.fun.name();
            check_order(&call.params.order_by, scope)?;
            (name, compared_by(name, &call.params.args))
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
            let compared = if goes_by_order {
                call.args.iter().collect()
            } else {
                compared_by(name, &call.args)
            };
            (name, compared)
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_order(*op) => {
            ("a comparison", vec![left.as_ref(), right.as_ref()])
        }
        Expr::Between(Between {
            expr, low, high, ..
        }) => ("BETWEEN", vec![expr.as_ref(), low.as_ref(), high.as_ref()]),
        Expr::SetComparison(SetComparison {
            expr, subquery, op, ..
        }) => {
            let carrying = carrying_columns(&subquery.subquery, scope)?;
            if is_order(*op) && carrying.first() == Some(&true) {
                let field = subquery.subquery.schema().field(0);
                return refuse(field.name(), "a comparison");
            }
            let compared = is_order(*op).then_some(expr.as_ref());
            ("a comparison", compared.into_iter().collect())
        }
        Expr::Exists(exists) => {
            carrying_columns(&exists.subquery.subquery, scope)?;
            return Ok(());
        }
        Expr::InSubquery(of) => {
            carrying_columns(&of.subquery.subquery, scope)?;
            return Ok(());
        }
        Expr::ScalarSubquery(query) => {
            carrying_columns(&query.subquery, scope)?;
            return Ok(());
        }
        _ => return Ok(()),
    };
    for expr in compared {
        if let Some(name) = carrier(expr, scope)? {
            return refuse(&name, what);
        }
    }
    Ok(())
}

fn is_order(op: Operator) -> bool {
    matches!(
        op,
        Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq
    )
}

fn refuse<T>(name: &str, what: &str) -> Result<T> {
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
        "greatest" | "least" | "array_sort" | "array_min" | "array_max" => args.iter().collect(),
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

/// The name of the column whose ordered categories the values of an expression may be, or contain.
fn carrier(expr: &Expr, scope: &Scope) -> Result<Option<String>> {
    let parts: Vec<&Expr> = match expr {
        Expr::Alias(alias) => return carrier(&alias.expr, scope),
        Expr::Column(column) => {
            return Ok(scope.carries(column).then(|| column.name.clone()));
        }
        Expr::OuterReferenceColumn(field, column) => {
            let carries = is_ordered(field) || scope.outer_carries(column);
            return Ok(carries.then(|| column.name.clone()));
        }
        Expr::ScalarSubquery(query) => {
            let carrying = carrying_columns(&query.subquery, scope)?;
            let name = || query.subquery.schema().field(0).name().clone();
            return Ok((carrying.first() == Some(&true)).then(name));
        }
        // Texts that are meant as such.
        Expr::Cast(cast) if !has_values_of_others(cast.field.data_type()) => return Ok(None),
        Expr::TryCast(cast) if !has_values_of_others(cast.field.data_type()) => return Ok(None),
        Expr::Case(case) => {
            let values = case.when_then_expr.iter().map(|(_, then)| then.as_ref());
            values.chain(case.else_expr.as_deref()).collect()
        }
        Expr::ScalarFunction(call) if is_text_function(&call.func) => return Ok(None),
        Expr::ScalarFunction(call) => call.args.iter().collect(),
        Expr::AggregateFunction(call) if call.func.name() == "string_agg" => return Ok(None),
        Expr::AggregateFunction(call) => call.params.args.iter().collect(),
        Expr::WindowFunction(call) => call.params.args.iter().collect(),
        Expr::BinaryExpr(BinaryExpr {
            op: Operator::StringConcat,
            ..
        }) => return Ok(None),
        other => {
            let mut parts = vec![];
            other.apply_children(|part| {
                parts.push(part);
                Ok(TreeNodeRecursion::Continue)
            })?;
            parts
        }
    };
    for part in parts {
        if let Some(name) = carrier(part, scope)? {
            let schemas = scope.inputs.iter().map(|input| input.schema);
            let schema = schemas.fold(DFSchema::empty(), |mut all, schema| {
                all.merge(schema);
                all
            });
            // The types of arguments may not be settled yet.
            let may_be = |of: DataType| may_hold_texts(&of) || returns_an_argument(expr);
            let carries = expr.get_type(&schema).map_or(true, may_be);
            return Ok(carries.then_some(name));
        }
    }
    Ok(None)
}

/// Whether values of a type may contain some of another type.
fn has_values_of_others(data_type: &DataType) -> bool {
    data_type.is_nested() || matches!(data_type, DataType::Dictionary(..))
}

fn may_hold_texts(data_type: &DataType) -> bool {
    data_type.is_string() || has_values_of_others(data_type)
}

/// Whether it is a function of texts that returns others, such as `upper`.
fn is_text_function(function: &ScalarUDF) -> bool {
    let functions = [
        string::functions(),
        unicode::functions(),
        regex::functions(),
        crypto::functions(),
        encoding::functions(),
    ];
    functions.iter().flatten().any(|of| **of == *function)
}

/// Whether an expression returns one of its values as it is, of whatever type.
fn returns_an_argument(expr: &Expr) -> bool {
    let name = match expr {
        Expr::Case(_) => return true,
        Expr::ScalarFunction(call) => call.func.name(),
        Expr::AggregateFunction(call) => call.func.name(),
        Expr::WindowFunction(call) => call.fun.name(),
        _ => return false,
    };
    let names = [
        "coalesce",
        "nullif",
        "nvl",
        "nvl2",
        "first_value",
        "last_value",
        "nth_value",
        "lag",
        "lead",
        "arg_min",
        "arg_max",
        "mode",
    ];
    names.contains(&name)
}
