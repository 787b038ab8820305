//! ASOF JOIN: each row of the left side with the nearest row of the right side, or NULLs. SEMI and ANTI joins are those
//! with the same conditions; for RIGHT and FULL see `asof_outer`.
//!
//! ```text
//!   FROM q ASOF JOIN p MATCH_CONDITION (q.ts >= p.ts) ON p.sym = q.sym
//!
//!   1. FROM (q ASOF JOIN p MATCH_CONDITION (q.ts >= p.ts) ON p.sym = q.sym)
//!   2. FROM q LEFT JOIN LATERAL (p WHERE q.ts >= p.ts AND p.sym = q.sym ORDER BY p.ts DESC LIMIT 1)
//! ```
//!
//! DataFusion's parser knows ASOF JOIN, its planner does not, and a planner of relations sees a join only if it is in
//! parentheses. So [`nest_in`] puts each ASOF JOIN of a statement in parentheses, and [`AsofJoinPlanner`] plans what is
//! in them. Step 2 is a plan, not SQL: the columns of both sides keep their names. `rules::lateral` makes
//! a range join of it.
//!
//! DataFusion 56 plans the statement itself, as a `LogicalPlan::AsOfJoin`. A logical rule that makes step 2 of that
//! node, before `lateral`, then takes the place of both.

use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::{Column, DFSchema, JoinType, Result, Spans, internal_err, plan_err};
use datafusion::logical_expr::expr::BinaryExpr;
use datafusion::logical_expr::expr_rewriter::normalize_col_with_schemas_and_ambiguity_check;
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Expr, ExprSchemable, Filter, Limit, LogicalPlan, LogicalPlanBuilder, Projection, Sort,
    SortExpr, Subquery, lit,
};
use datafusion::sql::sqlparser::ast::{
    Expr as SqlExpr, Join as SqlJoin, JoinConstraint, JoinOperator, ObjectNamePart, Query, Select,
    TableAlias, TableFactor, TableWithJoins, VisitMut, VisitorMut,
};

use crate::planner::asof_outer::outer_join;
use crate::planner::match_conditions::Kept;
use crate::planner::over_clause::check_calls;
use crate::planner::using_columns::{name_tables, with_copies};
use datafusion_rmq_logical::common::options::RmqOptions;
use datafusion_rmq_logical::conditions::condition::{comparison, key_and_bound};
use datafusion_rmq_logical::rules::common::outer_columns::to_outer;
use datafusion_rmq_logical::rules::condition_parts::{check_repeats, is_of};
use rmq_arrow::common::ordered_type::is_ordered;

/// Puts each ASOF JOIN in parentheses. Returns whether there are any.
pub(crate) fn nest_in(sql: &mut impl VisitMut) -> bool {
    let mut nesting = Nesting { found: false };
    let ControlFlow::Continue(()) = sql.visit(&mut nesting);
    nesting.found
}

struct Nesting {
    found: bool,
}

