//! The scalar function `single_row`: the value of a scalar subquery, which may have one row at most.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Int64Type};
use datafusion_common::utils::take_function_args;
use datafusion_common::{Result, exec_err};
use datafusion_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature,
    Volatility,
};

/// The function `single_row(value, rows, about)`: `value`, of any type, if `rows`, a BIGINT, is not above 1, else an
/// error.
///
/// `about` is a column of the outer query. It keeps rules from moving the call below the join of both, to rows that the
/// outer query does not have.
pub fn single_row_udf() -> Arc<ScalarUDF> {
    static FUNCTION: LazyLock<Arc<ScalarUDF>> =
        LazyLock::new(|| Arc::new(ScalarUDF::new_from_impl(SingleRow::new())));
    Arc::clone(&FUNCTION)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct SingleRow {
    signature: Signature,
}

impl SingleRow {
    fn new() -> Self {
        Self {
            signature: Signature::new(TypeSignature::Any(3), Volatility::Immutable),
        }
    }
}

impl ScalarUDFImpl for SingleRow {
    fn name(&self) -> &str {
        "single_row"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        let [value, _, _] = take_function_args(self.name(), arg_types)?;
        Ok(value.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [value, rows, _] = take_function_args(self.name(), args.args)?;
        let rows = rows.to_array(args.number_rows)?;
        let Some(rows) = rows.as_primitive_opt::<Int64Type>() else {
            return exec_err!(
                "the second argument of single_row must be a BIGINT, but is {}",
                rows.data_type()
            );
        };
        match rows.iter().flatten().any(|rows| rows > 1) {
            true => exec_err!(
                "a scalar subquery has more than one row: aggregate them, as in max(…), or take one by ORDER BY … LIMIT 1"
            ),
            false => Ok(value),
        }
    }
}
