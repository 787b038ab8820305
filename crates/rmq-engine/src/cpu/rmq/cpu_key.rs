//! Keys with a build and a search compiled for each instruction set.
//!
//! The build and the search are generic over a [`Kernel`] and always inlined; `multiversion!` compiles them once per
//! instruction set.

use bytemuck::Pod;

#[cfg(target_arch = "x86_64")]
use crate::cpu::rmq::kernels::{avx2::Avx2, avx512::Avx512};

use crate::cpu::rmq::build::{self, Source};
use crate::cpu::rmq::crossing;
use crate::cpu::rmq::kernels::kernel::Kernel;
use crate::cpu::rmq::kernels::portable::Portable;
use crate::cpu::rmq::levels::Parts;
use crate::cpu::rmq::listing;
use crate::cpu::rmq::search::{self, Context};
use crate::cpu::simd::dispatch::{SupportedSimd, multiversion};
use crate::crossings::{Crossings, ListLimits, RangeEnd, RowList};
use crate::key::Key;
use crate::outputs::Answers;

/// A key with code for each instruction set.
pub(crate) trait CpuKey: Key + Pod {
    /// See [`build::fill`].
    fn fill(simd: SupportedSimd, source: Source<'_, Self>, top: usize, parts: Parts<'_, Self>);

    /// See [`search::answer`]; positions are tracked where they are requested.
    ///
    /// # Safety
    /// The levels of `context` (with positions where these are requested) were built of its column, or of one of the
    /// same length and [`alignment_offset`](crate::cpu::rmq::levels::alignment_offset).
    unsafe fn answer(
        simd: SupportedSimd,
        context: Context<'_, Self>,
        left: &[i64],
        right: &[i64],
        out: Answers<'_, Self>,
    );

    /// See [`crossing::crossings`].
    ///
    /// # Safety
    /// As [`CpuKey::answer`].
    unsafe fn crossings(
        simd: SupportedSimd,
        context: Context<'_, Self>,
        left: &[i64],
        right: &[i64],
        thresholds: &[Self],
        end: RangeEnd,
        out: Crossings<'_>,
    );

    /// See [`listing::list_at_most`].
    ///
    /// # Safety
    /// As [`CpuKey::answer`].
    unsafe fn list_at_most(
        simd: SupportedSimd,
        context: Context<'_, Self>,
        left: &[i64],
        right: &[i64],
        thresholds: &[Self],
        limits: ListLimits,
        out: &mut RowList,
    );

    /// See [`listing::count_at_most`].
    ///
    /// # Safety
    /// As [`CpuKey::answer`].
    unsafe fn count_at_most(
        simd: SupportedSimd,
        context: Context<'_, Self>,
        left: &[i64],
        right: &[i64],
        thresholds: &[Self],
        counts: &mut [i64],
    );
}

/// # Safety
/// As [`search::answer`].
#[inline(always)]
unsafe fn answer_with<K: Key + Pod, S: Kernel<K>>(
    context: Context<'_, K>,
    left: &[i64],
    right: &[i64],
    out: Answers<'_, K>,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if out.positions.is_some() {
            search::answer::<K, S, true>(context, left, right, out);
        } else {
            search::answer::<K, S, false>(context, left, right, out);
        }
    }
}

/// # Safety
/// As [`crossing::crossings`].
#[inline(always)]
unsafe fn crossings_with<K: Key + Pod, S: Kernel<K>>(
    context: Context<'_, K>,
    left: &[i64],
    right: &[i64],
    thresholds: &[K],
    end: RangeEnd,
    mut out: Crossings<'_>,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match end {
            RangeEnd::First => {
                crossing::crossings::<K, S, true>(context, left, right, thresholds, &mut out);
            }
            RangeEnd::Last => {
                crossing::crossings::<K, S, false>(context, left, right, thresholds, &mut out);
            }
        }
    }
}

/// Compiles the code of a key for the kernels of AVX-512, AVX2 and the base instruction set, or for the last alone.
macro_rules! cpu_key {
    ($key:ty: $($kernel:ty),+) => {
        impl CpuKey for $key {
            multiversion! {
                fn fill[](source: Source<'_, $key>, top: usize, parts: Parts<'_, $key>)
                where S in [$($kernel),+] {
                    build::fill::<$key, S>(source, top, parts);
                }
            }

            multiversion! {
                unsafe fn answer[](context: Context<'_, $key>, left: &[i64], right: &[i64], out: Answers<'_, $key>)
                where S in [$($kernel),+] {
                    // SAFETY: guaranteed by the caller.
                    unsafe { answer_with::<$key, S>(context, left, right, out) }
                }
            }

            multiversion! {
                unsafe fn crossings[](
                    context: Context<'_, $key>,
                    left: &[i64],
                    right: &[i64],
                    thresholds: &[$key],
                    end: RangeEnd,
                    out: Crossings<'_>,
                )
                where S in [$($kernel),+] {
                    // SAFETY: guaranteed by the caller.
                    unsafe { crossings_with::<$key, S>(context, left, right, thresholds, end, out) }
                }
            }

            multiversion! {
                unsafe fn list_at_most[](
                    context: Context<'_, $key>,
                    left: &[i64],
                    right: &[i64],
                    thresholds: &[$key],
                    limits: ListLimits,
                    out: &mut RowList,
                )
                where S in [$($kernel),+] {
                    // SAFETY: guaranteed by the caller.
                    unsafe { listing::list_at_most::<$key, S>(context, left, right, thresholds, limits, out) }
                }
            }

            multiversion! {
                unsafe fn count_at_most[](
                    context: Context<'_, $key>,
                    left: &[i64],
                    right: &[i64],
                    thresholds: &[$key],
                    counts: &mut [i64],
                )
                where S in [$($kernel),+] {
                    // SAFETY: guaranteed by the caller.
                    unsafe { listing::count_at_most::<$key, S>(context, left, right, thresholds, counts) }
                }
            }
        }
    };
}

cpu_key!(u32: Avx512, Avx2, Portable);
cpu_key!(u64: Avx512, Avx2, Portable);
// No instruction set has a vector minimum of 128-bit keys. A block of them is four cache lines, read in order.
cpu_key!(u128: Portable);
