//! The rules that choose the mode of range joins.
//!
//! ```text
//!   RangeJoinExec: …     PartitionRangeJoins,     RangeJoinExec: …, mode=Partitioned
//!     probe            ──────────────────────▶      RepartitionExec: Hash([sym])
//!     build              EnsureRequirements           probe
//!                                                   RepartitionExec: Hash([sym])
//!                                                     build
//! ```
//!
//! 1. [`PartitionRangeJoins`], where `rmq.join_mode = 'partitioned'`: joins that can be partitioned require it of their inputs. It runs after
//!    `KeepRowOrder`, which hides build sides whose row order matters, and the joins in them: these keep the order of their probe side.
//! 2. DataFusion's `EnsureRequirements` repartitions the inputs that are not partitioned so.
//! 3. [`UseCoPartitionedInputs`], where `rmq.join_mode = 'auto'`: joins whose inputs turned out to be partitioned by the equality keys.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::InvariantLevel;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::common::options::{JoinModeChoice, RmqOptions};
use crate::exec::range_join::exec::RangeJoinExec;
use crate::exec::range_join::mode::JoinMode;

/// Whether `rmq.join_mode = 'auto'` partitions joins whose inputs are partitioned by the equality keys as they are. On one machine the shared build
/// uses all threads however unevenly rows are distributed over the keys, and each partition has only its part of the threads.
const AUTO_USES_CO_PARTITIONED_INPUTS: bool = false;

/// Partitions range joins by their equality keys, where `rmq.join_mode = 'partitioned'` and they can be.
///
/// It must run before `EnsureRequirements`, which repartitions their inputs, and after [`KeepRowOrder`](crate::optimizer::KeepRowOrder).
#[derive(Debug, Default)]
pub struct PartitionRangeJoins;

impl PhysicalOptimizerRule for PartitionRangeJoins {
    fn name(&self) -> &'static str {
        "rmq_partition_range_joins"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match RmqOptions::of(config).join_mode {
            JoinModeChoice::Partitioned => partition_joins(plan, |_| true),
            JoinModeChoice::Auto | JoinModeChoice::Shared => Ok(plan),
        }
    }
}

/// Partitions range joins whose inputs are partitioned by their equality keys as they are, where `rmq.join_mode = 'auto'`.
///
/// It must run after `EnsureRequirements`.
#[derive(Debug, Default)]
pub struct UseCoPartitionedInputs;

impl PhysicalOptimizerRule for UseCoPartitionedInputs {
    fn name(&self) -> &'static str {
        "rmq_use_co_partitioned_inputs"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match RmqOptions::of(config).join_mode {
            JoinModeChoice::Auto if AUTO_USES_CO_PARTITIONED_INPUTS => {
                partition_joins(plan, has_co_partitioned_inputs)
            }
            _ => Ok(plan),
        }
    }
}

/// Partitions the joins of a plan that can be partitioned, if `is_wanted` of the partitioned join.
fn partition_joins(
    plan: Arc<dyn ExecutionPlan>,
    is_wanted: impl Fn(&RangeJoinExec) -> bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = plan.transform_up(|plan| {
        let Some(join) = plan.downcast_ref::<RangeJoinExec>() else {
            return Ok(Transformed::no(plan));
        };
        if join.mode() == JoinMode::Partitioned {
            return Ok(Transformed::no(plan));
        }
        Ok(match join.try_partition() {
            Ok(partitioned) if is_wanted(&partitioned) => Transformed::yes(Arc::new(partitioned)),
            Ok(_) => Transformed::no(plan),
            Err(reason) => {
                log::debug!("{} shares its build side: {reason}", join.label());
                Transformed::no(plan)
            }
        })
    })?;
    Ok(plan.data)
}

/// Whether both inputs of a partitioned join have several partitions, of which those of the same number have the same equality keys.
fn has_co_partitioned_inputs(join: &RangeJoinExec) -> bool {
    let partitions = join.probe().output_partitioning().partition_count();
    partitions > 1 && join.check_invariants(InvariantLevel::Executable).is_ok()
}

#[cfg(test)]
mod tests {
    use datafusion::physical_plan::{collect, displayable};
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;

    /// Windows by `g` partition a side by it; `p` alone is not.
    #[tokio::test]
    async fn joins_of_co_partitioned_inputs_are_partitioned_without_an_exchange() -> Result<()> {
        let config = SessionConfig::new()
            .with_target_partitions(3)
            .with_batch_size(100);
        let ctx = SessionContext::new_with_config(config);
        crate::session::register(&ctx);
        for table in [
            "CREATE TABLE p AS SELECT value % 7 AS g, value % 101 AS k, value AS v FROM range(0, 500)",
            "CREATE TABLE q AS SELECT value % 9 AS g, value % 97 AS k, value AS v FROM range(0, 400)",
        ] {
            ctx.sql(table).await?.collect().await?;
        }
        let numbered = "SELECT g, k, row_number() OVER (PARTITION BY g ORDER BY v) AS v FROM";
        for (searched, is_partitioned) in [(format!("({numbered} p)"), true), ("p".into(), false)] {
            let sql = format!(
                "SELECT q.g, q.v, p.v FROM ({numbered} q) q JOIN {searched} p ON p.g = q.g AND p.k BETWEEN q.k AND q.k + 9"
            );
            let sql = format!("SELECT count(*), sum(v), sum(w) FROM ({sql}) AS t(g, v, w)");
            ctx.sql("SET rmq.row_joins = 'always'").await?;
            let plan = ctx.sql(&sql).await?.create_physical_plan().await?;
            let partitioned = partition_joins(Arc::clone(&plan), has_co_partitioned_inputs)?;
            let text = displayable(partitioned.as_ref()).indent(false).to_string();
            assert_eq!(text.contains("mode=Partitioned"), is_partitioned, "{text}");
            let batches = collect(partitioned, ctx.task_ctx()).await?;
            ctx.sql("SET rmq.rewrite = false").await?;
            let expected = ctx.sql(&sql).await?.collect().await?;
            ctx.sql("SET rmq.rewrite = true").await?;
            assert_eq!(batches, expected);
        }
        Ok(())
    }
}
