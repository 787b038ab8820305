//! Chooses the engine of a range join.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::Schema;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::common::engine_choice::{Case, Decision, decide};
use crate::exec::common::statistic_copies::CopyDevices;
use crate::exec::common::statistics::expected_rows;
use crate::exec::range_join::aggregate_table::AggregateEntry;
use crate::exec::range_join::device_aggregates::{argument_types, why_not_on_devices};
use crate::exec::range_join::devices::JoinDevices;
use crate::kept::catalog::IndexCatalog;
use datafusion_rmq_logical::common::options::{EngineChoice, RmqOptions};
use datafusion_rmq_logical::logical_plan::range_join::RangeJoinSpec;
use rmq_arrow::common::ordered_type::key_bytes;
use rmq_arrow::index::devices::Target;

/// Bytes of the narrowest keys.
const MIN_KEY_BYTES: usize = 4;

/// The engine choice of one join, made as soon as the number of build rows is known: at planning, or when they have
/// been collected. Devices run the join as a whole, or the CPU does.
#[derive(Debug, Clone)]
pub(crate) struct RangeJoinEngine {
    catalog: Arc<IndexCatalog>,
    /// What devices would do; none if they can't run the join.
    device_work: Option<DeviceWork>,
    /// The estimated number of probe rows, if known.
    probe_rows: Option<usize>,
    partitions: usize,
    /// The decision at planning; none if the plan tells too little.
    planned: Option<Decision>,
    /// The decision of the last execution, for EXPLAIN ANALYZE.
    executed: Arc<Mutex<Option<Decision>>>,
}

/// What devices would do.
#[derive(Debug, Clone, Copy)]
struct DeviceWork {
    /// Bytes of the range key, by which they sort.
    key_bytes: usize,
    /// Bytes of the widest value that they index; where they index none, of the widest that is aggregated.
    value_bytes: usize,
}

/// The engines that have the build side already, or may get it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KeptOn {
    pub(crate) cpu: bool,
    pub(crate) devices: bool,
}

impl RangeJoinEngine {
    /// The engine of a join that returns rows: the CPU.
    pub(crate) fn cpu() -> Self {
        Self {
            catalog: Arc::default(),
            device_work: None,
            probe_rows: None,
            partitions: 1,
            planned: Some(Decision::cpu("")),
            executed: Arc::default(),
        }
    }

    /// Plans the engine of a join of these inputs.
    ///
    /// # Errors
    /// A planning error if `rmq.engine` forces an engine that is not available.
    pub(crate) async fn plan(
        catalog: Arc<IndexCatalog>,
        spec: &RangeJoinSpec<PhysicalExprRef>,
        (probe, build): (&Arc<dyn ExecutionPlan>, &Arc<dyn ExecutionPlan>),
        session: &dyn Session,
    ) -> Result<Self> {
        let options = RmqOptions::of(session.config_options());
        let (rows, partitions) = (expected_rows(probe), session.config().target_partitions());
        let mut engine = Self::unplanned(catalog, spec, &build.schema(), rows, partitions)?;
        if options.engine == EngineChoice::Cpu {
            engine.planned = Some(Decision::cpu(""));
        } else if engine.planned.is_none() {
            engine.planned = engine
                .decide_for(expected_rows(build), KeptOn::default(), &options)
                .await?;
        }
        Ok(engine)
    }

    /// The engine of a join that another process has planned: it is chosen when the build rows have been collected.
    ///
    /// # Errors
    /// If an expression does not fit `build`, the schema of the build side.
    pub(crate) fn unplanned(
        catalog: Arc<IndexCatalog>,
        spec: &RangeJoinSpec<PhysicalExprRef>,
        build: &Schema,
        probe_rows: Option<usize>,
        partitions: usize,
    ) -> Result<Self> {
        if let Some(why) = why_not_on_devices(spec, build)? {
            return Ok(Self {
                catalog,
                planned: Some(Decision::cpu(why)),
                ..Self::cpu()
            });
        }
        Ok(Self {
            catalog,
            device_work: Some(DeviceWork::from_spec(spec, build)?),
            probe_rows,
            partitions,
            planned: None,
            executed: Arc::default(),
        })
    }

