//! The choices of one query between a range join and the join as it was written.
//!
//! The cost of both is known when the sides of a range join are planned. So a plan is made with range joins, and, if
//! some of them should be slower, made again without these.

use std::sync::{Arc, Mutex, PoisonError};

use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::execution::context::SessionState;
use datafusion::logical_expr::{Extension, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;

use crate::common::options::{RangeJoinChoice, RmqOptions};
use crate::exec::range_join::exec::RangeJoinExec;
use crate::logical_plan::join_choice::JoinChoice;
use crate::optimizer::cost::decision::why_grouped_join_stays;
use crate::optimizer::cost::equal_rows::Sides;

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
        if RmqOptions::of(session.config_options()).range_joins == RangeJoinChoice::Always {
            return Ok(());
        }
        if let Some(join) = range_join_in(range_join)
            && let Some(reason) = why_stays(join, session)?
        {
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
        // A session of another kind has no optimizer.
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

/// Why the join as it was written should be faster than a range join, if it should.
fn why_stays(join: &RangeJoinExec, session: &dyn Session) -> Result<Option<String>> {
    let sides = Sides {
        on: &join.spec().on,
        probe: join.probe(),
        build: join.build(),
    };
    let memory = session.runtime_env().memory_pool.memory_limit();
    why_grouped_join_stays(&sides, &memory)
}
