//! The seam of range joins on devices: an engine sorts and indexes a build side, and answers batches of probe rows in
//! one trip.
//!
//! 1. The caller describes the build side as it came ([`RangeJoinInput`]): rows with a key, a group and values, in
//!    chunks of plain slices. [`Engine::build_range_join`](crate::Engine::build_range_join) sorts it by group and key
//!    and builds what the requested answers need.
//! 2. For each batch of probe rows ([`RangeJoinProbe`]), [`RangeJoinIndex::answer`] finds the range of build rows
//!    within all bounds of each probe row, and returns one [`RangeJoinOutput`] per requested [`RangeJoinAnswer`].
//!    Ranges never leave the device.
//!
//! Rows with equal keys of a group keep their order in the input. This decides which row is the first or last of a
//! range, and which of equal extremes is taken: the leftmost. Keys are compared and answers are chosen exactly as by
//! the CPU engine: answers have the same bits.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::column::Column;
use crate::comparison::Comparison;
use crate::error::EngineError;
use crate::key::{Encoding, Extreme, Key};
use crate::outputs::OutputBuffer;

/// Chunks of one column that follow each other, of one key width. All chunks have the same encoding.
#[derive(Debug, Clone)]
pub enum ColumnChunks {
    /// Values of 32 bits.
    W32(Vec<Column<u32>>),
    /// Values of 64 bits.
    W64(Vec<Column<u64>>),
    /// Values of 128 bits.
    W128(Vec<Column<u128>>),
}

/// Expands to `$body` with `$chunks` bound to the vector of chunks, whatever its width.
macro_rules! each_width {
    ($column:expr, $chunks:ident => $body:expr) => {
        match $column {
            crate::range_join::ColumnChunks::W32($chunks) => $body,
            crate::range_join::ColumnChunks::W64($chunks) => $body,
            crate::range_join::ColumnChunks::W128($chunks) => $body,
        }
    };
}
#[cfg(feature = "cuda")]
pub(crate) use each_width;

impl ColumnChunks {
    /// Number of values, NULLs included.
    #[must_use]
    pub fn rows(&self) -> usize {
        each_width!(self, chunks => chunks.iter().map(Column::len).sum())
    }

    /// Bytes per value: 4, 8 or 16.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        match self {
            Self::W32(_) => 4,
            Self::W64(_) => 8,
            Self::W128(_) => 16,
        }
    }

    /// Checks that chunks have one encoding and that bitmaps cover them. `what` names the column in errors.
    ///
    /// # Errors
    /// [`EngineError::Invalid`], [`EngineError::Validity`].
    pub fn check(&self, what: &str) -> Result<(), EngineError> {
        fn check<K: Key>(chunks: &[Column<K>], what: &str) -> Result<(), EngineError> {
            let encoding = chunks.first().map(Column::encoding);
            for chunk in chunks {
                if Some(chunk.encoding()) != encoding {
                    return Err(EngineError::Invalid(format!(
                        "the chunks of {what} have different encodings, where one is needed"
                    )));
                }
                if let Some(validity) = chunk.validity() {
                    validity.check(chunk.len())?;
                }
            }
            Ok(())
        }
        each_width!(self, chunks => check(chunks, what))
    }
}

/// The build side of a range join, with its rows in the order in which they came.
#[derive(Debug, Clone)]
pub struct RangeJoinInput<'a> {
    /// The range key of each row. Validity is ignored: a row with a NULL key is given [`CandidateRanges::NO_GROUP`] by
    /// the caller.
    ///
    /// [`CandidateRanges::NO_GROUP`]: crate::CandidateRanges::NO_GROUP
    pub keys: ColumnChunks,
    /// The group of each row; `None` if all rows are of one group.
    pub groups: Option<RowGroups<'a>>,
    /// The value columns, to which answers refer by index.
    pub columns: Vec<RangeJoinColumn>,
    /// Whether [`RangeJoinAnswer::Row`] can be requested: 4 bytes more per row where rows came in order.
    pub row_numbers: bool,
}

