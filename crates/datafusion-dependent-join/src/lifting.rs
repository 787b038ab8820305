//! Subqueries in expressions become dependent joins: joins whose right side refers to columns of the left one.
//!
//! ```text
//!   SELECT q.id, (SELECT max(p.v) FROM p WHERE p.k < q.k) AS m FROM q WHERE EXISTS (SELECT 1 FROM r WHERE r.k > q.k)
//!
//!   Projection: q.id, __subquery_2.value AS m
//!     Left Join
//!       LeftSemi Join
//!         q
//!         SubqueryAlias: __subquery_1
//!           Subquery: Filter: r.k > outer(q.k) …
//!       SubqueryAlias: __subquery_2
//!         Subquery: Projection: max(p.v) AS value …
//!
//!   scalar subquery         Left Join, the value of at most one row
//!   EXISTS, IN, ANY, ALL    LeftSemi and LeftAnti Join as conjuncts of a filter, LeftMark Join elsewhere
//! ```
//!
//! All are evaluated for each row of the left side, also those in branches of a CASE that are not taken (`branches`).

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{
    Column, DFSchemaRef, JoinType, NullEquality, Result, ScalarValue, plan_err,
};
use datafusion::functions_aggregate::count::count;
use datafusion::functions_aggregate::first_last::first_value_udaf;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, disjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Aggregate, Expr, FetchType, Filter, Join, JoinConstraint, LogicalPlan, Projection, Sort,
    Subquery, SubqueryAlias, lit, when,
};

use crate::branches::{Branch, Replacing, may_fail, replaced_in};
use crate::domain::{columns, is_volatile, source};
use crate::elimination::joins::join_of;
use crate::elimination::named;
use crate::membership::{Decisive, Membership};
use crate::outer::{
    Replacement, has_subquery, is_correlated, lateral, outer_of, outer_of_expr, subquery_of,
};
use crate::single_row::single_row_udf;

/// Where an expression with a subquery is.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) node: &'a LogicalPlan,
    /// Whether rows are left out where it is not true.
    pub(crate) is_conjunct: bool,
    /// Whether NULL is as good as FALSE.
    pub(crate) is_condition: bool,
    /// Whether it is evaluated for some rows only.
    pub(crate) is_branch: bool,
}

/// What is done with the subqueries of a node.
pub(crate) trait Lifting {
    /// Whether a subquery becomes a join.
    fn takes(&self, subquery: &Expr, place: Place<'_>) -> Result<bool>;

    /// Whether the subqueries below an expression stay as they are.
    fn keeps(&self, _expr: &Expr) -> bool {
        false
    }

    /// Whether a volatile expression has the same value whenever it is evaluated.
    fn repeats(&self, expr: &Expr) -> bool;

    /// The plan of a dependent join.
    fn join(&self, join: Join) -> Result<LogicalPlan>;

    /// A name for the right side of a join.
    fn name(&self) -> String;
}

/// The node with joins in place of subqueries, and the same columns.
pub(crate) fn lift(node: LogicalPlan, lifting: &dyn Lifting) -> Result<Transformed<LogicalPlan>> {
    if !has_subquery(&node)? {
        return Ok(Transformed::no(node));
    }
    match &node {
        LogicalPlan::Filter(filter) => lift_filter(&node, filter, lifting),
        LogicalPlan::Join(join) => lift_condition(&node, join, lifting),
        LogicalPlan::Projection(_)
        | LogicalPlan::Aggregate(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::Sort(_) => lift_expressions(node, lifting),
        _ => Ok(Transformed::no(node)),
    }
}

fn lift_filter(
    node: &LogicalPlan,
    filter: &Filter,
    lifting: &dyn Lifting,
) -> Result<Transformed<LogicalPlan>> {
    let place = Place {
        node,
        is_conjunct: true,
        is_condition: true,
        is_branch: false,
    };
    let mut input = Input::new(Arc::clone(&filter.input), lifting);
    let mut kept = vec![];
    for conjunct in split_conjunction_owned(filter.predicate.clone()) {
        if Membership::of(&conjunct).is_none() {
            kept.push(input.replaced(conjunct, place)?);
            continue;
        }
        let rest = match lifting.takes(&conjunct, place)? {
            true => input.without_rows(&conjunct, place)?,
            false => None,
        };
        kept.extend(rest.unwrap_or_else(|| vec![conjunct]));
    }
    if !input.is_new {
        return Ok(Transformed::no(node.clone()));
    }
    let plan = match conjunction(kept) {
        Some(predicate) => LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(input.plan))?),
        None => input.plan,
    };
    Ok(Transformed::yes(with_columns(plan, node.schema())?))
}

