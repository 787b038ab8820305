//! Decomposes AVG into a sum and a count, in the type in which DataFusion sums.

use arrow::datatypes::DataType;
use datafusion_common::Result;
use datafusion_expr::expr::AggregateFunction;
use datafusion_expr::{Cast, Expr, ExprSchemable, ScalarUDF, cast, when};
use datafusion_functions_aggregate::sum::sum_udaf;

use crate::conditions::rejection::{Match, reject};
use crate::expr::decimal_average::DecimalAverageUdf;
use crate::logical_plan::range_join::AggregateKind;
use crate::rules::aggregate_decomposition::{
    AggregateDecomposition, DecomposedAggregate, aggregate,
};

impl AggregateDecomposition<'_> {
    /// Decomposes an average into a sum and a count.
    pub fn average(
        &mut self,
        call: &AggregateFunction,
        argument: &Expr,
    ) -> Match<DecomposedAggregate> {
        if let Expr::Cast(Cast { expr, field }) = argument
            && field.data_type() == &DataType::Float64
            && expr.get_type(self.build)?.is_integer()
        {
            // The exact sum, divided once. A sum of fewer than 2^32 values does not overflow 20 digits.
            return self.quotient(call, expr, DataType::Decimal128(20, 0), |sum, count| {
                cast(sum, DataType::Float64) / cast(count, DataType::Float64)
            });
        }
        let data_type = argument.get_type(self.build)?;
        if data_type == DataType::Null {
            // Only NULLs, as in a column of a CSV file without rows. DataFusion's average of them is a Float64.
            return self.quotient(call, argument, DataType::Float64, |sum, count| {
                sum / cast(count, DataType::Float64)
            });
        }
        let average = call.func.return_type(std::slice::from_ref(&data_type))?;
        if matches!(data_type, DataType::Duration(_)) {
            return self.quotient(call, argument, data_type, |sum, count| {
                cast(cast(sum, DataType::Int64) / count, average.clone())
            });
        }
        if data_type == DataType::Float64 {
            return self.quotient(call, argument, data_type, |sum, count| {
                sum / cast(count, DataType::Float64)
            });
        }
        if let Some(sum_type) = DecimalAverageUdf::sum_type(&data_type) {
            let udf = ScalarUDF::from(DecimalAverageUdf::new(average));
            return self.quotient(call, argument, sum_type, |sum, count| {
                udf.call(vec![sum, count])
            });
        }
        reject(format!(
            "a range join has no average of {argument}, a {data_type}"
        ))
    }

    /// Decomposes an average: `divide` computes it from the sum and the count. It is NULL if there is no value.
    fn quotient(
        &mut self,
        call: &AggregateFunction,
        argument: &Expr,
        sum_type: DataType,
        divide: impl Fn(Expr, Expr) -> Expr,
    ) -> Match<DecomposedAggregate> {
        let argument = if argument.get_type(self.build)? == sum_type {
            argument.clone()
        } else {
            cast(argument.clone(), sum_type.clone())
        };
        let argument = self.filtered(&argument, call)?;
        let sum = self.add(AggregateKind::Sum, vec![argument.clone()], sum_type);
        let count = self.add(AggregateKind::Count, vec![argument], DataType::Int64);
        let divided = |sum: Expr, count: Expr| -> Result<Expr> {
            when(sum.clone().is_not_null(), divide(sum, count)).end()
        };
        let row_value = divided(sum.clone(), count.clone())?;
        let sums = self.decomposed(sum.clone(), aggregate(sum_udaf(), sum));
        let counts = self.decomposed(count.clone(), aggregate(sum_udaf(), count));
        Ok(DecomposedAggregate {
            row_value,
            group_aggregates: [sums.group_aggregates, counts.group_aggregates].concat(),
            group_value: divided(sums.group_value, counts.group_value)?,
        })
    }
}
