//! Who may log in: with a password by SCRAM-SHA-256, without one anybody.

use std::sync::Arc;

use async_trait::async_trait;
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
use datafusion_postgres::pgwire::api::{ConnectionManager, PgWireServerHandlers};
use datafusion_postgres::pgwire::error::PgWireResult;

use crate::statements::Statements;

/// What serves clients.
pub(crate) struct Handlers<F> {
    statements: Arc<Statements>,
    connections: Arc<ConnectionManager>,
    login: F,
}

impl<F> Handlers<F> {
    /// Handlers of clients that each have a login of their own.
    pub(crate) fn new(statements: Arc<Statements>, login: F) -> Self {
        let connections = Arc::default();
        Self {
            statements,
            connections,
            login,
        }
    }
}

impl<F, L> PgWireServerHandlers for Handlers<F>
where
    F: Fn(Arc<ConnectionManager>) -> L + 'static,
    L: StartupHandler,
{
    fn startup_handler(&self) -> Arc<impl StartupHandler> {
        Arc::new((self.login)(Arc::clone(&self.connections)))
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

/// Lets anybody in.
pub(crate) struct Anybody(pub(crate) Arc<ConnectionManager>);

impl NoopStartupHandler for Anybody {
    fn connection_manager(&self) -> Option<Arc<ConnectionManager>> {
        Some(Arc::clone(&self.0))
    }
}

/// The password of all users.
#[derive(Debug)]
pub(crate) struct SaltedPassword(Password);

impl SaltedPassword {
    pub(crate) fn new(password: &str) -> Arc<Self> {
        // Random text is as good a salt as bytes are.
        let salt = random_nonce().into_bytes();
        let salted = gen_salted_password(password, &salt, SCRAM_ITERATIONS);
        Arc::new(Self(Password::new(Some(salt), salted)))
    }

    /// Lets in who has the password.
    pub(crate) fn login(
        self: &Arc<Self>,
        connections: Arc<ConnectionManager>,
    ) -> SASLAuthStartupHandler<DefaultServerParameterProvider> {
        let scram = ScramAuth::new(Arc::clone(self) as _);
        let login = SASLAuthStartupHandler::new(Arc::default()).with_scram(scram);
        login.with_connection_manager(connections)
    }
}

#[async_trait]
impl AuthSource for SaltedPassword {
    async fn get_password(&self, _login: &LoginInfo) -> PgWireResult<Password> {
        Ok(self.0.clone())
    }
}
