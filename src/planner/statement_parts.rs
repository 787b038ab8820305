//! What a parsed statement has that `statement` prepares: most have none of it, and need not be gone through for each.

use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, JoinOperator, Select, TableFactor, TableWithJoins, Visit, Visitor, WindowType,
};

/// Which parts a statement has.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "any of them may be there")]
pub(crate) struct Parts {
    /// A call of a function whose name begins as those of range and frame functions.
    pub(crate) range_calls: bool,
    /// IN with a subquery and more than one value.
    pub(crate) rows_in: bool,
    /// `[…]`.
    pub(crate) arrays: bool,
    /// A window that another one may begin with.
    pub(crate) named_windows: bool,
    /// A semi or anti join without a side.
    pub(crate) semi_joins: bool,
}

impl Parts {
    pub(crate) fn of(sql: &impl Visit) -> Self {
        let mut parts = Self::default();
        let ControlFlow::Continue(()) = sql.visit(&mut parts);
        parts
    }

    fn add_joins(&mut self, from: &TableWithJoins) {
        self.semi_joins |= from.joins.iter().any(|join| {
            matches!(
                join.join_operator,
                JoinOperator::Semi(_) | JoinOperator::Anti(_)
            )
        });
    }
}

impl Visitor for Parts {
    type Break = Infallible;

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<Infallible> {
        self.named_windows |= !select.named_window.is_empty();
        select.from.iter().for_each(|from| self.add_joins(from));
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<Infallible> {
        if let TableFactor::NestedJoin {
            table_with_joins, ..
        } = table
        {
            self.add_joins(table_with_joins);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Infallible> {
        match expr {
            Expr::Function(call) => {
                let name = call.name.0.last().and_then(|part| part.as_ident());
                let is_of_range = |name: &str| {
                    let mut starts = ["range_", "frame_"].into_iter();
                    starts.any(|start| {
                        let found = name.get(..start.len());
                        found.is_some_and(|found| found.eq_ignore_ascii_case(start))
                    })
                };
                self.range_calls |= name.is_some_and(|name| is_of_range(&name.value));
                self.named_windows |= matches!(&call.over, Some(WindowType::NamedWindow(_)))
                    || matches!(&call.over, Some(WindowType::WindowSpec(spec)) if spec.window_name.is_some());
            }
            Expr::InSubquery { expr, .. } => {
                self.rows_in |= matches!(expr.as_ref(), Expr::Tuple(_));
            }
            Expr::Array(_) => self.arrays = true,
            _ => {}
        }
        ControlFlow::Continue(())
    }
}
