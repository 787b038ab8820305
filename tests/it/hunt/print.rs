//! Queries as SQL.

use std::fmt::{self, Display};

use super::query::{
    Aggregate, Alias, Asof, AsofKind, Comparison, Expr, Frame, From, Function, JoinType, Key,
    Nearest, Order, Query, RangeFunction, RangeJoin,
};
use super::value::{DAY, Kind, SECOND, Value};

/// The name of an alias, which no column has.
pub fn alias(alias: Alias) -> String {
    format!("q{alias}")
}

fn join<T: Display>(all: &[T], between: &str) -> String {
    let all: Vec<_> = all.iter().map(T::to_string).collect();
    all.join(between)
}

fn type_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Int => "BIGINT",
        Kind::Float => "DOUBLE",
        Kind::Text => "VARCHAR",
        Kind::Bool => "BOOLEAN",
        Kind::Time => "TIMESTAMP",
        Kind::Date => "DATE",
    }
}

/// A value as SQL.
pub fn literal(value: &Value, kind: Kind) -> String {
    match value {
        Value::Null => {
            format!("CAST(NULL AS {})", type_name(kind))
        }
        Value::Time(v) if kind == Kind::Date => format!("DATE '{}'", &timestamp(*v)[..10]),
        Value::Time(v) => format!("TIMESTAMP '{}'", timestamp(*v)),
        Value::Text(v) => format!("'{v}'"),
        Value::Float(v) => format!("{v:?}"),
        other => other.to_string(),
    }
}

/// A time about January 1970 as text.
fn timestamp(nanos: i64) -> String {
    let (day, of_day) = (nanos.div_euclid(DAY), nanos.rem_euclid(DAY));
    let (second, nanos) = (of_day / SECOND, of_day % SECOND);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    let (year, month, day) = match day {
        ..0 => (1969, 12, 32 + day),
        0..31 => (1970, 1, 1 + day),
        _ => (1970, 2, day - 30),
    };
    format!("{year}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{nanos:09}")
}

impl Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Equal => "=",
            Self::NotEqual => "<>",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        })
    }
}

impl Display for RangeFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Min => "min",
            Self::Max => "max",
            Self::ArgMin => "argmin",
            Self::ArgMax => "argmax",
            Self::Crossing { first, at_most } => match (first, at_most) {
                (true, true) => "first_at_most",
                (true, false) => "first_at_least",
                (false, true) => "last_at_most",
                (false, false) => "last_at_least",
            },
        })
    }
}

impl Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let argument = &self.argument;
        match self.function {
            Function::CountRows => write!(f, "count(*)")?,
            Function::Count => write!(f, "count({argument})")?,
            Function::CountDistinct => write!(f, "count(DISTINCT {argument})")?,
            Function::Sum => write!(f, "sum({argument})")?,
            Function::Min => write!(f, "min({argument})")?,
            Function::Max => write!(f, "max({argument})")?,
            Function::Avg => write!(f, "avg({argument})")?,
            Function::First | Function::Last => {
                let name = if self.function == Function::First {
                    "first"
                } else {
                    "last"
                };
                let (order, descends) = self.order.as_ref().expect("of first and last values");
                let descends = if *descends { " DESC" } else { "" };
                write!(f, "{name}_value({argument} ORDER BY {order}{descends})")?;
            }
        }
        match &self.filter {
            Some(filter) => write!(f, " FILTER (WHERE {filter})"),
            None => Ok(()),
        }
    }
}

