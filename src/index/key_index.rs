//! An engine's index of a column's keys, for any key width.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow::array::{ArrayRef, Int64Array};
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};

use crate::common::errors::engine_error;
use crate::common::range_function::{RangeFunction, RangeResult};
use crate::common::ranges::Ranges;
use crate::index::best_positions::{CountedRanges, counted_ranges};
use crate::index::decoder::{Decoder, buffer};
use crate::index::sort_keys::{Chunks, Encoded, KeyColumn, encode};
use crate::index::threshold::{AnyKeys, ThresholdTest};
use crate::index::threshold_queries::ThresholdQueries;
use rmq_engine::cpu::{CpuEngine, LazyBuild, SearchKey};
use rmq_engine::{
    BuildOptions, Column, Engine, Extreme, Key, ListLimits, OutputBuffer, Outputs, RangeEnd,
    RangeIndex, RowList, SegmentedIndex,
};

/// An engine's index, and the decoder of its keys.
#[derive(Debug)]
pub(crate) struct KeyIndex {
    index: AnyWidth,
    decoder: Decoder,
}

#[derive(Debug)]
enum AnyWidth {
    W32(Arc<dyn RangeIndex<u32>>),
    W64(Arc<dyn RangeIndex<u64>>),
    W128(Arc<dyn RangeIndex<u128>>),
}

/// Runs `$body` with `$index` bound to the index, whatever its key width.
macro_rules! with_index {
    ($any:expr, $index:ident => $body:expr) => {
        match $any {
            AnyWidth::W32($index) => $body,
            AnyWidth::W64($index) => $body,
            AnyWidth::W128($index) => $body,
        }
    };
}

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

/// The results of a batch of ranges, one entry per range: NULL where the range has no value.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) values: Option<ArrayRef>,
    pub(crate) positions: Option<ArrayRef>,
    /// Whether the CPU engine computed it because the devices failed.
    pub(crate) used_cpu_fallback: bool,
}

impl KeyIndex {
    /// Builds the index of an encoded column.
    ///
    /// # Errors
    /// The engine's, such as memory that is not available.
    pub(crate) fn build(
        engine: &dyn Engine,
        column: KeyColumn,
        decoder: Decoder,
        options: &BuildOptions,
    ) -> Result<Self> {
        let index = match column {
            KeyColumn::W32(column) => engine.build_u32(column, options).map(AnyWidth::W32),
            KeyColumn::W64(column) => engine.build_u64(column, options).map(AnyWidth::W64),
            KeyColumn::W128(column) => engine.build_u128(column, options).map(AnyWidth::W128),
        };
        let index = index.map_err(engine_error)?;
        Ok(Self { index, decoder })
    }

    /// Builds the CPU engine's index of the column `chunks`, on at most `threads` threads.
    ///
    /// # Errors
    /// An execution error for a type without an order, and the engine's.
    pub(crate) fn on_cpu(
        chunks: &Chunks,
        data_type: &DataType,
        extreme: Extreme,
        threads: usize,
    ) -> Result<Self> {
        let options = BuildOptions {
            positions: true,
            threads,
        };
        let Encoded {
            column, decoder, ..
        } = encode(chunks, data_type, extreme)?;
        Self::build(&CpuEngine::default(), column, decoder, &options)
    }

    /// The CPU engine's index of a column in encoded chunks, built on demand, and the handle that builds it.
    ///
    /// # Errors
    /// An execution error without a chunk, or for chunks of different key widths.
    pub(crate) fn lazy(
        chunks: Vec<Encoded>,
        options: BuildOptions,
    ) -> Result<(Self, Arc<dyn LazyBuild>)> {
        fn lazy<K: SearchKey>(
            chunks: Vec<Encoded>,
            of_width: impl Fn(KeyColumn) -> Option<Column<K>>,
            any_width: impl Fn(Arc<dyn RangeIndex<K>>) -> AnyWidth,
            options: BuildOptions,
        ) -> Result<(AnyWidth, Arc<dyn LazyBuild>)> {
            let columns = chunks.into_iter().map(|chunk| of_width(chunk.column));
            let Some(columns) = columns.collect() else {
                return exec_err!("a column has keys of different widths");
            };
            let (index, lazy) = K::lazy_index(columns, options);
            Ok((any_width(index), lazy))
        }
        let Some(first) = chunks.first() else {
            return exec_err!("a column to be indexed has no piece");
        };
        let decoder = first.decoder.clone();
        let (index, lazy) = match &first.column {
            KeyColumn::W32(_) => lazy(chunks, KeyColumn::into_32, AnyWidth::W32, options)?,
            KeyColumn::W64(_) => lazy(chunks, KeyColumn::into_64, AnyWidth::W64, options)?,
            KeyColumn::W128(_) => lazy(chunks, KeyColumn::into_128, AnyWidth::W128, options)?,
        };
        Ok((Self { index, decoder }, lazy))
    }

