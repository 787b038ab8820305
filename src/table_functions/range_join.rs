//! The table function `range_join`: a range join whose parts are arguments.
//!
//! ```sql
//! SELECT * FROM range_join('trades', 'quotes', 'sym',
//!                          'quotes.ts BETWEEN trades.ts - INTERVAL ''1 second'' AND trades.ts', 'min(price) AS low')
//! ```
//!
//! The result has every column of `trades`, the probe side, and one column per aggregate over the matching rows of
//! `quotes`, the build side.
//!
//! The arguments are fragments of SQL. Each is parsed separately, so that it cannot contain more than its kind of
//! fragment, and then planned as part of a query. `rules::table_function` makes the range join of the
//! planned parts.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{
    Column, DFSchema, DataFusionError, Result, TableReference, plan_datafusion_err, plan_err,
};
use datafusion::datasource::ViewTable;
use datafusion::execution::SessionState;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator};
use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr as SqlExpr, TableFactor};
use datafusion::sql::sqlparser::dialect::dialect_from_str;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;
use futures::FutureExt;

use datafusion_rmq_logical::common::column_ref::Names;
use datafusion_rmq_logical::rules::table_function::{ArgumentRejection, RangeJoinCall};

/// A description of the arguments for error messages.
const ARGUMENTS: &str = "a table, the table that is searched, equality keys, a window as a condition, aggregates, and optionally 'include \
                         prevailing' or 'exclude prevailing'";

/// `range_join` as a table function.
#[derive(Debug)]
pub struct RangeJoinFunction {
    names: Names,
}

impl RangeJoinFunction {
    /// The name under which it is registered.
    pub const NAME: &'static str = "range_join";

    pub(crate) fn new(names: Names) -> Self {
        Self { names }
    }
}

impl TableFunctionImpl for RangeJoinFunction {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let session = args.session();
        let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
            return plan_err!("range_join: only a session of DataFusion can plan its arguments");
        };
        let call = Call {
            arguments: Arguments::parse(args.exprs())?,
            names: self.names.with_config(session.config_options()),
            state,
        };
        Ok(Arc::new(ViewTable::new(call.plan()?, None)))
    }
}

/// The arguments of a call, as texts.
struct Arguments<'a> {
    table: &'a str,
    searched: &'a str,
    keys: &'a str,
    window: &'a str,
    aggregates: &'a str,
    prevailing: bool,
}

impl<'a> Arguments<'a> {
    fn parse(arguments: &'a [Expr]) -> Result<Self> {
        let (required, prevailing) = match arguments {
            [required @ .., prevailing] if required.len() == 5 => (required, Some(prevailing)),
            required => (required, None),
        };
        let Ok([table, searched, keys, window, aggregates]) = <&[Expr; 5]>::try_from(required)
        else {
            return plan_err!(
                "range_join takes 5 or 6 arguments ({ARGUMENTS}), but {} were given",
                arguments.len()
            );
        };
        let prevailing = match prevailing {
            None => false,
            Some(argument) => {
                let text = required_text(6, "whether a prevailing row counts", argument)?;
                let words: Vec<_> = text.split_whitespace().map(str::to_lowercase).collect();
                match words.join(" ").as_str() {
                    "include prevailing" => true,
                    "exclude prevailing" => false,
                    _ => {
                        return plan_err!(
                            "range_join: argument 6 must be 'include prevailing' or 'exclude prevailing', not '{text}'"
                        );
                    }
                }
            }
        };
        Ok(Self {
            table: required_text(1, "the table", table)?,
            searched: required_text(2, "the table that is searched", searched)?,
            keys: text(3, "the equality keys", keys)?.unwrap_or_default(),
            window: required_text(4, "the window", window)?,
            aggregates: required_text(5, "the aggregates", aggregates)?,
            prevailing,
        })
    }
}

/// An argument that is a string literal, or `None` if it is NULL.
fn text<'a>(number: usize, what: &str, argument: &'a Expr) -> Result<Option<&'a str>> {
    match argument {
        Expr::Literal(value, _) if value.is_null() => Ok(None),
        Expr::Literal(value, _) if value.try_as_str().is_some() => Ok(value.try_as_str().flatten()),
        other => plan_err!(
            "range_join: argument {number}, {what}, must be a string literal, not {other}"
        ),
    }
}

/// An argument that is a string literal and not empty.
fn required_text<'a>(number: usize, what: &str, argument: &'a Expr) -> Result<&'a str> {
    match text(number, what, argument)?.map(str::trim) {
        Some(text) if !text.is_empty() => Ok(text),
        found => {
            let found = found.map_or("NULL", |_| "empty");
            plan_err!("range_join: argument {number}, {what}, is {found}")
        }
    }
}

/// A call that is being planned.
struct Call<'a> {
    arguments: Arguments<'a>,
    names: Names,
    state: &'a SessionState,
}

