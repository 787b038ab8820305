//! Aggregates with a condition of their own that compares the range key with the other side: ranges within that of the
//! query, each of which is a range join.
//!
//! ```text
//!   SELECT q.id, count(*), sum(CASE WHEN p.k > q.k THEN p.v END), sum(p.v) FILTER (WHERE p.k <= q.k)
//!   FROM q JOIN p ON p.sym = q.sym AND p.k BETWEEN q.a AND q.b GROUP BY q.id
//!
//!   RangeJoin: type=Left, on=[sym], range=p.k in [q.a, least(q.b, q.k)], aggs=[sum(p.v)]
//!     RangeJoin: type=Left, on=[sym], range=p.k in (greatest(q.a, q.k), q.b], aggs=[sum(p.v)]
//!       RangeJoin: type=Inner, on=[sym], range=p.k in [q.a, q.b], aggs=[count(*)]
//!         q
//!         p
//!       p
//!     p
//! ```
//!
//! The range key is what the query compares, or, if that compares nothing, what the first of these conditions does.
//! Parts of a condition that are about the build side alone, or compare another key, stay with the aggregate. A bound
//! that may fail is evaluated only for probe rows that have a match in the query's range, which its `count(*)` tells.

use datafusion_common::{DFSchema, Result, ScalarValue};
use datafusion_expr::expr::AggregateFunction;
use datafusion_expr::utils::{COUNT_STAR_EXPANSION, conjunction};
use datafusion_expr::{Case, Cast, Expr, ExprSchemable, lit, when};
use datafusion_functions_aggregate::count::count_udaf;
use datafusion_functions_aggregate::sum::Sum;

use crate::conditions::condition::Compared;
use crate::conditions::infallible::is_infallible;
use crate::conditions::lossless_casts::without_lossless_casts;
use crate::rules::aggregate_argument::is_null_without_match;
use crate::rules::common::skips_nulls::skips_nulls;
use crate::rules::condition_parts::{Constants, check_repeats, conjuncts, is_of, sides_of};
use crate::rules::open_ends::compared_by_keys;

/// The aggregates of a query by the ranges of the rows that they are over.
pub struct NarrowedRanges {
    /// Those over all rows of the query.
    pub all: Vec<AggregateFunction>,
    /// Those over the rows that meet further conditions.
    pub narrowed: Vec<NarrowedRange>,
    /// What the aggregates of the query are, in terms of these.
    values: Vec<Value>,
}

/// Aggregates over the rows of a query that meet further conditions.
pub struct NarrowedRange {
    pub conditions: Vec<Expr>,
    /// Whether one of the conditions may fail for a row of the probe side.
    pub may_fail: bool,
    pub calls: Vec<AggregateFunction>,
}

/// The value of an aggregate of the query.
struct Value {
    /// The range of the aggregate that it is made of; `None` for all rows.
    range: Option<usize>,
    /// The index of that aggregate among those of the range.
    call: usize,
    otherwise: Otherwise,
}

/// What the value is where the aggregate that it is made of has none.
enum Otherwise {
    /// The same.
    Same,
    /// NULL instead of 0: the aggregate counts the ones that a sum adds up.
    Null,
    /// NULL if the query has no row, of which the aggregate of all rows of this index is the number.
    NullWithoutRows(usize),
    /// Zero instead of NULL, if another row of the query adds it.
    Zero {
        zero: ScalarValue,
        /// The index among the aggregates of all rows of their number; `None` if there is one at least.
        rows: Option<usize>,
        /// The index among the aggregates of the range of the number of rows that add their own value; `None` if it is
        /// 0.
        adding: Option<usize>,
    },
}

/// An aggregate of the rows that meet a condition.
struct Conditional {
    condition: Expr,
    call: AggregateFunction,
    /// Whether other rows add zero.
    adds_zero: bool,
}

impl Conditional {
    fn of(call: &AggregateFunction) -> Option<Self> {
        let mut call = call.clone();
        if let Some(condition) = call.params.filter.take() {
            return Some(Self {
                condition: *condition,
                call,
                adds_zero: false,
            });
        }
        let [argument] = call.params.args.as_mut_slice() else {
            return None;
        };
        let (condition, then, otherwise) = branches(argument)?;
        let is_zero = |value: &ScalarValue| {
            ScalarValue::new_zero(&value.data_type()).is_ok_and(|zero| zero == *value)
        };
        let adds_zero = match otherwise {
            None => false,
            Some(Expr::Literal(value, _)) if value.is_null() => false,
            Some(Expr::Literal(value, _)) if call.func.inner().is::<Sum>() && is_zero(&value) => {
                true
            }
            Some(_) => return None,
        };
        *argument = then;
        skips_nulls(&call.func).then_some(Self {
            condition,
            call,
            adds_zero,
        })
    }
}

