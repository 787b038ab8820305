//! How a range join divides its build side among the partitions of the probe side.
//!
//! An engine that executes a plan on several machines divides it into tasks, and knows what a task needs by the
//! distribution that operators require of their inputs. [`JoinMode::Collected`] requires `SinglePartition` of the build
//! side, which may be copied to every task, and of both sides where only one task has the answer: build rows are
//! returned by whether any probe row matches, or the result depends on the order of build rows with equal keys, and
//! these are not in a defined order. Where they are, each task reads them itself
//! ([`OrderedRowsExec`](crate::exec::common::ordered_rows::OrderedRowsExec)).
//! [`JoinMode::Partitioned`] requires partitions by the equality keys; where each side has one partition, nothing has
//! divided the sides, and it requires `SinglePartition` of both. If the result depends on the order of build rows,
//! these take their position along ([`row_positions`](crate::exec::common::row_positions)), and each partition of them
//! is required in the order of positions: equal keys are then in the order of one node.
//!
//! Equal keys must have equal hashes: DataFusion hashes the bits of a value, with zeros of both signs as one, as groups
//! compare them, but values of two types differently, so the types must be the same.
//!
//! Each partition of [`JoinMode::Partitioned`] is an execution with a build side of its own, `builds` of them at a
//! time: each has its share of the threads, and collects no more than its share of a limited pool before it spills, as
//! otherwise the first ones would leave nothing for the last. A partition without a probe row polls its build input
//! once and drops it: a `RepartitionExec` keeps the rows of an output that was never polled.
//!
//! `auto` is shared: skew of the equality keys does not slow the shared build, and windows, sorts and
//! `UniqueGroupsExec` above profit from its order. Inputs that are co-partitioned as they are (windows or aggregates by
//! the same keys) take as long either way (`partitioned_inputs` in `benches/README.md`), so no rule looks for them.

use arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr_common::physical_expr::is_volatile;

use datafusion_rmq_logical::common::options::RmqOptions;
use datafusion_rmq_logical::logical_plan::range_join::RangeJoinSpec;

/// How a [`RangeJoinExec`](crate::physical_plan::RangeJoinExec) divides its build side among the partitions of the
/// probe side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinMode {
    /// One build side of all rows, which all partitions of the probe side share. Neither side is repartitioned, and the
    /// build side is built on all threads, whatever its distribution of equality keys.
    Shared,
    /// One build side of all rows, which arrive in one partition. A plan that is divided into tasks returns the same
    /// rows: each task has the whole build side, and joins for which that is not enough have one task.
    Collected,
    /// One build side for each partition of the probe side, of the rows of the build side's partition of the same
    /// number. Both sides are partitioned by the equality keys, so that no process needs the whole build side.
    Partitioned,
}

impl JoinMode {
    /// The mode in which joins are planned. Those to be partitioned are collected first, until a rule has found out
    /// which can be.
    pub(crate) fn planned(config: &ConfigOptions) -> Self {
        if RmqOptions::of(config).shares_build_sides() {
            Self::Shared
        } else {
            Self::Collected
        }
    }

    /// What EXPLAIN shows, if it is not the mode of a single machine.
    pub(crate) fn label(self) -> Option<&'static str> {
        match self {
            Self::Shared => None,
            Self::Collected => Some("mode=Collected"),
            Self::Partitioned => Some("mode=Partitioned"),
        }
    }
}

/// Why the sides of a join can't be partitioned by the equality keys, if they can't, whatever the order of build rows.
pub(crate) fn why_shared(
    spec: &RangeJoinSpec<PhysicalExprRef>,
    (probe, build): (&Schema, &Schema),
    is_probe_bounded: bool,
) -> Result<Option<String>> {
    let because = |reason: &str| Ok(Some(reason.to_string()));
    if spec.on.is_empty() {
        return because("it has no equality keys");
    }
    if !is_probe_bounded {
        // A merge that keeps its order would wait for rows of each partition.
        return because("the side that is streamed has no end");
    }
    for (ours, theirs) in &spec.on {
        let (a, b) = (ours.data_type(probe)?, theirs.data_type(build)?);
        if a != b {
            // Equal values of two types have different hashes.
            return Ok(Some(format!("{ours} = {theirs} compares a {a} and a {b}")));
        }
        if is_volatile(ours) || is_volatile(theirs) {
            return Ok(Some(format!(
                "{ours} = {theirs} has another value each time"
            )));
        }
    }
    Ok(None)
}
