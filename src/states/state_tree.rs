//! A tree of the states of any aggregate over blocks of sorted rows, by which a range of rows is aggregated in time
//! logarithmic in its length: after Leis et al., "Efficient Processing of Window Functions in Analytical SQL Queries",
//! PVLDB 2015.
//!
//! A leaf has the state after a block of rows, a node above it the states of [`FAN_OUT`] nodes, merged in the order of
//! the rows. A range updates an accumulator with the rows before its first whole block, merges the states of the fewest
//! nodes that cover its whole blocks, and updates it with the rows after these.
//!
//! Blocks begin at multiples of their length, and a node at a multiple of its own. So the state of a node is the same
//! in the tree of all rows and in that of one range, and answers are the same bits whether there is a tree or not. Of
//! floats these differ in the last digits from those of an accumulator that sees one row after another: the rounding
//! errors of merged states are fewer.
//!
//! Accumulators, not `GroupsAccumulator`s, compute the states: those of `corr` add up plain squares, which are less
//! exact, and most functions have none.

use std::fmt::Debug;
use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use arrow::compute::{concat, take_arrays};
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::Accumulator;

use datafusion_rmq_logical::expr::state_function::StateFunction;
use rmq_arrow::common::array_bytes::array_bytes;
use rmq_arrow::common::row_number::{row_number, row_range};
use rmq_arrow::common::workers::Workers;

/// The nodes below a node: of 16, which take a fifth less memory, a range would merge more than twice as many states.
const FAN_OUT: usize = 4;

/// Ranges with fewer whole blocks are read row by row.
const MIN_BLOCKS: usize = 8;

/// The bytes of a state for each row of its block: states of more take about as much as the rows.
const BYTES_A_ROW: usize = 8;

/// The blocks that are considered: those of variances, and those of sketches of distinct values (16 KiB).
const BLOCK_ROWS: Range<u32> = 5..14;

/// The bytes of the states that are merged at a time, about.
const BYTES_AT_A_TIME: usize = 1 << 18;

/// The states that are merged for a range, about.
const STATES_OF_A_RANGE: usize = 20;

/// The nodes that one thread computes at a time.
const NODES_AT_A_TIME: usize = 256;

/// An aggregate of rows by accumulators.
pub(crate) trait AggregatedRows: Debug + Send + Sync {
    /// The function, with the fields of its states.
    fn function(&self) -> &StateFunction;

    /// Shows an accumulator consecutive rows, few enough to need no check for cancellation.
    ///
    /// # Errors
    /// The accumulator's.
    fn update(&self, accumulator: &mut dyn Accumulator, rows: Range<usize>) -> Result<()>;

    /// These rows alone, with all that accumulators refer to: threads would wait for each other's reference counts.
    ///
    /// # Errors
    /// Those of the function, and Arrow's.
    fn copy(&self, rows: Vec<u32>) -> Result<Box<dyn AggregatedRows>>;
}

