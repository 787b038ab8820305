//! HRMQ: a range-minimum index of little more than two bits per value, after Ferrada and Navarro, "Improved Range
//! Minimum Queries" (2017).
//!
//! Reading the column from left to right, a stack keeps the values that are not greater than any after them. The index
//! is the history of this stack: a 0 for each value that is popped, then a 1 for the value that is pushed. These are
//! the parentheses of the 2d-min heap. The excess of a prefix is its ones less its zeros, the height of the stack. The
//! minimum of values `i..=j` is the last one whose push begins at the smallest height since that of `i` began: at the
//! rightmost minimum of the excess between the `i`th and the `j`th one.
//!
//! That minimum is found in blocks of 512 prefixes, whose minima are kept in 16 bits relative to a superblock of 64
//! blocks, and in a sparse table over the superblocks. A block is searched byte by byte with a table.

use vers_vecs::{BitVec, RsVec};

/// Prefixes of a block.
const BLOCK: usize = 512;

/// Blocks of a superblock: relative minima fit 16 bits.
const BLOCKS: usize = 64;

/// The index of a column, which finds positions of minima without reading the column.
#[derive(Debug)]
pub struct Hrmq {
    bits: RsVec,
    /// The smallest excess of each block, relative to the excess at the beginning of its superblock.
    blocks: Vec<i16>,
    /// The excess at the beginning of each superblock.
    bases: Vec<i64>,
    /// The smallest excess of each superblock.
    superblocks: Vec<i64>,
    /// Row `k` has the superblock with the rightmost minimum among `2^k` superblocks from each on.
    rows: Vec<Vec<u32>>,
}

/// The rightmost minimum of the excess over some prefixes or blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lowest {
    excess: i64,
    /// The length of the prefix, or the block.
    at: usize,
}

impl Lowest {
    /// Takes `left`, which is of shorter prefixes, if it is lower.
    fn or_left(&mut self, left: Self) {
        if left.excess < self.excess {
            *self = left;
        }
    }
}

/// What one byte does to the excess, from its lowest bit on.
#[derive(Debug, Clone, Copy)]
struct Byte {
    /// The smallest excess after one or more bits, relative to that before.
    lowest: i8,
    /// The last number of bits after which it is reached.
    at: u8,
    /// The excess after all bits.
    total: i8,
}

const BYTES: [Byte; 256] = {
    let mut bytes = [Byte {
        lowest: 8,
        at: 0,
        total: 0,
    }; 256];
    let mut value = 0;
    while value < 256 {
        let mut bit = 0;
        while bit < 8 {
            let byte = &mut bytes[value];
            byte.total += if value >> bit & 1 == 1 { 1 } else { -1 };
            bit += 1;
            if byte.total <= byte.lowest {
                byte.lowest = byte.total;
                byte.at = bit;
            }
        }
        value += 1;
    }
    bytes
};

impl Hrmq {
    /// Builds the index on one thread.
    pub fn new<K: Copy + Ord>(values: &[K]) -> Self {
        let mut words = vec![0_u64; (2 * values.len()).div_ceil(64)];
        let (mut len, mut stack) = (0, Vec::new());
        for value in values {
            while stack.last().is_some_and(|top| top > value) {
                stack.pop();
                len += 1;
            }
            stack.push(*value);
            words[len / 64] |= 1 << (len % 64);
            len += 1;
        }
        drop(stack);
        words.truncate(len.div_ceil(64));
        let unused = words.len() * 64 - len;
        let mut bits = BitVec::from_vec(words);
        bits.drop_last(unused);
        let mut index = Self {
            bits: RsVec::from_bit_vec(bits),
            blocks: Vec::with_capacity(len.div_ceil(BLOCK)),
            bases: Vec::with_capacity(len.div_ceil(BLOCK * BLOCKS)),
            superblocks: Vec::with_capacity(len.div_ceil(BLOCK * BLOCKS)),
            rows: Vec::new(),
        };
        index.find_minima(len);
        index
    }

