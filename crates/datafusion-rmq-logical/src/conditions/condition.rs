//! The comparison of a key with a bound, as logical and physical rules recognise it: which operand is the bound, what
//! the operator means, and which casts between units, which may fail, a conversion of the bound replaces, which can't.
//! `rules::operand` and `physical_operand` show it their expressions. `difference` and
//! `alternatives` recognise comparisons in other words.

use std::sync::Arc;

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, TimeUnit};
use datafusion_common::{Result, ScalarValue};
use datafusion_expr::{Operator, ScalarUDF};

use crate::conditions::lossless_casts::{keeps_values, linear_factor};
use crate::expr::key_bound::{KeyBoundUdf, integer_limits};
use crate::expr::ticks::{NANOSECONDS_PER_DAY, nanoseconds};
use rmq_engine::Comparison;

/// A key, how it compares, and the bound.
pub type Compared<E> = (E, Comparison, E);

/// An expression that is compared: a logical or a physical one.
pub trait Operand: Clone {
    /// What has the types of its columns.
    type Schema;

    /// Its type.
    fn data_type(&self, schema: &Self::Schema) -> Result<DataType>;

    /// Whether it may be NULL.
    fn may_be_null(&self, schema: &Self::Schema) -> Result<bool>;

    /// The operator and its operands, if it is one with two.
    fn as_binary(&self) -> Option<(&Self, Operator, &Self)>;

    /// The operand of IS NULL, if it is that.
    fn as_null_check(&self) -> Option<&Self>;

    /// The text and the pattern of LIKE, if it is that.
    fn as_like(&self) -> Option<(&Self, &Self)>;

    /// Its value, if it is a literal.
    fn as_constant(&self) -> Option<&ScalarValue>;

    /// What is cast, and to which type, if it is a cast.
    fn cast_operand(&self) -> Option<(&Self, &DataType)>;

    /// The cast that it is, if it is one.
    fn as_cast(&self, schema: &Self::Schema) -> Result<Option<OperandCast<Self>>> {
        let Some((operand, to)) = self.cast_operand() else {
            return Ok(None);
        };
        Ok(Some(OperandCast {
            operand: operand.clone(),
            from: operand.data_type(schema)?,
            to: to.clone(),
        }))
    }

    /// The function and its arguments, if it is a call.
    fn as_call(&self) -> Option<(&ScalarUDF, &[Self])>;

    /// Whether it is a column.
    fn is_column(&self) -> bool;

    /// The comparison of a key with a bound.
    fn comparing(compared: Compared<Self>) -> Self;

    /// The operands of another expression than these, if it has a value, or NULL, whenever these have.
    fn infallible_operands(&self, schema: &Self::Schema) -> Result<Option<Vec<&Self>>>;

    /// The converted bound. Where `is_open` is NULL it does not bound.
    fn converted(
        self,
        conversion: KeyBoundUdf,
        is_open: Option<Self>,
        schema: &Self::Schema,
    ) -> Result<Self>;

    /// A value that is the same for all rows.
    fn constant(value: ScalarValue) -> Self;

    /// Whether it is NULL, the operand of a comparison of its own.
    fn null_check(self) -> Self;

    /// The same, but this value where it is NULL.
    fn or_value(self, value: ScalarValue) -> Result<Self>;

    /// The call of a function.
    fn call(function: Arc<ScalarUDF>, arguments: Vec<Self>, schema: &Self::Schema) -> Result<Self>;
}

/// A cast of an operand.
pub struct OperandCast<E> {
    /// What is cast.
    pub operand: E,
    /// The type of that.
    pub from: DataType,
    /// The type it is cast to.
    pub to: DataType,
}

/// A range that a conjunct states.
#[derive(Debug)]
pub struct Range<E> {
    /// The key, how it compares, and the bound.
    pub compared: Compared<E>,
    /// Where it does not bound.
    pub open: Open,
}

/// For which NULL a conjunct holds that compares a key with a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// For none.
    Never,
    /// Where the bound is open: `k < b OR b IS NULL`. The conjunct then holds for a key that is NULL, too, but the
    /// range does not have it.
    Bound,
    /// Where the key is NULL: `b <= k OR k IS NULL`. The conjunct then holds for a bound that is NULL, too, but the
    /// range is empty.
    Key,
    /// For none, but the range is only what the conjunct implies: it may have keys for which it does not hold.
    Implied,
    /// The same, and it also holds for keys for which a difference of integers wraps around (`KeyBoundUdf::wrapped`).
    /// The range has these as a bound of a join of rows, not as a comparison.
    Wrapping,
}

