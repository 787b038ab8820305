//! A client.

use std::path::Path;
use std::sync::Arc;

use ballista_core::JobId;
use ballista_scheduler::planner::{DefaultDistributedPlanner, DistributedPlanner};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, displayable};
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use datafusion_rmq_ballista::{SentExec, client, sent_config};
use datafusion_rmq_proto::RmqCodec;

/// A session whose queries run on the executors of a scheduler. Each subfolder is a table of Parquet files, at the same
/// path for all processes.
pub async fn session(scheduler: &str, folder: &Path) -> Result<SessionContext> {
    let builder = SessionStateBuilder::new_with_default_features();
    let builder = client(builder, scheduler, &RmqCodec::default());
    let ctx = SessionContext::new_with_state(builder.build());
    for table in std::fs::read_dir(folder)? {
        let path = table?.path();
        let (Some(name), true) = (path.file_name(), path.is_dir()) else {
            continue;
        };
        let path = path.canonicalize()?;
        let options = ParquetReadOptions::default();
        ctx.register_parquet(&*name.to_string_lossy(), path.to_string_lossy(), options)
            .await?;
    }
    Ok(ctx)
}

/// Shows the stages and tasks of a query, and its rows.
pub async fn show(ctx: &SessionContext, sql: &str) -> Result<()> {
    let frame = datafusion_rmq::sql(ctx, sql).await?;
    let plan = frame.clone().create_physical_plan().await?;
    if let Some(sent) = plan.downcast_ref::<SentExec>() {
        let config = sent_config(&ctx.copied_config());
        // As the scheduler does.
        let stages = DefaultDistributedPlanner::new().plan_query_stages(
            &JobId::from("job"),
            Arc::clone(sent.plan()),
            config.options(),
        );
        let stages = stages.map_err(|error| DataFusionError::External(error.into()))?;
        for (number, stage) in stages.iter().enumerate() {
            let plan: &Arc<dyn ExecutionPlan> = stage.children()[0];
            let partitions = plan.output_partitioning().partition_count();
            let text = displayable(plan.as_ref()).indent(false);
            println!("stage {}, partitions: {partitions}\n{text}", number + 1);
        }
    }
    frame.show().await
}