impl RangeJoinInput<'_> {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.keys.rows()
    }

    /// Checks that the parts fit each other.
    ///
    /// # Errors
    /// [`EngineError::TooLong`] from 2^32 - 1 rows or groups on, [`EngineError::Lengths`], [`EngineError::Invalid`],
    /// [`EngineError::Validity`].
    pub fn check(&self) -> Result<(), EngineError> {
        let rows = self.rows();
        let groups = self.groups.as_ref();
        for count in [rows, groups.map_or(1, |groups| groups.count)] {
            if count >= u32::MAX as usize {
                return Err(EngineError::TooLong { rows: count });
            }
        }
        self.keys.check("the keys")?;
        if let Some(groups) = groups {
            groups.check(rows)?;
        }
        check_columns(&self.columns, rows)
    }
}

/// The group of each row.
#[derive(Debug, Clone)]
pub struct RowGroups<'a> {
    /// Consecutive parts of the rows.
    pub parts: Vec<PartGroups<'a>>,
    /// Number of groups; groups may be empty.
    pub count: usize,
}

impl RowGroups<'_> {
    fn check(&self, rows: usize) -> Result<(), EngineError> {
        let of_parts = self.parts.iter().map(|part| part.ids.rows());
        fits("the group ids", rows, of_parts.sum())?;
        let mut groups = self.parts.iter().filter_map(|part| part.groups).flatten();
        match groups.find(|group| **group as usize >= self.count) {
            Some(group) => Err(EngineError::Invalid(format!(
                "group {group} of a part of the build rows, where there are {} groups",
                self.count
            ))),
            None => Ok(()),
        }
    }
}

/// The group of each row of a part, whose ids may be its own: parts can be numbered by several threads.
#[derive(Debug, Clone)]
pub struct PartGroups<'a> {
    /// The id of each row, below the number of `groups`; without these, below [`RowGroups::count`].
    pub ids: RowIds<'a>,
    /// The group of each id, below [`RowGroups::count`]; `None` if ids are groups.
    pub groups: Option<&'a [u32]>,
}

/// Ids of the groups of consecutive rows.
#[derive(Debug, Clone, Copy)]
pub enum RowIds<'a> {
    /// One per row; [`CandidateRanges::NO_GROUP`](crate::CandidateRanges::NO_GROUP) for a row that matches nothing.
    Wide(&'a [u32]),
    /// One per row; 2^16 - 1 for a row that matches nothing.
    Narrow(&'a [u16]),
    /// Runs of rows with one id, and their lengths; ids as in [`Self::Wide`].
    Runs(&'a [(u32, u32)]),
}

impl RowIds<'_> {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::Wide(ids) => ids.len(),
            Self::Narrow(ids) => ids.len(),
            Self::Runs(runs) => runs.iter().map(|(_, rows)| *rows as usize).sum(),
        }
    }

    /// Calls `visit` with each run of rows with one id, and the number of its rows, until it fails.
    ///
    /// # Errors
    /// That of `visit`.
    pub fn try_for_each_run<E>(
        &self,
        mut visit: impl FnMut(u32, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Wide(ids) => {
                let mut runs = ids.chunk_by(|id, next| id == next);
                runs.try_for_each(|run| visit(run[0], run.len()))
            }
            Self::Narrow(ids) => {
                let mut runs = ids.chunk_by(|id, next| id == next);
                runs.try_for_each(|run| visit(run[0].into(), run.len()))
            }
            Self::Runs(runs) => {
                let mut runs = runs.iter();
                runs.try_for_each(|(id, rows)| visit(*id, *rows as usize))
            }
        }
    }

    /// Calls `visit` with each run of rows with one id, and the number of its rows.
    pub fn for_each_run(&self, mut visit: impl FnMut(u32, usize)) {
        let visit = |id, rows| {
            visit(id, rows);
            Ok::<_, std::convert::Infallible>(())
        };
        let Ok(()) = self.try_for_each_run(visit);
    }
}

