//! Errors of engines.

use std::fmt;

/// An error while an index is built or a batch is answered.
///
/// Engines do not panic on invalid input: they return one of these.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineError {
    /// The slices of one batch (bounds and outputs) differ in length, or refer to positions that do not exist.
    Lengths {
        /// The slice that does not fit.
        what: &'static str,
        /// The required length: that of the left bounds, or one that follows from it.
        expected: usize,
        /// Its length.
        found: usize,
    },
    /// The memory for an index, or for a copy of a column, could not be allocated.
    OutOfMemory {
        /// Bytes of the allocation.
        bytes: usize,
    },
    /// A column has more values than the machine or the engine can address.
    TooLong {
        /// Values in the column.
        rows: usize,
    },
    /// A validity bitmap is too short for its column.
    Validity {
        /// Bits needed: the bit offset plus the length of the column.
        bits: usize,
        /// Bytes of the bitmap.
        bytes: usize,
    },
    /// Positions were requested of an index that was built without them
    /// ([`BuildOptions::positions`](crate::BuildOptions::positions)).
    NoPositions,
    /// The memory behind a borrowed column moved or changed its length after the index was built.
    ColumnMoved,
    /// A thread for building an index could not be started.
    Thread(String),
    /// The requested instruction set is not available on this machine.
    Unsupported(&'static str),
    /// Arguments do not fit each other, or what was built; the text tells which.
    Invalid(String),
    /// A bound of a row is moved beyond the values of its type
    /// ([`ProbeBound::shift`](crate::ProbeBound::shift)).
    Overflow,
    /// A build, or a listing of rows, was cancelled.
    Stopped,
    /// There is no usable GPU.
    NoDevice {
        /// The reason in one line: no driver, a driver that is too old, no device, or a device that is not supported.
        why: String,
    },
    /// A GPU has too little memory within the engine's limit.
    DeviceMemory {
        /// Ordinal of the device.
        ordinal: usize,
        /// Bytes requested.
        needed: usize,
        /// Bytes that are free.
        free: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A GPU failed. The engine does not use it again, unless its driver ran out of memory.
    Device {
        /// Ordinal of the device.
        ordinal: usize,
        /// The operation that failed.
        what: &'static str,
        /// The driver's message.
        why: String,
    },
}

impl EngineError {
    /// Returns whether a GPU caused the error, so that the CPU engine can be used instead.
    #[must_use]
    pub fn of_device(&self) -> bool {
        matches!(
            self,
            Self::NoDevice { .. } | Self::DeviceMemory { .. } | Self::Device { .. }
        )
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lengths {
                what,
                expected,
                found,
            } => write!(f, "{what} has length {found} where {expected} is needed"),
            Self::OutOfMemory { bytes } => {
                write!(
                    f,
                    "could not allocate {bytes} bytes for a range-minimum index"
                )
            }
            Self::TooLong { rows } => {
                write!(
                    f,
                    "a column of {rows} values is too long for a range-minimum index"
                )
            }
            Self::Validity { bits, bytes } => write!(
                f,
                "a validity bitmap of {bytes} bytes is too short: {bits} bits are needed"
            ),
            Self::NoPositions => f.write_str(
                "positions were requested of a range-minimum index that was built without them",
            ),
            Self::ColumnMoved => {
                f.write_str("the memory behind an indexed column changed after the index was built")
            }
            Self::Thread(why) => write!(f, "could not start a thread to build an index: {why}"),
            Self::Unsupported(what) => {
                write!(
                    f,
                    "this machine lacks {what}, which the engine was told to use"
                )
            }
            Self::Overflow => f.write_str("a bound is moved beyond the values of its type"),
            Self::Stopped => f.write_str("the work of a range-minimum index was stopped"),
            Self::NoDevice { why } | Self::Invalid(why) => f.write_str(why),
            Self::DeviceMemory {
                ordinal,
                needed,
                free,
                limit,
            } => write!(
                f,
                "{needed} bytes do not fit on CUDA device {ordinal}: {free} of the {limit} bytes that may be used are free"
            ),
            Self::Device { ordinal, what, why } => {
                write!(f, "CUDA device {ordinal} failed to {what}: {why}")
            }
        }
    }
}

impl std::error::Error for EngineError {}