fn lift_expressions(node: LogicalPlan, lifting: &dyn Lifting) -> Result<Transformed<LogicalPlan>> {
    let wide = match &node {
        LogicalPlan::Sort(sort) => {
            node.with_new_exprs(node.expressions(), vec![with_columns_of_order(sort)?])?
        }
        _ => node.clone(),
    };
    let place = Place {
        node: &wide,
        is_conjunct: false,
        is_condition: false,
        is_branch: false,
    };
    let inputs = wide.inputs();
    let [below] = inputs.as_slice() else {
        return Ok(Transformed::no(node));
    };
    let mut input = Input::new(Arc::new((*below).clone()), lifting);
    let preserver = NamePreserver::new(&node);
    let exprs = node.expressions().into_iter().map(|expr| {
        if !expr.exists(|e| Ok(subquery_of(e).is_some()))? {
            return Ok(expr);
        }
        let name = preserver.save(&expr);
        Ok(name.restore(input.replaced(expr, place)?))
    });
    let exprs = exprs.collect::<Result<Vec<_>>>()?;
    if !input.is_new {
        return Ok(Transformed::no(node));
    }
    let plan = node.with_new_exprs(exprs, vec![input.plan])?;
    // A window has the columns of its input before its own ones.
    let plan = match (&node, plan) {
        (LogicalPlan::Window(old), new) => {
            let below = old.input.schema().fields().len();
            let own = node.schema().fields().len() - below;
            let mut all = new.schema().columns();
            let own = all.split_off(all.len() - own);
            all.truncate(below);
            projected(new, columns([all, own].concat()), node.schema())?
        }
        (_, new) => with_columns(new, node.schema())?,
    };
    Ok(Transformed::yes(plan))
}

/// The input of ORDER BY, with the columns that its subqueries refer to. DataFusion's SQL planner adds those only that
/// ORDER BY itself has.
fn with_columns_of_order(sort: &Sort) -> Result<LogicalPlan> {
    let LogicalPlan::Projection(projection) = sort.input.as_ref() else {
        return Ok(LogicalPlan::clone(&sort.input));
    };
    let node = LogicalPlan::Sort(sort.clone());
    let mut exprs = projection.expr.clone();
    for by in &sort.expr {
        for column in outer_of_expr(&by.expr, &node)? {
            let is_missing = !projection.schema.has_column(&column);
            let column = Expr::Column(column);
            let mut used = column.column_refs().into_iter();
            if is_missing
                && !exprs.contains(&column)
                && used.all(|column| projection.input.schema().has_column(column))
            {
                exprs.push(column);
            }
        }
    }
    let projection = Projection::try_new(exprs, Arc::clone(&projection.input))?;
    Ok(LogicalPlan::Projection(projection))
}

/// Conditions of a join: of an inner one above it, of others at the side that they are about.
fn lift_condition(
    node: &LogicalPlan,
    join: &Join,
    lifting: &dyn Lifting,
) -> Result<Transformed<LogicalPlan>> {
    let is_inner = join.join_type == JoinType::Inner;
    let is_outer = matches!(
        join.join_type,
        JoinType::Left | JoinType::Right | JoinType::Full
    );
    if !is_inner && (!is_outer || lateral(&join.right).is_some()) {
        return Ok(Transformed::no(node.clone()));
    }
    let place = Place {
        node,
        is_conjunct: false,
        is_condition: false,
        is_branch: false,
    };
    let mut sides = [&join.left, &join.right].map(|side| Input::new(Arc::clone(side), lifting));
    let (mut kept, mut above) = (vec![], vec![]);
    let conditions = join.filter.clone().into_iter();
    for conjunct in conditions.flat_map(split_conjunction_owned) {
        if !conjunct.exists(|e| Ok(subquery_of(e).is_some() && lifting.takes(e, place)?))? {
            kept.push(conjunct);
        } else if is_inner {
            above.push(conjunct);
        } else {
            let replaced = conjunct.transform_up(|e| {
                let Some(subquery) = subquery_of(&e) else {
                    return Ok(Transformed::no(e));
                };
                let mut about = outer_of(&subquery.subquery)?;
                about.extend(e.column_refs().into_iter().cloned());
                let is_about = |side: &&mut Input<'_>| {
                    let schema = side.plan.schema();
                    about.iter().all(|column| schema.has_column(column))
                };
                match sides.iter_mut().find(is_about) {
                    Some(side) => Ok(Transformed::yes(side.replaced(e, place)?)),
                    None => Ok(Transformed::no(e)),
                }
            })?;
            kept.push(replaced.data);
        }
    }
    let [left, right] = sides;
    if above.is_empty() && !left.is_new && !right.is_new {
        return Ok(Transformed::no(node.clone()));
    }
    let (length, is_new) = (
        left.plan.schema().fields().len(),
        left.is_new || right.is_new,
    );
    let condition = conjunction(kept);
    let mut plan = join_of(left.plan, right.plan, join, condition)?;
    if is_new {
        let mut of_left = plan.schema().columns();
        let mut of_right = of_left.split_off(length);
        of_left.truncate(join.left.schema().fields().len());
        of_right.truncate(join.right.schema().fields().len());
        plan = projected(plan, columns([of_left, of_right].concat()), node.schema())?;
    }
    let Some(predicate) = conjunction(above) else {
        return Ok(Transformed::yes(plan));
    };
    let filter = LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(plan))?);
    Ok(Transformed::yes(lift(filter, lifting)?.data))
}

