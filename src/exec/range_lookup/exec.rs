//! The operator: for each input row, the answers of range calls, as further columns.
//!
//! ```text
//!   input ──▶ RangeLookupExec ──▶ input's columns, one column a call
//!                  │  l, r of each row
//!                  ▼
//!        Relation: index of prices.close  (found in the catalog, or built by the first that asks)
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow::datatypes::{DataType, Field};
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{ColumnStatistics, Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{
    CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions,
};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::common::range_function::RangeFunction;
use crate::exec::common::added_columns::properties_with;
use crate::exec::common::engine_choice::engines;
use crate::exec::range_lookup::metrics::RangeLookupMetrics;
use crate::exec::range_lookup::relation::Relation;
use crate::exec::range_lookup::stream::{Answering, Search};

/// A call of a range function in physical expressions.
#[derive(Debug, Clone)]
pub struct PhysicalCall {
    /// Which extreme, and whether its value or its position.
    pub function: RangeFunction,
    pub(crate) relation: Arc<Relation>,
    /// The name of the indexed column.
    pub column: String,
    /// The first position, inclusive, over the input.
    pub left: Arc<dyn PhysicalExpr>,
    /// The last position, inclusive, over the input.
    pub right: Arc<dyn PhysicalExpr>,
    /// The name of the added column.
    pub output: String,
    /// The type of the added column.
    pub data_type: DataType,
    /// Whether the bounds have another value each time that they are evaluated.
    pub volatile: bool,
}

impl PhysicalCall {
    /// Whether both calls ask the same ranges of the same index: one search answers both.
    fn shares_search(&self, other: &Self) -> bool {
        !self.volatile
            && Arc::ptr_eq(&self.relation, &other.relation)
            && self.column == other.column
            && self.function.extreme == other.function.extreme
            && self.left.as_ref() == other.left.as_ref()
            && self.right.as_ref() == other.right.as_ref()
    }
}

impl fmt::Display for PhysicalCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.function.range_name();
        let column = self.relation.column_label(&self.column);
        write!(
            f,
            "{name}({column}) over rows {} to {}",
            self.left, self.right
        )
    }
}

/// Answers range calls for each input row. Keeps rows, their order and their partitions.
#[derive(Debug)]
pub struct RangeLookupExec {
    input: Arc<dyn ExecutionPlan>,
    calls: Vec<PhysicalCall>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// Whether the indexes asked stand in the metrics already: they count once, not once a partition.
    noted: Arc<AtomicBool>,
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
            noted: Arc::default(),
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

    /// What `EXPLAIN` says of the engines that answer.
    fn engines(&self) -> String {
        engines(self.calls.iter().map(|call| {
            let extreme = call.function.extreme;
            call.relation.engine_label(&call.column, extreme)
        }))
    }

    /// The calls in groups that one search answers, each with the places of its results behind the input's columns.
    fn searches(&self) -> Vec<Search> {
        let mut searches: Vec<Search> = vec![];
        for (place, call) in self.calls.iter().enumerate() {
            match searches.iter_mut().find(|s| s.call.shares_search(call)) {
                Some(search) => search.places.push((place, call.function.position)),
                None => searches.push(Search {
                    call: call.clone(),
                    places: vec![(place, call.function.position)],
                }),
            }
        }
        searches
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
                    let name = call.function.range_name();
                    let column = call.relation.column_label(&call.column);
                    writeln!(f, "{name}({column})={} to {}", call.left, call.right)?;
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

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn supports_limit_pushdown(&self) -> bool {
        true
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let mut next = TreeNodeRecursion::Continue;
        for bound in self.calls.iter().flat_map(|c| [&c.left, &c.right]) {
            next = next.visit_sibling(|| f(bound))?;
        }
        Ok(next)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [input] = <[_; 1]>::try_from(children)
            .or_else(|c: Vec<_>| internal_err!("RangeLookupExec has one input, not {}", c.len()))?;
        let calls = self.calls.clone();
        match options.children_properties {
            ChildrenPropertiesMode::Keep => Ok(Arc::new(Self {
                input,
                calls,
                properties: Arc::clone(&self.properties),
                metrics: ExecutionPlanMetricsSet::new(),
                noted: Arc::default(),
            })),
            ChildrenPropertiesMode::Recompute => Ok(Arc::new(Self::try_new(input, calls)?)),
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let answering = Answering {
            schema: self.schema(),
            searches: self.searches(),
            metrics: RangeLookupMetrics::new(partition, &self.metrics),
            context: Arc::clone(&context),
            noted: Arc::clone(&self.noted),
            prepared: vec![],
        };
        let input = self.input.execute(partition, context)?;
        Ok(answering.stream(input))
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(
        &self,
        input_stats: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let [input] = input_stats else {
            return internal_err!("RangeLookupExec has one input, not {}", input_stats.len());
        };
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
