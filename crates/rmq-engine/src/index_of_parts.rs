//! An index in parts, each of which indexes consecutive rows.
//!
//! Rows that are added to a column become a part of their own, and those before stay as they are. A query is split at
//! the parts' boundaries, each part answers its pieces as one batch, and the smallest of their keys wins, on ties that
//! of the earlier part. If the parts' sizes fall geometrically, there are O(log n) of them.

use std::sync::Arc;

use crate::crossings::{Crossings, ListLimits, RangeEnd, RowList, check_inputs, check_length};
use crate::engine::RangeIndex;
use crate::error::EngineError;
use crate::key::{Encoding, Key};
use crate::outputs::Answers;

/// The index of a column whose rows are indexed in parts.
#[derive(Debug)]
pub struct SegmentedIndex<K: Key> {
    /// None is empty.
    parts: Vec<PlacedIndex<K>>,
    len: usize,
    encoding: Encoding<K>,
    has_positions: bool,
}

#[derive(Debug)]
struct PlacedIndex<K: Key> {
    index: Arc<dyn RangeIndex<K>>,
    /// The positions of its first and its last row.
    first: i64,
    last: i64,
}

/// The pieces of a batch's ranges that lie in one part, by positions in the part.
#[derive(Debug, Default)]
struct Pieces {
    queries: Vec<usize>,
    left: Vec<i64>,
    right: Vec<i64>,
}

impl<K: Key> SegmentedIndex<K> {
    /// Creates the index of the rows of all parts, in their order. Parts may be empty.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] without a part, or if the parts encode values differently; [`EngineError::TooLong`].
    pub fn new(parts: Vec<Arc<dyn RangeIndex<K>>>) -> Result<Self, EngineError> {
        let Some(first) = parts.first() else {
            return Err(EngineError::Invalid("an index needs a part".to_string()));
        };
        let encoding = first.encoding();
        if parts.iter().any(|part| part.encoding() != encoding) {
            let why = "the parts of an index encode their values differently";
            return Err(EngineError::Invalid(why.to_string()));
        }
        let has_positions = parts.iter().all(|part| part.has_positions());
        let (mut placed, mut len) = (vec![], 0_usize);
        for index in parts.into_iter().filter(|part| !part.is_empty()) {
            let first = len;
            len = len.saturating_add(index.len());
            let (Ok(first), Ok(end)) = (i64::try_from(first), i64::try_from(len)) else {
                return Err(EngineError::TooLong { rows: len });
            };
            let last = end - 1;
            placed.push(PlacedIndex { index, first, last });
        }
        Ok(Self {
            parts: placed,
            len,
            encoding,
            has_positions,
        })
    }

    /// The parts that a range has rows of, with its bounds in each.
    fn pieces_of(&self, left: i64, right: i64) -> impl Iterator<Item = (usize, i64, i64)> {
        let from = self.parts.partition_point(|part| part.last < left);
        let parts = self.parts.iter().enumerate().skip(from);
        let parts = parts.take_while(move |(_, part)| part.first <= right && left <= right);
        parts.map(move |(number, part)| {
            let (left, right) = (left.max(part.first), right.min(part.last));
            (number, left - part.first, right - part.first)
        })
    }

    /// The pieces of these ranges, by part.
    fn pieces(&self, left: &[i64], right: &[i64]) -> Vec<Pieces> {
        let mut pieces: Vec<Pieces> = self.parts.iter().map(|_| Pieces::default()).collect();
        for (query, (left, right)) in left.iter().zip(right).enumerate() {
            for (part, left, right) in self.pieces_of(*left, *right) {
                pieces[part].queries.push(query);
                pieces[part].left.push(left);
                pieces[part].right.push(right);
            }
        }
        pieces
    }
}

impl Pieces {
    /// The pieces of queries without a result so far.
    fn unanswered(self, valid: &[u64]) -> Self {
        let mut rest = Self::default();
        for (i, query) in self.queries.into_iter().enumerate() {
            if !is_set(valid, query) {
                rest.queries.push(query);
                rest.left.push(self.left[i]);
                rest.right.push(self.right[i]);
            }
        }
        rest
    }

    /// The items of its queries.
    fn gather<T: Copy>(&self, items: &[T]) -> Vec<T> {
        self.queries.iter().map(|query| items[*query]).collect()
    }
}

impl<K: Key> RangeIndex<K> for SegmentedIndex<K> {
    fn len(&self) -> usize {
        self.len
    }

    fn encoding(&self) -> Encoding<K> {
        self.encoding
    }

    fn has_positions(&self) -> bool {
        self.has_positions
    }

