//! The tables and functions that a statement names. Tables are named in FROM, and in the string arguments of range
//! functions.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use datafusion::common::{Column, Result, TableReference};
use datafusion::execution::SessionState;
use datafusion::sql::parser::{CopyToSource, Statement};
use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, FunctionArguments, ObjectName, ObjectNamePart, Query,
    Statement as SqlStatement, TableFactor, Value, Visit, Visitor,
};
use datafusion_rmq::RangeFunction;
use datafusion_rmq::parts::parse_statement;

/// What a statement names.
pub struct Names<'a> {
    state: &'a SessionState,
    /// The tables that it reads or changes. Names of WITH are not among them, nor a table that is created.
    pub tables: BTreeSet<TableReference>,
    /// The functions that it calls outside FROM, as planning spells them.
    pub functions: BTreeSet<String>,
}

impl<'a> Names<'a> {
    /// What this statement names.
    pub fn of(state: &'a SessionState, sql: &str) -> Result<Self> {
        let mut found = Self {
            state,
            tables: BTreeSet::new(),
            functions: BTreeSet::new(),
        };
        let statement = parse_statement(state, sql)?;
        found.add_statement(&statement)?;
        Ok(found)
    }
}

impl Names<'_> {
    fn add_statement(&mut self, statement: &Statement) -> Result<()> {
        match statement {
            Statement::Explain(explain) => self.add_statement(&explain.statement),
            Statement::CopyTo(copy) => match &copy.source {
                CopyToSource::Query(query) => self.add_query(query),
                CopyToSource::Relation(_) => self.add_tables(statement),
            },
            Statement::Statement(sql) => match sql.as_ref() {
                SqlStatement::Query(query) => self.add_query(query),
                SqlStatement::CreateTable(create) => match &create.query {
                    Some(query) => self.add_query(query),
                    None => Ok(()),
                },
                SqlStatement::CreateView(create) => self.add_query(&create.query),
                SqlStatement::Insert(insert) => {
                    if let Some(query) = &insert.source {
                        self.add_query(query)?;
                    }
                    self.add_tables(statement)
                }
                SqlStatement::Update(_)
                | SqlStatement::Delete(_)
                | SqlStatement::CreateIndex(_)
                | SqlStatement::ExplainTable { .. } => self.add_tables(statement),
                SqlStatement::Prepare { statement, .. } => {
                    self.add_statement(&Statement::Statement(statement.clone()))
                }
                _ => Ok(()),
            },
            Statement::CreateExternalTable(_) | Statement::Reset(_) => Ok(()),
        }
    }

    fn add_query(&mut self, query: &Query) -> Result<()> {
        // The visitor does not break.
        let _ = query.visit(self);
        let query = SqlStatement::Query(Box::new(query.clone()));
        self.add_tables(&Statement::Statement(Box::new(query)))
    }

    fn add_tables(&mut self, statement: &Statement) -> Result<()> {
        let tables = self.state.resolve_table_references(statement)?;
        self.tables.extend(tables);
        Ok(())
    }

    /// Adds the table of `'table.column'`.
    fn add_column(&mut self, text: Option<String>) {
        let options = &self.state.config_options().sql_parser;
        let column = text.map(|text| {
            if options.enable_ident_normalization {
                Column::from_qualified_name(text)
            } else {
                Column::from_qualified_name_ignore_case(text)
            }
        });
        self.tables
            .extend(column.and_then(|column| column.relation));
    }

    /// Adds the tables of a text that can be in FROM.
    fn add_from(&mut self, text: Option<String>) {
        let Some(text) = text else { return };
        let dialect = self.state.config_options().sql_parser.dialect;
        let parsed = self
            .state
            .sql_to_statement(&format!("SELECT * FROM {text}"), &dialect);
        if let Ok(statement) = parsed {
            // What does not resolve here is an error of the statement itself, which its planner reports.
            let _ = self.add_statement(&statement);
        }
    }

    fn add_call(&mut self, function: &ObjectName, args: &[FunctionArg], in_from: bool) {
        let name = function.to_string().to_lowercase();
        let text = |i: usize| args.get(i).and_then(literal);
        if name == "range_join" {
            self.add_from(text(0));
            self.add_from(text(1));
        } else if RangeFunction::ALL.iter().any(|f| f.range_name() == name) {
            self.add_column(text(0));
            if in_from {
                self.add_from(text(1));
            }
        }
    }
}

fn literal(arg: &FunctionArg) -> Option<String> {
    let FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(value))) = arg else {
        return None;
    };
    match &value.value {
        Value::SingleQuotedString(text) => Some(text.clone()),
        Value::DollarQuotedString(text) => Some(text.value.clone()),
        _ => None,
    }
}

impl Visitor for Names<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr {
            if let [ObjectNamePart::Identifier(name)] = function.name.0.as_slice() {
                let is_quoted = name.quote_style.is_some();
                let spelled = &name.value;
                let name = if is_quoted {
                    spelled.clone()
                } else {
                    spelled.to_lowercase()
                };
                self.functions.insert(name);
            }
            if let FunctionArguments::List(list) = &function.args {
                self.add_call(&function.name, &list.args, false);
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        match factor {
            TableFactor::Table {
                name,
                args: Some(args),
                ..
            } => self.add_call(name, &args.args, true),
            TableFactor::Function { name, args, .. } => self.add_call(name, args, true),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}
