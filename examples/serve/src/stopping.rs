//! Queries that end soon after a client has cancelled them or is gone. By itself a join of `DataFusion` compares all
//! pairs of a batch, which may be billions, before it returns to tokio, which only then can end its task.

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_postgres::pgwire::api::results::Response;
use datafusion_postgres::pgwire::error::{PgWireError, PgWireResult};
use datafusion_rmq::parts::Stop;
use futures::{StreamExt, future};

tokio::task_local! {
    /// The request to stop the query that this task plans.
    static STOP: Stop;
}

/// Plans queries whose joins look out for the request of [`stoppable`].
#[derive(Debug)]
pub(crate) struct StoppablePlanner;

#[async_trait]
impl QueryPlanner for StoppablePlanner {
    async fn create_physical_plan(
        &self,
        query: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = datafusion_rmq::plan(query, session, &[]).await?;
        let is_shown = matches!(query, LogicalPlan::Analyze(_));
        match STOP.try_with(Stop::clone) {
            Ok(stop) => stop.watch_joins(plan, is_shown),
            Err(_) => Ok(plan),
        }
    }
}

/// Requests the stop when it is dropped.
struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.request();
    }
}

/// Answers a query, which stops once this future or the response is dropped. It returns when the first row is there:
/// until then, a client can cancel it.
pub(crate) async fn stoppable(
    query: impl Future<Output = PgWireResult<Response>>,
) -> PgWireResult<Response> {
    let stop = StopOnDrop(Stop::default());
    let mut answer = match STOP.scope(stop.0.clone(), query).await? {
        Response::Query(answer) => answer,
        other => return Ok(other),
    };
    let mut rows = answer.data_rows.peekable();
    // In a task of its own: that of the client sees meanwhile that it cancels.
    let started = SpawnedTask::spawn(async move {
        Pin::new(&mut rows).peek().await;
        rows
    });
    let rows = started.join_unwind().await;
    let rows = rows.map_err(|error| PgWireError::ApiError(Box::new(error)))?;
    // The rows own the request, so that it is dropped with them.
    answer.data_rows = Box::pin(rows.scan(stop, |_, row| future::ready(Some(row))));
    Ok(Response::Query(answer))
}
