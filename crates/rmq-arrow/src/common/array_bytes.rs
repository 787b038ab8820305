//! Memory sizes of arrays, and copies without bytes that no value uses.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringViewArray, make_array};
use arrow::buffer::Buffer;
use arrow::datatypes::ArrowNativeType;

/// The sum of [`array_bytes`] of some arrays.
pub fn arrays_bytes(arrays: &[ArrayRef]) -> usize {
    arrays.iter().map(|array| array_bytes(array)).sum()
}

/// Estimates the bytes of the values of an array: of a slice only its part of the buffers, of views also the bytes that
/// they refer to.
pub fn array_bytes(array: &dyn Array) -> usize {
    // Of frequent types without an `ArrayData`, which takes several allocations: a build side has thousands of arrays.
    let values = if let Some(width) = array.data_type().primitive_width() {
        Some(array.len() * width)
    } else if let Some(texts) = array.as_string_opt::<i32>() {
        let ends = texts.value_offsets();
        let bytes = ends[ends.len() - 1].as_usize() - ends[0].as_usize();
        Some(size_of_val(ends) + bytes)
    } else {
        None
    };
    if let Some(values) = values {
        let nulls = array.nulls().map_or(0, |nulls| nulls.len().div_ceil(8));
        return values + nulls;
    }
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
    } else if array.data_type().is_primitive() || array.data_type().is_string() {
        0
    } else {
        let data = array.to_data();
        let nested = data.child_data().iter();
        nested
            .map(|values| viewed_bytes(&make_array(values.clone())))
            .sum()
    }
}

/// Copies values out of the buffers of views, which would otherwise keep all values of those buffers in memory.
pub fn compact(values: &ArrayRef) -> ArrayRef {
    if let Some(views) = values.as_string_view_opt() {
        Arc::new(views.gc())
    } else if let Some(views) = values.as_binary_view_opt() {
        Arc::new(views.gc())
    } else if let Some(dictionary) = values.as_any_dictionary_opt() {
        dictionary.with_values(compact(dictionary.values()))
    } else {
        Arc::clone(values)
    }
}

/// [`compact`], if views use less than half of the bytes of their buffers. Rows of a join refer to the buffers of all
/// rows of a side. Concatenated, batches of them would have as many buffers as there are in each batch, times the
/// batches, which a join of joins multiplies again.
pub fn compact_if_sparse(values: ArrayRef) -> ArrayRef {
    let is_sparse = |buffers: &[Buffer]| {
        let bytes: usize = buffers.iter().map(Buffer::len).sum();
        // Short values are within the views.
        bytes > 0 && bytes > 2 * viewed_bytes(&values)
    };
    let buffers = values
        .as_string_view_opt()
        .map(StringViewArray::data_buffers);
    let buffers = buffers.or_else(|| Some(values.as_binary_view_opt()?.data_buffers()));
    match buffers {
        Some(buffers) if is_sparse(buffers) => compact(&values),
        _ => values,
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray, StructArray};
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
        // As Arrow counts, with and without NULLs.
        let texts = texts.iter().enumerate();
        let texts: StringArray = texts.map(|(i, t)| t.filter(|_| i % 3 > 0)).collect();
        let numbers: Int64Array = (0..1000).map(|i| (i % 7 > 0).then_some(i)).collect();
        let empty = StringArray::from(Vec::<&str>::new());
        let arrays: [&dyn Array; 5] = [
            &texts,
            &texts.slice(5, 100),
            &numbers,
            &numbers.slice(9, 77),
            &empty,
        ];
        for array in arrays {
            let counted = array.to_data().get_slice_memory_size().unwrap();
            assert_eq!(array_bytes(array), counted, "{:?}", array.data_type());
        }
    }

    #[test]
    fn views_of_few_values_are_copied() {
        let texts = (0..1000).map(|i| format!("a text that is longer than a view: {i}"));
        let views = StringViewArray::from_iter_values(texts);
        for (rows, is_copied) in [(1000, false), (600, false), (400, true), (0, true)] {
            let slice: ArrayRef = Arc::new(views.slice(100.min(1000 - rows), rows));
            let compacted = compact_if_sparse(Arc::clone(&slice));
            assert_eq!(&compacted, &slice);
            assert_eq!(Arc::ptr_eq(&compacted, &slice), !is_copied, "{rows} rows");
            let buffers = compacted.as_string_view().data_buffers();
            let bytes: usize = buffers.iter().map(Buffer::len).sum();
            assert!(bytes <= 2 * viewed_bytes(&slice));
        }
    }
}
