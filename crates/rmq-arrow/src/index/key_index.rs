//! An engine's index of a column's keys, for any key width.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Int64Type};
use datafusion_common::{Result, exec_err, internal_datafusion_err};

use crate::common::errors::engine_error;
use crate::common::ordered_type::key_bytes;
use crate::common::range_function::RangeResult;
use crate::common::ranges::Ranges;
use crate::index::any_width::{AnyWidth, with_width};
use crate::index::best_positions::{CountedRanges, counted_ranges};
use crate::index::decoder::{Decoder, buffer};
use crate::index::sort_keys::{Chunks, Encoded, KeyColumn, encode};
use crate::index::threshold::{AnyKeys, ThresholdTest};
use crate::index::threshold_queries::ThresholdQueries;
use rmq_engine::cpu::{CpuEngine, LazyBuild, SearchKey};
use rmq_engine::{
    BuildOptions, ColumnChunks, ColumnSize, Engine, Extreme, Key, ListLimits, OutputBuffer,
    OutputValues, RangeEnd, RangeIndex, RowList, SegmentedIndex,
};

/// An engine's index, and the decoder of its keys.
#[derive(Debug)]
pub struct KeyIndex {
    index: AnyIndex,
    decoder: Decoder,
    /// Bytes of keys that were copied for it, 0 if the engine refers to the column or has a copy of its own.
    copied_bytes: usize,
}

type AnyIndex =
    AnyWidth<Arc<dyn RangeIndex<u32>>, Arc<dyn RangeIndex<u64>>, Arc<dyn RangeIndex<u128>>>;

/// Runs `$body` with `$index` bound to the index and `$keys` to keys of its width. `$body` returns an engine's result.
macro_rules! with_keys {
    ($any:expr, $any_keys:expr, ($index:ident, $keys:ident) => $body:expr) => {
        match ($any, $any_keys) {
            (AnyWidth::W32($index), AnyKeys::W32($keys)) => $body.map_err(engine_error),
            (AnyWidth::W64($index), AnyKeys::W64($keys)) => $body.map_err(engine_error),
            (AnyWidth::W128($index), AnyKeys::W128($keys)) => $body.map_err(engine_error),
            _ => exec_err!("thresholds and column have keys of different widths"),
        }
    };
}

/// Ranges whose rows are counted before a cancelled query is noticed: 16 ranges of 100 million rows take some 0.1 s.
const COUNTED_AT_ONCE: usize = 16;

/// The options that indexes of [`KeyIndex::on_cpu`] are estimated with.
pub const WITH_POSITIONS: BuildOptions = BuildOptions {
    positions: true,
    threads: 1,
};

/// The results of a batch of ranges, one entry per range: NULL where the range has no value.
#[derive(Debug)]
pub struct Answer {
    /// The extreme values, if they were asked for.
    pub values: Option<ArrayRef>,
    /// Their positions, if they were asked for.
    pub positions: Option<ArrayRef>,
    /// Whether the CPU engine computed it because the devices failed.
    pub used_cpu_fallback: bool,
}

impl Answer {
    /// These values alone.
    pub fn of_values(values: ArrayRef) -> Self {
        Self {
            values: Some(values),
            positions: None,
            used_cpu_fallback: false,
        }
    }

    /// The values.
    ///
    /// # Errors
    /// An internal error if they were not requested.
    pub fn into_values(self) -> Result<ArrayRef> {
        let values = self.values;
        values.ok_or_else(|| internal_datafusion_err!("an index returned no values"))
    }

    /// The positions.
    ///
    /// # Errors
    /// An internal error if they were not requested.
    pub fn into_positions(self) -> Result<Int64Array> {
        let positions = self.positions;
        let positions =
            positions.ok_or_else(|| internal_datafusion_err!("an index returned no positions"))?;
        Ok(positions.as_primitive::<Int64Type>().clone())
    }
}

impl KeyIndex {
    /// Builds the index of an encoded column.
    ///
    /// # Errors
    /// The engine's, such as memory that is not available.
    pub fn build(engine: &dyn Engine, encoded: Encoded, options: &BuildOptions) -> Result<Self> {
        let Encoded {
            column,
            decoder,
            copied_bytes,
        } = encoded;
        let index = match column {
            KeyColumn::W32(column) => engine.build_u32(column, options).map(AnyWidth::W32),
            KeyColumn::W64(column) => engine.build_u64(column, options).map(AnyWidth::W64),
            KeyColumn::W128(column) => engine.build_u128(column, options).map(AnyWidth::W128),
        };
        let mut built = Self {
            index: index.map_err(engine_error)?,
            decoder,
            copied_bytes: 0,
        };
        if built.borrows_column() {
            built.copied_bytes = copied_bytes;
        }
        Ok(built)
    }

