//! `range_min(…) OVER (…)` is refused: positions count within the whole table, and those of a partition are
//! `frame_min`'s.
//!
//! DataFusion 55 drops an OVER of a scalar function while it plans a statement, so this is checked on the parsed
//! statement.

use std::ops::ControlFlow;

use datafusion::common::{Result, plan_err};
use datafusion::sql::sqlparser::ast::{Expr, Function, Visit, Visitor};

use crate::common::range_function::RangeFunction;

/// Checks that no scalar range function has an OVER clause.
///
/// # Errors
/// A planning error that names the function to use.
pub(crate) fn check_calls(sql: &impl Visit) -> Result<()> {
    match sql.visit(&mut Calls) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(function) => {
            let (range, frame) = (function.range_name(), function.frame_name());
            let arguments = function.shown_arguments();
            plan_err!(
                "{range} takes no OVER clause, as it counts positions in a whole table: for positions in a partition write \
                 {frame}(value, {arguments}) OVER (PARTITION BY … ORDER BY …)"
            )
        }
    }
}

struct Calls;

impl Visitor for Calls {
    type Break = RangeFunction;

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Self::Break> {
        match expr {
            Expr::Function(call) if call.over.is_some() => match named(call) {
                Some(function) => ControlFlow::Break(function),
                None => ControlFlow::Continue(()),
            },
            _ => ControlFlow::Continue(()),
        }
    }
}

fn named(call: &Function) -> Option<RangeFunction> {
    let [part] = call.name.0.as_slice() else {
        return None;
    };
    let name = &part.as_ident()?.value;
    let mut all = RangeFunction::ALL.into_iter();
    all.find(|function| function.range_name().eq_ignore_ascii_case(name))
}
