//! Runs: parts of the build side that are sorted and indexed one after the other, as memory can't hold all of it.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;

use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::spill::key_extent::{EncodedBound, KeyExtent, KeyOrder};
use crate::exec::range_join::spill::reader::{RunReader, SpillFiles, SpilledRows};
use crate::exec::range_join::spill::row_position::RowPosition;

/// The least memory that building a run tries to get, even if hardly any was granted when the runs were written.
const MIN_RUN_BUILD_BYTES: usize = 4 << 20;

/// A batch with fewer rows is not split to fit into memory.
pub(crate) const MIN_SPLIT_ROWS: usize = 64;

/// Consecutive rows of the build side.
pub(crate) struct BuildRun {
    pub(crate) rows: SpilledRows,
    /// The position of the first row; the others follow it.
    pub(crate) first_row: RowPosition,
    /// The extent of the range keys, unless all are NULL.
    pub(crate) keys: Option<KeyExtent>,
}

impl BuildRun {
    /// Opens the run. Its batches are those that were written.
    pub(crate) fn read(&self) -> Result<RunReader> {
        self.rows.files.metrics.spill_runs_read.add(1);
        Ok(RunReader::new(self.rows.read(true)?, self.first_row))
    }

    /// Whether a row of the probe side may match rows of this run.
    pub(crate) fn may_match(&self, bounds: &[EncodedBound], row: usize) -> bool {
        let keys = self.keys.as_ref();
        keys.is_some_and(|keys| keys.may_match(bounds, row))
    }
}

impl fmt::Debug for BuildRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuildRun")
            .field("first_row", &self.first_row)
            .finish_non_exhaustive()
    }
}

/// The runs of one build side.
#[derive(Debug)]
pub(crate) struct BuildRuns {
    pub(crate) runs: Vec<BuildRun>,
    pub(crate) files: Arc<SpillFiles>,
    pub(crate) key_order: Arc<KeyOrder>,
    /// The size of all runs together.
    pub(crate) size: DataSize,
    /// The most memory that was granted while the rows were collected.
    pub(crate) peak_granted_bytes: usize,
}

impl BuildRuns {
    /// No runs yet, of rows that were collected in this much granted memory.
    pub(crate) fn new(
        files: Arc<SpillFiles>,
        key_order: Arc<KeyOrder>,
        peak_granted_bytes: usize,
    ) -> Self {
        Self {
            runs: vec![],
            files,
            key_order,
            size: DataSize::default(),
            peak_granted_bytes,
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.size.rows
    }

    /// The average bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.size.bytes.div_ceil(self.rows().max(1))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Memory to retain while the runs exist: half of the peak, so that one run can always be built and other operators
    /// get the rest.
    pub(crate) fn retained_bytes(&self) -> usize {
        self.peak_granted_bytes / 2
    }

    /// Memory for building one run.
    pub(crate) fn run_build_bytes(&self) -> usize {
        self.retained_bytes().max(MIN_RUN_BUILD_BYTES)
    }
}
