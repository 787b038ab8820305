//! Conversion of the engine's errors.

use datafusion_common::DataFusionError;

use rmq_engine::EngineError;

/// Converts an engine's error. Missing memory becomes `ResourcesExhausted`, at which operators spill.
pub fn engine_error(error: EngineError) -> DataFusionError {
    match error {
        EngineError::OutOfMemory { .. } => DataFusionError::ResourcesExhausted(error.to_string()),
        error => DataFusionError::External(Box::new(error)),
    }
}
