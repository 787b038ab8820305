//! Memory for answers, from where its engine writes them fastest.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::RefUnwindSafe;
use std::ptr::NonNull;

use bytemuck::Pod;

use crate::error::EngineError;
use crate::key::Key;

/// Numbers that an engine fills, and whose memory goes back to where it came from when they are dropped.
///
/// From the CPU engine it is a `Vec`'s; from an engine for GPUs it may be memory that its device writes to. It can live
/// as long as it is needed, also without the index, and become the memory of an Arrow array without a copy.
pub struct OutputBuffer<T> {
    start: NonNull<T>,
    len: usize,
    /// What keeps the memory and takes it back.
    _owner: Box<dyn Owner>,
}

/// What keeps memory until it is dropped.
trait Owner: Send + Sync + RefUnwindSafe {}
impl<O: Send + Sync + RefUnwindSafe> Owner for O {}

// SAFETY: `OutputBuffer` is the only way to its numbers, as a `Vec<T>` would be; its owner can be sent and shared.
unsafe impl<T: Send> Send for OutputBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for OutputBuffer<T> {}

impl<T> OutputBuffer<T> {
    /// `len` numbers from `start` on, which `owner` keeps.
    ///
    /// # Safety
    /// Until `owner` is dropped, `start` points to `len` initialised values of `T` that nobody else reads or writes,
    /// also where `owner` itself moves.
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
        // SAFETY: the owner lives, so these are `len` values; `&mut self` is the only way to them.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// The numbers' bytes, as `bytes::Bytes::from_owner` takes them: so they become an Arrow buffer without a copy.
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

/// Where a batch of answers goes; what is wanted follows from which outputs are there.
///
/// `n` is the number of queries, the length of the bounds.
#[derive(Debug)]
pub struct Answers<'a, K> {
    /// The value with the smallest key of each range, `n` of them, as the bits that the column has for it. Where the range
    /// holds no value, the bits of [`Key::MAX`].
    pub values: Option<&'a mut [K]>,
    /// The leftmost position of that minimum, 0-based, `n` of them; 0 where the range holds no value.
    pub positions: Option<&'a mut [i64]>,
    /// A bitmap, least significant bit first, of `n.div_ceil(64)` words: a bit is set where the range holds a value
    /// that is not NULL. Bits past `n` are cleared.
    pub valid: &'a mut [u64],
}

impl<K> Answers<'_, K> {
    /// That all slices fit `left`.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] with the name of the first slice that does not.
    pub fn check(&self, left: &[i64], right: &[i64]) -> Result<(), EngineError> {
        self.check_lengths(left.len(), right.len())
    }

    /// That all slices fit `n` left bounds, of which there are `right` right ones.
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

/// Where the answers of a batch go, made by [`RangeIndex::outputs`](crate::RangeIndex::outputs).
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
    /// Memory of the allocator for `queries` answers.
    pub fn allocated(queries: usize, values: bool, positions: bool) -> Self {
        Self {
            values: values.then(|| vec![K::ZERO; queries].into()),
            positions: positions.then(|| vec![0; queries].into()),
            valid: vec![0; queries.div_ceil(64)].into(),
        }
    }

    /// The same as the outputs of a batch.
    pub fn answers(&mut self) -> Answers<'_, K> {
        Answers {
            values: self.values.as_deref_mut(),
            positions: self.positions.as_deref_mut(),
            valid: &mut self.valid,
        }
    }
}
