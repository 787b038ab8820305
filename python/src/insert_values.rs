//! Parameters among the VALUES of an INSERT.

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{self, Expr, SetExpr, Value};

/// Puts parameters that are values of an INSERT in parentheses.
///
/// Of one without them, DataFusion 55 reads the name as a number. It also takes the type of the column for that of the
/// parameter and casts nothing, so a str among values of type `Utf8View` would be stored as it is, and no later query
/// could read both.
pub fn parenthesize_parameters(statement: &mut Statement) {
    let insert = match statement {
        Statement::Statement(statement) => match statement.as_mut() {
            ast::Statement::Insert(insert) => insert,
            _ => return,
        },
        Statement::Explain(explain) => return parenthesize_parameters(&mut explain.statement),
        _ => return,
    };
    let Some(source) = &mut insert.source else {
        return;
    };
    let SetExpr::Values(values) = source.body.as_mut() else {
        return;
    };
    for value in values.rows.iter_mut().flat_map(|row| &mut row.content) {
        let is_parameter =
            matches!(value, Expr::Value(literal) if matches!(literal.value, Value::Placeholder(_)));
        if is_parameter {
            *value = Expr::Nested(Box::new(value.clone()));
        }
    }
}
