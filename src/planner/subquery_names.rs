//! Names of items with subqueries in a SELECT list that DataFusion would give a name that another column has.
//!
//! ```text
//!   SELECT o.id, (SELECT q.id FROM q …), (SELECT q.id FROM q …) FROM o
//!   SELECT o.id, (SELECT q.id FROM q …) AS "id:1", (SELECT q.id FROM q …) AS "id:2" FROM o
//! ```
//!
//! A subquery has the name of its column without the table, `id`, and DataFusion refuses that beside `o.id` as
//! ambiguous, before any rule sees the plan. Each `EXISTS (…)` is named `EXISTS`. So a name is given to the parsed
//! statement, and only where the query would be an error. What `*` represents is not known there: `plan_statement`
//! learns it from the error.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, Query, Select, SelectItem, SetExpr, TableFactor, TableWithJoins, Visit, VisitMut,
    Visitor, VisitorMut,
};

/// Gives names to the items with subqueries whose own would be another column's, too, or the name of a column of `*`.
/// Returns whether there are any.
pub(crate) fn name_subqueries(sql: &mut impl VisitMut, of_wildcard: Option<&str>) -> bool {
    let mut naming = Naming {
        of_wildcard,
        found: false,
    };
    let ControlFlow::Continue(()) = sql.visit(&mut naming);
    naming.found
}

struct Naming<'a> {
    of_wildcard: Option<&'a str>,
    found: bool,
}

impl VisitorMut for Naming<'_> {
    type Break = std::convert::Infallible;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Self::Break> {
        let tables = tables(select);
        let items = &select.projection;
        let own_names: Vec<Option<String>> = items.iter().map(own_name).collect();
        let others = items.iter().zip(&own_names);
        let others = others.filter(|(_, own_name)| own_name.is_none());
        let others = others.filter_map(|(item, _)| name(item, &tables));
        let mut taken: HashSet<String> = others.collect();
        if items.iter().any(is_wildcard) {
            taken.extend(self.of_wildcard.map(String::from));
        }
        for (item, own_name) in select.projection.iter_mut().zip(own_names) {
            let Some(name) = own_name else {
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

pub(super) fn is_wildcard(item: &SelectItem) -> bool {
    matches!(
        item,
        SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..)
    )
}

/// The name of an item with subqueries that has no alias: equal for two items only if DataFusion names them equally.
fn own_name(item: &SelectItem) -> Option<String> {
    let SelectItem::UnnamedExpr(expr) = item else {
        return None;
    };
    let mut expr = expr.clone();
    let mut shortening = Shortening { found: false };
    let ControlFlow::Continue(()) = VisitMut::visit(&mut expr, &mut shortening);
    shortening.found.then(|| match &expr {
        Expr::Identifier(name) => normalized(name),
        expr => expr.to_string().replace('"', ""),
    })
}

/// Puts what DataFusion calls subqueries in their place.
struct Shortening {
    found: bool,
}

impl VisitorMut for Shortening {
    type Break = std::convert::Infallible;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Self::Break> {
        let not = |negated: &bool| if *negated { "NOT " } else { "" };
        let name = match expr {
            Expr::Subquery(query) => column_name(query).unwrap_or_else(|| query.to_string()),
            Expr::Exists { negated, .. } => format!("{}EXISTS", not(negated)),
            Expr::InSubquery { negated, .. } => format!("{}IN", not(negated)),
            Expr::Nested(inner) if matches!(**inner, Expr::Identifier(_)) => {
                *expr = Expr::clone(inner);
                return ControlFlow::Continue(());
            }
            _ => return ControlFlow::Continue(()),
        };
        *expr = Expr::Identifier(Ident::with_quote('"', name));
        self.found = true;
        ControlFlow::Continue(())
    }
}

/// The name of the one column of a subquery.
fn column_name(query: &Query) -> Option<String> {
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
pub(super) fn tables(select: &Select) -> Vec<String> {
    let mut found = vec![];
    for from in &select.from {
        add_tables(from, &mut found);
    }
    found
}

fn add_tables(from: &TableWithJoins, found: &mut Vec<String>) {
    for relation in relations(from) {
        match relation {
            TableFactor::NestedJoin {
                table_with_joins,
                alias: None,
            } => add_tables(table_with_joins, found),
            other => found.extend(table_name(other).map(normalized)),
        }
    }
}

/// The tables and subqueries of one item of FROM.
pub(super) fn relations(from: &TableWithJoins) -> impl Iterator<Item = &TableFactor> {
    let joined = from.joins.iter().map(|join| &join.relation);
    std::iter::once(&from.relation).chain(joined)
}

/// The name of a table or a subquery in FROM.
pub(super) fn table_name(relation: &TableFactor) -> Option<&Ident> {
    match relation {
        TableFactor::Table { name, alias, .. } => match alias {
            Some(alias) => Some(&alias.name),
            None => name.0.last()?.as_ident(),
        },
        TableFactor::Derived { alias, .. }
        | TableFactor::TableFunction { alias, .. }
        | TableFactor::Function { alias, .. }
        | TableFactor::UNNEST { alias, .. }
        | TableFactor::NestedJoin { alias, .. } => Some(&alias.as_ref()?.name),
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
