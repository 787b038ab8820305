//! Bits whose ones before any position are counted in one read of 32 bytes.

/// The words of a block.
const WORDS: usize = 3;

/// The positions of a block.
pub(super) const POSITIONS: usize = WORDS * 64;

/// 192 bits, after one word of counts. From its lowest bit: 32 bits with the ones of all blocks before, then a byte for
/// each word of bits with the ones of this block before that word, which are 128 at most.
pub(super) type Block = [u64; 1 + WORDS];

/// The block of these bits, with this number of ones before it. Returns the ones before the next block, too.
pub(super) fn block(words: [u64; WORDS], before: u32) -> (Block, u32) {
    let mut block = [u64::from(before), 0, 0, 0];
    let mut ones = 0;
    for (i, bits) in words.into_iter().enumerate() {
        block[0] |= u64::from(ones) << (32 + 8 * i);
        block[1 + i] = bits;
        ones += bits.count_ones();
    }
    (block, before + ones)
}

/// Number of blocks for this many positions. The position after the last one has a block, too.
pub(super) fn blocks(positions: usize) -> usize {
    positions / POSITIONS + 1
}

/// Number of ones before a position.
#[inline(always)]
pub(super) fn ones_before(blocks: &[Block], position: u32) -> u32 {
    let block = &blocks[position as usize / POSITIONS];
    let within = position as usize % POSITIONS;
    let word = within / 64;
    let bits = block[1 + word] & !(u64::MAX << (within % 64));
    let of_block = (block[0] >> (32 + 8 * word)) & 0xFF;
    block[0] as u32 + of_block as u32 + bits.count_ones()
}

/// The address that [`ones_before`] reads.
#[inline(always)]
pub(super) fn address(blocks: &[Block], position: u32) -> *const Block {
    blocks.as_ptr().wrapping_add(position as usize / POSITIONS)
}
