//! The operator `PrepareIndexesExec`, which prepares the indexes that expressions of the operator above query.
//!
//! ```text
//!   NestedLoopJoinExec: range_min(run, l, r) = …     the expression finds its index by the id of the run
//!     PrepareIndexesExec: range_min(p.close)         appends the id of the run to each row
//!       input
//! ```
//!
//! The index is in the memory of the process, so both operators must be in one task. Where `rmq.join_mode` is
//! 'collected' the input must have a single partition: an engine that divides a plan into tasks then cuts it below this
//! operator, not between the two. An id of another process is unknown, and looking it up is an error.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::RecordBatch;
use arrow::datatypes::Field;
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, DataFusionError, Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::Distribution;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, InputDistributionRequirements, PlanProperties,
};
use futures::{StreamExt, TryStreamExt};

use crate::exec::common::added_columns::properties_with;
use crate::exec::common::engine_choice::engines;
use crate::exec::common::once_per_run::PerContext;
use crate::exec::common::plan_methods::{no_expressions, replace_input, row_for_row};
use crate::exec::range_lookup::metrics::RangeLookupMetrics;
use crate::exec::range_lookup::relation::Relation;
use datafusion_rmq_logical::common::inputs::inputs_of;
use datafusion_rmq_logical::expr::index_lookup::{IndexSlot, RunId};
use rmq_arrow::common::range_function::RangeFunction;

/// An index, and the slot in which an expression finds it.
#[derive(Debug, Clone)]
pub struct PhysicalLookup {
    /// The function that the expression computes.
    pub function: RangeFunction,
    pub(crate) relation: Arc<Relation>,
    /// The name of the indexed column.
    pub column: String,
    /// The slot in which the expression finds the index.
    pub slot: IndexSlot,
}

/// Returns its input, once the indexes are prepared, with the id of the run as a further column.
#[derive(Debug)]
pub struct PrepareIndexesExec {
    input: Arc<dyn ExecutionPlan>,
    lookups: Vec<PhysicalLookup>,
    /// The name of the further column.
    run: String,
    /// Whether the input must have a single partition.
    is_collected: bool,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// Whether the indexes are recorded in the metrics.
    recorded: Arc<AtomicBool>,
    runs: PerContext<RunId>,
}

impl PrepareIndexesExec {
    /// The input.
    #[must_use]
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// The indexes, each with its slot.
    #[must_use]
    pub fn lookups(&self) -> &[PhysicalLookup] {
        &self.lookups
    }

    /// The name of the added column, the number of the execution.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Whether the input must have a single partition, because the plan may be divided into tasks.
    #[must_use]
    pub fn is_collected(&self) -> bool {
        self.is_collected
    }

    pub(crate) fn try_new(
        input: Arc<dyn ExecutionPlan>,
        lookups: Vec<PhysicalLookup>,
        run: &str,
        is_collected: bool,
    ) -> Result<Self> {
        let added = [Field::new(run, RunId::data_type(), false)];
        let metadata = input.schema().metadata().clone();
        let properties = properties_with(input.as_ref(), added, metadata)?;
        Ok(Self {
            input,
            lookups,
            run: run.to_string(),
            is_collected,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
            recorded: Arc::default(),
            runs: PerContext::default(),
        })
    }
}

impl DisplayAs for PrepareIndexesExec {
    fn fmt_as(&self, _t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let names = self.lookups.iter().map(|lookup| {
            let column = lookup.relation.column_label(&lookup.column);
            format!("{}({column})", lookup.function.range_name())
        });
        let names = names.collect::<Vec<_>>().join(", ");
        let labels = self.lookups.iter().map(|lookup| {
            let kind = lookup.function.index_kind();
            lookup.relation.engine_label(&lookup.column, kind)
        });
        let engines = engines(labels);
        write!(f, "PrepareIndexesExec: {names}, engine={engines}")
    }
}

impl ExecutionPlan for PrepareIndexesExec {
    fn name(&self) -> &'static str {
        "PrepareIndexesExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    row_for_row!();

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        let required = if self.is_collected {
            Distribution::SinglePartition
        } else {
            Distribution::UnspecifiedDistribution
        };
        InputDistributionRequirements::new(vec![required])
    }

    no_expressions!();

    replace_input!(|prepare, input| {
        let lookups = prepare.lookups.clone();
        Self::try_new(input, lookups, &prepare.run, prepare.is_collected)?
    });

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, Arc::clone(&context))?;
        let metrics = RangeLookupMetrics::new(partition, &self.metrics);
        let (lookups, recorded) = (self.lookups.clone(), Arc::clone(&self.recorded));
        let (schema, run) = (self.schema(), self.runs.get(&context));
        let ready = async move {
            let slots = lookups.len();
            // A slot drops the indexes of runs with no more holders than slots. Until each slot has an index of this
            // run, these clones count for the slots that have none.
            let preparing = vec![RunId::clone(&run); slots];
            let first = !recorded.swap(true, Ordering::Relaxed);
            for PhysicalLookup {
                function,
                relation,
                column,
                slot,
            } in lookups
            {
                let prepared = relation
                    .index(&column, function.index_kind(), &context)
                    .await?;
                if first {
                    metrics.record_index(&prepared);
                }
                slot.put(&run, Arc::new(prepared.ready), slots);
            }
            drop(preparing);
            let with_run = move |batch: RecordBatch| {
                let mut columns = batch.columns().to_vec();
                columns.push(run.column(batch.num_rows())?);
                Ok(RecordBatch::try_new(Arc::clone(&schema), columns)?)
            };
            let batches = input.map(move |batch| with_run(batch?));
            Ok::<_, DataFusionError>(batches)
        };
        let batches = futures::stream::once(ready).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            self.schema(),
            batches,
        )))
    }

    fn statistics_from_inputs(
        &self,
        input_stats: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let [input] = inputs_of("PrepareIndexesExec", input_stats.to_vec())?;
        let mut statistics = Arc::unwrap_or_clone(input);
        statistics.total_byte_size = Precision::Absent;
        let run = ColumnStatistics::new_unknown();
        statistics.column_statistics.push(run);
        Ok(Arc::new(statistics))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
