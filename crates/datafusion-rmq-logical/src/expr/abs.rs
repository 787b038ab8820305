//! `abs` of durations beside that of numbers: `abs(p.ts - q.ts)` is the distance of two times.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, TimeUnit};
use datafusion_common::{Result, exec_datafusion_err};
use datafusion_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    TypeSignature, Volatility,
};
use datafusion_functions::math;

/// DataFusion's `abs`, which takes durations, too.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct AbsUdf {
    of_numbers: Arc<ScalarUDF>,
    signature: Signature,
}

impl AbsUdf {
    /// The function.
    pub fn new() -> Self {
        let units = [
            TimeUnit::Second,
            TimeUnit::Millisecond,
            TimeUnit::Microsecond,
            TimeUnit::Nanosecond,
        ];
        let durations = units.map(|unit| TypeSignature::Exact(vec![DataType::Duration(unit)]));
        let mut types = vec![TypeSignature::Numeric(1)];
        types.extend(durations);
        Self {
            of_numbers: math::abs(),
            signature: Signature::one_of(types, Volatility::Immutable),
        }
    }
}

impl ScalarUDFImpl for AbsUdf {
    fn name(&self) -> &'static str {
        "abs"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.of_numbers.return_type(arg_types)
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some(DataType::Duration(unit)) = args.args.first().map(ColumnarValue::data_type) else {
            return self.of_numbers.invoke_with_args(args);
        };
        let ticks = args.args.iter();
        let ticks = ticks.map(|value| value.cast_to(&DataType::Int64, None));
        let field = Arc::new(Field::new("ticks", DataType::Int64, true));
        let absolute = self.of_numbers.invoke_with_args(ScalarFunctionArgs {
            args: ticks.collect::<Result<_>>()?,
            arg_fields: vec![Arc::clone(&field)],
            return_field: field,
            ..args
        });
        let too_long = |_| {
            exec_datafusion_err!(
                "abs: the duration is the least one, whose absolute value is too long"
            )
        };
        absolute
            .map_err(too_long)?
            .cast_to(&DataType::Duration(unit), None)
    }

    fn output_ordering(&self, input: &[ExprProperties]) -> Result<SortProperties> {
        self.of_numbers.inner().output_ordering(input)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.of_numbers.documentation()
    }
}
