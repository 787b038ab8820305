//! Search trees without pointers over sorted keys, one for each group of more than a few keys.
//!
//! Level 1 of a tree has the first key of each block of 16 keys, level 2 each 16th of these, and so on, up to a level
//! of one block. What is past the last key of a level is [`Key::MAX`], so that a bound is compared with whole blocks,
//! without masks. Blocks of keys begin at multiples of 16 of all keys, so that they are in as few cache lines as
//! possible.

use std::ops::Range;

use bytemuck::Pod;

use crate::cpu::huge_page_buf::HugePageBuf;
use crate::cpu::threads::in_parallel;
use crate::error::EngineError;
use crate::key::Key;

/// The keys of a block: how much fewer keys each level has.
pub(crate) const BLOCK: usize = 16;

/// The most keys of a group without a tree: with one for fewer keys, the levels would be large beside the keys.
pub(crate) const MAX_KEYS_WITHOUT_TREE: usize = 64;

/// The levels of a tree of 2^32 keys, the keys themselves included.
pub(crate) const LEVELS: usize = 8;

/// Keys of a level that one thread writes at least.
const MIN_PER_THREAD: usize = 1 << 15;

/// The group of no tree.
const NO_TREE: u32 = u32::MAX;

/// The tree of a group.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tree {
    /// The positions of its keys.
    start: u32,
    end: u32,
    /// The block of each level with which the tree begins there; that of the keys themselves has number 0.
    begins: [u32; LEVELS],
    /// Number of levels.
    pub(crate) levels: usize,
}

/// That of a group without a tree: its keys begin with the first of all.
pub(crate) static NO_LEVELS: Tree = Tree {
    start: 0,
    end: 0,
    begins: [0; LEVELS],
    levels: 0,
};

/// The trees of all groups.
#[derive(Debug)]
pub(crate) struct Trees<K> {
    /// Those of groups that have one.
    all: Vec<Tree>,
    /// The tree of each group, or [`NO_TREE`]; empty if there is none.
    of_groups: Vec<u32>,
    /// The keys of each level of all trees, 1 first.
    levels: Vec<HugePageBuf<K>>,
}

impl Tree {
    /// The positions of the keys.
    #[inline(always)]
    pub(crate) fn positions(&self) -> (usize, usize) {
        (self.start as usize, self.end as usize)
    }

    /// Where the tree begins on a level, 0 for the keys themselves: its first block may begin before its first key.
    #[inline(always)]
    pub(crate) fn begin(&self, level: usize) -> usize {
        self.begins[level % LEVELS] as usize * BLOCK
    }

    /// The number of keys on a level.
    fn keys(&self, level: usize) -> usize {
        if level > self.levels {
            return 0;
        }
        let blocks = (self.end as usize).div_ceil(BLOCK) - self.start as usize / BLOCK;
        blocks.div_ceil(BLOCK.pow(level as u32 - 1))
    }

    /// The number of levels of a tree over these positions.
    fn levels_over(positions: &Range<usize>) -> usize {
        let mut keys = positions.end.div_ceil(BLOCK) - positions.start / BLOCK;
        let mut levels = 1;
        while keys > BLOCK {
            keys = keys.div_ceil(BLOCK);
            levels += 1;
        }
        levels
    }
}

/// The trees of groups with these first positions and the end of the last, and the blocks of each level.
fn plan(group_starts: &[usize]) -> (Vec<Tree>, Vec<u32>, Vec<usize>) {
    let groups = group_starts.windows(2).map(|ends| ends[0]..ends[1]);
    let (mut trees, mut of_groups, mut blocks) = (vec![], vec![], vec![]);
    for (group, positions) in groups.enumerate() {
        if positions.len() <= MAX_KEYS_WITHOUT_TREE {
            continue;
        }
        let levels = Tree::levels_over(&positions);
        blocks.resize(levels.max(blocks.len()), 0);
        let mut tree = Tree {
            start: positions.start as u32,
            end: positions.end as u32,
            begins: [0; LEVELS],
            levels,
        };
        tree.begins[0] = (positions.start / BLOCK) as u32;
        for (level, blocks) in (1..).zip(&mut blocks) {
            tree.begins[level] = *blocks as u32;
            *blocks += tree.keys(level).div_ceil(BLOCK);
        }
        of_groups.resize(group, NO_TREE);
        of_groups.push(trees.len() as u32);
        trees.push(tree);
    }
    (trees, of_groups, blocks)
}

/// Returns the bytes of the trees of groups with these first positions and the end of the last.
pub(crate) fn tree_bytes<K>(group_starts: &[usize]) -> usize {
    let (trees, of_groups, blocks) = plan(group_starts);
    let levels = blocks.iter().map(|blocks| blocks * BLOCK * size_of::<K>());
    size_of_val(&trees[..]) + size_of_val(&of_groups[..]) + levels.sum::<usize>()
}

