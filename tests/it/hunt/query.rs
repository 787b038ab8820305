//! The queries that are drawn: a small syntax tree that prints itself as SQL.

use std::fmt::{self, Display};
use std::sync::Arc;

use super::value::{DAY, Kind, SECOND, Value};

/// The number of a table's alias. Those in scope at one place differ.
pub type Alias = u8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    CountRows,
    Count,
    CountDistinct,
    Sum,
    Min,
    Max,
    Avg,
    First,
    Last,
}

#[derive(Debug, Clone)]
pub struct Aggregate {
    pub function: Function,
    pub argument: Expr,
    pub filter: Option<Expr>,
    /// Of FIRST_VALUE and LAST_VALUE: an expression without ties, and whether it descends.
    pub order: Option<(Expr, bool)>,
}

/// What a function by position looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeFunction {
    Min,
    Max,
    ArgMin,
    ArgMax,
    /// The first, or else the last, row that is at most, or else at least, the threshold.
    Crossing {
        first: bool,
        at_most: bool,
    },
}

/// A call such as `range_min('t0.v', l, r)`.
#[derive(Debug, Clone)]
pub struct RangeCall {
    pub function: RangeFunction,
    pub table: usize,
    pub column: usize,
    pub name: Arc<str>,
    pub from: Expr,
    pub to: Expr,
    pub threshold: Option<Expr>,
}

#[derive(Debug, Clone)]
pub enum Expr {
    Column {
        alias: Alias,
        index: usize,
        name: Arc<str>,
    },
    Literal(Value, Kind),
    /// Adds so many units: numbers, seconds or days.
    Shift(Box<Expr>, i64, Kind),
    Sum(Box<Expr>, Box<Expr>),
    /// Adds a number as a BIGINT, which may wrap around.
    Moved(Box<Expr>, i64),
    /// A difference of numbers that are BIGINT, which may wrap around.
    Difference(Box<Expr>, Box<Expr>),
    Double(Box<Expr>),
    /// The value read from its text, which DataFusion takes for an expression that may fail.
    Reread(Box<Expr>, Kind),
    Compare(Comparison, Box<Expr>, Box<Expr>),
    Between(Box<Expr>, Box<Expr>, Box<Expr>),
    /// IS DISTINCT FROM, or IS NOT DISTINCT FROM.
    Distinct(Box<Expr>, Box<Expr>, bool),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    /// IS NULL, or else IS NOT NULL.
    IsNull(Box<Expr>, bool),
    /// IS TRUE, IS FALSE, IS UNKNOWN.
    Is(Box<Expr>, Option<bool>),
    Coalesce(Box<Expr>, Box<Expr>),
    Case(Box<Expr>, Box<Expr>, Option<Box<Expr>>),
    InList(Box<Expr>, Vec<Value>, bool),
    Aggregate(Box<Aggregate>),
    Scalar(Box<Query>),
    /// EXISTS, or NOT EXISTS.
    Exists(Box<Query>, bool),
    /// IN, or NOT IN.
    In(Box<Expr>, Box<Query>, bool),
    Range(Box<RangeCall>),
}

#[derive(Debug, Clone)]
pub enum Key {
    /// An item of the SELECT list, by its number.
    Item(usize),
    Expr(Expr),
}

