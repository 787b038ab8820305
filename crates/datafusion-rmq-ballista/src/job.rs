//! A job of a scheduler: a plan that executors execute.

use std::time::Duration;

use ballista_core::client::BallistaClient;
use ballista_core::config::BALLISTA_CLIENT_GRPC_MAX_MESSAGE_SIZE;
use ballista_core::extension::{BallistaGrpcMetadataInterceptor, SessionConfigExt};
use ballista_core::serde::protobuf::execute_query_params::Query;
use ballista_core::serde::protobuf::get_job_status_result::FlightProxy;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::protobuf::{
    CancelJobParams, ExecuteQueryParams, GetJobStatusParams, KeyValuePair, PartitionLocation,
    execute_query_result, job_status,
};
use ballista_core::utils::{GrpcClientConfig, create_grpc_client_endpoint};
use ballista_core::{BALLISTA_VERSION, version};
use datafusion::arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err, plan_err};
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::prelude::SessionConfig;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use tokio::sync::oneshot;
use tonic::codegen::InterceptedService;
use tonic::transport::{Channel, Uri};

/// How long the client waits before it asks again whether a job is done.
const POLLS: [Duration; 2] = [Duration::from_millis(4), Duration::from_millis(64)];

type Scheduler = SchedulerGrpcClient<InterceptedService<Channel, BallistaGrpcMetadataInterceptor>>;

/// A plan for a scheduler at an address.
pub struct Job {
    pub scheduler: String,
    /// The plan, as the scheduler's codec reads it.
    pub plan: Vec<u8>,
    pub session: String,
    /// What executors begin its tasks with.
    pub config: SessionConfig,
}

/// Where the rows of a job are.
struct Done {
    parts: Vec<PartitionLocation>,
    proxy: Option<FlightProxy>,
}

fn external(error: impl std::error::Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

impl Job {
    /// Has executors execute the plan, and returns the streams of its rows, which are read one after the other.
    ///
    /// Ballista's `execute_physical_plan` does so, too, but leaves a job running whose rows nobody waits for: here it
    /// is cancelled if the future is dropped.
    pub async fn execute(self) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let grpc = GrpcClientConfig::from(&self.config.ballista_config());
        if self.plan.len() > grpc.max_message_size {
            return plan_err!(
                "the plan takes {} bytes, and {BALLISTA_CLIENT_GRPC_MAX_MESSAGE_SIZE} is {}: tables in memory are part of \
                 it, so write them to files",
                self.plan.len(),
                grpc.max_message_size
            );
        }
        let scheduler = self.connect(&grpc).await.map_err(|error| {
            error.context(format!("the Ballista scheduler at {}", self.scheduler))
        })?;
        let (config, address) = (self.config.clone(), self.scheduler.clone());
        let (sender, receiver) = oneshot::channel();
        // A task of its own, so that a job is cancelled also if this future is dropped while it is submitted.
        tokio::spawn(self.run(scheduler, sender));
        let done = receiver
            .await
            .map_err(|_| exec_datafusion_err!("the task that waits for the job has ended"))??;
        let Done { parts, proxy } = done;
        let streams = parts.into_iter().map(move |part| {
            let (config, address) = (config.clone(), address.clone());
            let (grpc, proxy) = (grpc.clone(), proxy.clone());
            let rows = async move { fetch(part, &config, &grpc, proxy, &address).await };
            futures::stream::once(rows).try_flatten()
        });
        Ok(Box::pin(futures::stream::iter(streams).flatten()))
    }

    async fn connect(&self, grpc: &GrpcClientConfig) -> Result<Scheduler> {
        let endpoint = create_grpc_client_endpoint(self.scheduler.clone(), Some(grpc));
        let mut endpoint = endpoint.map_err(external)?;
        if let Some(change) = self.config.ballista_override_create_grpc_client_endpoint() {
            endpoint = change
                .configure_endpoint(endpoint)
                .map_err(DataFusionError::External)?;
        }
        let channel = endpoint.connect().await.map_err(external)?;
        let interceptor = self.config.ballista_grpc_interceptor().as_ref().clone();
        Ok(SchedulerGrpcClient::with_interceptor(channel, interceptor)
            .max_encoding_message_size(grpc.max_message_size)
            .max_decoding_message_size(grpc.max_message_size))
    }

    /// Submits the job, and waits until it is done or not wanted any more.
    async fn run(self, mut scheduler: Scheduler, mut sender: oneshot::Sender<Result<Done>>) {
        let id = match self.submit(&mut scheduler).await {
            Ok(id) => id,
            Err(error) => {
                // Else nobody waits for it.
                let _ = sender.send(Err(error));
                return;
            }
        };
        let mut other = scheduler.clone();
        tokio::select! {
            done = wait(&mut other, &id) => {
                let _ = sender.send(done);
            }
            () = sender.closed() => {
                let cancelled = scheduler.cancel_job(CancelJobParams { job_id: id.clone() }).await;
                if let Err(error) = cancelled {
                    log::warn!("job {id} can't be cancelled: {error}");
                }
            }
        }
    }

    /// Returns the job's id.
    async fn submit(self, scheduler: &mut Scheduler) -> Result<String> {
        let entries = self.config.options().entries().into_iter();
        let settings = entries.map(|entry| KeyValuePair {
            key: entry.key,
            value: entry.value,
        });
        let mut request = tonic::Request::new(ExecuteQueryParams {
            settings: settings.collect(),
            session_id: self.session,
            operation_id: String::new(),
            query: Some(Query::PhysicalPlan(self.plan)),
        });
        version::insert_version_header(request.metadata_mut());
        let response = scheduler.execute_query(request).await.map_err(external)?;
        let version = version::version_from_metadata(response.metadata());
        let checked = version::check_compatibility(Some(BALLISTA_VERSION), version);
        let result = response.into_inner().result;
        if let Err(error) = checked {
            if let Some(execute_query_result::Result::Success(job)) = result {
                let cancelled = scheduler.cancel_job(CancelJobParams { job_id: job.job_id });
                cancelled.await.map_err(external)?;
            }
            return exec_err!("{error}");
        }
        match result {
            Some(execute_query_result::Result::Success(job)) => Ok(job.job_id),
            Some(execute_query_result::Result::Failure(failure)) => {
                exec_err!("the Ballista scheduler refuses the plan: {failure:?}")
            }
            None => exec_err!("the Ballista scheduler answers without a job"),
        }
    }
}

