//! Errors of the engine as DataFusion's.

use datafusion::common::DataFusionError;

use rmq_engine::EngineError;

/// An engine's error as DataFusion's: memory that was not granted is what DataFusion spills for.
pub(crate) fn engine_error(error: EngineError) -> DataFusionError {
    match error {
        EngineError::OutOfMemory { .. } => DataFusionError::ResourcesExhausted(error.to_string()),
        error => DataFusionError::External(Box::new(error)),
    }
}
