//! The table function `range_join(…)`: its arguments, planned by `table_functions::range_join`, become a range join.
//!
//! ```text
//!   SELECT * FROM range_join('trades', 'quotes', 'sym', 'quotes.ts BETWEEN trades.a AND trades.b', 'min(price) AS low')
//!
//!   arguments                                             plan
//!   probe       TableScan: trades                         Projection: trades.*, min(quotes.price)#1 AS low
//!   build       TableScan: quotes                           RangeJoin: type=Left, on=[sym], range=quotes.ts in [trades.a, trades.b],
//!   condition   quotes.sym = trades.sym AND …                          aggs=[min(price)]
//!   aggregates  SELECT min(price) AS low FROM quotes          trades
//!                                                             quotes
//! ```
//!
//! The condition goes into the aggregates' query as that of a correlated subquery, which `correlated_aggregate`
//! matches. Here a rejection is an error, regardless of `rmq.rewrite`.

use std::sync::Arc;

use datafusion_common::Result;
use datafusion_expr::{Expr, LogicalPlan};
use datafusion_optimizer::OptimizerConfig;

use crate::conditions::rejection::{Match, Rejection, reject};
use crate::rules::common::outer_columns::to_outer;
use crate::rules::common::plans::{columns_of, filtered, projected};
use crate::rules::condition_parts::Constants;
use crate::rules::correlated_aggregate::CorrelatedAggregate;
use crate::rules::open_ends::compared_by_keys;
use crate::rules::threshold::match_condition;

/// The planned arguments of `range_join(…)`. Columns of the two sides have distinct qualified names.
#[derive(Debug)]
pub struct RangeJoinCall {
    /// The side whose rows are kept.
    pub probe: LogicalPlan,
    /// The side whose rows are aggregated.
    pub build: LogicalPlan,
    /// The condition between the two sides.
    pub condition: Expr,
    /// A `SELECT` of aggregates over all rows of the build side.
    pub aggregates: LogicalPlan,
    /// Whether the row in force at the start of a range counts.
    pub prevailing: bool,
}

/// The argument that was rejected, and why.
#[derive(Debug)]
pub enum ArgumentRejection {
    /// That of the condition.
    Condition(String),
    /// That of the aggregates.
    Aggregates(String),
    /// That of `'include prevailing'`.
    Prevailing(String),
}

impl RangeJoinCall {
    /// Plans the call: the columns of the probe side, then those of the aggregates.
    pub fn plan(self, config: &dyn OptimizerConfig) -> Result<LogicalPlan, ArgumentRejection> {
        let outputs = Arc::clone(self.aggregates.schema());
        let aggregates = |reason: Rejection| ArgumentRejection::Aggregates(reason.to_string());
        self.check_condition()?;
        let mut found = self.matched(config).map_err(aggregates)?;
        let probe = self.probe;
        let named = |probe: LogicalPlan| -> Result<LogicalPlan> {
            let values = std::mem::take(&mut found.values);
            let values = values.into_iter().zip(outputs.fields());
            let values = values.map(|(value, field)| value.alias(field.name()));
            let columns = columns_of(probe.schema()).into_iter().chain(values);
            projected(found.above(probe)?, columns.collect())
        };
        named(probe).map_err(|error| aggregates(error.into()))
    }

    /// The range join without its probe side.
    fn matched(&self, config: &dyn OptimizerConfig) -> Match<CorrelatedAggregate> {
        let (subquery, constants, probe) =
            (self.subquery()?, self.constants(), self.probe.schema());
        self.check_names()?;
        let mut found = CorrelatedAggregate::try_match_with(&subquery, constants, probe, config)?;
        if self.prevailing {
            found.include_prevailing();
        }
        Ok(found)
    }

    /// A constant that bounds the range must not filter the build side if the row in force at its start counts, which
    /// may be before the range.
    fn constants(&self) -> Constants {
        if self.prevailing {
            Constants::Bound
        } else {
            Constants::Filter
        }
    }

    /// Checks that the condition is a range, with exactly one lower bound if the row in force at it is included. If it
    /// is not, the condition may have a second range key, which may become a threshold.
    fn check_condition(&self) -> Result<(), ArgumentRejection> {
        let (probe, build) = (self.probe.schema(), self.build.schema());
        let constants = self.constants();
        let meaning = (constants, !self.prevailing);
        let (found, _) = compared_by_keys(vec![self.condition.clone()], constants, probe, build)
            .and_then(|conjuncts| match_condition(&[], conjuncts, meaning, probe, build))
            .map_err(|reason| ArgumentRejection::Condition(reason.to_string()))?;
        let lower: Vec<_> = found.bounds.iter().filter(|(c, _)| c.is_lower()).collect();
        match (self.prevailing, lower.as_slice()) {
            (false, _) | (_, [_]) => Ok(()),
            (true, []) => Err(ArgumentRejection::Prevailing(
                "the row that prevails is the last at or before the lower bound of the window, which has none".into(),
            )),
            (true, many) => Err(ArgumentRejection::Prevailing(format!(
                "the row that prevails is the last at or before the lower bound of the window, which has {} of them; use greatest(…)",
                many.len()
            ))),
        }
    }

    /// Checks that no two columns of the result have the same name.
    fn check_names(&self) -> Match<()> {
        let (probe, aggregates) = (self.probe.schema(), self.aggregates.schema());
        let fields: Vec<_> = probe.fields().iter().chain(aggregates.fields()).collect();
        for (i, field) in fields.iter().enumerate() {
            if fields[..i].iter().any(|other| other.name() == field.name()) {
                return reject(format!(
                    "two columns of the result would be called '{}'; rename one with AS, or in a view",
                    field.name()
                ));
            }
        }
        Ok(())
    }

    /// The aggregates as a correlated subquery: the condition is its filter, and columns of the probe side are columns
    /// of the outer query.
    fn subquery(&self) -> Match<LogicalPlan> {
        let probe = self.probe.schema();
        let condition = to_outer(self.condition.clone(), probe)?;
        filter_aggregated(&self.aggregates, condition)
    }
}

/// Puts a filter below the aggregate of a plan.
fn filter_aggregated(plan: &LogicalPlan, condition: Expr) -> Match<LogicalPlan> {
    let input = match plan {
        LogicalPlan::Projection(projection) => filter_aggregated(&projection.input, condition)?,
        LogicalPlan::Aggregate(aggregate) => filtered(aggregate.input.as_ref().clone(), condition)?,
        _ => return reject("there is no aggregate, such as min(price), among them"),
    };
    Ok(plan.with_new_exprs(plan.expressions(), vec![input])?)
}