impl<K: Key + Pod> Trees<K> {
    /// No trees.
    pub(crate) fn none() -> Self {
        Self {
            all: vec![],
            of_groups: vec![],
            levels: vec![],
        }
    }

    /// The trees of groups with these first positions and the end of the last, over the keys that `key_at` returns,
    /// built by up to `threads` threads.
    ///
    /// # Errors
    /// [`EngineError::TooLong`] for 2^32 keys or more; those of allocating, and of starting threads.
    pub(crate) fn build(
        group_starts: &[usize],
        key_at: impl Fn(usize) -> K + Sync,
        threads: usize,
    ) -> Result<Self, EngineError> {
        let rows = group_starts.last().copied().unwrap_or(0);
        if u32::try_from(rows).is_err() {
            return Err(EngineError::TooLong { rows });
        }
        let (trees, of_groups, blocks) = plan(group_starts);
        let mut levels: Vec<HugePageBuf<K>> = vec![];
        for (level, blocks) in (1..).zip(blocks) {
            let mut keys = HugePageBuf::zeroed(blocks * BLOCK)?;
            let share = blocks.div_ceil(threads.min(keys.len() / MIN_PER_THREAD).max(1));
            let parts = keys.chunks_mut(share * BLOCK).zip((0..).step_by(share));
            let below = levels.last();
            in_parallel(parts, |(part, first)| {
                fill(part, first, level, &trees, |tree, number| match below {
                    Some(below) => below[tree.begin(level - 1) + number * BLOCK],
                    None => key_at((tree.begin(0) + number * BLOCK).max(tree.start as usize)),
                });
            })?;
            levels.push(keys);
        }
        Ok(Self {
            all: trees,
            of_groups,
            levels,
        })
    }

    /// The tree of a group, without levels if it has few keys.
    #[inline(always)]
    pub(crate) fn of_group(&self, group: usize) -> &Tree {
        let tree = self.of_groups.get(group).copied().unwrap_or(NO_TREE);
        self.all.get(tree as usize).unwrap_or(&NO_LEVELS)
    }

    /// The keys of each level of all trees; none for levels that no tree has, such as 0.
    pub(crate) fn levels(&self) -> [&[K]; LEVELS] {
        let mut levels: [&[K]; LEVELS] = [&[]; LEVELS];
        for (slice, keys) in levels.iter_mut().skip(1).zip(&self.levels) {
            *slice = keys;
        }
        levels
    }

    /// Bytes of all trees.
    pub(crate) fn bytes(&self) -> usize {
        let levels = self.levels.iter().map(HugePageBuf::bytes);
        size_of_val(&self.all[..]) + size_of_val(&self.of_groups[..]) + levels.sum::<usize>()
    }
}

/// Fills a part of a level, which begins with block `first`. `key` returns the key of a tree with this number.
fn fill<K: Key>(
    part: &mut [K],
    first: usize,
    level: usize,
    trees: &[Tree],
    key: impl Fn(&Tree, usize) -> K,
) {
    part.fill(K::MAX);
    let (first, end) = (first * BLOCK, first * BLOCK + part.len());
    // The last tree that begins at or before the part; those without this level begin with the next one.
    let from = trees.partition_point(|tree| tree.begin(level) <= first);
    for tree in &trees[from.saturating_sub(1)..] {
        let begin = tree.begin(level);
        if begin >= end {
            break;
        }
        let keys = begin.max(first)..(begin + tree.keys(level)).min(end);
        for at in keys {
            part[at - first] = key(tree, at - begin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_the_same_by_any_number_of_threads() {
        let starts = [0, 70, 80, 80, 300_001, 1_200_000, 1_200_050, 1_200_119];
        let key_at = |position: usize| (position * position) as u64;
        let build = |threads| Trees::build(&starts, key_at, threads).expect("memory");
        let (one, five) = (build(1), build(5));
        let levels = |trees: &Trees<u64>| {
            let levels = trees.levels.iter().map(|level| level.to_vec());
            levels.collect::<Vec<_>>()
        };
        assert_eq!(levels(&one), levels(&five));
        assert_eq!(one.bytes(), tree_bytes::<u64>(&starts));
        assert_eq!(one.all.len(), 4);
        assert_eq!((one.of_group(1), one.of_group(7)), (&NO_LEVELS, &NO_LEVELS));
        let tree = one.of_group(3);
        assert_eq!(tree.positions(), (80, 300_001));
        for number in [0, 1, 16, 300] {
            let (levels, above) = (one.levels(), number / 16);
            assert_eq!(levels[1][tree.begin(1) + number], key_at(80 + 16 * number));
            assert_eq!(levels[2][tree.begin(2) + above], key_at(80 + 256 * above));
        }
    }
}
