//! A lateral join with an aggregate over a range, or with the first rows of a range by ORDER BY. A correlated scalar
//! subquery is one by then (`datafusion_dependent_join`).
//!
//! ```text
//!   SELECT q.id, x.low, x.high
//!   FROM q CROSS JOIN LATERAL (SELECT min(p.v) AS low, max(p.v) AS high FROM p WHERE p.k BETWEEN q.a AND q.b) AS x
//!
//!   before                                                after
//!   Cross Join                                            Projection: q.*, min(p.v)#1 AS x.low, max(p.v)#2 AS x.high
//!     q                                                     RangeJoin: type=Left, range=p.k in [q.a, q.b], aggs=[min(p.v), max(p.v)]
//!     SubqueryAlias: x                                        q
//!       Subquery:                                             p
//!         Aggregate: min(p.v), max(p.v)
//!           Filter: p.k BETWEEN outer(q.a) AND outer(q.b)
//!             p
//! ```
//!
//! `LEFT JOIN LATERAL … ON true` matches, too: an aggregate without GROUP BY has exactly one row for each row of `q`.
//! The first row of a range (`ORDER BY p.k LIMIT 1`, see `nearest_row`) is a row of NULLs there if nothing matches.
//! With CROSS JOIN and INNER JOIN, the row of `q` is dropped; a condition of the join becomes a filter. Other limits,
//! and further conditions on both sides, are a join of nearest rows (see `nearest_rows`). A prepared statement with a
//! parameter that must be known, such as that of LIMIT, waits for its value (see `all_columns`).

use arrow::datatypes::DataType;
use datafusion_common::scalar::ScalarValue;
use datafusion_common::{Column, DFSchema, JoinType, Result};
use datafusion_dependent_join::{is_correlated, named};
use datafusion_expr::{Expr, Join, LogicalPlan, Subquery, lit};
use datafusion_optimizer::OptimizerConfig;

use crate::common::sql_text::sql_text;
use crate::conditions::rejection::{Match, or_log, reject};
use crate::expr::late_error::{RaiseUdf, error_or_null};
use crate::logical_plan::all_columns::AllColumns;
use crate::logical_plan::range_join::{AggregateKind, RangeAggregate, Unmatched};
use crate::rules::common::names::unused_name;
use crate::rules::common::plain_sql_rule::plain_sql_rule;
use crate::rules::common::plans::{columns_of, extension, filtered, projected};
use crate::rules::compared_side::above_side;
use crate::rules::correlated_aggregate::CorrelatedAggregate;
use crate::rules::nearest_row::{NearestRow, match_subquery};
use crate::rules::nearest_rows::CorrelatedRows;

plain_sql_rule!(
    /// Rewrites a lateral join with an aggregate over a range, or with ORDER BY and LIMIT, to a range join or to
    /// nearest rows, and puts a range join where DataFusion has a join by its result. Does nothing if `rmq.rewrite` is
    /// false. It must run before DataFusion decorrelates subqueries.
    LateralToRangeJoin,
    "rmq_lateral_to_range_join",
    replace
);

