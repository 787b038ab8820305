//! Range minima over one plain Rust slice.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::AtomicBool;

use crate::cpu::RankKey;
use crate::cpu::rmq::index::index_slice;
use crate::crossings::{Crossings, RangeEnd, RowList};
use crate::engine::{BuildOptions, RangeIndex};
use crate::error::EngineError;
use crate::key::{Encoding, Extreme, Key};
use crate::outputs::Answers;

mod sealed {
    use super::{BuildOptions, Encoding, EngineError, RangeIndex, RankKey};

    pub trait Sealed: Sized {
        type Key: RankKey;
        fn encoding() -> Encoding<Self::Key>;
        fn from_bits(bits: Self::Key) -> Self;
        fn bits(values: &[Self]) -> &[Self::Key];
        fn index<'a>(
            values: &'a [Self],
            encoding: Encoding<Self::Key>,
            options: &BuildOptions,
        ) -> Result<Box<dyn RangeIndex<Self::Key> + 'a>, EngineError>;
    }
}
use sealed::Sealed;

/// A value that can be indexed: `i32`, `i64`, `i128`, `u32`, `u64`, `u128`, `f32` or `f64`.
///
/// Floats are ordered by IEEE 754's total order ([`f32::total_cmp`]): -0.0 below 0.0, NaN above infinity (and NaN with
/// its sign set below all).
pub trait Value: Sealed + Copy + Debug + Send + Sync + 'static {}

macro_rules! value {
    ($value:ty, $key:ty, $encoding:ident, $from_bits:expr) => {
        impl Value for $value {}
        impl Sealed for $value {
            type Key = $key;

            fn encoding() -> Encoding<$key> {
                Encoding::$encoding()
            }

            fn from_bits(bits: $key) -> Self {
                $from_bits(bits)
            }

            fn bits(values: &[Self]) -> &[$key] {
                bytemuck::cast_slice(values)
            }

            fn index<'a>(
                values: &'a [Self],
                encoding: Encoding<$key>,
                options: &BuildOptions,
            ) -> Result<Box<dyn RangeIndex<$key> + 'a>, EngineError> {
                index_slice::<$key>(bytemuck::cast_slice(values), encoding, options)
            }
        }
    };
}

value!(i32, u32, signed, u32::cast_signed);
value!(i64, u64, signed, u64::cast_signed);
value!(i128, u128, signed, u128::cast_signed);
value!(u32, u32, unsigned, std::convert::identity);
value!(u64, u64, unsigned, std::convert::identity);
value!(u128, u128, unsigned, std::convert::identity);
value!(f32, u32, float, f32::from_bits);
value!(f64, u64, float, f64::from_bits);

/// The index of a slice for range-minimum or range-maximum queries.
///
/// It borrows the values and adds about 0.3 bytes per value of 4 bytes, and 0.6 per value of 8. Batches
/// ([`Index::values`], [`Index::positions`]) are much faster than single queries: some ten nanoseconds per query in a
/// batch of thousands, about a microsecond for one query alone.
///
/// ```
/// use rmq_engine::Index;
///
/// let temperatures = [21.5_f64, 19.0, 23.5, 18.0, 22.0, 18.0];
/// let highs = Index::max(&temperatures)?;
/// let (mut values, mut positions) = ([0.0; 2], [0; 2]);
/// highs.values(&[0, 3], &[5, 4], &mut values)?;
/// highs.positions(&[0, 3], &[5, 4], &mut positions)?;
/// assert_eq!((values, positions), ([23.5, 22.0], [2, 4]));
/// # Ok::<(), rmq_engine::EngineError>(())
/// ```
#[derive(Debug)]
pub struct Index<'a, T: Value> {
    encoding: Encoding<T::Key>,
    inner: Box<dyn RangeIndex<T::Key> + 'a>,
    values: PhantomData<&'a [T]>,
}

impl<'a, T: Value> Index<'a, T> {
    /// Builds an index for the smallest value, on the calling thread.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] if there is no memory for the index.
    pub fn min(values: &'a [T]) -> Result<Self, EngineError> {
        Self::build(values, Extreme::Min, &BuildOptions::default())
    }

    /// Builds an index for the greatest value, on the calling thread.
    ///
    /// # Errors
    /// As [`Index::min`].
    pub fn max(values: &'a [T]) -> Result<Self, EngineError> {
        Self::build(values, Extreme::Max, &BuildOptions::default())
    }

