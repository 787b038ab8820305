//! Values as bytes that compare as ORDER BY does.
//!
//! A range key is one value, and never NULL. Where rows are ordered by several expressions, or no bound excludes NULLs,
//! the range key is made of all of them, and a bound of the first one becomes a bound of these bytes:
//!
//! ```text
//!   p.ts <= q.ts ORDER BY p.ts, p.id      rmq_order_key(p.ts, p.id) <= rmq_order_bound_after(q.ts)
//! ```

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryArray};
use arrow::compute::SortOptions;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, Rows, SortField};
use datafusion_common::utils::normalize_float_zero;
use datafusion_common::{Result, internal_err};
use datafusion_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, SortExpr,
    Volatility,
};
use rmq_engine::Comparison;

/// The greatest byte. The encoding of a value does not begin with it, and that of a NULL has no two of them.
const GREATEST: u8 = 0xFF;

/// The function `(values, …)` that returns bytes in the order of rows of these values. They are never NULL. Zeros of
/// both signs are equal.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct OrderKeyUdf {
    /// For each value whether its order is descending, and whether NULL comes first in that order.
    pub orders: Vec<(bool, bool)>,
    signature: Signature,
}

impl OrderKeyUdf {
    /// The function for values in these orders.
    pub fn new(orders: Vec<(bool, bool)>) -> Self {
        Self {
            signature: Signature::any(orders.len(), Volatility::Immutable),
            orders,
        }
    }

    /// Whether the bytes are in the order of the values, and those of NULL after all others.
    pub fn is_ascending(&self) -> bool {
        self.orders.iter().all(|order| *order == (false, false))
    }

    /// Whether values of this type can be converted. The bytes of a nested NULL continue after its mark, which bounds
    /// do not expect.
    pub fn supports(data_type: &DataType) -> bool {
        !data_type.is_nested()
            && RowConverter::supports_fields(&[SortField::new(data_type.clone())])
    }
}

impl ScalarUDFImpl for OrderKeyUdf {
    fn name(&self) -> &'static str {
        "rmq_order_key"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Binary)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        // Literals among columns become arrays of the same length.
        let arrays = args.args.into_iter();
        let arrays = arrays.map(|value| value.into_array(args.number_rows));
        let arrays = arrays.collect::<Result<Vec<_>>>()?;
        let keys = encode(&arrays, &self.orders)?.try_into_binary()?;
        Ok(ColumnarValue::Array(Arc::new(keys)))
    }
}

/// The bytes in the order of all these expressions, from the end on if the first one is descending; `None` for no
/// expressions.
pub fn order_key(order_by: &[SortExpr]) -> Option<Expr> {
    order_key_from(order_by.first()?.asc, order_by)
}

/// The bytes in the order of all these expressions, from the end on unless `ascending`; `None` for no expressions.
pub fn order_key_from(ascending: bool, order_by: &[SortExpr]) -> Option<Expr> {
    if order_by.is_empty() {
        return None;
    }
    let orders = order_by.iter().map(|order| {
        let descending = order.asc != ascending;
        (descending, order.nulls_first == ascending)
    });
    let udf = ScalarUDF::from(OrderKeyUdf::new(orders.collect()));
    Some(udf.call(order_by.iter().map(|order| order.expr.clone()).collect()))
}

/// More values than an ORDER BY has.
const MANY_VALUES: usize = 1 << 12;

/// The function `(bound)` that returns the bytes before, or after, all keys whose first value is the bound. NULL if the
/// bound is NULL.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct OrderBoundUdf {
    /// The number of values of a key if the bytes are after the keys.
    pub after: Option<usize>,
    signature: Signature,
}

impl OrderBoundUdf {
    /// The function of the bytes before keys, or after those of this number of values.
    pub fn new(after: Option<usize>) -> Self {
        Self {
            after,
            signature: Signature::any(1, Volatility::Immutable),
        }
    }

    /// The function for bounds of the same keys that compare so.
    pub fn for_comparison(&self, comparison: Comparison) -> Self {
        let is_after = matches!(comparison, Comparison::Above | Comparison::AtMost);
        Self::new(is_after.then(|| self.after.unwrap_or(MANY_VALUES)))
    }

    /// The bytes of these bounds.
    ///
    /// # Errors
    /// Those of Arrow's row format.
    pub fn bytes(&self, bounds: &ArrayRef) -> Result<ArrayRef> {
        let nulls = bounds.logical_nulls();
        let rows = encode(std::slice::from_ref(bounds), &[(false, false)])?;
        // The values after the first may all be NULLs of one such byte.
        let after = vec![GREATEST; self.after.unwrap_or(0)];
        let bounds = rows.iter().enumerate().map(|(i, row)| {
            let is_valid = nulls.as_ref().is_none_or(|nulls| nulls.is_valid(i));
            is_valid.then(|| [row.data(), &after].concat())
        });
        Ok(Arc::new(bounds.collect::<BinaryArray>()))
    }
}

