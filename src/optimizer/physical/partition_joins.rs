//! The rules that partition range joins.
//!
//! ```text
//!   RangeJoinExec: …     PartitionRangeJoins,     RangeJoinExec: …, mode=Partitioned
//!     probe            ──────────────────────▶      RepartitionExec: Hash([sym])
//!     build              EnsureRequirements           probe
//!                                                   RepartitionExec: Hash([sym])
//!                                                     build
//! ```
//!
//! 1. [`PartitionRangeJoins`], where `rmq.join_mode = 'partitioned'`, unless `datafusion.optimizer.repartition_joins`
//!    is off: joins that can be partitioned require it of their inputs. It runs after `KeepRowOrder`, which hides build
//!    sides whose row order matters, and the joins in them: these keep the order of their probe side. A hidden scan of
//!    Parquet files is shown again, and its rows take their position along.
//! 2. DataFusion's `EnsureRequirements` repartitions the inputs that are not partitioned so.
//! 3. [`KeepUndividedJoins`], for joins of one partition a side.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::exec::range_join::exec::RangeJoinExec;
use crate::exec::range_join::mode::JoinMode;
use crate::optimizer::physical::physical_rule::physical_rule;
use datafusion_rmq_logical::common::options::{JoinModeChoice, RmqOptions};

physical_rule!(
    /// Partitions range joins by their equality keys, where `rmq.join_mode = 'partitioned'` and they can be.
    ///
    /// It must run before `EnsureRequirements`, which repartitions their inputs, and after
    /// [`KeepRowOrder`](crate::optimizer::physical::row_order::KeepRowOrder).
    PartitionRangeJoins,
    "rmq_partition_range_joins",
    partition_range_joins
);

fn partition_range_joins(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    // DataFusion partitions no joins without that either, so its plans for what is below need not be ready for it.
    if RmqOptions::of(config).join_mode != JoinModeChoice::Partitioned
        || !config.optimizer.repartition_joins
    {
        return Ok(plan);
    }
    let plan = plan.transform_up(|plan| {
        let Some(join) = plan.downcast_ref::<RangeJoinExec>() else {
            return Ok(Transformed::no(plan));
        };
        if join.mode() != JoinMode::Collected {
            return Ok(Transformed::no(plan));
        }
        if let Some(reason) = join.why_shared()? {
            log::debug!("{} is not partitioned: {reason}", join.label());
            return Ok(Transformed::no(plan));
        }
        let partitioned = join.with_mode(JoinMode::Partitioned)?;
        Ok(Transformed::yes(Arc::new(partitioned)))
    })?;
    Ok(plan.data)
}

physical_rule!(
    /// Keeps a partitioned join in one task whose sides are left with one partition each: no exchange has divided them
    /// by the equality keys, and an engine that divides a plan into tasks would divide them in another way.
    ///
    /// It must run after `EnsureRequirements`.
    KeepUndividedJoins,
    "rmq_keep_undivided_joins",
    keep_undivided_joins
);

fn keep_undivided_joins(
    plan: Arc<dyn ExecutionPlan>,
    _config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = plan.transform_up(|plan| {
        let join = plan.downcast_ref::<RangeJoinExec>();
        let undivided = join.filter(|join| {
            let is_one =
                |side: &&Arc<dyn ExecutionPlan>| side.output_partitioning().partition_count() == 1;
            join.mode() == JoinMode::Partitioned && join.inputs().iter().all(is_one)
        });
        Ok(match undivided {
            Some(join) => Transformed::yes(Arc::new(join.undivided()?)),
            None => Transformed::no(plan),
        })
    })?;
    Ok(plan.data)
}
