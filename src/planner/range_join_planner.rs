//! From `RangeJoin`, and `NearestRows`, to their operator. A `JoinChoice` is planned as its range join first.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};

use crate::exec::common::once_per_run::PerContext;
use crate::exec::group_statistics::{GroupStatisticColumn, GroupStatisticsExec};
use crate::exec::range_join::build_side::range_sources::RangeSources;
use crate::exec::range_join::engine_choice::RangeJoinEngine;
use crate::exec::range_join::exec::RangeJoinExec;
use crate::exec::range_join::interval_bounds::with_fast_bounds;
use crate::exec::range_join::mode::JoinMode;
use crate::exec::range_join::parts::RangeJoinParts;
use crate::kept::catalog::IndexCatalog;
use crate::planner::join_choices::JoinChoices;
use crate::planner::nearest_rows_planner::plan_nearest_rows;
use crate::planner::registration::Registration;
use datafusion_rmq_logical::logical_plan::all_columns::AllColumns;
use datafusion_rmq_logical::logical_plan::group_statistics::GroupStatistics;
use datafusion_rmq_logical::logical_plan::join_choice::JoinChoice;
use datafusion_rmq_logical::logical_plan::nearest_rows::NearestRows;
use datafusion_rmq_logical::logical_plan::range_join::{RangeJoin, RangeJoinSpec};

/// Plans range joins.
#[derive(Debug)]
pub(crate) struct RangeJoinPlanner {
    pub(crate) indexes: Arc<IndexCatalog>,
    pub(crate) choices: JoinChoices,
    /// What aggregates the ranges that range joins of the plan return.
    pub(crate) range_sources: Arc<PerContext<RangeSources>>,
}

#[async_trait]
impl ExtensionPlanner for RangeJoinPlanner {
    async fn plan_extension(
        &self,
        planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        logical_inputs: &[&LogicalPlan],
        physical_inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
        planning_ctx: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if let (Some(node), [probe, build]) =
            (node.as_any().downcast_ref::<NearestRows>(), physical_inputs)
        {
            let sides = (Arc::clone(probe), Arc::clone(build));
            return plan_nearest_rows(node, sides, planner, session, planning_ctx).map(Some);
        }
        // With `rmq.rewrite` off since, no rule has removed it.
        if let (Some(AllColumns { .. }), [input]) = (node.as_any().downcast_ref(), physical_inputs)
        {
            return Ok(Some(Arc::clone(input)));
        }
        if let (Some(node), [range_join]) =
            (node.as_any().downcast_ref::<JoinChoice>(), physical_inputs)
        {
            self.choices.note(node, range_join, session)?;
            return Ok(Some(Arc::clone(range_join)));
        }
        if let (Some(node), [input]) = (
            node.as_any().downcast_ref::<GroupStatistics>(),
            physical_inputs,
        ) {
            return self.plan_group_statistics(node, input).map(Some);
        }
        let (Some(node), [probe, build], [probe_exec, build_exec]) = (
            node.as_any().downcast_ref::<RangeJoin>(),
            logical_inputs,
            physical_inputs,
        ) else {
            return Ok(None);
        };
        let physical = |expr: &Expr, input: &LogicalPlan| {
            planner.create_physical_expr(expr, input.schema(), session, planning_ctx)
        };
        let spec = node
            .spec()
            .try_map(|expr| physical(expr, probe), |expr| physical(expr, build))?;
        let sides = (Arc::clone(probe_exec), Arc::clone(build_exec));
        let label = node.spec().shown();
        let returns_ranges = spec.returns_ranges();
        let mut exec = range_join_exec(sides, spec, label, &self.indexes, session).await?;
        if returns_ranges {
            exec = exec.with_range_sources(Arc::clone(&self.range_sources));
        }
        Ok(Some(Arc::new(exec)))
    }
}

impl RangeJoinPlanner {
    fn plan_group_statistics(
        &self,
        node: &GroupStatistics,
        input: &Arc<dyn ExecutionPlan>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = input.schema();
        let columns = node.statistics.iter().map(|statistic| {
            Ok(GroupStatisticColumn {
                ranges: schema.index_of(&statistic.ranges)?,
                field: statistic.field()?,
                of_none: statistic.function()?.create_accumulator()?.evaluate()?,
                text: statistic.call.text.clone(),
            })
        });
        let columns = columns.collect::<Result<_>>()?;
        let (input, sources) = (Arc::clone(input), Arc::clone(&self.range_sources));
        Ok(Arc::new(GroupStatisticsExec::try_new(
            input, columns, sources,
        )?))
    }
}

/// Makes the operator of a range join from its parts, as a planner of other logical nodes or the receiver of a
/// serialized plan needs it.
///
/// `spec` has expressions over the schemas of `probe` and `build`; EXPLAIN shows the parts of `label`.
///
/// # Errors
/// A planning error if this crate is not registered with the session, if `rmq.engine` forces an engine that is not
/// available, or if an expression does not fit its schema.
pub async fn plan_range_join(
    probe: Arc<dyn ExecutionPlan>,
    build: Arc<dyn ExecutionPlan>,
    spec: RangeJoinSpec<PhysicalExprRef>,
    label: Vec<String>,
    session: &dyn Session,
) -> Result<RangeJoinExec> {
    let registration = Registration::of(session)?;
    range_join_exec((probe, build), spec, label, &registration.indexes, session).await
}

async fn range_join_exec(
    (probe, build): (Arc<dyn ExecutionPlan>, Arc<dyn ExecutionPlan>),
    spec: RangeJoinSpec<PhysicalExprRef>,
    label: Vec<String>,
    indexes: &Arc<IndexCatalog>,
    session: &dyn Session,
) -> Result<RangeJoinExec> {
    let spec = with_fast_bounds(spec, &probe.schema());
    let catalog = Arc::clone(indexes);
    let engine = RangeJoinEngine::plan(catalog, &spec, (&probe, &build), session).await?;
    let mode = JoinMode::planned(session.config_options());
    let parts = RangeJoinParts {
        probe_rows: engine.probe_rows(),
        ..RangeJoinParts::planned(spec, None, label, mode)
    };
    RangeJoinExec::try_new(probe, build, parts, engine)
}
