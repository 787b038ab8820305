//! A correlated scalar subquery over a range, in an expression.
//!
//! ```text
//!   SELECT q.id, (SELECT min(p.v) FROM p WHERE p.sym = q.sym AND p.k BETWEEN q.a AND q.b) AS low FROM q
//!
//!   before                                                after
//!   Projection: q.id, (<subquery>) AS low                 Projection: q.id, min(p.v)#1 AS low
//!     q                                                     RangeJoin: type=Left, on=[sym], range=p.k in [q.a, q.b], aggs=[min(p.v)]
//!     Subquery:                                               q
//!       Aggregate: min(p.v)                                   p
//!         Filter: p.sym = outer(q.sym) AND …
//!           p
//! ```
//!
//! A subquery with ORDER BY and LIMIT 1 is aggregates of a range join, too (`nearest_row`), or a join of nearest rows
//! (`nearest_rows`), which is not shared. Other subqueries over the same rows share one range join. A subquery in a
//! branch of a CASE, or in the right operand of AND or OR, gets guarded bounds (`common::conditional`), so that its
//! bounds are evaluated only for the rows that need its result. What is no range join is left to
//! `datafusion_dependent_join`.

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, JoinType, Result, ScalarValue};
use datafusion::logical_expr::expr::BinaryExpr;
use datafusion::logical_expr::utils::{conjunction, split_conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Case, Expr, LogicalPlan, Operator, lit, when};
use datafusion::optimizer::OptimizerConfig;

use crate::expr::nullable::NullableUdf;
use crate::logical_plan::range_join::{RangeJoinSpec, Unmatched};
use crate::optimizer::logical::common::conditional::{
    Branch, expand_lazy, is_in_or_exists, map_conjuncts,
};
use crate::optimizer::logical::common::names::unused_name;
use crate::optimizer::logical::common::outer_columns::{admits_subqueries, has_expression};
use crate::optimizer::logical::common::plain_sql_rule::plain_sql_rule;
use crate::optimizer::logical::common::plans::{
    filtered, map_expressions, with_columns, with_input,
};
use crate::optimizer::logical::condition_parts::{check_repeats, is_of};
use crate::optimizer::logical::correlated_aggregate::CorrelatedAggregate;
use crate::optimizer::logical::nearest_row::{NearestRow, match_subquery};
use crate::optimizer::logical::nearest_rows::CorrelatedRows;
use crate::optimizer::logical::no_later_row::equal_to;
use crate::optimizer::rejection::{Match, Rejection, or_log, reject};

plain_sql_rule!(
    /// Rewrites a correlated subquery over a range to a column of a range join, or of a join of nearest rows. Does
    /// nothing if `rmq.rewrite` is false.
    ///
    /// It must run before DataFusion's rules for subqueries, which support correlation by equality only. Subqueries in
    /// the branches of a CASE whose conditions have IN or EXISTS are left to `datafusion_dependent_join`.
    SubqueryToRangeJoin,
    "rmq_subquery_to_range_join",
    replace
);

fn replace(plan: &LogicalPlan, config: &dyn OptimizerConfig) -> Result<Option<LogicalPlan>> {
    if !admits_subqueries(plan) || !has_expression(plan, is_correlated)? {
        return Ok(None);
    }
    let joined = with_joins(plan, config).map_err(Rejection::from);
    Ok(or_log(joined, plan.display()).flatten())
}

/// Puts range joins below the node for its subqueries. `None` if no subquery matches.
fn with_joins(plan: &LogicalPlan, config: &dyn OptimizerConfig) -> Result<Option<LogicalPlan>> {
    let inputs = plan.inputs();
    let [input] = inputs.as_slice() else {
        return Ok(None);
    };
    let mut joins = Joins {
        probe: (*input).clone(),
        names: input.schema().as_ref().clone(),
        config,
        found: vec![],
    };
    let is_filter = matches!(plan, LogicalPlan::Filter(_));
    let replaced = map_expressions(plan.clone(), |expr| {
        let expr = expand_lazy(expr, needs_join)?.data;
        let replaced = map_conjuncts(is_filter, expr, |expr| {
            Ok(Transformed::yes(joins.replace_in(expr, &[])?))
        })?;
        Ok(Transformed::yes(replaced.data))
    })?;
    let is_join = |step: &Step| !matches!(step, Step::Condition(..));
    if !joins.found.iter().any(is_join) {
        return Ok(None);
    }
    let (mut node, mut input) = (replaced.data, joins.probe);
    if let LogicalPlan::Filter(filter) = &mut node {
        // Conditions that need no subquery are evaluated below the range joins, to reduce their probe rows.
        let conjuncts = split_conjunction_owned(filter.predicate.clone()).into_iter();
        let (now, later): (Vec<_>, Vec<_>) =
            conjuncts.partition(|e| is_of(e, input.schema()) && check_repeats(e).is_ok());
        if let Some(later) = conjunction(later) {
            filter.predicate = later;
            if let Some(now) = conjunction(now) {
                input = filtered(input, now)?;
            }
        }
    }
    let input = match (&node, <[Step; 1]>::try_from(joins.found)) {
        (LogicalPlan::Filter(filter), Ok([Step::Join(join)])) => {
            above_side(input, *join, &filter.predicate)?
        }
        (_, Ok([step])) => step.above(input)?,
        (_, Err(steps)) => {
            let mut steps = steps.into_iter();
            steps.try_fold(input, |input, step| step.above(input))?
        }
    };
    with_input(&node, input, plan.schema()).map(Some)
}

