//! Names of outer columns in the SELECT lists of subqueries.
//!
//! ```text
//!   FROM q, LATERAL (SELECT q.sym, p.v FROM p WHERE p.ts <= q.ts) x
//!   FROM q, LATERAL (SELECT q.sym AS sym, p.v FROM p WHERE p.ts <= q.ts) x
//! ```
//!
//! DataFusion calls such a column `outer_ref(q.sym)`, so that there is no `x.sym`.

use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, Ident, Select, SelectItem, VisitMut, VisitorMut};

use crate::planner::subquery_names::{is_wildcard, normalized, tables};

/// Gives the columns of queries around a subquery their own names in its SELECT list, unless another column has that.
/// Returns whether there are any.
pub(crate) fn name_outer_columns(sql: &mut impl VisitMut) -> bool {
    let mut naming = Naming::default();
    let ControlFlow::Continue(()) = sql.visit(&mut naming);
    naming.found
}

#[derive(Default)]
struct Naming {
    /// The tables of each SELECT around this one.
    around: Vec<Vec<String>>,
    found: bool,
}

impl VisitorMut for Naming {
    type Break = Infallible;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Infallible> {
        let own = tables(select);
        let is_outer = |table: &Ident| {
            let table = normalized(table);
            !own.contains(&table) && self.around.iter().flatten().any(|name| *name == table)
        };
        let has_wildcard = select.projection.iter().any(is_wildcard);
        let names: Vec<_> = select.projection.iter().map(last_name).collect();
        let is_taken = |name: &Ident| {
            let name = normalized(name);
            has_wildcard
                || names
                    .iter()
                    .flatten()
                    .filter(|other| **other == name)
                    .count()
                    > 1
        };
        for item in &mut select.projection {
            if let SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) = item
                && let [table, column] = parts.as_slice()
                && is_outer(table)
                && !is_taken(column)
            {
                let alias = column.clone();
                let expr = Expr::CompoundIdentifier(std::mem::take(parts));
                *item = SelectItem::ExprWithAlias { expr, alias };
                self.found = true;
            }
        }
        self.around.push(own);
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, _: &mut Select) -> ControlFlow<Infallible> {
        self.around.pop();
        ControlFlow::Continue(())
    }
}

/// The name that an item has, or may have, without its table.
fn last_name(item: &SelectItem) -> Option<String> {
    match item {
        SelectItem::UnnamedExpr(Expr::Identifier(name)) => Some(normalized(name)),
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => parts.last().map(normalized),
        SelectItem::ExprWithAlias { alias, .. } => Some(normalized(alias)),
        _ => None,
    }
}