    /// The index of the rows of these indexes, in their order.
    ///
    /// # Errors
    /// An execution error without an index, or for indexes of different keys.
    pub(crate) fn of_parts(parts: &[&Self]) -> Result<Self> {
        fn joined<K: Key>(
            parts: &[&KeyIndex],
            of_width: impl Fn(&AnyWidth) -> Option<&Arc<dyn RangeIndex<K>>>,
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
        let decoder = first.decoder.clone();
        Ok(Self { index, decoder })
    }

    /// Answers a batch of ranges, which may consist of several record batches' ranges: their extreme values if
    /// `values`, and the positions of these if `positions`.
    ///
    /// # Errors
    /// The engine's, for which another engine may take over, and Arrow's.
    pub(crate) fn answer(
        &self,
        ranges: &[Ranges],
        values: bool,
        positions: bool,
    ) -> Result<Answer> {
        let decoder = &self.decoder;
        match &self.index {
            AnyWidth::W32(index) => search(index.as_ref(), ranges, values, positions)?
                .decode(|keys, valid| decoder.decode_32(keys, valid)),
            AnyWidth::W64(index) => search(index.as_ref(), ranges, values, positions)?
                .decode(|keys, valid| decoder.decode_64(keys, valid)),
            AnyWidth::W128(index) => search(index.as_ref(), ranges, values, positions)?
                .decode(|keys, valid| decoder.decode_128(keys, valid)),
        }
    }

    /// Finds the first or last row of each range that passes a test with the range's threshold. As [`Self::answer`], it
    /// takes one or several record batches' ranges.
    ///
    /// # Errors
    /// The engine's, for which another engine may take over, and an execution error for thresholds that can't be
    /// compared with the column.
    pub(crate) fn crossings(
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
    pub(crate) fn threshold_queries(
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
    pub(crate) fn find(&self, queries: &ThresholdQueries, end: RangeEnd) -> Result<Int64Array> {
        with_keys!(&self.index, &queries.keys, (index, keys) => queries.find(index.as_ref(), keys, end))
    }

    /// Lists the rows that pass, of these ranges.
    ///
    /// # Errors
    /// The engine's, and an execution error for queries of another index.
    pub(crate) fn list(
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
    pub(crate) fn list_smallest(
        &self,
        ranges: &Ranges,
        counts: &[usize],
        stop: &AtomicBool,
        out: &mut RowList,
    ) -> Result<()> {
        let (left, right) = (ranges.left(), ranges.right());
        with_index!(&self.index, index => index.list_smallest(left, right, counts, stop, out))
            .map_err(engine_error)
    }

    /// Lists the positions of the best values of each range, as [`CountedRanges::lists`].
    ///
    /// # Errors
    /// The engine's, also soon after `stop` is set, and those of [`CountedRanges::lists`].
    pub(crate) fn best_positions(
        &self,
        ranges: &[CountedRanges],
        stop: &AtomicBool,
    ) -> Result<Answer> {
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
    /// # Errors As [`Self::answer`], [`Self::crossings`] and [`Self::best_positions`], and those of arguments, with the
    /// `name` of the function.
    pub(crate) fn call(
        &self,
        function: RangeFunction,
        name: &str,
        (left, right): (&ArrayRef, &ArrayRef),
        last: &[ArrayRef],
    ) -> Result<Answer> {
        let ranges = || Ranges::try_new(left, right);
        match function.result {
            RangeResult::Value => self.answer(&[ranges()?], true, false),
            RangeResult::Position => self.answer(&[ranges()?], false, true),
            RangeResult::Crossing(end) => {
                let test = ThresholdTest::of_function(function.extreme);
                self.crossings(&[ranges()?], last, end, test)
            }
            RangeResult::Positions => {
                let counted = counted_ranges(name, (left, right), last)?;
                self.best_positions(&[counted], &AtomicBool::new(false))
            }
        }
    }

    /// Counts the rows that pass, of each of these ranges.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub(crate) fn count(
        &self,
        queries: &ThresholdQueries,
        ranges: Range<usize>,
        counts: &mut [i64],
    ) -> Result<()> {
        let (left, right) = (
            &queries.left[ranges.clone()],
            &queries.right[ranges.clone()],
        );
        with_keys!(&self.index, &queries.keys, (index, keys) => {
            index.count_at_most(left, right, &keys[ranges], counts)
        })
    }

    /// Number of rows, NULLs included.
    pub(crate) fn rows(&self) -> usize {
        with_index!(&self.index, index => index.len())
    }

    /// Bytes of the index without the column.
    pub(crate) fn index_bytes(&self) -> usize {
        with_index!(&self.index, index => index.index_bytes())
    }

    /// Bytes of host memory: of the index, and of the column if the engine copied it.
    pub(crate) fn memory_bytes(&self) -> usize {
        with_index!(&self.index, index => index.memory_bytes())
    }

    /// Bytes of each device that stores the index.
    pub(crate) fn device_bytes(&self) -> usize {
        with_index!(&self.index, index => index.device_bytes())
    }

    pub(crate) fn decoder(&self) -> &Decoder {
        &self.decoder
    }
}

/// An engine's results before they are decoded.
struct Found<K> {
    values: Option<OutputBuffer<K>>,
    positions: Option<OutputBuffer<i64>>,
    valid: NullBuffer,
}

fn search<K: Key>(
    index: &dyn RangeIndex<K>,
    ranges: &[Ranges],
    values: bool,
    positions: bool,
) -> Result<Found<K>> {
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
    let Outputs {
        values,
        positions,
        valid,
    } = outputs;
    Ok(Found {
        values,
        positions,
        valid: NullBuffer::new(BooleanBuffer::new(buffer(valid), 0, n)),
    })
}

impl<K> Found<K> {
    fn decode(
        self,
        decode: impl FnOnce(OutputBuffer<K>, NullBuffer) -> Result<ArrayRef>,
    ) -> Result<Answer> {
        let Self {
            values,
            positions,
            valid,
        } = self;
        let n = valid.len();
        let positions = positions.map(|p| {
            let positions = ScalarBuffer::new(buffer(p), 0, n);
            Arc::new(Int64Array::new(positions, Some(valid.clone()))) as ArrayRef
        });
        Ok(Answer {
            values: values.map(|keys| decode(keys, valid)).transpose()?,
            positions,
            used_cpu_fallback: false,
        })
    }
}
