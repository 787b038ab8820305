//! The names `first(x)` and `last(x)` of DataFusion's `first_value` and `last_value`, which other engines have.

use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};
use datafusion::functions_aggregate::first_last::{first_value_udaf, last_value_udaf};
use datafusion::functions_window::nth_value::{first_value_udwf, last_value_udwf};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::planner::{
    ExprPlanner, PlannerResult, RawAggregateExpr, RawWindowExpr,
};
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, Signature, Volatility, WindowFunctionDefinition,
};

/// The names, which [`FirstLastPlanner`] replaces by the functions.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct FirstLastUdf {
    is_first: bool,
    signature: Signature,
}

impl FirstLastUdf {
    /// Both.
    pub(crate) fn all() -> [Self; 2] {
        [true, false].map(|is_first| Self {
            is_first,
            signature: Signature::any(1, Volatility::Immutable),
        })
    }
}

impl AggregateUDFImpl for FirstLastUdf {
    fn name(&self) -> &'static str {
        if self.is_first { "first" } else { "last" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        match arg_types {
            [value] => Ok(value.clone()),
            _ => internal_err!("{} takes one argument", self.name()),
        }
    }

    fn accumulator(&self, _args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        internal_err!("SQL plans {0} as {0}_value", self.name())
    }
}

/// Plans `first` as `first_value` and `last` as `last_value`, as aggregates and over windows.
#[derive(Debug)]
pub(crate) struct FirstLastPlanner;

impl ExprPlanner for FirstLastPlanner {
    fn plan_aggregate(
        &self,
        mut expr: RawAggregateExpr,
    ) -> Result<PlannerResult<RawAggregateExpr>> {
        if let Some(name) = expr.func.inner().downcast_ref::<FirstLastUdf>() {
            expr.func = if name.is_first {
                first_value_udaf()
            } else {
                last_value_udaf()
            };
        }
        Ok(PlannerResult::Original(expr))
    }

    fn plan_window(&self, mut expr: RawWindowExpr) -> Result<PlannerResult<RawWindowExpr>> {
        if let WindowFunctionDefinition::AggregateUDF(function) = &expr.func_def
            && let Some(name) = function.inner().downcast_ref::<FirstLastUdf>()
        {
            let function = if name.is_first {
                first_value_udwf()
            } else {
                last_value_udwf()
            };
            expr.func_def = WindowFunctionDefinition::WindowUDF(function);
        }
        Ok(PlannerResult::Original(expr))
    }
}
