//! Values that block sums can't contain: NaN, infinities, and values so large that sums of a few overflow.

use datafusion_common::Result;

use crate::common::workers::{STEP, Workers};
use crate::range_agg::double_double::DoubleDouble;
use crate::range_agg::sum_tree::SumTree;
use crate::sorted::id_table::number;

/// 2^960. Fewer than 2^32 values below this can't overflow.
pub const HUGE: f64 = f64::from_bits((1023 + 960) << 52);

/// 2^64: huge values are divided by this so that their sums don't overflow. They are too large to lose digits by it.
const SCALE: f64 = f64::from_bits((1023 + 64) << 52);

/// Whether a value is an outlier.
pub fn is_outlier(value: f64) -> bool {
    value.is_nan() || value.abs() >= HUGE
}

/// The number of outliers among values.
///
/// # Errors
/// If the query is cancelled.
pub fn count_outliers(values: &[f64], workers: Workers) -> Result<usize> {
    let steps = values.chunks(STEP).collect();
    let counts = workers.map(steps, |values: &[f64]| {
        Ok(values.iter().filter(|value| is_outlier(**value)).count())
    })?;
    Ok(counts.into_iter().sum())
}

/// The outliers of a column, stored apart so that ranges without one skip them.
#[derive(Debug)]
pub struct Outliers {
    /// Their positions, ascending.
    positions: Vec<u32>,
    /// The number of NaNs and infinities before each outlier, and in all.
    specials: Vec<Specials>,
    /// The finite outliers divided by [`SCALE`]; zeros for the others.
    huge: SumTree,
}

/// Counts of values that are not finite.
#[derive(Debug, Clone, Copy, Default)]
struct Specials {
    nans: u32,
    infinite: u32,
    negative_infinite: u32,
}

impl Outliers {
    /// Removes the outliers of a column and leaves zeros; `None` if there are none.
    ///
    /// # Errors
    /// If the query is cancelled.
    pub fn take_out(values: &mut [f64], workers: Workers) -> Result<Option<Self>> {
        let count = count_outliers(values, workers)?;
        if count == 0 {
            return Ok(None);
        }
        let mut positions = Vec::with_capacity(count);
        let mut specials = Vec::with_capacity(count + 1);
        let mut huge = Vec::with_capacity(count);
        let mut seen = Specials::default();
        specials.push(seen);
        for (position, value) in values.iter_mut().enumerate() {
            if !is_outlier(*value) {
                continue;
            }
            let value = std::mem::take(value);
            seen.nans += u32::from(value.is_nan());
            seen.infinite += u32::from(value == f64::INFINITY);
            seen.negative_infinite += u32::from(value == f64::NEG_INFINITY);
            positions.push(number(position));
            specials.push(seen);
            let finite = if value.is_finite() { value } else { 0.0 };
            huge.push(finite / SCALE);
        }
        Ok(Some(Self {
            positions,
            specials,
            huge: SumTree::new(huge.into(), workers)?,
        }))
    }

    /// Estimates the bytes of this many outliers.
    pub fn estimate(count: usize) -> usize {
        let each = size_of::<u32>() + size_of::<Specials>() + size_of::<f64>();
        count * each + SumTree::bytes(count)
    }

    /// Adds the outliers of the positions `from..to` to `plain`, the sum of the other values.
    pub fn add_to(&self, plain: DoubleDouble, from: usize, to: usize) -> DoubleDouble {
        let before = |end: usize| {
            self.positions
                .partition_point(|position| (*position as usize) < end)
        };
        let (from, to) = (before(from), before(to));
        if from == to {
            return plain;
        }
        let (before, all) = (self.specials[from], self.specials[to]);
        let infinite = all.infinite > before.infinite;
        let negative_infinite = all.negative_infinite > before.negative_infinite;
        let special = if all.nans > before.nans || infinite && negative_infinite {
            Some(f64::NAN)
        } else if infinite {
            Some(f64::INFINITY)
        } else if negative_infinite {
            Some(f64::NEG_INFINITY)
        } else {
            None
        };
        if let Some(hi) = special {
            return DoubleDouble { hi, lo: 0.0 };
        }
        let mut sum = self.huge.sum(from, to);
        if sum.hi == 0.0 {
            // They cancel out. Scaling the other values might lose digits.
            return plain;
        }
        sum.add(plain.scale(1.0 / SCALE));
        let sum = sum.scale(SCALE);
        if sum.hi.is_finite() {
            sum
        } else {
            DoubleDouble { lo: 0.0, ..sum }
        }
    }
}
