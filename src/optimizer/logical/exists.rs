//! EXISTS and IN over a range, where DataFusion has no join for them.
//!
//! ```text
//!   q.x NOT IN (SELECT p.v FROM p WHERE p.sym = q.sym AND p.k BETWEEN q.a AND q.b)
//!
//!   CASE WHEN (SELECT count(*) FROM p WHERE …) = 0 THEN TRUE               the set is empty
//!        WHEN q.x IS NULL THEN NULL
//!        WHEN (SELECT count(*) FROM p WHERE … AND p.v = q.x) > 0 THEN FALSE
//!        WHEN (SELECT count(p.v) FROM p WHERE …) < (SELECT count(*) FROM p WHERE …) THEN NULL      the set has a NULL
//!        ELSE TRUE END
//! ```
//!
//! `SubqueryToRangeJoin` makes range joins of the counts. Where the subquery has another condition on both sides
//! besides equalities and one range, mark joins (`mark_join`) tell whether there is a row, a row with p.v = q.x, and a
//! row where p.v IS NULL. In a WHERE, EXISTS and IN as conjuncts or operands of OR are left to DataFusion, which makes
//! semi and mark joins of them: there a NULL counts as FALSE. Elsewhere in a WHERE, as in `(q.x IN (…)) IS FALSE`, an
//! IN that has no counts and no mark joins is made of EXISTS. In a SELECT list DataFusion has no plan for either, and
//! it has none for a correlated NOT IN.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result, ScalarValue, Spans, plan_err};
use datafusion::functions_aggregate::expr_fn::{count, min};
use datafusion::logical_expr::expr::{BinaryExpr, Exists, InSubquery};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::utils::{COUNT_STAR_EXPANSION, conjunction, disjunction};
use datafusion::logical_expr::{
    Aggregate, Distinct, Expr, ExprSchemable, FetchType, LogicalPlan, Operator, SkipType, Subquery,
    lit, when,
};
use datafusion::optimizer::OptimizerConfig;
use datafusion::optimizer::simplify_expressions::ExprSimplifier;

use crate::common::sql_text::clause;
use crate::optimizer::condition::convert_bound;
use crate::optimizer::logical::common::outer_columns::{
    add_outer_columns, admits_subqueries, has_expression, scalar_subquery, to_outer,
};
use crate::optimizer::logical::common::plain_sql_rule::plain_sql_rule;
use crate::optimizer::logical::common::plans::{filtered, map_expressions, replaced, with_input};
use crate::optimizer::logical::condition_parts::{
    check_joins, check_repeats, compared_with, conjuncts,
};
use crate::optimizer::logical::correlated_aggregate::CorrelatedAggregate;
use crate::optimizer::logical::mark_join::MarkJoins;
use crate::optimizer::logical::without_join::note_without_join;
use crate::optimizer::rejection::{Match, Shape, note, reject};

plain_sql_rule!(
    /// Rewrites EXISTS and IN over a range to comparisons of counts, where DataFusion has no join for them. Does
    /// nothing if `rmq.rewrite` is false.
    ///
    /// It must run before [`SubqueryToRangeJoin`](crate::optimizer::logical::scalar_subquery::SubqueryToRangeJoin).
    ExistsToCounts,
    "rmq_exists_to_counts",
    replace
);

fn replace(plan: &LogicalPlan, config: &dyn OptimizerConfig) -> Result<Option<LogicalPlan>> {
    let is_filter = matches!(plan, LogicalPlan::Filter(_));
    let may_change = |e: &Expr| is_correlated(e) || is_filter && matches!(e, Expr::InSubquery(_));
    let inputs = plan.inputs();
    let [input] = inputs.as_slice() else {
        return Ok(None);
    };
    if !admits_subqueries(plan) || !has_expression(plan, may_change)? {
        return Ok(None);
    }
    let mut subqueries = Subqueries {
        outer: input.schema(),
        config,
        marks: MarkJoins::new(input.schema(), config),
    };
    let replaced = map_expressions(plan.clone(), |expr| {
        if is_filter {
            subqueries.in_condition(expr, true)
        } else {
            subqueries.in_expression(expr)
        }
    })?;
    let marks = subqueries.marks;
    Ok(match replaced.transformed {
        _ if !marks.is_empty() => {
            let input = marks.above((*input).clone())?;
            Some(with_input(&replaced.data, input, plan.schema())?)
        }
        true => Some(replaced.data),
        false => None,
    })
}

