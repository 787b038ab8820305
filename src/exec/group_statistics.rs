//! The operator that computes order statistics of groups whose rows are ranges of sorted rows.
//!
//! ```text
//!   SELECT q.id, median(p.v), min(p.v) FROM q JOIN p ON p.k BETWEEN q.a AND q.b GROUP BY q.id
//!
//!   GroupStatisticsExec: median(p.v)                                  adds a column
//!     AggregateExec: gby=[id], aggr=[array_agg(rows), min(min(p.v))]  the ranges of each group
//!       RangeJoinExec: range=p.k in [q.a, q.b], aggs=[rows of median(p.v), min(p.v)]
//!         q
//!         p
//! ```
//!
//! Several probe rows may be of one group, and the median of their windows is not one of their medians. So the range
//! join returns which sorted rows each window has, and shares what aggregates these with this operator
//! (`RangeSources`):
//!
//! 1. Groups of one range, which most are, are answered as the range join would.
//! 2. Medians and percentiles of several ranges descend the wavelet matrix with all of them together.
//! 3. Numbers of distinct values of several ranges are those of their union. If it is not one range, its rows are read.
//!
//! Where the order statistics don't pay or memory is short for them, rows are read. The time is O(log N) for a range of
//! any length otherwise. Memory: the ranges, which GROUP BY registers, and the sorted rows, which are kept to the end
//! of the run: they are not spilled, nor read in slices.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Field;
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Result, ScalarValue, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::ReplaceChildrenOptions;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{StreamExt, TryStreamExt};

use crate::exec::common::added_columns::properties_with;
use crate::exec::common::blocking::blocking;
use crate::exec::common::metrics::OperatorMetrics;
use crate::exec::common::once_per_run::PerContext;
use crate::exec::common::plan_methods::{no_expressions, row_for_row, with_new_children};
use crate::exec::range_join::build_side::range_sources::RangeSources;
use datafusion_rmq_logical::common::inputs::inputs_of;
use datafusion_rmq_logical::common::sql_text::tree_text;

/// A statistic of each group.
#[derive(Debug, Clone)]
pub(crate) struct GroupStatisticColumn {
    /// The index of the input's column of lists of ranges.
    pub(crate) ranges: usize,
    /// The column that is added.
    pub(crate) field: Field,
    /// The statistic of a group without rows.
    pub(crate) of_none: ScalarValue,
    /// The call as EXPLAIN shows it.
    pub(crate) text: String,
}

/// Adds order statistics of the ranges of each group, one column each.
#[derive(Debug)]
pub struct GroupStatisticsExec {
    input: Arc<dyn ExecutionPlan>,
    statistics: Arc<[GroupStatisticColumn]>,
    sources: Arc<PerContext<RangeSources>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl GroupStatisticsExec {
    pub(crate) fn try_new(
        input: Arc<dyn ExecutionPlan>,
        statistics: Arc<[GroupStatisticColumn]>,
        sources: Arc<PerContext<RangeSources>>,
    ) -> Result<Self> {
        let fields = statistics.iter().map(|statistic| statistic.field.clone());
        let metadata = input.schema().metadata().clone();
        Ok(Self {
            properties: properties_with(input.as_ref(), fields, metadata)?,
            input,
            statistics,
            sources,
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }
}

impl DisplayAs for GroupStatisticsExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let calls = self
            .statistics
            .iter()
            .map(|statistic| statistic.text.as_str());
        let calls = calls.collect::<Vec<_>>().join(", ");
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "GroupStatisticsExec: {calls}")
            }
            DisplayFormatType::TreeRender => writeln!(f, "{}", tree_text(&calls)),
        }
    }
}

impl ExecutionPlan for GroupStatisticsExec {
    fn name(&self) -> &'static str {
        "GroupStatisticsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    row_for_row!();

    no_expressions!();

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [input] = inputs_of("GroupStatisticsExec", children)?;
        let (statistics, sources) = (Arc::clone(&self.statistics), Arc::clone(&self.sources));
        Ok(Arc::new(Self::try_new(input, statistics, sources)?))
    }

    with_new_children!();

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let sources = self.sources.get_retained(&context);
        let batches = self.input.execute(partition, context)?;
        let metrics = Arc::new(OperatorMetrics::new(&self.metrics, partition));
        let (statistics, schema) = (Arc::clone(&self.statistics), self.schema());
        let batches = batches.and_then(move |batch| {
            let (statistics, sources) = (Arc::clone(&statistics), Arc::clone(&sources));
            let (schema, metrics) = (Arc::clone(&schema), Arc::clone(&metrics));
            async move {
                let timed = Arc::clone(&metrics);
                let columns = blocking(move |waiting| {
                    let _timer = timed.elapsed_compute().timer();
                    let mut columns = batch.columns().to_vec();
                    for statistic in statistics.iter() {
                        let (ranges, of_none) = (&columns[statistic.ranges], &statistic.of_none);
                        columns.push(sources.aggregate(ranges, of_none, &|| waiting.check())?);
                    }
                    Ok(columns)
                });
                Ok(metrics.record(RecordBatch::try_new(schema, columns.await?)?))
            }
        });
        let batches = RecordBatchStreamAdapter::new(self.schema(), batches.boxed());
        Ok(make_cooperative(Box::pin(batches)))
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let [input] = inputs else {
            return internal_err!("GroupStatisticsExec has one input, not {}", inputs.len());
        };
        let mut statistics = Statistics::clone(input);
        statistics.total_byte_size = Precision::Absent;
        let added = self.statistics.iter();
        let added = added.map(|_| ColumnStatistics::new_unknown());
        statistics.column_statistics.extend(added);
        Ok(Arc::new(statistics))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
