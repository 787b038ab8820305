//! An index that is built once enough rows are queried.
//!
//! Where ranges have a row or two each, an index costs more than it saves, and so does the copy that it is built of
//! where the column is in chunks. So ranges are scanned in place until all of them together have as many rows as a good
//! part of the column.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::column::Column;
use crate::cpu::chunked_scan::ChunkedColumn;
use crate::cpu::engine::CpuEngine;
use crate::cpu::rmq::cpu_key::CpuKey;
use crate::crossings::{Crossings, ListLimits, RangeEnd, RowList, check_inputs, check_length};
use crate::engine::{BuildOptions, RangeIndex};
use crate::error::EngineError;
use crate::key::Encoding;
use crate::outputs::Answers;

/// Ranges are scanned while all together have at most this part of the column's rows (one in `SCANNED_SHARE`). If an
/// index is built after all, the time spent on scans is small beside it.
const SCANNED_SHARE: usize = 4;

/// Columns with fewer rows than [`SCANNED_SHARE`] times this are scanned for this many rows anyway.
const MIN_SCANNED_ROWS: usize = 256;

/// The most rows that one batch scans, about 40 ms of work: the calling thread may be one that others wait for.
const MAX_BATCH_ROWS: usize = 1 << 25;

/// The part of a lazily built index that does not depend on the width of keys.
pub trait LazyBuild: Send + Sync + fmt::Debug {
    /// Counts the rows of ranges that are about to be queried, and returns whether the index should be built first.
    /// Callers may ignore the result, or not call this: the ranges are scanned then.
    fn should_build(&self, left: &[i64], right: &[i64]) -> bool;

    /// Builds the index unless it is built, and returns whether this call built it. Other callers wait meanwhile.
    ///
    /// # Errors
    /// As [`Engine::build_u32`](crate::Engine::build_u32). The next call tries again.
    fn build(&self) -> Result<bool, EngineError>;

    /// Returns whether the index is built.
    fn is_built(&self) -> bool;
}

/// A column in chunks and its index. Queries scan the chunks until the index is built.
pub(crate) struct LazyIndex<K> {
    /// `None` once they are indexed.
    chunks: Mutex<Option<Arc<ChunkedColumn<K>>>>,
    index: OnceLock<Arc<dyn RangeIndex<K>>>,
    /// Held while it is built.
    building: Mutex<()>,
    len: usize,
    encoding: Encoding<K>,
    /// Number of chunks at first.
    chunk_count: usize,
    options: BuildOptions,
    /// Rows of all ranges counted so far, plus the chunks once per batch.
    counted_rows: AtomicUsize,
}

impl<K: CpuKey> LazyIndex<K> {
    pub(crate) fn new(chunks: Vec<Column<K>>, options: BuildOptions) -> Self {
        let encoding = chunks.first().map(Column::encoding);
        let chunks = ChunkedColumn::new(chunks);
        Self {
            len: chunks.len(),
            encoding: encoding.unwrap_or_else(Encoding::unsigned),
            chunk_count: chunks.count(),
            chunks: Mutex::new(Some(Arc::new(chunks))),
            index: OnceLock::new(),
            building: Mutex::default(),
            options,
            counted_rows: AtomicUsize::new(0),
        }
    }

    fn chunks(&self) -> MutexGuard<'_, Option<Arc<ChunkedColumn<K>>>> {
        // A panic leaves them unchanged: they are replaced in one step.
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the index, built if necessary, and whether this call built it.
    fn index(&self) -> Result<(&dyn RangeIndex<K>, bool), EngineError> {
        if let Some(index) = self.built() {
            return Ok((index, false));
        }
        let _building = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = self.built() {
            return Ok((index, false));
        }
        let chunks = self.chunks().clone();
        let chunks = chunks.expect("chunks are kept until they are indexed");
        let column = chunks.concatenate(self.options.threads.max(1))?;
        let index = CpuEngine::new().build(&column, &self.options)?;
        let index = self.index.get_or_init(|| index);
        *self.chunks() = None;
        Ok((&**index, true))
    }

