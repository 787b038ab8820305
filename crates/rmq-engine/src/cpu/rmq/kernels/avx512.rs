//! AVX-512: 16 keys of 32 bits are one vector, masks are free, and lanes masked out are not read.

use std::arch::x86_64::*;

use crate::cpu::rmq::kernels::kernel::{Kernel, window_lines};
use crate::cpu::rmq::levels::WINDOW_LINES;
use crate::cpu::rmq::tile::{self, BlockId, Offsets, Plan, Planner, TILE, Tile};
use crate::key::{Encoding, Key};

/// The kernels in AVX-512 instructions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512;

/// Returns the keys of up to 16 stored values; unspecified where masked out, where nothing is read.
#[inline(always)]
unsafe fn encoded_u32(values: *const u32, mask: __mmask16, encoding: Encoding<u32>) -> __m512i {
    // SAFETY: the caller guarantees readable memory under the mask, and the instructions.
    unsafe {
        let bits = _mm512_maskz_loadu_epi32(mask, values.cast());
        let fold = _mm512_set1_epi32(encoding.fold().cast_signed());
        let flip = _mm512_set1_epi32(encoding.flip().cast_signed());
        let folded = _mm512_and_si512(_mm512_srai_epi32::<31>(bits), fold);
        _mm512_xor_si512(_mm512_xor_si512(bits, folded), flip)
    }
}

/// Returns the keys of up to 8 stored values; unspecified where masked out, where nothing is read.
#[inline(always)]
unsafe fn encoded_u64(values: *const u64, mask: __mmask8, encoding: Encoding<u64>) -> __m512i {
    // SAFETY: the caller guarantees readable memory under the mask, and the instructions.
    unsafe {
        let bits = _mm512_maskz_loadu_epi64(mask, values.cast());
        let fold = _mm512_set1_epi64(encoding.fold().cast_signed());
        let flip = _mm512_set1_epi64(encoding.flip().cast_signed());
        let folded = _mm512_and_si512(_mm512_srai_epi64::<63>(bits), fold);
        _mm512_xor_si512(_mm512_xor_si512(bits, folded), flip)
    }
}

impl Kernel<u32> for Avx512 {
    #[inline(always)]
    unsafe fn line(keys: *const u32, mask: u32) -> (u32, u32) {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe {
            let mask = mask as __mmask16;
            let none = _mm512_set1_epi32(-1);
            least_u32(_mm512_mask_loadu_epi32(none, mask, keys.cast()), mask)
        }
    }

    #[inline(always)]
    unsafe fn window(first: *const u32, last: *const u32) -> (u32, u32) {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe {
            let (lines, mask) = window_lines::<_, WINDOW_LINES>(first, last);
            let none = _mm512_set1_epi32(-1);
            let load =
                |i: usize| _mm512_mask_load_epi32(none, (mask >> (16 * i)) as u16, lines[i].cast());
            let (a, b) = (load(0), load(1));
            let best = _mm512_reduce_min_epu32(_mm512_min_epu32(a, b));
            let broadcast = _mm512_set1_epi32(best.cast_signed());
            let equal = u64::from(_mm512_cmpeq_epi32_mask(a, broadcast))
                | u64::from(_mm512_cmpeq_epi32_mask(b, broadcast)) << 16;
            (best, (equal & mask).trailing_zeros())
        }
    }

    #[inline(always)]
    unsafe fn base(values: *const u32, mask: u32, encoding: Encoding<u32>) -> (u32, u32) {
        // SAFETY: the caller guarantees readable memory under the mask, and the instructions; other lanes are not read.
        unsafe {
            let mask = mask as __mmask16;
            let keys = encoded_u32(values, mask, encoding);
            let none = _mm512_set1_epi32(-1);
            least_u32(_mm512_mask_mov_epi32(none, mask, keys), mask)
        }
    }

    #[inline(always)]
    unsafe fn line_at_most(keys: *const u32, mask: u32, threshold: u32) -> u32 {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe {
            let threshold = _mm512_set1_epi32(threshold.cast_signed());
            let keys = _mm512_loadu_epi32(keys.cast());
            u32::from(_mm512_mask_cmple_epu32_mask(
                mask as __mmask16,
                keys,
                threshold,
            ))
        }
    }

    #[inline(always)]
    unsafe fn window_at_most(first: *const u32, last: *const u32, threshold: u32) -> u64 {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe {
            let (lines, mask) = window_lines::<_, WINDOW_LINES>(first, last);
            let threshold = _mm512_set1_epi32(threshold.cast_signed());
            let mut hits = 0;
            for (i, line) in lines.into_iter().enumerate() {
                let keys = _mm512_load_epi32(line.cast());
                hits |= u64::from(_mm512_cmple_epu32_mask(keys, threshold)) << (16 * i);
            }
            hits & mask
        }
    }

