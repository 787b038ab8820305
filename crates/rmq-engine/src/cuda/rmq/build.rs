//! Builds the index of a column on one device.

use std::sync::atomic::{AtomicBool, Ordering};

use super::layout::{DeviceIndex, Layout};
use crate::cuda::driver::module::Function;
use crate::cuda::driver::stream::{Stream, argument};
use crate::cuda::gpu::Gpu;
use crate::cuda::kernels::BUILD;
use crate::cuda::key::CudaKey;
use crate::cuda::memory::device_memory::DeviceMemory;
use crate::cuda::memory::upload::{copy_of, upload};
use crate::cuda::tuning::MAX_UPLOAD_THREADS;
use crate::{Encoding, EngineError, Validity};

/// A column to index, and how.
#[derive(Debug, Clone, Copy)]
pub struct ColumnSource<'a, K> {
    pub bits: &'a [K],
    pub encoding: Encoding<K>,
    /// The validity bitmap of a column with NULLs, at least as long as `bits`.
    pub validity: Option<&'a Validity>,
    /// Whether to build what kernels for positions need.
    pub positions: bool,
    pub threads: usize,
    /// Set to stop the build.
    pub stop: &'a AtomicBool,
}

impl<K> ColumnSource<'_, K> {
    /// Ends a build that was stopped.
    ///
    /// # Errors
    /// [`EngineError::Stopped`] if `stop` is set.
    pub fn check_stopped(&self) -> Result<(), EngineError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(EngineError::Stopped);
        }
        Ok(())
    }
}

/// Uploads a column and builds its index in the returned memory.
///
/// # Errors
/// [`EngineError::DeviceMemory`] if the index does not fit, [`EngineError::Stopped`], and those of the device.
pub fn build<K: CudaKey>(
    gpu: &Gpu,
    source: ColumnSource<'_, K>,
    layout: &Layout,
) -> Result<(DeviceIndex, DeviceMemory), EngineError> {
    let kernels = BuildKernels::find::<K>(gpu, layout, source.positions)?;
    let (index, memory) = allocate(gpu, source.encoding, layout)?;
    // Declared after the memory that it works on: on an error its drop comes first, which waits.
    let stream = Stream::new(&gpu.device)?;
    // SAFETY: the index is new, has this layout, and outlives the stream.
    unsafe { fill_paddings(&stream, layout, &index)? };
    stream.wait()?;
    if let Some(validity) = source.validity {
        // SAFETY: the index is new and has this layout; the bitmap covers the column.
        unsafe { layout.validity.build(gpu, validity, &stream, &index)? };
    }

    // A slice has whole tiles, except the last one.
    let tile_bytes = layout.chunk() * layout.chunk() * size_of::<K>() as u64;
    let column = bytes_of(source.bits);
    // SAFETY: level 0 has room for the column. The kernel of a slice reads the slice and the validity, which is
    // complete, and writes only entries of its tiles; arguments are those of `build_bottom`.
    unsafe {
        upload(
            &gpu.pinned,
            column.len(),
            copy_of(column),
            index.level[0],
            source.threads.min(MAX_UPLOAD_THREADS),
            |stream, slice| {
                source.check_stopped()?;
                let first = slice.start as u64 / tile_bytes;
                let tiles = (slice.end as u64).div_ceil(tile_bytes) - first;
                let arguments = [argument(&index), argument(&first), argument(&tiles)];
                stream.launch(kernels.bottom, tiles * 32, arguments)
            },
        )?;
    }
    // SAFETY: levels 1 and 2 are complete, and the index has room for the rest.
    unsafe { kernels.build_above(&stream, layout, &index)? };
    stream.wait()?;
    Ok((index, memory))
}

/// Allocates the memory of an index.
///
/// # Errors
/// Those of [`DeviceMemory::within`].
pub fn allocate<K: CudaKey>(
    gpu: &Gpu,
    encoding: Encoding<K>,
    layout: &Layout,
) -> Result<(DeviceIndex, DeviceMemory), EngineError> {
    let bytes = usize::try_from(layout.bytes).unwrap_or(usize::MAX);
    let memory = DeviceMemory::within(&gpu.budget, &gpu.device, bytes)?;
    let (fold, flip) = (encoding.fold(), encoding.flip());
    let index = layout.index(memory.address(), fold.words(), flip.words());
    Ok((index, memory))
}

/// Enqueues the writing of what kernels read behind the entries of levels.
///
/// # Errors
/// Those of [`Stream::memset`].
///
/// # Safety
/// `index` has this layout; its memory is used by nothing else yet, and stays valid until the stream was waited for.
pub unsafe fn fill_paddings(
    stream: &Stream,
    layout: &Layout,
    index: &DeviceIndex,
) -> Result<(), EngineError> {
    // The column is the first region.
    let base = index.level[0] - layout.level[0].start;
    for (region, byte) in layout.paddings() {
        let padding = base + region.start + region.bytes;
        // SAFETY: within the index.
        unsafe { stream.memset(padding, byte, region.padding as usize)? };
    }
    Ok(())
}

/// The kernels of a build.
#[derive(Debug)]
pub struct BuildKernels {
    /// Makes levels 1 and 2 of some tiles.
    pub bottom: Function,
    level: Function,
    table: Function,
}

impl BuildKernels {
    /// Finds the kernels for a key width and a layout.
    ///
    /// # Errors
    /// Those of [`Modules::function`](crate::cuda::driver::module::Modules::function).
    pub fn find<K: CudaKey>(
        gpu: &Gpu,
        layout: &Layout,
        positions: bool,
    ) -> Result<Self, EngineError> {
        let find = |name: &str| gpu.modules.function(BUILD, name);
        let (key, chunk) = (K::NAME, layout.shape.chunk_bytes);
        let at = if positions { "_at" } else { "" };
        Ok(Self {
            bottom: find(&format!("build_bottom_{key}_c{chunk}{at}"))?,
            level: find(&format!("build_level_{key}_c{chunk}{at}"))?,
            table: find(&format!("build_table_{key}{at}"))?,
        })
    }

    /// Enqueues the build of level 3 and above, and of the table.
    ///
    /// # Errors
    /// Those of [`Stream::launch`].
    ///
    /// # Safety
    /// Levels 1 and 2 are complete or will be when the kernels run; `index` has this layout, and its memory stays valid
    /// until the stream was waited for.
    pub unsafe fn build_above(
        &self,
        stream: &Stream,
        layout: &Layout,
        index: &DeviceIndex,
    ) -> Result<(), EngineError> {
        for k in 3..=index.top {
            let entries = layout.entries[k as usize];
            // SAFETY: level k - 1 is complete; arguments are those of `build_level`.
            unsafe { stream.launch(self.level, entries, [argument(index), argument(&k)])? };
        }
        let entries = layout.entries[layout.top];
        for row in (0..index.rows - 1).step_by(3) {
            let arguments = [argument(index), argument(&entries), argument(&row)];
            // SAFETY: `row` is complete; arguments are those of `build_table`.
            unsafe { stream.launch(self.table, entries, arguments)? };
        }
        Ok(())
    }
}

/// Returns the bytes of a slice of keys.
pub fn bytes_of<K: CudaKey>(bits: &[K]) -> &[u8] {
    // SAFETY: keys are integers, which have no padding; the slice covers their memory.
    unsafe { std::slice::from_raw_parts(bits.as_ptr().cast(), std::mem::size_of_val(bits)) }
}
