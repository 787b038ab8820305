//! Counts of distinct values by a wavelet matrix: a range has a value once more for each of its rows whose previous row
//! with the same value is in the range, too.

/// Returns for each row one more than the previous row with the same rank, 0 if there is none. In a range `start..end`
/// as many ranks are distinct as rows have such a number below `start + 1`:
///
/// ```
/// use std::sync::atomic::AtomicBool;
/// use rmq_engine::cpu::{WaveletMatrix, previous_rows};
///
/// let previous = previous_rows(&[3, 0, 3, 3, 0], 4);
/// assert_eq!(previous, [0, 0, 1, 3, 2]);
/// let matrix = WaveletMatrix::build(&previous, 6, 1, &AtomicBool::new(false))?;
/// let (starts, ends, mut distinct) = ([0, 2], [5, 4], [0; 2]);
/// matrix.count_below(&starts, &ends, &starts.map(|start| start as u32 + 1), &mut distinct)?;
/// assert_eq!(distinct, [2, 1]);
/// # Ok::<(), rmq_engine::EngineError>(())
/// ```
///
/// # Panics
/// If a rank is not below `distinct`, or there are 2^32 rows or more.
#[must_use]
pub fn previous_rows(ranks: &[u32], distinct: u32) -> Vec<u32> {
    let rows = u32::try_from(ranks.len()).expect("fewer than 2^32 rows");
    let mut last = vec![0; distinct as usize];
    let rows = ranks.iter().zip(1..=rows);
    rows.map(|(rank, row)| std::mem::replace(&mut last[*rank as usize], row))
        .collect()
}
