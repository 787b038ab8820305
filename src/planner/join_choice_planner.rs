//! From `JoinChoice` to one of its plans.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::SessionState;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::PhysicalPlanner;

use crate::common::options::{RmqOptions, RowJoins};
use crate::exec::common::statistics::expected_rows;
use crate::exec::range_join::exec::RangeJoinExec;
use crate::exec::range_join::join_rule::cost::{AGGREGATED_PAIR_NS, PairCount, count_pairs};
use crate::logical_plan::join_choice::JoinChoice;

/// So many rows of both sides are sorted and searched in a few milliseconds.
const FEW_ROWS: usize = 1 << 16;

/// Returns the plan over a range join, or plans the other one, if that is known to be done sooner.
pub(crate) async fn plan_join_choice(
    node: &JoinChoice,
    range_join: &Arc<dyn ExecutionPlan>,
    planner: &dyn PhysicalPlanner,
    session: &dyn Session,
) -> Result<Arc<dyn ExecutionPlan>> {
    let options = RmqOptions::of(session.config_options());
    let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
        return Ok(Arc::clone(range_join));
    };
    let Some(rows) = few_equal_rows(range_join)?.filter(|_| options.row_joins != RowJoins::Always)
    else {
        return Ok(Arc::clone(range_join));
    };
    log::debug!(
        "a join with GROUP BY stays as it is: only about {rows:.1} rows have the keys of a row of the other side"
    );
    let mut config = state.config().clone();
    config.options_mut().set("rmq.rewrite", "false")?;
    // The planner of the whole query optimizes the physical plan.
    let state = SessionStateBuilder::new_from_existing(state.clone())
        .with_config(config)
        .with_physical_optimizer_rules(vec![])
        .build();
    let as_written = node.as_written().clone();
    let as_written = state.optimizer().optimize(as_written, &state, |_, _| {})?;
    planner.create_physical_plan(&as_written, &state).await
}

/// The number of build rows with the same keys as a probe row, if `DataFusion`'s join needs less time for them than the range join of a plan needs for
/// its sort.
fn few_equal_rows(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<f64>> {
    let mut plan = plan;
    let join = loop {
        match plan.downcast_ref::<RangeJoinExec>() {
            Some(join) => break join,
            None => match plan.children()[..] {
                [input] => plan = input,
                _ => return Ok(None),
            },
        }
    };
    let (probe, build) = (join.probe(), join.build());
    let rows = [probe, build].into_iter().filter_map(expected_rows);
    if join.spec().on.is_empty() || rows.sum::<usize>() <= FEW_ROWS {
        return Ok(None);
    }
    Ok(
        match count_pairs(&join.spec().on, probe, build, AGGREGATED_PAIR_NS)? {
            PairCount::Few(rows) => Some(rows),
            PairCount::Many | PairCount::Unknown => None,
        },
    )
}
