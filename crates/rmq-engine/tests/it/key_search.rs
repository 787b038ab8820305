//! Key search through its trait, compared with a naive scan: on the CPU, and with the default methods that devices use.

use std::sync::Arc;

use rmq_engine::cpu::{CpuKeySearch, SearchKey};
use rmq_engine::{CandidateRanges, Column, Comparison, Encoding, EngineError};
use rmq_testing::{Random, runs};

use crate::oracle::{Width, small};

const COMPARISONS: [Comparison; 4] = [
    Comparison::Above,
    Comparison::AtLeast,
    Comparison::Below,
    Comparison::AtMost,
];

/// A distribution of keys.
#[derive(Debug, Clone, Copy)]
enum Spread {
    /// A few distinct keys, many of them equal.
    Equal,
    Uniform,
    Skewed,
    Arithmetic,
}

const SPREADS: [Spread; 4] = [
    Spread::Equal,
    Spread::Uniform,
    Spread::Skewed,
    Spread::Arithmetic,
];

/// Columns of keys, sorted within each group.
struct Case<K> {
    keys: Vec<K>,
    group_starts: Vec<usize>,
    encoding: Encoding<K>,
    columns: Vec<Column<K>>,
    what: String,
}

impl<K: Width + SearchKey> Case<K> {
    fn new(n: usize, groups: usize, random: &mut Random) -> Self {
        let spread = SPREADS[random.below(SPREADS.len())];
        let mut group_starts = vec![0];
        group_starts.extend((1..groups).map(|_| random.below(n + 1)));
        group_starts.push(n);
        group_starts.sort_unstable();
        let mut keys = vec![];
        for ends in group_starts.windows(2) {
            let (first, step) = (random.below(1000), 1 + random.below(5));
            let mut group: Vec<K> = (0..ends[1] - ends[0])
                .map(|i| match spread {
                    Spread::Arithmetic => K::from_bits((first + i * step) as u64),
                    _ if random.below(50) == 0 => [K::ZERO, K::MAX][random.below(2)],
                    Spread::Equal => K::from_bits(random.below(4) as u64),
                    Spread::Uniform => K::from_bits(random.next()),
                    Spread::Skewed => K::from_bits(1 << random.below(63)),
                })
                .collect();
            group.sort_unstable();
            keys.append(&mut group);
        }
        let encoding = [
            Encoding::unsigned(),
            Encoding::signed(),
            Encoding::float().reversed(),
        ][random.below(3)];
        // Keys of several groups share one column.
        let longest = if groups == 1 && random.below(2) == 0 {
            1 + random.below(100)
        } else {
            n.max(1)
        };
        let column = |keys: &[K]| {
            let bits: Vec<K> = keys.iter().map(|key| encoding.decode(*key)).collect();
            Column::new(Arc::new(bits), encoding)
        };
        Self {
            columns: keys.chunks(longest).map(column).collect(),
            what: format!("{spread:?}, {n} keys in {groups} groups, columns of {longest}"),
            keys,
            group_starts,
            encoding,
        }
    }

    /// Returns a bound below, among or above the keys.
    fn bound(&self, random: &mut Random) -> K {
        match random.below(4) {
            0 => K::from_bits(random.next()),
            1 => [K::ZERO, K::MAX][random.below(2)],
            _ if self.keys.is_empty() => K::from_bits(7),
            _ => self.keys[random.below(self.keys.len())],
        }
    }

    fn bounds(&self, rows: usize, ascend: bool, random: &mut Random) -> Vec<K> {
        let mut bounds: Vec<K> = (0..rows).map(|_| self.bound(random)).collect();
        if ascend {
            bounds.sort_unstable();
        }
        bounds
    }

    /// Returns the first and the last position in `from..to` whose keys satisfy all bounds; `None` if there is none.
    fn expected(
        &self,
        (from, to): (usize, usize),
        bounds: &[(Comparison, K)],
    ) -> Option<(i64, i64)> {
        let matches = |at: &usize| {
            let mut bounds = bounds.iter();
            bounds.all(|(comparison, bound)| comparison.holds(&self.keys[*at], bound))
        };
        let found: Vec<usize> = (from..to).filter(matches).collect();
        Some((*found.first()? as i64, *found.last()? as i64))
    }

