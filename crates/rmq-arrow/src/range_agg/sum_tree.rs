//! A tree of block sums, which adds up any range of a column in a few additions per level.

use arrow::buffer::ScalarBuffer;
use datafusion_common::Result;

use crate::common::workers::{STEP, Workers};
use crate::range_agg::double_double::DoubleDouble;

/// How many values form a block, and how many blocks one of the next level.
const WIDTH: usize = 16;

/// Values without outliers, and the sums of their blocks.
#[derive(Debug)]
pub struct SumTree {
    values: ScalarBuffer<f64>,
    /// The sum of each whole block of [`WIDTH`] values.
    blocks: Vec<DoubleDouble>,
    /// Bottom up: the sums of `blocks`, then of the whole blocks of [`WIDTH`] of these, and so on.
    levels: Vec<Level>,
}

/// Sums of consecutive blocks of a level that are within one block of the next level, so that a range needs two of
/// them.
#[derive(Debug)]
struct Level {
    /// The sum from the first block of the next level's block to this one.
    until: Vec<DoubleDouble>,
    /// The sum from this block to the last of the next level's block.
    since: Vec<DoubleDouble>,
}

impl SumTree {
    /// Sums the blocks of values.
    ///
    /// # Errors
    /// If the query is cancelled.
    pub fn new(values: ScalarBuffer<f64>, workers: Workers) -> Result<Self> {
        let mut blocks = vec![DoubleDouble::default(); values.len() / WIDTH];
        let steps = values.chunks(WIDTH * STEP).zip(blocks.chunks_mut(STEP));
        let sum_blocks = |(values, sums): (&[f64], &mut [DoubleDouble])| {
            for (sum, block) in sums.iter_mut().zip(values.chunks_exact(WIDTH)) {
                sum.add_all(block);
            }
            Ok(())
        };
        workers.map(steps.collect(), sum_blocks)?;
        let mut levels: Vec<Level> = vec![];
        loop {
            let above: Vec<DoubleDouble>;
            let below = match levels.last() {
                None => &blocks,
                Some(level) => {
                    above = level.whole_blocks().collect();
                    &above
                }
            };
            if below.len() < 2 {
                break;
            }
            levels.push(Level::new(below, workers)?);
        }
        Ok(Self {
            values,
            blocks,
            levels,
        })
    }

    /// The bytes of the sums of this many values, the values not included.
    pub fn bytes(values: usize) -> usize {
        let blocks = values / WIDTH;
        let (mut level, mut sums) = (blocks, blocks);
        while level > 1 {
            sums += 2 * level;
            level /= WIDTH;
        }
        sums * size_of::<DoubleDouble>()
    }

    /// Sums the values of the positions `from..to`: where adding one by one is exact, so is this.
    pub fn sum(&self, from: usize, to: usize) -> DoubleDouble {
        let mut sum = DoubleDouble::default();
        let (first, end) = (from.div_ceil(WIDTH), to / WIDTH);
        if first >= end {
            sum.add_all(&self.values[from..to]);
            return sum;
        }
        sum.add_all(&self.values[from..first * WIDTH]);
        self.add_blocks(0, first, end, &mut sum);
        sum.add_all(&self.values[end * WIDTH..to]);
        sum
    }

    /// Adds the blocks `from..to`, at least one, of a level.
    fn add_blocks(&self, number: usize, from: usize, to: usize, sum: &mut DoubleDouble) {
        let last = to - 1;
        let Some(level) = self.levels.get(number) else {
            // A level of one block.
            return sum.add(self.block(number, from));
        };
        if from / WIDTH == last / WIDTH {
            if from.is_multiple_of(WIDTH) {
                return sum.add(level.until[last]);
            }
            if to.is_multiple_of(WIDTH) || to == level.since.len() {
                return sum.add(level.since[from]);
            }
            for block in from..to {
                sum.add(self.block(number, block));
            }
            return;
        }
        let (first, end) = (from.div_ceil(WIDTH), to / WIDTH);
        if !from.is_multiple_of(WIDTH) {
            sum.add(level.since[from]);
        }
        if first < end {
            self.add_blocks(number + 1, first, end, sum);
        }
        if !to.is_multiple_of(WIDTH) {
            sum.add(level.until[last]);
        }
    }

    /// The sum of one block of a level.
    fn block(&self, number: usize, block: usize) -> DoubleDouble {
        match number.checked_sub(1) {
            None => self.blocks[block],
            Some(below) => self.levels[below].until[(block + 1) * WIDTH - 1],
        }
    }
}

/// Blocks, and the sums until and since each of them.
type Step<'a> = (
    &'a [DoubleDouble],
    (&'a mut [DoubleDouble], &'a mut [DoubleDouble]),
);

impl Level {
    /// Sums consecutive blocks.
    fn new(blocks: &[DoubleDouble], workers: Workers) -> Result<Self> {
        let mut level = Self {
            until: vec![DoubleDouble::default(); blocks.len()],
            since: vec![DoubleDouble::default(); blocks.len()],
        };
        let sums = level
            .until
            .chunks_mut(STEP)
            .zip(level.since.chunks_mut(STEP));
        let steps = blocks.chunks(STEP).zip(sums);
        workers.map(steps.collect(), |(blocks, (until, since)): Step| {
            let sums = until.chunks_mut(WIDTH).zip(since.chunks_mut(WIDTH));
            for (blocks, (until, since)) in blocks.chunks(WIDTH).zip(sums) {
                let mut sum = DoubleDouble::default();
                for (until, block) in until.iter_mut().zip(blocks) {
                    sum.add(*block);
                    *until = sum;
                }
                let mut sum = DoubleDouble::default();
                for (since, block) in since.iter_mut().zip(blocks).rev() {
                    sum.add(*block);
                    *since = sum;
                }
            }
            Ok(())
        })?;
        Ok(level)
    }

    /// The sums of the whole blocks of the next level.
    fn whole_blocks(&self) -> impl Iterator<Item = DoubleDouble> {
        self.until
            .chunks_exact(WIDTH)
            .map(|of_block| of_block[WIDTH - 1])
    }
}
