//! ORDER BY a distance: the rows nearest a point, on both sides of it.
//!
//! ```text
//!   ORDER BY abs(p.ts - q.ts)                                               key p.ts, point q.ts
//!   ORDER BY abs(extract(epoch FROM q.ts - p.ts))
//!   ORDER BY abs(extract(epoch FROM p.ts) - extract(epoch FROM q.ts))
//!   ORDER BY CASE WHEN p.ts > q.ts THEN p.ts - q.ts ELSE q.ts - p.ts END
//!   ORDER BY greatest(p.ts - q.ts, q.ts - p.ts)
//!   ORDER BY -abs(p.ts - q.ts) DESC
//! ```
//!
//! Among the rows in the order of the key, the distance grows from the point on in both directions: never where
//! integers wrap around, as those of a CASE do, or the point is infinite, which `grows` tells for each row. `abs` in
//! ORDER BY is a `DistanceUdf` by then, which does not wrap around. That of unsigned integers wraps around wherever it
//! would be below zero, so that otherwise only CASE is a distance of these on both sides.

use arrow::datatypes::DataType;
use datafusion_common::{DFSchema, Result, ScalarValue};
use datafusion_expr::expr::{BinaryExpr, Case, ScalarFunction};
use datafusion_expr::{Expr, ExprSchemable, Operator, SortExpr, binary_expr, lit};
use datafusion_functions::{core, datetime};

use crate::expr::abs::AbsUdf;
use crate::expr::distance::DistanceUdf;
use crate::expr::duration::SecondsUdf;
use crate::rules::condition_parts::is_of;

/// A distance of a key of the build side from a point of the probe side.
#[derive(Debug, Clone)]
pub struct KeyDistance {
    pub key: Expr,
    pub point: Expr,
    /// The whole expression, which is never less for a row that is farther.
    pub by: Expr,
    /// Whether it never wraps around.
    is_exact: bool,
    /// Whether only the difference that is not below zero is computed.
    is_of_greater: bool,
}

impl KeyDistance {
    /// The distance that rows are ordered by, if it is one, from the least on.
    pub fn of(order: &SortExpr, probe: &DFSchema, build: &DFSchema) -> Result<Option<Self>> {
        let (by, is_negated) = match &order.expr {
            by if order.asc => (by, false),
            Expr::Negative(by) => (by.as_ref(), true),
            _ => return Ok(None),
        };
        if order.nulls_first {
            return Ok(None);
        }
        let Some(Difference {
            of: (a, b), form, ..
        }) = absolute_difference(by)
        else {
            return Ok(None);
        };
        let (key, point) = match (is_of(a, build), is_of(b, build)) {
            (true, false) => (a, b),
            (false, true) => (b, a),
            _ => return Ok(None),
        };
        if !is_of(point, probe) {
            return Ok(None);
        }
        let key_type = key.get_type(build)?;
        let (is_exact, is_of_greater) = (form == Form::Distance, form == Form::OfGreater);
        let is_absolute = matches!(form, Form::Abs | Form::Distance);
        let has_distance = match &key_type {
            DataType::Timestamp(..) | DataType::Date32 => true,
            // Otherwise the distance of two zeros is one of either sign.
            number if number.is_floating() => is_absolute,
            number if is_exact => number.is_integer(),
            // The greater one of two that wrap around is no distance.
            number if number.is_unsigned_integer() => is_absolute || is_of_greater,
            // The least integer has no opposite.
            number => number.is_signed_integer() && (is_absolute || !is_negated),
        };
        if !has_distance || key_type != point.get_type(probe)? {
            return Ok(None);
        }
        Ok(Some(Self {
            key: key.clone(),
            point: point.clone(),
            by: by.clone(),
            is_exact: is_exact && !key_type.is_floating(),
            is_of_greater,
        }))
    }

    /// The same distance as one of times, if it is of the seconds that two of them have. It grows with theirs: a later
    /// time never has fewer seconds, and of two differences of these the greater one is never rounded to less.
    pub fn of_times(&self, probe: &DFSchema, build: &DFSchema) -> Result<Option<Self>> {
        let Some((key, point)) = epoch_of(&self.key).zip(epoch_of(&self.point)) else {
            return Ok(None);
        };
        let key_type = key.get_type(build)?;
        let is_time = matches!(key_type, DataType::Timestamp(..) | DataType::Date32);
        let found = (is_time && key_type == point.get_type(probe)?).then(|| Self {
            key: key.clone(),
            point: point.clone(),
            ..self.clone()
        });
        Ok(found)
    }

