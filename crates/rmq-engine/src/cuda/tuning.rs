//! Constants chosen by measurement.

/// Queries that go to a device at once. A larger batch is split into chunks of this size, so that the copies of one
/// chunk overlap with the work on others. The bounds of a chunk fit into a core's cache.
pub const BATCH: usize = 1 << 18;

/// The most batches in flight on a device; further callers wait.
pub const MAX_IN_FLIGHT: usize = 32;

/// Bytes of a column that go to a device at once: a multiple of the tiles of all shapes.
pub const SLICE_BYTES: usize = 4 << 20;

/// The most threads that fill slices. Together they read memory faster than the bus transfers it.
pub const MAX_UPLOAD_THREADS: usize = 8;

/// The most threads that fill slices of a build side, whose group ids are converted on the way.
pub const MAX_JOIN_UPLOAD_THREADS: usize = 16;