/// Whether an expression is a correlated EXISTS or IN. Most nodes have none.
fn is_correlated(expr: &Expr) -> bool {
    match expr {
        Expr::Exists(Exists { subquery, .. }) | Expr::InSubquery(InSubquery { subquery, .. }) => {
            !subquery.outer_ref_columns.is_empty()
        }
        _ => false,
    }
}

/// The subqueries of one node, and what replaces them.
struct Subqueries<'a> {
    outer: &'a DFSchema,
    config: &'a dyn OptimizerConfig,
    marks: MarkJoins<'a>,
}

impl Subqueries<'_> {
    /// Replaces what a WHERE evaluates: not EXISTS, and not IN where NULL is as good as FALSE. DataFusion's joins for
    /// NOT IN know NULLs only in a conjunct without correlation whose left side is a column.
    fn in_condition(&mut self, expr: Expr, is_conjunct: bool) -> Result<Transformed<Expr>> {
        match expr {
            Expr::BinaryExpr(BinaryExpr {
                left,
                op: op @ (Operator::And | Operator::Or),
                right,
            }) => {
                let is_conjunct = is_conjunct && op == Operator::And;
                let left = self.in_condition(*left, is_conjunct)?;
                let right = self.in_condition(*right, is_conjunct)?;
                let is_new = left.transformed || right.transformed;
                let both = BinaryExpr::new(Box::new(left.data), op, Box::new(right.data));
                let both = Expr::BinaryExpr(both);
                Ok(Transformed::new(both, is_new, TreeNodeRecursion::Continue))
            }
            Expr::InSubquery(InSubquery { negated: false, .. }) | Expr::Exists(_) => {
                note_without_join(&expr, self.config)?;
                Ok(Transformed::no(expr))
            }
            Expr::Not(inner) => match *inner {
                Expr::Exists(_) => {
                    note_without_join(&inner, self.config)?;
                    Ok(Transformed::no(Expr::Not(inner)))
                }
                Expr::InSubquery(membership) => {
                    let negated = !membership.negated;
                    let expr = InSubquery {
                        negated,
                        ..membership
                    };
                    self.in_condition(Expr::InSubquery(expr), is_conjunct)
                }
                inner => self.in_three_valued(Expr::Not(Box::new(inner))),
            },
            Expr::InSubquery(membership) => {
                let is_independent = membership.subquery.outer_ref_columns.is_empty();
                if is_conjunct && is_independent && !self.is_constant(&membership.expr)? {
                    return Ok(Transformed::no(Expr::InSubquery(membership)));
                }
                self.not_in_condition(&membership)
            }
            other => self.in_three_valued(other),
        }
    }

    /// Replaces the subqueries of an expression of a WHERE in which NULL is not as good as FALSE.
    fn in_three_valued(&mut self, expr: Expr) -> Result<Transformed<Expr>> {
        let replaced = self.in_expression(expr)?;
        replaced.transform_data(|expr| {
            expr.transform_up(|expr| match expr {
                Expr::InSubquery(membership) => self.in_three_values(membership),
                other => Ok(Transformed::no(other)),
            })
        })
    }

    /// Whether an expression has the same value for all rows, as the optimizer sees it.
    fn is_constant(&self, expr: &Expr) -> Result<bool> {
        let context = SimplifyContext::builder()
            .with_schema(Arc::new(self.outer.clone()))
            .with_config_options(self.config.options())
            .build();
        let simplified = ExprSimplifier::new(context).simplify(expr.clone())?;
        Ok(simplified.column_refs().is_empty())
    }

    /// Replaces a NOT IN where NULL is as good as FALSE. DataFusion must not get one with NULLs: its null-aware anti
    /// join ignores the correlated conditions where it looks for NULLs.
    fn not_in_condition(&mut self, membership: &InSubquery) -> Result<Transformed<Expr>> {
        let replaced = self.in_expression(Expr::InSubquery(membership.clone()))?;
        if replaced.transformed || !self.may_be_null(membership)? {
            return Ok(replaced);
        }
        let exists = self.by_exists(membership)?;
        Ok(Transformed::yes(exists.not_in(membership)))
    }

    /// Replaces an IN of a WHERE where NULL is not as good as FALSE, as in `(x IN (…)) IS FALSE`. DataFusion's mark
    /// join takes one for the other.
    fn in_three_values(&self, membership: InSubquery) -> Result<Transformed<Expr>> {
        if !self.may_be_null(&membership)? {
            return Ok(Transformed::no(Expr::InSubquery(membership)));
        }
        let exists = self.by_exists(&membership)?;
        Ok(Transformed::yes(exists.three_values(&membership)?))
    }

    fn may_be_null(&self, membership: &InSubquery) -> Result<bool> {
        let values = &membership.subquery.subquery;
        let has_nulls = values.schema().fields().iter().any(|f| f.is_nullable());
        Ok(has_nulls || membership.expr.nullable(self.outer)?)
    }

    fn by_exists(&self, membership: &InSubquery) -> Result<ByExists> {
        ByExists::of(membership, self.outer).or_else(|reason| {
            let not = if membership.negated { "NOT " } else { "" };
            let instead = Expr::InSubquery(membership.clone());
            plan_err!(
                "{not}IN is not supported with this subquery, because {reason}: write {not}EXISTS with the comparison in its WHERE instead of {instead}"
            )
        })
    }

    /// Replaces each EXISTS and IN that depends on the outer query in an expression.
    fn in_expression(&mut self, expr: Expr) -> Result<Transformed<Expr>> {
        expr.transform_up(|expr| {
            let joins = self.marks.len();
            let found = match &expr {
                Expr::Exists(exists) => self
                    .exists_by_count(exists)
                    .or_else(|_| self.exists_by_mark(exists)),
                Expr::InSubquery(membership) => self
                    .in_by_counts(membership)
                    .or_else(|_| self.in_by_marks(membership)),
                _ => return Ok(Transformed::no(expr)),
            };
            match found {
                Ok(found) => Ok(Transformed::yes(found)),
                Err(reason) => {
                    self.marks.truncate(joins);
                    let (shape, subquery) = match &expr {
                        Expr::InSubquery(membership) => (Shape::In, &membership.subquery),
                        Expr::Exists(exists) => (Shape::Exists, &exists.subquery),
                        _ => return Ok(Transformed::no(expr)),
                    };
                    note(self.config, shape, &subquery.subquery, &reason);
                    Ok(Transformed::no(expr))
                }
            }
        })
    }

    /// `[NOT] EXISTS (…)` as `(SELECT count(*) …) > 0`, or `= 0`. With a threshold, rows are not counted:
    /// `(SELECT min(k) …) IS NOT NULL`, or `IS NULL`, for a range key k.
    fn exists_by_count(&self, exists: &Exists) -> Match<Expr> {
        let Exists { subquery, negated } = exists;
        let rows = Rows::of_exists(subquery)?;
        if let Some(first) = rows.first_crossing(self.outer, self.config) {
            return Ok(if *negated {
                first.is_null()
            } else {
                first.is_not_null()
            });
        }
        let matches = rows.count(None, None, self.outer, self.config)?;
        let zero = lit(0_i64);
        Ok(if *negated {
            matches.eq(zero)
        } else {
            matches.gt(zero)
        })
    }

    /// `[NOT] EXISTS (…)` as the column of a mark join.
    fn exists_by_mark(&mut self, exists: &Exists) -> Match<Expr> {
        let Exists { subquery, negated } = exists;
        let rows = Rows::of_exists(subquery)?;
        let mark = self.marks.mark(&rows.input)?;
        Ok(if *negated { !mark } else { mark })
    }

    /// `x [NOT] IN (…)` by three counts.
    fn in_by_counts(&self, membership: &InSubquery) -> Match<Expr> {
        let (outer, config) = (self.outer, self.config);
        let Members { x, rows, value } = Members::of(membership)?;
        let all = || rows.count(None, None, outer, config);
        let equal = equality(x, &value, outer)?;
        let zero = || lit(0_i64);
        let null = lit(ScalarValue::Boolean(None));
        let (matched, unmatched) = (lit(!membership.negated), lit(membership.negated));
        let case = when(all()?.eq(zero()), unmatched.clone())
            .when(x.clone().is_null(), null.clone())
            .when(
                rows.count(None, Some(equal), outer, config)?.gt(zero()),
                matched,
            )
            .when(
                rows.count(Some(&value), None, outer, config)?.lt(all()?),
                null,
            )
            .otherwise(unmatched)?;
        Ok(case)
    }

    /// `x [NOT] IN (…)` by up to three mark joins:
    ///
    /// ```text
    ///   CASE WHEN <a row with p.v = x> THEN TRUE
    ///        WHEN x IS NULL AND <a row> OR <a row where p.v IS NULL> THEN NULL
    ///        ELSE FALSE END
    /// ```
    fn in_by_marks(&mut self, membership: &InSubquery) -> Match<Expr> {
        let Members { x, rows, value } = Members::of(membership)?;
        let equal = equality(x, &value, self.outer)?;
        let mut mark = |rows: &LogicalPlan, equal: Option<Expr>| {
            let equal = equal.map(|equal| filtered(rows.clone(), equal));
            let rows = equal.transpose()?.unwrap_or_else(|| rows.clone());
            self.marks.mark(&rows)
        };
        let has_equal = mark(&rows.input, Some(equal))?;
        let mut is_unknown = vec![];
        if x.nullable(self.outer)? {
            is_unknown.push(x.clone().is_null().and(mark(&rows.input, None)?));
        }
        if value.nullable(rows.input.schema())? {
            is_unknown.push(mark(&rows.input, Some(value.clone().is_null()))?);
        }
        Ok(three_valued(has_equal, is_unknown, membership.negated)?)
    }
}

