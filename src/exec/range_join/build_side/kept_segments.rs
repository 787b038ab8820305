//! Kept build sides to which rows have been appended: what an earlier query has sorted is found, and only the rest is
//! read.
//!
//! ```text
//!   kept                          [ 90,000 rows                     ]
//!   a query after an INSERT       [ 90,000 rows                     ][ 9,000 ]            reads 9,000 rows
//!   one after another             [ 90,000 rows                     ][ 9,000 ][ 200 ]     reads 200 rows
//!   and one more                  [ 90,000 rows                     ][ 9,000 + 200 + 6,000 ]
//! ```
//!
//! A segment is sorted anew together with those after it if it is at most twice as large as these, or small
//! (`kept/growth.rs`). Once searching several segments instead of one has taken as long as sorting all rows, all are
//! sorted anew.
//!
//! The pieces of the kept version (batches, files, or parts that a table states) must be among those of the new one, in
//! the same order (`Version::added_since`). Those of a table with several partitions, and files by their names, may
//! come between them, which no join can use in which the order of equal keys decides. The rest is read by the same
//! plan over these pieces alone (`over_pieces`), which are never moved into the order of their keys. Values of a
//! segment have the version of its batches.
//!
//! A segment is built for the partial aggregates of spill runs (`MergePlan`), with the range key as another value, and
//! each probe batch is taken through all segments at once: `Partials` merge their aggregates, with the number of the
//! segment as the position that decides ties. Pairs are returned segment by segment, with the unmatched probe rows
//! after the last, and marks of build rows are those of each segment. Of nearest rows each segment finds as many as are
//! returned (`NearestOfSegments`).

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlanProperties;

use crate::exec::common::pieces::over_pieces;
use crate::exec::common::plan_key::ScanPlan;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::build_side::kept_lookup::{Division, over_scan};
use crate::exec::range_join::build_side::kept_side::{
    JoinValues, KeptSegment, KeptSide, Searches, SegmentedRows, Value,
};
use rmq_arrow::index::devices::Target;

/// The segments of a build side, some of which are kept.
#[derive(Debug)]
pub(crate) struct KeptSegments<S> {
    /// Keeps all of them.
    pub(crate) keeper: BuildSideKeeper,
    /// Where they are sorted.
    pub(crate) target: Target,
    pub(crate) parts: Vec<SegmentPart<S>>,
    /// The number of the segment that has the rows of each piece.
    pub(crate) segment_of: Vec<usize>,
    /// Rows of the scan, about.
    pub(crate) rows: usize,
    pub(crate) searches: Searches,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct SegmentPart<S> {
    /// Knows its values.
    pub(crate) keeper: Arc<BuildSideKeeper>,
    /// The segment, unless it has to be built.
    pub(crate) kept: Option<Arc<S>>,
}

impl<S: KeptSegment> KeptSegments<S> {
    /// The segments of the build side for which `keeper` has found no single one, if there are any. Their values are
    /// those of `columns`, which have the same keys.
    pub(crate) fn find(keeper: &BuildSideKeeper, columns: &BuildColumns) -> Option<Self> {
        if !keeper.keeps {
            return None;
        }
        let lookup = &keeper.lookup;
        let (division, target) = keeper.catalog.find(|kept, version| {
            let kept = KeptSide::<S>::of(kept.as_ref())?;
            Some((lookup.divide(kept, version)?, kept.target.clone()))
        })?;
        let Division {
            kept,
            has_rest,
            segment_of,
            rows,
            searches,
        } = division;
        let scanned = ScanPlan::of(&lookup.plan)?;
        let values = over_scan(columns, &scanned)?.split_off(columns.num_equality_keys + 1);
        let kept = kept.into_iter().map(Some).chain(has_rest.then_some(None));
        let parts = kept.enumerate().map(|(number, kept)| {
            let is_read = |batch: usize| segment_of[batch] == number;
            let values = values.iter();
            let values = values.map(|expr| Value::new(Arc::clone(expr), &scanned, is_read));
            let values = JoinValues::new(columns, values.collect(), &lookup.plan.schema())?;
            Some(SegmentPart {
                keeper: Arc::new(keeper.with_values(values)),
                kept,
            })
        });
        Some(Self {
            parts: parts.collect::<Option<_>>()?,
            keeper: keeper.clone(),
            target,
            rows,
            segment_of,
            searches,
        })
    }

    /// Keeps the segments, unless all have been kept before.
    pub(crate) async fn keep(self, segments: Vec<Arc<S>>) {
        if self.parts.iter().all(|part| part.kept.is_some()) {
            self.keeper.shrink();
            return;
        }
        let rows = SegmentedRows {
            segments,
            segment_of: self.segment_of,
            searches: self.searches,
        };
        self.keeper.keep(rows, self.target).await;
    }

    /// Reads the rows of a segment.
    ///
    /// # Errors
    /// Those of the plan.
    pub(crate) fn read(&self, number: usize) -> Result<Vec<SendableRecordBatchStream>> {
        let is_read = |piece: usize| self.segment_of.get(piece) == Some(&number);
        let plan = over_pieces(self.keeper.plan(), &is_read)?;
        let partitions = 0..plan.output_partitioning().partition_count();
        let inputs =
            partitions.map(|partition| plan.execute(partition, Arc::clone(&self.keeper.context)));
        inputs.collect()
    }
}
