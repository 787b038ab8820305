//! A range join by key on devices: its values and its keys are sent there, and rows of the probe side are gathered into batches
//! large enough for them.

use crate::common::errors::engine_error;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::physical_plan::metrics::BaselineMetrics;
use futures::StreamExt;

use crate::common::options::ByteSize;
use crate::common::ranges::Ranges;
use crate::exec::common::blocking::Waiting;
use crate::exec::common::device_batcher::{AnswerBatches, Gathering};
use crate::exec::range_join::build::side::BuildSide;
use crate::exec::range_join::metrics::DeviceMetrics;
use crate::exec::range_join::probe::side::Side;
use crate::exec::range_join::probe::stream::{Batches, Probing, evaluate_where_needed};
use crate::exec::range_lookup::relation::of_devices;
use crate::index::catalog::{DeviceBytes, IndexCatalog};
use crate::index::column_index::ColumnIndex;
use crate::index::devices::DeviceEngine;
use crate::index::sort_keys::Encoded;
use crate::logical_plan::range_join::Unmatched;
use crate::sorted::device_keys::{DeviceKeys, KeysAsked};
use crate::sorted::sorted_rows::SortedRows;
use rmq_engine::BuildOptions;
use rmq_engine::LastFound;

/// The devices that a build side is to lie on.
#[derive(Debug, Clone)]
pub(crate) struct Devices {
    pub(crate) engine: Arc<dyn DeviceEngine>,
    pub(crate) catalog: Arc<IndexCatalog>,
    pub(crate) limit: Option<ByteSize>,
    /// Whether the option names them, so that the CPU must not stand in.
    pub(crate) demanded: bool,
}

/// What of a build side lies on devices.
#[derive(Debug)]
pub(crate) struct OnDevices {
    keys: Option<DeviceKeys>,
    /// Bytes of each device.
    pub(crate) bytes: usize,
    /// Registers them.
    _held: Vec<DeviceBytes>,
}

impl Devices {
    /// The index of a column, and the memory of devices that it takes.
    ///
    /// # Errors
    /// What devices fail with.
    pub(crate) fn index(
        &self,
        encoded: Encoded,
        bytes: usize,
        options: &BuildOptions,
        waiting: &Waiting,
    ) -> Result<(ColumnIndex, DeviceBytes)> {
        let held = self
            .catalog
            .reserve_on_devices(&*self.engine, bytes, self.limit)
            .map_err(engine_error)?;
        let engine = self.engine.until(Arc::clone(waiting.stop()));
        let index = ColumnIndex::of_on_devices(&*engine, encoded, options)?;
        Ok((index, held))
    }

    /// The keys of sorted rows beside indexes that lie there already.
    ///
    /// # Errors
    /// What devices fail with, where they are demanded.
    pub(crate) fn with_keys(
        &self,
        rows: &SortedRows,
        mut held: Vec<DeviceBytes>,
        threads: usize,
        waiting: &Waiting,
    ) -> Result<OnDevices> {
        let keys = match self.keys(rows, threads, waiting) {
            Ok(Some((keys, bytes))) => {
                held.push(bytes);
                Some(keys)
            }
            Ok(None) => None,
            Err(error) => {
                self.cpu_instead(error)?;
                None
            }
        };
        Ok(OnDevices {
            keys,
            bytes: held.iter().map(DeviceBytes::bytes).sum(),
            _held: held,
        })
    }

    fn keys(
        &self,
        rows: &SortedRows,
        threads: usize,
        waiting: &Waiting,
    ) -> Result<Option<(DeviceKeys, DeviceBytes)>> {
        let bytes = rows.device_bytes();
        let held = self
            .catalog
            .reserve_on_devices(&*self.engine, bytes, self.limit)
            .map_err(engine_error)?;
        let engine = self.engine.until(Arc::clone(waiting.stop()));
        let keys = rows.on_devices(&*engine, threads).map_err(engine_error)?;
        Ok(keys.map(|keys| (keys, held)))
    }

    /// Says that the CPU does what devices could not.
    ///
    /// # Errors
    /// The error, where the CPU must not, or where it is none of devices.
    pub(crate) fn cpu_instead(&self, error: DataFusionError) -> Result<()> {
        if self.demanded {
            return Err(error.context("rmq.engine = 'cuda': a range join"));
        }
        let why = of_devices(&error).ok_or(error)?;
        log::warn!("the CPU answers a range join: {why}");
        Ok(())
    }
}