    fn built(&self) -> Option<&dyn RangeIndex<K>> {
        self.index.get().map(|index| &**index)
    }
}

impl<K: CpuKey> LazyBuild for LazyIndex<K> {
    fn should_build(&self, left: &[i64], right: &[i64]) -> bool {
        if self.is_built() {
            return false;
        }
        // Each batch looks up all chunks.
        let rows = total_rows(left, right).saturating_add(self.chunk_count);
        let before = self.counted_rows.fetch_add(rows, Ordering::Relaxed);
        let most = MIN_SCANNED_ROWS.max(self.len / SCANNED_SHARE);
        rows > MAX_BATCH_ROWS || before.saturating_add(rows) > most
    }

    fn build(&self) -> Result<bool, EngineError> {
        self.index().map(|(_, is_new)| is_new)
    }

    fn is_built(&self) -> bool {
        self.built().is_some()
    }
}

impl<K: CpuKey> RangeIndex<K> for LazyIndex<K> {
    fn len(&self) -> usize {
        self.len
    }

    fn encoding(&self) -> Encoding<K> {
        self.encoding
    }

    fn has_positions(&self) -> bool {
        self.options.positions
    }

    fn index_bytes(&self) -> usize {
        self.built().map_or(0, RangeIndex::index_bytes)
    }

    fn memory_bytes(&self) -> usize {
        let Some(index) = self.built() else {
            return 0;
        };
        let (index_bytes, bytes) = (index.index_bytes(), index.memory_bytes());
        // An index without a copy of its own keeps the concatenated column.
        let copied = self.chunk_count > 1 && bytes == index_bytes;
        bytes + if copied { self.len * size_of::<K>() } else { 0 }
    }

    fn answer(&self, left: &[i64], right: &[i64], out: Answers<'_, K>) -> Result<(), EngineError> {
        out.check(left, right)?;
        if out.positions.is_some() && !self.options.positions {
            return Err(EngineError::NoPositions);
        }
        let chunks = self.chunks().clone();
        match chunks {
            Some(chunks) => chunks.answer(left, right, out),
            None => self.index()?.0.answer(left, right, out),
        }
    }

    fn crossings(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
        end: RangeEnd,
        mut out: Crossings<'_>,
    ) -> Result<(), EngineError> {
        out.check(left, right, thresholds.len())?;
        let chunks = self.chunks().clone();
        match chunks {
            Some(chunks) => chunks.crossings(left, right, thresholds, end, &mut out),
            None => self.index()?.0.crossings(left, right, thresholds, end, out),
        }
    }

    fn list_at_most(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
        limits: ListLimits,
        out: &mut RowList,
    ) -> Result<(), EngineError> {
        check_inputs(left, right, thresholds.len())?;
        out.clear();
        let chunks = self.chunks().clone();
        match chunks {
            Some(chunks) => chunks.list_at_most(left, right, thresholds, limits, out),
            None => {
                let (index, _) = self.index()?;
                index.list_at_most(left, right, thresholds, limits, out)
            }
        }
    }

    fn count_at_most(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
        counts: &mut [i64],
    ) -> Result<(), EngineError> {
        check_inputs(left, right, thresholds.len())?;
        check_length("the slice for counts", left.len(), counts.len())?;
        let chunks = self.chunks().clone();
        match chunks {
            Some(chunks) => chunks.count_at_most(left, right, thresholds, counts),
            None => {
                let (index, _) = self.index()?;
                index.count_at_most(left, right, thresholds, counts)
            }
        }
    }
}

impl<K> fmt::Debug for LazyIndex<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyIndex")
            .field("len", &self.len)
            .field("is_built", &self.index.get().is_some())
            .finish_non_exhaustive()
    }
}

