//! Range joins and range lookups of [datafusion-rmq](https://docs.rs/datafusion-rmq) on Apache Ballista 55.
//!
//! Ballista's own client sends logical plans, and its scheduler plans them with rules of its own. [`client`] plans
//! queries where they are asked, and sends physical plans, which the scheduler divides at their exchanges as they are.
//! Schedulers and executors need [`codec`], and executors the [`functions`] that plans name.

#![warn(clippy::pedantic)]

mod client;
mod sent;

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
use datafusion_rmq::{RmqOptions, SessionStateBuilderExt};
use datafusion_rmq_proto::RmqCodec;

pub use client::client;
pub use sent::SentExec;

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
    let session = scheduler_session(default_config_producer(), codec)?;
    Ok((&session).into())
}

/// The configuration that executors begin tasks with, with the options of their machine.
#[must_use]
pub fn config(options: &RmqOptions) -> SessionConfig {
    default_config_producer().with_option_extension(options.clone())
}

/// The session in which a scheduler reads plans.
///
/// # Errors
/// Ballista's, for a session that it can't make.
pub fn scheduler_session(config: SessionConfig, codec: &RmqCodec) -> Result<SessionState> {
    let state = default_session_builder(config)?;
    let builder = SessionStateBuilder::new_from_existing(state);
    Ok(builder.with_rmq_sharing(codec.indexes()).build())
}
