//! Expressions and conditions over the columns of some tables.

use std::sync::Arc;

use super::{Generator, Source, boxed, compare, not};
use crate::hunt::query::{Comparison, Expr, RangeCall, RangeFunction};
use crate::hunt::schema::Column;
use crate::hunt::value::{DAY, Kind, SECOND, Value};

impl Generator<'_> {
    /// The columns of a kind. Range keys that are numbers count as numbers.
    pub(super) fn columns(sources: &[Source], kind: Kind) -> Vec<Expr> {
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

    pub(super) fn literal(&mut self, kind: Kind) -> Expr {
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

    pub(super) fn column(&mut self, sources: &[Source], kind: Kind) -> Expr {
        let columns = Self::columns(sources, kind);
        if columns.is_empty() {
            self.literal(kind)
        } else {
            self.pick(&columns)
        }
    }

    /// An expression of this kind. `depth` is how deep subqueries may be nested in it.
    pub(super) fn expr(&mut self, sources: &[Source], kind: Kind, depth: usize) -> Expr {
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
    pub(super) fn range_call(&mut self, sources: &[Source], kind: Kind) -> Expr {
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
    pub(super) fn range_function(
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

    pub(super) fn comparison(&mut self) -> Comparison {
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

    pub(super) fn kind(&mut self) -> Kind {
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
    pub(super) fn kind_of(&mut self, sources: &[Source]) -> Kind {
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
    pub(super) fn condition(&mut self, sources: &[Source], depth: usize) -> Expr {
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
}