/// The input of a node, and the joins above it.
struct Input<'a> {
    plan: LogicalPlan,
    lifting: &'a dyn Lifting,
    is_new: bool,
}

impl<'a> Input<'a> {
    fn new(plan: Arc<LogicalPlan>, lifting: &'a dyn Lifting) -> Self {
        Self {
            plan: Arc::unwrap_or_clone(plan),
            lifting,
            is_new: false,
        }
    }

    /// Leaves out the rows for which a conjunct with EXISTS, IN, ANY or ALL is not true, except what the conditions
    /// that it returns leave out. None if it has no plan yet.
    fn without_rows(&mut self, conjunct: &Expr, place: Place<'_>) -> Result<Option<Vec<Expr>>> {
        let Some(mut membership) = Membership::of(conjunct) else {
            return Ok(None);
        };
        if let Some(compared) = &mut membership.compared {
            let of_value = Place {
                is_condition: false,
                ..place
            };
            compared.expr = self.replaced(compared.expr.clone(), of_value)?;
        }
        let mut kept = vec![];
        if !membership.negated {
            let found = self.members(&membership, Decisive::Matches, JoinType::LeftSemi)?;
            return Ok(found.map(|_| kept));
        }
        // A comparison with NULL is no reason to keep a row.
        for decisive in self.decisive(&membership)? {
            let found = match decisive {
                Decisive::OfNull => self.mark(&membership, decisive)?,
                _ => self.members(&membership, decisive, JoinType::LeftAnti)?,
            };
            match (found, decisive) {
                (Some(mark), Decisive::OfNull) => kept.push(!mark),
                (Some(_), _) => {}
                (None, _) => return Ok(None),
            }
        }
        Ok(Some(kept))
    }

    /// An expression with columns in place of the subqueries that are taken.
    fn replaced(&mut self, expr: Expr, place: Place<'_>) -> Result<Expr> {
        let place = Place {
            is_conjunct: false,
            ..place
        };
        let branch = Branch {
            taken: vec![],
            is_condition: place.is_condition,
        };
        replaced_in(expr, &branch, &mut InPlace { input: self, place })
    }

    /// The subquery with NULL in place of the outer columns of rows that do not need it.
    fn guarded(&mut self, subquery: &Subquery, taken: &[Expr]) -> Result<Subquery> {
        let Some(taken) = conjunction(taken.iter().cloned()) else {
            return Ok(subquery.clone());
        };
        let mut outer = outer_of(&subquery.subquery)?;
        outer.retain(|column| self.plan.schema().has_column(column));
        if outer.is_empty() || !may_fail(&subquery.subquery)? {
            return Ok(subquery.clone());
        }
        let mut exprs = columns(self.plan.schema().columns());
        let mut by = vec![];
        for column in &outer {
            let name = self.lifting.name();
            let guarded = when(taken.clone(), Expr::Column(column.clone())).end()?;
            exprs.push(guarded.alias(&name));
            by.push(Column::new_unqualified(name));
        }
        let plan = Arc::new(self.plan.clone());
        let guarded = LogicalPlan::Projection(Projection::try_new(exprs, plan)?);
        // The domain is taken from these columns.
        if source(&guarded, columns(by.clone()))?.is_none() {
            return Ok(subquery.clone());
        }
        self.plan = guarded;
        let replacement = Replacement {
            outer: &outer,
            by: &by,
        };
        let plan = replacement.in_plan(&subquery.subquery, &[])?;
        Ok(subquery.with_plan(Arc::new(plan)))
    }

