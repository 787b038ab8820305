//! Conditions between two tables: ranges, windows and others.

use super::{Generator, Source, boxed, compare};
use crate::hunt::calls::Call;
use crate::hunt::query::{Comparison, Expr};
use crate::hunt::value::{Kind, Value};

impl Generator<'_> {
    /// Conditions between inner and outer tables, most with a range.
    pub(super) fn correlation(&mut self, inner: &[Source], outer: &[Source]) -> Vec<Expr> {
        let (p, q) = (self.pick(inner), self.pick(outer));
        let mut conditions = vec![];
        let (ps, qs) = ([p.clone()], [q.clone()]);
        if self.one_in(2)
            && let (Some(a), Some(b)) = (p.named("g"), q.named("g"))
        {
            conditions.push(self.equality(a, b));
        }
        if self.one_in(4) {
            let (a, b) = (self.column(&ps, Kind::Int), self.column(&qs, Kind::Int));
            conditions.push(self.equality(b, a));
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

    /// An equality of two columns, some of which NULL meets.
    pub(super) fn equality(&mut self, a: Expr, b: Expr) -> Expr {
        if self.one_in(4) {
            self.shape("IS NOT DISTINCT FROM between two tables");
            return Expr::Distinct(boxed(a), boxed(b), false);
        }
        compare(Comparison::Equal, a, b)
    }

    /// A range of one key of `p` with bounds from `q`, or two of them.
    pub(super) fn range(&mut self, p: &[Source], q: &[Source]) -> Vec<Expr> {
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
        match self.random.below(20) {
            12 | 15 if kind != Kind::Text => {
                let key = self.key_that_may_fail(pk, kind);
                vec![
                    compare(low, shift(&qk, -width), key.clone()),
                    compare(high, key, shift(&qk, width)),
                ]
            }
            13 | 14 => self.differences(p, q),
            16 => {
                self.shape("LIKE with a prefix");
                let (text, prefix) = (self.column(q, Kind::Text), self.column(p, Kind::Text));
                let sides = if self.one_in(3) {
                    vec![prefix, text]
                } else {
                    vec![text, prefix]
                };
                vec![Call::HasPrefix.of(sides)]
            }
            17 if !matches!(kind, Kind::Text | Kind::Float) => {
                self.shape("greatest start before least end");
                let (pe, qe) = (key(self, p, "e"), key(self, q, "e"));
                let starts = Call::Greatest.of(vec![pk, qk]);
                vec![compare(low, starts, Call::Least.of(vec![pe, qe]))]
            }
            18 | 19 if matches!(self.key, Kind::Time | Kind::Date) => self.time_differences(p, q),
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
                let range =
                    Expr::Between(boxed(pk), boxed(qk.clone()), boxed(shift(&qk, 2 * width)));
                if self.one_in(2) {
                    self.shape("a rectangle");
                    let c = self.expr(q, kind, 0);
                    return vec![range, compare(low, b, a.clone()), compare(high, a, c)];
                }
                let comparison =
                    self.pick(&[C::Less, C::LessOrEqual, C::Greater, C::GreaterOrEqual]);
                vec![range, compare(comparison, a, b)]
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

    /// Conditions on a difference of integers, which may wrap around.
    fn differences(&mut self, p: &[Source], q: &[Source]) -> Vec<Expr> {
        use Comparison as C;
        self.shape("a difference of integers");
        // The least number has no absolute value.
        let is_absolute = self.one_in(5);
        let moves: &[i64] = match is_absolute {
            true => &[0],
            false => &[0, 0, 0, 1 << 62, -(1 << 62), i64::MAX - 4, i64::MIN + 4],
        };
        let [key, bound] = [p, q].map(|sources| {
            let column = self.column(sources, Kind::Int);
            Expr::Moved(boxed(column), self.pick(moves))
        });
        let (less, more) = if self.one_in(2) {
            (key, bound)
        } else {
            (bound, key)
        };
        let difference = Expr::Difference(boxed(more.clone()), boxed(less.clone()));
        let from = self.random.below(5) as i64 - 2;
        let to = from + self.random.below(6) as i64;
        let literal = |n: i64| Expr::Literal(Value::Int(n), Kind::Int);
        let [from, to] = [from, to].map(|n| match self.random.below(3) {
            // A length of the row, which has a range if the row is that of the bounds.
            0 => self.column(q, Kind::Int),
            _ => literal(n),
        });
        let difference = match is_absolute {
            true => Call::Abs.of(vec![difference]),
            false => difference,
        };
        let ends = [C::Less, C::LessOrEqual, C::Greater, C::GreaterOrEqual];
        let end = self.pick(&ends);
        match self.random.below(4) {
            0 => vec![Expr::Between(boxed(difference), boxed(from), boxed(to))],
            1 => vec![
                compare(self.pick(&[C::Less, C::LessOrEqual]), less, more),
                compare(C::LessOrEqual, difference, to),
            ],
            2 => vec![
                compare(self.pick(&ends), less, more),
                compare(end, difference, to),
            ],
            _ => vec![compare(end, difference, from)],
        }
    }

    /// Conditions on a difference of times.
    fn time_differences(&mut self, p: &[Source], q: &[Source]) -> Vec<Expr> {
        use Comparison as C;
        self.shape("a difference of times");
        let kind = self.key;
        let [a, b] = [p, q].map(|sources| {
            let time = self.column(sources, kind);
            // The difference of two dates is a number.
            match kind {
                Kind::Date => Call::AsTimestamp.of(vec![time]),
                _ => time,
            }
        });
        let (a, b) = if self.one_in(2) { (a, b) } else { (b, a) };
        let difference = Expr::Difference(boxed(a.clone()), boxed(b.clone()));
        let n = self.random.below(6) as i64;
        let length = |g: &mut Self, n: i64| {
            let number = match g.random.below(4) {
                0 => g.column(q, Kind::Int),
                _ => Expr::Literal(Value::Int(n), Kind::Int),
            };
            Call::Interval(kind).of(vec![number])
        };
        let (from, to) = (length(self, n - 3), length(self, n));
        let end = self.pick(&[C::Less, C::LessOrEqual, C::Greater, C::GreaterOrEqual]);
        match self.random.below(3) {
            0 => vec![Expr::Between(boxed(difference), boxed(from), boxed(to))],
            1 => vec![
                compare(C::LessOrEqual, b, a),
                compare(C::LessOrEqual, difference, to),
            ],
            _ => vec![compare(end, difference, to)],
        }
    }

    /// A range key in an expression that may fail, or that DataFusion takes for one.
    fn key_that_may_fail(&mut self, key: Expr, kind: Kind) -> Expr {
        let is_time = matches!(kind, Kind::Time | Kind::Date);
        match self.random.below(7) {
            0 if is_time => {
                self.shape("a range key by to_timestamp");
                Call::ToTimestamp.of(vec![key])
            }
            1 if is_time => {
                self.shape("a range key by date_bin");
                Call::Bin(kind).of(vec![key])
            }
            2 => {
                self.shape("a range key by coalesce");
                Expr::Coalesce(boxed(key), boxed(self.literal(kind)))
            }
            3 => {
                self.shape("a range key by nullif");
                let literal = self.literal(kind);
                Call::Nullif.of(vec![key, literal])
            }
            4 => {
                self.shape("a range key by greatest");
                let literal = self.literal(kind);
                Call::Greatest.of(vec![key, literal])
            }
            _ => {
                self.shape("a range key read from text");
                Expr::Reread(boxed(key), kind)
            }
        }
    }

    /// Another condition on both.
    pub(super) fn residual(&mut self, p: &[Source], q: &[Source]) -> Expr {
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

    /// A range of one key of `p` between columns of `q`.
    pub(super) fn window(&mut self, p: &[Source], q: &[Source]) -> Vec<Expr> {
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
}