/// Puts a range join above the side of an inner join that it is about, if the other side is compared with its result
/// for equality, and above `input` otherwise:
///
/// ```text
///   SELECT … FROM q JOIN p ON p.sym = q.sym WHERE p.k = (SELECT max(r.k) FROM p r WHERE r.sym = q.sym AND r.k <= q.t)
///
///   Filter: p.k = max(r.k)#1                                        Filter: p.k = max(r.k)#1
///     RangeJoin: range=r.k in (-inf, q.t], aggs=[max(r.k)]            Inner Join: p.sym = q.sym
///       Inner Join: p.sym = q.sym                                       RangeJoin: …
///         q                                                               q
///         p                                                               r
///       r                                                               p
/// ```
///
/// DataFusion then joins by that equality, too, where all pairs of rows with equal keys would be made before. With
/// `r.sym = p.sym` in the subquery it is about `q`, too, as `p.sym` is equal to `q.sym`.
fn above_side(
    input: LogicalPlan,
    mut join: CorrelatedAggregate,
    predicate: &Expr,
) -> Result<LogicalPlan> {
    let rows = match &input {
        LogicalPlan::Filter(filter) => filter.input.as_ref(),
        other => other,
    };
    let LogicalPlan::Join(both) = rows else {
        return join.above(input);
    };
    if both.join_type != JoinType::Inner {
        return join.above(input);
    }
    let on = both.on.iter().map(|(l, r)| l.clone().eq(r.clone()));
    let filter = match &input {
        LogicalPlan::Filter(filter) => Some(&filter.predicate),
        _ => None,
    };
    let conditions = on.chain(both.filter.iter().chain(filter).cloned());
    let conditions: Vec<Expr> = conditions.flat_map(split_conjunction_owned).collect();
    let sides = [(&both.left, &both.right), (&both.right, &both.left)];
    let mut at = sides.iter().enumerate();
    let found = at.find_map(|(at, (side, other))| {
        let on = of_side(&join.spec.on, &conditions, other);
        let is_compared = is_compared(&join.spec, &on, predicate, (side, other));
        is_compared.then_some((at, on))
    });
    let Some((at, on)) = found else {
        return join.above(input);
    };
    join.spec.on = on;
    let side = sides[at].0.as_ref().clone();
    join.spec.metadata = side.schema().metadata().clone().into_iter().collect();
    let mut inputs = vec![join.above(side)?, sides[at].1.as_ref().clone()];
    if at == 1 {
        inputs.reverse();
    }
    let joined = rows.with_new_exprs(rows.expressions(), inputs)?;
    match &input {
        LogicalPlan::Filter(filter) => filtered(joined, filter.predicate.clone()),
        _ => Ok(joined),
    }
}

/// Equality keys of a range join with what those of `other` are equal to by these conditions.
fn of_side(on: &[(Expr, Expr)], conditions: &[Expr], other: &LogicalPlan) -> Vec<(Expr, Expr)> {
    let of_side = |ours: &Expr| {
        let equal = is_of(ours, other.schema()).then(|| equal_to(ours, conditions, other));
        equal.flatten().unwrap_or_else(|| ours.clone())
    };
    let on = on.iter();
    on.map(|(ours, theirs)| (of_side(ours), theirs.clone()))
        .collect()
}

