//! A tree of the states of any aggregate over blocks of sorted rows, by which a range of rows is aggregated in time
//! logarithmic in its length: after Leis et al., "Efficient Processing of Window Functions in Analytical SQL Queries",
//! PVLDB 2015.
//!
//! A leaf has the state after a block of rows, a node above it the states of two nodes, merged in the order of
//! the rows. A range updates an accumulator with the rows before its first whole block, merges the states of the fewest
//! nodes that cover its whole blocks, and updates it with the rows after these.
//!
//! Blocks begin at multiples of their length, and a node at a multiple of its own. So the state of a node is the same
//! in the tree of all rows and in that of one range, and answers are the same bits whether there is a tree or not. Of
//! floats these differ in the last digits from those of an accumulator that sees one row after another: the rounding
//! errors of merged states are fewer.
//!
//! A tree is built, and asked, for many nodes or ranges at once where the function has an accumulator for groups.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::concat;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::states::aggregated_ranges::{AggregatedRanges, Method, Output, RangeParts};
use crate::states::aggregated_rows::{AggregatedRows, ReadRows};
use crate::states::node_states::NodeStates;
use rmq_arrow::common::array_bytes::array_bytes;
use rmq_arrow::common::row_number::{row_number, row_range};
use rmq_arrow::common::workers::Workers;

/// Ranges with fewer whole blocks are read row by row.
const MIN_BLOCKS: usize = 8;

/// The bytes of a state for each row of its block: states of more take about as much as the rows.
const BYTES_A_ROW: usize = 8;

/// The blocks that are considered: those of correlations, and those of sketches of distinct values (16 KiB).
const BLOCK_ROWS: Range<u32> = 3..14;

/// Whether states grow with the rows, blocks of fewer rows do not tell: sketches list the first ones.
const TELLING_ROWS: usize = 16;

/// The bytes of the states that are merged at a time, about.
const BYTES_AT_A_TIME: usize = 1 << 18;

/// The states that are merged for a range, about.
const STATES_OF_A_RANGE: usize = 20;

/// The most levels: there are fewer than 2^32 rows.
const MAX_LEVELS: usize = 32;

/// The nodes that one thread computes at a time: a part of a level.
const NODES_AT_A_TIME: usize = 512;

/// The blocks that rows are divided into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocks {
    rows: usize,
    /// The most bytes that a state was seen to take.
    state_bytes: usize,
    method: Method,
}

impl Blocks {
    /// The shortest blocks whose states are smaller than their rows. `None` if states grow with the rows, or can't be
    /// merged, or if there are too few of `rows` rows.
    ///
    /// The states are those after some rows at the start, in the middle and at the end.
    pub(crate) fn choose(aggregated: &dyn AggregatedRows, rows: usize) -> Option<Self> {
        let lengths = BLOCK_ROWS.map(|bits| 1_usize << bits);
        for length in lengths.take_while(|length| MIN_BLOCKS * length <= rows) {
            let longer = MIN_BLOCKS * length;
            let starts = [0, (rows - longer) / 2, rows - longer];
            let samples = |length: usize| starts.map(|start| start..start + length);
            let bytes = |length: usize| -> Result<usize> {
                let states = samples(length).map(|sample| state_bytes(aggregated, sample));
                let mut states = states.into_iter();
                states.try_fold(0, |most, bytes| Ok(most.max(bytes?)))
            };
            let (one, several) = (bytes(length).ok()?, bytes(longer).ok()?);
            let grow = several >= MIN_BLOCKS * 3 / 4 * one.max(1);
            if grow && length >= TELLING_ROWS {
                return None;
            }
            if one <= BYTES_A_ROW * length && several < 2 * one.max(1) {
                return Some(Self {
                    rows: length,
                    state_bytes: several,
                    method: Method::choose(aggregated, &samples(longer))
                        .unwrap_or(Method::OneByOne),
                });
            }
        }
        None
    }

    /// The whole blocks in a range of rows, if they are enough for their states to be merged.
    pub(crate) fn of_range(self, rows: &Range<usize>) -> Option<Range<usize>> {
        let blocks = rows.start.div_ceil(self.rows)..rows.end / self.rows;
        (blocks.len() >= MIN_BLOCKS).then_some(blocks)
    }

    /// How ranges are aggregated.
    pub(crate) fn method(self) -> Method {
        self.method
    }

    /// About the bytes of a tree over this many rows.
    fn tree_bytes(self, rows: usize) -> usize {
        let nodes = 2 * (rows / self.rows);
        nodes.saturating_mul(self.state_bytes)
    }

    /// The rows of consecutive blocks.
    pub(crate) fn rows_of(self, blocks: &Range<usize>) -> Range<usize> {
        blocks.start * self.rows..blocks.end * self.rows
    }
}