    /// The value of a scalar subquery.
    fn value(&mut self, subquery: &Subquery) -> Result<Option<Expr>> {
        let rows = LogicalPlan::clone(&subquery.subquery);
        if has_one_row(&rows)? {
            let right = self.right_side(subquery, rows)?;
            return self.join(right, JoinType::Left, None);
        }
        let value = columns(rows.schema().columns()).into_iter().next();
        let (Some(value), Some(about)) = (value, outer_of(&rows)?.into_iter().next()) else {
            return Ok(None);
        };
        let any_and_number = vec![first_value_udaf().call(vec![value]), count(lit(1_i64))];
        let rows = Aggregate::try_new(Arc::new(rows), vec![], any_and_number)?;
        let right = self.right_side(subquery, LogicalPlan::Aggregate(rows))?;
        let Some(number) = self.join(right, JoinType::Left, None)? else {
            return Ok(None);
        };
        let mut all = columns(self.plan.schema().columns());
        let any = all.split_off(all.len() - 2).into_iter().take(1);
        let args = any.chain([number, Expr::Column(about)]);
        Ok(Some(single_row_udf().call(args.collect())))
    }

    /// Whether EXISTS, IN, ANY or ALL is true.
    fn truth(&mut self, membership: &Membership, is_condition: bool) -> Result<Option<Expr>> {
        let mut marks = vec![];
        let decisive = match is_condition && !membership.negated {
            true => vec![Decisive::Matches],
            false => self.decisive(membership)?,
        };
        for decisive in decisive {
            match self.mark(membership, decisive)? {
                Some(mark) => marks.push(mark),
                None => return Ok(None),
            }
        }
        let unknown = disjunction(marks.split_off(marks.len().min(1)));
        let found = match (marks.pop(), unknown) {
            (Some(is_true), Some(is_unknown)) => when(is_true, lit(true))
                .when(is_unknown, lit(ScalarValue::Boolean(None)))
                .otherwise(lit(false))?,
            (Some(is_true), None) => is_true,
            (None, _) => return Ok(None),
        };
        Ok(Some(match membership.negated {
            true => !found,
            false => found,
        }))
    }

    /// Which rows decide. There is a join for each, so that the set must have the same rows each time.
    fn decisive(&self, membership: &Membership) -> Result<Vec<Decisive>> {
        let decisive = membership.decisive(self.plan.schema())?;
        let rows = &membership.subquery.subquery;
        if decisive.len() > 1 && is_volatile(rows, &|e| self.lifting.repeats(e))? {
            return plan_err!(
                "a subquery of IN, ANY or ALL has no plan where it may have NULL and a function whose value changes from \
                 call to call: compare with columns that are NOT NULL"
            );
        }
        Ok(decisive)
    }

    /// Whether there is a decisive row.
    fn mark(&mut self, membership: &Membership, decisive: Decisive) -> Result<Option<Expr>> {
        let mark = self.members(membership, decisive, JoinType::LeftMark)?;
        Ok(match (mark, decisive, &membership.compared) {
            (Some(mark), Decisive::OfNull, Some(compared)) => {
                Some(compared.expr.clone().is_null().and(mark))
            }
            (mark, ..) => mark,
        })
    }

    /// Joins the rows of a set that meet a condition, and returns the last column. None if it has no plan.
    fn members(
        &mut self,
        membership: &Membership,
        decisive: Decisive,
        join_type: JoinType,
    ) -> Result<Option<Expr>> {
        let rows = LogicalPlan::clone(&membership.subquery.subquery);
        let right = self.right_side(&membership.subquery, rows)?;
        let value = columns(right.schema().columns()).into_iter().next();
        let condition = value.and_then(|value| membership.condition(decisive, value));
        self.join(right, join_type, condition)
    }

