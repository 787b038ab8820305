//! The index of one column in one direction.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::DataType;
use datafusion::common::Result;

use super::keys::{Chunks, Decoder, Encoded, KeyColumn, encode, key_bytes};
use crate::engine::Extreme;
use crate::engine::{Answers, BuildOptions, ColumnSize, Engine, EngineError, Key, RangeIndex};
use crate::functions::bounds::Ranges;

/// A column made ready to be asked for its smallest, or its largest, values and where they stand.
#[derive(Debug)]
pub(crate) struct ColumnIndex {
    keys: KeyIndex,
    decoder: Decoder,
    engine: &'static str,
    build_time: Duration,
    copied_bytes: usize,
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
}

impl ColumnIndex {
    /// Builds the index of the column that `chunks` make up, on at most `threads` threads.
    pub(crate) fn build(
        engine: &dyn Engine,
        chunks: &Chunks,
        data_type: &DataType,
        extreme: Extreme,
        threads: usize,
    ) -> Result<Self> {
        let started = Instant::now();
        let Encoded {
            column,
            decoder,
            copied_bytes,
        } = encode(chunks, data_type, extreme)?;
        let options = BuildOptions {
            positions: true,
            threads,
        };
        let keys = match column {
            KeyColumn::W32(column) => KeyIndex::W32(engine.build_u32(column, &options)?),
            KeyColumn::W64(column) => KeyIndex::W64(engine.build_u64(column, &options)?),
            KeyColumn::W128(column) => KeyIndex::W128(engine.build_u128(column, &options)?),
        };
        let engine = engine.name();
        Ok(Self {
            keys,
            decoder,
            engine,
            build_time: started.elapsed(),
            copied_bytes,
        })
    }

    /// About how many bytes [`Self::build`] will take for a column of that size, to reserve them first.
    pub(crate) fn estimate(engine: &dyn Engine, chunks: &Chunks, data_type: &DataType) -> usize {
        let size = ColumnSize {
            rows: chunks.arrays.iter().map(|c| c.len()).sum(),
            key_bytes: key_bytes(data_type),
            nulls: chunks.arrays.iter().any(|c| c.logical_null_count() > 0),
        };
        let options = BuildOptions {
            positions: true,
            threads: 1,
        };
        chunks.copy_bytes(data_type) + engine.memory_bytes(size, &options)
    }

    /// Answers one batch of ranges: their extreme values, if `values`, and where these stand, if `positions`.
    pub(crate) fn answer(&self, ranges: &Ranges, values: bool, positions: bool) -> Result<Answer> {
        match &self.keys {
            KeyIndex::W32(index) => {
                let raw = ask(index.as_ref(), ranges, values, positions)?;
                raw.finish(|keys, valid| self.decoder.decode_32(keys, valid))
            }
            KeyIndex::W64(index) => {
                let raw = ask(index.as_ref(), ranges, values, positions)?;
                raw.finish(|keys, valid| self.decoder.decode_64(keys, valid))
            }
            KeyIndex::W128(index) => {
                let raw = ask(index.as_ref(), ranges, values, positions)?;
                raw.finish(|keys, valid| self.decoder.decode_128(keys, valid))
            }
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

    /// Bytes of the index and of the copies that were made of the column.
    pub(crate) fn memory_bytes(&self) -> usize {
        let owned = match &self.keys {
            KeyIndex::W32(index) => index.memory_bytes(),
            KeyIndex::W64(index) => index.memory_bytes(),
            KeyIndex::W128(index) => index.memory_bytes(),
        };
        // An engine that made a copy of its own let go of the column it was given.
        let column = if owned > self.index_bytes() {
            0
        } else {
            self.copied_bytes
        };
        owned + column + self.decoder.bytes()
    }

    /// The type of the values that come back.
    pub(crate) fn value_type(&self) -> &DataType {
        self.decoder.value_type()
    }

    /// The name of the engine that answers.
    pub(crate) fn engine(&self) -> &'static str {
        self.engine
    }

    /// How long it took to build.
    pub(crate) fn build_time(&self) -> Duration {
        self.build_time
    }
}

/// An engine's answers before they become arrays.
struct Raw<K> {
    values: Option<Vec<K>>,
    positions: Option<Vec<i64>>,
    valid: NullBuffer,
}

fn ask<K: Key>(
    index: &dyn RangeIndex<K>,
    ranges: &Ranges,
    values: bool,
    positions: bool,
) -> Result<Raw<K>, EngineError> {
    let n = ranges.len();
    let mut values = values.then(|| vec![K::MAX; n]);
    let mut positions = positions.then(|| vec![0_i64; n]);
    let mut valid = vec![0_u64; n.div_ceil(64)];
    index.answer(
        ranges.left(),
        ranges.right(),
        Answers {
            values: values.as_deref_mut(),
            positions: positions.as_deref_mut(),
            valid: &mut valid,
        },
    )?;
    let valid = NullBuffer::new(BooleanBuffer::new(Buffer::from_vec(valid), 0, n));
    Ok(Raw {
        values,
        positions,
        valid,
    })
}

impl<K> Raw<K> {
    fn finish(self, decode: impl FnOnce(Vec<K>, NullBuffer) -> Result<ArrayRef>) -> Result<Answer> {
        let Self {
            values,
            positions,
            valid,
        } = self;
        let positions =
            positions.map(|p| Arc::new(Int64Array::new(p.into(), Some(valid.clone()))) as ArrayRef);
        Ok(Answer {
            values: values.map(|keys| decode(keys, valid)).transpose()?,
            positions,
        })
    }
}