/// The bytes of the state after some rows, if another accumulator can merge it.
fn state_bytes(aggregated: &dyn AggregatedRows, rows: Range<usize>) -> Result<usize> {
    let function = aggregated.function();
    let range = AggregatedRanges::read(aggregated, &[&rows], Method::OneByOne, false)?;
    let state = range.aggregate(&Output::State, &|_| Ok(()))?;
    let mut other = function.function.create_accumulator()?;
    function.merge(&mut *other, state.as_struct().columns())?;
    other.evaluate()?;
    Ok(state
        .as_struct()
        .columns()
        .iter()
        .map(|field| array_bytes(field))
        .sum())
}

/// The states of consecutive nodes of a level, which is in parts.
///
/// # Errors
/// Arrow's.
fn nodes_within(parts: &[ArrayRef], nodes: Range<usize>) -> Result<ArrayRef> {
    let first = nodes.start / NODES_AT_A_TIME;
    let within = (first..).zip(&parts[first..]);
    let within = within.map(|(number, part)| {
        let start = nodes.start.saturating_sub(number * NODES_AT_A_TIME);
        let end = nodes.end.saturating_sub(number * NODES_AT_A_TIME);
        part.slice(start, end.min(part.len()) - start)
    });
    let parts = nodes.end.div_ceil(NODES_AT_A_TIME) - first;
    let within: Vec<ArrayRef> = within.take(parts).collect();
    match within.as_slice() {
        [only] => Ok(Arc::clone(only)),
        several => Ok(concat(
            &several.iter().map(AsRef::as_ref).collect::<Vec<_>>(),
        )?),
    }
}

/// The nodes of one level.
#[derive(Debug, Clone, Copy)]
struct Level {
    /// The number of its first node that is in the tree.
    first: u32,
    /// The position of its state among all.
    position: u32,
}

impl Level {
    /// The position of the state of a node, if the tree has it.
    fn position_of(self, node: u32) -> u32 {
        node.wrapping_sub(self.first).wrapping_add(self.position)
    }
}

/// The states of all nodes that lie in consecutive blocks.
#[derive(Debug)]
pub(crate) struct StateTree {
    blocks: Blocks,
    over: Range<usize>,
    levels: Vec<Level>,
    /// Those of the leaves first.
    states: NodeStates,
}

impl StateTree {
    /// Over all whole blocks of this many rows. What it takes is added to `memory`.
    ///
    /// # Errors
    /// As [`Self::build`]. If memory is short.
    pub(crate) fn of_all(
        aggregated: &dyn AggregatedRows,
        blocks: Blocks,
        rows: usize,
        workers: Workers,
        memory: &MemoryReservation,
    ) -> Result<Self> {
        // The levels, and all of them in one array.
        memory.try_grow(2 * blocks.tree_bytes(rows))?;
        let tree = Self::build(aggregated, blocks, 0..rows / blocks.rows, workers)?;
        memory.try_resize(tree.bytes())?;
        Ok(tree)
    }

    /// Over these blocks of one range, to cover that once. What it takes is added to `memory` even if that is short, as
    /// no other way gives the same bits.
    ///
    /// # Errors
    /// As [`Self::build`].
    pub(crate) fn of_range(
        aggregated: &dyn AggregatedRows,
        blocks: Blocks,
        over: Range<usize>,
        workers: Workers,
        memory: &MemoryReservation,
    ) -> Result<Self> {
        memory.grow(2 * blocks.tree_bytes(blocks.rows_of(&over).len()));
        Self::build(aggregated, blocks, over, workers)
    }

