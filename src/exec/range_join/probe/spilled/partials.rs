//! The aggregates of buffered probe rows over the runs that they have visited so far.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch, UInt32Array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Result, internal_err};

use crate::exec::common::blocking::Waiting;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::spilled::merge::{MergePlan, PartialAggregates};
use crate::exec::range_join::probe::spilled::run_cache::RunPart;
use crate::exec::range_join::spill::key_extent::EncodedBound;
use crate::exec::range_join::spill::row_position::RowPosition;
use crate::exec::range_join::spill::run::BuildRun;
use datafusion_rmq_logical::logical_plan::range_join::RangeAggregate;
use rmq_arrow::common::dictionaries::roomy_type;
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::common::row_number::row_numbers;

/// The aggregates of one buffered batch.
pub(crate) struct Partials {
    plan: Arc<MergePlan>,
    partition: Arc<ProbePartition>,
    aggregates: PartialAggregates,
    /// The prevailing rows, if the join includes them and another run than that of the window may have them.
    prevailing: Option<PartialAggregates>,
}

impl Partials {
    /// Of this many probe rows, before the first run.
    pub(crate) fn new(plan: &Arc<MergePlan>, partition: &Arc<ProbePartition>, rows: usize) -> Self {
        let prevailing = plan.prevailing.as_ref();
        let prevailing = prevailing.filter(|_| plan.columns.may_merge());
        Self {
            plan: Arc::clone(plan),
            partition: Arc::clone(partition),
            aggregates: PartialAggregates::new(&plan.merges, rows),
            prevailing: prevailing.map(|merges| PartialAggregates::new(merges, rows)),
        }
    }

    /// Probes a part of a run with the rows of a batch that may match the run, and merges the aggregates.
    pub(crate) fn probe(
        &mut self,
        batch: &RecordBatch,
        bounds: &[EncodedBound],
        part: &RunPart,
        run: &BuildRun,
        waiting: &Waiting,
    ) -> Result<()> {
        let Some((batch, rows)) = select(batch, bounds, run)? else {
            return Ok(());
        };
        self.probe_rows(&batch, rows.as_ref(), &part.side, part.first_row, waiting)
    }

    /// Probes a part of the build side, whose first row has this position, with rows that have the numbers `selected`
    /// among all rows, or are all of them, and merges the aggregates.
    pub(crate) fn probe_rows(
        &mut self,
        batch: &RecordBatch,
        selected: Option<&UInt32Array>,
        side: &BuildSide,
        first_row: RowPosition,
        waiting: &Waiting,
    ) -> Result<()> {
        let (partition, check) = (&self.partition, || waiting.check());
        if let Some((prevailing, plan)) =
            self.prevailing.as_mut().zip(self.plan.prevailing.as_ref())
        {
            let aggregate = |ranges: &Ranges| {
                let mut indexes = side.justified_structures(ranges);
                indexes.try_for_each(|index| index.build())?;
                partition.aggregate(batch, ranges, side, &check)
            };
            let windows = partition.find_windows(batch, side)?;
            let (rows, partials) = (&windows.rows, aggregate(&windows.rows)?);
            self.aggregates.merge(
                &self.plan.merges,
                first_row,
                selected,
                rows.matched(),
                partials,
            )?;
            let (rows, mut partials) = (&windows.prevailing, aggregate(&windows.prevailing)?);
            partials.insert(0, Arc::new(windows.have_prevailing()));
            return prevailing.merge(plan, first_row, selected, rows.matched(), partials);
        }
        let matches = partition.key_matches(batch, side)?;
        let ranges = partition.refine(batch, side, matches, &check)?;
        if !ranges.matched().any(|matched| matched) {
            return Ok(());
        }
        let partials = partition.aggregate(batch, &ranges, side, &check)?;
        self.aggregates.merge(
            &self.plan.merges,
            first_row,
            selected,
            ranges.matched(),
            partials,
        )
    }