/// `x [NOT] IN (…)` by up to three EXISTS. They serve whatever the subquery is made of.
struct ByExists {
    /// A row equals x.
    equal: Exists,
    /// A row is NULL, if it may be.
    null: Option<Exists>,
    /// There is a row, if x may be NULL.
    any: Option<Exists>,
}

impl ByExists {
    fn of(membership: &InSubquery, outer: &DFSchema) -> Match<Self> {
        let InSubquery { expr: x, .. } = membership;
        let Subquery {
            subquery: plan,
            outer_ref_columns,
            ..
        } = &membership.subquery;
        check_repeats(x)?;
        let special = plan.exists(|node| {
            let is_limit = matches!(node, LogicalPlan::Limit(_));
            Ok(is_limit || has_expression(node, Expr::is_volatile)?)
        })?;
        if special {
            return reject("it has a LIMIT or a volatile function");
        }
        let Some((qualifier, field)) = plan.schema().iter().next() else {
            return reject("it has no column");
        };
        let value = Expr::Column(Column::from((qualifier, field)));
        let exists = |condition: Option<Expr>| -> Result<Exists> {
            let mut plan = plan.as_ref().clone();
            let mut outer_ref_columns = outer_ref_columns.clone();
            if let Some(condition) = condition {
                add_outer_columns(&mut outer_ref_columns, &condition)?;
                plan = filtered(plan, condition)?;
            }
            let subquery = Subquery {
                subquery: Arc::new(plan),
                outer_ref_columns,
                spans: Spans::new(),
            };
            let negated = false;
            Ok(Exists { subquery, negated })
        };
        let equal = equality(x, &value, outer)?;
        Ok(Self {
            equal: exists(Some(equal))?,
            null: field
                .is_nullable()
                .then(|| exists(Some(value.is_null())))
                .transpose()?,
            any: x.nullable(outer)?.then(|| exists(None)).transpose()?,
        })
    }

