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
//! The batches or files of the kept version must be among those of the new one, in the same order
//! (`Version::added_since`). Those of a table with several partitions, and files by their names, may come between them,
//! which no join can use in which the order of equal keys decides. The rest is read by the same plan over these batches
//! or files alone (`over_pieces`), which are never moved into the order of their keys. Values of a segment have the
//! version of its batches.
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
use crate::exec::range_join::build_side::kept::{BuildSideKeeper, over_scan};
use crate::exec::range_join::build_side::kept_side::{
    KeptSegment, KeptSide, RowsKey, Searches, SegmentedRows, Value,
};
use crate::index::devices::Target;
use crate::index::version::Version;

/// Twice as many rows are worth a segment. Fewer take less time to sort than a search of one more segment, which also
/// takes some 100 kB.
const SMALL_ROWS: usize = 1 << 10;

/// The segments of a build side, some of which are kept.
#[derive(Debug)]
pub(crate) struct KeptSegments<S> {
    /// Keeps all of them.
    pub(crate) keeper: BuildSideKeeper,
    /// Where they are sorted.
    pub(crate) target: Target,
    pub(crate) parts: Vec<SegmentPart<S>>,
    /// The number of the segment that has the rows of each batch or file.
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

/// The rows whose segments are looked for.
#[derive(Debug)]
pub(super) struct WantedRows<'a> {
    key: &'a RowsKey,
    version: &'a Version,
    /// Whether it has of files what their store told when they were listed.
    is_planned: bool,
    /// Whether the order of equal keys decides.
    needs_order: bool,
}

/// The rows of a version, divided into segments.
#[derive(Debug)]
pub(super) struct Division<S> {
    /// Those that are kept. The rest are rows of the last.
    kept: Vec<Arc<S>>,
    has_rest: bool,
    segment_of: Vec<usize>,
    rows: usize,
    searches: Searches,
}

impl<'a> WantedRows<'a> {
    /// `None` if the plan does not scan one table, or not in the order that the join needs.
    pub(super) fn of(
        scanned: &ScanPlan<'_>,
        key: &'a RowsKey,
        version: &'a Version,
        needs_order: bool,
        is_planned: bool,
    ) -> Option<Self> {
        let is_in_order = scanned.is_in_order && !(needs_order && scanned.deals_out_batches());
        (is_in_order && scanned.has_pieces()).then_some(Self {
            key,
            version,
            is_planned,
            needs_order,
        })
    }

    /// The segments of these rows, some of which are those of a side that is kept in an older version. `None` if all
    /// rows have to be sorted anew.
    pub(super) fn divide<S: KeptSegment>(
        &self,
        kept: &KeptSide<S>,
        older: &Version,
    ) -> Option<Division<S>> {
        if !kept.is_in_order
            || kept.has_failed()
            || !self.key.may_extend(&kept.key)
            || self.needs_order && kept.is_restored()
        {
            return None;
        }
        let added = self.added_since(kept, older)?;
        let (mut known, tail) = (kept.segment_numbers(), kept.rows.segments.len());
        let numbers = added.into_iter();
        let numbers = numbers.map(|is_added| if is_added { Some(tail) } else { known.next() });
        let mut segment_of: Vec<usize> = numbers.collect::<Option<_>>()?;
        if self.needs_order && !segment_of.is_sorted() {
            return None;
        }
        let mut segments = kept.rows.segments.clone();
        let mut rows = self.rows_of_segments(kept, &segment_of);
        let all_rows = rows.iter().sum();
        let has_rest = segment_of.contains(&tail);
        if let Some(mut rest) = rows.pop().filter(|_| has_rest) {
            while let Some(last) = rows.pop_if(|last| *last < 2 * rest.max(SMALL_ROWS)) {
                rest += last;
                segments.pop();
            }
            let number = segments.len();
            let of_batches = segment_of.iter_mut();
            of_batches.for_each(|segment| *segment = (*segment).min(number));
        }
        let number = segments.len() + usize::from(has_rest);
        if number < 2 || kept.rows.searches.justify_sorting(all_rows) {
            return None;
        }
        Some(Division {
            kept: segments,
            has_rest,
            segment_of,
            rows: all_rows,
            searches: kept.rows.searches.clone(),
        })
    }
}