/// Answers the batches of one partition.
struct AnsweringOnDevices {
    probing: Arc<Probing>,
    /// [`Side::Whole`].
    side: Arc<Side>,
    pool: Arc<dyn MemoryPool>,
    metrics: DeviceMetrics,
}

/// The batches of a partition, answered on devices.
pub(crate) fn on_devices(probing: Arc<Probing>, side: Arc<Side>, probe: Batches) -> Batches {
    let answering = AnsweringOnDevices {
        pool: Arc::clone(&probing.pool),
        metrics: probing.metrics.on_devices(),
        probing,
        side,
    };
    Gathering::new(Arc::new(answering), probe).boxed()
}

impl AnsweringOnDevices {
    /// Where the rows of these batches match.
    fn ranges(&self, batches: &[RecordBatch], build: &BuildSide) -> Result<Ranges> {
        if let Some(keys) = build.on_devices().and_then(|on| on.keys.as_ref())
            // After an error some rows may not need what it was about.
            && let Ok(Some(asked)) = self.asked(batches, build)
        {
            let _timer = self.probing.metrics.search_time.timer();
            match keys.find(&asked) {
                Ok(ranges) => return Ok(ranges),
                Err(failure) => build.cpu_instead(engine_error(failure))?,
            }
            self.metrics.cuda_fallbacks.add(1);
        }
        let (mut left, mut right) = (vec![], vec![]);
        for batch in batches {
            let last_found = &mut LastFound::default();
            let ranges = self.probing.ranges(batch, build, last_found)?;
            left.extend_from_slice(ranges.left());
            right.extend_from_slice(ranges.right());
        }
        Ok(Ranges::new(left, right))
    }

    /// The ranges of keys that the rows ask for, if a device can find them.
    fn asked(&self, batches: &[RecordBatch], build: &BuildSide) -> Result<Option<KeysAsked>> {
        let probing = &self.probing;
        if probing.spec.prevailing {
            return Ok(None);
        }
        let comparisons = probing
            .spec
            .bounds
            .iter()
            .map(|(comparison, _)| *comparison);
        let Some(mut asked) = KeysAsked::try_new(build.key_type(), comparisons)? else {
            return Ok(None);
        };
        for batch in batches {
            let segments = probing.segments(batch, build)?;
            let bounds = probing.spec.bounds.iter().map(|(comparison, bound)| {
                let bounds = evaluate_where_needed(bound, batch, || segments.can_match())?;
                Ok((*comparison, bounds))
            });
            let bounds: Vec<(_, ArrayRef)> = bounds.collect::<Result<_>>()?;
            asked.add(segments, &bounds)?;
        }
        Ok(Some(asked))
    }
}

impl AnswerBatches for AnsweringOnDevices {
    fn answer(&self, batches: &[RecordBatch]) -> Result<Vec<RecordBatch>> {
        let (probing, schema) = (&self.probing, &self.probing.schema);
        let Side::Whole(build) = &*self.side else {
            return internal_err!("a build side on disk is asked on devices");
        };
        let rows = batches.iter().map(RecordBatch::num_rows);
        probing.metrics.probe_rows.add(rows.sum());
        if probing.spec.unmatched == Unmatched::Drop && build.rows().len() == 0 {
            // A join evaluates nothing for pairs that there are none of.
            let none = batches
                .iter()
                .map(|_| RecordBatch::new_empty(Arc::clone(schema)));
            return Ok(none.collect());
        }
        let ranges = self.ranges(batches, build)?;
        let (answers, used_cpu_fallback) = probing.answers(&ranges, build)?;
        let counted = if used_cpu_fallback {
            &self.metrics.cuda_fallbacks
        } else {
            &self.metrics.device_batches
        };
        counted.add(1);
        let mut from = 0;
        let mut joined = vec![];
        for batch in batches {
            let rows = batch.num_rows();
            let here = from..from + rows;
            from += rows;
            let ends = ranges.left()[here.clone()]
                .iter()
                .zip(&ranges.right()[here.clone()]);
            let matched: Vec<bool> = ends.map(|(l, r)| l <= r).collect();
            let answers = answers.iter().map(|answer| answer.slice(here.start, rows));
            joined.extend(probing.joined(batch, &matched, answers.collect())?);
        }
        Ok(joined)
    }

    fn row_bytes(&self) -> usize {
        64 + 16 * self.probing.spec.aggregates.len()
    }

    fn pool(&self) -> &Arc<dyn MemoryPool> {
        &self.pool
    }

    fn baseline(&self) -> &BaselineMetrics {
        &self.probing.metrics.baseline
    }
}
