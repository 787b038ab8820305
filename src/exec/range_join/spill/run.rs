//! Spill runs: rows of the build side in files.

use std::fmt;
use std::sync::Arc;

use datafusion::execution::spill_file::SpillFile;

use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::spill::key_extent::{EncodedBound, KeyExtent};
use crate::exec::range_join::spill::row_position::RowPosition;

/// The least memory that building a run tries to get, even if hardly any was granted when the runs were written.
const MIN_RUN_BUILD_BYTES: usize = 4 << 20;

/// Consecutive rows of the build side in one file.
pub(crate) struct SpillRun {
    pub(crate) file: Arc<dyn SpillFile>,
    pub(crate) rows: usize,
    /// The position of the first row; the others follow it.
    pub(crate) first_row: RowPosition,
    /// The extent of the range keys, unless all are NULL.
    pub(crate) keys: Option<KeyExtent>,
}

impl SpillRun {
    /// Whether a row of the probe side may match rows of this run.
    pub(crate) fn may_match(&self, bounds: &[EncodedBound], row: usize) -> bool {
        let keys = self.keys.as_ref();
        keys.is_some_and(|keys| keys.may_match(bounds, row))
    }
}

impl fmt::Debug for SpillRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpillRun")
            .field("first_row", &self.first_row)
            .finish_non_exhaustive()
    }
}

/// The runs of one build side.
#[derive(Debug, Default)]
pub(crate) struct SpillRuns {
    pub(crate) runs: Vec<SpillRun>,
    /// The size of all runs together.
    pub(crate) size: DataSize,
    /// The most memory that was granted while the rows were collected.
    pub(crate) peak_granted_bytes: usize,
}

impl SpillRuns {
    /// No runs yet, of rows that were collected in this much granted memory.
    pub(crate) fn new(peak_granted_bytes: usize) -> Self {
        Self {
            peak_granted_bytes,
            ..Self::default()
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

    /// Memory to retain while the runs exist: half of the peak, so that one run can always be built and other operators get the rest.
    pub(crate) fn retained_bytes(&self) -> usize {
        self.peak_granted_bytes / 2
    }

    /// Memory for building one run.
    pub(crate) fn run_build_bytes(&self) -> usize {
        self.retained_bytes().max(MIN_RUN_BUILD_BYTES)
    }
}
