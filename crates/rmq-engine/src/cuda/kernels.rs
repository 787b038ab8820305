//! The engine's kernels as PTX, compiled from `kernels/*.cu`.

use super::driver::module::Module;

macro_rules! module {
    ($name:literal) => {
        Module {
            name: $name,
            ptx: include_str!(concat!("../../kernels/ptx/", $name, ".ptx")),
        }
    };
}

/// Levels, sparse table and validity tree of an index.
pub const BUILD: Module = module!("build");

/// Range-minimum queries over 32-bit keys.
pub const ANSWER_U32: Module = module!("answer_u32");

/// Range-minimum queries over 64-bit keys.
pub const ANSWER_U64: Module = module!("answer_u64");

/// Range-minimum queries over 128-bit keys.
pub const ANSWER_U128: Module = module!("answer_u128");

/// Threshold searches over 32-bit keys.
pub const CROSSING_U32: Module = module!("crossing_u32");

/// Threshold searches over 64-bit keys.
pub const CROSSING_U64: Module = module!("crossing_u64");

/// Threshold searches over 128-bit keys.
pub const CROSSING_U128: Module = module!("crossing_u128");

/// Stable sorts and prefix sums.
pub const SORT: Module = module!("sort");

/// Build sides of range joins, and queries of them.
pub const RANGE_JOIN: Module = module!("range_join");

/// Sums of ranges of floats.
pub const FLOAT_SUMS: Module = module!("float_sums");

/// Order statistics of ranges.
pub const WAVELET_MATRIX: Module = module!("wavelet_matrix");