    /// The rows of a subquery with names of their own.
    fn right_side(&self, subquery: &Subquery, rows: LogicalPlan) -> Result<LogicalPlan> {
        let values = columns(rows.schema().columns()).into_iter();
        let values = values
            .zip(["value", "rows"])
            .map(|(value, name)| value.alias(name));
        let rows = LogicalPlan::Projection(Projection::try_new(values.collect(), Arc::new(rows))?);
        let rows = match is_correlated(&rows)? {
            false => rows,
            true => LogicalPlan::Subquery(Subquery {
                outer_ref_columns: rows.all_out_ref_exprs(),
                subquery: Arc::new(rows),
                spans: subquery.spans.clone(),
            }),
        };
        let alias = SubqueryAlias::try_new(Arc::new(rows), self.lifting.name())?;
        Ok(LogicalPlan::SubqueryAlias(alias))
    }

    /// Adds a join, and returns its last column. None if it has no plan.
    fn join(
        &mut self,
        right: LogicalPlan,
        join_type: JoinType,
        condition: Option<Expr>,
    ) -> Result<Option<Expr>> {
        let name = self.lifting.name();
        let join = Join::try_new(
            Arc::new(self.plan.clone()),
            Arc::new(right),
            vec![],
            condition,
            join_type,
            JoinConstraint::On,
            NullEquality::NullEqualsNothing,
            false,
        )?;
        let joined = self.lifting.join(join)?;
        self.is_new = true;
        let mut all = columns(joined.schema().columns());
        self.plan = match (join_type, all.pop()) {
            // The marks of several joins would have one name in a physical plan.
            (JoinType::LeftMark, Some(mark)) => {
                all.push(mark.alias(&name));
                LogicalPlan::Projection(Projection::try_new(all, Arc::new(joined))?)
            }
            _ => joined,
        };
        Ok(self.plan.schema().columns().pop().map(Expr::Column))
    }
}

/// The input of a node whose expression is replaced.
struct InPlace<'a, 'b> {
    input: &'a mut Input<'b>,
    place: Place<'a>,
}

impl Replacing for InPlace<'_, '_> {
    fn keeps(&self, expr: &Expr) -> bool {
        self.input.lifting.keeps(expr)
    }

    fn replace(&mut self, expr: Expr, branch: &Branch) -> Result<Expr> {
        let input = &mut *self.input;
        let place = Place {
            is_condition: branch.is_condition,
            is_branch: !branch.taken.is_empty(),
            ..self.place
        };
        if subquery_of(&expr).is_none() || !input.lifting.takes(&expr, place)? {
            return Ok(expr);
        }
        let value = match (&expr, Membership::of(&expr)) {
            (Expr::ScalarSubquery(subquery), _) => {
                let subquery = input.guarded(subquery, &branch.taken)?;
                input.value(&subquery)?
            }
            (_, Some(mut membership)) => {
                membership.subquery = input.guarded(&membership.subquery, &branch.taken)?;
                input.truth(&membership, branch.is_condition)?
            }
            _ => None,
        };
        Ok(value.unwrap_or(expr))
    }
}

/// Whether a plan has one row at most, whatever is in the tables.
fn has_one_row(plan: &LogicalPlan) -> Result<bool> {
    match plan {
        LogicalPlan::Aggregate(aggregate) => Ok(aggregate.group_expr.is_empty()),
        LogicalPlan::EmptyRelation(_) => Ok(true),
        LogicalPlan::Sort(sort) if sort.fetch.is_some_and(|fetch| fetch <= 1) => Ok(true),
        LogicalPlan::Limit(limit) => Ok(match limit.get_fetch_type()? {
            FetchType::Literal(Some(fetch)) if fetch <= 1 => true,
            _ => has_one_row(&limit.input)?,
        }),
        LogicalPlan::Projection(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::Distinct(_) => match plan.inputs().as_slice() {
            [input] => has_one_row(input),
            _ => Ok(false),
        },
        _ => Ok(false),
    }
}

/// A plan whose first columns are those of `schema`, with these only.
fn with_columns(plan: LogicalPlan, schema: &DFSchemaRef) -> Result<LogicalPlan> {
    let mut all = plan.schema().columns();
    if all == schema.columns() {
        return Ok(plan);
    }
    all.truncate(schema.fields().len());
    projected(plan, columns(all), schema)
}

fn projected(plan: LogicalPlan, exprs: Vec<Expr>, schema: &DFSchemaRef) -> Result<LogicalPlan> {
    let projection = Projection::try_new(named(exprs, schema), Arc::new(plan))?;
    Ok(LogicalPlan::Projection(projection))
}
