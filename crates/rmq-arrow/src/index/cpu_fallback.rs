//! The CPU engine's part where CUDA devices fail: the fallback index of a column, and the errors that allow a fallback.

use std::sync::{Arc, OnceLock};

use datafusion_common::{DataFusionError, Result, SharedResult};

use crate::index::key_index::KeyIndex;
use crate::index::sort_keys::Chunks;
use arrow::datatypes::DataType;
use rmq_engine::{EngineError, Extreme};

/// The CPU engine's index of a column whose index is on devices, built when the devices first fail.
#[derive(Debug)]
pub struct CpuFallback {
    /// The column, whose memory a table may own.
    chunks: Chunks,
    data_type: DataType,
    extreme: Extreme,
    threads: usize,
    index: OnceLock<SharedResult<Box<KeyIndex>>>,
}

impl CpuFallback {
    /// A fallback that encodes the column when it is needed.
    pub fn new(chunks: Chunks, data_type: DataType, extreme: Extreme, threads: usize) -> Self {
        Self {
            chunks,
            data_type,
            extreme,
            threads,
            index: OnceLock::new(),
        }
    }

    /// The fallback for the rows of several indexes, in their order; `None` if one has none.
    pub fn of_parts<'a>(parts: impl Iterator<Item = Option<&'a Self>>) -> Option<Self> {
        let parts: Vec<&Self> = parts.collect::<Option<_>>()?;
        let first = parts.first()?;
        let arrays = parts.iter().flat_map(|part| &part.chunks.arrays);
        let chunks = Chunks {
            arrays: arrays.cloned().collect(),
            owned_elsewhere: parts.iter().all(|part| part.chunks.owned_elsewhere),
        };
        let data_type = first.data_type.clone();
        Some(Self::new(chunks, data_type, first.extreme, first.threads))
    }

    /// The column.
    pub fn chunks(&self) -> &Chunks {
        &self.chunks
    }

    /// Bytes of the column, if nothing else accounts for them.
    pub fn owned_bytes(&self) -> usize {
        if self.chunks.owned_elsewhere {
            0
        } else {
            self.chunks.bytes()
        }
    }

    /// The index, built by the first call, for devices that failed with this message.
    ///
    /// # Errors
    /// Those of the build.
    pub fn index(&self, failure: &str) -> Result<&KeyIndex> {
        let built = self.index.get_or_init(|| {
            log::warn!(target: "datafusion_rmq", "{failure}; the CPU answers instead");
            self.build().map(Box::new).map_err(Arc::new)
        });
        match built {
            Ok(index) => Ok(index),
            Err(error) => Err(DataFusionError::Shared(Arc::clone(error))),
        }
    }

    fn build(&self) -> Result<KeyIndex> {
        KeyIndex::on_cpu(&self.chunks, &self.data_type, self.extreme, self.threads)
    }
}

/// The message of an error for which the CPU engine may take over from devices; `None` for an error of the query.
pub fn device_failure(error: &DataFusionError) -> Option<String> {
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
pub fn is_out_of_device_memory(error: &DataFusionError) -> bool {
    match error {
        DataFusionError::External(error) => {
            matches!(error.downcast_ref(), Some(EngineError::DeviceMemory { .. }))
        }
        _ => false,
    }
}
