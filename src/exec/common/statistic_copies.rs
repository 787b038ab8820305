//! Copies of order statistics on devices, which answer large batches of ranges sooner than the CPU, which builds them.

use std::sync::Arc;

use datafusion::common::Result;

use crate::kept::catalog::IndexCatalog;
use crate::kept::reserved_index::DeviceBytes;
use datafusion_rmq_logical::common::options::{EngineChoice, RmqOptions};
use rmq_arrow::common::errors::engine_error;
use rmq_arrow::index::column_statistics::ColumnStatistics;
use rmq_arrow::index::devices::DeviceEngine;

/// For fewer rows devices are not opened, which takes longer than the CPU to answer.
const MIN_ROWS_TO_OPEN: usize = 1 << 22;

/// The devices of a session that may get copies.
#[derive(Debug, Clone)]
pub(crate) struct CopyDevices {
    catalog: Arc<IndexCatalog>,
    options: RmqOptions,
}

impl CopyDevices {
    pub(crate) fn new(catalog: &Arc<IndexCatalog>, options: &RmqOptions) -> Self {
        Self {
            catalog: Arc::clone(catalog),
            options: options.clone(),
        }
    }

    /// Copies statistics to the devices, with up to `threads` threads, if there are any and they have room. Returns
    /// what registers their memory. May open devices, which blocks.
    pub(crate) fn copy(
        &self,
        statistics: &mut ColumnStatistics,
        threads: usize,
    ) -> Option<DeviceBytes> {
        let engine = self.engine(statistics.rows())?;
        match self.copy_to(&engine, statistics, threads) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                log::warn!("order statistics stay on the CPU: {error}");
                None
            }
        }
    }

    fn copy_to(
        &self,
        engine: &Arc<dyn DeviceEngine>,
        statistics: &mut ColumnStatistics,
        threads: usize,
    ) -> Result<DeviceBytes> {
        let limit = self.options.device_memory_limit;
        let bytes = self
            .catalog
            .reserve_on_devices(&**engine, statistics.bytes(), limit)
            .map_err(engine_error)?;
        statistics.copy_to(&**engine, threads)?;
        Ok(bytes)
    }

    /// The devices for statistics of this many rows.
    fn engine(&self, rows: usize) -> Option<Arc<dyn DeviceEngine>> {
        let known = self.catalog.devices().known(&self.options.cuda());
        match (self.options.engine, known) {
            (EngineChoice::Cpu, _) => None,
            (_, Some(known)) => known.ok(),
            (EngineChoice::Auto, None) if rows < MIN_ROWS_TO_OPEN => None,
            (EngineChoice::Auto | EngineChoice::Cuda, None) => {
                self.catalog.open_devices(&self.options).ok()
            }
        }
    }
}
