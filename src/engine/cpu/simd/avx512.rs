//! AVX-512: 16 keys of 32 bits are one vector, masks are free, and lanes masked out are not read.

use std::arch::x86_64::*;

use super::Kernel;
use crate::engine::Encoding;

#[derive(Debug, Clone, Copy)]
pub(in crate::engine::cpu) struct Avx512;

impl Kernel<u32> for Avx512 {
    #[inline(always)]
    unsafe fn line(keys: *const u32, mask: u32) -> (u32, u32) {
        // SAFETY: the caller vouches for memory and instructions.
        unsafe {
            let mask = mask as __mmask16;
            let none = _mm512_set1_epi32(-1);
            least_u32(_mm512_mask_loadu_epi32(none, mask, keys.cast()), mask)
        }
    }

    #[inline(always)]
    unsafe fn window(keys: *const u32, mask: u64) -> (u32, u32) {
        // SAFETY: the caller vouches for memory and instructions.
        unsafe {
            let none = _mm512_set1_epi32(-1);
            let masks = [mask as u16, (mask >> 16) as u16, (mask >> 32) as u16];
            let a = _mm512_mask_loadu_epi32(none, masks[0], keys.cast());
            let b = _mm512_mask_loadu_epi32(none, masks[1], keys.add(16).cast());
            let c = _mm512_mask_loadu_epi32(none, masks[2], keys.add(32).cast());
            let best = _mm512_reduce_min_epu32(_mm512_min_epu32(_mm512_min_epu32(a, b), c));
            let wanted = _mm512_set1_epi32(best.cast_signed());
            let equal = u64::from(_mm512_cmpeq_epi32_mask(a, wanted))
                | u64::from(_mm512_cmpeq_epi32_mask(b, wanted)) << 16
                | u64::from(_mm512_cmpeq_epi32_mask(c, wanted)) << 32;
            (best, (equal & mask).trailing_zeros())
        }
    }

    #[inline(always)]
    unsafe fn base(values: *const u32, mask: u32, encoding: Encoding<u32>) -> (u32, u32) {
        // SAFETY: the caller vouches for memory under the mask, and for instructions; other lanes are not read.
        unsafe {
            let mask = mask as __mmask16;
            let bits = _mm512_maskz_loadu_epi32(mask, values.cast());
            let fold = _mm512_set1_epi32(encoding.fold().cast_signed());
            let flip = _mm512_set1_epi32(encoding.flip().cast_signed());
            let folded = _mm512_and_si512(_mm512_srai_epi32::<31>(bits), fold);
            let keys = _mm512_xor_si512(_mm512_xor_si512(bits, folded), flip);
            let none = _mm512_set1_epi32(-1);
            least_u32(_mm512_mask_mov_epi32(none, mask, keys), mask)
        }
    }
}

/// Of keys that are the greatest where masked out.
#[inline(always)]
unsafe fn least_u32(keys: __m512i, mask: __mmask16) -> (u32, u32) {
    // SAFETY: the caller vouches for instructions.
    unsafe {
        let best = _mm512_reduce_min_epu32(keys);
        let wanted = _mm512_set1_epi32(best.cast_signed());
        let equal = _mm512_mask_cmpeq_epi32_mask(mask, keys, wanted);
        (best, u64::from(equal).trailing_zeros())
    }
}

impl Kernel<u64> for Avx512 {
    #[inline(always)]
    unsafe fn line(keys: *const u64, mask: u32) -> (u64, u32) {
        // SAFETY: the caller vouches for memory and instructions.
        unsafe {
            let none = _mm512_set1_epi64(-1);
            let a = _mm512_mask_loadu_epi64(none, mask as u8, keys.cast());
            let b = _mm512_mask_loadu_epi64(none, (mask >> 8) as u8, keys.add(8).cast());
            least_u64(a, b, mask)
        }
    }

    #[inline(always)]
    unsafe fn window(keys: *const u64, mask: u64) -> (u64, u32) {
        // SAFETY: the caller vouches for memory and instructions.
        unsafe {
            let none = _mm512_set1_epi64(-1);
            let mut parts = [none; 6];
            let mut least = none;
            for (i, part) in parts.iter_mut().enumerate() {
                let mask = (mask >> (8 * i)) as u8;
                *part = _mm512_mask_loadu_epi64(none, mask, keys.add(8 * i).cast());
                least = _mm512_min_epu64(least, *part);
            }
            let best = _mm512_reduce_min_epu64(least);
            let wanted = _mm512_set1_epi64(best.cast_signed());
            let mut equal = 0_u64;
            for (i, part) in parts.into_iter().enumerate() {
                equal |= u64::from(_mm512_cmpeq_epi64_mask(part, wanted)) << (8 * i);
            }
            (best, (equal & mask).trailing_zeros())
        }
    }

    #[inline(always)]
    unsafe fn base(values: *const u64, mask: u32, encoding: Encoding<u64>) -> (u64, u32) {
        // SAFETY: the caller vouches for memory under the mask, and for instructions; other lanes are not read.
        unsafe {
            let none = _mm512_set1_epi64(-1);
            let fold = _mm512_set1_epi64(encoding.fold().cast_signed());
            let flip = _mm512_set1_epi64(encoding.flip().cast_signed());
            let load = |from: *const u64, mask: u8| {
                let bits = _mm512_maskz_loadu_epi64(mask, from.cast());
                let folded = _mm512_and_si512(_mm512_srai_epi64::<63>(bits), fold);
                let keys = _mm512_xor_si512(_mm512_xor_si512(bits, folded), flip);
                _mm512_mask_mov_epi64(none, mask, keys)
            };
            let a = load(values, mask as u8);
            let b = load(values.wrapping_add(8), (mask >> 8) as u8);
            least_u64(a, b, mask)
        }
    }
}

/// Of 16 keys that are the greatest where masked out.
#[inline(always)]
unsafe fn least_u64(a: __m512i, b: __m512i, mask: u32) -> (u64, u32) {
    // SAFETY: the caller vouches for instructions.
    unsafe {
        let best = _mm512_reduce_min_epu64(_mm512_min_epu64(a, b));
        let wanted = _mm512_set1_epi64(best.cast_signed());
        let equal = u32::from(_mm512_cmpeq_epi64_mask(a, wanted))
            | u32::from(_mm512_cmpeq_epi64_mask(b, wanted)) << 8;
        (best, u64::from(equal & mask).trailing_zeros())
    }
}
