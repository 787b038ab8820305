//! The index of a column as an implementation of [`RangeIndex`].

use std::fmt;

use crate::column::{Column, SharedSlice};
use crate::cpu::huge_page_buf::HugePageBuf;
use crate::cpu::rmq::build::{self, Source};
use crate::cpu::rmq::cpu_key::CpuKey;
use crate::cpu::rmq::levels::{self, Layout, Levels};
use crate::cpu::rmq::next_valid::NextValid;
use crate::cpu::rmq::search::Context;
use crate::cpu::simd::dispatch::SupportedSimd;
use crate::crossings::{Crossings, ListLimits, RangeEnd, RowList, check_inputs, check_length};
use crate::engine::{BuildOptions, RangeIndex};
use crate::error::EngineError;
use crate::key::{Encoding, Key};
use crate::outputs::Answers;

/// Builds the index of a borrowed slice.
pub(crate) fn index_slice<'a, K: CpuKey>(
    values: &'a [K],
    encoding: Encoding<K>,
    options: &BuildOptions,
) -> Result<Box<dyn RangeIndex<K> + 'a>, EngineError> {
    let (storage, len) = (Storage::Slice(values), values.len());
    let index = CpuIndex::over(storage, len, encoding, None, options, SupportedSimd::best())?;
    Ok(Box::new(index))
}

/// A column with its hierarchy of block minima.
pub(crate) struct CpuIndex<'a, K> {
    column: Storage<'a, K>,
    len: usize,
    alignment_offset: usize,
    /// The encoding of the values in `column`.
    encoding: Encoding<K>,
    /// The encoding of the original column, to convert keys back.
    decoding: Encoding<K>,
    levels: Levels<K>,
    valid: Option<NextValid>,
    simd: SupportedSimd,
}

/// The values of an indexed column.
enum Storage<'a, K> {
    /// Shared, without NULLs.
    Shared(SharedSlice<K>),
    /// Borrowed, without NULLs.
    Slice(&'a [K]),
    /// A copy of encoded keys, [`Key::MAX`] for NULL.
    Copy(HugePageBuf<K>),
}

impl<K: CpuKey> CpuIndex<'static, K> {
    /// Builds the index of a shared column.
    pub(crate) fn build(
        column: &Column<K>,
        options: &BuildOptions,
        simd: SupportedSimd,
    ) -> Result<Self, EngineError> {
        let len = column.len();
        let nulls = column
            .validity()
            .filter(|validity| validity.null_count(len) > 0);
        let Some(validity) = nulls else {
            let encoding = column.encoding();
            let storage = Storage::Shared(column.shared_bits().clone());
            return Self::over(storage, len, encoding, None, options, simd);
        };
        let (keys, valid) = build::without_nulls(column, validity, options.threads)?;
        let index = Self::over(
            Storage::Copy(keys),
            len,
            Encoding::unsigned(),
            Some(valid),
            options,
            simd,
        )?;
        Ok(Self {
            decoding: column.encoding(),
            ..index
        })
    }
}

impl<'a, K: CpuKey> CpuIndex<'a, K> {
    fn over(
        column: Storage<'a, K>,
        len: usize,
        encoding: Encoding<K>,
        valid: Option<NextValid>,
        options: &BuildOptions,
        simd: SupportedSimd,
    ) -> Result<Self, EngineError> {
        let values = column.values();
        let alignment_offset = levels::alignment_offset(values);
        // The slice may have changed since its length was read.
        if values.len() != len {
            return Err(EngineError::ColumnMoved);
        }
        let mut levels = Levels::new(Layout::new::<K>(len, alignment_offset, options.positions)?)?;
        let source = Source {
            values,
            alignment_offset,
            encoding,
        };
        build::fill_levels(&mut levels, source, options.threads, |top, parts| {
            K::fill(simd, source, top, parts);
        })?;
        Ok(Self {
            column,
            len,
            alignment_offset,
            encoding,
            decoding: encoding,
            levels,
            valid,
            simd,
        })
    }
}

