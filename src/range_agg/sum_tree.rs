//! A tree of block sums, which adds up any range of a column in O(log n) additions.

use arrow::buffer::ScalarBuffer;
use datafusion::common::Result;

use crate::common::workers::{STEP, Workers};
use crate::range_agg::double_double::DoubleDouble;

/// How many values, or blocks, form one block of the next level.
const WIDTH: usize = 16;

/// Values without outliers, and the sums of their blocks.
#[derive(Debug)]
pub(crate) struct SumTree {
    values: ScalarBuffer<f64>,
    /// Bottom up: the sums of whole blocks of [`WIDTH`] values, of [`WIDTH`] such blocks, and so on.
    levels: Vec<Vec<DoubleDouble>>,
}

impl SumTree {
    /// Sums the blocks of values.
    ///
    /// # Errors
    /// If the query is cancelled.
    pub(crate) fn new(values: ScalarBuffer<f64>, workers: Workers) -> Result<Self> {
        let mut levels = vec![];
        let mut level = sum_blocks(&values, workers, |values| {
            let mut sum = DoubleDouble::default();
            sum.add_all(values);
            sum
        })?;
        while !level.is_empty() {
            let above = sum_blocks(&level, workers, |blocks| {
                let mut sum = DoubleDouble::default();
                for block in blocks {
                    sum.add(*block);
                }
                sum
            })?;
            levels.push(std::mem::replace(&mut level, above));
        }
        Ok(Self { values, levels })
    }

    /// Estimates the bytes of the levels over this many values, the values not included.
    pub(crate) fn estimate(values: usize) -> usize {
        values / (WIDTH - 1) * size_of::<DoubleDouble>()
    }

    /// Sums the values of the positions `from..to`, from left to right: where adding one by one is exact, so is this.
    pub(crate) fn sum(&self, from: usize, to: usize) -> DoubleDouble {
        let mut sum = DoubleDouble::default();
        let (first, end) = (from.div_ceil(WIDTH), to / WIDTH);
        if first >= end {
            sum.add_all(&self.values[from..to]);
            return sum;
        }
        sum.add_all(&self.values[from..first * WIDTH]);
        add_blocks(&self.levels, first, end, &mut sum);
        sum.add_all(&self.values[end * WIDTH..to]);
        sum
    }
}

/// Sums each whole block.
fn sum_blocks<T: Sync>(
    items: &[T],
    workers: Workers,
    sum: impl Fn(&[T]) -> DoubleDouble + Sync,
) -> Result<Vec<DoubleDouble>> {
    let mut sums = vec![DoubleDouble::default(); items.len() / WIDTH];
    let steps = items.chunks(WIDTH * STEP).zip(sums.chunks_mut(STEP));
    workers.map(
        steps.collect(),
        |(items, sums): (&[T], &mut [DoubleDouble])| {
            for (to, block) in sums.iter_mut().zip(items.chunks_exact(WIDTH)) {
                *to = sum(block);
            }
            Ok(())
        },
    )?;
    Ok(sums)
}

/// Adds the blocks `from..to` of the lowest of these levels.
fn add_blocks(levels: &[Vec<DoubleDouble>], from: usize, to: usize, sum: &mut DoubleDouble) {
    let Some((level, above)) = levels.split_first() else {
        return;
    };
    let add = |sum: &mut DoubleDouble, from: usize, to: usize| {
        level[from..to].iter().for_each(|block| sum.add(*block));
    };
    let (first, end) = (from.div_ceil(WIDTH), to / WIDTH);
    if first >= end {
        return add(sum, from, to);
    }
    add(sum, from, first * WIDTH);
    add_blocks(above, first, end, sum);
    add(sum, end * WIDTH, to);
}