    /// Whether the distance of a key grows from the point on; it may be NULL for a key that is. From a point that is
    /// NULL it does if all rows may be returned in any order.
    pub fn grows(&self, is_any_order: bool, build: &DFSchema) -> Result<Expr> {
        let (key, point) = (&self.key, &self.point);
        let minus = |a: &Expr, b: &Expr| binary_expr(a.clone(), Operator::Minus, b.clone());
        let key_type = key.get_type(build)?;
        let zero = || ScalarValue::new_zero(&key_type).map(lit);
        let grows = if self.is_exact {
            None
        } else if key_type.is_signed_integer() {
            // A difference that wraps around has the wrong sign.
            let is_below = minus(key, point).lt_eq(zero()?);
            let is_above = minus(point, key).gt_eq(zero()?);
            let (key, point) = (key.clone(), point.clone());
            let grows = is_below.eq(key.clone().lt_eq(point.clone()));
            Some(grows.and(is_above.eq(point.gt_eq(key))))
        } else if key_type.is_unsigned_integer() && !self.is_of_greater {
            // It wraps around on one side of the point, so that all rows are compared.
            Some(lit(false))
        } else if key_type.is_floating() {
            Some(minus(point, point).eq(zero()?))
        } else {
            None
        };
        Ok(match (grows, is_any_order) {
            (None, true) => lit(true),
            (None, false) => point.clone().is_not_null(),
            (Some(grows), true) => point.clone().is_null().or(grows),
            (Some(grows), false) => point.clone().is_not_null().and(grows),
        })
    }
}

/// A difference, or what grows with it.
struct Difference<'a> {
    of: (&'a Expr, &'a Expr),
    /// Whether it is seconds, as floats.
    is_seconds: bool,
    form: Form,
}

/// How a difference is made one without a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// By the greater one of it and its opposite.
    Greatest,
    /// By a CASE: it is of the greater operand and the lesser one.
    OfGreater,
    /// By `abs`: never below zero, also where both operands are zeros.
    Abs,
    /// By `rmq_distance`, the same, which never wraps around.
    Distance,
}

/// The difference whose absolute value, or what grows with it, an expression is.
fn absolute_difference(expr: &Expr) -> Option<Difference<'_>> {
    match expr {
        Expr::Alias(alias) => absolute_difference(&alias.expr),
        Expr::Cast(cast) if *cast.field.data_type() == DataType::Float64 => {
            absolute_difference(&cast.expr)
        }
        Expr::ScalarFunction(ScalarFunction { func, args }) => match args.as_slice() {
            [of] if func.inner().is::<AbsUdf>() => Some(Difference {
                form: Form::Abs,
                ..Difference::from_expr(of)?
            }),
            [a, b] if func.inner().is::<DistanceUdf>() => Some(Difference {
                of: (a, b),
                is_seconds: false,
                form: Form::Distance,
            }),
            [a, b] if *func == core::greatest() => Difference::from_expr(a)?.or_opposite(b),
            _ => None,
        },
        Expr::Case(Case {
            expr: None,
            when_then_expr,
            else_expr: Some(otherwise),
        }) => {
            let [(when, then)] = when_then_expr.as_slice() else {
                return None;
            };
            let Expr::BinaryExpr(BinaryExpr { left, op, right }) = when.as_ref() else {
                return None;
            };
            let (greater, less) = match op {
                Operator::Gt | Operator::GtEq => (left, right),
                Operator::Lt | Operator::LtEq => (right, left),
                _ => return None,
            };
            let then = Difference::from_expr(then)?.or_opposite(otherwise)?;
            let then = Difference {
                form: Form::OfGreater,
                ..then
            };
            (then.of == (greater.as_ref(), less.as_ref())).then_some(then)
        }
        _ => None,
    }
}

impl<'a> Difference<'a> {
    fn from_expr(expr: &'a Expr) -> Option<Self> {
        match expr {
            Expr::Alias(alias) => Self::from_expr(&alias.expr),
            Expr::Cast(cast) if *cast.field.data_type() == DataType::Float64 => {
                Self::from_expr(&cast.expr)
            }
            Expr::ScalarFunction(ScalarFunction { func, args })
                if func.inner().is::<SecondsUdf>() =>
            {
                Some(Self {
                    is_seconds: true,
                    ..Self::from_expr(args.first()?)?
                })
            }
            Expr::BinaryExpr(BinaryExpr {
                left,
                op: Operator::Minus,
                right,
            }) => Some(Self {
                of: (left, right),
                is_seconds: false,
                form: Form::Greatest,
            }),
            _ => None,
        }
    }

    /// The same, if the other expression is it the other way round.
    fn or_opposite(self, other: &'a Expr) -> Option<Self> {
        let opposite = Self::from_expr(other)?;
        let is_opposite = self.of.0 == opposite.of.1 && self.of.1 == opposite.of.0;
        (is_opposite && self.is_seconds == opposite.is_seconds).then_some(self)
    }
}

/// What an expression has the seconds of, if it is `extract(epoch FROM …)`.
fn epoch_of(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::Alias(alias) => epoch_of(&alias.expr),
        Expr::ScalarFunction(ScalarFunction { func, args }) if *func == datetime::date_part() => {
            let [Expr::Literal(part, _), of] = args.as_slice() else {
                return None;
            };
            let part = part.try_as_str().flatten()?;
            part.eq_ignore_ascii_case("epoch").then_some(of)
        }
        _ => None,
    }
}
