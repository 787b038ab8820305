//! Has tasks read what their windows reach of searched sides in files, where that is little of them.
//!
//! Otherwise the rows are written by one stage and each task reads all of them from the executors that have them.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion_rmq::physical_plan::RangeJoinExec;

#[derive(Debug)]
pub(crate) struct ReadSlices;

impl ReadSlices {
    /// Adds the rule to those of a session, which has the rules of datafusion-rmq.
    pub(crate) fn add_to(self, rules: &mut Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>>) {
        // Before the exchanges are planned that put the rows of a searched side together.
        let before = |rule: &Arc<dyn PhysicalOptimizerRule + Send + Sync>| {
            rule.name() == "rmq_partition_range_joins"
        };
        if let Some(index) = rules.iter().position(before) {
            rules.insert(index + 1, Arc::new(self));
        }
    }
}

impl PhysicalOptimizerRule for ReadSlices {
    fn name(&self) -> &'static str {
        "rmq_read_slices"
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
            // How many partitions a task has is for the scheduler to say: one at least.
            let tasks = join.probe().output_partitioning().partition_count();
            Ok(match join.slice_of_task(tasks, config)? {
                Some(_) => Transformed::yes(Arc::new(join.in_slices(config)?)),
                None => Transformed::no(plan),
            })
        })?;
        Ok(plan.data)
    }
}
