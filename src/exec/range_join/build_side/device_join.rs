//! A join with rows that devices have sorted (`device_side`). A batch of probe rows goes up as group ids and bounds,
//! and the aggregates come down: ranges of rows never leave the device.
//!
//! A join with an aggregate that devices lack runs on the CPU as a whole (`device_aggregates`).

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use arrow::array::ArrayRef;
use arrow::buffer::BooleanBuffer;
use datafusion::common::{DataFusionError, Result, SharedResult, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::common::blocking::Waiting;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::collect_or_spill::CollectedRows;
use crate::exec::range_join::build_side::device_columns::{AggregateResult, DeviceColumn, answer};
use crate::exec::range_join::build_side::device_side::{DeviceBuilder, DeviceSide, chunks_of_keys};
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::build_side::sort_and_index::sort_and_index_blocking;
use crate::exec::range_join::devices::JoinDevices;
use crate::exec::range_join::metrics::BuildMetrics;
use rmq_arrow::common::errors::engine_error;
use rmq_arrow::index::decoder::buffer;
use rmq_arrow::sorted::order_keys::OrderKeys;
use rmq_engine::{EngineError, ProbeBound, RangeJoinAnswer, RangeJoinProbe};

/// A build side on devices, and what a join needs of it.
#[derive(Debug)]
pub(crate) struct DeviceJoin {
    devices: JoinDevices,
    side: Arc<DeviceSide>,
    /// What devices answer: one per aggregate, then whether a row is matched.
    answers: Vec<RangeJoinAnswer>,
    /// What makes arrays of the answers, one per aggregate.
    results: Vec<AggregateResult>,
    fallback: CpuFallbackSide,
}

/// The same build side on the CPU, made when the devices first fail.
#[derive(Debug)]
struct CpuFallbackSide {
    columns: BuildColumns,
    /// The value columns of the join, as indexes among those of the rows.
    values: Vec<usize>,
    metrics: BuildMetrics,
    threads: usize,
    /// Registers a copy of the rows.
    memory: MemoryReservation,
    side: OnceLock<SharedResult<Arc<BuildSide>>>,
}

/// Probe rows of several batches.
#[derive(Debug)]
pub(crate) struct DeviceProbe {
    rows: usize,
    groups: Vec<Vec<u32>>,
    /// What bounds are made of.
    columns: Vec<OrderKeys>,
}

/// The aggregates of probe rows, one array per aggregate.
pub(crate) struct DeviceAnswers {
    pub(crate) matched: BooleanBuffer,
    pub(crate) aggregates: Vec<ArrayRef>,
}

impl DeviceJoin {
    /// A join, whose values are those with the indexes `values` of the side.
    ///
    /// # Errors
    /// An internal error if devices lack what an aggregate needs.
    pub(crate) fn try_new(
        builder: DeviceBuilder,
        (side, values): (Arc<DeviceSide>, Vec<usize>),
        memory: MemoryReservation,
    ) -> Result<Self> {
        let DeviceBuilder {
            columns,
            metrics,
            threads,
            devices,
        } = builder;
        let known: Vec<&DeviceColumn> = values.iter().map(|i| &side.values[*i].column).collect();
        let (mut answers, mut results) = (vec![], vec![]);
        for aggregate in &columns.aggregates {
            let (answer, result) = answer(aggregate, &known)?;
            answers.push(answer);
            results.push(result);
        }
        answers.push(RangeJoinAnswer::Matched);
        metrics.record_device_bytes(side.device_bytes());
        Ok(Self {
            devices,
            side,
            answers,
            results,
            fallback: CpuFallbackSide {
                columns,
                values,
                metrics,
                threads,
                memory,
                side: OnceLock::new(),
            },
        })
    }

    /// Number of build rows that can match.
    pub(crate) fn rows(&self) -> usize {
        self.side.index.rows()
    }

    /// Begins a batch of probe rows, whose bounds are made of this many columns.
    ///
    /// # Errors
    /// An execution error for a range key without an order.
    pub(crate) fn probe(&self, columns: usize) -> Result<DeviceProbe> {
        let columns = (0..columns).map(|_| OrderKeys::try_new(&self.side.keys.key_type));
        Ok(DeviceProbe {
            rows: 0,
            groups: vec![],
            columns: columns.collect::<Result<_>>()?,
        })
    }

    /// The group of each of `rows` probe rows with these equality keys.
    ///
    /// # Errors
    /// An execution error for keys of other types than those of the build side.
    pub(crate) fn groups(&self, rows: usize, equality_keys: &[ArrayRef]) -> Result<Vec<u32>> {
        match &self.side.keys.groups {
            Some(groups) => groups.find(equality_keys, rows),
            None => Ok(vec![0; rows]),
        }
    }

    /// Answers probe rows with these bounds; `None` if a bound is beyond its type, or if devices fail and the CPU may
    /// take over.
    ///
    /// # Errors
    /// A failure of forced devices, or Arrow's errors.
    pub(crate) fn answer(
        &self,
        probe: DeviceProbe,
        bounds: &[ProbeBound],
        record_fallback: impl FnOnce(),
    ) -> Result<Option<DeviceAnswers>> {
        let columns = probe.columns.into_iter().map(chunks_of_keys);
        let groups = probe.groups.iter().map(Vec::as_slice);
        let request = RangeJoinProbe {
            rows: probe.rows,
            groups: self.side.keys.has_ids.then(|| groups.collect()),
            columns: columns.collect::<Result<_>>()?,
            bounds: bounds.to_vec(),
            prevailing: self.fallback.columns.prevailing,
        };
        let mut outputs = match self.side.index.answer(&request, &self.answers) {
            Ok(outputs) => outputs,
            Err(EngineError::Overflow) => return Ok(None),
            Err(failure) => {
                self.side.has_failed.store(true, Ordering::Relaxed);
                self.devices.why_cpu(engine_error(failure))?;
                record_fallback();
                return Ok(None);
            }
        };
        let Some(matched) = outputs.pop().and_then(|matched| matched.valid) else {
            return internal_err!("a device did not tell which rows are matched");
        };
        let matched = BooleanBuffer::new(buffer(matched), 0, probe.rows);
        let aggregates = self.results.iter().zip(outputs);
        let aggregates = aggregates.map(|(result, output)| result.array(output, probe.rows));
        Ok(Some(DeviceAnswers {
            matched,
            aggregates: aggregates.collect::<Result<_>>()?,
        }))
    }

    /// The build side on the CPU, which the first call builds. Blocks the thread.
    ///
    /// # Errors
    /// Those of building it; the same at each further call.
    pub(crate) fn on_cpu(&self) -> Result<Arc<BuildSide>> {
        let CpuFallbackSide {
            columns,
            values,
            metrics,
            threads,
            memory,
            side,
        } = &self.fallback;
        let side_on_devices = &self.side;
        let build = || {
            let (schema, batches) = side_on_devices.collected(values)?;
            // The copy is registered by itself, as sorting frees what it has read.
            let memory = memory.new_empty();
            memory.try_grow(side_on_devices.rows_bytes())?;
            let rows = CollectedRows {
                schema,
                batches,
                memory,
            };
            let metrics = metrics.for_rebuild();
            let waiting = Waiting::forever();
            let side = sort_and_index_blocking(columns.clone(), rows, metrics, *threads, waiting)?;
            Ok(Arc::new(side))
        };
        let side = side.get_or_init(|| build().map_err(Arc::new));
        side.clone().map_err(DataFusionError::Shared)
    }
}

impl DeviceProbe {
    /// Adds a batch: the group of each row, and the columns that bounds are made of.
    ///
    /// # Errors
    /// An execution error for columns of another type than the range key.
    pub(crate) fn add(&mut self, groups: Vec<u32>, columns: &[ArrayRef]) -> Result<()> {
        self.rows += groups.len();
        self.groups.push(groups);
        for (keys, column) in self.columns.iter_mut().zip(columns) {
            keys.append(column)?;
        }
        Ok(())
    }
}