    #[inline(always)]
    unsafe fn base_at_most(
        values: *const u32,
        mask: u32,
        encoding: Encoding<u32>,
        threshold: u32,
    ) -> u32 {
        // SAFETY: the caller guarantees readable memory under the mask, and the instructions; other lanes are not read.
        unsafe {
            let mask = mask as __mmask16;
            let threshold = _mm512_set1_epi32(threshold.cast_signed());
            let keys = encoded_u32(values, mask, encoding);
            u32::from(_mm512_mask_cmple_epu32_mask(mask, keys, threshold))
        }
    }

    #[inline(always)]
    unsafe fn numbers(first: i64, mask: u32, out: *mut i64) {
        // SAFETY: the caller guarantees room for 16 numbers, and the instructions.
        unsafe { numbers(first, mask, out) }
    }

    #[inline(always)]
    unsafe fn plan(
        planner: &Planner<u32>,
        left: &[i64; TILE],
        right: &[i64; TILE],
        tile: &mut Tile<u32>,
        plan: &mut Plan<u32>,
    ) {
        // SAFETY: the caller guarantees the instructions.
        unsafe { plan_eight(planner, left, right, tile, plan) }
    }

    #[inline(always)]
    unsafe fn positions(
        bytes: *const u8,
        offsets: &Offsets,
        alignment_offset: usize,
        blocks: &[BlockId; TILE],
        out: &mut [i64],
    ) {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe { positions_eight(bytes, offsets, alignment_offset, blocks, out) }
    }
}

/// Implements [`Kernel::numbers`]: 8 numbers are compressed at a time, and stored with what follows them.
#[inline(always)]
unsafe fn numbers(first: i64, mask: u32, out: *mut i64) {
    // SAFETY: the caller guarantees room for 16 numbers, and the instructions.
    unsafe {
        let lanes = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
        let low = _mm512_add_epi64(_mm512_set1_epi64(first), lanes);
        let high = _mm512_add_epi64(low, _mm512_set1_epi64(8));
        let of_low = (mask as u8).count_ones() as usize;
        _mm512_storeu_epi64(out, _mm512_maskz_compress_epi64(mask as __mmask8, low));
        let high = _mm512_maskz_compress_epi64((mask >> 8) as __mmask8, high);
        _mm512_storeu_epi64(out.add(of_low), high);
    }
}

/// Returns the minimum of 16 keys, which are the greatest key where masked out.
#[inline(always)]
unsafe fn least_u32(keys: __m512i, mask: __mmask16) -> (u32, u32) {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let best = _mm512_reduce_min_epu32(keys);
        let broadcast = _mm512_set1_epi32(best.cast_signed());
        let equal = _mm512_mask_cmpeq_epi32_mask(mask, keys, broadcast);
        (best, u64::from(equal).trailing_zeros())
    }
}

impl Kernel<u64> for Avx512 {
    #[inline(always)]
    unsafe fn line(keys: *const u64, mask: u32) -> (u64, u32) {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe {
            let none = _mm512_set1_epi64(-1);
            let (low, high) = halves(keys, mask);
            let a = _mm512_mask_loadu_epi64(none, mask as u8, low.cast());
            let b = _mm512_mask_loadu_epi64(none, (mask >> 8) as u8, high.cast());
            least_u64(a, b, mask)
        }
    }

    #[inline(always)]
    unsafe fn window(first: *const u64, last: *const u64) -> (u64, u32) {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe {
            let (lines, mask) = window_lines::<_, { 2 * WINDOW_LINES }>(first, last);
            let none = _mm512_set1_epi64(-1);
            let mut parts = [none; 2 * WINDOW_LINES];
            let mut least = none;
            for (i, part) in parts.iter_mut().enumerate() {
                *part = _mm512_mask_load_epi64(none, (mask >> (8 * i)) as u8, lines[i].cast());
                least = _mm512_min_epu64(least, *part);
            }
            let best = _mm512_reduce_min_epu64(least);
            let broadcast = _mm512_set1_epi64(best.cast_signed());
            let mut equal = 0_u64;
            for (i, part) in parts.into_iter().enumerate() {
                equal |= u64::from(_mm512_cmpeq_epi64_mask(part, broadcast)) << (8 * i);
            }
            (best, (equal & mask).trailing_zeros())
        }
    }