impl Open {
    /// Whether the conjunct holds for all keys of the range.
    pub fn is_exact(self) -> bool {
        !matches!(self, Self::Implied | Self::Wrapping)
    }
}

/// The sides that a condition is between.
pub struct Sides<'a, E: Operand> {
    /// Whether an expression has columns of the side of the bounds only.
    pub is_bound: &'a dyn Fn(&E) -> bool,
    /// Whether an expression has columns of the side of the keys only.
    pub is_key: &'a dyn Fn(&E) -> bool,
    /// The columns of the bounds.
    pub bounds: &'a E::Schema,
    /// The columns of the keys.
    pub keys: &'a E::Schema,
}

impl<E: Operand + PartialEq> Sides<'_, E> {
    /// The ranges that a conjunct states in other words than `key < bound`, if it is one of these. It holds only for
    /// keys that are in all of them.
    ///
    /// ```text
    ///   bound - key <= INTERVAL '1 hour'        a difference and a constant
    ///   key < bound OR bound IS NULL            an open end
    ///   bound < key OR key IS NULL              the same of the other side
    ///   key < bound OR key < other              alternatives
    ///   greatest(key, other) < bound            extremes
    ///   key LIKE bound || '%'                   prefixes
    /// ```
    pub fn ranges(&self, conjunct: &E) -> Result<Vec<Range<E>>> {
        let Some((left, op, right)) = conjunct.as_binary() else {
            return self.prefixes(conjunct);
        };
        if op != Operator::Or {
            let ranges = self.difference(left, op, right)?;
            return if ranges.is_empty() {
                self.of_extremes(left, op, right)
            } else {
                Ok(ranges)
            };
        }
        match self.open_end(conjunct, &|_| true)? {
            Some(range) => Ok(vec![range]),
            None => self.alternatives(conjunct),
        }
    }

    /// The range with an open end that a conjunct is, if it is one. Where other conjuncts do not exclude bounds that
    /// are NULL, its keys may be of a wider type, which has room for a last key besides all others.
    pub fn open_end(
        &self,
        conjunct: &E,
        excludes_null: &dyn Fn(&E) -> bool,
    ) -> Result<Option<Range<E>>> {
        let Some((left, Operator::Or, right)) = conjunct.as_binary() else {
            return Ok(None);
        };
        match (left.as_null_check(), right.as_null_check()) {
            (None, Some(null)) => self.open_range(left, null, excludes_null),
            (Some(null), None) => self.open_range(right, null, excludes_null),
            _ => Ok(None),
        }
    }

    /// The operands of a conjunct, if it has a key and a bound, and the operator between these, if it can be swapped to
    /// stand so.
    pub fn operands<'e>(&self, conjunct: &'e E) -> Option<(&'e E, Option<Operator>, &'e E)> {
        let found = key_and_bound(conjunct.as_binary()?, |e| (self.is_bound)(e));
        found.filter(|(key, ..)| (self.is_key)(key))
    }

    /// The comparison of a key with a bound, if a conjunct is that.
    pub fn stated(&self, conjunct: &E) -> Option<Compared<E>> {
        let (key, op, bound) = self.operands(conjunct)?;
        Some((key.clone(), comparison(op?)?, bound.clone()))
    }

    /// The same, without casts that may fail.
    pub fn compared(&self, conjunct: &E) -> Result<Option<Compared<E>>> {
        let mut compared = self.stated(conjunct);
        if let Some(compared) = &mut compared {
            convert_bound(compared, self.bounds, self.keys)?;
        }
        Ok(compared)
    }

    /// A comparison of both sides without casts that may fail; `None` if it has none, and for other conjuncts.
    pub fn without_casts(&self, conjunct: &E) -> Result<Option<E>> {
        let Some(mut compared) = self.stated(conjunct) else {
            return Ok(None);
        };
        let has_casts = convert_bound(&mut compared, self.bounds, self.keys)?;
        Ok(has_casts.then(|| E::comparing(compared)))
    }

    /// The one range of `key < bound`, or of a difference, for whose keys and no others the conjunct holds.
    fn closed_range(&self, conjunct: &E) -> Result<Option<Compared<E>>> {
        if let Some(compared) = self.compared(conjunct)? {
            return Ok(Some(compared));
        }
        let Some((left, op, right)) = conjunct.as_binary() else {
            return Ok(None);
        };
        let mut ranges = self.difference(left, op, right)?;
        let last = ranges.pop();
        let is_only = |range: &Range<E>| ranges.is_empty() && range.open == Open::Never;
        Ok(last.filter(is_only).map(|range| range.compared))
    }

    /// The range of `closed OR null IS NULL`, where `null` is an end of the range.
    fn open_range(
        &self,
        closed: &E,
        null: &E,
        excludes_null: &dyn Fn(&E) -> bool,
    ) -> Result<Option<Range<E>>> {
        let Some((key, comparison, bound)) = self.closed_range(closed)? else {
            return Ok(None);
        };
        if !null.is_column() {
            return Ok(None);
        }
        let key_type = key.data_type(self.keys)?;
        if integer_limits(&key_type).is_none() || key_type != bound.data_type(self.bounds)? {
            return Ok(None);
        }
        if (self.is_bound)(null) {
            let (bound, comparison) =
                opened(bound, null.clone(), comparison, key_type, self.bounds)?;
            return Ok(Some(Range {
                compared: (key, comparison, bound),
                open: Open::Bound,
            }));
        }
        if *null != key {
            return Ok(None);
        }
        // The key that stands for NULL is the last of all, which compares with each bound as stated. No other key is,
        // as `b < k` is `b <= k - 1`, or in a wider type. Then a bound that is NULL may be that key, too.
        let is_strict = matches!(comparison, Comparison::Above | Comparison::Below);
        let may_be_null = bound.may_be_null(self.bounds)?;
        let has_wider = !matches!(key_type, DataType::Decimal128(..));
        let is_wide = may_be_null && !is_strict && has_wider && !excludes_null(&bound);
        let key_type = if is_wide { WIDEST } else { key_type };
        let swapped_to = swapped(comparison);
        let (key, opposite) = opened(key.clone(), key, swapped_to, key_type.clone(), self.keys)?;
        let comparison = swapped(opposite);
        Ok(Some(if may_be_null && (is_strict || is_wide) {
            let (bound, _) = opened(bound.clone(), bound, opposite, key_type, self.bounds)?;
            Range {
                compared: (key, comparison, bound),
                open: Open::Never,
            }
        } else {
            Range {
                compared: (key, comparison, bound),
                open: if may_be_null { Open::Key } else { Open::Never },
            }
        }))
    }
}

