//! Functions of values: how they are written, and what they return.

use super::query::Expr;
use super::value::{DAY, Kind, SECOND, Value};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Greatest,
    Least,
    Nullif,
    /// The begin of the two seconds, or days, that a time is in.
    Bin(Kind),
    /// The time that is written as its text.
    ToTimestamp,
    AsTimestamp,
    /// The seconds since 1970.
    Epoch,
    Abs,
    /// The number of characters.
    Length,
    /// Whether a text begins with another.
    HasPrefix,
    /// A number of seconds, or days, as an interval.
    Interval(Kind),
    /// A number as four times as much, and one more.
    Spread,
}

impl Call {
    pub fn of(self, arguments: Vec<Expr>) -> Expr {
        Expr::Call(self, arguments)
    }

    /// The call as SQL.
    pub fn sql(self, arguments: &[Expr]) -> String {
        let all: Vec<String> = arguments.iter().map(Expr::to_string).collect();
        let unit = |kind| {
            if kind == Kind::Date {
                "days"
            } else {
                "seconds"
            }
        };
        match (self, all.as_slice()) {
            (Self::Greatest, all) => format!("greatest({})", all.join(", ")),
            (Self::Least, all) => format!("least({})", all.join(", ")),
            (Self::Nullif, all) => format!("nullif({})", all.join(", ")),
            (Self::Bin(kind), [a]) => format!("date_bin(INTERVAL '2 {}', {a})", unit(kind)),
            (Self::ToTimestamp, [a]) => format!("to_timestamp(CAST({a} AS VARCHAR))"),
            (Self::AsTimestamp, [a]) => format!("CAST({a} AS TIMESTAMP)"),
            (Self::Epoch, [a]) => format!("date_part('epoch', {a})"),
            (Self::Abs, [a]) => format!("abs({a})"),
            (Self::Length, [a]) => format!("length({a})"),
            (Self::HasPrefix, [a, b]) => format!("({a} LIKE {b} || '%')"),
            (Self::Interval(kind), [a]) => match &arguments[0] {
                Expr::Literal(Value::Int(n), _) => format!("INTERVAL '{n} {}'", unit(kind)),
                _ => format!("({a} * INTERVAL '1 {}')", unit(kind)),
            },
            (Self::Spread, [a]) => format!("(4 * {a} + 1)"),
            other => panic!("{other:?} has other arguments"),
        }
    }

    /// What it returns for these values.
    pub fn value(self, values: &[Value]) -> Value {
        let present = || values.iter().filter(|value| !value.is_null()).cloned();
        match (self, values) {
            (Self::Greatest, _) => present().reduce(|a, b| if b.order(&a).is_gt() { b } else { a }),
            (Self::Least, _) => present().reduce(|a, b| if b.order(&a).is_lt() { b } else { a }),
            (Self::Nullif, [a, b]) => {
                (!a.compare(b).is_some_and(|order| order.is_eq())).then(|| a.clone())
            }
            (Self::Bin(kind), [Value::Time(time)]) => {
                let width = 2 * if kind == Kind::Date { DAY } else { SECOND };
                Some(Value::Time(time - time.rem_euclid(width)))
            }
            (Self::ToTimestamp | Self::AsTimestamp, [time]) => Some(time.clone()),
            (Self::Epoch, [Value::Time(time)]) => Some(Value::Float(*time as f64 / SECOND as f64)),
            (Self::Abs, [Value::Int(number)]) => Some(Value::Int(number.wrapping_abs())),
            (Self::Abs, [Value::Float(number)]) => Some(Value::Float(number.abs())),
            (Self::Length, [Value::Text(text)]) => Some(Value::Int(text.chars().count() as i64)),
            (Self::HasPrefix, [Value::Text(text), Value::Text(prefix)]) => {
                Some(Value::Bool(text.starts_with(&**prefix)))
            }
            (Self::Interval(kind), [Value::Int(number)]) => {
                let unit = if kind == Kind::Date { DAY } else { SECOND };
                Some(Value::Int(number * unit))
            }
            (Self::Spread, [Value::Int(number)]) => Some(Value::Int(4 * number + 1)),
            _ => None,
        }
        .unwrap_or(Value::Null)
    }

    /// Whether the first argument is of the kind of the call.
    pub fn keeps_kind(self) -> bool {
        use Call as C;
        matches!(
            self,
            C::Greatest
                | C::Least
                | C::Nullif
                | C::Bin(_)
                | C::ToTimestamp
                | C::AsTimestamp
                | C::Abs
                | C::Spread
        )
    }
}
