//! Clips bounds to the column, and truncates them to 32 bits if the column is short enough.

use crate::cpu::simd::dispatch::{SupportedSimd, multiversion};

/// The integer type of a kernel's bounds.
pub trait Bound: Copy {
    /// Converts a bound that fits.
    fn from_i64(bound: i64) -> Self;
}

impl Bound for u32 {
    fn from_i64(bound: i64) -> Self {
        bound.cast_unsigned() as Self
    }
}

impl Bound for u64 {
    fn from_i64(bound: i64) -> Self {
        bound.cast_unsigned()
    }
}

/// Clips inclusive ranges to `0..rows`; an empty range becomes 1 and 0. All slices have the same length.
pub fn clip<B: Bound>(
    left: &[i64],
    right: &[i64],
    rows: u64,
    to_left: &mut [B],
    to_right: &mut [B],
) {
    // No column has more than `i64::MAX` values.
    let last = rows.cast_signed() - 1;
    let simd = SupportedSimd::best();
    clip_vectorized(simd, left, right, last, to_left, to_right);
}

multiversion! {
    fn clip_vectorized[B: Bound](l: &[i64], r: &[i64], last: i64, to_l: &mut [B], to_r: &mut [B]) {
        clip_inlined(l, r, last, to_l, to_r);
    }
}

#[inline(always)]
fn clip_inlined<B: Bound>(l: &[i64], r: &[i64], last: i64, to_l: &mut [B], to_r: &mut [B]) {
    for (((l, r), to_l), to_r) in l.iter().zip(r).zip(to_l).zip(to_r) {
        let (l, r) = ((*l).max(0), (*r).min(last));
        let nonempty = l <= r;
        *to_l = B::from_i64(if nonempty { l } else { 1 });
        *to_r = B::from_i64(if nonempty { r } else { 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_clipped_and_empty_ranges_become_one_and_zero() {
        let edges = [i64::MIN, -1, 0, 1, 6, 7, 8, i64::from(u32::MAX), i64::MAX];
        let pairs = || edges.iter().flat_map(|l| edges.map(|r| (*l, r)));
        let (left, right): (Vec<i64>, Vec<i64>) = pairs().unzip();
        for rows in [1_u64, 8, 1 << 32] {
            let mut narrow = (vec![9_u32; left.len()], vec![9_u32; left.len()]);
            let mut wide = (vec![9_u64; left.len()], vec![9_u64; left.len()]);
            clip(&left, &right, rows, &mut narrow.0, &mut narrow.1);
            clip(&left, &right, rows, &mut wide.0, &mut wide.1);
            for (i, (l, r)) in pairs().enumerate() {
                let (l, r) = (l.max(0), r.min(rows.cast_signed() - 1));
                let expected = if l <= r { (l, r) } else { (1, 0) };
                let expected = (expected.0.cast_unsigned(), expected.1.cast_unsigned());
                assert_eq!((wide.0[i], wide.1[i]), expected);
                assert_eq!((narrow.0[i].into(), narrow.1[i].into()), expected);
            }
        }
    }
}
