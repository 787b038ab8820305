//! A column becomes an index on one device.

use std::sync::atomic::{AtomicBool, Ordering};

use super::gpu::Gpu;
use super::key::CudaKey;
use super::layout::{Index, Layout};
use super::memory::DeviceMemory;
use super::module::{Function, Module};
use super::stream::{Stream, argument};
use super::upload::{copy_of, upload};
use crate::{Encoding, EngineError, Validity};

/// What is to be indexed.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a, K> {
    pub bits: &'a [K],
    pub encoding: Encoding<K>,
    /// Where there are NULLs; covers `bits`.
    pub validity: Option<&'a Validity>,
    pub positions: bool,
    pub threads: usize,
    /// Whether nobody wants the index any more.
    pub stop: &'a AtomicBool,
}

impl<K> Source<'_, K> {
    /// An error where the build is to stop.
    pub fn go_on(&self) -> Result<(), EngineError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(EngineError::Stopped);
        }
        Ok(())
    }
}

/// Uploads the column and builds its index in the memory that comes back.
pub fn build<K: CudaKey>(
    gpu: &Gpu,
    source: Source<'_, K>,
    layout: &Layout,
) -> Result<(Index, DeviceMemory), EngineError> {
    let kernels = Kernels::find::<K>(gpu, layout, source.positions)?;
    let bytes = usize::try_from(layout.bytes).unwrap_or(usize::MAX);
    let memory = DeviceMemory::within(&gpu.budget, &gpu.device, bytes)?;
    let words = |key: K| key.words();
    let (fold, flip) = (source.encoding.fold(), source.encoding.flip());
    let index = layout.index(memory.address(), words(fold), words(flip));
    // Dropped before the memory that it works on.
    let stream = Stream::new(&gpu.device)?;

    for (part, byte) in layout.paddings() {
        let at = memory.address() + part.start + part.bytes;
        // SAFETY: inside the memory, which nothing else uses yet.
        unsafe { stream.fill(at, byte, part.padding as usize)? };
    }
    stream.wait()?;
    if let Some(validity) = source.validity {
        // SAFETY: the index is of that layout and new; whoever made the source has checked the bitmap.
        unsafe { layout.valid.build(gpu, validity, &stream, &index)? };
    }

    // Slices are of whole tiles.
    let tile_bytes = layout.chunk() * layout.chunk() * size_of::<K>() as u64;
    let column = bytes_of(source.bits);
    // SAFETY: level 0 has room for the column. Each slice's kernel works on the slice alone (and the validity, which is
    // complete), and writes what belongs to its tiles alone; arguments are those of `build_bottom`.
    unsafe {
        upload(
            gpu,
            column.len(),
            copy_of(column),
            index.level[0],
            source.threads,
            |stream, slice| {
                source.go_on()?;
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

/// The kernels of a build.
#[derive(Debug)]
pub struct Kernels {
    pub bottom: Function,
    level: Function,
    table: Function,
}

impl Kernels {
    pub fn find<K: CudaKey>(
        gpu: &Gpu,
        layout: &Layout,
        positions: bool,
    ) -> Result<Self, EngineError> {
        let find = |name: &str| gpu.modules.function(Module::Build, name);
        let (key, chunk) = (K::NAME, layout.shape.chunk_bytes);
        let at = if positions { "_at" } else { "" };
        Ok(Self {
            bottom: find(&format!("build_bottom_{key}_c{chunk}{at}"))?,
            level: find(&format!("build_level_{key}_c{chunk}{at}"))?,
            table: find(&format!("build_table_{key}{at}"))?,
        })
    }

    /// Puts what fills the levels from the third on and the table on the stream.
    ///
    /// # Safety
    /// The levels below are complete or will be by then; the memory of `index`, which is of that layout, stays until the stream
    /// was waited for.
    pub unsafe fn build_above(
        &self,
        stream: &Stream,
        layout: &Layout,
        index: &Index,
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

/// Bits as the device gets them.
pub fn bytes_of<K: CudaKey>(bits: &[K]) -> &[u8] {
    // SAFETY: integers have no padding; the slice is as long as theirs.
    unsafe { std::slice::from_raw_parts(bits.as_ptr().cast(), std::mem::size_of_val(bits)) }
}
