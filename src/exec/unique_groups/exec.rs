//! The operator of aggregates whose groups may turn out to be single rows.
//!
//! ```text
//!   UniqueGroupsExec     reads all rows; where each is a group, they are the answer
//!     AggregateExec …    runs where they are not
//!       ReplayExec       gives it the rows that were read, and then the rest
//!         input
//! ```
//!
//! A group of one row needs no hash table. That no two rows are of one group is told by a column that is grouped by: it ascends
//! in each batch, and no two batches overlap in it. Where a batch speaks against it, which is the first one nearly always, or
//! memory does not suffice to go on, the ordinary aggregate runs.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::equivalence::AcrossPartitions;
use datafusion::physical_expr::{Partitioning, PhysicalExpr};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{
    Boundedness, CardinalityEffect, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions,
    SchedulingType,
};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};

use crate::common::dictionaries::has_few_keys;
use crate::exec::common::once_per_run::{OncePerRun, PerContext};
use crate::exec::unique_groups::pattern::GroupsOfOne;
use crate::exec::unique_groups::reader::{Dealt, Groups, Reading};
use crate::exec::unique_groups::replay::{Held, ReplayExec};

/// Gives the groups of an aggregate: the rows themselves where each is a group of its own.
#[derive(Debug)]
pub(crate) struct UniqueGroupsExec {
    /// The ordinary aggregate, over a [`ReplayExec`].
    ordinary: Arc<dyn ExecutionPlan>,
    groups: Arc<GroupsOfOne>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    reading: Arc<OncePerRun<Reading>>,
    dealt: Arc<PerContext<Dealt>>,
}

impl UniqueGroupsExec {
    /// The same groups as those of an aggregate over a [`ReplayExec`], if it is one that this operator knows.
    pub(crate) fn over(ordinary: &Arc<dyn ExecutionPlan>) -> Result<Option<Self>> {
        let Some(mut groups) = GroupsOfOne::of(ordinary) else {
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
        let known = ordinary.equivalence_properties();
        // What holds in each partition need not hold where rows lie in others.
        let of_partitions = |c: &AcrossPartitions| matches!(c, AcrossPartitions::Heterogeneous);
        let constants = known.constants();
        let mut constants = constants.iter().map(|c| &c.across_partitions);
        if !known.oeq_class().is_empty() || constants.any(of_partitions) {
            return Ok(None);
        }
        // All else does, and operators above count on it.
        let equivalences = known.clone();
        let partitions = ordinary.output_partitioning().partition_count();
        let properties = PlanProperties::new(
            equivalences,
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        let properties = properties.with_scheduling_type(SchedulingType::Cooperative);
        Ok(Some(Self {
            ordinary: Arc::clone(ordinary),
            groups: Arc::new(groups),
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
            reading: Arc::default(),
            dealt: Arc::default(),
        }))
    }
}

impl DisplayAs for UniqueGroupsExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let rows = self.groups.input.schema();
        let keys = self.groups.keys.iter();
        let keys = keys.filter_map(|place| rows.fields().get(*place));
        let keys: Vec<&str> = keys.map(|field| field.name().as_str()).collect();
        let keys = keys.join(", ");
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "UniqueGroupsExec: keys=[{keys}]")
            }
            DisplayFormatType::TreeRender => writeln!(f, "keys={keys}"),
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
        vec![&self.ordinary]
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
        let mut next = TreeNodeRecursion::Continue;
        for value in &self.groups.values {
            next = next.visit_sibling(|| f(value))?;
        }
        Ok(next)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [ordinary] = <[_; 1]>::try_from(children).or_else(|c: Vec<_>| {
            internal_err!("UniqueGroupsExec has one input, not {}", c.len())
        })?;
        Ok(match Self::over(&ordinary)? {
            Some(unique) => Arc::new(unique),
            // It was made another plan, which gives the groups, too.
            None => ordinary,
        })
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let partitions = self.properties.partitioning.partition_count();
        let run = self.reading.run(&context, partition, partitions);
        let dealt = self.dealt.get(&context);
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let set = self.metrics.clone();
        let kept = Arc::clone(&dealt);
        let (groups, ordinary) = (Arc::clone(&self.groups), Arc::clone(&self.ordinary));
        let batches = async move {
            let batch_size = context.session_config().batch_size();
            let asked = Arc::clone(&groups);
            let begin =
                || async move { Ok(Reading::begin(asked, partitions, dealt, context, &set)) };
            let reading = run.get(begin).await?;
            let batches: BoxStream<'static, Result<RecordBatch>> =
                match reading.groups().await?.as_ref() {
                    Groups::OfOne(shares) => stream::iter(Giving {
                        groups,
                        rows: Groups::take(shares, partition),
                        ready: VecDeque::new(),
                        batch_size,
                        metrics,
                    })
                    .boxed(),
                    Groups::OfAny(context) => {
                        let batches = ordinary.execute(partition, Arc::clone(context))?;
                        batches.map(move |b| b.record_output(&metrics)).boxed()
                    }
                };
            Ok::<_, DataFusionError>(batches)
        };
        let batches = stream::once(batches).try_flatten().inspect(move |_| {
            // Runs in this context share it as long as rows of one may come.
            let _ = &kept;
        });
        let batches = RecordBatchStreamAdapter::new(self.schema(), batches);
        Ok(make_cooperative(Box::pin(batches)))
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![match partition {
            None => ChildStats::At(None),
            // Its partitions are others.
            Some(_) => ChildStats::Skip,
        }]
    }

    fn statistics_from_inputs(
        &self,
        input_stats: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        match (input_stats, args.partition()) {
            ([ordinary], None) => Ok(Arc::clone(ordinary)),
            _ => Ok(Arc::new(Statistics::new_unknown(&self.schema()))),
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// The rows of a partition as groups.
struct Giving {
    groups: Arc<GroupsOfOne>,
    rows: VecDeque<Held>,
    /// Groups that go out next.
    ready: VecDeque<RecordBatch>,
    batch_size: usize,
    metrics: BaselineMetrics,
}

impl Giving {
    /// Makes some batches ready: a large one, or small ones put together.
    fn make_ready(&mut self, first: &Held) -> Result<()> {
        let mut rows = first.batch.num_rows();
        let mut batches = vec![self.groups.groups(&first.batch)?];
        while let Some(next) = self.rows.front() {
            rows += next.batch.num_rows();
            if rows > self.batch_size {
                break;
            }
            batches.push(self.groups.groups(&next.batch)?);
            self.rows.pop_front();
        }
        let mut fields = self.groups.schema.fields().iter();
        if batches.len() > 1
            && !fields.any(|field| has_few_keys(field.data_type()))
            && let Ok(one) = concat_batches(&self.groups.schema, &batches)
        {
            batches = vec![one];
        }
        // What can't be put together, such as dictionaries with few keys, where Arrow may panic, goes out as it is.
        self.ready.extend(batches);
        Ok(())
    }
}

impl Iterator for Giving {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.is_empty() {
            let first = self.rows.pop_front()?;
            let time = self.metrics.elapsed_compute().clone();
            let _timer = time.timer();
            if let Err(error) = self.make_ready(&first) {
                self.rows.clear();
                return Some(Err(error));
            }
        }
        let batch = self.ready.pop_front()?;
        Some(Ok(batch.record_output(&self.metrics)))
    }
}
