//! The distance of two values, which never overflows: `abs(a - b)` of integers wraps around, and of timestamps may be
//! an error.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Decimal128Array};
use arrow::compute::kernels::arity::binary;
use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, Decimal256Type, Float64Type,
};
use datafusion_common::{Result, internal_err, plan_err};
use datafusion_expr::type_coercion::binary::comparison_coercion;
use datafusion_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};

use crate::expr::key_bound::integers;
use crate::expr::ticks::{has_zone, ticks};

/// The function `rmq_distance(a, b)`. Of integers it is an integer, of dates and times a number of nanoseconds, each as
/// a decimal, which has room for all; of floats it is a float.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct DistanceUdf {
    signature: Signature,
}

impl DistanceUdf {
    /// The function.
    pub fn new() -> Self {
        Self {
            signature: Signature::user_defined(Volatility::Immutable),
        }
    }
}

impl ScalarUDFImpl for DistanceUdf {
    fn name(&self) -> &'static str {
        "rmq_distance"
    }

    /// Plans show what it is.
    fn display_name(&self, args: &[Expr]) -> Result<String> {
        Ok(match args {
            [a, b] => format!("abs({a} - {b})"),
            _ => self.name().to_string(),
        })
    }

    /// The name that the column had before the function took the place of `abs`.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        Ok(match args {
            [a, b] => format!("abs({} - {})", a.schema_name(), b.schema_name()),
            _ => self.name().to_string(),
        })
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        let [a, b] = arg_types else {
            return plan_err!("rmq_distance has two arguments, not {}", arg_types.len());
        };
        let value = |of: &DataType| match of {
            DataType::Dictionary(_, value) => value.as_ref().clone(),
            other => other.clone(),
        };
        let (a, b) = match (value(a), value(b)) {
            (DataType::Null, DataType::Null) => (DataType::Int64, DataType::Int64),
            (DataType::Null, b) => (b.clone(), b),
            (a, DataType::Null) => (a.clone(), a),
            both => both,
        };
        let kinds = ticks(&a).zip(ticks(&b));
        if kinds.is_some_and(|((of_a, _), (of_b, _))| of_a == of_b) {
            // A time without a zone is one in the zone of the other.
            let with_zone = (has_zone(&a) != has_zone(&b)).then(|| comparison_coercion(&a, &b));
            return Ok(match with_zone.flatten() {
                Some(both) => vec![both.clone(), both],
                None => vec![a, b],
            });
        }
        if a.is_numeric() && b.is_numeric() {
            if a.is_floating() || b.is_floating() {
                return Ok(vec![DataType::Float64; 2]);
            }
            let scale = |of: &DataType| match of {
                DataType::Decimal32(_, scale)
                | DataType::Decimal64(_, scale)
                | DataType::Decimal128(_, scale)
                | DataType::Decimal256(_, scale) => *scale,
                _ => 0,
            };
            let scale = scale(&a).max(scale(&b)).max(0);
            return Ok(vec![
                DataType::Decimal256(DECIMAL256_MAX_PRECISION, scale);
                2
            ]);
        }
        plan_err!(
            "rmq_distance: a value of type {a} has no distance from one of type {b}; two numbers, two dates or timestamps, \
             two times, and two durations have"
        )
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        Ok(match arg_types.first() {
            Some(of @ (DataType::Float64 | DataType::Decimal256(..))) => of.clone(),
            _ => DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0),
        })
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let [a, b] = arrays.as_slice() else {
            return internal_err!("a distance is of two values");
        };
        Ok(ColumnarValue::Array(match a.data_type() {
            DataType::Float64 => {
                let (a, b) = (a.as_primitive::<Float64Type>(), b.as_primitive());
                let distances =
                    binary::<_, Float64Type, _, Float64Type>(a, b, |a, b| (a - b).abs());
                Arc::new(distances?)
            }
            DataType::Decimal256(precision, scale) => {
                let (a, b) = (a.as_primitive::<Decimal256Type>(), b.as_primitive());
                let distances = binary::<_, Decimal256Type, _, Decimal256Type>(a, b, |a, b| {
                    a.wrapping_sub(b).wrapping_abs()
                });
                Arc::new(distances?.with_precision_and_scale(*precision, *scale)?)
            }
            _ => Arc::new(of_ticks(a, b)?),
        }))
    }
}

fn of_ticks(a: &ArrayRef, b: &ArrayRef) -> Result<Decimal128Array> {
    let (Some((_, tick_a)), Some((_, tick_b))) = (ticks(a.data_type()), ticks(b.data_type()))
    else {
        return internal_err!("{} is not stored as an integer", a.data_type());
    };
    let pairs = integers(a)?.into_iter().zip(integers(b)?);
    let distances = pairs.map(|(a, b)| Some((a? * tick_a - b? * tick_b).abs()));
    let distances: Decimal128Array = distances.collect();
    Ok(distances.with_precision_and_scale(DECIMAL128_MAX_PRECISION, 0)?)
}
