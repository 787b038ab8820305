//! Row counts from the statistics of plans.

use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::common::stats::Precision;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use crate::exec::common::ordered_rows::OrderedRowsExec;

/// The number of rows that a plan is estimated to return, if its statistics have an estimate.
pub(crate) fn expected_rows(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    statistics(plan)?.num_rows.get_value().copied()
}

/// The number of rows that a plan returns, if its statistics are exact.
pub(crate) fn exact_rows(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    exact(&statistics(plan)?.num_rows)
}

/// The number of rows that the scans of a plan are estimated to return, if all have an estimate.
pub(crate) fn expected_scanned_rows(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    if let Some(rows) = plan.downcast_ref::<OrderedRowsExec>() {
        return expected_scanned_rows(rows.hidden());
    }
    let children = plan.children();
    if children.is_empty() {
        return expected_rows(plan);
    }
    children.into_iter().map(expected_scanned_rows).sum()
}

/// The value of an exact statistic; `None` for an estimate.
pub(crate) fn exact(rows: &Precision<usize>) -> Option<usize> {
    match rows {
        Precision::Exact(rows) => Some(*rows),
        _ => None,
    }
}

/// The statistics of a plan, if it has any.
pub(crate) fn statistics(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<Statistics>> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new());
    statistics.ok()
}
