//! A column that is indexed once that pays.
//!
//! Where windows match a row or two, an index costs more than it saves, and so does the copy to build it of, where the column came in
//! pieces. So ranges are scanned where their rows lie, until all of them together have as many rows as a good part of the column.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::column::Column;
use crate::cpu::chunked_scan::ChunkedColumn;
use crate::cpu::engine::CpuEngine;
use crate::cpu::rmq::cpu_key::CpuKey;
use crate::engine::{BuildOptions, RangeIndex};
use crate::error::EngineError;
use crate::outputs::Answers;

/// Ranges are scanned while they have no more rows, all together, than the column divided by this: what they cost in vain where an index
/// is built in the end is little beside that.
const SHARE: usize = 4;

/// So many rows are scanned sooner than that anything is built.
const FEW: usize = 256;

/// But not so many at once, which take some 40 ms: who asks may be a thread that others wait for.
const AT_ONCE: usize = 1 << 25;

/// What is known of an index that may not be there yet, whatever its keys.
pub trait Late: Send + Sync + fmt::Debug {
    /// Counts the rows of ranges that are to be asked, and says whether the index is better built first. Whoever does not want to know may
    /// ask as well: then they are scanned.
    fn should_build(&self, left: &[i64], right: &[i64]) -> bool;

    /// Builds the index, unless it is there, and says whether it was not.
    ///
    /// # Errors
    /// As [`Engine::build_u32`](crate::Engine::build_u32).
    fn build(&self) -> Result<bool, EngineError>;

    /// Whether the index is there.
    fn is_built(&self) -> bool;
}

/// The index of a column in pieces that follow one another, their bits keys in the same way, with the best instructions of this machine.
macro_rules! late {
    ($name:ident, $key:ty) => {
        pub fn $name(
            pieces: Vec<Column<$key>>,
            options: BuildOptions,
        ) -> Arc<impl RangeIndex<$key> + Late> {
            Arc::new(LazyIndex::new(pieces, CpuEngine::new(), options))
        }
    };
}

late!(late_u32, u32);
late!(late_u64, u64);
late!(late_u128, u128);

/// A column in pieces, and its index once one is built: until then it scans whatever it is asked.
struct LazyIndex<K> {
    /// Until they are indexed.
    pieces: Mutex<Option<Arc<ChunkedColumn<K>>>>,
    index: OnceLock<Result<Arc<dyn RangeIndex<K>>, EngineError>>,
    len: usize,
    /// How many pieces there are, or were.
    count: usize,
    engine: CpuEngine,
    options: BuildOptions,
    /// How many rows all ranges had that were counted, and pieces all batches.
    counted: AtomicUsize,
}

impl<K: CpuKey> LazyIndex<K> {
    fn new(pieces: Vec<Column<K>>, engine: CpuEngine, options: BuildOptions) -> Self {
        let pieces = ChunkedColumn::new(pieces);
        Self {
            len: pieces.len(),
            count: pieces.count(),
            pieces: Mutex::new(Some(Arc::new(pieces))),
            index: OnceLock::new(),
            engine,
            options,
            counted: AtomicUsize::new(0),
        }
    }

    fn pieces(&self) -> MutexGuard<'_, Option<Arc<ChunkedColumn<K>>>> {
        // Nothing is left half done: they are there or not.
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index, and whether it was not there.
    fn index(&self) -> Result<(&dyn RangeIndex<K>, bool), EngineError> {
        let mut is_new = false;
        let index = self.index.get_or_init(|| {
            is_new = true;
            let pieces = self.pieces().clone();
            let pieces = pieces.expect("the pieces stay until there is an index of them");
            let column = pieces.put_together()?;
            let index = self.engine.build(&column, &self.options)?;
            *self.pieces() = None;
            Ok(index)
        });
        match index {
            Ok(index) => Ok((&**index, is_new)),
            Err(error) => Err(error.clone()),
        }
    }

    fn built(&self) -> Option<&dyn RangeIndex<K>> {
        self.index.get()?.as_ref().ok().map(|index| &**index)
    }
}

impl<K: CpuKey> Late for LazyIndex<K> {
    fn should_build(&self, left: &[i64], right: &[i64]) -> bool {
        if self.is_built() {
            return false;
        }
        // Every batch looks at all pieces.
        let rows = rows(left, right).saturating_add(self.count);
        let before = self.counted.fetch_add(rows, Ordering::Relaxed);
        rows > AT_ONCE || before.saturating_add(rows) > FEW.max(self.len / SHARE)
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
        // One without a copy of its own keeps what was put together for it.
        let copied = self.count > 1 && bytes == index_bytes;
        bytes + if copied { self.len * size_of::<K>() } else { 0 }
    }

