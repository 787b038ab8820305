//! The index of one column in one direction.

use crate::common::errors::engine_error;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, Int64Array, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::DataType;
use bytes::Bytes;
use datafusion::common::{DataFusionError, Result, SharedResult, exec_datafusion_err, exec_err};

use crate::common::ranges::Ranges;
use crate::index::catalog::HeldIndex;
use crate::index::devices::DeviceEngine;
use crate::index::sort_keys::{Chunks, Decoder, Encoded, KeyColumn, encode, key_bytes};
use rmq_engine::Extreme;
use rmq_engine::cpu::{CpuEngine, Late, late_u32, late_u64, late_u128};
use rmq_engine::{
    BuildOptions, Column, ColumnSize, Engine, EngineError, Key, Memory, Outputs, RangeIndex,
};

/// A column made ready to be asked for its smallest, or its largest, values and where they stand.
#[derive(Debug)]
pub(crate) struct ColumnIndex {
    keys: KeyIndex,
    decoder: Decoder,
    build_time: Duration,
    copied_bytes: usize,
    /// Of an index on devices: what answers when they fail.
    cpu_fallback: Option<CpuFallback>,
    /// Of one that is built once it pays: what tells when.
    late: Option<Arc<dyn Late>>,
}

/// The CPU engine's index of a column whose devices failed, built by the first that needs it.
#[derive(Debug)]
struct CpuFallback {
    column: StandInColumn,
    threads: usize,
    index: OnceLock<SharedResult<Box<ColumnIndex>>>,
}

/// What such an index is built of.
#[derive(Debug)]
enum StandInColumn {
    /// The arrays, which a table may hold anyway.
    Arrays {
        chunks: Chunks,
        data_type: DataType,
        extreme: Extreme,
    },
    /// The very column that the devices got.
    Encoded {
        column: KeyColumn,
        decoder: Decoder,
        positions: bool,
    },
}

/// An index, and whether the CPU engine may answer in its place.
#[derive(Debug, Clone)]
pub(crate) struct ReadyIndex {
    pub(crate) held: Arc<HeldIndex>,
    pub(crate) cpu_may_stand_in: bool,
}

#[derive(Debug)]
enum KeyIndex {
    W32(Arc<dyn RangeIndex<u32>>),
    W64(Arc<dyn RangeIndex<u64>>),
    W128(Arc<dyn RangeIndex<u128>>),
}

/// What a batch of ranges came to, one entry a range: NULL where it holds no value.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) values: Option<ArrayRef>,
    pub(crate) positions: Option<ArrayRef>,
    /// Whether the CPU engine answered in the place of devices that failed.
    pub(crate) used_cpu_fallback: bool,
}

impl ReadyIndex {
    /// See [`ColumnIndex::answer`].
    pub(crate) fn answer(
        &self,
        ranges: &[Ranges],
        values: bool,
        positions: bool,
    ) -> Result<Answer> {
        let cpu_fallback = self.cpu_may_stand_in;
        self.held
            .index
            .answer(ranges, values, positions, cpu_fallback)
    }
}

impl ColumnIndex {
    /// Builds the CPU engine's index of the column that `chunks` make up, on at most `threads` threads.
    pub(crate) fn on_cpu(
        chunks: &Chunks,
        data_type: &DataType,
        extreme: Extreme,
        threads: usize,
    ) -> Result<Self> {
        Self::build(&CpuEngine::default(), chunks, data_type, extreme, threads)
    }

    /// Builds the index on devices. The column's buffers are kept, so that the CPU engine can stand in.
    pub(crate) fn on_devices(
        engine: &dyn DeviceEngine,
        chunks: &Chunks,
        data_type: &DataType,
        extreme: Extreme,
        threads: usize,
    ) -> Result<Self> {
        let mut index = Self::build(engine, chunks, data_type, extreme, threads)?;
        // Other arrays of the same buffers: by the table's own one tells whether the table is still there.
        let arrays = chunks.arrays.iter().map(|a| make_array(a.to_data()));
        let chunks = Chunks {
            arrays: arrays.collect(),
            held_by_table: chunks.held_by_table,
        };
        index.copied_bytes = if chunks.held_by_table {
            0
        } else {
            chunks.bytes()
        };
        index.cpu_fallback = Some(CpuFallback {
            column: StandInColumn::Arrays {
                chunks,
                data_type: data_type.clone(),
                extreme,
            },
            threads,
            index: OnceLock::new(),
        });
        Ok(index)
    }

