//! What clients ask. Queries of tables are planned by the session itself, all else is answered by
//! `datafusion-postgres`, which knows transactions, SHOW and Postgres' catalog. That crate puts NULL in place of each
//! correlated subquery in a SELECT list, and takes the first row of others.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::{DFParser, Statement as Parsed};
use datafusion::sql::sqlparser::ast::{Statement, visit_relations};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion_postgres::DfSessionService;
use datafusion_postgres::arrow_pg::datatypes::df::encode_dataframe;
use datafusion_postgres::datafusion_pg_catalog::sql::PostgresCompatibilityParser;
use datafusion_postgres::hooks::HookClient;
use datafusion_postgres::pgwire::api::portal::{Format, Portal};
use datafusion_postgres::pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler};
use datafusion_postgres::pgwire::api::results::{FieldInfo, Response, Tag};
use datafusion_postgres::pgwire::api::stmt::{QueryParser, StoredStatement};
use datafusion_postgres::pgwire::api::store::PortalStore;
use datafusion_postgres::pgwire::api::{ClientInfo, ClientPortalStore, Type};
use datafusion_postgres::pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use datafusion_postgres::pgwire::messages::PgWireBackendMessage;
use datafusion_postgres::pgwire::messages::response::TransactionStatus;
use datafusion_postgres::pgwire::types::format::FormatOptions;
use datafusion_rmq::parts::{plan_statement, prepare_statement, with_known_joins};
use futures::Sink;

use crate::stopping::stoppable;

/// A statement and its plan, as `datafusion-postgres` keeps what a client has prepared.
type Stored = (String, Option<(Statement, LogicalPlan)>);

/// A statement, and its plan if the session answers it.
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
}

impl Statements {
    pub(crate) fn new(ctx: Arc<SessionContext>) -> Self {
        let postgres = Arc::new(DfSessionService::new(Arc::clone(&ctx)));
        Self { ctx, postgres }
    }

    /// The statements of a text, if they change nothing that other clients see.
    async fn prepare<C: ClientInfo>(&self, client: &C, sql: &str) -> PgWireResult<Vec<Prepared>> {
        // What a client sends after a wrong password is read. Only those that are logged in have a number.
        if client.pid_and_secret_key().0 == 0 {
            return Err(error("28000", "log in first"));
        }
        let known = with_known_joins(sql, &PostgreSqlDialect {});
        let known = known.as_deref().unwrap_or(sql);
        let parsed = DFParser::parse_sql_with_dialect(known, &PostgreSqlDialect {}).map_err(api)?;
        let alone = parsed.len() == 1;
        let mut prepared = vec![];
        for parsed in parsed {
            // datafusion-postgres knows some queries of clients by their very words.
            let text = alone.then(|| sql.to_string());
            prepared.push(
                self.prepare_one(text.unwrap_or_else(|| parsed.to_string()), parsed)
                    .await?,
            );
        }
        Ok(prepared)
    }

    async fn prepare_one(&self, mut text: String, parsed: Parsed) -> PgWireResult<Prepared> {
        let (inner, explained) = match &parsed {
            Parsed::Explain(explain) => (explain.statement.as_ref(), true),
            other => (other, false),
        };
        let Parsed::Statement(statement) = inner else {
            return Err(refused(&text));
        };
        let statement = statement.as_ref().clone();
        let plan = match &statement {
            Statement::Query(_) if is_about_tables(&statement) => {
                Some(self.plan(parsed, &text).await?)
            }
            Statement::Query(_) => {
                // What datafusion-postgres makes of it may write, too, or create a table: SELECT … INTO.
                let rewritten = PostgresCompatibilityParser::new().rewrite(statement.clone());
                match self
                    .plan(Parsed::Statement(Box::new(rewritten)), &text)
                    .await
                {
                    Err(refused @ PgWireError::UserError(_)) => return Err(refused),
                    _ => None,
                }
            }
            _ if explained => return Err(refused(&text)),
            // datafusion-postgres would plan the query of a cursor.
            Statement::Declare { stmts } => match stmts[0].for_query.clone() {
                Some(query) => {
                    let query = Box::new(Statement::Query(query));
                    Some(self.plan(Parsed::Statement(query), &text).await?)
                }
                None => return Err(refused(&text)),
            },
            // Options of the session have dots in their names.
            Statement::Set(set) if !set.to_string().contains('.') => None,
            Statement::ShowVariable { .. }
            | Statement::ShowTables { .. }
            | Statement::ShowColumns { .. }
            | Statement::StartTransaction { .. }
            | Statement::Commit { .. }
            | Statement::Rollback { .. }
            | Statement::Fetch { .. }
            | Statement::Close { .. } => None,
            // The end of a connection frees what it has prepared, too.
            Statement::Deallocate { .. } | Statement::Discard { .. } => {
                text = "CLOSE nothing".to_string();
                None
            }
            _ => return Err(refused(&text)),
        };
        Ok(Prepared {
            text,
            statement,
            plan,
        })
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
        for Prepared {
            text,
            statement,
            plan,
        } in self.prepare(client, sql).await?
        {
            let failed = client.transaction_status() == TransactionStatus::Error;
            let Some(plan) = plan.filter(|_| !failed) else {
                let answered = SimpleQueryHandler::do_query(&*self.postgres, client, &text).await?;
                responses.extend(answered);
                continue;
            };
            let format = Arc::new(FormatOptions::from_client_metadata(client.metadata()));
            let query = async {
                let rows = self.ctx.execute_logical_plan(plan).await.map_err(api)?;
                let rows = encode_dataframe(rows, &Format::UnifiedText, Some(format)).await?;
                Ok(Response::Query(rows))
            };
            responses.push(match (stoppable(query).await?, &statement) {
                (Response::Query(rows), Statement::Declare { stmts }) => {
                    let name = stmts[0].names[0].value.clone();
                    let stored = StoredStatement::new(name.clone(), (text, None), vec![]);
                    let cursor = Portal::new_cursor(name, Arc::new(stored));
                    cursor.start(rows).await;
                    HookClient::portal_store(client).put_portal(Arc::new(cursor));
                    Response::Execution(Tag::new("DECLARE CURSOR"))
                }
                (answer, _) => answer,
            });
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
        stoppable(ExtendedQueryHandler::do_query(
            &*self.postgres,
            client,
            portal,
            rows,
        ))
        .await
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
            return Err(error("42601", "a prepared statement has one command"));
        }
        // The rows of a FETCH would come without a description of their columns, and psycopg would die.
        if matches!(
            statement,
            Statement::Declare { .. } | Statement::Fetch { .. }
        ) {
            return Err(error(
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
        let parser = self.postgres.query_parser();
        parser.get_result_schema(statement, format)
    }
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

fn error(code: &str, message: &str) -> PgWireError {
    let [severity, code, message] = ["ERROR", code, message].map(str::to_string);
    PgWireError::UserError(Box::new(ErrorInfo::new(severity, code, message)))
}

fn refused(text: &str) -> PgWireError {
    let why = "clients can read and nothing else; `serve --command` can run this statement";
    error("25006", &format!("{why}: {text}"))
}
