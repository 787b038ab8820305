//! What the engine is compared with: plain implementations of the usual ways, and one crate.

use crate::index::ColumnValue;

/// The reference, `ref2`: reads two random cache lines of the column per query, prefetched well ahead, with bounds and
/// results streamed. No index that reads the column at both ends of a range is faster.
pub fn two_lines<T: ColumnValue>(column: &[T], a: &[i64], b: &[i64], out: &mut [T]) {
    /// Queries between a prefetch and its read. From 16 to 64 makes no difference that can be measured.
    const AHEAD: usize = 32;
    let prefetch = |position: i64| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch is a hint and does not fault.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(column.as_ptr().wrapping_add(position as usize).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = position;
    };
    let last = a.len() - 1;
    for i in 0..a.len() {
        let next = (i + AHEAD).min(last);
        prefetch(a[next]);
        prefetch(b[next]);
        let (x, y) = (column[a[i] as usize], column[b[i] as usize]);
        out[i] = if y < x { y } else { x };
    }
}

/// Reads each range, without an index.
pub fn scan<T: ColumnValue>(column: &[T], left: &[i64], right: &[i64], out: &mut [T]) {
    for ((l, r), out) in left.iter().zip(right).zip(out) {
        let range = &column[*l as usize..=*r as usize];
        // Eight minima, which the compiler keeps in vectors.
        let mut minima = [range[0]; 8];
        let chunks = range.chunks_exact(8);
        for value in chunks.remainder() {
            minima[0] = if *value < minima[0] {
                *value
            } else {
                minima[0]
            };
        }
        for chunk in chunks {
            for (min, value) in minima.iter_mut().zip(chunk) {
                *min = if *value < *min { *value } else { *min };
            }
        }
        *out = minima
            .into_iter()
            .fold(range[0], |a, b| if b < a { b } else { a });
    }
}

/// A sparse table: row `j` holds the minima of `2^j` neighbours. Two loads per query, `n log n` memory.
pub struct SparseTable<T> {
    rows: Vec<Vec<T>>,
}

impl<T: ColumnValue> SparseTable<T> {
    /// Returns the bytes that a table takes.
    pub fn bytes(n: usize) -> usize {
        n * size_of::<T>() * (n.ilog2() as usize + 1)
    }

    pub fn new(column: &[T]) -> Self {
        let mut rows = vec![column.to_vec()];
        let mut half = 1;
        while 2 * half <= column.len() {
            let below = &rows[rows.len() - 1];
            let row = below
                .iter()
                .zip(&below[half..])
                .map(|(a, b)| if b < a { *b } else { *a })
                .collect();
            rows.push(row);
            half *= 2;
        }
        Self { rows }
    }

    pub fn answer(&self, left: &[i64], right: &[i64], out: &mut [T]) {
        for ((l, r), out) in left.iter().zip(right).zip(out) {
            let (l, r) = (*l as usize, *r as usize);
            let row = (r - l + 1).ilog2() as usize;
            let (a, b) = (self.rows[row][l], self.rows[row][r + 1 - (1 << row)]);
            *out = if b < a { b } else { a };
        }
    }
}

/// A segment tree in one array, its leaves in the upper half, searched from below.
pub struct SegmentTree<T> {
    nodes: Vec<T>,
}

impl<T: ColumnValue> SegmentTree<T> {
    pub fn new(column: &[T]) -> Self {
        let n = column.len();
        let mut nodes = vec![column[0]; n];
        nodes.extend_from_slice(column);
        for i in (1..n).rev() {
            let (a, b) = (nodes[2 * i], nodes[2 * i + 1]);
            nodes[i] = if b < a { b } else { a };
        }
        Self { nodes }
    }

    pub fn answer(&self, left: &[i64], right: &[i64], out: &mut [T]) {
        let n = self.nodes.len() / 2;
        for ((l, r), out) in left.iter().zip(right).zip(out) {
            let (mut l, mut r) = (*l as usize + n, *r as usize + n + 1);
            let mut best = self.nodes[l];
            while l < r {
                if l % 2 == 1 {
                    best = if self.nodes[l] < best {
                        self.nodes[l]
                    } else {
                        best
                    };
                    l += 1;
                }
                if r % 2 == 1 {
                    r -= 1;
                    best = if self.nodes[r] < best {
                        self.nodes[r]
                    } else {
                        best
                    };
                }
                l /= 2;
                r /= 2;
            }
            *out = best;
        }
    }
}

/// The crate `vers-vecs`: positions in constant time, over `u64`.
pub struct VersVecs {
    index: vers_vecs::FastRmq,
}

impl VersVecs {
    pub fn new<T: ColumnValue>(column: &[T]) -> Self {
        Self {
            index: vers_vecs::FastRmq::from_vec(column.iter().map(|value| value.key()).collect()),
        }
    }

    /// Returns the bytes without its copy of the values.
    pub fn bytes(&self) -> usize {
        self.index.heap_size() - self.index.len() * 8
    }

    pub fn answer(&self, left: &[i64], right: &[i64], out: &mut [i64]) {
        for ((l, r), out) in left.iter().zip(right).zip(out) {
            *out = self.index.range_min(*l as usize, *r as usize) as i64;
        }
    }
}
