//! The paper's kernels, to be measured against: where their index lies in a device's memory, and how a column becomes one.
//!
//! It is simpler than ours: levels of chunk minima, each with positions of its own, of keys from the column on.

use cudarc::driver::sys::CUdeviceptr;

use super::build::{Source, bytes_of};
use super::gpu::Gpu;
use super::key::CudaKey;
use super::layout::{Index, MAX_ROWS, Part, Parts};
use super::memory::DeviceMemory;
use super::module::Module;
use super::stream::{Stream, argument};
use super::tuning::{PAPER_CUTOFF, Shape};
use super::upload::{copy_of, upload};
use super::validity::ValidTree;
use crate::{ColumnSize, EngineError};

const PAPER_LEVELS: usize = 12;

/// Threads that read a chunk together, and its entries: the best of CL by the paper.
const COALESCED: (u64, u64) = (16, 32);

/// Entries of a chunk of VL.
const VECTOR: u64 = 8;

/// The twin of `PaperIndex` in `kernels/baselines/paper.cu`, which says what the fields are. Passed to kernels by value.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PaperIndex {
    pub column: Index,
    pub level: [CUdeviceptr; PAPER_LEVELS],
    pub position: [CUdeviceptr; PAPER_LEVELS],
    pub top: u32,
}

/// A kernel of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paper {
    Coalesced,
    MultiLoad,
    Vector,
    FullScan,
}

impl Paper {
    /// Entries of a chunk of its index, if it has one.
    fn chunk(self) -> Option<u64> {
        match self {
            Self::Coalesced | Self::MultiLoad => Some(COALESCED.1),
            Self::Vector => Some(VECTOR),
            Self::FullScan => None,
        }
    }

    /// Threads that it takes for a query.
    pub fn threads(self) -> u64 {
        match self {
            Self::Coalesced | Self::Vector => 1,
            Self::MultiLoad => COALESCED.0,
            Self::FullScan => 32,
        }
    }

    /// The name of the kernel, for positions of 32 or 64 bits.
    pub fn name(self, key: &str, width: u32, positions: bool) -> String {
        let (group, chunk) = COALESCED;
        let wanted = if positions { "position" } else { "value" };
        match self {
            Self::Coalesced => {
                format!("paper_coalesced_{key}_g{group}_c{chunk}_p{width}_{wanted}")
            }
            Self::MultiLoad => {
                format!("paper_multi_load_{key}_g{group}_c{chunk}_p{width}_{wanted}")
            }
            Self::Vector => format!("paper_vector_{key}_c{VECTOR}_p{width}_{wanted}"),
            Self::FullScan => format!("paper_full_scan_{key}_p{width}_{wanted}"),
        }
    }
}

/// All parts of the index of one column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaperLayout {
    pub paper: Paper,
    /// Whether positions take 64 bits.
    pub wide: bool,
    pub bytes: u64,
    rows: u64,
    /// Entries of a chunk are 2 to this.
    shift: u32,
    top: usize,
    /// `level[0]` is the column.
    level: [Part; PAPER_LEVELS],
    entries: [u64; PAPER_LEVELS],
    /// Of levels 1 and up; empty without positions.
    position: [Part; PAPER_LEVELS],
    valid: ValidTree,
}

impl PaperLayout {
    /// The layout for a column. A shape says how many entries the highest level may have and whether positions take 64 bits.
    pub fn of(
        paper: Paper,
        size: ColumnSize,
        positions: bool,
        shape: Option<Shape>,
    ) -> Result<Self, EngineError> {
        let rows = size.rows as u64;
        if rows >= MAX_ROWS {
            return Err(EngineError::TooLong { rows: size.rows });
        }
        // Scans count in whole groups and packs to past the end of a range.
        let wide = rows > u64::from(u32::MAX) - 0xFF || shape.is_some_and(|it| it.wide_positions);
        let cutoff = shape.map_or(PAPER_CUTOFF, |shape| shape.top_entries);
        let key = size.key_bytes as u64;
        let mut parts = Parts::default();
        let mut level = [Part::default(); PAPER_LEVELS];
        let mut position = [Part::default(); PAPER_LEVELS];
        let mut entries = [0; PAPER_LEVELS];
        let mut top = 0;
        // Levels are read 16 bytes at a time.
        let padded = |bytes: u64| bytes.next_multiple_of(16);
        entries[0] = rows;
        level[0] = parts.add(rows * key, padded(rows * key));
        if let Some(chunk) = paper.chunk() {
            while entries[top] > cutoff && top + 1 < PAPER_LEVELS {
                top += 1;
                entries[top] = entries[top - 1].div_ceil(chunk);
                level[top] = parts.add(entries[top] * key, padded(entries[top] * key));
                if positions {
                    let bytes = entries[top] * if wide { 8 } else { 4 };
                    position[top] = parts.add(bytes, bytes);
                }
            }
        }
        let valid = if size.nulls {
            ValidTree::after(&mut parts, rows)
        } else {
            ValidTree::default()
        };
        Ok(Self {
            paper,
            wide,
            bytes: parts.end,
            rows,
            shift: paper.chunk().map_or(0, u64::ilog2),
            top,
            level,
            entries,
            position,
            valid,
        })
    }

    /// Whether the column is to hold keys; a scan without NULLs makes them as it reads.
    fn keyed(&self) -> bool {
        self.paper != Paper::FullScan || self.valid.levels > 0
    }