    /// Builds an index with the given number of threads, with or without positions.
    ///
    /// # Errors
    /// As [`Index::min`]; [`EngineError::Thread`] if a thread cannot be started.
    pub fn build(
        values: &'a [T],
        extreme: Extreme,
        options: &BuildOptions,
    ) -> Result<Self, EngineError> {
        let encoding = T::encoding().directed(extreme);
        Ok(Self {
            encoding,
            inner: T::index(values, encoding, options)?,
            values: PhantomData,
        })
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.len()
    }

    /// Returns whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    /// Bytes of the index; the values are not counted.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.inner.index_bytes()
    }

    /// Returns the extreme value of one range, clipped to the slice; `None` if it is empty.
    #[must_use]
    pub fn value(&self, range: impl RangeBounds<usize>) -> Option<T> {
        let (left, right) = bounds(&range);
        let (mut value, mut valid) = ([T::Key::ZERO], [0]);
        let out = Answers {
            values: Some(&mut value),
            positions: None,
            valid: &mut valid,
        };
        // The only error is a slice of another length.
        self.inner.answer(&[left], &[right], out).ok()?;
        (valid[0] == 1).then(|| T::from_bits(value[0]))
    }

    /// Returns the leftmost position of the extreme value of one range; `None` if it is empty, or if the index was
    /// built without positions.
    #[must_use]
    pub fn position(&self, range: impl RangeBounds<usize>) -> Option<usize> {
        let (left, right) = bounds(&range);
        let (mut position, mut valid) = ([0], [0]);
        let out = Answers {
            values: None,
            positions: Some(&mut position),
            valid: &mut valid,
        };
        self.inner.answer(&[left], &[right], out).ok()?;
        (valid[0] == 1).then(|| usize::try_from(position[0]).ok())?
    }

    /// Writes the extreme value of `left[i]..=right[i]` to `out[i]`.
    ///
    /// Bounds are clipped to the slice. For an empty range (`left > right`), `out` is the neutral value: for minima the
    /// greatest `T` (a NaN for floats), for maxima the smallest.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] if the three slices differ in length.
    pub fn values(&self, left: &[i64], right: &[i64], out: &mut [T]) -> Result<(), EngineError> {
        let mut values = [T::Key::ZERO; BATCH];
        let mut valid = [0; BATCH / 64];
        lengths(left, right, out.len())?;
        let bounds = left.chunks(BATCH).zip(right.chunks(BATCH));
        for ((left, right), out) in bounds.zip(out.chunks_mut(BATCH)) {
            let values = &mut values[..out.len()];
            let answers = Answers {
                values: Some(&mut *values),
                positions: None,
                valid: &mut valid[..out.len().div_ceil(64)],
            };
            self.inner.answer(left, right, answers)?;
            for (out, bits) in out.iter_mut().zip(values) {
                *out = T::from_bits(*bits);
            }
        }
        Ok(())
    }

    /// Writes the leftmost position of the extreme value of `left[i]..=right[i]` to `out[i]`.
    ///
    /// Bounds are clipped to the slice. For an empty range (`left > right`), `out` is -1.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] if the three slices differ in length, [`EngineError::NoPositions`] if the index was
    /// built without positions.
    pub fn positions(
        &self,
        left: &[i64],
        right: &[i64],
        out: &mut [i64],
    ) -> Result<(), EngineError> {
        let mut valid = [0; BATCH / 64];
        lengths(left, right, out.len())?;
        let bounds = left.chunks(BATCH).zip(right.chunks(BATCH));
        for ((left, right), out) in bounds.zip(out.chunks_mut(BATCH)) {
            let words = out.len().div_ceil(64);
            let answers = Answers {
                values: None,
                positions: Some(&mut *out),
                valid: &mut valid[..words],
            };
            self.inner.answer(left, right, answers)?;
            mark_missing(&valid, out);
        }
        Ok(())
    }

    /// Writes the first or last position of `left[i]..=right[i]` whose value is at most `thresholds[i]` to `out[i]`; in
    /// an index of maxima, whose value is at least that.
    ///
    /// Bounds are clipped to the slice. Where no value of a range qualifies, `out` is -1. Each query takes time
    /// logarithmic in the number of values.
    ///
    /// ```
    /// use rmq_engine::{Index, RangeEnd};
    ///
    /// let prices = [10.2_f64, 10.4, 9.9, 10.1, 9.7, 10.3];
    /// // When would an order to buy at 10.0 have been filled, had it been placed at position 1, or 3?
    /// let lows = Index::min(&prices)?;
    /// let mut filled = [0; 2];
    /// lows.crossings(&[1, 3], &[5, 5], &[10.0, 10.0], RangeEnd::First, &mut filled)?;
    /// assert_eq!(filled, [2, 4]);
    /// # Ok::<(), rmq_engine::EngineError>(())
    /// ```
    ///
    /// # Errors
    /// [`EngineError::Lengths`] if the four slices differ in length.
    pub fn crossings(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[T],
        end: RangeEnd,
        out: &mut [i64],
    ) -> Result<(), EngineError> {
        let (mut keys, mut valid) = ([T::Key::ZERO; BATCH], [0; BATCH / 64]);
        lengths(left, right, out.len())?;
        if thresholds.len() != left.len() {
            return Err(EngineError::Lengths {
                what: "the slice of thresholds",
                expected: left.len(),
                found: thresholds.len(),
            });
        }
        let bounds = left.chunks(BATCH).zip(right.chunks(BATCH));
        let thresholds = T::bits(thresholds).chunks(BATCH);
        for (((left, right), bits), out) in bounds.zip(thresholds).zip(out.chunks_mut(BATCH)) {
            let words = out.len().div_ceil(64);
            for (key, bits) in keys.iter_mut().zip(bits) {
                *key = self.encoding.encode(*bits);
            }
            let found = Crossings {
                positions: &mut *out,
                valid: &mut valid[..words],
            };
            let keys = &keys[..bits.len()];
            self.inner.crossings(left, right, keys, end, found)?;
            mark_missing(&valid, out);
        }
        Ok(())
    }

    /// Returns the positions of the `k` smallest values of each range `left[i]..=right[i]`, the smallest first, the
    /// leftmost first among equals; in an index of maxima, of the greatest. Fewer where a range has fewer values.
    ///
    /// Bounds are clipped to the slice. Each range takes at most `2k - 1` range minima, however long it is.
    ///
    /// ```
    /// use rmq_engine::Index;
    ///
    /// let temperatures = [21.5_f64, 19.0, 23.5, 18.0, 22.0, 18.0];
    /// let highs = Index::max(&temperatures)?;
    /// assert_eq!(highs.best(&[0, 3], &[5, 4], 3)?, [vec![2, 4, 0], vec![4, 3]]);
    /// # Ok::<(), rmq_engine::EngineError>(())
    /// ```
    ///
    /// # Errors
    /// [`EngineError::Lengths`] if the slices differ in length, [`EngineError::NoPositions`] if the index was built
    /// without positions.
    pub fn best(
        &self,
        left: &[i64],
        right: &[i64],
        k: usize,
    ) -> Result<Vec<Vec<i64>>, EngineError> {
        let mut listed = RowList::default();
        let counts = vec![k; left.len()];
        let inner = &self.inner;
        inner.list_smallest(left, right, &counts, &AtomicBool::new(false), &mut listed)?;
        let mut start = 0;
        let ranges = listed.ends.iter().map(|end| {
            let positions = listed.positions[start..*end].to_vec();
            start = *end;
            positions
        });
        Ok(ranges.collect())
    }
}

