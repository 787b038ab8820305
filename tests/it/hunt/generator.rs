//! Draws queries, a file for each kind of part.

mod expressions;
mod queries;
mod ranges;
mod subqueries;
mod tables;

use std::sync::Arc;

use rmq_testing::Random;

use super::query::{Alias, Comparison, Expr, Named, Node};
use super::schema::{Column, Table};
use super::value::Kind;

/// A table in scope.
#[derive(Debug, Clone)]
struct Source {
    alias: Alias,
    columns: Vec<Column>,
    /// Whether `id` is its unique first column, so that it makes an order total.
    has_id: bool,
}

impl Source {
    fn column(&self, index: usize) -> Expr {
        Expr::Column {
            alias: self.alias,
            index,
            name: Arc::clone(&self.columns[index].name),
        }
    }

    fn named(&self, name: &str) -> Option<Expr> {
        let index = self.columns.iter().position(|c| &*c.name == name)?;
        Some(self.column(index))
    }
}

/// Draws queries over some tables.
pub struct Generator<'a> {
    pub random: &'a mut Random,
    tables: &'a [Table],
    /// The kind of the columns `k` and `e`.
    key: Kind,
    /// The aliases in scope, a bit each.
    in_scope: u32,
    named: Vec<(Arc<Named>, Vec<Column>, bool)>,
    /// How many columns were named, unless names are repeated.
    names: Option<usize>,
    /// How many queries in FROM are around the one that is drawn.
    level: usize,
    /// Whether functions by position are drawn.
    has_calls: bool,
    /// The shapes of the query, to count them.
    pub shapes: Vec<&'static str>,
}

fn boxed(expr: Expr) -> Box<Expr> {
    Box::new(expr)
}

/// A comparison. Of an expression with itself only `=`, as `DataFusion` loses the NULL of `x <> x` and `x < x` in a
/// WHERE.
fn compare(comparison: Comparison, a: Expr, b: Expr) -> Expr {
    if comparison != Comparison::Equal && a.to_string() == b.to_string() {
        return Expr::IsNull(boxed(a), true);
    }
    Expr::Compare(comparison, boxed(a), boxed(b))
}

/// The negation of a condition, unless it has `x = x`, whose NULL `DataFusion` loses there.
fn not(mut condition: Expr) -> Expr {
    let mut has_self = false;
    condition.visit(&mut |node| {
        if let Node::Expr(Expr::Compare(_, a, b)) = node {
            has_self |= a.to_string() == b.to_string();
        }
    });
    if has_self {
        condition
    } else {
        Expr::Not(boxed(condition))
    }
}

impl<'a> Generator<'a> {
    /// A generator that may name two queries as views or in WITH.
    pub fn new(random: &'a mut Random, tables: &'a [Table], key: Kind) -> Self {
        // Names that are repeated make DataFusion refuse more queries.
        let names = (random.below(8) > 0).then_some(0);
        Self {
            random,
            tables,
            key,
            in_scope: 0,
            named: vec![],
            names,
            level: 0,
            has_calls: true,
            shapes: vec![],
        }
    }

    /// Draws a view, or a query of a WITH.
    pub fn name_query(&mut self, number: usize) -> (Arc<Named>, Vec<Column>, bool) {
        let (query, columns, has_id) = if self.one_in(2) {
            self.filtered(&[])
        } else {
            self.level += 1;
            let drawn = self.query(1);
            self.level -= 1;
            drawn
        };
        let is_view = self.one_in(2);
        let name = format!("{}{number}", if is_view { "view" } else { "w" });
        (
            Arc::new(Named {
                name,
                query,
                is_view,
            }),
            columns,
            has_id,
        )
    }

    /// Lets later queries name this one.
    pub fn add_named(&mut self, named: (Arc<Named>, Vec<Column>, bool)) {
        self.named.push(named);
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.random.below(n) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.random.below(from.len())].clone()
    }

    fn shape(&mut self, shape: &'static str) {
        if !self.shapes.contains(&shape) {
            self.shapes.push(shape);
        }
    }

    fn new_alias(&mut self) -> Alias {
        let alias = (!self.in_scope).trailing_zeros();
        self.in_scope |= 1 << alias;
        alias as Alias
    }

    /// Draws with the aliases of this draw out of scope afterwards.
    fn scoped<T>(&mut self, draw: impl FnOnce(&mut Self) -> T) -> T {
        let in_scope = self.in_scope;
        let drawn = draw(self);
        self.in_scope = in_scope;
        drawn
    }
}
