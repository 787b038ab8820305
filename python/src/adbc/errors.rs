//! Errors as ADBC has them.

use adbc_core::error::{Error, Result, Status};
use datafusion::error::DataFusionError;
use pyo3::prelude::*;

use crate::runtime::run;

pub fn error(status: Status, text: impl Into<String>) -> Error {
    Error::with_message_and_status(text, status)
}

pub fn not_implemented(what: &str) -> Error {
    error(
        Status::NotImplemented,
        format!("{what}: not supported by datafusion_rmq"),
    )
}

/// The same classes as [`crate::errors::from_datafusion`] makes: driver managers make a `ProgrammingError` of invalid
/// arguments, an `OperationalError` of an unknown error.
pub fn from_datafusion(found: DataFusionError) -> Error {
    let text = found.strip_backtrace();
    let status = match found.find_root() {
        DataFusionError::SQL(..)
        | DataFusionError::Plan(_)
        | DataFusionError::SchemaError(..)
        | DataFusionError::Configuration(_) => Status::InvalidArguments,
        DataFusionError::NotImplemented(_) => Status::NotImplemented,
        _ => Status::Unknown,
    };
    error(status, text)
}

/// Runs a future for a driver manager, whose thread may hold the interpreter's lock or not.
pub fn block_on<T: Send + 'static>(
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let done = Python::try_attach(|py| {
        let done = run(py, async move { Ok(future.await) });
        done.map_err(|failed| error(Status::InvalidState, failed.to_string()))
    });
    done.unwrap_or_else(|| {
        let text = "the Python interpreter is shutting down";
        Err(error(Status::InvalidState, text))
    })?
}
