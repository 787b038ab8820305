//! `range_min(…) OVER (…)` is refused: positions count within the whole table, and those of a partition are
//! `frame_min`'s. `frame_min(…)` without OVER is refused, too.
//!
//! DataFusion 55 drops an OVER of a scalar function while it plans a statement, and says of a window function without
//! OVER only that there is no such function. So this is checked on the parsed statement.

use std::ops::ControlFlow;

use datafusion::common::{Result, plan_err};
use datafusion::sql::sqlparser::ast::{Expr, Function, Visit, Visitor};

use rmq_arrow::common::range_function::RangeFunction;

/// Checks that no scalar range function has an OVER clause, and that each window function has one.
///
/// # Errors
/// A planning error that names the function to use.
pub(crate) fn check_calls(sql: &impl Visit) -> Result<()> {
    match sql.visit(&mut Calls) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break((function, Form::Frame)) => {
            let (range, frame) = (function.range_name(), function.frame_name());
            let arguments = function.shown_arguments();
            plan_err!(
                "{frame} is a window function: add OVER (PARTITION BY … ORDER BY …), which says how positions count. For \
                 positions in a whole table write {range}('table.column', {arguments})"
            )
        }
        ControlFlow::Break((function, Form::Range)) => {
            let (range, frame) = (function.range_name(), function.frame_name());
            let arguments = function.shown_arguments();
            plan_err!(
                "{range} takes no OVER clause, as it counts positions in a whole table: for positions in a partition write \
                 {frame}(value, {arguments}) OVER (PARTITION BY … ORDER BY …)"
            )
        }
    }
}

/// The scalar form of a function, or its window form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Range,
    Frame,
}

struct Calls;

impl Visitor for Calls {
    type Break = (RangeFunction, Form);

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Self::Break> {
        match expr {
            Expr::Function(call) => match named(call) {
                // The wrong one of the two forms.
                Some((function, form)) if (form == Form::Range) == call.over.is_some() => {
                    ControlFlow::Break((function, form))
                }
                _ => ControlFlow::Continue(()),
            },
            _ => ControlFlow::Continue(()),
        }
    }
}

fn named(call: &Function) -> Option<(RangeFunction, Form)> {
    let [part] = call.name.0.as_slice() else {
        return None;
    };
    let name = &part.as_ident()?.value;
    RangeFunction::ALL.into_iter().find_map(|function| {
        let forms = [
            (function.range_name(), Form::Range),
            (function.frame_name(), Form::Frame),
        ];
        let mut forms = forms.into_iter();
        let (_, form) = forms.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some((function, form))
    })
}
