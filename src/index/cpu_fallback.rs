//! The CPU engine's part where CUDA devices fail: the fallback index of a column, and the errors that allow a fallback.

use std::sync::{Arc, OnceLock};

use datafusion::common::{DataFusionError, Result, SharedResult};

use crate::index::decoder::Decoder;
use crate::index::key_index::KeyIndex;
use crate::index::sort_keys::{Chunks, Encoded, KeyColumn, encode};
use arrow::datatypes::DataType;
use rmq_engine::cpu::CpuEngine;
use rmq_engine::{BuildOptions, EngineError, Extreme};

/// The CPU engine's index of a column whose index is on devices, built when the devices first fail.
#[derive(Debug)]
pub(crate) struct CpuFallback {
    column: FallbackColumn,
    options: BuildOptions,
    index: OnceLock<SharedResult<Box<KeyIndex>>>,
}

/// The column that the fallback index is built of.
#[derive(Debug)]
enum FallbackColumn {
    /// The arrays, whose memory a table may own.
    Arrays {
        chunks: Chunks,
        data_type: DataType,
        extreme: Extreme,
    },
    /// The encoded column, shared with the devices' index.
    Encoded { column: KeyColumn, decoder: Decoder },
}

impl CpuFallback {
    /// A fallback that encodes the arrays when it is needed.
    pub(crate) fn from_arrays(
        chunks: Chunks,
        data_type: DataType,
        extreme: Extreme,
        threads: usize,
    ) -> Self {
        let column = FallbackColumn::Arrays {
            chunks,
            data_type,
            extreme,
        };
        let positions = true;
        Self::new(column, BuildOptions { positions, threads })
    }

    /// A fallback that keeps the encoded column.
    pub(crate) fn from_encoded(encoded: &Encoded, options: &BuildOptions) -> Self {
        let column = FallbackColumn::Encoded {
            column: encoded.column.clone(),
            decoder: encoded.decoder.clone(),
        };
        Self::new(column, *options)
    }

    fn new(column: FallbackColumn, options: BuildOptions) -> Self {
        Self {
            column,
            options,
            index: OnceLock::new(),
        }
    }

    /// The index, built by the first call, for devices that failed with this message.
    ///
    /// # Errors
    /// Those of the build.
    pub(crate) fn index(&self, failure: &str) -> Result<&KeyIndex> {
        let built = self.index.get_or_init(|| {
            log::warn!("{failure}; the CPU answers instead");
            self.build().map(Box::new).map_err(Arc::new)
        });
        match built {
            Ok(index) => Ok(index),
            Err(error) => Err(DataFusionError::Shared(Arc::clone(error))),
        }
    }

    fn build(&self) -> Result<KeyIndex> {
        let (column, decoder) = match &self.column {
            FallbackColumn::Arrays {
                chunks,
                data_type,
                extreme,
            } => {
                let encoded = encode(chunks, data_type, *extreme)?;
                (encoded.column, encoded.decoder)
            }
            FallbackColumn::Encoded { column, decoder } => (column.clone(), decoder.clone()),
        };
        KeyIndex::build(&CpuEngine::default(), column, decoder, &self.options)
    }
}

/// The message of an error for which the CPU engine may take over from devices; `None` for an error of the query.
pub(crate) fn device_failure(error: &DataFusionError) -> Option<String> {
    match error {
        DataFusionError::External(error) => {
            let error = error.downcast_ref::<EngineError>();
            error.map(ToString::to_string)
        }
        DataFusionError::ResourcesExhausted(why) => Some(why.clone()),
        _ => None,
    }
}

/// Whether the error is that a device has too little free memory.
pub(crate) fn is_out_of_device_memory(error: &DataFusionError) -> bool {
    match error {
        DataFusionError::External(error) => {
            matches!(error.downcast_ref(), Some(EngineError::DeviceMemory { .. }))
        }
        _ => false,
    }
}