impl Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = |negated: &bool| if *negated { "NOT " } else { "" };
        match self {
            Self::Column { alias: a, name, .. } => write!(f, "{}.{name}", alias(*a)),
            Self::Literal(value, kind) => f.write_str(&literal(value, *kind)),
            Self::Shift(a, by, kind) => {
                let sign = if *by < 0 { '-' } else { '+' };
                let by = by.unsigned_abs();
                match kind {
                    Kind::Time => write!(f, "({a} {sign} INTERVAL '{by} seconds')"),
                    Kind::Date => write!(f, "({a} {sign} INTERVAL '{by} days')"),
                    Kind::Float => write!(f, "({a} {sign} {by}.0)"),
                    _ => write!(f, "({a} {sign} {by})"),
                }
            }
            Self::Sum(a, b) => write!(f, "({a} + {b})"),
            Self::Moved(a, by) => {
                let sign = if *by < 0 { '-' } else { '+' };
                write!(f, "(CAST({a} AS BIGINT) {sign} {})", by.unsigned_abs())
            }
            Self::Difference(a, b) => write!(f, "({a} - {b})"),
            Self::Double(a) => write!(f, "(2 * {a})"),
            Self::Reread(a, kind) => {
                // A text may have more than a date.
                let kind = if *kind == Kind::Date {
                    Kind::Time
                } else {
                    *kind
                };
                write!(f, "CAST(CAST({a} AS VARCHAR) AS {})", type_name(kind))
            }
            Self::Call(call, all) => f.write_str(&call.sql(all)),
            Self::Compare(comparison, a, b) => write!(f, "({a} {comparison} {b})"),
            Self::Between(a, b, c) => write!(f, "({a} BETWEEN {b} AND {c})"),
            Self::Distinct(a, b, distinct) => {
                write!(f, "({a} IS {}DISTINCT FROM {b})", not(&!distinct))
            }
            Self::And(all) if all.is_empty() => f.write_str("true"),
            Self::And(all) => write!(f, "({})", join(all, " AND ")),
            Self::Or(all) => write!(f, "({})", join(all, " OR ")),
            Self::Not(a) => write!(f, "(NOT {a})"),
            Self::IsNull(a, is) => write!(f, "({a} IS {}NULL)", not(&!is)),
            Self::Is(a, truth) => {
                let truth = match truth {
                    Some(true) => "TRUE",
                    Some(false) => "FALSE",
                    None => "UNKNOWN",
                };
                write!(f, "({a} IS {truth})")
            }
            Self::Coalesce(a, b) => write!(f, "coalesce({a}, {b})"),
            Self::Case(a, b, None) => write!(f, "CASE WHEN {a} THEN {b} END"),
            Self::Case(a, b, Some(c)) => write!(f, "CASE WHEN {a} THEN {b} ELSE {c} END"),
            Self::InList(a, values, negated) => {
                let values: Vec<_> = values
                    .iter()
                    .map(|v| {
                        if v.is_null() {
                            "NULL".into()
                        } else {
                            literal(v, Kind::Time)
                        }
                    })
                    .collect();
                write!(f, "({a} {}IN ({}))", not(negated), values.join(", "))
            }
            Self::Aggregate(aggregate) => write!(f, "{aggregate}"),
            Self::Scalar(query) => write!(f, "({query})"),
            Self::Exists(query, negated) => write!(f, "({}EXISTS ({query}))", not(negated)),
            Self::In(a, query, negated) => write!(f, "({a} {}IN ({query}))", not(negated)),
            Self::Range(call) => {
                write!(
                    f,
                    "range_{}('t{}.{}', {}, {}",
                    call.function, call.table, call.name, call.from, call.to
                )?;
                if let Some(x) = &call.threshold {
                    write!(f, ", {x}")?;
                }
                f.write_str(")")
            }
        }
    }
}

impl Display for JoinType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inner => "JOIN",
            Self::Left => "LEFT JOIN",
            Self::Right => "RIGHT JOIN",
            Self::Full => "FULL JOIN",
        })
    }
}