    /// Builds the CPU engine's index of the column `chunks`, on at most `threads` threads.
    ///
    /// # Errors
    /// An execution error for a type without an order, and the engine's.
    pub fn on_cpu(
        chunks: &Chunks,
        data_type: &DataType,
        extreme: Extreme,
        threads: usize,
    ) -> Result<Self> {
        let options = BuildOptions {
            positions: true,
            threads,
        };
        let encoded = encode(chunks, data_type, extreme)?;
        Self::build(&CpuEngine::default(), encoded, &options)
    }

    /// The CPU engine's index of a column in encoded chunks, built once enough ranges were answered to make the build
    /// worthwhile, and the handle that builds it. The caller accounts for the chunks.
    ///
    /// # Errors
    /// An execution error without a chunk, or for chunks of different key widths.
    pub fn lazy(chunks: Vec<Encoded>, options: BuildOptions) -> Result<(Self, Arc<dyn LazyBuild>)> {
        let Some(decoder) = chunks.first().map(|first| first.decoder.clone()) else {
            return exec_err!("a column to be indexed has no piece");
        };
        let columns = chunks.into_iter().map(|chunk| chunk.column);
        macro_rules! lazy {
            ($width:ident, $key:ty, $columns:ident) => {{
                let (index, lazy) = <$key>::lazy_index($columns, options);
                (AnyWidth::$width(index), lazy)
            }};
        }
        let (index, lazy) = match KeyColumn::together(columns.collect())? {
            ColumnChunks::W32(columns) => lazy!(W32, u32, columns),
            ColumnChunks::W64(columns) => lazy!(W64, u64, columns),
            ColumnChunks::W128(columns) => lazy!(W128, u128, columns),
        };
        let index = Self {
            index,
            decoder,
            copied_bytes: 0,
        };
        Ok((index, lazy))
    }

    /// The index of the rows of these indexes, in their order.
    ///
    /// # Errors
    /// An execution error without an index, or for indexes of different keys.
    pub fn of_parts(parts: &[&Self]) -> Result<Self> {
        fn joined<K: Key>(
            parts: &[&KeyIndex],
            of_width: impl Fn(&AnyIndex) -> Option<&Arc<dyn RangeIndex<K>>>,
        ) -> Result<Arc<dyn RangeIndex<K>>> {
            let indexes = parts
                .iter()
                .map(|part| of_width(&part.index).map(Arc::clone));
            let Some(indexes) = indexes.collect() else {
                return exec_err!("the parts of an index have keys of different widths");
            };
            let joined = SegmentedIndex::new(indexes).map_err(engine_error)?;
            Ok(Arc::new(joined))
        }
        let Some(first) = parts.first() else {
            return exec_err!("an index to be put together has no part");
        };
        macro_rules! joined {
            ($width:ident) => {
                AnyWidth::$width(joined(parts, |any| match any {
                    AnyWidth::$width(index) => Some(index),
                    _ => None,
                })?)
            };
        }
        let index = match &first.index {
            AnyWidth::W32(_) => joined!(W32),
            AnyWidth::W64(_) => joined!(W64),
            AnyWidth::W128(_) => joined!(W128),
        };
        Ok(Self {
            index,
            decoder: first.decoder.clone(),
            copied_bytes: parts.iter().map(|part| part.copied_bytes).sum(),
        })
    }

    /// Estimates the host memory that [`Self::on_cpu`] takes, in bytes, to reserve it first.
    pub fn estimate_on_cpu(chunks: &Chunks, data_type: &DataType) -> usize {
        Self::estimate(&CpuEngine::default(), chunks, data_type)
    }

    /// Estimates the host memory that an engine's index of a column takes, in bytes.
    pub fn estimate(engine: &dyn Engine, chunks: &Chunks, data_type: &DataType) -> usize {
        let size = chunks.size(data_type);
        chunks.copy_bytes(data_type) + engine.memory_bytes(size, &WITH_POSITIONS)
    }

    /// Estimates the host memory that [`Self::on_cpu`] takes, in bytes, for a column that is not read yet, if it has no
    /// NULLs.
    pub fn estimate_unread(rows: usize, data_type: &DataType) -> usize {
        let key_bytes = key_bytes(data_type);
        let size = ColumnSize {
            rows,
            key_bytes,
            nulls: false,
        };
        rows * key_bytes + CpuEngine::default().memory_bytes(size, &WITH_POSITIONS)
    }

