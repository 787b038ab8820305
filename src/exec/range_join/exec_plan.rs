//! `RangeJoinExec` as an operator of a plan: what EXPLAIN shows of it, its properties, what rules may do with it, and
//! its execution.

use std::fmt;
use std::sync::{Arc, OnceLock};

use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{ColumnStatistics, Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{Distribution, OrderingRequirements, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{
    CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions,
};
use datafusion::physical_plan::filter_pushdown::{
    ChildFilterDescription, ChildPushdownResult, FilterDescription, FilterPushdownPhase,
    FilterPushdownPropagation,
};
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::limit::LocalLimitExec;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::projection::{ProjectionExec, try_embed_projection};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, PlanProperties,
};

use crate::exec::common::filter_pushdown::filters_of_columns;
use crate::exec::common::plan_methods::{visit_all, with_new_children};
use crate::exec::range_join::build_side::origin::BuildOrigin;
use crate::exec::range_join::exec::RangeJoinExec;
use crate::exec::range_join::metrics::{BuildMetrics, ProbeMetrics};
use crate::exec::range_join::mode::JoinMode;
use crate::exec::range_join::probe::build_input::BuildInput;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::probe_ahead::ProbeAhead;
use crate::exec::range_join::probe::probe_build::{JoinRun, ProbeBuild};
use crate::exec::range_join::probe::probe_input::ProbeInput;
use crate::exec::range_join::probe::stream::join_stream;
use crate::exec::range_join::row_join::RowJoin;
use crate::exec::range_join::row_properties::keeps_order;
use datafusion_rmq_logical::common::inputs::inputs_of;
use datafusion_rmq_logical::common::sql_text::{cut, tree_text};
use datafusion_rmq_logical::logical_plan::range_join::Unmatched;

/// The most characters of a part of a label in the tree form of EXPLAIN, besides the range: some six lines.
const MAX_TREE_PART: usize = 120;

impl RangeJoinExec {
    /// Where the build side comes from, if EXPLAIN is to show it.
    fn shown_origin(&self) -> Option<BuildOrigin> {
        let planned = self.origin?;
        let executed = BuildOrigin::executed(&self.metrics.clone_inner());
        Some(executed.unwrap_or(planned))
    }

    /// The probe side, if it is read before the build side.
    fn probe_ahead(&self, run: &JoinRun, context: &Arc<TaskContext>) -> Result<Option<ProbeAhead>> {
        let config = context.session_config().options();
        if !self.reads_ahead(config)? {
            return Ok(None);
        }
        Ok(Some(ProbeAhead {
            inputs: Arc::clone(&run.inputs),
            probe: Arc::clone(&self.probe),
            spec: self.reach_spec(),
            sought: self.sought(),
            prunes_scan: self.prunes_scan(config)?,
            context: Arc::clone(context),
        }))
    }
}

impl DisplayAs for RangeJoinExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let (mode, fetch) = (self.parts.mode.label(), self.parts.fetch);
        let (mode, fetch) = (
            mode.map(String::from),
            fetch.map(|rows| format!("fetch={rows}")),
        );
        let engine = Some(format!("engine={}", self.engine));
        let origin = self.shown_origin().map(|origin| format!("index={origin}"));
        let mut others = [mode, fetch, engine, origin].into_iter().flatten();
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "RangeJoinExec: {}", self.label())?;
                others.try_for_each(|other| write!(f, ", {other}"))
            }
            DisplayFormatType::TreeRender => {
                for part in &self.parts.label {
                    // DataFusion shows some thirty lines, and what comes before the range may be long.
                    let is_range = part.starts_with("range=");
                    let length = if is_range { usize::MAX } else { MAX_TREE_PART };
                    writeln!(f, "{}", tree_text(&cut(part, length)))?;
                }
                others.try_for_each(|other| writeln!(f, "{other}"))
            }
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
        use Distribution::{SinglePartition, UnspecifiedDistribution};
        match self.parts.mode {
            _ if self.needs_one_task() => {
                InputDistributionRequirements::new(vec![SinglePartition, SinglePartition])
            }
            JoinMode::Shared => InputDistributionRequirements::new(vec![
                UnspecifiedDistribution,
                UnspecifiedDistribution,
            ]),
            JoinMode::Collected => {
                InputDistributionRequirements::new(vec![UnspecifiedDistribution, SinglePartition])
            }
            JoinMode::Partitioned => {
                let (probe, build) = self.parts.spec.on.iter().cloned().unzip();
                InputDistributionRequirements::co_partitioned(vec![
                    Distribution::KeyPartitioned(probe),
                    Distribution::KeyPartitioned(build),
                ])
            }
        }
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        vec![None, self.build_order().map(OrderingRequirements::from)]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![true, self.parts.mode == JoinMode::Partitioned]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        if self.build_order().is_some() {
            // DataFusion 55 would take the sort away that the build side requires: if the order of one input is
            // maintained, it looks for an unnecessary sort below each (`update_sort_ctx_children_data`).
            return vec![false, false];
        }
        let keeps_order = |join: &Arc<RowJoin>| keeps_order(self.probe.as_ref(), join);
        vec![self.returned_rows().is_none_or(keeps_order), false]
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        match self.parts.spec.unmatched {
            _ if self.returned_rows().is_some() => CardinalityEffect::Unknown,
            Unmatched::Keep => CardinalityEffect::Equal,
            Unmatched::Drop | Unmatched::Only => CardinalityEffect::LowerEqual,
        }
    }

    fn gather_filters_for_pushdown(
        &self,
        _phase: FilterPushdownPhase,
        parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        _config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        let columns = self.columns_for_filters();
        let probe = if columns.is_empty() || self.parts.fetch.is_some() {
            ChildFilterDescription::all_unsupported(&parent_filters)
        } else {
            filters_of_columns(&parent_filters, columns, self, &self.probe)?
        };
        let build = ChildFilterDescription::all_unsupported(&parent_filters);
        Ok(FilterDescription::new().with_child(probe).with_child(build))
    }

    fn handle_child_pushdown_result(
        &self,
        _phase: FilterPushdownPhase,
        child_pushdown_result: ChildPushdownResult,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        Ok(FilterPushdownPropagation::if_any(child_pushdown_result))
    }

    fn fetch(&self) -> Option<usize> {
        self.parts.fetch
    }

    /// Where each probe row is returned once, the probe side gets the limit. A limit that is pushed through an operator
    /// goes to all its inputs, so `supports_limit_pushdown` is false. One on matched probe rows stays above the join.
    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        let (mut probe, build) = (Arc::clone(&self.probe), Arc::clone(&self.build));
        let mut parts = self.parts.clone();
        parts.fetch = limit;
        if self.returned_rows().is_none() {
            let limit = limit.filter(|_| self.returns_each_probe_row())?;
            probe = Arc::new(LocalLimitExec::new(probe, limit));
            parts.fetch = None;
        }
        Some(Arc::new(self.remade(probe, build, parts).ok()?))
    }

    /// Tells the limit that [`Self::with_fetch`] has given to the probe side whether its order matters.
    fn with_preserve_order(&self, preserve_order: bool) -> Option<Arc<dyn ExecutionPlan>> {
        let limit = self.probe.downcast_ref::<LocalLimitExec>()?;
        let mut ordered = LocalLimitExec::new(Arc::clone(limit.input()), limit.fetch());
        let order = limit.input().output_ordering().cloned();
        ordered.set_required_ordering(order.filter(|_| preserve_order));
        let (probe, build) = (Arc::new(ordered), Arc::clone(&self.build));
        let remade = self.remade(probe, build, self.parts.clone());
        Some(Arc::new(remade.ok()?))
    }

    fn try_swapping_with_projection(
        &self,
        projection: &ProjectionExec,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        match self.returned_rows() {
            Some(_) => try_embed_projection(projection, self),
            None => Ok(None),
        }
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let residual = self
            .parts
            .row_join
            .as_ref()
            .and_then(|join| join.residual());
        let residual = residual.map(JoinFilter::expression);
        visit_all(self.parts.spec.expressions().chain(residual), f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [probe, build] = inputs_of("RangeJoinExec", children)?;
        let parts = self.parts.clone();
        match options.children_properties {
            ChildrenPropertiesMode::Keep => Ok(Arc::new(Self {
                probe,
                build,
                parts,
                engine: self.engine.clone(),
                properties: Arc::clone(&self.properties),
                metrics: ExecutionPlanMetricsSet::new(),
                run: Arc::new(self.run.renewed()),
                may_prune: OnceLock::new(),
                origin: self.origin,
                range_sources: self.range_sources.clone(),
            })),
            ChildrenPropertiesMode::Recompute => Ok(Arc::new(self.remade(probe, build, parts)?)),
        }
    }

    with_new_children!();

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let partitions = self.properties.partitioning.partition_count();
        let is_bounded = !self.probe.boundedness().is_unbounded();
        let mut columns = self.build_columns();
        columns.may_divide = self.may_divide()?;
        let run = self.run.run(&context, partition, partitions);
        let ahead = self.probe_ahead(&run, &context)?;
        let probe_input = match &ahead {
            Some(ahead) => ahead.input(partition)?,
            None => ProbeInput::new(self.probe.execute(partition, Arc::clone(&context))?),
        };
        let input = BuildInput {
            plan: Arc::clone(&self.build),
            columns,
            metrics: BuildMetrics::new(&self.metrics),
            engine: self.engine.clone(),
            context: Arc::clone(&context),
            is_probe_bounded: is_bounded,
            row_join: self.parts.row_join.clone(),
            ahead,
        };
        let build = match self.parts.mode {
            JoinMode::Shared | JoinMode::Collected => ProbeBuild::Shared {
                input,
                run,
                probe_partitions: partitions,
            },
            JoinMode::Partitioned => {
                let builds = self.build.output_partitioning().partition_count();
                if builds != partitions {
                    return internal_err!(
                        "a partitioned RangeJoinExec has {partitions} partitions of the probe side and {builds} of the build side"
                    );
                }
                if self.row_order_matters() && !self.is_build_ordered()? {
                    return internal_err!(
                        "the build side of a partitioned RangeJoinExec has lost its order"
                    );
                }
                ProbeBuild::Partition {
                    input,
                    partition,
                    partitions,
                }
            }
        };
        let probe_partition = ProbePartition {
            schema: self.schema(),
            spec: Arc::clone(&self.parts.spec),
            metrics: Arc::new(ProbeMetrics::new(partition, &self.metrics)),
            pool: Arc::clone(context.memory_pool()),
            row_join: self.parts.row_join.clone(),
            partitions: build.probe_partitions(),
            is_bounded,
            batch_size: context.session_config().batch_size(),
            fetch: self.parts.fetch,
            range_sources: self
                .range_sources
                .as_ref()
                .map(|of| of.get_retained(&context)),
        };
        Ok(join_stream(probe_partition, probe_input, build))
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition), ChildStats::Skip]
    }

    fn statistics_from_inputs(
        &self,
        input_stats: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        if self.returned_rows().is_some() {
            return Ok(Arc::new(Statistics::new_unknown(&self.schema())));
        }
        let Some(probe) = input_stats.first() else {
            return internal_err!("RangeJoinExec has no statistics of its inputs");
        };
        let mut statistics = match self.parts.spec.unmatched {
            Unmatched::Keep => Statistics::clone(probe),
            Unmatched::Drop | Unmatched::Only => Statistics::clone(probe).to_inexact(),
        };
        statistics.total_byte_size = Precision::Absent;
        let aggregates = self.parts.spec.aggregates.iter();
        let unknown = aggregates.map(|_| ColumnStatistics::new_unknown());
        statistics.column_statistics.extend(unknown);
        Ok(Arc::new(statistics))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
