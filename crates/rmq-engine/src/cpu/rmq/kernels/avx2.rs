//! AVX2: vectors of 256 bits, masked loads that do not read the other lanes.

use std::arch::x86_64::*;

use crate::cpu::rmq::kernels::kernel::{Kernel, window_lines};
use crate::cpu::rmq::levels::WINDOW_LINES;
use crate::key::Encoding;

/// The kernels in AVX2 instructions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2;

/// Lane masks of eight 32-bit lanes.
#[inline(always)]
unsafe fn lanes_u32(mask: u32) -> __m256i {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        let mask = _mm256_set1_epi32(mask.cast_signed());
        _mm256_cmpeq_epi32(_mm256_and_si256(mask, bit), bit)
    }
}

/// Lane masks of four 64-bit lanes.
#[inline(always)]
unsafe fn lanes_u64(mask: u32) -> __m256i {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let bit = _mm256_setr_epi64x(1, 2, 4, 8);
        let mask = _mm256_set1_epi64x(i64::from(mask));
        _mm256_cmpeq_epi64(_mm256_and_si256(mask, bit), bit)
    }
}

/// Keys where `lanes` is set, the greatest key elsewhere.
#[inline(always)]
unsafe fn keep(keys: __m256i, lanes: __m256i) -> __m256i {
    // SAFETY: the caller guarantees the instructions.
    unsafe { _mm256_or_si256(keys, _mm256_andnot_si256(lanes, _mm256_set1_epi32(-1))) }
}

#[inline(always)]
unsafe fn load_u32(keys: *const u32, mask: u32) -> __m256i {
    // SAFETY: the caller guarantees readable memory under the mask, and the instructions.
    unsafe {
        let lanes = lanes_u32(mask);
        keep(_mm256_maskload_epi32(keys.cast(), lanes), lanes)
    }
}

#[inline(always)]
unsafe fn load_u64(keys: *const u64, mask: u32) -> __m256i {
    // SAFETY: the caller guarantees readable memory under the mask, and the instructions.
    unsafe {
        let lanes = lanes_u64(mask);
        keep(_mm256_maskload_epi64(keys.cast(), lanes), lanes)
    }
}

#[inline(always)]
unsafe fn reduce_u32(v: __m256i) -> u32 {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let v = _mm_min_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
        let v = _mm_min_epu32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
        let v = _mm_min_epu32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v));
        _mm_cvtsi128_si32(v).cast_unsigned()
    }
}

#[inline(always)]
unsafe fn equal_u32(v: __m256i, key: u32) -> u64 {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let equal = _mm256_cmpeq_epi32(v, _mm256_set1_epi32(key.cast_signed()));
        u64::from(_mm256_movemask_ps(_mm256_castsi256_ps(equal)).cast_unsigned())
    }
}

/// AVX2 compares signed 64-bit lanes only, hence the inverted sign bits.
#[inline(always)]
unsafe fn min_u64(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let sign = _mm256_set1_epi64x(i64::MIN);
        let greater = _mm256_cmpgt_epi64(_mm256_xor_si256(a, sign), _mm256_xor_si256(b, sign));
        _mm256_blendv_epi8(a, b, greater)
    }
}

#[inline(always)]
unsafe fn reduce_u64(v: __m256i) -> u64 {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let v = min_u64(v, _mm256_permute4x64_epi64::<0b01_00_11_10>(v));
        let v = min_u64(v, _mm256_permute4x64_epi64::<0b10_11_00_01>(v));
        _mm_cvtsi128_si64(_mm256_castsi256_si128(v)).cast_unsigned()
    }
}

#[inline(always)]
unsafe fn equal_u64(v: __m256i, key: u64) -> u64 {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let equal = _mm256_cmpeq_epi64(v, _mm256_set1_epi64x(key.cast_signed()));
        u64::from(_mm256_movemask_pd(_mm256_castsi256_pd(equal)).cast_unsigned())
    }
}

#[inline(always)]
unsafe fn least_u32<const N: usize>(parts: [__m256i; N], mask: u64) -> (u32, u32) {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let mut least = parts[0];
        for part in parts {
            least = _mm256_min_epu32(least, part);
        }
        let best = reduce_u32(least);
        let mut equal = 0;
        for (i, part) in parts.into_iter().enumerate() {
            equal |= equal_u32(part, best) << (8 * i);
        }
        (best, (equal & mask).trailing_zeros())
    }
}