/// A comparison with an open bound in which a key that is NULL is the last of all, so that ranges with open ends have
/// it. They may then have it where the other end excludes it. `None` if no type has room for such a key.
pub fn with_null_key<E: Operand>(
    (key, comparison, bound): &Compared<E>,
    bounds: &E::Schema,
    keys: &E::Schema,
) -> Result<Option<Compared<E>>> {
    let key_type = key.data_type(keys)?;
    let is_narrow = !matches!(key_type, DataType::Decimal128(..));
    let Some((function, arguments)) = bound.as_call().filter(|_| is_narrow) else {
        return Ok(None);
    };
    let Some(conversion) = function.inner().downcast_ref::<KeyBoundUdf>() else {
        return Ok(None);
    };
    let function = Arc::new(ScalarUDF::from(conversion.for_keys_of(WIDEST)));
    let bound = E::call(function, arguments.to_vec(), bounds)?;
    let (key, _) = opened(key.clone(), key.clone(), Comparison::AtMost, WIDEST, keys)?;
    Ok(Some((key, *comparison, bound)))
}

/// A type that has room for a key besides all of an integer of 64 bits.
const WIDEST: DataType = DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0);

/// An end of a range that is the last key of all where `null` is NULL, and its comparison with the other end.
pub fn opened<E: Operand>(
    end: E,
    null: E,
    comparison: Comparison,
    key_type: DataType,
    schema: &E::Schema,
) -> Result<(E, Comparison)> {
    let conversion = KeyBoundUdf::new(comparison, (1, 1), key_type);
    let comparison = conversion.converted_comparison();
    Ok((end.converted(conversion, Some(null), schema)?, comparison))
}

