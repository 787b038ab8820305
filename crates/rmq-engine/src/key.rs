//! Order-preserving unsigned keys: one kernel per width serves every type and both extremes.

use std::fmt::Debug;
use std::panic::RefUnwindSafe;

/// The end of the order that a query returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extreme {
    /// The smallest value.
    Min,
    /// The greatest value.
    Max,
}

impl Extreme {
    /// Returns `min` or `max`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Min => "min",
            Self::Max => "max",
        }
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
    impl Sealed for u128 {}
}

/// An unsigned key of 32, 64 or 128 bits that orders as the value that it encodes.
///
/// Sealed: implemented for `u32`, `u64` and `u128`.
pub trait Key:
    Copy + Ord + Default + Debug + Send + Sync + RefUnwindSafe + 'static + sealed::Sealed
{
    /// The greatest key: the neutral element of the minimum, and the key of NULL.
    const MAX: Self;

    /// The smallest key.
    const ZERO: Self;

    /// Returns `self ^ ((self >>arith (W - 1)) & fold) ^ flip`, see [`Encoding`].
    #[must_use]
    fn encode_with(self, fold: Self, flip: Self) -> Self;

    /// Returns the bits that have this key: the inverse of [`Key::encode_with`].
    #[must_use]
    fn decode_with(self, fold: Self, flip: Self) -> Self;

    /// Returns the key with all bits inverted, which reverses the order.
    #[must_use]
    fn complement(self) -> Self;

    /// Returns the next smaller key; `None` for the smallest.
    #[must_use]
    fn below(self) -> Option<Self>;

    /// The key with only the most significant bit set.
    const SIGN: Self;
}

macro_rules! key {
    ($unsigned:ty, $signed:ty) => {
        impl Key for $unsigned {
            const MAX: Self = <$unsigned>::MAX;
            const ZERO: Self = 0;
            const SIGN: Self = 1 << (<$unsigned>::BITS - 1);

            #[inline(always)]
            fn encode_with(self, fold: Self, flip: Self) -> Self {
                let sign = (self.cast_signed() >> (<$unsigned>::BITS - 1)).cast_unsigned();
                self ^ (sign & fold) ^ flip
            }

            #[inline(always)]
            fn decode_with(self, fold: Self, flip: Self) -> Self {
                // `fold` does not change the sign bit, so folding twice is the identity.
                (self ^ flip).encode_with(fold, 0)
            }

            #[inline(always)]
            fn complement(self) -> Self {
                !self
            }

            #[inline(always)]
            fn below(self) -> Option<Self> {
                self.checked_sub(1)
            }
        }
    };
}

key!(u32, i32);
key!(u64, i64);
key!(u128, i128);

/// How the stored bits of a column become order-preserving keys:
/// `key = x ^ ((x >>arith (W - 1)) & fold) ^ flip`.
///
/// It is a bijection, so the value can be recovered from its key. It takes three vector operations, so it is applied in
/// registers to borrowed memory.
///
/// | stored type | `fold` | `flip` |
/// |---|---|---|
/// | unsigned integer | 0 | 0 |
/// | signed integer | 0 | the sign bit |
/// | IEEE float, in total order | all but the sign bit | the sign bit |
/// | any of them, greatest first | as above | the complement of the above |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding<K> {
    fold: K,
    flip: K,
}

impl<K: Key> Encoding<K> {
    /// Returns the encoding of unsigned integers: the bits are the key.
    #[must_use]
    pub fn unsigned() -> Self {
        Self {
            fold: K::ZERO,
            flip: K::ZERO,
        }
    }

    /// Returns the encoding of signed integers in two's complement.
    #[must_use]
    pub fn signed() -> Self {
        Self {
            fold: K::ZERO,
            flip: K::SIGN,
        }
    }

    /// Returns the encoding of IEEE 754 floats in total order: -NaN, -inf, …, -0.0, 0.0, …, inf, NaN.
    #[must_use]
    pub fn float() -> Self {
        Self {
            fold: K::SIGN.complement(),
            flip: K::SIGN,
        }
    }

    /// Returns the encoding in which the requested extreme has the smallest key.
    #[must_use]
    pub fn directed(self, extreme: Extreme) -> Self {
        match extreme {
            Extreme::Min => self,
            Extreme::Max => self.reversed(),
        }
    }

    /// Returns the encoding of the same values in reverse order, in which the maximum has the smallest key.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            fold: self.fold,
            flip: self.flip.complement(),
        }
    }

    /// Returns the key of stored bits.
    #[inline]
    #[must_use]
    pub fn encode(self, bits: K) -> K {
        bits.encode_with(self.fold, self.flip)
    }

    /// Returns the stored bits of a key.
    #[inline]
    #[must_use]
    pub fn decode(self, key: K) -> K {
        key.decode_with(self.fold, self.flip)
    }

    /// Returns the bits that are inverted if the sign bit is set. The sign bit is never among them.
    #[inline]
    #[must_use]
    pub fn fold(self) -> K {
        self.fold
    }

    /// Returns the bits that are always inverted.
    #[inline]
    #[must_use]
    pub fn flip(self) -> K {
        self.flip
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_keep_their_total_order() {
        let values = [
            -f32::NAN,
            f32::NEG_INFINITY,
            f32::MIN,
            -1.0,
            -f32::MIN_POSITIVE,
            -0.0,
            0.0,
            f32::MIN_POSITIVE,
            1.0,
            f32::MAX,
            f32::INFINITY,
            f32::NAN,
        ];
        let up = Encoding::<u32>::float();
        let down = up.reversed();
        for pair in values.windows(2) {
            let (a, b) = (pair[0].to_bits(), pair[1].to_bits());
            assert!(up.encode(a) < up.encode(b), "{pair:?}");
            assert!(down.encode(a) > down.encode(b), "{pair:?}");
            assert_eq!(up.decode(up.encode(a)), a);
            assert_eq!(down.decode(down.encode(a)), a);
        }
    }

    #[test]
    fn integers_keep_their_order() {
        let values = [i64::MIN, -7, -1, 0, 1, 7, i64::MAX];
        let up = Encoding::<u64>::signed();
        for pair in values.windows(2) {
            let (a, b) = (pair[0].cast_unsigned(), pair[1].cast_unsigned());
            assert!(up.encode(a) < up.encode(b));
            assert!(up.reversed().encode(a) > up.reversed().encode(b));
            assert_eq!(up.decode(up.encode(a)), a);
        }
        assert_eq!(Encoding::<u128>::unsigned().encode(5), 5);
    }
}
