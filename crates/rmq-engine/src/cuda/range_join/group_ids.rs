//! Group ids on their way to a device: as 16 bits where there are few groups, with one id for rows of no group.

use crate::CandidateRanges;
use crate::cpu::simd::dispatch::{SupportedSimd, multiversion};

/// Group ids go to a device as 16 bits where there are fewer groups than this: one id is left for rows of no group.
const MAX_NARROW_GROUPS: usize = 65_535;

/// Returns whether the ids of this many groups take 16 bits on a device.
pub fn are_narrow(groups: usize) -> bool {
    groups < MAX_NARROW_GROUPS
}

/// The integer type of ids on a device.
pub trait DeviceId: Copy {
    /// Converts an id that fits.
    fn from_u32(id: u32) -> Self;
}

impl DeviceId for u16 {
    #[inline(always)]
    fn from_u32(id: u32) -> Self {
        id as Self
    }
}

impl DeviceId for u32 {
    #[inline(always)]
    fn from_u32(id: u32) -> Self {
        id
    }
}

/// Writes ids, with `groups` for those that are no group's. Returns whether all others are [`CandidateRanges::NO_GROUP`].
pub fn convert<T: DeviceId>(ids: &[u32], groups: u32, to: &mut [T]) -> bool {
    let mut all_right = true;
    convert_vectorized(SupportedSimd::best(), ids, groups, to, &mut all_right);
    all_right
}

multiversion! {
    fn convert_vectorized[T: DeviceId](ids: &[u32], groups: u32, to: &mut [T], all_right: &mut bool) {
        *all_right = convert_inlined(ids, groups, to);
    }
}

#[inline(always)]
fn convert_inlined<T: DeviceId>(ids: &[u32], groups: u32, to: &mut [T]) -> bool {
    let mut wrong = false;
    for (id, to) in ids.iter().zip(to) {
        *to = T::from_u32((*id).min(groups));
        wrong |= *id >= groups && *id != CandidateRanges::NO_GROUP;
    }
    !wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_no_group_are_behind_all_groups() {
        let ids = [0, 6, 7, u32::MAX, 65_536, 3];
        let mut narrow = [9_u16; 6];
        assert!(!convert(&ids, 7, &mut narrow));
        assert_eq!(narrow, [0, 6, 7, 7, 7, 3]);
        let mut wide = [9_u32; 4];
        assert!(convert(&[0, 6, u32::MAX, 5], 7, &mut wide));
        assert_eq!(wide, [0, 6, 7, 5]);
    }
}
