//! What to write instead, where DataFusion refuses a statement without saying so.

use std::ops::ControlFlow;

use datafusion::common::{DataFusionError, SchemaError, TableReference};
use datafusion::sql::sqlparser::ast::{Expr, Select, Statement, TableFactor, Visit, Visitor};
use datafusion::sql::sqlparser::tokenizer::TokenWithSpan;

use crate::planner::subquery_names::{normalized, relations, table_name};
use crate::planner::tokens::is_word;

/// An error of the parser, with what to write for the joins that it does not know.
pub(crate) fn of_syntax(error: DataFusionError, tokens: &[TokenWithSpan]) -> DataFusionError {
    let has = |word| tokens.iter().any(|token| is_word(Some(token), word));
    if error.to_string().contains("Expected: MATCH_CONDITION") && has("ASOF") {
        return error.context(
            "an ASOF JOIN needs ON, with keys that are equal and one comparison by >=, >, <= or <, as in \
             q ASOF JOIN p ON p.sym = q.sym AND q.ts >= p.ts",
        );
    }
    if has("NEAREST") && has("JOIN") {
        return error.context(
            "NEAREST needs a whole number, or none, and BY DISTANCE or BY SIMILARITY with an expression, as in \
             q JOIN p NEAREST 2 BY DISTANCE abs(p.ts - q.ts)",
        );
    }
    error
}

/// An error of DataFusion's planner, with what to write for lateral joins and frames.
pub(crate) fn of_planning(error: DataFusionError, statement: &Statement) -> DataFusionError {
    let hint = match error.find_root() {
        DataFusionError::SchemaError(reason, _) => match reason.as_ref() {
            SchemaError::FieldNotFound { field, .. } => {
                let table = field.relation.as_ref().map(TableReference::table);
                table.and_then(|table| subquery_after(statement, table, &field.name))
            }
            _ => None,
        },
        DataFusionError::NotImplemented(text) if text.starts_with("LATERAL syntax is not") => Some(
            "the rows of LATERAL depend on those on its left, so that there are none without them: write LEFT JOIN \
             LATERAL (…) ON true"
                .to_string(),
        ),
        DataFusionError::Plan(text) if text.contains("frame offsets for ROWS / GROUPS") => Some(
            "for bounds that are columns number the rows in a subquery, and write a subquery over their range: (SELECT \
             sum(x.v) FROM numbered x WHERE x.n BETWEEN y.n - y.k AND y.n)"
                .to_string(),
        ),
        DataFusionError::Plan(text)
            if text.starts_with("Argument #")
                && ["got Column(", "got OuterReferenceColumn("]
                    .iter()
                    .any(|got| text.contains(got)) =>
        {
            Some(
                "generate_series and range take constants as tables: for columns write unnest, as in q, \
                 unnest(generate_series(1, q.n)) AS x(v)"
                    .to_string(),
            )
        }
        _ => None,
    };
    match hint {
        Some(hint) => error.context(hint),
        None => error,
    }
}

/// What to write where a subquery in FROM without LATERAL has a column of a table before it.
fn subquery_after(statement: &Statement, table: &str, column: &str) -> Option<String> {
    let mut search = Search { table, column };
    statement.visit(&mut search).break_value()
}

/// Finds the subquery, or with it the column.
struct Search<'a> {
    table: &'a str,
    column: &'a str,
}

impl Visitor for Search<'_> {
    type Break = String;

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<String> {
        let mut is_known = false;
        for relation in select.from.iter().flat_map(relations) {
            if let TableFactor::Derived {
                lateral: false,
                subquery,
                alias,
                ..
            } = relation
                && is_known
                && subquery.visit(&mut Column(self)).is_break()
            {
                let name = alias.as_ref().map(|alias| format!(" {alias}"));
                let (table, column) = (self.table, self.column);
                return ControlFlow::Break(format!(
                    "a subquery in FROM sees {table}.{column} of a table before it only as LATERAL (SELECT …){}",
                    name.unwrap_or_default()
                ));
            }
            is_known |= table_name(relation).is_some_and(|name| normalized(name) == self.table);
        }
        ControlFlow::Continue(())
    }
}

/// Finds the column.
struct Column<'a, 'b>(&'a Search<'b>);

impl Visitor for Column<'_, '_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::CompoundIdentifier(parts)
                if matches!(parts.as_slice(), [table, column]
                    if normalized(table) == self.0.table && normalized(column) == self.0.column) =>
            {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        }
    }
}
