//! What to write instead of a subquery that depends on the outer query and has no plan, in the words of the query.
//!
//! A join of the outer query's tables with those of the subquery always has a plan. What the subquery does for each row
//! of the outer query is then a GROUP BY, a QUALIFY or a LATERAL. `tests/it/instead.rs` runs each.

use datafusion::common::Result;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    Expr, JoinType, Limit, LogicalPlan, Operator, SortExpr, binary_expr,
};

use crate::common::sql_text::sql_text;
use crate::optimizer::condition::Operand;

/// What depends on an outer query: DataFusion has no plan for it where a rule does not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Scalar,
    Exists,
    In,
    Lateral,
}

/// What to write instead of a subquery, whose text in parentheses is `sql`.
pub(crate) fn instead_of(shape: Shape, subquery: &LogicalPlan, sql: &str) -> String {
    let mut words = Words::default();
    if let Err(error) = words.add(subquery, None, true) {
        log::debug!("a subquery has no words: {error}");
    }
    if words.outer.is_empty() {
        words.outer.push('…');
    }
    let end = end(subquery);
    let join = if shape == Shape::Lateral {
        "JOIN"
    } else {
        "LEFT JOIN"
    };
    let (outer, joined, key) = (&words.outer, words.joined(join), words.key());
    match (shape, end) {
        (_, LogicalPlan::EmptyRelation(_)) => "its expression without SELECT".to_string(),
        (Shape::Scalar | Shape::Lateral, LogicalPlan::Limit(limit)) => {
            let (rows, order) = (rows_of(limit), order_of(limit));
            match (is_aggregate(&limit.input), order) {
                (true, _) => format!(
                    "{joined} GROUP BY the key of {outer} and what it groups by, and for several groups QUALIFY \
                     row_number() OVER (PARTITION BY the key of {outer} ORDER BY …) <= {rows}"
                ),
                (false, None) => format!("ORDER BY {key} LIMIT {rows}"),
                (false, Some(order)) => format!(
                    "{joined} QUALIFY row_number() OVER (PARTITION BY the key of {outer} ORDER BY {order}) <= {rows}"
                ),
            }
        }
        (Shape::In | Shape::Exists, LogicalPlan::Limit(limit)) => {
            let order = order_of(limit).map_or_else(
                || format!(", with ORDER BY {key} before its LIMIT"),
                |_| String::new(),
            );
            format!(
                "{outer} LEFT JOIN LATERAL {sql} AS x ON true{order}, grouped by the key of {outer}, and compare count(*) \
                 FILTER (WHERE …) with 0"
            )
        }
        (Shape::In | Shape::Exists, LogicalPlan::Union(_)) => {
            "one for each part of the UNION, with OR between them".to_string()
        }
        (Shape::In, LogicalPlan::Aggregate(aggregate)) if aggregate.group_expr.is_empty() => {
            "= in place of IN, as it has one row".to_string()
        }
        (Shape::Scalar, LogicalPlan::Filter(having)) if is_aggregate(&having.input) => {
            let value = subquery.expressions().into_iter().next();
            let value = value.map_or("…".to_string(), |value| call_text(&value));
            format!(
                "SELECT CASE WHEN {} THEN {value} END in place of HAVING",
                call_text(&having.predicate)
            )
        }
        (Shape::In | Shape::Exists, _) => format!(
            "LEFT JOIN (SELECT DISTINCT the key of {outer} FROM {}, with the rest of the subquery, and that key in its GROUP \
             BY) AS x by that key, and x.key IS NOT NULL",
            words.joined("JOIN")
        ),
        _ => words.around(shape, joined, sql),
    }
}

/// The words of a subquery.
#[derive(Default)]
struct Words {
    /// The tables of the outer query to which it refers.
    outer: String,
    /// Its own tables.
    own: Vec<String>,
    conditions: Vec<String>,
    /// A column of its own that is compared with the outer query.
    key: Option<String>,
    /// What is between its end and its first condition on the outer query.
    between: Option<Between>,
}

/// A part of a query that a condition can't be moved out of.
#[derive(Clone, Copy)]
enum Between {
    Limit,
    Union,
    Groups,
    Join,
    OuterJoin,
    Values,
}

