//! The search for the rows that a limit lets a probe row have, as they are ordered.

use arrow::array::RecordBatch;
use datafusion::common::Result;

use crate::common::ranges::Ranges;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::closest::ClosestMatches;
use crate::exec::range_join::probe::nearest::NearestMatches;
use crate::exec::range_join::row_join::RowJoin;
use crate::logical_plan::nearest_rows::RowLimit;

/// The search for the matches of the rows of a probe batch.
pub(crate) enum NearestSearch {
    /// Of those nearest an end of their range, or first in an order that is the same for all probe rows.
    FromEnd(NearestMatches),
    /// Of those closest to a point.
    FromPoint(ClosestMatches),
}

impl NearestSearch {
    /// The search in these ranges, one for each row of a batch, for the rows that `limit`, the join's
    /// [searched limit](RowJoin::searched_limit), lets pass. `up_to_point` has for each row the build rows up to its
    /// point, if they are ordered by a distance.
    pub(crate) fn try_new(
        join: &RowJoin,
        limit: RowLimit,
        ranges: Ranges,
        up_to_point: Option<Ranges>,
        batch: &RecordBatch,
        build: &BuildSide,
        slice_rows: usize,
    ) -> Result<Self> {
        if let (Some(distance), Some(up_to_point)) = (join.distance(), up_to_point) {
            let closest = ClosestMatches::try_new(
                ranges,
                up_to_point,
                limit,
                distance,
                batch,
                build,
                slice_rows,
            )?;
            return Ok(Self::FromPoint(closest));
        }
        let has_condition = join.residual().is_some();
        let nearest = NearestMatches::new(ranges, limit, has_condition, slice_rows);
        Ok(Self::FromEnd(nearest))
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
            Self::FromPoint(search) => {
                search.step(join, batch, build)?;
                Ok(0)
            }
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
