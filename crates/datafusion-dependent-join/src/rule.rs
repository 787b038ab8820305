//! The rules, and which subqueries they take.

use std::cell::Cell;
use std::sync::Arc;

use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{
    Column, DFSchema, DFSchemaRef, JoinType, Result, ScalarValue, Spans, plan_err,
};
use datafusion_expr::expr_rewriter::NamePreserver;
use datafusion_expr::{
    Aggregate, Expr, Join, LogicalPlan, LogicalPlanBuilder, Projection, Subquery, SubqueryAlias,
    UserDefinedLogicalNode, check_subquery_expr,
};
use datafusion_optimizer::optimizer::ApplyOrder;
use datafusion_optimizer::{AnalyzerRule, OptimizerConfig, OptimizerRule};

use crate::branches::{CannotFail, only_compares};
use crate::domain::{RepeatsRows, is_set, source, volatile_in};
use crate::elimination::Elimination;
use crate::elimination::joins::join_of;
use crate::evaluated_once::grouped_rows;
use crate::exprs::{columns, group_keys, named};
use crate::input::{Lifting, Place};
use crate::last_aggregate::LastAggregate;
use crate::lifting::lift;
use crate::membership::of_any_row;
use crate::null_safe::all_same;
use crate::outer::{
    Replacement, from_outer, has_outer, has_subqueries, has_subquery, is_correlated, lateral,
    outer_of, subquery_of, within_node,
};
use crate::planned::{has_plan, is_pulled_up};
use crate::refusal::{Found, Refusal, found_now, refuse, wait};
use crate::simple::Rows;
use crate::ties::without_ties;
use crate::work_tables::work_table;

/// Makes lateral joins of the subqueries that DataFusion rejects before its first optimizer rule, and of ANY and ALL.
/// [`UnnestDependentJoins`] makes joins of these.
///
/// It also takes scalar subqueries whose column is NOT NULL and that may have no row: DataFusion takes their value to
/// be NOT NULL, too.
#[derive(Debug)]
pub struct SubqueriesToDependentJoins {
    /// Whether the subqueries below an expression stay as they are, such as those of functions that take a query as an
    /// argument, not its value.
    pub keeps: fn(&Expr) -> bool,
    /// Whether to leave scalar subqueries that are NOT NULL by mistake, as another rule mends them.
    pub keeps_not_null: bool,
}

impl Default for SubqueriesToDependentJoins {
    fn default() -> Self {
        Self {
            keeps: |_| false,
            keeps_not_null: false,
        }
    }
}

impl AnalyzerRule for SubqueriesToDependentJoins {
    fn name(&self) -> &'static str {
        "subqueries_to_dependent_joins"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        // Most plans have no subquery, and need no copy.
        if !has_subqueries(&plan)? {
            return Ok(plan);
        }
        let lifting = Rejected {
            rule: self,
            names: Cell::new(0),
        };
        let mut is_new = false;
        let lifted = with_laterals(plan, &[])?.transform_up_with_subqueries(|node| {
            let node = match has_subquery(&node)? {
                true => {
                    check_aggregates(&node)?;
                    node.map_expressions(|expr| expr.transform_up(of_any_row))?
                        .data
                }
                false => node,
            };
            let lifted = lift(node, &lifting)?;
            is_new |= lifted.transformed;
            match is_new {
                // Values of subqueries may be NULL.
                true => Ok(Transformed::yes(lifted.data.recompute_schema()?)),
                false => Ok(lifted),
            }
        });
        Ok(lifted?.data)
    }
}

