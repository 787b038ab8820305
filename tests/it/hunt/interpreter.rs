//! Computes what a query means, in the plainest way: nested loops over rows, three-valued logic, no plan.

use std::cell::Cell;
use std::cmp::Ordering;
use std::sync::Arc;

use super::query::{
    Aggregate, Alias, Asof, AsofKind, Comparison, Expr, Frame, From, Function, JoinType, Key,
    Nearest, Order, Query, RangeFunction, RangeJoin,
};
use super::schema::Table;
use super::value::{DAY, Kind, SECOND, Value};

type Row = Arc<[Value]>;

/// A row of FROM: one row of each table.
type Rows = Vec<(Alias, Row)>;

/// The rows that an expression sees, those of the innermost query first.
struct Scope<'a> {
    rows: &'a [(Alias, Row)],
    outer: Option<&'a Scope<'a>>,
}

impl Scope<'_> {
    fn value(&self, alias: Alias, index: usize) -> Option<Value> {
        match self.rows.iter().rev().find(|(a, _)| *a == alias) {
            Some((_, row)) => row.get(index).cloned(),
            None => self.outer?.value(alias, index),
        }
    }
}

/// The tables of FROM with their numbers of columns, and the rows.
struct Relation {
    width: Vec<(Alias, usize)>,
    rows: Vec<Rows>,
}

impl Relation {
    fn of(alias: Alias, width: usize, rows: impl Iterator<Item = Row>) -> Self {
        Self {
            width: vec![(alias, width)],
            rows: rows.map(|row| vec![(alias, row)]).collect(),
        }
    }

    /// A row of NULLs.
    fn nulls(&self) -> Rows {
        let nulls = |width: usize| vec![Value::Null; width].into();
        self.width
            .iter()
            .map(|(a, width)| (*a, nulls(*width)))
            .collect()
    }
}

/// The number of expressions that a query may evaluate: nested subqueries take a power of the number of rows.
const STEPS: u64 = 20_000_000;

/// Evaluates queries over these tables.
pub struct Interpreter<'a> {
    tables: &'a [Table],
    /// Whether a query names what is not in scope, or is a scalar subquery of several rows: simplified queries may.
    is_invalid: Cell<bool>,
    /// The number of expressions evaluated.
    steps: Cell<u64>,
}

