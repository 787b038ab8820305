//! A scheduler and executors on loopback.

use std::sync::Arc;

use ballista_core::serde::BallistaCodec;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_executor::new_standalone_executor_from_builder;
use ballista_scheduler::standalone::new_standalone_scheduler_with_builder;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_rmq::{JoinModeChoice, RmqOptions, SessionStateBuilderExt};
use datafusion_rmq_ballista::{client, codec, config, functions, scheduler_session};
use datafusion_rmq_proto::RmqCodec;

/// Starts a scheduler and this number of executors, and returns the scheduler's address.
pub async fn start(executors: usize) -> String {
    start_with(
        codec(&RmqCodec::default()),
        executors,
        &codec(&RmqCodec::default()),
    )
    .await
}

/// The same with these codecs.
pub async fn start_with(
    of_scheduler: BallistaCodec,
    executors: usize,
    of_executors: &BallistaCodec,
) -> String {
    let scheduler = new_standalone_scheduler_with_builder(
        Arc::new(|config| scheduler_session(config, &RmqCodec::default())),
        Arc::new(|| config(&RmqOptions::default())),
        of_scheduler,
    );
    let address = scheduler.await.expect("a scheduler");
    let address = format!("http://localhost:{}", address.port());
    for _ in 0..executors {
        let scheduler = SchedulerGrpcClient::connect(address.clone());
        let started = new_standalone_executor_from_builder(
            scheduler.await.expect("the scheduler"),
            1,
            Arc::new(|| config(&RmqOptions::default())),
            Arc::new(|_| Ok(Arc::new(RuntimeEnv::default()))),
            of_executors.clone(),
            functions(&RmqCodec::default()).expect("functions"),
        );
        started.await.expect("an executor");
    }
    address
}

fn session_config() -> SessionConfig {
    SessionConfig::new()
        .with_information_schema(true)
        .with_target_partitions(3)
}

/// A session whose queries run on the executors of a scheduler, with range joins in this mode.
pub fn on_executors(scheduler: &str, mode: JoinModeChoice) -> SessionContext {
    let mut options = RmqOptions::default();
    options.join_mode = mode;
    let builder = SessionStateBuilder::new_with_default_features()
        .with_config(session_config().with_option_extension(options));
    let builder = client(builder, scheduler, &RmqCodec::default());
    SessionContext::new_with_state(builder.build())
}

/// A session of one node.
pub fn local() -> SessionContext {
    let builder = SessionStateBuilder::new_with_default_features().with_config(session_config());
    SessionContext::new_with_state(builder.with_rmq().build())
}
