//! Types of the parameters of a prepared statement that DataFusion does not infer.
//!
//! ```text
//!   PREPARE s AS SELECT … WHERE id > $1 … LIMIT $2
//!   PREPARE s AS SELECT … WHERE id > $1 … LIMIT $2 + 0
//! ```
//!
//! A parameter has the type of the other operand, and LIMIT and OFFSET have none. DataFusion 55 refuses a statement of
//! which it knows the types of some parameters and not of all.

use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, LimitClause, Query, Statement, Value, ValueWithSpan, VisitMut, VisitorMut,
};

/// Makes the parameters of LIMIT and OFFSET integers, if a statement is PREPARE without types.
pub(crate) fn type_parameters(statement: &mut Statement) {
    if let Statement::Prepare {
        data_types,
        statement,
        ..
    } = statement
        && data_types.is_empty()
    {
        let ControlFlow::Continue(()) = statement.visit(&mut Limits);
    }
}

struct Limits;

impl VisitorMut for Limits {
    type Break = Infallible;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Infallible> {
        if let Some(LimitClause::LimitOffset { limit, offset, .. }) = &mut query.limit_clause {
            let offset = offset.iter_mut().map(|offset| &mut offset.value);
            limit.iter_mut().chain(offset).for_each(as_integer);
        }
        ControlFlow::Continue(())
    }
}

fn as_integer(expr: &mut Expr) {
    let is_parameter = matches!(
        expr,
        Expr::Value(ValueWithSpan {
            value: Value::Placeholder(_),
            ..
        })
    );
    if is_parameter {
        *expr = Expr::BinaryOp {
            left: Box::new(expr.clone()),
            op: BinaryOperator::Plus,
            right: Box::new(Expr::Value(Value::Number("0".into(), false).into())),
        };
    }
}
