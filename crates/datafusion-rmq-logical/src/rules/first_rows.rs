//! The first rows of each group of a join, by `row_number()` or DISTINCT ON, as nearest rows; those that tie for a
//! place, by `rank()`, as rows whose key is, or is not after, the one in this place.
//!
//! ```text
//!   SELECT a.id, p.v FROM a JOIN p ON p.ts <= a.ts QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY p.ts DESC) <= 3
//!
//!   before                                                    after
//!   Filter: row_number() … <= 3                               Filter: row_number() … <= 3
//!     WindowAggr: PARTITION BY a.id ORDER BY p.ts DESC          WindowAggr: PARTITION BY a.id ORDER BY p.ts DESC
//!       Inner Join: p.ts <= a.ts                                  NearestRows: range=p.ts in (-inf, a.ts], order=desc, limit=3
//!         a                                                         a
//!         p                                                         p
//! ```
//!
//! Only fewer rows are joined: the first n rows of a group are among the first n of each row of `a` in it. So the
//! groups need not be single rows. They are by columns of one side, ordered by those of the other; an expression of
//! ORDER BY that is of the first side has one value for each of its rows.
//!
//! ```text
//!   … QUALIFY rank() OVER (PARTITION BY a.id ORDER BY p.ts DESC) = 1
//!
//!   Filter: rank() … = 1
//!     WindowAggr: PARTITION BY a.id ORDER BY p.ts DESC
//!       Inner Join: p.ts <= a.ts, p.ts = max(p.ts)#1
//!         RangeJoin: range=p.ts in (-inf, a.ts], aggs=[max(p.ts)]
//!           a
//!           p
//!         p
//! ```
//!
//! All rows with the key that comes first have the rank 1, and `dense_rank()` 1. With `rank() <= 3` the join is with
//! the third row and all that are not after its key:
//!
//! ```text
//!       Inner Join: p.ts <= a.ts, p.ts >= third OR third IS NULL
//!         NearestRows: range=p.ts in (-inf, a.ts], order=desc, skip=2, limit=1
//! ```
//!
//! Where a key that is NULL may come first, or floats are equal that are not the same, the query stays as it is.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion_common::{JoinType, NullEquality, Result, ScalarValue};
use datafusion_dependent_join::{is_correlated, named};
use datafusion_expr::expr::{BinaryExpr, WindowFunction};
use datafusion_expr::utils::{conjunction, split_conjunction, split_conjunction_owned};
use datafusion_expr::{
    Distinct, DistinctOn, Expr, Filter, Join, LogicalPlan, Operator, SortExpr, Window,
    WindowFunctionDefinition, binary_expr,
};
use datafusion_functions_window::rank::Rank;
use datafusion_functions_window::row_number::RowNumber;
use datafusion_optimizer::OptimizerConfig;

use crate::common::sql_text::{clause, sql_text};
use crate::conditions::condition::key_and_bound;
use crate::conditions::prefixes::is_about_prefix;
use crate::conditions::rejection::{Match, or_log, reject};
use crate::rules::common::constant::constant;
use crate::rules::common::outer_columns::to_outer;
use crate::rules::common::plain_sql_rule::plain_sql_rule;
use crate::rules::common::plans::{
    below_projection, below_projections, columns_of, filtered, peeled, projected,
};
use crate::rules::condition_parts::{check_repeats, conjuncts, is_of};
use crate::rules::lateral::Lateral;
use crate::rules::nearest_rows::without_casts;
use crate::rules::tied_rows::{is_searched, limited, with_ties};

plain_sql_rule!(
    /// Joins only the first rows of each group where a query asks for them by `row_number()` or `rank()`, also with
    /// QUALIFY, or by DISTINCT ON. Does nothing if `rmq.rewrite` is false. It must run before DataFusion moves
    /// conditions.
    FirstRowsToNearestRows,
    "rmq_first_rows_to_nearest_rows",
    replace
);

fn replace(plan: &LogicalPlan, config: &dyn OptimizerConfig) -> Result<Option<LogicalPlan>> {
    let found = match plan {
        LogicalPlan::Filter(filter) => {
            let Some(rows) = first_row_numbers(filter)? else {
                return Ok(None);
            };
            numbered(&filter.input, rows, config)
        }
        LogicalPlan::Distinct(Distinct::On(distinct)) => distinct_on(distinct, config),
        _ => return Ok(None),
    };
    let Some(input) = or_log(found, plan.display()) else {
        return Ok(None);
    };
    Ok(Some(match plan {
        // `with_new_exprs` panics at an ORDER BY.
        LogicalPlan::Distinct(Distinct::On(distinct)) => {
            LogicalPlan::Distinct(Distinct::On(DistinctOn {
                input: Arc::new(input),
                ..distinct.clone()
            }))
        }
        _ => plan.with_new_exprs(plan.expressions(), vec![input])?,
    }))
}

