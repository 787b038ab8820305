//! The build side of a range join: in memory, or, where that is too small, on disk.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExprRef;

use crate::common::options::RmqOptions;
use crate::exec::range_join::build::build::build;
use crate::exec::range_join::build::collect::{BuildColumns, Collected, RowOrder, Rows};
use crate::exec::range_join::build::side::BuildSide;
use crate::exec::range_join::engine::RangeJoinEngine;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::probe::nested_loop::DeferredBuild;
use crate::exec::range_join::probe::on_devices::Devices;
use crate::exec::range_join::spill::probe::{SpilledSide, is_exhausted};
use crate::exec::range_join::spill::retaining_pool::RetainingPool;
use crate::exec::range_join::spill::write::{Spill, SpillRuns};
use crate::logical_plan::range_join::RangeJoinSpec;

/// The build side, ready to be asked.
#[derive(Debug)]
pub(crate) enum Side {
    /// In memory.
    Whole(Box<BuildSide>),
    /// On disk.
    Spilled(Arc<SpilledSide>),
    /// In memory, to be sorted once the probe side has turned out to have many rows.
    DeferredBuild(Arc<DeferredBuild>),
}

impl Side {
    /// Collects the partitions of the build side, which have this schema, and makes it ready to be asked.
    pub(crate) async fn make(
        spec: &RangeJoinSpec<PhysicalExprRef>,
        schema: &SchemaRef,
        partitions: Vec<SendableRecordBatchStream>,
        metrics: BuildMetrics,
        context: Arc<TaskContext>,
        probe: ProbeSide,
        engine: RangeJoinEngine,
    ) -> Result<Self> {
        let columns = BuildColumns::of(spec);
        let schema = columns.schema(schema)?;
        // The row that prevails may lie in another piece than the window.
        let spill = if columns.prevailing {
            None
        } else {
            Spill::new(&schema, columns.equal, &metrics, &context)?
        };
        let building = Building {
            schema,
            columns,
            metrics,
            options: RmqOptions::of(context.session_config().options()),
            room: RetainingPool::new(context.memory_pool(), spill.is_some()),
            probe,
            engine,
            runtime: context.runtime_env(),
        };
        building.run(partitions, spill).await
    }
}

/// What is to be known of the probe side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProbeSide {
    pub(crate) partitions: usize,
    pub(crate) ends: bool,
}

/// What building takes.
#[derive(Debug)]
pub(crate) struct Building {
    pub(crate) columns: BuildColumns,
    pub(crate) schema: SchemaRef,
    pub(crate) metrics: BuildMetrics,
    pub(crate) options: RmqOptions,
    pub(crate) room: Arc<RetainingPool>,
    pub(crate) probe: ProbeSide,
    engine: RangeJoinEngine,
    runtime: Arc<RuntimeEnv>,
}

impl Building {
    async fn run(
        self,
        partitions: Vec<SendableRecordBatchStream>,
        spill: Option<Arc<Spill>>,
    ) -> Result<Side> {
        let started = Instant::now();
        let (columns, schema) = (&self.columns, &self.schema);
        let rows = Rows::collect(columns, schema, partitions, &self.room, spill.clone()).await;
        self.metrics.build_time.add_elapsed(started);
        match rows.map_err(|error| self.explained(error))? {
            Rows::OnDisk(pieces, spill) => {
                self.metrics.build_rows.add(pieces.rows());
                self.spilled(pieces, spill)
            }
            Rows::InMemory(rows) if self.may_pick(&rows).await? => {
                let uncertain = DeferredBuild::new(self, rows, spill);
                Ok(Side::DeferredBuild(Arc::new(uncertain)))
            }
            Rows::InMemory(rows) => self.sort(rows, spill).await,
        }
    }

    /// Whether rows may be picked one by one.
    async fn may_pick(&self, rows: &Collected) -> Result<bool> {
        Ok(self.probe.ends
            && DeferredBuild::pays(&self.columns, &rows.batches)?
            && self.devices(rows).await?.is_none())
    }

    /// Makes rows in memory ready, or writes them to disk if there is not the memory for that.
    pub(crate) async fn sort(&self, rows: Collected, spill: Option<Arc<Spill>>) -> Result<Side> {
        let started = Instant::now();
        let side = self.sort_or_spill(rows, spill).await;
        self.metrics.build_time.add_elapsed(started);
        side.map_err(|error| self.explained(error))
    }

    async fn sort_or_spill(&self, rows: Collected, spill: Option<Arc<Spill>>) -> Result<Side> {
        let Some(spill) = spill else {
            let side = self.build(rows).await?;
            self.room.keep_nothing();
            return Ok(Side::Whole(Box::new(side)));
        };
        // In case that building has not the memory it takes.
        let kept = (rows.batches.clone(), self.room.reservation());
        match kept.1.try_grow(rows.memory.size()) {
            Ok(()) => {}
            // Those who compare few rows have room of it, too.
            Err(error) if is_exhausted(&error) => return self.to_disk(rows, spill).await,
            Err(error) => return Err(error),
        }
        match self.build(rows).await {
            Ok(side) => {
                drop(kept);
                self.room.keep_nothing();
                Ok(Side::Whole(Box::new(side)))
            }
            Err(error) if is_exhausted(&error) => {
                let (batches, memory) = kept;
                let schema = Arc::clone(&self.schema);
                let rows = Collected {
                    schema,
                    batches,
                    memory,
                };
                self.to_disk(rows, spill).await
            }
            Err(error) => Err(error),
        }
    }

    async fn to_disk(&self, rows: Collected, spill: Arc<Spill>) -> Result<Side> {
        let mut pieces = SpillRuns::with_room(self.room.granted());
        let first_row = RowOrder::default();
        spill.write(rows.batches, first_row, &mut pieces).await?;
        drop(rows.memory);
        self.spilled(pieces, spill)
    }

    async fn build(&self, rows: Collected) -> Result<BuildSide> {
        let devices = self.devices(&rows).await?;
        let threads = self.options.threads();
        build(&self.columns, rows, &self.metrics, threads, devices).await
    }

    async fn devices(&self, rows: &Collected) -> Result<Option<Devices>> {
        let count = rows.batches.iter().map(RecordBatch::num_rows).sum();
        self.engine.devices(count, &self.options).await
    }

    fn spilled(&self, pieces: SpillRuns, spill: Arc<Spill>) -> Result<Side> {
        self.engine.note_on_disk();
        let side = SpilledSide::try_new(pieces, spill, self)?;
        Ok(Side::Spilled(Arc::new(side)))
    }

    /// Says why nothing was written to disk where memory was wanting.
    fn explained(&self, error: DataFusionError) -> DataFusionError {
        match error.find_root() {
            DataFusionError::ResourcesExhausted(message)
                if !self.runtime.disk_manager.tmp_files_enabled() =>
            {
                DataFusionError::ResourcesExhausted(format!(
                    "{message}. The build side of a range join can't be written to disk, as the DiskManager is disabled"
                ))
            }
            _ => error,
        }
    }
}