    /// FALSE where NOT IN is NULL:
    ///
    /// ```text
    ///   NOT EXISTS (… = x) AND NOT EXISTS (… IS NULL) AND (x IS NOT NULL OR NOT EXISTS (…))
    /// ```
    fn not_in(self, membership: &InSubquery) -> Expr {
        let none = |exists: Exists| {
            let negated = true;
            Expr::Exists(Exists { negated, ..exists })
        };
        let mut all = none(self.equal);
        if let Some(null) = self.null {
            all = all.and(none(null));
        }
        if let Some(any) = self.any {
            let is_known = membership.expr.as_ref().clone().is_not_null();
            all = all.and(is_known.or(none(any)));
        }
        all
    }

    /// ```text
    ///   CASE WHEN EXISTS (… = x) THEN TRUE
    ///        WHEN EXISTS (… IS NULL) OR x IS NULL AND EXISTS (…) THEN NULL
    ///        ELSE FALSE END
    /// ```
    fn three_values(self, membership: &InSubquery) -> Result<Expr> {
        let is_null = membership.expr.as_ref().clone().is_null();
        let any = self.any.map(|any| is_null.and(Expr::Exists(any)));
        let unknown = self.null.map(Expr::Exists).into_iter().chain(any);
        three_valued(
            Expr::Exists(self.equal),
            unknown.collect(),
            membership.negated,
        )
    }
}