/// The condition of a CASE with one, and what it is where that holds and where it does not, perhaps cast.
fn branches(argument: &Expr) -> Option<(Expr, Expr, Option<Expr>)> {
    match argument {
        Expr::Alias(alias) => branches(&alias.expr),
        Expr::Cast(Cast { expr, field }) => {
            let (condition, then, otherwise) = branches(expr)?;
            let then = Expr::Cast(Cast::new_from_field(Box::new(then), field.clone()));
            Some((condition, then, otherwise))
        }
        Expr::Case(Case {
            expr: None,
            when_then_expr,
            else_expr,
        }) => match when_then_expr.as_slice() {
            [(condition, then)] => Some((
                condition.as_ref().clone(),
                then.as_ref().clone(),
                else_expr.as_deref().cloned(),
            )),
            _ => None,
        },
        _ => None,
    }
}

impl NarrowedRanges {
    /// Divides the aggregates of a query whose rows meet `conditions`, which compare its keys. `None` if all of them
    /// are over the same rows. `has_nulls` tells whether there is a row of NULLs where no row of the build side
    /// matches, and `may_be_empty` whether there is a value without any row.
    pub fn of(
        calls: &[AggregateFunction],
        conditions: &[Expr],
        has_nulls: bool,
        may_be_empty: bool,
        probe: &DFSchema,
        build: &DFSchema,
    ) -> Result<Option<Self>> {
        let mut sides = Keys {
            probe,
            build,
            has_nulls,
            known: vec![],
        };
        for condition in conjuncts(conditions.iter().cloned()) {
            for (key, ..) in sides.ranges(&condition)?.unwrap_or_default() {
                sides.known.push(sides.base(&key)?);
            }
        }
        let mut ranges = Self {
            all: vec![],
            narrowed: vec![],
            values: vec![],
        };
        for call in calls {
            match sides.narrow(call)? {
                Some(found) => ranges.add(found, may_be_empty, build)?,
                None => {
                    ranges.all.push(call.clone());
                    ranges.values.push(Value {
                        range: None,
                        call: ranges.all.len() - 1,
                        otherwise: Otherwise::Same,
                    });
                }
            }
        }
        if ranges.narrowed.is_empty() {
            return Ok(None);
        }
        Ok(Some(ranges))
    }

    /// Adds an aggregate over the rows that meet further conditions.
    fn add(&mut self, found: Narrowed, may_be_empty: bool, build: &DFSchema) -> Result<()> {
        let Narrowed {
            conditions,
            may_fail,
            call,
            adds_zero,
        } = found;
        let one = ScalarValue::Int64(Some(1));
        let adds_one = call.func.inner().is::<Sum>()
            && call.params.filter.is_none()
            && !call.params.distinct
            && matches!(call.params.args.as_slice(), [Expr::Literal(value, _)] if *value == one);
        let known = self
            .narrowed
            .iter()
            .position(|range| range.conditions == conditions);
        let range = known.unwrap_or_else(|| {
            self.narrowed.push(NarrowedRange {
                conditions,
                may_fail,
                calls: vec![],
            });
            self.narrowed.len() - 1
        });
        let otherwise = if adds_zero && adds_one {
            if may_be_empty {
                Otherwise::NullWithoutRows(self.row_count())
            } else {
                Otherwise::Same
            }
        } else if adds_zero {
            // A NULL is added by a row that meets the conditions, or by none.
            let mut may_add_null = false;
            for argument in &call.params.args {
                may_add_null |= argument.nullable(build)?;
            }
            let sum = Expr::AggregateFunction(call.clone()).get_type(build)?;
            let calls = &mut self.narrowed[range].calls;
            let adding = may_add_null.then(|| index_of(calls, row_count(&call)));
            let needs_rows = may_be_empty || may_add_null;
            Otherwise::Zero {
                zero: ScalarValue::new_zero(&sum)?,
                rows: needs_rows.then(|| self.row_count()),
                adding,
            }
        } else if adds_one {
            Otherwise::Null
        } else {
            Otherwise::Same
        };
        let call = if adds_one { row_count(&call) } else { call };
        self.values.push(Value {
            range: Some(range),
            call: index_of(&mut self.narrowed[range].calls, call),
            otherwise,
        });
        Ok(())
    }

    /// The index of `count(*)` among the aggregates of all rows, to which it is added if it is missing.
    pub fn row_count(&mut self) -> usize {
        index_of(&mut self.all, count_of_rows(None))
    }

    /// The values of the aggregates of the query, made of those of the aggregates of all rows and of each range.
    pub fn values(&self, all: &[Expr], narrowed: &[Vec<Expr>]) -> Result<Vec<Expr>> {
        let values = self.values.iter().map(|value| {
            let found = match value.range {
                Some(range) => narrowed[range][value.call].clone(),
                None => all[value.call].clone(),
            };
            match &value.otherwise {
                Otherwise::Same => Ok(found),
                Otherwise::Null => when(found.clone().gt(lit(0_i64)), found).end(),
                Otherwise::NullWithoutRows(rows) => {
                    when(all[*rows].clone().gt(lit(0_i64)), found).end()
                }
                Otherwise::Zero { zero, rows, adding } => {
                    let mut is_zero = found.clone().is_null();
                    if let Some(rows) = rows {
                        let adding = adding.zip(value.range);
                        let adding = adding.map(|(adding, range)| narrowed[range][adding].clone());
                        let adding = adding.unwrap_or_else(|| lit(0_i64));
                        is_zero = is_zero.and(all[*rows].clone().gt(adding));
                    }
                    when(is_zero, lit(zero.clone())).otherwise(found)
                }
            }
        });
        values.collect()
    }
}

