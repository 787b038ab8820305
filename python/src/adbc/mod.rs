//! An ADBC driver over the same sessions. A driver manager of this process loads it from the package's own library, by
//! the function `AdbcDatafusionRmqInit`.

mod connection;
mod database;
mod errors;
mod ingest;
mod objects;
mod options;
mod statement;

/// The functions with which a driver manager gets the driver.
#[allow(unsafe_code, reason = "symbols for C")]
mod export {
    use super::database::RmqDriver;

    adbc_ffi::export_driver!(AdbcDatafusionRmqInit, RmqDriver);
}
