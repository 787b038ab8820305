//! The bounds of ranges: inclusive integers of any type, or decimals of scale 0, in Arrow arrays.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, Int64Array};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Int64Type, UInt64Type,
};
use datafusion_common::{Result, plan_err};

use crate::common::row_number::rows_between;
use rmq_engine::CandidateRanges;

/// Returns the type that argument `name` of `function` is coerced to: its own for an integer or a decimal of scale 0
/// (as which DataFusion types `row_number() OVER (…) - 1`), Int64 for a bare NULL or an untyped parameter.
///
/// # Errors
/// A planning error that names the function, the argument and its type, for all other types.
pub fn coerce_bound(function: &str, name: &str, data_type: &DataType) -> Result<DataType> {
    match data_type {
        t if is_position(t) => Ok(t.clone()),
        DataType::Null => Ok(DataType::Int64),
        DataType::Dictionary(_, value) if is_position(value) => Ok(value.as_ref().clone()),
        other => plan_err!(
            "{function}: the bound {name} is a {other}, but positions are integers; cast it, for example CAST({name} AS BIGINT)"
        ),
    }
}

/// Whether values of this type are positions.
fn is_position(data_type: &DataType) -> bool {
    data_type.is_integer()
        || matches!(
            data_type,
            DataType::Decimal32(_, 0)
                | DataType::Decimal64(_, 0)
                | DataType::Decimal128(_, 0)
                | DataType::Decimal256(_, 0)
        )
}

/// Checks that a call has as many arguments as `what` lists.
///
/// # Errors
/// A planning error for any other number.
pub fn check_argument_count(
    function: &str,
    given: usize,
    expected: usize,
    what: &str,
) -> Result<()> {
    if given == expected {
        return Ok(());
    }
    plan_err!("{function} takes {expected} arguments ({what}), but {given} were given")
}

/// Inclusive ranges of positions, one per row, not clipped to a column.
#[derive(Debug, Clone)]
pub struct Ranges {
    left: Int64Array,
    right: Int64Array,
}

impl From<CandidateRanges> for Ranges {
    fn from(candidates: CandidateRanges) -> Self {
        let (left, right) = candidates.into_inclusive();
        Self::new(left, right)
    }
}

impl Ranges {
    /// Reads two integer arrays of the same length. A row with a NULL bound becomes an empty range.
    ///
    /// # Errors
    /// Arrow's, for arrays that can't be cast to Int64.
    pub fn try_new(left: &ArrayRef, right: &ArrayRef) -> Result<Self> {
        let (left, right) = (to_int64(left)?, to_int64(right)?);
        let Some(nulls) =
            NullBuffer::union(left.nulls(), right.nulls()).filter(|n| n.null_count() > 0)
        else {
            return Ok(Self { left, right });
        };
        let or_else = |bounds: &Int64Array, empty| {
            (0..bounds.len())
                .map(|i| {
                    if nulls.is_valid(i) {
                        bounds.value(i)
                    } else {
                        empty
                    }
                })
                .collect::<Vec<_>>()
        };
        Ok(Self {
            left: or_else(&left, 0).into(),
            right: or_else(&right, -1).into(),
        })
    }

    /// Ranges with these left and right bounds, in vectors of the same length.
    pub fn new(left: Vec<i64>, right: Vec<i64>) -> Self {
        Self {
            left: left.into(),
            right: right.into(),
        }
    }

    /// The ranges of single positions, empty for `None`.
    pub fn of_single(positions: impl IntoIterator<Item = Option<i64>>) -> Self {
        let positions = positions.into_iter();
        positions.map(|p| p.map_or((0, -1), |p| (p, p))).collect()
    }

    /// The number of ranges.
    pub fn len(&self) -> usize {
        self.left.len()
    }

    /// The first position of each range.
    pub fn left(&self) -> &[i64] {
        self.left.values()
    }

    /// The last position of each range, inclusive.
    pub fn right(&self) -> &[i64] {
        self.right.values()
    }

    /// The positions in the range of a row, as numbers of rows.
    ///
    /// # Errors
    /// An internal error for positions that no row has.
    pub fn rows_of(&self, row: usize) -> Result<Range<u32>> {
        rows_between((self.left()[row], self.right()[row]))
    }

    /// Which ranges are not empty.
    pub fn matched(&self) -> impl Iterator<Item = bool> {
        self.iter().map(|(left, right)| left <= right)
    }