    /// Computes the minima of all blocks and superblocks.
    fn find_minima(&mut self, len: usize) {
        let mut excess = 0;
        for (block, start) in (0..len).step_by(BLOCK).enumerate() {
            if block % BLOCKS == 0 {
                self.bases.push(excess);
                self.superblocks.push(i64::MAX);
            }
            let end = (start + BLOCK).min(len);
            let lowest = self.lowest(excess, start, end - 1).excess;
            let superblock = self.bases.len() - 1;
            let of_all = &mut self.superblocks[superblock];
            *of_all = lowest.min(*of_all);
            // A block has at most BLOCKS * BLOCK - 1 bits between it and its base.
            self.blocks.push((lowest - self.bases[superblock]) as i16);
            excess += self.change(start, end);
        }
        let lowest = &self.superblocks;
        let mut row: Vec<u32> = (0..lowest.len() as u32).collect();
        let mut half = 1;
        while 2 * half <= lowest.len() {
            let pairs = row.iter().zip(&row[half..]);
            let lower = |(left, right): (&u32, &u32)| {
                let is_left = lowest[*left as usize] < lowest[*right as usize];
                if is_left { *left } else { *right }
            };
            let next = pairs.map(lower).collect();
            self.rows.push(std::mem::replace(&mut row, next));
            half *= 2;
        }
        self.rows.push(row);
    }

    /// Returns the position of the leftmost minimum of values `left..=right`.
    pub fn position(&self, left: usize, right: usize) -> usize {
        if left == right {
            return left;
        }
        let (first, last) = (self.bits.select1(left), self.bits.select1(right));
        // Before the one of a value there are as many ones as values before it.
        let excess_before = |one: usize, value: usize| 2 * value as i64 - one as i64;
        let excess = excess_before(first, left);
        let (first_block, last_block) = (first / BLOCK, last / BLOCK);
        let lowest = if first_block == last_block {
            self.lowest(excess, first, last)
        } else {
            let start = last_block * BLOCK;
            let excess_at_start = excess_before(last, right) - self.change(start, last);
            let mut lowest = self.lowest(excess_at_start, start, last);
            let left = self.lowest(excess, first, (first_block + 1) * BLOCK - 1);
            if let Some(between) = self.lowest_of_blocks(first_block + 1, last_block)
                && between.excess < lowest.excess
                && between.excess <= left.excess
            {
                let start = between.at * BLOCK;
                lowest.excess = between.excess;
                lowest.at = self.lowest(0, start, start + BLOCK - 1).at;
            }
            lowest.or_left(left);
            lowest
        };
        // A prefix with r ones has an excess of 2 r less its length.
        (lowest.excess + lowest.at as i64) as usize / 2
    }

    /// Finds the lowest prefix among those of `first..=last` bits; `excess` is that of `first` bits.
    fn lowest(&self, excess: i64, first: usize, last: usize) -> Lowest {
        let mut lowest = Lowest { excess, at: first };
        let (mut excess, mut at) = (excess, first);
        while at < last {
            let bits = (last - at).min(64);
            // Ones beyond the last bit lead only higher.
            let rest = if bits == 64 { 0 } else { u64::MAX << bits };
            let word = self.bits.get_bits_unchecked(at, bits) | rest;
            for (number, byte) in word.to_le_bytes()[..bits.div_ceil(8)].iter().enumerate() {
                let byte = BYTES[*byte as usize];
                let candidate = excess + i64::from(byte.lowest);
                if candidate <= lowest.excess {
                    lowest = Lowest {
                        excess: candidate,
                        at: at + 8 * number + byte.at as usize,
                    };
                }
                excess += i64::from(byte.total);
            }
            at += bits;
        }
        lowest
    }

    /// Returns by how much the excess changes over bits `start..end`.
    fn change(&self, start: usize, end: usize) -> i64 {
        let mut ones = 0;
        for at in (start..end).step_by(64) {
            let word = self.bits.get_bits_unchecked(at, (end - at).min(64));
            ones += i64::from(word.count_ones());
        }
        2 * ones - (end - start) as i64
    }

    /// Finds the block with the rightmost minimum among `first..end`; `None` if there are none.
    fn lowest_of_blocks(&self, first: usize, end: usize) -> Option<Lowest> {
        if first >= end {
            return None;
        }
        let (first_super, last_super) = (first / BLOCKS, (end - 1) / BLOCKS);
        if first_super == last_super {
            return Some(self.lowest_block(first, end));
        }
        let mut lowest = self.lowest_block(last_super * BLOCKS, end);
        if let Some(between) = self.lowest_superblock(first_super + 1, last_super)
            && self.superblocks[between] < lowest.excess
        {
            lowest = self.lowest_block(between * BLOCKS, (between + 1) * BLOCKS);
        }
        lowest.or_left(self.lowest_block(first, (first_super + 1) * BLOCKS));
        Some(lowest)
    }

