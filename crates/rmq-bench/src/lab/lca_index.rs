//! The Cartesian tree, as its kernels get it.

use cudarc::driver::sys::CUdeviceptr;
use rmq_engine::cuda::rmq::layout::DeviceIndex;

/// Mirrors `LcaIndex` in `kernels/baselines/lca.cu`, which documents the fields. Passed to kernels by value.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct LcaIndex {
    pub column: DeviceIndex,
    pub parent: CUdeviceptr,
    pub labels: CUdeviceptr,
    pub head: CUdeviceptr,
    pub level: CUdeviceptr,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lca_index_matches_the_struct_of_the_kernels() {
        let column = size_of::<DeviceIndex>();
        assert_eq!(std::mem::offset_of!(LcaIndex, level), column + 3 * 8);
        assert_eq!(size_of::<LcaIndex>(), column + 4 * 8);
    }
}
