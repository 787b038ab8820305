//! The native part of the Python package `datafusion_rmq`: a DataFusion session with range queries, and range indexes
//! over `NumPy` and Arrow buffers. Data comes and goes by the Arrow C data interface, without a copy.
//!
//! The package's Python files are its public API. They call the classes below and nothing else does, so argument checks
//! that need no Rust are made there.

#![warn(clippy::pedantic)]
#![allow(
    clippy::needless_pass_by_value,
    reason = "PyO3 passes arguments by value"
)]

mod adbc;
mod canonical_nans;
mod errors;
mod ffi;
mod foreign_exec;
mod frame;
mod gather;
mod lent;
mod numbered_rows;
mod ordered_categories;
mod params;
mod placeholders;
mod progress;
mod python_values;
mod query;
mod range_batches;
mod range_index;
mod range_statistics;
mod run_merge;
mod running;
mod runtime;
mod session;
mod shared;
mod table_names;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::errors::{
        DatabaseError, Error, NotSupportedError, OperationalError, ProgrammingError,
    };
    #[pymodule_export]
    use crate::ffi::Extension;
    #[pymodule_export]
    use crate::ffi::lender::Lender;
    #[pymodule_export]
    use crate::ffi::lent_table::LentTable;
    #[pymodule_export]
    use crate::frame::Frame;
    #[pymodule_export]
    use crate::query::Query;
    #[pymodule_export]
    use crate::range_index::RangeIndex;
    #[pymodule_export]
    use crate::session::Session;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "a module's version has this name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    const DATAFUSION_VERSION: &str = datafusion::DATAFUSION_VERSION;
}
