//! Arrays of outer columns.
//!
//! ```text
//!   FROM q, unnest([q.low, q.high]) AS x (v)
//!   FROM q, unnest(make_array(q.low, q.high)) AS x (v)
//! ```
//!
//! DataFusion's SQL planner takes both for the same expression, but knows no column of the queries around it, no table
//! of WITH and no parameter in the brackets.

use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident,
    ObjectName, VisitMut, VisitorMut,
};

/// Writes arrays of other than literals as calls. Returns whether there are any.
pub(crate) fn call_arrays(sql: &mut impl VisitMut) -> bool {
    let mut calls = Calls { found: false };
    let ControlFlow::Continue(()) = sql.visit(&mut calls);
    calls.found
}

struct Calls {
    found: bool,
}

impl VisitorMut for Calls {
    type Break = Infallible;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Infallible> {
        if let Expr::Array(array) = expr
            && !array.elem.iter().all(|e| matches!(e, Expr::Value(_)))
        {
            let elements = std::mem::take(&mut array.elem).into_iter();
            let elements = elements.map(|e| FunctionArg::Unnamed(FunctionArgExpr::Expr(e)));
            *expr = Expr::Function(Function {
                name: ObjectName::from(vec![Ident::new("make_array")]),
                uses_odbc_syntax: false,
                parameters: FunctionArguments::None,
                args: FunctionArguments::List(FunctionArgumentList {
                    duplicate_treatment: None,
                    args: elements.collect(),
                    clauses: vec![],
                }),
                filter: None,
                null_treatment: None,
                over: None,
                within_group: vec![],
            });
            self.found = true;
        }
        ControlFlow::Continue(())
    }
}
