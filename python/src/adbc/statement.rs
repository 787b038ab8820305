//! Statements of the ADBC driver.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use adbc_core::error::{Result, Status};
use adbc_core::options::{OptionStatement, OptionValue};
use adbc_core::{CancelHandle, Optionable, PartitionedResult, Statement};
use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::cast::as_uint64_array;
use datafusion::common::{ParamValues, ScalarValue};
use datafusion::dataframe::DataFrame;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::execute_stream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion_rmq::parts::Stop;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::watch;

use super::errors::{block_on, error, from_datafusion, not_implemented};
use super::ingest::{Target, ingest};
use super::options::{text, unknown};
use crate::canonical_nans::with_one_nan;
use crate::progress::RunningPlan;
use crate::running::{Cancelled, Running, stop_of, unless_cancelled};
use crate::shared::Shared;

/// Whether parameters are `$name`, the names being those of the bound columns, or `$1`, `$2` and so on.
const BY_NAME: &str = "adbc.statement.bind_by_name";

pub struct RmqStatement {
    shared: Arc<Shared>,
    sql: Option<String>,
    target: Option<Target>,
    /// Rows of parameters, or those to be added to the target.
    bound: Option<(SchemaRef, Vec<RecordBatch>)>,
    by_name: bool,
    cancel: Cancel,
}

/// Cancels what a statement does, or the reading of its rows.
#[derive(Clone, Default)]
struct Cancel(Arc<Mutex<watch::Sender<bool>>>);

impl Cancel {
    /// What can be cancelled from now on.
    fn begin(&self) -> Cancelled {
        let (sender, cancelled) = watch::channel(false);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = sender;
        cancelled
    }
}

impl CancelHandle for Cancel {
    fn try_cancel(&self) -> Result<()> {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sender.send_replace(true);
        Ok(())
    }
}

impl RmqStatement {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            sql: None,
            target: None,
            bound: None,
            by_name: false,
            cancel: Cancel::default(),
        }
    }

    fn sql(&self) -> Result<String> {
        let text = "no statement was given";
        self.sql
            .clone()
            .ok_or_else(|| error(Status::InvalidState, text))
    }

    /// The parameters of each execution. They are used once.
    fn params(&mut self) -> Result<Vec<Option<ParamValues>>> {
        let Some((schema, batches)) = self.bound.take() else {
            return Ok(vec![None]);
        };
        let mut all = vec![];
        for batch in &batches {
            for row in 0..batch.num_rows() {
                let values = batch.columns().iter().map(|column| {
                    ScalarValue::try_from_array(column, row).map_err(from_datafusion)
                });
                let values = values.collect::<Result<Vec<_>>>()?;
                all.push(Some(if self.by_name {
                    let names = schema.fields().iter().map(|field| field.name().clone());
                    names.zip(values).collect::<HashMap<_, _>>().into()
                } else {
                    values.into()
                }));
            }
        }
        Ok(all)
    }

    /// The plan's result columns and parameters. Nothing runs.
    fn planned(&self) -> Result<(Schema, HashMap<String, Option<DataType>>)> {
        let (shared, sql) = (Arc::clone(&self.shared), self.sql()?);
        block_on(async move {
            let plan = shared.plan(&sql, None, &vec![]).await;
            let plan = plan.map_err(from_datafusion)?;
            let params = plan.get_parameter_types().map_err(from_datafusion)?;
            Ok((plan.schema().as_arrow().clone(), params))
        })
    }
}

/// Begins a query whose statement was planned. Its joins end soon after the request to `stop`.
async fn begin(
    shared: &Shared,
    frame: DataFrame,
    stop: &Stop,
) -> datafusion::common::Result<SendableRecordBatchStream> {
    let context = Arc::new(frame.task_ctx());
    let plan = shared
        .with_frames(&vec![], frame.create_physical_plan())
        .await?;
    execute_stream(stop.watch_joins(plan, false)?, context)
}

impl Statement for RmqStatement {
    fn bind(&mut self, batch: RecordBatch) -> Result<()> {
        let batch = with_one_nan(batch);
        let batch = batch.map_err(|failed| error(Status::InvalidData, failed.to_string()))?;
        self.bound = Some((batch.schema(), vec![batch]));
        Ok(())
    }

    fn bind_stream(&mut self, reader: Box<dyn RecordBatchReader + Send>) -> Result<()> {
        let schema = reader.schema();
        let batches = reader.map(|batch| with_one_nan(batch?));
        let batches = batches.collect::<std::result::Result<Vec<_>, _>>();
        let batches = batches.map_err(|failed| error(Status::InvalidData, failed.to_string()))?;
        self.bound = Some((schema, batches));
        Ok(())
    }