/// A value column of a build side, and what is built of it.
#[derive(Debug, Clone)]
pub struct RangeJoinColumn {
    /// The values, one per row. Their encoding is that of ascending order; it matters for `min` and `max` only.
    pub values: ColumnChunks,
    /// The index for minima, if they are requested.
    pub min: Option<ExtremeIndex>,
    /// The index for maxima, if they are requested.
    pub max: Option<ExtremeIndex>,
    /// Whether [`RangeJoinAnswer::CountValid`] can be requested.
    pub counts: bool,
    /// What [`RangeJoinAnswer::Sum`] takes the values for, if it is requested.
    pub sums: Option<Addends>,
    /// Whether [`RangeJoinAnswer::Value`] can be requested.
    pub single_values: bool,
}

impl RangeJoinColumn {
    /// Returns a column without anything built of it yet.
    #[must_use]
    pub fn new(values: ColumnChunks) -> Self {
        Self {
            values,
            min: None,
            max: None,
            counts: false,
            sums: None,
            single_values: false,
        }
    }

    /// Returns which index serves an extreme, if one is requested.
    #[must_use]
    pub fn index_of(&self, extreme: Extreme) -> Option<ExtremeIndex> {
        match extreme {
            Extreme::Min => self.min,
            Extreme::Max => self.max,
        }
    }
}

/// What the index of an extreme returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtremeIndex {
    /// Values only.
    Values,
    /// Values, and the rows that have them: about 0.04 bytes more per value.
    Rows,
}

/// What the stored bits of values are when they are summed.
///
/// Integers are summed modulo 2^64, to which values of 32 bits are extended, those of 128 bits modulo 2^128. A sum of
/// floats is as accurate as if it were added exactly and rounded once, and overflows only if it exceeds the largest
/// float.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addends {
    /// Integers in two's complement.
    Signed,
    /// Unsigned integers.
    Unsigned,
    /// Floats of 64 bits.
    Floats,
}

/// A batch of probe rows. Several record batches become one by passing the chunks of all.
#[derive(Debug, Clone)]
pub struct RangeJoinProbe<'a> {
    /// Number of rows.
    pub rows: usize,
    /// The group of each row in chunks, if the build side has groups. An id that is no group's matches nothing.
    pub groups: Option<Vec<&'a [u32]>>,
    /// What bounds are made of: columns with one value per row, of the keys' width.
    pub columns: Vec<ColumnChunks>,
    /// The bounds of each row. A row with a NULL bound matches nothing. Any number of bounds, also on one side; none
    /// leaves all rows of the group.
    pub bounds: Vec<ProbeBound>,
    /// Whether each range extends down to the prevailing row, the last one of the group at or before the lower bound.
    /// There must be exactly one lower bound, and at most 8 bounds. A row with a NULL bound, or whose lower bound is
    /// above an upper one, still matches nothing.
    pub prevailing: bool,
}

/// A bound of each probe row, `key ? column + shift`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeBound {
    /// How keys in the range compare with the bound.
    pub comparison: Comparison,
    /// The column, one of [`RangeJoinProbe::columns`]. Several bounds of one column take its way up once.
    pub column: usize,
    /// What is added to the column's stored bits. Not 0 only for signed integers of 32 or 64 bits, in their order.
    pub shift: i64,
}

/// The most bounds of a probe row that takes a prevailing row.
pub const MAX_PREVAILING_BOUNDS: usize = 8;

