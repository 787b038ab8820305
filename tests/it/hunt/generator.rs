//! Draws queries.

use std::sync::Arc;

use rmq_testing::Random;

use super::query::{
    Aggregate, Alias, Asof, Comparison, Expr, Frame, From, Function, JoinType, Key, Named, Node,
    Order, Query, RangeCall, RangeFunction, RangeJoin,
};
use super::schema::{Column, Table};
use super::value::{DAY, Kind, SECOND, Value};

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

    // ---- expressions ----

    /// The columns of a kind. Range keys that are numbers count as numbers.
    fn columns(sources: &[Source], kind: Kind) -> Vec<Expr> {
        let of = |source: &Source| -> Vec<Expr> {
            let fits = source
                .columns
                .iter()
                .enumerate()
                .filter(|(_, c)| c.kind == kind);
            fits.map(|(i, _)| source.column(i)).collect()
        };
        sources.iter().flat_map(of).collect()
    }

    fn literal(&mut self, kind: Kind) -> Expr {
        let n = self.random.below(9) as i64 - 1;
        let value = match kind {
            _ if self.one_in(15) => Value::Null,
            Kind::Int => Value::Int(n),
            Kind::Float => Value::Float(n as f64 / 2.0),
            // Whole seconds: DataFusion cuts the others to the unit of the column they are compared with.
            Kind::Time => Value::Time(n * SECOND),
            Kind::Date => Value::Time(n * DAY),
            Kind::Text => Value::Text(self.pick(&["", "a", "ab", "b"]).into()),
            Kind::Bool => Value::Bool(n % 2 == 0),
        };
        Expr::Literal(value, kind)
    }

    fn column(&mut self, sources: &[Source], kind: Kind) -> Expr {
        let columns = Self::columns(sources, kind);
        if columns.is_empty() {
            self.literal(kind)
        } else {
            self.pick(&columns)
        }
    }

    /// An expression of this kind. `depth` is how deep subqueries may be nested in it.
    fn expr(&mut self, sources: &[Source], kind: Kind, depth: usize) -> Expr {
        if kind == Kind::Bool && self.one_in(3) {
            return self.condition(sources, depth);
        }
        if depth > 0 && self.one_in(3) && kind != Kind::Bool {
            return self.scalar(sources, kind, depth);
        }
        match self.random.below(14) {
            0 => self.literal(kind),
            1 | 2 if matches!(kind, Kind::Int | Kind::Float | Kind::Time | Kind::Date) => {
                let by = self.random.below(5) as i64 - 2;
                Expr::Shift(boxed(self.expr(sources, kind, 0)), by, kind)
            }
            3 if matches!(kind, Kind::Int | Kind::Float) => Expr::Sum(
                boxed(self.column(sources, kind)),
                boxed(self.column(sources, kind)),
            ),
            4 if matches!(kind, Kind::Int | Kind::Float) => {
                Expr::Double(boxed(self.column(sources, kind)))
            }
            5 => Expr::Coalesce(
                boxed(self.expr(sources, kind, depth)),
                boxed(self.column(sources, kind)),
            ),
            6 => {
                let condition = boxed(self.condition(sources, depth.min(1)));
                let then = boxed(self.expr(sources, kind, 0));
                let otherwise = (!self.one_in(3)).then(|| boxed(self.column(sources, kind)));
                Expr::Case(condition, then, otherwise)
            }
            7 if self.has_calls && self.one_in(4) => self.range_call(sources, kind),
            _ => self.column(sources, kind),
        }
    }

    /// A function by position that returns this kind, or else a column.
    fn range_call(&mut self, sources: &[Source], kind: Kind) -> Expr {
        let table = self.random.below(self.tables.len());
        let columns = &self.tables[table].columns;
        let fits = |c: &Column| kind == Kind::Int || c.kind == kind;
        let fits: Vec<_> = columns
            .iter()
            .enumerate()
            .filter(|(_, c)| fits(c))
            .collect();
        let Some((column, named)) = (!fits.is_empty()).then(|| self.pick(&fits)) else {
            return self.column(sources, kind);
        };
        let (name, of) = (Arc::clone(&named.name), named.kind);
        self.shape("function by position");
        let from = self.expr(sources, Kind::Int, 0);
        let to = self.expr(sources, Kind::Int, 0);
        let (function, threshold) = self.range_function(sources, kind, of);
        Expr::Range(Box::new(RangeCall {
            function,
            table,
            column,
            name,
            from,
            to,
            threshold,
        }))
    }

    /// A function that returns `kind` for a column of the kind `of`, and its threshold.
    fn range_function(
        &mut self,
        sources: &[Source],
        kind: Kind,
        of: Kind,
    ) -> (RangeFunction, Option<Expr>) {
        if kind == of && (kind != Kind::Int || self.one_in(2)) {
            return (self.pick(&[RangeFunction::Min, RangeFunction::Max]), None);
        }
        if self.one_in(2) || of == Kind::Bool {
            return (
                self.pick(&[RangeFunction::ArgMin, RangeFunction::ArgMax]),
                None,
            );
        }
        let (first, at_most) = (self.one_in(2), self.one_in(2));
        let threshold = self.expr(sources, of, 0);
        (RangeFunction::Crossing { first, at_most }, Some(threshold))
    }

    fn comparison(&mut self) -> Comparison {
        use Comparison as C;
        self.pick(&[
            C::Equal,
            C::NotEqual,
            C::Less,
            C::LessOrEqual,
            C::Greater,
            C::GreaterOrEqual,
        ])
    }

    fn kind(&mut self) -> Kind {
        self.pick(&[
            Kind::Int,
            Kind::Int,
            self.key,
            self.key,
            Kind::Float,
            Kind::Text,
            Kind::Bool,
        ])
    }

    /// A kind of which there is a column.
    fn kind_of(&mut self, sources: &[Source]) -> Kind {
        let kinds: Vec<_> = sources
            .iter()
            .flat_map(|s| s.columns.iter().map(|c| c.kind))
            .collect();
        if kinds.is_empty() {
            Kind::Int
        } else {
            self.pick(&kinds)
        }
    }

    /// A condition on these tables.
    fn condition(&mut self, sources: &[Source], depth: usize) -> Expr {
        if depth > 0 && self.one_in(3) {
            return self.membership(sources, depth);
        }
        let kind = self.kind_of(sources);
        // Truth values are compared as they are, or conditions would have no end.
        let depth = if kind == Kind::Bool { 0 } else { depth };
        match self.random.below(20) {
            0..=3 => {
                let is_null = self.one_in(2);
                Expr::IsNull(boxed(self.expr(sources, kind, depth)), is_null)
            }
            4 | 5 => {
                let column = self.column(sources, kind);
                compare(Comparison::Equal, column.clone(), column)
            }
            6 => not(self.condition(sources, depth)),
            7 => Expr::And(vec![
                self.condition(sources, depth),
                self.condition(sources, 0),
            ]),
            8 | 9 => Expr::Or(vec![
                self.condition(sources, depth),
                self.condition(sources, 0),
            ]),
            10 => {
                let truth = self.pick(&[Some(true), Some(false), None]);
                Expr::Is(boxed(self.condition(sources, depth)), truth)
            }
            11 if kind != Kind::Bool => {
                let distinct = self.one_in(2);
                let (a, b) = (self.expr(sources, kind, depth), self.expr(sources, kind, 0));
                Expr::Distinct(boxed(a), boxed(b), distinct)
            }
            12 if matches!(kind, Kind::Int | Kind::Text) => {
                let values = (0..1 + self.random.below(3)).map(|_| match self.literal(kind) {
                    Expr::Literal(value, _) => value,
                    _ => Value::Null,
                });
                let mut values: Vec<_> = values.collect();
                let negated = self.one_in(2);
                // As for `x <> x`.
                if negated {
                    values.retain(|value| !value.is_null());
                    values.push(Value::Null);
                    values.truncate(values.len().max(2) - 1);
                }
                Expr::InList(boxed(self.expr(sources, kind, depth)), values, negated)
            }
            13 => {
                let column = self.column(sources, Kind::Bool);
                Expr::Coalesce(boxed(self.condition(sources, 0)), boxed(column))
            }
            14 => self.column(sources, Kind::Bool),
            _ if kind == Kind::Bool => {
                let (a, b) = (self.column(sources, kind), self.column(sources, kind));
                let comparison = self.comparison();
                compare(comparison, a, b)
            }
            _ => {
                let comparison = self.comparison();
                let (a, b) = (self.expr(sources, kind, depth), self.expr(sources, kind, 0));
                if self.one_in(2) {
                    compare(comparison, a, b)
                } else {
                    compare(comparison, b, a)
                }
            }
        }
    }

    // ---- subqueries in expressions ----

    /// EXISTS or IN, or a comparison with a scalar subquery.
    fn membership(&mut self, outer: &[Source], depth: usize) -> Expr {
        let negated = self.one_in(2);
        match self.random.below(5) {
            0 | 1 => {
                self.shape(if negated { "NOT EXISTS" } else { "EXISTS" });
                let query = self.scoped(|g| {
                    let (mut query, sources) = g.correlated(outer, depth);
                    query.items = match g.random.below(4) {
                        0 => vec![Expr::Literal(Value::Int(1), Kind::Int)],
                        1 => vec![sources[0].column(0)],
                        2 => vec![g.expr(&sources, Kind::Int, 0)],
                        _ => {
                            let kind = g.kind();
                            vec![g.expr(&sources, kind, 0), g.column(&sources, Kind::Int)]
                        }
                    };
                    let kinds = vec![Kind::Int; query.items.len()];
                    g.name(&mut query, &kinds);
                    g.disguise(&mut query, &sources);
                    query
                });
                Expr::Exists(Box::new(query), negated)
            }
            2 | 3 => {
                self.shape(if negated { "NOT IN" } else { "IN" });
                let kind = self.pick(&[Kind::Int, Kind::Int, self.key, Kind::Text, Kind::Float]);
                let left = self.expr(outer, kind, 0);
                // DataFusion's NOT IN of a constant does not see NULLs.
                let negated = negated && !matches!(left, Expr::Literal(..));
                let query = self.scoped(|g| {
                    let (mut query, sources) = g.correlated(outer, depth);
                    query.items = vec![g.expr(&sources, kind, 0)];
                    g.name(&mut query, &[kind]);
                    g.disguise(&mut query, &sources);
                    query
                });
                Expr::In(boxed(left), Box::new(query), negated)
            }
            _ => {
                let kind = self.pick(&[Kind::Int, Kind::Int, self.key, Kind::Float]);
                let comparison = self.comparison();
                let (a, b) = (self.scalar(outer, kind, depth), self.expr(outer, kind, 0));
                if self.one_in(2) {
                    compare(comparison, a, b)
                } else {
                    compare(comparison, b, a)
                }
            }
        }
    }

    /// Gives a query whose rows count as a set DISTINCT or GROUP BY, or puts it into a derived table.
    fn disguise(&mut self, query: &mut Query, sources: &[Source]) {
        match self.random.below(12) {
            0 => {
                self.shape("DISTINCT in a subquery");
                query.distinct = true;
            }
            1 => {
                self.shape("GROUP BY in a subquery");
                query.group = query.items.clone();
                query.group.retain(|e| !matches!(e, Expr::Literal(..)));
                if self.one_in(2) && !query.group.is_empty() {
                    let argument = self.column(sources, Kind::Int);
                    let count = self.aggregate_of(Function::CountRows, argument);
                    let n = Expr::Literal(Value::Int(1), Kind::Int);
                    let comparison = self.comparison();
                    query.having = Some(compare(comparison, count, n));
                }
            }
            2 => {
                self.shape("a derived table around a subquery's rows");
                let alias = self.new_alias();
                let kinds: Vec<_> = query.items.iter().map(|_| Kind::Int).collect();
                let columns = self.name(query, &kinds);
                let source = Source {
                    alias,
                    columns,
                    has_id: false,
                };
                let items = (0..query.items.len()).map(|i| source.column(i)).collect();
                let inner = std::mem::replace(query, Query::new(From::Table(0, 0), vec![]));
                *query = Query::new(From::Derived(Box::new(inner), alias), items);
                self.name(query, &kinds);
            }
            _ => {}
        }
    }

    /// A query over some tables that depends on the outer row, and the tables. Its SELECT list is empty.
    fn correlated(&mut self, outer: &[Source], depth: usize) -> (Query, Vec<Source>) {
        let (from, sources) = self.inner_from(outer, depth);
        let mut query = Query::new(from, vec![]);
        query.filter = match self.random.below(15) {
            0 => vec![self.condition(outer, 0)],
            1 => vec![],
            _ => self.correlation(&sources, outer),
        };
        if depth > 1 && self.one_in(3) {
            self.shape("a subquery in a subquery");
            let nested = self.membership(&sources, depth - 1);
            query.filter.push(nested);
        }
        (query, sources)
    }

    /// FROM of a subquery.
    fn inner_from(&mut self, outer: &[Source], depth: usize) -> (From, Vec<Source>) {
        match self.random.below(20) {
            0 | 1 => self.join(depth.saturating_sub(1)),
            2 => {
                self.shape("a derived table that depends on the outer row");
                let (query, columns, has_id) = self.filtered(outer);
                let (from, source) = self.derived(query, columns, has_id);
                (from, vec![source])
            }
            _ => {
                let (from, source) = self.source(depth.saturating_sub(1));
                (from, vec![source])
            }
        }
    }

    /// A scalar subquery of this kind.
    fn scalar(&mut self, outer: &[Source], kind: Kind, depth: usize) -> Expr {
        let query = self.scoped(|g| match g.random.below(12) {
            0..=5 => {
                g.shape("a scalar subquery with an aggregate");
                let (mut query, sources) = g.correlated(outer, depth);
                query.items = vec![g.aggregated(&sources, kind, depth - 1)];
                query
            }
            6..=9 => {
                g.shape("a scalar subquery with LIMIT 1");
                let (mut query, sources) = g.correlated(outer, depth);
                let item = g.expr(&sources, kind, 0);
                query.items = vec![item];
                g.nearest(&mut query, &sources);
                query.limit = Some(if g.one_in(20) { 0 } else { 1 });
                query.offset = if g.one_in(8) { 1 } else { 0 };
                query
            }
            10 => {
                g.shape("a constant of a scalar subquery");
                let (mut query, _) = g.correlated(outer, depth);
                query.items = vec![g.literal(kind)];
                query.limit = Some(1);
                query
            }
            _ => {
                g.shape("a scalar subquery without correlation");
                let (from, source) = g.source(0);
                let sources = [source];
                let item = g.aggregated(&sources, kind, 0);
                let mut query = Query::new(from, vec![item]);
                if g.one_in(2) {
                    query.filter = vec![g.condition(&sources, 0)];
                }
                query
            }
        });
        let mut query = query;
        self.name(&mut query, &[kind]);
        Expr::Scalar(Box::new(query))
    }

    /// Orders a query so that LIMIT takes the same rows whichever way it is computed.
    fn nearest(&mut self, query: &mut Query, sources: &[Source]) {
        let key = match self.random.below(6) {
            0 => self.expr(sources, Kind::Int, 0),
            1 => self.column(sources, Kind::Float),
            2 => self.column(sources, self.key),
            _ => sources[0]
                .named("k")
                .unwrap_or_else(|| self.column(sources, self.key)),
        };
        let mut keys = vec![key];
        if sources.iter().all(|s| s.has_id) {
            keys.extend(sources.iter().map(|source| source.column(0)));
        } else {
            // The rows that are returned differ in the order's keys, or not at all.
            keys.extend(
                query
                    .items
                    .iter()
                    .filter(|item| !item.has_aggregate())
                    .cloned(),
            );
        }
        keys.retain(|key| !matches!(key, Expr::Literal(..)));
        if keys.is_empty() {
            keys.push(sources[0].column(0));
        }
        for key in keys {
            let descends = self.one_in(2);
            let nulls_first = if self.one_in(5) { !descends } else { descends };
            query.order.push(Order {
                key: Key::Expr(key),
                descends,
                nulls_first,
            });
        }
    }

    fn aggregate_of(&mut self, function: Function, argument: Expr) -> Expr {
        Expr::Aggregate(Box::new(Aggregate {
            function,
            argument,
            filter: None,
            order: None,
        }))
    }

    /// An expression of this kind over aggregates of these tables.
    fn aggregated(&mut self, sources: &[Source], kind: Kind, depth: usize) -> Expr {
        use Function as F;
        if kind == Kind::Bool {
            // Not NULL: a filter on what is known to be NULL goes wrong in DataFusion.
            let n = Expr::Literal(Value::Int(self.random.below(5) as i64), Kind::Int);
            let comparison = self.comparison();
            return compare(comparison, self.aggregated(sources, Kind::Int, depth), n);
        }
        let functions: &[F] = match kind {
            Kind::Int => &[
                F::CountRows,
                F::CountRows,
                F::Count,
                F::CountDistinct,
                F::Sum,
                F::Min,
                F::Max,
                F::First,
                F::Last,
            ],
            Kind::Float => &[F::Avg, F::Sum, F::Min, F::Max, F::First, F::Last],
            _ => &[F::Min, F::Min, F::Max, F::Max, F::First, F::Last],
        };
        let mut function = self.pick(functions);
        let has_ids = sources.len() == 1 && sources[0].has_id;
        if matches!(function, F::First | F::Last) && !has_ids {
            function = F::Min;
        }
        let of = match function {
            F::Avg => self.pick(&[Kind::Int, Kind::Float]),
            F::Count | F::CountDistinct => self.kind_of(sources),
            _ => kind,
        };
        let depth = if self.one_in(4) { depth } else { 0 };
        let argument = self.expr(sources, of, depth);
        let order =
            matches!(function, F::First | F::Last).then(|| (sources[0].column(0), self.one_in(2)));
        let filter = (order.is_none() && self.one_in(5)).then(|| self.condition(sources, depth));
        let aggregate = Expr::Aggregate(Box::new(Aggregate {
            function,
            argument,
            filter,
            order,
        }));
        match self.random.below(10) {
            0 => Expr::Coalesce(boxed(aggregate), boxed(self.literal(kind))),
            1 if matches!(kind, Kind::Int | Kind::Time | Kind::Date) => {
                Expr::Shift(boxed(aggregate), 1, kind)
            }
            _ => aggregate,
        }
    }

    // ---- conditions between tables ----

    /// Conditions between inner and outer tables, most with a range.
    fn correlation(&mut self, inner: &[Source], outer: &[Source]) -> Vec<Expr> {
        let (p, q) = (self.pick(inner), self.pick(outer));
        let mut conditions = vec![];
        let (ps, qs) = ([p.clone()], [q.clone()]);
        if self.one_in(2)
            && let (Some(a), Some(b)) = (p.named("g"), q.named("g"))
        {
            conditions.push(compare(Comparison::Equal, a, b));
        }
        if self.one_in(4) {
            let (a, b) = (self.column(&ps, Kind::Int), self.column(&qs, Kind::Int));
            conditions.push(compare(Comparison::Equal, b, a));
        }
        if !self.one_in(8) {
            conditions.extend(self.range(&ps, &qs));
        }
        if self.one_in(4) {
            conditions.push(self.residual(&ps, &qs));
        }
        if self.one_in(4) {
            conditions.push(self.condition(inner, 0));
        }
        if self.one_in(8) {
            conditions.push(self.condition(outer, 0));
        }
        if self.one_in(3) {
            conditions.reverse();
        }
        conditions
    }

    /// A range of one key of `p` with bounds from `q`, or two of them.
    fn range(&mut self, p: &[Source], q: &[Source]) -> Vec<Expr> {
        use Comparison as C;
        let kind = self.pick(&[
            self.key,
            self.key,
            self.key,
            Kind::Int,
            Kind::Float,
            Kind::Text,
        ]);
        let key = |g: &mut Self, sources: &[Source], name: &str| match sources[0].named(name) {
            Some(key) if kind == g.key && !g.one_in(6) => key,
            _ => g.column(sources, kind),
        };
        let (pk, qk) = (key(self, p, "k"), key(self, q, "k"));
        let width = 1 + self.random.below(4) as i64;
        let shift = |e: &Expr, by: i64| match kind {
            Kind::Text | Kind::Bool => e.clone(),
            _ => Expr::Shift(boxed(e.clone()), by, kind),
        };
        let (low, high) = (
            self.pick(&[C::Less, C::LessOrEqual]),
            self.pick(&[C::Less, C::LessOrEqual]),
        );
        match self.random.below(12) {
            0..=2 => vec![Expr::Between(
                boxed(pk),
                boxed(shift(&qk, -width)),
                boxed(shift(&qk, width)),
            )],
            3 | 4 => vec![
                compare(low, qk.clone(), pk.clone()),
                compare(high, pk, shift(&qk, width)),
            ],
            5 => vec![compare(low, pk, qk)],
            6 => vec![compare(low, qk, pk)],
            7 | 8 => {
                let (pe, qe) = (key(self, p, "e"), key(self, q, "e"));
                vec![compare(low, pk, qe), compare(high, qk, pe)]
            }
            9 => vec![compare(low, shift(&qk, -width), shift(&pk, 1))],
            10 => {
                // A threshold beside the range.
                let kind = self.pick(&[Kind::Int, Kind::Float, self.key]);
                let (a, b) = (self.column(p, kind), self.expr(q, kind, 0));
                let comparison =
                    self.pick(&[C::Less, C::LessOrEqual, C::Greater, C::GreaterOrEqual]);
                vec![
                    Expr::Between(boxed(pk), boxed(qk.clone()), boxed(shift(&qk, 2 * width))),
                    compare(comparison, a, b),
                ]
            }
            _ => {
                let bound = self.expr(q, kind, 0);
                vec![
                    compare(low, pk.clone(), bound),
                    compare(low, shift(&qk, -width), pk),
                ]
            }
        }
    }

    /// Another condition on both.
    fn residual(&mut self, p: &[Source], q: &[Source]) -> Expr {
        let kind = self.kind_of(p);
        let (a, b) = (self.column(p, kind), self.column(q, kind));
        match self.random.below(5) {
            0 => compare(Comparison::NotEqual, a, b),
            1 => Expr::Distinct(boxed(a), boxed(b), true),
            2 => Expr::Or(vec![compare(Comparison::Equal, a, b), self.condition(q, 0)]),
            3 => {
                let sum = Expr::Sum(
                    boxed(self.column(p, Kind::Int)),
                    boxed(self.column(q, Kind::Int)),
                );
                let comparison = self.comparison();
                compare(comparison, sum, self.literal(Kind::Int))
            }
            _ => {
                let comparison = self.comparison();
                compare(comparison, a, b)
            }
        }
    }

    // ---- tables ----

    fn base(&mut self) -> (From, Source) {
        let table = self.random.below(self.tables.len());
        let alias = self.new_alias();
        let columns = self.tables[table].columns.clone();
        (
            From::Table(table, alias),
            Source {
                alias,
                columns,
                has_id: true,
            },
        )
    }

    fn derived(&mut self, query: Query, columns: Vec<Column>, has_id: bool) -> (From, Source) {
        let alias = self.new_alias();
        (
            From::Derived(Box::new(query), alias),
            Source {
                alias,
                columns,
                has_id,
            },
        )
    }

    /// A table, or a derived table with all columns of one.
    fn whole_table(&mut self) -> (From, Source) {
        if self.one_in(2) {
            return self.base();
        }
        let (query, columns, has_id) = self.filtered(&[]);
        self.derived(query, columns, has_id)
    }

    /// A table, view or derived table.
    fn source(&mut self, depth: usize) -> (From, Source) {
        match self.random.below(12) {
            0 => {
                let (query, columns, has_id) = self.filtered(&[]);
                self.derived(query, columns, has_id)
            }
            1 if depth > 0 => {
                self.level += 1;
                let (query, columns, has_id) = self.query(depth - 1);
                self.level -= 1;
                self.derived(query, columns, has_id)
            }
            2 if !self.named.is_empty() => {
                self.shape("a view or WITH");
                let named = self.named.clone();
                let (named, columns, has_id) = self.pick(&named);
                let alias = self.new_alias();
                (
                    From::Named(named, alias),
                    Source {
                        alias,
                        columns,
                        has_id,
                    },
                )
            }
            _ => self.base(),
        }
    }

    /// A derived table of all columns of a table, under other names in part, filtered, distinct, grouped or limited.
    fn filtered(&mut self, outer: &[Source]) -> (Query, Vec<Column>, bool) {
        self.scoped(|g| {
            let (from, source) = g.base();
            let sources = [source.clone()];
            let columns = source.columns.clone();
            let mut items: Vec<_> = (0..columns.len()).map(|i| source.column(i)).collect();
            if g.one_in(3) {
                let column = 1 + g.random.below(items.len() - 1);
                items[column] = g.expr(&sources, columns[column].kind, 0);
            }
            let mut query = Query::new(from, items);
            if g.one_in(2) {
                query.filter = vec![g.condition(&sources, 0)];
            }
            if !outer.is_empty() {
                let correlation = g.correlation(&sources, outer);
                query.filter.extend(correlation);
            }
            if g.one_in(8) {
                query.distinct = true;
            } else if g.one_in(8) {
                g.nearest(&mut query, &sources);
                query.limit = Some(g.random.below(12));
                query.offset = g.random.below(3);
            }
            query.names = columns.iter().map(|c| Arc::clone(&c.name)).collect();
            (query, columns, true)
        })
    }

    fn join(&mut self, depth: usize) -> (From, Vec<Source>) {
        use JoinType as J;
        let kind = self.pick(&[J::Inner, J::Inner, J::Left, J::Right, J::Full]);
        self.shape(match kind {
            J::Inner => "JOIN",
            J::Left => "LEFT JOIN",
            J::Right => "RIGHT JOIN",
            J::Full => "FULL JOIN",
        });
        let (left, a) = self.source(depth);
        let (right, mut b) = self.source(depth);
        let on = self.correlation(std::slice::from_ref(&a), std::slice::from_ref(&b));
        let mut a = a;
        if matches!(kind, J::Right | J::Full) {
            a.has_id = false;
        }
        if matches!(kind, J::Left | J::Full) {
            b.has_id = false;
        }
        (
            From::Join(kind, Box::new(left), Box::new(right), on),
            vec![a, b],
        )
    }

    fn lateral(&mut self, depth: usize) -> (From, Vec<Source>) {
        self.shape("LATERAL");
        let (left, mut sources) = if self.one_in(5) {
            self.join(0)
        } else {
            let (from, source) = self.source(depth.saturating_sub(1));
            (from, vec![source])
        };
        let mut from = left;
        for _ in 0..1 + self.random.below(5) / 4 {
            let outer = sources.clone();
            let (query, columns) = self.scoped(|g| {
                let (mut query, inner) = g.correlated(&outer, 1);
                let kinds: Vec<_> = (0..1 + g.random.below(3)).map(|_| g.kind()).collect();
                if g.one_in(2) {
                    query.items = kinds
                        .iter()
                        .map(|kind| g.aggregated(&inner, *kind, 0))
                        .collect();
                } else {
                    g.shape("LATERAL with LIMIT");
                    query.items = kinds.iter().map(|kind| g.expr(&inner, *kind, 0)).collect();
                    g.nearest(&mut query, &inner);
                    query.limit = Some(1 + g.random.below(3));
                    query.offset = if g.one_in(3) { g.random.below(3) } else { 0 };
                }
                let columns = g.name(&mut query, &kinds);
                (query, columns)
            });
            let alias = self.new_alias();
            let keeps = self.one_in(2);
            from = From::Lateral(Box::new(from), Box::new(query), alias, keeps);
            sources.push(Source {
                alias,
                columns,
                has_id: false,
            });
        }
        (from, sources)
    }

    fn asof(&mut self) -> (From, Vec<Source>) {
        self.shape("ASOF JOIN");
        let has_calls = std::mem::replace(&mut self.has_calls, false);
        let drawn = self.asof_of();
        self.has_calls = has_calls;
        drawn
    }

    fn asof_of(&mut self) -> (From, Vec<Source>) {
        use Comparison as C;
        let (left, a) = self.source(0);
        let (right, mut b) = self.base();
        let kind = self.pick(&[self.key, self.key, Kind::Int]);
        let key = b
            .named("k")
            .filter(|_| kind == self.key)
            .unwrap_or_else(|| self.column(std::slice::from_ref(&b), kind));
        let lefts = Self::columns(std::slice::from_ref(&a), kind);
        if lefts.is_empty() {
            return (left, vec![a]);
        }
        let by = self.random.below(5) as i64 - 2;
        let at = Expr::Shift(boxed(self.pick(&lefts)), by, kind);
        let comparison = self.pick(&[C::GreaterOrEqual, C::Greater, C::LessOrEqual, C::Less]);
        let mut on = vec![];
        if let (Some(x), Some(y)) = (a.named("g"), b.named("g"))
            && self.one_in(2)
        {
            on.push(compare(C::Equal, x, y));
        }
        if self.one_in(4) {
            on.push(self.residual(std::slice::from_ref(&b), std::slice::from_ref(&a)));
        }
        b.has_id = false;
        let asof = Asof {
            left,
            right,
            at,
            comparison,
            key,
            on,
        };
        (From::Asof(Box::new(asof)), vec![a, b])
    }

    fn range_join(&mut self) -> (From, Vec<Source>) {
        self.shape("range_join(…)");
        let has_calls = std::mem::replace(&mut self.has_calls, false);
        let (left, right, keys, window, aggregates, columns, kinds) = self.scoped(|g| {
            let ((left, a), (right, b)) = (g.whole_table(), g.whole_table());
            let (a, b) = ([a], [b]);
            let mut keys = vec![];
            if let (Some(x), Some(y)) = (a[0].named("g"), b[0].named("g"))
                && g.one_in(2)
            {
                keys.push((x, y));
            }
            let mut window = g.window(&b, &a);
            if g.one_in(4) {
                window.push(g.condition(&b, 0));
            }
            let kinds: Vec<_> = (0..1 + g.random.below(3)).map(|_| g.kind()).collect();
            let aggregates = kinds
                .iter()
                .map(|kind| g.aggregated(&b, *kind, 0))
                .collect();
            (
                left,
                right,
                keys,
                window,
                aggregates,
                a[0].columns.clone(),
                kinds,
            )
        });
        self.has_calls = has_calls;
        let alias = self.new_alias();
        let mut all = columns;
        all.extend(kinds.iter().enumerate().map(|(i, kind)| Column {
            name: format!("r{i}").into(),
            kind: *kind,
        }));
        let join = RangeJoin {
            left,
            right,
            keys,
            window,
            aggregates,
            alias,
        };
        (
            From::RangeJoin(Box::new(join)),
            vec![Source {
                alias,
                columns: all,
                has_id: false,
            }],
        )
    }

    /// A range of one key of `p` between columns of `q`.
    fn window(&mut self, p: &[Source], q: &[Source]) -> Vec<Expr> {
        let kind = if Self::columns(q, self.key).is_empty() {
            Kind::Int
        } else {
            self.key
        };
        let bounds = Self::columns(q, kind);
        let key = self.column(p, kind);
        if bounds.is_empty() || matches!(key, Expr::Literal(..)) {
            return vec![compare(
                Comparison::LessOrEqual,
                p[0].column(0),
                q[0].column(0),
            )];
        }
        let bound = |g: &mut Self| {
            let by = g.random.below(5) as i64 - 2;
            Expr::Shift(boxed(g.pick(&bounds)), by, kind)
        };
        match self.random.below(3) {
            0 => vec![Expr::Between(
                boxed(key),
                boxed(bound(self)),
                boxed(bound(self)),
            )],
            1 => vec![compare(Comparison::Less, key, bound(self))],
            _ => vec![
                compare(Comparison::Greater, key.clone(), bound(self)),
                compare(Comparison::LessOrEqual, key, bound(self)),
            ],
        }
    }

    fn frame(&mut self) -> (From, Vec<Source>) {
        self.shape("frame functions");
        let kind = self.kind();
        let (frame, columns) = self.scoped(|g| {
            let (source, a) = g.base();
            let sources = [a];
            let of = g.kind();
            let of = if kind == Kind::Int { of } else { kind };
            let (function, threshold) = g.range_function(&sources, kind, of);
            let value = match g.expr(&sources, of, 0) {
                Expr::Range(_) => g.column(&sources, of),
                value => value,
            };
            let frame = Frame {
                source,
                function,
                value,
                from: g.column(&sources, Kind::Int),
                to: g.column(&sources, Kind::Int),
                threshold,
                partition: sources[0].column(1),
                order: sources[0].column(0),
                descends: g.one_in(2),
                alias: 0,
            };
            (frame, sources[0].columns.clone())
        });
        let alias = self.new_alias();
        let mut all = columns;
        all.push(Column {
            name: "w".into(),
            kind,
        });
        let frame = Frame { alias, ..frame };
        (
            From::Frame(Box::new(frame)),
            vec![Source {
                alias,
                columns: all,
                has_id: true,
            }],
        )
    }

    /// Any FROM.
    fn from(&mut self, depth: usize) -> (From, Vec<Source>) {
        match self.random.below(20) {
            0..=4 => self.join(depth),
            5..=7 => self.lateral(depth),
            8 => self.asof(),
            9 => self.range_join(),
            10 => self.frame(),
            _ => {
                let (from, source) = self.source(depth);
                (from, vec![source])
            }
        }
    }

    // ---- queries ----

    /// Names the columns of a query.
    fn name(&mut self, query: &mut Query, kinds: &[Kind]) -> Vec<Column> {
        let first = self.names.unwrap_or(0);
        if let Some(names) = &mut self.names {
            *names += query.items.len();
        }
        query.names = (0..query.items.len())
            .map(|i| format!("c{}", first + i).into())
            .collect();
        let columns = query.names.iter().zip(kinds);
        columns
            .map(|(name, kind)| Column {
                name: Arc::clone(name),
                kind: *kind,
            })
            .collect()
    }

    /// Any query that depends on nothing else. Returns its columns, too, and whether the first identifies a row.
    pub fn query(&mut self, depth: usize) -> (Query, Vec<Column>, bool) {
        if depth > 0 && self.one_in(3) {
            return self.around(depth - 1);
        }
        self.scoped(|g| {
            let (from, sources) = g.from(depth);
            g.select(from, &sources, depth)
        })
    }

    /// A query around another, with conditions on its columns.
    fn around(&mut self, depth: usize) -> (Query, Vec<Column>, bool) {
        self.shape("a query around a query");
        self.scoped(|g| {
            g.level += 1;
            let (query, columns, has_id) = g.query(depth + 1);
            g.level -= 1;
            let (from, source) = g.derived(query, columns, has_id);
            let sources = [source];
            let mut depth = depth;
            if g.one_in(2) {
                depth = 0;
            }
            let (mut query, columns, has_id) = g.select(from, &sources, depth);
            if query.filter.is_empty() {
                query.filter = vec![g.condition(&sources, 0)];
            }
            (query, columns, has_id)
        })
    }

    /// SELECT … FROM `from` WHERE …, grouped or not.
    fn select(
        &mut self,
        from: From,
        sources: &[Source],
        depth: usize,
    ) -> (Query, Vec<Column>, bool) {
        let mut query = Query::new(from, vec![]);
        if self.one_in(2) {
            query.filter.push(self.condition(sources, depth));
        }
        if self.one_in(6) {
            query.filter.push(self.condition(sources, 0));
        }
        let mut kinds = vec![];
        let mut has_id = false;
        match self.random.below(8) {
            0 | 1 => {
                self.shape("GROUP BY");
                // Columns of the first table, so that a join may become a range join.
                let first = &sources[..1];
                for _ in 0..1 + self.random.below(2) {
                    let kind = self.kind_of(first);
                    let column = self.column(first, kind);
                    if !matches!(column, Expr::Literal(..)) {
                        query.group.push(column.clone());
                        query.items.push(column);
                        kinds.push(kind);
                    }
                }
                if query.group.is_empty() {
                    query.group.push(sources[0].column(0));
                }
                self.add_aggregates(&mut query, sources, &mut kinds, depth);
                if self.one_in(4) {
                    let kind = self.kind_of(sources);
                    let aggregate = self.aggregated(sources, kind, 0);
                    query.having = Some(match self.random.below(2) {
                        0 => Expr::IsNull(boxed(aggregate), self.one_in(2)),
                        _ => {
                            let comparison = self.comparison();
                            compare(comparison, aggregate, self.literal(kind))
                        }
                    });
                }
            }
            // DataFusion moves a condition that it knows to be false below such a query, which returns a row still.
            2 if self.level == 0 => {
                self.shape("aggregates without GROUP BY");
                self.add_aggregates(&mut query, sources, &mut kinds, depth);
            }
            _ => {
                if sources[0].has_id && sources.len() == 1 && !self.one_in(4) {
                    query.items.push(sources[0].column(0));
                    kinds.push(sources[0].columns[0].kind);
                    has_id = true;
                }
                for _ in 0..1 + self.random.below(4) {
                    let kind = self.kind();
                    let depth = if self.one_in(2) { depth } else { 0 };
                    query.items.push(self.expr(sources, kind, depth));
                    kinds.push(kind);
                }
                query.distinct = self.one_in(12);
            }
        }
        if self.one_in(8) {
            for item in 0..query.items.len() {
                let descends = self.one_in(2);
                query.order.push(Order {
                    key: Key::Item(item),
                    descends,
                    nulls_first: self.one_in(2),
                });
            }
            if self.one_in(2) {
                self.shape("ORDER BY LIMIT");
                query.limit = Some(self.random.below(6));
                query.offset = if self.one_in(3) {
                    self.random.below(3)
                } else {
                    0
                };
            }
        }
        let columns = self.name(&mut query, &kinds);
        (query, columns, has_id)
    }

    fn add_aggregates(
        &mut self,
        query: &mut Query,
        sources: &[Source],
        kinds: &mut Vec<Kind>,
        depth: usize,
    ) {
        for _ in 0..1 + self.random.below(3) {
            let kind = self.kind();
            // Aggregates of the last table, mostly.
            let of = if self.one_in(3) {
                sources
            } else {
                &sources[sources.len() - 1..]
            };
            query.items.push(self.aggregated(of, kind, depth));
            kinds.push(kind);
        }
    }
}
