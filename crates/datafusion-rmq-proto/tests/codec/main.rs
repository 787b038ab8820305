//! Plans go through bytes and return the same rows.

mod bytes;
mod files;
mod queries;
mod round_trips;
mod sql_files;
mod support;
mod tasks;
