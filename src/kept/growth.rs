//! How what is kept of a table grows with it.
//!
//! Rows that are added are indexed or sorted by themselves, as a further part. A part is indexed again, together with
//! those after it, once it is at most twice as large as these. So there are O(log n) parts of n rows, and each row is
//! indexed O(log n) times, besides those of small parts.

/// The number of parts, of these sizes, that are not indexed again together with what is added after them. Parts of at
/// most twice the size `small` never stay.
pub(crate) fn parts_that_stay(sizes: &[u64], added: u64, small: u64) -> usize {
    let (mut stay, mut again) = (sizes.len(), added);
    while let Some(last) = sizes[..stay].last()
        && *last <= again.max(small).saturating_mul(2)
    {
        again = again.saturating_add(*last);
        stay -= 1;
    }
    stay
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds rows to an index, as often as given, and returns the sizes of its parts and the rows that were indexed.
    fn grow(first: u64, added: u64, times: usize) -> (Vec<u64>, u64) {
        let (mut parts, mut indexed) = (vec![first], 0);
        for _ in 0..times {
            let again = parts.split_off(parts_that_stay(&parts, added, 0));
            let size = added + again.iter().sum::<u64>();
            indexed += size;
            parts.push(size);
        }
        assert_eq!(parts.iter().sum::<u64>(), first + added * times as u64);
        (parts, indexed)
    }

    #[test]
    fn an_index_that_grows_has_few_parts_and_indexes_rows_few_times() {
        // An insert of 10^4 rows has on average fewer than 10^5 rows indexed.
        let (parts, indexed) = grow(100_000_000, 10_000, 1_000);
        assert_eq!(parts[0], 100_000_000);
        assert!(parts.len() <= 12, "{parts:?}");
        println!("{indexed} rows in {} parts", parts.len());
        assert!(indexed <= 100_000_000, "{indexed} rows were indexed");
        // All rows are indexed together from time to time.
        let (parts, indexed) = grow(1, 1, 100_000);
        assert!(parts.len() <= 18, "{parts:?}");
        assert!(indexed <= 100_000 * 18, "{indexed} rows were indexed");
        for pair in parts.windows(2) {
            assert!(pair[0] > 2 * pair[1], "{parts:?}");
        }
        // Nothing is added to nothing.
        assert_eq!(grow(0, 0, 5).0, [0]);
    }
}