/// The conversion that a bound is, and what it converts. `None` where something else makes the range open.
pub fn conversion<E: Operand>(bound: &E) -> Option<(&KeyBoundUdf, &E)> {
    let (function, [of, others @ ..]) = bound.as_call()? else {
        return None;
    };
    let is_closed = others.iter().all(|shown| shown.as_constant().is_some());
    let conversion = function.inner().downcast_ref::<KeyBoundUdf>();
    conversion.filter(|_| is_closed).map(|found| (found, of))
}

/// Drops bounds that another one implies: of the same expression, and nearer.
pub fn drop_implied<E: Operand + PartialEq>(bounds: &mut Vec<(Comparison, E)>) {
    let mut kept: Vec<(Comparison, E)> = vec![];
    for bound in std::mem::take(bounds) {
        let implies = |(_, one): &(Comparison, E), (_, other): &(Comparison, E)| {
            let found = conversion(one).zip(conversion(other));
            found.is_some_and(|((one, of), (other, of_other))| of == of_other && one.implies(other))
        };
        if !kept.iter().any(|known| implies(known, &bound)) {
            kept.retain(|known| !implies(&bound, known));
            kept.push(bound);
        }
    }
    *bounds = kept;
}

/// A length that a difference of two keys is compared with, as `(factor, offset)`: the difference times the factor is
/// compared with the offset. `None` for lengths that DataFusion compares otherwise than by their time, such as days,
/// and for types whose differences may wrap around.
pub fn length_in_ticks(length: &ScalarValue, key_type: &DataType) -> Option<(i128, i128)> {
    let of = |value: i64, unit| i128::from(value) * nanoseconds(unit);
    match (key_type, length) {
        (DataType::Date32, ScalarValue::Int64(Some(days))) => Some((1, i128::from(*days))),
        (DataType::Timestamp(unit, _), length) => {
            let length = match length {
                ScalarValue::IntervalMonthDayNano(Some(i)) if i.months == 0 && i.days == 0 => {
                    of(i.nanoseconds, TimeUnit::Nanosecond)
                }
                ScalarValue::DurationSecond(Some(n)) => of(*n, TimeUnit::Second),
                ScalarValue::DurationMillisecond(Some(n)) => of(*n, TimeUnit::Millisecond),
                ScalarValue::DurationMicrosecond(Some(n)) => of(*n, TimeUnit::Microsecond),
                ScalarValue::DurationNanosecond(Some(n)) => of(*n, TimeUnit::Nanosecond),
                _ => return None,
            };
            Some((nanoseconds(*unit), length))
        }
        _ => None,
    }
}

/// Tells key and bound apart: the key, the operator between key and bound, if it can be swapped to stand so, and the
/// bound. `None` if neither operand is a bound.
pub fn key_and_bound<E>(
    (left, op, right): (E, Operator, E),
    is_bound: impl Fn(&E) -> bool,
) -> Option<(E, Option<Operator>, E)> {
    if is_bound(&right) {
        Some((left, Some(op), right))
    } else if is_bound(&left) {
        Some((right, op.swap(), left))
    } else {
        None
    }
}

/// The comparison of a range key with a bound that an operator makes, if it makes one.
pub fn comparison(op: Operator) -> Option<Comparison> {
    match op {
        Operator::Gt => Some(Comparison::Above),
        Operator::GtEq => Some(Comparison::AtLeast),
        Operator::Lt => Some(Comparison::Below),
        Operator::LtEq => Some(Comparison::AtMost),
        _ => None,
    }
}

/// The comparison of the bound with the key.
pub fn swapped(comparison: Comparison) -> Comparison {
    match comparison {
        Comparison::Above => Comparison::Below,
        Comparison::AtLeast => Comparison::AtMost,
        Comparison::Below => Comparison::Above,
        Comparison::AtMost => Comparison::AtLeast,
    }
}

/// The operator of a comparison.
pub fn operator(comparison: Comparison) -> Operator {
    match comparison {
        Comparison::Above => Operator::Gt,
        Comparison::AtLeast => Operator::GtEq,
        Comparison::Below => Operator::Lt,
        Comparison::AtMost => Operator::LtEq,
    }
}

