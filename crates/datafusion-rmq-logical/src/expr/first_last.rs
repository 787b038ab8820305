//! The names `first(x)` and `last(x)` of DataFusion's `first_value` and `last_value`, which other engines have.

use arrow::datatypes::DataType;
use datafusion_common::{Result, internal_err};
use datafusion_expr::expr::{AggregateFunction, WindowFunction, WindowFunctionParams};
use datafusion_expr::function::AccumulatorArgs;
use datafusion_expr::planner::{ExprPlanner, PlannerResult, RawAggregateExpr, RawWindowExpr};
use datafusion_expr::{
    Accumulator, AggregateUDFImpl, Expr, Signature, Volatility, WindowFunctionDefinition,
};
use datafusion_functions_aggregate::first_last::{first_value_udaf, last_value_udaf};
use datafusion_functions_window::nth_value::{first_value_udwf, last_value_udwf};

/// The names, which [`FirstLastPlanner`] replaces by the functions.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct FirstLastUdf {
    is_first: bool,
    signature: Signature,
}

impl FirstLastUdf {
    /// Both.
    pub fn all() -> [Self; 2] {
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

    fn supports_null_handling_clause(&self) -> bool {
        true
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
///
/// DataFusion names what is called by another name by the arguments alone, so that two calls that differ in ORDER BY,
/// FILTER or OVER would have one name. The names here have these, too.
#[derive(Debug)]
pub struct FirstLastPlanner;

impl ExprPlanner for FirstLastPlanner {
    fn plan_aggregate(&self, expr: RawAggregateExpr) -> Result<PlannerResult<RawAggregateExpr>> {
        let Some(name) = expr.func.inner().downcast_ref::<FirstLastUdf>() else {
            return Ok(PlannerResult::Original(expr));
        };
        let function = if name.is_first {
            first_value_udaf()
        } else {
            last_value_udaf()
        };
        let call = Expr::AggregateFunction(AggregateFunction::new_udf(
            function,
            expr.args,
            expr.distinct,
            expr.filter,
            expr.order_by,
            expr.null_treatment,
        ));
        Ok(PlannerResult::Planned(name.short_name(call)))
    }

    fn plan_window(&self, expr: RawWindowExpr) -> Result<PlannerResult<RawWindowExpr>> {
        let WindowFunctionDefinition::AggregateUDF(function) = &expr.func_def else {
            return Ok(PlannerResult::Original(expr));
        };
        let Some(name) = function.inner().downcast_ref::<FirstLastUdf>() else {
            return Ok(PlannerResult::Original(expr));
        };
        let function = if name.is_first {
            first_value_udwf()
        } else {
            last_value_udwf()
        };
        let call = Expr::WindowFunction(Box::new(WindowFunction {
            fun: WindowFunctionDefinition::WindowUDF(function),
            params: WindowFunctionParams {
                args: expr.args,
                partition_by: expr.partition_by,
                order_by: expr.order_by,
                window_frame: expr.window_frame,
                filter: expr.filter,
                null_treatment: expr.null_treatment,
                distinct: expr.distinct,
            },
        }));
        Ok(PlannerResult::Planned(name.short_name(call)))
    }
}

impl FirstLastUdf {
    /// A call of the function, named as a call of this one.
    fn short_name(&self, call: Expr) -> Expr {
        let name = call.schema_name().to_string();
        match name.split_once("_value") {
            Some((_, rest)) => call.alias(format!("{}{rest}", self.name())),
            None => call,
        }
    }
}
