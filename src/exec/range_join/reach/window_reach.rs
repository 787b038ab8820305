//! What the windows of a probe side can reach of the build side.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::stats::Precision;
use datafusion::common::{Result, ScalarValue};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, lit};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::common::blocking::blocking;
use crate::exec::common::plan_key::ScanPlan;
use crate::exec::range_join::bounds::wrapped_bound;
use crate::exec::range_join::reach::intervals::{
    End, Interval, Intervals, MAX_FINE_INTERVALS, MAX_INTERVALS,
};
use crate::exec::range_join::reach::key_set::KeySet;
use crate::exec::range_join::reach::key_values::{Among, KeyValues};
use crate::exec::range_join::reach::row_groups::is_ordered_in_files;
use crate::exec::range_join::reach::whole_keys::{is_whole_number, number};
use datafusion_rmq_logical::logical_plan::range_join::RangeJoinSpec;
use rmq_engine::Comparison;

/// The rows of a build side that the windows of a probe side can reach: those whose range key is in an interval, and
/// whose equality keys have values of the probe side.
#[derive(Debug)]
pub(crate) struct Reach {
    key: PhysicalExprRef,
    intervals: Intervals,
    /// Equality keys that have few values.
    among: Vec<Among>,
}

/// The reach of windows that are added batch by batch.
#[derive(Debug)]
struct ReachBuilder {
    spec: Arc<RangeJoinSpec<PhysicalExprRef>>,
    windows: Windows,
    /// The values of each equality key, while there are few.
    values: Vec<Option<KeyValues>>,
}

/// Windows, merged as they come.
#[derive(Debug)]
enum Windows {
    /// Of keys that are whole numbers of this type, closed at both ends, in about `most` intervals or fewer.
    Whole {
        keys: KeySet,
        data_type: DataType,
        most: usize,
    },
    Any(Intervals),
}

/// Whether the windows of a join have a reach: they are all that rows are matched by. Prevailing rows are in no window:
/// [`Sought`](super::sought::Sought).
pub(crate) fn has_reach(spec: &RangeJoinSpec<PhysicalExprRef>) -> bool {
    !spec.bounds.is_empty()
        // Each is evaluated here and in the join.
        && !spec.probe_expressions().any(is_volatile)
}

/// Whether the windows of a join are bounded at both ends.
pub(crate) fn are_closed(spec: &RangeJoinSpec<PhysicalExprRef>) -> bool {
    let closes = |is_lower: bool| {
        let mut comparisons = spec.bounds.iter().map(|(comparison, _)| comparison);
        comparisons.any(|comparison| comparison.is_lower() == is_lower)
    };
    closes(true) && closes(false)
}

/// Whether scans can be told what windows reach by conditions that tell nothing else: these are about the range key of
/// the rows as they are in files, and about what statistics of files know.
pub(crate) fn is_known_to_scans(spec: &RangeJoinSpec<PhysicalExprRef>, build: &Schema) -> bool {
    // Statistics of files leave NaN out, which is above all other values, or below them with its sign bit set.
    let is_known = |data_type: DataType| {
        is_ordered_in_files(&data_type) && (!data_type.is_floating() || are_closed(spec))
    };
    is_compared_by_scans(&spec.key, build) && spec.key.data_type(build).is_ok_and(is_known)
}

/// Whether scans can compare a key with values, and no comparison fails: a column, or one of integers as wider ones.
fn is_compared_by_scans(key: &PhysicalExprRef, build: &Schema) -> bool {
    let Some(cast) = key.downcast_ref::<CastExpr>() else {
        return key.is::<Column>();
    };
    let from = cast.expr().data_type(build);
    let is_integer = |t: &DataType| t.is_integer();
    cast.expr().is::<Column>()
        && is_integer(cast.cast_type())
        && from.is_ok_and(|from| is_integer(&from) && cast.is_bigger_cast(&from))
}