impl ScalarUDFImpl for OrderBoundUdf {
    fn name(&self) -> &'static str {
        if self.after.is_some() {
            "rmq_order_bound_after"
        } else {
            "rmq_order_bound"
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Binary)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let [bounds] = arrays.as_slice() else {
            return internal_err!("a bound is encoded alone, not with {}", arrays.len());
        };
        Ok(ColumnarValue::Array(self.bytes(bounds)?))
    }
}

/// The rows of these columns in Arrow's row format.
fn encode(columns: &[ArrayRef], orders: &[(bool, bool)]) -> Result<Rows> {
    let columns: Vec<_> = columns.iter().map(normalize_float_zero).collect();
    let fields = columns.iter().zip(orders);
    let fields = fields.map(|(column, (descending, nulls_first))| {
        let options = SortOptions::new(*descending, *nulls_first);
        SortField::new_with_options(column.data_type().clone(), options)
    });
    Ok(RowConverter::new(fields.collect())?.convert_columns(&columns)?)
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Float64Array, StringArray};
    use arrow::datatypes::Field;
    use datafusion_common::config::ConfigOptions;

    use super::*;

    fn call(udf: &dyn ScalarUDFImpl, arrays: &[ArrayRef]) -> BinaryArray {
        let rows = arrays[0].len();
        let fields = arrays.iter();
        let fields = fields.map(|a| Arc::new(Field::new("x", a.data_type().clone(), true)));
        let args = ScalarFunctionArgs {
            arg_fields: fields.collect(),
            args: arrays.iter().cloned().map(ColumnarValue::Array).collect(),
            number_rows: rows,
            return_field: Arc::new(Field::new("k", DataType::Binary, true)),
            config_options: Arc::new(ConfigOptions::default()),
        };
        let keys = udf.invoke_with_args(args).unwrap();
        keys.into_array(rows).unwrap().as_binary::<i32>().clone()
    }

    #[test]
    fn keys_have_the_order_of_the_values_and_nulls_are_at_either_end() {
        let values = [
            Some(f64::NEG_INFINITY),
            Some(-1.5),
            Some(0.0),
            Some(f64::NAN),
        ];
        for nulls_first in [false, true] {
            let mut sorted = values.to_vec();
            sorted.insert(if nulls_first { 0 } else { 4 }, None);
            let values: ArrayRef = Arc::new(Float64Array::from(sorted));
            let keys = call(&OrderKeyUdf::new(vec![(false, nulls_first)]), &[values]);
            let keys: Vec<&[u8]> = keys.iter().flatten().collect();
            assert_eq!(keys.len(), 5);
            assert!(keys.is_sorted_by(|a, b| a < b), "{nulls_first}");
        }
    }

    #[test]
    fn bounds_are_beside_all_keys_that_begin_with_them() {
        let first = [0.0, -0.0, 0.0, -0.0, 0.0];
        let second = [None, Some(""), Some("a"), Some("\u{10FFFF}"), Some("zz")];
        let third: ArrayRef = Arc::new(StringArray::from(
            second.map(|text| text.map(|_| "x")).to_vec(),
        ));
        let first: ArrayRef = Arc::new(Float64Array::from(first.to_vec()));
        let second: ArrayRef = Arc::new(StringArray::from(second.to_vec()));
        let bounds: ArrayRef = Arc::new(Float64Array::from(vec![
            Some(-1.0),
            Some(-0.0),
            Some(0.0),
            Some(1.0),
            None,
        ]));
        let before = call(&OrderBoundUdf::new(None), &[Arc::clone(&bounds)]);
        let after = call(&OrderBoundUdf::new(Some(3)), &[bounds]);
        assert!(before.is_null(4) && after.is_null(4));
        for order in [(false, false), (false, true), (true, false), (true, true)] {
            let udf = OrderKeyUdf::new(vec![(false, false), order, order]);
            let values = [&first, &second, &third].map(Arc::clone);
            let keys = call(&udf, &values);
            for key in keys.iter().flatten() {
                assert!(after.value(0) < key && key < before.value(3), "{order:?}");
                for zero in [1, 2] {
                    assert!(
                        before.value(zero) < key && key < after.value(zero),
                        "{order:?}"
                    );
                }
            }
        }
    }
}
