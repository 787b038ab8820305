//! Optimizer rules that keep the row order of build sides whose range join depends on it.
//!
//! A range join depends on the row order if it chooses one of several rows with equal keys (`first_value`,
//! `last_value`, prevailing rows). Above a scan, DataFusion's `EnsureRequirements` spreads rows over more partitions:
//! it distributes batches round-robin, and orders the partitions of an in-memory table by size. So two rules surround
//! it:
//!
//! 1. [`KeepRowOrder`], before it, plans such a build side on its own, with neither, and hides it in an
//!    `OrderedRowsExec` that no rule looks into. Scans are still divided, but only into partitions that follow one
//!    another.
//! 2. `EnsureRequirements` plans the rest.
//! 3. [`ShowRowOrder`], after it, replaces each `OrderedRowsExec` by the plan that it hides.
//!
//! ```text
//!   RangeJoinExec          KeepRowOrder    RangeJoinExec       EnsureRequirements,    RangeJoinExec
//!     probe              ───────────────▶    probe                ShowRowOrder          RepartitionExec
//!     FilterExec                             OrderedRowsExec   ───────────────▶           probe
//!       DataSourceExec                                                                  FilterExec
//!                                                                                         DataSourceExec
//! ```

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::ensure_requirements::EnsureRequirements;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};

use crate::common::inputs::inputs_of;
use crate::exec::range_join::exec::RangeJoinExec;
use crate::exec::range_join::mode::JoinMode;

/// Plans build sides whose row order matters so that they keep it, and hides them from the rule that comes next.
#[derive(Debug)]
pub struct KeepRowOrder;

impl PhysicalOptimizerRule for KeepRowOrder {
    fn name(&self) -> &'static str {
        "rmq_keep_row_order"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = plan.transform_up(|plan| {
            let Some(join) = plan.downcast_ref::<RangeJoinExec>() else {
                return Ok(Transformed::no(plan));
            };
            let [probe, build] = join.inputs();
            if !join.row_order_matters() || !keeps_order(build) {
                return Ok(Transformed::no(plan));
            }
            let build = OrderedRowsExec(plan_in_order(Arc::clone(build), config)?);
            let children = vec![Arc::clone(probe), Arc::new(build) as _];
            let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            Ok(Transformed::yes(plan.replace_children(children, options)?))
        })?;
        Ok(plan.data)
    }
}

/// Replaces each `OrderedRowsExec` of [`KeepRowOrder`] by the plan that it hides.
#[derive(Debug)]
pub struct ShowRowOrder;

impl PhysicalOptimizerRule for ShowRowOrder {
    fn name(&self) -> &'static str {
        "rmq_show_row_order"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = plan.transform_down(|plan| {
            Ok(match plan.downcast_ref::<OrderedRowsExec>() {
                Some(OrderedRowsExec(hidden)) => Transformed::yes(Arc::clone(hidden)),
                None => Transformed::no(plan),
            })
        })?;
        Ok(plan.data)
    }
}

/// Whether the rows of a plan are in a defined order: that of its scans, or of a sort, which all operators above
/// maintain.
fn keeps_order(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if plan.is::<SortExec>() {
        return true;
    }
    if let Some(join) = plan.downcast_ref::<RangeJoinExec>() {
        let [probe, _] = join.inputs();
        let keeps_partitions = join.mode() == JoinMode::Shared;
        return keeps_partitions && !join.returns_rows() && keeps_order(probe);
    }
    // The partitions of a union are those of its inputs, one input after the other.
    let union = plan.is::<UnionExec>();
    let children = plan.children();
    let mut children = plan.maintains_input_order().into_iter().zip(children);
    children.all(|(maintains, child)| (maintains || union) && keeps_order(child))
}

/// Meets the requirements of a plan. Its rows keep their order by partition and by position within it.
fn plan_in_order(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let mut config = config.clone();
    let optimizer = &mut config.optimizer;
    optimizer.enable_round_robin_repartition = false;
    let mut plan = plan;
    if optimizer.repartition_file_scans {
        let partitions = config.execution.target_partitions;
        let rows = config.execution.batch_size.get();
        plan = plan
            .transform_up(|plan| {
                let divided = divide(&plan, partitions, rows)?;
                Ok(divided.map_or_else(|| Transformed::no(plan), Transformed::yes))
            })?
            .data;
        let mixed =
            plan.exists(|plan| Ok(plan.children().is_empty() && !is_divided_in_order(plan)))?;
        config.optimizer.repartition_file_scans = !mixed;
        // DataFusion divides only scans below other operators.
        if !mixed && plan.children().is_empty() {
            plan = plan.repartitioned(partitions, &config)?.unwrap_or(plan);
        }
    }
    let plan = EnsureRequirements::new().optimize(plan, &config)?;
    let plan = plan.transform_up(|plan| {
        let scan = plan.children().is_empty();
        let in_order = scan.then(|| plan.with_preserve_order(true)).flatten();
        Ok(in_order.map_or_else(|| Transformed::no(plan), Transformed::yes))
    })?;
    Ok(plan.data)
}

/// Whether DataFusion divides a scan into partitions that follow one another.
fn is_divided_in_order(scan: &Arc<dyn ExecutionPlan>) -> bool {
    let source = scan.downcast_ref::<DataSourceExec>();
    let files = source.and_then(|s| s.data_source().downcast_ref::<FileScanConfig>());
    files.is_some() && scan.output_ordering().is_none()
}

/// Divides an in-memory table into `partitions` that follow one another. Returns `None` if it has as many already, or
/// not more rows than a batch.
fn divide(
    scan: &Arc<dyn ExecutionPlan>,
    partitions: usize,
    batch_rows: usize,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let source = scan.downcast_ref::<DataSourceExec>();
    let memory = source.and_then(|s| s.data_source().downcast_ref::<MemorySourceConfig>());
    let Some(memory) = memory.filter(|memory| {
        memory.partitions().len() < partitions && memory.sort_information().is_empty()
    }) else {
        return Ok(None);
    };
    let batches = || memory.partitions().iter().flatten();
    let rows: usize = batches().map(RecordBatch::num_rows).sum();
    if rows <= batch_rows || scan.fetch().is_some() {
        return Ok(None);
    }
    let mut parts = vec![vec![]; partitions];
    let mut rows_before = 0;
    for batch in batches() {
        parts[rows_before * partitions / rows].push(batch.clone());
        // An empty last batch stays in the last partition.
        rows_before = (rows_before + batch.num_rows()).min(rows - 1);
    }
    let memory = MemorySourceConfig::try_new(
        &parts,
        memory.original_schema(),
        memory.projection().clone(),
    )?
    .with_show_sizes(memory.show_sizes());
    Ok(Some(DataSourceExec::from_data_source(memory)))
}

/// Hides a plan from optimizer rules.
#[derive(Debug)]
struct OrderedRowsExec(Arc<dyn ExecutionPlan>);

impl DisplayAs for OrderedRowsExec {
    fn fmt_as(&self, _t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExecutionPlan for OrderedRowsExec {
    fn name(&self) -> &'static str {
        "OrderedRowsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.0.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
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
        let [] = inputs_of("OrderedRowsExec", children)?;
        Ok(self)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
        self.replace_children(children, options)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.0.execute(partition, context)
    }
}
