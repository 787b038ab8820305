//! The operator: the rows themselves if each is a group, the aggregate's output otherwise. The folder's documentation
//! has the algorithm.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::equivalence::AcrossPartitions;
use datafusion::physical_expr::{Partitioning, PhysicalExpr};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{
    Boundedness, CardinalityEffect, EmissionType, ReplaceChildrenOptions, SchedulingType,
};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::stream::{BoxStream, select_all};
use futures::{StreamExt, TryStreamExt, stream};

use crate::exec::common::metrics::{OperatorMetrics, summary};
use crate::exec::common::once_per_run::{OncePerRun, PerContext, SharedWork};
use crate::exec::common::output_batches::OutputBatches;
use crate::exec::common::plan_methods::{visit_all, with_new_children};
use crate::exec::unique_groups::pattern::SingletonGroups;
use crate::exec::unique_groups::reader::{FirstAssignment, Grouping, ReadTask};
use crate::exec::unique_groups::replay::ReplayExec;
use crate::exec::unique_groups::source::SourceKeys;
use datafusion_rmq_logical::common::inputs::inputs_of;
use datafusion_rmq_logical::common::sql_text::tree_text;

/// Computes the output of a grouped aggregate without a hash table if each input row is a group of its own.
///
/// Its child is the aggregate, over a [`ReplayExec`]; the output has the aggregate's schema and number of partitions.
/// Rows of a group need not be in the partition of their hash. Metrics: `unique_groups` is 1 if every row was a group.
#[derive(Debug)]
pub struct UniqueGroupsExec {
    /// The aggregate that runs if groups may have several rows, over a [`ReplayExec`].
    aggregate: Arc<dyn ExecutionPlan>,
    groups: Arc<SingletonGroups>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// The table that the grouping columns come from, if it is in memory.
    source: Option<SourceKeys>,
    finding: Arc<OncePerRun<SharedWork<Finding>>>,
    first_assignment: Arc<PerContext<FirstAssignment>>,
}

/// How a run finds out whether each row is a group.
enum Finding {
    /// The table that the rows come from shows it.
    UniqueSource,
    /// All rows are read first.
    Reading(ReadTask),
}

impl UniqueGroupsExec {
    /// Wraps an aggregate over a [`ReplayExec`]. `None` if the aggregate is not one that can be computed for single
    /// rows: it has a filter, a limit, grouping sets, no grouping column that is an integer or a time, or an aggregate
    /// other than MIN, MAX, SUM, `FIRST_VALUE`, `LAST_VALUE` and `array_agg`.
    ///
    /// # Errors
    /// An internal error if the [`ReplayExec`] has no input.
    pub fn over(aggregate: &Arc<dyn ExecutionPlan>) -> Result<Option<Self>> {
        let Some(mut groups) = SingletonGroups::match_aggregate(aggregate) else {
            return Ok(None);
        };
        if !groups.input.is::<ReplayExec>() {
            return Ok(None);
        }
        let input = groups.input.children().into_iter().next().cloned();
        let Some(input) = input else {
            return internal_err!("ReplayExec has one input");
        };
        groups.input = input;
        let known = aggregate.equivalence_properties();
        // A property of each partition need not hold once rows move to other partitions.
        let of_partitions = |c: &AcrossPartitions| matches!(c, AcrossPartitions::Heterogeneous);
        let constants = known.constants();
        let mut constants = constants.iter().map(|c| &c.across_partitions);
        if !known.oeq_class().is_empty() || constants.any(of_partitions) {
            return Ok(None);
        }
        // All other properties hold, and operators above rely on them.
        let equivalences = known.clone();
        let partitions = aggregate.output_partitioning().partition_count();
        let properties = PlanProperties::new(
            equivalences,
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Both,
            Boundedness::Bounded,
        );
        let properties = properties.with_scheduling_type(SchedulingType::Cooperative);
        let source = SourceKeys::find(&groups.input, &groups.keys);
        Ok(Some(Self {
            aggregate: Arc::clone(aggregate),
            source,
            groups: Arc::new(groups),
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
            finding: Arc::default(),
            first_assignment: Arc::default(),
        }))
    }
}

impl DisplayAs for UniqueGroupsExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let rows = self.groups.input.schema();
        let keys = self.groups.keys.iter();
        let keys = keys.filter_map(|column| rows.fields().get(*column));
        let keys: Vec<&str> = keys.map(|field| field.name().as_str()).collect();
        let keys = keys.join(", ");
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "UniqueGroupsExec: keys=[{keys}]")
            }
            DisplayFormatType::TreeRender => writeln!(f, "keys={}", tree_text(&keys)),
        }
    }
}

