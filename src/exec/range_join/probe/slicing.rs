//! Decides whether a build side is read in slices, and how many probe rows a slice serves.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::common::blocking::blocking;
use crate::exec::common::plan_key::ScanPlan;
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::probe::probe_input::MAX_ROWS_AHEAD;
use crate::exec::range_join::reach::build_extent::BuildExtent;
use crate::exec::range_join::reach::intervals::MAX_SCAN_INTERVALS;
use crate::exec::range_join::reach::key_set::KeySet;
use crate::exec::range_join::reach::whole_keys::is_whole_number;
use crate::exec::range_join::reach::window_reach::{Reach, are_closed, reach_of};
use crate::kept::giving_pool::GivingPool;
use datafusion_rmq_logical::common::options::RmqOptions;
use datafusion_rmq_logical::logical_plan::range_join::RangeJoinSpec;

/// How many parts of the rows of a partition are looked at.
const PARTS: usize = 8;

/// Gaps between windows of less than this part of a slice are read with these, as statistics of files tell little of
/// them.
const GAP: f64 = 0.25;

/// More rows may be within gaps between windows of less than this part of all keys than elsewhere.
const NEAR: f64 = 0.01;

/// A slice with less memory is not worth a scan, and beside slices there must be memory to read what is spilled.
const MIN_SLICE_BYTES: usize = 64 << 10;

/// The parts of the probe side may together reach this many times what all rows reach.
const MAX_OVERLAP: f64 = 2.0;

/// Slices may together read this many times the rows of the build side. Where a row group does not fit, it is decoded
/// for each slice, which takes less time than to write and read spill files.
const MAX_READS: usize = 8;

/// How a build side is read in slices.
#[derive(Debug, Clone)]
pub(crate) struct Slicing {
    spec: Arc<RangeJoinSpec<PhysicalExprRef>>,
    /// The same without equality keys.
    windows: Arc<RangeJoinSpec<PhysicalExprRef>>,
    schema: SchemaRef,
    extent: BuildExtent,
    /// The expected size of all rows.
    size: DataSize,
    partitions: usize,
    /// The most memory of what a partition reads and builds.
    slice_bytes: usize,
    /// The part of it for rows that have been read; 0 if these are not kept for the next slice.
    pub(crate) read_bytes: usize,
    /// The most memory of probe rows that a partition reads ahead, and how many these are.
    pub(crate) ahead_bytes: usize,
    pub(crate) ahead_rows: usize,
}

impl Slicing {
    /// `None` if a build side is expected to fit in memory, can't be read again, or if windows may reach rows without
    /// an end. `read` are the columns that are read.
    pub(crate) fn try_new(
        spec: &Arc<RangeJoinSpec<PhysicalExprRef>>,
        build: &Arc<dyn ExecutionPlan>,
        extent: &BuildExtent,
        read: &Schema,
        partitions: usize,
        context: &TaskContext,
    ) -> Option<Self> {
        let free = GivingPool::free_bytes(context.memory_pool());
        let size = extent.size(read)?;
        let slice_bytes = free / 2 / partitions;
        let is_larger = size.build_bytes() > free;
        let is_whole = spec.key.data_type(&build.schema());
        let is_whole = is_whole.is_ok_and(|key| is_whole_number(&key));
        let is_sliced = is_larger
            && slice_bytes >= MIN_SLICE_BYTES
            && are_closed(spec)
            && ScanPlan::of(build).is_some_and(|scanned| scanned.reads_files());
        let options = RmqOptions::of(context.session_config().options());
        is_sliced.then(|| Self {
            spec: Arc::clone(spec),
            windows: Arc::new(RangeJoinSpec {
                on: vec![],
                ..RangeJoinSpec::clone(spec)
            }),
            schema: build.schema(),
            extent: extent.clone(),
            size,
            partitions,
            slice_bytes,
            read_bytes: if is_whole {
                (slice_bytes / 2).min(slice_bytes - MIN_SLICE_BYTES)
            } else {
                0
            },
            ahead_bytes: options.pruning_memory.0.min(free / 8) / partitions,
            ahead_rows: MAX_ROWS_AHEAD / partitions,
        })
    }

    /// The range key.
    pub(crate) fn key(&self) -> &PhysicalExprRef {
        &self.spec.key
    }

    /// The memory that building what windows reach is expected to take, with gaps of less than the part `gap` of keys.
    fn needed(&self, reach: &Reach, gap: f64) -> Option<f64> {
        let share = self.extent.share(reach.intervals(), gap)?;
        Some(share * number(self.size.build_bytes()))
    }