/// What the windows of rows of the probe side reach, in at most so many intervals, computed on a thread that may block;
/// `None` if a bound has failed for some row, which the join need not meet, or once `is_too_much` is reached.
pub(crate) async fn reach_of(
    spec: Arc<RangeJoinSpec<PhysicalExprRef>>,
    build: SchemaRef,
    probe: Vec<RecordBatch>,
    most_intervals: usize,
    is_too_much: impl Fn(&Intervals) -> bool + Send + 'static,
) -> Option<Reach> {
    let reach = blocking(move |waiting| {
        let check = || waiting.check();
        Reach::of_rows(&spec, &build, &probe, most_intervals, is_too_much, check)
    });
    reach.await.ok().flatten()
}

impl Windows {
    /// None yet, of a join whose keys are of this type, to be made at most `most` intervals.
    ///
    /// # Errors
    /// If the range key has no order.
    fn none(
        spec: &RangeJoinSpec<PhysicalExprRef>,
        data_type: DataType,
        most: usize,
    ) -> Result<Self> {
        let mut bounds = spec.bounds.iter();
        let is_wrapped = bounds.any(|(_, bound)| wrapped_bound(bound).is_some());
        if is_wrapped || !are_closed(spec) || !is_whole_number(&data_type) {
            return Ok(Self::Any(Intervals::of_type(&data_type)?));
        }
        Ok(Self::Whole {
            keys: KeySet::default(),
            data_type,
            most: MAX_INTERVALS.min(most.saturating_mul(8)),
        })
    }

    /// Adds those of a batch, given by the values of all bounds. Returns for each row whether it has one.
    ///
    /// # Errors
    /// If a bound is of another type than the keys.
    fn add(&mut self, bounds: &[(Comparison, ArrayRef)]) -> Result<Vec<bool>> {
        match self {
            Self::Any(intervals) => intervals.add(bounds),
            Self::Whole {
                keys,
                data_type,
                most,
            } => {
                let has_window = keys.add_windows(bounds, data_type)?;
                if keys.len() > *most {
                    // To so few that the next batch does not exceed them at once.
                    *keys = std::mem::take(keys).with_gaps(*most / 2);
                }
                Ok(has_window)
            }
        }
    }

    /// Whether they are too much.
    ///
    /// # Errors
    /// If the range key has no order.
    fn are(&self, too_much: impl Fn(&Intervals) -> bool) -> Result<bool> {
        Ok(match self {
            Self::Any(intervals) => too_much(intervals),
            Self::Whole {
                keys, data_type, ..
            } => too_much(&keys.intervals(data_type)?),
        })
    }

    /// At most this many intervals, the smallest gaps between which are closed.
    ///
    /// # Errors
    /// If the range key has no order.
    fn finish(self, most: usize) -> Result<Intervals> {
        match self {
            Self::Any(intervals) => Ok(intervals.finish(most)),
            Self::Whole {
                keys, data_type, ..
            } => keys.with_gaps(most).intervals(&data_type),
        }
    }
}

impl ReachBuilder {
    /// Of a join whose build side has this schema, and whose windows have a reach, to be made at most `most` intervals.
    ///
    /// # Errors
    /// If the range key has no order.
    fn try_new(
        spec: &Arc<RangeJoinSpec<PhysicalExprRef>>,
        build: &Schema,
        most: usize,
    ) -> Result<Self> {
        Ok(Self {
            spec: Arc::clone(spec),
            windows: Windows::none(spec, spec.key.data_type(build)?, most)?,
            values: KeyValues::of_join(spec, build)?,
        })
    }