/// The blocks that rows are divided into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocks {
    rows: usize,
    /// The most bytes that a state was seen to take.
    state_bytes: usize,
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
            let bytes = |length: usize| -> Result<usize> {
                let states = starts.map(|start| state_bytes(aggregated, start..start + length));
                let mut states = states.into_iter();
                states.try_fold(0, |most, bytes| Ok(most.max(bytes?)))
            };
            let (one, several) = (bytes(length).ok()?, bytes(longer).ok()?);
            if several >= MIN_BLOCKS / 2 * one.max(1) {
                // They grow with the rows.
                return None;
            }
            if one <= BYTES_A_ROW * length && several < 2 * one.max(1) {
                return Some(Self {
                    rows: length,
                    state_bytes: several,
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

    /// About the bytes of a tree over this many rows.
    fn tree_bytes(self, rows: usize) -> usize {
        let nodes = rows / self.rows + rows / self.rows / (FAN_OUT - 1);
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
    let mut accumulator = function.function.create_accumulator()?;
    aggregated.update(&mut *accumulator, rows)?;
    let mut column = function.column(1);
    column.push(Some(&accumulator.state()?))?;
    let state = column.finish()?;
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

/// The nodes of one level.
#[derive(Debug, Clone, Copy)]
struct Level {
    /// The number of its first node that is in the tree.
    first: usize,
    /// The position of its state among all.
    position: usize,
}

/// The states of all nodes that lie in consecutive blocks.
#[derive(Debug)]
pub(crate) struct StateTree {
    blocks: Blocks,
    levels: Vec<Level>,
    /// The fields of the states, those of the leaves first.
    states: Vec<ArrayRef>,
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

    /// Over the whole blocks of some rows.
    ///
    /// # Errors
    /// Those of the function; if states are too large for one array, or the query is cancelled.
    pub(crate) fn build(
        aggregated: &dyn AggregatedRows,
        blocks: Blocks,
        over: Range<usize>,
        workers: Workers,
    ) -> Result<Self> {
        let mut nodes = over;
        let mut built: Vec<ArrayRef> = vec![];
        let (mut levels, mut position) = (vec![], 0);
        while !nodes.is_empty() {
            let below = built.last().zip(levels.last());
            let parts = nodes.clone().step_by(NODES_AT_A_TIME);
            let parts = parts.map(|start| start..nodes.end.min(start + NODES_AT_A_TIME));
            let parts = workers.map(parts.collect(), |part: Range<usize>| {
                let leaves = if below.is_none() { part.clone() } else { 0..0 };
                let mut rows = Rows::new(aggregated, workers.threads() > 1);
                let first = rows.add(blocks.rows_of(&leaves))?.start;
                let rows = rows.complete()?;
                let function = rows.aggregated().function();
                let mut column = function.column(part.len());
                for node in part.clone() {
                    let mut accumulator = function.function.create_accumulator()?;
                    match below {
                        None => {
                            let block = node - part.start;
                            let Range { start, end } = blocks.rows_of(&(block..block + 1));
                            let block = first + start..first + end;
                            rows.aggregated().update(&mut *accumulator, block)?;
                        }
                        Some((below, Level { first, .. })) => {
                            let children = below.slice(FAN_OUT * node - first, FAN_OUT);
                            function.merge(&mut *accumulator, children.as_struct().columns())?;
                        }
                    }
                    column.push(Some(&accumulator.state()?))?;
                }
                column.finish()
            })?;
            let level = concat(&parts.iter().map(AsRef::as_ref).collect::<Vec<_>>())?;
            levels.push(Level {
                first: nodes.start,
                position,
            });
            position += level.len();
            built.push(level);
            nodes = nodes.start.div_ceil(FAN_OUT)..nodes.end / FAN_OUT;
        }
        let fields = built
            .first()
            .map_or(0, |level| level.as_struct().num_columns());
        let states = (0..fields).map(|field| {
            let levels = built
                .iter()
                .map(|level| level.as_struct().column(field).as_ref());
            concat(&levels.collect::<Vec<_>>())
        });
        let states = states.collect::<Result<_, _>>()?;
        Ok(Self {
            blocks,
            levels,
            states,
        })
    }

    /// The bytes of all states.
    pub(crate) fn bytes(&self) -> usize {
        self.states.iter().map(|field| array_bytes(field)).sum()
    }

    /// How many ranges [`Self::cover`] should be asked for at a time, for their states to stay in the cache.
    pub(crate) fn ranges_at_a_time(&self) -> usize {
        let states = self.states.first().map_or(0, Array::len);
        let bytes = STATES_OF_A_RANGE * self.bytes() / states.max(1);
        (BYTES_AT_A_TIME / bytes.max(1)).max(1)
    }

    /// Appends the positions of the fewest nodes that cover these blocks, in the order of the rows.
    ///
    /// # Errors
    /// An internal error if the tree has none of them.
    fn push_nodes(&self, blocks: Range<usize>, positions: &mut Vec<u32>) -> Result<()> {
        let mut nodes = blocks;
        let mut after = vec![];
        for level in &self.levels {
            let above = nodes.start.div_ceil(FAN_OUT)..nodes.end / FAN_OUT;
            let whole = if above.is_empty() {
                nodes.end..nodes.end
            } else {
                FAN_OUT * above.start..FAN_OUT * above.end
            };
            let push = |nodes: Range<usize>, positions: &mut Vec<u32>| -> Result<()> {
                for node in nodes {
                    let Some(offset) = node.checked_sub(level.first) else {
                        return internal_err!("a tree of states begins after a range");
                    };
                    positions.push(row_number(level.position + offset)?);
                }
                Ok(())
            };
            push(nodes.start..whole.start, positions)?;
            let mut last = vec![];
            push(whole.end..nodes.end, &mut last)?;
            after.push(last);
            nodes = above;
            if nodes.is_empty() {
                break;
            }
        }
        positions.extend(after.into_iter().rev().flatten());
        Ok(())
    }

    /// Ranges of rows, as far as they have enough whole blocks covered by states. The other rows are copied if other
    /// threads read them, too.
    ///
    /// # Errors
    /// Those of the function, Arrow's, and an internal error if the tree lacks blocks of a range.
    pub(crate) fn cover<'a>(
        &self,
        aggregated: &'a dyn AggregatedRows,
        ranges: &[&Range<usize>],
        copies: bool,
    ) -> Result<CoveredRanges<'a>> {
        let mut rows = Rows::new(aggregated, copies);
        let mut nodes = vec![];
        let mut covered = vec![];
        for range in ranges {
            let start = nodes.len();
            let blocks = self.blocks.of_range(range);
            let whole = match &blocks {
                Some(blocks) => {
                    self.push_nodes(blocks.clone(), &mut nodes)?;
                    self.blocks.rows_of(blocks)
                }
                None => range.end..range.end,
            };
            covered.push(CoveredRange {
                before: rows.add(range.start..whole.start)?,
                states: start..nodes.len(),
                after: rows.add(whole.end..range.end)?,
            });
        }
        Ok(CoveredRanges {
            states: take_arrays(&self.states, &UInt32Array::from(nodes), None)?,
            rows: rows.complete()?,
            ranges: covered,
        })
    }
}

/// Ranges of rows that accumulators will see, copied or as they are.
struct Rows<'a> {
    of: &'a dyn AggregatedRows,
    copied: Option<Vec<u32>>,
}

impl<'a> Rows<'a> {
    fn new(of: &'a dyn AggregatedRows, copies: bool) -> Self {
        Self {
            of,
            copied: copies.then(Vec::new),
        }
    }

    /// Where these rows will be.
    fn add(&mut self, range: Range<usize>) -> Result<Range<usize>> {
        let Some(copied) = &mut self.copied else {
            return Ok(range);
        };
        let start = copied.len();
        copied.extend(row_range(range)?);
        Ok(start..copied.len())
    }

    fn complete(self) -> Result<CompleteRows<'a>> {
        Ok(match self.copied {
            Some(rows) => CompleteRows::Copied(self.of.copy(rows)?),
            None => CompleteRows::All(self.of),
        })
    }
}