/// The greatest row number that a filter lets pass, if it is above the window function.
fn first_row_numbers(filter: &Filter) -> Result<Option<usize>> {
    if !matches!(peeled(&filter.input), LogicalPlan::Window(_)) {
        return Ok(None);
    }
    let mut numbers = vec![];
    for conjunct in split_conjunction(&filter.predicate) {
        for compared in conjuncts([conjunct.clone()]) {
            numbers.extend(greatest(&compared));
        }
    }
    let mut keys: Vec<Expr> = numbers.iter().map(|(key, _)| key.clone()).collect();
    let LogicalPlan::Window(window) = below_projections(&filter.input, &mut keys)? else {
        return Ok(None);
    };
    let is_number = |key: &Expr| match without_casts(key) {
        Expr::Column(column) => window
            .schema
            .maybe_index_of_column(column)
            .is_some_and(|i| {
                let expr = i.checked_sub(window.input.schema().fields().len());
                expr.and_then(|i| window.window_expr.get(i))
                    .is_some_and(|expr| Numbers::of(expr).is_some())
            }),
        _ => false,
    };
    let rows = keys.iter().zip(numbers);
    let rows = rows.filter_map(|(key, (_, rows))| is_number(key).then_some(rows));
    Ok(rows.min())
}

/// An expression and the greatest number that it may have where a condition holds.
fn greatest(condition: &Expr) -> Option<(Expr, usize)> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = condition else {
        return None;
    };
    let is_constant = |e: &Expr| e.column_refs().is_empty() && check_repeats(e).is_ok();
    let operands = (left.as_ref(), *op, right.as_ref());
    let Some((key, Some(op), bound)) = key_and_bound(operands, |e| is_constant(e)) else {
        return None;
    };
    // A placeholder has no value yet, and what fails may never be evaluated.
    let bound = constant(bound).ok().flatten();
    let Some(ScalarValue::Int64(Some(bound))) = bound
        .filter(|bound| bound.data_type().is_integer())
        .and_then(|bound| bound.cast_to(&DataType::Int64).ok())
    else {
        return None;
    };
    let greatest = match op {
        Operator::Eq | Operator::LtEq => bound,
        Operator::Lt => bound.saturating_sub(1),
        _ => return None,
    };
    // Without a row that passes, there is nothing to find.
    let rows = usize::try_from(greatest).ok().filter(|rows| *rows > 0);
    rows.map(|rows| (key.clone(), rows))
}

/// A call that numbers the rows of a group.
struct Numbers<'a> {
    call: &'a WindowFunction,
    /// Whether rows with equal keys have equal numbers.
    ties: bool,
    /// Whether the numbers after these follow without a gap.
    is_dense: bool,
}

impl<'a> Numbers<'a> {
    /// `row_number()`, `rank()` or `dense_rank()`, if an expression is a call of these.
    fn of(expr: &'a Expr) -> Option<Self> {
        let Expr::WindowFunction(call) = without_casts(expr) else {
            return None;
        };
        let WindowFunctionDefinition::WindowUDF(function) = &call.fun else {
            return None;
        };
        let inner = function.inner();
        let ties = inner.is::<Rank>() && ["rank", "dense_rank"].contains(&function.name());
        let is_plain = call.params.filter.is_none() && !call.params.distinct;
        let is_dense = ties && function.name() == "dense_rank";
        (is_plain && (ties || inner.is::<RowNumber>())).then_some(Self {
            call,
            ties,
            is_dense,
        })
    }
}

/// The plan of `row_number()` over the first rows of each group only.
fn numbered(plan: &LogicalPlan, rows: usize, config: &dyn OptimizerConfig) -> Match<LogicalPlan> {
    let window = match plan {
        LogicalPlan::Window(window) => window,
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => {
            let inputs = plan.inputs().into_iter();
            let inputs = inputs.map(|input| numbered(input, rows, config));
            let inputs = inputs.collect::<Match<Vec<_>>>()?;
            return Ok(plan.with_new_exprs(plan.expressions(), inputs)?);
        }
        other => return reject(format!("its window function is below {}", clause(other))),
    };
    let [expr] = window.window_expr.as_slice() else {
        return reject("another window function needs all rows of a group");
    };
    let Some(Numbers {
        call,
        ties,
        is_dense,
    }) = Numbers::of(expr)
    else {
        return reject(format!("{} is not row_number() or rank()", sql_text(expr)));
    };
    if is_dense && rows > 1 {
        return reject("it asks for the rows of several keys, of which each may have many");
    }
    let groups = Groups {
        ties,
        by: call.params.partition_by.clone(),
        order: call.params.order_by.clone(),
        conditions: vec![],
        rows,
    };
    let input = groups.first_rows(&window.input, config)?;
    let window = Window::try_new(window.window_expr.clone(), Arc::new(input))?;
    Ok(LogicalPlan::Window(window))
}

