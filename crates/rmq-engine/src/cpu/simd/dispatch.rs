//! Instruction sets, and functions compiled for each of them.

use crate::error::EngineError;

/// A set of vector instructions. The engine takes the best one the machine has, at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Simd {
    /// AVX-512 F, BW, DQ and VL, with BMI, LZCNT and POPCNT.
    Avx512,
    /// AVX2, with BMI, LZCNT and POPCNT.
    Avx2,
    /// What the compiler makes of loops over arrays of fixed size. On aarch64, where NEON is part of the base
    /// instruction set, that is NEON; elsewhere it is SSE2 or scalar code.
    Portable,
}

impl Simd {
    /// All of them, best first.
    pub const ALL: [Self; 3] = [Self::Avx512, Self::Avx2, Self::Portable];

    /// The best one this machine has.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL
            .into_iter()
            .find(|simd| simd.is_available())
            .unwrap_or(Self::Portable)
    }

    /// Whether this machine has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && Self::Avx2.is_available()
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("bmi1")
                    && is_x86_feature_detected!("bmi2")
                    && is_x86_feature_detected!("lzcnt")
                    && is_x86_feature_detected!("popcnt")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 | Self::Avx2 => false,
            Self::Portable => true,
        }
    }

    /// Itself, where this machine has it.
    pub(crate) fn check(self) -> Result<Self, EngineError> {
        if self.is_available() {
            return Ok(self);
        }
        Err(EngineError::Unsupported(match self {
            Self::Avx512 => "AVX-512",
            Self::Avx2 => "AVX2",
            Self::Portable => "portable code",
        }))
    }
}
