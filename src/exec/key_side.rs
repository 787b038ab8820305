//! The build side of a range join: in memory, or, where that is too small, on disk.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExprRef;

use super::key_build::{BuildSide, build};
use super::key_collect::{BuildColumns, Collected, Rows};
use super::key_engine::JoinEngine;
use super::key_metrics::BuildMetrics;
use super::key_pieces::{SpilledSide, is_exhausted};
use super::key_room::Room;
use super::key_spill::{Pieces, Spill};
use crate::options::RmqOptions;
use crate::plan::KeyJoinSpec;

/// The build side, ready to be asked.
#[derive(Debug)]
pub(super) enum Side {
    /// In memory.
    Whole(Box<BuildSide>),
    /// On disk.
    Spilled(Arc<SpilledSide>),
}

impl Side {
    /// Collects the build side and makes it ready for so many partitions.
    pub(super) async fn make(
        spec: &KeyJoinSpec<PhysicalExprRef>,
        input: SendableRecordBatchStream,
        metrics: BuildMetrics,
        context: Arc<TaskContext>,
        partitions: usize,
        engine: &JoinEngine,
    ) -> Result<Self> {
        let started = Instant::now();
        let columns = BuildColumns::of(spec);
        let building = Building {
            schema: columns.schema(&input.schema())?,
            columns,
            metrics,
            options: RmqOptions::of(context.session_config().options()),
            room: Room::new(context.memory_pool()),
            partitions,
        };
        let side = building.run(input, engine, &context).await;
        let taken = started.elapsed();
        building.metrics.build_time.add_duration(taken);
        side.map_err(|error| explained(error, &context))
    }
}

/// What building takes.
#[derive(Debug)]
pub(super) struct Building {
    pub(super) columns: BuildColumns,
    pub(super) schema: SchemaRef,
    pub(super) metrics: BuildMetrics,
    pub(super) options: RmqOptions,
    pub(super) room: Arc<Room>,
    /// Partitions of the probe side.
    pub(super) partitions: usize,
}

impl Building {
    async fn run(
        &self,
        input: SendableRecordBatchStream,
        engine: &JoinEngine,
        context: &TaskContext,
    ) -> Result<Side> {
        let key = self.columns.equal;
        // The row that prevails may lie in another piece than the window.
        let spill = if self.columns.prevailing {
            None
        } else {
            Spill::new(&self.schema, key, &self.metrics, context)?
        };
        let rows = Rows::collect(&self.columns, input, &self.room, spill.clone()).await?;
        let (rows, spill) = match (rows, spill) {
            (Rows::OnDisk(pieces, spill), _) => {
                self.metrics.build_rows.add(pieces.rows());
                return self.spilled(pieces, spill);
            }
            (Rows::InMemory(rows), None) => {
                let side = self.build(rows, engine).await?;
                self.room.keep(0);
                return Ok(Side::Whole(Box::new(side)));
            }
            (Rows::InMemory(rows), Some(spill)) => (rows, spill),
        };
        // In case that building has not the memory it takes.
        let kept = (rows.batches.clone(), self.room.reservation());
        kept.1.try_grow(rows.memory.size())?;
        match self.build(rows, engine).await {
            Ok(side) => {
                drop(kept);
                self.room.keep(0);
                Ok(Side::Whole(Box::new(side)))
            }
            Err(error) if is_exhausted(&error) => {
                let mut pieces = Pieces::with_room(self.room.granted());
                spill.write(kept.0, &mut pieces).await?;
                drop(kept.1);
                self.spilled(pieces, spill)
            }
            Err(error) => Err(error),
        }
    }

    async fn build(&self, rows: Collected, engine: &JoinEngine) -> Result<BuildSide> {
        let count = rows.batches.iter().map(RecordBatch::num_rows).sum();
        let devices = engine.devices(count, &self.options).await?;
        let threads = self.options.threads();
        build(&self.columns, rows, &self.metrics, threads, devices).await
    }

    fn spilled(&self, pieces: Pieces, spill: Arc<Spill>) -> Result<Side> {
        let side = SpilledSide::try_new(pieces, spill, self)?;
        Ok(Side::Spilled(Arc::new(side)))
    }
}

/// Says why nothing was written to disk where memory was wanting.
fn explained(error: DataFusionError, context: &TaskContext) -> DataFusionError {
    match error.find_root() {
        DataFusionError::ResourcesExhausted(message)
            if !context.runtime_env().disk_manager.tmp_files_enabled() =>
        {
            DataFusionError::ResourcesExhausted(format!(
                "{message}. The build side of a range join can't be written to disk, as the DiskManager is disabled"
            ))
        }
        _ => error,
    }
}