/// Waits until a job has succeeded or failed.
async fn wait(scheduler: &mut Scheduler, id: &str) -> Result<Done> {
    let [mut pause, longest] = POLLS;
    loop {
        let job_id = id.to_string();
        let status = scheduler.get_job_status(GetJobStatusParams { job_id });
        let status = status.await.map_err(external)?.into_inner();
        match status.status.and_then(|status| status.status) {
            Some(job_status::Status::Failed(failed)) => {
                return exec_err!("Ballista job {id} failed: {}", failed.error);
            }
            Some(job_status::Status::Successful(done)) => {
                return Ok(Done {
                    parts: done.partition_location,
                    proxy: status.flight_proxy,
                });
            }
            None | Some(job_status::Status::Queued(_) | job_status::Status::Running(_)) => {}
        }
        tokio::time::sleep(pause).await;
        pause = longest.min(pause * 2);
    }
}

/// Reads rows of a job from the executor that has them, or from the proxy that the scheduler names.
async fn fetch(
    part: PartitionLocation,
    config: &SessionConfig,
    grpc: &GrpcClientConfig,
    proxy: Option<FlightProxy>,
    scheduler: &str,
) -> Result<SendableRecordBatchStream> {
    let layout = part.layout();
    let (Some(executor), Some(partition)) = (part.executor_meta, part.partition_id) else {
        return exec_err!("the Ballista scheduler does not say where the rows are");
    };
    // Ports of protocol buffers are numbers of 32 bits.
    let executor_port = u16::try_from(executor.port).map_err(external)?;
    let address = match proxy {
        Some(FlightProxy::External(address)) => format!("http://{address}"),
        Some(FlightProxy::Local(true)) => scheduler.to_string(),
        Some(FlightProxy::Local(false)) | None => {
            format!("http://{}:{executor_port}", executor.host)
        }
    };
    let uri: Uri = address.parse().map_err(external)?;
    let (Some(host), Some(uri_port)) = (uri.host(), uri.port_u16()) else {
        return exec_err!("the address {address} of rows has no host and port");
    };
    let client = BallistaClient::try_new(
        host,
        uri_port,
        grpc.max_message_size,
        config.ballista_use_tls(),
        config.ballista_override_create_grpc_client_endpoint(),
        grpc.io_retries_times,
        grpc.io_retry_wait_time_ms,
        // Those of tonic.
        0,
        0,
    );
    let rows = client
        .await
        .map_err(external)?
        .fetch_partition_proxied(
            &executor.id,
            &partition.into(),
            part.file_id,
            layout,
            &executor.host,
            executor_port,
            true,
        )
        .await;
    rows.map_err(external)
}
