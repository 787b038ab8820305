//! The operator. The folder's documentation has the algorithm.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{Distribution, OrderingRequirements, PhysicalExpr};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, InputDistributionRequirements, PlanProperties,
};
use futures::stream;

use crate::exec::common::metrics::OperatorMetrics;
use crate::exec::common::plan_methods::with_new_children;
use crate::exec::window_frame::call::FrameCall;
use crate::exec::window_frame::stream::FrameStream;
use datafusion_rmq_logical::common::sql_text::tree_text;

/// Window functions over frames that slide, answered as ranges of positions.
#[derive(Debug)]
pub struct WindowFrameExec {
    /// The operator of DataFusion that it takes the place of, with its input: requirements and properties are the same.
    window: Arc<dyn ExecutionPlan>,
    calls: Arc<[FrameCall]>,
    metrics: ExecutionPlanMetricsSet,
}

impl WindowFrameExec {
    /// Takes the place of `window`, whose functions are `calls`, one or more.
    pub(crate) fn new(window: Arc<dyn ExecutionPlan>, calls: Vec<FrameCall>) -> Self {
        Self {
            window,
            calls: calls.into(),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// Takes the place of `window`, an operator of `DataFusion` whose functions all have frames that slide.
    ///
    /// # Errors
    /// An internal error for another operator.
    #[doc(hidden)]
    pub fn of_window(window: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let exprs = if let Some(bounded) = window.downcast_ref::<BoundedWindowAggExec>() {
            bounded.window_expr()
        } else if let Some(whole) = window.downcast_ref::<WindowAggExec>() {
            whole.window_expr()
        } else {
            return internal_err!("{} is no window operator", window.name());
        };
        let children = window.children();
        let [input] = children.as_slice() else {
            return internal_err!("a window operator has one input, not {}", children.len());
        };
        let schema = input.schema();
        let calls = exprs.iter().map(|expr| {
            let call = FrameCall::try_match(expr, &schema)?;
            call.ok_or_else(|| internal_datafusion_err!("{} has no such frames", expr.name()))
        });
        let calls = calls.collect::<Result<Vec<_>>>()?;
        Ok(Self::new(window, calls))
    }

    /// The operator of `DataFusion` that it takes the place of, with the same input and output.
    #[must_use]
    pub fn window(&self) -> &Arc<dyn ExecutionPlan> {
        &self.window
    }
}

impl DisplayAs for WindowFrameExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let calls = self.calls.iter();
        let calls = calls.map(|call| format!("{}: {}", call.expr.name(), call.method()));
        let calls = calls.collect::<Vec<_>>().join(", ");
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "WindowFrameExec: wdw=[{calls}]")
            }
            DisplayFormatType::TreeRender => writeln!(f, "{}", tree_text(&calls)),
        }
    }
}

impl ExecutionPlan for WindowFrameExec {
    fn name(&self) -> &'static str {
        "WindowFrameExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.window.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.window.children()
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        self.window.required_input_ordering()
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        self.input_distribution_requirements().into_per_child()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.window.input_distribution_requirements()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.window.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let window = Arc::clone(&self.window).replace_children(children, options)?;
        Ok(Arc::new(Self::new(window, self.calls.to_vec())))
    }

    with_new_children!();

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let children = self.window.children();
        let [input] = children.as_slice() else {
            return internal_err!("a window operator has one input, not {}", children.len());
        };
        let consumer = MemoryConsumer::new(format!("{}[{partition}]", self.name()));
        let rows = FrameStream::new(
            input.execute(partition, Arc::clone(&context))?,
            self.schema(),
            Arc::clone(&self.calls),
            consumer.register(context.memory_pool()),
            OperatorMetrics::new(&self.metrics, partition),
        );
        let batches = stream::try_unfold(rows, |mut rows| async {
            let batch = rows.next().await?;
            Ok(batch.map(|batch| (batch, rows)))
        });
        let batches = RecordBatchStreamAdapter::new(self.schema(), batches);
        Ok(make_cooperative(Box::pin(batches)))
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.window.child_stats_requests(partition)
    }

    fn statistics_from_inputs(
        &self,
        input_stats: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.window.statistics_from_inputs(input_stats, args)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
