//! Memory sizes of arrays.

use arrow::array::{Array, ArrayRef, AsArray, make_array};

/// The sum of [`array_bytes`] of some arrays.
pub(crate) fn arrays_bytes(arrays: &[ArrayRef]) -> usize {
    arrays.iter().map(|array| array_bytes(array)).sum()
}

/// Estimates the bytes of the values of an array: of a slice only its part of the buffers, of views also the bytes that they refer to.
pub(crate) fn array_bytes(array: &dyn Array) -> usize {
    match array.to_data().get_slice_memory_size() {
        Ok(own) => own + viewed_bytes(array),
        Err(_) => array.get_array_memory_size(),
    }
}

/// The bytes that views refer to, also in nested values: Arrow counts only the views themselves.
fn viewed_bytes(array: &dyn Array) -> usize {
    if let Some(views) = array.as_string_view_opt() {
        views.total_buffer_bytes_used()
    } else if let Some(views) = array.as_binary_view_opt() {
        views.total_buffer_bytes_used()
    } else {
        let data = array.to_data();
        let nested = data.child_data().iter();
        nested
            .map(|values| viewed_bytes(&make_array(values.clone())))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray, StringViewArray, StructArray};
    use arrow::datatypes::{DataType, Field};

    use super::*;

    #[test]
    fn a_slice_counts_only_its_own_values() {
        let numbers = Int64Array::from_iter_values(0..1000);
        assert_eq!(array_bytes(&numbers.slice(10, 5)), 40);
        let long = "a text that is longer than a view";
        let texts = vec![long; 1000];
        let views = StringViewArray::from_iter_values(&texts);
        assert_eq!(array_bytes(&views.slice(3, 10)), 10 * (16 + long.len()));
        let field = Arc::new(Field::new("text", DataType::Utf8View, false));
        let nested = StructArray::from(vec![(field, Arc::new(views) as ArrayRef)]);
        let viewed = 10 * (16 + long.len());
        assert_eq!(array_bytes(&nested.slice(3, 10)), viewed);
        let texts = StringArray::from(texts);
        assert_eq!(array_bytes(&texts.slice(3, 10)), 11 * 4 + 10 * long.len());
    }
}
