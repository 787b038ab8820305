//! Stores the rows of a build side in spill runs on disk and reads them again, and retains the memory that reading them
//! needs. Knows nothing of sorting, indexes or the probe side.

pub(crate) mod key_extent;
pub(crate) mod partition_writer;
pub(crate) mod reader;
pub(crate) mod retaining_pool;
pub(crate) mod routing;
pub(crate) mod row_position;
pub(crate) mod run;
pub(crate) mod store;