/// Whether a range join with these equality keys needs the columns of `side` alone, and a condition compares its result
/// with `other` by `=`.
fn is_compared(
    spec: &RangeJoinSpec<Expr>,
    on: &[(Expr, Expr)],
    predicate: &Expr,
    (side, other): (&LogicalPlan, &LogicalPlan),
) -> bool {
    let on = on.iter().map(|(probe, _)| probe);
    let bounds = spec.bounds.iter().map(|(_, bound)| bound);
    let mut needed = on.chain(bounds).chain(&spec.thresholds);
    if !needed.all(|e| is_of(e, side.schema())) {
        return false;
    }
    let [of_side, of_other] = [side, other].map(LogicalPlan::schema);
    let is_result = |e: &Expr| {
        let columns = e.column_refs();
        let mut own = columns.iter().filter(|column| !of_side.has_column(column));
        // What neither side has is a column of the range join.
        own.clone().next().is_some() && own.all(|column| !of_other.has_column(column))
    };
    let is_other = |e: &Expr| !e.column_refs().is_empty() && is_of(e, of_other);
    split_conjunction(predicate).into_iter().any(|conjunct| {
        matches!(
            conjunct,
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right })
                if (is_result(left) && is_other(right)) || (is_result(right) && is_other(left))
        )
    })
}

/// Whether an expression is a correlated scalar subquery.
fn is_correlated(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarSubquery(s) if !s.outer_ref_columns.is_empty())
}

/// Whether an expression has a correlated scalar subquery.
fn needs_join(expr: &Expr) -> Result<bool> {
    expr.exists(|e| Ok(is_correlated(e)))
}

/// The operators that replace the subqueries of one node.
struct Joins<'a> {
    probe: LogicalPlan,
    /// The columns of the probe side, and those that nearest rows add.
    names: DFSchema,
    config: &'a dyn OptimizerConfig,
    /// From the lowest to the highest. Each may use the columns of those before it.
    found: Vec<Step>,
}

/// An operator below the node.
enum Step {
    Join(Box<CorrelatedAggregate>),
    Nearest(Box<CorrelatedRows>),
    /// A projection that adds a condition which cannot be repeated, as a column of this name.
    Condition(Expr, String),
}

impl Step {
    /// Puts the operator above `input`.
    fn above(self, input: LogicalPlan) -> Result<LogicalPlan> {
        match self {
            Self::Join(join) => join.above(input),
            Self::Nearest(rows) => rows.above(input),
            Self::Condition(condition, name) => with_columns(input, [condition.alias(name)]),
        }
    }
}