/// Returns the number of rows of all ranges; rows in two ranges count twice. For ranges outside of the column the
/// number is arbitrary, which only changes when the index is built.
fn total_rows(left: &[i64], right: &[i64]) -> usize {
    let rows = left.iter().zip(right).map(|(left, right)| {
        let rows = right.wrapping_sub(*left).wrapping_add(1);
        // The maximum with 0, without the comparison of 64-bit lanes that SSE2 lacks.
        (rows & !(rows >> (i64::BITS - 1))) as usize
    });
    rows.fold(0, usize::wrapping_add)
}

#[cfg(test)]
#[allow(clippy::cast_precision_loss, reason = "small numbers")]
mod tests {
    use super::*;
    use crate::column::Validity;

    /// The result of a query: the bits of the value, and its position.
    type Found<K> = Option<(K, i64)>;

    fn answers<K: CpuKey>(
        index: &dyn RangeIndex<K>,
        left: &[i64],
        right: &[i64],
        positions: bool,
    ) -> Vec<Found<K>> {
        let n = left.len();
        // Earlier contents of the outputs must not be visible.
        let (mut values, mut positions_out) = (vec![K::SIGN; n], vec![-7; n]);
        let mut valid = vec![u64::MAX; n.div_ceil(64)];
        let out = Answers {
            values: Some(&mut values),
            positions: positions.then_some(&mut positions_out[..]),
            valid: &mut valid,
        };
        index.answer(left, right, out).expect("the slices fit");
        let found = (0..n).map(|i| {
            let is_valid = valid[i / 64] >> (i % 64) & 1 == 1;
            let position = if positions { positions_out[i] } else { 0 };
            is_valid.then_some((values[i], position))
        });
        let past = valid.last().map_or(0, |word| match n % 64 {
            0 => 0,
            some => word >> some,
        });
        assert_eq!(past, 0, "bits past the last query");
        found.collect()
    }

    fn check<K: CpuKey>(random: &mut fastrand::Rng, encoding: Encoding<K>, of: impl Fn(u64) -> K) {
        let n = random.usize(..700);
        let few = 1 + random.u64(..50);
        let bits: Vec<K> = (0..n).map(|_| of(random.u64(..few))).collect();
        let with_nulls = random.u64(..2) == 0;
        let valid: Vec<bool> = (0..n).map(|_| !with_nulls || random.u64(..3) > 0).collect();
        let mut chunks = vec![];
        let mut from = 0;
        // Chunks of one length except the last, or of any length including 0.
        let (even, most) = (random.u64(..2) == 0, 1 + random.u64(..200));
        while from < n {
            let rows = if even { most } else { random.u64(..=most) };
            let to = n.min(from + rows as usize);
            let column = Column::new(Arc::new(bits[from..to].to_vec()), encoding);
            let offset = random.usize(..20);
            let mut bitmap = vec![0x5A_u8; (offset + to - from).div_ceil(8)];
            for (bit, valid) in (offset..).zip(&valid[from..to]) {
                bitmap[bit / 8] &= !(1 << (bit % 8));
                bitmap[bit / 8] |= u8::from(*valid) << (bit % 8);
            }
            let validity = Validity::new(Arc::new(bitmap), offset);
            let some_null = valid[from..to].contains(&false);
            chunks.push(if some_null {
                column.with_validity(validity).expect("bits for all rows")
            } else {
                column
            });
            from = to;
        }
        let options = BuildOptions::default();
        let index = LazyIndex::new(chunks, options);
        assert_eq!(index.len(), n);
        let queries = random.u64(..300);
        let bound = |random: &mut fastrand::Rng| match random.u64(..20) {
            0 => i64::MIN,
            1 => i64::MAX,
            _ => random.u64(..n as u64 + 20) as i64 - 10,
        };
        let (left, right): (Vec<_>, Vec<_>) = (0..queries)
            .map(|_| {
                let left = bound(random);
                let near = left.saturating_add(random.u64(..8) as i64 - 2);
                let right = if random.u64(..2) == 0 {
                    near
                } else {
                    bound(random)
                };
                (left, right)
            })
            .unzip();
        let naive = |positions: bool| -> Vec<Found<K>> {
            let ends = left.iter().zip(&right);
            let found = ends.map(|(left, right)| {
                let rows = (0..n).filter(|i| (*left..=*right).contains(&(*i as i64)) && valid[*i]);
                let first = rows.min_by_key(|i| encoding.encode(bits[*i]))?;
                Some((bits[first], if positions { first as i64 } else { 0 }))
            });
            found.collect()
        };
        for positions in [true, false] {
            assert_eq!(answers(&index, &left, &right, positions), naive(positions));
        }
        assert_eq!(index.index_bytes(), 0);
        assert_eq!(index.build(), Ok(true));
        assert_eq!(index.build(), Ok(false));
        assert!(index.chunks().is_none());
        for positions in [true, false] {
            assert_eq!(answers(&index, &left, &right, positions), naive(positions));
        }
    }

