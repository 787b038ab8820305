//! Builds the build side of a range join from its input: collects it, then sorts and indexes it in memory, or spills
//! it.

use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};

use crate::common::options::RmqOptions;
use crate::exec::range_join::build::collect::{Collected, CollectedRows, collect};
use crate::exec::range_join::build::device_join::{DeviceBuild, DeviceJoin};
use crate::exec::range_join::build::side::BuildSide;
use crate::exec::range_join::build::sort_and_index::sort_and_index;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::devices::{JoinDevices, is_device_shortage};
use crate::exec::range_join::engine_choice::RangeJoinEngine;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::spill::retaining_pool::{RetainingPool, is_out_of_memory};
use crate::exec::range_join::spill::row_position::RowPosition;
use crate::exec::range_join::spill::run::BuildRuns;
use crate::exec::range_join::spill::store::SpillStore;

/// A finished build side.
pub(crate) enum Built {
    InMemory(Box<BuildSide>),
    OnDevices(Box<DeviceJoin>),
    /// Too large for memory.
    InRuns(BuildRuns),
}

/// What building one build side needs.
#[derive(Debug)]
pub(crate) struct BuildSideBuilder {
    pub(crate) columns: BuildColumns,
    /// The schema of `columns`.
    pub(crate) schema: SchemaRef,
    pub(crate) metrics: BuildMetrics,
    pub(crate) options: RmqOptions,
    pub(crate) memory: Arc<RetainingPool>,
    store: Option<Arc<SpillStore>>,
    engine: RangeJoinEngine,
    runtime: Arc<RuntimeEnv>,
    /// Whether the probe side ends.
    is_probe_bounded: bool,
}

impl BuildSideBuilder {
    /// A builder for an input of this schema, one of `builds` that run at the same time and share threads and memory.
    pub(crate) fn try_new(
        columns: BuildColumns,
        input_schema: &Schema,
        metrics: BuildMetrics,
        context: &TaskContext,
        engine: RangeJoinEngine,
        is_probe_bounded: bool,
        builds: usize,
    ) -> Result<Self> {
        let schema = columns.schema(input_schema)?;
        // Rows of all runs are returned in no order, but a probe side without an end may have been promised its own.
        let may_spill = columns.may_spill() && (is_probe_bounded || !columns.returns_rows);
        let store = if may_spill {
            SpillStore::try_new(&schema, columns.num_equality_keys, &metrics, context)?
        } else {
            None
        };
        let mut options = RmqOptions::of(context.session_config().options());
        if options.build_threads == 0 {
            options.build_threads = context.session_config().target_partitions();
        }
        options.build_threads = (options.build_threads / builds).max(1);
        let pool = context.memory_pool();
        // Otherwise the first builds would leave nothing for the last, which may need little.
        let share = match pool.memory_limit() {
            MemoryLimit::Finite(bytes) if builds > 1 && store.is_some() => bytes / builds,
            _ => usize::MAX,
        };
        Ok(Self {
            columns,
            schema,
            metrics,
            options,
            memory: RetainingPool::new(pool, store.is_some(), share),
            store,
            engine,
            runtime: context.runtime_env(),
            is_probe_bounded,
        })
    }

    /// Collects the partitions of the input.
    pub(crate) async fn collect(
        &self,
        partitions: Vec<SendableRecordBatchStream>,
    ) -> Result<Collected> {
        let started = Instant::now();
        let (columns, schema) = (&self.columns, &self.schema);
        let store = self.store.clone();
        let rows = collect(columns, schema, partitions, &self.memory, store).await;
        self.metrics.build_time.add_elapsed(started);
        let rows = rows.map_err(|error| self.explain_out_of_memory(error))?;
        if let Collected::Spilled(runs) = &rows {
            self.metrics.build_rows.add(runs.rows());
        }
        Ok(rows)
    }

    /// Sorts and indexes collected rows, or spills them if memory does not suffice for that.
    pub(crate) async fn build(&self, rows: CollectedRows) -> Result<Built> {
        let started = Instant::now();
        let built = self.build_or_spill(rows).await;
        self.metrics.build_time.add_elapsed(started);
        self.metrics.elapsed_compute.add_elapsed(started);
        built.map_err(|error| self.explain_out_of_memory(error))
    }

