//! The dependent joins above the input of a node: what takes the place of the subqueries of its expressions.

use std::sync::Arc;

use datafusion_common::tree_node::TreeNode;
use datafusion_common::{
    Column, DFSchema, JoinType, NullEquality, Result, ScalarValue, internal_err, plan_err,
};
use datafusion_expr::utils::disjunction;
use datafusion_expr::{
    Aggregate, Expr, FetchType, Join, JoinConstraint, LogicalPlan, Projection, Subquery,
    SubqueryAlias, lit, when,
};
use datafusion_functions_aggregate::count::count;
use datafusion_functions_aggregate::first_last::first_value_udaf;

use crate::branches::{Branch, CannotFail, Replacing, may_fail, only_compares, replaced_in};
use crate::domain::{RepeatsRows, source, volatile_in};
use crate::exprs::columns;
use crate::membership::{Decisive, Membership};
use crate::outer::{Replacement, is_correlated, outer_of, reference_to, subquery_of};
use crate::single_row::single_row_udf;
use crate::ties::without_ties;

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

impl<'a> Place<'a> {
    /// In an expression of a node that is no condition and evaluated for all rows.
    pub(crate) fn of(node: &'a LogicalPlan) -> Self {
        Self {
            node,
            is_conjunct: false,
            is_condition: false,
            is_branch: false,
        }
    }
}

/// What is done with the subqueries of a node.
pub(crate) trait Lifting {
    /// Whether a subquery becomes a join.
    fn takes(&self, subquery: &Expr, place: Place<'_>) -> Result<bool>;

    /// Whether the subqueries below an expression stay as they are.
    fn keeps(&self, _expr: &Expr) -> bool {
        false
    }

    /// Which expressions have a value for all rows.
    fn cannot_fail(&self) -> CannotFail {
        only_compares
    }

    /// Whether another rule joins the rows of a subquery with those of a plan with this schema, and needs no domain.
    fn is_joined(&self, _subquery: &LogicalPlan, _outer: &DFSchema) -> bool {
        false
    }

    /// Which nodes of other crates have the same rows whenever their inputs have.
    fn repeats_rows(&self) -> RepeatsRows {
        |_| false
    }

    /// Whether a volatile expression has the same value whenever it is evaluated.
    fn repeats(&self, expr: &Expr) -> bool;

    /// The plan of a dependent join.
    fn join(&self, join: Join) -> Result<LogicalPlan>;

    /// A name for the right side of a join.
    fn name(&self) -> String;
}

/// The input of a node, and the joins above it.
pub(crate) struct Input<'a> {
    pub(crate) plan: LogicalPlan,
    lifting: &'a dyn Lifting,
    pub(crate) is_new: bool,
}

impl<'a> Input<'a> {
    pub(crate) fn new(plan: Arc<LogicalPlan>, lifting: &'a dyn Lifting) -> Self {
        Self {
            plan: Arc::unwrap_or_clone(plan),
            lifting,
            is_new: false,
        }
    }

    /// Leaves out the rows for which a conjunct with EXISTS, IN, ANY or ALL is not true, except what the conditions
    /// that it returns leave out.
    pub(crate) fn without_rows(
        &mut self,
        mut membership: Membership,
        place: Place<'_>,
    ) -> Result<Vec<Expr>> {
        if let Some(compared) = &mut membership.compared {
            let of_value = Place {
                is_condition: false,
                ..place
            };
            compared.expr = self.replaced(compared.expr.clone(), of_value)?;
            compared.expr = self.without_subquery(compared.expr.clone(), &[])?;
        }
        if !membership.negated {
            self.members(&membership, Decisive::Matches, JoinType::LeftSemi)?;
            return Ok(vec![]);
        }
        let mut decisive = self.decisive(&membership)?;
        if decisive.len() > 1 && membership.is_computed_once()? {
            decisive = vec![Decisive::IsNotFalse];
        }
        let mut kept = vec![];
        // A comparison with NULL is no reason to keep a row.
        for decisive in decisive {
            if decisive == Decisive::OfNull {
                kept.push(!self.mark(&membership, decisive)?);
            } else {
                self.members(&membership, decisive, JoinType::LeftAnti)?;
            }
        }
        Ok(kept)
    }