#[expect(
    clippy::redundant_closure_for_method_calls,
    reason = "a path to a method is one of a parser of some lifetime, not of any"
)]
impl Call<'_> {
    fn plan(&self) -> Result<LogicalPlan> {
        let Arguments {
            table,
            searched,
            keys,
            window,
            aggregates,
            prevailing,
        } = self.arguments;
        let at_table = format!("argument 1, the table '{table}'");
        let at_searched = format!("argument 2, the table that is searched, '{searched}'");
        let at_keys = format!("argument 3, the equality keys '{keys}'");
        let at_window = format!("argument 4, the window '{window}'");
        let at_aggregates = format!("argument 5, the aggregates '{aggregates}'");

        let probe = self.relation(table).map_err(at(&at_table))?;
        let build = self.relation(searched).map_err(at(&at_searched))?;
        let mut searched_names: HashMap<&str, Vec<Option<&TableReference>>> = HashMap::new();
        for (relation, field) in build.schema().iter() {
            let relations = searched_names.entry(field.name()).or_default();
            relations.push(relation);
        }
        let of_both = |column: &Column| {
            let relations = searched_names.get(column.name.as_str());
            relations.is_some_and(|relations| is_named_alike(column, relations))
        };
        if let Some(column) = probe.schema().columns().iter().find(|c| of_both(c)) {
            let (name, other) = match &column.relation {
                Some(relation) => (relation.to_string(), relation.table()),
                None => ("no name".to_string(), "t"),
            };
            return plan_err!(
                "range_join: both tables, '{table}' and '{searched}', are known as {name}, so that nothing tells their columns \
                 '{}' apart; give one of them a name of its own: '{table} AS {other}1'",
                column.name
            );
        }
        let keys = self
            .keys(keys, probe.schema(), build.schema())
            .map_err(at(&at_keys))?;
        if let Some(keys) = &keys {
            self.check_pairs(keys).map_err(at(&at_keys))?;
        }
        self.parse(window, |p| p.parse_expr())
            .map_err(at(&at_window))?;
        let whole = match &keys {
            Some(keys) => format!("{keys} AND ({window}\n)"),
            None => window.to_string(),
        };
        let (probe, build, condition) = self.condition(&whole).map_err(at(&at_window))?;
        let over = self.aggregates().map_err(at(&at_aggregates))?;
        let join = RangeJoinCall {
            probe,
            build,
            condition,
            aggregates: over,
            prevailing,
        };
        join.plan(self.state).map_err(|refused| {
            let (which, reason) = match refused {
                ArgumentRejection::Condition(reason) if keys.is_some() => {
                    (format!("{at_keys}, and {at_window}"), reason)
                }
                ArgumentRejection::Condition(reason) => (at_window.clone(), reason),
                ArgumentRejection::Aggregates(reason) => (at_aggregates.clone(), reason),
                ArgumentRejection::Prevailing(reason) => (
                    format!("argument 6, 'include prevailing', with {at_window}"),
                    reason,
                ),
            };
            plan_datafusion_err!("range_join: {which}: {reason}")
        })
    }

    /// Plans a table, a view, or any other table factor of FROM.
    fn relation(&self, text: &str) -> Result<LogicalPlan> {
        let relation = self.parse(text, |p| p.parse_table_factor())?;
        let plan = match relation {
            // Columns of USING are in the result once.
            TableFactor::NestedJoin { .. } => self.query(&format!("SELECT * FROM {text}\n")),
            _ => self.plan_from(&format!("{text}\n")),
        };
        if let (
            Err(_),
            TableFactor::Table {
                name, args: None, ..
            },
        ) = (&plan, relation)
        {
            // Its error suggests similar names.
            let table = self.names.parse_table(&name.to_string());
            self.names.table(RangeJoinFunction::NAME, &table)?;
        }
        plan
    }

    /// Checks that each equality key compares the two tables.
    fn check_pairs(&self, keys: &str) -> Result<()> {
        let (probe, build, condition) = self.condition(keys)?;
        let is_of = |expr: &Expr, schema: &DFSchema| {
            let columns = expr.column_refs();
            !columns.is_empty() && columns.into_iter().all(|c| schema.has_column(c))
        };
        for pair in split_conjunction(&condition) {
            let compares = matches!(pair, Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right })
                if is_of(left, probe.schema()) && is_of(right, build.schema())
                    || is_of(left, build.schema()) && is_of(right, probe.schema()));
            if !compares {
                return plan_err!("'{pair}' does not compare the two tables");
            }
        }
        Ok(())
    }

    /// Makes a condition of the equality keys, which are names that both sides have, or pairs `a = b`. `None` if there
    /// are no keys.
    fn keys(&self, text: &str, probe: &DFSchema, build: &DFSchema) -> Result<Option<String>> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        let keys = self.parse(text, |parser| {
            parser.parse_comma_separated(Parser::parse_expr)
        })?;
        let conditions = keys.into_iter().map(|key| match key {
            SqlExpr::Identifier(name) => {
                let name = self.names.parse_column(&name.to_string()).name;
                let column = |schema: &DFSchema| {
                    let (relation, _) = schema.qualified_field_with_unqualified_name(&name)?;
                    let column = Column::new(relation.cloned(), name.as_str());
                    Ok::<_, DataFusionError>(column.quoted_flat_name())
                };
                Ok(format!("{} = {}", column(probe)?, column(build)?))
            }
            SqlExpr::BinaryOp {
                op: BinaryOperator::Eq,
                ..
            } => Ok(key.to_string()),
            other => plan_err!(
                "'{other}' is neither a name that both tables have, nor a pair a = b; several are separated by commas"
            ),
        });
        Ok(Some(conditions.collect::<Result<Vec<_>>>()?.join(" AND ")))
    }

    /// Plans both sides and a condition between them.
    fn condition(&self, text: &str) -> Result<(LogicalPlan, LogicalPlan, Expr)> {
        let Arguments {
            table, searched, ..
        } = self.arguments;
        let plan = self.plan_from(&format!("{table}\n JOIN {searched}\n ON {text}\n"))?;
        let LogicalPlan::Join(join) = plan else {
            return plan_err!("'{text}' is no condition between two tables");
        };
        let pairs = join.on.iter().cloned().map(|(a, b)| a.eq(b));
        let Some(condition) = conjunction(pairs.chain(join.filter.clone())) else {
            return plan_err!("'{text}' is no condition between two tables");
        };
        Ok((
            join.left.as_ref().clone(),
            join.right.as_ref().clone(),
            condition,
        ))
    }

    /// Plans what a FROM has. A list of its columns would take DataFusion a time that grows with their square.
    fn plan_from(&self, text: &str) -> Result<LogicalPlan> {
        match self.query(&format!("SELECT true FROM {text}"))? {
            LogicalPlan::Projection(projection) => Ok(Arc::unwrap_or_clone(projection.input)),
            other => plan_err!("'{text}' is no table: {other}"),
        }
    }

    /// Plans the aggregates over all rows of the build side.
    fn aggregates(&self) -> Result<LogicalPlan> {
        let Arguments {
            searched,
            aggregates,
            ..
        } = self.arguments;
        self.parse(aggregates, |p| p.parse_projection())?;
        self.query(&format!("SELECT {aggregates}\n FROM {searched}\n"))
    }

    /// Parses a text that must be exactly one fragment of SQL.
    fn parse<T>(
        &self,
        text: &str,
        fragment: impl FnOnce(&mut Parser<'_>) -> Result<T, ParserError>,
    ) -> Result<T> {
        let options = &self.state.config_options().sql_parser;
        let Some(dialect) = dialect_from_str(options.dialect) else {
            return plan_err!("no SQL dialect is called {}", options.dialect);
        };
        let mut parser = Parser::new(dialect.as_ref())
            .with_recursion_limit(options.recursion_limit.get())
            .try_with_sql(text)?;
        let parsed = fragment(&mut parser)?;
        parser.expect_token(&Token::EOF)?;
        Ok(parsed)
    }

    /// Plans and analyzes a query. Table functions are called synchronously, so the plan must be ready without a long
    /// wait.
    fn query(&self, sql: &str) -> Result<LogicalPlan> {
        let Some(plan) = poll_for_a_second(self.state.create_logical_plan(sql)) else {
            return plan_err!(
                "its schema would have to wait for a table, which planning can't; register the table in a schema in memory, for example \
                 with CREATE EXTERNAL TABLE"
            );
        };
        let options = self.state.config_options();
        let analyzer = self.state.analyzer();
        analyzer.execute_and_check(plan?, options, |_, _| {})
    }
}

/// Polls a future that other threads may have to complete, for a limited time. A longer wait could be a deadlock,
/// because this thread may be the one that has to run the rest of the work.
fn poll_for_a_second<T>(work: impl Future<Output = T>) -> Option<T> {
    /// Long enough to look for a file, as `datafusion-cli` does for names of tables.
    const LIMIT: Duration = Duration::from_secs(1);
    let (mut work, start) = (pin!(work), Instant::now());
    loop {
        match work.as_mut().now_or_never() {
            None if start.elapsed() < LIMIT => std::thread::sleep(Duration::from_micros(100)),
            done => return done,
        }
    }
}

/// Whether a column may be one of the same name of these tables, of which one does not name the schema.
fn is_named_alike(column: &Column, tables: &[Option<&TableReference>]) -> bool {
    let Some(table) = &column.relation else {
        return true;
    };
    tables.iter().flatten().any(|other| {
        let is_open = other.schema().is_none() || table.schema().is_none();
        other.resolved_eq(table) || is_open && other.table() == table.table()
    })
}

/// Adds to an error the argument that caused it.
fn at(argument: &str) -> impl Fn(DataFusionError) -> DataFusionError {
    let context = format!("range_join: {argument}");
    move |error| error.context(context.clone())
}