#[derive(Debug, Clone)]
pub struct Order {
    pub key: Key,
    pub descends: bool,
    pub nulls_first: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinType {
    Inner,
    Left,
    Right,
    Full,
}

#[derive(Debug, Clone)]
pub enum From {
    Table(usize, Alias),
    Derived(Box<Query>, Alias),
    /// A view, or a query of a WITH.
    Named(Arc<Named>, Alias),
    Join(JoinType, Box<From>, Box<From>, Vec<Expr>),
    /// A lateral join: with NULLs where there is no row, or else without the row.
    Lateral(Box<From>, Box<Query>, Alias, bool),
    Asof(Box<Asof>),
    RangeJoin(Box<RangeJoin>),
    Frame(Box<Frame>),
}

#[derive(Debug, Clone)]
pub struct Named {
    pub name: String,
    pub query: Query,
    pub is_view: bool,
}

/// `left ASOF JOIN right MATCH_CONDITION (at comparison key) ON on`.
#[derive(Debug, Clone)]
pub struct Asof {
    pub left: From,
    pub right: From,
    pub at: Expr,
    pub comparison: Comparison,
    pub key: Expr,
    pub on: Vec<Expr>,
}

/// `range_join(left, right, keys, window, aggregates)`.
#[derive(Debug, Clone)]
pub struct RangeJoin {
    pub left: From,
    pub right: From,
    pub keys: Vec<(Expr, Expr)>,
    pub window: Vec<Expr>,
    pub aggregates: Vec<Expr>,
    pub alias: Alias,
}

/// `SELECT *, frame_min(value, from, to) OVER (PARTITION BY partition ORDER BY order) FROM source`.
#[derive(Debug, Clone)]
pub struct Frame {
    pub source: From,
    pub function: RangeFunction,
    pub value: Expr,
    pub from: Expr,
    pub to: Expr,
    pub threshold: Option<Expr>,
    pub partition: Expr,
    pub order: Expr,
    pub descends: bool,
    pub alias: Alias,
}

#[derive(Debug, Clone)]
pub struct Query {
    pub distinct: bool,
    /// The expressions of SELECT. Their names are `c0`, `c1` and so on, unless there are others.
    pub items: Vec<Expr>,
    pub names: Vec<Arc<str>>,
    pub from: From,
    pub filter: Vec<Expr>,
    pub group: Vec<Expr>,
    pub having: Option<Expr>,
    pub order: Vec<Order>,
    pub limit: Option<usize>,
    pub offset: usize,
}

impl Query {
    pub fn new(from: From, items: Vec<Expr>) -> Self {
        Self {
            distinct: false,
            items,
            names: vec![],
            from,
            filter: vec![],
            group: vec![],
            having: None,
            order: vec![],
            limit: None,
            offset: 0,
        }
    }

    /// Whether rows become groups.
    pub fn is_grouped(&self) -> bool {
        !self.group.is_empty() || self.items.iter().any(Expr::has_aggregate)
    }

    /// The statement, with the WITH of the queries it names.
    pub fn statement(&self) -> String {
        let mut named = vec![];
        self.clone().visit(&mut |node| {
            if let Node::From(From::Named(query, _)) = node
                && !query.is_view
                && !named.iter().any(|n: &Arc<Named>| n.name == query.name)
            {
                named.push(Arc::clone(query));
            }
        });
        if named.is_empty() {
            return self.to_string();
        }
        let named: Vec<_> = named
            .iter()
            .map(|n| format!("{} AS ({})", n.name, n.query))
            .collect();
        format!("WITH {} {self}", named.join(", "))
    }

