//! Order statistics of ranges of sorted rows: medians, percentiles and numbers of distinct values, in time logarithmic
//! in the distinct values of the column, however long a range is.
//!
//! A wavelet matrix ([`WaveletMatrix`]) has the ranks of the values in the order of the rows: it counts the rows of a
//! range below a rank, and finds the rank of the n-th smallest. Distinct values are counted by another one, of each
//! row's previous row with the same value ([`previous_rows`]). Both are built once the ranges have enough rows for it
//! to pay; before that, and where memory is short, an accumulator reads the rows. The answers are the same bits.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, Int64Array, PrimitiveArray};
use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Float32Type,
    Float64Type,
};
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use rmq_engine::cpu::{WaveletMatrix, previous_rows};

use crate::common::errors::engine_error;
use crate::common::ranges::Ranges;
use crate::common::row_number::{row_number, rows_between};
use crate::common::workers::Workers;
use crate::exec::range_join::build_side::on_demand::OnDemand;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::order_statistic::{OrderStatistic, Place, interpolated, middle};
use crate::index::rank::Ranked;
use crate::sorted::group_sort::SortContext;
use crate::sorted::value_ranks::rank_values;

/// The mean number of rows of a range from which a matrix takes less than reading the rows.
const MIN_ROWS: usize = 32;

/// Ranges are read until they have this many times the rows of the build side: the values have to be sorted.
const READ_TIMES: usize = 8;

/// The order statistics of a column.
#[derive(Debug)]
pub(crate) struct OrderStatistics {
    /// The values of the sorted rows.
    values: ArrayRef,
    threads: usize,
    /// An empty reservation.
    memory: MemoryReservation,
    ranks: OnDemand<Ranks>,
    previous: OnDemand<PreviousRows>,
}

/// The ranks of the values, NULL above all others.
#[derive(Debug)]
struct Ranks {
    matrix: WaveletMatrix,
    /// The value of each rank.
    distinct: ArrayRef,
    has_nulls: bool,
    memory: MemoryReservation,
}

/// For each row its previous row with the same value; NULL has none that is in any range.
#[derive(Debug)]
struct PreviousRows {
    matrix: WaveletMatrix,
    memory: MemoryReservation,
}

/// The query that is answered.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    /// Tell what is built for it.
    pub(crate) metrics: &'a BuildMetrics,
    /// Returns an error once it is cancelled.
    pub(crate) check: &'a dyn Fn() -> Result<()>,
}

/// Half-open ranges of rows.
struct Spans {
    starts: Vec<usize>,
    ends: Vec<usize>,
}

impl OrderStatistics {
    /// Of these values of sorted rows. What it builds, on up to `threads` threads, is registered in the pool of
    /// `memory`, an empty reservation.
    pub(crate) fn new(values: ArrayRef, threads: usize, memory: MemoryReservation) -> Self {
        Self {
            values,
            threads,
            memory,
            ranks: OnDemand::default(),
            previous: OnDemand::default(),
        }
    }

    /// Bytes that are registered for what has been built.
    pub(crate) fn registered_bytes(&self) -> usize {
        let ranks = self.ranks.get().map_or(0, |ranks| ranks.memory.size());
        ranks
            + self
                .previous
                .get()
                .map_or(0, |previous| previous.memory.size())
    }

    /// The statistic of each range; `None` if their rows are to be read. May block, to build what they justify.
    pub(crate) fn answer(
        &self,
        statistic: OrderStatistic,
        ranges: &Ranges,
        query: Query,
    ) -> Result<Option<ArrayRef>> {
        if !statistic.is_known_for(self.values.data_type()) {
            return Ok(None);
        }
        let spans = Spans::try_new(ranges)?;
        let rows = spans.rows_to_count();
        let most = READ_TIMES.saturating_mul(self.values.len());
        let check = query.check;
        let answers = if statistic == OrderStatistic::CountDistinct {
            if !self.previous.is_justified(rows, most) {
                return Ok(None);
            }
            let build = || self.build_previous(query);
            self.previous
                .build(&"index of distinct values", check, build);
            let previous = self.previous.get();
            previous.map(|previous| spans.count_distinct(previous))
        } else {
            if !self.ranks.is_justified(rows, most) {
                return Ok(None);
            }
            let build = || self.build_ranks(query);
            self.ranks.build(&"index of ranks", check, build);
            let ranks = self.ranks.get();
            ranks.map(|ranks| spans.between(ranks, statistic))
        };
        if answers.is_some() {
            query.metrics.record_order_statistics(ranges.len());
        }
        answers.transpose()
    }