    /// Adds the windows of a batch of the probe side.
    ///
    /// # Errors
    /// Those of the bounds and equality keys: the join may meet none of them.
    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let rows = batch.num_rows();
        let bounds = self.spec.bounds.iter().map(|(comparison, bound)| {
            let values = bound.evaluate(batch)?.into_array(rows)?;
            Ok((*comparison, values))
        });
        let bounds: Vec<_> = bounds.collect::<Result<_>>()?;
        let mut has_window = self.windows.add(&bounds)?;
        let wrapped = self.spec.bounds.iter();
        for wrapped in wrapped.filter_map(|(_, bound)| wrapped_bound(bound)) {
            // All keys beyond the limit, although other bounds may exclude some.
            let limits = wrapped.limits(batch, || vec![true; rows])?;
            let has_wrapped = self.windows.add(&[(wrapped.comparison(), limits)])?;
            for (has, is_wrapped) in has_window.iter_mut().zip(has_wrapped) {
                *has |= is_wrapped;
            }
        }
        for ((probe, _), known) in self.spec.on.iter().zip(&mut self.values) {
            let Some(values) = known else {
                continue;
            };
            let keys = probe.evaluate(batch)?.into_array(rows)?;
            if !values.add(&keys, &has_window)? {
                *known = None;
            }
        }
        Ok(())
    }
}

impl Reach {
    /// Rows in these intervals whose equality keys are among `values`, where these are known.
    fn try_new(
        spec: &RangeJoinSpec<PhysicalExprRef>,
        intervals: Intervals,
        values: Vec<Option<KeyValues>>,
    ) -> Result<Self> {
        Ok(Self {
            key: Arc::clone(&spec.key),
            intervals,
            among: Among::of_join(spec, values)?,
        })
    }

    /// Rows in these intervals with equality keys that some probe rows have, given as an array of each key.
    ///
    /// # Errors
    /// If an equality key can't be compared with its values.
    pub(super) fn of_keys(
        spec: &RangeJoinSpec<PhysicalExprRef>,
        intervals: Intervals,
        keys: &[ArrayRef],
        build: &Schema,
    ) -> Result<Self> {
        let mut values = KeyValues::of_join(spec, build)?;
        for (known, keys) in values.iter_mut().zip(keys) {
            if let Some(some) = known
                && !some.add(keys, &vec![true; keys.len()])?
            {
                *known = None;
            }
        }
        Self::try_new(spec, intervals, values)
    }

    /// Of the windows of all of these batches of the probe side, over a build side of this schema, in at most so many
    /// intervals; `None` once `is_too_much` is reached. `check` is called between batches.
    ///
    /// # Errors
    /// Those of the bounds and equality keys, which the join need not meet, and of `check`.
    pub(crate) fn of_rows(
        spec: &Arc<RangeJoinSpec<PhysicalExprRef>>,
        build: &Schema,
        batches: &[RecordBatch],
        most_intervals: usize,
        is_too_much: impl Fn(&Intervals) -> bool,
        check: impl Fn() -> Result<()>,
    ) -> Result<Option<Self>> {
        let mut builder = ReachBuilder::try_new(spec, build, most_intervals)?;
        // To look takes as long as to add some rows, so it is done less and less often.
        let mut next_look = 1;
        for (number, batch) in (1..).zip(batches) {
            check()?;
            builder.add(batch)?;
            if number >= next_look {
                if builder.windows.are(&is_too_much)? {
                    return Ok(None);
                }
                next_look += 1 + number / 8;
            }
        }
        let intervals = builder.windows.finish(most_intervals)?;
        Self::try_new(spec, intervals, builder.values).map(Some)
    }

    /// Of windows that all others are in, given by the values of bounds, over a build side of this schema.
    ///
    /// # Errors
    /// If a bound is of another type than the range key.
    pub(crate) fn of_windows(
        spec: &RangeJoinSpec<PhysicalExprRef>,
        build: &Schema,
        bounds: &[(Comparison, ArrayRef)],
    ) -> Result<Self> {
        let mut intervals = Intervals::of_type(&spec.key.data_type(build)?)?;
        intervals.add(bounds)?;
        Ok(Self {
            key: Arc::clone(&spec.key),
            intervals: intervals.finish(MAX_FINE_INTERVALS),
            among: vec![],
        })
    }

