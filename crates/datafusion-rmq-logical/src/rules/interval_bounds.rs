//! Bounds that may be beyond all times: sums of a time and a product of an interval and a number, and such products
//! with which the difference of two times is compared.
//!
//! ```text
//!   WHERE p.ts BETWEEN q.ts AND q.ts + q.seconds * INTERVAL '1 second'
//!
//!   WHERE p.ts >= q.ts AND p.ts <= rmq_interval_bound('<=', q.ts, INTERVAL '1 second', q.seconds)
//!
//!   WHERE p.ts - q.ts < q.seconds * INTERVAL '1 second'
//!
//!   WHERE p.ts <= rmq_difference_bound('<', q.ts, INTERVAL '1 second', q.seconds)
//!
//!   WHERE q.ts - p.ts < q.seconds * INTERVAL '1 second'
//!
//!   WHERE p.ts >= rmq_difference_bound('>', q.ts, INTERVAL '-1 second', q.seconds)
//! ```
//!
//! A product that has only columns of the key's table goes to the key, which is then the bound of the other time, as
//! the last example shows: a range has one side in its bound.
//!
//! One row whose product or sum is beyond all times would end the query in an error. As a bound it is the end of all
//! times, above or below each key. A conjunct of a filter or of a join may be NULL where it was FALSE.

use std::collections::HashSet;

use arrow::datatypes::{DataType, IntervalMonthDayNano, TimeUnit};
use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, Result, ScalarValue, TableReference};
use datafusion_expr::expr::{BinaryExpr, Cast, ScalarFunction};
use datafusion_expr::utils::{conjunction, merge_schema, split_conjunction_owned};
use datafusion_expr::{Expr, ExprSchemable, LogicalPlan, Operator, binary_expr};
use datafusion_optimizer::{AnalyzerRule, OptimizerConfig, OptimizerRule};

use crate::common::options::RmqOptions;
use crate::conditions::condition::{comparison, operator, swapped};
use crate::expr::duration::DaysAsTimeUdf;
use crate::expr::interval_bound::{Compared, IntervalBoundUdf};
use crate::expr::interval_product::IntervalProductUdf;
use crate::expr::ticks::{length, nanoseconds, opposite};
use crate::rules::common::outer_columns::has_expression;
use crate::rules::condition_parts::split_between;

/// Replaces sums of a time and a product that keys are compared with in filters and joins, and products that
/// differences are compared with. Does nothing if `rmq.rewrite` is false.
///
/// It must run after `TimeDifferences`, whose function around a product it takes away.
#[derive(Debug, Default)]
pub struct IntervalProductsToBounds;

impl AnalyzerRule for IntervalProductsToBounds {
    fn name(&self) -> &'static str {
        "rmq_interval_products_to_bounds"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(rewritten(plan, config)?.data)
    }
}

/// The same where PREPARE optimizes a statement, which it does not analyze.
impl OptimizerRule for IntervalProductsToBounds {
    fn name(&self) -> &'static str {
        "rmq_interval_products_to_bounds"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let mut found = false;
        plan.apply_with_subqueries(|node| {
            if let LogicalPlan::Filter(_) | LogicalPlan::Join(_) = node {
                found = has_expression(node, is_product)?;
            }
            Ok(if found {
                TreeNodeRecursion::Stop
            } else {
                TreeNodeRecursion::Continue
            })
        })?;
        if found {
            rewritten(plan, &config.options())
        } else {
            Ok(Transformed::no(plan))
        }
    }
}

fn rewritten(plan: LogicalPlan, config: &ConfigOptions) -> Result<Transformed<LogicalPlan>> {
    if !RmqOptions::rewrites(config) {
        return Ok(Transformed::no(plan));
    }
    plan.transform_up_with_subqueries(|node| {
        let schema = merge_schema(&node.inputs());
        Ok(match node {
            LogicalPlan::Filter(mut filter) => {
                let found = with_bounds(filter.predicate, &schema)?;
                filter.predicate = found.data;
                Transformed::new(LogicalPlan::Filter(filter), found.transformed, found.tnr)
            }
            LogicalPlan::Join(mut join) => {
                let mut transformed = false;
                if let Some(condition) = join.filter.take() {
                    let found = with_bounds(condition, &schema)?;
                    transformed = found.transformed;
                    join.filter = Some(found.data);
                }
                let node = LogicalPlan::Join(join);
                if transformed {
                    Transformed::yes(node)
                } else {
                    Transformed::no(node)
                }
            }
            node => Transformed::no(node),
        })
    })
}

/// A condition of which only the rows where it is TRUE count, with bounds in place of sums.
fn with_bounds(condition: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let has_product = condition.exists(|e| Ok(as_product(e).is_some()))?;
    if !has_product {
        return Ok(Transformed::no(condition));
    }
    let mut conjuncts = vec![];
    let mut changed = false;
    for conjunct in split_conjunction_owned(condition.clone()) {
        let mut found = false;
        let mut compared = split_between(conjunct.clone());
        for one in &mut compared {
            if let Some(bound) = as_bound(one, schema)? {
                *one = bound;
                found = true;
            }
        }
        // Each half of BETWEEN has the key.
        if found && !conjunct.is_volatile() {
            changed = true;
            conjuncts.extend(compared);
        } else {
            conjuncts.push(conjunct);
        }
    }
    Ok(match conjunction(conjuncts) {
        Some(changed_to) if changed => Transformed::yes(changed_to),
        _ => Transformed::no(condition),
    })
}