    /// Finds the block with the rightmost minimum among `first..end` of one superblock.
    fn lowest_block(&self, first: usize, end: usize) -> Lowest {
        let blocks = &self.blocks[first..end];
        // In two passes, the first of which the compiler vectorizes.
        let lowest = blocks.iter().fold(i16::MAX, |least, one| least.min(*one));
        let offset = blocks.iter().rposition(|one| *one == lowest);
        Lowest {
            excess: self.bases[first / BLOCKS] + i64::from(lowest),
            at: first + offset.unwrap_or(0),
        }
    }

    /// Finds the superblock with the rightmost minimum among `first..end`; `None` if there are none.
    fn lowest_superblock(&self, first: usize, end: usize) -> Option<usize> {
        let row = (end.checked_sub(first)?).checked_ilog2()? as usize;
        let entries = &self.rows[row];
        let (left, right) = (entries[first] as usize, entries[end - (1 << row)] as usize);
        let is_left = self.superblocks[left] < self.superblocks[right];
        Some(if is_left { left } else { right })
    }
}

#[cfg(test)]
mod tests {
    use rmq_bench::random::mix;

    use super::*;

    /// Values that make the stack high, low and jump.
    fn columns(n: usize) -> [Vec<u64>; 6] {
        let n_values = n as u64;
        let random = |below: u64| (0..n_values).map(move |i| mix(i) % below);
        [
            random(u64::MAX).collect(),
            random(3).collect(),
            (0..n_values).collect(),
            (0..n_values).rev().collect(),
            vec![7; n],
            // Rises and falls longer than a superblock.
            (0..n_values)
                .map(|i| (i % 90_000).abs_diff(45_000) + mix(i) % 3)
                .collect(),
        ]
    }

    #[test]
    fn positions_are_those_of_a_scan() {
        for n in [1, 2, 3, 255, 256, 257, 511, 512, 513, 5_000, 40_000] {
            for (number, values) in columns(n).iter().enumerate() {
                let index = Hrmq::new(values);
                for i in 0..300_u64 {
                    let longest = [n, 20, 600, 20_000, 3][i as usize % 5].min(n) as u64;
                    let length = 1 + mix(3 * i) % longest;
                    let left = (mix(3 * i + 1) % (n as u64 - length + 1)) as usize;
                    let right = left + length as usize - 1;
                    let expected = (left..=right).min_by_key(|at| values[*at]);
                    let found = index.position(left, right);
                    assert_eq!(
                        Some(found),
                        expected,
                        "column {number}, n {n}, {left}..={right}"
                    );
                }
            }
        }
    }

    #[test]
    fn long_columns_have_the_answers_of_the_engine() {
        use rmq_bench::batches::{BatchOptions, CollectedAnswers, collect};
        use rmq_bench::data::{Data, column};
        use rmq_bench::index;
        use rmq_bench::kinds::ResultKind;
        use rmq_bench::workload::Workload;
        use rmq_engine::cpu::CpuEngine;
        use std::sync::Arc;

        let n = 300_000;
        for data in Data::ALL {
            let values = Arc::new(column::<u32>(data, n));
            let options = BatchOptions {
                result: ResultKind::Position,
                threads: 1,
                batch_size: 1 << 13,
            };
            let (engine, engine_column) = (CpuEngine::new(), index::float_column(&values));
            let built = index::build(&engine, &engine_column, options.result, 1, 1).unwrap();
            let bounds = Workload::Mixed.bounds(n, 20_000);
            let expected = collect(&*built.index, bounds.all(), options).unwrap();
            let index = Hrmq::new(&values);
            let ranges = bounds.left.iter().zip(&bounds.right);
            let found = ranges.map(|(l, r)| index.position(*l as usize, *r as usize) as i64);
            assert_eq!(
                CollectedAnswers::Positions(found.collect()),
                expected,
                "{data:?}"
            );
        }
    }
}
