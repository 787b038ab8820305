//! `(a, b) IN (SELECT …)`: rows of several columns in a subquery, for which DataFusion has no expression.
//!
//! ```text
//!   WHERE (q.sym, q.v) IN (SELECT p.sym, max(p.v) FROM p GROUP BY p.sym)
//!   WHERE EXISTS (SELECT 1 FROM (SELECT p.sym, max(p.v) FROM p GROUP BY p.sym) AS __in (__in_1, __in_2)
//!                 WHERE q.sym = __in_1 AND q.v = __in_2)
//! ```
//!
//! NOT IN is NOT EXISTS with `(q.sym = __in_1) IS NOT FALSE AND …`. That is enough in a condition, where NULL is no
//! other than false. Elsewhere it is a CASE of two EXISTS, which tells NULL from false.

use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Ident, JoinConstraint, JoinOperator, Query, Select, SetExpr,
    TableAliasColumnDef, TableFactor, UnaryOperator, Visit, VisitMut, VisitorMut,
    visit_expressions,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;

/// Writes IN of several columns as EXISTS. Returns whether there is any.
pub(crate) fn rows_in_to_exists(sql: &mut impl VisitMut) -> bool {
    let mut rewriting = Rewriting { found: false };
    let ControlFlow::Continue(()) = sql.visit(&mut rewriting);
    rewriting.found
}

struct Rewriting {
    found: bool,
}

/// Which rows a subquery is searched for.
#[derive(Clone, Copy)]
enum Sought {
    /// Those that are equal.
    Equal,
    /// Those that are equal, or may be.
    NotOther,
    /// Those that may be equal.
    Unknown,
}

impl Rewriting {
    /// The conjuncts of a condition that leaves rows out unless it is true.
    fn condition(&mut self, condition: &mut Expr) {
        match condition {
            Expr::Nested(inner) => self.condition(inner),
            Expr::BinaryOp {
                left,
                op: BinaryOperator::And,
                right,
            } => {
                self.condition(left);
                self.condition(right);
            }
            Expr::UnaryOp {
                op: UnaryOperator::Not,
                expr,
            } => {
                let mut inner = &**expr;
                while let Expr::Nested(nested) = inner {
                    inner = nested;
                }
                let mut opposite = inner.clone();
                if row_in(inner).is_some()
                    && let Expr::InSubquery { negated, .. } = &mut opposite
                {
                    *negated = !*negated;
                    *condition = opposite;
                    self.condition(condition);
                }
            }
            _ => {
                let Some((row, subquery, negated)) = row_in(condition) else {
                    return;
                };
                let sought = if negated {
                    Sought::NotOther
                } else {
                    Sought::Equal
                };
                let exists = exists(row, subquery, sought, negated);
                self.replace(condition, exists);
            }
        }
    }

    fn replace(&mut self, expr: &mut Expr, by: Option<Expr>) {
        if let Some(by) = by {
            *expr = by;
            self.found = true;
        }
    }
}

impl VisitorMut for Rewriting {
    type Break = Infallible;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Infallible> {
        let conditions = [
            &mut select.selection,
            &mut select.having,
            &mut select.qualify,
        ];
        for condition in conditions.into_iter().flatten() {
            self.condition(condition);
        }
        for join in select.from.iter_mut().flat_map(|from| &mut from.joins) {
            if let JoinOperator::Join(constraint)
            | JoinOperator::Inner(constraint)
            | JoinOperator::Left(constraint)
            | JoinOperator::LeftOuter(constraint) = &mut join.join_operator
                && let JoinConstraint::On(condition) = constraint
            {
                self.condition(condition);
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Infallible> {
        if let Some((row, subquery, negated)) = row_in(expr) {
            let value = value(row, subquery, negated);
            self.replace(expr, value);
        }
        ControlFlow::Continue(())
    }
}

/// The row, the subquery, and whether it is NOT IN.
fn row_in(expr: &Expr) -> Option<(&[Expr], &Query, bool)> {
    let Expr::InSubquery {
        expr,
        subquery,
        negated,
    } = expr
    else {
        return None;
    };
    match expr.as_ref() {
        Expr::Tuple(row) if !is_random(expr) && !is_random(subquery) => {
            Some((row, subquery, *negated))
        }
        _ => None,
    }
}

/// Whether a function has another value each time: rows and subqueries are written several times.
fn is_random(sql: &impl Visit) -> bool {
    let found = visit_expressions(sql, |expr| match expr {
        Expr::Function(call) => {
            let name = call.name.0.last().and_then(|part| part.as_ident());
            let is_one = |of: &&str| name.is_some_and(|name| name.value.eq_ignore_ascii_case(of));
            if ["random", "uuid"].iter().any(is_one) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        }
        _ => ControlFlow::Continue(()),
    });
    found.is_break()
}

/// Whether a subquery has rows that are sought.
fn exists(row: &[Expr], subquery: &Query, sought: Sought, negated: bool) -> Option<Expr> {
    let mut exists = parsed("EXISTS (SELECT 1 FROM (SELECT 1) AS __in WHERE true)")?;
    let Expr::Exists {
        subquery: searched,
        negated: is_negated,
    } = &mut exists
    else {
        return None;
    };
    *is_negated = negated;
    let SetExpr::Select(select) = searched.body.as_mut() else {
        return None;
    };
    let TableFactor::Derived {
        subquery: rows,
        alias: Some(alias),
        ..
    } = &mut select.from.first_mut()?.relation
    else {
        return None;
    };
    **rows = subquery.clone();
    let names: Vec<String> = (1..=row.len()).map(|i| format!("__in_{i}")).collect();
    alias.columns = names.iter().map(TableAliasColumnDef::from_name).collect();
    let comparisons = row.iter().zip(&names).map(|(value, name)| {
        let value = Expr::Nested(Box::new(value.clone()));
        let equal = binary(
            value,
            BinaryOperator::Eq,
            Expr::Identifier(Ident::new(name)),
        );
        match sought {
            Sought::NotOther => Expr::IsNotFalse(Box::new(Expr::Nested(Box::new(equal)))),
            Sought::Equal | Sought::Unknown => equal,
        }
    });
    let all = comparisons.reduce(|all, one| binary(all, BinaryOperator::And, one))?;
    select.selection = Some(match sought {
        Sought::Unknown => Expr::IsNull(Box::new(Expr::Nested(Box::new(all)))),
        Sought::Equal | Sought::NotOther => all,
    });
    Some(exists)
}

/// TRUE, FALSE or NULL.
fn value(row: &[Expr], subquery: &Query, negated: bool) -> Option<Expr> {
    let text = if negated {
        "CASE WHEN true THEN false WHEN true THEN NULL ELSE true END"
    } else {
        "CASE WHEN true THEN true WHEN true THEN NULL ELSE false END"
    };
    let mut value = parsed(text)?;
    if let Expr::Case { conditions, .. } = &mut value {
        for (when, sought) in conditions.iter_mut().zip([Sought::Equal, Sought::Unknown]) {
            when.condition = exists(row, subquery, sought, false)?;
        }
    }
    Some(value)
}

fn binary(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp {
        left: Box::new(left),
        op,
        right: Box::new(right),
    }
}

fn parsed(text: &str) -> Option<Expr> {
    let parser = Parser::new(&GenericDialect {}).try_with_sql(text);
    parser.ok()?.parse_expr().ok()
}
