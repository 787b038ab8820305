//! Range joins and range lookups of [datafusion-rmq](https://docs.rs/datafusion-rmq) on Apache Ballista 55.
//!
//! Ballista's own client sends logical plans, and its scheduler plans them with rules of its own. [`client`] plans
//! queries where they are asked, and sends physical plans, which the scheduler divides at their exchanges as they are.
//! Schedulers and executors need [`physical_codec`], and executors the [`functions`] that plans name:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use ballista_core::error::Result;
//! use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
//! use ballista_scheduler::cluster::BallistaCluster;
//! use ballista_scheduler::config::SchedulerConfig;
//! use ballista_scheduler::scheduler_process::start_server;
//! use datafusion::execution::SessionStateBuilder;
//! use datafusion::prelude::SessionContext;
//! use datafusion_rmq::RmqOptions;
//! use datafusion_rmq_ballista::{
//!     client, executor_config, functions, physical_codec, scheduler_config, scheduler_session,
//! };
//! use datafusion_rmq_proto::RmqCodec;
//!
//! async fn scheduler() -> Result<()> {
//!     let codec = RmqCodec::default();
//!     let config = SchedulerConfig {
//!         // Executors report tasks there.
//!         external_host: "10.0.0.7".to_string(),
//!         bind_port: 50050,
//!         override_physical_codec: Some(physical_codec(&codec)),
//!         override_config_producer: Some(Arc::new(scheduler_config)),
//!         override_session_builder: Some(Arc::new(move |config| scheduler_session(config, &codec))),
//!         ..SchedulerConfig::default()
//!     };
//!     let cluster = BallistaCluster::new_from_config(&config).await?;
//!     start_server(cluster, ([10, 0, 0, 7], 50050).into(), Arc::new(config)).await
//! }
//!
//! async fn executor() -> Result<()> {
//!     let (codec, options) = (RmqCodec::default(), RmqOptions::default());
//!     let config = ExecutorProcessConfig {
//!         override_physical_codec: Some(physical_codec(&codec)),
//!         override_function_registry: Some(Arc::new(functions(&codec)?)),
//!         override_config_producer: Some(Arc::new(move || executor_config(&options))),
//!         scheduler_host: "10.0.0.7".to_string(),
//!         ..ExecutorProcessConfig::default()
//!     };
//!     start_executor_process(Arc::new(config)).await
//! }
//!
//! fn session() -> SessionContext {
//!     let builder = SessionStateBuilder::new_with_default_features();
//!     let builder = client(builder, "http://10.0.0.7:50050", &RmqCodec::default());
//!     SessionContext::new_with_state(builder.build())
//! }
//! ```

#![warn(clippy::pedantic)]

mod client;
mod job;
mod options;
mod sent;
mod slices;

use std::sync::Arc;

use ballista_core::registry::BallistaFunctionRegistry;
use ballista_core::serde::{
    BallistaCodec, BallistaLogicalExtensionCodec, BallistaPhysicalExtensionCodec,
};
use ballista_core::utils::{default_config_producer, default_session_builder};
use datafusion::common::Result;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::prelude::SessionConfig;
use datafusion_proto::physical_plan::PhysicalExtensionCodec;
use datafusion_rmq::{RmqOptions, SessionRole, SessionStateBuilderExt};
use datafusion_rmq_proto::RmqCodec;

use options::SentOptions;

pub use client::client;
pub use sent::{SentExec, sent_config};

/// The codec of plans with Ballista's operators and those of datafusion-rmq.
#[must_use]
pub fn physical_codec(codec: &RmqCodec) -> Arc<dyn PhysicalExtensionCodec> {
    let others = Arc::new(BallistaPhysicalExtensionCodec::default());
    Arc::new(codec.clone().with_others(others))
}

/// The codec that schedulers and executors are started with.
#[must_use]
pub fn codec(codec: &RmqCodec) -> BallistaCodec {
    // Logical plans, of other clients, are read as Ballista does.
    let logical = Arc::new(BallistaLogicalExtensionCodec::default());
    BallistaCodec::new(logical, physical_codec(codec))
}

/// The functions that executors know by name: Ballista's and those of datafusion-rmq.
///
/// # Errors
/// Ballista's, for a session that it can't make.
pub fn functions(codec: &RmqCodec) -> Result<BallistaFunctionRegistry> {
    let session = scheduler_session(scheduler_config(), codec)?;
    Ok((&session).into())
}

/// The configuration that executors begin tasks with. `options` are those of their machine: its devices, its threads,
/// and the memory for indexes. The engine (`rmq.engine`) and `rmq.pruning` are those of the client's session. With
/// `cuda` a query fails on an executor without a device.
#[must_use]
pub fn executor_config(options: &RmqOptions) -> SessionConfig {
    let mut options = options.clone();
    // The scheduler gives a task the files and exchanges of its partitions, and the executor executes all of them.
    options.role = SessionRole::RunsTasks;
    default_config_producer().with_option_extension(options)
}

/// The configuration that a scheduler begins sessions with. Of `rmq.*` it takes `engine` and `pruning` from clients to
/// executors.
#[must_use]
pub fn scheduler_config() -> SessionConfig {
    default_config_producer().with_option_extension(SentOptions::default())
}

/// The session in which a scheduler reads plans. `config` is [`scheduler_config`] with the options of a client.
///
/// # Errors
/// Ballista's, for a session that it can't make.
pub fn scheduler_session(config: SessionConfig, codec: &RmqCodec) -> Result<SessionState> {
    let sent = config.options().extensions.get::<SentOptions>().cloned();
    let state = default_session_builder(config)?;
    let builder = SessionStateBuilder::new_from_existing(state);
    let mut builder = builder.with_rmq_sharing(codec.indexes());
    // In the place of all options, which `with_rmq_sharing` has set.
    let config = builder.config().get_or_insert_default();
    let extensions = &mut config.options_mut().extensions;
    extensions.insert(sent.unwrap_or_default());
    Ok(builder.build())
}