    /// The parts in memory that begins at `base`, for kernels.
    fn index(&self, base: CUdeviceptr, fold: [u64; 2], flip: [u64; 2]) -> PaperIndex {
        let at = |part: Part| part.address(base);
        let mut column = Index {
            n: self.rows,
            fold,
            flip,
            valid: self.valid.parts.map(at),
            valid_levels: self.valid.levels as u32,
            keyed: u32::from(self.keyed()),
            ..Index::default()
        };
        column.level[0] = at(self.level[0]);
        PaperIndex {
            column,
            level: self.level.map(at),
            position: self.position.map(at),
            top: self.top as u32,
        }
    }
}

/// Uploads the column and builds its index in the memory that comes back.
pub fn build<K: CudaKey>(
    gpu: &Gpu,
    source: Source<'_, K>,
    layout: &PaperLayout,
) -> Result<(PaperIndex, DeviceMemory), EngineError> {
    let (key, positions) = (K::NAME, source.positions);
    let find = |name: &str| gpu.modules.function(Module::Paper, name);
    let make_keys = find(&format!("paper_keys_{key}"))?;
    let build_level = find(&match (positions, layout.wide) {
        (false, _) => format!("paper_build_{key}_value"),
        (true, false) => format!("paper_build_{key}_p32"),
        (true, true) => format!("paper_build_{key}_p64"),
    })?;
    let bytes = usize::try_from(layout.bytes).unwrap_or(usize::MAX);
    let memory = DeviceMemory::within(&gpu.budget, &gpu.device, bytes)?;
    let (fold, flip) = (source.encoding.fold(), source.encoding.flip());
    let index = layout.index(memory.address(), fold.words(), flip.words());
    // Dropped before the memory that it works on.
    let stream = Stream::new(&gpu.device)?;

    for part in layout.level {
        let at = memory.address() + part.start + part.bytes;
        // SAFETY: inside the memory, which nothing else uses yet.
        unsafe { stream.fill(at, 0, part.padding as usize)? };
    }
    stream.wait()?;
    if let Some(validity) = source.validity {
        // SAFETY: the index is of that layout and new; whoever made the source has checked the bitmap.
        unsafe {
            layout.valid.build(gpu, validity, &stream, &index.column)?;
        };
    }

    let column = bytes_of(source.bits);
    let to = index.level[0];
    // SAFETY: level 0 has room for the column. Each slice's kernel turns the slice alone into keys, with its part of the
    // validity, which is complete; slices begin at whole words of its bits. The argument is that of `paper_keys`.
    unsafe {
        upload(
            gpu,
            column.len(),
            copy_of(column),
            to,
            source.threads,
            |stream, slice| {
                source.go_on()?;
                if !layout.keyed() {
                    return Ok(());
                }
                let mut part = index.column;
                part.n = (slice.len() / size_of::<K>()) as u64;
                part.level[0] += slice.start as u64;
                part.valid[0] += (slice.start / size_of::<K>() / 32 * 4) as u64;
                stream.launch(make_keys, part.n, [argument(&part)])
            },
        )?;
    }
    for k in 1..=index.top {
        let entries = layout.entries[k as usize];
        let arguments = [argument(&index), argument(&k), argument(&layout.shift)];
        // SAFETY: level k - 1 is complete; arguments are those of `paper_build`.
        unsafe { stream.launch(build_level, entries, arguments)? };
    }
    stream.wait()?;
    Ok((index, memory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::tuning::SLICE;

    const ALL: [Paper; 4] = [
        Paper::Coalesced,
        Paper::MultiLoad,
        Paper::Vector,
        Paper::FullScan,
    ];

    /// As nvcc lays it out: 8 bytes are what `Index` is aligned to.
    #[test]
    fn the_twin_has_the_size_of_the_kernels_struct() {
        let lists = 2 * PAPER_LEVELS * 8;
        assert_eq!(size_of::<PaperIndex>(), size_of::<Index>() + lists + 8);
        let top = std::mem::offset_of!(PaperIndex, top);
        assert_eq!(top, size_of::<Index>() + lists);
    }

    #[test]
    fn slices_begin_at_whole_words_of_validity() {
        assert!(SLICE.is_multiple_of(32 * size_of::<u128>()));
    }

    #[test]
    fn parts_do_not_overlap_and_levels_shrink_to_the_cutoff() {
        for paper in ALL {
            for rows in [1, 2, 64, 65, (1 << 24) + 1, 1 << 33, (1 << 40) - 1] {
                for (nulls, positions) in [(false, false), (true, true)] {
                    let size = ColumnSize {
                        rows,
                        key_bytes: 4,
                        nulls,
                    };
                    let layout =
                        PaperLayout::of(paper, size, positions, None).expect("not too long");
                    let mut parts: Vec<Part> = layout.level.into();
                    parts.extend(layout.position);
                    parts.extend(layout.valid.parts);
                    parts.retain(|part| part.bytes > 0);
                    parts.sort_by_key(|part| part.start);
                    for pair in parts.windows(2) {
                        assert!(pair[0].start + pair[0].bytes + pair[0].padding <= pair[1].start);
                    }
                    let last = parts.last().expect("the column");
                    assert!(last.start + last.bytes + last.padding <= layout.bytes);
                    assert_eq!(layout.wide, rows >= 1 << 32);
                    if paper == Paper::FullScan {
                        assert_eq!(layout.top, 0);
                    } else if rows <= 1 << 33 {
                        assert!(layout.entries[layout.top] <= PAPER_CUTOFF);
                        assert!(layout.top == 0 || layout.entries[layout.top - 1] > PAPER_CUTOFF);
                    }
                }
            }
        }
    }
}