impl ProbeBound {
    /// Checks that the column is one of these, and that its values can be moved by the shift.
    ///
    /// # Errors
    /// [`EngineError::Invalid`].
    fn check(&self, columns: &[ColumnChunks]) -> Result<(), EngineError> {
        let Some(column) = columns.get(self.column) else {
            return Err(EngineError::Invalid(format!(
                "a bound is made of column {} of a batch with {} of them",
                self.column,
                columns.len()
            )));
        };
        let are_signed = match column {
            ColumnChunks::W32(chunks) => are_signed(chunks) && i32::try_from(self.shift).is_ok(),
            ColumnChunks::W64(chunks) => are_signed(chunks),
            ColumnChunks::W128(_) => false,
        };
        if self.shift == 0 || are_signed {
            return Ok(());
        }
        Err(EngineError::Invalid(format!(
            "a bound is moved by {}, and its values are no signed integers of 32 or 64 bits, or of fewer bits than that",
            self.shift
        )))
    }
}

/// Returns whether the bits of all chunks are those of signed integers in ascending order.
fn are_signed<K: Key>(chunks: &[Column<K>]) -> bool {
    let mut chunks = chunks.iter();
    chunks.all(|chunk| chunk.encoding() == Encoding::signed())
}

impl RangeJoinProbe<'_> {
    /// Checks that the parts fit each other, and a build side with keys of `key_bytes` bytes, with groups or without.
    ///
    /// # Errors
    /// [`EngineError::Lengths`], [`EngineError::Invalid`], [`EngineError::Validity`].
    pub fn check(&self, key_bytes: usize, has_groups: bool) -> Result<(), EngineError> {
        if self.groups.is_some() != has_groups {
            let which = if has_groups { "needs" } else { "takes no" };
            return Err(EngineError::Invalid(format!(
                "a range join {which} group ids of probe rows, as its build side was built"
            )));
        }
        if let Some(groups) = &self.groups {
            fits("the group ids of probe rows", self.rows, chunk_rows(groups))?;
        }
        for column in &self.columns {
            column.check("a bound")?;
            fits("a bound", self.rows, column.rows())?;
            fits(
                "a bound's value, in bytes,",
                key_bytes,
                column.value_bytes(),
            )?;
        }
        for bound in &self.bounds {
            bound.check(&self.columns)?;
        }
        let lower = self.bounds.iter();
        let lower = lower.filter(|bound| bound.comparison.is_lower());
        if self.prevailing && (lower.count() != 1 || self.bounds.len() > MAX_PREVAILING_BOUNDS) {
            return Err(EngineError::Invalid(format!(
                "a prevailing row needs one lower bound and at most {MAX_PREVAILING_BOUNDS} bounds"
            )));
        }
        Ok(())
    }
}

/// What is returned for the range of build rows that each probe row matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RangeJoinAnswer {
    /// Whether the range has a row: no values, a bitmap of flags.
    Matched,
    /// The number of rows, `count(*)`: 64 bits, never NULL.
    Count,
    /// The number of values of a column that are not NULL: 64 bits, never NULL.
    CountValid {
        /// The column.
        column: usize,
    },
    /// The sum of a column's values: 128 bits for integers of 128 bits, else the 64 bits of an integer or a float, NULL
    /// if no value is there.
    Sum {
        /// The column.
        column: usize,
    },
    /// The rounding error of [`Self::Sum`] of floats, by which it is less than the exact sum: a float's bits, 0 for a
    /// sum that is not finite, NULL if no value is there.
    SumError {
        /// The column.
        column: usize,
    },
    /// The smallest or greatest value of a column: its stored bits, NULL if no value is there.
    Extreme {
        /// The column.
        column: usize,
        /// Which of both.
        extreme: Extreme,
    },
    /// The value of a column at one row of the range: its stored bits, NULL if there is no such row or the value is
    /// NULL.
    Value {
        /// The column.
        column: usize,
        /// The row.
        at: RangeRow,
    },
    /// The number of one row of the range in the input: 32 bits, NULL if there is no such row.
    Row {
        /// The row.
        at: RangeRow,
    },
}