    fn execute(&mut self) -> Result<Box<dyn RecordBatchReader + Send + 'static>> {
        let (shared, sql, params) = (Arc::clone(&self.shared), self.sql()?, self.params()?);
        let cancelled = self.cancel.begin();
        let of_rows = cancelled.clone();
        let (schema, rows, stop) = block_on(async move {
            let stop = stop_of(cancelled.clone());
            let begun = async {
                let mut frames = vec![];
                for params in params {
                    let running = RunningPlan::default();
                    let planned = shared.statement(&sql, params, &vec![], &running).await?;
                    frames.push(planned.frame);
                }
                let schema = match frames.first() {
                    Some(frame) => frame.schema().as_arrow().clone(),
                    None => shared
                        .plan(&sql, None, &vec![])
                        .await?
                        .schema()
                        .as_arrow()
                        .clone(),
                };
                let schema = Arc::new(schema);
                let mut frames = frames.into_iter();
                // The first rows are asked for now, so that most errors are those of this call, with their status.
                let mut begun = vec![];
                if let Some(frame) = frames.next() {
                    let mut rows = begin(&shared, frame, &stop).await?;
                    let first = rows.next().await.transpose()?;
                    begun.push(stream::iter(first.map(Ok)).chain(rows));
                }
                let of_others = stop.clone();
                let others = stream::iter(frames).then(move |frame| {
                    let (shared, stop) = (Arc::clone(&shared), of_others.clone());
                    async move { begin(&shared, frame, &stop).await }
                });
                let rows = stream::iter(begun).flatten().chain(others.try_flatten());
                let rows = RecordBatchStreamAdapter::new(Arc::clone(&schema), rows);
                Ok((schema, Box::pin(rows) as SendableRecordBatchStream, stop))
            };
            let begun = unless_cancelled(cancelled, begun).await;
            begun.map_err(from_datafusion)
        })?;
        Ok(Box::new(Running::new(schema, rows, stop, Some(of_rows))))
    }

    fn execute_update(&mut self) -> Result<Option<i64>> {
        let (shared, cancelled) = (Arc::clone(&self.shared), self.cancel.begin());
        if let Some(target) = self.target.clone() {
            let text = "rows are needed; bind them";
            let bound = self.bound.take();
            let (schema, batches) = bound.ok_or_else(|| error(Status::InvalidState, text))?;
            let done = async move { ingest(&shared, target, schema, batches).await.map(Some) };
            return block_on(done);
        }
        let (sql, params) = (self.sql()?, self.params()?);
        block_on(async move {
            let done = async {
                let mut count = None;
                for params in params {
                    let running = RunningPlan::default();
                    let planned = shared.statement(&sql, params, &vec![], &running).await?;
                    let rows = planned.frame.collect().await?;
                    if !planned.changes {
                        continue;
                    }
                    // Statements on tables have no column.
                    for batch in rows.iter().filter(|batch| batch.num_columns() == 1) {
                        let counts = as_uint64_array(batch.column(0))?;
                        let sum: u64 = counts.iter().flatten().sum();
                        *count.get_or_insert(0) += i64::try_from(sum).unwrap_or(i64::MAX);
                    }
                }
                Ok(count)
            };
            let done = unless_cancelled(cancelled, done).await;
            done.map_err(from_datafusion)
        })
    }

    fn execute_schema(&mut self) -> Result<Schema> {
        Ok(self.planned()?.0)
    }

    fn execute_partitions(&mut self) -> Result<PartitionedResult> {
        Err(not_implemented("partitioned results"))
    }

    fn get_parameter_schema(&self) -> Result<Schema> {
        let types = self.planned()?.1;
        let mut fields: Vec<Field> = types
            .into_iter()
            .map(|(name, kind)| {
                let kind = kind.unwrap_or(DataType::Null);
                Field::new(name.trim_start_matches('$'), kind, true)
            })
            .collect();
        // `$2` comes before `$10`.
        fields.sort_by_key(|field| {
            (
                field.name().parse().unwrap_or(usize::MAX),
                field.name().clone(),
            )
        });
        Ok(Schema::new(fields))
    }

    fn prepare(&mut self) -> Result<()> {
        // Types of parameters are known when they are bound, so a statement is planned when it is executed.
        self.sql().map(drop)
    }

    fn set_sql_query(&mut self, query: impl AsRef<str>) -> Result<()> {
        self.sql = Some(query.as_ref().to_string());
        (self.target, self.bound) = (None, None);
        Ok(())
    }

    fn set_substrait_plan(&mut self, _: impl AsRef<[u8]>) -> Result<()> {
        Err(not_implemented("Substrait"))
    }

    fn get_cancel_handle(&self) -> Box<dyn CancelHandle> {
        Box::new(self.cancel.clone())
    }
}

impl Optionable for RmqStatement {
    type Option = OptionStatement;

    fn set_option(&mut self, key: OptionStatement, value: OptionValue) -> Result<()> {
        let value = text(key.as_ref(), value)?;
        match &key {
            OptionStatement::TargetTable => {
                self.target.get_or_insert_default().table = value;
                self.sql = None;
            }
            OptionStatement::IngestMode => self.target.get_or_insert_default().mode = Some(value),
            OptionStatement::Temporary if value == "false" => {}
            OptionStatement::Other(name) if name == BY_NAME => self.by_name = value == "true",
            _ => return Err(not_implemented(&format!("{}={value}", key.as_ref()))),
        }
        Ok(())
    }

    fn get_option_string(&self, key: OptionStatement) -> Result<String> {
        match &key {
            OptionStatement::Other(name) if name == BY_NAME => Ok(self.by_name.to_string()),
            _ => Err(unknown(&key)),
        }
    }

    fn get_option_bytes(&self, key: OptionStatement) -> Result<Vec<u8>> {
        Err(unknown(&key))
    }

    fn get_option_int(&self, key: OptionStatement) -> Result<i64> {
        Err(unknown(&key))
    }

    fn get_option_double(&self, key: OptionStatement) -> Result<f64> {
        Err(unknown(&key))
    }
}
