//! What a scheduler and an executor run.

use std::net::SocketAddr;
use std::sync::Arc;

use ballista_core::error::Result;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::{create_scheduler, start_grpc_service_with_listener};
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use datafusion_rmq::RmqOptions;
use datafusion_rmq_ballista::{
    executor_config, functions, physical_codec, scheduler_config, scheduler_session,
};
use datafusion_rmq_proto::RmqCodec;
use tokio::net::TcpListener;

/// Serves a scheduler until the process is ended.
pub async fn scheduler(listener: TcpListener) -> Result<()> {
    let codec = RmqCodec::default();
    let address = listener.local_addr()?;
    let config = SchedulerConfig {
        // Executors report tasks there.
        external_host: address.ip().to_string(),
        bind_port: address.port(),
        override_physical_codec: Some(physical_codec(&codec)),
        override_config_producer: Some(Arc::new(scheduler_config)),
        override_session_builder: Some(Arc::new(move |config| scheduler_session(config, &codec))),
        ..SchedulerConfig::default()
    };
    let cluster = BallistaCluster::new_from_config(&config).await?;
    let config = Arc::new(config);
    let scheduler = create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(cluster, config).await?;
    start_grpc_service_with_listener(listener, scheduler).await
}

/// Runs an executor that has this number of cores until the process is ended.
pub async fn executor(scheduler: SocketAddr, cores: usize) -> Result<()> {
    let (codec, options) = (RmqCodec::default(), RmqOptions::default());
    let config = ExecutorProcessConfig {
        override_physical_codec: Some(physical_codec(&codec)),
        override_function_registry: Some(Arc::new(functions(&codec)?)),
        override_config_producer: Some(Arc::new(move || executor_config(&options))),
        scheduler_host: scheduler.ip().to_string(),
        scheduler_port: scheduler.port(),
        port: free_port()?,
        grpc_port: free_port()?,
        vcores: cores,
        ..ExecutorProcessConfig::default()
    };
    start_executor_process(Arc::new(config)).await
}

/// A port of loopback. Ballista does not tell which one it has been given.
fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}
