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
//! A segment is sorted anew together with those after it if it is not at least twice as large as these, or small. So
//! there are O(log n) segments of n rows, and each row is sorted O(log n) times, besides those of small segments. Once
//! searching several segments instead of one has taken as long as sorting all rows, all are sorted anew.
//!
//! The batches of the kept version must be among those of the new one, in the same order (`Version::added_since`).
//! Those of a table with several partitions may be appended between them, which no join can use in which the order of
//! equal keys decides. The rest is read by the same plan over these batches alone (`over_batches`), which are never
//! moved into the order of their keys. Values of a segment have the version of its batches.
//!
//! A segment is built for the partial aggregates of spill runs (`MergePlan`), with the range key as another value, and
//! each probe batch is taken through all segments at once: `Partials` merge their aggregates, with the number of the
//! segment as the position that decides ties. Pairs are returned segment by segment, with the unmatched probe rows
//! after the last, and marks of build rows are those of each segment. Of nearest rows each segment finds as many as are
//! returned (`NearestOfSegments`).

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlanProperties;

use crate::exec::common::plan_key::{ScanPlan, over_batches};
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::kept::{BuildSideKeeper, over_scan};
use crate::exec::range_join::build_side::kept_side::{KeptSide, Searches, Segment, Value};

/// Twice as many rows are worth a segment. Fewer take less time to sort than a search of one more segment, which also
/// takes some 100 kB.
const SMALL_ROWS: usize = 1 << 10;

/// The segments of a build side, some of which are kept.
#[derive(Debug)]
pub(crate) struct KeptSegments {
    /// Keeps all of them.
    pub(crate) keeper: BuildSideKeeper,
    pub(crate) parts: Vec<SegmentPart>,
    /// The number of the segment that has the rows of each batch.
    pub(crate) segment_of: Vec<usize>,
    /// Rows of the scan in all batches.
    pub(crate) rows: usize,
    pub(crate) searches: Searches,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct SegmentPart {
    /// Knows its values.
    pub(crate) keeper: Arc<BuildSideKeeper>,
    /// The segment, unless it has to be built.
    pub(crate) kept: Option<Arc<Segment>>,
}

impl KeptSegments {
    /// The segments of the build side for which `keeper` has found no single one, if there are any. Their values are
    /// those of `columns`, which have the same keys.
    pub(crate) fn find(keeper: &BuildSideKeeper, columns: &BuildColumns) -> Option<Self> {
        if !keeper.keeps || !keeper.is_in_order() {
            return None;
        }
        let scanned = ScanPlan::of(keeper.plan())?;
        let needs_order = keeper.columns.row_order_matters();
        if needs_order && scanned.deals_out_batches() {
            return None;
        }
        let batch_rows = scanned.batches()?.map(RecordBatch::num_rows);
        let batch_rows: Vec<usize> = batch_rows.collect();
        let found = keeper.catalog.find_rows(|rows, version| {
            let kept = KeptSide::of(rows.as_ref())?;
            if !kept.is_in_order || !keeper.key.may_extend(&kept.key) || !keeper.may_use(kept) {
                return None;
            }
            let added = keeper.version.added_since(version, batch_rows.len())?;
            let (mut known, tail) = (kept.segment_numbers(), kept.segments.len());
            let numbers = added.into_iter();
            let numbers = numbers.map(|is_added| if is_added { Some(tail) } else { known.next() });
            let numbers: Vec<usize> = numbers.collect::<Option<_>>()?;
            let is_in_order = !needs_order || numbers.is_sorted();
            is_in_order.then(|| (kept.segments.clone(), numbers, kept.searches.clone()))
        });
        let (mut kept, mut segment_of, searches) = found?;
        let all_rows = batch_rows.iter().sum();
        let mut rows = vec![0; kept.len() + 1];
        for (number, batch_rows) in segment_of.iter().zip(&batch_rows) {
            rows[*number] += batch_rows;
        }
        let has_tail = segment_of.contains(&kept.len());
        let mut merged = rows.pop().filter(|_| has_tail);
        if let Some(tail) = &mut merged {
            while let Some(last) = rows.pop_if(|last| *last < 2 * (*tail).max(SMALL_ROWS)) {
                *tail += last;
                kept.pop();
            }
            let number = kept.len();
            let of_batches = segment_of.iter_mut();
            of_batches.for_each(|segment| *segment = (*segment).min(number));
        }
        let mut kept: Vec<_> = kept.into_iter().map(Some).collect();
        kept.extend(merged.map(|_| None));
        if kept.len() < 2 || searches.justify_sorting(all_rows) {
            // All rows are sorted anew.
            return None;
        }
        let values = over_scan(columns, &scanned)?.split_off(columns.num_equality_keys + 1);
        let parts = kept.into_iter().enumerate().map(|(number, kept)| {
            let values = values.iter().map(|expr| Value {
                expr: Arc::clone(expr),
                version: scanned.version_of(expr, |batch| segment_of[batch] == number),
            });
            SegmentPart {
                keeper: Arc::new(keeper.with_values(columns, values.collect())),
                kept,
            }
        });
        Some(Self {
            parts: parts.collect(),
            keeper: keeper.clone(),
            segment_of,
            rows: all_rows,
            searches,
        })
    }

    /// Reads the rows of a segment.
    ///
    /// # Errors
    /// Those of the plan.
    pub(crate) fn read(&self, number: usize) -> Result<Vec<SendableRecordBatchStream>> {
        let is_read = |batch: usize| self.segment_of.get(batch) == Some(&number);
        let plan = over_batches(self.keeper.plan(), &is_read)?;
        let partitions = 0..plan.output_partitioning().partition_count();
        let inputs =
            partitions.map(|partition| plan.execute(partition, Arc::clone(&self.keeper.context)));
        inputs.collect()
    }
}
