//! The processes that execute parts of plans.

use std::sync::Arc;

use datafusion::common::config::ExtensionOptions;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF};
use datafusion_distributed::{DistributedExt, Worker, WorkerQueryContext};
use datafusion_rmq::parts::named_functions;
use datafusion_rmq::{RmqOptions, SessionStateBuilderExt};
use datafusion_rmq_proto::RmqCodec;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

/// A worker that executes range joins and range lookups, with the indexes and devices of `codec`, which are kept from
/// query to query.
///
/// `options` are those of this machine: its devices, its threads, and the memory for indexes. The engine
/// (`rmq.engine`) is that of the client's session. With `cuda` a query fails on a worker without a device.
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
    // `datafusion-distributed` 4.0 sends the whole names of options, and looks for them without their prefix.
    let engine = query.headers.iter().find(|(name, _)| {
        let option = name.as_str().strip_prefix(OPTION_PREFIX);
        option.is_some_and(|option| option.ends_with("rmq.engine"))
    });
    if let Some((_, engine)) = engine {
        let engine = engine.to_str();
        let engine = engine.map_err(|error| DataFusionError::External(error.into()))?;
        options.set("engine", engine)?;
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

/// Serves a worker until the future is dropped.
///
/// Anyone who can reach the address can run plans and read files as this process: listen on an address of a private
/// network only.
///
/// # Errors
/// An error of the connection.
pub async fn serve(worker: Worker, listener: TcpListener) -> Result<()> {
    let served = Server::builder()
        .add_service(worker.into_worker_server())
        .serve_with_incoming(TcpListenerStream::new(listener));
    served
        .await
        .map_err(|error| DataFusionError::External(error.into()))
}
