//! What clients ask. Queries of tables are planned by the session itself, all else is answered by
//! `datafusion-postgres`, which knows transactions, cursors, SHOW and Postgres' catalog. That crate puts NULL in place
//! of each correlated subquery in a SELECT list, and takes the first row of others.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::{DFParser, Statement as Parsed};
use datafusion::sql::sqlparser::ast::{Query, SetExpr, Statement, visit_relations};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion_postgres::DfSessionService;
use datafusion_postgres::arrow_pg::datatypes::df::encode_dataframe;
use datafusion_postgres::datafusion_pg_catalog::sql::PostgresCompatibilityParser;
use datafusion_postgres::pgwire::api::portal::{Format, Portal};
use datafusion_postgres::pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler};
use datafusion_postgres::pgwire::api::results::{FieldInfo, Response};
use datafusion_postgres::pgwire::api::stmt::QueryParser;
use datafusion_postgres::pgwire::api::store::PortalStore;
use datafusion_postgres::pgwire::api::{ClientInfo, ClientPortalStore, Type};
use datafusion_postgres::pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use datafusion_postgres::pgwire::messages::PgWireBackendMessage;
use datafusion_postgres::pgwire::messages::response::TransactionStatus;
use datafusion_postgres::pgwire::types::format::FormatOptions;
use datafusion_rmq::parts::{plan_statement, prepare_statement};
use futures::Sink;

use crate::stopping::stoppable;

/// A statement that does nothing.
const NOTHING: &str = "CLOSE nothing";

/// A statement and its plan, as `datafusion-postgres` keeps what a client has prepared.
type Stored = (String, Option<(Statement, LogicalPlan)>);

/// A statement, and its plan if it is about tables.
struct Prepared {
    text: String,
    statement: Statement,
    plan: Option<LogicalPlan>,
}

/// Answers statements. Clients share the session, and what it keeps of tables.
#[derive(Clone)]
pub(crate) struct Statements {
    ctx: Arc<SessionContext>,
    postgres: Arc<DfSessionService>,
    /// What `postgres` makes of statements.
    rewriting: Arc<PostgresCompatibilityParser>,
}

impl Statements {
    pub(crate) fn new(ctx: Arc<SessionContext>) -> Self {
        Self {
            postgres: Arc::new(DfSessionService::new(Arc::clone(&ctx))),
            rewriting: Arc::new(PostgresCompatibilityParser::new()),
            ctx,
        }
    }

    /// The statements of a text, with a plan those about tables.
    async fn prepare<C: ClientInfo + Sync>(
        &self,
        client: &C,
        sql: &str,
    ) -> PgWireResult<Vec<Prepared>> {
        // What a client sends after a wrong password is read. Only those that are logged in have a number.
        if client.pid_and_secret_key().0 == 0 {
            return Err(error("FATAL", "28000", "log in first"));
        }
        let known = datafusion_rmq::parts::with_known_joins(sql, &PostgreSqlDialect {});
        let known = known.as_deref().unwrap_or(sql);
        let parsed = DFParser::parse_sql_with_dialect(known, &PostgreSqlDialect {}).map_err(api)?;
        let alone = parsed.len() == 1;
        let mut prepared = vec![];
        for parsed in parsed {
            // datafusion-postgres knows some queries of clients by their very words.
            let text = if alone {
                sql.to_string()
            } else {
                parsed.to_string()
            };
            let statement = read_only(&parsed, &text)?;
            let plan = match &statement {
                Statement::Query(_) if is_about_tables(&statement) => {
                    Some(self.plan(parsed, &text).await?)
                }
                Statement::Query(_) => {
                    // What datafusion-postgres makes of it may write, too, or create a table: SELECT … INTO.
                    let rewritten = Box::new(self.rewriting.rewrite(statement.clone()));
                    match self.plan(Parsed::Statement(rewritten), &text).await {
                        Err(refused @ PgWireError::UserError(_)) => return Err(refused),
                        _ => None,
                    }
                }
                Statement::Declare { stmts } => {
                    if self.rewriting.rewrite(statement.clone()) != statement {
                        let reason =
                            format!("a cursor can't run this query as it is written: {text}");
                        return Err(error("ERROR", "0A000", &reason));
                    }
                    let queries = stmts.iter().filter_map(|cursor| cursor.for_query.clone());
                    let queries: Vec<_> = queries.collect();
                    for query in queries {
                        let query = Box::new(Statement::Query(query));
                        self.plan(Parsed::Statement(query), &text).await?;
                    }
                    None
                }
                _ => None,
            };
            let text = if frees_statements(&statement) {
                NOTHING.to_string()
            } else {
                text
            };
            prepared.push(Prepared {
                text,
                statement,
                plan,
            });
        }
        Ok(prepared)
    }

    /// The plan of a query, if all it does is read.
    async fn plan(&self, mut parsed: Parsed, text: &str) -> PgWireResult<LogicalPlan> {
        let state = self.ctx.state();
        prepare_statement(&mut parsed, state.config_options()).map_err(api)?;
        let plan = plan_statement(&state, parsed).await.map_err(api)?;
        let reading = SQLOptions::new()
            .with_allow_ddl(false)
            .with_allow_dml(false);
        reading.verify_plan(&plan).map_err(|_| refused(text))?;
        Ok(plan)
    }
}

