//! Sessions whose plans go through bytes.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::error::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::explain::ExplainExec;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_proto::bytes::{
    physical_plan_from_bytes_with_extension_codec, physical_plan_to_bytes_with_extension_codec,
};
use datafusion_rmq::physical_plan::CreateIndexExec;
use datafusion_rmq::{JoinModeChoice, RmqOptions, SessionStateBuilderExt};
use datafusion_rmq_proto::{RmqCodec, portable};

/// A session with four partitions whose joins may be sent, and whose indexes are those of the codec.
pub fn builder(codec: &RmqCodec) -> SessionStateBuilder {
    let mut options = RmqOptions::default();
    options.join_mode = JoinModeChoice::Collected;
    let config = SessionConfig::new()
        .with_information_schema(true)
        .with_target_partitions(4)
        .with_option_extension(options);
    SessionStateBuilder::new_with_default_features()
        .with_config(config)
        .with_rmq_sharing(codec.indexes())
}

/// A session that executes each plan after it was written and read.
pub fn through_bytes() -> SessionContext {
    let codec = RmqCodec::default();
    let mut builder = builder(&codec);
    let planner = builder.query_planner().take().expect("with_rmq sets one");
    let planner = ThroughBytes { planner, codec };
    SessionContext::new_with_state(builder.with_query_planner(Arc::new(planner)).build())
}

/// The plan after it was written and read.
pub fn copy(
    plan: Arc<dyn ExecutionPlan>,
    codec: &RmqCodec,
    state: &SessionState,
) -> Result<Arc<dyn ExecutionPlan>> {
    let bytes = physical_plan_to_bytes_with_extension_codec(plan, codec)?;
    physical_plan_from_bytes_with_extension_codec(&bytes, &state.task_ctx(), codec)
}

#[derive(Debug)]
struct ThroughBytes {
    planner: Arc<dyn QueryPlanner + Send + Sync>,
    codec: RmqCodec,
}

#[async_trait]
impl QueryPlanner for ThroughBytes {
    async fn create_physical_plan(
        &self,
        logical_plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = self
            .planner
            .create_physical_plan(logical_plan, session)
            .await?;
        let state = session.as_any().downcast_ref::<SessionState>();
        let state = state.expect("a session of DataFusion");
        // DataFusion does not write plans of EXPLAIN, of changes and of its settings.
        let is_query =
            !plan.is::<ExplainExec>() && !plan.is::<AnalyzeExec>() && !plan.is::<CreateIndexExec>();
        if !is_query || !is_written(&plan) {
            return Ok(plan);
        }
        match portable(Arc::clone(&plan)) {
            Ok(portable) => copy(portable, &self.codec, state),
            // It says why it can't be sent.
            Err(_) => Ok(plan),
        }
    }
}

/// Whether DataFusion writes the operators of a plan that are its own.
fn is_written(plan: &Arc<dyn ExecutionPlan>) -> bool {
    // Subqueries of one value are read only by expressions of DataFusion's own operators.
    let unknown = [
        "DataSinkExec",
        "DmlResultExec",
        "LazyMemoryExec",
        "PiecewiseMergeJoinExec",
        "RecursiveQueryExec",
        "ScalarSubqueryExec",
        "StreamingTableExec",
        "WorkTableExec",
    ];
    let is_unknown = unknown.contains(&plan.name());
    !is_unknown && plan.children().into_iter().all(is_written)
}
