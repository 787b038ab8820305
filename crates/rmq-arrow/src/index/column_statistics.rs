//! Order statistics of ranges of a column: quantiles, and numbers of values below a threshold and of distinct values.
//! The CPU's wavelet matrices of the column's keys ([`KeyStatistics`], [`DistinctCounts`]) answer.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, UInt64Array};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Float64Type};
use datafusion_common::{Result, exec_err, internal_err};

use crate::common::errors::engine_error;
use crate::common::ordered_type::key_bytes;
use crate::common::range_function::{IndexKind, RangeFunction, RangeStatistic};
use crate::common::range_groups::RangeGroups;
use crate::common::ranges::Ranges;
use crate::index::any_width::{AnyWidth, map_width, with_width};
use crate::index::decoder::{Decoder, buffer};
use crate::index::quantile::{Place, interpolated};
use crate::index::sort_keys::{Chunks, Encoded, encode};
use crate::index::threshold::{AnyKeys, ThresholdTest, threshold_keys};
use rmq_engine::cpu::{DistinctCounts, KeyStatistics, RankKey, WaveletMatrix};
use rmq_engine::{Engine, EngineError, Extreme, OutputBuffer, OutputValues};

/// What answers order statistics of a column.
#[derive(Debug)]
pub struct ColumnStatistics {
    index: StatisticIndex,
    decoder: Decoder,
}

#[derive(Debug)]
enum StatisticIndex {
    Ranks(Ranks),
    Distinct(DistinctCounts),
}

type Ranks = AnyWidth<KeyStatistics<u32>, KeyStatistics<u64>, KeyStatistics<u128>>;

impl ColumnStatistics {
    /// Builds the index of this kind of a column of this type, on at most `threads` threads.
    ///
    /// # Errors
    /// An execution error for a type without an order, an internal one for a kind that is none of statistics, and the
    /// engine's, soon after `stops` returns true.
    pub fn build(
        chunks: &Chunks,
        data_type: &DataType,
        kind: IndexKind,
        threads: usize,
        stops: &dyn Fn() -> bool,
    ) -> Result<Self> {
        let Encoded {
            column, decoder, ..
        } = encode(chunks, data_type, Extreme::Min)?;
        let index = match kind {
            IndexKind::Ranks => StatisticIndex::Ranks(map_width!(column, column => {
                KeyStatistics::build(&column, threads, stops).map_err(engine_error)?
            })),
            IndexKind::DistinctCounts => {
                let counts = with_width!(column, column => {
                    DistinctCounts::build(&column, threads, stops)
                });
                StatisticIndex::Distinct(counts.map_err(engine_error)?)
            }
            IndexKind::Extremes(_) => return internal_err!("an index of extremes has no ranks"),
        };
        Ok(Self { index, decoder })
    }

    /// The most bytes that the index of a column takes.
    pub fn estimate(chunks: &Chunks, data_type: &DataType, kind: IndexKind) -> usize {
        let rows = chunks.rows();
        // A column is not longer than this, or its build fails.
        let numbers = u32::try_from(rows).unwrap_or(u32::MAX).saturating_add(1);
        let matrix = WaveletMatrix::bytes_for(rows, numbers);
        match kind {
            IndexKind::Ranks => matrix + rows * key_bytes(data_type),
            IndexKind::DistinctCounts | IndexKind::Extremes(_) => matrix,
        }
    }

    /// The bytes that a build takes besides: copies of the column, its keys beside the numbers of rows in ascending
    /// order, which may be distinct, and the ranks and buckets of rows.
    pub fn working_bytes(chunks: &Chunks, data_type: &DataType) -> usize {
        let of_row = 3 * key_bytes(data_type) + size_of::<u32>() + size_of::<u8>();
        chunks.copy_bytes(data_type) + chunks.rows() * of_row
    }