/// Refuses subqueries in expressions of a node with aggregates of outer columns alone, which SQL computes in the query
/// around.
fn check_aggregates(node: &LogicalPlan) -> Result<()> {
    let check_expr = |expr: &Expr| match expr {
        Expr::AggregateFunction(_) if !expr.any_column_refs() && expr.contains_outer() => {
            plan_err!(
                "{} in a subquery is an aggregate of the query around it: write it in a subquery in FROM, as a column to which \
             the other one refers",
                from_outer(expr.clone())?.human_display()
            )
        }
        _ => Ok(TreeNodeRecursion::Continue),
    };
    node.apply_expressions(|expr| {
        expr.apply(|e| {
            if let Some(subquery) = subquery_of(e) {
                subquery.subquery.apply(|below| match below {
                    LogicalPlan::Aggregate(_) => below.apply_expressions(|e| e.apply(check_expr)),
                    // Its outer columns may be those of a table beside it.
                    LogicalPlan::Subquery(_) => Ok(TreeNodeRecursion::Jump),
                    _ => Ok(TreeNodeRecursion::Continue),
                })?;
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(())
}

/// A plan below queries with these schemas, with lateral joins where the right side of a join refers to the left one.
/// DataFusion's SQL planner does not see it where only subqueries of that side do.
fn with_laterals(plan: LogicalPlan, around: &[DFSchemaRef]) -> Result<LogicalPlan> {
    let plan = with_groups(with_lateral(plan, around)?)?;
    let of_exprs = within_node(&plan, around);
    // The right side of a join is the last.
    let mut of_inputs = vec![around.to_vec(); 2];
    if let LogicalPlan::Join(join) = &plan
        && lateral(&join.right).is_some()
    {
        of_inputs[0].push(Arc::clone(join.left.schema()));
    }
    let plan = plan.map_children(|input| {
        let of_left = of_inputs.pop().unwrap_or_else(|| around.to_vec());
        with_laterals(input, &of_left).map(Transformed::yes)
    })?;
    let plan = plan
        .data
        .map_subqueries(|subquery| with_laterals(subquery, &of_exprs).map(Transformed::yes))?;
    Ok(plan.data)
}

/// A join as a lateral join, if it is one.
fn with_lateral(node: LogicalPlan, around: &[DFSchemaRef]) -> Result<LogicalPlan> {
    let LogicalPlan::Join(join) = &node else {
        return Ok(node);
    };
    if lateral(&join.right).is_some() {
        return Ok(node);
    }
    let left = join.left.schema();
    let outer = outer_of(&join.right)?;
    let of_left: Vec<&Column> = outer.iter().filter(|c| left.has_column(c)).collect();
    if of_left.is_empty() {
        return Ok(node);
    }
    let is_known = |column: &&&Column| around.iter().any(|rows| rows.has_column(column));
    if let Some(column) = of_left.iter().find(is_known) {
        return plan_err!(
            "{column} in a subquery of a table in FROM may be that of the query around, or of a table before it: give one \
             of the two another alias"
        );
    }
    let subquery = |plan: &Arc<LogicalPlan>| {
        LogicalPlan::Subquery(Subquery {
            outer_ref_columns: plan.all_out_ref_exprs(),
            subquery: Arc::clone(plan),
            spans: Spans::new(),
        })
    };
    let right = match join.right.as_ref() {
        LogicalPlan::SubqueryAlias(alias) => LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(
            Arc::new(subquery(&alias.input)),
            alias.alias.clone(),
        )?),
        _ => subquery(&join.right),
    };
    Ok(LogicalPlan::Join(Join {
        right: Arc::new(right),
        ..join.clone()
    }))
}

/// A node above an aggregate whose subqueries refer to the columns of its groups, where they repeat an expression of
/// GROUP BY. DataFusion's SQL planner does so outside of subqueries only.
fn with_groups(node: LogicalPlan) -> Result<LogicalPlan> {
    let Some(aggregate) = aggregate_below(&node) else {
        return Ok(node);
    };
    let keys = group_keys(aggregate).into_iter();
    let keys = keys.zip(aggregate.schema.columns());
    let (outer, by): (Vec<_>, Vec<_>) = keys
        .filter(|(expr, _)| !matches!(expr, Expr::Column(_) | Expr::GroupingSet(_)))
        .unzip();
    if outer.is_empty() || !has_subquery(&node)? {
        return Ok(node);
    }
    let replacement = Replacement {
        outer: &outer,
        by: &by,
    };
    let preserver = NamePreserver::new(&node);
    let replaced = node.map_expressions(|expr| {
        let name = preserver.save(&expr);
        let replaced = expr.transform_down(|e| replacement.in_subquery(e, &[]))?;
        Ok(replaced.update_data(|expr| name.restore(expr)))
    });
    Ok(replaced?.data)
}

fn aggregate_below(node: &LogicalPlan) -> Option<&Aggregate> {
    match *node.inputs() {
        [LogicalPlan::Aggregate(aggregate)] => Some(aggregate),
        [below @ (LogicalPlan::Filter(_) | LogicalPlan::Window(_))] => aggregate_below(below),
        _ => None,
    }
}

/// The subqueries that DataFusion rejects.
struct Rejected<'a> {
    rule: &'a SubqueriesToDependentJoins,
    names: Cell<usize>,
}

impl Lifting for Rejected<'_> {
    fn takes(&self, subquery: &Expr, place: Place<'_>) -> Result<bool> {
        let inner = match subquery {
            Expr::Not(inner) => inner,
            other => other,
        };
        let Some(plan) = subquery_of(inner) else {
            return Ok(false);
        };
        let is_exists = matches!(inner, Expr::Exists(_));
        if !is_exists && plan.subquery.schema().fields().len() != 1 {
            return Ok(false);
        }
        // DataFusion takes a subquery that only subqueries of its own correlate for one that is not correlated.
        let is_missed = plan.outer_ref_columns.is_empty() && is_correlated(&plan.subquery)?;
        let is_comparison = matches!(inner, Expr::SetComparison(_));
        let fields = plan.subquery.schema().fields();
        let is_not_null = matches!(inner, Expr::ScalarSubquery(_))
            && !self.rule.keeps_not_null
            && fields.iter().all(|field| !field.is_nullable())
            && !has_some_row(&plan.subquery);
        Ok(is_missed
            || is_not_null
            || is_comparison
            || check_subquery_expr(place.node, &plan.subquery, inner).is_err())
    }

    fn keeps(&self, expr: &Expr) -> bool {
        (self.rule.keeps)(expr)
    }

    fn repeats(&self, expr: &Expr) -> bool {
        (self.rule.keeps)(expr)
    }

    fn join(&self, join: Join) -> Result<LogicalPlan> {
        Ok(LogicalPlan::Join(join))
    }

    fn name(&self) -> String {
        self.names.set(self.names.get() + 1);
        format!("__dependent_{}", self.names.get())
    }
}

/// Whether a plan has a row, whatever is in the tables: an aggregate without GROUP BY, or a SELECT without FROM.
pub fn has_some_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => has_some_row(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => has_some_row(&alias.input),
        LogicalPlan::Sort(sort) => has_some_row(&sort.input),
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::EmptyRelation(relation) => relation.produce_one_row,
        _ => false,
    }
}

/// Whether something holds for a subquery and the columns of the query around it.
type IsJoined = fn(&LogicalPlan, &DFSchema, &dyn OptimizerConfig) -> bool;

/// Makes lateral joins of the subqueries in expressions that DataFusion rejects or answers wrongly. It must run before
/// DataFusion's rules for subqueries.
#[derive(Debug)]
pub struct SubqueriesToLateralJoins {
    /// As [`UnnestDependentJoins::repeats`].
    pub repeats: fn(&Expr) -> bool,
    /// As [`UnnestDependentJoins::cannot_fail`].
    pub cannot_fail: fn(&Expr, &DFSchema) -> Result<bool>,
    /// Whether a rule that runs before [`UnnestDependentJoins`] joins the rows of a subquery with those of a plan with
    /// these columns: its outer columns may then have other values whenever they are computed.
    pub is_joined: IsJoined,
}

impl Default for SubqueriesToLateralJoins {
    fn default() -> Self {
        Self {
            repeats: |_| false,
            cannot_fail: only_compares,
            is_joined: |_, _, _| false,
        }
    }
}

impl OptimizerRule for SubqueriesToLateralJoins {
    fn name(&self) -> &'static str {
        "subqueries_to_lateral_joins"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        // An outer subquery is judged by what it was written as.
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let not_planned = NotPlanned {
            repeats: self.repeats,
            cannot_fail: self.cannot_fail,
            is_joined: self.is_joined,
            repeats_rows: |_| false,
            config,
        };
        lift(plan, &not_planned)
    }
}