    /// As [`Self::on_devices`], of a column that is encoded already.
    pub(crate) fn of_on_devices(
        engine: &dyn DeviceEngine,
        encoded: Encoded,
        options: &BuildOptions,
    ) -> Result<Self> {
        let column = StandInColumn::Encoded {
            column: encoded.column.clone(),
            decoder: encoded.decoder.clone(),
            positions: options.positions,
        };
        let mut index = Self::of(engine, encoded, options)?;
        index.cpu_fallback = Some(CpuFallback {
            column,
            threads: options.threads,
            index: OnceLock::new(),
        });
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
        let mut index = Self::of(engine, encoded, &options)?;
        index.build_time = started.elapsed();
        Ok(index)
    }

    /// Builds the index of a column that is encoded already.
    pub(crate) fn of(
        engine: &dyn Engine,
        encoded: Encoded,
        options: &BuildOptions,
    ) -> Result<Self> {
        let started = Instant::now();
        let Encoded {
            column,
            decoder,
            copied_bytes,
        } = encoded;
        let keys = match column {
            KeyColumn::W32(column) => {
                KeyIndex::W32(engine.build_u32(column, options).map_err(engine_error)?)
            }
            KeyColumn::W64(column) => {
                KeyIndex::W64(engine.build_u64(column, options).map_err(engine_error)?)
            }
            KeyColumn::W128(column) => {
                KeyIndex::W128(engine.build_u128(column, options).map_err(engine_error)?)
            }
        };
        Ok(Self {
            keys,
            decoder,
            build_time: started.elapsed(),
            copied_bytes,
            cpu_fallback: None,
            late: None,
        })
    }

    /// The CPU engine's index of a column in encoded pieces, built once ranges are asked that it pays for.
    pub(crate) fn late(pieces: Vec<Encoded>, options: BuildOptions) -> Result<Self> {
        fn columns<K>(
            pieces: Vec<Encoded>,
            of_width: impl Fn(KeyColumn) -> Option<Column<K>>,
        ) -> Result<Vec<Column<K>>> {
            let columns = pieces.into_iter().map(|piece| of_width(piece.column));
            let columns: Option<_> = columns.collect();
            columns.ok_or_else(|| exec_datafusion_err!("a column has keys of different widths"))
        }
        let Some(first) = pieces.first() else {
            return exec_err!("a column to be indexed has no piece");
        };
        let decoder = first.decoder.clone();
        let copied_bytes = pieces.iter().map(|piece| piece.copied_bytes).sum();
        let (keys, late): (_, Arc<dyn Late>) = match &first.column {
            KeyColumn::W32(_) => {
                let index = late_u32(columns(pieces, KeyColumn::into_32)?, options);
                (KeyIndex::W32(Arc::clone(&index) as _), index)
            }
            KeyColumn::W64(_) => {
                let index = late_u64(columns(pieces, KeyColumn::into_64)?, options);
                (KeyIndex::W64(Arc::clone(&index) as _), index)
            }
            KeyColumn::W128(_) => {
                let index = late_u128(columns(pieces, KeyColumn::into_128)?, options);
                (KeyIndex::W128(Arc::clone(&index) as _), index)
            }
        };
        Ok(Self {
            keys,
            decoder,
            build_time: Duration::ZERO,
            copied_bytes,
            cpu_fallback: None,
            late: Some(late),
        })
    }

    /// Whether an index that is built late had better be built before these ranges are asked, which are counted.
    pub(crate) fn should_build(&self, ranges: &Ranges) -> bool {
        let late = self.late.as_ref();
        late.is_some_and(|late| late.should_build(ranges.left(), ranges.right()))
    }

