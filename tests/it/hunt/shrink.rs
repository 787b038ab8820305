//! Makes a failing query smaller.

use super::calls::Call;
use super::query::{Expr, From, Node, Query};
use super::schema::Table;
use super::sessions::Session;
use super::value::{Kind, Value};

/// What fails: a query over tables in a session.
#[derive(Debug, Clone)]
pub struct Failure {
    pub session: Session,
    pub tables: Vec<Table>,
    pub query: Query,
}

impl Failure {
    /// Failures that are simpler in one place, if they are any.
    pub fn simpler(&self) -> Vec<Self> {
        let mut simpler: Vec<Self> = vec![];
        let queries = queries(&self.query);
        simpler.extend(queries.into_iter().map(|query| Self {
            query,
            ..self.clone()
        }));
        for (number, table) in self.tables.iter().enumerate() {
            let mut size = table.rows.len();
            while size > 0 {
                let mut from = 0;
                while from < table.rows.len() {
                    let to = (from + size).min(table.rows.len());
                    let mut less = self.clone();
                    less.tables[number] = table.without(from, to);
                    simpler.push(less);
                    from = to;
                }
                size /= 2;
            }
            let mut plain = self.clone();
            plain.tables[number] = table.in_one_batch();
            if plain.sql() != self.sql() {
                simpler.push(plain);
            }
        }
        let sessions = self.session.simpler();
        simpler.extend(sessions.into_iter().map(|session| Self {
            session,
            ..self.clone()
        }));
        simpler
    }

    /// The statements that repeat it.
    pub fn sql(&self) -> String {
        let mut sql = self.session.sql();
        let statement = self.query.statement();
        for (number, table) in self.tables.iter().enumerate() {
            let name = format!("t{number}");
            let views = self.query.views();
            let is_named =
                |sql: &str| sql.contains(&format!("{name} ")) || sql.contains(&format!("{name}."));
            if is_named(&statement) || views.iter().any(|v| is_named(&v.query.to_string())) {
                sql += &format!("{}\n", table.sql(&name));
            }
        }
        for view in self.query.views() {
            sql += &format!("CREATE VIEW {} AS {};\n", view.name, view.query);
        }
        sql + &statement + ";\n"
    }
}

/// The part with this number, counted from the outside.
fn change(query: &Query, number: usize, change: &mut dyn FnMut(Node<'_>)) -> Query {
    let mut query = query.clone();
    let mut count = 0;
    query.visit(&mut |node| {
        if count == number {
            change(node);
        }
        count += 1;
    });
    query
}

/// Expressions that are simpler than this one and of its kind.
fn exprs(expr: &Expr) -> Vec<Expr> {
    let truth = Expr::Literal(Value::Bool(true), Kind::Bool);
    match expr {
        Expr::And(all) | Expr::Or(all) => {
            let mut simpler = all.clone();
            if all.len() > 2 {
                simpler.extend((0..all.len()).map(|n| {
                    let mut less = all.clone();
                    less.remove(n);
                    if matches!(expr, Expr::And(_)) {
                        Expr::And(less)
                    } else {
                        Expr::Or(less)
                    }
                }));
            }
            simpler
        }
        Expr::Not(a)
        | Expr::Shift(a, ..)
        | Expr::Double(a)
        | Expr::Moved(a, _)
        | Expr::Reread(a, _) => vec![(**a).clone()],
        Expr::Is(a, _) => vec![(**a).clone(), truth],
        Expr::Sum(a, b) | Expr::Coalesce(a, b) => vec![(**a).clone(), (**b).clone()],
        Expr::Call(call, all) if call.keeps_kind() => all[..1].to_vec(),
        Expr::Call(Call::HasPrefix, _) => vec![truth],
        Expr::Case(_, a, b) => [Some(a), b.as_ref()]
            .into_iter()
            .flatten()
            .map(|e| (**e).clone())
            .collect(),
        Expr::Aggregate(aggregate) if aggregate.filter.is_some() => {
            let mut less = aggregate.clone();
            less.filter = None;
            vec![Expr::Aggregate(less)]
        }
        Expr::In(_, query, negated) => vec![Expr::Exists(query.clone(), *negated), truth],
        Expr::Compare(..)
        | Expr::Between(..)
        | Expr::Distinct(..)
        | Expr::IsNull(..)
        | Expr::InList(..)
        | Expr::Exists(..) => vec![truth],
        _ => vec![],
    }
}

fn queries(query: &Query) -> Vec<Query> {
    let mut simpler = vec![];
    // A query that the outermost one is about.
    let mut count = 0;
    query.clone().visit(&mut |node| {
        count += 1;
        if let Node::From(From::Derived(inner, _)) = node {
            simpler.push((**inner).clone());
        } else if let Node::From(From::Named(inner, _)) = node {
            simpler.push(inner.query.clone());
        }
    });
    // Items of the outermost query.
    for item in 0..query.items.len() {
        if query.items.len() > 1 && query.order.is_empty() {
            let mut less = query.clone();
            less.items.remove(item);
            if item < less.names.len() {
                less.names.remove(item);
            }
            simpler.push(less);
        }
    }
    for number in 0..count {
        let mut options = 1;
        let mut option = 0;
        while option < options {
            let changed = change(query, number, &mut |node| match node {
                Node::Expr(expr) => {
                    let choices = exprs(expr);
                    options = choices.len();
                    if let Some(choice) = choices.into_iter().nth(option) {
                        *expr = choice;
                    }
                }
                Node::From(from) => {
                    // A table instead of a join, if nothing names the other; a derived table for a view.
                    let choices = match from {
                        From::Join(kind, left, right, on) => {
                            let mut choices = vec![(**left).clone(), (**right).clone()];
                            for n in 0..on.len() {
                                let mut less = on.clone();
                                less.remove(n);
                                choices.push(From::Join(*kind, left.clone(), right.clone(), less));
                            }
                            choices
                        }
                        From::Lateral(left, ..) => vec![(**left).clone()],
                        From::Named(named, alias) => {
                            vec![From::Derived(Box::new(named.query.clone()), *alias)]
                        }
                        From::Asof(asof) if !asof.on.is_empty() => {
                            let mut less = asof.clone();
                            less.on.clear();
                            vec![From::Asof(less)]
                        }
                        From::Asof(asof) => vec![asof.left.clone()],
                        From::Nearest(nearest) => vec![nearest.left.clone(), nearest.right.clone()],
                        _ => vec![],
                    };
                    options = choices.len();
                    if let Some(choice) = choices.into_iter().nth(option) {
                        *from = choice;
                    }
                }
                Node::Query(query) => {
                    let filters = query.filter.len();
                    options = filters + 4;
                    match option {
                        0 => query.having = None,
                        1 => query.distinct = false,
                        2 => query.offset = 0,
                        3 if query.limit != Some(1) => {
                            query.limit = None;
                            query.order.clear();
                        }
                        3 => {}
                        n => {
                            query.filter.remove(n - 4);
                        }
                    }
                }
            });
            if options > option && changed.to_string() != query.to_string() {
                simpler.push(changed);
            }
            option += 1;
        }
    }
    simpler
}
