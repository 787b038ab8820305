//! Joins the probe side with a build side in several sorted segments: each probe batch is taken through all of them,
//! and what they answer is merged as that of spill runs is.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use datafusion::common::{Result, internal_err};

use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::kept_side::Searches;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::spilled::merge::MergePlan;
use crate::exec::range_join::probe::spilled::partials::Partials;
use crate::exec::range_join::row_join::RowJoin;
use crate::exec::range_join::spill::key_extent::KeyOrder;
use crate::exec::range_join::spill::row_position::RowPosition;
use rmq_engine::SearchHints;

/// A build side in several segments.
#[derive(Debug)]
pub(crate) struct SegmentedSide {
    /// The first one has the first rows, if their order matters.
    pub(crate) segments: Vec<Arc<BuildSide>>,
    /// How aggregates are merged; `None` if rows are returned.
    pub(crate) merging: Option<Arc<Merging>>,
    pub(crate) searches: Searches,
}

/// How the aggregates of segments are merged.
#[derive(Debug)]
pub(crate) struct Merging {
    pub(crate) plan: Arc<MergePlan>,
    key_order: KeyOrder,
}

impl SegmentedSide {
    /// A build side that returns rows, in one segment.
    pub(crate) fn of_one(side: Arc<BuildSide>) -> Self {
        Self {
            segments: vec![side],
            merging: None,
            searches: Searches::default(),
        }
    }

    /// Counts probe rows that are searched in all segments.
    pub(crate) fn record_search(&self, probe_rows: usize) {
        self.searches.add(probe_rows, self.segments.len());
    }

    /// Whether what segments answer can be merged for a join of these columns. The order of a probe side without an end
    /// is kept.
    pub(crate) fn may_answer(
        columns: &BuildColumns,
        row_join: Option<&RowJoin>,
        is_probe_bounded: bool,
    ) -> bool {
        row_join.is_none_or(RowJoin::merges_segments)
            && (is_probe_bounded || !columns.returns_rows)
            && columns.accumulated().is_none()
    }

    /// What is built of the segments of a build side of these columns, over an input of this schema, and how their
    /// answers are merged.
    pub(crate) fn plan(
        columns: &BuildColumns,
        input: &Schema,
    ) -> Result<(BuildColumns, Option<Arc<Merging>>)> {
        if columns.returns_rows {
            let columns = columns.clone().in_order();
            if columns.returns_in_order && columns.row_order.is_none() {
                return Ok((columns.with_key_as_row_column(), None));
            }
            return Ok((columns, None));
        }
        let schema = columns.schema(input)?;
        let plan = MergePlan::try_new(columns, &schema)?;
        let key_type = columns.range_key(schema.fields()).data_type();
        let merging = Merging {
            key_order: KeyOrder::try_new(key_type)?,
            plan: Arc::new(plan),
        };
        let mut columns = merging.plan.columns.clone();
        let key = columns.values(columns.expressions()).len();
        let mut aggregates = columns.aggregates.iter();
        if aggregates.any(|aggregate| aggregate.arguments.contains(&key)) {
            columns = columns.with_key_as_value();
        }
        Ok((columns.in_order(), Some(Arc::new(merging))))
    }

    /// Joins a batch. `hints` has those of each segment.
    pub(crate) async fn join(
        self: &Arc<Self>,
        partition: &Arc<ProbePartition>,
        batch: RecordBatch,
        mut hints: Vec<SearchHints>,
    ) -> Result<(Vec<RecordBatch>, Vec<SearchHints>)> {
        let (this, partition) = (Arc::clone(self), Arc::clone(partition));
        blocking(move |waiting| {
            let joined = this.join_blocking(&partition, &batch, &mut hints, &waiting)?;
            Ok((joined, hints))
        })
        .await
    }

    /// Joins a batch on the calling thread.
    pub(crate) fn join_blocking(
        &self,
        partition: &ProbePartition,
        batch: &RecordBatch,
        hints: &mut [SearchHints],
        waiting: &Waiting,
    ) -> Result<Vec<RecordBatch>> {
        let Some(merging) = &self.merging else {
            let ([segment], [hints]) = (self.segments.as_slice(), hints) else {
                return internal_err!("a range join that returns rows merges no aggregates");
            };
            return partition.join_blocking(batch, segment, hints, &|| waiting.check());
        };
        partition.metrics.probe_rows.add(batch.num_rows());
        self.record_search(batch.num_rows());
        let mut partials = Partials::new(&merging.plan, partition, batch.num_rows());
        for (number, (segment, hints)) in self.segments.iter().zip(hints).enumerate() {
            if segment.is_empty() {
                continue;
            }
            waiting.check()?;
            let first_row = RowPosition::default().after(number);
            let (rows, side) = ((batch, None), (&**segment, first_row));
            partials.probe_rows(partition, &merging.key_order, rows, side, hints, waiting)?;
        }
        let (matched, aggregates) = partials.finish(partition)?;
        partition.append_aggregates(batch, &matched, aggregates)
    }
}
