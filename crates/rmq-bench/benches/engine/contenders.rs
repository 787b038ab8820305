//! What the engine is measured against: small, honest implementations of the usual ways, and one crate.

use super::data::Cell;

/// The reference, `ref2`: what two random cache lines of the column cost a query, asked for well ahead, with the bounds
/// and the results streamed. No index that looks at the column at both ends of a range can do with less.
pub fn two_lines<T: Cell>(column: &[T], a: &[i64], b: &[i64], out: &mut [T]) {
    /// From 16 to 64 it makes no difference that could be measured.
    const AHEAD: usize = 32;
    let ask = |at: i64| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(column.as_ptr().wrapping_add(at as usize).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    };
    let last = a.len() - 1;
    for i in 0..a.len() {
        let next = (i + AHEAD).min(last);
        ask(a[next]);
        ask(b[next]);
        let (x, y) = (column[a[i] as usize], column[b[i] as usize]);
        out[i] = if y < x { y } else { x };
    }
}

/// No index: reads each range.
pub fn scan<T: Cell>(column: &[T], left: &[i64], right: &[i64], out: &mut [T]) {
    for ((l, r), out) in left.iter().zip(right).zip(out) {
        let range = &column[*l as usize..=*r as usize];
        // Eight minima at a time, so that the compiler makes vectors of them.
        let mut least = [range[0]; 8];
        let chunks = range.chunks_exact(8);
        for value in chunks.remainder() {
            least[0] = if *value < least[0] { *value } else { least[0] };
        }
        for chunk in chunks {
            for (least, value) in least.iter_mut().zip(chunk) {
                *least = if *value < *least { *value } else { *least };
            }
        }
        *out = least
            .into_iter()
            .fold(range[0], |a, b| if b < a { b } else { a });
    }
}

/// The sparse table: row `j` holds the minima of `2^j` neighbours. Two loads a query, `n log n` memory.
pub struct SparseTable<T> {
    rows: Vec<Vec<T>>,
}

impl<T: Cell> SparseTable<T> {
    /// Bytes it would take.
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

/// The segment tree in one array, leaves in the upper half, climbed from below.
pub struct SegmentTree<T> {
    nodes: Vec<T>,
}

impl<T: Cell> SegmentTree<T> {
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

/// The crate `vers-vecs`: constant-time queries that give the position, over `u64`.
pub struct Vers {
    index: vers_vecs::FastRmq,
}

impl Vers {
    pub fn new<T: Cell>(column: &[T]) -> Self {
        Self {
            index: vers_vecs::FastRmq::from_vec(column.iter().map(|value| value.key()).collect()),
        }
    }

    /// Bytes besides its copy of the values.
    pub fn bytes(&self) -> usize {
        self.index.heap_size() - self.index.len() * 8
    }

    pub fn answer(&self, left: &[i64], right: &[i64], out: &mut [i64]) {
        for ((l, r), out) in left.iter().zip(right).zip(out) {
            *out = self.index.range_min(*l as usize, *r as usize) as i64;
        }
    }
}