#[inline(always)]
unsafe fn least_u64<const N: usize>(parts: [__m256i; N], mask: u64) -> (u64, u32) {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let mut least = parts[0];
        for part in parts {
            least = min_u64(least, part);
        }
        let best = reduce_u64(least);
        let mut equal = 0;
        for (i, part) in parts.into_iter().enumerate() {
            equal |= equal_u64(part, best) << (4 * i);
        }
        (best, (equal & mask).trailing_zeros())
    }
}

/// Returns the keys of 16 stored values, the greatest key where masked out, where nothing is read.
#[inline(always)]
unsafe fn encoded_u32(values: *const u32, mask: u32, encoding: Encoding<u32>) -> [__m256i; 2] {
    // SAFETY: the caller guarantees readable memory under the mask, and the instructions.
    unsafe {
        let fold = _mm256_set1_epi32(encoding.fold().cast_signed());
        let flip = _mm256_set1_epi32(encoding.flip().cast_signed());
        let mut parts = [flip; 2];
        for (i, part) in parts.iter_mut().enumerate() {
            let lanes = lanes_u32(mask >> (8 * i));
            let bits = _mm256_maskload_epi32(values.wrapping_add(8 * i).cast(), lanes);
            let folded = _mm256_and_si256(_mm256_srai_epi32::<31>(bits), fold);
            *part = keep(
                _mm256_xor_si256(_mm256_xor_si256(bits, folded), flip),
                lanes,
            );
        }
        parts
    }
}

/// Returns the keys of 16 stored values, the greatest key where masked out, where nothing is read.
#[inline(always)]
unsafe fn encoded_u64(values: *const u64, mask: u32, encoding: Encoding<u64>) -> [__m256i; 4] {
    // SAFETY: the caller guarantees readable memory under the mask, and the instructions.
    unsafe {
        let fold = _mm256_set1_epi64x(encoding.fold().cast_signed());
        let flip = _mm256_set1_epi64x(encoding.flip().cast_signed());
        let mut parts = [flip; 4];
        for (i, part) in parts.iter_mut().enumerate() {
            let lanes = lanes_u64(mask >> (4 * i));
            let bits = _mm256_maskload_epi64(values.wrapping_add(4 * i).cast(), lanes);
            // AVX2 has no arithmetic shift of 64-bit lanes; a comparison with zero is equivalent.
            let sign = _mm256_cmpgt_epi64(_mm256_setzero_si256(), bits);
            let folded = _mm256_and_si256(sign, fold);
            *part = keep(
                _mm256_xor_si256(_mm256_xor_si256(bits, folded), flip),
                lanes,
            );
        }
        parts
    }
}

/// Returns the mask of the keys that are at most `threshold`.
#[inline(always)]
unsafe fn at_most_u32<const N: usize>(parts: [__m256i; N], threshold: u32) -> u64 {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let threshold = _mm256_set1_epi32(threshold.cast_signed());
        let mut hits = 0;
        for (i, part) in parts.into_iter().enumerate() {
            let equal = _mm256_cmpeq_epi32(_mm256_min_epu32(part, threshold), part);
            let equal = _mm256_movemask_ps(_mm256_castsi256_ps(equal)).cast_unsigned();
            hits |= u64::from(equal) << (8 * i);
        }
        hits
    }
}

/// Returns the mask of the keys that are at most `threshold`.
#[inline(always)]
unsafe fn at_most_u64<const N: usize>(parts: [__m256i; N], threshold: u64) -> u64 {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let sign = _mm256_set1_epi64x(i64::MIN);
        let threshold = _mm256_xor_si256(_mm256_set1_epi64x(threshold.cast_signed()), sign);
        let mut hits = 0;
        for (i, part) in parts.into_iter().enumerate() {
            let greater = _mm256_cmpgt_epi64(_mm256_xor_si256(part, sign), threshold);
            let greater = _mm256_movemask_pd(_mm256_castsi256_pd(greater)).cast_unsigned();
            hits |= u64::from(!greater & 0xF) << (4 * i);
        }
        hits
    }
}

impl Kernel<u32> for Avx2 {
    #[inline(always)]
    unsafe fn line(keys: *const u32, mask: u32) -> (u32, u32) {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe {
            let parts = [load_u32(keys, mask), load_u32(keys.add(8), mask >> 8)];
            least_u32(parts, u64::from(mask))
        }
    }

    #[inline(always)]
    unsafe fn window(first: *const u32, last: *const u32) -> (u32, u32) {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe {
            let (lines, mask) = window_lines::<_, WINDOW_LINES>(first, last);
            let mut parts = [_mm256_set1_epi32(-1); 2 * WINDOW_LINES];
            for (i, part) in parts.iter_mut().enumerate() {
                *part = load_u32(lines[i / 2].add(i % 2 * 8), (mask >> (8 * i)) as u32);
            }
            least_u32(parts, mask)
        }
    }

