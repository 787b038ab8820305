//! The product of an interval and a number, for windows whose length is in a column: `a.minutes * INTERVAL '1 minute'`.
//! DataFusion has none. A part of a day is one of 24 hours.

use std::fmt::Display;
use std::sync::Arc;

use arrow::array::{ArrowPrimitiveType, AsArray, IntervalMonthDayNanoArray, PrimitiveArray};
use arrow::datatypes::{
    DataType, Field, Float64Type, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType,
    IntervalUnit,
};
use datafusion_common::{DFSchema, DataFusionError, Result, ScalarValue, exec_datafusion_err};
use datafusion_expr::expr::Placeholder;
use datafusion_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion_expr::{
    ColumnarValue, Expr, ExprSchemable, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    TypeSignature, Volatility, cast,
};
use datafusion_sql::sqlparser::ast::BinaryOperator;

use crate::expr::ticks::length;

const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);

/// Plans `*` of an interval and a number.
#[derive(Debug)]
pub struct IntervalProductPlanner;

impl ExprPlanner for IntervalProductPlanner {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        if expr.op != BinaryOperator::Multiply {
            return Ok(PlannerResult::Original(expr));
        }
        // A subquery, or what is no expression of these columns, is DataFusion's.
        let is_interval = |e: &Expr| e.get_type(schema).is_ok_and(|t| t == INTERVAL);
        let (interval, factor) = if is_interval(&expr.left) {
            (&expr.left, as_factor(&expr.right, schema))
        } else if is_interval(&expr.right) {
            (&expr.right, as_factor(&expr.left, schema))
        } else {
            return Ok(PlannerResult::Original(expr));
        };
        let Some(factor) = factor else {
            return Ok(PlannerResult::Original(expr));
        };
        let product = ScalarUDF::from(IntervalProductUdf::new());
        let product = product.call(vec![interval.clone(), factor]);
        Ok(PlannerResult::Planned(product))
    }
}

/// The number that an expression is, if it is one. A parameter without a type is: DataFusion would take it for another
/// interval.
fn as_factor(expr: &Expr, schema: &DFSchema) -> Option<Expr> {
    if let Expr::Placeholder(Placeholder { id, field: None }) = expr {
        let field = Arc::new(Field::new(id, DataType::Float64, true));
        let id = id.clone();
        return Some(Expr::Placeholder(Placeholder::new_with_field(
            id,
            Some(field),
        )));
    }
    let data_type = expr.get_type(schema).ok()?;
    let factor_type = if data_type.is_integer() {
        DataType::Int64
    } else {
        DataType::Float64
    };
    let is_number = data_type.is_numeric();
    is_number.then(|| cast(expr.clone(), factor_type))
}

/// The function `(interval, number)` that returns their product. The number is an integer or a float.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct IntervalProductUdf {
    signature: Signature,
}

impl IntervalProductUdf {
    /// The function.
    pub fn new() -> Self {
        Self {
            signature: Signature::one_of(
                [DataType::Int64, DataType::Float64]
                    .map(|factor| TypeSignature::Exact(vec![INTERVAL, factor]))
                    .to_vec(),
                Volatility::Immutable,
            ),
        }
    }
}

impl ScalarUDFImpl for IntervalProductUdf {
    fn name(&self) -> &'static str {
        "rmq_interval_product"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(INTERVAL)
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let names = args.iter().map(|arg| arg.schema_name().to_string());
        Ok(names.collect::<Vec<_>>().join(" * "))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let intervals = arrays[0].as_primitive::<IntervalMonthDayNanoType>();
        let products = if *arrays[1].data_type() == DataType::Int64 {
            products(intervals, arrays[1].as_primitive::<Int64Type>(), product)
        } else {
            let factors = arrays[1].as_primitive::<Float64Type>();
            products(intervals, factors, product_of_float)
        }?;
        // Two constants are evaluated as one row of each.
        let is_constant = args
            .args
            .iter()
            .all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        if is_constant && products.len() == 1 {
            let value = ScalarValue::try_from_array(&products, 0)?;
            return Ok(ColumnarValue::Scalar(value));
        }
        Ok(ColumnarValue::Array(Arc::new(products)))
    }
}

/// The products of intervals and factors, NULL if one of both is.
fn products<T: ArrowPrimitiveType>(
    intervals: &IntervalMonthDayNanoArray,
    factors: &PrimitiveArray<T>,
    product: fn(IntervalMonthDayNano, T::Native) -> Result<IntervalMonthDayNano>,
) -> Result<IntervalMonthDayNanoArray> {
    let products = intervals.iter().zip(factors).map(|pair| match pair {
        (Some(interval), Some(factor)) => product(interval, factor).map(Some),
        _ => Ok(None),
    });
    products.collect()
}

fn product_of_float(interval: IntervalMonthDayNano, factor: f64) -> Result<IntervalMonthDayNano> {
    const END_OF_INTEGERS: f64 = 9_223_372_036_854_775_808.0;
    if factor.is_nan() || factor.abs() >= END_OF_INTEGERS {
        return Err(too_long(&factor));
    }
    if factor.fract() == 0.0 {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "it is between the least and the greatest integer"
        )]
        return product(interval, factor as i64);
    }
    if interval.months != 0 {
        return Err(exec_datafusion_err!(
            "an interval with months has no product with {factor}, which is no integer: write it in days, as in 0.5 * INTERVAL \
             '30 days'"
        ));
    }
    let nanoseconds = i64::try_from(length_times(length(interval), factor)?);
    let nanoseconds = nanoseconds.map_err(|_| too_long(&factor))?;
    Ok(IntervalMonthDayNano::new(0, 0, nanoseconds))
}

/// A length in nanoseconds times a factor; beyond 128 bits the last one.
///
/// # Errors
/// An execution error for NaN.
pub fn length_times(length: i128, factor: f64) -> Result<i128> {
    if factor.is_nan() {
        return Err(too_long(&factor));
    }
    // Infinity has no part: its difference is NaN, which becomes 0.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "a factor beyond all integers becomes the last one, and the part is less than the length, which has 81 \
                  bits"
    )]
    let (whole, part) = (
        factor.trunc() as i128,
        (length as f64 * (factor - factor.trunc())).round() as i128,
    );
    Ok(length.saturating_mul(whole).saturating_add(part))
}

fn product(interval: IntervalMonthDayNano, factor: i64) -> Result<IntervalMonthDayNano> {
    let short = |part: i32| {
        i64::from(part)
            .checked_mul(factor)
            .and_then(|p| i32::try_from(p).ok())
    };
    let parts = short(interval.months)
        .zip(short(interval.days))
        .zip(interval.nanoseconds.checked_mul(factor));
    let Some(((months, days), nanoseconds)) = parts else {
        return Err(too_long(&factor));
    };
    Ok(IntervalMonthDayNano::new(months, days, nanoseconds))
}

fn too_long(factor: &dyn Display) -> DataFusionError {
    exec_datafusion_err!(
        "an interval times {factor} is too long: its months and days have 32 bits each, its nanoseconds 64"
    )
}
