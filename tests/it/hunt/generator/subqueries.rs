//! Subqueries in expressions: EXISTS, IN, scalar subqueries, and aggregates.

use super::{Generator, Source, boxed, compare};
use crate::hunt::calls::Call;
use crate::hunt::query::{Aggregate, Comparison, Expr, From, Function, Key, Order, Query};
use crate::hunt::value::{Kind, Value};

impl Generator<'_> {
    /// EXISTS or IN, or a comparison with a scalar subquery.
    pub(super) fn membership(&mut self, outer: &[Source], depth: usize) -> Expr {
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
    pub(super) fn disguise(&mut self, query: &mut Query, sources: &[Source]) {
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
    pub(super) fn correlated(&mut self, outer: &[Source], depth: usize) -> (Query, Vec<Source>) {
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
    pub(super) fn inner_from(&mut self, outer: &[Source], depth: usize) -> (From, Vec<Source>) {
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
    pub(super) fn scalar(&mut self, outer: &[Source], kind: Kind, depth: usize) -> Expr {
        let query = self.scoped(|g| match g.random.below(12) {
            0..=5 => {
                g.shape("a scalar subquery with an aggregate");
                let (mut query, sources) = g.correlated(outer, depth);
                let mut item = g.aggregated(&sources, kind, depth - 1);
                if g.one_in(3) {
                    g.narrow(&mut item, kind, &sources[..1], &outer[..1]);
                }
                query.items = vec![item];
                query
            }
            6..=9 => {
                g.shape("a scalar subquery with LIMIT 1");
                let (mut query, sources) = g.correlated(outer, depth);
                let item = g.expr(&sources, kind, 0);
                query.items = vec![item];
                g.closest(&mut query, &sources, outer);
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

    /// The condition that `q`, of this table, has the last key before the one of `e`, or the first one after it.
    pub(super) fn latest_of(&mut self, table: usize, q: &Source, e: &Source) -> Option<Expr> {
        use Comparison as C;
        let (key, at) = (q.named("k")?, e.named("k")?);
        self.shape("the latest row by a copy of its table");
        let query = self.scoped(|g| {
            let alias = g.new_alias();
            let columns = g.tables[table].columns.clone();
            let copy = Source {
                alias,
                columns,
                has_id: true,
            };
            let of_copy = copy.named("k")?;
            let (comparison, function) = g.pick(&[
                (C::Less, Function::Max),
                (C::LessOrEqual, Function::Max),
                (C::Greater, Function::Min),
            ]);
            let item = g.aggregate_of(function, of_copy.clone());
            let mut query = Query::new(From::Table(table, alias), vec![item]);
            query.filter = vec![compare(comparison, of_copy, at)];
            let equal = if g.one_in(2) { q } else { e };
            if let (Some(x), Some(y)) = (copy.named("g"), equal.named("g")) {
                query.filter.insert(0, compare(C::Equal, x, y));
            }
            g.name(&mut query, &[g.key]);
            Some(query)
        })?;
        Some(compare(C::Equal, key, Expr::Scalar(Box::new(query))))
    }

    /// Orders a query as `nearest` does, or by the distance from a value of the outer row, or the longest prefix first.
    pub(super) fn closest(&mut self, query: &mut Query, sources: &[Source], outer: &[Source]) {
        let prefix = query.filter.iter().find_map(|condition| match condition {
            Expr::Call(Call::HasPrefix, sides) => Some(sides[1].clone()),
            _ => None,
        });
        if let Some(prefix) = prefix.filter(|_| self.one_in(2)) {
            self.shape("the longest prefix");
            self.ordered(query, sources, Call::Length.of(vec![prefix]));
            query.order[0].descends = true;
            query.order[0].nulls_first = self.one_in(4);
            return;
        }
        let kind = self.pick(&[self.key, Kind::Int]);
        let (p, q) = (sources[0].named("k"), outer[0].named("k"));
        let (p, q) = match (p, q) {
            (Some(p), Some(q)) if kind == self.key => (p, q),
            _ => (self.column(sources, kind), self.column(outer, kind)),
        };
        let has_literal = matches!((&p, &q), (Expr::Literal(..), _) | (_, Expr::Literal(..)));
        if has_literal || !self.one_in(4) {
            return self.nearest(query, sources);
        }
        self.shape("ORDER BY a distance");
        let of = |call: Call, e: Expr| call.of(vec![e]);
        let (p, q) = match kind {
            Kind::Time if self.one_in(3) => (of(Call::Epoch, p), of(Call::Epoch, q)),
            // The difference of two dates is a number.
            Kind::Date => (of(Call::AsTimestamp, p), of(Call::AsTimestamp, q)),
            _ => (p, q),
        };
        let distance = of(Call::Abs, Expr::Difference(boxed(p), boxed(q)));
        let is_first = !self.one_in(4);
        self.ordered(query, sources, distance);
        if is_first {
            query.order[0].descends = false;
            query.order[0].nulls_first = false;
        }
    }

    /// Orders a query so that LIMIT takes the same rows whichever way it is computed.
    pub(super) fn nearest(&mut self, query: &mut Query, sources: &[Source]) {
        let key = match self.random.below(6) {
            0 => self.expr(sources, Kind::Int, 0),
            1 => self.column(sources, Kind::Float),
            2 => self.column(sources, self.key),
            _ => sources[0]
                .named("k")
                .unwrap_or_else(|| self.column(sources, self.key)),
        };
        self.ordered(query, sources, key);
    }

    /// Orders a query by a key, and then so that the order is total.
    fn ordered(&mut self, query: &mut Query, sources: &[Source], key: Expr) {
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

    /// Gives an aggregate over the rows of `p` a condition of its own that compares a key with `q`. `kind` is that of
    /// the expression.
    pub(super) fn narrow(&mut self, expr: &mut Expr, kind: Kind, p: &[Source], q: &[Source]) {
        use Function as F;
        let aggregate = match expr {
            Expr::Aggregate(aggregate) => aggregate,
            Expr::Coalesce(of, _) | Expr::Shift(of, ..) | Expr::Compare(_, of, _) => {
                return self.narrow(of, kind, p, q);
            }
            _ => return,
        };
        self.shape("an aggregate with a condition on two tables");
        let mut conditions = if self.one_in(6) {
            self.shape("a condition that may hold for a row of NULLs");
            let kind = self.pick(&[Kind::Int, Kind::Float, self.key]);
            let known = Expr::Coalesce(boxed(self.column(p, kind)), boxed(self.literal(kind)));
            vec![compare(self.comparison(), known, self.column(q, kind))]
        } else {
            self.range(p, q)
        };
        if self.one_in(4) {
            conditions.push(self.condition(p, 0));
        }
        if self.one_in(6) {
            conditions.push(self.condition(q, 0));
        }
        let skips_nulls = !matches!(aggregate.function, F::CountRows | F::First | F::Last);
        if skips_nulls && aggregate.filter.is_none() && self.one_in(2) {
            let adds_zero = aggregate.function == F::Sum && self.one_in(2);
            let zero = adds_zero.then(|| match kind {
                Kind::Float => boxed(Expr::Literal(Value::Float(0.0), kind)),
                _ => boxed(Expr::Literal(Value::Int(0), Kind::Int)),
            });
            let argument = boxed(aggregate.argument.clone());
            aggregate.argument = Expr::Case(boxed(Expr::And(conditions)), argument, zero);
        } else {
            conditions.extend(aggregate.filter.take());
            aggregate.filter = Some(Expr::And(conditions));
        }
    }

    pub(super) fn aggregate_of(&mut self, function: Function, argument: Expr) -> Expr {
        Expr::Aggregate(Box::new(Aggregate {
            function,
            argument,
            filter: None,
            order: None,
        }))
    }

    /// An expression of this kind over aggregates of these tables.
    pub(super) fn aggregated(&mut self, sources: &[Source], kind: Kind, depth: usize) -> Expr {
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
}
