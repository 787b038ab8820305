//! Rows of a build side that have been read for the slices of a partition.
//!
//! A scan reads whole row groups, or pages, also where a slice needs a part of them. So what the windows after those of
//! a slice reach in the same row groups is read with it, as far as there is memory, and kept until these are joined:
//!
//! ```text
//!   row groups    ├──────── 1 ────────┼──────── 2 ────────┤
//!   slices        [ first ]
//!                        [ second ]
//!                               [  third  ]
//!   read for      first: all of row group 1        third: row group 2
//! ```
//!
//! Which keys have been read is known by what scans were asked for, so the statistics of row groups only tell what is
//! worth asking for.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::filter_record_batch;
use datafusion::common::Result;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::range_join::metrics::ReachCounts;
use crate::exec::range_join::probe::slices::sliced_build::SlicedBuild;
use crate::exec::range_join::probe::slicing::part_of;
use crate::exec::range_join::reach::key_set::KeySet;
use crate::exec::range_join::reach::reached_rows::ReachedRowsExec;
use crate::exec::range_join::reach::whole_keys::ends;
use crate::exec::range_join::reach::window_reach::Reach;
use rmq_arrow::common::array_bytes::arrays_bytes;

/// What the windows of this many times the rows of a slice reach may be read with it.
pub(super) const ROWS_AHEAD: usize = 8;

/// Rows that have been read. Those with equal keys are in the order in which one scan has returned them.
pub(crate) struct ReadRows {
    build: Arc<SlicedBuild>,
    /// With the least and the greatest key of each batch.
    batches: Vec<(RecordBatch, (i128, i128))>,
    /// All rows with these range keys, and the equality keys of `reach`, have been read.
    keys: KeySet,
    reach: Option<Arc<Reach>>,
    /// Whether equality keys are compared. Once later probe rows have others than those that were read for, all are
    /// read: otherwise the same row groups would be read for each slice.
    pub(super) compares_equality_keys: bool,
    memory: Arc<MemoryReservation>,
}

impl ReadRows {
    pub(super) fn new(build: Arc<SlicedBuild>) -> Self {
        Self {
            batches: vec![],
            keys: KeySet::default(),
            reach: None,
            compares_equality_keys: true,
            memory: build.read_memory(),
            build,
        }
    }

    /// Reads what is missing of `reach`, that of the first `rows` rows of the probe side, of which `first` returns as
    /// many as there are. Returns false if memory does not suffice, or the keys are no whole numbers.
    ///
    /// # Errors
    /// Those of the operators.
    pub(super) async fn read(
        &mut self,
        reach: &Reach,
        rows: usize,
        first: impl Fn(usize) -> Vec<RecordBatch>,
    ) -> Result<bool> {
        let build = Arc::clone(&self.build);
        let slicing = &build.slicing;
        let Some(reached) = reach.keys().filter(|_| slicing.read_bytes > 0) else {
            return Ok(false);
        };
        if self.has_equality_keys_of(reach)? && reached.without(&self.keys).is_empty() {
            return Ok(true);
        }
        let ahead = first(rows.saturating_mul(ROWS_AHEAD));
        let mut ahead: usize = ahead.iter().map(RecordBatch::num_rows).sum();
        let (known, kept, read) = loop {
            let later = slicing.reach(first(ahead), self.compares_equality_keys);
            let Some(later) = later.await else {
                return Ok(false);
            };
            let Some(keys) = later.keys() else {
                return Ok(false);
            };
            let known = match &self.reach {
                Some(reach) if reach.has_equality_keys_of(&later)? => Arc::clone(reach),
                Some(_) => {
                    *self = Self::new(Arc::clone(&build));
                    self.compares_equality_keys = false;
                    Arc::new(later.of_all_equality_keys())
                }
                None => Arc::new(later),
            };
            let kept = self.keys.and(&keys);
            // Gaps between windows that one reach has closed may be open in the other.
            let missing = reached.and(&keys).without(&kept);
            if missing.is_empty() {
                return Ok(true);
            }
            let others = build.in_other_row_groups(&missing);
            let read = keys.without(&kept).without(&others);
            match slicing.part_of_read_bytes(&kept.or(&read)) {
                Some(part) if part <= 1.0 => break (known, kept, read),
                Some(part) if ahead > rows => {
                    ahead = part_of(ahead, (0.9 / part).clamp(0.1, 0.9)).max(rows);
                }
                _ => return Ok(false),
            }
        };
        let schema = build.schema();
        self.retain(&known.over(&kept, &schema)?)?;
        self.keys = kept;
        let Some(batches) = build
            .read(known.over(&read, &schema)?, &self.memory)
            .await?
        else {
            *self = Self::new(build);
            return Ok(false);
        };
        for batch in batches {
            if let Some(ends) = ends(&known.key_of(&batch)?)? {
                self.batches.push((batch, ends));
            }
        }
        self.keys = self.keys.or(&read);
        self.reach = Some(known);
        Ok(true)
    }

    /// Whether what has been read has all equality keys of `reach`.
    fn has_equality_keys_of(&self, reach: &Reach) -> Result<bool> {
        let known = self.reach.as_ref();
        known.map_or(Ok(false), |known| known.has_equality_keys_of(reach))
    }

    /// Keeps only the rows that are reached.
    fn retain(&mut self, reach: &Reach) -> Result<()> {
        let keys = reach.keys().unwrap_or_default();
        let mut kept = vec![];
        for (batch, ends) in self.batches.drain(..) {
            if !keys.meets(ends) {
                continue;
            }
            let reached = reach.contains(&batch)?;
            let batch = if reached.true_count() < batch.num_rows() {
                filter_record_batch(&batch, &reached)?
            } else {
                batch
            };
            kept.push((batch, ends));
        }
        let bytes = kept.iter().map(|(batch, _)| arrays_bytes(batch.columns()));
        let bytes: usize = bytes.sum();
        self.memory.shrink(self.memory.size().saturating_sub(bytes));
        self.batches = kept;
        Ok(())
    }

    /// A plan of the rows that are reached.
    ///
    /// # Errors
    /// DataFusion's.
    pub(super) fn reached(&self, reach: Reach) -> Result<Arc<dyn ExecutionPlan>> {
        let keys = reach.keys().unwrap_or_default();
        let reach = if self.compares_equality_keys {
            reach
        } else {
            reach.of_all_equality_keys()
        };
        let batches = self.batches.iter();
        let batches = batches.filter(|(_, ends)| keys.meets(*ends));
        let batches: Vec<_> = batches.map(|(batch, _)| batch.clone()).collect();
        let rows = MemorySourceConfig::try_new_exec(&[batches], self.build.schema(), None)?;
        let counts = ReachCounts::default();
        Ok(Arc::new(ReachedRowsExec::new(
            rows,
            Some(Arc::new(reach)),
            vec![],
            counts,
        )))
    }
}
