//! Computes one aggregate over ranges of the sorted build side.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
use datafusion::common::{DataFusionError, Result, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::range_join::build_columns::ValueAggregate;
use crate::exec::range_join::build_side::accumulator::RangeAccumulator;
use crate::exec::range_join::build_side::block_states::{BlockStates, StatesKeeper};
use crate::exec::range_join::build_side::column::{Built, PreparedColumn};
use crate::exec::range_join::build_side::lazy_structure::LazyStructure;
use crate::exec::range_join::build_side::order_statistics::{ListedOtherwise, OrderStatistics};
use crate::exec::range_join::build_side::range_sources::RangeSources;
use crate::exec::range_join::metrics::BuildMetrics;
use datafusion_rmq_logical::logical_plan::range_join::AggregateKind;
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::common::row_number::{row_number, rows_between};
use rmq_arrow::index::key_index::KeyIndex;
use rmq_arrow::index::threshold::ThresholdTest;
use rmq_arrow::range_agg::counts::Counts;
use rmq_arrow::range_agg::prefix_sums::Sums;
use rmq_arrow::range_agg::values::Values;
use rmq_arrow::sorted::sorted_rows::SortedRows;

/// One aggregate with the structures that answer it.
#[derive(Debug)]
pub(crate) struct AggregateEvaluator {
    function: AggregateKind,
    /// What the table of aggregates lists, each with the number of the argument that it is built of.
    structures: Vec<(usize, Built)>,
    /// Of [`AggregateKind::Accumulate`]: reads the arrays.
    accumulator: Option<Arc<RangeAccumulator>>,
    metrics: BuildMetrics,
    /// Whether it reads the rows of ranges, and so may take long.
    pub(crate) reads_rows: bool,
}

impl AggregateEvaluator {
    /// The evaluator of an aggregate over `columns`, with states of blocks that are kept in `states`. What an
    /// accumulator takes is registered in the pool of `memory`, an empty reservation, and what it builds is built on up
    /// to `threads` threads.
    ///
    /// # Errors
    /// An internal error if a structure has not been built. If memory is short.
    pub(crate) fn try_new(
        aggregate: &ValueAggregate,
        columns: &[PreparedColumn],
        states: &dyn StatesKeeper,
        threads: usize,
        metrics: &BuildMetrics,
        memory: &MemoryReservation,
    ) -> Result<Self> {
        let entry = aggregate.entry();
        let structures = entry.needs.iter().map(|(argument, structure)| {
            let column = columns.get(*aggregate.arguments.get(*argument)?)?;
            Some((*argument, column.get(*structure)?.clone()))
        });
        let structures = structures.collect::<Option<Vec<_>>>();
        let mut evaluator = Self {
            function: aggregate.function,
            structures: structures.ok_or_else(|| not_prepared(aggregate.function))?,
            accumulator: None,
            metrics: metrics.clone(),
            reads_rows: entry.reads_rows,
        };
        if let (AggregateKind::Accumulate, Some(call)) = (aggregate.function, &aggregate.call) {
            let arrays = evaluator
                .structures
                .iter()
                .filter_map(|(_, built)| match built {
                    Built::Array(array) => Some(Arc::clone(array)),
                    _ => None,
                });
            let statistics = evaluator.statistics().cloned();
            let arrays: Vec<ArrayRef> = arrays.collect();
            let mut accumulator = RangeAccumulator::try_new(
                call, &arrays, statistics, states, threads, metrics, memory,
            )?;
            if accumulator.returns_ranges() {
                let retained = aggregate.arguments.iter();
                let retained = retained.filter_map(|argument| columns.get(*argument).cloned());
                accumulator = accumulator.retaining(retained.collect());
            }
            evaluator.accumulator = Some(Arc::new(accumulator));
        }
        Ok(evaluator)
    }

    /// Its structures that are built once ranges justify it.
    pub(crate) fn lazy_structures(&self) -> impl Iterator<Item = Arc<dyn LazyStructure>> {
        let of_columns = self.structures.iter();
        let of_columns = of_columns.filter_map(|(_, built)| match (built, &self.accumulator) {
            // They are built when groups of ranges are aggregated.
            (_, Some(accumulator)) if accumulator.returns_ranges() => None,
            // Accumulators of other functions, or of other types, don't ask their column's order statistics.
            (Built::OrderStatistics(_), Some(accumulator)) if !accumulator.has_statistics() => None,
            (Built::OrderStatistics(statistics), None) => {
                Some(Arc::new(ListedOtherwise(Arc::clone(statistics))) as _)
            }
            (built, _) => built.lazy(),
        });
        let states = self.accumulator.as_ref().and_then(|a| a.states());
        let states = states.map(|states| Arc::<BlockStates>::clone(states) as _);
        of_columns.chain(states)
    }

    /// The aggregate over each range of `rows`, with the thresholds of the probe rows. Over an empty range counts are 0
    /// and all else is NULL, but an accumulator decides itself. What reads rows calls `check` between ranges. Ranges
    /// that are returned are those of a source in `sources`.
    pub(crate) fn evaluate(
        &self,
        ranges: &Ranges,
        thresholds: &[ArrayRef],
        rows: &SortedRows,
        sources: Option<&RangeSources>,
        check: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<ArrayRef> {
        Ok(match self.function {
            AggregateKind::CountRows => {
                let counts = ranges.iter().map(|(l, r)| (r - l + 1).max(0));
                Arc::new(counts.collect::<Int64Array>())
            }
            AggregateKind::Count => Arc::new(self.counts(0)?.answer(ranges)),
            AggregateKind::Sum => self.sums()?.answer(ranges),
            AggregateKind::SumLow => self.sums()?.sums_low(ranges)?,
            AggregateKind::Extreme(_) => {
                let ranges = std::slice::from_ref(ranges);
                self.index()?.answer(ranges, true, false)?.into_values()?
            }
            AggregateKind::First => {
                let first = ranges.iter().map(|(l, r)| (l <= r).then_some(l));
                self.values()?.at(first)?
            }
            AggregateKind::Last => {
                let last = ranges.iter().map(|range| last_row(rows, range));
                let last = last.collect::<Result<Vec<_>>>()?;
                self.values()?.at(last.into_iter())?
            }
            AggregateKind::Rightmost => {
                let last = ranges.iter().map(|(l, r)| (l <= r).then_some(r));
                self.values()?.at(last)?
            }
            AggregateKind::AtExtreme { nulls_first, .. } => self.at_extreme(ranges, nulls_first)?,
            AggregateKind::AtCrossing {
                end,
                comparison,
                threshold,
            } => {
                let answer = self.index()?.crossings(
                    std::slice::from_ref(ranges),
                    std::slice::from_ref(evaluated(thresholds, threshold)?),
                    end,
                    ThresholdTest::of_comparison(comparison),
                )?;
                self.values()?.at(answer.into_positions()?.iter())?
            }
            AggregateKind::CountCrossing {
                comparison,
                threshold,
            } => {
                let test = ThresholdTest::of_comparison(comparison);
                self.count_passing(ranges, evaluated(thresholds, threshold)?, test, check)?
            }
            AggregateKind::Accumulate => {
                let accumulator = self.accumulator.as_ref();
                let accumulator = accumulator.ok_or_else(|| not_prepared(self.function))?;
                if !accumulator.returns_ranges() {
                    return accumulator.evaluate(ranges, check);
                }
                let Some(sources) = sources else {
                    return internal_err!("ranges of rows are returned to no other operator");
                };
                sources.column(accumulator, ranges)?
            }
        })
    }

    /// The values where another column has its extreme; the first row's if all values that order are NULL.
    fn at_extreme(&self, ranges: &Ranges, nulls_first: bool) -> Result<ArrayRef> {
        let one = std::slice::from_ref(ranges);
        let positions = self.index()?.answer(one, false, true)?.into_positions()?;
        let nulls = nulls_first.then(|| self.counts(1)).transpose()?;
        let rows = positions.iter().zip(ranges.iter());
        let rows = rows.map(|(position, range)| {
            let null = nulls.and_then(|nulls| nulls.first_null(range));
            let first = (range.0 <= range.1).then_some(range.0);
            null.or(position).or(first)
        });
        self.values()?.at(rows)
    }

    /// Counts the rows that pass their range's threshold: by ranks once they are built, else by listing these rows.
    fn count_passing(
        &self,
        ranges: &Ranges,
        thresholds: &ArrayRef,
        test: ThresholdTest,
        check: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<ArrayRef> {
        if let Some(ranks) = self.statistics().and_then(|ranks| ranks.index()) {
            self.metrics.record_order_statistics(ranges.len());
            return Ok(Arc::new(ranks.count_passing(ranges, thresholds, test)?));
        }
        let index = self.index()?;
        let (ranges, thresholds) = (
            std::slice::from_ref(ranges),
            std::slice::from_ref(thresholds),
        );
        let queries = index.threshold_queries(ranges, thresholds, test)?;
        Ok(Arc::new(index.count(&queries, check)?))
    }

    fn counts(&self, argument: usize) -> Result<&Counts> {
        self.structure(argument, |built| match built {
            Built::Counts(counts) => Some(counts),
            _ => None,
        })
    }

    fn sums(&self) -> Result<&Sums> {
        self.structure(0, |built| match built {
            Built::Sums(sums) => Some(sums),
            _ => None,
        })
    }

    /// The values of the first argument.
    fn values(&self) -> Result<&Values> {
        self.structure(0, |built| match built {
            Built::Values(values) => Some(values),
            _ => None,
        })
    }

    fn statistics(&self) -> Option<&Arc<OrderStatistics>> {
        let mut structures = self.structures.iter();
        structures.find_map(|(_, built)| match built {
            Built::OrderStatistics(statistics) => Some(statistics),
            _ => None,
        })
    }

    fn index(&self) -> Result<&KeyIndex> {
        let index = self.structures.iter().find_map(|(_, built)| match built {
            Built::Index(index) => Some(index.keys()),
            _ => None,
        });
        index.ok_or_else(|| not_prepared(self.function))
    }

    /// A structure of an argument, which `of_kind` recognises.
    fn structure<'a, T>(
        &'a self,
        argument: usize,
        of_kind: impl Fn(&'a Built) -> Option<&'a Arc<T>>,
    ) -> Result<&'a T> {
        let structures = self.structures.iter();
        let mut structures = structures.filter(|(of, _)| *of == argument);
        let found = structures.find_map(|(_, built)| of_kind(built));
        let found = found.map(AsRef::as_ref);
        found.ok_or_else(|| not_prepared(self.function))
    }
}

fn not_prepared(function: AggregateKind) -> DataFusionError {
    internal_datafusion_err!("{function:?} over a column that was not prepared for it")
}

/// The threshold with this number.
fn evaluated(thresholds: &[ArrayRef], number: usize) -> Result<&ArrayRef> {
    let threshold = thresholds.get(number);
    threshold.ok_or_else(|| internal_datafusion_err!("a threshold was not evaluated"))
}

/// The first of the rows of a range with the greatest key; `None` for an empty range.
fn last_row(rows: &SortedRows, range: (i64, i64)) -> Result<Option<i64>> {
    let Range { start, end } = rows_between(range)?;
    if start == end {
        return Ok(None);
    }
    let first = rows.first_equal(start as usize, end as usize - 1);
    Ok(Some(row_number(first)?.into()))
}