impl Interpreter<'_> {
    /// The rows of a query over these tables, or why it has none.
    pub fn run(tables: &[Table], query: &Query) -> Result<Vec<Vec<Value>>, &'static str> {
        let interpreter = Interpreter {
            tables,
            is_invalid: Cell::new(false),
            steps: Cell::new(0),
        };
        let rows = interpreter.query(query, None);
        if interpreter.is_spent() {
            return Err("too many rows for nested loops");
        }
        if interpreter.is_invalid.get() {
            return Err("no valid query");
        }
        Ok(rows)
    }

    /// Whether the query takes too many steps. What remains of it is then passed over.
    fn is_spent(&self) -> bool {
        self.steps.get() > STEPS
    }

    fn query(&self, query: &Query, outer: Option<&Scope<'_>>) -> Vec<Vec<Value>> {
        if self.is_spent() {
            return vec![];
        }
        let Relation { rows, .. } = self.from(&query.from, outer);
        let rows: Vec<Rows> = rows
            .into_iter()
            .filter(|rows| self.all(&query.filter, &Scope { rows, outer }))
            .collect();
        // Each row with the values it is ordered by.
        let mut results: Vec<(Vec<Value>, Vec<Value>)> = vec![];
        let mut add = |scope: &Scope<'_>, group: Option<&[Rows]>| {
            let is_kept = query
                .having
                .as_ref()
                .is_none_or(|h| self.value(h, scope, group).truth() == Some(true));
            if is_kept {
                let items: Vec<_> = query
                    .items
                    .iter()
                    .map(|e| self.value(e, scope, group))
                    .collect();
                let keys = query.order.iter().map(|order| match &order.key {
                    Key::Item(item) => items[*item].clone(),
                    Key::Expr(key) => self.value(key, scope, group),
                });
                let keys = keys.collect();
                results.push((items, keys));
            }
        };
        if query.is_grouped() {
            let mut groups: Vec<(Vec<Value>, Vec<Rows>)> = vec![];
            if query.group.is_empty() {
                groups.push((vec![], vec![]));
            }
            for rows in rows {
                let scope = Scope { rows: &rows, outer };
                let key: Vec<_> = query
                    .group
                    .iter()
                    .map(|e| self.value(e, &scope, None))
                    .collect();
                match groups.iter_mut().find(|(other, _)| is_same(other, &key)) {
                    Some((_, group)) => group.push(rows),
                    None => groups.push((key, vec![rows])),
                }
            }
            for (_, group) in &groups {
                let rows = group.first().map_or(&[][..], |rows| rows);
                add(&Scope { rows, outer }, Some(group));
            }
        } else {
            for rows in &rows {
                add(&Scope { rows, outer }, None);
            }
        }
        if query.distinct {
            let mut kept: Vec<(Vec<Value>, Vec<Value>)> = vec![];
            for result in results {
                if !kept.iter().any(|other| is_same(&other.0, &result.0)) {
                    kept.push(result);
                }
            }
            results = kept;
        }
        if !query.order.is_empty() {
            // Where the order leaves ties, rows come in the order of positions, or in the reverse of it where the first
            // key descends.
            if query.order[0].descends {
                results.reverse();
            }
            results.sort_by(|a, b| by(&query.order, &a.1, &b.1));
        }
        let limit = query.limit.unwrap_or(usize::MAX);
        results
            .into_iter()
            .skip(query.offset)
            .take(limit)
            .map(|(items, _)| items)
            .collect()
    }

    fn all(&self, conditions: &[Expr], scope: &Scope<'_>) -> bool {
        conditions
            .iter()
            .all(|c| self.value(c, scope, None).truth() == Some(true))
    }

    fn derived(&self, query: &Query, alias: Alias, outer: Option<&Scope<'_>>) -> Relation {
        let rows = self.query(query, outer).into_iter().map(Row::from);
        Relation::of(alias, query.items.len(), rows)
    }

    fn from(&self, from: &From, outer: Option<&Scope<'_>>) -> Relation {
        match from {
            From::Table(table, alias) => {
                let table = &self.tables[*table];
                Relation::of(*alias, table.columns.len(), table.rows.iter().cloned())
            }
            From::Derived(query, alias) => self.derived(query, *alias, outer),
            From::Named(named, alias) => self.derived(&named.query, *alias, None),
            From::Join(kind, left, right, on) => self.join(*kind, left, right, on, outer),
            From::Lateral(left, query, alias, keeps) => {
                let left = self.from(left, outer);
                let mut rows = vec![];
                for row in &left.rows {
                    let mut found = self.query(query, Some(&Scope { rows: row, outer }));
                    if found.is_empty() && *keeps {
                        found.push(vec![Value::Null; query.items.len()]);
                    }
                    for found in found {
                        let mut row = row.clone();
                        row.push((*alias, found.into()));
                        rows.push(row);
                    }
                }
                let mut width = left.width;
                width.push((*alias, query.items.len()));
                Relation { width, rows }
            }
            From::Asof(asof) => self.asof(asof, outer),
            From::Nearest(nearest) => self.nearest(nearest, outer),
            From::RangeJoin(join) => self.range_join(join),
            From::Frame(frame) => self.frame(frame),
        }
    }

    fn join(
        &self,
        kind: JoinType,
        left: &From,
        right: &From,
        on: &[Expr],
        outer: Option<&Scope<'_>>,
    ) -> Relation {
        let (left, right) = (self.from(left, outer), self.from(right, outer));
        let mut rows = vec![];
        let mut is_matched = vec![false; right.rows.len()];
        for l in &left.rows {
            let before = rows.len();
            for (r, is_matched) in right.rows.iter().zip(&mut is_matched) {
                let both = [l.as_slice(), r].concat();
                if self.all(on, &Scope { rows: &both, outer }) {
                    rows.push(both);
                    *is_matched = true;
                }
            }
            if rows.len() == before && matches!(kind, JoinType::Left | JoinType::Full) {
                rows.push([l.clone(), right.nulls()].concat());
            }
        }
        if matches!(kind, JoinType::Right | JoinType::Full) {
            for (r, is_matched) in right.rows.iter().zip(is_matched) {
                if !is_matched {
                    rows.push([left.nulls(), r.clone()].concat());
                }
            }
        }
        let width = [left.width, right.width].concat();
        Relation { width, rows }
    }

    fn asof(&self, asof: &Asof, outer: Option<&Scope<'_>>) -> Relation {
        let (left, right) = (self.from(&asof.left, outer), self.from(&asof.right, outer));
        // The nearest row before is the greatest, of equal ones the last; the nearest after the least, of equal ones
        // the first.
        let is_before = matches!(
            asof.comparison,
            Comparison::Greater | Comparison::GreaterOrEqual
        );
        let mut rows = vec![];
        let mut is_matched = vec![false; right.rows.len()];
        for l in &left.rows {
            let mut best: Option<(Value, usize)> = None;
            for (number, r) in right.rows.iter().enumerate() {
                let both = [l.as_slice(), r].concat();
                let scope = Scope { rows: &both, outer };
                let key = self.value(&asof.key, &scope, None);
                let at = self.value(&asof.at, &scope, None);
                if !self.all(&asof.on, &scope) || compare(asof.comparison, &at, &key) != Some(true)
                {
                    continue;
                }
                let is_better = best
                    .as_ref()
                    .is_none_or(|(other, _)| match key.order(other) {
                        Ordering::Equal => is_before,
                        Ordering::Greater => is_before,
                        Ordering::Less => !is_before,
                    });
                if is_better {
                    best = Some((key, number));
                }
            }
            use AsofKind as A;
            let best = best.map(|(_, number)| number);
            if let Some(number) = best {
                is_matched[number] = true;
            }
            match (asof.kind, best) {
                (A::Semi, Some(_)) | (A::Anti, None) => rows.push(l.clone()),
                (A::Semi | A::Anti, _) => {}
                (A::Inner | A::Right, None) => {}
                (_, Some(number)) => rows.push([l.as_slice(), &right.rows[number]].concat()),
                (_, None) => rows.push([l.clone(), right.nulls()].concat()),
            }
        }
        if matches!(asof.kind, AsofKind::Right | AsofKind::Full) {
            let others = right.rows.iter().zip(is_matched);
            let others = others.filter(|(_, is_matched)| !is_matched);
            rows.extend(others.map(|(row, _)| [left.nulls(), row.clone()].concat()));
        }
        let width = match asof.kind {
            AsofKind::Semi | AsofKind::Anti => left.width,
            _ => [left.width, right.width].concat(),
        };
        Relation { width, rows }
    }

    fn nearest(&self, nearest: &Nearest, outer: Option<&Scope<'_>>) -> Relation {
        let left = self.from(&nearest.left, outer);
        let right = self.from(&nearest.right, outer);
        let mut rows = vec![];
        for l in &left.rows {
            let mut found: Vec<(Value, Rows)> = vec![];
            for r in &right.rows {
                let rows = [l.as_slice(), r].concat();
                let by = self.value(&nearest.by, &Scope { rows: &rows, outer }, None);
                if !by.is_null() {
                    found.push((by, rows));
                }
            }
            found.sort_by(|(a, _), (b, _)| a.order(b));
            if !nearest.is_distance {
                found.reverse();
            }
            if found.is_empty() && nearest.keeps {
                rows.push([l.clone(), right.nulls()].concat());
            }
            rows.extend(found.into_iter().take(nearest.count).map(|(_, rows)| rows));
        }
        let width = [left.width, right.width].concat();
        Relation { width, rows }
    }

    fn range_join(&self, join: &RangeJoin) -> Relation {
        let (left, right) = (self.from(&join.left, None), self.from(&join.right, None));
        let rows = left.rows.iter().map(|l| {
            let group: Vec<Rows> = right
                .rows
                .iter()
                .map(|r| [l.as_slice(), r].concat())
                .filter(|both| {
                    let scope = Scope {
                        rows: both,
                        outer: None,
                    };
                    let equal = |(a, b): &(Expr, Expr)| {
                        let (a, b) = (self.value(a, &scope, None), self.value(b, &scope, None));
                        compare(Comparison::Equal, &a, &b) == Some(true)
                    };
                    join.keys.iter().all(equal) && self.all(&join.window, &scope)
                })
                .collect();
            let scope = Scope {
                rows: l,
                outer: None,
            };
            let mut row: Vec<Value> = l.iter().flat_map(|(_, row)| row.iter().cloned()).collect();
            row.extend(
                join.aggregates
                    .iter()
                    .map(|a| self.value(a, &scope, Some(&group))),
            );
            Row::from(row)
        });
        let width =
            left.width.iter().map(|(_, width)| width).sum::<usize>() + join.aggregates.len();
        Relation::of(join.alias, width, rows)
    }

    fn frame(&self, frame: &Frame) -> Relation {
        let source = self.from(&frame.source, None);
        let mut partitions: Vec<(Value, Vec<&Rows>)> = vec![];
        for rows in &source.rows {
            let key = self.value(&frame.partition, &Scope { rows, outer: None }, None);
            match partitions.iter_mut().find(|(other, _)| other.is_same(&key)) {
                Some((_, partition)) => partition.push(rows),
                None => partitions.push((key, vec![rows])),
            }
        }
        let mut found = vec![];
        for (_, mut partition) in partitions {
            let value =
                |rows: &Rows, expr: &Expr| self.value(expr, &Scope { rows, outer: None }, None);
            partition.sort_by(|a, b| value(a, &frame.order).order(&value(b, &frame.order)));
            if frame.descends {
                partition.reverse();
            }
            let column: Vec<Value> = partition
                .iter()
                .map(|rows| value(rows, &frame.value))
                .collect();
            for rows in partition {
                let (from, to) = (value(rows, &frame.from), value(rows, &frame.to));
                let threshold = frame.threshold.as_ref().map(|x| value(rows, x));
                let w = positions(frame.function, &column, &from, &to, threshold.as_ref());
                let mut row: Vec<Value> = rows
                    .iter()
                    .flat_map(|(_, row)| row.iter().cloned())
                    .collect();
                row.push(w);
                found.push(Row::from(row));
            }
        }
        let width = source.width.iter().map(|(_, width)| width).sum::<usize>() + 1;
        Relation::of(frame.alias, width, found.into_iter())
    }

    /// The value of an expression, for one row or for the rows of a group.
    fn value(&self, expr: &Expr, scope: &Scope<'_>, group: Option<&[Rows]>) -> Value {
        self.steps.set(self.steps.get() + 1);
        if self.is_spent() {
            return Value::Null;
        }
        let value = |expr: &Expr| self.value(expr, scope, group);
        let truth = |expr: &Expr| self.value(expr, scope, group).truth();
        match expr {
            Expr::Column { alias, index, .. } => scope.value(*alias, *index).unwrap_or_else(|| {
                self.is_invalid.set(true);
                Value::Null
            }),
            Expr::Literal(literal, kind) => match (literal, kind) {
                (Value::Time(v), Kind::Date) => Value::Time(v - v.rem_euclid(DAY)),
                _ => literal.clone(),
            },
            Expr::Shift(a, by, kind) => match (value(a), kind) {
                (Value::Time(v), Kind::Date) => Value::Time(v + by * DAY),
                (Value::Time(v), _) => Value::Time(v + by * SECOND),
                (Value::Int(v), _) => Value::Int(v + by),
                (Value::Float(v), _) => Value::Float(v + *by as f64),
                _ => Value::Null,
            },
            Expr::Sum(a, b) => match (value(a), value(b)) {
                (Value::Null, _) | (_, Value::Null) => Value::Null,
                (Value::Int(a), Value::Int(b)) => Value::Int(a + b),
                (a, b) => Value::Float(a.number() + b.number()),
            },
            Expr::Moved(a, by) => match value(a) {
                Value::Int(a) => Value::Int(a.wrapping_add(*by)),
                _ => Value::Null,
            },
            Expr::Difference(a, b) => match (value(a), value(b)) {
                (Value::Int(a), Value::Int(b)) => Value::Int(a.wrapping_sub(b)),
                (Value::Time(a), Value::Time(b)) => Value::Int(a - b),
                (Value::Float(a), Value::Float(b)) => Value::Float(a - b),
                _ => Value::Null,
            },
            Expr::Reread(a, _) => value(a),
            Expr::Call(call, all) => call.value(&all.iter().map(value).collect::<Vec<_>>()),
            Expr::Double(a) => match value(a) {
                Value::Null => Value::Null,
                Value::Int(a) => Value::Int(2 * a),
                a => Value::Float(2.0 * a.number()),
            },
            Expr::Compare(comparison, a, b) => {
                Value::of_truth(compare(*comparison, &value(a), &value(b)))
            }
            Expr::Between(a, b, c) => {
                let a = value(a);
                let above = compare(Comparison::GreaterOrEqual, &a, &value(b));
                let below = compare(Comparison::LessOrEqual, &a, &value(c));
                Value::of_truth(and([above, below].into_iter()))
            }
            Expr::Distinct(a, b, distinct) => Value::Bool(value(a).is_same(&value(b)) != *distinct),
            Expr::And(all) => Value::of_truth(and(all.iter().map(truth))),
            Expr::Or(all) => Value::of_truth(not(and(all.iter().map(|e| not(truth(e)))))),
            Expr::Not(a) => Value::of_truth(not(truth(a))),
            Expr::IsNull(a, is) => Value::Bool(value(a).is_null() == *is),
            Expr::Is(a, is) => Value::Bool(truth(a) == *is),
            Expr::Coalesce(a, b) => match value(a) {
                Value::Null => value(b),
                a => a,
            },
            Expr::Case(a, b, c) => match (truth(a), c) {
                (Some(true), _) => value(b),
                (_, Some(c)) => value(c),
                (_, None) => Value::Null,
            },
            Expr::InList(a, values, negated) => {
                Value::of_truth(is_in(&value(a), values.iter(), *negated))
            }
            Expr::Aggregate(aggregate) => {
                self.aggregate(aggregate, group.expect("rows of a group"), scope.outer)
            }
            Expr::Scalar(query) => {
                let mut rows = self.query(query, Some(scope));
                if rows.len() > 1 {
                    self.is_invalid.set(true);
                }
                rows.pop().map_or(Value::Null, |mut row| row.swap_remove(0))
            }
            Expr::Exists(query, negated) => {
                Value::Bool(self.query(query, Some(scope)).is_empty() == *negated)
            }
            Expr::In(a, query, negated) => {
                let rows = self.query(query, Some(scope));
                Value::of_truth(is_in(&value(a), rows.iter().map(|row| &row[0]), *negated))
            }
            Expr::Range(call) => {
                let rows = &self.tables[call.table].rows;
                let column: Vec<Value> = rows.iter().map(|row| row[call.column].clone()).collect();
                let threshold = call.threshold.as_ref().map(value);
                positions(
                    call.function,
                    &column,
                    &value(&call.from),
                    &value(&call.to),
                    threshold.as_ref(),
                )
            }
        }
    }

    fn aggregate(&self, aggregate: &Aggregate, group: &[Rows], outer: Option<&Scope<'_>>) -> Value {
        let scopes = group.iter().map(|rows| Scope { rows, outer });
        let mut scopes: Vec<Scope<'_>> = match &aggregate.filter {
            Some(filter) => scopes
                .filter(|s| self.value(filter, s, None).truth() == Some(true))
                .collect(),
            None => scopes.collect(),
        };
        if let Some((order, descends)) = &aggregate.order {
            let key = |scope: &Scope<'_>| self.value(order, scope, None);
            // DataFusion's default is that NULLs are the greatest values.
            let order = Order {
                key: Key::Item(0),
                descends: *descends,
                nulls_first: *descends,
            };
            scopes.sort_by(|a, b| by(std::slice::from_ref(&order), &[key(a)], &[key(b)]));
        }
        let values: Vec<Value> = scopes
            .iter()
            .map(|s| self.value(&aggregate.argument, s, None))
            .collect();
        let present = || values.iter().filter(|v| !v.is_null());
        let sum = || present().map(Value::number).sum::<f64>();
        let int = |n: usize| Value::Int(n as i64);
        match aggregate.function {
            Function::CountRows => int(values.len()),
            Function::Count => int(present().count()),
            Function::CountDistinct => {
                let mut distinct: Vec<&Value> = vec![];
                for value in present() {
                    if !distinct.iter().any(|other| other.is_same(value)) {
                        distinct.push(value);
                    }
                }
                int(distinct.len())
            }
            Function::First => values.first().cloned().unwrap_or(Value::Null),
            Function::Last => values.last().cloned().unwrap_or(Value::Null),
            Function::Min => present()
                .min_by(|a, b| a.order(b))
                .cloned()
                .unwrap_or(Value::Null),
            Function::Max => present()
                .max_by(|a, b| a.order(b))
                .cloned()
                .unwrap_or(Value::Null),
            Function::Sum => match present().next() {
                None => Value::Null,
                Some(Value::Int(_)) => Value::Int(sum() as i64),
                Some(_) => Value::Float(sum()),
            },
            Function::Avg => match present().count() {
                0 => Value::Null,
                n => Value::Float(sum() / n as f64),
            },
        }
    }
}

