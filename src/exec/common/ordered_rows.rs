//! The rows of a plan in their order, whatever optimizer rules and engines for several machines do around it.

use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, Statistics};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileGroup, FileGroupPartitioner, FileScanConfig, FileScanConfigBuilder, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning};
use datafusion::physical_plan::coop::{CooperativeExec, make_cooperative};
use datafusion::physical_plan::execution_plan::SchedulingType;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::{StreamExt, TryStreamExt, stream};

use crate::exec::common::plan_methods::{no_expressions, no_inputs, operators_text};
use datafusion_rmq_logical::common::sql_text::tree_text;

/// Hides a plan, which is no child, from optimizer rules and from engines that divide plans into tasks.
///
/// ```text
///   whole: false     its partitions, until the rules have run that would mix them
///   whole: true      one partition, the first one's rows first. Each task that has the operator returns all rows
/// ```
///
/// Where each task reads what its windows reach of the rows, these need no order.
#[derive(Debug)]
pub struct OrderedRowsExec {
    hidden: Arc<dyn ExecutionPlan>,
    is_whole: bool,
    is_sliced: bool,
    properties: Arc<PlanProperties>,
}

impl OrderedRowsExec {
    /// The partitions of a plan.
    pub(crate) fn of_partitions(hidden: Arc<dyn ExecutionPlan>) -> Self {
        let properties = Arc::clone(hidden.properties());
        Self {
            hidden,
            is_whole: false,
            is_sliced: false,
            properties,
        }
    }

    /// The rows of a plan in one partition, partition by partition.
    #[must_use]
    pub fn of_one_partition(hidden: Arc<dyn ExecutionPlan>) -> Self {
        let known = hidden.properties();
        let properties = if known.output_partitioning().partition_count() == 1 {
            PlanProperties::clone(known)
        } else {
            // What is known of each partition need not hold for the rows of all.
            PlanProperties::new(
                EquivalenceProperties::new(hidden.schema()),
                Partitioning::UnknownPartitioning(1),
                known.emission_type,
                known.boundedness,
            )
        };
        let properties = properties.with_scheduling_type(SchedulingType::Cooperative);
        Self {
            hidden,
            is_whole: true,
            is_sliced: false,
            properties: Arc::new(properties),
        }
    }

    /// The same rows, of which a task is expected to read no more than its windows reach.
    pub(crate) fn in_slices(&self) -> Self {
        Self {
            is_sliced: true,
            ..self.over(Arc::clone(&self.hidden))
        }
    }

    /// The rows of another plan in the same way.
    pub(crate) fn over(&self, hidden: Arc<dyn ExecutionPlan>) -> Self {
        let rows = if self.is_whole {
            Self::of_one_partition(hidden)
        } else {
            Self::of_partitions(hidden)
        };
        let is_sliced = self.is_sliced;
        Self { is_sliced, ..rows }
    }

    /// The plan.
    #[must_use]
    pub fn hidden(&self) -> &Arc<dyn ExecutionPlan> {
        &self.hidden
    }

    /// Whether it returns all rows in one partition.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Whether a task is expected to read no more of the rows than its windows reach.
    #[must_use]
    pub fn is_sliced(&self) -> bool {
        self.is_sliced
    }
}

/// The same rows in partitions that follow one another, so that they are read at the same time, where a task has them
/// in one: those of the hidden plan, or parts of its Parquet files. Only files that `is_read` selects have rows that
/// count.
///
/// # Errors
/// `DataFusion`'s.
pub(crate) fn divided(
    plan: &Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
    is_read: impl Fn(&PartitionedFile) -> bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    let rows = plan.downcast_ref::<OrderedRowsExec>();
    let Some(rows) = rows.filter(|rows| rows.is_whole) else {
        return Ok(Arc::clone(plan));
    };
    let mut scan = &rows.hidden;
    // What these return of a row does not depend on others.
    while scan.fetch().is_none()
        && (scan.is::<FilterExec>() || scan.is::<ProjectionExec>() || scan.is::<CooperativeExec>())
        && let [input] = *scan.children()
    {
        scan = input;
    }
    let source = scan.downcast_ref::<DataSourceExec>();
    let files = source.and_then(|source| source.data_source().downcast_ref::<FileScanConfig>());
    let groups = files.and_then(|files| {
        if files.limit.is_some() || !files.file_source().is::<ParquetSource>() {
            return None;
        }
        let [all] = files.file_groups.as_slice() else {
            return None;
        };
        let read = all.iter().filter(|file| is_read(file)).cloned();
        let groups = FileGroupPartitioner::new()
            .with_target_partitions(config.execution.target_partitions)
            .with_repartition_file_min_size(config.optimizer.repartition_file_min_size)
            .repartition_file_groups(&[FileGroup::new(read.collect())])?;
        // Else partitions share a queue of files, and a plan that was sent no longer says that they must not.
        let files = FileScanConfigBuilder::from(files.clone()).with_preserve_order(true);
        Some(files.with_file_groups(groups).build())
    });
    let hidden = match groups {
        Some(divided) => {
            let divided = DataSourceExec::from_data_source(divided) as Arc<dyn ExecutionPlan>;
            let replaced = Arc::clone(&rows.hidden).transform_up(|plan| {
                if plan.children().is_empty() {
                    return Ok(Transformed::yes(Arc::clone(&divided)));
                }
                Ok(Transformed::no(plan))
            });
            replaced.data()?
        }
        None => Arc::clone(&rows.hidden),
    };
    if hidden.output_partitioning().partition_count() == 1 {
        return Ok(Arc::clone(plan));
    }
    Ok(Arc::new(OrderedRowsExec {
        is_sliced: rows.is_sliced,
        ..OrderedRowsExec::of_partitions(hidden)
    }))
}

/// Whether each task that executes a plan gets all of its rows, in the same order unless it [reads a
/// slice](OrderedRowsExec::is_sliced).
#[must_use]
pub fn has_all_rows(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(cooperative) = plan.downcast_ref::<CooperativeExec>() {
        return has_all_rows(cooperative.input());
    }
    let rows = plan.downcast_ref::<OrderedRowsExec>();
    rows.is_some_and(OrderedRowsExec::is_whole)
}

impl DisplayAs for OrderedRowsExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let partitions = self.hidden.output_partitioning().partition_count();
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "OrderedRowsExec: input_partitions={partitions}")?;
                let what = if self.is_sliced { "slices" } else { "rows" };
                write!(f, ", {what} of {}", operators_text(self.hidden.as_ref()))
            }
            DisplayFormatType::TreeRender => {
                writeln!(f, "input_partitions={partitions}")?;
                writeln!(f, "{}", tree_text(self.hidden.name()))
            }
        }
    }
}

impl ExecutionPlan for OrderedRowsExec {
    fn name(&self) -> &'static str {
        "OrderedRowsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    no_expressions!();

    no_inputs!();

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let partitions = self.hidden.output_partitioning().partition_count();
        if !self.is_whole || partitions == 1 {
            return self.hidden.execute(partition, context);
        }
        let hidden = Arc::clone(&self.hidden);
        let partitions = stream::iter(0..partitions);
        let rows = partitions
            .map(move |partition| hidden.execute(partition, Arc::clone(&context)))
            .try_flatten();
        let rows = RecordBatchStreamAdapter::new(self.schema(), rows);
        Ok(make_cooperative(Box::pin(rows)))
    }

    fn statistics_from_inputs(
        &self,
        _inputs: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let partition = args.partition().filter(|_| !self.is_whole);
        let args = StatisticsArgs::new().with_partition(partition);
        StatisticsContext::new().compute(self.hidden.as_ref(), &args)
    }
}
