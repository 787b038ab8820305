//! Group ids on their way to a device: as 16 bits where there are few groups, with one id for rows of no group.

use std::ops::Range;

use super::chunks::Starts;
use crate::cpu::simd::dispatch::{SupportedSimd, multiversion};
use crate::{CandidateRanges, PartGroups, RowIds};

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

/// The integer type of ids on the host.
pub trait HostId: Copy + PartialEq + Into<u32> {
    /// The id of a row of no group.
    const NO_GROUP: Self;
}

impl HostId for u16 {
    const NO_GROUP: Self = Self::MAX;
}

impl HostId for u32 {
    const NO_GROUP: Self = CandidateRanges::NO_GROUP;
}

/// An id in 32 bits. There may be more groups than ids of 16 bits.
#[inline(always)]
fn wide<I: HostId>(id: I) -> u32 {
    if id == I::NO_GROUP {
        CandidateRanges::NO_GROUP
    } else {
        id.into()
    }
}

/// The groups of all rows of a build side.
pub struct GroupsOfRows<'a> {
    parts: Vec<Part<'a>>,
    starts: Starts,
    groups: u32,
}

struct Part<'a> {
    of: &'a PartGroups<'a>,
    /// The first row of each run, if ids are in runs.
    runs: Starts,
}

impl<'a> GroupsOfRows<'a> {
    /// Those of checked parts, of `groups` groups.
    pub fn new(parts: &'a [PartGroups<'a>], groups: u32) -> Self {
        let starts = Starts::new(parts.iter().map(|part| part.ids.rows()));
        let parts = parts.iter().map(|of| {
            let runs = match of.ids {
                RowIds::Runs(runs) => runs,
                RowIds::Wide(_) | RowIds::Narrow(_) => &[],
            };
            let runs = Starts::new(runs.iter().map(|(_, rows)| *rows as usize));
            Part { of, runs }
        });
        Self {
            parts: parts.collect(),
            starts,
            groups,
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.starts.rows()
    }

    /// Writes the groups of the rows from `first` on to all of `to`, with the number of groups for rows of no group.
    /// Returns false if an id is neither one of the part's nor that of no group.
    pub fn write<T: DeviceId>(&self, first: usize, to: &mut [T]) -> bool {
        let (mut rest, mut all_right) = (to, true);
        let rows = first..first + rest.len();
        self.starts.visit(rows, |part, rows| {
            let (here, behind) = std::mem::take(&mut rest).split_at_mut(rows.len());
            all_right &= self.parts[part].write(rows, self.groups, here);
            rest = behind;
        });
        all_right
    }
}

impl Part<'_> {
    fn write<T: DeviceId>(&self, rows: Range<usize>, groups: u32, to: &mut [T]) -> bool {
        let numbers = self.of.groups;
        match self.of.ids {
            RowIds::Wide(ids) => write_each(&ids[rows], numbers, groups, to),
            RowIds::Narrow(ids) => write_each(&ids[rows], numbers, groups, to),
            RowIds::Runs(runs) => {
                let (mut rest, mut all_right) = (to, true);
                self.runs.visit(rows, |run, rows| {
                    let (here, behind) = std::mem::take(&mut rest).split_at_mut(rows.len());
                    let mut group = [T::from_u32(groups)];
                    all_right &= write_each(&[runs[run].0], numbers, groups, &mut group);
                    here.fill(group[0]);
                    rest = behind;
                });
                all_right
            }
        }
    }
}

/// Writes the groups of ids, which are in `numbers` unless ids are groups.
fn write_each<I: HostId, T: DeviceId>(
    ids: &[I],
    numbers: Option<&[u32]>,
    groups: u32,
    to: &mut [T],
) -> bool {
    let Some(numbers) = numbers else {
        return convert(ids, groups, to);
    };
    let mut all_right = true;
    for (id, to) in ids.iter().zip(to) {
        let id = wide(*id);
        let group = numbers.get(id as usize);
        *to = T::from_u32(group.copied().unwrap_or(groups));
        all_right &= group.is_some() || id == CandidateRanges::NO_GROUP;
    }
    all_right
}

/// Writes ids that are groups.
pub fn convert<I: HostId, T: DeviceId>(ids: &[I], groups: u32, to: &mut [T]) -> bool {
    let mut all_right = true;
    convert_vectorized(SupportedSimd::best(), ids, groups, to, &mut all_right);
    all_right
}

multiversion! {
    fn convert_vectorized[I: HostId, T: DeviceId](ids: &[I], groups: u32, to: &mut [T], all_right: &mut bool) {
        *all_right = convert_inlined(ids, groups, to);
    }
}

#[inline(always)]
fn convert_inlined<I: HostId, T: DeviceId>(ids: &[I], groups: u32, to: &mut [T]) -> bool {
    let mut wrong = false;
    for (id, to) in ids.iter().zip(to) {
        let id = wide(*id);
        *to = T::from_u32(id.min(groups));
        wrong |= id >= groups && id != CandidateRanges::NO_GROUP;
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
        assert!(convert(&[0_u16, 6, u16::MAX, 5], 7, &mut wide));
        assert_eq!(wide, [0, 6, 7, 5]);
        assert!(!convert(&[0_u16, 6, 9, 5], 7, &mut wide));
        assert!(convert(&[0_u16, 6, u16::MAX, 5], 100_000, &mut wide));
        assert_eq!(wide, [0, 6, 100_000, 5]);
    }

    #[test]
    fn parts_of_all_forms_read_as_one() {
        // Each part numbers the groups 4, 2, 0 from 0 on.
        let numbers = [4, 2, 0];
        let (wide, narrow) = ([0, 1, u32::MAX, 2, 2], [2, u16::MAX, 0, 1]);
        let runs = [(1, 3), (u32::MAX, 2), (0, 1)];
        let part = |ids, is_numbered: bool| PartGroups {
            ids,
            groups: is_numbered.then_some(&numbers[..]),
        };
        let parts = [
            part(RowIds::Wide(&wide), true),
            part(RowIds::Narrow(&[]), true),
            part(RowIds::Narrow(&narrow), true),
            part(RowIds::Runs(&runs), true),
            part(RowIds::Runs(&[(3, 2)]), false),
            part(RowIds::Narrow(&narrow), false),
        ];
        let expected = [
            4, 2, 5, 0, 0, 0, 5, 4, 2, 2, 2, 2, 5, 5, 4, 3, 3, 2, 5, 0, 1,
        ];
        let groups = GroupsOfRows::new(&parts, 5);
        assert_eq!(groups.rows(), expected.len());
        for first in 0..=expected.len() {
            for end in first..=expected.len() {
                let (mut narrow, mut wide) = (vec![9_u16; end - first], vec![9_u32; end - first]);
                assert!(groups.write(first, &mut narrow) && groups.write(first, &mut wide));
                assert_eq!(wide, expected[first..end]);
                assert!(narrow.iter().map(|id| u32::from(*id)).eq(wide));
            }
        }
        for wrong in [RowIds::Wide(&[3]), RowIds::Runs(&[(3, 1)])] {
            let parts = [part(wrong, true)];
            assert!(!GroupsOfRows::new(&parts, 5).write(0, &mut [0_u32]));
        }
    }
}
