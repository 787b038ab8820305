//! The average of decimals from their sum and count: the last step of DataFusion's AVG.

use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowNativeTypeOp, AsArray, Int64Array, PrimitiveArray};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowNativeType, DECIMAL32_MAX_PRECISION, DECIMAL64_MAX_PRECISION, DECIMAL128_MAX_PRECISION,
    DECIMAL256_MAX_PRECISION, DataType, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType,
    Int64Type,
};
use datafusion_common::{Result, exec_datafusion_err, exec_err, internal_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility};

/// The function `(sum, count)` that returns the average, truncated to the digits of its type. NULL if the sum is NULL.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct DecimalAverageUdf {
    /// The return type of AVG.
    pub average: DataType,
    signature: Signature,
}

impl DecimalAverageUdf {
    /// The function for averages of this type.
    pub fn new(average: DataType) -> Self {
        Self {
            average,
            signature: Signature::any(2, Volatility::Immutable),
        }
    }

    /// The type in which DataFusion's AVG sums decimals of this type, with room for the digits that AVG adds and for
    /// 10^9 rows. `None` for other types, and for decimals of negative scale, which AVG does not support.
    pub fn sum_type(data_type: &DataType) -> Option<DataType> {
        let (precision, scale) = decimal_digits(data_type).filter(|(_, scale)| *scale >= 0)?;
        let most = match data_type {
            DataType::Decimal32(..) => DECIMAL32_MAX_PRECISION,
            DataType::Decimal64(..) => DECIMAL64_MAX_PRECISION,
            DataType::Decimal128(..) => DECIMAL128_MAX_PRECISION,
            _ => DECIMAL256_MAX_PRECISION,
        };
        let needed = precision.saturating_add(4 + 9).max(most);
        Some(if needed <= DECIMAL64_MAX_PRECISION {
            DataType::Decimal64(DECIMAL64_MAX_PRECISION, scale)
        } else if needed <= DECIMAL128_MAX_PRECISION {
            DataType::Decimal128(DECIMAL128_MAX_PRECISION, scale)
        } else {
            DataType::Decimal256(DECIMAL256_MAX_PRECISION, scale)
        })
    }
}

impl ScalarUDFImpl for DecimalAverageUdf {
    fn name(&self) -> &'static str {
        "rmq_decimal_average"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(self.average.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let [sums, counts] = arrays.as_slice() else {
            return internal_err!("an average is of a sum and a count, not {}", arrays.len());
        };
        let counts = counts.as_primitive::<Int64Type>();
        let averages = match sums.data_type() {
            DataType::Decimal64(_, scale) => {
                averages::<Decimal64Type>(sums, *scale, counts, &self.average)?
            }
            DataType::Decimal128(_, scale) => {
                averages::<Decimal128Type>(sums, *scale, counts, &self.average)?
            }
            DataType::Decimal256(_, scale) => {
                averages::<Decimal256Type>(sums, *scale, counts, &self.average)?
            }
            other => return internal_err!("sums for an average are no {other}"),
        };
        // The same digits, possibly in fewer bits.
        Ok(ColumnarValue::Array(cast(&averages, &self.average)?))
    }
}

/// Computes averages in the native type of the sums.
fn averages<S: DecimalType>(
    sums: &ArrayRef,
    scale: i8,
    counts: &Int64Array,
    average: &DataType,
) -> Result<ArrayRef> {
    let Some((precision, target)) = decimal_digits(average) else {
        return internal_err!("the average of decimals is a {average}");
    };
    let overflow = || exec_datafusion_err!("Arithmetic Overflow in AvgAccumulator");
    let Ok(digits) = u32::try_from(target - scale) else {
        return exec_err!("Arithmetic Overflow in AvgAccumulator");
    };
    let number = |n: usize| S::Native::from_usize(n).ok_or_else(overflow);
    let factor = number(10)?.pow_checked(digits)?;
    let one = |sum: S::Native, count: i64| -> Result<S::Native> {
        let count = number(usize::try_from(count).map_err(|_| overflow())?)?;
        let scaled = sum.mul_checked(factor).map_err(|_| overflow())?;
        let average = scaled.div_checked(count).map_err(|_| overflow())?;
        S::validate_decimal_precision(average, precision, target).map_err(|_| overflow())?;
        Ok(average)
    };
    let pairs = sums.as_primitive::<S>().iter().zip(counts);
    let averages = pairs.map(|pair| match pair {
        (Some(sum), Some(count)) => one(sum, count).map(Some),
        _ => Ok(None),
    });
    let averages = averages.collect::<Result<PrimitiveArray<S>>>()?;
    Ok(Arc::new(averages.with_precision_and_scale(
        // The precision was checked above.
        precision, target,
    )?))
}

/// The precision and the scale of a decimal.
pub fn decimal_digits(data_type: &DataType) -> Option<(u8, i8)> {
    match data_type {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => Some((*precision, *scale)),
        _ => None,
    }
}
