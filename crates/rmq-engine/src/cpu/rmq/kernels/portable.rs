//! Plain Rust over arrays of fixed size, which the compiler turns into the vectors of the base instruction set.

use crate::cpu::rmq::kernels::kernel::{Kernel, NO_LANE, between};
use crate::cpu::rmq::levels::BLOCK;
use crate::key::{Encoding, Key};

/// The kernels in plain Rust.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

/// Returns the smallest of `N` keys under a mask and its first lane.
#[inline(always)]
fn least<K: Key, const N: usize>(keys: &[K; N], mask: u64) -> (K, u32) {
    let mut masked = [K::MAX; N];
    for i in 0..N {
        masked[i] = if mask >> i & 1 == 1 { keys[i] } else { K::MAX };
    }
    let mut best = K::MAX;
    for key in masked {
        best = best.min(key);
    }
    let mut equal = 0_u64;
    for (i, key) in keys.iter().enumerate() {
        equal |= u64::from(*key == best) << i;
    }
    (best, (equal & mask).trailing_zeros())
}

impl<K: Key> Kernel<K> for Portable {
    #[inline(always)]
    unsafe fn line(keys: *const K, mask: u32) -> (K, u32) {
        // SAFETY: the caller guarantees that 16 keys can be read.
        let keys = unsafe { &*keys.cast::<[K; BLOCK]>() };
        least(keys, u64::from(mask))
    }

    #[inline(always)]
    unsafe fn window(first: *const K, last: *const K) -> (K, u32) {
        let mask = between(first, last);
        if mask == 0 {
            return (K::MAX, NO_LANE);
        }
        // SAFETY: the caller guarantees that the keys from `first` to `last` can be read.
        let keys = unsafe { std::slice::from_raw_parts(first.add(1), mask.count_ones() as usize) };
        let mut best = K::MAX;
        for key in keys {
            best = best.min(*key);
        }
        let at = keys.iter().position(|key| *key == best);
        (best, mask.trailing_zeros() + at.map_or(0, |at| at as u32))
    }

    #[inline(always)]
    unsafe fn base(values: *const K, mask: u32, encoding: Encoding<K>) -> (K, u32) {
        let (mut best, mut lane) = (K::MAX, NO_LANE);
        if mask == 0 {
            return (best, lane);
        }
        let first = mask.trailing_zeros();
        let len = (mask >> first).trailing_ones();
        // SAFETY: the caller guarantees that the values under the mask, which is contiguous, can be read. `values`
        // itself may be outside the column, hence `wrapping_add`.
        let values = unsafe {
            std::slice::from_raw_parts(values.wrapping_add(first as usize), len as usize)
        };
        for value in values {
            best = best.min(encoding.encode(*value));
        }
        let bits = encoding.decode(best);
        for (i, value) in (first..).zip(values) {
            if *value == bits {
                lane = i;
                break;
            }
        }
        (best, lane)
    }

    #[inline(always)]
    unsafe fn line_at_most(keys: *const K, mask: u32, threshold: K) -> u32 {
        // SAFETY: the caller guarantees that 16 keys can be read.
        let keys = unsafe { &*keys.cast::<[K; BLOCK]>() };
        let mut hits = 0;
        for (i, key) in keys.iter().enumerate() {
            hits |= u32::from(*key <= threshold) << i;
        }
        hits & mask
    }

    #[inline(always)]
    unsafe fn window_at_most(first: *const K, last: *const K, threshold: K) -> u64 {
        let mask = between(first, last);
        if mask == 0 {
            return 0;
        }
        // SAFETY: the caller guarantees that the keys from `first` to `last` can be read.
        let keys = unsafe { std::slice::from_raw_parts(first.add(1), mask.count_ones() as usize) };
        let mut hits = 0;
        for (i, key) in keys.iter().enumerate() {
            hits |= u64::from(*key <= threshold) << i;
        }
        hits << mask.trailing_zeros()
    }

    #[inline(always)]
    unsafe fn base_at_most(
        values: *const K,
        mask: u32,
        encoding: Encoding<K>,
        threshold: K,
    ) -> u32 {
        if mask == 0 {
            return 0;
        }
        let first = mask.trailing_zeros();
        let len = (mask >> first).trailing_ones();
        // SAFETY: the caller guarantees that the values under the mask, which is contiguous, can be read. `values`
        // itself may be outside the column, hence `wrapping_add`.
        let values = unsafe {
            std::slice::from_raw_parts(values.wrapping_add(first as usize), len as usize)
        };
        let mut hits = 0;
        for (i, value) in (first..).zip(values) {
            hits |= u32::from(encoding.encode(*value) <= threshold) << i;
        }
        hits
    }
}
