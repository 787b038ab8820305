//! An indexed column: Arrow's values as order-preserving keys, the index over them, and the catalog of the
//! indexes that a session holds. Knows Arrow and the engines, not plans.

mod catalog;
mod column;
mod devices;
mod groups;
mod keys;
mod order_keys;
mod prefix;
mod rank;
mod sorted;
mod version;

pub(crate) use catalog::{HeldIndex, IndexKey};
pub use catalog::{HeldIndexInfo, IndexCatalog};
pub(crate) use column::{Answer, ColumnIndex, ReadyIndex};
pub(crate) use devices::Target;
pub use devices::{DeviceEngine, DeviceSource};
pub(crate) use groups::Groups;
pub(crate) use keys::{Chunks, check_ordered, is_ordered, key_bytes, value_type};
pub(crate) use order_keys::OrderKeys;
pub(crate) use prefix::{Counts, Sums};
pub use sorted::Comparison;
pub(crate) use sorted::{Segments, SortedRows, Unsorted};
pub(crate) use version::{FileVersion, Version};

use datafusion::common::DataFusionError;

use crate::engine::EngineError;

impl From<EngineError> for DataFusionError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::OutOfMemory { .. } => Self::ResourcesExhausted(error.to_string()),
            error => Self::External(Box::new(error)),
        }
    }
}
