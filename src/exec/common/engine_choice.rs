//! Which engine answers the calls of a query, and what EXPLAIN says of it.

use std::fmt;
use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, plan_datafusion_err};

use crate::common::options::{EngineChoice, RmqOptions};
use crate::index::catalog::IndexCatalog;
use crate::index::devices::{DeviceEngine, Target};
use rmq_engine::cost_model::{self, Choice, Work};
use rmq_engine::{BuildOptions, ColumnSize, EngineError};

/// The engine that is to answer, and why.
#[derive(Debug, Clone)]
pub(crate) struct Decision {
    pub(crate) target: Target,
    /// Whether the option names this engine, so that none may stand in for it.
    pub(crate) demanded: bool,
    why: String,
}

impl Decision {
    /// The CPU engine, for a reason in a few words.
    pub(crate) fn cpu(why: impl Into<String>) -> Self {
        Self {
            target: Target::Cpu,
            demanded: false,
            why: why.into(),
        }
    }

    fn demanded(target: Target) -> Self {
        Self {
            target,
            demanded: true,
            why: String::new(),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.target.label())?;
        if self.why.is_empty() {
            return Ok(());
        }
        write!(f, " ({})", self.why)
    }
}

/// What is known of the work for one index.
pub(crate) struct Case<'a> {
    /// Values in the column; unknown of some before they are read.
    pub(crate) rows: Option<usize>,
    /// Bytes of a key.
    pub(crate) key_bytes: usize,
    /// Bytes of the keys that ranges are of, where their positions must be found first; else 0.
    pub(crate) search_key_bytes: usize,
    /// About how many ranges are asked, where that is known.
    pub(crate) ranges: Option<usize>,
    /// Whether an expression asks, a batch at a time on the threads that poll.
    pub(crate) in_expression: bool,
    /// How many partitions ask at a time.
    pub(crate) partitions: usize,
    /// Whether the session holds the index there.
    pub(crate) is_held: &'a (dyn Fn(&Target) -> bool + Sync),
}

/// The engine for one index; none yet where that hangs on how many rows the column has, and they are not known.
///
/// # Errors
/// A planning error where the option demands an engine that can't be had.
pub(crate) async fn decide(
    catalog: &Arc<IndexCatalog>,
    options: &RmqOptions,
    case: &Case<'_>,
) -> Result<Option<Decision>> {
    match options.engine {
        EngineChoice::Cpu => return Ok(Some(Decision::demanded(Target::Cpu))),
        EngineChoice::Cuda => {
            let engine = open(catalog, options).await.map_err(|error| {
                plan_datafusion_err!(
                    "rmq.engine = 'cuda', but no CUDA device can be used: {error}; with SET rmq.engine = 'auto' the CPU answers"
                )
            })?;
            return Ok(Some(Decision::demanded(Target::Devices(engine))));
        }
        EngineChoice::Auto => {}
    }
    if case.in_expression {
        return Ok(Some(Decision::cpu("asked by a join's condition")));
    }
    let Some(rows) = case.rows else {
        return Ok(None);
    };
    let ranges = match case.ranges {
        Some(ranges) => format!("~{} ranges", count(ranges)),
        None => "any number of ranges".to_string(),
    };
    let why = format!("{} rows, {ranges}", count(rows));
    let known = catalog
        .devices()
        .known(&options.cuda())
        .and_then(Result::ok);
    let on_cuda = known.clone().map(Target::Devices);
    let work = Work {
        rows,
        key_bytes: case.key_bytes,
        search_key_bytes: case.search_key_bytes,
        ranges: case.ranges,
        cores: case.partitions,
        ready_on_cpu: (case.is_held)(&Target::Cpu),
        ready_on_cuda: on_cuda.is_some_and(|target| (case.is_held)(&target)),
        open: known.is_some(),
    };
    let costs = catalog.devices().source().costs();
    if cost_model::choose(&work, &costs) == Choice::Cpu {
        return Ok(Some(Decision::cpu(why)));
    }
    let Ok(engine) = open(catalog, options).await else {
        // Which of the reasons there are, rmq_devices() says.
        let why = match catalog.devices().in_use() {
            None => "no CUDA device",
            Some(_) => "the CUDA devices failed",
        };
        return Ok(Some(Decision::cpu(why)));
    };
    let size = ColumnSize {
        rows,
        key_bytes: case.key_bytes,
        nulls: false,
    };
    let needed = engine.device_bytes(size, &BuildOptions::default());
    let devices = engine.devices();
    let room = devices.iter().map(|device| device.limit).max();
    let limit = options
        .device_memory_limit
        .map_or(usize::MAX, |limit| limit.0);
    if needed > room.unwrap_or(0).min(limit) {
        let why = format!("{why}; too large for a CUDA device");
        return Ok(Some(Decision::cpu(why)));
    }
    Ok(Some(Decision {
        target: Target::Devices(engine),
        demanded: false,
        why,
    }))
}

/// Opens the session's devices off the threads that poll.
async fn open(
    catalog: &Arc<IndexCatalog>,
    options: &RmqOptions,
) -> Result<Arc<dyn DeviceEngine>, EngineError> {
    if let Some(Ok(engine)) = catalog.devices().known(&options.cuda()) {
        return Ok(engine);
    }
    if tokio::runtime::Handle::try_current().is_err() {
        return catalog.open_devices(options);
    }
    let (catalog, options) = (Arc::clone(catalog), options.clone());
    let opening = SpawnedTask::spawn_blocking(move || catalog.open_devices(&options));
    opening.join_unwind().await.unwrap_or_else(|gone| {
        Err(EngineError::NoDevice {
            why: gone.to_string(),
        })
    })
}

/// Each of the labels once.
pub(crate) fn engines(labels: impl Iterator<Item = String>) -> String {
    let mut each: Vec<String> = vec![];
    for label in labels {
        if !each.contains(&label) {
            each.push(label);
        }
    }
    each.join("; ")
}

/// A number as people read it: `1000`, `2^28`, `1.3e8`.
fn count(n: usize) -> String {
    if n >= 1 << 10 && n.is_power_of_two() {
        format!("2^{}", n.ilog2())
    } else if n < 100_000 {
        n.to_string()
    } else {
        #[allow(clippy::cast_precision_loss, reason = "two digits are shown")]
        let n = n as f64;
        format!("{n:.1e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_short() {
        for (n, text) in [
            (0, "0"),
            (512, "512"),
            (1024, "2^10"),
            (99_999, "99999"),
            (130_000_000, "1.3e8"),
            (1 << 33, "2^33"),
        ] {
            assert_eq!(count(n), text);
        }
    }
}
