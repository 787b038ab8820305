//! How far a running query is, for a progress bar.

use std::sync::{Arc, OnceLock};

use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::statistics::StatisticsArgs;
use pyo3::prelude::*;

use crate::runtime::run_watched;

/// Looks at a query before a bar is shown: half a second.
const LOOKS: usize = 10;

/// The plan of a query, once it is known.
pub type RunningPlan = Arc<OnceLock<Arc<dyn ExecutionPlan>>>;

/// Runs a future that plans and runs a query, and shows a bar, which `make` makes, once the plan is known to `running`.
pub fn run_with_bar<T: Send + 'static>(
    py: Python<'_>,
    make: Option<&Py<PyAny>>,
    running: &RunningPlan,
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> PyResult<T> {
    let mut bar = Bar::new(make);
    let done = run_watched(py, future, || bar.look(py, running));
    // An error of the query comes first.
    let closed = bar.close();
    done.and_then(|done| closed.map(|()| done))
}

/// The bar of one query. It is made when the query has run for a while, by a function that returns an object with the
/// methods `update(read, total)` and `close()`.
struct Bar<'a, 'py> {
    make: Option<&'a Py<PyAny>>,
    made: Option<Bound<'py, PyAny>>,
    looks: usize,
}

impl<'a, 'py> Bar<'a, 'py> {
    fn new(make: Option<&'a Py<PyAny>>) -> Self {
        Self {
            make,
            made: None,
            looks: 0,
        }
    }

    /// Shows how many rows the scans of the plan have read.
    fn look(&mut self, py: Python<'py>, plan: &RunningPlan) -> PyResult<()> {
        self.looks += 1;
        let (Some(make), Some(plan), true) = (self.make, plan.get(), self.looks >= LOOKS) else {
            return Ok(());
        };
        if self.made.is_none() {
            self.made = Some(make.bind(py).call0()?);
        }
        let Some(bar) = &self.made else { return Ok(()) };
        bar.call_method1("update", rows_read(plan))?;
        Ok(())
    }

    fn close(self) -> PyResult<()> {
        self.made
            .map_or(Ok(()), |bar| bar.call_method0("close").map(drop))
    }
}

/// The rows that the leaves of a plan have returned, and all that they will, if that is known or estimated.
fn rows_read(plan: &Arc<dyn ExecutionPlan>) -> (usize, Option<usize>) {
    let children = plan.children();
    if children.is_empty() {
        let read = plan.metrics().and_then(|metrics| metrics.output_rows());
        let statistics = plan.statistics_from_inputs(&[], &StatisticsArgs::new());
        let total = statistics
            .ok()
            .and_then(|s| s.num_rows.get_value().copied());
        return (read.unwrap_or(0), total);
    }
    let parts = children.into_iter().map(rows_read);
    parts.fold((0, Some(0)), |(read, total), (more, of)| {
        (read + more, total.zip(of).map(|(a, b)| a + b))
    })
}