impl Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(table, a) => write!(f, "t{table} AS {}", alias(*a)),
            Self::Derived(query, a) => write!(f, "({query}) AS {}", alias(*a)),
            Self::Named(named, a) => write!(f, "{} AS {}", named.name, alias(*a)),
            Self::Join(kind, left, right, on) => {
                let on = if on.is_empty() {
                    "true".into()
                } else {
                    join(on, " AND ")
                };
                write!(f, "{left} {kind} {right} ON {on}")
            }
            Self::Lateral(left, query, a, true) => {
                write!(
                    f,
                    "{left} LEFT JOIN LATERAL ({query}) AS {} ON true",
                    alias(*a)
                )
            }
            Self::Lateral(left, query, a, false) => {
                write!(f, "{left} CROSS JOIN LATERAL ({query}) AS {}", alias(*a))
            }
            Self::Asof(asof) => write!(f, "{asof}"),
            Self::Nearest(nearest) => write!(f, "{nearest}"),
            Self::RangeJoin(join_) => {
                let RangeJoin {
                    left,
                    right,
                    keys,
                    window,
                    aggregates,
                    alias: a,
                } = &**join_;
                let keys: Vec<_> = keys.iter().map(|(a, b)| format!("{a} = {b}")).collect();
                let aggregates: Vec<_> = aggregates
                    .iter()
                    .enumerate()
                    .map(|(i, a)| format!("{a} AS r{i}"))
                    .collect();
                write!(
                    f,
                    "range_join($${left}$$, $${right}$$, '{}', $${}$$, $${}$$) AS {}",
                    keys.join(", "),
                    join(window, " AND "),
                    aggregates.join(", "),
                    alias(*a)
                )
            }
            Self::Frame(frame) => {
                let Frame {
                    source,
                    function,
                    value,
                    from,
                    to,
                    threshold,
                    partition,
                    order,
                    descends,
                    alias: a,
                } = &**frame;
                let descends = if *descends { " DESC" } else { "" };
                let threshold = threshold
                    .as_ref()
                    .map_or(String::new(), |x| format!(", {x}"));
                write!(
                    f,
                    "(SELECT *, frame_{function}({value}, {from}, {to}{threshold}) OVER (PARTITION BY {partition} \
                     ORDER BY {order}{descends}) AS w FROM {source}) AS {}",
                    alias(*a)
                )
            }
        }
    }
}

impl Display for AsofKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Matched | Self::Inner => "ASOF JOIN",
            Self::Left => "ASOF LEFT JOIN",
            Self::Right => "ASOF RIGHT JOIN",
            Self::Full => "ASOF FULL JOIN",
            Self::Semi => "ASOF SEMI JOIN",
            Self::Anti => "ASOF ANTI JOIN",
        })
    }
}

impl Display for Asof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            left,
            right,
            at,
            comparison,
            key,
            on,
        } = self;
        if *kind == AsofKind::Matched {
            write!(
                f,
                "({left} {kind} {right} MATCH_CONDITION ({at} {comparison} {key})"
            )?;
            if !on.is_empty() {
                write!(f, " ON {}", join(on, " AND "))?;
            }
            return f.write_str(")");
        }
        write!(f, "{left} {kind} {right} ON {at} {comparison} {key}")?;
        on.iter()
            .try_for_each(|condition| write!(f, " AND {condition}"))
    }
}

impl Display for Nearest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.keeps { "LEFT JOIN" } else { "JOIN" };
        let by = if self.is_distance {
            "DISTANCE"
        } else {
            "SIMILARITY"
        };
        let Self {
            left,
            right,
            count,
            by: expr,
            ..
        } = self;
        write!(f, "{left} {kind} {right} NEAREST {count} BY {by} {expr}")
    }
}

impl Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |i: usize| {
            self.names
                .get(i)
                .map_or_else(|| format!("c{i}"), ToString::to_string)
        };
        let items: Vec<_> = self
            .items
            .iter()
            .enumerate()
            .map(|(i, item)| format!("{item} AS {}", name(i)))
            .collect();
        let distinct = if self.distinct { "DISTINCT " } else { "" };
        write!(
            f,
            "SELECT {distinct}{} FROM {}",
            items.join(", "),
            self.from
        )?;
        if !self.filter.is_empty() {
            write!(f, " WHERE {}", join(&self.filter, " AND "))?;
        }
        if !self.group.is_empty() {
            write!(f, " GROUP BY {}", join(&self.group, ", "))?;
        }
        if let Some(having) = &self.having {
            write!(f, " HAVING {having}")?;
        }
        if !self.order.is_empty() {
            write!(f, " ORDER BY {}", join(&self.order, ", "))?;
        }
        if let Some(limit) = self.limit {
            write!(f, " LIMIT {limit}")?;
        }
        if self.offset > 0 {
            write!(f, " OFFSET {}", self.offset)?;
        }
        Ok(())
    }
}

impl Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Key::Item(item) => write!(f, "{}", item + 1)?,
            Key::Expr(expr) => write!(f, "{expr}")?,
        }
        if self.descends {
            f.write_str(" DESC")?;
        }
        // DataFusion's default is that NULLs are the greatest values.
        match (self.nulls_first, self.descends) {
            (true, false) => f.write_str(" NULLS FIRST"),
            (false, true) => f.write_str(" NULLS LAST"),
            _ => Ok(()),
        }
    }
}
