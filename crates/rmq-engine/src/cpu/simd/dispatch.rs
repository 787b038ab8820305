//! Instruction sets, and functions that are compiled for each of them.

use crate::error::EngineError;

/// A set of vector instructions. An engine uses the best one that the machine has, chosen at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Simd {
    /// AVX-512 F, BW, DQ and VL, with BMI, LZCNT and POPCNT.
    Avx512,
    /// AVX2, with BMI, LZCNT and POPCNT.
    Avx2,
    /// Loops over arrays of fixed size, vectorised by the compiler: NEON on aarch64, SSE2 or scalar code elsewhere.
    Portable,
}

/// Detects features by name, or enables them for a function: the lists of features are written here only.
#[cfg(target_arch = "x86_64")]
macro_rules! with_features {
    (avx2 => detect) => {
        with_features!(@detect "avx2", "bmi1", "bmi2", "lzcnt", "popcnt")
    };
    (avx512 => detect) => {
        with_features!(@detect "avx512f", "avx512bw", "avx512dq", "avx512vl") && with_features!(avx2 => detect)
    };
    (avx2 => enable $($function:tt)*) => {
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
        $($function)*
    };
    (avx512 => enable $($function:tt)*) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
        $($function)*
    };
    (@detect $($feature:tt),*) => {
        $(is_x86_feature_detected!($feature))&&*
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use with_features;

impl Simd {
    /// All instruction sets, best first.
    pub const ALL: [Self; 3] = [Self::Avx512, Self::Avx2, Self::Portable];

    /// Returns the best instruction set of this machine.
    #[must_use]
    pub fn best() -> Self {
        let mut all = Self::ALL.into_iter();
        all.find(|simd| simd.is_available())
            .unwrap_or(Self::Portable)
    }

    /// Returns whether this machine has the instruction set.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => with_features!(avx512 => detect),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => with_features!(avx2 => detect),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 | Self::Avx2 => false,
            Self::Portable => true,
        }
    }
}

/// An instruction set that this machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SupportedSimd(Simd);

impl SupportedSimd {
    /// Returns the best instruction set of this machine.
    pub(crate) fn best() -> Self {
        Self(Simd::best())
    }

    /// Checks that this machine has the instruction set.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] if it does not.
    pub(crate) fn try_new(simd: Simd) -> Result<Self, EngineError> {
        if simd.is_available() {
            return Ok(Self(simd));
        }
        Err(EngineError::Unsupported(match simd {
            Simd::Avx512 => "AVX-512",
            Simd::Avx2 => "AVX2",
            Simd::Portable => "portable code",
        }))
    }

    pub(crate) fn get(self) -> Simd {
        self.0
    }
}

/// Defines a function whose body is compiled for AVX-512, for AVX2 and for the base instruction set. Its first argument
/// is the [`SupportedSimd`] that chooses among them; the others follow.
///
/// Generic parameters are in brackets. The body calls functions that are `#[inline(always)]`, so that they are compiled
/// for the same instruction set. `where S in [A, B, C]` names the type that is `S` in each of the three bodies; with
/// one type, the body is only compiled for the base instruction set.
macro_rules! multiversion {
    (
        $(#[$attribute:meta])*
        unsafe fn $($function:tt)*
    ) => {
        multiversion!(@define [$(#[$attribute])*] [unsafe] $($function)*);
    };
    (
        $(#[$attribute:meta])*
        fn $($function:tt)*
    ) => {
        multiversion!(@define [$(#[$attribute])*] [] $($function)*);
    };
    (
        @define [$($attributes:tt)*] [$($unsafety:tt)?]
        $name:ident[$($generics:tt)*]($($argument:ident: $type:ty),* $(,)?)
        where $kernel:ident in [$portable:ty]
        $body:block
    ) => {
        $($attributes)*
        #[inline]
        $($unsafety)? fn $name<$($generics)*>(
            _: crate::cpu::simd::dispatch::SupportedSimd,
            $($argument: $type),*
        ) {
            type $kernel = $portable;
            $body
        }
    };
    (
        @define [$($attributes:tt)*] [$($unsafety:tt)?]
        $name:ident[$($generics:tt)*]($($argument:ident: $type:ty),* $(,)?)
        $(where $kernel:ident in [$avx512:ty, $avx2:ty, $portable:ty])?
        $body:block
    ) => {
        $($attributes)*
        #[inline]
        $($unsafety)? fn $name<$($generics)*>(
            simd: crate::cpu::simd::dispatch::SupportedSimd,
            $($argument: $type),*
        ) {
            #[cfg(target_arch = "x86_64")]
            crate::cpu::simd::dispatch::with_features! { avx512 => enable
                $($unsafety)? fn avx512<$($generics)*>($($argument: $type),*) {
                    $(type $kernel = $avx512;)?
                    $body
                }
            }
            #[cfg(target_arch = "x86_64")]
            crate::cpu::simd::dispatch::with_features! { avx2 => enable
                $($unsafety)? fn avx2<$($generics)*>($($argument: $type),*) {
                    $(type $kernel = $avx2;)?
                    $body
                }
            }
            match simd.get() {
                // SAFETY: the machine has these instructions, as `simd` is supported. What else an unsafe function
                // requires its caller guarantees.
                #[cfg(target_arch = "x86_64")]
                crate::cpu::simd::dispatch::Simd::Avx512 => unsafe { avx512($($argument),*) },
                // SAFETY: as for AVX-512.
                #[cfg(target_arch = "x86_64")]
                crate::cpu::simd::dispatch::Simd::Avx2 => unsafe { avx2($($argument),*) },
                _ => {
                    $(type $kernel = $portable;)?
                    $body
                }
            }
        }
    };
}
pub(crate) use multiversion;