    /// Estimates the host memory that [`Self::lazy`] takes beside the chunks, in bytes. Several chunks are put together
    /// first.
    pub fn estimate_lazy(chunks: &[Encoded], options: &BuildOptions) -> usize {
        let sizes = chunks.iter().map(|chunk| chunk.column.size());
        let size = sizes.reduce(|all, size| ColumnSize {
            rows: all.rows + size.rows,
            nulls: all.nulls || size.nulls,
            ..size
        });
        let Some(size) = size else { return 0 };
        let together = if chunks.len() > 1 {
            size.rows * size.key_bytes
        } else {
            0
        };
        together + CpuEngine::default().memory_bytes(size, options)
    }

    /// Answers a batch of ranges, which may consist of several record batches' ranges: their extreme values if
    /// `values`, and the positions of these if `positions`.
    ///
    /// # Errors
    /// The engine's, for which another engine may take over, and Arrow's.
    pub fn answer(&self, ranges: &[Ranges], values: bool, positions: bool) -> Result<Answer> {
        let wanted = (values, positions);
        let Found {
            values,
            positions,
            valid,
        } = match &self.index {
            AnyWidth::W32(index) => search(index.as_ref(), ranges, wanted, OutputValues::W32)?,
            AnyWidth::W64(index) => search(index.as_ref(), ranges, wanted, OutputValues::W64)?,
            AnyWidth::W128(index) => search(index.as_ref(), ranges, wanted, OutputValues::W128)?,
        };
        let positions = positions.map(|positions| {
            let positions = ScalarBuffer::new(buffer(positions), 0, valid.len());
            Arc::new(Int64Array::new(positions, Some(valid.clone()))) as ArrayRef
        });
        let values = values.map(|keys| self.decoder.decode(keys, valid));
        Ok(Answer {
            values: values.transpose()?,
            positions,
            used_cpu_fallback: false,
        })
    }

    /// Finds the first or last row of each range that passes a test with the range's threshold. As [`Self::answer`], it
    /// takes one or several record batches' ranges.
    ///
    /// # Errors
    /// The engine's, for which another engine may take over, and an execution error for thresholds that can't be
    /// compared with the column.
    pub fn crossings(
        &self,
        ranges: &[Ranges],
        thresholds: &[ArrayRef],
        end: RangeEnd,
        test: ThresholdTest,
    ) -> Result<Answer> {
        let queries = self.threshold_queries(ranges, thresholds, test)?;
        let positions = self.find(&queries, end)?;
        Ok(Answer {
            values: None,
            positions: Some(Arc::new(positions)),
            used_cpu_fallback: false,
        })
    }

    /// The threshold searches of these ranges, as [`Self::crossings`] makes them.
    ///
    /// # Errors
    /// An execution error for thresholds that can't be compared with the column.
    pub fn threshold_queries(
        &self,
        ranges: &[Ranges],
        thresholds: &[ArrayRef],
        test: ThresholdTest,
    ) -> Result<ThresholdQueries> {
        ThresholdQueries::try_new(ranges, thresholds, &self.decoder, test)
    }