    /// Merges the aggregates of a part of the build side, whose first row has this position, over the matches of all
    /// rows. There are no prevailing rows.
    pub(crate) fn merge(
        &mut self,
        first_row: RowPosition,
        matched: &BooleanBuffer,
        aggregates: Vec<ArrayRef>,
    ) -> Result<()> {
        let matched = matched.iter();
        self.aggregates
            .merge(&self.plan.merges, first_row, None, matched, aggregates)
    }

    /// Takes this, and leaves that of no rows.
    pub(crate) fn take(&mut self) -> Self {
        let none = Self {
            plan: Arc::clone(&self.plan),
            partition: Arc::clone(&self.partition),
            aggregates: PartialAggregates::new(&self.plan.merges, 0),
            prevailing: None,
        };
        std::mem::replace(self, none)
    }

    /// After the last run: whether each row has matched, and the aggregates.
    pub(crate) fn finish(mut self) -> Result<(BooleanBuffer, Vec<ArrayRef>)> {
        if let Some(prevailing) = self.prevailing {
            let (matched, columns) = prevailing.into_columns();
            if let [are_in_windows, partials @ ..] = columns.as_slice() {
                let are_in_windows = are_in_windows.as_boolean();
                let matched = matched.into_iter().zip(are_in_windows);
                let counts = matched.map(|(matched, is_in)| matched && is_in == Some(false));
                // Its key decides before its position would.
                let position = RowPosition::default();
                let partials = partials.to_vec();
                self.aggregates
                    .merge(&self.plan.merges, position, None, counts, partials)?;
            }
        }
        self.aggregates
            .finish(&self.plan, &self.partition.spec.aggregates)
    }

    /// About how many bytes this takes.
    pub(crate) fn bytes(&self) -> usize {
        let prevailing = self.prevailing.as_ref().map_or(0, PartialAggregates::bytes);
        self.aggregates.bytes() + prevailing
    }
}

/// The rows that may match a run as a batch, and their numbers unless they are all; `None` if there are none.
fn select(
    batch: &RecordBatch,
    bounds: &[EncodedBound],
    run: &BuildRun,
) -> Result<Option<(RecordBatch, Option<UInt32Array>)>> {
    let rows = (0..batch.num_rows()).filter(|row| run.may_match(bounds, *row));
    let rows = UInt32Array::from(row_numbers(rows)?);
    Ok(match rows.len() {
        0 => None,
        all if all == batch.num_rows() => Some((batch.clone(), None)),
        _ => Some((take_record_batch(batch, &rows)?, Some(rows))),
    })
}

/// The schema of answers: whether a row has matched, and the aggregates.
pub(crate) fn answer_schema<E>(aggregates: &[RangeAggregate<E>]) -> SchemaRef {
    let matched = Field::new("matched", DataType::Boolean, false);
    let aggregates = aggregates.iter().map(|aggregate| {
        let field = aggregate.field();
        Field::new(field.name(), roomy_type(field.data_type()), true)
    });
    Arc::new(Schema::new(
        [matched].into_iter().chain(aggregates).collect::<Vec<_>>(),
    ))
}

/// Answers as a batch of this schema.
pub(crate) fn answer_batch(
    schema: &SchemaRef,
    matched: BooleanBuffer,
    aggregates: &[ArrayRef],
) -> Result<RecordBatch> {
    let types = schema.fields().iter().skip(1);
    let aggregates = aggregates.iter().zip(types);
    let aggregates = aggregates.map(|(array, field)| Ok(cast(array, field.data_type())?));
    let mut columns: Vec<ArrayRef> = vec![Arc::new(BooleanArray::new(matched, None))];
    columns.extend(aggregates.collect::<Result<Vec<_>>>()?);
    if columns.len() != schema.fields().len() {
        return internal_err!("a probe row has other aggregates than its range join");
    }
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}
