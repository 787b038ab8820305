//! The devices that a range join runs on, and the fallback to the CPU if they fail.

use std::sync::Arc;

use datafusion::common::{DataFusionError, Result};

use crate::exec::common::blocking::Waiting;
use crate::kept::catalog::IndexCatalog;
use crate::kept::reserved_index::DeviceBytes;
use datafusion_rmq_logical::common::options::ByteSize;
use rmq_arrow::common::errors::engine_error;
use rmq_arrow::index::cpu_fallback::device_failure;
use rmq_arrow::index::devices::{DeviceEngine, Target};

/// The devices that the engine choice selected for a build side.
#[derive(Debug, Clone)]
pub(crate) struct JoinDevices {
    pub(crate) engine: Arc<dyn DeviceEngine>,
    pub(crate) catalog: Arc<IndexCatalog>,
    /// The most bytes that the session may take on each device.
    pub(crate) memory_limit: Option<ByteSize>,
    /// Whether `rmq.engine = 'cuda'`, so that a failure is an error instead of a fallback to the CPU.
    pub(crate) forced: bool,
}

impl JoinDevices {
    /// The devices, as what is kept on them names them.
    pub(crate) fn target(&self) -> Target {
        Target::Devices(Arc::clone(&self.engine))
    }

    /// Reserves bytes on each device.
    ///
    /// # Errors
    /// An engine error if the devices or the session's limit have no room.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<DeviceBytes> {
        self.catalog
            .reserve_on_devices(&*self.engine, bytes, self.memory_limit)
            .map_err(engine_error)
    }

    /// The engine, whose builds end early once the query is cancelled.
    pub(crate) fn cancellable_engine(&self, waiting: &Waiting) -> Arc<dyn DeviceEngine> {
        self.engine.until(Arc::clone(waiting.stop()))
    }

    /// Why the CPU takes over after a failure of devices, which is logged: the only place that decides between the CPU
    /// and an error.
    ///
    /// # Errors
    /// The failure if the devices are forced, or if it is not one of devices.
    pub(crate) fn why_cpu(&self, failure: DataFusionError) -> Result<String> {
        if self.forced {
            return Err(failure.context("rmq.engine = 'cuda': a range join"));
        }
        let why = device_failure(&failure).ok_or(failure)?;
        log::warn!("the CPU answers a range join: {why}");
        Ok(why)
    }
}
