//! A tree of block sums, which adds up any range of a column in O(log n) additions.

use arrow::buffer::ScalarBuffer;

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
    pub(crate) fn new(values: ScalarBuffer<f64>) -> Self {
        let mut levels = vec![];
        let blocks = values.chunks_exact(WIDTH).map(|values| {
            let mut sum = DoubleDouble::default();
            sum.add_all(values);
            sum
        });
        let mut level: Vec<DoubleDouble> = blocks.collect();
        while !level.is_empty() {
            let above = level.chunks_exact(WIDTH).map(|blocks| {
                let mut sum = DoubleDouble::default();
                for block in blocks {
                    sum.add(*block);
                }
                sum
            });
            let above = above.collect();
            levels.push(std::mem::replace(&mut level, above));
        }
        Self { values, levels }
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