    /// The keys that are reached; `None` if they are no whole numbers, or reach to an end.
    pub(crate) fn keys(&self) -> Option<KeySet> {
        KeySet::within(&self.intervals)
    }

    /// Rows with the same equality keys and these range keys.
    ///
    /// # Errors
    /// If the range key has no such values.
    pub(crate) fn over(&self, keys: &KeySet, build: &Schema) -> Result<Self> {
        Ok(Self {
            key: Arc::clone(&self.key),
            intervals: keys.intervals(&self.key.data_type(build)?)?,
            among: self.among.clone(),
        })
    }

    /// Rows with the same range keys, whatever their equality keys.
    pub(crate) fn of_all_equality_keys(self) -> Self {
        Self {
            among: vec![],
            ..self
        }
    }

    /// Whether this has all equality keys that another reach of the same join has.
    ///
    /// # Errors
    /// Arrow's, if the keys have too many bytes.
    pub(crate) fn has_equality_keys_of(&self, other: &Self) -> Result<bool> {
        for among in &self.among {
            if !among.has_those_of(&other.among)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The range key of some rows of the build side.
    ///
    /// # Errors
    /// Those of the expression.
    pub(crate) fn key_of(&self, batch: &RecordBatch) -> Result<ArrayRef> {
        self.key.evaluate(batch)?.into_array(batch.num_rows())
    }

    /// Which of the files that a build side scans may have rows that are reached, by their statistics.
    pub(super) fn selects_files_of(
        &self,
        build: &Arc<dyn ExecutionPlan>,
    ) -> impl Fn(&PartitionedFile) -> bool {
        let column = ScanPlan::of_any_files(build).and_then(|scanned| {
            scanned.only_files()?;
            let key = scanned.over_scan(&self.key)?;
            key.downcast_ref::<Column>().map(Column::index)
        });
        let (keys, key_type) = (self.keys(), self.key.data_type(&build.schema()).ok());
        let exact = move |value: &Precision<ScalarValue>| match value {
            Precision::Exact(value) if Some(value.data_type()) == key_type => number(value),
            _ => None,
        };
        move |file| {
            let known = file.statistics.as_ref().zip(column);
            let known = known.and_then(|(known, column)| known.column_statistics.get(column));
            let ends = known.and_then(|k| exact(&k.min_value).zip(exact(&k.max_value)));
            keys.as_ref()
                .zip(ends)
                .is_none_or(|(keys, ends)| keys.meets(ends))
        }
    }

    /// Whether no row can be reached.
    pub(crate) fn is_empty(&self) -> bool {
        self.intervals.all().is_empty()
    }

    /// The intervals that range keys are in.
    pub(crate) fn intervals(&self) -> &Intervals {
        &self.intervals
    }

    /// Whether each row of a batch of the build side is reached. Rows with other equality keys may be, too, where these
    /// are so few that to compare all takes longer than to sort them: no probe row matches them.
    ///
    /// # Errors
    /// Those of the comparisons.
    pub(crate) fn contains(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        let keys = self.key_of(batch)?;
        let mut reached = self.intervals.contain(&keys)?;
        for among in &self.among {
            // Most batches have no key in an interval, or most of them are.
            if !reached.has_true() {
                break;
            }
            if let Some(is_among) = among.contains(batch)? {
                reached = BooleanArray::new(reached.values() & &is_among, None);
            }
        }
        Ok(reached)
    }

    /// The conditions by which a scan of a build side of this schema can prune: rows that are reached meet all of them.
    /// One that compares each row with them gets few.
    ///
    /// # Errors
    /// If an equality key can't be compared with its values.
    pub(crate) fn conditions(
        &self,
        compares_rows: bool,
        build: &Schema,
    ) -> Result<Vec<PhysicalExprRef>> {
        let intervals = self.intervals.for_scan(compares_rows);
        let intervals = intervals.iter().map(|interval| self.condition(interval));
        let ranges = intervals.collect::<Option<Vec<_>>>().and_then(any);
        let among = self.among.iter().map(|among| among.condition(build));
        ranges.into_iter().map(Ok).chain(among).collect()
    }

    /// The condition of one interval; `None` if all keys meet it.
    fn condition(&self, interval: &Interval) -> Option<PhysicalExprRef> {
        let compare = |op, end: &End, zero: fn(ScalarValue) -> ScalarValue| {
            let (key, value) = (Arc::clone(&self.key), lit(zero(end.value.clone())));
            Arc::new(BinaryExpr::new(key, op, value)) as PhysicalExprRef
        };
        let low = interval.low.as_ref();
        let low = low.map(|low| compare(Operator::GtEq, low, negative_zero));
        let high = interval.high.as_ref();
        let high = high.map(|high| compare(Operator::LtEq, high, |value| value));
        match (low, high) {
            (Some(low), Some(high)) => Some(Arc::new(BinaryExpr::new(low, Operator::And, high))),
            (low, high) => low.or(high),
        }
    }
}

/// -0.0 for 0.0: some files have it in their statistics, below 0.0.
fn negative_zero(value: ScalarValue) -> ScalarValue {
    match value {
        ScalarValue::Float32(Some(0.0)) => ScalarValue::Float32(Some(-0.0)),
        ScalarValue::Float64(Some(0.0)) => ScalarValue::Float64(Some(-0.0)),
        other => other,
    }
}

/// One of these conditions, as a tree of little depth; `None` if there are none.
fn any(mut conditions: Vec<PhysicalExprRef>) -> Option<PhysicalExprRef> {
    while conditions.len() > 1 {
        let mut pairs = conditions.into_iter();
        let mut halved = vec![];
        while let Some(one) = pairs.next() {
            halved.push(match pairs.next() {
                Some(other) => Arc::new(BinaryExpr::new(one, Operator::Or, other)),
                None => one,
            });
        }
        conditions = halved;
    }
    conditions.pop()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use arrow::array::Int64Array;
    use arrow::datatypes::Field;

    use super::*;
    use datafusion_rmq_logical::logical_plan::range_join::Unmatched;

    #[tokio::test]
    async fn once_windows_reach_too_much_no_more_are_made_out() {
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false)]));
        let column: PhysicalExprRef = Arc::new(Column::new("a", 0));
        let bounds = [Comparison::AtLeast, Comparison::AtMost];
        let spec = Arc::new(RangeJoinSpec {
            unmatched: Unmatched::Keep,
            on: vec![],
            key: Arc::clone(&column),
            bounds: bounds.map(|c| (c, Arc::clone(&column))).to_vec(),
            prevailing: false,
            thresholds: vec![],
            aggregates: vec![],
            metadata: BTreeMap::new(),
        });
        // Each batch has one window more, with a gap before it.
        let batches = (0..100).map(|a| {
            let a: ArrayRef = Arc::new(Int64Array::from(vec![2 * a]));
            RecordBatch::try_from_iter([("a", a)]).unwrap()
        });
        let batches: Vec<_> = batches.collect();
        for (most, made_out) in [(9, 10), (1000, 100)] {
            let looks = Arc::new(AtomicUsize::new(0));
            let seen = Arc::clone(&looks);
            let is_too_much = move |intervals: &Intervals| {
                seen.fetch_add(1, Ordering::Relaxed);
                assert!(intervals.all().len() <= made_out);
                intervals.all().len() > most
            };
            let (spec, schema) = (Arc::clone(&spec), Arc::clone(&schema));
            let reach = reach_of(spec, schema, batches.clone(), 1000, is_too_much).await;
            assert_eq!(reach.is_none(), most < 100);
            assert!(looks.load(Ordering::Relaxed) < 30);
        }
    }
}
