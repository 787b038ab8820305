//! The index of one column in one direction, on the CPU or on devices.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, Int64Array, make_array};
use arrow::datatypes::DataType;
use datafusion::common::Result;

use crate::common::ordered_type::key_bytes;
use crate::common::ranges::Ranges;
use crate::index::chunk_extremes::ChunkExtremes;
use crate::index::cpu_fallback::{CpuFallback, device_failure};
use crate::index::devices::DeviceEngine;
use crate::index::key_index::{Answer, KeyIndex};
use crate::index::sort_keys::{Chunks, Encoded, encode};
use crate::index::threshold::ThresholdTest;
use crate::index::threshold_queries::ThresholdQueries;
use rmq_engine::Extreme;
use rmq_engine::cpu::{CpuEngine, LazyBuild};
use rmq_engine::{BuildOptions, ColumnSize, Engine, EngineError, ListLimits, RangeEnd, RowList};

/// Ranges whose rows are counted before a cancelled query is noticed: 16 ranges of 100 million rows take some 0.1 s.
const COUNTED_AT_ONCE: usize = 16;

/// An index that finds the smallest, or the largest, values of ranges of a column, and their positions.
#[derive(Debug)]
pub(crate) struct ColumnIndex {
    index: KeyIndex,
    build_time: Duration,
    copied_bytes: usize,
    /// Of an index on devices: answers when these fail.
    cpu_fallback: Option<CpuFallback>,
    /// Of an index that is built on demand: builds it.
    lazy: Option<Arc<dyn LazyBuild>>,
    /// Of a column that is not in memory: the index is that of its chunks' extremes.
    chunks: Option<ChunkExtremes>,
}

