//! Aggregates of frames by accumulators.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, BooleanArray, UInt32Array};
use arrow::compute::take_arrays;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::Accumulator;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;

use crate::exec::common::blocking::Waiting;
use crate::states::aggregated_ranges::{AggregatedRanges, Method, Output};
use crate::states::aggregated_rows::AggregatedRows;
use crate::states::runs_of_ranges::aggregate_runs;
use crate::states::state_tree::{Blocks, StateTree};
use datafusion_rmq_logical::expr::state_function::StateFunction;
use rmq_arrow::common::workers::Workers;

/// The value of each frame, which an accumulator of its own finds, by reading its rows or by merging states of blocks.
///
/// # Errors
/// The accumulators'; an execution error once nothing waits for the values.
pub(crate) fn accumulated(
    function: &AggregateFunctionExpr,
    arguments: &[ArrayRef],
    frames: &[Range<usize>],
    waiting: &Waiting,
    memory: &MemoryReservation,
) -> Result<ArrayRef> {
    let rows = FrameRows {
        function: StateFunction::try_new(function.clone())?,
        arguments: arguments.to_vec(),
    };
    let check = || waiting.check();
    let tree = state_tree(&rows, frames, &check, memory);
    let tree = tree.as_ref().map(|(tree, _)| tree);
    let data_type = function.field().data_type().clone();
    let of_no_rows = function.default_value(&data_type)?;
    let (values, _) = aggregate_runs(
        frames,
        &Output::Value { of_no_rows },
        |frames| tree.map_or(frames.len(), StateTree::ranges_at_a_time),
        |frames| match tree {
            Some(tree) => tree.cover(&rows, frames, true),
            None => AggregatedRanges::read(&rows, frames, Method::OneByOne, false),
        },
        &|_| check(),
    )?;
    Ok(values)
}

/// The rows of a partition as accumulators of an aggregate see them.
#[derive(Debug)]
struct FrameRows {
    function: StateFunction,
    arguments: Vec<ArrayRef>,
}

impl AggregatedRows for FrameRows {
    fn function(&self) -> &StateFunction {
        &self.function
    }

    fn update(
        &self,
        accumulator: &mut dyn Accumulator,
        rows: Range<usize>,
        grow: &dyn Fn(usize) -> Result<()>,
    ) -> Result<()> {
        accumulator.update_batch(&self.arguments(rows)?.0)?;
        grow(accumulator.size())
    }

    fn arguments(&self, rows: Range<usize>) -> Result<(Vec<ArrayRef>, Option<BooleanArray>)> {
        let slices = self.arguments.iter();
        let slices = slices.map(|argument| argument.slice(rows.start, rows.len()));
        Ok((slices.collect(), None))
    }

    fn copy(&self, rows: Vec<u32>) -> Result<Box<dyn AggregatedRows>> {
        Ok(Box::new(Self {
            function: StateFunction::try_new(self.function.function.clone())?,
            arguments: take_arrays(&self.arguments, &UInt32Array::from(rows), None)?,
        }))
    }
}

/// The states of blocks of rows with what registers them, if these are small and the frames long enough; `None` also if
/// memory is short.
fn state_tree(
    rows: &FrameRows,
    frames: &[Range<usize>],
    check: &(dyn Fn() -> Result<()> + Sync),
    memory: &MemoryReservation,
) -> Option<(StateTree, MemoryReservation)> {
    let count = rows.arguments.first()?.len();
    let is_ordered = !rows.function.function.order_bys().is_empty();
    if is_ordered || frames.iter().map(Range::len).sum::<usize>() <= count {
        return None;
    }
    let blocks = Blocks::choose(rows, count)?;
    let memory = memory.new_empty();
    // DataFusion's tasks use all cores already.
    let workers = Workers::new(1, check);
    match StateTree::of_all(rows, blocks, count, workers, &memory) {
        Ok(tree) => Some((tree, memory)),
        Err(error) => {
            log::debug!("frames are read, as they have no states of blocks: {error}");
            None
        }
    }
}
