//! Bytes of arrays.

use arrow::array::{Array, ArrayRef, AsArray, make_array};

/// [`array_bytes`] of all of some arrays.
pub(crate) fn arrays_bytes(arrays: &[ArrayRef]) -> usize {
    arrays.iter().map(|array| array_bytes(array)).sum()
}

/// About how many bytes the values of an array take: a slice's own, not those of what it is a slice of, and of views what they show.
pub(crate) fn array_bytes(array: &dyn Array) -> usize {
    match array.to_data().get_slice_memory_size() {
        Ok(own) => own + shown_bytes(array),
        Err(_) => array.get_array_memory_size(),
    }
}

/// What views show, those of nested values included: Arrow counts the views alone.
fn shown_bytes(array: &dyn Array) -> usize {
    if let Some(views) = array.as_string_view_opt() {
        views.total_buffer_bytes_used()
    } else if let Some(views) = array.as_binary_view_opt() {
        views.total_buffer_bytes_used()
    } else {
        let data = array.to_data();
        let nested = data.child_data().iter();
        nested
            .map(|values| shown_bytes(&make_array(values.clone())))
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
    fn a_slice_counts_what_it_shows() {
        let numbers = Int64Array::from_iter_values(0..1000);
        assert_eq!(array_bytes(&numbers.slice(10, 5)), 40);
        let long = "a text that is longer than a view";
        let texts = vec![long; 1000];
        let views = StringViewArray::from_iter_values(&texts);
        assert_eq!(array_bytes(&views.slice(3, 10)), 10 * (16 + long.len()));
        let field = Arc::new(Field::new("text", DataType::Utf8View, false));
        let nested = StructArray::from(vec![(field, Arc::new(views) as ArrayRef)]);
        let shown = 10 * (16 + long.len());
        assert_eq!(array_bytes(&nested.slice(3, 10)), shown);
        let texts = StringArray::from(texts);
        assert_eq!(array_bytes(&texts.slice(3, 10)), 11 * 4 + 10 * long.len());
    }
}
