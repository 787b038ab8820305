//! A bound in the type of the range key that it is compared with.
//!
//! A comparison of two units makes DataFusion cast the coarser one, which is an error where the finer type is too
//! small. The bound is converted instead: rounded up or down to the unit of a coarser key, or to the least or greatest
//! key of a finer one where it is beyond all, so that comparing the key with it gives the same result, exactly and for
//! every value.
//!
//! ```text
//!   CAST(p.ts AS Timestamp(µs)) >= q.a    p.ts >= rmq_lower_bound(q.a)     q.a in seconds, rounded up
//!   CAST(p.ts AS Timestamp(µs)) <  q.b    p.ts <= rmq_upper_bound(q.b)     the last second before q.b
//!   p.ts < CAST(q.day AS Timestamp(ns))   p.ts <= rmq_upper_bound(q.day)   the last nanosecond before q.day, or of all
//! ```
//!
//! It also moves constants, which may overflow when they are added, and makes an end open:
//!
//! ```text
//!   q.ts - p.ts <= INTERVAL '1 hour'      p.ts >= rmq_lower_bound(q.ts, INTERVAL '-1 hour')
//!   p.ts < q.b OR q.b IS NULL             p.ts <= rmq_upper_bound(q.b, q.b IS NULL)
//! ```

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Int32Array, Int64Array,
};
use arrow::array::{UInt64Array, make_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Decimal128Type, Int64Type, UInt64Type};
use datafusion_common::{Result, ScalarValue, exec_datafusion_err, internal_err};
use datafusion_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use rmq_engine::Comparison;

/// The function `(bound [, is_open or offset])` that returns the least or greatest key for which `key * factor` is
/// compared with `bound * bound_factor + offset` as stated. NULL if there is no such key, or if the bound is NULL.
/// Where `is_open` is TRUE it is the least or greatest of all keys. The argument `offset` shows what is added.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct KeyBoundUdf {
    /// How the key compares with the bound.
    pub comparison: Comparison,
    /// What the key is multiplied by.
    pub factor: i128,
    /// What the bound is multiplied by.
    pub bound_factor: i128,
    /// What is added to the product of the bound.
    pub offset: i128,
    /// The offset of the other end of a difference that has two.
    pub opposite: Option<i128>,
    /// The type of the key, and of the result.
    pub key_type: DataType,
    signature: Signature,
}

impl KeyBoundUdf {
    /// The conversion for keys of this type, where `key * factors.0` is compared with `bound * factors.1`.
    pub fn new(
        comparison: Comparison,
        (factor, bound_factor): (i128, i128),
        key_type: DataType,
    ) -> Self {
        Self {
            comparison,
            factor,
            bound_factor,
            offset: 0,
            opposite: None,
            key_type,
            signature: Signature::one_of(
                vec![TypeSignature::Any(1), TypeSignature::Any(2)],
                Volatility::Immutable,
            ),
        }
    }

    /// The same where `offset` is added to the bound, in the unit of `key * factor`.
    pub fn with_offset(self, offset: i128) -> Self {
        Self { offset, ..self }
    }

    /// The same where all keys compare as stated if the bound plus `offset`, or plus the offset of the other end of a
    /// range, is no key: a difference of the key and the bound may then wrap around. Where that end is the last
    /// difference of all, only the keys that `wrapped` tells compare as stated besides. Both factors must be 1.
    pub fn with_opposite(self, offset: i128) -> Self {
        Self {
            opposite: Some(offset),
            ..self
        }
    }

    /// The same of a bound that is stored as the key is, for keys of another type of such integers.
    pub fn for_keys_of(&self, key_type: DataType) -> Self {
        Self::new(self.comparison, (1, 1), key_type)
    }

    /// The comparison of the key with the converted bound.
    pub fn converted_comparison(&self) -> Comparison {
        if self.comparison.is_lower() {
            Comparison::AtLeast
        } else {
            Comparison::AtMost
        }
    }

    /// What is added to the bound at both ends of a range, the least first, if all keys are in it where that is no key.
    pub fn wraps_at(&self) -> Option<(i128, i128)> {
        let opposite = self.opposite.filter(|_| self.wrapped().is_none())?;
        Some((self.offset.min(opposite), self.offset.max(opposite)))
    }

