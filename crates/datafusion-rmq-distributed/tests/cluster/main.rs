//! Queries on workers of this process, compared with the same queries on one node.

mod answers;
mod faults;
#[path = "../../../datafusion-rmq-proto/tests/codec/files.rs"]
mod files;
mod positions;
#[path = "../../../datafusion-rmq-proto/tests/codec/queries.rs"]
mod queries;
mod random;
mod sliced_tables;
mod slices;
mod sql_files;
mod support;