    #[inline(always)]
    unsafe fn base(values: *const u64, mask: u32, encoding: Encoding<u64>) -> (u64, u32) {
        // SAFETY: the caller guarantees readable memory under the mask, and the instructions; other lanes are not read.
        unsafe {
            let none = _mm512_set1_epi64(-1);
            let load = |from: *const u64, mask: u8| {
                _mm512_mask_mov_epi64(none, mask, encoded_u64(from, mask, encoding))
            };
            let (low, high) = halves(values, mask);
            let a = load(low, mask as u8);
            let b = load(high, (mask >> 8) as u8);
            least_u64(a, b, mask)
        }
    }

    #[inline(always)]
    unsafe fn line_at_most(keys: *const u64, mask: u32, threshold: u64) -> u32 {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe {
            let threshold = _mm512_set1_epi64(threshold.cast_signed());
            let hits = |keys: *const u64| {
                u32::from(_mm512_cmple_epu64_mask(
                    _mm512_loadu_epi64(keys.cast()),
                    threshold,
                ))
            };
            (hits(keys) | hits(keys.add(8)) << 8) & mask
        }
    }

    #[inline(always)]
    unsafe fn window_at_most(first: *const u64, last: *const u64, threshold: u64) -> u64 {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe {
            let (lines, mask) = window_lines::<_, { 2 * WINDOW_LINES }>(first, last);
            let threshold = _mm512_set1_epi64(threshold.cast_signed());
            let mut hits = 0;
            for (i, line) in lines.into_iter().enumerate() {
                let keys = _mm512_load_epi64(line.cast());
                hits |= u64::from(_mm512_cmple_epu64_mask(keys, threshold)) << (8 * i);
            }
            hits & mask
        }
    }

    #[inline(always)]
    unsafe fn base_at_most(
        values: *const u64,
        mask: u32,
        encoding: Encoding<u64>,
        threshold: u64,
    ) -> u32 {
        // SAFETY: the caller guarantees readable memory under the mask, and the instructions; other lanes are not read.
        unsafe {
            let threshold = _mm512_set1_epi64(threshold.cast_signed());
            let hits = |from: *const u64, mask: u8| {
                let keys = encoded_u64(from, mask, encoding);
                u32::from(_mm512_mask_cmple_epu64_mask(mask, keys, threshold))
            };
            let (low, high) = halves(values, mask);
            hits(low, mask as u8) | hits(high, (mask >> 8) as u8) << 8
        }
    }

    #[inline(always)]
    unsafe fn numbers(first: i64, mask: u32, out: *mut i64) {
        // SAFETY: the caller guarantees room for 16 numbers, and the instructions.
        unsafe { numbers(first, mask, out) }
    }

    #[inline(always)]
    unsafe fn plan(
        planner: &Planner<u64>,
        left: &[i64; TILE],
        right: &[i64; TILE],
        tile: &mut Tile<u64>,
        plan: &mut Plan<u64>,
    ) {
        // SAFETY: the caller guarantees the instructions.
        unsafe { plan_eight(planner, left, right, tile, plan) }
    }

    #[inline(always)]
    unsafe fn positions(
        bytes: *const u8,
        offsets: &Offsets,
        alignment_offset: usize,
        blocks: &[BlockId; TILE],
        out: &mut [i64],
    ) {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe { positions_eight(bytes, offsets, alignment_offset, blocks, out) }
    }
}

/// Returns the two cache lines of a block. One that is masked out entirely is replaced by the other, because a load
/// reads its line for any mask.
#[inline(always)]
fn halves(block: *const u64, mask: u32) -> (*const u64, *const u64) {
    let (low, high) = (block, block.wrapping_add(8));
    (
        if mask & 0xFF == 0 { high } else { low },
        if mask >> 8 == 0 { low } else { high },
    )
}

/// Returns the minimum of 16 keys, which are the greatest key where masked out.
#[inline(always)]
unsafe fn least_u64(a: __m512i, b: __m512i, mask: u32) -> (u64, u32) {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let best = _mm512_reduce_min_epu64(_mm512_min_epu64(a, b));
        let broadcast = _mm512_set1_epi64(best.cast_signed());
        let equal = u32::from(_mm512_cmpeq_epi64_mask(a, broadcast))
            | u32::from(_mm512_cmpeq_epi64_mask(b, broadcast)) << 8;
        (best, u64::from(equal & mask).trailing_zeros())
    }
}

