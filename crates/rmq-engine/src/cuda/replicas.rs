//! The same on several devices: made on each, asked on one.

use std::sync::Arc;

use super::gpu::Gpu;
use crate::EngineError;

/// What lies on one device.
pub trait Replica {
    fn gpu(&self) -> &Gpu;
}

/// Makes a replica on each device where that succeeds. `what` names it in the log.
///
/// # Errors
/// The first failure, where none succeeded.
pub fn on_each<R>(
    gpus: &[Arc<Gpu>],
    what: &str,
    mut make: impl FnMut(&Arc<Gpu>) -> Result<R, EngineError>,
) -> Result<Vec<R>, EngineError> {
    let mut replicas = Vec::new();
    let mut failure = None;
    for gpu in gpus {
        match make(gpu) {
            Ok(replica) => replicas.push(replica),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    match failure {
        Some(error) if replicas.is_empty() => return Err(error),
        Some(error) => log::warn!("{what} is not on all devices: {error}"),
        None => {}
    }
    Ok(replicas)
}

/// Asks the device that has least to do, or another one where that fails.
///
/// # Errors
/// The last failure, where all failed.
pub fn on_one<R: Replica>(
    replicas: &[R],
    what: &str,
    mut ask: impl FnMut(&R) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let mut failure = EngineError::NoDevice {
        why: format!("all CUDA devices that held {what} have failed"),
    };
    let mut left_out = vec![false; replicas.len()];
    let least_busy = |left_out: &[bool]| {
        let replicas = replicas.iter().enumerate();
        replicas
            .filter(|(i, replica)| !left_out[*i] && replica.gpu().device.failed().is_none())
            .min_by_key(|(_, replica)| replica.gpu().busy())
    };
    while let Some((i, replica)) = least_busy(&left_out) {
        match ask(replica) {
            Ok(()) => return Ok(()),
            Err(error) => failure = error,
        }
        left_out[i] = true;
    }
    Err(failure)
}
