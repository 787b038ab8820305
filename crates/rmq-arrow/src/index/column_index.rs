//! The index of one column for range lookups, on the CPU or on devices.

use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, make_array};
use arrow::datatypes::DataType;
use datafusion_common::{Result, internal_err};

use crate::common::range_function::{IndexKind, RangeFunction};
use crate::index::chunk_extremes::ChunkExtremes;
use crate::index::column_statistics::ColumnStatistics;
use crate::index::cpu_fallback::{CpuFallback, device_failure};
use crate::index::decoder::Decoder;
use crate::index::devices::DeviceEngine;
use crate::index::key_index::{Answer, KeyIndex, WITH_POSITIONS};
use crate::index::sort_keys::{Chunks, encode};
use rmq_engine::cpu::CpuEngine;
use rmq_engine::{BuildOptions, Engine, Extreme};

/// An index that finds the smallest, or the largest, values of ranges of a column, and their positions, or order
/// statistics of ranges.
#[derive(Debug)]
pub struct ColumnIndex {
    index: Searched,
    build_time: Duration,
    /// Of an index on devices: answers when these fail.
    cpu_fallback: Option<CpuFallback>,
    /// Of a column that is not in memory: the index is that of its chunks' extremes.
    chunks: Option<ChunkExtremes>,
}

/// What is searched for answers.
#[derive(Debug)]
enum Searched {
    Extremes(KeyIndex),
    Statistics(ColumnStatistics),
}

impl ColumnIndex {
    /// Builds the CPU engine's index of the column `chunks`, on at most `threads` threads.
    ///
    /// # Errors
    /// An execution error for a type without an order, and the engine's, for order statistics soon after `stops`
    /// returns true.
    pub fn on_cpu(
        chunks: &Chunks,
        data_type: &DataType,
        kind: IndexKind,
        threads: usize,
        stops: &dyn Fn() -> bool,
    ) -> Result<Self> {
        if let IndexKind::Extremes(extreme) = kind {
            return Self::build(&CpuEngine::default(), chunks, data_type, extreme, threads);
        }
        let started = Instant::now();
        let statistics = ColumnStatistics::build(chunks, data_type, kind, threads, stops)?;
        Ok(Self {
            index: Searched::Statistics(statistics),
            build_time: started.elapsed(),
            cpu_fallback: None,
            chunks: None,
        })
    }

    /// Estimates the bytes that [`Self::on_cpu`] takes.
    pub fn estimate_on_cpu(chunks: &Chunks, data_type: &DataType, kind: IndexKind) -> usize {
        match kind {
            IndexKind::Extremes(_) => KeyIndex::estimate_on_cpu(chunks, data_type),
            IndexKind::Ranks | IndexKind::DistinctCounts => {
                ColumnStatistics::estimate(chunks, data_type, kind)
            }
        }
    }

    /// The bytes that [`Self::on_cpu`] takes while it builds, beside these.
    pub fn working_bytes(chunks: &Chunks, data_type: &DataType, kind: IndexKind) -> usize {
        match kind {
            IndexKind::Extremes(_) => 0,
            IndexKind::Ranks | IndexKind::DistinctCounts => {
                ColumnStatistics::working_bytes(chunks, data_type)
            }
        }
    }

    /// Builds the index on devices. Keeps the column's buffers for the CPU fallback.
    ///
    /// # Errors
    /// An execution error for a type without an order, and the engine's.
    pub fn on_devices(
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
        let fallback = CpuFallback::new(chunks, data_type.clone(), extreme, threads);
        index.cpu_fallback = Some(fallback);
        Ok(index)
    }

    /// Builds the CPU engine's index of the extremes of a column's chunks, for ranges of chunks. The rows of the column
    /// are not in memory.
    ///
    /// # Errors
    /// As [`Self::on_cpu`].
    pub fn of_chunks(
        chunks: ChunkExtremes,
        extremes: &Chunks,
        value_type: &DataType,
        extreme: Extreme,
    ) -> Result<Self> {
        let mut index = Self::build(&CpuEngine::default(), extremes, value_type, extreme, 1)?;
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
        Ok(Self {
            index: Searched::Extremes(KeyIndex::build(engine, encoded, &options)?),
            build_time: started.elapsed(),
            cpu_fallback: None,
            chunks: None,
        })
    }

    /// The index of the rows of these indexes, in their order, which one engine has built of one column. Its build time
    /// is that of the last one.
    ///
    /// # Errors
    /// An execution error without an index, or for indexes of different keys.
    pub fn of_parts(parts: &[&Self]) -> Result<Self> {
        let indexes = parts.iter().map(|part| part.keys());
        let indexes = indexes.collect::<Result<Vec<_>>>()?;
        Ok(Self {
            index: Searched::Extremes(KeyIndex::of_parts(&indexes)?),
            build_time: parts.last().map_or(Duration::ZERO, |part| part.build_time),
            cpu_fallback: CpuFallback::of_parts(parts.iter().map(|p| p.cpu_fallback.as_ref())),
            chunks: None,
        })
    }

    /// Whether rows that are added can be indexed on their own: not where ranks are among all values.
    pub fn can_be_extended(&self) -> bool {
        let is_of_keys = match &self.index {
            Searched::Extremes(index) => !index.decoder().has_ranks(),
            Searched::Statistics(_) => false,
        };
        self.chunks.is_none() && is_of_keys
    }

