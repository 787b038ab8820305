//! Memory of devices, pinned memory of the host, and uploads from one to the other.

#[doc(hidden)]
pub mod device_memory;
#[doc(hidden)]
pub mod pinned;
#[doc(hidden)]
pub mod upload;
