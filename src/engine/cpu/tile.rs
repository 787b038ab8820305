//! A tile: queries that go through the search together, so that their cache misses overlap.

use super::levels::LEVELS;
use crate::engine::Key;

/// Queries in a tile. A word of the bitmap of answers, and few enough that all tiles under way stay in the L1 cache.
pub(super) const TILE: usize = 64;

/// A list of queries of one tile, by their number in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    items: [u8; TILE],
    len: usize,
}

impl List {
    const EMPTY: Self = Self {
        items: [0; TILE],
        len: 0,
    };

    /// Appends `query` if `wanted`, without a branch.
    #[inline(always)]
    pub(super) fn push_if(&mut self, query: usize, wanted: bool) {
        // A list never takes more than a tile's queries, so `% TILE` changes nothing and spares the bounds check.
        self.items[self.len % TILE] = query as u8;
        self.len += usize::from(wanted);
    }

    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(super) fn get(&self, i: usize) -> usize {
        self.items[i % TILE] as usize % TILE
    }

    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }
}

/// Where the minimum of a query stands, as far as known: a block, and the level it belongs to (0: a single position).
#[derive(Debug, Clone, Copy)]
pub(super) struct Place(pub(super) u64);

/// Block numbers and positions stay below 2^47 (see `Layout::new`), so the level fits above.
const LEVEL_SHIFT: u32 = 56;

impl Place {
    #[inline(always)]
    pub(super) fn new(level: usize, block: usize) -> Self {
        Self((level as u64) << LEVEL_SHIFT | block as u64)
    }

    #[inline(always)]
    pub(super) fn level(self) -> usize {
        (self.0 >> LEVEL_SHIFT) as usize
    }

    #[inline(always)]
    pub(super) fn block(self) -> usize {
        (self.0 & ((1 << LEVEL_SHIFT) - 1)) as usize
    }
}

/// The state of the queries of a tile.
#[derive(Debug)]
pub(super) struct Tile<K> {
    /// Inclusive bounds, clipped, counted from the origin of blocks.
    pub(super) left: [usize; TILE],
    pub(super) right: [usize; TILE],
    /// The smallest key found so far.
    pub(super) best: [K; TILE],
    /// Where it stands.
    pub(super) place: [Place; TILE],
    /// Queries by the level they start at: 1 to 3 with a window, 4 with the sparse table.
    pub(super) start: [List; LEVELS],
    /// Queries that go down at their left end into a line of level `k` (0: of the column).
    pub(super) down_left: [List; LEVELS],
    /// The same at their right end.
    pub(super) down_right: [List; LEVELS],
    /// Which queries have a range that is not empty.
    pub(super) some: u64,
    /// The number of the first query in the batch, and how many there are.
    pub(super) first: usize,
    pub(super) len: usize,
}

impl<K: Key> Tile<K> {
    pub(super) fn new() -> Self {
        Self {
            left: [0; TILE],
            right: [0; TILE],
            best: [K::MAX; TILE],
            place: [Place(0); TILE],
            start: [List::EMPTY; LEVELS],
            down_left: [List::EMPTY; LEVELS],
            down_right: [List::EMPTY; LEVELS],
            some: 0,
            first: 0,
            len: 0,
        }
    }

    /// Empties all lists.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        for list in &mut self.start {
            list.clear();
        }
        for list in self.down_left.iter_mut().chain(&mut self.down_right) {
            list.clear();
        }
        self.some = 0;
        self.len = 0;
    }
}
