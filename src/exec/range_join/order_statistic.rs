//! Statistics that a value of a range's sorted values is, or that are between two of them, and the number of distinct
//! ones. The arithmetic is that of DataFusion's functions, so that the answers are the same bits.

use arrow::datatypes::{ArrowNativeTypeOp, DataType};
use datafusion::common::ScalarValue;
use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::median::Median;
use datafusion::functions_aggregate::percentile_cont::PercentileCont;

use crate::logical_plan::accumulator_call::AccumulatorCall;

/// A statistic of the values of a range that are not NULL.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum OrderStatistic {
    Median,
    /// Between 0 and 1.
    Percentile(f64),
    CountDistinct,
}

impl OrderStatistic {
    /// The statistic that a call computes of its only column, if it is one.
    pub(crate) fn of_call(call: &AccumulatorCall) -> Option<Self> {
        if call.is_filtered || call.returns_state || call.num_columns() != 1 {
            return None;
        }
        let function = call.function.inner();
        match (call.literals.as_slice(), call.is_distinct) {
            ([None], true) if function.is::<Count>() => Some(Self::CountDistinct),
            ([None], false) if function.is::<Median>() => Some(Self::Median),
            ([None, Some(literal)], false) if function.is::<PercentileCont>() => {
                let ScalarValue::Float64(Some(percentile)) =
                    literal.cast_to(&DataType::Float64).ok()?
                else {
                    return None;
                };
                let is_descending = match call.order_by.as_slice() {
                    [] => false,
                    // Only its direction matters: it is by the value, or by what was cast to it.
                    [by] => !by.ascending,
                    _ => return None,
                };
                let percentile = if is_descending {
                    1.0 - percentile
                } else {
                    percentile
                };
                Some(Self::Percentile(percentile))
            }
            _ => None,
        }
    }

    /// Whether it is known for values of this type: where they are equal, and between them, as DataFusion says.
    pub(crate) fn is_known_for(self, data_type: &DataType) -> bool {
        match self {
            Self::Median => is_float(data_type) || data_type.is_decimal(),
            Self::Percentile(_) => is_float(data_type),
            Self::CountDistinct => {
                data_type.is_primitive() && *data_type != DataType::Float16
                    || data_type.is_string()
                    || data_type.is_binary()
            }
        }
    }
}

fn is_float(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Float32 | DataType::Float64)
}

/// Where a statistic is among the sorted values of a range.
pub(crate) struct Place {
    /// The numbers of two values, of which the statistic is made. No value has them if the range has none.
    pub(crate) lower: u32,
    pub(crate) upper: u32,
    /// How far it is from the lower to the upper value, between 0 and 1; `None` if it is the lower one.
    pub(crate) weight: Option<f64>,
}

impl Place {
    /// Of a statistic of this many values.
    pub(crate) fn of(statistic: OrderStatistic, rows: u32) -> Self {
        let at = |place| Self {
            lower: place,
            upper: place,
            weight: None,
        };
        let Some(last) = rows.checked_sub(1) else {
            return at(u32::MAX);
        };
        match statistic {
            OrderStatistic::Median if rows.is_multiple_of(2) => Self {
                lower: last / 2,
                upper: rows / 2,
                weight: Some(0.5),
            },
            OrderStatistic::Percentile(percentile) if last > 0 && percentile != 1.0 => {
                let index = percentile * f64::from(last);
                let lower = index.floor();
                // Below `rows`, as the percentile is between 0 and 1.
                let (lower_place, upper_place) = (lower as u32, index.ceil() as u32);
                // DataFusion's precision of the weight.
                let weight = ((index - lower) * PRECISION).trunc() / PRECISION;
                Self {
                    lower: lower_place,
                    upper: upper_place,
                    weight: (lower_place != upper_place).then_some(weight),
                }
            }
            OrderStatistic::Percentile(_) => at(last),
            _ => at(last / 2),
        }
    }
}

/// The steps into which DataFusion divides the way between two values.
const PRECISION: f64 = 1_000_000.0;

/// The mean of two values, as DataFusion's median computes it.
pub(crate) fn middle<T: ArrowNativeTypeOp>(lower: T, upper: T, _: f64) -> T {
    let two = T::usize_as(2);
    if let Ok(sum) = lower.add_checked(upper) {
        return sum.div_wrapping(two);
    }
    // The sum is beyond the type.
    let halves = lower
        .div_wrapping(two)
        .add_wrapping(upper.div_wrapping(two));
    let rests = lower
        .mod_wrapping(two)
        .add_wrapping(upper.mod_wrapping(two));
    halves.add_wrapping(rests.div_wrapping(two))
}

/// The value on the way from one to another, as DataFusion's `percentile_cont` computes it.
pub(crate) fn interpolated(lower: f64, upper: f64, weight: f64) -> f64 {
    lower + (upper - lower) * weight
}
