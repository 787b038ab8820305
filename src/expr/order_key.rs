//! A value as bytes that compare as ORDER BY does, so that rows whose key is NULL can be sorted with all others.
//!
//! The range key of a range join is never NULL. Where no bound excludes NULLs, `ORDER BY p.ts` sorts them first or last: the range key is then
//! `rmq_order_key(p.ts)`.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::SortOptions;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use datafusion::common::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};

/// The function `(value)` that returns bytes in the order of the values. They are never NULL.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct OrderKeyUdf {
    /// Whether NULL comes before all values instead of after them.
    nulls_first: bool,
    signature: Signature,
}

impl OrderKeyUdf {
    pub(crate) fn new(nulls_first: bool) -> Self {
        Self {
            nulls_first,
            signature: Signature::any(1, Volatility::Immutable),
        }
    }

    /// Whether values of this type can be converted.
    pub(crate) fn supports(data_type: &DataType) -> bool {
        RowConverter::supports_fields(&[SortField::new(data_type.clone())])
    }
}

impl ScalarUDFImpl for OrderKeyUdf {
    fn name(&self) -> &'static str {
        if self.nulls_first {
            "rmq_order_key_nulls_first"
        } else {
            "rmq_order_key"
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Binary)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let values = ColumnarValue::values_to_arrays(&args.args)?;
        let fields = values.iter().map(|values| {
            let options = SortOptions::new(false, self.nulls_first);
            SortField::new_with_options(values.data_type().clone(), options)
        });
        let rows = RowConverter::new(fields.collect())?.convert_columns(&values)?;
        let keys: ArrayRef = Arc::new(rows.try_into_binary()?);
        Ok(ColumnarValue::Array(keys))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Float64Array};
    use arrow::datatypes::Field;
    use datafusion::config::ConfigOptions;

    use super::*;

    #[test]
    fn keys_have_the_order_of_the_values_and_nulls_are_at_either_end() {
        let values = [
            Some(f64::NEG_INFINITY),
            Some(-0.0),
            Some(0.0),
            Some(f64::NAN),
        ];
        for nulls_first in [false, true] {
            let mut sorted = values.to_vec();
            sorted.insert(if nulls_first { 0 } else { 4 }, None);
            let values: ArrayRef = Arc::new(Float64Array::from(sorted));
            let args = ScalarFunctionArgs {
                arg_fields: vec![Arc::new(Field::new("x", DataType::Float64, true))],
                args: vec![ColumnarValue::Array(values)],
                number_rows: 5,
                return_field: Arc::new(Field::new("k", DataType::Binary, true)),
                config_options: Arc::new(ConfigOptions::default()),
            };
            let keys = OrderKeyUdf::new(nulls_first).invoke_with_args(args);
            let keys = keys.unwrap().into_array(5).unwrap();
            let keys: Vec<&[u8]> = keys.as_binary::<i32>().iter().flatten().collect();
            assert_eq!(keys.len(), 5);
            assert!(keys.is_sorted_by(|a, b| a < b), "{nulls_first}");
        }
    }
}