    #[inline(always)]
    unsafe fn base(values: *const u32, mask: u32, encoding: Encoding<u32>) -> (u32, u32) {
        // SAFETY: the caller guarantees readable memory under the mask, and the instructions.
        unsafe { least_u32(encoded_u32(values, mask, encoding), u64::from(mask)) }
    }

    #[inline(always)]
    unsafe fn line_at_most(keys: *const u32, mask: u32, threshold: u32) -> u32 {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe {
            let keys: *const __m256i = keys.cast();
            let parts = std::array::from_fn::<_, 2, _>(|i| _mm256_loadu_si256(keys.add(i)));
            at_most_u32(parts, threshold) as u32 & mask
        }
    }

    #[inline(always)]
    unsafe fn window_at_most(first: *const u32, last: *const u32, threshold: u32) -> u64 {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe {
            let (lines, mask) = window_lines::<_, WINDOW_LINES>(first, last);
            let mut parts = [_mm256_setzero_si256(); 2 * WINDOW_LINES];
            for (i, part) in parts.iter_mut().enumerate() {
                *part = _mm256_load_si256(lines[i / 2].add(i % 2 * 8).cast());
            }
            at_most_u32(parts, threshold) & mask
        }
    }

    #[inline(always)]
    unsafe fn base_at_most(
        values: *const u32,
        mask: u32,
        encoding: Encoding<u32>,
        threshold: u32,
    ) -> u32 {
        // SAFETY: the caller guarantees readable memory under the mask, and the instructions.
        unsafe { at_most_u32(encoded_u32(values, mask, encoding), threshold) as u32 & mask }
    }
}

impl Kernel<u64> for Avx2 {
    #[inline(always)]
    unsafe fn line(keys: *const u64, mask: u32) -> (u64, u32) {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe {
            let mut parts = [_mm256_set1_epi32(-1); 4];
            for (i, part) in parts.iter_mut().enumerate() {
                *part = load_u64(keys.add(4 * i), mask >> (4 * i));
            }
            least_u64(parts, u64::from(mask))
        }
    }

    #[inline(always)]
    unsafe fn window(first: *const u64, last: *const u64) -> (u64, u32) {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe {
            let (lines, mask) = window_lines::<_, { 2 * WINDOW_LINES }>(first, last);
            let mut parts = [_mm256_set1_epi32(-1); 4 * WINDOW_LINES];
            for (i, part) in parts.iter_mut().enumerate() {
                *part = load_u64(lines[i / 2].add(i % 2 * 4), (mask >> (4 * i)) as u32);
            }
            least_u64(parts, mask)
        }
    }

    #[inline(always)]
    unsafe fn base(values: *const u64, mask: u32, encoding: Encoding<u64>) -> (u64, u32) {
        // SAFETY: the caller guarantees readable memory under the mask, and the instructions.
        unsafe { least_u64(encoded_u64(values, mask, encoding), u64::from(mask)) }
    }

    #[inline(always)]
    unsafe fn line_at_most(keys: *const u64, mask: u32, threshold: u64) -> u32 {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe {
            let keys: *const __m256i = keys.cast();
            let parts = std::array::from_fn::<_, 4, _>(|i| _mm256_loadu_si256(keys.add(i)));
            at_most_u64(parts, threshold) as u32 & mask
        }
    }

    #[inline(always)]
    unsafe fn window_at_most(first: *const u64, last: *const u64, threshold: u64) -> u64 {
        // SAFETY: the caller guarantees readable memory and the instructions.
        unsafe {
            let (lines, mask) = window_lines::<_, { 2 * WINDOW_LINES }>(first, last);
            let mut parts = [_mm256_setzero_si256(); 4 * WINDOW_LINES];
            for (i, part) in parts.iter_mut().enumerate() {
                *part = _mm256_load_si256(lines[i / 2].add(i % 2 * 4).cast());
            }
            at_most_u64(parts, threshold) & mask
        }
    }

    #[inline(always)]
    unsafe fn base_at_most(
        values: *const u64,
        mask: u32,
        encoding: Encoding<u64>,
        threshold: u64,
    ) -> u32 {
        // SAFETY: the caller guarantees readable memory under the mask, and the instructions.
        unsafe { at_most_u64(encoded_u64(values, mask, encoding), threshold) as u32 & mask }
    }
}
