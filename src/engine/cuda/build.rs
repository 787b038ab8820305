//! A column becomes an index on one device.

use super::gpu::Gpu;
use super::key::CudaKey;
use super::layout::{Index, Layout};
use super::memory::DeviceMemory;
use super::module::{Function, Module};
use super::stream::{Stream, argument};
use super::upload::upload;
use crate::engine::{Encoding, EngineError, Validity};

/// What is to be indexed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a, K> {
    pub(super) bits: &'a [K],
    pub(super) encoding: Encoding<K>,
    /// Where there are NULLs; covers `bits`.
    pub(super) validity: Option<&'a Validity>,
    pub(super) positions: bool,
    pub(super) threads: usize,
}

/// Uploads the column and builds its index in the memory that comes back.
pub(super) fn build<K: CudaKey>(
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
        upload_validity(gpu, validity, &stream, &kernels, layout, &index)?;
    }

    // Slices are of whole tiles.
    let tile_bytes = layout.chunk() * layout.chunk() * size_of::<K>() as u64;
    let column = bytes_of(source.bits);
    // SAFETY: level 0 has room for the column. Each slice's kernel works on the slice alone (and the validity, which is
    // complete), and writes what belongs to its tiles alone; arguments are those of `build_bottom`.
    unsafe {
        upload(
            gpu,
            column,
            index.level[0],
            source.threads,
            |stream, slice| {
                let first = slice.start as u64 / tile_bytes;
                let tiles = (slice.end as u64).div_ceil(tile_bytes) - first;
                let arguments = [argument(&index), argument(&first), argument(&tiles)];
                stream.launch(kernels.bottom, tiles * 32, arguments)
            },
        )?;
    }
    for k in 3..=index.top {
        let entries = layout.entries[k as usize];
        // SAFETY: level k - 1 is complete; arguments are those of `build_level`.
        unsafe { stream.launch(kernels.level, entries, [argument(&index), argument(&k)])? };
    }
    let entries = layout.entries[layout.top];
    for row in (0..index.rows - 1).step_by(3) {
        let arguments = [argument(&index), argument(&entries), argument(&row)];
        // SAFETY: `row` is complete; arguments are those of `build_table`.
        unsafe { stream.launch(kernels.table, entries, arguments)? };
    }
    stream.wait()?;
    Ok((index, memory))
}

/// Fills the tree of validity bits.
fn upload_validity(
    gpu: &Gpu,
    validity: &Validity,
    stream: &Stream,
    kernels: &Kernels,
    layout: &Layout,
    index: &Index,
) -> Result<(), EngineError> {
    let (offset, rows) = (validity.offset(), layout.rows);
    let end = (offset + rows as usize).div_ceil(8);
    let bitmap = &validity.bytes()[offset / 8..end];
    let bit_offset = offset as u64 % 8;
    let memory = DeviceMemory::within(&gpu.budget, &gpu.device, bitmap.len())?;
    let at = memory.address();
    // SAFETY: the memory is as long as the bitmap.
    unsafe { upload(gpu, bitmap, at, 1, |_, _| Ok(()))? };
    let words = layout.valid_words[0];
    let arguments = [
        argument(&at),
        argument(&bit_offset),
        argument(&rows),
        argument(&index.valid[0]),
    ];
    // SAFETY: the bitmap covers `rows` bits from `bit_offset` on and stays until the stream was waited for (on the way out
    // of an error freeing it waits); arguments are those of `build_valid_words`.
    unsafe { stream.launch(kernels.valid_words, words, arguments)? };
    for above in 1..layout.valid_levels {
        let below = layout.valid_words[above - 1];
        let arguments = [
            argument(&index.valid[above - 1]),
            argument(&below),
            argument(&index.valid[above]),
        ];
        // SAFETY: the level below is complete; arguments are those of `build_valid_parent`.
        unsafe { stream.launch(kernels.valid_parent, below, arguments)? };
    }
    stream.wait()
}

/// The kernels of a build.
#[derive(Debug)]
struct Kernels {
    bottom: Function,
    level: Function,
    table: Function,
    valid_words: Function,
    valid_parent: Function,
}

impl Kernels {
    fn find<K: CudaKey>(gpu: &Gpu, layout: &Layout, positions: bool) -> Result<Self, EngineError> {
        let find = |name: &str| gpu.modules.function(Module::Build, name);
        let (key, chunk) = (K::NAME, layout.shape.chunk_bytes);
        let at = if positions { "_at" } else { "" };
        Ok(Self {
            bottom: find(&format!("build_bottom_{key}_c{chunk}{at}"))?,
            level: find(&format!("build_level_{key}_c{chunk}{at}"))?,
            table: find(&format!("build_table_{key}{at}"))?,
            valid_words: find("build_valid_words")?,
            valid_parent: find("build_valid_parent")?,
        })
    }
}

fn bytes_of<K: CudaKey>(bits: &[K]) -> &[u8] {
    // SAFETY: integers have no padding; the slice is as long as theirs.
    unsafe { std::slice::from_raw_parts(bits.as_ptr().cast(), std::mem::size_of_val(bits)) }
}
