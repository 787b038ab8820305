//! The build: one pass over the column, each level from the lines of the one below while they are in cache.

use bytemuck::Pod;

use crate::column::{Column, Validity, word};
use crate::cpu::huge_page_buf::HugePageBuf;
use crate::cpu::rmq::kernels::kernel::Kernel;
use crate::cpu::rmq::levels::{BLOCK, Levels, Parts};
use crate::cpu::rmq::next_valid::NextValid;
use crate::cpu::simd::prefetch::prefetch;
use crate::error::EngineError;
use crate::key::{Encoding, Key};

/// Values under a block of level 4.
const TOP: usize = BLOCK * BLOCK * BLOCK * BLOCK;

/// Values per thread below which a further thread does not make the build faster.
const MIN_PER_THREAD: usize = 1 << 20;

/// How many bytes ahead of the build the column is prefetched.
const AHEAD: usize = 4096;

/// The values that levels are built from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a, K> {
    pub(crate) values: &'a [K],
    pub(crate) alignment_offset: usize,
    pub(crate) encoding: Encoding<K>,
}

/// Returns the number of threads for `rows` values.
fn threads(rows: usize, max_threads: usize) -> usize {
    max_threads.min(rows / MIN_PER_THREAD).max(1)
}

/// Fills all levels and the sparse table, on up to `max_threads` threads. `fill` calls [`fill()`] with a block of level
/// 4 and the parts that begin there, compiled for an instruction set.
///
/// # Errors
/// [`EngineError::Thread`] if a thread cannot be started.
pub(crate) fn fill_levels<K: Key + Pod>(
    levels: &mut Levels<K>,
    source: Source<'_, K>,
    max_threads: usize,
    fill: impl Fn(usize, Parts<'_, K>) + Copy + Send,
) -> Result<(), EngineError> {
    let tops = levels.layout().len[3];
    let threads = threads(source.values.len(), max_threads);
    let share = tops.div_ceil(threads).max(1);
    let mut rest = levels.parts();
    std::thread::scope(|scope| {
        let mut first = 0;
        while first + share < tops {
            let (part, others) = rest.split(share);
            rest = others;
            std::thread::Builder::new()
                .name("rmq-build".to_owned())
                .spawn_scoped(scope, move || fill(first, part))
                .map_err(|error| EngineError::Thread(error.to_string()))?;
            first += share;
        }
        fill(first, rest);
        Ok(())
    })?;
    levels.fill_sparse();
    Ok(())
}

/// Fills the parts that begin at block `top` of level 4, padding included.
#[inline(always)]
pub(crate) fn fill<K: Key + Pod, S: Kernel<K>>(
    source: Source<'_, K>,
    top: usize,
    mut parts: Parts<'_, K>,
) {
    let total = source.alignment_offset + source.values.len();
    let begin = top * TOP;
    let end = (begin + parts.level[3].len() * TOP).min(total);
    // The origin of blocks may be before the column, hence `wrapping_sub`.
    let origin = source.values.as_ptr().wrapping_sub(source.alignment_offset);

    // One line of level 1, 256 values, at a time.
    for line in 0..(end - begin).div_ceil(BLOCK * BLOCK) {
        let from = begin + line * BLOCK * BLOCK;
        let mut lanes = [0_u32; BLOCK];
        let keys = &mut parts.level[0][line * BLOCK..][..BLOCK];
        if from >= source.alignment_offset && from + BLOCK * BLOCK <= end {
            for (i, key) in keys.iter_mut().enumerate() {
                // The hardware prefetcher stops at the end of each page.
                let ahead = origin
                    .wrapping_add(from + i * BLOCK)
                    .wrapping_byte_add(AHEAD);
                prefetch(ahead);
                if size_of::<K>() > 4 {
                    prefetch(ahead.wrapping_byte_add(64));
                }
                // SAFETY: all 256 values are inside the column.
                (*key, lanes[i]) = unsafe {
                    S::base(
                        origin.wrapping_add(from + i * BLOCK),
                        0xFFFF,
                        source.encoding,
                    )
                };
            }
        } else {
            for (i, key) in keys.iter_mut().enumerate() {
                let from = from + i * BLOCK;
                let mask = inside(from, source.alignment_offset, end);
                // SAFETY: the mask leaves only values inside the column.
                (*key, lanes[i]) =
                    unsafe { S::base(origin.wrapping_add(from), mask, source.encoding) };
            }
        }
        // SAFETY: `keys` holds 16 keys.
        let (least, lane) = unsafe { S::line(keys.as_ptr(), 0xFFFF) };
        parts.level[1][line] = least;
        if let Some(offset) = &mut parts.offset {
            let nibbles = offset.nibbles[line * 8..].iter_mut();
            for (pair, byte) in lanes.chunks_exact(2).zip(nibbles) {
                *byte = (pair[0] & 15) as u8 | ((pair[1] & 15) as u8) << 4;
            }
            offset.bytes[line] = (lane * 16 + (lanes[lane as usize % BLOCK] & 15)) as u8;
        }
    }
    let lines = [
        (end - begin).div_ceil(BLOCK),
        (end - begin).div_ceil(BLOCK * BLOCK),
        (end - begin).div_ceil(BLOCK * BLOCK * BLOCK),
        (end - begin).div_ceil(TOP),
    ];
    // Level 1 is complete up to whole lines; the others, and all padding, are filled here.
    let first_open = [lines[1] * BLOCK, lines[1], lines[2], lines[3]];
    for (level, open) in parts.level.iter_mut().zip(first_open) {
        level[open..].fill(K::MAX);
    }
    for upper in [2, 3] {
        let (below, above) = parts.level.split_at_mut(upper);
        for (i, key) in above[0][..lines[upper]].iter_mut().enumerate() {
            let line = &below[upper - 1][i * BLOCK..][..BLOCK];
            // SAFETY: `line` holds 16 keys.
            let (least, lane) = unsafe { S::line(line.as_ptr(), 0xFFFF) };
            *key = least;
            if let Some(offset) = &mut parts.offset {
                let child = i * BLOCK + lane as usize;
                if upper == 2 {
                    offset.words[i] = (lane * 256) as u16 + u16::from(offset.bytes[child]);
                } else {
                    offset.top[i] = (lane * 4096) as u16 + offset.words[child];
                }
            }
        }
    }
}

/// Returns the mask of the 16 positions from `from` on that are in `begin..end`.
fn inside(from: usize, begin: usize, end: usize) -> u32 {
    let low = begin.saturating_sub(from).min(BLOCK);
    let high = end.saturating_sub(from).min(BLOCK);
    if low >= high {
        return 0;
    }
    ((1 << high) - 1) & !((1 << low) - 1)
}

/// Copies a column as keys, with [`Key::MAX`] for NULL. Returns them and the positions that are not NULL.
///
/// # Errors
/// [`EngineError::OutOfMemory`], [`EngineError::Thread`].
pub(crate) fn without_nulls<K: Key + Pod>(
    column: &Column<K>,
    validity: &Validity,
    max_threads: usize,
) -> Result<(HugePageBuf<K>, NextValid), EngineError> {
    let bits = column.bits();
    let encoding = column.encoding();
    validity.check(bits.len())?;
    let mut copy = HugePageBuf::zeroed(bits.len())?;
    let mut next = NextValid::new(bits.len())?;
    let mut keys: &mut [K] = &mut copy;
    let mut leaves = next.leaves();
    // A multiple of 64, so that no two threads share a word of the bitmap.
    let share = bits
        .len()
        .div_ceil(threads(bits.len(), max_threads))
        .next_multiple_of(64);
    let bytes = validity.bytes();
    std::thread::scope(|scope| {
        let mut first = 0;
        while first + share < bits.len() {
            let (key_part, other_keys) = keys.split_at_mut(share);
            let (leaf_part, other_leaves) = leaves.split_at_mut(share / 64);
            (keys, leaves) = (other_keys, other_leaves);
            let part = &bits[first..first + share];
            let offset = validity.offset() + first;
            std::thread::Builder::new()
                .name("rmq-build".to_owned())
                .spawn_scoped(scope, move || {
                    copy_valid(part, encoding, bytes, offset, key_part, leaf_part);
                })
                .map_err(|error| EngineError::Thread(error.to_string()))?;
            first += share;
        }
        let offset = validity.offset() + first;
        copy_valid(&bits[first..], encoding, bytes, offset, keys, leaves);
        Ok(())
    })?;
    next.finish();
    Ok((copy, next))
}

/// Encodes `bits` into `keys`, with the greatest key for NULL, and copies their validity from bit `offset` of `bytes`
/// on.
fn copy_valid<K: Key>(
    bits: &[K],
    encoding: Encoding<K>,
    bytes: &[u8],
    offset: usize,
    keys: &mut [K],
    leaves: &mut [u64],
) {
    let chunks = bits.chunks(64).zip(keys.chunks_mut(64)).zip(leaves);
    for (i, ((bits, keys), leaf)) in chunks.enumerate() {
        let valid = word(bytes, offset + i * 64, bits.len());
        *leaf = valid;
        for (j, (bits, key)) in bits.iter().zip(keys).enumerate() {
            let encoded = encoding.encode(*bits);
            *key = if valid >> j & 1 == 1 { encoded } else { K::MAX };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_has_the_bits_of_positions_in_the_range() {
        for from in [0, 16, 32] {
            for begin in 0..40 {
                for end in 0..60 {
                    let mut expected = 0;
                    for i in 0..16 {
                        let at = from + i;
                        expected |= u32::from(begin <= at && at < end) << i;
                    }
                    assert_eq!(inside(from, begin, end), expected);
                }
            }
        }
    }
}
