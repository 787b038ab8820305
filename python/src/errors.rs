//! Exceptions: the hierarchy of the DB-API (PEP 249), as far as the native part raises it.

use datafusion::error::DataFusionError;
use datafusion_rmq::parts::without_rule_names;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use rmq_engine::EngineError;

create_exception!(
    datafusion_rmq,
    Error,
    PyException,
    "The base of all exceptions of this package."
);
create_exception!(
    datafusion_rmq,
    DatabaseError,
    Error,
    "The base of all errors of statements."
);
create_exception!(
    datafusion_rmq,
    ProgrammingError,
    DatabaseError,
    "A statement is wrong: its syntax, a name, a type, a parameter."
);
create_exception!(
    datafusion_rmq,
    OperationalError,
    DatabaseError,
    "A statement failed while it ran: memory, files, devices, values."
);
create_exception!(
    datafusion_rmq,
    NotSupportedError,
    DatabaseError,
    "A statement asks for something that is not implemented."
);

/// Makes an exception of an error of DataFusion.
pub fn from_datafusion(error: DataFusionError) -> PyErr {
    let text = without_rule_names(&error.strip_backtrace());
    let text = not_local(&text).unwrap_or_else(|| without_bug_report(text));
    match error.find_root() {
        DataFusionError::SQL(..)
        | DataFusionError::Plan(_)
        | DataFusionError::SchemaError(..)
        | DataFusionError::Configuration(_) => ProgrammingError::new_err(text),
        DataFusionError::NotImplemented(_) => NotSupportedError::new_err(text),
        _ => OperationalError::new_err(text),
    }
}

/// What to do instead, where a statement names files elsewhere: of these DataFusion says that a store, or a table, is
/// missing.
fn not_local(text: &str) -> Option<String> {
    let of_store = text.split_once("No suitable object store found for ");
    let (_, rest) = of_store.or_else(|| text.split_once("table 'datafusion.public."))?;
    let url = rest.split(['\'', ' ']).next()?.trim_end_matches('.');
    url.contains("://").then(|| {
        format!(
            "{url}: SQL reads and writes local files only; read others with polars or pyarrow.dataset, and name the \
             variable that has them in FROM"
        )
    })
}

/// The text of an error. Of a call with arguments of wrong types `DataFusion` says first that it is a bug of its own.
fn without_bug_report(text: String) -> String {
    let parts = text.split_once("Internal error: Function '");
    let parts = parts.and_then(|(before, call)| {
        let (_, after) = call.split_once("/datafusion/issues. No function matches")?;
        Some(format!("{before}No function matches{after}"))
    });
    parts.unwrap_or(text)
}

/// Makes an exception of an error of the engine.
pub fn from_engine(error: EngineError) -> PyErr {
    OperationalError::new_err(error.to_string())
}
