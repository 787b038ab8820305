//! Which range joins are divided by hashes of their equality keys, and which send the whole searched side to each task.
//!
//! With `w` workers, `b` bytes of the searched side and `p` of the other, in units of work for a byte that a worker
//! receives and sorts:
//!
//! - The whole searched side is sent to each task: `b` for each worker, however many there are.
//! - Both sides are divided: `EXCHANGE * (b + p) / w`. Each byte is hashed, sent and received, and those of the
//!   searched side are sorted. The heaviest key is in one partition, so that tasks have more than their share.
//!
//! If the result depends on the order of its rows, each task reads the whole searched side from its files and keeps it
//! for the next query. Only above the limit are both sides divided, with the position of each row.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion_rmq::parts::OrderedRowsExec;
use datafusion_rmq::physical_plan::{JoinMode, RangeJoinExec};
use datafusion_rmq::{JoinModeChoice, RmqOptions};
use url::Url;

/// The work for a byte that is divided over that for one of a searched side that each task has.
const EXCHANGE: f64 = 1.5;

/// Strings and lists, for want of their lengths.
const BYTES_OF_OTHERS: usize = 16;

type Addresses = dyn Fn() -> Result<Vec<Url>> + Send + Sync;

/// Partitions the joins of a plan for which that is less work, where `rmq.join_mode = 'auto'`.
pub(crate) struct ChooseModes {
    workers: Box<Addresses>,
    broadcast_limit: usize,
}

impl ChooseModes {
    pub(crate) fn new(
        workers: impl Fn() -> Result<Vec<Url>> + Send + Sync + 'static,
        broadcast_limit: usize,
    ) -> Self {
        Self {
            workers: Box::new(workers),
            broadcast_limit,
        }
    }

    /// Adds the rule to those of a session, which has the rules of datafusion-rmq.
    pub(crate) fn add_to(self, rules: &mut Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>>) {
        // Before the exchanges are planned that partitioned joins require.
        let before = |rule: &Arc<dyn PhysicalOptimizerRule + Send + Sync>| {
            rule.name() == "rmq_partition_range_joins"
        };
        if let Some(index) = rules.iter().position(before) {
            rules.insert(index + 1, Arc::new(self));
        }
    }

    fn is_partitioned(&self, join: &RangeJoinExec, workers: usize) -> Result<bool> {
        if join.mode() != JoinMode::Collected {
            return Ok(false);
        }
        if let Some(reason) = join.why_shared()? {
            log::debug!("{} is not partitioned: {reason}", join.label());
            return Ok(false);
        }
        if join.needs_one_task() {
            return Ok(true);
        }
        // What each task reads of files in their order is kept there for the next query, up to the limit.
        if let Some(rows) = join.build().downcast_ref::<OrderedRowsExec>() {
            return Ok(size(rows.hidden()).is_some_and(|bytes| bytes > self.broadcast_limit));
        }
        let (Some(build), Some(probe)) = (size(join.build()), size(join.probe())) else {
            return Ok(false);
        };
        #[expect(clippy::cast_precision_loss, reason = "estimates")]
        let [build_work, both_work] = [build as f64 * workers as f64, (build + probe) as f64];
        Ok(build > self.broadcast_limit || build_work > EXCHANGE * both_work)
    }
}

impl fmt::Debug for ChooseModes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChooseModes").finish_non_exhaustive()
    }
}

impl PhysicalOptimizerRule for ChooseModes {
    fn name(&self) -> &'static str {
        "rmq_choose_modes"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        // Where a task has one partition, no exchange divides a plan.
        let is_divided = config.execution.target_partitions > 1;
        if RmqOptions::of(config).join_mode != JoinModeChoice::Auto || !is_divided {
            return Ok(plan);
        }
        let workers = (self.workers)()?.len();
        let plan = plan.transform_up(|plan| match plan.downcast_ref::<RangeJoinExec>() {
            Some(join) if self.is_partitioned(join, workers)? => {
                let partitioned = join.with_mode(JoinMode::Partitioned)?;
                Ok(Transformed::yes(Arc::new(partitioned)))
            }
            _ => Ok(Transformed::no(plan)),
        })?;
        Ok(plan.data)
    }
}

/// The bytes that a plan returns, if statistics tell.
pub(crate) fn size(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let context = StatisticsContext::new();
    let statistics = context.compute(plan.as_ref(), &StatisticsArgs::new());
    let statistics = statistics.ok()?;
    let known = |value: &Precision<usize>| value.get_value().copied();
    known(&statistics.total_byte_size).or_else(|| {
        let schema = plan.schema();
        let widths = schema.fields().iter().map(|field| {
            let width = field.data_type().primitive_width();
            width.unwrap_or(BYTES_OF_OTHERS)
        });
        Some(known(&statistics.num_rows)? * widths.sum::<usize>())
    })
}
