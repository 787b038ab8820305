//! A plan of ours in another library: it is executed with our session's context, by our threads.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, exec_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{FutureExt, StreamExt};
use tokio::runtime::Handle;

/// Batches that a partition may be ahead of its reader.
const AHEAD: usize = 2;

/// The plan and what executes it. It shows no inputs, which another library would write and read one by one.
///
/// The context of the other library has neither its memory limit nor its object stores when it arrives here.
#[derive(Debug)]
pub struct OwnedPlan {
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    runtime: Handle,
    name: String,
}

impl OwnedPlan {
    pub fn new(plan: Arc<dyn ExecutionPlan>, context: Arc<TaskContext>, runtime: Handle) -> Self {
        let name = format!("datafusion_rmq: {}", plan.name());
        Self {
            plan,
            context,
            runtime,
            name,
        }
    }
}

impl DisplayAs for OwnedPlan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl ExecutionPlan for OwnedPlan {
    fn name(&self) -> &str {
        &self.name
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.plan.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if children.is_empty() {
            return Ok(self);
        }
        internal_err!("{} has no inputs", self.name)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        // The receiver's tasks are those of the current runtime.
        let _ours = self.runtime.enter();
        let mut rows = RecordBatchReceiverStream::builder(self.plan.schema(), AHEAD);
        let (plan, context, output) =
            (Arc::clone(&self.plan), Arc::clone(&self.context), rows.tx());
        let work = async move {
            let mut batches = plan.execute(partition, context)?;
            while let Some(batch) = batches.next().await {
                let ends = batch.is_err();
                if output.send(batch).await.is_err() || ends {
                    break;
                }
            }
            Ok(())
        };
        // A panic must not reach the other library: it would end the process.
        let work = AssertUnwindSafe(work).catch_unwind();
        rows.spawn(async move {
            let ended = work.await;
            ended.unwrap_or_else(|_| exec_err!("the query panicked; the error output says where"))
        });
        Ok(rows.build())
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Arc<Statistics>> {
        let args = StatisticsArgs::new().with_partition(partition);
        StatisticsContext::new().compute(self.plan.as_ref(), &args)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.plan.metrics()
    }
}