#[derive(Debug)]
enum CompleteRows<'a> {
    Copied(Box<dyn AggregatedRows>),
    All(&'a dyn AggregatedRows),
}

impl CompleteRows<'_> {
    fn aggregated(&self) -> &dyn AggregatedRows {
        match self {
            Self::Copied(rows) => rows.as_ref(),
            Self::All(rows) => *rows,
        }
    }
}

/// Ranges of rows, with the states of whole blocks.
#[derive(Debug)]
pub(crate) struct CoveredRanges<'a> {
    rows: CompleteRows<'a>,
    /// The fields of the states.
    states: Vec<ArrayRef>,
    ranges: Vec<CoveredRange>,
}

/// The parts of a range, which follow one another.
#[derive(Debug)]
struct CoveredRange {
    before: Range<usize>,
    states: Range<usize>,
    after: Range<usize>,
}

impl CoveredRanges<'_> {
    /// An accumulator that has seen the rows of the range with this number.
    ///
    /// # Errors
    /// The accumulator's.
    pub(crate) fn accumulate(&self, range: usize) -> Result<Box<dyn Accumulator>> {
        let CoveredRange {
            before,
            states,
            after,
        } = &self.ranges[range];
        let rows = self.rows.aggregated();
        let function = rows.function();
        let mut accumulator = function.function.create_accumulator()?;
        if !before.is_empty() {
            rows.update(&mut *accumulator, before.clone())?;
        }
        if !states.is_empty() {
            let fields = self.states.iter();
            let fields = fields.map(|field| field.slice(states.start, states.len()));
            function.merge(&mut *accumulator, &fields.collect::<Vec<_>>())?;
        }
        if !after.is_empty() {
            rows.update(&mut *accumulator, after.clone())?;
        }
        Ok(accumulator)
    }

    /// How many of the ranges have states.
    pub(crate) fn wide(&self) -> usize {
        self.ranges
            .iter()
            .filter(|range| !range.states.is_empty())
            .count()
    }
}
