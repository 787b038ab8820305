//! What a running statement has done so far, and joins that will take long.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_rmq::parts::{QuadraticJoin, Stop};
use datafusion_rmq::physical_plan::RangeLookupExec;

/// The statement that runs at the prompt: its plan, and whether a line on the terminal shows its progress.
#[derive(Debug, Clone, Default)]
pub struct Watch(Arc<Mutex<Watched>>);

#[derive(Debug, Default)]
struct Watched {
    /// Whether there is a terminal that shows anything.
    is_on: bool,
    plan: Option<Arc<dyn ExecutionPlan>>,
    /// What is announced once the statement has run for some time.
    announced_late: Vec<String>,
    is_shown: bool,
    /// Whether a pager shows a result.
    is_paging: bool,
    stop: Stop,
}

impl Watch {
    /// A watch that shows what it sees, if standard output and standard error are terminals.
    pub fn of_terminal() -> Self {
        let is_on = io::stdout().is_terminal() && io::stderr().is_terminal();
        Self(Arc::new(Mutex::new(Watched {
            is_on,
            ..Watched::default()
        })))
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins another statement; returns the request that stops it.
    pub fn begin(&self) -> Stop {
        let stop = Stop::default();
        self.watched().stop = stop.clone();
        stop
    }

    pub fn set_paging(&self, is_paging: bool) {
        self.watched().is_paging = is_paging;
    }

    pub fn is_paging(&self) -> bool {
        self.watched().is_paging
    }

    /// Shows how far the statement is, after this time.
    pub fn show(&self, elapsed: Duration) {
        let mut watched = self.watched();
        for line in std::mem::take(&mut watched.announced_late) {
            let _ = writeln!(io::stderr(), "{line}");
        }
        let Some(plan) = watched.plan.as_ref().filter(|_| watched.is_on) else {
            return;
        };
        let line = format!("{}, {:.0} s", Progress::of(plan), elapsed.as_secs_f64());
        let _ = write!(io::stderr(), "\r\x1b[K{line}\r");
        watched.is_shown = true;
    }

    /// Clears the line, and shows no other for this statement: its result is printed now, or it has ended.
    pub fn finish(&self) {
        let mut watched = self.watched();
        watched.plan = None;
        watched.announced_late.clear();
        if std::mem::take(&mut watched.is_shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// Notes the plan that is about to run, and announces joins of many pairs: those of an unknown number of pairs once
    /// they take long. Returns the plan with joins that stop when the statement is cancelled.
    fn start(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        query: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut watched = self.watched();
        if !watched.is_on {
            return Ok(plan);
        }
        watched.announced_late.clear();
        for join in QuadraticJoin::all_in(&plan, query, session.config_options()) {
            let line = announcement(&join);
            match join.is_slow() {
                Some(true) => {
                    let _ = writeln!(io::stderr(), "{line}");
                }
                Some(false) => {}
                None => watched.announced_late.push(line),
            }
        }
        let is_shown = matches!(query, LogicalPlan::Analyze(_));
        let plan = watched.stop.watch_joins(plan, is_shown)?;
        watched.plan = Some(Arc::clone(&plan));
        Ok(plan)
    }
}

/// What is said about a join before, or while, it runs.
fn announcement(join: &QuadraticJoin) -> String {
    let pairs = match join.pairs {
        Some(pairs) => {
            let pairs = Count(u64::try_from(pairs).unwrap_or(u64::MAX));
            format!("{pairs} pairs of rows")
        }
        None => "every pair of rows of both sides".to_string(),
    };
    format!("A join compares {pairs}{}: {}.", join.which, join.reason)
}

/// A query planner that lets a [`Watch`] see each plan.
#[derive(Debug)]
pub struct WatchedPlanner {
    pub planner: Arc<dyn QueryPlanner + Send + Sync>,
    pub watch: Watch,
}

#[async_trait]
impl QueryPlanner for WatchedPlanner {
    async fn create_physical_plan(
        &self,
        query: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = self.planner.create_physical_plan(query, session).await?;
        self.watch.start(plan, query, session)
    }
}

/// Rows that the operators of a plan have seen so far.
#[derive(Debug, Default, PartialEq, Eq)]
struct Progress {
    read: u64,
    built: u64,
    probed: u64,
    joined: u64,
    /// Those of the operator that has returned most, and its name.
    most: (u64, String),
}

impl Progress {
    fn of(plan: &Arc<dyn ExecutionPlan>) -> Self {
        let mut progress = Self::default();
        progress.add(plan);
        progress
    }

    fn add(&mut self, plan: &Arc<dyn ExecutionPlan>) {
        let children = plan.children();
        if let Some(metrics) = plan.metrics() {
            let rows = metrics.output_rows().unwrap_or(0) as u64;
            let sum = |name: &str| {
                metrics
                    .sum_by_name(name)
                    .map_or(0, |sum| sum.as_usize() as u64)
            };
            if rows > self.most.0 {
                self.most = (rows, plan.name().trim_end_matches("Exec").to_string());
            }
            if children.is_empty() {
                self.read += rows;
            }
            if let Some(lookup) = plan.downcast_ref::<RangeLookupExec>() {
                self.read += lookup.index_rows_read() as u64;
            }
            self.built += sum("index_rows");
            if children.len() == 2 {
                self.built += sum("build_rows") + sum("build_input_rows");
                self.probed += sum("probe_rows") + sum("input_rows");
                self.joined += rows;
            }
        }
        for child in children {
            self.add(child);
        }
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.read, "rows read"),
            (self.built, "built"),
            (self.probed, "probed"),
            (self.joined, "joined"),
        ];
        let parts = parts.into_iter().filter(|(rows, _)| *rows > 0);
        let parts = parts.map(|(rows, what)| format!("{} {what}", Count(rows)));
        let mut parts = parts.collect::<Vec<_>>();
        let (rows, operator) = &self.most;
        if self.probed == 0 && self.joined == 0 && *rows > self.read {
            parts.push(format!("{} rows from {operator}", Count(*rows)));
        }
        f.write_str(if parts.is_empty() { "running" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

/// A number of rows with three digits.
struct Count(u64);

impl fmt::Display for Count {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            (1e12, " trillion"),
            (1e9, " billion"),
            (1e6, "M"),
            (1e3, "k"),
        ];
        match units.into_iter().find(|(unit, _)| self.0 as f64 >= *unit) {
            Some((unit, name)) => write!(f, "{:.1}{name}", self.0 as f64 / unit),
            None => self.0.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_few_digits() {
        let shown = [0, 999, 1000, 12_345, 5_000_000, 20_000_000_000].map(|n| Count(n).to_string());
        assert_eq!(shown, ["0", "999", "1.0k", "12.3k", "5.0M", "20.0 billion"]);
        let progress = Progress {
            read: 1000,
            joined: 7,
            ..Progress::default()
        };
        assert_eq!(progress.to_string(), "1.0k rows read, 7 joined");
        let progress = Progress {
            read: 1000,
            most: (2_000_000, "Unnest".to_string()),
            ..Progress::default()
        };
        assert_eq!(
            progress.to_string(),
            "1.0k rows read, 2.0M rows from Unnest"
        );
        assert_eq!(Progress::default().to_string(), "running");
    }
}