    /// The engines that may run the join.
    pub(crate) fn candidates(&self, choice: EngineChoice) -> KeptOn {
        let can_devices = self.device_work.is_some();
        KeptOn {
            cpu: !can_devices || choice != EngineChoice::Cuda,
            devices: can_devices && choice != EngineChoice::Cpu,
        }
    }

    /// The devices that may get copies of what the CPU builds for the join.
    pub(crate) fn copy_devices(&self, options: &RmqOptions) -> CopyDevices {
        CopyDevices::new(&self.catalog, options)
    }

    /// The estimated number of probe rows, if known.
    pub(crate) fn probe_rows(&self) -> Option<usize> {
        self.probe_rows
    }

    /// The devices for a build side of `rows` rows, if they suit it. Where it is kept is not known at planning.
    ///
    /// # Errors
    /// An error if `rmq.engine` forces an engine that is not available.
    pub(crate) async fn select_devices(
        &self,
        rows: usize,
        kept: KeptOn,
        options: &RmqOptions,
    ) -> Result<Option<JoinDevices>> {
        let is_kept = kept.cpu || kept.devices;
        let decision = match &self.planned {
            Some(decision) if !is_kept => Some(decision.clone()),
            _ => self.decide_for(Some(rows), kept, options).await?,
        };
        self.record(decision.clone());
        let devices = decision.and_then(|decision| match decision.target {
            Target::Cpu => None,
            Target::Devices(engine) => Some(JoinDevices {
                engine,
                catalog: Arc::clone(&self.catalog),
                memory_limit: options.device_memory_limit,
                forced: decision.forced,
            }),
        });
        Ok(devices.filter(|_| rows > 0))
    }

    /// Records why the CPU builds and probes the build side after all.
    pub(crate) fn record_cpu(&self, why: &str) {
        self.record(Some(Decision::cpu(why)));
    }

    fn record(&self, decision: Option<Decision>) {
        *self.executed.lock().unwrap_or_else(PoisonError::into_inner) = decision;
    }

    async fn decide_for(
        &self,
        rows: Option<usize>,
        kept: KeptOn,
        options: &RmqOptions,
    ) -> Result<Option<Decision>> {
        let Some(DeviceWork {
            key_bytes,
            value_bytes,
        }) = self.device_work
        else {
            return Ok(self.planned.clone());
        };
        let is_cached = |target: &Target| match target {
            Target::Cpu => kept.cpu,
            Target::Devices(_) => kept.devices,
        };
        let case = Case {
            rows,
            key_bytes: value_bytes,
            range_key_bytes: Some(key_bytes),
            ranges: self.probe_rows,
            in_expression: false,
            partitions: self.partitions,
            is_cached: &is_cached,
        };
        decide(&self.catalog, options, &case).await
    }
}

/// The engine as EXPLAIN shows it.
impl fmt::Display for RangeJoinEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let executed = self.executed.lock().unwrap_or_else(PoisonError::into_inner);
        match executed.as_ref().or(self.planned.as_ref()) {
            Some(decision) => decision.fmt(f),
            None => f.write_str("auto"),
        }
    }
}

impl DeviceWork {
    fn from_spec(spec: &RangeJoinSpec<PhysicalExprRef>, schema: &Schema) -> Result<Self> {
        let (mut indexed, mut widest) = (None, MIN_KEY_BYTES);
        for aggregate in &spec.aggregates {
            let types = argument_types(aggregate, schema)?;
            let entry = AggregateEntry::new(aggregate.function, types.len(), None);
            let searched = entry.searched().and_then(|argument| types.get(argument));
            indexed = indexed.max(searched.map(key_bytes));
            widest = widest.max(types.first().map_or(MIN_KEY_BYTES, key_bytes));
        }
        Ok(Self {
            key_bytes: key_bytes(&spec.key.data_type(schema)?),
            value_bytes: indexed.unwrap_or(widest),
        })
    }
}