/// What a function by position returns for `column[from..=to]`.
fn positions(
    function: RangeFunction,
    column: &[Value],
    from: &Value,
    to: &Value,
    threshold: Option<&Value>,
) -> Value {
    let (Value::Int(from), Value::Int(to)) = (from, to) else {
        return Value::Null;
    };
    let (from, to) = ((*from).max(0), (*to).min(column.len() as i64 - 1));
    let mut range = (from..=to)
        .map(|i| (i, &column[i as usize]))
        .filter(|(_, v)| !v.is_null());
    let least = |least: bool| {
        let better = if least {
            Ordering::Less
        } else {
            Ordering::Greater
        };
        range
            .clone()
            .reduce(|a, b| if b.1.order(a.1) == better { b } else { a })
    };
    let value = |found: Option<(i64, &Value)>| found.map_or(Value::Null, |(_, v)| v.clone());
    let position = |found: Option<(i64, &Value)>| found.map_or(Value::Null, |(i, _)| Value::Int(i));
    match function {
        RangeFunction::Min => value(least(true)),
        RangeFunction::Max => value(least(false)),
        RangeFunction::ArgMin => position(least(true)),
        RangeFunction::ArgMax => position(least(false)),
        RangeFunction::Crossing { first, at_most } => {
            let comparison = if at_most {
                Comparison::LessOrEqual
            } else {
                Comparison::GreaterOrEqual
            };
            let threshold = threshold.expect("a threshold");
            let meets = |(_, v): &(i64, &Value)| compare(comparison, v, threshold) == Some(true);
            position(if first {
                range.find(meets)
            } else {
                range.rfind(meets)
            })
        }
    }
}

