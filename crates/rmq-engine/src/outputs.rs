//! Outputs of queries, in memory that the engine writes fastest.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::RefUnwindSafe;
use std::ptr::NonNull;

use bytemuck::Pod;

use crate::error::EngineError;
use crate::key::Key;

/// A slice that an engine fills. Its memory returns to its owner when it is dropped.
///
/// The CPU engine allocates a `Vec`; an engine for GPUs may lend memory that its device writes to. The slice may
/// outlive the index, and it becomes the buffer of an Arrow array without a copy.
pub struct OutputBuffer<T> {
    start: NonNull<T>,
    len: usize,
    /// Keeps the memory, and takes it back when dropped.
    _owner: Box<dyn Owner>,
}

/// Keeps memory until it is dropped.
trait Owner: Send + Sync + RefUnwindSafe {}
impl<O: Send + Sync + RefUnwindSafe> Owner for O {}

// SAFETY: `OutputBuffer` is the only access to its items, as a `Vec<T>` is; its owner is `Send` and `Sync`.
unsafe impl<T: Send> Send for OutputBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for OutputBuffer<T> {}

impl<T> OutputBuffer<T> {
    /// Wraps `len` items from `start` on, whose memory `owner` keeps.
    ///
    /// # Safety
    /// Until `owner` is dropped, `start` points to `len` initialised values of `T` that nothing else reads or writes,
    /// also after `owner` itself moves.
    #[cfg(feature = "cuda")]
    pub unsafe fn lent(
        start: NonNull<T>,
        len: usize,
        owner: impl Send + Sync + RefUnwindSafe + 'static,
    ) -> Self {
        Self {
            start,
            len,
            _owner: Box::new(owner),
        }
    }
}

impl<T: Send + Sync + RefUnwindSafe + 'static> From<Vec<T>> for OutputBuffer<T> {
    fn from(mut numbers: Vec<T>) -> Self {
        Self {
            start: NonNull::from(numbers.as_mut_slice()).cast(),
            len: numbers.len(),
            _owner: Box::new(numbers),
        }
    }
}

impl<T> Deref for OutputBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the owner lives, so these are `len` values; `&self` keeps others from writing.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for OutputBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the owner lives, so these are `len` values; `&mut self` is the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// The bytes of the items, for `bytes::Bytes::from_owner`, which makes them an Arrow buffer without a copy.
impl<T: Pod> AsRef<[u8]> for OutputBuffer<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

impl<T: fmt::Debug> fmt::Debug for OutputBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&**self).finish()
    }
}

/// The outputs of a batch of `n` queries. Only the outputs that are present are computed.
#[derive(Debug)]
pub struct Answers<'a, K> {
    /// The value with the smallest key of each range, as stored bits: `n` of them. The bits of [`Key::MAX`] if the
    /// range has no valid value.
    pub values: Option<&'a mut [K]>,
    /// The leftmost position of that value, 0-based: `n` of them. 0 if the range has no valid value.
    pub positions: Option<&'a mut [i64]>,
    /// A bitmap of `n.div_ceil(64)` words, least significant bit first: set if the range has a value that is not NULL.
    /// Bits from `n` on are cleared.
    pub valid: &'a mut [u64],
}

impl<K> Answers<'_, K> {
    /// Checks that all slices fit `left`.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] with the name of the first slice that does not.
    pub fn check(&self, left: &[i64], right: &[i64]) -> Result<(), EngineError> {
        self.check_lengths(left.len(), right.len())
    }

    /// Checks that the outputs and `right` right bounds fit `n` left bounds.
    pub(crate) fn check_lengths(&self, n: usize, right: usize) -> Result<(), EngineError> {
        let fits = |what, expected, found| {
            if expected == found {
                Ok(())
            } else {
                Err(EngineError::Lengths {
                    what,
                    expected,
                    found,
                })
            }
        };
        fits("the slice of right bounds", n, right)?;
        if let Some(values) = &self.values {
            fits("the slice for values", n, values.len())?;
        }
        if let Some(positions) = &self.positions {
            fits("the slice for positions", n, positions.len())?;
        }
        fits(
            "the bitmap of valid answers",
            n.div_ceil(64),
            self.valid.len(),
        )
    }
}

/// Owned outputs of a batch, from [`RangeIndex::outputs`](crate::RangeIndex::outputs).
#[derive(Debug)]
pub struct Outputs<K> {
    /// See [`Answers::values`].
    pub values: Option<OutputBuffer<K>>,
    /// See [`Answers::positions`].
    pub positions: Option<OutputBuffer<i64>>,
    /// See [`Answers::valid`].
    pub valid: OutputBuffer<u64>,
}

impl<K: Key> Outputs<K> {
    /// Allocates outputs for `queries` queries on the heap.
    #[must_use]
    pub fn allocated(queries: usize, values: bool, positions: bool) -> Self {
        Self {
            values: values.then(|| vec![K::ZERO; queries].into()),
            positions: positions.then(|| vec![0; queries].into()),
            valid: vec![0; queries.div_ceil(64)].into(),
        }
    }

    /// Borrows the outputs for a batch.
    pub fn answers(&mut self) -> Answers<'_, K> {
        Answers {
            values: self.values.as_deref_mut(),
            positions: self.positions.as_deref_mut(),
            valid: &mut self.valid,
        }
    }
}
