//! The arguments of the shaders, as push constants.

use super::pipeline::Arguments;

/// The most levels above the column; the shaders have the same number.
pub const MAX_LEVELS: usize = 8;

/// What a search gets: mirrors `Search` in `kernels/rt/search.glsl`, which documents the fields.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct SearchArguments {
    pub values: u64,
    pub minima: u64,
    pub left: u64,
    pub right: u64,
    pub answers: u64,
    pub scene: u64,
    pub queries: u32,
    pub minima_from: u32,
    pub top: u32,
    pub block_shift: u32,
    pub side: u32,
    pub step: f32,
    pub minimum_step: f32,
    pub end: f32,
    pub level: [u32; MAX_LEVELS],
}

// SAFETY: six numbers of 8 bytes, then sixteen of 4.
unsafe impl Arguments for SearchArguments {}

/// Mirrors the arguments of `minima.comp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MinimaArguments {
    pub from: u64,
    pub to: u64,
    pub entries: u32,
    pub shift: u32,
}

// SAFETY: two numbers of 8 bytes, then two of 4.
unsafe impl Arguments for MinimaArguments {}

/// Mirrors the arguments of `triangles.comp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TrianglesArguments {
    pub planes: u64,
    pub vertices: u64,
    pub first: u32,
    pub count: u32,
    pub block_shift: u32,
    pub first_cell: u32,
    pub side: u32,
    pub step: f32,
}

// SAFETY: two numbers of 8 bytes, then six of 4.
unsafe impl Arguments for TrianglesArguments {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_match_the_push_constants_of_the_shaders() {
        assert_eq!(std::mem::offset_of!(SearchArguments, scene), 40);
        assert_eq!(std::mem::offset_of!(SearchArguments, level), 80);
        assert_eq!(size_of::<SearchArguments>(), 112);
        assert_eq!(size_of::<MinimaArguments>(), 24);
        assert_eq!(size_of::<TrianglesArguments>(), 40);
    }
}
