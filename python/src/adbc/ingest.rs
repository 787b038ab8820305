//! Rows that become a table, or are appended to one.

use std::sync::Arc;

use adbc_core::error::{Error, Result, Status};
use adbc_core::options::IngestMode;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::TableReference;
use datafusion::datasource::MemTable;

use super::errors::{error, from_datafusion};
use crate::progress::RunningPlan;
use crate::shared::Shared;

/// The rows, as the statement that appends them sees them.
const ROWS: &str = "__ingested";

/// The name of a table and what to do with it.
#[derive(Clone, Default)]
pub struct Target {
    pub table: String,
    pub mode: Option<String>,
}

/// Adds rows to the target, and returns their number.
pub async fn ingest(
    shared: &Shared,
    target: Target,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
) -> Result<i64> {
    let Target { table, mode } = target;
    let mode = mode.map_or(Ok(IngestMode::Create), |mode| mode.parse())?;
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let columns: Vec<String> = schema
        .fields()
        .iter()
        .map(|field| quoted(field.name()))
        .collect();
    let new = MemTable::try_new(schema, vec![batches]).map_err(from_datafusion)?;
    let exists = shared.ctx.table_exist(TableReference::bare(table.as_str()));
    match (mode, exists.map_err(from_datafusion)?) {
        (IngestMode::Create, true) => {
            let text = format!("there is a table {table} already");
            return Err(error(Status::AlreadyExists, text));
        }
        (IngestMode::Append, false) => {
            return Err(error(
                Status::NotFound,
                format!("there is no table {table}"),
            ));
        }
        (IngestMode::Append | IngestMode::CreateAppend, true) => {
            let (name, columns) = (quoted(&table), columns.join(", "));
            let insert = format!("INSERT INTO {name} ({columns}) SELECT {columns} FROM {ROWS}");
            let frames = vec![(TableReference::bare(ROWS), Arc::new(new) as _)];
            let running = RunningPlan::default();
            let inserted = shared.statement(&insert, None, &frames, &running).await;
            inserted.map_err(from_datafusion)?;
        }
        (IngestMode::Replace, _) | (IngestMode::Create | IngestMode::CreateAppend, false) => {
            let replaced = shared.replace(table, Arc::new(new)).await;
            replaced.map_err(from_datafusion)?;
        }
    }
    i64::try_from(rows)
        .map_err(|_| Error::with_message_and_status("too many rows", Status::Internal))
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