impl<K: CpuKey> CpuIndex<'_, K> {
    /// Returns what a batch is searched in.
    ///
    /// # Errors
    /// [`EngineError::ColumnMoved`] unless the column has the length and the alignment offset at the time of the build,
    /// on which searches rely.
    fn context(&self) -> Result<Context<'_, K>, EngineError> {
        let column = self.column.values();
        if column.len() != self.len || levels::alignment_offset(column) != self.alignment_offset {
            return Err(EngineError::ColumnMoved);
        }
        Ok(Context {
            column,
            alignment_offset: self.alignment_offset,
            encoding: self.encoding,
            levels: &self.levels,
            valid: self.valid.as_ref(),
        })
    }
}

impl<K: CpuKey> Storage<'_, K> {
    fn values(&self) -> &[K] {
        match self {
            Self::Shared(shared) => (**shared).as_ref(),
            Self::Slice(slice) => slice,
            Self::Copy(keys) => keys,
        }
    }
}

impl<K: CpuKey> RangeIndex<K> for CpuIndex<'_, K> {
    fn len(&self) -> usize {
        self.len
    }

    #[expect(
        clippy::misnamed_getters,
        reason = "the encoding of the original column, which may be inverted here"
    )]
    fn encoding(&self) -> Encoding<K> {
        self.decoding
    }

    fn has_positions(&self) -> bool {
        self.levels.has_positions()
    }

    fn index_bytes(&self) -> usize {
        self.levels.layout().bytes() + self.valid.as_ref().map_or(0, NextValid::bytes)
    }

    fn memory_bytes(&self) -> usize {
        let copy = match &self.column {
            Storage::Copy(keys) => keys.bytes(),
            Storage::Shared(_) | Storage::Slice(_) => 0,
        };
        self.index_bytes() + copy
    }

    fn answer(
        &self,
        left: &[i64],
        right: &[i64],
        mut out: Answers<'_, K>,
    ) -> Result<(), EngineError> {
        out.check(left, right)?;
        if out.positions.is_some() && !self.has_positions() {
            return Err(EngineError::NoPositions);
        }
        let context = self.context()?;
        let keys = Answers {
            values: out.values.as_deref_mut(),
            positions: out.positions,
            valid: out.valid,
        };
        // SAFETY: `context` compares length and alignment offset.
        unsafe { K::answer(self.simd, context, left, right, keys) };
        if let Some(values) = out.values.filter(|_| self.decoding != Encoding::unsigned()) {
            for value in values {
                *value = self.decoding.decode(*value);
            }
        }
        Ok(())
    }

    fn crossings(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
        end: RangeEnd,
        out: Crossings<'_>,
    ) -> Result<(), EngineError> {
        out.check(left, right, thresholds.len())?;
        let context = self.context()?;
        // SAFETY: `context` compares length and alignment offset.
        unsafe { K::crossings(self.simd, context, left, right, thresholds, end, out) };
        Ok(())
    }

    fn list_at_most(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
        limits: ListLimits,
        out: &mut RowList,
    ) -> Result<(), EngineError> {
        check_inputs(left, right, thresholds.len())?;
        out.clear();
        let context = self.context()?;
        // SAFETY: `context` compares length and alignment offset.
        unsafe { K::list_at_most(self.simd, context, left, right, thresholds, limits, out) };
        Ok(())
    }

    fn count_at_most(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
        counts: &mut [i64],
    ) -> Result<(), EngineError> {
        check_inputs(left, right, thresholds.len())?;
        check_length("the slice for counts", left.len(), counts.len())?;
        let context = self.context()?;
        // SAFETY: `context` compares length and alignment offset.
        unsafe { K::count_at_most(self.simd, context, left, right, thresholds, counts) };
        Ok(())
    }
}

impl<K: Key> fmt::Debug for CpuIndex<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuIndex")
            .field("len", &self.len)
            .field("encoding", &self.encoding)
            .field("nulls", &self.valid.is_some())
            .field("simd", &self.simd)
            .finish_non_exhaustive()
    }
}