    /// Narrows candidates by several bounds, in several batches.
    fn check_narrow(&self, search: &CpuKeySearch<K>, rows: usize, random: &mut Random) {
        let comparisons: Vec<Comparison> = (0..1 + random.below(4))
            .map(|_| COMPARISONS[random.below(4)])
            .collect();
        for batch in 0..3 {
            let count = self.group_starts.len() - 1;
            let groups: Vec<u32> = (0..rows)
                .map(|_| match random.below(10) {
                    0 if count > 1 => CandidateRanges::NO_GROUP,
                    _ => random.below(count) as u32,
                })
                .collect();
            let mut candidates = if count > 1 {
                CandidateRanges::of_groups(groups.clone(), &self.group_starts)
            } else {
                CandidateRanges::all(rows, self.keys.len())
            };
            let mut rows_bounds = vec![vec![]; rows];
            let mut columns = vec![];
            for comparison in comparisons.iter().copied() {
                let bounds = self.bounds(rows, batch != 1, random);
                let bits: Vec<K> = bounds.iter().map(|b| self.encoding.decode(*b)).collect();
                columns.push((comparison, Column::new(Arc::new(bits), self.encoding)));
                for (row_bounds, bound) in rows_bounds.iter_mut().zip(bounds) {
                    row_bounds.push((comparison, bound));
                }
            }
            // One after the other, some together, or all.
            for columns in columns.chunks(1 + random.below(4)) {
                let columns = columns
                    .iter()
                    .map(|(comparison, column)| (*comparison, column));
                let columns: Vec<_> = columns.collect();
                K::narrow(search, &mut candidates, &columns).expect("one bound per row");
            }
            let (left, right) = candidates.into_inclusive();
            for (row, bounds) in rows_bounds.iter().enumerate() {
                let range = match groups[row] {
                    CandidateRanges::NO_GROUP => (0, 0),
                    group => {
                        let group = group as usize;
                        (self.group_starts[group], self.group_starts[group + 1])
                    }
                };
                let found = (left[row] <= right[row]).then_some((left[row], right[row]));
                assert_eq!(
                    found,
                    self.expected(range, bounds),
                    "{}, batch {batch}, row {row}: {bounds:?}",
                    self.what
                );
            }
        }
    }
}

fn check<K: Width + SearchKey>(random: &mut Random) {
    let large = if small() { 200 } else { 3000 };
    for n in [0, 1, 2, 3, 7, 8, 9, 100, 500, large] {
        for groups in [1, 1, 2, 5] {
            let case = Case::<K>::new(n, groups, random);
            let rows = random.below(if small() { 10 } else { 100 });
            let cpu = K::search_over(&case.columns, &case.group_starts, 2).expect("memory");
            case.check_narrow(&cpu, rows, random);
        }
    }
}

#[test]
fn every_width_and_distribution() {
    for mut random in runs("key search", &[]) {
        check::<u32>(&mut random);
        check::<u64>(&mut random);
        check::<u128>(&mut random);
    }
}

#[test]
fn keys_are_read_across_columns() {
    let column = |keys: &[u64]| Column::new(Arc::new(keys.to_vec()), Encoding::unsigned());
    let columns = [column(&[1, 2]), column(&[]), column(&[5]), column(&[5, 9])];
    assert!(u64::are_sorted(&columns));
    let search = u64::search_over(&columns, &[0, 5], 1).expect("memory");
    assert_eq!(search.len(), 5);
    assert!(!search.is_empty());
    assert_eq!((search.key(0), search.key(2), search.key(4)), (1, 5, 9));
    assert!(search.memory_bytes() >= 40);
    assert!(!u64::is_sorted(&[1, 3, 2], Encoding::unsigned()));
}

#[test]
fn mismatched_lengths_are_errors() {
    let keys = Column::new(
        Arc::new((0..10).collect::<Vec<u32>>()),
        Encoding::unsigned(),
    );
    let search = u32::search_over(&[keys], &[0, 10], 1).expect("memory");
    let is_lengths = |result: Result<(), EngineError>| {
        assert!(
            matches!(result, Err(EngineError::Lengths { .. })),
            "{result:?}"
        );
    };
    let bounds = Column::new(Arc::new(vec![3_u32]), Encoding::unsigned());
    let narrow = |mut candidates: CandidateRanges| {
        u32::narrow(&search, &mut candidates, &[(Comparison::Above, &bounds)])
    };
    is_lengths(narrow(CandidateRanges::all(2, 10)));
    is_lengths(narrow(CandidateRanges::all(1, 11)));
    assert_eq!(narrow(CandidateRanges::all(1, 10)), Ok(()));
}
