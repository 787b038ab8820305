//! The index of the paper's kernels, as they get it.

use cudarc::driver::sys::CUdeviceptr;
use rmq_engine::cuda::rmq::layout::DeviceIndex;

/// The most levels of an index, the column included.
pub const MAX_PAPER_LEVELS: usize = 12;

/// Mirrors `PaperIndex` in `kernels/baselines/paper.cu`, which documents the fields. Passed to kernels by value.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PaperIndex {
    pub column: DeviceIndex,
    pub level: [CUdeviceptr; MAX_PAPER_LEVELS],
    pub position: [CUdeviceptr; MAX_PAPER_LEVELS],
    pub top: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `DeviceIndex` is aligned to 8 bytes, and so is the end of the struct.
    #[test]
    fn paper_index_matches_the_struct_of_the_kernels() {
        let lists = 2 * MAX_PAPER_LEVELS * 8;
        let column = size_of::<DeviceIndex>();
        assert_eq!(std::mem::offset_of!(PaperIndex, top), column + lists);
        assert_eq!(size_of::<PaperIndex>(), column + lists + 8);
    }
}
