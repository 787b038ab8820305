//! What the engine is measured against.

use super::data::Cell;

/// The reference, `ref2`: what two random cache lines of the column cost a query, asked for well ahead, with the bounds
/// and the results streamed. No index that looks at the column at both ends of a range can do with less.
pub fn two_lines<T: Cell>(column: &[T], a: &[i64], b: &[i64], out: &mut [T]) {
    /// Best of 8 to 128 where it was tried.
    const AHEAD: usize = 32;
    let ask = |at: i64| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(column.as_ptr().wrapping_add(at as usize).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    };
    let last = a.len() - 1;
    for i in 0..a.len() {
        let next = (i + AHEAD).min(last);
        ask(a[next]);
        ask(b[next]);
        let (x, y) = (column[a[i] as usize], column[b[i] as usize]);
        out[i] = if y < x { y } else { x };
    }
}