impl Joins<'_> {
    /// Replaces the subqueries in an expression that is evaluated in these branches only, given from the outermost to
    /// the innermost.
    fn replace_in(&mut self, expr: Expr, branches: &[Branch]) -> Result<Expr> {
        let replaced = expr.transform_down(|e| {
            let subquery = NullableUdf::argument(&e).filter(|e| is_correlated(e));
            if let Some(subquery) = subquery.cloned() {
                let value = self.replace(subquery, branches);
                // A column of a join is nullable by itself.
                let value = if is_correlated(&value) { e } else { value };
                return Ok(Transformed::new(value, true, TreeNodeRecursion::Jump));
            }
            let replaced = match e {
                Expr::Case(case) if needs_join(&Expr::Case(case.clone()))? => {
                    self.replace_in_case(case, branches)?
                }
                Expr::BinaryExpr(binary) if needs_join(&binary.right)? => {
                    self.replace_in_operands(binary, branches)?
                }
                Expr::ScalarSubquery(_) => self.replace(e, branches),
                _ => return Ok(Transformed::no(e)),
            };
            Ok(Transformed::new(replaced, true, TreeNodeRecursion::Jump))
        })?;
        Ok(replaced.data)
    }

    fn replace_in_operands(&mut self, binary: BinaryExpr, branches: &[Branch]) -> Result<Expr> {
        let BinaryExpr { left, op, right } = binary;
        let left = self.replace_in(*left, branches)?;
        let mut within = branches.to_vec();
        if check_repeats(&left).is_ok() {
            within.extend(Branch::of_operator(&left, op));
        }
        let right = self.replace_in(*right, &within)?;
        Ok(Expr::BinaryExpr(BinaryExpr::new(
            Box::new(left),
            op,
            Box::new(right),
        )))
    }

    fn replace_in_case(&mut self, case: Case, branches: &[Branch]) -> Result<Expr> {
        let mut compared = match case.expr {
            Some(compared) => Some(Box::new(self.replace_in(*compared, branches)?)),
            None => None,
        };
        // `CASE x WHEN y` becomes `CASE WHEN x = y`, so that only conditions have to become columns.
        let whens = case.when_then_expr.iter().map(|(when, _)| when);
        let repeats = compared
            .iter()
            .chain(whens)
            .all(|e| check_repeats(e).is_ok());
        let spelled_out = compared.take_if(|compared| !repeats && !compared.is_volatile());
        let mut is_known = compared.as_deref().is_none_or(|c| check_repeats(c).is_ok());
        let mut done = Case::new(compared, vec![], None);
        let within = |done: &Case, number: Option<usize>, is_known: bool| {
            let this = (is_known && !done.when_then_expr.is_empty())
                .then(|| Branch::of_case(done.clone(), number));
            branches.iter().cloned().chain(this).collect::<Vec<_>>()
        };
        // Whether an earlier condition has an IN or EXISTS, which must become a column of a join first.
        let mut waits = false;
        for (i, (when, mut then)) in case.when_then_expr.into_iter().enumerate() {
            let when = match &spelled_out {
                Some(compared) => compared.as_ref().clone().eq(*when),
                None => *when,
            };
            let before = within(&done, None, is_known);
            let mut when = if waits {
                when
            } else {
                self.replace_in(when, &before)?
            };
            if is_known && !waits {
                is_known = self.make_known(&mut when, done.expr.is_none(), &before)?;
            }
            waits |= when.exists(|e| Ok(is_in_or_exists(e)))?;
            let result = Box::new(lit(ScalarValue::Null));
            done.when_then_expr.push((Box::new(when), result));
            if !waits {
                *then = self.replace_in(*then, &within(&done, Some(i), is_known))?;
            }
            done.when_then_expr[i].1 = then;
        }
        if let Some(mut otherwise) = case.else_expr {
            if !waits {
                *otherwise = self.replace_in(*otherwise, &within(&done, None, is_known))?;
            }
            done.else_expr = Some(otherwise);
        }
        Ok(Expr::Case(done))
    }

    /// Makes a condition usable in guards: a condition that cannot be repeated becomes a column. Returns whether it is
    /// usable.
    fn make_known(
        &mut self,
        condition: &mut Expr,
        is_boolean: bool,
        branches: &[Branch],
    ) -> Result<bool> {
        if check_repeats(condition).is_ok() {
            return Ok(true);
        }
        if !is_boolean || condition.exists(|e| Ok(is_in_or_exists(e)))? {
            return Ok(false);
        }
        let name = unused_name(self.config, self.probe.schema(), "condition");
        let column = Expr::Column(Column::new_unqualified(&name));
        // An integer column: DataFusion rewrites a CASE with Boolean results to AND and OR, which do not guard.
        let condition = std::mem::replace(condition, column.eq(lit(1_i64)));
        let mut evaluated = when(condition, lit(1_i64)).end()?;
        for branch in branches.iter().rev() {
            evaluated = branch.guard(evaluated, &ScalarValue::Int64(None), self.probe.schema())?;
        }
        self.found.push(Step::Condition(evaluated, name));
        Ok(true)
    }

    /// Replaces a subquery that matches by an expression over the range join's columns. Returns any other expression
    /// unchanged.
    fn replace(&mut self, expr: Expr, branches: &[Branch]) -> Expr {
        let Expr::ScalarSubquery(subquery) = &expr else {
            return expr;
        };
        if subquery.outer_ref_columns.is_empty() {
            return expr;
        }
        let probe = self.probe.schema();
        match match_subquery(&subquery.subquery, probe, branches, self.config) {
            Ok(mut found) => {
                let value = std::mem::take(&mut found.values).into_iter().next();
                let Some(value) = value else {
                    return expr;
                };
                // Subqueries over the same rows share one range join.
                for join in found.into_joins() {
                    let mut rest = Some(join);
                    for known in &mut self.found {
                        if let Step::Join(known) = known {
                            rest = rest.and_then(|join| known.absorb(join));
                        }
                    }
                    let rest = rest.map(|join| Step::Join(Box::new(join)));
                    self.found.extend(rest);
                }
                value
            }
            Err(reason) => {
                let rows = match NearestRow::of(&subquery.subquery) {
                    Some(_) => self.nearest_row(&subquery.subquery, branches),
                    None => Err(reason),
                };
                or_log(rows, "a scalar subquery").unwrap_or(expr)
            }
        }
    }

    /// Replaces a subquery with ORDER BY and LIMIT that no aggregate of a range join answers.
    fn nearest_row(&mut self, subquery: &LogicalPlan, branches: &[Branch]) -> Match<Expr> {
        let unmatched = Unmatched::Keep;
        let mut found =
            CorrelatedRows::try_match(subquery, unmatched, &self.names, branches, self.config)?;
        if !found.is_single() {
            return reject("its LIMIT is greater than 1");
        }
        let value = std::mem::take(&mut found.values).into_iter().next();
        let Some(value) = value else {
            return reject("it has no column");
        };
        self.names = self.names.join(found.columns())?;
        self.found.push(Step::Nearest(Box::new(found)));
        Ok(value)
    }
}
