//! Joins the probe side with a build side in memory, in one sorted segment or several: then each probe batch is taken
//! through all of them, and what they answer is merged as that of spill runs is.

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
use crate::exec::range_join::spill::row_position::RowPosition;

/// A build side in one or several segments.
#[derive(Debug)]
pub(crate) struct Segmented<S> {
    /// The first one has the first rows, if their order matters.
    pub(crate) segments: Vec<S>,
    /// How aggregates are merged; `None` if rows are returned, or for those of one segment.
    pub(crate) merge_plan: Option<Arc<MergePlan>>,
    pub(crate) searches: Searches,
}

/// A build side in memory.
pub(crate) type SegmentedSide = Segmented<Arc<BuildSide>>;

impl<S> Segmented<S> {
    /// A build side in one segment.
    pub(crate) fn of_one(side: S) -> Self {
        Self {
            segments: vec![side],
            merge_plan: None,
            searches: Searches::default(),
        }
    }

    /// Counts probe rows that are searched in all segments.
    pub(crate) fn record_search(&self, probe_rows: usize) {
        self.searches.add(probe_rows, self.segments.len());
    }
}

impl SegmentedSide {
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
    ) -> Result<(BuildColumns, Option<Arc<MergePlan>>)> {
        if columns.returns_rows {
            let columns = columns.clone().in_order();
            if columns.returns_in_order && columns.row_order.is_none() {
                return Ok((columns.with_key_as_row_column(), None));
            }
            return Ok((columns, None));
        }
        let schema = columns.schema(input)?;
        let plan = MergePlan::try_new(columns, &schema)?;
        let mut columns = plan.columns.clone();
        let key = columns.values(columns.expressions()).len();
        let mut aggregates = columns.aggregates.iter();
        if aggregates.any(|aggregate| aggregate.arguments.contains(&key)) {
            columns = columns.with_key_as_value();
        }
        Ok((columns.in_order(), Some(Arc::new(plan))))
    }

    /// Whether there is no row that can match or be returned.
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.iter().all(|segment| segment.is_empty())
    }

    /// Joins a batch, on a thread that may block where that may take long.
    pub(crate) async fn join(
        self: &Arc<Self>,
        partition: &Arc<ProbePartition>,
        batch: RecordBatch,
    ) -> Result<Vec<RecordBatch>> {
        if let (None, [segment]) = (&self.merge_plan, self.segments.as_slice()) {
            return partition.join(batch, segment).await;
        }
        let (this, partition) = (Arc::clone(self), Arc::clone(partition));
        blocking(move |waiting| this.join_blocking(&partition, &batch, &waiting)).await
    }

    /// Joins a batch on the calling thread.
    pub(crate) fn join_blocking(
        &self,
        partition: &Arc<ProbePartition>,
        batch: &RecordBatch,
        waiting: &Waiting,
    ) -> Result<Vec<RecordBatch>> {
        let Some(plan) = &self.merge_plan else {
            let [segment] = self.segments.as_slice() else {
                return internal_err!("a range join that returns rows merges no aggregates");
            };
            return partition.join_blocking(batch, segment, &|| waiting.check());
        };
        partition.metrics.probe_rows.add(batch.num_rows());
        self.record_search(batch.num_rows());
        let mut partials = Partials::new(plan, partition, batch.num_rows());
        for (number, segment) in self.segments.iter().enumerate() {
            if segment.is_empty() {
                continue;
            }
            waiting.check()?;
            let first_row = RowPosition::default().after(number);
            partials.probe_rows(batch, None, segment, first_row, waiting)?;
        }
        let (matched, aggregates) = partials.finish()?;
        partition.append_aggregates(batch, &matched, aggregates)
    }
}