    /// Has the devices of an engine answer large batches, if it has any. Where they fail, the CPU does.
    ///
    /// # Errors
    /// The engine's.
    pub fn copy_to(&mut self, engine: &dyn Engine, threads: usize) -> Result<()> {
        let copied = match &mut self.index {
            StatisticIndex::Ranks(index) => {
                with_width!(index, index => index.copy_to(engine, threads))
            }
            StatisticIndex::Distinct(index) => index.copy_to(engine, threads),
        };
        copied.map_err(engine_error)
    }

    /// Bytes of the index on each device.
    pub fn device_bytes(&self) -> usize {
        match &self.index {
            StatisticIndex::Ranks(index) => with_width!(index, index => index.device_bytes()),
            StatisticIndex::Distinct(index) => index.device_bytes(),
        }
    }

    /// Number of rows, NULLs included.
    pub fn rows(&self) -> usize {
        match &self.index {
            StatisticIndex::Ranks(index) => with_width!(index, index => index.len()),
            StatisticIndex::Distinct(index) => index.len(),
        }
    }

    /// Bytes of the index. It does not refer to the column.
    pub fn bytes(&self) -> usize {
        let index = match &self.index {
            StatisticIndex::Ranks(index) => with_width!(index, index => index.index_bytes()),
            StatisticIndex::Distinct(index) => index.index_bytes(),
        };
        index + self.decoder.bytes()
    }

    /// The decoder of the column's keys.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Answers calls of a function under this name: one for each row of the arrays of its arguments. NULL where one of
    /// these is; a range without a value has counts of 0, and NULL for a quantile.
    ///
    /// # Errors
    /// An execution error for a fraction that is not from 0 to 1, or a threshold that can't be compared with the
    /// column; an internal one for a function that another index answers.
    pub fn call(
        &self,
        function: RangeStatistic,
        name: &str,
        (left, right): (&ArrayRef, &ArrayRef),
        last: &[ArrayRef],
    ) -> Result<ArrayRef> {
        let ranges = Ranges::try_new(left, right)?;
        let unknown = NullBuffer::union(
            left.logical_nulls().as_ref(),
            right.logical_nulls().as_ref(),
        );
        match (function, &self.index, last) {
            (RangeStatistic::Quantile, StatisticIndex::Ranks(_), [fractions]) => {
                self.quantiles(name, &ranges, fractions)
            }
            (RangeStatistic::CountBelow, StatisticIndex::Ranks(ranks), [thresholds]) => {
                let test = ThresholdTest {
                    strict: true,
                    ..ThresholdTest::of_function(Extreme::Min)
                };
                let counts = self.counts_at_most(ranks, &ranges, thresholds, test)?;
                let nulls = thresholds.logical_nulls();
                let unknown = NullBuffer::union(unknown.as_ref(), nulls.as_ref());
                Ok(Arc::new(Int64Array::new(counts.into(), unknown)))
            }
            (RangeStatistic::CountDistinct, StatisticIndex::Distinct(_), []) => {
                let counts = self.count_distinct(&ranges)?;
                Ok(Arc::new(Int64Array::new(counts.into(), unknown)))
            }
            _ => internal_err!("{name} of an index of another kind"),
        }
    }

    /// The number of values of each range that are not NULL.
    ///
    /// # Errors
    /// An internal error without ranks.
    pub fn count(&self, ranges: &Ranges) -> Result<Vec<i64>> {
        let mut counts = vec![0; ranges.len()];
        let (left, right) = (ranges.left(), ranges.right());
        with_width!(self.ranks()?, ranks => ranks.count(left, right, &mut counts))
            .map_err(engine_error)?;
        Ok(counts)
    }

    /// The number of distinct values of each range.
    ///
    /// # Errors
    /// An internal error for an index of ranks.
    pub fn count_distinct(&self, ranges: &Ranges) -> Result<Vec<i64>> {
        let StatisticIndex::Distinct(index) = &self.index else {
            return internal_err!("an index of ranks knows no distinct values");
        };
        let mut counts = vec![0; ranges.len()];
        index
            .count(ranges.left(), ranges.right(), &mut counts)
            .map_err(engine_error)?;
        Ok(counts)
    }