impl ColumnIndex {
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
        Self::build(&CpuEngine::default(), chunks, data_type, extreme, threads)
    }

    /// Builds the index on devices. Keeps the column's buffers for the CPU fallback.
    ///
    /// # Errors
    /// An execution error for a type without an order, and the engine's.
    pub(crate) fn on_devices(
        engine: &dyn DeviceEngine,
        chunks: &Chunks,
        data_type: &DataType,
        extreme: Extreme,
        threads: usize,
    ) -> Result<Self> {
        let mut index = Self::build(engine, chunks, data_type, extreme, threads)?;
        // New arrays over the same buffers: strong references to the table's own arrays would keep its version alive.
        let arrays = chunks.arrays.iter().map(|a| make_array(a.to_data()));
        let chunks = Chunks {
            arrays: arrays.collect(),
            owned_elsewhere: chunks.owned_elsewhere,
        };
        index.copied_bytes = if chunks.owned_elsewhere {
            0
        } else {
            chunks.bytes()
        };
        let fallback = CpuFallback::new(chunks, data_type.clone(), extreme, threads);
        index.cpu_fallback = Some(fallback);
        Ok(index)
    }

    /// Builds the CPU engine's index of the extremes of a column's chunks, for ranges of chunks. The rows of the column
    /// are not in memory.
    ///
    /// # Errors
    /// As [`Self::on_cpu`].
    pub(crate) fn of_chunks(
        chunks: ChunkExtremes,
        extremes: &Chunks,
        value_type: &DataType,
        extreme: Extreme,
    ) -> Result<Self> {
        let mut index = Self::on_cpu(extremes, value_type, extreme, 1)?;
        index.chunks = Some(chunks);
        Ok(index)
    }

    fn build(
        engine: &dyn Engine,
        chunks: &Chunks,
        data_type: &DataType,
        extreme: Extreme,
        threads: usize,
    ) -> Result<Self> {
        let started = Instant::now();
        let options = BuildOptions {
            positions: true,
            threads,
        };
        let encoded = encode(chunks, data_type, extreme)?;
        let mut index = Self::from_encoded(engine, encoded, &options)?;
        index.build_time = started.elapsed();
        Ok(index)
    }

    fn from_encoded(engine: &dyn Engine, encoded: Encoded, options: &BuildOptions) -> Result<Self> {
        let started = Instant::now();
        let index = KeyIndex::build(engine, encoded.column, encoded.decoder, options)?;
        // An engine with a copy of its own has dropped the column that it was given.
        let has_copy = index.memory_bytes() > index.index_bytes();
        Ok(Self {
            index,
            build_time: started.elapsed(),
            copied_bytes: if has_copy { 0 } else { encoded.copied_bytes },
            cpu_fallback: None,
            lazy: None,
            chunks: None,
        })
    }

    /// The CPU engine's index of a column in encoded chunks, built once enough ranges were answered to make the build
    /// worthwhile.
    ///
    /// # Errors
    /// An execution error without a chunk, or for chunks of different key widths.
    pub(crate) fn lazy(chunks: Vec<Encoded>, options: BuildOptions) -> Result<Self> {
        let copied_bytes = chunks.iter().map(|chunk| chunk.copied_bytes).sum();
        let (index, lazy) = KeyIndex::lazy(chunks, options)?;
        Ok(Self {
            index,
            build_time: Duration::ZERO,
            copied_bytes,
            cpu_fallback: None,
            lazy: Some(lazy),
            chunks: None,
        })
    }

    /// The index of the rows of these indexes, in their order, which one engine has built of one column. Its build time
    /// is that of the last one.
    ///
    /// # Errors
    /// An execution error without an index, or for indexes of different keys.
    pub(crate) fn of_parts(parts: &[&Self]) -> Result<Self> {
        let indexes: Vec<_> = parts.iter().map(|part| &part.index).collect();
        Ok(Self {
            index: KeyIndex::of_parts(&indexes)?,
            build_time: parts.last().map_or(Duration::ZERO, |part| part.build_time),
            copied_bytes: parts.iter().map(|part| part.copied_bytes).sum(),
            cpu_fallback: CpuFallback::of_parts(parts.iter().map(|p| p.cpu_fallback.as_ref())),
            lazy: None,
            chunks: None,
        })
    }

    /// Whether rows that are added can be indexed on their own: not where keys are ranks among all values.
    pub(crate) fn can_be_extended(&self) -> bool {
        self.lazy.is_none() && self.chunks.is_none() && !self.index.decoder().has_ranks()
    }

    /// The arrays of the column, if devices have the index.
    pub(crate) fn arrays(&self) -> &[ArrayRef] {
        let fallback = self.cpu_fallback.as_ref();
        fallback.map_or(&[], |fallback| &fallback.chunks().arrays)
    }

    /// The chunks of a column that is not in memory. [`Self::keys`] is the index of their extremes then.
    pub(crate) fn chunks(&self) -> Option<&ChunkExtremes> {
        self.chunks.as_ref()
    }

    /// Whether a lazy index should be built before these ranges are answered. Counts the ranges.
    pub(crate) fn should_build(&self, ranges: &Ranges) -> bool {
        let lazy = self.lazy.as_ref();
        lazy.is_some_and(|lazy| lazy.should_build(ranges.left(), ranges.right()))
    }

    /// Builds a lazy index unless it is built, and returns whether this call built it.
    ///
    /// # Errors
    /// The engine's.
    pub(crate) fn build_lazy(&self) -> Result<bool, EngineError> {
        self.lazy.as_ref().map_or(Ok(false), |lazy| lazy.build())
    }

    /// Estimates the host memory that [`Self::on_cpu`] takes, in bytes, to reserve it first.
    pub(crate) fn estimate_on_cpu(chunks: &Chunks, data_type: &DataType) -> usize {
        Self::estimate(&CpuEngine::default(), chunks, data_type)
    }

    /// Estimates the host memory that [`Self::on_cpu`] takes, in bytes, for a column that is not read yet, if it has no
    /// NULLs.
    pub(crate) fn estimate_unread(rows: usize, data_type: &DataType) -> usize {
        let key_bytes = key_bytes(data_type);
        let size = ColumnSize {
            rows,
            key_bytes,
            nulls: false,
        };
        rows * key_bytes + CpuEngine::default().memory_bytes(size, &WITH_POSITIONS)
    }

    /// Estimates the host memory that [`Self::on_devices`] takes, in bytes.
    pub(crate) fn estimate(engine: &dyn Engine, chunks: &Chunks, data_type: &DataType) -> usize {
        let size = column_size(chunks, data_type);
        chunks.copy_bytes(data_type) + engine.memory_bytes(size, &WITH_POSITIONS)
    }

    /// Estimates the host memory that [`Self::lazy`] takes beside the chunks, in bytes. Several chunks are put together
    /// first.
    pub(crate) fn estimate_lazy(chunks: &[Encoded], options: &BuildOptions) -> usize {
        let size = keys_size(chunks);
        let together = if chunks.len() > 1 {
            size.rows * size.key_bytes
        } else {
            0
        };
        together + CpuEngine::default().memory_bytes(size, options)
    }

    /// The bytes that [`Self::on_devices`] takes of each device.
    pub(crate) fn estimate_on_devices(
        engine: &dyn DeviceEngine,
        chunks: &Chunks,
        data_type: &DataType,
    ) -> usize {
        engine.device_bytes(column_size(chunks, data_type), &WITH_POSITIONS)
    }

    /// The index of the column's keys. On devices it has no fallback.
    pub(crate) fn keys(&self) -> &KeyIndex {
        &self.index
    }

    /// Answers by the index of the column's keys, or by that of the CPU fallback if devices fail.
    ///
    /// # Errors
    /// Those of `answer`; if devices fail, only those of the CPU engine.
    pub(crate) fn answer_or_fall_back(
        &self,
        answer: impl Fn(&KeyIndex) -> Result<Answer>,
    ) -> Result<Answer> {
        let error = match answer(&self.index) {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let Some((fallback, failure)) = self.cpu_fallback.as_ref().zip(device_failure(&error))
        else {
            return Err(error);
        };
        Ok(Answer {
            used_cpu_fallback: true,
            ..answer(fallback.index(&failure)?)?
        })
    }

    /// The searches of these ranges for the rows that pass a test with the range's threshold. The test's extreme is
    /// that of the index.
    ///
    /// # Errors
    /// An execution error for thresholds that can't be compared with the column.
    pub(crate) fn threshold_queries(
        &self,
        ranges: &Ranges,
        thresholds: &ArrayRef,
        test: ThresholdTest,
    ) -> Result<ThresholdQueries> {
        let (ranges, thresholds) = (
            std::slice::from_ref(ranges),
            std::slice::from_ref(thresholds),
        );
        self.index.threshold_queries(ranges, thresholds, test)
    }

    /// Finds the first or last row of each range that passes: its position, NULL if there is none.
    ///
    /// # Errors
    /// The engine's, and an execution error for searches of another index.
    pub(crate) fn end_rows(&self, queries: &ThresholdQueries, end: RangeEnd) -> Result<Int64Array> {
        self.index.find(queries, end)
    }

    /// Lists the rows that pass, of these ranges, as far as the limits allow.
    ///
    /// # Errors
    /// As [`Self::end_rows`].
    pub(crate) fn list(
        &self,
        queries: &ThresholdQueries,
        ranges: Range<usize>,
        limits: ListLimits,
        out: &mut RowList,
    ) -> Result<()> {
        self.index.list(queries, ranges, limits, out)
    }

    /// Lists the rows with the smallest, or the largest, values of each range, as many as `counts` says: the best one
    /// first, the leftmost first among equals.
    ///
    /// # Errors
    /// The engine's.
    pub(crate) fn list_smallest(
        &self,
        ranges: &Ranges,
        counts: &[usize],
        out: &mut RowList,
    ) -> Result<()> {
        let never = AtomicBool::new(false);
        self.index.list_smallest(ranges, counts, &never, out)
    }

    /// Counts the rows of each range that pass. Calls `check` between some of the ranges.
    ///
    /// # Errors
    /// As [`Self::end_rows`], and that of `check`.
    pub(crate) fn count(
        &self,
        queries: &ThresholdQueries,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Int64Array> {
        let mut counts = vec![0; queries.len()];
        for (i, counts) in counts.chunks_mut(COUNTED_AT_ONCE).enumerate() {
            check()?;
            let first = i * COUNTED_AT_ONCE;
            let ranges = first..first + counts.len();
            self.index.count(queries, ranges, counts)?;
        }
        Ok(counts.into())
    }

    /// Number of rows, NULLs included.
    pub(crate) fn rows(&self) -> usize {
        match &self.chunks {
            Some(chunks) => chunks.rows(),
            None => self.index.rows(),
        }
    }

    /// Bytes of the index without the column.
    pub(crate) fn index_bytes(&self) -> usize {
        match &self.chunks {
            Some(_) => self.memory_bytes(),
            None => self.index.index_bytes(),
        }
    }

    /// Bytes of each device that stores the index.
    pub(crate) fn device_bytes(&self) -> usize {
        self.index.device_bytes()
    }

    /// Whether devices answer: best in large batches, and blocking the thread.
    pub(crate) fn is_on_devices(&self) -> bool {
        self.cpu_fallback.is_some()
    }

    /// Bytes of host memory: of the index and of the copies of the column.
    pub(crate) fn memory_bytes(&self) -> usize {
        let owned = self.index.memory_bytes();
        // Once it is built with a copy of its own, a lazy index has dropped the column, too.
        let has_copy = self.lazy.is_some() && owned > self.index.index_bytes();
        let column = if has_copy { 0 } else { self.copied_bytes };
        let chunks = self.chunks.as_ref().map_or(0, ChunkExtremes::bytes);
        owned + column + chunks + self.index.decoder().bytes()
    }

    /// Whether a lazy index refers to the memory of the column that it is built of.
    pub(crate) fn borrows_column(&self) -> bool {
        let is_unbuilt = self.lazy.as_ref().is_some_and(|lazy| !lazy.is_built());
        if is_unbuilt {
            self.copied_bytes == 0
        } else {
            // An engine with a copy of its own takes more than its index.
            self.copied_bytes == 0 && self.index.memory_bytes() == self.index_bytes()
        }
    }

    /// The type of the extreme values.
    pub(crate) fn value_type(&self) -> &DataType {
        self.index.decoder().value_type()
    }

    /// How long the build took; zero for a lazy index.
    pub(crate) fn build_time(&self) -> Duration {
        self.build_time
    }
}

/// The options that indexes of [`ColumnIndex::on_cpu`] and [`ColumnIndex::on_devices`] are estimated with.
const WITH_POSITIONS: BuildOptions = BuildOptions {
    positions: true,
    threads: 1,
};

fn keys_size(chunks: &[Encoded]) -> ColumnSize {
    let sizes = chunks.iter().map(|chunk| chunk.column.size());
    let empty = ColumnSize {
        rows: 0,
        key_bytes: 0,
        nulls: false,
    };
    sizes.fold(empty, |all, size| ColumnSize {
        rows: all.rows + size.rows,
        nulls: all.nulls || size.nulls,
        ..size
    })
}

fn column_size(chunks: &Chunks, data_type: &DataType) -> ColumnSize {
    ColumnSize {
        rows: chunks.rows(),
        key_bytes: key_bytes(data_type),
        nulls: chunks.arrays.iter().any(|c| c.logical_null_count() > 0),
    }
}