#[async_trait]
impl SimpleQueryHandler for Statements {
    async fn do_query<C>(&self, client: &mut C, sql: &str) -> PgWireResult<Vec<Response>>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let mut responses = vec![];
        for Prepared { text, plan, .. } in self.prepare(client, sql).await? {
            match plan {
                Some(plan) if client.transaction_status() != TransactionStatus::Error => {
                    let format = FormatOptions::from_client_metadata(client.metadata());
                    let query = async {
                        let rows = self.ctx.execute_logical_plan(plan).await.map_err(api)?;
                        let text = Format::UnifiedText;
                        let rows = encode_dataframe(rows, &text, Some(Arc::new(format))).await?;
                        Ok(Response::Query(rows))
                    };
                    responses.push(stoppable(query).await?);
                }
                _ => responses
                    .extend(SimpleQueryHandler::do_query(&*self.postgres, client, &text).await?),
            }
        }
        Ok(responses)
    }
}

#[async_trait]
impl ExtendedQueryHandler for Statements {
    type Statement = Stored;
    type QueryParser = Self;

    fn query_parser(&self) -> Arc<Self> {
        Arc::new(self.clone())
    }

    async fn do_query<C>(
        &self,
        client: &mut C,
        portal: &Portal<Stored>,
        rows: usize,
    ) -> PgWireResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Stored>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let query = ExtendedQueryHandler::do_query(&*self.postgres, client, portal, rows);
        stoppable(query).await
    }
}

#[async_trait]
impl QueryParser for Statements {
    type Statement = Stored;

    async fn parse_sql<C>(
        &self,
        client: &C,
        sql: &str,
        types: &[Option<Type>],
    ) -> PgWireResult<Option<Stored>>
    where
        C: ClientInfo + Unpin + Send + Sync,
    {
        let mut prepared = self.prepare(client, sql).await?;
        let Some(Prepared {
            text,
            statement,
            plan,
        }) = prepared.pop()
        else {
            return Ok(None);
        };
        if !prepared.is_empty() {
            return Err(error(
                "ERROR",
                "42601",
                "a prepared statement has one command",
            ));
        }
        // The rows of a FETCH would come without a description of their columns, and psycopg would die.
        if matches!(
            statement,
            Statement::Declare { .. } | Statement::Fetch { .. }
        ) {
            return Err(error(
                "ERROR",
                "0A000",
                "DECLARE and FETCH are known in simple queries only",
            ));
        }
        match plan {
            Some(plan) => Ok(Some((text, Some((statement, plan))))),
            None => {
                self.postgres
                    .query_parser()
                    .parse_sql(client, &text, types)
                    .await
            }
        }
    }

    fn get_parameter_types(&self, statement: &Stored) -> PgWireResult<Vec<Type>> {
        self.postgres.query_parser().get_parameter_types(statement)
    }

    fn get_result_schema(
        &self,
        statement: &Stored,
        format: Option<&Format>,
    ) -> PgWireResult<Vec<FieldInfo>> {
        self.postgres
            .query_parser()
            .get_result_schema(statement, format)
    }
}

/// Whether clients say that they need what they have prepared no more, which the end of their connection tells, too.
fn frees_statements(statement: &Statement) -> bool {
    matches!(
        statement,
        Statement::Deallocate { .. } | Statement::Discard { .. }
    )
}

/// The statement, or that which EXPLAIN explains, if it changes nothing that other clients see. Queries still may.
fn read_only(parsed: &Parsed, text: &str) -> PgWireResult<Statement> {
    let (statement, explained) = match parsed {
        Parsed::Statement(statement) => (statement, false),
        Parsed::Explain(explain) => match explain.statement.as_ref() {
            Parsed::Statement(statement) => (statement, true),
            _ => return Err(refused(text)),
        },
        _ => return Err(refused(text)),
    };
    let reads = match statement.as_ref() {
        Statement::Query(query) => !writes(query),
        Statement::Declare { stmts } if !explained => {
            let mut queries = stmts.iter().filter_map(|cursor| cursor.for_query.as_ref());
            !queries.any(|query| writes(query))
        }
        _ if explained => false,
        // Options of the session have dots in their names.
        Statement::Set(set) => !set.to_string().contains('.'),
        statement if frees_statements(statement) => true,
        statement => matches!(
            statement,
            Statement::ShowVariable { .. }
                | Statement::ShowTables { .. }
                | Statement::ShowColumns { .. }
                | Statement::StartTransaction { .. }
                | Statement::Commit { .. }
                | Statement::Rollback { .. }
                | Statement::Fetch { .. }
                | Statement::Close { .. }
        ),
    };
    if reads {
        Ok(statement.as_ref().clone())
    } else {
        Err(refused(text))
    }
}

/// Whether this is `WITH … INSERT` or the like, which the parser takes for a query.
fn writes(query: &Query) -> bool {
    matches!(
        query.body.as_ref(),
        SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_)
    )
}

/// Whether a query names tables, and none of Postgres' catalog.
fn is_about_tables(query: &Statement) -> bool {
    let mut any = false;
    let catalog = visit_relations(query, |name| {
        any = true;
        let name = name.to_string().to_lowercase();
        if name.starts_with("pg_") || name.contains("information_schema.") {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    any && catalog.is_continue()
}

fn api(error: DataFusionError) -> PgWireError {
    PgWireError::ApiError(Box::new(error))
}

fn error(severity: &str, code: &str, message: &str) -> PgWireError {
    let [severity, code, message] = [severity, code, message].map(str::to_string);
    PgWireError::UserError(Box::new(ErrorInfo::new(severity, code, message)))
}

fn refused(text: &str) -> PgWireError {
    let reason = format!(
        "clients can read and nothing else; `serve --command` can run this statement: {text}"
    );
    error("ERROR", "25006", &reason)
}