    /// The ranks of the values, with room for both matrices and what they are built of.
    fn ranked(&self, query: Query) -> Result<(Ranked, MemoryReservation)> {
        (query.check)()?;
        let rows = self.values.len();
        let memory = self.memory.new_empty();
        // The keys twice, the order of the rows, and their ranks.
        memory.try_grow((2 * size_of::<u64>() + 3 * size_of::<u32>()) * rows)?;
        // Sorting can't be stopped.
        let check = || Ok(());
        let context = SortContext {
            memory: &memory.new_empty(),
            workers: Workers::new(self.threads, &check),
        };
        let mut ranked = rank_values(&self.values, context)?;
        (query.check)()?;
        if let Some(nulls) = self.values.nulls() {
            let above = row_number(ranked.distinct.len())?;
            for (rank, is_valid) in ranked.ranks.iter_mut().zip(nulls) {
                if !is_valid {
                    *rank = above;
                }
            }
        }
        Ok((ranked, memory))
    }

    fn build_ranks(&self, query: Query) -> Result<Option<Ranks>> {
        let _timer = query.metrics.index_time.timer();
        let (Ranked { ranks, distinct }, memory) = self.ranked(query)?;
        let matrix = self.matrix(&ranks, row_number(distinct.len())? + 1, &memory, query)?;
        drop(ranks);
        memory.try_resize(matrix.memory_bytes() + distinct.get_array_memory_size())?;
        Ok(Some(Ranks {
            matrix,
            distinct,
            has_nulls: self.values.null_count() > 0,
            memory,
        }))
    }

    fn build_previous(&self, query: Query) -> Result<Option<PreviousRows>> {
        let _timer = query.metrics.index_time.timer();
        let (Ranked { ranks, distinct }, memory) = self.ranked(query)?;
        let mut previous = previous_rows(&ranks, row_number(distinct.len())? + 1);
        drop((ranks, distinct));
        (query.check)()?;
        let rows = row_number(previous.len())?;
        if let Some(nulls) = self.values.nulls() {
            for (row, is_valid) in previous.iter_mut().zip(nulls) {
                if !is_valid {
                    *row = rows;
                }
            }
        }
        let matrix = self.matrix(&previous, rows + 1, &memory, query)?;
        memory.try_resize(matrix.memory_bytes())?;
        Ok(Some(PreviousRows { matrix, memory }))
    }

    /// A matrix of numbers below `distinct`.
    fn matrix(
        &self,
        numbers: &[u32],
        distinct: u32,
        memory: &MemoryReservation,
        query: Query,
    ) -> Result<WaveletMatrix> {
        let bytes = WaveletMatrix::bytes_for(numbers.len(), distinct);
        // The two copies of the numbers that it is built of.
        memory.try_grow(bytes + 2 * size_of_val(numbers))?;
        let stops = || (query.check)().is_err();
        let matrix = WaveletMatrix::build(numbers, distinct, self.threads, &stops);
        let matrix = matrix.map_err(engine_error)?;
        query.metrics.index_bytes.add(matrix.memory_bytes());
        Ok(matrix)
    }
}

impl Spans {
    fn try_new(ranges: &Ranges) -> Result<Self> {
        let spans = ranges.iter().map(|range| {
            let rows = rows_between(range)?;
            Ok((rows.start as usize, rows.end as usize))
        });
        let spans: Vec<_> = spans.collect::<Result<_>>()?;
        let (starts, ends) = spans.into_iter().unzip();
        Ok(Self { starts, ends })
    }

    /// The rows of all ranges, which count for what is built: none if they are so few that reading them takes less.
    fn rows_to_count(&self) -> usize {
        let lengths = self.starts.iter().zip(&self.ends);
        let lengths = lengths.map(|(start, end)| end - start);
        let (rows, searches) = lengths.fold((0, 0), |(rows, searches), length| {
            (rows + length, searches + usize::from(length > 0))
        });
        if rows < MIN_ROWS * searches { 0 } else { rows }
    }

