//! What can go wrong in an engine.

use std::fmt;

/// Why an index could not be built or a batch not be answered.
///
/// An engine never panics on bad input: it returns one of these.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineError {
    /// The slices of one batch (bounds and outputs) differ in length.
    Lengths {
        /// Which slice does not fit.
        what: &'static str,
        /// The length it should have: that of the left bounds, or what follows from it.
        expected: usize,
        /// The length it has.
        found: usize,
    },
    /// The memory for an index, or for a copy of a column, could not be had.
    OutOfMemory {
        /// Bytes asked for in one piece.
        bytes: usize,
    },
    /// A column has more values than this machine, or this engine, can address.
    TooLong {
        /// Values in the column.
        rows: usize,
    },
    /// A validity bitmap is too short for its column.
    Validity {
        /// Bits needed: the bit offset plus the length of the column.
        bits: usize,
        /// Bytes the bitmap has.
        bytes: usize,
    },
    /// Positions were asked of an index that was built without them
    /// ([`BuildOptions::positions`](crate::BuildOptions::positions)).
    NoPositions,
    /// The memory behind a borrowed column moved or changed its length after the index was built.
    ColumnMoved,
    /// A thread that helped to build an index could not be started.
    Thread(String),
    /// An engine was asked for instructions that this machine does not have.
    Unsupported(&'static str),
    /// A build was stopped, as nobody wanted the index any more.
    Stopped,
    /// There is no GPU to use.
    NoDevice {
        /// Why, in one line: no driver, one that is too old, no device, one that does not serve.
        why: String,
    },
    /// The memory of a GPU that the engine may use does not suffice.
    DeviceMemory {
        /// Which device.
        ordinal: usize,
        /// Bytes asked for.
        needed: usize,
        /// Bytes that could be had.
        free: usize,
        /// Bytes that may be used in all.
        limit: usize,
    },
    /// A GPU failed. The engine does not use it again, unless its driver lacked memory.
    Device {
        /// Which device.
        ordinal: usize,
        /// What it was asked to do.
        what: &'static str,
        /// What the driver says.
        why: String,
    },
}

impl EngineError {
    /// Whether a GPU is the reason, so that the CPU engine would have an answer.
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
                "positions were asked of a range-minimum index that was built without them",
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
            Self::Stopped => f.write_str("the build of a range-minimum index was stopped"),
            Self::NoDevice { why } => f.write_str(why),
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
