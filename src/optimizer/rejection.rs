//! Why a rule leaves a plan unchanged, and for which part of a statement.

use std::any::Any;
use std::fmt::{self, Display};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use datafusion::common::alias::AliasGenerator;
use datafusion::common::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result, config_err};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use datafusion::sql::unparser::Unparser;

use crate::common::sql_text::cut;
use crate::optimizer::instead::{Shape, instead_of};
use crate::optimizer::written::without_coercions_in;

/// What a rule found in a plan, or why the plan does not match.
pub(crate) type Match<T> = Result<T, Rejection>;

/// Why a plan does not match a rule. Errors of DataFusion on the way are rejections, too: a rule that rewrites plain
/// SQL does not fail.
#[derive(Debug)]
pub(crate) struct Rejection(String);

impl Rejection {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<DataFusionError> for Rejection {
    fn from(error: DataFusionError) -> Self {
        Self(error.strip_backtrace())
    }
}

/// Rejects a plan for this reason.
pub(crate) fn reject<T>(reason: impl Into<String>) -> Match<T> {
    Err(Rejection::new(reason))
}

/// Why a comparison with columns of both sides in one operand is rejected.
pub(crate) fn mixes_sides(comparison: &str) -> String {
    format!(
        "{comparison} mixes the sides: write the columns of one side on the left and those of the other on the right, as \
         in p.ts <= 4 - q.ts for p.ts + q.ts <= 4"
    )
}

/// What was found, if anything. The log says why `what` stays as it is otherwise.
pub(crate) fn or_log<T>(found: Match<T>, what: impl Display) -> Option<T> {
    found
        .inspect_err(|reason| log::debug!("{what} stays as it is: {reason}"))
        .ok()
}

impl Shape {
    /// How the errors of DataFusion's planner name it.
    fn is_named_in(self, error: &str) -> bool {
        let names: &[&str] = match self {
            Self::Scalar => &["ScalarSubquery(", "scalar_subquery_to_join"],
            Self::Exists => &["Exists(", "decorrelate_predicate_subquery"],
            Self::In => &["InSubquery(", "decorrelate_predicate_subquery"],
            Self::Lateral => &[
                "OuterReferenceColumn(",
                "undecorrelated Subquery",
                "decorrelate_lateral_join",
            ],
        };
        names.iter().any(|name| error.contains(name))
    }
}

/// A rejected subquery of a statement.
#[derive(Debug, Clone)]
pub(crate) struct RejectedSubquery {
    shape: Shape,
    subquery: LogicalPlan,
    reason: String,
}

impl RejectedSubquery {
    pub(crate) fn new(shape: Shape, subquery: &LogicalPlan, reason: &Rejection) -> Self {
        Self {
            shape,
            subquery: subquery.clone(),
            reason: reason.to_string(),
        }
    }

    /// The subquery as SQL in parentheses, cut if it is long.
    fn sql(&self) -> String {
        // On a stack of its own: the unparser takes more for each nested query than DataFusion's guard of the stack
        // leaves, and rules run deep in the recursion over a plan.
        let sql = stacker::grow(UNPARSER_STACK, || {
            let unparser = Unparser::default().with_pretty(true);
            let shown = without_coercions_in(&self.subquery);
            let sql = unparser.plan_to_sql(shown.as_ref().unwrap_or(&self.subquery));
            sql.map(|sql| sql.to_string())
        });
        let sql = sql.unwrap_or_else(|_| format!("SELECT … FROM {}", tables(&self.subquery)));
        format!("({})", cut(&sql, MAX_SUBQUERY))
    }

    /// What to write instead, unless the reason says so.
    fn instead(&self, sql: &str) -> Option<String> {
        let shown = without_coercions_in(&self.subquery);
        let subquery = shown.as_ref().unwrap_or(&self.subquery);
        let is_told = self.reason.contains(": write ");
        (!is_told).then(|| instead_of(self.shape, subquery, sql))
    }
}

/// The tables of a plan that has no SQL.
fn tables(plan: &LogicalPlan) -> String {
    let mut names: Vec<String> = vec![];
    let visited = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            names.push(scan.table_name.to_string());
        }
        Ok(TreeNodeRecursion::Continue)
    });
    match visited {
        Ok(_) => names.join(", "),
        Err(_) => "…".to_string(),
    }
}

impl Display for RejectedSubquery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sql = self.sql();
        let before = match self.shape {
            Shape::Scalar => "",
            Shape::Exists => "EXISTS ",
            Shape::In => "IN ",
            Shape::Lateral => "LATERAL ",
        };
        write!(f, "{before}{sql}: {}", self.reason)?;
        match self.instead(&sql) {
            Some(instead) => write!(f, ": write {instead}"),
            None => Ok(()),
        }
    }
}

/// The most characters of a subquery in an error.
const MAX_SUBQUERY: usize = 240;

/// The bytes of stack for the text of a subquery. Only those that are used become memory.
const UNPARSER_STACK: usize = 16 << 20;

/// The rejected subqueries of the statements that a session is planning, in the configuration of its optimizer. A
/// statement is known by its generator of aliases: each has its own.
#[derive(Debug, Clone, Default)]
pub(crate) struct RejectionLog(Arc<Mutex<Vec<Statement>>>);

#[derive(Debug)]
struct Statement {
    /// Weak, so that what is left of a statement whose planning ended elsewhere is found and dropped.
    id: Weak<AliasGenerator>,
    rejected: Vec<RejectedSubquery>,
    /// Whether further rejections are ignored: those of subqueries that DataFusion has rewritten are less to the point.
    is_settled: bool,
}

