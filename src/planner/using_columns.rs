//! Columns of the right side of an ASOF JOIN that are in its USING, such as the time of the match.
//!
//! ```text
//!   SELECT *, e.ts FROM p ASOF JOIN e USING (sym, ts) WHERE ts > 3
//!
//!   1. SELECT *, e.ts FROM p ASOF JOIN e USING (sym, e.ts) WHERE "".ts > 3
//!   2. LeftAnti Join: Using "".ts = p.ts, "".ts = e.ts
//!        Projection: p.sym, p.ts AS "".ts, p.ts, e.v, e.ts
//!          …
//!        EmptyRelation
//! ```
//!
//! The result has a column of USING once, that of the left side, and that of the right side only where the query names
//! it: [`name_tables`] tells the planner of the join. Then `ts` and `*` must still mean one column. DataFusion looks
//! for what is one column in the joins by USING of a plan, and of several takes the one whose table comes first by name
//! for `*`. So there is a copy of the left side's, whose table has no name, and an anti join with no rows, which
//! returns all rows, and which DataFusion's optimizer removes. In a WHERE it does not look, so that `ts` is replaced
//! there.
//!
//! RIGHT and FULL joins always have the columns of both sides, and instead of the copy the right side's, or that of the
//! left side where it has a row.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::{
    Column, DFSchema, ExprSchema, JoinConstraint, JoinType, NullEquality, Result, TableReference,
};
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::logical_expr::{EmptyRelation, Expr, Join, LogicalPlan};
use datafusion::sql::sqlparser::ast::{
    Expr as SqlExpr, Ident, JoinConstraint as SqlJoinConstraint, JoinOperator, ObjectName,
    ObjectNamePart, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr,
    TableFactor, TableWithJoins, Visit, VisitMut, Visitor, VisitorMut,
};

use crate::planner::match_conditions::Kept;
use crate::planner::subquery_names::{normalized, table_name};
use datafusion_rmq_logical::rules::common::plans::projected;

/// The table of the copies.
const COPIES: &str = "";

/// Names the right side in the USING of each ASOF JOIN of a query, before the columns that the query has with the name
/// of that side: `USING (e.ts)` for `e.ts` and for `e.*`, and before all of a RIGHT or FULL join. These columns of
/// WHERE become those of the copies.
pub(super) fn name_tables(query: &mut Query) {
    let mut has_using = false;
    for from in selects(&mut query.body)
        .into_iter()
        .flat_map(|select| &mut select.from)
    {
        each_using(from, &mut |_, _, _| has_using = true);
    }
    if !has_using {
        return;
    }
    let mut mentioned = Mentioned::default();
    let ControlFlow::Continue(()) = Visit::visit(&*query, &mut mentioned);
    for select in selects(&mut query.body) {
        let mut shown = HashSet::new();
        for from in &mut select.from {
            each_using(from, &mut |right, kept, column| {
                let [ObjectNamePart::Identifier(name)] = column.0.as_slice() else {
                    return;
                };
                let name = normalized(name);
                let keeps_right = kept.is_some_and(Kept::keeps_right);
                if keeps_right || mentioned.has(&normalized(right), &name) {
                    let right = ObjectNamePart::Identifier(right.clone());
                    column.0.insert(0, right);
                    shown.insert(name);
                }
            });
        }
        let mut copies = Copies { shown, depth: 0 };
        let ControlFlow::Continue(()) = VisitMut::visit(&mut select.selection, &mut copies);
    }
}

/// The SELECTs that a query consists of, without those of its subqueries.
fn selects(body: &mut SetExpr) -> Vec<&mut Select> {
    match body {
        SetExpr::Select(select) => vec![select],
        SetExpr::SetOperation { left, right, .. } => {
            let mut both = selects(left);
            both.extend(selects(right));
            both
        }
        _ => vec![],
    }
}

/// Calls `f` with the name of the right side, the rows that are kept and a column, for each column of USING of ASOF
/// joins whose right side is visible and has a name.
fn each_using(
    from: &mut TableWithJoins,
    f: &mut impl FnMut(&Ident, Option<Kept>, &mut ObjectName),
) {
    let joined = from.joins.iter_mut().map(|join| &mut join.relation);
    for relation in std::iter::once(&mut from.relation).chain(joined) {
        if let TableFactor::NestedJoin {
            table_with_joins,
            alias: None,
        } = relation
        {
            each_using(table_with_joins, f);
        }
    }
    for join in &mut from.joins {
        let JoinOperator::AsOf {
            match_condition,
            constraint: SqlJoinConstraint::Using(columns),
        } = &mut join.join_operator
        else {
            continue;
        };
        let kept = Kept::of_condition(match_condition);
        let is_hidden = matches!(kept, Some(Kept::Semi | Kept::Anti));
        if let Some(right) = table_name(&join.relation).filter(|_| !is_hidden) {
            for column in columns {
                f(right, kept, column);
            }
        }
    }
}

