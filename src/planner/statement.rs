//! Statements with what DataFusion's SQL planner cannot see or drops: ASOF JOIN without parentheses, OVER after a
//! scalar range function, TABLESAMPLE, clauses of CREATE INDEX, DROP INDEX, names of subqueries, windows that
//! begin with another one, and the types of parameters of LIMIT.

use datafusion::common::config::ConfigOptions;
use datafusion::common::{DataFusionError, Result, SchemaError};
use datafusion::dataframe::DataFrame;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::{CopyToSource, Statement};
use datafusion::sql::sqlparser::ast::{self, Visit, VisitMut};
use datafusion::sql::sqlparser::dialect::{Dialect, dialect_from_str};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

use crate::planner::array_literals::call_arrays;
use crate::planner::asof_join::nest_in;
use crate::planner::base_windows::resolve_base_windows;
use crate::planner::hints;
use crate::planner::index_statement::prepare_index_statement;
use crate::planner::match_conditions::edits_of_asof;
use crate::planner::memory_limit::follow_memory_limit;
use crate::planner::nearest_join::edits_of_nearest;
use crate::planner::outer_names::name_outer_columns;
use crate::planner::over_clause::check_calls;
use crate::planner::parameter_types::type_parameters;
use crate::planner::precedence::restore_precedence;
use crate::planner::row_memberships::rows_in_to_exists;
use crate::planner::semi_joins::name_left_side;
use crate::planner::statement_parts::Parts;
use crate::planner::subquery_names::name_subqueries;
use crate::planner::table_sample::check_samples;
use datafusion_rmq_logical::common::options::RmqOptions;

/// Plans one SQL statement, as [`SessionContext::sql`] does, and runs it if it is no query. It knows what
/// [`sql_to_statement`] knows.
///
/// ```
/// # use datafusion::prelude::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> datafusion::error::Result<()> {
/// let ctx = SessionContext::new();
/// datafusion_rmq::register(&ctx);
/// ctx.sql("CREATE TABLE trades AS VALUES ('A', 4), ('B', 1)").await?.collect().await?;
/// ctx.sql("CREATE TABLE quotes AS VALUES ('A', 1, 10.0), ('A', 3, 10.5), ('A', 5, 11.0)").await?.collect().await?;
///
/// let sql = "SELECT t.column2, q.column3 FROM trades t
///            ASOF JOIN quotes q MATCH_CONDITION (t.column2 >= q.column2) ON q.column1 = t.column1";
/// let rows = datafusion_rmq::sql(&ctx, sql).await?.collect().await?;
/// # let rows = datafusion::arrow::util::pretty::pretty_format_batches(&rows)?.to_string();
/// # assert_eq!(rows.lines().filter(|line| line.contains("| 4       | 10.5")).count(), 1, "{rows}");
/// # assert_eq!(rows.lines().filter(|line| line.contains("| 1       |      ")).count(), 1, "{rows}");
/// # Ok(()) }
/// ```
///
/// # Errors
/// Any error of [`sql_to_statement`], and of planning or running the statement.
pub async fn sql(ctx: &SessionContext, sql: &str) -> Result<DataFrame> {
    follow_memory_limit(ctx);
    let state = ctx.state();
    let statement = sql_to_statement(&state, sql)?;
    let plan = plan_statement(&state, statement).await?;
    ctx.execute_logical_plan(plan).await
}

/// Parses one SQL statement, as [`SessionState::sql_to_statement`] does, for
/// [`SessionState::statement_to_plan`].
///
/// It knows more than DataFusion's parser and planner: ASOF JOIN anywhere in a statement, also as DuckDB writes it,
/// `JOIN … NEAREST`, windows that begin with another one (`OVER (w ROWS …)`), parameters of LIMIT in PREPARE, DROP
/// INDEX, outer columns in the SELECT list of a subquery by their name, and subqueries in a SELECT list whose name
/// another column has, also a column of `*` if [`plan_statement`](crate::parts::plan_statement) plans it. `ctx.sql`
/// plans an ASOF JOIN only in parentheses, `FROM (q ASOF JOIN p MATCH_CONDITION (…))`, or in a subquery in FROM.
///
/// # Errors
/// A syntax error. A planning error for `range_min(…) OVER (…)` and its relatives, which names the function to use, for
/// TABLESAMPLE and clauses of CREATE INDEX that DataFusion would drop, and for a window that begins with an unknown one
/// or repeats its clauses.
pub fn sql_to_statement(state: &SessionState, sql: &str) -> Result<Statement> {
    let mut statement = parse_statement(state, sql)?;
    prepare_statement(&mut statement, state.config_options())?;
    Ok(statement)
}

/// Parses one SQL statement, as [`SessionState::sql_to_statement`] does, with the joins of [`with_known_joins`].
/// [`prepare_statement`] is the other half of [`sql_to_statement`].
///
/// # Errors
/// A syntax error.
pub fn parse_statement(state: &SessionState, sql: &str) -> Result<Statement> {
    let dialect = state.config_options().sql_parser.dialect;
    state.sql_to_statement(sql, &dialect).or_else(|error| {
        let Some(known) = dialect_from_str(dialect) else {
            return Err(error);
        };
        match with_known_joins(sql, &*known) {
            Some(text) => state.sql_to_statement(&text, &dialect),
            None => Err(hints::of_syntax(error, &tokens(sql, &*known))),
        }
    })
}

