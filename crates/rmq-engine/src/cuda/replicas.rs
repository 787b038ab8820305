//! Replication over several devices: data is built on each device, and a batch is answered by one of them.

use super::gpu::Gpu;
use crate::EngineError;

/// Data on one device.
pub trait Replica {
    /// The device.
    fn gpu(&self) -> &Gpu;
}

/// Builds a replica on each device, or on that of each replica of other data. A device on which that fails is left out
/// with a warning, in which `what` names the data.
///
/// # Errors
/// The first failure, if no device succeeds.
pub fn build_on_each<T, R>(
    devices: &[T],
    what: &str,
    mut build: impl FnMut(&T) -> Result<R, EngineError>,
) -> Result<Vec<R>, EngineError> {
    let mut replicas = Vec::new();
    let mut failure = None;
    for device in devices {
        match build(device) {
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

/// Runs `work` on the device with the fewest batches in flight, and on another one if that fails.
///
/// # Errors
/// The last failure, if all devices fail.
pub fn run_on_one<R: Replica>(
    replicas: &[R],
    what: &str,
    mut work: impl FnMut(&R) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let mut failure = EngineError::NoDevice {
        why: format!("all CUDA devices that held {what} have failed"),
    };
    let mut tried = vec![false; replicas.len()];
    let least_busy = |tried: &[bool]| {
        let replicas = replicas.iter().enumerate();
        replicas
            .filter(|(i, replica)| !tried[*i] && replica.gpu().device.failed().is_none())
            .min_by_key(|(_, replica)| replica.gpu().in_flight())
    };
    while let Some((i, replica)) = least_busy(&tried) {
        match work(replica) {
            Ok(()) => return Ok(()),
            Err(error) => failure = error,
        }
        tried[i] = true;
    }
    Err(failure)
}