    /// The views that it names, itself or in its WITH, and before each one those that this names.
    pub fn views(&self) -> Vec<Arc<Named>> {
        let mut views: Vec<Arc<Named>> = vec![];
        self.clone().visit(&mut |node| {
            if let Node::From(From::Named(named, _)) = node {
                let itself = named.is_view.then(|| Arc::clone(named));
                for view in named.query.views().into_iter().chain(itself) {
                    if !views.iter().any(|known| known.name == view.name) {
                        views.push(view);
                    }
                }
            }
        });
        views
    }
}

/// A part of a query.
pub enum Node<'a> {
    Expr(&'a mut Expr),
    Query(&'a mut Query),
    From(&'a mut From),
}

fn visit_all(exprs: &mut [Expr], f: &mut dyn FnMut(Node<'_>)) {
    for expr in exprs {
        expr.visit(f);
    }
}

impl Query {
    /// Calls `f` with all parts, from the outside to the inside.
    pub fn visit(&mut self, f: &mut dyn FnMut(Node<'_>)) {
        f(Node::Query(self));
        self.from.visit(f);
        visit_all(&mut self.items, f);
        visit_all(&mut self.filter, f);
        visit_all(&mut self.group, f);
        if let Some(having) = &mut self.having {
            having.visit(f);
        }
        for order in &mut self.order {
            if let Key::Expr(key) = &mut order.key {
                key.visit(f);
            }
        }
    }
}

impl From {
    fn visit(&mut self, f: &mut dyn FnMut(Node<'_>)) {
        f(Node::From(self));
        match self {
            Self::Table(..) | Self::Named(..) => {}
            Self::Derived(query, _) => query.visit(f),
            Self::Join(_, left, right, on) => {
                left.visit(f);
                right.visit(f);
                visit_all(on, f);
            }
            Self::Lateral(left, query, ..) => {
                left.visit(f);
                query.visit(f);
            }
            Self::Asof(asof) => {
                asof.left.visit(f);
                asof.right.visit(f);
                visit_all(&mut asof.on, f);
            }
            Self::RangeJoin(join) => {
                join.left.visit(f);
                join.right.visit(f);
                visit_all(&mut join.window, f);
            }
            Self::Frame(frame) => frame.source.visit(f),
        }
    }
}

impl Expr {
    pub fn has_aggregate(&self) -> bool {
        match self {
            Self::Aggregate(_) => true,
            Self::Column { .. } | Self::Literal(..) | Self::Scalar(_) | Self::Exists(..) => false,
            Self::Shift(a, ..)
            | Self::Double(a)
            | Self::Moved(a, _)
            | Self::Reread(a, _)
            | Self::Not(a)
            | Self::IsNull(a, _)
            | Self::Is(a, _)
            | Self::InList(a, ..)
            | Self::In(a, ..) => a.has_aggregate(),
            Self::Sum(a, b)
            | Self::Difference(a, b)
            | Self::Compare(_, a, b)
            | Self::Distinct(a, b, _)
            | Self::Coalesce(a, b) => a.has_aggregate() || b.has_aggregate(),
            Self::Between(a, b, c) => a.has_aggregate() || b.has_aggregate() || c.has_aggregate(),
            Self::And(all) | Self::Or(all) => all.iter().any(Self::has_aggregate),
            Self::Case(a, b, c) => {
                a.has_aggregate()
                    || b.has_aggregate()
                    || c.as_ref().is_some_and(|c| c.has_aggregate())
            }
            Self::Range(call) => call.from.has_aggregate() || call.to.has_aggregate(),
        }
    }

    pub fn visit(&mut self, f: &mut dyn FnMut(Node<'_>)) {
        f(Node::Expr(self));
        match self {
            Self::Column { .. } | Self::Literal(..) => {}
            Self::Shift(a, ..)
            | Self::Double(a)
            | Self::Moved(a, _)
            | Self::Reread(a, _)
            | Self::Not(a)
            | Self::IsNull(a, _)
            | Self::Is(a, _)
            | Self::InList(a, ..) => a.visit(f),
            Self::Sum(a, b)
            | Self::Difference(a, b)
            | Self::Compare(_, a, b)
            | Self::Distinct(a, b, _)
            | Self::Coalesce(a, b) => {
                a.visit(f);
                b.visit(f);
            }
            Self::Between(a, b, c) => {
                a.visit(f);
                b.visit(f);
                c.visit(f);
            }
            Self::And(all) | Self::Or(all) => visit_all(all, f),
            Self::Case(a, b, c) => {
                a.visit(f);
                b.visit(f);
                if let Some(c) = c {
                    c.visit(f);
                }
            }
            Self::Aggregate(aggregate) => {
                aggregate.argument.visit(f);
                if let Some(filter) = &mut aggregate.filter {
                    filter.visit(f);
                }
            }
            Self::Scalar(query) | Self::Exists(query, _) => query.visit(f),
            Self::In(a, query, _) => {
                a.visit(f);
                query.visit(f);
            }
            Self::Range(call) => {
                call.from.visit(f);
                call.to.visit(f);
                if let Some(x) = &mut call.threshold {
                    x.visit(f);
                }
            }
        }
    }
}

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
            Self::Asof(asof) => {
                let Asof {
                    left,
                    right,
                    at,
                    comparison,
                    key,
                    on,
                } = &**asof;
                write!(
                    f,
                    "({left} ASOF JOIN {right} MATCH_CONDITION ({at} {comparison} {key})"
                )?;
                if !on.is_empty() {
                    write!(f, " ON {}", join(on, " AND "))?;
                }
                f.write_str(")")
            }
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
