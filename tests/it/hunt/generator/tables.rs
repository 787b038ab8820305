//! FROM: tables, derived tables, joins of all kinds, frame functions.

use std::sync::Arc;

use super::{Generator, Source, boxed};
use crate::hunt::calls::Call;
use crate::hunt::query::{
    Asof, AsofKind, Comparison, Expr, Frame, From, JoinType, Nearest, Query, RangeJoin,
};
use crate::hunt::schema::Column;
use crate::hunt::value::Kind;

impl Generator<'_> {
    pub(super) fn base(&mut self) -> (From, Source) {
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

    pub(super) fn derived(
        &mut self,
        query: Query,
        columns: Vec<Column>,
        has_id: bool,
    ) -> (From, Source) {
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
    pub(super) fn whole_table(&mut self) -> (From, Source) {
        if self.one_in(2) {
            return self.base();
        }
        let (query, columns, has_id) = self.filtered(&[]);
        self.derived(query, columns, has_id)
    }

    /// A table, view or derived table.
    pub(super) fn source(&mut self, depth: usize) -> (From, Source) {
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
    pub(super) fn filtered(&mut self, outer: &[Source]) -> (Query, Vec<Column>, bool) {
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

    pub(super) fn join(&mut self, depth: usize) -> (From, Vec<Source>) {
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

    pub(super) fn lateral(&mut self, depth: usize) -> (From, Vec<Source>) {
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
                    g.closest(&mut query, &inner, &outer);
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

    pub(super) fn asof(&mut self) -> (From, Vec<Source>) {
        let has_calls = std::mem::replace(&mut self.has_calls, false);
        let drawn = self.asof_of();
        self.has_calls = has_calls;
        drawn
    }

    pub(super) fn asof_of(&mut self) -> (From, Vec<Source>) {
        use AsofKind as A;
        use Comparison as C;
        let (left, mut a) = self.source(0);
        let (right, mut b) = self.base();
        let asof_kind = self.pick(&[
            A::Matched,
            A::Matched,
            A::Inner,
            A::Left,
            A::Right,
            A::Full,
            A::Semi,
            A::Anti,
        ]);
        let is_outer = matches!(asof_kind, A::Right | A::Full);
        let (kind, key) = if is_outer {
            // Of equal keys any one is the nearest.
            (Kind::Int, b.column(0))
        } else {
            let kind = self.pick(&[self.key, self.key, Kind::Int]);
            let key = b
                .named("k")
                .filter(|_| kind == self.key)
                .unwrap_or_else(|| self.column(std::slice::from_ref(&b), kind));
            (kind, key)
        };
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
            on.push(self.equality(x, y));
        }
        if self.one_in(4) && !is_outer {
            let residual = self.residual(std::slice::from_ref(&b), std::slice::from_ref(&a));
            // Without MATCH_CONDITION there is one comparison of the two sides.
            let is_match = matches!(
                residual,
                Expr::Compare(
                    C::Less | C::LessOrEqual | C::Greater | C::GreaterOrEqual,
                    ..
                )
            );
            if asof_kind == A::Matched || !is_match {
                on.push(residual);
            }
        }
        self.shape(match asof_kind {
            A::Matched => "ASOF JOIN … MATCH_CONDITION",
            A::Inner => "ASOF JOIN … ON",
            A::Left => "ASOF LEFT JOIN",
            A::Right => "ASOF RIGHT JOIN",
            A::Full => "ASOF FULL JOIN",
            A::Semi => "ASOF SEMI JOIN",
            A::Anti => "ASOF ANTI JOIN",
        });
        b.has_id = false;
        if is_outer {
            a.has_id = false;
        }
        let asof = Asof {
            kind: asof_kind,
            left,
            right,
            at,
            comparison,
            key,
            on,
        };
        let sources = match asof_kind {
            A::Semi | A::Anti => vec![a],
            _ => vec![a, b],
        };
        (From::Asof(Box::new(asof)), sources)
    }

    /// The nearest rows by a distance that no two of them have, or by the number of the row.
    pub(super) fn nearest_join(&mut self) -> (From, Vec<Source>) {
        let (left, a) = self.source(0);
        let (right, mut b) = self.base();
        let lefts = Self::columns(std::slice::from_ref(&a), Kind::Int);
        if lefts.is_empty() {
            return (left, vec![a]);
        }
        self.shape("NEAREST");
        let id = b.column(0);
        let four_times = |e: &Expr| Expr::Double(boxed(Expr::Double(boxed(e.clone()))));
        let point = Call::Spread.of(vec![self.pick(&lefts)]);
        let (is_distance, by) = match self.random.below(4) {
            0 => (self.one_in(2), id),
            _ => {
                let difference = Expr::Difference(boxed(four_times(&id)), boxed(point));
                (!self.one_in(4), Call::Abs.of(vec![difference]))
            }
        };
        b.has_id = false;
        let nearest = Nearest {
            left,
            right,
            keeps: self.one_in(2),
            count: 1 + self.random.below(3),
            is_distance,
            by,
        };
        (From::Nearest(Box::new(nearest)), vec![a, b])
    }

    pub(super) fn range_join(&mut self) -> (From, Vec<Source>) {
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

    pub(super) fn frame(&mut self) -> (From, Vec<Source>) {
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
    pub(super) fn from(&mut self, depth: usize) -> (From, Vec<Source>) {
        match self.random.below(20) {
            0..=4 => self.join(depth),
            5..=7 => self.lateral(depth),
            8 | 11 => self.asof(),
            9 => self.range_join(),
            10 => self.frame(),
            12 => self.nearest_join(),
            _ => {
                let (from, source) = self.source(depth);
                (from, vec![source])
            }
        }
    }
}
