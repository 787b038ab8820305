//! The choices of one query between a range join and the join as it was written.
//!
//! The cost of both is known when the sides of a range join are planned. So a plan is made with range joins, and, if some of them should be slower, made
//! again without these.

use std::sync::{Arc, Mutex, PoisonError};

use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::execution::context::SessionState;
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::logical_expr::{Extension, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;

use crate::common::options::{RmqOptions, RowJoins};
use crate::exec::common::statistics::{expected_rows, statistics};
use crate::exec::range_join::exec::RangeJoinExec;
use crate::logical_plan::join_choice::JoinChoice;
use crate::optimizer::cost::{AGGREGATED_PAIR_NS, PairCount, count_pairs};

/// So many rows of both sides are sorted and searched in a few milliseconds.
const FEW_ROWS: usize = 1 << 16;

/// A hash join cannot spill. Its table, and the rows in it, may take this many times the bytes of the smaller side, with room for other operators.
const HASH_JOIN_BYTES: usize = 4;

/// The choices that fell on the join as it was written.
#[derive(Debug, Default)]
pub(crate) struct JoinChoices(Mutex<Vec<JoinChoice>>);

impl JoinChoices {
    /// Notes a choice if the range join in its planned input should be slower than the join as it was written.
    pub(crate) fn note(
        &self,
        node: &JoinChoice,
        range_join: &Arc<dyn ExecutionPlan>,
        session: &dyn Session,
    ) -> Result<()> {
        if RmqOptions::of(session.config_options()).row_joins == RowJoins::Always {
            return Ok(());
        }
        if let Some(join) = range_join_in(range_join)
            && let Some(rows) = few_equal_rows(join)?
            && fits_in_memory(join, session)
        {
            log::debug!(
                "a join with GROUP BY stays as it is: only about {rows:.1} rows have the keys of a row of the other side"
            );
            let mut chosen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            chosen.push(node.clone());
        }
        Ok(())
    }

    /// The plan with the joins as they were written where they were chosen; `None` if none was.
    pub(crate) fn replace(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Option<LogicalPlan>> {
        let chosen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A session of another kind has no optimizer to ask.
        let state = session.as_any().downcast_ref::<SessionState>();
        let Some(state) = state.filter(|_| !chosen.is_empty()) else {
            return Ok(None);
        };
        let mut state = state.clone();
        let options = state.config_mut().options_mut();
        options.set("rmq.rewrite", "false")?;
        let replaced = plan.clone().transform_down_with_subqueries(|plan| {
            if let LogicalPlan::Extension(Extension { node }) = &plan
                && let Some(choice) = node.as_any().downcast_ref::<JoinChoice>()
                && chosen.contains(choice)
            {
                let plan = choice.as_written().clone();
                let plan = state.optimizer().optimize(plan, &state, |_, _| {})?;
                return Ok(Transformed::yes(plan));
            }
            Ok(Transformed::no(plan))
        })?;
        Ok(Some(replaced.data))
    }
}

/// The range join below projections and aggregates.
fn range_join_in(plan: &Arc<dyn ExecutionPlan>) -> Option<&RangeJoinExec> {
    match plan.downcast_ref() {
        Some(join) => Some(join),
        None => match plan.children()[..] {
            [input] => range_join_in(input),
            _ => None,
        },
    }
}

/// The number of build rows with the same keys as a probe row, if `DataFusion`'s join needs less time for them than the range join needs for its sort.
fn few_equal_rows(join: &RangeJoinExec) -> Result<Option<f64>> {
    let (probe, build, on) = (join.probe(), join.build(), &join.spec().on);
    let rows = [probe, build].into_iter().filter_map(expected_rows);
    if on.is_empty() || rows.sum::<usize>() <= FEW_ROWS {
        return Ok(None);
    }
    Ok(match count_pairs(on, probe, build, AGGREGATED_PAIR_NS)? {
        PairCount::Few(rows) => Some(rows),
        PairCount::Many | PairCount::Unknown => None,
    })
}

/// Whether a hash join of the sides of a range join, which can spill, would fit in the session's memory.
fn fits_in_memory(join: &RangeJoinExec, session: &dyn Session) -> bool {
    let MemoryLimit::Finite(limit) = session.runtime_env().memory_pool.memory_limit() else {
        return true;
    };
    let sides = [join.probe(), join.build()].into_iter();
    let bytes = sides.filter_map(|side| statistics(side)?.total_byte_size.get_value().copied());
    bytes
        .min()
        .is_some_and(|bytes| bytes.saturating_mul(HASH_JOIN_BYTES) <= limit)
}