    /// The number of values of each range that pass a comparison with its threshold: none for NULL.
    ///
    /// # Errors
    /// An execution error for thresholds that can't be compared with the column; an internal error without ranks.
    pub fn count_passing(
        &self,
        ranges: &Ranges,
        thresholds: &ArrayRef,
        test: ThresholdTest,
    ) -> Result<Int64Array> {
        let ranks = self.ranks()?;
        let mut counts = if test.extreme == Extreme::Min {
            self.counts_at_most(ranks, ranges, thresholds, test)?
        } else {
            // All but those that fail.
            let fails = ThresholdTest {
                extreme: Extreme::Min,
                strict: !test.strict,
                ..test
            };
            let failing = self.counts_at_most(ranks, ranges, thresholds, fails)?;
            let all = self.count(ranges)?;
            all.iter()
                .zip(failing)
                .map(|(all, fail)| all - fail)
                .collect()
        };
        if let Some(known) = thresholds.logical_nulls() {
            set_zero(&mut counts, &known);
        }
        Ok(counts.into())
    }

    /// The number of values that are at most, or below, the threshold of each range.
    fn counts_at_most(
        &self,
        ranks: &Ranks,
        ranges: &Ranges,
        thresholds: &ArrayRef,
        test: ThresholdTest,
    ) -> Result<Vec<i64>> {
        let decoder = &self.decoder;
        let found = threshold_keys(thresholds, decoder.value_type(), decoder.distinct(), test)?;
        let mut counts = vec![0; ranges.len()];
        let (left, right) = (ranges.left(), ranges.right());
        macro_rules! count {
            ($ranks:expr, $keys:expr) => {
                $ranks.count_at_most(left, right, $keys, &mut counts)
            };
        }
        match (ranks, &found.keys) {
            (AnyWidth::W32(ranks), AnyKeys::W32(keys)) => count!(ranks, keys),
            (AnyWidth::W64(ranks), AnyKeys::W64(keys)) => count!(ranks, keys),
            (AnyWidth::W128(ranks), AnyKeys::W128(keys)) => count!(ranks, keys),
            _ => return exec_err!("thresholds and column have keys of different widths"),
        }
        .map_err(engine_error)?;
        if let Some(valid) = found.valid {
            // No value is below the threshold.
            set_zero(&mut counts, &valid);
        }
        Ok(counts)
    }

    fn ranks(&self) -> Result<&Ranks> {
        match &self.index {
            StatisticIndex::Ranks(ranks) => Ok(ranks),
            StatisticIndex::Distinct(_) => {
                internal_err!("an index of distinct values has no ranks")
            }
        }
    }

    /// Between two values, as `percentile_cont` computes it.
    fn quantiles(&self, name: &str, ranges: &Ranges, fractions: &ArrayRef) -> Result<ArrayRef> {
        let fractions = cast(fractions, &DataType::Float64)?;
        let fractions = fractions.as_primitive::<Float64Type>();
        let mut given = fractions.iter().flatten();
        if let Some(q) = given.find(|q| !(0.0..=1.0).contains(q)) {
            return exec_err!("{name}: q is {q}, but a fraction is from 0 to 1");
        }
        let counts = self.count(ranges)?;
        let places = counts.iter().zip(fractions.values()).map(|(count, q)| {
            // A range without values has none with the number 0.
            let last = u64::try_from(count - 1).unwrap_or(0);
            Place::of_quantile(*q, last)
        });
        let places: Vec<Place> = places.collect();
        let [lower, upper] = self.at_places(ranges, &places)?;
        let (lower, upper) = (
            cast(&lower, &DataType::Float64)?,
            cast(&upper, &DataType::Float64)?,
        );
        let lower = lower.as_primitive::<Float64Type>();
        let upper = upper.as_primitive::<Float64Type>();
        let values = places.iter().zip(lower.values().iter().zip(upper.values()));
        let values = values.map(|(place, (lower, upper))| match place.weight {
            None => *lower,
            Some(weight) => interpolated(*lower, *upper, weight),
        });
        let nulls = NullBuffer::union(lower.nulls(), fractions.nulls());
        let values: ArrayRef = Arc::new(Float64Array::new(values.collect(), nulls));
        let function = RangeFunction::Statistic(RangeStatistic::Quantile);
        Ok(cast(
            &values,
            &function.result_type(self.decoder.value_type()),
        )?)
    }

