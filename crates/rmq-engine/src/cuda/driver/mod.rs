//! The CUDA driver: devices and their contexts, kernels, streams, and the errors of each.

#[doc(hidden)]
pub mod device;
#[doc(hidden)]
pub mod devices;
#[doc(hidden)]
pub mod fault_injection;
#[doc(hidden)]
pub mod libcuda;
#[doc(hidden)]
pub mod module;
#[doc(hidden)]
pub mod stream;
