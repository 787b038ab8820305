//! Chooses the engine of a range join.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::{DataType, Schema};
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;

use crate::common::options::RmqOptions;
use crate::common::ordered_type::key_bytes;
use crate::exec::common::engine_choice::{Case, Decision, decide};
use crate::exec::common::statistics::expected_rows;
use crate::exec::range_join::device_aggregates::{devices_answer, devices_sort};
use crate::exec::range_join::devices::JoinDevices;
use crate::index::catalog::IndexCatalog;
use crate::index::devices::Target;
use crate::logical_plan::range_join::{AggregateKind, RangeJoinSpec};

/// Bytes of the narrowest keys.
const MIN_KEY_BYTES: usize = 4;

/// The engine choice of one join, made as soon as the number of build rows is known: at planning, or when they have
/// been collected.
#[derive(Debug, Clone)]
pub(crate) struct RangeJoinEngine {
    catalog: Arc<IndexCatalog>,
    /// Bytes of the widest value that is aggregated; none if there is no work for devices.
    value_bytes: Option<usize>,
    /// Bytes of the range key.
    key_bytes: usize,
    /// Whether devices would sort the build side, as they answer all aggregates.
    devices_sort: bool,
    /// The estimated number of probe rows, if known.
    probe_rows: Option<usize>,
    partitions: usize,
    /// The decision at planning; none if the plan tells too little.
    planned: Option<Decision>,
    /// The decision of the last execution, for EXPLAIN ANALYZE.
    executed: Arc<Mutex<Option<Decision>>>,
}

impl RangeJoinEngine {
    /// The engine of a join that needs no index: the CPU.
    pub(crate) fn cpu() -> Self {
        Self {
            catalog: Arc::default(),
            value_bytes: None,
            key_bytes: 0,
            devices_sort: false,
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
        let schema = build.schema();
        let (value_bytes, devices_sort) = value_bytes(spec, &schema)?;
        let mut engine = Self {
            catalog,
            value_bytes,
            devices_sort,
            key_bytes: key_bytes(&spec.key.data_type(&schema)?),
            probe_rows: expected_rows(probe),
            partitions: session.config().target_partitions(),
            planned: None,
            executed: Arc::default(),
        };
        let options = RmqOptions::of(session.config_options());
        engine.planned = engine.decide_for(expected_rows(build), &options).await?;
        Ok(engine)
    }

    /// The devices for a build side of `rows` rows, if they suit it.
    ///
    /// # Errors
    /// An error if `rmq.engine` forces an engine that is not available.
    pub(crate) async fn select_devices(
        &self,
        rows: usize,
        options: &RmqOptions,
    ) -> Result<Option<JoinDevices>> {
        let decision = match &self.planned {
            Some(decision) => Some(decision.clone()),
            None => self.decide_for(Some(rows), options).await?,
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

    /// Records that the build side was spilled, and that the CPU builds its runs.
    pub(crate) fn record_spilled(&self) {
        self.record(Some(Decision::cpu("on disk")));
    }

    fn record(&self, decision: Option<Decision>) {
        *self.executed.lock().unwrap_or_else(PoisonError::into_inner) = decision;
    }

    async fn decide_for(
        &self,
        rows: Option<usize>,
        options: &RmqOptions,
    ) -> Result<Option<Decision>> {
        let Some(value_bytes) = self.value_bytes else {
            return Ok(Some(Decision::cpu("")));
        };
        let never = |_: &Target| false;
        let case = Case {
            rows,
            key_bytes: value_bytes,
            search_key_bytes: self.key_bytes,
            sorts: self.devices_sort,
            ranges: self.probe_rows,
            in_expression: false,
            partitions: self.partitions,
            is_cached: &never,
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

/// Bytes of the widest value that devices have work with, `None` if they have none, and whether they would sort the
/// build side.
fn value_bytes(
    spec: &RangeJoinSpec<PhysicalExprRef>,
    schema: &Schema,
) -> Result<(Option<usize>, bool)> {
    let comparisons = spec.bounds.iter().map(|(comparison, _)| *comparison);
    let range_key = spec.key.data_type(schema)?;
    let mut all_answered = devices_sort(&range_key, comparisons, spec.prevailing);
    let (mut ordered, mut any) = (None, None);
    for aggregate in &spec.aggregates {
        let types = aggregate.arguments.iter();
        let types = types.map(|argument| argument.data_type(schema));
        let types: Vec<DataType> = types.collect::<Result<_>>()?;
        let function = aggregate.function;
        let searched = match function {
            AggregateKind::Extreme(_) => types.first(),
            AggregateKind::AtExtreme { .. } | AggregateKind::AtCrossing { .. } => types.get(1),
            _ => None,
        };
        ordered = ordered.max(searched.map(key_bytes));
        any = any.max(Some(types.first().map_or(MIN_KEY_BYTES, key_bytes)));
        all_answered &= devices_answer(function, &types);
    }
    // Where the CPU sorts, only minima and maxima are left for devices.
    let bytes = ordered.or(any.filter(|_| all_answered));
    Ok((bytes, all_answered))
}
