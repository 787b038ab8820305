//! What is looked for among the build sides that a session keeps, by a join that runs and by EXPLAIN.

use std::sync::Arc;

use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::common::pieces::over_pieces;
use crate::exec::common::plan_key::ScanPlan;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::kept_side::{
    JoinValues, KeptSegment, KeptSide, RowsKey, Searches, Value,
};
use crate::kept::growth::parts_that_stay;
use crate::kept::version::Version;

/// Twice as many rows are worth a segment. Fewer take less time to sort than a search of one more segment, which also
/// takes some 100 kB.
const SMALL_ROWS: u64 = 1 << 10;

/// The rows of a plan in a version, and the values that a join needs of them.
#[derive(Debug, Clone)]
pub(super) struct KeptLookup {
    pub(super) key: Arc<RowsKey>,
    pub(super) values: JoinValues,
    /// The plan of the rows. They are in the same order each time if that can be had.
    pub(super) plan: Arc<dyn ExecutionPlan>,
    pub(super) is_in_order: bool,
    /// Whether they may consist of rows that are kept and others, in the order that the join needs.
    pub(super) may_be_divided: bool,
    pub(super) version: Version,
    /// Whether the version has of files what their store told when they were listed.
    pub(super) is_planned: bool,
}

/// The rows of a version, divided into segments.
#[derive(Debug)]
pub(super) struct Division<S> {
    /// Those that are kept. The rest are rows of the last.
    pub(super) kept: Vec<Arc<S>>,
    pub(super) has_rest: bool,
    pub(super) segment_of: Vec<usize>,
    pub(super) rows: usize,
    pub(super) searches: Searches,
}

impl KeptLookup {
    /// Looks for the build side of these columns of a plan, as it was planned. `None` if it can't be compared with
    /// others.
    pub(super) fn planned(
        plan: &Arc<dyn ExecutionPlan>,
        columns: &BuildColumns,
        batch_rows: usize,
    ) -> Option<Self> {
        let plan = in_order(plan)?;
        let scanned = ScanPlan::of(&plan)?;
        let mut keys = over_scan(columns, &scanned)?;
        let values = keys.split_off(columns.num_equality_keys + 1).into_iter();
        let values = values.map(|expr| Value::new(expr, &scanned, |_| true));
        let values = JoinValues::new(columns, values.collect(), &plan.schema())?;
        let version = scanned.planned_version(&keys)?;
        let is_in_order = scanned.is_in_order;
        let needs_order = columns.row_order_matters();
        let may_be_divided =
            is_in_order && scanned.has_pieces() && !(needs_order && scanned.deals_out_batches());
        let key = RowsKey {
            plan: scanned.key,
            keys,
            batch_rows,
        };
        Some(Self {
            key: Arc::new(key),
            values,
            plan,
            is_in_order,
            may_be_divided,
            version,
            is_planned: true,
        })
    }

    /// The rows of a side, if they are these, in one segment, and it has all values that the join needs. With
    /// `may_add`, others may be added.
    pub(super) fn whole<'a, S: KeptSegment>(
        &self,
        kept: &'a KeptSide<S>,
        version: &Version,
        may_add: bool,
    ) -> Option<&'a Arc<S>> {
        let segment = kept.only_segment()?;
        let is_same_version = || {
            if self.is_planned {
                version.matches_planned(&self.version)
            } else {
                version.matches(&self.version)
            }
        };
        let is_found = kept.key == self.key
            && kept.may_serve(&self.values.columns)
            && !kept.has_failed()
            && (may_add && self.is_in_order && kept.is_in_order || segment.has_all(&self.values))
            && is_same_version();
        is_found.then_some(segment)
    }

    /// The segments of the rows, some of them those of a side that is kept in an older version. `None` if all rows
    /// have to be sorted anew.
    pub(super) fn divide<S: KeptSegment>(
        &self,
        kept: &KeptSide<S>,
        older: &Version,
    ) -> Option<Division<S>> {
        let needs_order = self.values.columns.row_order_matters();
        if !self.may_be_divided
            || !kept.is_in_order
            || kept.has_failed()
            || !self.key.may_extend(&kept.key)
            || needs_order && kept.is_restored()
        {
            return None;
        }
        let added = self.added_since(kept, older)?;
        let (mut known, tail) = (kept.segment_numbers(), kept.rows.segments.len());
        let numbers = added.into_iter();
        let numbers = numbers.map(|is_added| if is_added { Some(tail) } else { known.next() });
        let mut segment_of: Vec<usize> = numbers.collect::<Option<_>>()?;
        if needs_order && !segment_of.is_sorted() {
            return None;
        }
        let (sizes, rest) = self.rows_of_segments(kept, &segment_of);
        let rows = usize::try_from(sizes.iter().sum::<u64>().saturating_add(rest)).ok()?;
        let has_rest = segment_of.contains(&tail);
        let stay = if has_rest {
            parts_that_stay(&sizes, rest, SMALL_ROWS)
        } else {
            tail
        };
        for segment in &mut segment_of {
            *segment = (*segment).min(stay);
        }
        let number = stay + usize::from(has_rest);
        if number < 2 || kept.rows.searches.justify_sorting(rows) {
            return None;
        }
        let is_rest = |piece: usize| segment_of[piece] == stay;
        if has_rest && over_pieces(&self.plan, &is_rest).is_err() {
            // A table that can't scan some of its parts.
            return None;
        }
        Some(Division {
            kept: kept.rows.segments[..stay].to_vec(),
            has_rest,
            segment_of,
            rows,
            searches: kept.rows.searches.clone(),
        })
    }

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
    ) -> (Vec<u64>, u64) {
        let (mut kept_sizes, mut added) = (vec![0; kept.rows.segments.len()], 0);
        for (number, size) in segment_of.iter().zip(self.version.sizes()) {
            *kept_sizes.get_mut(*number).unwrap_or(&mut added) += size;
        }
        if !self.version.has_files() {
            return (kept_sizes, added);
        }
        let segments = kept.rows.segments.iter();
        let rows: Vec<u64> = segments
            .map(|segment| segment.total_rows() as u64)
            .collect();
        let (kept_rows, kept_bytes) = (rows.iter().sum::<u64>(), kept_sizes.iter().sum::<u64>());
        let added = u128::from(kept_rows) * u128::from(added) / u128::from(kept_bytes.max(1));
        (rows, u64::try_from(added).unwrap_or(u64::MAX))
    }
}

/// The same plan, in the same order each time if that can be had; `None` if it can't be compared with others.
fn in_order(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let is_in_order = ScanPlan::of(plan)?.is_in_order;
    // Of a scan. Operators above one would have to be replaced, too, and their metrics with them.
    let ordered = (!is_in_order).then(|| plan.with_preserve_order(true));
    Some(ordered.flatten().unwrap_or_else(|| Arc::clone(plan)))
}

/// Columns as expressions over the scan; `None` if one may have another value for the same row the next time.
pub(super) fn over_scan(
    columns: &BuildColumns,
    scanned: &ScanPlan<'_>,
) -> Option<Vec<PhysicalExprRef>> {
    let expressions = columns.expressions().iter();
    expressions.map(|expr| scanned.over_scan(expr)).collect()
}