    /// Builds what is built late, unless it is there, and says whether it was not.
    pub(crate) fn build_late(&self) -> Result<bool, EngineError> {
        self.late.as_ref().map_or(Ok(false), |late| late.build())
    }

    /// About how many bytes of this machine's memory [`Self::on_cpu`] will take, to reserve them first.
    pub(crate) fn estimate_on_cpu(chunks: &Chunks, data_type: &DataType) -> usize {
        Self::estimate(&CpuEngine::default(), chunks, data_type)
    }

    /// The same of [`Self::on_devices`].
    pub(crate) fn estimate(engine: &dyn Engine, chunks: &Chunks, data_type: &DataType) -> usize {
        let size = size(chunks, data_type);
        chunks.copy_bytes(data_type) + engine.memory_bytes(size, &ESTIMATED)
    }

    /// About how many bytes of this machine's memory the index of a column will take beside the column.
    pub(crate) fn estimate_of(
        engine: &dyn Engine,
        chunks: &Chunks,
        data_type: &DataType,
        options: &BuildOptions,
    ) -> usize {
        engine.memory_bytes(size(chunks, data_type), options)
    }

    /// How many bytes [`Self::on_devices`] will take of each device.
    pub(crate) fn estimate_on_devices(
        engine: &dyn DeviceEngine,
        chunks: &Chunks,
        data_type: &DataType,
    ) -> usize {
        engine.device_bytes(size(chunks, data_type), &ESTIMATED)
    }

    /// Answers one batch of ranges, gathered from several: their extreme values, if `values`, and where these stand, if `positions`. Where devices
    /// fail and `may_fall_back`, the CPU engine answers.
    pub(crate) fn answer(
        &self,
        ranges: &[Ranges],
        values: bool,
        positions: bool,
        may_fall_back: bool,
    ) -> Result<Answer> {
        let asked = match &self.keys {
            KeyIndex::W32(index) => ask(index.as_ref(), ranges, values, positions)
                .map(|raw| raw.finish(|keys, valid| self.decoder.decode_32(keys, valid))),
            KeyIndex::W64(index) => ask(index.as_ref(), ranges, values, positions)
                .map(|raw| raw.finish(|keys, valid| self.decoder.decode_64(keys, valid))),
            KeyIndex::W128(index) => ask(index.as_ref(), ranges, values, positions)
                .map(|raw| raw.finish(|keys, valid| self.decoder.decode_128(keys, valid))),
        };
        match (asked, &self.cpu_fallback) {
            (Ok(answer), _) => answer,
            (Err(failure), Some(cpu_fallback)) if may_fall_back => {
                let index = cpu_fallback.index(&failure)?;
                let answer = index.answer(ranges, values, positions, false)?;
                Ok(Answer {
                    used_cpu_fallback: true,
                    ..answer
                })
            }
            (Err(failure), _) => Err(engine_error(failure)),
        }
    }

    /// Number of rows, NULLs included.
    pub(crate) fn rows(&self) -> usize {
        match &self.keys {
            KeyIndex::W32(index) => index.len(),
            KeyIndex::W64(index) => index.len(),
            KeyIndex::W128(index) => index.len(),
        }
    }

    /// Bytes of the index without the column.
    pub(crate) fn index_bytes(&self) -> usize {
        match &self.keys {
            KeyIndex::W32(index) => index.index_bytes(),
            KeyIndex::W64(index) => index.index_bytes(),
            KeyIndex::W128(index) => index.index_bytes(),
        }
    }

    /// Bytes of each device that holds the index.
    pub(crate) fn device_bytes(&self) -> usize {
        match &self.keys {
            KeyIndex::W32(index) => index.device_bytes(),
            KeyIndex::W64(index) => index.device_bytes(),
            KeyIndex::W128(index) => index.device_bytes(),
        }
    }

    /// Whether devices answer, in large batches best and while the thread waits.
    pub(crate) fn is_on_devices(&self) -> bool {
        self.cpu_fallback.is_some()
    }

