//! What rules make of durations: the seconds of one, with their fraction, and intervals that can be compared with one.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, IntervalMonthDayNanoArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Field, FieldRef, Float64Type, Int64Type, IntervalMonthDayNano,
    IntervalMonthDayNanoType, IntervalUnit, TimeUnit,
};
use datafusion_common::{Result, ScalarValue, exec_err, internal_err};
use datafusion_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use crate::common::sql_text::literal_text;
use crate::expr::ticks::length;

const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);

/// The function that returns the seconds of a duration as a float. DataFusion's `date_part('epoch', …)` leaves the
/// fraction out where 32 bits don't have its nanoseconds, and is NULL where they don't have the seconds.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct SecondsUdf {
    signature: Signature,
}

impl SecondsUdf {
    pub fn new() -> Self {
        Self {
            signature: Signature::any(1, Volatility::Immutable),
        }
    }

    /// The seconds of `duration`.
    pub fn call(duration: Expr) -> Expr {
        ScalarUDF::from(Self::new()).call(vec![duration])
    }
}

impl ScalarUDFImpl for SecondsUdf {
    fn name(&self) -> &'static str {
        "rmq_seconds"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float64)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(field(self.name(), DataType::Float64, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        mapped(&args.args, seconds)
    }
}

fn seconds(durations: &ArrayRef) -> Result<ArrayRef> {
    let ticks = match durations.data_type() {
        DataType::Duration(TimeUnit::Second) => 1.0,
        DataType::Duration(TimeUnit::Millisecond) => 1e3,
        DataType::Duration(TimeUnit::Microsecond) => 1e6,
        DataType::Duration(TimeUnit::Nanosecond) => 1e9,
        other => return internal_err!("rmq_seconds takes a duration, not a {other}"),
    };
    let durations = cast(durations, &DataType::Int64)?;
    let durations = durations.as_primitive::<Int64Type>();
    let seconds: Float64Array = durations.unary::<_, Float64Type>(|n| float(n) / ticks);
    Ok(Arc::new(seconds))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "as DataFusion converts intervals"
)]
fn float(ticks: i64) -> f64 {
    ticks as f64
}

/// The function that returns an interval without days, a day being 24 hours: one that DataFusion compares with a
/// duration as it should. It compares months first, then days, then nanoseconds, and a duration has nanoseconds only.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct DaysAsTimeUdf {
    signature: Signature,
}

impl DaysAsTimeUdf {
    pub fn new() -> Self {
        Self {
            signature: Signature::exact(vec![INTERVAL], Volatility::Immutable),
        }
    }

    /// The interval without days.
    pub fn call(interval: Expr) -> Expr {
        ScalarUDF::from(Self::new()).call(vec![interval])
    }
}

impl ScalarUDFImpl for DaysAsTimeUdf {
    fn name(&self) -> &'static str {
        "rmq_days_as_time"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(INTERVAL)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(field(self.name(), INTERVAL, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        mapped(&args.args, |intervals| {
            let intervals = intervals.as_primitive::<IntervalMonthDayNanoType>().iter();
            let mapped = intervals.map(|interval| interval.map(days_as_time).transpose());
            Ok(Arc::new(
                mapped.collect::<Result<IntervalMonthDayNanoArray>>()?,
            ))
        })
    }
}

/// An interval without days, or an interval of days alone that is longer than all durations.
///
/// # Errors
/// An execution error for an interval with months.
pub fn days_as_time(interval: IntervalMonthDayNano) -> Result<IntervalMonthDayNano> {
    if interval.months != 0 {
        let shown = literal_text(&ScalarValue::IntervalMonthDayNano(Some(interval)));
        return exec_err!(
            "the difference of two times is compared with {shown}, but months have no one length: compare with days, as \
             a.ts - b.ts <= INTERVAL '30 days', or the times, as a.ts <= b.ts + INTERVAL '1 month'"
        );
    }
    // Else the days alone say how it compares with a duration, which has none.
    Ok(match i64::try_from(length(interval)) {
        Ok(nanoseconds) => IntervalMonthDayNano::new(0, 0, nanoseconds),
        Err(_) => interval,
    })
}

/// The field of a value that is NULL only where an argument is.
fn field(name: &str, data_type: DataType, args: &ReturnFieldArgs) -> FieldRef {
    let is_nullable = args.arg_fields.iter().any(|field| field.is_nullable());
    Arc::new(Field::new(name, data_type, is_nullable))
}

/// The values of a function of one argument.
fn mapped(
    args: &[ColumnarValue],
    map: impl Fn(&ArrayRef) -> Result<ArrayRef>,
) -> Result<ColumnarValue> {
    Ok(match args {
        [ColumnarValue::Array(values)] => ColumnarValue::Array(map(values)?),
        [ColumnarValue::Scalar(value)] => {
            let mapped = map(&value.to_array()?)?;
            ColumnarValue::Scalar(ScalarValue::try_from_array(&mapped, 0)?)
        }
        _ => return internal_err!("a function of one argument has {}", args.len()),
    })
}
