//! Minima of neighbouring keys in vector instructions: one implementation per instruction set.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod kernel;
pub(crate) mod portable;