    /// Finds the first or last row of each range that passes: its position, NULL if there is none.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub fn find(&self, queries: &ThresholdQueries, end: RangeEnd) -> Result<Int64Array> {
        with_keys!(&self.index, &queries.keys, (index, keys) => queries.find(index.as_ref(), keys, end))
    }

    /// Lists the rows that pass, of these ranges.
    ///
    /// # Errors
    /// The engine's, and an execution error for queries of another index.
    pub fn list(
        &self,
        queries: &ThresholdQueries,
        ranges: Range<usize>,
        limits: ListLimits,
        out: &mut RowList,
    ) -> Result<()> {
        let (left, right) = (
            &queries.left[ranges.clone()],
            &queries.right[ranges.clone()],
        );
        with_keys!(&self.index, &queries.keys, (index, keys) => {
            index.list_at_most(left, right, &keys[ranges], limits, out)
        })
    }

    /// Lists the rows with the best values of each range, as many as `counts` says.
    ///
    /// # Errors
    /// The engine's, also soon after `stop` is set.
    pub fn list_smallest(
        &self,
        ranges: &Ranges,
        counts: &[usize],
        stop: &AtomicBool,
        out: &mut RowList,
    ) -> Result<()> {
        let (left, right) = (ranges.left(), ranges.right());
        with_width!(&self.index, index => index.list_smallest(left, right, counts, stop, out))
            .map_err(engine_error)
    }

    /// Lists the positions of the best values of each range, as [`CountedRanges::lists`].
    ///
    /// # Errors
    /// The engine's, also soon after `stop` is set, and those of [`CountedRanges::lists`].
    pub fn best_positions(&self, ranges: &[CountedRanges], stop: &AtomicBool) -> Result<Answer> {
        let mut all = RowList::default();
        for part in ranges {
            let mut found = RowList::default();
            self.list_smallest(&part.ranges, &part.counts, stop, &mut found)?;
            let before = all.positions.len();
            all.positions.extend(found.positions);
            all.ends.extend(found.ends.iter().map(|end| before + end));
        }
        Ok(Answer {
            values: None,
            positions: Some(CountedRanges::lists(ranges, &all)?),
            used_cpu_fallback: false,
        })
    }

    /// Answers calls of a range function: one for each row of the arrays of its arguments.
    ///
    /// # Errors
    /// As [`Self::answer`], [`Self::crossings`] and [`Self::best_positions`], and those of arguments, with the `name`
    /// of the function.
    pub fn call(
        &self,
        extreme: Extreme,
        result: RangeResult,
        name: &str,
        (left, right): (&ArrayRef, &ArrayRef),
        last: &[ArrayRef],
    ) -> Result<Answer> {
        let ranges = || Ranges::try_new(left, right);
        match result {
            RangeResult::Value => self.answer(&[ranges()?], true, false),
            RangeResult::Position => self.answer(&[ranges()?], false, true),
            RangeResult::Crossing(end) => {
                let test = ThresholdTest::of_function(extreme);
                self.crossings(&[ranges()?], last, end, test)
            }
            RangeResult::Positions => {
                let counted = counted_ranges(name, (left, right), last)?;
                self.best_positions(&[counted], &AtomicBool::new(false))
            }
        }
    }

    /// Counts the rows of each range that pass. Calls `check` between some of the ranges.
    ///
    /// # Errors
    /// As [`Self::list`], and that of `check`.
    pub fn count(
        &self,
        queries: &ThresholdQueries,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Int64Array> {
        let mut counts = vec![0; queries.len()];
        for (i, counts) in counts.chunks_mut(COUNTED_AT_ONCE).enumerate() {
            check()?;
            let first = i * COUNTED_AT_ONCE;
            let ranges = first..first + counts.len();
            let (left, right) = (
                &queries.left[ranges.clone()],
                &queries.right[ranges.clone()],
            );
            with_keys!(&self.index, &queries.keys, (index, keys) => {
                index.count_at_most(left, right, &keys[ranges], counts)
            })?;
        }
        Ok(counts.into())
    }

    /// Number of rows, NULLs included.
    pub fn rows(&self) -> usize {
        with_width!(&self.index, index => index.len())
    }

    /// Bytes of the index without the column.
    pub fn index_bytes(&self) -> usize {
        with_width!(&self.index, index => index.index_bytes())
    }

    /// Bytes of host memory: of the index and of copies of the column.
    pub fn memory_bytes(&self) -> usize {
        self.engine_bytes() + self.copied_bytes + self.decoder.bytes()
    }

    /// Bytes of host memory: of the index, and of the column if the engine copied it.
    fn engine_bytes(&self) -> usize {
        with_width!(&self.index, index => index.memory_bytes())
    }

    /// Whether it refers to the memory of the column that it was built of.
    pub fn borrows_column(&self) -> bool {
        // An engine with a copy of its own takes more than its index.
        self.copied_bytes == 0 && self.engine_bytes() == self.index_bytes()
    }

    /// Bytes of each device that stores the index.
    pub fn device_bytes(&self) -> usize {
        with_width!(&self.index, index => index.device_bytes())
    }

    /// What makes values of its keys.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }
}

/// An engine's results before they are decoded.
struct Found {
    values: Option<OutputValues>,
    positions: Option<OutputBuffer<i64>>,
    valid: NullBuffer,
}

fn search<K: Key>(
    index: &dyn RangeIndex<K>,
    ranges: &[Ranges],
    (values, positions): (bool, bool),
    of_width: fn(OutputBuffer<K>) -> OutputValues,
) -> Result<Found> {
    let n = ranges.iter().map(Ranges::len).sum();
    let mut outputs = index.outputs(n, values, positions);
    match ranges {
        [one] => index.answer(one.left(), one.right(), outputs.answers()),
        many => {
            let bounds: Vec<_> = many.iter().map(|r| (r.left(), r.right())).collect();
            index.answer_gathered(&bounds, outputs.answers())
        }
    }
    .map_err(engine_error)?;
    Ok(Found {
        values: outputs.values.map(of_width),
        positions: outputs.positions,
        valid: NullBuffer::new(BooleanBuffer::new(buffer(outputs.valid), 0, n)),
    })
}