    /// The keys at the other end of all for which the difference wraps around, and so compares as stated, if the range
    /// of the difference ends only there: with the last one of its type. Other keys compare with the bound as stated.
    ///
    /// ```text
    ///   q.id - p.id <= 30      p.id >= q.id - 30, or p.id <= q.id - 2^63
    /// ```
    pub fn wrapped(&self) -> Option<Self> {
        let (opposite, (least, greatest)) = (self.opposite?, integer_limits(&self.key_type)?);
        let all = greatest.checked_sub(least)?.checked_add(1)?;
        let (is_last, comparison, shift) = if self.comparison.is_lower() {
            let is_last = [greatest, -least].contains(&opposite);
            (is_last, Comparison::AtMost, -all)
        } else {
            let is_last = [least, -greatest].contains(&opposite);
            (is_last, Comparison::AtLeast, all)
        };
        let wrapped = Self::new(comparison, (1, 1), self.key_type.clone());
        is_last.then(|| wrapped.with_offset(opposite + shift))
    }

    /// The bound that all keys compare with as stated.
    ///
    /// # Errors
    /// An internal error for keys that are no integers.
    pub fn bound_of_all(&self) -> Result<ArrayRef> {
        of_type(&[Some(self.last(self.limits()?))], &self.key_type)
    }

    /// The type of the keys.
    pub fn key_type(&self) -> &DataType {
        &self.key_type
    }

    /// Whether this bound of an expression implies another one of it.
    pub fn implies(&self, other: &Self) -> bool {
        let (ours, theirs) = (self, other);
        let is_alike = ours.comparison.is_lower() == theirs.comparison.is_lower()
            && (ours.factor, ours.bound_factor) == (theirs.factor, theirs.bound_factor)
            && ours.key_type == theirs.key_type
            && ours.opposite.or(theirs.opposite).is_none();
        let is_closer = if ours.comparison.is_lower() {
            ours.offset > theirs.offset
        } else {
            ours.offset < theirs.offset
        };
        let is_equal = ours.offset == theirs.offset;
        let is_as_strict = ours.comparison.is_strict() || !theirs.comparison.is_strict();
        is_alike && (is_closer || is_equal && is_as_strict)
    }

    /// What is added to the bound, as plans show it.
    pub fn shown_offset(&self) -> Option<ScalarValue> {
        let offset = i64::try_from(self.offset)
            .ok()
            .filter(|offset| *offset != 0)?;
        Some(match self.key_type {
            DataType::Timestamp(..) => ScalarValue::new_interval_mdn(0, 0, offset),
            _ => ScalarValue::Int64(Some(offset)),
        })
    }

    /// The bound that all keys in these limits compare with as stated.
    pub(super) fn last(&self, (least, greatest): (i128, i128)) -> i128 {
        if self.comparison.is_lower() {
            least
        } else {
            greatest
        }
    }

    /// Converts bounds; where `is_open` is TRUE the least or greatest of all keys compares with all as stated.
    ///
    /// # Errors
    /// An internal error for keys that are no integers. Arrow's, for bounds that are none.
    pub fn converted(&self, bounds: &ArrayRef, is_open: Option<&BooleanArray>) -> Result<ArrayRef> {
        let limits = self.limits()?;
        let last = self.last(limits);
        let opposite = self.opposite.filter(|_| self.wrapped().is_none());
        let ends = opposite.map(|opposite| [self.offset, opposite]);
        let is_key = |end: i128| limits.0 <= end && end <= limits.1;
        let keys = integers(bounds)?.into_iter().enumerate();
        let keys = keys.map(|(row, bound)| {
            if is_open.is_some_and(|open| open.is_valid(row) && open.value(row)) {
                return Some(last);
            }
            let bound = bound?;
            let has_key = |offset| bound.checked_add(offset).is_some_and(is_key);
            if ends.is_some_and(|ends| !ends.into_iter().all(has_key)) {
                return Some(last);
            }
            self.convert(bound, limits)
        });
        of_type(&keys.collect::<Vec<_>>(), &self.key_type)
    }

