//! An indexed column: Arrow's values as order-preserving keys, the index over them, and the catalog of the
//! indexes that a session holds. Knows Arrow and the engines, not plans.

mod arrange;
mod array_bytes;
mod bucket_sort;
mod catalog;
mod column;
mod compare;
mod device_keys;
mod devices;
mod dictionaries;
mod even;
mod float_sums;
mod group_numbers;
mod groups;
mod intern;
mod keys;
mod order_keys;
mod places;
mod prefix;
mod rank;
mod search;
mod segments;
mod sorted;
mod values;
mod version;

pub(crate) use arrange::{arrange, arrange_in_pieces, arranging_bytes};
pub(crate) use array_bytes::arrays_bytes;
pub(crate) use bucket_sort::SortContext;
pub(crate) use catalog::{DeviceBytes, HeldIndex, IndexKey};
pub use catalog::{HeldIndexInfo, IndexCatalog};
pub(crate) use column::{Answer, ColumnIndex, ReadyIndex};
pub(crate) use device_keys::{DeviceKeys, KeysAsked};
pub(crate) use devices::Target;
pub use devices::{DeviceEngine, DeviceSource};
pub(crate) use dictionaries::{fit, has_few_keys, select};
pub(crate) use float_sums::add_float_sums;
pub(crate) use groups::{Groups, NO_GROUP};
pub(crate) use keys::{Chunks, Encoded, check_ordered, is_ordered, key_bytes, value_type};
pub(crate) use order_keys::OrderKeys;
pub(crate) use places::Places;
pub(crate) use prefix::{Counts, Sums};
pub(crate) use search::LastFound;
pub(crate) use segments::Segments;
pub use sorted::Comparison;
pub(crate) use sorted::{SortedRows, Unsorted};
pub(crate) use values::Values;
pub(crate) use version::{FileVersion, LocalFile, Version};

use datafusion::common::DataFusionError;

use rmq_engine::EngineError;

/// An engine's error as DataFusion's: memory that was not granted is what DataFusion spills for.
pub(crate) fn engine_error(error: EngineError) -> DataFusionError {
    match error {
        EngineError::OutOfMemory { .. } => {
            DataFusionError::ResourcesExhausted(error.to_string())
        }
        error => DataFusionError::External(Box::new(error)),
    }
}