    /// The rows of all ranges, and the number of ranges that are not empty.
    pub fn rows(&self) -> (usize, usize) {
        let lengths = self
            .iter()
            .map(|(left, right)| right.saturating_sub(left).saturating_add(1));
        let lengths = lengths.filter_map(|length| usize::try_from(length).ok().filter(|l| *l > 0));
        lengths.fold((0, 0), |(rows, ranges), length| {
            (length.saturating_add(rows), ranges + 1)
        })
    }

    /// The left and right bound of each range.
    pub fn iter(&self) -> impl Iterator<Item = (i64, i64)> {
        let bounds = self.left().iter().zip(self.right());
        bounds.map(|(left, right)| (*left, *right))
    }
}

/// Collects ranges from their left and right bounds.
impl FromIterator<(i64, i64)> for Ranges {
    fn from_iter<T: IntoIterator<Item = (i64, i64)>>(bounds: T) -> Self {
        let (left, right) = bounds.into_iter().unzip();
        Self::new(left, right)
    }
}

/// Converts positions to Int64. Those beyond its limits are beyond every column, and so are the limits.
///
/// # Errors
/// A planning error for a type that is not an integer.
pub fn to_int64(bounds: &ArrayRef) -> Result<Int64Array> {
    fn saturated<T: ArrowPrimitiveType>(
        bounds: &ArrayRef,
        is_negative: fn(T::Native) -> bool,
    ) -> Int64Array
    where
        i64: TryFrom<T::Native>,
    {
        bounds.as_primitive::<T>().unary(|bound| {
            i64::try_from(bound).unwrap_or(if is_negative(bound) {
                i64::MIN
            } else {
                i64::MAX
            })
        })
    }
    Ok(match bounds.data_type() {
        DataType::Int64 => bounds.as_primitive::<Int64Type>().clone(),
        DataType::UInt64 => saturated::<UInt64Type>(bounds, |_| false),
        DataType::Decimal32(..) => saturated::<Decimal32Type>(bounds, i32::is_negative),
        DataType::Decimal64(..) => saturated::<Decimal64Type>(bounds, i64::is_negative),
        DataType::Decimal128(..) => saturated::<Decimal128Type>(bounds, i128::is_negative),
        DataType::Decimal256(..) => bounds.as_primitive::<Decimal256Type>().unary(|bound| {
            let limit = if bound.is_negative() {
                i64::MIN
            } else {
                i64::MAX
            };
            bound
                .to_i128()
                .and_then(|b| i64::try_from(b).ok())
                .unwrap_or(limit)
        }),
        _ => cast(bounds, &DataType::Int64)?
            .as_primitive::<Int64Type>()
            .clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Decimal128Array, Decimal256Array, Int8Array, UInt64Array};
    use arrow::datatypes::i256;

    use super::*;

    #[test]
    fn null_bounds_are_empty_ranges_and_huge_unsigned_bounds_saturate() {
        let left: ArrayRef = Arc::new(Int8Array::from(vec![Some(-3), None, Some(2)]));
        let right: ArrayRef = Arc::new(UInt64Array::from(vec![Some(u64::MAX), Some(7), None]));
        let ranges = Ranges::try_new(&left, &right).unwrap();
        assert_eq!((ranges.left()[0], ranges.right()[0]), (-3, i64::MAX));
        for row in [1, 2] {
            assert!(ranges.left()[row] > ranges.right()[row]);
        }
    }

    #[test]
    fn huge_decimal_bounds_saturate() {
        let narrow: Decimal128Array = [Some(-7), Some(i128::MIN), Some(i128::MAX)]
            .into_iter()
            .collect();
        let narrow: ArrayRef = Arc::new(narrow.with_precision_and_scale(38, 0).unwrap());
        let wide: Decimal256Array = [Some(i256::from_i128(9)), Some(i256::MIN), Some(i256::MAX)]
            .into_iter()
            .collect();
        let wide: ArrayRef = Arc::new(wide.with_precision_and_scale(76, 0).unwrap());
        let ranges = Ranges::try_new(&narrow, &wide).unwrap();
        assert_eq!(ranges.left(), [-7, i64::MIN, i64::MAX]);
        assert_eq!(ranges.right(), [9, i64::MIN, i64::MAX]);
        let small: ArrayRef = Arc::new(Decimal128Array::from(vec![12]));
        let small = cast(&small, &DataType::Decimal32(9, 0)).unwrap();
        assert_eq!(to_int64(&small).unwrap().data_type(), &DataType::Int64);
    }
}
