//! Rows that are aggregated, as they are or copied behind one another.

use std::fmt::Debug;
use std::ops::Range;

use arrow::array::{ArrayRef, BooleanArray};
use datafusion::common::Result;
use datafusion::logical_expr::Accumulator;

use datafusion_rmq_logical::expr::state_function::StateFunction;
use rmq_arrow::common::row_number::row_range;

/// Rows that are aggregated.
pub(crate) trait AggregatedRows: Debug + Send + Sync {
    /// The function, with the fields of its states.
    fn function(&self) -> &StateFunction;

    /// Shows an accumulator consecutive rows. Calls `grow` with its bytes from time to time.
    ///
    /// # Errors
    /// The accumulator's, and those of `grow`.
    fn update(
        &self,
        accumulator: &mut dyn Accumulator,
        rows: Range<usize>,
        grow: &dyn Fn(usize) -> Result<()>,
    ) -> Result<()>;

    /// The function's arguments in consecutive rows, and for which of these FILTER holds.
    ///
    /// # Errors
    /// Arrow's.
    fn arguments(&self, rows: Range<usize>) -> Result<(Vec<ArrayRef>, Option<BooleanArray>)>;

    /// These rows alone, with all that accumulators refer to: threads would wait for each other's reference counts.
    ///
    /// # Errors
    /// Those of the function, and Arrow's.
    fn copy(&self, rows: Vec<u32>) -> Result<Box<dyn AggregatedRows>>;
}

/// Rows of ranges, copied behind one another or as they are.
pub(crate) struct ReadRows<'a> {
    of: &'a dyn AggregatedRows,
    copied: Option<Vec<u32>>,
}

impl<'a> ReadRows<'a> {
    pub(crate) fn new(of: &'a dyn AggregatedRows, copies: bool) -> Self {
        Self {
            of,
            copied: copies.then(Vec::new),
        }
    }

    /// Where these rows will be.
    ///
    /// # Errors
    /// From 2^32 rows on.
    pub(crate) fn add(&mut self, range: Range<usize>) -> Result<Range<usize>> {
        let Some(copied) = &mut self.copied else {
            return Ok(range);
        };
        let start = copied.len();
        copied.extend(row_range(range)?);
        Ok(start..copied.len())
    }

    /// All that were added.
    ///
    /// # Errors
    /// Those of the function, and Arrow's.
    pub(crate) fn complete(self) -> Result<CompleteRows<'a>> {
        Ok(match self.copied {
            Some(rows) => CompleteRows::Copied(self.of.copy(rows)?),
            None => CompleteRows::All(self.of),
        })
    }
}

/// The rows of ranges.
#[derive(Debug)]
pub(crate) enum CompleteRows<'a> {
    Copied(Box<dyn AggregatedRows>),
    All(&'a dyn AggregatedRows),
}

impl CompleteRows<'_> {
    /// The rows.
    pub(crate) fn aggregated(&self) -> &dyn AggregatedRows {
        match self {
            Self::Copied(rows) => rows.as_ref(),
            Self::All(rows) => *rows,
        }
    }
}