/// A row of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RangeRow {
    /// The first in the order of keys.
    First,
    /// The last in the order of keys; of equal ones the last in the input.
    Last,
    /// The first in the input of those with the greatest key.
    FirstOfLast,
    /// The first row with the smallest or greatest value of a column that is not NULL; none if there is no such value.
    Extreme {
        /// The column, whose index is [`ExtremeIndex::Rows`].
        column: usize,
        /// Which of both.
        extreme: Extreme,
    },
    /// The first in the order of a column, as `first_value(… ORDER BY column)` takes it. Every range that is not empty
    /// has one, also if all values are NULL.
    FirstOrdered {
        /// The column, whose index is [`ExtremeIndex::Rows`].
        column: usize,
        /// Ascending order begins with the minimum, descending order with the maximum.
        extreme: Extreme,
        /// Whether NULLs come before all values. The column then needs [`RangeJoinColumn::counts`].
        nulls_first: bool,
    },
}

impl RangeJoinAnswer {
    /// Checks that what the answer needs was built.
    ///
    /// # Errors
    /// [`EngineError::Invalid`].
    pub fn check(self, columns: &[RangeJoinColumn], row_numbers: bool) -> Result<(), EngineError> {
        let column = |i: usize| column_at(columns, i);
        let require = |built: bool, what: &str| {
            if built {
                return Ok(());
            }
            Err(EngineError::Invalid(format!(
                "{what} was requested of a range join that was built without"
            )))
        };
        let check_row = |at: RangeRow| match at {
            RangeRow::First | RangeRow::Last | RangeRow::FirstOfLast => Ok(()),
            RangeRow::Extreme { column: i, extreme } => {
                let built = column(i)?.index_of(extreme) == Some(ExtremeIndex::Rows);
                require(built, "the row of an extreme")
            }
            RangeRow::FirstOrdered {
                column: i,
                extreme,
                nulls_first,
            } => {
                let column = column(i)?;
                let built = column.index_of(extreme) == Some(ExtremeIndex::Rows);
                require(built, "the row of an extreme")?;
                require(column.counts || !nulls_first, "the first NULL")
            }
        };
        match self {
            Self::Matched | Self::Count => Ok(()),
            Self::CountValid { column: i } => require(column(i)?.counts, "a count of values"),
            Self::Sum { column: i } => require(column(i)?.sums.is_some(), "a sum"),
            Self::SumError { column: i } => {
                let built = column(i)?.sums == Some(Addends::Floats);
                require(built, "the rounding error of a sum")
            }
            Self::Extreme { column: i, extreme } => {
                require(column(i)?.index_of(extreme).is_some(), "an extreme")
            }
            Self::Value { column: i, at } => {
                require(column(i)?.single_values, "a single value")?;
                check_row(at)
            }
            Self::Row { at } => {
                require(row_numbers, "a row number")?;
                check_row(at)
            }
        }
    }
}

/// One answer for each probe row of a batch.
#[derive(Debug)]
pub struct RangeJoinOutput {
    /// The answers' bits, unspecified where they are NULL.
    pub values: OutputValues,
    /// A bitmap of `rows.div_ceil(64)` words, least significant bit first: set if the answer is not NULL, or for
    /// [`RangeJoinAnswer::Matched`] if the range has a row. Bits past the last row are cleared. `None` if no answer can
    /// be NULL.
    pub valid: Option<OutputBuffer<u64>>,
}

/// Values of one width.
#[derive(Debug)]
pub enum OutputValues {
    /// No values, only the bitmap.
    None,
    /// 32 bits each.
    W32(OutputBuffer<u32>),
    /// 64 bits each.
    W64(OutputBuffer<u64>),
    /// 128 bits each.
    W128(OutputBuffer<u128>),
}

