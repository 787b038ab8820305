//! Which range joins are divided by hashes of their equality keys, which send the whole searched side to each task, and
//! in which each task reads its slice of it.
//!
//! With `w` workers, `b` bytes of the searched side and `p` of the other, in units of work for a byte that a worker
//! receives and sorts:
//!
//! - Each task reads the files of the searched side as far as its windows reach: `s * b`, where `s` is the part of its
//!   rows that the windows of `1 / w` of the other side reach. Nothing is sent.
//! - The whole searched side is sent to each task: `b` for each worker, however many there are.
//! - Both sides are divided: `EXCHANGE * (b + p) / w`. Each byte is hashed, sent and received, and those of the
//!   searched side are sorted. The heaviest key is in one partition, so that tasks have more than their share.
//!
//! If the result depends on the order of its rows, each task reads the searched side from its files, a slice where that
//! suffices, and keeps it for the next query once it has read as much as all of it. Only above the limit are both sides
//! divided, with the position of each row.

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

/// Has tasks read slices where that is less work, and partitions the joins for which that is, where
/// `rmq.join_mode = 'auto'`.
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

    /// The join in the way that is least work; `None` if it stays as it is, with its whole searched side in each task.
    fn chosen(
        &self,
        join: &RangeJoinExec,
        workers: usize,
        config: &ConfigOptions,
    ) -> Result<Option<RangeJoinExec>> {
        if join.mode() != JoinMode::Collected {
            return Ok(None);
        }
        let in_order = join.build().downcast_ref::<OrderedRowsExec>();
        let build = size(in_order.map_or(join.build(), OrderedRowsExec::hidden));
        let is_sent = !join.needs_one_task() && build.is_none_or(|b| b <= self.broadcast_limit);
        let sent = match build {
            _ if !is_sent => f64::INFINITY,
            // What each task reads of files in their order is kept there for the next query.
            Some(bytes) if in_order.is_none() => work(bytes),
            _ => 0.0,
        };
        let divided = match (build, size(join.probe())) {
            _ if !may_divide(join, config)? => f64::INFINITY,
            (Some(build), Some(probe)) => EXCHANGE * work(build + probe) / work(workers),
            // It is done only where nothing else can be.
            _ => f64::MAX,
        };
        let slice = join.slice_of_task(workers, config)?.zip(build);
        let slice = slice.map(|(part, bytes)| part * work(bytes));
        let slice = slice.filter(|bytes| *bytes <= work(self.broadcast_limit));
        let is_read_in_order = is_sent && in_order.is_some();
        if slice.is_some_and(|slice| is_read_in_order || slice < sent && slice <= divided) {
            return join.in_slices(config).map(Some);
        }
        let is_divided = divided < sent;
        let divided = is_divided.then(|| join.with_mode(JoinMode::Partitioned));
        divided.transpose()
    }
}

/// Whether both sides may be divided.
fn may_divide(join: &RangeJoinExec, config: &ConfigOptions) -> Result<bool> {
    if RmqOptions::of(config).join_mode != JoinModeChoice::Auto {
        return Ok(false);
    }
    let reason = join.why_shared()?;
    if let Some(reason) = &reason {
        log::debug!("{} is not partitioned: {reason}", join.label());
    }
    Ok(reason.is_none())
}

#[expect(clippy::cast_precision_loss, reason = "estimates")]
fn work(bytes: usize) -> f64 {
    bytes as f64
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
        if !is_divided {
            return Ok(plan);
        }
        let workers = (self.workers)()?.len().max(1);
        let plan = plan.transform_up(|plan| {
            let join = plan.downcast_ref::<RangeJoinExec>();
            let chosen = join.map(|join| self.chosen(join, workers, config));
            Ok(match chosen.transpose()?.flatten() {
                Some(chosen) => Transformed::yes(Arc::new(chosen)),
                None => Transformed::no(plan),
            })
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
