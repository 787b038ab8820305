//! The build: for each level from the highest bit on, the rows are partitioned by that bit, on all threads.

use crate::cpu::huge_page_buf::HugePageBuf;
use crate::cpu::threads::in_parallel;
use crate::cpu::wavelet_matrix::bits::{Block, POSITIONS, block, blocks};
use crate::error::EngineError;

/// Rows per thread below which a further thread does not make the build faster.
const MIN_PER_THREAD: usize = 1 << 17;

/// The levels of a matrix: the blocks of one after another, and the rows whose bit is 0 on each.
#[derive(Debug)]
pub(super) struct Levels {
    pub(super) blocks: HugePageBuf<Block>,
    pub(super) zeros: Vec<u32>,
}

/// Builds the levels for ranks of this many bits.
pub(super) fn build_levels(
    ranks: &[u32],
    bits: u32,
    threads: usize,
    stops: &dyn Fn() -> bool,
) -> Result<Levels, EngineError> {
    let rows = ranks.len();
    let per_level = blocks(rows);
    let mut levels = HugePageBuf::<Block>::zeroed(per_level.saturating_mul(bits as usize))?;
    let mut zeros = Vec::with_capacity(bits as usize);
    let threads = threads.min(rows / MIN_PER_THREAD).max(1);
    // Whole blocks, so that each is written by one thread.
    let share = rows
        .div_ceil(threads)
        .next_multiple_of(POSITIONS)
        .max(POSITIONS);
    let (mut from, mut to) = (HugePageBuf::zeroed(0)?, HugePageBuf::zeroed(rows)?);
    for (level, blocks) in levels.chunks_exact_mut(per_level).enumerate() {
        if stops() {
            return Err(EngineError::Stopped);
        }
        let bit = bits - 1 - level as u32;
        let source = if level == 0 { ranks } else { &from };
        zeros.push(fill_level(source, bit, share, blocks, &mut to)?);
        if level == 0 && bits > 1 {
            from = HugePageBuf::zeroed(rows)?;
        }
        std::mem::swap(&mut from, &mut to);
    }
    Ok(Levels {
        blocks: levels,
        zeros,
    })
}

/// A part of a level, which one thread writes.
struct Part<'a> {
    source: &'a [u32],
    ones_before: u32,
    blocks: &'a mut [Block],
    zeros: &'a mut [u32],
    ones: &'a mut [u32],
}

/// Writes the bits of a level, and to `to` its rows in the order of the next one. Returns the number of zeros.
fn fill_level(
    source: &[u32],
    bit: u32,
    share: usize,
    blocks: &mut [Block],
    to: &mut [u32],
) -> Result<u32, EngineError> {
    let parts: Vec<&[u32]> = source.chunks(share).collect();
    let ones = in_parallel(parts.iter().copied(), |part| {
        part.iter().map(|rank| rank >> bit & 1).sum::<u32>()
    })?;
    let total: u32 = ones.iter().sum();
    let (mut zeros_left, mut ones_left) = to.split_at_mut(source.len() - total as usize);
    let mut blocks_left = blocks;
    let (mut work, mut before) = (vec![], 0);
    for (i, (source, ones)) in parts.iter().copied().zip(&ones).enumerate() {
        // The last part has the block of the position after the last row, too.
        let is_last = i + 1 == parts.len();
        let blocks = if is_last {
            blocks_left.len()
        } else {
            source.len() / POSITIONS
        };
        let (part_blocks, blocks) = blocks_left.split_at_mut(blocks);
        let (part_zeros, zeros) = zeros_left.split_at_mut(source.len() - *ones as usize);
        let (part_ones, others) = ones_left.split_at_mut(*ones as usize);
        (blocks_left, zeros_left, ones_left) = (blocks, zeros, others);
        work.push(Part {
            source,
            ones_before: before,
            blocks: part_blocks,
            zeros: part_zeros,
            ones: part_ones,
        });
        before += ones;
    }
    in_parallel(work.into_iter(), |part| fill_part(part, bit))?;
    // Checked when the build begins: rows fit in 32 bits.
    Ok((source.len() - total as usize) as u32)
}

fn fill_part(part: Part<'_>, bit: u32) {
    let Part {
        source,
        mut ones_before,
        blocks,
        zeros,
        ones,
    } = part;
    let (mut zeros_end, mut ones_end) = (0, 0);
    let rows = source.chunks(POSITIONS).chain(std::iter::repeat(&[][..]));
    for (out, rows) in blocks.iter_mut().zip(rows) {
        // Both sides are written each time and one of them is kept, as no branch tells random bits.
        let (mut zero_rows, mut one_rows) = ([0; POSITIONS], [0; POSITIONS]);
        let (mut zero_count, mut one_count) = (0, 0);
        let mut words = [0_u64; POSITIONS / 64];
        for (word, rows) in words.iter_mut().zip(rows.chunks(64)) {
            for (i, rank) in rows.iter().enumerate() {
                let is_one = rank >> bit & 1;
                *word |= u64::from(is_one) << i;
                zero_rows[zero_count] = *rank;
                one_rows[one_count] = *rank;
                zero_count += 1 - is_one as usize;
                one_count += is_one as usize;
            }
        }
        zeros[zeros_end..][..zero_count].copy_from_slice(&zero_rows[..zero_count]);
        ones[ones_end..][..one_count].copy_from_slice(&one_rows[..one_count]);
        zeros_end += zero_count;
        ones_end += one_count;
        (*out, ones_before) = block(words, ones_before);
    }
}