/// The time that each step of a build took, on the device that took longest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RangeJoinTimes {
    /// Copying keys and group ids to the device, and what was left of copying values when the sort was done.
    pub upload: Duration,
    /// Checking the order of rows, sorting row numbers, and finding groups, while values are copied.
    pub sort: Duration,
    /// Moving keys and values to sorted order.
    pub gather: Duration,
    /// Building indexes and prefix sums.
    pub index: Duration,
}

/// A build side that answers batches of probe rows. Shared between threads; each answers its own batches.
pub trait RangeJoinIndex: Send + Sync + Debug {
    /// Number of build rows that are in a group.
    fn rows(&self) -> usize;

    /// Bytes of GPU memory that this object owns, on each of its devices.
    fn device_bytes(&self) -> usize;

    /// Bytes of [`Self::device_bytes`] that it shares with no build side that it was made of by [`Self::with_columns`].
    fn added_bytes(&self) -> usize;

    /// How long building took; of a build side with added columns, how long adding them took.
    fn build_times(&self) -> RangeJoinTimes;

    /// The same rows with other value columns: those that `kept` tells of the present ones, and then those `added`.
    /// Both build sides share the rows and what is kept. What is added has a value for each row of the input, in its
    /// order. [`RangeJoinAnswer::Row`] can be requested if that was so before, or if `row_numbers`. Up to `threads`
    /// threads copy the values.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for a column that is not there; that, [`EngineError::Lengths`] and
    /// [`EngineError::Validity`] if what is added does not fit the rows; [`EngineError::Stopped`] soon after `stop` is
    /// set; errors of devices.
    fn with_columns(
        &self,
        kept: &[usize],
        added: &[RangeJoinColumn],
        row_numbers: bool,
        threads: usize,
        stop: &AtomicBool,
    ) -> Result<Arc<dyn RangeJoinIndex>, EngineError>;

    /// An upper bound of the bytes that [`Self::with_columns`] takes at a time on each device, besides those in use.
    fn adding_bytes(&self, added: &[RangeJoinColumn]) -> usize;

    /// Answers one batch on the calling thread, one output per requested answer, in order. Large batches are fastest
    /// (2^18 rows).
    ///
    /// # Errors
    /// [`EngineError::Lengths`] or [`EngineError::Invalid`] if parts of the batch do not fit each other or an answer
    /// was not built; [`EngineError::Overflow`] if a shift moves a bound beyond its type; errors of devices
    /// ([`EngineError::of_device`]), after which the CPU can take over.
    fn answer(
        &self,
        probe: &RangeJoinProbe<'_>,
        answers: &[RangeJoinAnswer],
    ) -> Result<Vec<RangeJoinOutput>, EngineError>;
}

/// Returns a value column.
///
/// # Errors
/// [`EngineError::Invalid`] if it is not there.
pub(crate) fn column_at(
    columns: &[RangeJoinColumn],
    i: usize,
) -> Result<&RangeJoinColumn, EngineError> {
    columns.get(i).ok_or_else(|| {
        EngineError::Invalid(format!(
            "value column {i} was requested of a range join with {} of them",
            columns.len()
        ))
    })
}

/// Checks that value columns fit `rows` rows.
pub(crate) fn check_columns(columns: &[RangeJoinColumn], rows: usize) -> Result<(), EngineError> {
    for (i, column) in columns.iter().enumerate() {
        column.values.check(&format!("value column {i}"))?;
        fits("a value column", rows, column.values.rows())?;
        if column.sums == Some(Addends::Floats) {
            let bytes = column.values.value_bytes();
            fits("a float to be summed, in bytes,", size_of::<f64>(), bytes)?;
        }
    }
    Ok(())
}

fn chunk_rows(chunks: &[&[u32]]) -> usize {
    chunks.iter().map(|chunk| chunk.len()).sum()
}

fn fits(what: &'static str, expected: usize, found: usize) -> Result<(), EngineError> {
    if expected == found {
        return Ok(());
    }
    Err(EngineError::Lengths {
        what,
        expected,
        found,
    })
}
