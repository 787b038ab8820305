//! Names of scalar subqueries in a SELECT list that DataFusion would give a name that another column has.
//!
//! ```text
//!   SELECT o.id, (SELECT q.id FROM q …), (SELECT q.id FROM q …) FROM o
//!   SELECT o.id, (SELECT q.id FROM q …) AS "id:1", (SELECT q.id FROM q …) AS "id:2" FROM o
//! ```
//!
//! A subquery has the name of its column without the table, `id`, and DataFusion refuses that beside `o.id` as
//! ambiguous, before any rule sees the plan. So a name is given to the parsed statement, and only where the query would
//! be an error. What `*` stands for is not known there.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, Query, Select, SelectItem, SetExpr, TableFactor, Visit, VisitMut, Visitor,
    VisitorMut,
};

/// Gives names to the scalar subqueries whose own would be another column's, too. Returns whether there are any.
pub(crate) fn name_subqueries(sql: &mut impl VisitMut) -> bool {
    let mut naming = Naming { found: false };
    let ControlFlow::Continue(()) = sql.visit(&mut naming);
    naming.found
}

struct Naming {
    found: bool,
}

impl VisitorMut for Naming {
    type Break = std::convert::Infallible;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Self::Break> {
        let tables = tables(select);
        let others = select.projection.iter();
        let others = others.filter(|item| subquery(item).is_none());
        let mut taken: HashSet<String> = others.filter_map(|item| name(item, &tables)).collect();
        for item in &mut select.projection {
            let Some(name) = subquery(item).and_then(own_name) else {
                continue;
            };
            if taken.insert(name.clone()) {
                continue;
            }
            let names = (1..).map(|i| format!("{name}:{i}"));
            // Numbers have no end.
            let Some(free) = names.into_iter().find(|name| taken.insert(name.clone())) else {
                continue;
            };
            if let SelectItem::UnnamedExpr(expr) = item {
                *item = SelectItem::ExprWithAlias {
                    expr: expr.clone(),
                    alias: Ident::with_quote('"', free),
                };
                self.found = true;
            }
        }
        ControlFlow::Continue(())
    }
}

/// The scalar subquery that an item without a name is.
fn subquery(item: &SelectItem) -> Option<&Query> {
    let SelectItem::UnnamedExpr(expr) = item else {
        return None;
    };
    let mut expr = expr;
    while let Expr::Nested(inner) = expr {
        expr = inner;
    }
    match expr {
        Expr::Subquery(query) => Some(query),
        _ => None,
    }
}

/// The name of the one column of a subquery: equal for two subqueries only if DataFusion names them equally.
fn own_name(query: &Query) -> Option<String> {
    let select = first_select(&query.body)?;
    let [item] = select.projection.as_slice() else {
        return None;
    };
    let tables = tables(select);
    match item {
        SelectItem::UnnamedExpr(Expr::Identifier(_) | Expr::CompoundIdentifier(_))
        | SelectItem::ExprWithAlias { .. } => name(item, &tables),
        SelectItem::UnnamedExpr(expr) => {
            // A column without a table gets one in the name.
            let from = match expr.visit(&mut Bare) {
                ControlFlow::Continue(()) => String::new(),
                ControlFlow::Break(()) => format!(" from {}", tables.join(", ")),
            };
            Some(format!("{expr}{from}"))
        }
        _ => None,
    }
}

fn first_select(body: &SetExpr) -> Option<&Select> {
    match body {
        SetExpr::Select(select) => Some(select),
        SetExpr::Query(query) => first_select(&query.body),
        SetExpr::SetOperation { left, .. } => first_select(left),
        _ => None,
    }
}

/// The name of an item that is a column of one of the tables, or has an alias.
fn name(item: &SelectItem, tables: &[String]) -> Option<String> {
    match item {
        SelectItem::UnnamedExpr(Expr::Identifier(column)) => Some(normalized(column)),
        // Otherwise it may be a field of a struct.
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => match parts.as_slice() {
            [table, column] if tables.contains(&normalized(table)) => Some(normalized(column)),
            _ => None,
        },
        SelectItem::ExprWithAlias { alias, .. } => Some(normalized(alias)),
        _ => None,
    }
}

/// The names of the tables in FROM.
fn tables(select: &Select) -> Vec<String> {
    let relations = select.from.iter().flat_map(|from| {
        let joined = from.joins.iter().map(|join| &join.relation);
        std::iter::once(&from.relation).chain(joined)
    });
    relations.filter_map(table_name).map(normalized).collect()
}

/// The name of a table or a subquery in FROM.
pub(super) fn table_name(relation: &TableFactor) -> Option<&Ident> {
    match relation {
        TableFactor::Table { name, alias, .. } => match alias {
            Some(alias) => Some(&alias.name),
            None => name.0.last()?.as_ident(),
        },
        TableFactor::Derived { alias, .. } => Some(&alias.as_ref()?.name),
        _ => None,
    }
}

/// A name as DataFusion reads it.
pub(super) fn normalized(name: &Ident) -> String {
    match name.quote_style {
        Some(_) => name.value.clone(),
        None => name.value.to_lowercase(),
    }
}

/// Stops at a column without a table.
struct Bare;

impl Visitor for Bare {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::Identifier(_) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}
