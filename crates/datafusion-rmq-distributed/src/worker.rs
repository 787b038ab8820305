//! The processes that execute parts of plans.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::config::ExtensionOptions;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF};
use datafusion_distributed::{
    DistributedExt, ExecuteTaskRequest, ProducerHead, TaskKey, Worker, WorkerQueryContext,
};
use datafusion_rmq::parts::named_functions;
use datafusion_rmq::{RmqOptions, SessionRole, SessionStateBuilderExt};
use datafusion_rmq_proto::RmqCodec;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

/// A worker that executes range joins and range lookups, with the indexes and devices of `codec`, which are kept from
/// query to query.
///
/// `options` are those of this machine: its devices, its threads, and the memory for indexes. The engine
/// (`rmq.engine`) and `rmq.pruning` are those of the client's session. With `cuda` a query fails on a worker without a
/// device.
#[must_use]
pub fn worker(codec: &RmqCodec, options: &RmqOptions) -> Worker {
    let (codec, options) = (codec.clone(), options.clone());
    Worker::from_session_builder(move |query: WorkerQueryContext| {
        let session = session(query, &codec, &options);
        async move { session.map(SessionStateBuilder::build) }
    })
}

/// How the headers begin that have the client's options.
const OPTION_PREFIX: &str = "x-datafusion-distributed-config-";

/// The session of a task.
///
/// # Errors
/// For values of the client's options that this worker does not know.
pub fn session(
    query: WorkerQueryContext,
    codec: &RmqCodec,
    options: &RmqOptions,
) -> Result<SessionStateBuilder> {
    let mut options = options.clone();
    // A task has its own files and exchanges, and all of its partitions are executed at once.
    options.role = SessionRole::RunsTasks;
    for option in ["engine", "pruning"] {
        // `datafusion-distributed` 4.0 sends the whole names of options, and looks for them without their prefix.
        let value = query.headers.iter().find(|(name, _)| {
            let name = name.as_str().strip_prefix(OPTION_PREFIX);
            name.is_some_and(|name| name.ends_with(&format!("rmq.{option}")))
        });
        if let Some((_, value)) = value {
            let value = value.to_str();
            let value = value.map_err(|error| DataFusionError::External(error.into()))?;
            options.set(option, value)?;
        }
    }
    let mut builder = query.builder;
    let config = builder.config().get_or_insert_default();
    config.options_mut().extensions.insert(options);
    let (scalars, aggregates) = named_functions();
    let scalars = scalars.into_iter().map(Arc::<ScalarUDF>::new);
    builder
        .scalar_functions()
        .get_or_insert_default()
        .extend(scalars);
    let aggregates = aggregates.into_iter().map(Arc::<AggregateUDF>::new);
    builder
        .aggregate_functions()
        .get_or_insert_default()
        .extend(aggregates);
    let runtime = builder.runtime_env().clone();
    let mut builder = builder.with_rmq_sharing(codec.indexes());
    // The worker's own, not one of each task: connections between workers are kept by it.
    *builder.runtime_env() = runtime;
    Ok(builder.with_distributed_user_codec(codec.clone()))
}

/// How often a worker drops the plans of tasks that have ended.
const DROP_INTERVAL: Duration = Duration::from_secs(1);

/// Serves a worker until the future is dropped.
///
/// Anyone who can reach the address can run plans and read files as this process: listen on an address of a private
/// network only. What a cancelled query leaves on a worker is dropped within some seconds; another server drops it with
/// the next query.
///
/// # Errors
/// An error of the connection.
pub async fn serve(worker: Worker, listener: TcpListener) -> Result<()> {
    let server = Server::builder().add_service(worker.clone().into_worker_server());
    let running = server.serve_with_incoming(TcpListenerStream::new(listener));
    tokio::select! {
        ended = running => ended.map_err(|error| DataFusionError::External(error.into())),
        never = drop_ended_tasks(&worker) => match never {},
    }
}

/// Drops the plans of tasks that have ended. That of a cancelled query has connections to other workers, and rows of
/// exchanges, which no one has read.
///
/// `datafusion-distributed` 4.0 removes a task from a cache when its query ends. What is removed is dropped when others
/// are added, so that the last query before a quiet night would keep memory until morning. So this adds one that does
/// not exist.
async fn drop_ended_tasks(worker: &Worker) -> Infallible {
    let mut task_number = 0;
    loop {
        let request = ExecuteTaskRequest {
            task_key: TaskKey {
                #[expect(clippy::default_trait_access, reason = "a type of another crate")]
                query_id: Default::default(),
                stage_id: 0,
                task_number,
            },
            target_partition_start: 0,
            target_partition_end: 0,
            producer_head: ProducerHead::None,
        };
        // It waits for a plan, which never comes. The cache forgets it after ten minutes.
        let waiting = worker.execute_task(request);
        drop(tokio::time::timeout(DROP_INTERVAL, waiting).await);
        task_number += 1;
    }
}
