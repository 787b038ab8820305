//! Keys that divide others into ranges.

use std::hint::select_unpredictable;

use crate::sorted::id_table::number;
use crate::sorted::radix_sort::RadixKey;

/// Sampled keys per range.
const OVERSAMPLING: usize = 16;

/// Ascending keys, different from each other, that divide others into ranges. A table of cells of equal width tells
/// where to begin the search among them: with keys that are spread evenly two or three steps are left of twelve.
#[derive(Debug)]
pub struct Splitters<K> {
    keys: Vec<K>,
    /// The number of splitters before each cell. The first cell begins with the first splitter, and the last one has
    /// the last.
    before_cells: Vec<u32>,
    /// The width of a cell is 2 to the power of this.
    shift: u32,
    /// The first step of a search: a power of two, whose double exceeds the splitters of any cell.
    first_step: usize,
}

impl<K: RadixKey> Splitters<K> {
    /// Chooses keys among `len`, at least one, that divide these into about `ranges` ranges of about equal size: the
    /// quantiles of a sample.
    pub fn sample(ranges: usize, len: usize, key: impl Fn(usize) -> K) -> Self {
        // Pseudo-random positions: a fixed stride could coincide with a period of the data.
        let mut state = 0_u64;
        let mut sample: Vec<K> = (0..ranges * OVERSAMPLING)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                #[expect(clippy::cast_possible_truncation, reason = "below `len`")]
                let position = ((u128::from(state) * len as u128) >> 64) as usize;
                key(position)
            })
            .collect();
        sample.sort_unstable();
        let quantiles = sample.into_iter().skip(OVERSAMPLING);
        let mut keys: Vec<K> = quantiles.step_by(OVERSAMPLING).collect();
        keys.dedup();
        Self::new(keys)
    }

    /// Prepares at least one key.
    fn new(keys: Vec<K>) -> Self {
        let (first, last) = (keys[0], keys[keys.len() - 1]);
        let span = last.minus(first);
        let cell_bits = (2 * keys.len()).next_power_of_two().ilog2();
        let shift = span.bit_length().saturating_sub(cell_bits);
        let cell = |key: &K| key.minus(first).bits_from(shift);
        let before = |next: usize| number(keys.partition_point(|key| cell(key) < next));
        let before_cells = (0..=cell(&last)).map(before).collect();
        let of_cells = keys.chunk_by(|a, b| cell(a) == cell(b));
        let longest = of_cells.map(<[K]>::len).max().unwrap_or(1);
        Self {
            before_cells,
            shift,
            first_step: 1 << longest.ilog2(),
            keys,
        }
    }

    /// Number of ranges: those between splitters, and one for each splitter.
    pub fn ranges(&self) -> usize {
        2 * self.keys.len() + 1
    }

    /// The range of a key: twice the number of lesser splitters, plus one if the key equals the next.
    #[inline]
    pub fn range(&self, key: K) -> usize {
        let (first, last) = (self.keys[0], self.keys[self.keys.len() - 1]);
        if key < first {
            return 0;
        }
        if key > last {
            return self.ranges() - 1;
        }
        let cell = key.minus(first).bits_from(self.shift);
        let mut before = self.before_cells[cell] as usize;
        let mut step = self.first_step;
        while step > 0 {
            let probed = self.keys.get(before + step - 1);
            let is_before = probed.is_some_and(|splitter| *splitter < key);
            // A branch would be mispredicted half of the time.
            before = select_unpredictable(is_before, before + step, before);
            step /= 2;
        }
        2 * before + usize::from(self.keys[before] == key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<K: RadixKey>(keys: &[K], probes: impl Iterator<Item = K>) {
        let splitters = Splitters::new(keys.to_vec());
        for key in probes {
            let before = keys.partition_point(|splitter| *splitter < key);
            let equals = keys.get(before) == Some(&key);
            let expected = 2 * before + usize::from(equals);
            assert_eq!(splitters.range(key), expected, "{key:?} among {keys:?}");
        }
    }

    #[test]
    fn ranges_of_skewed_keys_are_about_equal() {
        let random = &mut fastrand::Rng::with_seed(88_172_645_463_325_252);
        // Most keys are close to each other, as times of day beside a few of another year.
        let keys = (0..1_000_000).map(|i| random.u64(..1 << 30) << (i % 3 * 16));
        let keys: Vec<u64> = keys.collect();
        let splitters = Splitters::sample(64, keys.len(), |i| keys[i]);
        let mut counts = vec![0; splitters.ranges()];
        for key in &keys {
            counts[splitters.range(*key)] += 1;
        }
        let most = 4 * keys.len() / 64;
        assert!(counts.iter().all(|count| *count < most), "{counts:?}");
    }

    #[test]
    fn ranges_are_those_of_a_binary_search() {
        let random = &mut fastrand::Rng::with_seed(3_935_559_000_370_003_845);
        for round in 0..300 {
            // Close to each other, far apart, and in clusters; at the ends of all keys, too.
            let bits = [3, 10, 30, 64][round % 4];
            let base = [0, u64::MAX >> (64 - bits), u64::MAX, random.u64(..)][random.usize(..4)];
            let mut key = || {
                let far = if random.u64(..3) == 0 {
                    random.u64(..) >> 8
                } else {
                    0
                };
                base.wrapping_add(random.u64(..) >> (64 - bits))
                    .wrapping_add(far)
            };
            let mut keys: Vec<u64> = (0..=round).map(|_| key()).collect();
            keys.sort_unstable();
            keys.dedup();
            let near = |key: &u64| [key.wrapping_sub(1), *key, key.wrapping_add(1)];
            let mut probes: Vec<u64> = keys.iter().flat_map(near).collect();
            probes.extend((0..100).map(|_| key()));
            probes.extend([0, u64::MAX]);
            check(&keys, probes.iter().copied());
            let wide = |key: u64| u128::from(key) << 40;
            let keys: Vec<u128> = keys.into_iter().map(wide).collect();
            check(&keys, probes.into_iter().map(wide));
        }
    }
}
