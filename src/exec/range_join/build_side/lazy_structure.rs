//! Structures that are built once the ranges that they answer justify it.

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use rmq_arrow::common::ranges::Ranges;

/// A structure of a value column, whose ranges are answered also before it is built.
pub(crate) trait LazyStructure: Debug + Send + Sync {
    /// Whether it should be built before these ranges are answered. Counts the ranges.
    fn should_build(&self, ranges: &Ranges) -> bool;

    /// Builds it unless it is built already. Blocks, and can't be stopped.
    ///
    /// # Errors
    /// The engine's.
    fn build(&self) -> Result<()>;

    /// What registers its memory, and that of the column while it refers to it.
    fn memory(&self) -> Vec<Arc<MemoryReservation>>;
}
