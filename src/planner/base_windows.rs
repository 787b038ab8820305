//! Windows that begin with the name of another one.
//!
//! ```text
//!   OVER (w ROWS 2 PRECEDING) … WINDOW w AS (PARTITION BY g ORDER BY ts)
//!   OVER (PARTITION BY g ORDER BY ts ROWS 2 PRECEDING)
//! ```
//!
//! DataFusion 55 ignores the name. So its clauses are put into the parsed statement.

use std::ops::ControlFlow;

use datafusion::common::{DataFusionError, Result, plan_datafusion_err};
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, NamedWindowDefinition, NamedWindowExpr, Query, Select, SetExpr, VisitMut,
    VisitorMut, WindowSpec, WindowType, visit_expressions_mut,
};

/// Puts the clauses of the windows that others begin with into these. Returns whether there are any.
///
/// # Errors
/// A planning error for a name that no window has, and for clauses that both windows have.
pub(crate) fn resolve_base_windows(sql: &mut impl VisitMut) -> Result<bool> {
    let mut windows = Windows { found: false };
    match sql.visit(&mut windows) {
        ControlFlow::Continue(()) => Ok(windows.found),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Windows {
    found: bool,
}

impl VisitorMut for Windows {
    type Break = DataFusionError;

    /// The windows of subqueries have been resolved before.
    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Self::Break> {
        self.resolve_body(&mut query.body)?;
        if let SetExpr::Select(select) = query.body.as_ref() {
            let windows = select.named_window.clone();
            visit_expressions_mut(&mut query.order_by, |expr| {
                self.resolve_call(expr, &windows)
            })?;
        }
        ControlFlow::Continue(())
    }
}

impl Windows {
    fn resolve_body(&mut self, body: &mut SetExpr) -> ControlFlow<DataFusionError> {
        match body {
            SetExpr::Select(select) => self.resolve_select(select),
            SetExpr::SetOperation { left, right, .. } => {
                self.resolve_body(left)?;
                self.resolve_body(right)
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn resolve_select(&mut self, select: &mut Select) -> ControlFlow<DataFusionError> {
        for i in 0..select.named_window.len() {
            let (before, rest) = select.named_window.split_at_mut(i);
            if let [
                NamedWindowDefinition(_, NamedWindowExpr::WindowSpec(window)),
                ..,
            ] = rest
            {
                self.resolve(window, before)?;
            }
        }
        let windows = select.named_window.clone();
        let mut resolve = |expr: &mut Expr| self.resolve_call(expr, &windows);
        visit_expressions_mut(&mut select.projection, &mut resolve)?;
        visit_expressions_mut(&mut select.qualify, &mut resolve)
    }

    fn resolve_call(
        &mut self,
        expr: &mut Expr,
        windows: &[NamedWindowDefinition],
    ) -> ControlFlow<DataFusionError> {
        match expr {
            Expr::Function(call) => match &mut call.over {
                Some(WindowType::WindowSpec(window)) => self.resolve(window, windows),
                _ => ControlFlow::Continue(()),
            },
            _ => ControlFlow::Continue(()),
        }
    }

    /// Puts the clauses of the window that `window` begins with into it.
    fn resolve(
        &mut self,
        window: &mut WindowSpec,
        windows: &[NamedWindowDefinition],
    ) -> ControlFlow<DataFusionError> {
        let Some(name) = window.window_name.take() else {
            return ControlFlow::Continue(());
        };
        self.found = true;
        let Some(base) = find(&name, windows) else {
            return ControlFlow::Break(plan_datafusion_err!(
                "OVER and WINDOW know no window {name} here: the WINDOW clause defines it first, as WINDOW {name} AS (…)"
            ));
        };
        let clause = if !window.partition_by.is_empty() {
            "PARTITION BY"
        } else if !window.order_by.is_empty() && !base.order_by.is_empty() {
            "ORDER BY"
        } else {
            window.partition_by.clone_from(&base.partition_by);
            if window.order_by.is_empty() {
                window.order_by.clone_from(&base.order_by);
            }
            if window.window_frame.is_none() {
                window.window_frame.clone_from(&base.window_frame);
            }
            return ControlFlow::Continue(());
        };
        ControlFlow::Break(plan_datafusion_err!(
            "a window that begins with the window {name} takes its {clause} and has none of its own: ({window})"
        ))
    }
}

/// The window of this name.
fn find<'a>(name: &Ident, windows: &'a [NamedWindowDefinition]) -> Option<&'a WindowSpec> {
    let is_named = |known: &Ident| match (&name.quote_style, &known.quote_style) {
        (None, None) => known.value.eq_ignore_ascii_case(&name.value),
        _ => known.value == name.value,
    };
    let place = windows
        .iter()
        .position(|NamedWindowDefinition(known, _)| is_named(known))?;
    match &windows[place].1 {
        NamedWindowExpr::WindowSpec(window) => Some(window),
        NamedWindowExpr::NamedWindow(other) => find(other, &windows[..place]),
    }
}