impl ExecutionPlan for UniqueGroupsExec {
    fn name(&self) -> &'static str {
        "UniqueGroupsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.aggregate]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        visit_all(&self.groups.values, f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [aggregate] = inputs_of("UniqueGroupsExec", children)?;
        Ok(match Self::over(&aggregate)? {
            Some(unique) => Arc::new(unique),
            // A rule replaced the aggregate by another plan with the same output.
            None => aggregate,
        })
    }

    with_new_children!();

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let partitions = self.properties.partitioning.partition_count();
        let run = self.finding.run(&context, partition, partitions);
        let first_assignment = self.first_assignment.get(&context);
        let metrics = OperatorMetrics::new(&self.metrics, partition);
        let set = self.metrics.clone();
        let shared = Arc::clone(&first_assignment);
        let (groups, aggregate) = (Arc::clone(&self.groups), Arc::clone(&self.aggregate));
        let source = self.source.clone();
        let batches = async move {
            let batch_size = context.session_config().batch_size();
            let (found_groups, found_context) = (Arc::clone(&groups), Arc::clone(&context));
            let begin = || async move {
                if let Some(source) = source
                    && source.is_unique(partitions).await?
                {
                    summary(&set).counter("unique_groups", 0).add(1);
                    return Ok(Finding::UniqueSource);
                }
                let context = found_context;
                let reading =
                    ReadTask::begin(found_groups, partitions, first_assignment, context, &set);
                Ok(Finding::Reading(reading))
            };
            let rows = match &*run.get(begin).await? {
                Finding::UniqueSource => {
                    let input = &groups.input;
                    let inputs = partition..input.output_partitioning().partition_count();
                    let inputs = inputs.step_by(partitions);
                    let inputs = inputs.map(|i| input.execute(i, Arc::clone(&context)));
                    select_all(inputs.collect::<Result<Vec<_>>>()?).boxed()
                }
                Finding::Reading(reading) => match reading.groups().await?.as_ref() {
                    Grouping::Singletons(rows) => {
                        let rows = Grouping::take(rows, partition)?.into_iter();
                        stream::iter(rows.map(|held| Ok(held.batch.clone()))).boxed()
                    }
                    Grouping::Any(context) => {
                        let batches = aggregate.execute(partition, Arc::clone(context))?;
                        let batches = batches.map(move |b| b.map(|batch| metrics.record(batch)));
                        return Ok::<_, DataFusionError>(batches.boxed());
                    }
                },
            };
            Ok(groups_of(groups, rows, batch_size, metrics))
        };
        let batches = stream::once(batches).try_flatten().inspect(move |_| {
            // Runs in this context share the assignment while one of them may still return rows.
            let _ = &shared;
        });
        let batches = RecordBatchStreamAdapter::new(self.schema(), batches);
        Ok(make_cooperative(Box::pin(batches)))
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![match partition {
            None => ChildStats::At(None),
            // Rows are assigned to other partitions than the aggregate's.
            Some(_) => ChildStats::Skip,
        }]
    }

    fn statistics_from_inputs(
        &self,
        input_stats: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        match (input_stats, args.partition()) {
            ([aggregate], None) => Ok(Arc::clone(aggregate)),
            _ => Ok(Arc::new(Statistics::new_unknown(&self.schema()))),
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// The output of one partition: `rows` as groups, which are put together up to the batch size.
fn groups_of(
    groups: Arc<SingletonGroups>,
    rows: BoxStream<'static, Result<RecordBatch>>,
    batch_size: usize,
    metrics: OperatorMetrics,
) -> BoxStream<'static, Result<RecordBatch>> {
    let output = OutputBatches::new(&groups.schema, batch_size, true);
    let state = (output, rows.fuse(), groups, metrics);
    let batches = stream::try_unfold(
        state,
        |(mut output, mut rows, groups, metrics)| async move {
            let time = metrics.elapsed_compute().clone();
            loop {
                let completed = {
                    let _timer = time.timer();
                    output.next()?
                };
                if let Some(batch) = completed {
                    return Ok(Some((
                        metrics.record(batch),
                        (output, rows, groups, metrics),
                    )));
                }
                match rows.try_next().await? {
                    Some(rows) => {
                        let _timer = time.timer();
                        output.add([groups.groups(&rows)?]);
                    }
                    None if output.finish()? => {}
                    None => return Ok(None),
                }
            }
        },
    );
    batches.boxed()
}
