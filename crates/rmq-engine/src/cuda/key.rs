//! What the engine needs to know about a key width.

use super::driver::module::Module;
use super::kernels;
use super::memory::pinned::DeviceValue;
use crate::{Column, ColumnChunks, Key};

/// A key width that has kernels.
pub trait CudaKey: Key + DeviceValue {
    /// The width as it appears in the names of kernels.
    const NAME: &'static str;

    /// The module of the kernels that answer range-minimum queries.
    const ANSWER: Module;

    /// Returns the chunks of a column if it has this width.
    fn chunks(column: &ColumnChunks) -> Option<&[Column<Self>]>;

    /// The module of the kernels that search for thresholds.
    const CROSSING: Module;

    /// Splits the key into two words, the low one first.
    fn words(self) -> [u64; 2];
}

macro_rules! cuda_key {
    ($key:ident, $width:ident, $answer:expr, $crossing:expr, $words:expr) => {
        impl CudaKey for $key {
            const NAME: &'static str = stringify!($key);
            const ANSWER: Module = $answer;
            const CROSSING: Module = $crossing;

            fn chunks(column: &ColumnChunks) -> Option<&[Column<Self>]> {
                match column {
                    ColumnChunks::$width(chunks) => Some(chunks),
                    _ => None,
                }
            }

            fn words(self) -> [u64; 2] {
                $words(self)
            }
        }
    };
}

cuda_key!(
    u32,
    W32,
    kernels::ANSWER_U32,
    kernels::CROSSING_U32,
    |key| [u64::from(key), 0]
);
cuda_key!(
    u64,
    W64,
    kernels::ANSWER_U64,
    kernels::CROSSING_U64,
    |key| [key, 0]
);
cuda_key!(
    u128,
    W128,
    kernels::ANSWER_U128,
    kernels::CROSSING_U128,
    |key: u128| [key as u64, (key >> 64) as u64]
);