impl VisitorMut for Nesting {
    type Break = std::convert::Infallible;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Self::Break> {
        name_tables(query);
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Self::Break> {
        for from in &mut select.from {
            self.found |= nest(from);
        }
        ControlFlow::Continue(())
    }
}

/// Puts each ASOF JOIN of a chain of joins in parentheses, with what is left of it. Returns whether there are any.
fn nest(from: &mut TableWithJoins) -> bool {
    if !from.joins.iter().any(is_asof) {
        return false;
    }
    let mut joins = vec![];
    for join in std::mem::take(&mut from.joins) {
        let ends = is_asof(&join);
        joins.push(join);
        if ends {
            // The relation is replaced at once; an empty one takes its place meanwhile.
            let empty = TableFactor::UNNEST {
                alias: None,
                array_exprs: vec![],
                with_offset: false,
                with_offset_alias: None,
                with_ordinality: false,
            };
            let relation = std::mem::replace(&mut from.relation, empty);
            let joins = std::mem::take(&mut joins);
            from.relation = TableFactor::NestedJoin {
                table_with_joins: Box::new(TableWithJoins { relation, joins }),
                alias: None,
            };
        }
    }
    from.joins = joins;
    true
}

fn is_asof(join: &SqlJoin) -> bool {
    matches!(join.join_operator, JoinOperator::AsOf { .. })
}

/// Plans ASOF joins in parentheses, and in subqueries in FROM.
#[derive(Debug)]
pub(crate) struct AsofJoinPlanner;

impl RelationPlanner for AsofJoinPlanner {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        match relation {
            TableFactor::Derived {
                lateral,
                mut subquery,
                alias,
                sample,
            } => {
                check_calls(subquery.as_ref())?;
                nest_in(subquery.as_mut());
                Ok(RelationPlanning::Original(Box::new(TableFactor::Derived {
                    lateral,
                    subquery,
                    alias,
                    sample,
                })))
            }
            TableFactor::NestedJoin {
                mut table_with_joins,
                alias,
            } => {
                let Some(last) = table_with_joins.joins.pop() else {
                    return Ok(original(table_with_joins, alias));
                };
                let JoinOperator::AsOf {
                    match_condition,
                    constraint,
                } = last.join_operator
                else {
                    table_with_joins.joins.push(last);
                    nest(&mut table_with_joins);
                    return Ok(original(table_with_joins, alias));
                };
                let left = if table_with_joins.joins.is_empty() {
                    table_with_joins.relation
                } else {
                    TableFactor::NestedJoin {
                        table_with_joins,
                        alias: None,
                    }
                };
                let join = AsofJoin {
                    left: context.plan(left)?,
                    right: context.plan(last.relation)?,
                };
                let plan = join.plan(match_condition, constraint, context)?;
                let planned = PlannedRelation::new(plan, alias);
                Ok(RelationPlanning::Planned(Box::new(planned)))
            }
            other => Ok(RelationPlanning::Original(Box::new(other))),
        }
    }
}

fn original(table_with_joins: Box<TableWithJoins>, alias: Option<TableAlias>) -> RelationPlanning {
    RelationPlanning::Original(Box::new(TableFactor::NestedJoin {
        table_with_joins,
        alias,
    }))
}

/// The column of this name, of several that are one by USING the first.
fn column(side: &LogicalPlan, name: &str) -> Result<Column> {
    let column = Column::new_unqualified(name);
    let schemas: [&[&DFSchema]; 1] = [&[side.schema()]];
    column.normalize_with_schemas_and_ambiguity_check(&schemas, &side.using_columns()?)
}

/// The sides of an ASOF JOIN.
struct AsofJoin {
    left: LogicalPlan,
    right: LogicalPlan,
}