    /// Whether what windows reach is expected to fit in the memory of all slices, even if most rows are near windows.
    pub(crate) fn fits(&self, reach: &Reach, is_of_statistics: bool) -> bool {
        let memory = number(self.slice_bytes * self.partitions);
        let gap = if is_of_statistics { 1.0 } else { NEAR };
        self.needed(reach, gap)
            .is_some_and(|needed| needed <= memory)
    }

    /// The most memory of building a slice. It is expected to take less.
    pub(crate) fn build_bytes(&self) -> usize {
        self.slice_bytes - self.read_bytes
    }

    /// What these bytes of a slice are of what one should take at most: the next ones may take more.
    pub(crate) fn part_of_bytes(&self, bytes: usize) -> f64 {
        number(bytes) / (0.75 * number(self.build_bytes()))
    }

    /// What the rows with these keys are expected to take of the memory for rows that have been read.
    pub(crate) fn part_of_read_bytes(&self, keys: &KeySet) -> Option<f64> {
        let (least, greatest) = self.extent.numbers()?;
        let share = keys.size() / KeySet::of(vec![(least, greatest)]).size();
        Some(share * number(self.size.bytes) / (0.9 * number(self.read_bytes)))
    }

    /// The memory that what these windows reach is expected to take, as a part of that of a slice.
    pub(crate) fn part_of_memory(&self, reach: &Reach) -> Option<f64> {
        Some(self.needed(reach, 0.0)? * self.part_of_bytes(1))
    }

    /// What the windows of probe rows reach, with their equality keys or whatever these are; `None` if a bound fails.
    pub(crate) async fn reach(
        &self,
        batches: Vec<RecordBatch>,
        compares_equality_keys: bool,
    ) -> Option<Reach> {
        let spec = if compares_equality_keys {
            &self.spec
        } else {
            &self.windows
        };
        let (spec, schema) = (Arc::clone(spec), Arc::clone(&self.schema));
        reach_of(spec, schema, batches, MAX_SCAN_INTERVALS, |_| false).await
    }

    /// Whether slices would read each row about once, as these first batches of the partitions of the probe side tell.
    pub(crate) async fn is_worthwhile(&self, partitions: Vec<Vec<RecordBatch>>) -> bool {
        let this = self.clone();
        let gap = GAP * number(self.slice_bytes) / number(self.size.build_bytes());
        let overlap = blocking(move |waiting| {
            let reach = |batches: &[RecordBatch]| -> Result<Option<f64>> {
                let (spec, schema, most) = (&this.spec, &this.schema, MAX_SCAN_INTERVALS);
                let check = || waiting.check();
                let reach = Reach::of_rows(spec, schema, batches, most, |_| false, check)?;
                Ok(reach.and_then(|reach| this.extent.share(reach.intervals(), gap)))
            };
            let all = reach(&partitions.concat())?;
            let parts = partitions.iter().flat_map(|batches| in_parts(batches));
            let parts = parts.map(|part| reach(&part));
            let parts = parts.collect::<Result<Option<Vec<f64>>>>()?;
            Ok(all.zip(parts).map(|(all, parts)| (all, parts.iter().sum())))
        });
        let overlap: Option<(f64, f64)> = overlap.await.ok().flatten();
        overlap.is_some_and(|(all, parts)| parts <= MAX_OVERLAP * all)
    }

    /// Whether slices that have read this many rows shall read no more.
    pub(crate) fn is_exhausted(&self, read: usize) -> bool {
        read > MAX_READS.saturating_mul(self.size.rows)
    }
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn number(bytes: usize) -> f64 {
    bytes as f64
}

/// The share `part` (0 to 1) of `rows`, as a number of rows.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "no more than all rows"
)]
pub(crate) fn part_of(rows: usize, part: f64) -> usize {
    (rows as f64 * part) as usize
}

/// The rows of a partition in parts of about the same size.
fn in_parts(batches: &[RecordBatch]) -> impl Iterator<Item = Vec<RecordBatch>> {
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let size = rows.div_ceil(PARTS).max(1);
    let starts = (0..rows).step_by(size);
    starts.map(move |start| rows_within(batches, start..start + size))
}

/// The rows of some batches with these numbers among all.
pub(crate) fn rows_within<'a>(
    batches: impl IntoIterator<Item = &'a RecordBatch>,
    rows: Range<usize>,
) -> Vec<RecordBatch> {
    let mut before = 0;
    let within = batches.into_iter().filter_map(|batch| {
        let of_batch = before..before + batch.num_rows();
        before = of_batch.end;
        let (start, end) = (rows.start.max(of_batch.start), rows.end.min(of_batch.end));
        (start < end).then(|| batch.slice(start - of_batch.start, end - start))
    });
    within.collect()
}