    fn answer(&self, left: &[i64], right: &[i64], out: Answers<'_, K>) -> Result<(), EngineError> {
        out.check(left, right)?;
        if out.positions.is_some() && !self.has_positions() {
            return Err(EngineError::NoPositions);
        }
        let pieces = self.pieces().clone();
        match pieces {
            Some(pieces) => pieces.answer(left, right, out),
            None => self.index()?.0.answer(left, right, out),
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

/// How many rows ranges have together, those counted twice that lie in two. Of ranges that lie in the column; of others it says little, which
/// makes an index be built sooner or later, and nothing else.
fn rows(left: &[i64], right: &[i64]) -> usize {
    let rows = left.iter().zip(right).map(|(left, right)| {
        let rows = right.wrapping_sub(*left).wrapping_add(1);
        // None for an empty one, without the comparison that not all vectors have.
        (rows & !(rows >> (i64::BITS - 1))) as usize
    });
    rows.fold(0, usize::wrapping_add)
}

#[cfg(test)]
#[allow(clippy::cast_precision_loss, reason = "small numbers")]
mod tests {
    use super::*;
    use crate::column::Validity;
    use crate::key::Encoding;
    use rmq_testing::random;

    /// What a query may find: the value's bits and its position.
    type Found<K> = Option<(K, i64)>;

    fn asked<K: CpuKey>(
        index: &dyn RangeIndex<K>,
        left: &[i64],
        right: &[i64],
        positions: bool,
    ) -> Vec<Found<K>> {
        let n = left.len();
        // What was there before must not shine through.
        let (mut values, mut places) = (vec![K::SIGN; n], vec![-7; n]);
        let mut valid = vec![u64::MAX; n.div_ceil(64)];
        let out = Answers {
            values: Some(&mut values),
            positions: positions.then_some(&mut places[..]),
            valid: &mut valid,
        };
        index.answer(left, right, out).expect("the slices fit");
        let found = (0..n).map(|i| {
            let is_valid = valid[i / 64] >> (i % 64) & 1 == 1;
            let place = if positions { places[i] } else { 0 };
            is_valid.then_some((values[i], place))
        });
        let past = valid.last().map_or(0, |word| match n % 64 {
            0 => 0,
            some => word >> some,
        });
        assert_eq!(past, 0, "bits past the last query");
        found.collect()
    }

    fn check<K: CpuKey>(state: &mut u64, encoding: Encoding<K>, of: impl Fn(u64) -> K) {
        let n = random(state, 700) as usize;
        let few = 1 + random(state, 50);
        let bits: Vec<K> = (0..n).map(|_| of(random(state, few))).collect();
        let with_nulls = random(state, 2) == 0;
        let valid: Vec<bool> = (0..n)
            .map(|_| !with_nulls || random(state, 3) > 0)
            .collect();
        let mut pieces = vec![];
        let mut from = 0;
        // Of one length but the last, or of any, none among them.
        let (even, most) = (random(state, 2) == 0, 1 + random(state, 200));
        while from < n {
            let rows = if even { most } else { random(state, most + 1) };
            let to = n.min(from + rows as usize);
            let column = Column::new(Arc::new(bits[from..to].to_vec()), encoding);
            let offset = random(state, 20) as usize;
            let mut bitmap = vec![0x5A_u8; (offset + to - from).div_ceil(8)];
            for (bit, valid) in (offset..).zip(&valid[from..to]) {
                bitmap[bit / 8] &= !(1 << (bit % 8));
                bitmap[bit / 8] |= u8::from(*valid) << (bit % 8);
            }
            let validity = Validity::new(Arc::new(bitmap), offset);
            let some_null = valid[from..to].contains(&false);
            pieces.push(if some_null {
                column.with_validity(validity).expect("bits for all rows")
            } else {
                column
            });
            from = to;
        }
        let options = BuildOptions::default();
        let index = LazyIndex::new(pieces, CpuEngine::new(), options);
        assert_eq!(index.len(), n);
        let queries = random(state, 300);
        let bound = |state: &mut u64| match random(state, 20) {
            0 => i64::MIN,
            1 => i64::MAX,
            _ => random(state, n as u64 + 20) as i64 - 10,
        };
        let (left, right): (Vec<_>, Vec<_>) = (0..queries)
            .map(|_| {
                let left = bound(state);
                let near = left.saturating_add(random(state, 8) as i64 - 2);
                let right = if random(state, 2) == 0 {
                    near
                } else {
                    bound(state)
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
            assert_eq!(asked(&index, &left, &right, positions), naive(positions));
        }
        assert_eq!(index.index_bytes(), 0);
        assert_eq!(index.build(), Ok(true));
        assert_eq!(index.build(), Ok(false));
        assert!(index.pieces().is_none());
        for positions in [true, false] {
            assert_eq!(asked(&index, &left, &right, positions), naive(positions));
        }
    }

    #[test]
    fn pieces_are_scanned_as_an_index_answers() {
        let state = &mut 88_172_645_463_325_252;
        for _ in 0..150 {
            check::<u32>(state, Encoding::float(), |v| (v as f32 - 9.0).to_bits());
            check::<u64>(state, Encoding::signed().reversed(), |v| v.wrapping_sub(7));
            check::<u128>(state, Encoding::unsigned(), |v| u128::MAX - u128::from(v));
        }
    }

    #[test]
    fn it_pays_once_ranges_have_many_rows() {
        let column = Column::new(Arc::new(vec![1_u64; 4000]), Encoding::unsigned());
        let index = LazyIndex::new(vec![column], CpuEngine::new(), BuildOptions::default());
        // Empty ones, and 600 rows in two; each batch looks at one piece.
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
    fn it_pays_for_many_batches_of_many_pieces() {
        let pieces = (0..1000_u64).map(|i| Column::new(Arc::new(vec![i; 8]), Encoding::unsigned()));
        let index = LazyIndex::new(pieces.collect(), CpuEngine::new(), BuildOptions::default());
        // No rows at all.
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
        let index = LazyIndex::new(vec![column], CpuEngine::new(), options);
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
