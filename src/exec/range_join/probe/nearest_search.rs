//! The search for the rows that a limit lets a probe row have, as they are ordered.

use arrow::array::RecordBatch;
use datafusion::common::Result;

use crate::common::ranges::Ranges;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::closest::ClosestMatches;
use crate::exec::range_join::probe::nearest::NearestMatches;
use crate::exec::range_join::row_join::RowJoin;

/// The search for the matches of the rows of a probe batch.
pub(crate) enum NearestSearch {
    /// Of those nearest an end of their range, or first in an order that is the same for all probe rows.
    FromEnd(NearestMatches),
    /// Of those closest to a point.
    FromPoint(ClosestMatches),
}

impl NearestSearch {
    /// The search in these ranges, one for each row of a batch, if a limit and an order ask for one: without a further
    /// condition, rows in the order of the range key need none. `up_to_point` has for each row the build rows up to its
    /// point, if they are ordered by a distance.
    pub(crate) fn of(
        join: &RowJoin,
        (ranges, up_to_point): (&Ranges, Option<Ranges>),
        (batch, build): (&RecordBatch, &BuildSide),
        slice_rows: usize,
    ) -> Result<Option<Self>> {
        let Some(limit) = join.limit() else {
            return Ok(None);
        };
        let has_condition = join.residual().is_some();
        if let (Some(distance), Some(up_to_point)) = (join.distance(), up_to_point) {
            let ranges = (ranges.clone(), up_to_point);
            let sides = (batch, build);
            let closest = ClosestMatches::try_new(ranges, limit, distance, sides, slice_rows)?;
            return Ok(Some(Self::FromPoint(closest)));
        }
        let searches = has_condition || join.is_ordered();
        let search = || NearestMatches::new(ranges.clone(), limit, has_condition, slice_rows);
        Ok(searches.then(|| Self::FromEnd(search())))
    }

    /// Whether all matches have been returned.
    pub(crate) fn is_done(&self) -> bool {
        match self {
            Self::FromEnd(search) => search.is_done(),
            Self::FromPoint(search) => search.is_done(),
        }
    }

    /// Evaluates some candidates. Returns how many rows have begun to use the index on the join's threshold.
    pub(crate) fn step(
        &mut self,
        join: &RowJoin,
        batch: &RecordBatch,
        build: &BuildSide,
    ) -> Result<usize> {
        match self {
            Self::FromEnd(search) => search.step(join, batch, build),
            Self::FromPoint(search) => search.step(join, batch, build),
        }
    }

    /// Returns the matches that are known, by row and in order: each with its position, and a row without a match once
    /// with `None`.
    pub(crate) fn take_found(&mut self, returned: impl FnMut(u32, Option<u32>)) {
        match self {
            Self::FromEnd(search) => search.take_found(returned),
            Self::FromPoint(search) => search.take_found(returned),
        }
    }
}
