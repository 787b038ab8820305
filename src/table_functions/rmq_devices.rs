//! The table function `rmq_devices()`: the CUDA devices of this machine, one row each, with the memory of the session's
//! indexes. Without a device there is one row, whose `note` says why.

use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{MemTable, Session, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, internal_datafusion_err, plan_err};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;

use crate::kept::catalog::IndexCatalog;
use rmq_engine::cuda::{DeviceInfo, DeviceUse};

/// The table function `rmq_devices`.
#[derive(Debug)]
pub struct DevicesFunction {
    catalog: Arc<IndexCatalog>,
}

impl DevicesFunction {
    /// The name under which it is registered.
    pub const NAME: &'static str = "rmq_devices";

    pub(crate) fn new(catalog: Arc<IndexCatalog>) -> Self {
        Self { catalog }
    }
}

impl TableFunctionImpl for DevicesFunction {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        if !args.exprs().is_empty() {
            return plan_err!(
                "rmq_devices takes no arguments, but {} were given",
                args.exprs().len()
            );
        }
        Ok(Arc::new(DevicesTable {
            catalog: Arc::clone(&self.catalog),
            schema: schema(),
        }))
    }
}

/// Lists the devices when it is scanned, not when it is planned, because starting the driver takes time.
#[derive(Debug)]
struct DevicesTable {
    catalog: Arc<IndexCatalog>,
    schema: SchemaRef,
}

#[async_trait]
impl TableProvider for DevicesTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let catalog = Arc::clone(&self.catalog);
        let rows = if tokio::runtime::Handle::try_current().is_ok() {
            SpawnedTask::spawn_blocking(move || rows(&catalog))
                .join_unwind()
                .await
                .map_err(|e| internal_datafusion_err!("looking for devices did not end: {e}"))?
        } else {
            rows(&catalog)
        };
        let batch = batch(&self.schema, &rows)?;
        let table = MemTable::try_new(Arc::clone(&self.schema), vec![vec![batch]])?;
        table.scan(session, projection, filters, limit).await
    }
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("device", DataType::UInt64, true),
        Field::new("name", DataType::Utf8, true),
        Field::new("compute_capability", DataType::Utf8, true),
        Field::new("memory", DataType::UInt64, true),
        Field::new("memory_free", DataType::UInt64, true),
        Field::new("index_bytes", DataType::UInt64, true),
        Field::new("index_limit", DataType::UInt64, true),
        Field::new("cuda", DataType::Utf8, true),
        Field::new("in_use", DataType::Boolean, false),
        Field::new("note", DataType::Utf8, true),
    ]))
}

/// A row of the result: a device, or the reason why there is none.
#[derive(Debug, Default)]
struct Row {
    device: Option<DeviceInfo>,
    /// The session's use of the device, if it has opened it.
    used: Option<DeviceUse>,
    free: Option<usize>,
    note: Option<String>,
}

/// Lists the devices and opens none. Blocks while the driver starts.
fn rows(catalog: &IndexCatalog) -> Vec<Row> {
    let opened = catalog.devices().in_use();
    let devices = match catalog.devices().source().list() {
        Ok(devices) => devices,
        Err(why) => {
            log::info!("no CUDA device: {why}");
            return vec![Row {
                note: Some(why.to_string()),
                ..Row::default()
            }];
        }
    };
    let row = |device: DeviceInfo| {
        let all = opened.as_ref().map(|engine| engine.devices());
        let used = all
            .into_iter()
            .flatten()
            .find(|used| used.ordinal == device.ordinal);
        let failed = used.as_ref().and_then(|used| used.failed.clone());
        let failed = failed.map(|why| format!("not used any more: {why}"));
        let note = device.unusable.clone().or(failed);
        let free = opened
            .as_ref()
            .filter(|_| used.is_some() && note.is_none())
            .and_then(|engine| engine.free_bytes(device.ordinal));
        let not_opened =
            || (used.is_none()).then(|| "opened when a query first needs it".to_string());
        Row {
            note: note.or_else(not_opened),
            used,
            free,
            device: Some(device),
        }
    };
    devices.into_iter().map(row).collect()
}

fn batch(schema: &SchemaRef, rows: &[Row]) -> Result<RecordBatch> {
    fn numbers(rows: &[Row], of: impl Fn(&Row) -> Option<usize>) -> UInt64Array {
        rows.iter().map(|row| of(row).map(|n| n as u64)).collect()
    }
    fn texts(rows: &[Row], of: impl Fn(&Row) -> Option<String>) -> StringArray {
        rows.iter().map(of).collect()
    }
    let info = |row: &Row| row.device.clone();
    let in_use = |row: &Row| row.used.as_ref().is_some_and(|used| used.failed.is_none());
    let in_use: BooleanArray = rows.iter().map(|row| Some(in_use(row))).collect();
    let capability = |d: DeviceInfo| {
        let (major, minor) = d.compute_capability;
        format!("{major}.{minor}")
    };
    let used = |row: &Row| row.used.clone();
    Ok(RecordBatch::try_new(
        Arc::clone(schema),
        vec![
            Arc::new(numbers(rows, |row| info(row).map(|d| d.ordinal))),
            Arc::new(texts(rows, |row| info(row).map(|d| d.name))),
            Arc::new(texts(rows, |row| info(row).map(capability))),
            Arc::new(numbers(rows, |row| info(row).map(|d| d.total_bytes))),
            Arc::new(numbers(rows, |row| row.free)),
            Arc::new(numbers(rows, |row| used(row).map(|d| d.used))),
            Arc::new(numbers(rows, |row| used(row).map(|d| d.limit))),
            Arc::new(texts(rows, |row| info(row).map(|d| d.driver.to_string()))),
            Arc::new(in_use),
            Arc::new(texts(rows, |row| row.note.clone())),
        ],
    )?)
}
