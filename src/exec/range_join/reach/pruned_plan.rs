//! Whether the scan of a build side can prune by its keys, and the build side that does.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{DynamicFilterPhysicalExpr, lit};
use datafusion::physical_optimizer::filter_pushdown::FilterPushdown;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::execution_plan::reset_plan_states;

use crate::exec::common::guards::{against_filters, optimize_guarded};
use crate::exec::common::ordered_rows::{OrderedRowsExec, divided};
use crate::exec::common::pieces::over_files;
use crate::exec::common::versioned_scan::VersionedScanExec;
use crate::exec::range_join::metrics::ReachCounts;
use crate::exec::range_join::reach::reached_rows::ReachedRowsExec;
use crate::exec::range_join::reach::window_reach::Reach;

/// Whether conditions on the range key come to a scan that prunes by them, as those of Parquet files do. Nothing in
/// memory does.
///
/// # Errors
/// Those of the operators.
pub(crate) fn may_prune(
    build: &Arc<dyn ExecutionPlan>,
    key: &PhysicalExprRef,
    config: &ConfigOptions,
) -> Result<bool> {
    let probe = DynamicFilterPhysicalExpr::new(vec![Arc::clone(key)], lit(true));
    let probe: PhysicalExprRef = Arc::new(probe);
    let id = probe.expression_id();
    let read = build.downcast_ref::<OrderedRowsExec>();
    let read = read.map_or(build, OrderedRowsExec::hidden);
    let asked = pushed(read, None, vec![probe], ReachCounts::default(), config)?;
    let mut is_taken = false;
    asked.apply(|plan| {
        if plan.is::<ReachedRowsExec>() {
            return Ok(TreeNodeRecursion::Continue);
        }
        plan.apply_expressions(&mut |root| {
            root.apply(|expr| {
                is_taken |= expr.expression_id() == id;
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(is_taken)
}

/// The rows of a build side that are reached, in the partitions and order of all. The scan prunes by the same
/// conditions. It may be executed beside others of the same build side.
///
/// # Errors
/// Those of the operators.
pub(crate) fn pruned(
    build: &Arc<dyn ExecutionPlan>,
    reach: Arc<Reach>,
    counts: ReachCounts,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    if reach.is_empty() {
        return Ok(Arc::new(EmptyExec::new(build.schema())));
    }
    // Rules do not see what is hidden, which has the rows in the same order.
    if build.is::<OrderedRowsExec>() {
        let build = divided(build, config, reach.selects_files_of(build))?;
        let Some(rows) = build.downcast_ref::<OrderedRowsExec>() else {
            return internal_err!("rows in their order are in another one once they are divided");
        };
        let pruned = pruned(rows.hidden(), reach, counts, config)?;
        return Ok(Arc::new(rows.over(pruned)));
    }
    let conditions =
        reach.conditions(config.execution.parquet.pushdown_filters, &build.schema())?;
    let plan = pushed(build, Some(reach), conditions, counts, config)?;
    // A scan of other filters has the same queue of files, of which each is read once.
    reset_plan_states(plan)
}

/// The same plan without the files that have no row that is reached, by their statistics, so that they are not even
/// opened: there may be many files and little that is reached. Partitions without a file are left out.
///
/// # Errors
/// Those of the operators.
pub(crate) fn without_other_files(
    build: &Arc<dyn ExecutionPlan>,
    reach: &Reach,
) -> Result<Arc<dyn ExecutionPlan>> {
    let is_read = reach.selects_files_of(build);
    let plan = Arc::clone(build).transform_up(|plan| {
        let source = plan.downcast_ref::<DataSourceExec>();
        let files = source.and_then(|source| source.data_source().downcast_ref::<FileScanConfig>());
        // Some say how rows are divided into as many partitions.
        let files = files.filter(|f| f.limit.is_none() && f.output_partitioning.is_none());
        Ok(match files {
            Some(files) => Transformed::yes(over_files(files, &is_read)),
            None => Transformed::no(plan),
        })
    })?;
    Ok(plan.data)
}

/// Pushes conditions down in DataFusion's own way, with guards.
fn pushed(
    build: &Arc<dyn ExecutionPlan>,
    reach: Option<Arc<Reach>>,
    conditions: Vec<PhysicalExprRef>,
    counts: ReachCounts,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    // The scan of a version, which is looked into as nothing of these rows is kept.
    let shown = Arc::clone(build).transform_up(|plan| {
        let scan = plan.downcast_ref::<VersionedScanExec>();
        let hidden = scan.map(|scan| Transformed::yes(Arc::clone(scan.hidden())));
        Ok(hidden.unwrap_or_else(|| Transformed::no(plan)))
    })?;
    let reached = ReachedRowsExec::new(shown.data, reach, conditions, counts);
    let rule = FilterPushdown::new_post_optimization();
    optimize_guarded(&rule, against_filters, Arc::new(reached), config)
}
