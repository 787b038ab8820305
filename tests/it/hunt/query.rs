//! The queries that are drawn: a small syntax tree.

use std::sync::Arc;

use super::calls::Call;
use super::value::{Kind, Value};

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
    /// Adds this number of units: numbers, seconds or days.
    Shift(Box<Expr>, i64, Kind),
    Sum(Box<Expr>, Box<Expr>),
    /// Adds a number as a BIGINT, which may wrap around.
    Moved(Box<Expr>, i64),
    /// A difference of numbers that are BIGINT, which may wrap around, or of times.
    Difference(Box<Expr>, Box<Expr>),
    Double(Box<Expr>),
    /// The value read from its text, which DataFusion takes for an expression that may fail.
    Reread(Box<Expr>, Kind),
    Call(Call, Vec<Expr>),
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
    Nearest(Box<Nearest>),
    RangeJoin(Box<RangeJoin>),
    Frame(Box<Frame>),
}

#[derive(Debug, Clone)]
pub struct Named {
    pub name: String,
    pub query: Query,
    pub is_view: bool,
}

/// Which rows an ASOF JOIN has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsofKind {
    /// `left ASOF JOIN right MATCH_CONDITION (…)`: all of the left side.
    Matched,
    /// The others are written as DuckDB does, with the comparison in ON.
    Inner,
    Left,
    Right,
    Full,
    Semi,
    Anti,
}

/// `left ASOF JOIN right MATCH_CONDITION (at comparison key) ON on`.
#[derive(Debug, Clone)]
pub struct Asof {
    pub kind: AsofKind,
    pub left: From,
    pub right: From,
    pub at: Expr,
    pub comparison: Comparison,
    pub key: Expr,
    pub on: Vec<Expr>,
}

/// `left JOIN right NEAREST count BY DISTANCE by`, or else `SIMILARITY`.
#[derive(Debug, Clone)]
pub struct Nearest {
    pub left: From,
    pub right: From,
    pub keeps: bool,
    pub count: usize,
    pub is_distance: bool,
    pub by: Expr,
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
            Self::Nearest(nearest) => {
                nearest.left.visit(f);
                nearest.right.visit(f);
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
            Self::And(all) | Self::Or(all) | Self::Call(_, all) => {
                all.iter().any(Self::has_aggregate)
            }
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
            Self::And(all) | Self::Or(all) | Self::Call(_, all) => visit_all(all, f),
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