/// Replaces positions without an answer by -1.
fn mark_missing(valid: &[u64], positions: &mut [i64]) {
    for (i, position) in positions.iter_mut().enumerate() {
        if valid[i / 64] >> (i % 64) & 1 == 0 {
            *position = -1;
        }
    }
}

/// Queries per call of the engine: its outputs stay in the L1 cache until they are converted.
const BATCH: usize = 1024;

/// Returns inclusive bounds. A slice has at most `isize::MAX` bytes, so clipping to `i64` changes no result.
fn bounds(range: &impl RangeBounds<usize>) -> (i64, i64) {
    let clip = |at: usize| i64::try_from(at).unwrap_or(i64::MAX);
    let left = match range.start_bound() {
        Bound::Included(&at) => clip(at),
        Bound::Excluded(&at) => clip(at).saturating_add(1),
        Bound::Unbounded => 0,
    };
    let right = match range.end_bound() {
        Bound::Included(&at) => clip(at),
        Bound::Excluded(&at) => clip(at) - 1,
        Bound::Unbounded => i64::MAX,
    };
    (left, right)
}

/// Checks that bounds and outputs have one length.
fn lengths(left: &[i64], right: &[i64], out: usize) -> Result<(), EngineError> {
    for (what, found) in [
        ("the slice of right bounds", right.len()),
        ("the slice for answers", out),
    ] {
        if found != left.len() {
            return Err(EngineError::Lengths {
                what,
                expected: left.len(),
                found,
            });
        }
    }
    Ok(())
}
