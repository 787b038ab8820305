//! The states of an accumulator after blocks of the sorted rows, by which wide ranges are aggregated: in a tree of all
//! rows once ranges have as many rows as there are, in one of the rows of a range before that, and where memory is
//! short. The answers are the same bits.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::ArrayRef;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::range_join::build_side::accumulated_rows::AccumulatedRows;
use crate::exec::range_join::build_side::lazy_structure::LazyStructure;
use crate::exec::range_join::build_side::on_demand::OnDemand;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::states::aggregated_ranges::AggregatedRanges;
use crate::states::state_tree::{Blocks, StateTree};
use datafusion_rmq_logical::logical_plan::accumulator_call::{AccumulatorCall, AccumulatorOutput};
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::common::row_number::rows_between;
use rmq_arrow::common::workers::Workers;

/// The rows of narrow ranges that are read at a time, about.
const ROWS_AT_A_TIME: usize = 1 << 14;

/// The states of one call of an aggregate function.
#[derive(Debug)]
pub(crate) struct BlockStates {
    rows: Arc<AccumulatedRows>,
    blocks: Blocks,
    threads: usize,
    /// An empty reservation.
    memory: MemoryReservation,
    metrics: BuildMetrics,
    built: OnDemand<Registered>,
}

/// Where the states of calls over the same rows are kept for other queries.
pub(crate) trait StatesKeeper {
    /// The states of a call over these columns, which `make` makes if they are not kept; `None` if there are none.
    fn states(
        &self,
        call: &AccumulatorCall,
        columns: &[ArrayRef],
        make: &dyn Fn() -> Option<BlockStates>,
    ) -> Option<Arc<BlockStates>>;
}

/// Keeps nothing.
#[derive(Debug)]
pub(crate) struct NoKeeper;

impl StatesKeeper for NoKeeper {
    fn states(
        &self,
        _call: &AccumulatorCall,
        _columns: &[ArrayRef],
        make: &dyn Fn() -> Option<BlockStates>,
    ) -> Option<Arc<BlockStates>> {
        make().map(Arc::new)
    }
}

/// The states of calls over the same rows, each once.
#[derive(Debug, Default, Clone)]
pub(crate) struct KeptStates(Vec<KeptCall>);

#[derive(Debug, Clone)]
struct KeptCall {
    call: AccumulatorCall,
    columns: Vec<ArrayRef>,
    /// `None` if the call has no small states.
    states: Option<Arc<BlockStates>>,
}

impl KeptStates {
    /// As [`StatesKeeper::states`].
    pub(crate) fn get_or_make(
        &mut self,
        call: &AccumulatorCall,
        columns: &[ArrayRef],
        make: &dyn Fn() -> Option<BlockStates>,
    ) -> Option<Arc<BlockStates>> {
        // What is made of the states, and how the query writes the call, makes no difference.
        let call = AccumulatorCall {
            output: AccumulatorOutput::State,
            text: String::new(),
            ..call.clone()
        };
        let known = self.0.iter().find(|known| {
            let mut pairs = known.columns.iter().zip(columns);
            known.call == call
                && known.columns.len() == columns.len()
                && pairs.all(|(a, b)| Arc::ptr_eq(a, b))
        });
        if let Some(known) = known {
            return known.states.clone();
        }
        let states = make().map(Arc::new);
        self.0.push(KeptCall {
            call,
            columns: columns.to_vec(),
            states: states.clone(),
        });
        states
    }

    /// Drops the states of columns that are not kept.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&ArrayRef) -> bool) {
        self.0.retain(|known| known.columns.iter().all(&is_kept));
    }

    /// Bytes that are registered for them.
    pub(crate) fn registered_bytes(&self) -> usize {
        let states = self.0.iter().filter_map(|known| known.states.as_ref());
        let memory = states.flat_map(|states| states.memory());
        memory.map(|memory| memory.size()).sum()
    }
}

/// A tree, with what registers its memory.
#[derive(Debug)]
struct Registered {
    tree: StateTree,
    memory: Arc<MemoryReservation>,
}

impl BlockStates {
    /// Of a call over sorted rows; `None` if it sees rows in another order, or if its states are not small.
    pub(crate) fn try_new(
        rows: &Arc<AccumulatedRows>,
        threads: usize,
        metrics: &BuildMetrics,
        memory: &MemoryReservation,
    ) -> Option<Self> {
        if rows.is_ordered() {
            return None;
        }
        Some(Self {
            blocks: Blocks::choose(rows.as_ref(), rows.len())?,
            rows: Arc::clone(rows),
            threads,
            memory: memory.new_empty(),
            metrics: metrics.clone(),
            built: OnDemand::default(),
        })
    }

