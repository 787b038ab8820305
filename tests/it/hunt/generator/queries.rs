//! Whole queries.

use std::sync::Arc;

use super::{Generator, Source, boxed, compare};
use crate::hunt::query::{Expr, From, JoinType, Key, Order, Query};
use crate::hunt::schema::Column;
use crate::hunt::value::Kind;

impl Generator<'_> {
    /// Names the columns of a query.
    pub(super) fn name(&mut self, query: &mut Query, kinds: &[Kind]) -> Vec<Column> {
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
    pub(super) fn around(&mut self, depth: usize) -> (Query, Vec<Column>, bool) {
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
    pub(super) fn select(
        &mut self,
        from: From,
        sources: &[Source],
        depth: usize,
    ) -> (Query, Vec<Column>, bool) {
        let other = match &from {
            From::Join(JoinType::Left, ..) => sources.get(1),
            From::Join(JoinType::Right, ..) => sources.first(),
            _ => None,
        };
        // DataFusion takes an equality beside the NULLs that are keys of the join for another of these.
        let is_null_safe = |e: &Expr| matches!(e, Expr::Distinct(.., false));
        let copied = match &from {
            From::Join(JoinType::Inner, _, right, on) if !on.iter().any(is_null_safe) => {
                match **right {
                    From::Table(table, _) => Some(table),
                    _ => None,
                }
            }
            _ => None,
        };
        let mut query = Query::new(from, vec![]);
        if let (Some(table), [e, q]) = (copied, sources)
            && self.one_in(6)
        {
            query.filter.extend(self.latest_of(table, q, e));
        }
        if let Some(other) = other.filter(|_| self.one_in(3)) {
            self.shape("the rows of an outer join without a match");
            let column = other.column(self.random.below(other.columns.len()));
            query.filter.push(Expr::IsNull(boxed(column), true));
        }
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

    pub(super) fn add_aggregates(
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
            let mut item = self.aggregated(of, kind, depth);
            if let [first, .., last] = sources
                && of.len() == 1
                && self.one_in(3)
            {
                let (p, q) = ([last.clone()], [first.clone()]);
                self.narrow(&mut item, kind, &p, &q);
            }
            query.items.push(item);
            kinds.push(kind);
        }
    }
}