    /// The least and the greatest key.
    fn limits(&self) -> Result<(i128, i128)> {
        match integer_limits(&self.key_type) {
            Some(limits) => Ok(limits),
            None => internal_err!("a {} is not stored as an integer", self.key_type),
        }
    }

    /// Converts one bound, to a key in these limits.
    pub fn convert(&self, bound: i128, (least, greatest): (i128, i128)) -> Option<i128> {
        // Beyond 128 bits it is beyond all keys.
        let bound = bound
            .saturating_mul(self.bound_factor)
            .saturating_add(self.offset);
        // A division of 128 bits takes longer than all else here.
        let (floor, exact) = match self.factor {
            1 => (bound, true),
            factor => (bound.div_euclid(factor), bound.rem_euclid(factor) == 0),
        };
        let next = i128::from(!exact);
        let key = match self.comparison {
            Comparison::AtLeast => floor + next,
            Comparison::Above => floor.saturating_add(1),
            Comparison::AtMost => floor,
            Comparison::Below => (floor + next).saturating_sub(1),
        };
        if self.comparison.is_lower() {
            (key <= greatest).then(|| key.max(least))
        } else {
            (key >= least).then(|| key.min(greatest))
        }
    }
}

impl ScalarUDFImpl for KeyBoundUdf {
    fn name(&self) -> &'static str {
        if self.comparison.is_lower() {
            "rmq_lower_bound"
        } else {
            "rmq_upper_bound"
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(self.key_type.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let [bounds, others @ ..] = arrays.as_slice() else {
            return internal_err!("there is no bound to convert");
        };
        let is_open = others.iter().find_map(|array| array.as_boolean_opt());
        Ok(ColumnarValue::Array(self.converted(bounds, is_open)?))
    }
}

/// The least and the greatest of the integers in which values of a type are stored. `None` for types that are not
/// stored as integers of at most 128 bits.
pub fn integer_limits(data_type: &DataType) -> Option<(i128, i128)> {
    macro_rules! limits {
        ($t:ty) => {
            Some((i128::from(<$t>::MIN), i128::from(<$t>::MAX)))
        };
    }
    match data_type {
        DataType::Int8 => limits!(i8),
        DataType::Int16 => limits!(i16),
        DataType::UInt8 => limits!(u8),
        DataType::UInt16 => limits!(u16),
        DataType::UInt32 => limits!(u32),
        DataType::UInt64 => limits!(u64),
        DataType::Int32 | DataType::Date32 | DataType::Time32(_) | DataType::Decimal32(..) => {
            limits!(i32)
        }
        DataType::Int64
        | DataType::Date64
        | DataType::Time64(_)
        | DataType::Timestamp(..)
        | DataType::Duration(_)
        | DataType::Decimal64(..) => limits!(i64),
        DataType::Decimal128(..) => limits!(i128),
        _ => None,
    }
}

/// The comparison that an argument of a function states as text.
pub fn comparison_from(operator: &str) -> Option<Comparison> {
    match operator {
        ">=" => Some(Comparison::AtLeast),
        ">" => Some(Comparison::Above),
        "<=" => Some(Comparison::AtMost),
        "<" => Some(Comparison::Below),
        _ => None,
    }
}

/// The integers in which values are stored.
pub fn integers(values: &ArrayRef) -> Result<Vec<Option<i128>>> {
    let values = match values.data_type() {
        DataType::Dictionary(_, value) => cast(values, value)?,
        _ => ArrayRef::clone(values),
    };
    let stored_as = |data_type| -> Result<ArrayRef> {
        let data = values.to_data().into_builder().data_type(data_type);
        Ok(make_array(data.build()?))
    };
    let widened = |array: &ArrayRef| -> Result<Vec<Option<i128>>> {
        let array = cast(array, &DataType::Int64)?;
        let array = array.as_primitive::<Int64Type>().iter();
        Ok(array.map(|v| v.map(i128::from)).collect())
    };
    match values.data_type() {
        DataType::Decimal128(..) => Ok(values.as_primitive::<Decimal128Type>().iter().collect()),
        DataType::UInt64 => {
            let values = values.as_primitive::<UInt64Type>().iter();
            Ok(values.map(|v| v.map(i128::from)).collect())
        }
        t if t.is_integer() => widened(&values),
        t if t.primitive_width() == Some(size_of::<i32>()) => widened(&stored_as(DataType::Int32)?),
        _ => widened(&stored_as(DataType::Int64)?),
    }
}

/// Values of a type from the integers in which they are stored, which are within its limits.
pub fn of_type(integers: &[Option<i128>], data_type: &DataType) -> Result<ArrayRef> {
    macro_rules! narrowed {
        ($array:ty) => {{
            let narrow = |v: &Option<i128>| v.map(|v| v.try_into()).transpose();
            let narrowed: Result<$array, _> = integers.iter().map(narrow).collect();
            narrowed.map_err(|_| exec_datafusion_err!("a bound is beyond a {data_type}"))?
        }};
    }
    let array: &dyn Array = match data_type {
        DataType::UInt64 => &narrowed!(UInt64Array),
        DataType::Decimal128(..) => &integers.iter().copied().collect::<Decimal128Array>(),
        t if t.is_integer() => return Ok(cast(&narrowed!(Int64Array), t)?),
        t if t.primitive_width() == Some(size_of::<i32>()) => &narrowed!(Int32Array),
        _ => &narrowed!(Int64Array),
    };
    let data = array.to_data().into_builder().data_type(data_type.clone());
    Ok(make_array(data.build()?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::Int8Array;
    use arrow::datatypes::{Field, TimeUnit};
    use datafusion_common::config::ConfigOptions;

    use super::*;

    fn converted(udf: &KeyBoundUdf, bounds: ArrayRef) -> ArrayRef {
        let rows = bounds.len();
        let args = ScalarFunctionArgs {
            arg_fields: vec![Arc::new(Field::new("b", bounds.data_type().clone(), true))],
            args: vec![ColumnarValue::Array(bounds)],
            number_rows: rows,
            return_field: Arc::new(Field::new("k", udf.key_type.clone(), true)),
            config_options: Arc::new(ConfigOptions::default()),
        };
        let value = udf.invoke_with_args(args).unwrap();
        value.into_array(rows).unwrap()
    }

    #[test]
    fn converted_bounds_hold_for_the_same_keys() {
        let all = [
            Comparison::Above,
            Comparison::AtLeast,
            Comparison::Below,
            Comparison::AtMost,
        ];
        let bounds: Vec<i64> = (-25..=25)
            .chain([i64::MIN, i64::MAX, i64::MIN + 7, i64::MAX - 7])
            .collect();
        for comparison in all {
            let seconds = DataType::Timestamp(TimeUnit::Second, None);
            let udf = KeyBoundUdf::new(comparison, (10, 1), seconds.clone());
            let keys = converted(&udf, Arc::new(Int64Array::from(bounds.clone())));
            assert_eq!(keys.data_type(), &seconds);
            let keys = integers(&keys).unwrap();
            for (bound, converted) in bounds.iter().zip(keys) {
                for key in [i64::MIN, -3, -2, -1, 0, 1, 2, 3, i64::MAX] {
                    let expected = comparison.holds(&(i128::from(key) * 10), &i128::from(*bound));
                    let found = converted.is_some_and(|converted| {
                        udf.converted_comparison()
                            .holds(&i128::from(key), &converted)
                    });
                    assert_eq!(found, expected, "{key} {comparison:?} {bound}");
                }
            }
        }
    }

    #[test]
    fn bounds_of_a_coarser_unit_hold_for_the_same_keys() {
        let nanoseconds = DataType::Timestamp(TimeUnit::Nanosecond, None);
        let day = 86_400_000_000_000_i128;
        let bounds = [i32::MIN, -200_000, -1, 0, 1, 106_751, 106_752, i32::MAX];
        for comparison in [
            Comparison::Above,
            Comparison::AtLeast,
            Comparison::Below,
            Comparison::AtMost,
        ] {
            let udf = KeyBoundUdf::new(comparison, (1, day), nanoseconds.clone());
            let days = Int32Array::from(bounds.to_vec());
            let keys = integers(&converted(&udf, Arc::new(days))).unwrap();
            for (bound, converted) in bounds.iter().zip(keys) {
                let bound = i128::from(*bound) * day;
                for key in [i64::MIN, i64::MAX]
                    .into_iter()
                    .chain([-1, 0, 1].map(|i| i64::try_from(day).unwrap() + i))
                {
                    let expected = comparison.holds(&i128::from(key), &bound);
                    let found = converted.is_some_and(|converted| {
                        udf.converted_comparison()
                            .holds(&i128::from(key), &converted)
                    });
                    assert_eq!(found, expected, "{key} {comparison:?} {bound}");
                }
            }
        }
    }

    #[test]
    fn keys_whose_difference_wraps_around_are_in_the_range() {
        let all = || i8::MIN..=i8::MAX;
        let bounds: ArrayRef = Arc::new(Int8Array::from_iter_values(all()));
        for (comparison, is_of_bound) in [
            (Comparison::Above, true),
            (Comparison::AtLeast, false),
            (Comparison::Below, false),
            (Comparison::AtMost, true),
        ] {
            for offset in [-128, -7, 0, 3, 127, 200] {
                let last = if comparison.is_lower() { 127 } else { -128 };
                let (stated, sign) = match comparison {
                    _ if is_of_bound => (comparison, 1),
                    Comparison::AtLeast => (Comparison::AtMost, -1),
                    _ => (Comparison::Above, -1),
                };
                let udf = KeyBoundUdf::new(stated, (1, 1), DataType::Int8);
                let udf = udf.with_offset(sign * offset).with_opposite(sign * last);
                let wrapped = udf.wrapped().unwrap();
                let (ends, limits) = (
                    converted(&udf, Arc::clone(&bounds)),
                    converted(&wrapped, Arc::clone(&bounds)),
                );
                let (ends, limits) = (integers(&ends).unwrap(), integers(&limits).unwrap());
                let mut beyond = 0;
                for (row, bound) in all().enumerate() {
                    for key in all() {
                        let difference = if is_of_bound {
                            key.wrapping_sub(bound)
                        } else {
                            bound.wrapping_sub(key)
                        };
                        let in_range = |udf: &KeyBoundUdf, end: Option<i128>| {
                            let comparison = udf.converted_comparison();
                            end.is_some_and(|end| comparison.holds(&i128::from(key), &end))
                        };
                        let wraps = in_range(&wrapped, limits[row]);
                        beyond += usize::from(wraps);
                        if comparison.holds(&i128::from(difference), &offset) {
                            assert!(wraps || in_range(&udf, ends[row]), "{key} {bound} {offset}");
                        }
                        assert_eq!(
                            wraps,
                            wraps && difference.signum() == i8::try_from(last).unwrap().signum()
                        );
                    }
                }
                assert!(beyond < 256 * 256 / 4);
            }
        }
    }

    #[test]
    fn bounds_beyond_the_key_are_everything_or_nothing() {
        let bounds = || -> ArrayRef {
            let values = [Some(i128::MAX), Some(i128::MIN), None, Some(1500)];
            let values: Decimal128Array = values.into_iter().collect();
            Arc::new(values.with_precision_and_scale(38, 3).unwrap())
        };
        for (comparison, expected) in [
            (Comparison::AtLeast, [None, Some(-128), None, Some(2)]),
            (Comparison::Above, [None, Some(-128), None, Some(2)]),
            (Comparison::AtMost, [Some(127), None, None, Some(1)]),
            (Comparison::Below, [Some(127), None, None, Some(1)]),
        ] {
            let udf = KeyBoundUdf::new(comparison, (1000, 1), DataType::Int8);
            let found = integers(&converted(&udf, bounds())).unwrap();
            assert_eq!(found, expected, "{comparison:?}");
        }
        let times = DataType::Time32(TimeUnit::Second);
        assert_eq!(
            integers(&of_type(&[Some(5)], &times).unwrap()).unwrap(),
            [Some(5)]
        );
    }
}