    /// How many of the first ranges [`Self::cover`] should have at a time: before the tree is built, a wide range is
    /// covered by its own.
    pub(crate) fn at_a_time(&self, ranges: &[&Range<usize>]) -> usize {
        if let Some(built) = self.built.get() {
            return built.tree.ranges_at_a_time();
        }
        let mut rows = 0;
        let narrow = ranges.iter().take_while(|range| {
            rows += range.len();
            rows <= ROWS_AT_A_TIME && self.blocks.of_range(range).is_none()
        });
        narrow.count().max(1)
    }

    /// The ranges, as many as [`Self::at_a_time`] says, as a tree covers them.
    pub(crate) fn cover<'a>(
        &'a self,
        ranges: &[&Range<usize>],
        check: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<AggregatedRanges<'a>> {
        if let Some(Registered { tree, .. }) = self.built.get() {
            return tree.cover(&*self.rows, ranges, true);
        }
        let blocks = match ranges {
            [range] => self.blocks.of_range(range),
            _ => None,
        };
        let Some(blocks) = blocks else {
            return AggregatedRanges::read(&*self.rows, ranges, self.blocks.method(), false);
        };
        let (workers, memory) = (Workers::new(1, check), self.memory.new_empty());
        let tree = StateTree::of_range(&*self.rows, self.blocks, blocks, workers, &memory)?;
        tree.cover(&*self.rows, ranges, false)
    }

    /// Whether the tree of all rows is built.
    pub(crate) fn is_built(&self) -> bool {
        self.built.get().is_some()
    }

    /// Whether that can't be built.
    pub(crate) fn has_failed(&self) -> bool {
        self.built.has_failed()
    }

    fn try_build(&self) -> Result<Registered> {
        let _timers = [
            self.metrics.index_time.timer(),
            self.metrics.elapsed_compute.timer(),
        ];
        let (rows, memory) = (self.rows.len(), self.memory.new_empty());
        let workers = Workers::new(self.threads, &|| Ok(()));
        let tree = StateTree::of_all(&*self.rows, self.blocks, rows, workers, &memory)?;
        self.metrics.index_bytes.add(tree.bytes());
        let memory = Arc::new(memory);
        Ok(Registered { tree, memory })
    }
}

impl LazyStructure for BlockStates {
    fn should_build(&self, ranges: &Ranges) -> bool {
        if self.built.is_decided() {
            return false;
        }
        let ranges = ranges.iter().filter_map(|range| rows_between(range).ok());
        let ranges = ranges.map(|rows| rows.start as usize..rows.end as usize);
        let wide = ranges.filter(|range| self.blocks.of_range(range).is_some());
        let rows = wide.map(|range| range.len()).fold(0, usize::saturating_add);
        self.built.is_justified(rows, self.rows.len())
    }

    fn build(&self) -> Result<()> {
        let what = format!("states of {}", self.rows.call().text);
        let build = || self.try_build().map(Some);
        self.built.build(&what, &|| Ok(()), build);
        Ok(())
    }

    /// What it will take is not registered before it is built: without it rows are read.
    fn memory(&self) -> Vec<Arc<MemoryReservation>> {
        let built = self.built.get();
        let memory = built.map(|built| Arc::clone(&built.memory));
        memory.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray, Float64Array};
    use arrow::datatypes::Float64Type;
    use datafusion::execution::memory_pool::{
        MemoryConsumer, MemoryPool, TrackConsumersPool, UnboundedMemoryPool,
    };
    use datafusion::functions_aggregate::correlation::corr_udaf;
    use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
    use rmq_testing::runs;

    use super::*;
    use crate::exec::range_join::build_side::accumulator::RangeAccumulator;
    use crate::states::aggregated_rows::AggregatedRows;

    fn correlation(columns: &[ArrayRef], threads: usize) -> RangeAccumulator {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        correlation_in(&pool, columns, threads)
    }

