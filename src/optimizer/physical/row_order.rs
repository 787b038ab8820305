//! Optimizer rules that keep the row order of build sides whose range join depends on it.
//!
//! A range join depends on the row order if it chooses one of several rows with equal keys (`first_value`,
//! `last_value`, prevailing rows). Above a scan, DataFusion's `EnsureRequirements` spreads rows over more partitions:
//! it distributes batches round-robin, and orders the partitions of an in-memory table by size. So two rules surround
//! it:
//!
//! 1. [`KeepRowOrder`], before it, plans such a build side on its own, with neither, and hides it in an
//!    `OrderedRowsExec` that no rule looks into. Scans are still divided, but only into partitions that follow one
//!    another. Where the join collects its build side, they are not divided but put into one partition.
//! 2. `EnsureRequirements` plans the rest.
//! 3. [`ShowRowOrder`], after it, replaces each `OrderedRowsExec` by the plan that it hides. That of a collected join
//!    remains: as the plan is hidden, an engine that divides plans into tasks does not divide its scans, and each task
//!    has the same rows in the same order.
//!
//! ```text
//!   RangeJoinExec          KeepRowOrder    RangeJoinExec       EnsureRequirements,    RangeJoinExec
//!     probe              ───────────────▶    probe                ShowRowOrder          RepartitionExec
//!     FilterExec                             OrderedRowsExec   ───────────────▶           probe
//!       DataSourceExec                                                                  FilterExec
//!                                                                                         DataSourceExec
//! ```

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::ensure_requirements::EnsureRequirements;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::exec::common::ordered_rows::OrderedRowsExec;
use crate::exec::range_join::exec::RangeJoinExec;
use crate::exec::range_join::mode::JoinMode;
use crate::optimizer::physical::physical_rule::physical_rule;

physical_rule!(
    /// Plans build sides whose row order matters so that they keep it, and hides them from the rule that comes next.
    KeepRowOrder,
    "rmq_keep_row_order",
    keep_row_order
);

fn keep_row_order(
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
        let build = Arc::clone(build);
        let build = if join.mode() == JoinMode::Collected {
            OrderedRowsExec::of_one_partition(plan_as_one_partition(build, config)?)
        } else {
            OrderedRowsExec::of_partitions(plan_in_order(build, config)?)
        };
        let children = vec![Arc::clone(probe), Arc::new(build) as _];
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        Ok(Transformed::yes(plan.replace_children(children, options)?))
    })?;
    Ok(plan.data)
}

physical_rule!(
    /// Replaces each `OrderedRowsExec` of [`KeepRowOrder`] by the plan that it hides, except in collected joins.
    ShowRowOrder,
    "rmq_show_row_order",
    show_row_order
);

fn show_row_order(
    plan: Arc<dyn ExecutionPlan>,
    _config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = plan.transform_down(|plan| {
        Ok(match plan.downcast_ref::<OrderedRowsExec>() {
            Some(ordered) if !ordered.is_whole() => Transformed::yes(Arc::clone(ordered.hidden())),
            _ => Transformed::no(plan),
        })
    })?;
    Ok(plan.data)
}

/// Whether the rows of a plan are in a defined order: that of its scans, or of a sort, which all operators above
/// maintain.
fn keeps_order(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if plan.is::<SortExec>() {
        return true;
    }
    if let Some(join) = plan.downcast_ref::<RangeJoinExec>() {
        let [probe, _] = join.inputs();
        let keeps_partitions = join.mode() != JoinMode::Partitioned;
        return keeps_partitions && !join.returns_rows() && keeps_order(probe);
    }
    // The partitions of a union are those of its inputs, one input after the other.
    let union = plan.is::<UnionExec>();
    let children = plan.children();
    let mut children = plan.maintains_input_order().into_iter().zip(children);
    children.all(|(maintains, child)| (maintains || union) && keeps_order(child))
}

/// The rows of a plan in one partition and in their order, which rules that follow do not change; `None` if they have
/// none. Nothing is read by several threads.
///
/// # Errors
/// Those of `DataFusion`'s rules.
pub fn rows_in_order(
    plan: &Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if !keeps_order(plan) {
        return Ok(None);
    }
    let ordered = plan_as_one_partition(Arc::clone(plan), config)?;
    Ok(Some(Arc::new(OrderedRowsExec::of_one_partition(ordered))))
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
    with_requirements(plan, &config)
}

/// Meets the requirements of a plan, and puts its scans into one partition each, where that can be done in order. Other
/// rows keep their order by partition and by position within it.
fn plan_as_one_partition(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let mut config = config.clone();
    config.execution.target_partitions = 1;
    let plan = plan.transform_up(|plan| {
        let undivided = undivide(&plan)?;
        Ok(undivided.map_or_else(|| Transformed::no(plan), Transformed::yes))
    })?;
    with_requirements(plan.data, &config)
}

/// Meets the requirements of a plan in the partitions that it has, whose scans keep their order.
pub(crate) fn in_its_order(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let mut config = config.clone();
    config.optimizer.enable_round_robin_repartition = false;
    config.optimizer.repartition_file_scans = false;
    with_requirements(plan, &config)
}

/// Meets the requirements of a plan whose scans keep their order.
fn with_requirements(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = EnsureRequirements::new().optimize(plan, config)?;
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

/// Puts a scan of several partitions into one, which has the first partition's rows first. Returns `None` if it is in
/// one, or is neither of a table in memory nor of files, or its partitions are sorted: rows of one partition would not
/// be.
fn undivide(scan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(source) = scan.downcast_ref::<DataSourceExec>() else {
        return Ok(None);
    };
    if scan.output_partitioning().partition_count() == 1 || scan.output_ordering().is_some() {
        return Ok(None);
    }
    let source = source.data_source();
    if let Some(memory) = source.downcast_ref::<MemorySourceConfig>() {
        let memory = MemorySourceConfig::try_new(
            &[memory.partitions().concat()],
            memory.original_schema(),
            memory.projection().clone(),
        )?
        .with_limit(scan.fetch())
        .with_show_sizes(memory.show_sizes());
        return Ok(Some(DataSourceExec::from_data_source(memory)));
    }
    let Some(files) = source.downcast_ref::<FileScanConfig>() else {
        return Ok(None);
    };
    let all = files.file_groups.iter().flat_map(FileGroup::iter).cloned();
    let files = FileScanConfigBuilder::from(files.clone())
        .with_file_groups(vec![FileGroup::new(all.collect())])
        .with_output_partitioning(None)
        .build();
    Ok(Some(DataSourceExec::from_data_source(files)))
}