    #[test]
    fn scans_and_the_index_give_the_same_results() {
        let random = &mut fastrand::Rng::with_seed(88_172_645_463_325_252);
        for _ in 0..150 {
            check::<u32>(random, Encoding::float(), |v| (v as f32 - 9.0).to_bits());
            check::<u64>(random, Encoding::signed().reversed(), |v| v.wrapping_sub(7));
            check::<u128>(random, Encoding::unsigned(), |v| u128::MAX - u128::from(v));
        }
    }

    #[test]
    fn index_should_be_built_once_ranges_have_many_rows() {
        let column = Column::new(Arc::new(vec![1_u64; 4000]), Encoding::unsigned());
        let index = LazyIndex::new(vec![column], BuildOptions::default());
        // Empty ranges and 300 rows; each batch also counts the one chunk.
        assert!(!index.should_build(&[0, 5, 9], &[299, 304, 3]));
        assert!(!index.should_build(&[7; 398], &[7; 398]));
        assert!(index.should_build(&[7], &[7]));
        let built = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| index.build())).collect();
            let built = threads.into_iter().map(|t| t.join().expect("no panic"));
            built.filter(|built| *built == Ok(true)).count()
        });
        assert_eq!(built, 1);
        assert!(index.index_bytes() > 0);
        assert!(!index.should_build(&[0], &[3999]));
    }

    #[test]
    fn index_should_be_built_after_many_batches_of_many_chunks() {
        let chunks = (0..1000_u64).map(|i| Column::new(Arc::new(vec![i; 8]), Encoding::unsigned()));
        let index = LazyIndex::new(chunks.collect(), BuildOptions::default());
        // No rows, only chunks.
        assert!(!index.should_build(&[1], &[0]));
        assert!(!index.should_build(&[1], &[0]));
        assert!(index.should_build(&[1], &[0]));
        // The copy, and the index.
        assert_eq!(index.build(), Ok(true));
        assert!(index.memory_bytes() >= 64_000 + index.index_bytes());
    }

    #[test]
    fn bad_input_is_an_error() {
        let column = Column::new(Arc::new(vec![1_u64; 4]), Encoding::unsigned());
        let options = BuildOptions {
            positions: false,
            threads: 1,
        };
        let index = LazyIndex::new(vec![column], options);
        let (mut positions, mut valid) = ([0], [0]);
        let out = Answers {
            values: None,
            positions: Some(&mut positions),
            valid: &mut valid,
        };
        assert_eq!(index.answer(&[0], &[1], out), Err(EngineError::NoPositions));
        let out = Answers {
            values: None,
            positions: None,
            valid: &mut valid,
        };
        let lengths = index.answer(&[0], &[1, 2], out);
        assert!(matches!(lengths, Err(EngineError::Lengths { .. })));
    }
}
