//! The operator that makes indexes ready for the expressions of the operator above.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::TryStreamExt;

use super::Relation;
use super::decision::engines;
use super::metrics::RangeJoinMetrics;
use crate::functions::{IndexSlot, RangeFunction};

/// An index, and where the expression that asks it looks.
#[derive(Debug, Clone)]
pub(crate) struct PhysicalLookup {
    pub(crate) function: RangeFunction,
    pub(crate) relation: Arc<Relation>,
    pub(crate) column: String,
    pub(crate) slot: IndexSlot,
}

/// Passes its input on, once the indexes are ready.
#[derive(Debug)]
pub(crate) struct PrepareIndexesExec {
    input: Arc<dyn ExecutionPlan>,
    lookups: Vec<PhysicalLookup>,
    metrics: ExecutionPlanMetricsSet,
    /// Whether the indexes stand in the metrics already.
    noted: Arc<AtomicBool>,
}

impl PrepareIndexesExec {
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, lookups: Vec<PhysicalLookup>) -> Self {
        Self {
            input,
            lookups,
            metrics: ExecutionPlanMetricsSet::new(),
            noted: Arc::default(),
        }
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
            let extreme = lookup.function.extreme;
            lookup.relation.engine_label(&lookup.column, extreme)
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
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [input] = <[_; 1]>::try_from(children).or_else(|c: Vec<_>| {
            internal_err!("PrepareIndexesExec has one input, not {}", c.len())
        })?;
        Ok(Arc::new(Self::new(input, self.lookups.clone())))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mode = datafusion::physical_plan::execution_plan::ChildrenPropertiesMode::Recompute;
        self.replace_children(children, ReplaceChildrenOptions::new(mode))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, Arc::clone(&context))?;
        let metrics = RangeJoinMetrics::new(partition, &self.metrics);
        let (lookups, noted) = (self.lookups.clone(), Arc::clone(&self.noted));
        let ready = async move {
            let first = !noted.swap(true, Ordering::Relaxed);
            for PhysicalLookup {
                function,
                relation,
                column,
                slot,
            } in lookups
            {
                let prepared = relation.index(&column, function.extreme, &context).await?;
                if first {
                    metrics.note_index(&prepared);
                }
                slot.put(prepared.ready);
            }
            Ok::<_, DataFusionError>(input)
        };
        let batches = futures::stream::once(ready).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            self.schema(),
            batches,
        )))
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(
        &self,
        input_stats: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        match input_stats {
            [input] => Ok(Arc::clone(input)),
            _ => internal_err!(
                "PrepareIndexesExec has one input, not {}",
                input_stats.len()
            ),
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