/// Implements [`tile::plan`] for eight queries at a time.
#[inline(always)]
unsafe fn plan_eight<K: Key>(
    planner: &Planner<K>,
    left: &[i64; TILE],
    right: &[i64; TILE],
    tile: &mut Tile<K>,
    plan: &mut Plan<K>,
) {
    let (mut some, mut wide) = (0_u64, [0_u64; 3]);
    // SAFETY: all arrays have `TILE` entries of eight bytes; the caller guarantees the instructions.
    unsafe {
        let zero = _mm512_setzero_si512();
        let last = _mm512_set1_epi64(planner.last);
        let alignment_offset = _mm512_set1_epi64(planner.alignment_offset as i64);
        let window = _mm512_set1_epi64(WINDOW_LINES as i64);
        let keys = |k: usize| _mm512_set1_epi64(planner.level[k].addr() as i64);
        for q in (0..TILE).step_by(8) {
            let l = _mm512_max_epi64(_mm512_loadu_epi64(left.as_ptr().add(q)), zero);
            let r = _mm512_min_epi64(_mm512_loadu_epi64(right.as_ptr().add(q)), last);
            let is_some = _mm512_cmple_epi64_mask(l, r);
            let l = _mm512_add_epi64(_mm512_maskz_mov_epi64(is_some, l), alignment_offset);
            let r = _mm512_add_epi64(_mm512_maskz_mov_epi64(is_some, r), alignment_offset);
            _mm512_storeu_epi64(tile.left.as_mut_ptr().add(q).cast(), l);
            _mm512_storeu_epi64(tile.right.as_mut_ptr().add(q).cast(), r);
            some |= u64::from(is_some) << q;
            let (mut base, mut shift) = (keys(0), _mm512_set1_epi64(4));
            for (k, wide) in wide.iter_mut().enumerate() {
                // Lines of level `k + 1`.
                let by = _mm_cvtsi64_si128(4 * (k as i64 + 2));
                let span = _mm512_sub_epi64(_mm512_srl_epi64(r, by), _mm512_srl_epi64(l, by));
                let is_wide = _mm512_cmpge_epi64_mask(span, window);
                *wide |= u64::from(is_wide) << q;
                base = _mm512_mask_mov_epi64(base, is_wide, keys(k + 1));
                shift =
                    _mm512_mask_mov_epi64(shift, is_wide, _mm512_set1_epi64(4 * (k as i64 + 2)));
            }
            let size = _mm_cvtsi64_si128(i64::from(size_of::<K>().trailing_zeros()));
            let address =
                |at| _mm512_add_epi64(base, _mm512_sll_epi64(_mm512_srlv_epi64(at, shift), size));
            _mm512_storeu_epi64(plan.first.as_mut_ptr().add(q).cast(), address(l));
            _mm512_storeu_epi64(plan.last.as_mut_ptr().add(q).cast(), address(r));
        }
    }
    tile.set_starts(some, wide);
}

/// Implements [`tile::positions`] for eight blocks at a time.
#[inline(always)]
unsafe fn positions_eight(
    bytes: *const u8,
    offsets: &Offsets,
    alignment_offset: usize,
    blocks: &[BlockId; TILE],
    out: &mut [i64],
) {
    let Some(out) = out.first_chunk_mut::<TILE>() else {
        // SAFETY: guaranteed by the caller.
        return unsafe { tile::positions(bytes, offsets, alignment_offset, blocks, out) };
    };
    // SAFETY: the caller guarantees readable memory and the instructions; the arrays of `offsets` have eight entries.
    unsafe {
        let load = |entries: &[u64; 8]| _mm512_loadu_epi64(entries.as_ptr().cast());
        let (start, keep, log_bits) = (
            load(&offsets.start),
            load(&offsets.keep),
            load(&offsets.log_bits),
        );
        let (mask, shift) = (load(&offsets.mask), load(&offsets.shift));
        let alignment_offset = _mm512_set1_epi64(alignment_offset as i64);
        for q in (0..TILE).step_by(8) {
            let block_id = _mm512_loadu_epi64(blocks.as_ptr().add(q).cast());
            let level = _mm512_srli_epi64::<{ BlockId::LEVEL_SHIFT }>(block_id);
            let low = _mm512_set1_epi64((1 << BlockId::LEVEL_SHIFT) - 1);
            let block = _mm512_and_si512(block_id, low);
            let by_level = |table| _mm512_permutexvar_epi64(level, table);
            let bit =
                _mm512_sllv_epi64(_mm512_and_si512(block, by_level(keep)), by_level(log_bits));
            let byte = _mm512_add_epi64(by_level(start), _mm512_srli_epi64::<3>(bit));
            let word = _mm512_i64gather_epi64::<1>(byte, bytes.cast());
            let odd = _mm512_and_si512(bit, _mm512_set1_epi64(7));
            let within = _mm512_and_si512(_mm512_srlv_epi64(word, odd), by_level(mask));
            let position = _mm512_add_epi64(_mm512_sllv_epi64(block, by_level(shift)), within);
            let position = _mm512_sub_epi64(position, alignment_offset);
            _mm512_storeu_epi64(out.as_mut_ptr().add(q), position);
        }
    }
}