/// The first rows of each group of DISTINCT ON.
fn distinct_on(distinct: &DistinctOn, config: &dyn OptimizerConfig) -> Match<LogicalPlan> {
    let groups = Groups {
        ties: false,
        by: distinct.on_expr.clone(),
        order: distinct.sort_expr.clone().unwrap_or_default(),
        conditions: vec![],
        rows: 1,
    };
    groups.first_rows(&distinct.input, config)
}

/// Groups of the rows that meet some conditions, and how many of each are asked for, in which order.
struct Groups {
    by: Vec<Expr>,
    order: Vec<SortExpr>,
    conditions: Vec<Expr>,
    rows: usize,
    /// Whether all rows that tie for the last of these places are asked for.
    ties: bool,
}

impl Groups {
    /// A plan with the columns of `plan` that has the first rows of each group, and may have more.
    fn first_rows(
        mut self,
        plan: &LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Match<LogicalPlan> {
        let exprs = self.by.iter_mut().chain(&mut self.conditions);
        let exprs = exprs.chain(self.order.iter_mut().map(|order| &mut order.expr));
        if let Some(input) = below_projection(plan, exprs)? {
            let input = self.first_rows(input, config)?;
            return Ok(plan.with_new_exprs(plan.expressions(), vec![input])?);
        }
        match plan {
            LogicalPlan::Filter(filter) => {
                let conditions = split_conjunction_owned(filter.predicate.clone());
                self.conditions.extend(conditions);
                self.first_rows(&filter.input, config)
            }
            LogicalPlan::Join(join) => self.of_join(join, config),
            other => reject(format!("its groups are of {}", clause(other))),
        }
    }

    fn of_join(&self, join: &Join, config: &dyn OptimizerConfig) -> Match<LogicalPlan> {
        let is_of_side = |side: &LogicalPlan| {
            !self.by.is_empty() && self.by.iter().all(|e| is_of(e, side.schema()))
        };
        let (probe, build) = match join.join_type {
            JoinType::Inner | JoinType::Left if is_of_side(&join.left) => (&join.left, &join.right),
            JoinType::Inner | JoinType::Right if is_of_side(&join.right) => {
                (&join.right, &join.left)
            }
            _ => return reject("its groups are not by columns of the side whose rows are kept"),
        };
        let kept = match join.join_type {
            JoinType::Inner => JoinType::Inner,
            _ if self.conditions.is_empty() => JoinType::Left,
            _ => return reject("it has a condition on the rows of an outer join"),
        };
        if is_correlated(build)? {
            return reject("it refers to an outer query");
        }
        let equality = match join.null_equality {
            NullEquality::NullEqualsNothing => Operator::Eq,
            NullEquality::NullEqualsNull => Operator::IsNotDistinctFrom,
        };
        let on = join.on.iter();
        let on = on.map(|(l, r)| binary_expr(l.clone(), equality, r.clone()));
        let on = on.chain(
            join.filter
                .iter()
                .cloned()
                .flat_map(split_conjunction_owned),
        );
        let all: Vec<Expr> = on.chain(self.conditions.iter().cloned()).collect();
        for expr in all.iter().chain(&self.by) {
            check_repeats(expr)?;
        }
        if all.iter().any(is_about_prefix) {
            return reject("the rows of a prefix are in no order that has a range of them");
        }
        let conditions = all.into_iter().map(|e| to_outer(e, probe.schema()));
        let Some(condition) = conjunction(conditions.collect::<Result<Vec<_>>>()?) else {
            return reject("it compares nothing");
        };
        // A column of the probe side has one value for each of its rows.
        let orders = self.order.iter();
        let orders = orders.filter(|order| !is_of(&order.expr, probe.schema()));
        let orders = orders.map(|order| {
            let by = to_outer(order.expr.clone(), probe.schema())?;
            Ok(SortExpr::new(by, order.asc, order.nulls_first))
        });
        let orders: Vec<SortExpr> = orders.collect::<Result<_>>()?;
        if orders.is_empty() {
            return reject("it is ordered by nothing of the side that is searched");
        }
        if self.ties {
            let sides = (probe.as_ref(), build.as_ref());
            return with_ties(join, sides, condition, &orders, self.rows, config);
        }
        let rows = filtered(build.as_ref().clone(), condition)?;
        let first = limited(rows, orders, 0, self.rows);
        let Lateral { joined, values } = Lateral::try_match(probe, &first, kept, config)?;
        if !is_searched(&joined) {
            return reject("its range is not about what it is ordered by");
        }
        let mut columns = columns_of(probe.schema());
        if Arc::ptr_eq(probe, &join.left) {
            columns.extend(values);
        } else {
            columns.splice(0..0, values);
        }
        Ok(projected(joined, named(columns, &join.schema))?)
    }
}