    /// Bytes of this machine's memory: of the index and of the copies that were made of the column.
    pub(crate) fn memory_bytes(&self) -> usize {
        let owned = match &self.keys {
            KeyIndex::W32(index) => index.memory_bytes(),
            KeyIndex::W64(index) => index.memory_bytes(),
            KeyIndex::W128(index) => index.memory_bytes(),
        };
        // An engine that made a copy of its own let go of the column it was given.
        let column = if self.cpu_fallback.is_none() && owned > self.index_bytes() {
            0
        } else {
            self.copied_bytes
        };
        owned + column + self.decoder.bytes()
    }

    /// Whether it looks at the memory of the column that it was given.
    pub(crate) fn borrows_column(&self) -> bool {
        let is_awaited = self.late.as_ref().is_some_and(|late| !late.is_built());
        if self.cpu_fallback.is_some() || is_awaited {
            self.copied_bytes == 0
        } else {
            self.memory_bytes() == self.index_bytes()
        }
    }

    /// The type of the values that come back.
    pub(crate) fn value_type(&self) -> &DataType {
        self.decoder.value_type()
    }

    /// How long it took to build.
    pub(crate) fn build_time(&self) -> Duration {
        self.build_time
    }
}

impl CpuFallback {
    fn index(&self, failure: &EngineError) -> Result<&ColumnIndex> {
        let built = self.index.get_or_init(|| {
            log::warn!("{failure}; the CPU answers instead");
            self.build().map(Box::new).map_err(Arc::new)
        });
        match built {
            Ok(index) => Ok(index),
            Err(error) => Err(DataFusionError::Shared(Arc::clone(error))),
        }
    }

    fn build(&self) -> Result<ColumnIndex> {
        match &self.column {
            StandInColumn::Arrays {
                chunks,
                data_type,
                extreme,
            } => ColumnIndex::on_cpu(chunks, data_type, *extreme, self.threads),
            StandInColumn::Encoded {
                column,
                decoder,
                positions,
            } => {
                let encoded = Encoded {
                    column: column.clone(),
                    decoder: decoder.clone(),
                    copied_bytes: 0,
                };
                let options = BuildOptions {
                    positions: *positions,
                    threads: self.threads,
                };
                ColumnIndex::of(&CpuEngine::default(), encoded, &options)
            }
        }
    }
}

const ESTIMATED: BuildOptions = BuildOptions {
    positions: true,
    threads: 1,
};

fn size(chunks: &Chunks, data_type: &DataType) -> ColumnSize {
    ColumnSize {
        rows: chunks.rows(),
        key_bytes: key_bytes(data_type),
        nulls: chunks.arrays.iter().any(|c| c.logical_null_count() > 0),
    }
}

/// An engine's answers before they become arrays.
struct Raw<K> {
    values: Option<Memory<K>>,
    positions: Option<Memory<i64>>,
    valid: NullBuffer,
}

fn ask<K: Key>(
    index: &dyn RangeIndex<K>,
    ranges: &[Ranges],
    values: bool,
    positions: bool,
) -> Result<Raw<K>, EngineError> {
    let n = ranges.iter().map(Ranges::len).sum();
    let mut outputs = index.outputs(n, values, positions);
    match ranges {
        [one] => index.answer(one.left(), one.right(), outputs.answers())?,
        many => {
            let parts: Vec<_> = many.iter().map(|r| (r.left(), r.right())).collect();
            index.answer_gathered(&parts, outputs.answers())?;
        }
    }
    let Outputs {
        values,
        positions,
        valid,
    } = outputs;
    Ok(Raw {
        values,
        positions,
        valid: NullBuffer::new(BooleanBuffer::new(buffer(valid), 0, n)),
    })
}

impl<K> Raw<K> {
    fn finish(
        self,
        decode: impl FnOnce(Memory<K>, NullBuffer) -> Result<ArrayRef>,
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

/// An engine's numbers as Arrow's memory, without a copy.
pub(crate) fn buffer<T: bytemuck::Pod + Send + Sync + 'static>(numbers: Memory<T>) -> Buffer {
    Buffer::from(Bytes::from_owner(numbers))
}