impl Words {
    /// Adds the words of a node, and of those below. `above` is what is between it and the end of the subquery, of
    /// which it is a part if `is_end`.
    fn add(&mut self, node: &LogicalPlan, above: Option<Between>, mut is_end: bool) -> Result<()> {
        let mut refers = false;
        node.apply_expressions(|expr| {
            expr.apply(|e| {
                if let Expr::OuterReferenceColumn(_, column) = e {
                    refers = true;
                    self.add_outer(column.relation.as_ref().map(ToString::to_string));
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        let found = match node {
            // HAVING is no condition on rows.
            LogicalPlan::Filter(filter) if !refers && is_aggregate(&filter.input) => None,
            LogicalPlan::Filter(filter) => {
                for conjunct in split_conjunction(&filter.predicate) {
                    if self.key.is_none() && conjunct.contains_outer() {
                        let column = conjunct.column_refs().into_iter().min();
                        self.key = column.map(ToString::to_string);
                    }
                    self.conditions.push(sql_text(conjunct));
                }
                None
            }
            LogicalPlan::SubqueryAlias(alias) => {
                if let LogicalPlan::TableScan(scan) = alias.input.as_ref() {
                    let own = format!("{} AS {}", scan.table_name, alias.alias);
                    self.own.push(own);
                    return Ok(());
                }
                is_end = false;
                None
            }
            LogicalPlan::TableScan(scan) => {
                self.own.push(scan.table_name.to_string());
                None
            }
            LogicalPlan::Join(join) => {
                let on = join.on.iter();
                let on = on.map(|(l, r)| format!("{} = {}", sql_text(l), sql_text(r)));
                self.conditions.extend(on);
                let filter = join.filter.iter().flat_map(split_conjunction);
                self.conditions.extend(filter.map(sql_text));
                match join.join_type {
                    JoinType::Inner => refers.then_some(Between::Join),
                    _ => Some(Between::OuterJoin),
                }
            }
            LogicalPlan::Aggregate(_) if is_end => {
                is_end = false;
                None
            }
            LogicalPlan::Limit(_) if !is_end => Some(Between::Limit),
            LogicalPlan::Aggregate(_) | LogicalPlan::Distinct(_) | LogicalPlan::Window(_) => {
                Some(Between::Groups)
            }
            LogicalPlan::Union(_) => Some(Between::Union),
            LogicalPlan::Values(_) => Some(Between::Values),
            _ => None,
        };
        let between = above.or(found);
        if refers {
            self.between = self.between.or(between);
        }
        for input in node.inputs() {
            self.add(input, between, is_end)?;
        }
        Ok(())
    }

    fn add_outer(&mut self, table: Option<String>) {
        let Some(table) = table else {
            return;
        };
        if self.outer.is_empty() {
            self.outer = table;
        } else if !self.outer.split(", ").any(|known| known == table) {
            self.outer = format!("{}, {table}", self.outer);
        }
    }

    /// `q LEFT JOIN p ON p.ts <= q.ts`.
    fn joined(&self, join: &str) -> String {
        let own = match self.own.as_slice() {
            [own] => own.clone(),
            several => format!("({})", several.join(" CROSS JOIN ")),
        };
        format!("{} {join} {own} ON {}", self.outer, self.on())
    }

    /// All conditions.
    fn on(&self) -> String {
        match self.conditions.as_slice() {
            [] => "true".to_string(),
            [condition] => condition.clone(),
            several => {
                let operands = several.iter().map(|condition| {
                    if condition.contains(" OR ") {
                        format!("({condition})")
                    } else {
                        condition.clone()
                    }
                });
                operands.collect::<Vec<_>>().join(" AND ")
            }
        }
    }

    /// What to write around a subquery that ends in an aggregate, or by what is between its end and the condition.
    fn around(&self, shape: Shape, joined: String, sql: &str) -> String {
        let outer = &self.outer;
        let key = self.key();
        match self.between {
            Some(Between::Limit) => format!(
                "{outer} LEFT JOIN LATERAL with the query that has the LIMIT, AS x ON true, and GROUP BY the key of {outer}"
            ),
            Some(Between::Union) => {
                format!("the condition after the UNION, whose parts return {key}, too")
            }
            Some(Between::Groups) => format!(
                "{joined} in the inner query, with the key of {outer} in its GROUP BY, DISTINCT or PARTITION BY, and GROUP BY \
                 that key around it"
            ),
            Some(Between::Join) if shape == Shape::Lateral => joined,
            Some(Between::Join) => {
                format!("CROSS JOIN … WHERE {} in place of JOIN … ON", self.on())
            }
            Some(Between::OuterJoin) => format!(
                "{outer} CROSS JOIN before its first table, without parentheses, and GROUP BY the key of {outer}"
            ),
            Some(Between::Values) => format!(
                "unnest([…]) in a SELECT FROM {outer} in place of VALUES, and GROUP BY the key of {outer} around it"
            ),
            None if shape == Shape::Lateral => {
                format!("{joined} GROUP BY the key of {outer} and what it groups by")
            }
            None => {
                let counts = sql.contains("count(1)");
                let counted = ", and in count(*) a column that is never NULL";
                let counted = if counts { counted } else { "" };
                format!("{joined} GROUP BY the key of {outer}{counted}")
            }
        }
    }

    fn key(&self) -> &str {
        self.key.as_deref().unwrap_or("a column of it")
    }
}

/// What a subquery ends in, besides its SELECT list and an ORDER BY.
fn end(plan: &LogicalPlan) -> &LogicalPlan {
    match plan {
        LogicalPlan::Projection(projection) => end(&projection.input),
        LogicalPlan::Sort(sort) => end(&sort.input),
        other => other,
    }
}

/// Whether a query ends in an aggregate.
fn is_aggregate(plan: &LogicalPlan) -> bool {
    match end(plan) {
        LogicalPlan::Filter(filter) => is_aggregate(&filter.input),
        other => matches!(other, LogicalPlan::Aggregate(_)),
    }
}

/// The number of rows of a LIMIT.
fn rows_of(limit: &Limit) -> String {
    limit.fetch.as_deref().map_or("n".to_string(), sql_text)
}

/// The ORDER BY below a LIMIT.
fn order_of(limit: &Limit) -> Option<String> {
    let mut plan = limit.input.as_ref();
    loop {
        match plan {
            LogicalPlan::Projection(projection) => plan = &projection.input,
            LogicalPlan::Sort(sort) => {
                let order = |SortExpr { expr, asc, .. }: &SortExpr| {
                    format!("{}{}", sql_text(expr), if *asc { "" } else { " DESC" })
                };
                return Some(sort.expr.iter().map(order).collect::<Vec<_>>().join(", "));
            }
            _ => return None,
        }
    }
}

/// An expression over the columns of an aggregate.
fn call_text(expr: &Expr) -> String {
    sql_text(expr).replace("count(Int64(1))", "count(*)")
}

/// A comparison of a sum or a difference of both sides with the key alone on the left.
pub(crate) fn separated(
    comparison: &Expr,
    is_bound: &dyn Fn(&Expr) -> bool,
    is_key: &dyn Fn(&Expr) -> bool,
) -> Option<Expr> {
    let (left, op, right) = comparison.as_binary()?;
    let sums = [(left, Some(op), right), (right, op.swap(), left)];
    sums.into_iter().find_map(|(sum, op, rest)| {
        let (one, sign, other) = sum.as_binary()?;
        let op = op.filter(|_| is_bound(rest) || rest.column_refs().is_empty())?;
        let (first, second, rest) = (one.clone(), other.clone(), rest.clone());
        Some(match sign {
            Operator::Plus if is_key(one) && is_bound(other) => {
                binary_expr(first, op, rest - second)
            }
            Operator::Plus if is_key(other) && is_bound(one) => {
                binary_expr(second, op, rest - first)
            }
            Operator::Minus if is_key(one) && is_bound(other) => {
                binary_expr(first, op, rest + second)
            }
            Operator::Minus if is_key(other) && is_bound(one) => {
                binary_expr(second, op.swap()?, first - rest)
            }
            _ => return None,
        })
    })
}
