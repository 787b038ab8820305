//! What kernels get of a build side and of a batch.

use cudarc::driver::sys::CUdeviceptr;

/// Mirrors `Rows` in `kernels/range_join.cu`, which documents the fields.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceRows {
    pub keys: CUdeviceptr,
    pub fold: [u64; 2],
    pub flip: [u64; 2],
    pub ids: CUdeviceptr,
    pub narrow_ids: u32,
    pub groups: u32,
    pub n: u64,
}

/// `MAX_BOUNDS` of `kernels/range_join.cu`.
pub const MAX_BOUNDS: usize = 8;

/// Mirrors `Bound` in `kernels/range_join.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceBound {
    pub keys: CUdeviceptr,
    pub valid: CUdeviceptr,
    pub fold: [u64; 2],
    pub flip: [u64; 2],
    pub shift: i64,
    pub kind: u32,
    pub unused: u32,
}

/// Mirrors `Search` in `kernels/range_join.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceSearch {
    pub keys: CUdeviceptr,
    pub starts: CUdeviceptr,
    pub ids: CUdeviceptr,
    pub overflow: CUdeviceptr,
    pub narrow_ids: u32,
    pub groups: u32,
    pub bounds: u32,
    pub again: u32,
    pub prevailing: u32,
    pub unused: u32,
    pub bound: [DeviceBound; MAX_BOUNDS],
}
