//! A physical plan that a scheduler divides and executors execute.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
    SendableRecordBatchStream,
};
use datafusion::prelude::SessionConfig;
use datafusion_proto::bytes::physical_plan_to_bytes_with_extension_codec;
use datafusion_proto::physical_plan::PhysicalExtensionCodec;
use futures::TryStreamExt;

use crate::job::Job;

/// Sends a plan to a scheduler and returns its rows.
#[derive(Debug)]
pub struct SentExec {
    plan: Arc<dyn ExecutionPlan>,
    scheduler: String,
    codec: Arc<dyn PhysicalExtensionCodec>,
    properties: Arc<PlanProperties>,
}

impl SentExec {
    /// `scheduler` is an address such as `http://10.0.0.7:50050`.
    #[must_use]
    pub fn new(
        plan: Arc<dyn ExecutionPlan>,
        scheduler: String,
        codec: Arc<dyn PhysicalExtensionCodec>,
    ) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(plan.schema()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self {
            plan,
            scheduler,
            codec,
            properties: Arc::new(properties),
        }
    }

    /// The plan that is sent.
    #[must_use]
    pub fn plan(&self) -> &Arc<dyn ExecutionPlan> {
        &self.plan
    }
}

/// The options of a session that travel with its plans. Of `rmq.*` the scheduler takes the engine and pruning.
///
/// It plans the parts of a plan again, for distribution and order, and must not divide scans that were put into one
/// partition because their order decides.
#[must_use]
pub fn sent_config(config: &SessionConfig) -> SessionConfig {
    config
        .clone()
        .with_repartition_file_scans(false)
        .with_round_robin_repartition(false)
}

impl DisplayAs for SentExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "SentExec: scheduler={}", self.scheduler)
    }
}

impl ExecutionPlan for SentExec {
    fn name(&self) -> &'static str {
        "SentExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        // The plan is executed elsewhere: rules of this session must not change it.
        vec![]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let plan = Arc::clone(&self.plan);
        let bytes = physical_plan_to_bytes_with_extension_codec(plan, self.codec.as_ref())?;
        let job = Job {
            scheduler: self.scheduler.clone(),
            plan: bytes.into(),
            session: context.session_id(),
            config: sent_config(context.session_config()),
        };
        let rows = futures::stream::once(job.execute()).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
