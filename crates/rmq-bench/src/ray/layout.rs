//! Where the triangles are.
//!
//! An entry's triangle is in the plane x = p, and a ray along x from the plane x = 0 hits the triangles of the entries
//! of its range: the first one that it hits is that of the least. Across the rays, blocks have side 1, as published,
//! and coordinates are multiples of half the distance of two entries, a power of two, so they and their differences
//! are exact.
//!
//! Devices compute the distance p of a hit with an error of some units in the last place, so planes that are as close
//! as neighbouring floats are not told apart. As published, p is the value: answers are then off by about the error.
//! Else p is a float that only tells the rank of the value among all distinct ones, [`GAP`] floats from the next: the
//! first hit is then the least value. Ranks spread over several powers of two where there are more than 2^19.

use super::error::VulkanError;

/// Neighbouring floats from a plane to the next.
const GAP: u32 = 16;

/// The exponent of floats from 1 on.
const BIAS: u32 = 127;

/// Bits of a fraction.
const FRACTION: u32 = 23;

/// The most steps that a coordinate across the rays is long: halves of them are exact up to there.
const LONGEST: u64 = 1 << 23;

/// The distance of minima in their cell, 2^-23 of a block, as published.
pub const MINIMUM_STEP: f32 = 1.0 / LONGEST as f32;

/// The planes of all entries.
#[derive(Debug, Clone, PartialEq)]
pub struct Planes {
    /// Positive floats, as bits.
    pub bits: Vec<u32>,
    /// Beyond all planes.
    pub end: f32,
}

/// Returns planes by the ranks of values.
///
/// # Errors
/// [`VulkanError::Unsupported`] for more than 2^26 distinct values.
pub fn rank_planes(values: &[u32]) -> Result<Planes, VulkanError> {
    let (Some(least), Some(greatest)) = (values.iter().min(), values.iter().max()) else {
        return Ok(Planes {
            bits: Vec::new(),
            end: 1.0,
        });
    };
    // A bit for each value that occurs, and the number of those before each word.
    let mut occurs = vec![0_u64; ((greatest - least) / 64 + 1) as usize];
    for value in values {
        let offset = value - least;
        occurs[(offset / 64) as usize] |= 1 << (offset % 64);
    }
    let mut before = Vec::with_capacity(occurs.len());
    let mut distinct = 0_u32;
    for word in &occurs {
        before.push(distinct);
        distinct += word.count_ones();
    }
    let rank = |value: &u32| {
        let (word, bit) = (((value - least) / 64) as usize, (value - least) % 64);
        before[word] + (occurs[word] & ((1 << bit) - 1)).count_ones()
    };
    if distinct > 1 << 26 {
        let why = format!("{distinct} distinct values are too many planes");
        return Err(VulkanError::Unsupported(why));
    }
    let powers = (distinct * GAP).div_ceil(1 << FRACTION).next_multiple_of(2);
    // As many powers of two below 1 as above.
    let first = (BIAS - powers / 2) << FRACTION;
    Ok(Planes {
        bits: values
            .iter()
            .map(|value| first + rank(value) * GAP)
            .collect(),
        end: f32::from_bits(first + distinct * GAP + GAP) * 2.0,
    })
}

/// Returns planes by values uniform in [0, 1), multiples of 2^-24, as published; none is 0, where rays begin.
pub fn value_planes(values: &[u32]) -> Planes {
    let step = f32::from_bits((BIAS - 24) << FRACTION);
    let plane = |value: &u32| (f32::from_bits(*value) + step).to_bits();
    Planes {
        bits: values.iter().map(plane).collect(),
        end: 2.0,
    }
}

/// The blocks of a column on a grid of cells, after that of their minima.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// A block has 2^shift values.
    pub shift: u32,
    pub blocks: u32,
    /// Cells side by side.
    pub side: u32,
}

impl Grid {
    /// Lays `rows` values out in blocks of 2^shift, or one block where there are no more.
    ///
    /// # Errors
    /// [`VulkanError::Unsupported`] where coordinates are too long to be exact.
    pub fn new(rows: u64, shift: u32) -> Result<Self, VulkanError> {
        let shift = shift.min(rows.next_power_of_two().ilog2()).max(1);
        let blocks = rows.div_ceil(1 << shift);
        let root = (blocks + 1).isqrt();
        let side = root + u64::from(root * root < blocks + 1);
        if (2 * side) << shift > LONGEST || blocks > LONGEST {
            return Err(VulkanError::Unsupported(format!(
                "{blocks} blocks of 2^{shift} values have coordinates that are not exact as floats"
            )));
        }
        Ok(Self {
            shift,
            blocks: blocks as u32,
            side: side as u32,
        })
    }
}

/// Returns 2^-shift.
pub fn fraction(shift: u32) -> f32 {
    f32::from_bits((BIAS - shift) << FRACTION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_have_the_order_of_values_with_gaps() {
        let values: Vec<u32> = [0.75_f32, 0.0, 0.5, 0.75, 0.25, 1e-20]
            .map(f32::to_bits)
            .into();
        let planes = rank_planes(&values).expect("there are few");
        for (i, a) in values.iter().enumerate() {
            for (j, b) in values.iter().enumerate() {
                let (p, q) = (planes.bits[i], planes.bits[j]);
                assert_eq!(a.cmp(b), p.cmp(&q));
                assert!(p == q || p.abs_diff(q) >= GAP);
            }
            let plane = f32::from_bits(planes.bits[i]);
            assert!(plane.is_normal() && plane < planes.end);
        }
        assert!(rank_planes(&[]).expect("there are none").bits.is_empty());
    }

    #[test]
    fn many_ranks_spread_over_powers_of_two() {
        let values: Vec<u32> = (0..3 << 20).collect();
        let planes = rank_planes(&values).expect("there are few enough");
        assert!(planes.bits.is_sorted());
        let (first, last) = (planes.bits[0], planes.bits[values.len() - 1]);
        assert_eq!(first, 0.125_f32.to_bits());
        assert!(f32::from_bits(last) < 8.0 && planes.end > f32::from_bits(last));
    }

    #[test]
    fn values_are_planes_as_published() {
        let planes = value_planes(&[0.0_f32.to_bits(), 0.5_f32.to_bits()]);
        let step = 1.0 / f32::from(1_u16 << 12).powi(2);
        assert_eq!(planes.bits[0], step.to_bits());
        assert!(planes.bits[1] > 0.5_f32.to_bits());
    }

    #[test]
    fn grids_are_as_square_as_can_be() {
        let grid = Grid::new(1 << 26, 15).expect("it is exact");
        assert_eq!((grid.blocks, grid.side), (2048, 46));
        assert!(Grid::new(1 << 26, 17).is_ok() && Grid::new(1 << 26, 12).is_ok());
        let grid = Grid::new(1000, 15).expect("it is exact");
        assert_eq!((grid.shift, grid.blocks, grid.side), (10, 1, 2));
        assert!(Grid::new(1 << 30, 20).is_err());
        assert!(Grid::new(1 << 26, 2).is_err());
    }
}