    /// Over some blocks.
    ///
    /// # Errors
    /// Those of the function; if states are too large for one array, or the query is cancelled.
    fn build(
        aggregated: &dyn AggregatedRows,
        blocks: Blocks,
        over: Range<usize>,
        workers: Workers,
    ) -> Result<Self> {
        let mut nodes = over.clone();
        let mut first_below = 0;
        let mut built: Vec<Vec<ArrayRef>> = vec![];
        let (mut levels, mut position) = (vec![], 0);
        while !nodes.is_empty() {
            let below = built.last();
            let parts = nodes.clone().step_by(NODES_AT_A_TIME);
            let parts = parts.map(|start| start..nodes.end.min(start + NODES_AT_A_TIME));
            let parts = workers.map(parts.collect(), |part: Range<usize>| {
                let nodes = match below {
                    None => {
                        let leaves = part.map(|leaf| blocks.rows_of(&(leaf..leaf + 1)));
                        let leaves: Vec<Range<usize>> = leaves.collect();
                        let leaves: Vec<&Range<usize>> = leaves.iter().collect();
                        let method = blocks.method;
                        let copies = workers.threads() > 1 && method == Method::OneByOne;
                        AggregatedRanges::read(aggregated, &leaves, method, copies)?
                    }
                    Some(below) => {
                        let children = (0..part.len()).map(|node| RangeParts {
                            before: 0..0,
                            states: 2 * node..2 * node + 2,
                            after: 0..0,
                        });
                        let children = children.collect();
                        let start = 2 * part.start - first_below;
                        let states = nodes_within(below, start..start + 2 * part.len())?;
                        let states = states.as_struct().columns().to_vec();
                        let no_rows = ReadRows::new(aggregated, workers.threads() > 1);
                        let no_rows = no_rows.complete()?;
                        AggregatedRanges::new(no_rows, states, children, blocks.method)
                    }
                };
                nodes.aggregate(&Output::State, &|_| Ok(()))
            })?;
            levels.push(Level {
                first: row_number(nodes.start)?,
                position: row_number(position)?,
            });
            position += nodes.len();
            built.push(parts);
            first_below = nodes.start;
            nodes = nodes.start.div_ceil(2)..nodes.end / 2;
        }
        Ok(Self {
            blocks,
            over,
            levels,
            states: NodeStates::of_parts(&built.concat(), workers)?,
        })
    }

    /// The bytes of all states.
    pub(crate) fn bytes(&self) -> usize {
        self.states.bytes()
    }

    /// How many ranges [`Self::cover`] should be asked for at a time, for their states to stay in the cache.
    pub(crate) fn ranges_at_a_time(&self) -> usize {
        let bytes = STATES_OF_A_RANGE * self.bytes() / self.states.len().max(1);
        (BYTES_AT_A_TIME / bytes.max(1)).max(1)
    }

    /// Appends the positions of the fewest nodes that cover these blocks, in the order of the rows.
    ///
    /// # Errors
    /// An internal error if the tree does not have all of them.
    fn push_nodes(&self, blocks: &Range<usize>, positions: &mut Vec<u32>) -> Result<()> {
        let is_covered = self.over.start <= blocks.start && blocks.end <= self.over.end;
        if !is_covered || self.levels.len() > MAX_LEVELS {
            return internal_err!("a tree of states has not all blocks of a range");
        }
        // Those from the start on, and those to the end, the last one first. A node with an odd number is the second
        // one of that above. Whether there is one is as good as random: it is written in any case, without a branch
        // that would be mispredicted.
        let (mut from_start, mut to_end) = ([0; MAX_LEVELS], [0; MAX_LEVELS]);
        let (mut starts, mut ends) = (0, 0);
        let Range { mut start, mut end } = row_range(blocks.clone())?;
        for level in &self.levels {
            if start >= end {
                break;
            }
            from_start[starts] = level.position_of(start);
            starts += usize::from(start % 2 == 1);
            to_end[MAX_LEVELS - 1 - ends] = level.position_of(end - 1);
            ends += usize::from(end % 2 == 1);
            start = start.div_ceil(2);
            end /= 2;
        }
        positions.extend_from_slice(&from_start[..starts]);
        positions.extend_from_slice(&to_end[MAX_LEVELS - ends..]);
        Ok(())
    }

    /// Ranges of rows, as far as they have enough whole blocks covered by states. The other rows are copied if
    /// `copies`, and if ranges are aggregated together.
    ///
    /// # Errors
    /// Those of the function, Arrow's, and an internal error if the tree lacks blocks of a range.
    pub(crate) fn cover<'a>(
        &self,
        aggregated: &'a dyn AggregatedRows,
        ranges: &[&Range<usize>],
        copies: bool,
    ) -> Result<AggregatedRanges<'a>> {
        let method = self.blocks.method;
        let mut rows = ReadRows::new(aggregated, copies || method == Method::Together);
        let mut nodes = vec![];
        let mut covered = Vec::with_capacity(ranges.len());
        for range in ranges {
            let start = nodes.len();
            let blocks = self.blocks.of_range(range);
            let whole = match &blocks {
                Some(blocks) => {
                    self.push_nodes(blocks, &mut nodes)?;
                    self.blocks.rows_of(blocks)
                }
                None => range.end..range.end,
            };
            covered.push(RangeParts {
                before: rows.add(range.start..whole.start)?,
                states: start..nodes.len(),
                after: whole.end..range.end,
            });
        }
        for parts in &mut covered {
            parts.after = rows.add(parts.after.clone())?;
        }
        Ok(AggregatedRanges::new(
            rows.complete()?,
            self.states.take(nodes)?,
            covered,
            method,
        ))
    }
}