    /// How many values of each range are not NULL.
    fn valid_rows(&self, ranks: &Ranks) -> Result<Vec<u32>> {
        let lengths = self.starts.iter().zip(&self.ends);
        let lengths = lengths.map(|(start, end)| row_number(end - start));
        let mut lengths = lengths.collect::<Result<Vec<_>>>()?;
        if ranks.has_nulls {
            let above = vec![row_number(ranks.distinct.len())?; lengths.len()];
            let Self { starts, ends } = self;
            let counted = ranks.matrix.count_below(starts, ends, &above, &mut lengths);
            counted.map_err(engine_error)?;
        }
        Ok(lengths)
    }

    fn count_distinct(&self, previous: &PreviousRows) -> Result<ArrayRef> {
        let firsts = self.starts.iter().map(|start| row_number(start + 1));
        let firsts = firsts.collect::<Result<Vec<_>>>()?;
        let mut counts = vec![0; firsts.len()];
        previous
            .matrix
            .count_below(&self.starts, &self.ends, &firsts, &mut counts)
            .map_err(engine_error)?;
        Ok(Arc::new(
            counts.into_iter().map(i64::from).collect::<Int64Array>(),
        ))
    }

    /// A statistic that is a value of each range, or between two of them.
    fn between(&self, ranks: &Ranks, statistic: OrderStatistic) -> Result<ArrayRef> {
        let rows = self.valid_rows(ranks)?;
        let places: Vec<Place> = rows
            .iter()
            .map(|rows| Place::of(statistic, *rows))
            .collect();
        let lower = self.nth(ranks, places.iter().map(|place| place.lower))?;
        let upper = self.nth(ranks, places.iter().map(|place| place.upper))?;
        let found = Found {
            places,
            lower,
            upper,
        };
        let values = &ranks.distinct;
        let is_median = statistic == OrderStatistic::Median;
        Ok(match values.data_type() {
            DataType::Float32 if is_median => found.values::<Float32Type>(values, middle),
            DataType::Float64 if is_median => found.values::<Float64Type>(values, middle),
            DataType::Float32 => found.values::<Float32Type>(values, |lower, upper, weight| {
                #[expect(clippy::cast_possible_truncation, reason = "as DataFusion rounds")]
                let value = interpolated(lower.into(), upper.into(), weight) as f32;
                value
            }),
            DataType::Float64 => found.values::<Float64Type>(values, interpolated),
            DataType::Decimal32(..) => found.values::<Decimal32Type>(values, middle),
            DataType::Decimal64(..) => found.values::<Decimal64Type>(values, middle),
            DataType::Decimal128(..) => found.values::<Decimal128Type>(values, middle),
            DataType::Decimal256(..) => found.values::<Decimal256Type>(values, middle),
            other => return internal_err!("{statistic:?} of a {other} is not known"),
        })
    }

    /// The rank of the row at each place of a range's sorted values.
    fn nth(&self, ranks: &Ranks, places: impl Iterator<Item = u32>) -> Result<Vec<u32>> {
        let places: Vec<u32> = places.collect();
        let mut found = vec![0; places.len()];
        let Self { starts, ends } = self;
        let searched = ranks.matrix.nth_smallest(starts, ends, &places, &mut found);
        searched.map_err(engine_error)?;
        Ok(found)
    }
}

/// The two values that each range's statistic is made of, as ranks.
struct Found {
    places: Vec<Place>,
    lower: Vec<u32>,
    upper: Vec<u32>,
}

impl Found {
    /// The statistics. `between` is that of two values and a weight.
    fn values<T: ArrowPrimitiveType>(
        &self,
        distinct: &ArrayRef,
        between: impl Fn(T::Native, T::Native, f64) -> T::Native,
    ) -> ArrayRef {
        let distinct = distinct.as_primitive::<T>();
        let ranks = self.lower.iter().zip(&self.upper).zip(&self.places);
        let values = ranks.map(|((lower, upper), place)| {
            if *lower == WaveletMatrix::NONE {
                return None;
            }
            let lower = distinct.value(*lower as usize);
            Some(match place.weight {
                None => lower,
                Some(weight) => between(lower, distinct.value(*upper as usize), weight),
            })
        });
        let values: PrimitiveArray<T> = values.collect();
        Arc::new(values.with_data_type(distinct.data_type().clone()))
    }
}