    async fn build_or_spill(&self, rows: CollectedRows) -> Result<Built> {
        let rows = match self.build_on_devices(rows).await? {
            Ok(built) => return Ok(built),
            Err(rows) => rows,
        };
        let Some(store) = &self.store else {
            let side = self.sort_and_index(rows).await?;
            self.memory.stop_retaining();
            return Ok(Built::InMemory(Box::new(side)));
        };
        // A copy of the rows, registered twice, to be spilled if building runs out of memory.
        let backup = (rows.batches.clone(), self.memory.reservation());
        match backup.1.try_grow(rows.memory.size()) {
            Ok(()) => {}
            // A nested loop may use part of the memory.
            Err(error) if is_out_of_memory(&error) => return self.spill(rows, store).await,
            Err(error) => return Err(error),
        }
        match self.sort_and_index(rows).await {
            Ok(side) => {
                drop(backup);
                self.memory.stop_retaining();
                Ok(Built::InMemory(Box::new(side)))
            }
            Err(error) if is_out_of_memory(&error) => {
                let (batches, memory) = backup;
                let schema = Arc::clone(&self.schema);
                let rows = CollectedRows {
                    schema,
                    batches,
                    memory,
                };
                self.spill(rows, store).await
            }
            Err(error) => Err(error),
        }
    }

    /// Sorts and indexes collected rows on devices, if these were selected and can answer all aggregates. Otherwise
    /// returns the rows.
    async fn build_on_devices(&self, rows: CollectedRows) -> Result<Result<Built, CollectedRows>> {
        if !DeviceJoin::supports(&self.columns, &self.types()) {
            return Ok(Err(rows));
        }
        let Some(devices) = self.select_devices(&rows).await? else {
            return Ok(Err(rows));
        };
        let (columns, metrics, threads) = (&self.columns, &self.metrics, self.options.threads());
        let (rows, error) =
            match DeviceJoin::build(columns, rows, metrics, threads, &devices).await? {
                DeviceBuild::Built(join) => {
                    metrics.record_device_bytes(join.device_bytes());
                    self.memory.stop_retaining();
                    return Ok(Ok(Built::OnDevices(join)));
                }
                DeviceBuild::LeftToCpu(rows) => return Ok(Err(rows)),
                DeviceBuild::OutOfMemory(rows, error) => (rows, error),
            };
        if is_device_shortage(&error) && !devices.allow_cpu_fallback() {
            return Err(error.context("rmq.engine = 'cuda': a range join"));
        }
        // Sorting on the CPU needs less memory of the host, or spills.
        log::debug!("the CPU sorts a range join: {error}");
        Ok(Err(rows))
    }

    /// The types of the columns.
    fn types(&self) -> Vec<DataType> {
        let fields = self.schema.fields().iter();
        fields.map(|field| field.data_type().clone()).collect()
    }

    /// Rows that have been spilled, whose runs the CPU builds.
    pub(crate) fn in_spill_runs(&self, runs: BuildRuns) -> Built {
        self.engine.record_spilled();
        Built::InRuns(runs)
    }

    async fn spill(&self, rows: CollectedRows, store: &Arc<SpillStore>) -> Result<Built> {
        let mut runs = store.new_runs(self.memory.granted_bytes());
        let first_row = RowPosition::default();
        store.write(rows.batches, first_row, &mut runs).await?;
        drop(rows.memory);
        Ok(self.in_spill_runs(runs))
    }

    async fn sort_and_index(&self, rows: CollectedRows) -> Result<BuildSide> {
        let devices = self.select_devices(&rows).await?;
        let threads = self.options.threads();
        sort_and_index(&self.columns, rows, &self.metrics, threads, devices).await
    }

    /// The devices for these rows, if they suit them.
    pub(crate) async fn select_devices(&self, rows: &CollectedRows) -> Result<Option<JoinDevices>> {
        let engine = &self.engine;
        engine.select_devices(rows.num_rows(), &self.options).await
    }

    /// Adds to an out-of-memory error why nothing was spilled.
    fn explain_out_of_memory(&self, error: DataFusionError) -> DataFusionError {
        let DataFusionError::ResourcesExhausted(message) = error.find_root() else {
            return error;
        };
        let why = if self.store.is_some() {
            return error;
        } else if let Some(call) = self.columns.accumulated() {
            let call = &call.text;
            format!("The build side of a range join with {call} is not written to disk")
        } else if self.columns.returns_in_order {
            "The build side of a range join that returns the nearest rows is not written to disk"
                .to_string()
        } else if self.columns.returns_rows && !self.is_probe_bounded {
            "The build side of a range join that returns rows of an endless input is not written to disk".to_string()
        } else if !self.runtime.disk_manager.tmp_files_enabled() {
            "The build side of a range join can't be written to disk, as the DiskManager is disabled".to_string()
        } else {
            return error;
        };
        DataFusionError::ResourcesExhausted(format!("{message}. {why}"))
    }
}
