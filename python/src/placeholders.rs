//! Parameters in statements: `?` becomes `$1`, `$2` and so on, and new values of INSERT and UPDATE get the types of
//! their columns.

use std::ops::ControlFlow;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{ParamValues, Result, plan_err};
use datafusion::logical_expr::{Cast, Expr, LogicalPlan, WriteOp};
use datafusion::sql::parser::{CopyToSource, Statement};
use datafusion::sql::sqlparser::ast::{
    self, Expr as SqlExpr, SetExpr, Value, ValueWithSpan, VisitMut, visit_expressions_mut,
};
use datafusion::sql::sqlparser::tokenizer::Location;

/// Numbers the parameters `?` of a statement in the order of its text, and returns how many there are.
///
/// # Errors
/// If it has parameters of another kind, too.
pub fn number_question_marks(statement: &mut Statement) -> Result<usize> {
    let (mut marks, mut others) = (vec![], 0);
    each_parameter(statement, &mut |name, at| match name.as_str() {
        "?" => marks.push(at),
        _ => others += 1,
    });
    if !marks.is_empty() && others > 0 {
        return plan_err!("parameters are all ?, or all $1, $2 and so on, or all $name");
    }
    // Expressions are not visited in the order of the text.
    marks.sort_unstable();
    each_parameter(statement, &mut |name, at| {
        if let Ok(i) = marks.binary_search(&at) {
            *name = format!("${}", i + 1);
        }
    });
    Ok(marks.len())
}

/// Checks the values for parameters `?`, of which there are `marks`.
pub fn check_values(marks: usize, params: &ParamValues) -> Result<()> {
    match params {
        ParamValues::List(values) if marks > 0 && values.len() != marks => plan_err!(
            "the statement has {marks} parameters ?, and {} values were given",
            values.len()
        ),
        ParamValues::Map(_) if marks > 0 => {
            plan_err!("values of ? are a sequence; those of a dict are for $name")
        }
        _ => Ok(()),
    }
}

/// Calls `f` with the name and place of each parameter.
fn each_parameter(statement: &mut Statement, f: &mut impl FnMut(&mut String, Location)) {
    match statement {
        Statement::Statement(statement) => visit(statement.as_mut(), f),
        Statement::Explain(explain) => each_parameter(&mut explain.statement, f),
        Statement::CopyTo(copy) => {
            if let CopyToSource::Query(query) = &mut copy.source {
                visit(query.as_mut(), f);
            }
        }
        Statement::CreateExternalTable(_) | Statement::Reset(_) => {}
    }
}

fn visit(node: &mut impl VisitMut, f: &mut impl FnMut(&mut String, Location)) {
    // The visitor does not break.
    let _ = visit_expressions_mut(node, |expr| {
        if let SqlExpr::Value(ValueWithSpan { value, span }) = expr
            && let Value::Placeholder(name) = value
        {
            f(name, span.start);
        }
        ControlFlow::<()>::Continue(())
    });
}

/// Puts parameters that are values of an INSERT in parentheses.
///
/// Of one without them, DataFusion 55 reads the name as a number. It also takes the type of the column for that of the
/// parameter and casts nothing, so a str among values of type `Utf8View` would be stored as it is, and no later query
/// could read both.
pub fn parenthesize_inserted(statement: &mut Statement) {
    let insert = match statement {
        Statement::Statement(statement) => match statement.as_mut() {
            ast::Statement::Insert(insert) => insert,
            _ => return,
        },
        Statement::Explain(explain) => return parenthesize_inserted(&mut explain.statement),
        _ => return,
    };
    let Some(source) = &mut insert.source else {
        return;
    };
    let SetExpr::Values(values) = source.body.as_mut() else {
        return;
    };
    for value in values.rows.iter_mut().flat_map(|row| &mut row.content) {
        let is_parameter = matches!(value, SqlExpr::Value(literal) if matches!(literal.value, Value::Placeholder(_)));
        if is_parameter {
            *value = SqlExpr::Nested(Box::new(value.clone()));
        }
    }
}

/// Casts parameters that are new values of an UPDATE to the types of their columns.
///
/// DataFusion 55 takes the type of the column for that of the parameter and casts nothing, so a value of another type
/// is an error, such as a str for a column of type `Utf8View`.
pub fn cast_updated(plan: LogicalPlan) -> Result<LogicalPlan> {
    let cast = plan.transform_down(|plan| {
        if matches!(&plan, LogicalPlan::Dml(dml) if dml.op == WriteOp::Update) {
            plan.map_children(|values| values.map_expressions(|value| Ok(cast_parameter(value))))
        } else {
            Ok(Transformed::no(plan))
        }
    })?;
    Ok(cast.data)
}

/// Casts a new value, which has the name of its column, if it is a parameter.
fn cast_parameter(value: Expr) -> Transformed<Expr> {
    let Expr::Alias(mut alias) = value else {
        return Transformed::no(value);
    };
    let kind = match alias.expr.as_ref() {
        Expr::Placeholder(placeholder) => placeholder.field.as_ref().map(|f| f.data_type().clone()),
        _ => None,
    };
    let Some(kind) = kind else {
        return Transformed::no(Expr::Alias(alias));
    };
    alias.expr = Box::new(Expr::Cast(Cast::new(alias.expr, kind)));
    Transformed::yes(Expr::Alias(alias))
}
