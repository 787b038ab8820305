//! The rows of a build side that the windows of a probe side can reach.

use std::fmt;
use std::sync::Arc;

use arrow::compute::filter_record_batch;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{PhysicalExpr, PhysicalExprRef};
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::filter_pushdown::{
    ChildFilterDescription, FilterDescription, FilterPushdownPhase, PushedDown,
};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{StreamExt, future};

use crate::exec::common::filter_pushdown::filters_of_columns;
use crate::exec::common::plan_methods::{replace_input, visit_all};
use crate::exec::range_join::metrics::ReachCounts;
use crate::exec::range_join::reach::window_reach::Reach;

/// Returns the rows of its input that are reached, and tells the scan below by what it can prune. It is made when the
/// windows are known, as a query runs, and is in no plan of a query.
#[derive(Debug, Clone)]
pub(crate) struct ReachedRowsExec {
    input: Arc<dyn ExecutionPlan>,
    /// Which rows; `None` if all are returned, to find out whether the scan prunes at all.
    reach: Option<Arc<Reach>>,
    /// By what the scan may prune.
    conditions: Vec<PhysicalExprRef>,
    counts: ReachCounts,
}

impl ReachedRowsExec {
    pub(crate) fn new(
        input: Arc<dyn ExecutionPlan>,
        reach: Option<Arc<Reach>>,
        conditions: Vec<PhysicalExprRef>,
        counts: ReachCounts,
    ) -> Self {
        Self {
            input,
            reach,
            conditions,
            counts,
        }
    }
}

impl DisplayAs for ReachedRowsExec {
    fn fmt_as(&self, _t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("ReachedRowsExec")
    }
}

impl ExecutionPlan for ReachedRowsExec {
    fn name(&self) -> &'static str {
        "ReachedRowsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&PhysicalExprRef) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        visit_all(&self.conditions, f)
    }

    fn gather_filters_for_pushdown(
        &self,
        _phase: FilterPushdownPhase,
        parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        _config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        let columns = (0..self.schema().fields().len()).map(|index| (index, index));
        let own = filters_of_columns(&self.conditions, columns, self, &self.input)?;
        let own = FilterDescription::new().with_child(own).parent_filters();
        let own = own.into_iter().flatten().zip(&self.conditions);
        let own = own.filter(|(pushed, _)| matches!(pushed.discriminant, PushedDown::Yes));
        let own = own.map(|(_, condition)| Arc::clone(condition));
        let child = ChildFilterDescription::all_unsupported(&parent_filters);
        Ok(FilterDescription::new().with_child(child.with_self_filters(own.collect())))
    }

    replace_input!(|reached, input| Self {
        input,
        ..Self::clone(&reached)
    });

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let rows = self.input.execute(partition, context)?;
        let Some(reach) = self.reach.clone() else {
            return Ok(rows);
        };
        let counts = self.counts.clone();
        let reached = rows.map(move |batch| {
            let batch = batch?;
            let reached = reach.contains(&batch)?;
            let dropped = batch.num_rows() - reached.true_count();
            counts.scanned.add(batch.num_rows());
            counts.dropped.add(dropped);
            match dropped {
                0 => Ok(batch),
                _ => Ok(filter_record_batch(&batch, &reached)?),
            }
        });
        let reached = reached.filter(|batch: &Result<_>| {
            let has_rows = batch.as_ref().map_or(true, |batch| batch.num_rows() > 0);
            future::ready(has_rows)
        });
        let schema = self.schema();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, reached)))
    }

    fn statistics_from_inputs(
        &self,
        _inputs: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        Ok(Arc::new(Statistics::new_unknown(&self.schema())))
    }
}