impl AsofJoin {
    /// The left join with the nearest row of the right side, a subquery for each row of the left side.
    fn plan(
        self,
        match_condition: SqlExpr,
        constraint: JoinConstraint,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<LogicalPlan> {
        let options = context.context_provider().options();
        if !RmqOptions::rewrites(options) {
            return plan_err!("ASOF JOIN needs rmq.rewrite = true");
        }
        let kept = Kept::of_condition(&match_condition);
        let both = self.left.schema().join(self.right.schema())?;
        let text = match_condition.to_string();
        let mut over_both = |condition| {
            let condition = context.sql_to_expr(condition, &both)?;
            // A name without a table must be that of one column.
            let schemas: [&[&DFSchema]; 1] = [&[&both]];
            let condition =
                normalize_col_with_schemas_and_ambiguity_check(condition, &schemas, &[])?;
            match check_repeats(&condition) {
                Ok(()) => Ok(condition),
                Err(reason) => plan_err!("a condition of an ASOF JOIN is not supported: {reason}"),
            }
        };
        let mut conditions = vec![];
        if kept.is_none() {
            conditions.push(over_both(match_condition)?);
        }
        let mut columns = self.right.schema().columns();
        // The columns of USING of which the result has both sides'.
        let mut both_sides = vec![];
        let one_before = self.left.using_columns()?;
        match constraint {
            JoinConstraint::Using(names) => {
                let last = names.len().saturating_sub(1);
                for (i, name) in names.into_iter().enumerate() {
                    let is_shown = kept.is_some_and(Kept::keeps_right) || name.0.len() > 1;
                    let Some(ident) = name.0.last().and_then(ObjectNamePart::as_ident) else {
                        return plan_err!("ASOF JOIN … USING ({name}) must name a column");
                    };
                    let name = context.normalize_ident(ident.clone());
                    let (left, right) = (column(&self.left, &name)?, column(&self.right, &name)?);
                    if is_shown {
                        both_sides.push((left.clone(), right.clone()));
                    } else {
                        // The output has the column once, that of the left side.
                        columns.retain(|column| *column != right);
                    }
                    let (left, right) = (Expr::Column(left), Expr::Column(right));
                    if kept.is_some() && i == last {
                        // As DuckDB has it.
                        conditions.insert(0, left.gt_eq(right));
                    } else {
                        conditions.push(left.eq(right));
                    }
                }
            }
            JoinConstraint::On(condition) => {
                let condition = over_both(condition)?;
                if kept.is_some() {
                    conditions = self.compared_first(condition)?;
                } else {
                    conditions.push(condition);
                }
            }
            JoinConstraint::None => {}
            JoinConstraint::Natural => return plan_err!("an ASOF JOIN cannot be NATURAL"),
        }
        let Some(first) = conditions.first() else {
            return internal_err!("an ASOF JOIN has a comparison");
        };
        let order = self.nearest_first(first, &text)?;
        let joined = self.joined(kept, conditions, order, columns)?;
        if both_sides.is_empty() {
            return Ok(joined);
        }
        with_copies(joined, both_sides, &one_before, kept)
    }

    /// The join by these conditions, the first of which has the nearest row in this order, with these columns of the
    /// right side.
    fn joined(
        self,
        kept: Option<Kept>,
        conditions: Vec<Expr>,
        order: SortExpr,
        columns: Vec<Column>,
    ) -> Result<LogicalPlan> {
        let join_type = match kept {
            Some(Kept::Matched) => JoinType::Inner,
            Some(Kept::Left) | None => JoinType::Left,
            Some(Kept::Right) => {
                return outer_join(self.left, self.right, conditions, JoinType::Right);
            }
            Some(Kept::Full) => {
                return outer_join(self.left, self.right, conditions, JoinType::Full);
            }
            Some(Kept::Semi) => return self.membership(conditions, JoinType::LeftSemi),
            Some(Kept::Anti) => return self.membership(conditions, JoinType::LeftAnti),
        };
        let right = self.nearest(conditions, order, columns)?;
        LogicalPlanBuilder::from(self.left)
            .join_on(right, join_type, [lit(true)])?
            .build()
    }

    /// The conjuncts of a condition without `MATCH_CONDITION`, the comparison that has the nearest row first.
    fn compared_first(&self, condition: Expr) -> Result<Vec<Expr>> {
        let all = split_conjunction_owned(condition);
        let (mut conditions, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|e| self.orders(e));
        match conditions.as_slice() {
            [_] => {}
            [] => {
                let others = others.iter().map(|other| other.human_display().to_string());
                return plan_err!(
                    "ON of an ASOF JOIN without MATCH_CONDITION must have one comparison of the left side with the right side \
                     by >=, >, <= or <, such as {}, but there is none in {}",
                    self.example(),
                    others.collect::<Vec<_>>().join(" AND ")
                );
            }
            [first, ..] => {
                return plan_err!(
                    "ON of an ASOF JOIN without MATCH_CONDITION must have one comparison of the left side with the right side \
                     by >=, >, <= or <, but it has {}: write the one of the nearest row first, as in MATCH_CONDITION ({}) ON …",
                    conditions.len(),
                    first.human_display()
                );
            }
        }
        conditions.extend(others);
        Ok(conditions)
    }

    /// The rows of the left side with, or without, a row of the right side that meets the conditions.
    fn membership(self, conditions: Vec<Expr>, join_type: JoinType) -> Result<LogicalPlan> {
        LogicalPlanBuilder::from(self.left)
            .join_on(self.right, join_type, conditions)?
            .build()
    }

    /// Whether a condition compares both sides, so that one row of the right side is the nearest.
    fn orders(&self, condition: &Expr) -> bool {
        let sides = [self.left.schema(), self.right.schema()];
        let has_both = !sides.into_iter().any(|side| is_of(condition, side));
        has_both && self.nearest_first(condition, "").is_ok()
    }

    /// The order of the right side in which the nearest row comes first.
    fn nearest_first(&self, condition: &Expr, text: &str) -> Result<SortExpr> {
        let (left, right) = (self.left.schema(), self.right.schema());
        if let Expr::BinaryExpr(BinaryExpr {
            left: first,
            op,
            right: second,
        }) = condition
        {
            let operands = (first, *op, second);
            let found = key_and_bound(operands, |operand| is_of(operand, left));
            if let Some((key, Some(op), _)) = found.filter(|(key, ..)| is_of(key, right))
                && let Some(comparison) = comparison(op)
            {
                let ascending = comparison.is_lower();
                let data_type = key.get_type(right)?;
                if !is_ordered(&data_type) {
                    return plan_err!(
                        "MATCH_CONDITION ({text}) of an ASOF JOIN compares a {data_type}, which has no order"
                    );
                }
                return Ok(key.as_ref().clone().sort(ascending, !ascending));
            }
        }
        plan_err!(
            "MATCH_CONDITION ({text}) of an ASOF JOIN must be one comparison of the left side with the right side by >=, >, <= or \
             <, such as {}",
            self.example()
        )
    }

    /// A comparison of the two sides: of times, or else of columns of one name.
    fn example(&self) -> String {
        let (left, right) = (self.left.schema(), self.right.schema());
        let pairs = left.iter().flat_map(|l| right.iter().map(move |r| (l, r)));
        let pairs = pairs
            .filter(|((_, l), (_, r))| l.data_type() == r.data_type() && is_ordered(l.data_type()));
        let found = pairs.max_by_key(|((_, l), (_, r))| {
            let is_text = l.data_type().is_string() || l.data_type().is_binary();
            (l.data_type().is_temporal(), !is_text, l.name() == r.name())
        });
        let names = found.map(|(l, r)| [Column::from(l), Column::from(r)]);
        match names {
            Some([l, r]) => format!("{l} >= {r}"),
            None => "q.ts >= p.ts".to_string(),
        }
    }

    /// These columns of the nearest row of the right side that meets the conditions, a subquery for each row of the
    /// left side.
    fn nearest(
        &self,
        conditions: Vec<Expr>,
        order: SortExpr,
        columns: Vec<Column>,
    ) -> Result<LogicalPlan> {
        let outer = conditions.into_iter();
        let outer = outer.map(|e| to_outer(e, self.left.schema()));
        let outer = outer.collect::<Result<Vec<_>>>()?;
        let Some(predicate) = conjunction(outer) else {
            return internal_err!("an ASOF JOIN has a condition");
        };
        let rows = Filter::try_new(predicate, Arc::new(self.right.clone()))?;
        let sorted = Sort {
            expr: vec![order],
            input: Arc::new(LogicalPlan::Filter(rows)),
            fetch: None,
        };
        let nearest = LogicalPlan::Limit(Limit {
            skip: None,
            fetch: Some(Box::new(lit(1_i64))),
            input: Arc::new(LogicalPlan::Sort(sorted)),
        });
        let columns = columns.into_iter().map(Expr::Column).collect();
        let nearest = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(nearest))?);
        Ok(LogicalPlan::Subquery(Subquery {
            outer_ref_columns: nearest.all_out_ref_exprs(),
            subquery: Arc::new(nearest),
            spans: Spans::new(),
        }))
    }
}
