//! The index on the values that a join of rows compares with thresholds, built once the ranges have enough rows for it
//! to pay.
//!
//! It is made of the sorted columns that the further conditions of the join need anyway. Without it, ranges are
//! filtered row by row. So a join whose ranges have few rows spends nothing on it, nor does one for which memory is
//! short.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema};
use datafusion::common::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;

use crate::exec::range_join::build_side::on_demand::OnDemand;
use crate::exec::range_join::row_threshold::{RowThreshold, with_columns};
use crate::exec::range_join::spill::retaining_pool::CONSUMER_NAME;
use rmq_arrow::common::array_bytes::arrays_bytes;
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::index::key_index::KeyIndex;
use rmq_arrow::index::sort_keys::Chunks;
use rmq_arrow::index::threshold::ThresholdTest;
use rmq_arrow::range_agg::values::Values;

/// The mean number of rows of a range from which searching the index takes less than filtering the rows.
const MIN_INDEXED_ROWS: usize = 32;

/// Ranges are filtered row by row until they have one in this many rows of the build side, all together. Filtering a
/// row takes some five times as long as indexing one.
const FILTERED_SHARE: usize = 4;

/// For values whose ranks are indexed, ranges are filtered until they have this many times the rows of the build side:
/// the values have to be sorted.
const FILTERED_TIMES: usize = 16;

/// The index, or that there is none.
#[derive(Debug)]
pub(crate) struct ThresholdIndex {
    /// The most threads that build it.
    threads: usize,
    index: OnDemand<BuiltIndex>,
}

#[derive(Debug)]
struct BuiltIndex {
    index: KeyIndex,
    memory: MemoryReservation,
}

impl ThresholdIndex {
    /// An index that is not built.
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            threads,
            index: OnDemand::default(),
        }
    }

    /// Whether these ranges of a build side with `build_rows` rows should be searched by the index. Counts the ranges.
    pub(crate) fn is_justified(
        &self,
        threshold: &RowThreshold,
        ranges: &Ranges,
        build_rows: usize,
    ) -> bool {
        let (rows, searches) = ranges.rows();
        rows >= MIN_INDEXED_ROWS * searches
            && rows > 0
            && self.is_justified_by(threshold, rows, build_rows)
    }

    /// Whether the index should search this many rows, of searches that are long enough. Counts them.
    pub(crate) fn is_justified_by(
        &self,
        threshold: &RowThreshold,
        rows: usize,
        build_rows: usize,
    ) -> bool {
        let filtered_rows = if threshold.is_ranked {
            build_rows.saturating_mul(FILTERED_TIMES)
        } else {
            build_rows / FILTERED_SHARE
        };
        self.index.is_justified(rows, filtered_rows)
    }

    /// Whether [`Self::build`] has been called.
    pub(crate) fn is_decided(&self) -> bool {
        self.index.is_decided()
    }

    /// The index, if it is built.
    pub(crate) fn index(&self) -> Option<&KeyIndex> {
        Some(&self.index.get()?.index)
    }

    /// Bytes that are registered for the index, if it is built.
    pub(crate) fn bytes(&self) -> usize {
        self.index.get().map_or(0, |built| built.memory.size())
    }

    /// Builds the index over the first `rows` sorted rows, unless that has been tried. `columns` are those that the
    /// threshold's value refers to by number. Blocks; a cancelled partition ends between steps and leaves the index to
    /// others.
    pub(crate) fn build(
        &self,
        threshold: &RowThreshold,
        columns: &[Arc<Values>],
        rows: usize,
        pool: &Arc<dyn MemoryPool>,
        check: &dyn Fn() -> Result<()>,
    ) {
        let what = format!("index on {}", threshold.value);
        self.index.build(&what, check, || {
            self.try_build(threshold, columns, rows, pool, check)
        });
    }

    fn try_build(
        &self,
        threshold: &RowThreshold,
        columns: &[Arc<Values>],
        rows: usize,
        pool: &Arc<dyn MemoryPool>,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Option<BuiltIndex>> {
        check()?;
        let memory = MemoryConsumer::new(CONSUMER_NAME).register(pool);
        let is_column = threshold.value.is::<Column>();
        if !is_column {
            // The widest values that arithmetic yields.
            memory.try_grow(rows * size_of::<i128>())?;
        }
        let Some(values) = values(threshold, columns, rows)? else {
            return Ok(None);
        };
        check()?;
        let data_type = values.data_type().clone();
        let owned_bytes = if is_column {
            0
        } else {
            arrays_bytes(std::slice::from_ref(&values))
        };
        let chunks = Chunks::borrowed(vec![values]);
        memory.try_resize(owned_bytes + KeyIndex::estimate_on_cpu(&chunks, &data_type))?;
        let extreme = ThresholdTest::of_comparison(threshold.comparison).extreme;
        let index = KeyIndex::on_cpu(&chunks, &data_type, extreme, self.threads)?;
        memory.try_resize(owned_bytes + index.memory_bytes())?;
        Ok(Some(BuiltIndex { index, memory }))
    }
}

/// The values of the first sorted rows; `None` if a column is not one array.
fn values(
    threshold: &RowThreshold,
    columns: &[Arc<Values>],
    rows: usize,
) -> Result<Option<ArrayRef>> {
    let mut numbers: Vec<usize> = collect_columns(&threshold.value)
        .iter()
        .map(Column::index)
        .collect();
    numbers.sort_unstable();
    let arrays = numbers.iter().map(|number| columns.get(*number)?.whole());
    let Some(arrays) = arrays.collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let arrays: Vec<ArrayRef> = arrays.iter().map(|array| array.slice(0, rows)).collect();
    let value = with_columns(&threshold.value, |column| {
        let number = numbers.binary_search(&column.index()).ok();
        Ok(number.map(|number| Column::new(column.name(), number)))
    })?;
    let fields = arrays.iter().zip(&numbers);
    let fields = fields
        .map(|(array, number)| Field::new(number.to_string(), array.data_type().clone(), true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let batch = RecordBatch::try_new_with_options(schema, arrays, &options)?;
    Ok(Some(value.evaluate(&batch)?.into_array(rows)?))
}
