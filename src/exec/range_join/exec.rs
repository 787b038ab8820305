//! The operator of range joins by key: for each probe row, aggregates over the build rows that match.
//!
//! ```text
//!   probe ──▶ RangeJoinExec ──▶ probe's columns, one column an aggregate
//!                  │  equality keys and bounds of each row
//!                  ▼
//!             build side: collected once, sorted by equality keys and range key, values indexed;
//!                         in pieces on disk where memory does not suffice
//! ```

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{ColumnStatistics, Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{Distribution, PhysicalExpr, PhysicalExprRef};
use datafusion::physical_plan::execution_plan::{
    CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions,
};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, PlanProperties,
};

use crate::exec::common::added_columns::properties_with;
use crate::exec::common::once_per_run::OncePerRun;
use crate::exec::range_join::build::build::ties_matter;
use crate::exec::range_join::build::collect::BuildColumns;
use crate::exec::range_join::engine::RangeJoinEngine;
use crate::exec::range_join::metrics::{BuildMetrics, ProbeMetrics};
use crate::exec::range_join::probe::side::{ProbeSide, Side};
use crate::exec::range_join::probe::stream::Probing;
use crate::exec::range_join::time_bounds::with_durations;
use crate::logical_plan::range_join::{RangeAggregate, RangeJoinSpec, Unmatched};

/// Aggregates over the build rows that match each probe row. Keeps the order and the partitions of the probe side.
#[derive(Debug)]
pub struct RangeJoinExec {
    probe: Arc<dyn ExecutionPlan>,
    build: Arc<dyn ExecutionPlan>,
    spec: Arc<RangeJoinSpec<PhysicalExprRef>>,
    /// The join as the query names its columns.
    label: String,
    engine: RangeJoinEngine,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    built: Arc<OncePerRun<Side>>,
}

impl RangeJoinExec {
    pub(crate) fn try_new(
        probe: Arc<dyn ExecutionPlan>,
        build: Arc<dyn ExecutionPlan>,
        spec: RangeJoinSpec<PhysicalExprRef>,
        label: String,
        engine: RangeJoinEngine,
    ) -> Result<Self> {
        let spec = with_cheap_bounds(spec, &probe.schema());
        Self::with_spec(probe, build, Arc::new(spec), label, engine)
    }

    /// The side whose rows are kept.
    #[must_use]
    pub fn probe(&self) -> &Arc<dyn ExecutionPlan> {
        &self.probe
    }

    /// The side whose rows are aggregated.
    #[must_use]
    pub fn build(&self) -> &Arc<dyn ExecutionPlan> {
        &self.build
    }

    /// The keys, bounds and aggregates.
    #[must_use]
    pub fn spec(&self) -> &RangeJoinSpec<PhysicalExprRef> {
        &self.spec
    }

    /// The keys, bounds and aggregates as EXPLAIN shows them, in the query's column names.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The probe side and the build side.
    pub(crate) fn inputs(&self) -> [&Arc<dyn ExecutionPlan>; 2] {
        [&self.probe, &self.build]
    }

    /// Whether it matters in which order the rows of the build side come.
    pub(crate) fn ties_matter(&self) -> bool {
        ties_matter(&BuildColumns::of(&self.spec))
    }

    fn with_spec(
        probe: Arc<dyn ExecutionPlan>,
        build: Arc<dyn ExecutionPlan>,
        spec: Arc<RangeJoinSpec<PhysicalExprRef>>,
        label: String,
        engine: RangeJoinEngine,
    ) -> Result<Self> {
        let outputs = spec.aggregates.iter().map(RangeAggregate::field);
        let metadata = spec.metadata.clone().into_iter().collect();
        let properties = properties_with(probe.as_ref(), outputs, metadata)?;
        Ok(Self {
            probe,
            build,
            spec,
            label,
            engine,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
            built: Arc::default(),
        })
    }
}

