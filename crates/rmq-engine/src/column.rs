//! A column as the engines see it: stored bits, their encoding as keys, and their validity.

use std::fmt;
use std::sync::Arc;

use crate::error::EngineError;
use crate::key::{Encoding, Extreme, Key};

/// Memory that holds a column's bits: Arrow's `ScalarBuffer`, a `Vec`, a boxed slice.
pub type SharedSlice<T> = Arc<dyn AsRef<[T]> + Send + Sync>;

/// The values of one column, shared and not copied.
///
/// `as_ref()` of the memory must return the same slice each time; otherwise queries fail with
/// [`EngineError::ColumnMoved`].
#[derive(Clone)]
pub struct Column<K> {
    bits: SharedSlice<K>,
    encoding: Encoding<K>,
    validity: Option<Validity>,
}

impl<K: Key> Column<K> {
    /// Creates a column without NULLs.
    pub fn new(bits: SharedSlice<K>, encoding: Encoding<K>) -> Self {
        Self {
            bits,
            encoding,
            validity: None,
        }
    }

    /// Adds a validity bitmap.
    ///
    /// # Errors
    /// [`EngineError::Validity`] if the bitmap is shorter than the column.
    pub fn with_validity(mut self, validity: Validity) -> Result<Self, EngineError> {
        validity.check(self.len())?;
        self.validity = Some(validity);
        Ok(self)
    }

    /// Returns the same values with keys whose minimum is the `extreme` of those of this column.
    #[must_use]
    pub fn directed(&self, extreme: Extreme) -> Self {
        Self {
            encoding: self.encoding.directed(extreme),
            ..self.clone()
        }
    }

    /// Number of values, NULLs included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bits().len()
    }

    /// Returns whether the column has no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The stored bits, one item per value; unspecified for NULL.
    #[must_use]
    pub fn bits(&self) -> &[K] {
        (*self.bits).as_ref()
    }

    /// The memory of the bits.
    #[must_use]
    pub fn shared_bits(&self) -> &SharedSlice<K> {
        &self.bits
    }

    /// The encoding of the bits as keys.
    #[must_use]
    pub fn encoding(&self) -> Encoding<K> {
        self.encoding
    }

    /// The validity bitmap; `None` if no value is NULL.
    #[must_use]
    pub fn validity(&self) -> Option<&Validity> {
        self.validity.as_ref()
    }
}

impl<K: Key> fmt::Debug for Column<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Column")
            .field("len", &self.len())
            .field("encoding", &self.encoding)
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}

/// An Arrow validity bitmap: bit `offset + i`, least significant first, is set where value `i` is not NULL.
#[derive(Clone)]
pub struct Validity {
    bytes: SharedSlice<u8>,
    offset: usize,
}

impl Validity {
    /// Creates a bitmap whose first bit is `offset` bits from the start of the bytes.
    pub fn new(bytes: SharedSlice<u8>, offset: usize) -> Self {
        Self { bytes, offset }
    }

    /// All bytes; the offset is not applied.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// Number of bits before that of the first value.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns whether value `i` is not NULL.
    ///
    /// # Panics
    /// If the bitmap does not cover it.
    #[inline]
    #[must_use]
    pub fn is_valid(&self, i: usize) -> bool {
        let bit = self.offset + i;
        self.bytes()[bit / 8] >> (bit % 8) & 1 == 1
    }

    /// Checks that the bitmap covers `len` values.
    pub(crate) fn check(&self, len: usize) -> Result<(), EngineError> {
        let bytes = self.bytes().len();
        let bits = self.offset.saturating_add(len);
        if bits.div_ceil(8) > bytes {
            return Err(EngineError::Validity { bits, bytes });
        }
        Ok(())
    }

    /// Returns how many of `len` values, which the bitmap covers, are NULL.
    pub(crate) fn null_count(&self, len: usize) -> usize {
        let mut valid = 0;
        for from in (0..len).step_by(64) {
            let bits = word(self.bytes(), self.offset + from, (len - from).min(64));
            valid += bits.count_ones() as usize;
        }
        len - valid
    }
}

/// Returns `len <= 64` bits from bit `offset` of `bytes` on.
pub(super) fn word(bytes: &[u8], offset: usize, len: usize) -> u64 {
    let (first, shift) = (offset / 8, offset % 8);
    let mut wide = [0_u8; 16];
    let have = bytes.len().min(first + 9) - first;
    wide[..have].copy_from_slice(&bytes[first..first + have]);
    let bits = u128::from_le_bytes(wide) >> shift;
    #[expect(clippy::cast_possible_truncation, reason = "truncates on purpose")]
    let bits = bits as u64;
    if len == 64 {
        bits
    } else {
        bits & ((1 << len) - 1)
    }
}

impl fmt::Debug for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Validity")
            .field("bytes", &self.bytes().len())
            .field("offset", &self.offset)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_bitmap_at_any_offset() {
        let bytes: Vec<u8> = (0..40).map(|i: u8| i.wrapping_mul(151) ^ 0x5A).collect();
        for offset in 0..64 {
            for len in 1..=64 {
                let mut expected = 0_u64;
                for i in 0..len {
                    let at = offset + i;
                    expected |= u64::from(bytes[at / 8] >> (at % 8) & 1) << i;
                }
                assert_eq!(word(&bytes, offset, len), expected, "{offset} {len}");
            }
        }
        let bitmap = Validity::new(Arc::new(vec![0xF0, 0xFF, 1]), 4);
        assert_eq!(bitmap.null_count(13), 0);
        assert_eq!(bitmap.null_count(14), 1);
    }
}