fn replace(plan: &LogicalPlan, config: &dyn OptimizerConfig) -> Result<Option<LogicalPlan>> {
    if let Some(kept) = all_columns(plan) {
        // Its parameters have values now, or it was kept in an earlier pass, too.
        let is_done = all_columns(kept).is_some() || kept.get_parameter_names()?.is_empty();
        return Ok(is_done.then(|| kept.clone()));
    }
    let (join, subquery) = match plan {
        LogicalPlan::Filter(filter) => return above_side(filter),
        LogicalPlan::Join(join) => match lateral(&join.right) {
            Some(subquery) => (join, subquery),
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    match or_log(try_match(join, subquery, config), "a lateral join") {
        Some(found) => Ok(Some(found)),
        None => {
            let waits = !subquery.subquery.get_parameter_names()?.is_empty();
            let input = plan.clone();
            Ok(waits.then(|| extension(AllColumns { input })))
        }
    }
}

/// The input of a node that keeps its columns.
fn all_columns(plan: &LogicalPlan) -> Option<&LogicalPlan> {
    let LogicalPlan::Extension(extension) = plan else {
        return None;
    };
    let kept = extension.node.as_any().downcast_ref::<AllColumns>()?;
    Some(&kept.input)
}

/// The subquery, if this side of a join is a subquery that refers to the other side.
pub fn lateral(plan: &LogicalPlan) -> Option<&Subquery> {
    match plan {
        LogicalPlan::Subquery(subquery) => is_correlated(&subquery.subquery)
            .is_ok_and(|is| is)
            .then_some(subquery),
        LogicalPlan::SubqueryAlias(alias) => lateral(&alias.input),
        _ => None,
    }
}

fn try_match(join: &Join, subquery: &Subquery, config: &dyn OptimizerConfig) -> Match<LogicalPlan> {
    let is_true = |e: &Expr| matches!(e, Expr::Literal(ScalarValue::Boolean(Some(true)), _));
    let condition = join.filter.as_ref().filter(|filter| !is_true(filter));
    match (join.join_type, condition) {
        (JoinType::Inner, _) | (JoinType::Left, None) if join.on.is_empty() => {}
        _ => {
            let condition = condition.map_or("an equality".to_string(), sql_text);
            return reject(format!("its LEFT JOIN has the condition {condition}"));
        }
    }
    let lateral = Lateral::try_match(&join.left, &subquery.subquery, join.join_type, config)?;
    let left = columns_of(join.left.schema()).into_iter();
    let columns = left.chain(lateral.values).collect();
    let plan = projected(lateral.joined, named(columns, &join.schema))?;
    Ok(match condition {
        Some(condition) => filtered(plan, condition.clone())?,
        None => plan,
    })
}

/// A lateral join as a range join.
pub struct Lateral {
    /// The range join.
    pub joined: LogicalPlan,
    /// The columns of the subquery as expressions over those of the join.
    pub values: Vec<Expr>,
}

impl Lateral {
    /// An INNER or LEFT join of `probe` with a subquery that is evaluated for each of its rows.
    pub fn try_match(
        probe: &LogicalPlan,
        subquery: &LogicalPlan,
        join_type: JoinType,
        config: &dyn OptimizerConfig,
    ) -> Match<Self> {
        match match_subquery(subquery, probe.schema(), config) {
            Ok(found) => Self::of_aggregates(found, probe, join_type, config),
            Err(_) if NearestRow::of(subquery).is_some() => {
                Self::of_rows(probe, subquery, join_type, config)
            }
            Err(reason) => Err(reason),
        }
    }

    fn of_aggregates(
        mut found: CorrelatedAggregate,
        probe: &LogicalPlan,
        join_type: JoinType,
        config: &dyn OptimizerConfig,
    ) -> Match<Self> {
        let values = std::mem::take(&mut found.values);
        let mut crosses = None;
        if found.needs_match && join_type == JoinType::Inner {
            found.spec.unmatched = Unmatched::Drop;
            crosses = add_crossing(&mut found.spec.aggregates, probe.schema(), config);
        }
        let mut joined = found.above(probe.clone())?;
        if let Some(crosses) = crosses {
            joined = filtered(joined, crosses)?;
        }
        Ok(Self { joined, values })
    }

    fn of_rows(
        probe: &LogicalPlan,
        subquery: &LogicalPlan,
        join_type: JoinType,
        config: &dyn OptimizerConfig,
    ) -> Match<Self> {
        let unmatched = match join_type {
            JoinType::Left => Unmatched::Keep,
            _ => Unmatched::Drop,
        };
        let mut found = CorrelatedRows::try_match(subquery, unmatched, probe.schema(), config)?;
        let values = std::mem::take(&mut found.values);
        let joined = found.above(probe.clone())?;
        Ok(Self { joined, values })
    }
}

/// Whether a subquery that is evaluated for rows with these columns becomes a range join.
pub fn is_range_join(
    subquery: &LogicalPlan,
    outer: &DFSchema,
    config: &dyn OptimizerConfig,
) -> bool {
    match_subquery(subquery, outer, config).is_ok()
        || CorrelatedRows::try_match(subquery, Unmatched::Keep, outer, config).is_ok()
}

/// If the aggregates are about the row that crosses a threshold: adds one that tells whether there is such a row, which
/// a match by keys need not be, and returns the condition that there is. It fails where the value that is compared
/// does.
fn add_crossing(
    aggregates: &mut Vec<RangeAggregate<Expr>>,
    probe: &DFSchema,
    config: &dyn OptimizerConfig,
) -> Option<Expr> {
    let is_crossing =
        |a: &&RangeAggregate<Expr>| matches!(a.function, AggregateKind::AtCrossing { .. });
    let mut crossing = aggregates.iter().find(is_crossing)?.clone();
    let one = lit(1_i32);
    let searched = crossing.arguments.get(1).cloned();
    crossing.data_type = DataType::Int32;
    crossing.output = unused_name(config, probe, &crossing);
    *crossing.arguments.first_mut()? = one;
    let known = aggregates
        .iter()
        .find(|a| a.function == crossing.function && a.arguments == crossing.arguments);
    let output = known
        .map_or(&crossing.output, |known| &known.output)
        .clone();
    if known.is_none() {
        aggregates.push(crossing);
    }
    let column = |output: String| Expr::Column(Column::new_unqualified(output));
    let mut crosses = column(output).is_not_null();
    let error = searched.as_ref().and_then(error_or_null);
    if let Some(known) =
        error.and_then(|error| aggregates.iter().find(|a| a.arguments == [error.clone()]))
    {
        crosses = RaiseUdf::call(column(known.output.clone()), crosses);
    }
    Some(crosses)
}