/// The join with its bounds in the form that is evaluated fastest.
fn with_cheap_bounds(
    mut spec: RangeJoinSpec<PhysicalExprRef>,
    probe: &Schema,
) -> RangeJoinSpec<PhysicalExprRef> {
    for (_, bound) in &mut spec.bounds {
        if let Ok(cheap) = with_durations(bound, probe) {
            *bound = cheap;
        }
    }
    spec
}

impl DisplayAs for RangeJoinExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "RangeJoinExec: {}, engine={}", self.label, self.engine)
            }
            DisplayFormatType::TreeRender => writeln!(f, "{}\nengine={}", self.label, self.engine),
        }
    }
}

impl ExecutionPlan for RangeJoinExec {
    fn name(&self) -> &'static str {
        "RangeJoinExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.probe, &self.build]
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![
            Distribution::UnspecifiedDistribution,
            // All partitions are read, one after another as far as their order counts.
            Distribution::UnspecifiedDistribution,
        ])
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![true, false]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true, false]
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        match self.spec.unmatched {
            Unmatched::Keep => CardinalityEffect::Equal,
            Unmatched::Drop => CardinalityEffect::LowerEqual,
        }
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let mut next = TreeNodeRecursion::Continue;
        for expression in self.spec.expressions() {
            next = next.visit_sibling(|| f(expression))?;
        }
        Ok(next)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [probe, build] = <[_; 2]>::try_from(children)
            .or_else(|c: Vec<_>| internal_err!("RangeJoinExec has two inputs, not {}", c.len()))?;
        let (spec, label) = (Arc::clone(&self.spec), self.label.clone());
        let engine = self.engine.clone();
        match options.children_properties {
            ChildrenPropertiesMode::Keep => Ok(Arc::new(Self {
                probe,
                build,
                spec,
                label,
                engine,
                properties: Arc::clone(&self.properties),
                metrics: ExecutionPlanMetricsSet::new(),
                built: Arc::default(),
            })),
            ChildrenPropertiesMode::Recompute => Ok(Arc::new(Self::with_spec(
                probe, build, spec, label, engine,
            )?)),
        }
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
        let run = self.built.run(&context, partition, partitions);
        let (build_plan, spec) = (Arc::clone(&self.build), Arc::clone(&self.spec));
        let metrics = BuildMetrics::new(&self.metrics);
        let (build_context, engine) = (Arc::clone(&context), self.engine.clone());
        let probe_side = ProbeSide {
            partitions,
            ends: !self.properties.boundedness.is_unbounded(),
        };
        let build_side = async move {
            let make = || async move {
                let inputs = 0..build_plan.output_partitioning().partition_count();
                let inputs = inputs.map(|i| build_plan.execute(i, Arc::clone(&build_context)));
                let inputs = inputs.collect::<Result<_>>()?;
                let schema = build_plan.schema();
                let context = build_context;
                Side::make(&spec, &schema, inputs, metrics, context, probe_side, engine).await
            };
            run.get(make).await
        };
        let probing = Probing {
            schema: self.schema(),
            spec: Arc::clone(&self.spec),
            metrics: ProbeMetrics::new(partition, &self.metrics),
            pool: Arc::clone(context.memory_pool()),
        };
        let probe = self.probe.execute(partition, context)?;
        Ok(probing.stream(probe, build_side))
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition), ChildStats::Skip]
    }

    fn statistics_from_inputs(
        &self,
        input_stats: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let Some(probe) = input_stats.first() else {
            return internal_err!("RangeJoinExec has no statistics of its inputs");
        };
        let mut statistics = match self.spec.unmatched {
            Unmatched::Keep => Statistics::clone(probe),
            Unmatched::Drop => Statistics::clone(probe).to_inexact(),
        };
        statistics.total_byte_size = Precision::Absent;
        let answers = self.spec.aggregates.iter();
        let answers = answers.map(|_| ColumnStatistics::new_unknown());
        statistics.column_statistics.extend(answers);
        Ok(Arc::new(statistics))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
