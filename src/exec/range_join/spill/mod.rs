//! Stores the rows of a build side in spill runs on disk and reads them again, and retains the memory that reading them
//! needs. Knows nothing of sorting, indexes or the probe side.
//!
//! Where the pool has a limit, memory for building is reserved before rows are taken, by a pool within the session's
//! (the retaining pool), so that granted memory cannot be lost to other operators half-way. If the pool denies a
//! request, or building takes more than was reserved, the rows go to disk.

pub(crate) mod key_extent;
pub(crate) mod partition_writer;
pub(crate) mod reader;
pub(crate) mod retaining_pool;
pub(crate) mod routing;
pub(crate) mod row_position;
pub(crate) mod run;
pub(crate) mod store;
