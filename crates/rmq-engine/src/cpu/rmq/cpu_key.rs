//! From an instruction set to code compiled for it.
//!
//! The build and the search are generic over a [`Kernel`] and always inlined; each function here carries the
//! `target_feature`s of one instruction set, so all that is inlined into it is compiled for that set.

use crate::cpu::rmq::build::{self, Source};
use crate::cpu::rmq::kernels::kernel::Kernel;
use crate::cpu::rmq::kernels::portable::Portable;
use crate::cpu::rmq::levels::Parts;
use crate::cpu::rmq::search::{self, Context};
use crate::cpu::simd::dispatch::Simd;
use crate::key::{Key, Plain};
use crate::outputs::Answers;

/// A key with code for each instruction set.
pub(crate) trait CpuKey: Key + Plain {
    /// See [`build::fill`].
    ///
    /// # Safety
    /// `simd` is available: [`Simd::check`].
    unsafe fn fill(simd: Simd, source: Source<'_, Self>, top: usize, parts: Parts<'_, Self>);

    /// See [`search::answer`]; positions are tracked where they are asked for.
    ///
    /// # Safety
    /// `simd` is available; the levels of `context` (with positions where these are asked for) were built of its column, or
    /// of one of the same length and [`lead`](crate::cpu::rmq::levels::lead).
    unsafe fn answer(
        simd: Simd,
        context: Context<'_, Self>,
        left: &[i64],
        right: &[i64],
        out: Answers<'_, Self>,
    );
}

/// # Safety
/// As [`search::answer`].
#[inline(always)]
unsafe fn answer_with<K: Key + Plain, S: Kernel<K>>(
    context: Context<'_, K>,
    left: &[i64],
    right: &[i64],
    out: Answers<'_, K>,
) {
    // SAFETY: as the caller vouches.
    unsafe {
        if out.positions.is_some() {
            search::answer::<K, S, true>(context, left, right, out);
        } else {
            search::answer::<K, S, false>(context, left, right, out);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Answers, Context, Kernel, Key, Parts, Plain, Source, answer_with, build};
    use crate::cpu::rmq::kernels::avx2::Avx2;
    use crate::cpu::rmq::kernels::avx512::Avx512;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) unsafe fn fill_avx512<K: Key + Plain>(
        source: Source<'_, K>,
        top: usize,
        parts: Parts<'_, K>,
    ) where
        Avx512: Kernel<K>,
    {
        build::fill::<K, Avx512>(source, top, parts);
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) unsafe fn fill_avx2<K: Key + Plain>(
        source: Source<'_, K>,
        top: usize,
        parts: Parts<'_, K>,
    ) where
        Avx2: Kernel<K>,
    {
        build::fill::<K, Avx2>(source, top, parts);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) unsafe fn answer_avx512<K: Key + Plain>(
        context: Context<'_, K>,
        left: &[i64],
        right: &[i64],
        out: Answers<'_, K>,
    ) where
        Avx512: Kernel<K>,
    {
        // SAFETY: as the caller vouches.
        unsafe { answer_with::<K, Avx512>(context, left, right, out) }
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) unsafe fn answer_avx2<K: Key + Plain>(
        context: Context<'_, K>,
        left: &[i64],
        right: &[i64],
        out: Answers<'_, K>,
    ) where
        Avx2: Kernel<K>,
    {
        // SAFETY: as the caller vouches.
        unsafe { answer_with::<K, Avx2>(context, left, right, out) }
    }
}

macro_rules! with_vectors {
    ($key:ty) => {
        impl CpuKey for $key {
            unsafe fn fill(
                simd: Simd,
                source: Source<'_, Self>,
                top: usize,
                parts: Parts<'_, Self>,
            ) {
                match simd {
                    // SAFETY: `simd` is available, so the machine has the instructions.
                    #[cfg(target_arch = "x86_64")]
                    Simd::Avx512 => unsafe { x86::fill_avx512(source, top, parts) },
                    // SAFETY: as above.
                    #[cfg(target_arch = "x86_64")]
                    Simd::Avx2 => unsafe { x86::fill_avx2(source, top, parts) },
                    _ => build::fill::<Self, Portable>(source, top, parts),
                }
            }

            unsafe fn answer(
                simd: Simd,
                context: Context<'_, Self>,
                left: &[i64],
                right: &[i64],
                out: Answers<'_, Self>,
            ) {
                // SAFETY: `simd` is available, so the machine has the instructions; of `context` the caller vouches.
                unsafe {
                    match simd {
                        #[cfg(target_arch = "x86_64")]
                        Simd::Avx512 => x86::answer_avx512(context, left, right, out),
                        #[cfg(target_arch = "x86_64")]
                        Simd::Avx2 => x86::answer_avx2(context, left, right, out),
                        _ => answer_with::<Self, Portable>(context, left, right, out),
                    }
                }
            }
        }
    };
}

with_vectors!(u32);
with_vectors!(u64);

/// 128-bit keys have no vector minimum anywhere; a block of them is four lines, read in order.
impl CpuKey for u128 {
    unsafe fn fill(_: Simd, source: Source<'_, Self>, top: usize, parts: Parts<'_, Self>) {
        build::fill::<Self, Portable>(source, top, parts);
    }

    unsafe fn answer(
        _: Simd,
        context: Context<'_, Self>,
        left: &[i64],
        right: &[i64],
        out: Answers<'_, Self>,
    ) {
        // SAFETY: no instructions are needed; of `context` the caller vouches.
        unsafe { answer_with::<Self, Portable>(context, left, right, out) }
    }
}