/// The index of an aggregate among these, to which it is added if it is missing.
fn index_of(calls: &mut Vec<AggregateFunction>, call: AggregateFunction) -> usize {
    let known = calls.iter().position(|known| *known == call);
    known.unwrap_or_else(|| {
        calls.push(call);
        calls.len() - 1
    })
}

/// `count(*)` of the rows that an aggregate is over.
fn row_count(of: &AggregateFunction) -> AggregateFunction {
    count_of_rows(of.params.filter.clone())
}

fn count_of_rows(filter: Option<Box<Expr>>) -> AggregateFunction {
    let argument = lit(COUNT_STAR_EXPANSION);
    AggregateFunction::new_udf(count_udaf(), vec![argument], false, filter, vec![], None)
}

/// An aggregate whose condition is one of its range in part.
struct Narrowed {
    conditions: Vec<Expr>,
    may_fail: bool,
    call: AggregateFunction,
    adds_zero: bool,
}

/// The keys that a query compares with bounds.
struct Keys<'a> {
    probe: &'a DFSchema,
    build: &'a DFSchema,
    has_nulls: bool,
    /// Without lossless casts.
    known: Vec<Expr>,
}

impl Keys<'_> {
    /// The aggregate with the parts of its condition that narrow the range, if there are any.
    fn narrow(&mut self, call: &AggregateFunction) -> Result<Option<Narrowed>> {
        let Some(conditional) = Conditional::of(call) else {
            return Ok(None);
        };
        let Conditional {
            condition,
            mut call,
            adds_zero,
        } = conditional;
        let params = &call.params;
        let order_by = params.order_by.iter().map(|sort| &sort.expr);
        let mut needed = params.args.iter().chain(order_by);
        if !needed.all(|expr| expr.column_refs().is_empty() || is_of(expr, self.build)) {
            return Ok(None);
        }
        let (probe, build) = (self.probe, self.build);
        let Ok(stated) = compared_by_keys(vec![condition], Constants::Filter, probe, build) else {
            return Ok(None);
        };
        let (mut conditions, mut of_probe, mut rest) = (vec![], vec![], vec![]);
        let mut may_fail = false;
        for conjunct in stated {
            if is_of(&conjunct, probe) && check_repeats(&conjunct).is_ok() {
                of_probe.push(conjunct);
            } else if let Some(ranges) = self.ranges(&conjunct)?
                && self.leaves_out_nulls(&ranges)?
                && self.knows_all(&ranges)?
            {
                for (_, _, bound) in &ranges {
                    may_fail |= !is_infallible(bound, probe)?;
                }
                conditions.push(conjunct);
            } else {
                rest.push(conjunct);
            }
        }
        if conditions.is_empty() {
            return Ok(None);
        }
        for filter in &of_probe {
            may_fail |= !is_infallible(filter, probe)?;
        }
        conditions.append(&mut of_probe);
        call.params.filter = conjunction(rest).map(Box::new);
        Ok(Some(Narrowed {
            conditions,
            may_fail,
            call,
            adds_zero,
        }))
    }

    /// Whether no range has the row of NULLs, if there is one: `coalesce(p.k, 0)` is in some.
    fn leaves_out_nulls(&self, ranges: &[Compared<Expr>]) -> Result<bool> {
        for (key, ..) in ranges.iter().filter(|_| self.has_nulls) {
            if !is_null_without_match(key, self.build)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the query compares the keys of all these ranges. If it compares none, the first key that cannot fail
    /// becomes known.
    fn knows_all(&mut self, ranges: &[Compared<Expr>]) -> Result<bool> {
        for (key, ..) in ranges {
            let base = self.base(key)?;
            if self.known.is_empty() && is_infallible(key, self.build)? {
                self.known.push(base);
            } else if !self.known.contains(&base) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The ranges that a conjunct is, if it holds for all of their keys.
    fn ranges(&self, conjunct: &Expr) -> Result<Option<Vec<Compared<Expr>>>> {
        if check_repeats(conjunct).is_err() {
            return Ok(None);
        }
        sides_of(self.probe, self.build, |sides| {
            let stated = sides.ranges(conjunct)?;
            if stated.is_empty() {
                return Ok(sides.compared(conjunct)?.map(|range| vec![range]));
            }
            let are_exact = stated.iter().all(|range| range.open.is_exact());
            let ranges = stated.into_iter().map(|range| range.compared);
            Ok(are_exact.then(|| ranges.collect()))
        })
    }

    fn base(&self, key: &Expr) -> Result<Expr> {
        without_lossless_casts(key, self.build).cloned()
    }
}