/// Replaces casts that may fail, of the key or of the bound, the date of a key, and a constant that is added to the
/// key, by a conversion of the bound that cannot fail. Returns whether there were any.
pub fn convert_bound<E: Operand>(
    (key, comparison, bound): &mut Compared<E>,
    bounds: &E::Schema,
    keys: &E::Schema,
) -> Result<bool> {
    let mut is_converted = false;
    if let Some((factor, offset, moved)) = constant_offset(key, keys)?
        && moved.data_type(keys)? == bound.data_type(bounds)?
    {
        let key_type = moved.data_type(keys)?;
        let conversion = KeyBoundUdf::new(*comparison, (factor, factor), key_type);
        let conversion = conversion.with_offset(offset);
        *comparison = conversion.converted_comparison();
        *bound = bound.clone().converted(conversion, None, bounds)?;
        *key = moved;
        is_converted = true;
    }
    loop {
        let (of_key, of_bound) = (replaced(key, keys)?, replaced(bound, bounds)?);
        let key_type = match (&of_key, &of_bound) {
            (Some((_, cast)), _) => cast.from.clone(),
            (None, Some((_, cast))) => cast.to.clone(),
            (None, None) => break,
        };
        let mut factors = (1, 1);
        if let Some((factor, cast)) = of_key {
            factors.0 = factor;
            *key = cast.operand;
        }
        if let Some((factor, cast)) = of_bound {
            factors.1 = factor;
            *bound = cast.operand;
        }
        let conversion = KeyBoundUdf::new(*comparison, factors, key_type);
        *comparison = conversion.converted_comparison();
        *bound = bound.clone().converted(conversion, None, bounds)?;
        is_converted = true;
    }
    if let Some((unit, moved)) = dated(key, keys)?
        && bound.data_type(bounds)? == DataType::Date32
    {
        // A date is after another, or not, as its first instant is, which is a day after that of the date before.
        let (first_instant, days) = match comparison {
            Comparison::AtLeast => (Comparison::AtLeast, 0),
            Comparison::Above => (Comparison::AtLeast, 1),
            Comparison::AtMost => (Comparison::Below, 1),
            Comparison::Below => (Comparison::Below, 0),
        };
        let factors = (nanoseconds(unit), NANOSECONDS_PER_DAY);
        let conversion = KeyBoundUdf::new(first_instant, factors, moved.data_type(keys)?);
        let conversion = conversion.with_offset(days * NANOSECONDS_PER_DAY);
        *comparison = conversion.converted_comparison();
        *bound = bound.clone().converted(conversion, None, bounds)?;
        *key = moved;
        is_converted = true;
    }
    Ok(is_converted)
}

/// What a key is the date of, with its unit, if it is the date of a timestamp.
fn dated<E: Operand>(key: &E, schema: &E::Schema) -> Result<Option<(TimeUnit, E)>> {
    Ok(match key.as_cast(schema)? {
        Some(OperandCast {
            operand,
            from: DataType::Timestamp(unit, None),
            to: DataType::Date32,
        }) => Some((unit, operand)),
        _ => None,
    })
}

/// The constant that a timestamp has been shifted by, and what has been: `(factor, offset, key)`, where the shifted key
/// is less than a bound if the factor times `key - bound` is less than the offset. `None` for other keys, and for
/// shifts that are no number of the key's units.
pub fn constant_offset<E: Operand>(
    shifted: &E,
    schema: &E::Schema,
) -> Result<Option<(i128, i128, E)>> {
    let Some((left, op, right)) = shifted.as_binary() else {
        return Ok(None);
    };
    let (key, constant, sign) = match (op, left.as_constant(), right.as_constant()) {
        (Operator::Minus, None, Some(constant)) => (left, constant, 1),
        (Operator::Plus, None, Some(constant)) => (left, constant, -1),
        (Operator::Plus, Some(constant), None) => (right, constant, -1),
        _ => return Ok(None),
    };
    let key_type = key.data_type(schema)?;
    if !matches!(key_type, DataType::Timestamp(..)) {
        return Ok(None);
    }
    let length = length_in_ticks(constant, &key_type);
    Ok(length
        .filter(|(factor, offset)| offset % factor == 0)
        .map(|(factor, offset)| (factor, sign * offset, key.clone())))
}

/// The cast that an operand is, if it multiplies by a factor and may fail.
fn replaced<E: Operand>(operand: &E, schema: &E::Schema) -> Result<Option<(i128, OperandCast<E>)>> {
    let Some(cast) = operand.as_cast(schema)? else {
        return Ok(None);
    };
    let (from, to) = (&cast.from, &cast.to);
    let are_integers = integer_limits(from).is_some() && integer_limits(to).is_some();
    if keeps_values(from, to) || !are_integers {
        return Ok(None);
    }
    Ok(linear_factor(from, to).map(|factor| (factor, cast)))
}
