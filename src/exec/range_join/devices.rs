//! The devices that a range join runs on, and the fallback to the CPU if they fail.

use std::sync::Arc;

use datafusion::common::{DataFusionError, Result};

use crate::common::errors::engine_error;
use crate::common::options::ByteSize;
use crate::exec::common::blocking::Waiting;
use crate::exec::range_join::spill::retaining_pool::is_out_of_memory;
use crate::index::catalog::{DeviceBytes, IndexCatalog};
use crate::index::cpu_fallback::device_failure;
use crate::index::devices::DeviceEngine;
use rmq_engine::EngineError;

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

    /// Whether the CPU may take over after a device failed.
    pub(crate) fn allow_cpu_fallback(&self) -> bool {
        !self.forced
    }

    /// Turns the failure of an attempt on devices into `None`, for which the caller continues on the CPU: logs the
    /// failure and records it by `record_fallback`. The only place that decides between the CPU and an error.
    ///
    /// # Errors
    /// The attempt's error if the devices are forced, or if it is not an error of devices.
    pub(crate) fn or_cpu_fallback<T>(
        &self,
        attempt: Result<T>,
        record_fallback: impl FnOnce(),
    ) -> Result<Option<T>> {
        let error = match attempt {
            Ok(done) => return Ok(Some(done)),
            Err(error) => error,
        };
        if self.forced {
            return Err(error.context("rmq.engine = 'cuda': a range join"));
        }
        let reason = device_failure(&error).ok_or(error)?;
        log::warn!("the CPU answers a range join: {reason}");
        record_fallback();
        Ok(None)
    }
}

/// Whether an error says that the memory of the host or of devices does not suffice.
pub(crate) fn is_short_of_memory(error: &DataFusionError) -> bool {
    is_out_of_memory(error) || is_device_shortage(error)
}

/// Whether an error says that devices have too little memory.
pub(crate) fn is_device_shortage(error: &DataFusionError) -> bool {
    match error.find_root() {
        DataFusionError::External(error) => {
            matches!(error.downcast_ref(), Some(EngineError::DeviceMemory { .. }))
        }
        _ => false,
    }
}
