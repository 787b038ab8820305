//! What the engine needs to know of a width of keys.

use std::sync::Arc;

use super::module::Module;
use super::pinned::Pod;
use crate::cpu::CpuEngine;
use crate::{BuildOptions, Column, Engine, EngineError, Key, RangeIndex};

/// A key with kernels.
pub trait CudaKey: Key + Pod {
    /// In the names of kernels.
    const NAME: &'static str;

    /// Where the kernels are that answer.
    const ANSWER: Module;

    /// The key in two words, the low one first.
    fn words(self) -> [u64; 2];

    /// An index of the CPU engine.
    fn on_cpu(
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<Self>>, EngineError>;
}

macro_rules! cuda_key {
    ($key:ident, $module:ident, $build:ident, $words:expr) => {
        impl CudaKey for $key {
            const NAME: &'static str = stringify!($key);
            const ANSWER: Module = Module::$module;

            fn words(self) -> [u64; 2] {
                $words(self)
            }

            fn on_cpu(
                column: Column<Self>,
                options: &BuildOptions,
            ) -> Result<Arc<dyn RangeIndex<Self>>, EngineError> {
                CpuEngine::new().$build(column, options)
            }
        }
    };
}

cuda_key!(u32, AnswerU32, build_u32, |key| [u64::from(key), 0]);
cuda_key!(u64, AnswerU64, build_u64, |key| [key, 0]);
cuda_key!(u128, AnswerU128, build_u128, |key: u128| [
    key as u64,
    (key >> 64) as u64
]);
