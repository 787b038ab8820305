//! A time plus a product of an interval and a number, as a bound of a key.
//!
//! ```text
//!   p.ts <= q.ts + q.seconds * INTERVAL '1 second'    p.ts <= rmq_interval_bound('<=', q.ts, INTERVAL '1 second', q.seconds)
//!   p.ts - q.ts <= q.seconds * INTERVAL '1 second'    p.ts <= rmq_difference_bound('<=', q.ts, INTERVAL '1 second', …)
//! ```
//!
//! Where the product or the sum is beyond all times, so is the bound. The key that is returned compares with all keys
//! as the sum would.

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float64Type, Int64Type, IntervalMonthDayNano};
use datafusion_common::{Result, ScalarValue, internal_err};
use datafusion_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};

use crate::expr::interval_product::length_times;
use crate::expr::key_bound::{KeyBoundUdf, comparison_from, integer_limits, integers, of_type};
use crate::expr::ticks::{length, nanoseconds};
use rmq_engine::Comparison;

/// The function `(comparison, time, interval, number)` that returns the least or greatest key that compares as stated
/// with the time plus the product of the interval, which has no months, and the integer or float. NULL if there is no
/// such key, or if one of the last three is NULL.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct IntervalBoundUdf {
    of: Compared,
    signature: Signature,
}

/// What is compared with what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compared {
    /// The key with the sum, which is rounded down to the unit of the time.
    Sum,
    /// The difference of the key and the time with the product.
    Difference,
}

impl IntervalBoundUdf {
    pub fn new(of: Compared) -> Self {
        Self {
            of,
            signature: Signature::any(4, Volatility::Immutable),
        }
    }

    /// The bound of keys that compare with `time + interval * factor` as stated, and how they compare with it.
    pub fn call(
        of: Compared,
        comparison: Comparison,
        time: Expr,
        interval: IntervalMonthDayNano,
        factor: Expr,
    ) -> (Comparison, Expr) {
        let (shown, converted) = match comparison {
            Comparison::AtLeast => (">=", Comparison::AtLeast),
            Comparison::Above => (">", Comparison::AtLeast),
            Comparison::AtMost => ("<=", Comparison::AtMost),
            Comparison::Below => ("<", Comparison::AtMost),
        };
        let interval = lit(ScalarValue::IntervalMonthDayNano(Some(interval)));
        let arguments = vec![lit(shown), time, interval, factor];
        let bound = ScalarUDF::from(Self::new(of)).call(arguments);
        (converted, bound)
    }
}

impl ScalarUDFImpl for IntervalBoundUdf {
    fn name(&self) -> &'static str {
        match self.of {
            Compared::Sum => "rmq_interval_bound",
            Compared::Difference => "rmq_difference_bound",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        match arg_types {
            [_, time, ..] => Ok(time.clone()),
            _ => internal_err!("there is no time"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [shown, time, interval, factor] = args.args.as_slice() else {
            return internal_err!("there is no product");
        };
        let (ColumnarValue::Scalar(shown), ColumnarValue::Scalar(interval)) = (shown, interval)
        else {
            return internal_err!("the comparison and the interval are constants");
        };
        let Some(comparison) = shown.try_as_str().flatten().and_then(comparison_from) else {
            return internal_err!("there is no comparison {shown}");
        };
        let ScalarValue::IntervalMonthDayNano(Some(interval)) = interval else {
            return internal_err!("there is no interval {interval}");
        };
        let length = length(*interval);
        let times: ArrayRef = time.to_array(args.number_rows)?;
        let data_type = times.data_type();
        let (DataType::Timestamp(unit, _), Some(limits)) = (data_type, integer_limits(data_type))
        else {
            return internal_err!("a {data_type} is no timestamp");
        };
        let tick = nanoseconds(*unit);
        let conversion = KeyBoundUdf::new(comparison, (tick, 1), data_type.clone());
        let products = products(length, &factor.to_array(args.number_rows)?)?;
        let keys = integers(&times)?.into_iter().zip(products);
        let keys = keys.map(|(time, product)| {
            let sum = product?.saturating_add(time? * tick);
            let sum = match self.of {
                Compared::Sum => sum.div_euclid(tick).saturating_mul(tick),
                Compared::Difference => sum,
            };
            conversion.convert(sum, limits)
        });
        let keys: Vec<_> = keys.collect();
        let keys = of_type(&keys, data_type)?;
        let is_constant = matches!(
            (time, factor),
            (ColumnarValue::Scalar(_), ColumnarValue::Scalar(_))
        );
        if is_constant && keys.len() == 1 {
            let value = ScalarValue::try_from_array(&keys, 0)?;
            return Ok(ColumnarValue::Scalar(value));
        }
        Ok(ColumnarValue::Array(keys))
    }
}

/// The products of a length in nanoseconds and factors. Beyond 128 bits they are beyond all times.
fn products(length: i128, factors: &ArrayRef) -> Result<Vec<Option<i128>>> {
    if *factors.data_type() == DataType::Int64 {
        let factors = factors.as_primitive::<Int64Type>().iter();
        let product = |factor| length.saturating_mul(i128::from(factor));
        return Ok(factors.map(|factor| factor.map(product)).collect());
    }
    let factors = factors.as_primitive::<Float64Type>().iter();
    let product = |factor| length_times(length, factor);
    factors
        .map(|factor| factor.map(product).transpose())
        .collect()
}