impl WantedRows<'_> {
    /// Which pieces are not among those of a side that is kept in an older version.
    fn added_since<S: KeptSegment>(
        &self,
        kept: &KeptSide<S>,
        older: &Version,
    ) -> Option<Vec<bool>> {
        let added = self.version.added_since(older, self.is_planned)?;
        if !self.version.has_files() {
            return Some(added);
        }
        // A plan may read other parts of the same files, or with other values of partition columns.
        let by_plan = self.key.plan.files_added_since(&kept.key.plan)?;
        (added == by_plan).then_some(added)
    }

    /// The rows of each segment of a side that is kept, and those of the rest. Those of files are estimated.
    fn rows_of_segments<S: KeptSegment>(
        &self,
        kept: &KeptSide<S>,
        segment_of: &[usize],
    ) -> Vec<usize> {
        let tail = kept.rows.segments.len();
        let mut sizes = vec![0; tail + 1];
        for (number, size) in segment_of.iter().zip(self.version.sizes()) {
            sizes[*number] += u128::from(size);
        }
        if self.version.has_files() {
            let (added_bytes, kept_bytes) = (sizes[tail], sizes[..tail].iter().sum::<u128>());
            for (size, segment) in sizes.iter_mut().zip(&kept.rows.segments) {
                *size = segment.total_rows() as u128;
            }
            let kept_rows: u128 = sizes[..tail].iter().sum();
            sizes[tail] = kept_rows * added_bytes / kept_bytes.max(1);
        }
        let rows = sizes.into_iter();
        let rows = rows.map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        rows.collect()
    }
}

impl<S: KeptSegment> KeptSegments<S> {
    /// The segments of the build side for which `keeper` has found no single one, if there are any. Their values are
    /// those of `columns`, which have the same keys.
    pub(crate) fn find(keeper: &BuildSideKeeper, columns: &BuildColumns) -> Option<Self> {
        if !keeper.keeps {
            return None;
        }
        let scanned = ScanPlan::of(keeper.plan())?;
        let needs_order = keeper.columns.row_order_matters();
        let wanted = WantedRows::of(&scanned, &keeper.key, &keeper.version, needs_order, false)?;
        let found = keeper.catalog.find(|kept, version| {
            let kept = KeptSide::<S>::of(kept.as_ref())?;
            let division = wanted.divide(kept, version)?;
            Some((division, kept.target.clone()))
        });
        let (division, target) = found?;
        let Division {
            kept,
            has_rest,
            segment_of,
            rows,
            searches,
        } = division;
        let values = over_scan(columns, &scanned)?.split_off(columns.num_equality_keys + 1);
        let kept = kept.into_iter().map(Some).chain(has_rest.then_some(None));
        let parts = kept.enumerate().map(|(number, kept)| {
            let is_read = |batch: usize| segment_of[batch] == number;
            let values = values.iter();
            let values = values.map(|expr| Value::new(Arc::clone(expr), &scanned, is_read));
            SegmentPart {
                keeper: Arc::new(keeper.with_values(columns, values.collect())),
                kept,
            }
        });
        Some(Self {
            parts: parts.collect(),
            keeper: keeper.clone(),
            target,
            rows,
            segment_of,
            searches,
        })
    }

    /// Keeps the segments, unless all have been kept before.
    ///
    /// # Errors
    /// An error if the range key has no type.
    pub(crate) async fn keep(self, segments: Vec<Arc<S>>) -> Result<()> {
        if self.parts.iter().all(|part| part.kept.is_some()) {
            self.keeper.shrink();
            return Ok(());
        }
        let rows = SegmentedRows {
            segments,
            segment_of: self.segment_of,
            searches: self.searches,
        };
        self.keeper.keep(rows, self.target).await?;
        Ok(())
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