/// The columns that a query has with the name of a table.
#[derive(Default)]
struct Mentioned {
    columns: HashSet<(String, String)>,
    /// The tables of `t.*`.
    tables: HashSet<String>,
}

impl Mentioned {
    fn has(&self, table: &str, column: &str) -> bool {
        let column = (table.to_string(), column.to_string());
        self.tables.contains(table) || self.columns.contains(&column)
    }
}

impl Visitor for Mentioned {
    type Break = Infallible;

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<Infallible> {
        for item in &select.projection {
            if let SelectItem::QualifiedWildcard(
                SelectItemQualifiedWildcardKind::ObjectName(table),
                _,
            ) = item
            {
                let table = table.0.last().and_then(ObjectNamePart::as_ident);
                self.tables.extend(table.map(normalized));
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &SqlExpr) -> ControlFlow<Infallible> {
        if let SqlExpr::CompoundIdentifier(parts) = expr {
            // A schema may be before them, and a field of the column after them.
            let pairs = parts.windows(2);
            let pairs = pairs.map(|pair| (normalized(&pair[0]), normalized(&pair[1])));
            self.columns.extend(pairs);
        }
        ControlFlow::Continue(())
    }
}

/// Puts copies in place of columns of USING without a table, except in subqueries.
struct Copies {
    shown: HashSet<String>,
    depth: usize,
}

impl VisitorMut for Copies {
    type Break = Infallible;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<Infallible> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Infallible> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut SqlExpr) -> ControlFlow<Infallible> {
        if let SqlExpr::Identifier(name) = expr
            && self.depth == 0
            && self.shown.contains(&normalized(name))
        {
            let copies = Ident::with_quote('"', COPIES);
            *expr = SqlExpr::CompoundIdentifier(vec![copies, name.clone()]);
        }
        ControlFlow::Continue(())
    }
}

/// Adds a copy of the left one of each pair of columns, or what a join that keeps the right side has instead, and has
/// DataFusion take both, and those that were one with the left one `before`, for that column.
pub(super) fn with_copies(
    plan: LogicalPlan,
    pairs: Vec<(Column, Column)>,
    before: &[HashSet<Column>],
    kept: Option<Kept>,
) -> Result<LogicalPlan> {
    let as_one = |(left, right): &(Column, Column)| {
        let (left, right) = (Expr::Column(left.clone()), Expr::Column(right.clone()));
        match kept {
            Some(Kept::Right) => right,
            Some(Kept::Full) => coalesce(vec![left, right]),
            _ => left,
        }
    };
    let copy_of = |column: &Column| Column::new(Some(TableReference::bare(COPIES)), &column.name);
    let mut columns = vec![];
    for column in plan.schema().columns() {
        let copy = copy_of(&column);
        let pair = pairs.iter().find(|(left, _)| *left == column);
        let is_copy = copy == column;
        if let Some(pair) = pair {
            columns.push(as_one(pair).alias_qualified(copy.relation, copy.name));
        }
        if pair.is_none() || !is_copy {
            columns.push(Expr::Column(column));
        }
    }
    let plan = projected(plan, columns)?;
    let (mut on, mut fields) = (vec![], vec![]);
    for (left, right) in pairs {
        let copy = copy_of(&left);
        let known = before.iter().filter(|one| one.contains(&left)).flatten();
        let mut same: BTreeSet<Column> = known.cloned().collect();
        same.extend([left, right]);
        for column in same {
            if column != copy && plan.schema().has_column(&column) {
                let field = Arc::clone(plan.schema().field_from_column(&copy)?);
                fields.push((column.relation.clone(), field));
                on.push((Expr::Column(copy.clone()), Expr::Column(column)));
            }
        }
    }
    let no_rows = LogicalPlan::EmptyRelation(EmptyRelation {
        produce_one_row: false,
        schema: Arc::new(DFSchema::new_with_metadata(fields, HashMap::new())?),
    });
    Ok(LogicalPlan::Join(Join::try_new(
        Arc::new(plan),
        Arc::new(no_rows),
        on,
        None,
        JoinType::LeftAnti,
        JoinConstraint::Using,
        NullEquality::NullEqualsNothing,
        false,
    )?))
}
