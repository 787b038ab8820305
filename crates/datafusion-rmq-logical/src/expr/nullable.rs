//! A value that may be NULL although its argument's type says that it is not: a scalar subquery whose rows are NOT
//! NULL, but which may have no row.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion_common::{Result, internal_err};
use datafusion_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

/// The function that returns its argument, and is nullable. It has the argument's name, and goes as soon as the
/// argument is nullable itself.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct NullableUdf {
    signature: Signature,
}

impl NullableUdf {
    /// `expr`, nullable.
    pub fn call(expr: Expr) -> Expr {
        ScalarUDF::from(Self::new()).call(vec![expr])
    }

    pub fn new() -> Self {
        Self {
            signature: Signature::any(1, Volatility::Immutable),
        }
    }

    /// The argument, if `expr` is such a call.
    pub fn argument(expr: &Expr) -> Option<&Expr> {
        match expr {
            Expr::ScalarFunction(call) if call.func.inner().is::<Self>() => call.args.first(),
            _ => None,
        }
    }
}

impl ScalarUDFImpl for NullableUdf {
    fn name(&self) -> &'static str {
        "rmq_nullable"
    }

    fn display_name(&self, args: &[Expr]) -> Result<String> {
        Ok(args.first().map(ToString::to_string).unwrap_or_default())
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let name = args.first().map(Expr::schema_name);
        Ok(name.map(|name| name.to_string()).unwrap_or_default())
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        match arg_types {
            [argument] => Ok(argument.clone()),
            _ => internal_err!("{} takes one argument", self.name()),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        match args.arg_fields {
            [argument] => {
                let field = Field::clone(argument).with_nullable(true);
                Ok(Arc::new(field))
            }
            _ => internal_err!("{} takes one argument", self.name()),
        }
    }

    fn simplify(
        &self,
        mut args: Vec<Expr>,
        context: &SimplifyContext,
    ) -> Result<ExprSimplifyResult> {
        let is_nullable = args.first().map(|argument| context.nullable(argument));
        Ok(match (is_nullable.transpose()?, args.pop()) {
            // A subquery is nullable until its own rows are simplified.
            (Some(true), Some(argument)) if !matches!(argument, Expr::ScalarSubquery(_)) => {
                ExprSimplifyResult::Simplified(argument)
            }
            (_, argument) => ExprSimplifyResult::Original(argument.into_iter().collect()),
        })
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.pop() {
            Some(argument) => Ok(argument),
            None => internal_err!("{} takes one argument", self.name()),
        }
    }
}