/// IN, or NOT IN: whether a row is equal, and where that is unknown if none is.
fn three_valued(equal: Expr, unknown: Vec<Expr>, negated: bool) -> Result<Expr> {
    let mut case = when(equal, lit(!negated));
    if let Some(unknown) = disjunction(unknown) {
        case = case.when(unknown, lit(ScalarValue::Boolean(None)));
    }
    case.otherwise(lit(negated))
}

/// `x = value`, with a constant on the right, where the optimizer puts it: DataFusion 55 takes `'a' = x AND x = 'a'`
/// for FALSE where it infers one of them.
fn equality(x: &Expr, value: &Expr, outer: &DFSchema) -> Result<Expr> {
    let (x, is_constant) = (to_outer(x.clone(), outer)?, x.column_refs().is_empty());
    let value = value.clone();
    Ok(if is_constant {
        value.eq(x)
    } else {
        x.eq(value)
    })
}

/// The parts of `x IN (SELECT value FROM rows)`.
struct Members<'a> {
    x: &'a Expr,
    rows: Rows<'a>,
    value: Expr,
}

impl<'a> Members<'a> {
    fn of(membership: &'a InSubquery) -> Match<Self> {
        let x = membership.expr.as_ref();
        check_joins(x)?;
        let rows = Rows::of(&membership.subquery)?;
        let Some(value) = rows.value.clone() else {
            return reject("its subquery has not one column");
        };
        check_joins(&value)?;
        Ok(Self { x, rows, value })
    }
}

/// The rows of a subquery, without what does not matter to whether there is one.
struct Rows<'a> {
    subquery: &'a Subquery,
    input: LogicalPlan,
    /// The only column, over `input`.
    value: Option<Expr>,
}

impl<'a> Rows<'a> {
    /// The rows of `EXISTS (…)`. A LIMIT above 0 leaves at least one if there are any.
    fn of_exists(subquery: &'a Subquery) -> Match<Self> {
        let mut plan = subquery.subquery.as_ref();
        while let LogicalPlan::Limit(limit) = plan
            && let (SkipType::Literal(0), FetchType::Literal(fetch)) =
                (limit.get_skip_type()?, limit.get_fetch_type()?)
            && fetch != Some(0)
        {
            plan = &limit.input;
        }
        Self::of_plan(subquery, plan)
    }

    fn of(subquery: &'a Subquery) -> Match<Self> {
        Self::of_plan(subquery, subquery.subquery.as_ref())
    }

    fn of_plan(subquery: &'a Subquery, mut plan: &'a LogicalPlan) -> Match<Self> {
        loop {
            plan = match plan {
                LogicalPlan::Distinct(Distinct::All(input)) => input,
                LogicalPlan::Sort(sort) if sort.fetch.is_none() => &sort.input,
                _ => break,
            };
        }
        let LogicalPlan::Projection(projection) = plan else {
            return reject(format!("its subquery ends in {}", clause(plan)));
        };
        let value = match projection.expr.as_slice() {
            [value] => Some(value.clone().unalias()),
            _ => None,
        };
        let rows = Self {
            subquery,
            input: projection.input.as_ref().clone(),
            value,
        };
        rows.without_groups()
    }

