//! Whether keys ascend.

use crate::column::Column;
use crate::key::{Encoding, Key};

/// Pairs of keys that are compared without a branch between two checks for the end.
const STRIDE: usize = 512;

/// Returns whether the keys of columns, one column after another, ascend.
pub(crate) fn are_sorted<K: Key>(columns: &[Column<K>]) -> bool {
    let mut last = None;
    for column in columns {
        let (bits, encoding) = (column.bits(), column.encoding());
        let (Some(first), Some(end)) = (bits.first(), bits.last()) else {
            continue;
        };
        let first = encoding.encode(*first);
        if last.is_some_and(|last| last > first) || !is_sorted(bits, encoding) {
            return false;
        }
        last = Some(encoding.encode(*end));
    }
    true
}

/// Returns whether keys ascend.
pub(crate) fn is_sorted<K: Key>(bits: &[K], encoding: Encoding<K>) -> bool {
    let nexts = bits.get(1..).unwrap_or_default();
    let mut strides = bits.chunks(STRIDE).zip(nexts.chunks(STRIDE));
    strides.all(|(keys, nexts)| {
        let pairs = keys.iter().zip(nexts);
        !pairs.fold(false, |descends, (key, next)| {
            descends | (encoding.encode(*key) > encoding.encode(*next))
        })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_descent_is_found_at_every_position() {
        for rows in [2, 3, 511, 512, 513, 514, 1025] {
            for descent in 1..rows {
                let mut keys: Vec<u32> = (0..rows as u32).map(|i| 2 * i).collect();
                assert!(is_sorted(&keys, Encoding::unsigned()));
                keys[descent] = keys[descent - 1] - u32::from(descent > 1);
                assert_eq!(is_sorted(&keys, Encoding::unsigned()), descent == 1);
                let (left, right) = keys.split_at(descent);
                let parts = [left, &[], right];
                let parts =
                    parts.map(|part| Column::new(Arc::new(part.to_vec()), Encoding::unsigned()));
                assert_eq!(are_sorted(&parts), descent == 1);
            }
        }
    }
}