/// The comparison of a key with a bound, if a conjunct compares a key with a sum, or a difference with a product.
fn as_bound(conjunct: &Expr, schema: &DFSchema) -> Result<Option<Expr>> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = conjunct else {
        return Ok(None);
    };
    for (key, op, other) in [(left, Some(*op), right), (right, op.swap(), left)] {
        let Some(comparison) = op.and_then(comparison) else {
            continue;
        };
        let (of, key, sum) = if let Some(sum) = Sum::of(other) {
            (Compared::Sum, key.as_ref(), sum)
        } else if let Some((key, sum)) = Sum::of_difference(key, other) {
            (Compared::Difference, key, sum)
        } else {
            continue;
        };
        let data_type = sum.time.get_type(schema)?;
        let DataType::Timestamp(unit, zone) = &data_type else {
            continue;
        };
        // The days of a zone may have fewer hours, or more, but those of a difference have 24.
        let is_of_zone = zone.is_some() && of == Compared::Sum;
        let is_length = sum.interval.months == 0 && (sum.interval.days == 0 || !is_of_zone);
        let factor_type = sum.factor.get_type(schema)?;
        let is_number = matches!(factor_type, DataType::Int64 | DataType::Float64);
        if !is_length || !is_number || key.get_type(schema)? != data_type {
            continue;
        }
        let factor = sum.factor.clone();
        // A sum is rounded down to the unit of the time, which the other side of the comparison is not.
        let has_ticks = match &factor_type {
            DataType::Int64 => length(sum.interval) % nanoseconds(*unit) == 0,
            _ => *unit == TimeUnit::Nanosecond,
        };
        let is_exact = of == Compared::Difference || has_ticks;
        if is_exact
            && is_of_tables_of(sum.factor, key, sum.time)
            && let Some(interval) = opposite(sum.interval)
        {
            let (comparison, bound) = IntervalBoundUdf::call(
                Compared::Difference,
                swapped(comparison),
                key.clone(),
                interval,
                factor,
            );
            let time = sum.time.clone();
            return Ok(Some(binary_expr(time, operator(comparison), bound)));
        }
        let (comparison, bound) =
            IntervalBoundUdf::call(of, comparison, sum.time.clone(), sum.interval, factor);
        return Ok(Some(binary_expr(key.clone(), operator(comparison), bound)));
    }
    Ok(None)
}

/// Whether an expression has columns, all of them of tables of `one`, and none of tables of `other`.
fn is_of_tables_of(expr: &Expr, one: &Expr, other: &Expr) -> bool {
    let (Some(of), Some(one), Some(other)) = (tables(expr), tables(one), tables(other)) else {
        return false;
    };
    !of.is_empty() && of.is_subset(&one) && of.is_disjoint(&other)
}

/// The tables of the columns of an expression. `None` if a column has none.
fn tables(expr: &Expr) -> Option<HashSet<&TableReference>> {
    let mut found = Some(HashSet::new());
    let visited = expr.apply(|e| {
        if let Expr::Column(column) | Expr::OuterReferenceColumn(_, column) = e {
            found = found
                .take()
                .zip(column.relation.as_ref())
                .map(|(mut found, table)| {
                    found.insert(table);
                    found
                });
        }
        Ok(TreeNodeRecursion::Continue)
    });
    found.filter(|_| visited.is_ok())
}

/// A time plus or minus a product.
struct Sum<'a> {
    time: &'a Expr,
    interval: IntervalMonthDayNano,
    factor: &'a Expr,
}

impl<'a> Sum<'a> {
    fn of(expr: &'a Expr) -> Option<Self> {
        let Expr::BinaryExpr(BinaryExpr { left, op, right }) = expr else {
            return None;
        };
        let (time, (interval, factor)) = match (op, as_product(left), as_product(right)) {
            (Operator::Plus | Operator::Minus, None, Some(product)) => (left, product),
            (Operator::Plus, Some(product), None) => (right, product),
            _ => return None,
        };
        let interval = if *op == Operator::Minus {
            opposite(interval)?
        } else {
            interval
        };
        Some(Self {
            time,
            interval,
            factor,
        })
    }

    /// Of `key - time` that is compared with a product: the key, and the sum that it is compared with.
    fn of_difference(difference: &'a Expr, product: &'a Expr) -> Option<(&'a Expr, Self)> {
        let Expr::Cast(Cast { expr, field }) = difference else {
            return None;
        };
        let Expr::BinaryExpr(BinaryExpr {
            left: key,
            op: Operator::Minus,
            right: time,
        }) = expr.as_ref()
        else {
            return None;
        };
        if !matches!(field.data_type(), DataType::Interval(_)) {
            return None;
        }
        let product = match product {
            Expr::ScalarFunction(call) if call.func.inner().is::<DaysAsTimeUdf>() => {
                call.args.first()?
            }
            other => other,
        };
        let (interval, factor) = as_product(product)?;
        let sum = Self {
            time,
            interval,
            factor,
        };
        Some((key, sum))
    }
}

/// Whether an expression is the product of an interval and a number.
#[must_use]
pub fn is_product(expr: &Expr) -> bool {
    as_product(expr).is_some()
}

/// The constant interval and the number of a product.
fn as_product(expr: &Expr) -> Option<(IntervalMonthDayNano, &Expr)> {
    match expr {
        Expr::Cast(Cast { expr, field }) if matches!(field.data_type(), DataType::Interval(_)) => {
            as_product(expr)
        }
        Expr::ScalarFunction(ScalarFunction { func, args })
            if func.inner().is::<IntervalProductUdf>() =>
        {
            match args.as_slice() {
                [
                    Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(interval)), _),
                    factor,
                ] => Some((*interval, factor)),
                _ => None,
            }
        }
        _ => None,
    }
}