    fn correlation_in(
        pool: &Arc<dyn MemoryPool>,
        columns: &[ArrayRef],
        threads: usize,
    ) -> RangeAccumulator {
        let call = AccumulatorCall {
            function: corr_udaf(),
            literals: vec![None, None],
            order_by: vec![],
            is_filtered: false,
            is_distinct: false,
            ignores_nulls: false,
            output: AccumulatorOutput::Value,
            text: "corr".to_owned(),
        };
        let metrics = BuildMetrics::new(&ExecutionPlanMetricsSet::new());
        let memory = MemoryConsumer::new("test").register(pool);
        let (call, columns) = (Arc::new(call), columns.to_vec());
        RangeAccumulator::try_new(&call, &columns, None, &NoKeeper, threads, &metrics, &memory)
            .expect("a function over floats")
    }

    #[test]
    fn the_states_of_one_wide_range_are_registered() {
        let rows = 100_000;
        let column: ArrayRef =
            Arc::new((0..rows).map(f64::from).map(Some).collect::<Float64Array>());
        let inner = UnboundedMemoryPool::default();
        let pool = Arc::new(TrackConsumersPool::new(inner, 1.try_into().expect("not 0")));
        let registering: Arc<dyn MemoryPool> = Arc::clone(&pool) as _;
        let unbuilt = correlation_in(&registering, &[Arc::clone(&column), column], 1);
        let ranges: Ranges = [(7, i64::from(rows) - 9)].into_iter().collect();
        let found = unbuilt.evaluate(&ranges, &|| Ok(()));
        assert_eq!(found.expect("no error").len(), 1);
        let metrics = pool.metrics();
        let peak = metrics.iter().map(|metrics| metrics.peak).max();
        // A state has six numbers, and a block 8 rows.
        let leaves = usize::try_from(rows).expect("not negative") / 8 * 6 * 8;
        assert!(peak >= Some(leaves), "{peak:?} of {leaves}");
        assert_eq!(pool.reserved(), 0);
    }

    #[test]
    fn answers_are_the_same_bits_before_states_are_built_and_by_any_threads() {
        for mut random in runs("block_states_bits", &[]) {
            let rows = 300 + random.below(200_000);
            let mut column = || -> ArrayRef {
                let values = (0..rows).map(|_| {
                    let value = u32::try_from(random.below(1 << 20)).expect("below 2^20");
                    (value % 7 != 0).then_some(f64::from(value) / 3.0)
                });
                Arc::new(values.collect::<Float64Array>())
            };
            let columns = [column(), column()];
            let ranges: Ranges = (0..200)
                .map(|_| {
                    let start = random.below(rows);
                    let length = random.below(rows - start) >> random.below(12);
                    let end = i64::try_from(start + length).expect("below 2^63");
                    (end - i64::try_from(length).expect("below 2^63"), end - 1)
                })
                .collect();
            let check = || Ok(());
            let unbuilt = correlation(&columns, 1);
            let expected = unbuilt.evaluate(&ranges, &check).expect("no error");
            let bits = |values: &ArrayRef| {
                let values = values.as_primitive::<Float64Type>();
                let bits = values.iter().map(|value| value.map(f64::to_bits));
                bits.collect::<Vec<_>>()
            };
            for threads in [1, 3] {
                let built = correlation(&columns, threads);
                let states = built.states().expect("small states");
                states.build().expect("no error");
                assert!(states.memory()[0].size() > 0);
                let found = built.evaluate(&ranges, &check).expect("no error");
                assert_eq!(bits(&found), bits(&expected), "{rows} rows");
            }
            // And near what one accumulator finds that reads all rows.
            let (found, states) = (
                expected.as_primitive::<Float64Type>(),
                unbuilt.states().expect("small states"),
            );
            for (i, range) in ranges.iter().enumerate() {
                let range = rows_between(range).expect("rows");
                let (start, length) = (range.start as usize, range.len());
                let mut accumulator = states.rows.function().function.create_accumulator();
                let accumulator = accumulator.as_mut().expect("a function over floats");
                let slices = columns.iter().map(|c| c.slice(start, length));
                let slices: Vec<_> = slices.collect();
                accumulator.update_batch(&slices).expect("floats");
                let value = accumulator.evaluate().expect("a number").to_array();
                let value = value.expect("a number");
                let value = value.as_primitive::<Float64Type>();
                assert_eq!(found.is_valid(i), value.is_valid(0), "{range:?}");
                let (found, value) = (found.value(i), value.value(0));
                assert!(
                    (found - value).abs() < 1e-9,
                    "{range:?}: {found}, not {value}"
                );
            }
        }
    }
}