/// The subqueries that DataFusion does not plan rightly.
struct NotPlanned<'a> {
    repeats: fn(&Expr) -> bool,
    cannot_fail: CannotFail,
    is_joined: IsJoined,
    repeats_rows: RepeatsRows,
    config: &'a dyn OptimizerConfig,
}

impl Lifting for NotPlanned<'_> {
    fn takes(&self, subquery: &Expr, place: Place<'_>) -> Result<bool> {
        Ok(!has_plan(subquery, place, self.cannot_fail)?)
    }

    fn repeats(&self, expr: &Expr) -> bool {
        (self.repeats)(expr)
    }

    fn cannot_fail(&self) -> CannotFail {
        self.cannot_fail
    }

    fn repeats_rows(&self) -> RepeatsRows {
        self.repeats_rows
    }

    fn is_joined(&self, subquery: &LogicalPlan, outer: &DFSchema) -> bool {
        (self.is_joined)(subquery, outer, self.config)
    }

    fn join(&self, join: Join) -> Result<LogicalPlan> {
        match lateral(&join.right) {
            Some(_) => Ok(LogicalPlan::Join(join)),
            None => with_conditions(&join, &Rows::new(LogicalPlan::clone(&join.right))),
        }
    }

    fn name(&self) -> String {
        self.config.alias_generator().next("__subquery")
    }
}

