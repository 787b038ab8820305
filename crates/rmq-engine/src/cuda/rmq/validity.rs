//! Which values are not NULL: a tree of bits, of which each above the values' own tells whether a word of the level below is 0.

use cudarc::driver::sys::CUdeviceptr;

use super::gpu::Gpu;
use super::layout::{Index, Part, Parts};
use super::memory::DeviceMemory;
use super::module::Module;
use super::stream::{Stream, argument};
use super::upload::{copy_of, upload};
use crate::{EngineError, Validity};

pub const MAX_VALID_LEVELS: usize = 8;

/// Where the tree lies; of no levels where there are no NULLs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ValidTree {
    pub parts: [Part; MAX_VALID_LEVELS],
    /// Words of 32 bits of each level.
    words: [u64; MAX_VALID_LEVELS],
    pub levels: usize,
}

impl ValidTree {
    /// A tree for so many values, after the parts that are there.
    pub fn after(parts: &mut Parts, rows: u64) -> Self {
        let mut tree = Self::default();
        let mut bits = rows;
        while tree.levels == 0 || bits > 1 {
            bits = bits.div_ceil(32);
            tree.words[tree.levels] = bits;
            tree.parts[tree.levels] = parts.add(bits * 4, bits * 4);
            tree.levels += 1;
        }
        tree
    }

    /// Uploads the bitmap and makes the tree of `index` out of it.
    ///
    /// # Safety
    /// `index` is of the layout that the tree is of, and nothing else uses its tree meanwhile; the bitmap covers its rows.
    pub unsafe fn build(
        &self,
        gpu: &Gpu,
        validity: &Validity,
        stream: &Stream,
        index: &Index,
    ) -> Result<(), EngineError> {
        let find = |name| gpu.modules.function(Module::Build, name);
        let (from_bitmap, parent) = (find("build_valid_words")?, find("build_valid_parent")?);
        let (offset, rows) = (validity.offset(), index.n);
        let end = (offset + rows as usize).div_ceil(8);
        let bitmap = &validity.bytes()[offset / 8..end];
        let bit_offset = offset as u64 % 8;
        let memory = DeviceMemory::within(&gpu.budget, &gpu.device, bitmap.len())?;
        let at: CUdeviceptr = memory.address();
        // SAFETY: the memory is as long as the bitmap.
        unsafe { upload(gpu, bitmap.len(), copy_of(bitmap), at, 1, |_, _| Ok(()))? };
        let arguments = [
            argument(&at),
            argument(&bit_offset),
            argument(&rows),
            argument(&index.valid[0]),
        ];
        // SAFETY: the bitmap covers `rows` bits from `bit_offset` on and stays until the stream was waited for (on the way out
        // of an error freeing it waits); arguments are those of `build_valid_words`.
        unsafe { stream.launch(from_bitmap, self.words[0], arguments)? };
        for above in 1..self.levels {
            let below = self.words[above - 1];
            let arguments = [
                argument(&index.valid[above - 1]),
                argument(&below),
                argument(&index.valid[above]),
            ];
            // SAFETY: the level below is complete; arguments are those of `build_valid_parent`.
            unsafe { stream.launch(parent, below, arguments)? };
        }
        stream.wait()
    }
}
