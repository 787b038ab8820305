//! The validity tree on a device, built from an Arrow bitmap.

use cudarc::driver::sys::CUdeviceptr;

use super::layout::{DeviceIndex, ValidityLayout};
use crate::cuda::driver::stream::{Stream, argument};
use crate::cuda::gpu::Gpu;
use crate::cuda::kernels::BUILD;
use crate::cuda::memory::device_memory::DeviceMemory;
use crate::cuda::memory::upload::{copy_of, upload};
use crate::{EngineError, Validity};

impl ValidityLayout {
    /// Uploads the bitmap and builds the tree of `index` from it.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Safety
    /// `index` has this layout, and nothing else uses its tree meanwhile; the bitmap covers its rows.
    pub unsafe fn build(
        &self,
        gpu: &Gpu,
        validity: &Validity,
        stream: &Stream,
        index: &DeviceIndex,
    ) -> Result<(), EngineError> {
        let from_bitmap = gpu.modules.function(BUILD, "build_valid_words")?;
        let (offset, rows) = (validity.offset(), index.n);
        let end = (offset + rows as usize).div_ceil(8);
        let bitmap = &validity.bytes()[offset / 8..end];
        let bit_offset = offset as u64 % 8;
        let memory = DeviceMemory::within(&gpu.budget, &gpu.device, bitmap.len())?;
        let address: CUdeviceptr = memory.address();
        // SAFETY: the memory is as long as the bitmap.
        unsafe {
            upload(
                &gpu.pinned,
                bitmap.len(),
                copy_of(bitmap),
                address,
                1,
                |_, _| Ok(()),
            )?;
        };
        let arguments = [
            argument(&address),
            argument(&bit_offset),
            argument(&rows),
            argument(&index.valid[0]),
        ];
        // SAFETY: the bitmap covers `rows` bits from `bit_offset` on and stays valid until the stream was waited for
        // (on an error, freeing it waits); arguments are those of `build_valid_words`.
        unsafe { stream.launch(from_bitmap, self.words[0], arguments)? };
        // SAFETY: the lowest level is complete when the kernels run; guaranteed by the caller.
        unsafe { self.build_above(gpu, stream, index)? };
        stream.wait()
    }

    /// Enqueues the build of all levels above the lowest.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Safety
    /// `index` has this layout, and nothing else uses its tree until the stream was waited for; its lowest level is
    /// complete when the kernels run.
    pub unsafe fn build_above(
        &self,
        gpu: &Gpu,
        stream: &Stream,
        index: &DeviceIndex,
    ) -> Result<(), EngineError> {
        let parent = gpu.modules.function(BUILD, "build_valid_parent")?;
        for above in 1..self.depth {
            let below = self.words[above - 1];
            let arguments = [
                argument(&index.valid[above - 1]),
                argument(&below),
                argument(&index.valid[above]),
            ];
            // SAFETY: the level below is complete; arguments are those of `build_valid_parent`.
            unsafe { stream.launch(parent, below, arguments)? };
        }
        Ok(())
    }
}
