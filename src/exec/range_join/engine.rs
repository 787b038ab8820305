//! Which engine answers a range join by key.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::Schema;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;

use crate::common::options::RmqOptions;
use crate::common::ordered_type::key_bytes;
use crate::exec::common::engine_choice::{Case, Decision, decide};
use crate::exec::common::statistics::expected_rows;
use crate::exec::range_join::probe::on_devices::Devices;
use crate::index::catalog::IndexCatalog;
use crate::index::devices::Target;
use crate::logical_plan::range_join::{AggregateKind, RangeJoinSpec};

/// Decides for one join, as soon as it is known how many rows there are to search.
#[derive(Debug, Clone)]
pub(crate) struct RangeJoinEngine {
    catalog: Arc<IndexCatalog>,
    /// Bytes of the widest value that an extreme is asked of; none where none is, and so nothing for devices.
    value_bytes: Option<usize>,
    /// Bytes of the range key.
    key_bytes: usize,
    /// About how many rows ask, where that is known.
    ranges: Option<usize>,
    partitions: usize,
    /// What the plan tells.
    decision: Option<Decision>,
    /// What a run of the plan has decided, for EXPLAIN ANALYZE.
    decided: Arc<Mutex<Option<Decision>>>,
}

impl RangeJoinEngine {
    /// For a join of these inputs, decided if the plan tells enough.
    ///
    /// # Errors
    /// A planning error where the option demands an engine that can't be had.
    pub(crate) async fn plan(
        catalog: Arc<IndexCatalog>,
        spec: &RangeJoinSpec<PhysicalExprRef>,
        (probe, build): (&Arc<dyn ExecutionPlan>, &Arc<dyn ExecutionPlan>),
        session: &dyn Session,
    ) -> Result<Self> {
        let schema = build.schema();
        let mut engine = Self {
            catalog,
            value_bytes: value_bytes(spec, &schema)?,
            key_bytes: key_bytes(&spec.key.data_type(&schema)?),
            ranges: expected_rows(probe),
            partitions: session.config().target_partitions(),
            decision: None,
            decided: Arc::default(),
        };
        let options = RmqOptions::of(session.config_options());
        engine.decision = engine.decide_for(expected_rows(build), &options).await?;
        Ok(engine)
    }

    /// The devices that so many rows are to be searched on, if any.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub(crate) async fn devices(
        &self,
        rows: usize,
        options: &RmqOptions,
    ) -> Result<Option<Devices>> {
        let decision = match &self.decision {
            Some(decision) => Some(decision.clone()),
            None => self.decide_for(Some(rows), options).await?,
        };
        self.note(decision.clone());
        let devices = decision.and_then(|decision| match decision.target {
            Target::Cpu => None,
            Target::Devices(engine) => Some(Devices {
                engine,
                catalog: Arc::clone(&self.catalog),
                limit: options.device_memory_limit,
                demanded: decision.demanded,
            }),
        });
        Ok(devices.filter(|_| rows > 0))
    }

    /// Notes that the rows were written to disk, where only the CPU searches them.
    pub(crate) fn note_on_disk(&self) {
        self.note(Some(Decision::cpu("on disk")));
    }

    fn note(&self, decision: Option<Decision>) {
        *self.decided.lock().unwrap_or_else(PoisonError::into_inner) = decision;
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
            ranges: self.ranges,
            in_expression: false,
            partitions: self.partitions,
            is_held: &never,
        };
        decide(&self.catalog, options, &case).await
    }
}

/// What EXPLAIN says.
impl fmt::Display for RangeJoinEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner);
        match decided.as_ref().or(self.decision.as_ref()) {
            Some(decision) => decision.fmt(f),
            None => f.write_str("auto"),
        }
    }
}

fn value_bytes(spec: &RangeJoinSpec<PhysicalExprRef>, schema: &Schema) -> Result<Option<usize>> {
    let mut widest = None;
    for aggregate in &spec.aggregates {
        let ordered = match aggregate.function {
            AggregateKind::Extreme(_) => aggregate.arguments.first(),
            AggregateKind::AtExtreme { .. } => aggregate.arguments.get(1),
            _ => None,
        };
        if let Some(values) = ordered {
            widest = widest.max(Some(key_bytes(&values.data_type(schema)?)));
        }
    }
    Ok(widest)
}
