//! The choice of the engine for an index of a query, and its text in EXPLAIN.

use std::fmt;
use std::sync::Arc;
use std::thread::available_parallelism;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, plan_datafusion_err};

use crate::kept::catalog::IndexCatalog;
use datafusion_rmq_logical::common::options::{EngineChoice, RmqOptions};
use rmq_arrow::index::devices::{DeviceEngine, Target};
use rmq_engine::cost_model::{self, Choice, Workload};
use rmq_engine::{BuildOptions, ColumnSize, EngineError};

/// The chosen engine, and the reason.
#[derive(Debug, Clone)]
pub(crate) struct Decision {
    pub(crate) target: Target,
    /// Whether the option `rmq.engine` forces this engine, so that there is no fallback.
    pub(crate) forced: bool,
    why: String,
}

impl Decision {
    /// The CPU engine, for a reason of a few words.
    pub(crate) fn cpu(why: impl Into<String>) -> Self {
        Self {
            target: Target::Cpu,
            forced: false,
            why: why.into(),
        }
    }

    /// The CPU engine, for a column that has the extremes of its chunks in memory, and not its rows.
    pub(crate) fn of_chunks(rows: usize) -> Self {
        Self::cpu(format!(
            "{} rows stay in files, extremes of chunks in memory",
            count(rows)
        ))
    }

    fn forced(target: Target) -> Self {
        Self {
            target,
            forced: true,
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

/// The expected work for one index.
pub(crate) struct Case<'a> {
    /// Values in the column, if known before they are read.
    pub(crate) rows: Option<usize>,
    /// Bytes of a key.
    pub(crate) key_bytes: usize,
    /// Of a range join: bytes of the range key.
    pub(crate) range_key_bytes: Option<usize>,
    /// Estimated number of ranges, if known.
    pub(crate) ranges: Option<usize>,
    /// Whether an expression queries the index: a batch at a time, on async worker threads.
    pub(crate) in_expression: bool,
    /// The number of partitions that query the index at the same time.
    pub(crate) partitions: usize,
    /// Whether the session caches the index on this engine.
    pub(crate) is_cached: &'a (dyn Fn(&Target) -> bool + Sync),
}

/// Chooses the engine for one index; `None` if the choice depends on the number of rows, which is not known yet.
///
/// # Errors
/// A planning error if the option forces an engine that is not available.
pub(crate) async fn decide(
    catalog: &Arc<IndexCatalog>,
    options: &RmqOptions,
    case: &Case<'_>,
) -> Result<Option<Decision>> {
    match options.engine {
        EngineChoice::Cpu => return Ok(Some(Decision::forced(Target::Cpu))),
        EngineChoice::Cuda => {
            let engine = open(catalog, options).await.map_err(|error| {
                plan_datafusion_err!(
                    "rmq.engine = 'cuda', but no CUDA device can be used: {error}; with SET rmq.engine = 'auto' the CPU answers"
                )
            })?;
            return Ok(Some(Decision::forced(Target::Devices(engine))));
        }
        EngineChoice::Auto => {}
    }
    if case.in_expression {
        return Ok(Some(Decision::cpu("called in a join's condition")));
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
    let work = Workload {
        rows,
        key_bytes: case.key_bytes,
        range_key_bytes: case.range_key_bytes,
        ranges: case.ranges,
        cores: available_parallelism()
            .map_or(case.partitions, |cores| cores.get().min(case.partitions)),
        ready_on_cpu: (case.is_cached)(&Target::Cpu),
        ready_on_cuda: on_cuda.is_some_and(|target| (case.is_cached)(&target)),
        open: known.is_some(),
    };
    let costs = catalog.devices().source().costs();
    let bus_byte = known.and_then(|engine| engine.bus_byte());
    let costs = bus_byte.map_or(costs, |bus_byte| costs.with_bus(bus_byte));
    if cost_model::choose(&work, &costs) == Choice::Cpu {
        return Ok(Some(Decision::cpu(why)));
    }
    let Ok(engine) = open(catalog, options).await else {
        // rmq_devices() shows the details.
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
        forced: false,
        why,
    }))
}

/// Opens the session's devices on a thread that may block.
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

/// Joins the distinct labels.
pub(crate) fn engines(labels: impl Iterator<Item = String>) -> String {
    let mut each: Vec<String> = vec![];
    for label in labels {
        if !each.contains(&label) {
            each.push(label);
        }
    }
    each.join("; ")
}

/// Formats a number for people: `1000`, `2^28`, `1.3e8`.
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
