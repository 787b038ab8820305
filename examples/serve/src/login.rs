//! Who may log in: with a password by SCRAM-SHA-256, without one anybody.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::prelude::SessionContext;
use datafusion_postgres::pgwire::api::auth::noop::NoopStartupHandler;
use datafusion_postgres::pgwire::api::auth::sasl::SASLAuthStartupHandler;
use datafusion_postgres::pgwire::api::auth::sasl::scram::{
    SCRAM_ITERATIONS, ScramAuth, gen_salted_password, random_nonce,
};
use datafusion_postgres::pgwire::api::auth::{
    AuthSource, DefaultServerParameterProvider, LoginInfo, Password, StartupHandler,
};
use datafusion_postgres::pgwire::api::cancel::{CancelHandler, DefaultCancelHandler};
use datafusion_postgres::pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler};
use datafusion_postgres::pgwire::api::{ClientInfo, ConnectionManager, PgWireServerHandlers};
use datafusion_postgres::pgwire::error::{PgWireError, PgWireResult};
use datafusion_postgres::pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage};
use futures::Sink;

use crate::statements::Statements;

/// What serves a client.
pub(crate) struct Handlers {
    statements: Arc<Statements>,
    connections: Arc<ConnectionManager>,
    password: Option<Arc<SaltedPassword>>,
}

impl Handlers {
    /// Handlers of clients that ask this session, and need the password, if there is one.
    pub(crate) fn new(ctx: Arc<SessionContext>, password: Option<&str>) -> Self {
        Self {
            statements: Arc::new(Statements::new(ctx)),
            connections: Arc::default(),
            password: password.map(SaltedPassword::new).map(Arc::new),
        }
    }
}

impl PgWireServerHandlers for Handlers {
    fn startup_handler(&self) -> Arc<impl StartupHandler> {
        let connections = Arc::clone(&self.connections);
        Arc::new(match &self.password {
            None => Login::Anybody(Anybody { connections }),
            Some(password) => {
                let scram = SASLAuthStartupHandler::new(Arc::default());
                let scram = scram.with_scram(ScramAuth::new(Arc::clone(password) as _));
                Login::Password(Box::new(scram.with_connection_manager(connections)))
            }
        })
    }

    fn simple_query_handler(&self) -> Arc<impl SimpleQueryHandler> {
        Arc::clone(&self.statements)
    }

    fn extended_query_handler(&self) -> Arc<impl ExtendedQueryHandler> {
        Arc::clone(&self.statements)
    }

    fn cancel_handler(&self) -> Arc<impl CancelHandler> {
        Arc::new(DefaultCancelHandler::new(Arc::clone(&self.connections)))
    }
}

/// How a client logs in.
enum Login {
    Anybody(Anybody),
    Password(Box<SASLAuthStartupHandler<DefaultServerParameterProvider>>),
}

#[async_trait]
impl StartupHandler for Login {
    async fn on_startup<C>(
        &self,
        client: &mut C,
        message: PgWireFrontendMessage,
    ) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        match self {
            Self::Anybody(login) => login.on_startup(client, message).await,
            Self::Password(login) => login.on_startup(client, message).await,
        }
    }
}

struct Anybody {
    connections: Arc<ConnectionManager>,
}

impl NoopStartupHandler for Anybody {
    fn connection_manager(&self) -> Option<Arc<ConnectionManager>> {
        Some(Arc::clone(&self.connections))
    }
}

/// The password of all users.
#[derive(Debug)]
struct SaltedPassword(Password);

impl SaltedPassword {
    fn new(password: &str) -> Self {
        // Random text is as good a salt as bytes are.
        let salt = random_nonce().into_bytes();
        let salted = gen_salted_password(password, &salt, SCRAM_ITERATIONS);
        Self(Password::new(Some(salt), salted))
    }
}

#[async_trait]
impl AuthSource for SaltedPassword {
    async fn get_password(&self, _login: &LoginInfo) -> PgWireResult<Password> {
        Ok(self.0.clone())
    }
}