    /// An expression with columns in place of the subqueries that are taken.
    pub(crate) fn replaced(&mut self, expr: Expr, place: Place<'_>) -> Result<Expr> {
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

    /// An expression as a column, for the rows that meet all conditions.
    fn column(&mut self, expr: Expr, taken: &[Expr]) -> Result<Expr> {
        let name = self.lifting.name();
        let mut exprs = columns(self.plan.schema().columns());
        exprs.push(only_where(taken, expr)?.alias(&name));
        let plan = Arc::new(self.plan.clone());
        self.plan = LogicalPlan::Projection(Projection::try_new(exprs, plan)?);
        Ok(Expr::Column(Column::new_unqualified(name)))
    }

    /// What is compared in the condition of a join, where a subquery has no plan.
    fn without_subquery(&mut self, expr: Expr, taken: &[Expr]) -> Result<Expr> {
        if !expr.exists(|e| Ok(subquery_of(e).is_some()))? {
            return Ok(expr);
        }
        let taken = if has_set(taken)? { &[] } else { taken };
        self.column(expr, taken)
    }

    /// The subquery with NULL in place of the outer columns of rows that do not need it.
    fn guarded(&mut self, subquery: &Subquery, taken: &[Expr]) -> Result<Subquery> {
        if has_set(taken)? {
            return Ok(subquery.clone());
        }
        let mut outer = outer_of(&subquery.subquery)?;
        outer.retain(|column| self.plan.schema().has_column(column));
        if taken.is_empty()
            || outer.is_empty()
            || !may_fail(&subquery.subquery, self.lifting.cannot_fail())?
        {
            return Ok(subquery.clone());
        }
        let mut exprs = columns(self.plan.schema().columns());
        let mut by = vec![];
        for column in &outer {
            let name = self.lifting.name();
            let guarded = only_where(taken, Expr::Column(column.clone()))?;
            exprs.push(guarded.alias(&name));
            by.push(Column::new_unqualified(name));
        }
        let plan = Arc::new(self.plan.clone());
        let guarded = LogicalPlan::Projection(Projection::try_new(exprs, plan)?);
        let replacement = Replacement {
            outer: &columns(outer),
            by: &by,
        };
        let plan = replacement.in_plan(&subquery.subquery, &[])?;
        // The domain is taken from these columns, if there is one.
        let has_domain = |guarded: &LogicalPlan| -> Result<bool> {
            let source = source(guarded, columns(by.clone()), self.lifting.repeats_rows())?;
            Ok(source.is_some())
        };
        if !has_domain(&guarded)?
            && !has_domain(&without_ties(&guarded)?)?
            && !self.lifting.is_joined(&plan, guarded.schema())
        {
            return Ok(subquery.clone());
        }
        self.plan = guarded;
        Ok(subquery.with_plan(Arc::new(plan)))
    }

    /// The value of a scalar subquery. None if it may have several rows and needs no outer row.
    fn value(&mut self, subquery: &Subquery) -> Result<Option<Expr>> {
        let rows = LogicalPlan::clone(&subquery.subquery);
        if has_one_row(&rows)? {
            let right = self.right_side(subquery, rows)?;
            return Ok(self.join(right, JoinType::Left, None)?.pop());
        }
        let value = columns(rows.schema().columns()).into_iter().next();
        let (Some(value), Some(about)) = (value, self.about(&rows)?) else {
            return Ok(None);
        };
        let any_and_number = vec![first_value_udaf().call(vec![value]), count(lit(1_i64))];
        let rows = Aggregate::try_new(Arc::new(rows), vec![], any_and_number)?;
        let right = self.right_side(subquery, LogicalPlan::Aggregate(rows))?;
        let mut args = self.join(right, JoinType::Left, None)?;
        args.push(about);
        Ok(Some(single_row_udf().call(args)))
    }

    /// A column that a subquery refers to, of the query next to it if there is one.
    fn about(&self, rows: &LogicalPlan) -> Result<Option<Expr>> {
        let outer = outer_of(rows)?;
        let mut next = outer.iter();
        if let Some(column) = next.find(|column| self.plan.schema().has_column(column)) {
            return Ok(Some(Expr::Column(column.clone())));
        }
        outer
            .first()
            .map_or(Ok(None), |column| reference_to(column, rows))
    }

    /// Whether EXISTS, IN, ANY or ALL is true.
    fn truth(&mut self, membership: &Membership, is_condition: bool) -> Result<Expr> {
        let mut decisive = match is_condition && !membership.negated {
            true => vec![Decisive::Matches],
            false => self.decisive(membership)?,
        };
        if decisive.len() > 1 && membership.is_computed_once()? {
            if is_condition {
                return Ok(!self.mark(membership, Decisive::IsNotFalse)?);
            }
            decisive = vec![Decisive::Matches, Decisive::IsUnknown];
        }
        let is_true = self.mark(membership, Decisive::Matches)?;
        let unknown = decisive.into_iter().filter(|d| *d != Decisive::Matches);
        let unknown = unknown.map(|decisive| self.mark(membership, decisive));
        let unknown = unknown.collect::<Result<Vec<_>>>()?;
        let found = match disjunction(unknown) {
            Some(is_unknown) => when(is_true, lit(true))
                .when(is_unknown, lit(ScalarValue::Boolean(None)))
                .otherwise(lit(false))?,
            None => is_true,
        };
        Ok(match membership.negated {
            true => !found,
            false => found,
        })
    }

    /// Which rows decide. There is a join for each, so that the set must have the same rows each time.
    fn decisive(&self, membership: &Membership) -> Result<Vec<Decisive>> {
        let decisive = membership.decisive(self.plan.schema())?;
        let rows = &membership.subquery.subquery;
        if decisive.len() > 1
            && let Some(volatile) = volatile_in(rows, &|e| self.lifting.repeats(e))?
        {
            return plan_err!(
                "a subquery of IN, ANY or ALL that may have NULL has no plan with {volatile}, whose value changes from \
                 call to call: compare with columns that are NOT NULL"
            );
        }
        Ok(decisive)
    }

    /// Whether there is a decisive row.
    fn mark(&mut self, membership: &Membership, decisive: Decisive) -> Result<Expr> {
        let mut added = self.members(membership, decisive, JoinType::LeftMark)?;
        let Some(mark) = added.pop() else {
            return internal_err!("a mark join has no mark");
        };
        Ok(match &membership.compared {
            Some(compared) if decisive == Decisive::OfNull => {
                compared.expr.clone().is_null().and(mark)
            }
            _ => mark,
        })
    }

    /// Joins the rows of a set that meet a condition, and returns the columns that are added.
    fn members(
        &mut self,
        membership: &Membership,
        decisive: Decisive,
        join_type: JoinType,
    ) -> Result<Vec<Expr>> {
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

    /// Adds a join, and returns the columns that it adds.
    fn join(
        &mut self,
        right: LogicalPlan,
        join_type: JoinType,
        condition: Option<Expr>,
    ) -> Result<Vec<Expr>> {
        let before = self.plan.schema().fields().len();
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
                all.push(mark.alias(self.lifting.name()));
                LogicalPlan::Projection(Projection::try_new(all, Arc::new(joined))?)
            }
            _ => joined,
        };
        Ok(columns(self.plan.schema().columns().split_off(before)))
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

    fn evaluate_once(&mut self, condition: Expr, branch: &Branch) -> Result<Expr> {
        // An integer: DataFusion rewrites a CASE with Boolean results to AND and OR, which do not guard.
        let condition = when(condition, lit(1_i64)).end()?;
        let column = self.input.column(condition, &branch.taken)?;
        Ok(column.eq(lit(1_i64)))
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
                if let Some(compared) = &mut membership.compared {
                    compared.expr = input.without_subquery(compared.expr.clone(), &branch.taken)?;
                }
                membership.subquery = input.guarded(&membership.subquery, &branch.taken)?;
                Some(input.truth(&membership, branch.is_condition)?)
            }
            _ => None,
        };
        Ok(value.unwrap_or(expr))
    }
}

/// Whether one of these conditions has EXISTS, IN, ANY or ALL, which have no plan in a projection.
fn has_set(conditions: &[Expr]) -> Result<bool> {
    let is_set = |e: &Expr| subquery_of(e).is_some() && !matches!(e, Expr::ScalarSubquery(_));
    for condition in conditions {
        if condition.exists(|e| Ok(is_set(e)))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// An expression for the rows that meet all conditions, NULL for others.
fn only_where(conditions: &[Expr], expr: Expr) -> Result<Expr> {
    // AND may evaluate a condition for rows that do not meet the one before.
    let conditions = conditions.iter().rev().cloned();
    conditions
        .into_iter()
        .try_fold(expr, |expr, condition| when(condition, expr).end())
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