fn is_same(a: &[Value], b: &[Value]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.is_same(b))
}

fn by(orders: &[Order], a: &[Value], b: &[Value]) -> Ordering {
    let each = orders.iter().zip(a.iter().zip(b)).map(|(order, (a, b))| {
        match (a.is_null(), b.is_null()) {
            (true, true) => Ordering::Equal,
            (a, b) if a || b => {
                if a == order.nulls_first {
                    Ordering::Less
                } else {
                    Ordering::Greater
                }
            }
            _ if order.descends => b.order(a),
            _ => a.order(b),
        }
    });
    each.fold(Ordering::Equal, Ordering::then)
}

fn not(truth: Option<bool>) -> Option<bool> {
    truth.map(|truth| !truth)
}

fn and(mut all: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut and = Some(true);
    all.try_for_each(|truth| match truth {
        Some(false) => Err(()),
        Some(true) => Ok(()),
        None => {
            and = None;
            Ok(())
        }
    })
    .map_or(Some(false), |()| and)
}

fn compare(comparison: Comparison, a: &Value, b: &Value) -> Option<bool> {
    let order = a.compare(b)?;
    Some(match comparison {
        Comparison::Equal => order.is_eq(),
        Comparison::NotEqual => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterOrEqual => order.is_ge(),
    })
}

fn is_in<'a>(
    value: &Value,
    values: impl Iterator<Item = &'a Value>,
    negated: bool,
) -> Option<bool> {
    // TRUE if any comparison is TRUE, otherwise NULL if any is NULL.
    let differs = and(values.map(|other| compare(Comparison::NotEqual, value, other)));
    if negated { differs } else { not(differs) }
}