    /// The rows below DISTINCT, and below a GROUP BY without aggregates, which is the same, with its HAVING.
    fn without_groups(mut self) -> Match<Self> {
        let mut having = vec![];
        let mut plan = &self.input;
        let aggregate = loop {
            plan = match plan {
                LogicalPlan::Filter(filter) => {
                    having.push(filter.predicate.clone());
                    &filter.input
                }
                LogicalPlan::Distinct(Distinct::All(input)) if having.is_empty() => {
                    self.input = input.as_ref().clone();
                    return Ok(self);
                }
                LogicalPlan::Aggregate(aggregate) => break aggregate,
                _ => return Ok(self),
            };
        };
        let is_set = |e: &Expr| matches!(e, Expr::GroupingSet(_)) || e.is_volatile();
        let groups = &aggregate.group_expr;
        if groups.is_empty() || !aggregate.aggr_expr.is_empty() || groups.iter().any(is_set) {
            return Ok(self);
        }
        let names = aggregate.schema.columns();
        let below = |expr: Expr| replaced(expr, &names, groups, aggregate.input.schema());
        let value = self.value.take().map(below).transpose()?;
        let having = having.into_iter().map(below);
        let having: Vec<Expr> = having.collect::<Result<_>>()?;
        let mut input = aggregate.input.as_ref().clone();
        if let Some(condition) = conjunction(having) {
            input = filtered(input, condition)?;
        }
        self.input = input;
        self.value = value;
        Ok(self)
    }

    /// The subquery that counts the rows where `value` is not NULL, or all, that meet a further condition. Rejects what
    /// would not become a range join.
    fn count(
        &self,
        value: Option<&Expr>,
        condition: Option<Expr>,
        outer: &DFSchema,
        config: &dyn OptimizerConfig,
    ) -> Match<Expr> {
        let mut input = Arc::new(self.input.clone());
        let mut outer_columns = self.subquery.outer_ref_columns.clone();
        if let Some(condition) = condition {
            add_outer_columns(&mut outer_columns, &condition)?;
            input = Arc::new(filtered(Arc::unwrap_or_clone(input), condition)?);
        }
        let counted = value.cloned().unwrap_or_else(|| lit(COUNT_STAR_EXPANSION));
        let aggregate = Aggregate::try_new(input, vec![], vec![count(counted)])?;
        let counts = LogicalPlan::Aggregate(aggregate);
        CorrelatedAggregate::try_match(&counts, outer, &[], config)?;
        Ok(scalar_subquery(counts, outer_columns))
    }

    /// The subquery that returns the least range key of the rows that meet a threshold, NULL without any; `None` if
    /// there is no threshold.
    fn first_crossing(&self, outer: &DFSchema, config: &dyn OptimizerConfig) -> Option<Expr> {
        let mut plan = &self.input;
        while let LogicalPlan::Filter(filter) = plan {
            for conjunct in conjuncts([filter.predicate.clone()]) {
                let Some(mut range) = compared_with(&conjunct, Expr::contains_outer) else {
                    continue;
                };
                if range.0.contains_outer() || check_repeats(&range.0).is_err() {
                    continue;
                }
                if convert_bound(&mut range, outer, self.input.schema()).is_err() {
                    continue;
                }
                let (key, ..) = range;
                // A float would be sorted by two keys, for the sign of a zero that does not matter here.
                if !key
                    .get_type(self.input.schema())
                    .is_ok_and(|t| !t.is_floating())
                {
                    continue;
                }
                let input = Arc::new(self.input.clone());
                let Ok(aggregate) = Aggregate::try_new(input, vec![], vec![min(key)]) else {
                    continue;
                };
                let least = LogicalPlan::Aggregate(aggregate);
                let found = CorrelatedAggregate::try_match(&least, outer, &[], config);
                if found.is_ok_and(|found| !found.spec.thresholds.is_empty()) {
                    let outer_columns = self.subquery.outer_ref_columns.clone();
                    return Some(scalar_subquery(least, outer_columns));
                }
            }
            plan = &filter.input;
        }
        None
    }
}