impl RejectionLog {
    fn statements(&self) -> MutexGuard<'_, Vec<Statement>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the rejected subqueries of a statement.
    pub(crate) fn take(config: &dyn OptimizerConfig) -> Vec<RejectedSubquery> {
        let Some(log) = config.options().extensions.get::<Self>().cloned() else {
            return vec![];
        };
        let id = Arc::as_ptr(config.alias_generator());
        let mut statements = log.statements();
        let index = statements.iter().position(|s| s.id.as_ptr() == id);
        index.map_or_else(Vec::new, |index| statements.swap_remove(index).rejected)
    }
}

/// Logs why a subquery stays as it is, and notes it for the error that may follow.
pub(crate) fn note(
    config: &dyn OptimizerConfig,
    shape: Shape,
    subquery: &LogicalPlan,
    reason: &Rejection,
) {
    let rejected = RejectedSubquery::new(shape, subquery, reason);
    // The arguments of `debug` are computed for a logger that filters the line out, too.
    if log::log_enabled!(log::Level::Debug) {
        log::debug!("{} stays as it is: {reason}", rejected.sql());
    }
    let Some(log) = config.options().extensions.get::<RejectionLog>().cloned() else {
        return;
    };
    let id = Arc::downgrade(config.alias_generator());
    let mut statements = log.statements();
    statements.retain(|statement| statement.id.strong_count() > 0);
    match statements.iter_mut().find(|s| s.id.ptr_eq(&id)) {
        Some(statement) if statement.is_settled => {}
        Some(statement) => statement.rejected.push(rejected),
        None => statements.push(Statement {
            id,
            rejected: vec![rejected],
            is_settled: false,
        }),
    }
}

/// Ends the notes of rejected subqueries: later rules and passes look at what DataFusion has made of them. Changes no
/// plan.
#[derive(Debug, Default)]
pub struct KeepFirstReasons;

impl OptimizerRule for KeepFirstReasons {
    fn name(&self) -> &'static str {
        "rmq_keep_first_reasons"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        if let Some(log) = config.options().extensions.get::<RejectionLog>() {
            let id = Arc::as_ptr(config.alias_generator());
            for statement in log.statements().iter_mut().filter(|s| s.id.as_ptr() == id) {
                statement.is_settled = true;
            }
        }
        Ok(Transformed::no(plan))
    }
}

/// A rule of DataFusion for subqueries, whose errors say why these did not become range joins.
#[derive(Debug)]
pub(crate) struct ExplainedRule(Arc<dyn OptimizerRule + Send + Sync>);

impl ExplainedRule {
    /// The rules of DataFusion that this is for.
    pub(crate) const NAMES: [&str; 3] = [
        "decorrelate_predicate_subquery",
        "scalar_subquery_to_join",
        "decorrelate_lateral_join",
    ];

    pub(crate) fn new(rule: Arc<dyn OptimizerRule + Send + Sync>) -> Self {
        Self(rule)
    }
}

impl OptimizerRule for ExplainedRule {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        self.0.rewrite(plan, config).map_err(|error| {
            let rejected = RejectionLog::take(config);
            // A second registration wraps the rule twice.
            match explain_failure(self.name(), &rejected) {
                Some(reasons) if !rejected.is_empty() => error.context(reasons),
                _ => error,
            }
        })
    }
}

/// Adds to an error of planning why its subqueries did not become range joins. `None` if the error is about something
/// else.
pub(crate) fn explain_failure(error: &str, rejected: &[RejectedSubquery]) -> Option<String> {
    const SHAPES: [Shape; 4] = [Shape::Scalar, Shape::Exists, Shape::In, Shape::Lateral];
    if !SHAPES.iter().any(|shape| shape.is_named_in(error)) {
        return None;
    }
    let is_named = |rejected: &&RejectedSubquery| rejected.shape.is_named_in(error);
    let mut reasons: Vec<String> = rejected
        .iter()
        .filter(is_named)
        .map(ToString::to_string)
        .collect();
    if reasons.is_empty() {
        reasons = rejected.iter().map(ToString::to_string).collect();
    }
    reasons.dedup();
    let why = if reasons.is_empty() {
        ", if rmq.rewrite is true and its form is one of docs/sql.md#plain-sql.".to_string()
    } else {
        format!(", and did not:\n  {}", reasons.join("\n  "))
    };
    Some(format!(
        "DataFusion has no plan for a subquery like this one, which depends on the outer query. It would have to \
         become a range join{why}\ndocs/sql.md#instead-of has queries like these, and what to write."
    ))
}

impl ConfigExtension for RejectionLog {
    const PREFIX: &'static str = "rmq_rejections";
}

/// Without options: the configuration is where rules find what belongs to their session.
impl ExtensionOptions for RejectionLog {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, _: &str) -> Result<()> {
        config_err!("there is no option {}.{key}", Self::PREFIX)
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        vec![]
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use datafusion::prelude::SessionContext;

    use super::*;

    #[test]
    fn the_text_of_a_deep_subquery_needs_little_of_the_callers_stack() -> Result<()> {
        let nested = (0..12).fold("SELECT 1 AS v".to_string(), |query, level| {
            format!("SELECT max(v) + {level} AS v FROM ({query}) GROUP BY v % 3")
        });
        let runtime = tokio::runtime::Runtime::new()?;
        let plan = runtime.block_on(SessionContext::new().sql(&nested))?;
        let rejected = RejectedSubquery {
            shape: Shape::Scalar,
            subquery: plan.into_unoptimized_plan(),
            reason: "it is deep".to_string(),
        };
        let text = thread::Builder::new()
            .stack_size(128 << 10)
            .spawn(move || (rejected.to_string(), rejected))?;
        let (text, _) = text.join().expect("the thread has stack enough");
        assert!(
            text.starts_with("(SELECT max(v) + 11 AS v FROM (SELECT max(v) + 10"),
            "{text}"
        );
        Ok(())
    }
}