    /// The lower and the upper value at the place of each range; NULL where the range has none. Both are sought
    /// together, as they have most of their way in common.
    ///
    /// # Errors
    /// An internal error without ranks.
    pub fn at_places(&self, ranges: &Ranges, places: &[Place]) -> Result<[ArrayRef; 2]> {
        let both = ranges.iter().flat_map(|range| [range, range]).collect();
        let smaller = places.iter().flat_map(|place| [place.lower, place.upper]);
        let smaller: Vec<u64> = smaller.collect();
        let values = self.nth_smallest_of(NthOf::Ranges(&both), &smaller)?;
        let every_second = |first: u64| {
            let numbers: UInt64Array = (first..).step_by(2).take(places.len()).collect();
            take(&values, &numbers, None)
        };
        Ok([every_second(0)?, every_second(1)?])
    }

    /// The value of each group of ranges that has this many smaller ones in them together; NULL where they have no
    /// more. A row that is in several of them counts as often.
    ///
    /// # Errors
    /// An internal error without ranks.
    pub fn nth_smallest_of_groups(
        &self,
        groups: &RangeGroups,
        smaller: &[u64],
    ) -> Result<ArrayRef> {
        self.nth_smallest_of(NthOf::Groups(groups), smaller)
    }

    fn nth_smallest_of(&self, of: NthOf<'_>, smaller: &[u64]) -> Result<ArrayRef> {
        let (keys, valid) = match self.ranks()? {
            AnyWidth::W32(ranks) => nth_smallest(ranks, of, smaller, OutputValues::W32),
            AnyWidth::W64(ranks) => nth_smallest(ranks, of, smaller, OutputValues::W64),
            AnyWidth::W128(ranks) => nth_smallest(ranks, of, smaller, OutputValues::W128),
        }
        .map_err(engine_error)?;
        let valid = BooleanBuffer::new(buffer(OutputBuffer::from(valid)), 0, smaller.len());
        self.decoder.decode(keys, NullBuffer::new(valid))
    }
}

/// Sets counts to 0 where `valid` is not set.
fn set_zero(counts: &mut [i64], valid: &NullBuffer) {
    for (count, is_valid) in counts.iter_mut().zip(valid) {
        *count *= i64::from(is_valid);
    }
}

/// The rows among which a value is the n-th.
#[derive(Clone, Copy)]
enum NthOf<'a> {
    Ranges(&'a Ranges),
    Groups(&'a RangeGroups),
}

/// The bits of the values, and a bitmap of the ranges or groups that have them.
fn nth_smallest<K: RankKey>(
    ranks: &KeyStatistics<K>,
    of: NthOf<'_>,
    smaller: &[u64],
    of_width: fn(OutputBuffer<K>) -> OutputValues,
) -> Result<(OutputValues, Vec<u64>), EngineError> {
    let mut values = vec![K::ZERO; smaller.len()];
    let mut valid = vec![0; smaller.len().div_ceil(64)];
    match of {
        NthOf::Ranges(ranges) => {
            // No range has as many values as the greatest of these.
            let smaller = smaller
                .iter()
                .map(|n| i64::try_from(*n).unwrap_or(i64::MAX));
            let smaller: Vec<i64> = smaller.collect();
            let (left, right) = (ranges.left(), ranges.right());
            ranks.nth_smallest(left, right, &smaller, &mut values, &mut valid)?;
        }
        NthOf::Groups(groups) => {
            let (firsts, ranges) = (groups.firsts(), groups.ranges());
            let (left, right) = (ranges.left(), ranges.right());
            ranks.nth_smallest_of_groups(firsts, left, right, smaller, &mut values, &mut valid)?;
        }
    }
    Ok((of_width(values.into()), valid))
}