    fn index_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.index.index_bytes()).sum()
    }

    fn memory_bytes(&self) -> usize {
        let bytes = self.parts.iter().map(|part| part.index.memory_bytes());
        bytes.sum()
    }

    fn device_bytes(&self) -> usize {
        let bytes = self.parts.iter().map(|part| part.index.device_bytes());
        bytes.sum()
    }

    fn answer(
        &self,
        left: &[i64],
        right: &[i64],
        mut out: Answers<'_, K>,
    ) -> Result<(), EngineError> {
        out.check(left, right)?;
        if out.positions.is_some() && !self.has_positions {
            return Err(EngineError::NoPositions);
        }
        let mut keys = vec![K::MAX; left.len()];
        out.valid.fill(0);
        if let Some(positions) = &mut out.positions {
            positions.fill(0);
        }
        for (part, pieces) in self.parts.iter().zip(self.pieces(left, right)) {
            let queries = &pieces.queries;
            if queries.is_empty() {
                continue;
            }
            let index = &part.index;
            let mut found = index.outputs(queries.len(), true, out.positions.is_some());
            index.answer(&pieces.left, &pieces.right, found.answers())?;
            let Some(values) = &found.values else {
                continue;
            };
            for (i, query) in queries.iter().enumerate() {
                if !is_set(&found.valid, i) {
                    continue;
                }
                let key = self.encoding.encode(values[i]);
                // The greatest key is that of a value, too.
                if key < keys[*query] || !is_set(out.valid, *query) {
                    keys[*query] = key;
                    set(out.valid, *query);
                    if let (Some(positions), Some(at)) = (&mut out.positions, &found.positions) {
                        positions[*query] = part.first + at[i];
                    }
                }
            }
        }
        if let Some(values) = out.values {
            for (value, key) in values.iter_mut().zip(keys) {
                *value = self.encoding.decode(key);
            }
        }
        Ok(())
    }

    fn crossings(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
        end: RangeEnd,
        out: Crossings<'_>,
    ) -> Result<(), EngineError> {
        out.check(left, right, thresholds.len())?;
        out.valid.fill(0);
        out.positions.fill(0);
        let mut parts: Vec<_> = self.parts.iter().zip(self.pieces(left, right)).collect();
        if end == RangeEnd::Last {
            parts.reverse();
        }
        for (part, pieces) in parts {
            let pieces = pieces.unanswered(out.valid);
            let (n, thresholds) = (pieces.queries.len(), pieces.gather(thresholds));
            let (mut positions, mut valid) = (vec![0; n], vec![0; n.div_ceil(64)]);
            let found = Crossings {
                positions: &mut positions,
                valid: &mut valid,
            };
            let (left, right) = (&pieces.left, &pieces.right);
            part.index.crossings(left, right, &thresholds, end, found)?;
            for (i, query) in pieces.queries.iter().enumerate() {
                if is_set(&valid, i) {
                    set(out.valid, *query);
                    out.positions[*query] = part.first + positions[i];
                }
            }
        }
        Ok(())
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
        let mut found = RowList::default();
        for ((left, right), threshold) in left.iter().zip(right).zip(thresholds) {
            let first = out.positions.len();
            for (part, left, right) in self.pieces_of(*left, *right) {
                let rows = out.room(first, limits);
                if rows == 0 {
                    break;
                }
                let room = ListLimits {
                    per_range: rows,
                    total: rows,
                };
                let part = &self.parts[part];
                let (index, threshold) = (&part.index, &[*threshold]);
                index.list_at_most(&[left], &[right], threshold, room, &mut found)?;
                let rows = found.positions.iter().map(|row| part.first + row);
                out.positions.extend(rows);
            }
            if !out.end_range(first, limits) {
                break;
            }
        }
        Ok(())
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
        counts.fill(0);
        for (part, pieces) in self.parts.iter().zip(self.pieces(left, right)) {
            let thresholds = pieces.gather(thresholds);
            let mut of_part = vec![0; thresholds.len()];
            let (left, right) = (&pieces.left, &pieces.right);
            part.index
                .count_at_most(left, right, &thresholds, &mut of_part)?;
            for (query, count) in pieces.queries.iter().zip(of_part) {
                counts[*query] += count;
            }
        }
        Ok(())
    }
}

/// Whether a bit of a bitmap is set.
fn is_set(bitmap: &[u64], i: usize) -> bool {
    bitmap[i / 64] >> (i % 64) & 1 == 1
}

/// Sets a bit of a bitmap.
fn set(bitmap: &mut [u64], i: usize) {
    bitmap[i / 64] |= 1 << (i % 64);
}