/// Makes joins of the lateral joins that DataFusion rejects or answers wrongly. It must run before DataFusion's rules
/// for subqueries.
#[derive(Debug)]
pub struct UnnestDependentJoins {
    /// Whether an expression has the same value whenever it is evaluated, although it is declared to be volatile.
    pub repeats: fn(&Expr) -> bool,
    /// Whether an expression over these columns, and columns of the query around, has a value whatever these are. It is
    /// then also evaluated for rows that do not need it.
    pub cannot_fail: fn(&Expr, &DFSchema) -> Result<bool>,
    /// Whether each row of a node is one of its first input, with further columns behind, and depends on no other row
    /// of that input.
    pub extends: fn(&dyn UserDefinedLogicalNode) -> bool,
    /// Whether a node has the same rows whenever its inputs have. They may then be computed twice.
    pub repeats_rows: fn(&dyn UserDefinedLogicalNode) -> bool,
}

impl Default for UnnestDependentJoins {
    fn default() -> Self {
        Self {
            repeats: |_| false,
            cannot_fail: only_compares,
            extends: |_| false,
            repeats_rows: |_| false,
        }
    }
}

impl OptimizerRule for UnnestDependentJoins {
    fn name(&self) -> &'static str {
        "unnest_dependent_joins"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        // A subquery within another one refers to columns of its own outer side only, once the outer one is a join.
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        // A condition that is never true may have taken the place of all outer columns.
        let inputs = plan.inputs();
        if inputs
            .iter()
            .any(|input| matches!(input, LogicalPlan::Subquery(_)))
        {
            let plain = plan.clone().map_children(|input| match input {
                LogicalPlan::Subquery(subquery) if !is_correlated(&subquery.subquery)? => {
                    Ok(Transformed::yes(Arc::unwrap_or_clone(subquery.subquery)))
                }
                input => Ok(Transformed::no(input)),
            })?;
            if plain.transformed {
                return Ok(plain);
            }
        }
        if let Some(unnested) = self.unnest(&plan, config)? {
            return Ok(Transformed::yes(unnested));
        }
        // The domain of a query around may have become the outer side of a subquery.
        let not_planned = NotPlanned {
            repeats: self.repeats,
            cannot_fail: self.cannot_fail,
            is_joined: |_, _, _| false,
            repeats_rows: self.repeats_rows,
            config,
        };
        let lifted = lift(plan, &not_planned)?;
        // What is below the join is visited next, the join itself is not.
        match lifted.transformed {
            true => lifted.transform_data(|plan| {
                let unnested = self.unnest(&plan, config)?;
                Ok(Transformed::yes(unnested.unwrap_or(plan)))
            }),
            false => Ok(lifted),
        }
    }
}

