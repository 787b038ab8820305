//! The driver and its databases. A database is a session.

use std::collections::HashMap;
use std::sync::Arc;

use adbc_core::error::{Result, Status};
use adbc_core::options::{OptionConnection, OptionDatabase, OptionValue};
use adbc_core::{Database, Driver, Optionable};

use super::connection::RmqConnection;
use super::errors::{block_on, error, from_datafusion};
use super::options::{text, unknown};
use crate::lent;
use crate::shared::Shared;

/// The option that names a session which Python has lent.
const LENT: &str = "datafusion_rmq.session";

#[derive(Default)]
pub struct RmqDriver;

impl Driver for RmqDriver {
    type DatabaseType = RmqDatabase;

    fn new_database(&mut self) -> Result<RmqDatabase> {
        self.new_database_with_opts([])
    }

    fn new_database_with_opts(
        &mut self,
        opts: impl IntoIterator<Item = (OptionDatabase, OptionValue)>,
    ) -> Result<RmqDatabase> {
        let mut options = HashMap::new();
        for (name, value) in opts {
            options.insert(name.as_ref().to_string(), text(name.as_ref(), value)?);
        }
        let Some(number) = options.remove(LENT) else {
            let opened = async move { Shared::open(options, None).await.map_err(from_datafusion) };
            let shared = Arc::new(block_on(opened)?);
            return Ok(RmqDatabase { shared });
        };
        if let Some(name) = options.into_keys().next() {
            let text = format!("{name}: a session that is lent has its options already");
            return Err(error(Status::InvalidArguments, text));
        }
        let shared = number.parse().ok().and_then(lent::take).ok_or_else(|| {
            let text = format!("{LENT}={number}: no such session is lent");
            error(Status::InvalidArguments, text)
        })?;
        Ok(RmqDatabase { shared })
    }
}

pub struct RmqDatabase {
    shared: Arc<Shared>,
}

impl Database for RmqDatabase {
    type ConnectionType = RmqConnection;

    fn new_connection(&self) -> Result<RmqConnection> {
        Ok(RmqConnection::new(Arc::clone(&self.shared)))
    }

    fn new_connection_with_opts(
        &self,
        opts: impl IntoIterator<Item = (OptionConnection, OptionValue)>,
    ) -> Result<RmqConnection> {
        let mut connection = self.new_connection()?;
        for (name, value) in opts {
            connection.set_option(name, value)?;
        }
        Ok(connection)
    }
}

impl Optionable for RmqDatabase {
    type Option = OptionDatabase;

    fn set_option(&mut self, key: OptionDatabase, _: OptionValue) -> Result<()> {
        let text = format!(
            "{}: options of an open session are set by SET",
            key.as_ref()
        );
        Err(error(Status::InvalidState, text))
    }

    fn get_option_string(&self, key: OptionDatabase) -> Result<String> {
        let config = self.shared.ctx.copied_config();
        let entries = config.options().entries();
        let found = entries.into_iter().find(|entry| entry.key == key.as_ref());
        let value = found.ok_or_else(|| unknown(&key))?.value;
        Ok(value.unwrap_or_default())
    }

    fn get_option_bytes(&self, key: OptionDatabase) -> Result<Vec<u8>> {
        Err(unknown(&key))
    }

    fn get_option_int(&self, key: OptionDatabase) -> Result<i64> {
        Err(unknown(&key))
    }

    fn get_option_double(&self, key: OptionDatabase) -> Result<f64> {
        Err(unknown(&key))
    }
}
