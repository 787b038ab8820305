//! The operator `RangeLookupExec`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow::datatypes::Field;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{ColumnStatistics, Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter_pushdown::{FilterDescription, FilterPushdownPhase};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::exec::common::added_columns::properties_with;
use crate::exec::common::engine_choice::engines;
use crate::exec::common::filter_pushdown::filters_of_columns;
use crate::exec::common::plan_methods::{row_for_row, visit_all, with_new_children};
use crate::exec::range_lookup::call::{PhysicalCall, Search};
use crate::exec::range_lookup::metrics::RangeLookupMetrics;
use crate::exec::range_lookup::relation::Relation;
use crate::exec::range_lookup::stream::LookupStream;
use datafusion_rmq_logical::common::inputs::inputs_of;
use datafusion_rmq_logical::common::sql_text::tree_text;

/// Appends the results of range calls to each input row, one column per call. Keeps the rows, their order and their
/// partitions.
#[derive(Debug)]
pub struct RangeLookupExec {
    input: Arc<dyn ExecutionPlan>,
    calls: Vec<PhysicalCall>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// Whether the indexes are recorded in the metrics: once, not once per partition.
    recorded: Arc<AtomicBool>,
}

impl RangeLookupExec {
    pub(crate) fn try_new(input: Arc<dyn ExecutionPlan>, calls: Vec<PhysicalCall>) -> Result<Self> {
        let outputs = calls.iter();
        let outputs = outputs.map(|c| Field::new(&c.output, c.data_type.clone(), true));
        let metadata = input.schema().metadata().clone();
        let properties = properties_with(input.as_ref(), outputs, metadata)?;
        Ok(Self {
            input,
            calls,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
            recorded: Arc::default(),
        })
    }

    /// The input.
    #[must_use]
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// The calls, one added column each, in the order of the columns.
    #[must_use]
    pub fn calls(&self) -> &[PhysicalCall] {
        &self.calls
    }

    /// The rows that were read so far of the tables and subqueries whose indexes no earlier query has built. Operators
    /// of one query may share these.
    #[must_use]
    pub fn index_rows_read(&self) -> usize {
        let mut known: Vec<*const Relation> = vec![];
        let relations = self.calls.iter().map(|call| &call.relation);
        let relations = relations.filter(|relation| {
            let relation = Arc::as_ptr(relation);
            let is_new = !known.contains(&relation);
            known.push(relation);
            is_new
        });
        relations.map(|relation| relation.rows_read()).sum()
    }

    /// The engines of the indexes in `EXPLAIN`.
    fn engines(&self) -> String {
        engines(self.calls.iter().map(|call| {
            let kind = call.function.index_kind();
            call.relation.engine_label(&call.column, kind)
        }))
    }
}

impl DisplayAs for RangeLookupExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "RangeLookupExec: ")?;
                for (i, call) in self.calls.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{call}")?;
                }
                write!(f, ", engine={}", self.engines())
            }
            DisplayFormatType::TreeRender => {
                for call in &self.calls {
                    let line = format!("{}={} to {}", call.label(), call.left, call.right);
                    writeln!(f, "{}", tree_text(&line))?;
                }
                writeln!(f, "engine={}", self.engines())
            }
        }
    }
}

impl ExecutionPlan for RangeLookupExec {
    fn name(&self) -> &'static str {
        "RangeLookupExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    row_for_row!();

    fn supports_limit_pushdown(&self) -> bool {
        true
    }

    fn gather_filters_for_pushdown(
        &self,
        _phase: FilterPushdownPhase,
        parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        _config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        let columns = (0..self.input.schema().fields().len()).map(|index| (index, index));
        let input = filters_of_columns(&parent_filters, columns, self, &self.input)?;
        Ok(FilterDescription::new().with_child(input))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let calls = self.calls.iter();
        let arguments = calls.flat_map(|c| [&c.left, &c.right].into_iter().chain(&c.threshold));
        visit_all(arguments, f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [input] = inputs_of("RangeLookupExec", children)?;
        let calls = self.calls.clone();
        match options.children_properties {
            ChildrenPropertiesMode::Keep => Ok(Arc::new(Self {
                input,
                calls,
                properties: Arc::clone(&self.properties),
                metrics: ExecutionPlanMetricsSet::new(),
                recorded: Arc::default(),
            })),
            ChildrenPropertiesMode::Recompute => Ok(Arc::new(Self::try_new(input, calls)?)),
        }
    }

    with_new_children!();

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let stream = LookupStream {
            schema: self.schema(),
            searches: Search::group(&self.calls),
            metrics: RangeLookupMetrics::new(partition, &self.metrics),
            context: Arc::clone(&context),
            recorded: Arc::clone(&self.recorded),
            prepared: vec![],
        };
        let input = self.input.execute(partition, context)?;
        Ok(stream.start(input))
    }

    fn statistics_from_inputs(
        &self,
        input_stats: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let [input] = inputs_of("RangeLookupExec", input_stats.to_vec())?;
        let mut column_statistics = input.column_statistics.clone();
        column_statistics.extend(self.calls.iter().map(|_| ColumnStatistics::new_unknown()));
        Ok(Arc::new(Statistics {
            num_rows: input.num_rows,
            total_byte_size: Precision::Absent,
            column_statistics,
        }))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