impl UnnestDependentJoins {
    fn unnest(
        &self,
        plan: &LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Option<LogicalPlan>> {
        match plan {
            LogicalPlan::Join(join) => match lateral(&join.right) {
                Some(subquery) => found_now(self.unnested(join, &subquery.subquery, config)),
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// Refuses with the outer column whose values may be others when they are computed again.
    fn no_domain<T>(&self, left: &LogicalPlan, outer: &[Column]) -> Found<T> {
        let mut of_step = None;
        left.apply(|node| {
            if let LogicalPlan::TableScan(scan) = node {
                of_step = of_step.take().or(work_table(scan));
            }
            Ok(match node {
                LogicalPlan::RecursiveQuery(_) => TreeNodeRecursion::Jump,
                _ => TreeNodeRecursion::Continue,
            })
        })?;
        if let Some(name) = of_step {
            return refuse(format!(
                "it needs the rows of a step of WITH RECURSIVE {name} twice, which are read once; join {name} with the \
                 rows of the subquery in place of it"
            ));
        }
        let mut reason = "outer columns".to_string();
        for column in outer {
            if source(left, columns(vec![column.clone()]), self.repeats_rows)?.is_none() {
                reason = column.flat_name();
                break;
            }
        }
        refuse(format!(
            "{reason} may have other values when computed again; write the rows that have it into a table first, with \
             CREATE TABLE … AS SELECT …"
        ))
    }

    fn unnested(
        &self,
        join: &Join,
        subquery: &LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Found<LogicalPlan> {
        let outer = outer_of(subquery)?;
        if outer.is_empty() {
            return wait("it is not correlated");
        }
        match join.join_type {
            // Without an alias, what its rule adds may have the name of another column.
            JoinType::Inner | JoinType::Left
                if matches!(*join.right, LogicalPlan::SubqueryAlias(_))
                    && is_pulled_up(subquery)? =>
            {
                return wait("DataFusion has the right plan");
            }
            JoinType::Inner | JoinType::Left => {}
            JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {}
            _ => return refuse("it is a RIGHT or FULL JOIN"),
        }
        let has_column = |column: &Column| join.left.schema().has_column(column);
        if !outer.iter().all(has_column) {
            return wait("it refers to a query further out");
        }
        if is_correlated(&join.left)? || has_outer(&LogicalPlan::Join(join.clone()))? {
            return wait("its outer side refers to a query further out");
        }
        if !subquery.get_parameter_names()?.is_empty() {
            return wait("it has parameters without values");
        }
        if is_set(join) || volatile_in(subquery, &self.repeats)?.is_none() {
            match Rows::of(join, config) {
                Ok(rows) => return Ok(with_conditions(join, &rows)?),
                Err(Refusal::Error(error)) => return Err(error.into()),
                Err(_) => {}
            }
        }
        let last = match join.join_type {
            JoinType::Inner | JoinType::Left if join.filter.as_ref().is_none_or(is_true) => {
                LastAggregate::of(&join.right)?
            }
            _ => None,
        };
        let below = last.as_ref().map_or(subquery, |last| last.plan);
        if let Some(volatile) = volatile_in(below, &self.repeats)? {
            return refuse(format!(
                "the value of {volatile} changes from call to call; write it into a table first, with CREATE TABLE … \
                 AS SELECT …, {volatile} AS r FROM …"
            ));
        }
        let kept = join.left.schema().fields().len();
        let source_of = |left: &LogicalPlan, outer: &[Column]| {
            source(left, columns(outer.to_vec()), self.repeats_rows)
        };
        // Without a LIMIT that takes the same rows each time, the domain would be of all rows below it.
        let mut left = match join
            .left
            .exists(|node| Ok(matches!(node, LogicalPlan::Limit(_))))?
        {
            true => without_ties(&join.left)?,
            false => LogicalPlan::clone(&join.left),
        };
        let mut source = source_of(&left, &outer)?;
        if source.is_none() {
            if let Some(last) = &last {
                match grouped_rows(join, last, config) {
                    Err(Refusal::Never(_)) => {}
                    found => {
                        let (plan, values) = found?;
                        return Ok(with_names(last.above(plan, kept, values, config)?, join)?);
                    }
                }
            }
            left = without_ties(&left)?;
            source = source_of(&left, &outer)?;
        }
        let Some(source) = source else {
            return self.no_domain(&left, &outer);
        };
        let elimination = Elimination {
            outer,
            source,
            extends: self.extends,
            work_tables: vec![],
            config,
        };
        let (right, values) = match &last {
            Some(last) => elimination.push_last(last.plan, last.aggregate)?,
            None => (elimination.push(&join.right)?, vec![]),
        };
        let domain = elimination.domain_of(&right);
        let same = all_same((&left, &elimination.outer), (&right, &domain))?;
        let conditions = join.filter.iter().cloned().chain(same);
        let Some(last) = last else {
            return Ok(joined(left, right, join, conditions)?);
        };
        // Each row has one, also of an inner join.
        let join_type = JoinType::Left;
        let all = join_of(
            left,
            right,
            &Join {
                join_type,
                ..join.clone()
            },
            conditions,
        )?;
        Ok(with_names(last.above(all, kept, values, config)?, join)?)
    }
}

/// The first columns of a plan under the names of those of a join.
fn with_names(plan: LogicalPlan, join: &Join) -> Result<LogicalPlan> {
    let exprs = named(columns(plan.schema().columns()), &join.schema);
    Ok(LogicalPlan::Projection(Projection::try_new(
        exprs,
        Arc::new(plan),
    )?))
}

fn is_true(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(ScalarValue::Boolean(Some(true)), _))
}

/// The rows of a subquery joined by its own conditions.
fn with_conditions(join: &Join, rows: &Rows) -> Result<LogicalPlan> {
    let filter = join.filter.iter().cloned();
    let conditions: Vec<Expr> = filter.chain(rows.conditions()?).collect();
    let right = rows.plan.clone();
    let used = conditions.iter().flat_map(Expr::column_refs);
    let is_about_rows = used
        .into_iter()
        .any(|column| right.schema().has_column(column));
    let right = match is_set(join) && !is_about_rows {
        // Any row will do.
        true => LogicalPlanBuilder::from(right).limit(0, Some(1))?.build()?,
        false => right,
    };
    joined(LogicalPlan::clone(&join.left), right, join, conditions)
}

/// The columns of a join with other inputs, which begin with those of its own.
fn joined(
    left: LogicalPlan,
    right: LogicalPlan,
    join: &Join,
    conditions: impl IntoIterator<Item = Expr>,
) -> Result<LogicalPlan> {
    with_names(join_of(left, right, join, conditions)?, join)
}
