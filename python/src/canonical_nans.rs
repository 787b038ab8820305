//! NaN of one kind, as pandas, polars and `NumPy` know it.
//!
//! A NaN may have its sign bit set, as that which x86 makes of 0/0 has, and other bits. `DataFusion` orders floats, and
//! groups by them, by all their bits: such a NaN is below all numbers, and another value than NaN.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, RecordBatch, make_array};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Float16Type, Float32Type, Float64Type, ToByteSlice,
};
use arrow::error::ArrowError;

/// The batch where each NaN has the same bits. Columns that have no others are not copied.
pub fn with_one_nan(batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    let mut columns = batch.columns().to_vec();
    let mut is_changed = false;
    for column in &mut columns {
        if let Some(changed) = canonical(&column.to_data())? {
            *column = make_array(changed);
            is_changed = true;
        }
    }
    if !is_changed {
        return Ok(batch);
    }
    RecordBatch::try_new(batch.schema(), columns)
}

/// The array with other NaN, if it has one that needs to be another, also in what it is nested of.
fn canonical(data: &ArrayData) -> Result<Option<ArrayData>, ArrowError> {
    let floats = match data.data_type() {
        DataType::Float16 => {
            let nan = <Float16Type as ArrowPrimitiveType>::Native::NAN;
            replaced::<Float16Type>(
                data,
                nan,
                <Float16Type as ArrowPrimitiveType>::Native::is_nan,
            )
        }
        DataType::Float32 => replaced::<Float32Type>(data, f32::NAN, f32::is_nan),
        DataType::Float64 => replaced::<Float64Type>(data, f64::NAN, f64::is_nan),
        _ => None,
    };
    if let Some(floats) = floats {
        return Ok(Some(floats.to_data()));
    }
    let mut children = data.child_data().to_vec();
    let mut is_changed = false;
    for child in &mut children {
        if let Some(changed) = canonical(child)? {
            *child = changed;
            is_changed = true;
        }
    }
    if !is_changed {
        return Ok(None);
    }
    let changed = data.clone().into_builder().child_data(children);
    changed.build().map(Some)
}

fn replaced<T: ArrowPrimitiveType>(
    data: &ArrayData,
    nan: T::Native,
    is_nan: impl Fn(T::Native) -> bool,
) -> Option<ArrayRef> {
    let array = make_array(data.clone());
    let floats = array.as_primitive::<T>();
    let is_other =
        |float: &T::Native| is_nan(*float) && float.to_byte_slice() != nan.to_byte_slice();
    if !floats.values().iter().any(is_other) {
        return None;
    }
    let floats = floats.unary::<_, T>(|float| if is_nan(float) { nan } else { float });
    Some(Arc::new(floats))
}