    /// The arrays of the column, if devices have the index.
    pub fn arrays(&self) -> &[ArrayRef] {
        let fallback = self.cpu_fallback.as_ref();
        fallback.map_or(&[], |fallback| &fallback.chunks().arrays)
    }

    /// The chunks of a column that is not in memory. [`Self::keys`] is the index of their extremes then.
    pub fn chunks(&self) -> Option<&ChunkExtremes> {
        self.chunks.as_ref()
    }

    /// The bytes that [`Self::on_devices`] takes of each device.
    pub fn estimate_on_devices(
        engine: &dyn DeviceEngine,
        chunks: &Chunks,
        data_type: &DataType,
    ) -> usize {
        engine.device_bytes(chunks.size(data_type), &WITH_POSITIONS)
    }

    /// The index of the column's keys. On devices it has no fallback.
    ///
    /// # Errors
    /// An internal error for an index of order statistics.
    pub fn keys(&self) -> Result<&KeyIndex> {
        match &self.index {
            Searched::Extremes(index) => Ok(index),
            Searched::Statistics(_) => internal_err!("order statistics have no extremes"),
        }
    }

    /// Answers calls of a range function under this name: one for each row of the arrays of its arguments. On devices
    /// it has no fallback.
    ///
    /// # Errors
    /// Those of arguments, and the engine's.
    pub fn call(
        &self,
        function: RangeFunction,
        name: &str,
        bounds: (&ArrayRef, &ArrayRef),
        last: &[ArrayRef],
    ) -> Result<Answer> {
        match function {
            RangeFunction::Extreme { extreme, result } => {
                self.keys()?.call(extreme, result, name, bounds, last)
            }
            RangeFunction::Statistic(statistic) => {
                let values = self.statistics()?.call(statistic, name, bounds, last)?;
                Ok(Answer::of_values(values))
            }
        }
    }

    /// The order statistics of the column.
    ///
    /// # Errors
    /// An internal error for an index of extremes.
    fn statistics(&self) -> Result<&ColumnStatistics> {
        match &self.index {
            Searched::Extremes(_) => internal_err!("extremes have no order statistics"),
            Searched::Statistics(statistics) => Ok(statistics),
        }
    }

    /// The order statistics of the column, if that is what the index has.
    pub fn statistics_mut(&mut self) -> Option<&mut ColumnStatistics> {
        match &mut self.index {
            Searched::Extremes(_) => None,
            Searched::Statistics(statistics) => Some(statistics),
        }
    }

    fn decoder(&self) -> &Decoder {
        match &self.index {
            Searched::Extremes(index) => index.decoder(),
            Searched::Statistics(statistics) => statistics.decoder(),
        }
    }

    /// Answers by the index of the column's keys, or by that of the CPU fallback if devices fail.
    ///
    /// # Errors
    /// Those of `answer`; if devices fail, only those of the CPU engine.
    pub fn answer_or_fall_back(
        &self,
        answer: impl Fn(&KeyIndex) -> Result<Answer>,
    ) -> Result<Answer> {
        let error = match answer(self.keys()?) {
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

    /// Number of rows, NULLs included.
    pub fn rows(&self) -> usize {
        match (&self.chunks, &self.index) {
            (Some(chunks), _) => chunks.rows(),
            (None, Searched::Extremes(index)) => index.rows(),
            (None, Searched::Statistics(statistics)) => statistics.rows(),
        }
    }

    /// Bytes of the index without the column.
    pub fn index_bytes(&self) -> usize {
        match (&self.chunks, &self.index) {
            (Some(_), _) => self.memory_bytes(),
            (None, Searched::Extremes(index)) => index.index_bytes(),
            (None, Searched::Statistics(statistics)) => statistics.bytes(),
        }
    }

    /// Bytes of each device that stores the index.
    pub fn device_bytes(&self) -> usize {
        match &self.index {
            Searched::Extremes(index) => index.device_bytes(),
            Searched::Statistics(statistics) => statistics.device_bytes(),
        }
    }

    /// Whether devices answer: best in large batches, and blocking the thread.
    pub fn is_on_devices(&self) -> bool {
        self.cpu_fallback.is_some()
    }

    /// Bytes of host memory: of the index and of the copies of the column.
    pub fn memory_bytes(&self) -> usize {
        let chunks = self.chunks.as_ref().map_or(0, ChunkExtremes::bytes);
        let index = match &self.index {
            Searched::Extremes(index) => index.memory_bytes(),
            Searched::Statistics(statistics) => statistics.bytes(),
        };
        index + self.fallback_bytes() + chunks
    }

    /// Bytes of the column that is kept for the CPU fallback.
    fn fallback_bytes(&self) -> usize {
        let fallback = self.cpu_fallback.as_ref();
        fallback.map_or(0, CpuFallback::owned_bytes)
    }

    /// Whether it refers to the memory of the column that it was built of, and which another owns.
    pub fn borrows_column(&self) -> bool {
        let borrows = match &self.index {
            Searched::Extremes(index) => index.borrows_column(),
            Searched::Statistics(_) => false,
        };
        self.chunks.is_none() && self.fallback_bytes() == 0 && borrows
    }

    /// The type of the values.
    pub fn value_type(&self) -> &DataType {
        self.decoder().value_type()
    }

    /// How long the build took.
    pub fn build_time(&self) -> Duration {
        self.build_time
    }
}
