//! Row numbers of 32 bits.

use std::ops::Range;

use datafusion_common::{Result, internal_datafusion_err};

/// Converts the number of a row of a batch or of a build side: both have fewer than 2^32 - 1 rows.
///
/// # Errors
/// An internal error for any other number.
pub fn row_number(row: impl TryInto<u32>) -> Result<u32> {
    let row = row.try_into().ok().filter(|row| *row != u32::MAX);
    row.ok_or_else(|| internal_datafusion_err!("a row number is not below 2^32 - 1"))
}

/// Converts numbers of rows, as [`row_number`] does.
///
/// # Errors
/// As those of [`row_number`].
pub fn row_numbers<N: TryInto<u32>>(rows: impl IntoIterator<Item = N>) -> Result<Vec<u32>> {
    let rows = rows.into_iter();
    // An iterator of results has no lower bound, by which a vector would be sized.
    let mut numbers = Vec::with_capacity(rows.size_hint().0);
    for row in rows {
        numbers.push(row_number(row)?);
    }
    Ok(numbers)
}

/// Converts a range of row numbers.
///
/// # Errors
/// As those of [`row_number`]; the end of a range is the number of a row and one more.
pub fn row_range<N: TryInto<u32>>(rows: Range<N>) -> Result<Range<u32>> {
    let (start, end) = (rows.start.try_into().ok(), rows.end.try_into().ok());
    let rows = start.zip(end).map(|(start, end)| start..end);
    rows.ok_or_else(|| internal_datafusion_err!("a range of rows ends beyond row 2^32 - 1"))
}

/// Converts the inclusive ends of a range of rows, which is empty where the left end is beyond the right one.
///
/// # Errors
/// As those of [`row_range`].
pub fn rows_between((left, right): (i64, i64)) -> Result<Range<u32>> {
    if left > right {
        return Ok(0..0);
    }
    row_range(left..right.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_rows_are_below_the_bound() {
        let last = i64::from(u32::MAX) - 1;
        assert_eq!(row_numbers([0, last]).unwrap(), [0, u32::MAX - 1]);
        assert_eq!(row_range(3..last + 1).unwrap(), 3..u32::MAX);
        for row in [-1, last + 1, last + 2, i64::MAX] {
            let error = row_number(row).unwrap_err().to_string();
            assert!(error.contains("not below 2^32 - 1"), "{error}");
            assert!(row_numbers([0, row]).is_err());
        }
        assert!(row_range(0..last + 2).is_err() && row_range(-1..2).is_err());
        assert_eq!(rows_between((0, -1)).unwrap(), 0..0);
        assert_eq!(rows_between((2, last)).unwrap(), 2..u32::MAX);
        assert!(rows_between((-1, 0)).is_err() && rows_between((0, i64::MAX)).is_err());
    }
}