/// The text with joins that DuckDB has and DataFusion's parser does not know in words that it knows: a
/// `MATCH_CONDITION` in each `ASOF JOIN … ON` and `… USING` that has none, also LEFT, RIGHT, FULL, SEMI and ANTI, and
/// lateral joins in place of `JOIN … NEAREST n BY DISTANCE …` and `… SIMILARITY …`. `None` if there is no such join.
///
/// ```
/// use datafusion::sql::sqlparser::dialect::GenericDialect;
///
/// let sql = "SELECT * FROM q ASOF LEFT JOIN p ON p.sym = q.sym AND q.ts >= p.ts";
/// assert!(datafusion_rmq::parts::with_known_joins(sql, &GenericDialect {}).is_some());
/// ```
#[must_use]
pub fn with_known_joins(sql: &str, dialect: &dyn Dialect) -> Option<String> {
    let tokens = tokens(sql, dialect);
    let mut edits = vec![];
    for at in 0..tokens.len() {
        edits.extend(edits_of_asof(&tokens[at..], sql));
        edits.extend(edits_of_nearest(&tokens, at, sql).into_iter().flatten());
    }
    if edits.is_empty() {
        return None;
    }
    edits.sort_by_key(|(range, _)| range.start);
    let mut text = sql.to_string();
    for (range, with) in edits.into_iter().rev() {
        text.replace_range(range, &with);
    }
    Some(text)
}

/// The tokens of a text but whitespace; none if there is an error.
fn tokens(sql: &str, dialect: &dyn Dialect) -> Vec<TokenWithSpan> {
    let tokens = Tokenizer::new(dialect, sql).tokenize_with_location();
    let mut tokens: Vec<TokenWithSpan> = tokens.unwrap_or_default();
    tokens.retain(|token| !matches!(token.token, Token::Whitespace(_)));
    tokens
}

/// Plans a statement of [`sql_to_statement`], as [`SessionState::statement_to_plan`] does. It also names subqueries
/// beside `*` whose name a column of `*` has, and says in more errors what to write instead.
///
/// # Errors
/// Any error of planning the statement.
pub async fn plan_statement(state: &SessionState, mut statement: Statement) -> Result<LogicalPlan> {
    loop {
        let error = match state.statement_to_plan(statement.clone()).await {
            Ok(plan) => return Ok(plan),
            Err(error) => error,
        };
        let Some(parsed) = parsed(&mut statement) else {
            return Err(error);
        };
        let ambiguous = match error.find_root() {
            DataFusionError::SchemaError(reason, _) => match reason.as_ref() {
                SchemaError::AmbiguousReference { field } => Some(&field.name),
                _ => None,
            },
            _ => None,
        };
        if !ambiguous.is_some_and(|name| name_subqueries(parsed, Some(name))) {
            return Err(hints::of_planning(error, parsed));
        }
    }
}

/// The statement without EXPLAIN, if sqlparser knows it.
fn parsed(statement: &mut Statement) -> Option<&mut ast::Statement> {
    match statement {
        Statement::Statement(statement) => Some(statement),
        Statement::Explain(explain) => parsed(&mut explain.statement),
        _ => None,
    }
}

/// Prepares a parsed statement for DataFusion's SQL planner: puts each `ASOF JOIN` in parentheses, in subqueries too,
/// so that a session with this extension can plan it, names subqueries in a SELECT list whose name another column has,
/// puts the clauses of a window `w` into `OVER (w …)`, reads `a IS NOT DISTINCT FROM b AND c` as SQL does, which
/// sqlparser does not, `(a, b) IN (SELECT …)` as EXISTS, SEMI JOIN as LEFT SEMI JOIN, and `[q.a, q.b]` as
/// `make_array(q.a, q.b)`, which may have outer columns, and makes the parameters of LIMIT integers in PREPARE. Returns
/// whether it changed a query otherwise than that.
///
/// DataFusion 55 shows extensions no ASOF JOIN but those in parentheses and in subqueries in FROM. It drops an OVER of
/// a scalar function, TABLESAMPLE, and clauses of CREATE INDEX. `DROP INDEX`, which it refuses, becomes DROP TABLE in
/// the schema of indexes, an option in `config`.
///
/// # Errors
/// The planning errors of [`sql_to_statement`].
pub fn prepare_statement(statement: &mut Statement, config: &ConfigOptions) -> Result<bool> {
    match statement {
        Statement::Statement(statement) => {
            let schema = RmqOptions::of(config).index_schema;
            prepare_index_statement(statement, &schema)?;
            type_parameters(statement);
            prepare(statement.as_mut())
        }
        Statement::Explain(explain) => prepare_statement(&mut explain.statement, config),
        Statement::CopyTo(copy) => match &mut copy.source {
            CopyToSource::Query(query) => prepare(query.as_mut()),
            CopyToSource::Relation(_) => Ok(false),
        },
        Statement::CreateExternalTable(_) | Statement::Reset(_) => Ok(false),
    }
}

fn prepare(sql: &mut (impl Visit + VisitMut)) -> Result<bool> {
    let parts = Parts::of(sql);
    if parts.range_calls {
        check_calls(sql)?;
    }
    check_samples(sql)?;
    let has_rows = parts.rows_in && rows_in_to_exists(sql);
    let has_other_operands = restore_precedence(sql);
    let has_windows = parts.named_windows && resolve_base_windows(sql)?;
    let has_outer = name_outer_columns(sql);
    let has_names = name_subqueries(sql, None);
    let has_sides = parts.semi_joins && name_left_side(sql);
    let has_arrays = parts.arrays && call_arrays(sql);
    Ok(nest_in(sql)
        || has_rows
        || has_other_operands
        || has_windows
        || has_outer
        || has_names
        || has_sides
        || has_arrays)
}
