//! Bytes of arrays.

use arrow::array::{Array, AsArray};

/// About how many bytes the values of an array take: a slice's own, not those of what it is a slice of, and of views what they show.
pub(crate) fn array_bytes(array: &dyn Array) -> usize {
    let Ok(own) = array.to_data().get_slice_memory_size() else {
        return array.get_array_memory_size();
    };
    // Arrow counts the views alone.
    let shown = if let Some(views) = array.as_string_view_opt() {
        views.total_buffer_bytes_used()
    } else if let Some(views) = array.as_binary_view_opt() {
        views.total_buffer_bytes_used()
    } else {
        0
    };
    own + shown
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray, StringViewArray};

    use super::*;

    #[test]
    fn a_slice_counts_what_it_shows() {
        let numbers = Int64Array::from_iter_values(0..1000);
        assert_eq!(array_bytes(&numbers.slice(10, 5)), 40);
        let long = "a text that is longer than a view";
        let texts = vec![long; 1000];
        let views = StringViewArray::from_iter_values(&texts);
        assert_eq!(array_bytes(&views.slice(3, 10)), 10 * (16 + long.len()));
        let texts = StringArray::from(texts);
        assert_eq!(array_bytes(&texts.slice(3, 10)), 11 * 4 + 10 * long.len());
    }
}
