//! The choices of one query between a range join and the join as it was written.
//!
//! The cost of both is known when the sides of a range join are planned. So a plan is made with range joins, and, if
//! some of them should be slower, made again without these. Then it is also known whether a difference of integers can
//! wrap around.

use std::sync::{Arc, Mutex, PoisonError};

use datafusion::catalog::Session;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, plan_err};
use datafusion::execution::context::SessionState;
use datafusion::logical_expr::{Extension, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::range_join::exec::RangeJoinExec;
use crate::optimizer::cost::decision::{
    why_accumulators_stay, why_grouped_join_stays, why_ranges_stay,
};
use crate::optimizer::cost::equal_rows::Sides;
use crate::optimizer::cost::extremes::has_room;
use crate::optimizer::cost::range_rows::rows_in_range;
use datafusion_rmq_logical::common::options::{RangeJoinChoice, RmqOptions};
use datafusion_rmq_logical::conditions::condition::conversion;
use datafusion_rmq_logical::logical_plan::join_choice::JoinChoice;
use datafusion_rmq_logical::logical_plan::range_join::AggregateKind;

/// The choices that fell on the join as it was written.
#[derive(Debug, Default)]
pub(crate) struct JoinChoices(Mutex<Vec<JoinChoice>>);

impl JoinChoices {
    /// Notes a choice if the range join in its planned input should be slower than the join as it was written, or may
    /// have other rows.
    pub(crate) fn note(
        &self,
        node: &JoinChoice,
        range_join: &Arc<dyn ExecutionPlan>,
        session: &dyn Session,
    ) -> Result<()> {
        let join = range_join_in(range_join);
        let never_wraps = || join.map_or(Ok(false), never_wraps);
        let options = RmqOptions::of(session.config_options());
        let reason = if node.has_differences() && !never_wraps()? {
            Some("nothing shows that its difference of integers can't wrap around".to_string())
        } else if options.range_joins == RangeJoinChoice::Always {
            None
        } else {
            join.map(|join| why_stays(join, session))
                .transpose()?
                .flatten()
        };
        if let Some(reason) = reason {
            log::debug!("a join with GROUP BY stays as it is: {reason}");
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
        let state = session.as_any().downcast_ref::<SessionState>();
        let Some(state) = state.filter(|_| !chosen.is_empty()) else {
            // A session of another kind has no optimizer.
            if chosen.iter().any(JoinChoice::has_differences) {
                return plan_err!(
                    "a difference of integers in a join with GROUP BY may wrap around, and only a SessionState can \
                     plan that: set rmq.rewrite to false"
                );
            }
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

/// Whether the differences of integers that are the bounds of a range join are known not to wrap around: for no row of
/// the probe side.
fn never_wraps(join: &RangeJoinExec) -> Result<bool> {
    for (_, bound) in &join.spec().bounds {
        let mut never = true;
        bound.apply(|part| {
            if let Some((conversion, of)) = conversion(part)
                && let Some(ends) = conversion.wraps_at()
            {
                never &= has_room(join.probe(), of, ends, conversion.key_type())?;
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        if !never {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Why the join as it was written should be faster than a range join, if it should.
fn why_stays(join: &RangeJoinExec, session: &dyn Session) -> Result<Option<String>> {
    let sides = Sides {
        on: &join.spec().on,
        probe: join.probe(),
        build: join.build(),
    };
    let mut aggregates = join.spec().aggregates.iter();
    if aggregates.all(|aggregate| aggregate.function == AggregateKind::Accumulate) {
        let rows = rows_in_range(&sides, &join.spec().key, &join.spec().bounds)?;
        if let Some(reason) = why_accumulators_stay(rows) {
            return Ok(Some(reason));
        }
    }
    let memory = session.runtime_env().memory_pool.memory_limit();
    if join.spec().returns_ranges()
        && let Some(reason) = why_ranges_stay(&sides, &memory)
    {
        return Ok(Some(reason));
    }
    why_grouped_join_stays(&sides, &memory)
}
