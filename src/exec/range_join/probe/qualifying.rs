//! The build rows in the ranges of a probe batch that meet the threshold of a join of rows, found by its index.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::ArrayRef;
use datafusion::common::{Result, internal_datafusion_err};

use crate::exec::range_join::build_side::threshold_index::ThresholdIndex;
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::index::key_index::KeyIndex;
use rmq_arrow::index::threshold::ThresholdTest;
use rmq_arrow::index::threshold_queries::ThresholdQueries;
use rmq_engine::{Comparison, ListLimits, RangeEnd, RowList};

/// The rows that qualify, for each row of a probe batch.
pub(crate) struct QualifyingRows {
    index: Arc<ThresholdIndex>,
    queries: ThresholdQueries,
    /// The rows that were listed last.
    listed: RowList,
}

impl QualifyingRows {
    /// The rows of these ranges that compare so with the limits of the probe rows. The index is built.
    pub(crate) fn try_new(
        index: &Arc<ThresholdIndex>,
        ranges: &Ranges,
        limits: &ArrayRef,
        comparison: Comparison,
    ) -> Result<Self> {
        let index = Arc::clone(index);
        let test = ThresholdTest::of_comparison(comparison);
        let (ranges, limits) = (std::slice::from_ref(ranges), std::slice::from_ref(limits));
        let queries = built(&index)?.threshold_queries(ranges, limits, test)?;
        Ok(Self {
            index,
            queries,
            listed: RowList::default(),
        })
    }

    /// For each probe row the range of its first row, or an empty one.
    pub(crate) fn first(&self) -> Result<Ranges> {
        let found = built(&self.index)?.find(&self.queries, RangeEnd::First)?;
        Ok(Ranges::of_single(&found))
    }

    /// Lists rows of the probe rows from `row` on, at most `limit`, and of at most as many probe rows, and of at most
    /// `rows`. A further call, from the first probe row whose list has not ended, goes on after them.
    pub(crate) fn next(&mut self, row: usize, rows: usize, limit: usize) -> Result<&RowList> {
        let rows = row..self.queries.len().min(row.saturating_add(limit.min(rows)));
        let limits = ListLimits {
            per_range: usize::MAX,
            total: limit,
        };
        list(&self.index, &self.queries, rows, limits, &mut self.listed)?;
        let RowList { positions, ends } = &self.listed;
        let ended = ends.last().copied().unwrap_or(0);
        if let [.., last] = &positions[ended..] {
            self.queries.left[row + ends.len()] = last + 1;
        }
        Ok(&self.listed)
    }

    /// Lists the first rows of some probe rows, at most `per_row` of each, from a position on.
    pub(crate) fn list_from(&self, rows: &[(usize, i64)], per_row: usize) -> Result<RowList> {
        let rows = rows.iter().map(|(row, start)| (*row, (*start, i64::MAX)));
        self.list(&rows.collect::<Vec<_>>(), per_row)
    }

    /// Lists the nearest rows of some probe rows, each with the positions that are left of its range: from the first
    /// row found at this end, those within a number of positions. Each list ascends, and one without a row tells that
    /// none is left.
    pub(crate) fn list_nearest(
        &self,
        rows: &[(usize, Range<u32>, u32)],
        end: RangeEnd,
    ) -> Result<RowList> {
        let left = rows.iter().map(|(row, rest, _)| {
            let (start, end) = (i64::from(rest.start), i64::from(rest.end));
            (*row, (start, end - 1))
        });
        let mut windows: Vec<_> = left.collect();
        let found = self.queries.select(&windows);
        let found = built(&self.index)?.find(&found, end)?;
        for (((_, window), at), (.., positions)) in windows.iter_mut().zip(&found).zip(rows) {
            let further = i64::from(*positions) - 1;
            *window = match (at, end) {
                (Some(at), RangeEnd::First) => (at, window.1.min(at + further)),
                (Some(at), RangeEnd::Last) => (window.0.max(at - further), at),
                (None, _) => (0, -1),
            };
        }
        self.list(&windows, usize::MAX)
    }

    fn list(&self, rows: &[(usize, (i64, i64))], per_row: usize) -> Result<RowList> {
        let queries = self.queries.select(rows);
        let limits = ListLimits {
            per_range: per_row,
            total: usize::MAX,
        };
        let mut listed = RowList::default();
        list(&self.index, &queries, 0..queries.len(), limits, &mut listed)?;
        Ok(listed)
    }
}

fn built(index: &ThresholdIndex) -> Result<&KeyIndex> {
    let index = index.index();
    index.ok_or_else(|| internal_datafusion_err!("the index on a threshold has not been built"))
}

fn list(
    index: &ThresholdIndex,
    queries: &ThresholdQueries,
    rows: Range<usize>,
    limits: ListLimits,
    listed: &mut RowList,
) -> Result<()> {
    built(index)?.list(queries, rows, limits, listed)
}
