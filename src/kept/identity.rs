//! What tells something from all others, as bytes that other processes compare.

use std::fmt::Debug;

use arrow::row::{RowConverter, SortField};
use datafusion::common::ScalarValue;

/// A list of values as bytes. Two lists of the same values, and no others, have the same bytes: each value is preceded
/// by its length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Identity(Vec<u8>);

impl Identity {
    /// Adds bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.add_number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Adds a number.
    pub(crate) fn add_number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// Adds a value whose derived `Debug` shows all of it.
    pub(crate) fn add_debug(&mut self, value: &dyn Debug) {
        self.add(format!("{value:?}").as_bytes());
    }

    /// Adds a literal. `None` if its type has no row format.
    pub(crate) fn add_literal(&mut self, literal: &ScalarValue) -> Option<()> {
        // The text of a literal may look like that of another one: its bytes do not.
        let data_type = literal.data_type();
        self.add_debug(&data_type);
        let converter = RowConverter::new(vec![SortField::new(data_type)]).ok()?;
        let rows = converter
            .convert_columns(&[literal.to_array().ok()?])
            .ok()?;
        self.add(rows.row(0).data());
        Some(())
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// A number that differs from those of nearly all others: FNV-1a of 128 bits, the same in all processes.
    pub(crate) fn hash(&self) -> u128 {
        const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let mix = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
        self.0.iter().fold(OFFSET, mix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_lists_have_other_bytes() {
        let of_texts = |texts: &[&str]| {
            let mut identity = Identity::default();
            for text in texts {
                identity.add(text.as_bytes());
            }
            identity
        };
        let lists: [&[&str]; 6] = [&[], &[""], &["", ""], &["ab"], &["a", "b"], &["", "ab"]];
        for (i, a) in lists.iter().enumerate() {
            for (j, b) in lists.iter().enumerate() {
                assert_eq!(of_texts(a) == of_texts(b), i == j, "{a:?} {b:?}");
                assert_eq!(of_texts(a).hash() == of_texts(b).hash(), i == j);
            }
        }
        let of_literal = |literal: ScalarValue| {
            let mut identity = Identity::default();
            identity.add_literal(&literal).map(|()| identity)
        };
        let literals = [
            ScalarValue::Int64(Some(1)),
            ScalarValue::Int64(None),
            ScalarValue::Int32(Some(1)),
            ScalarValue::Float64(Some(0.0)),
            ScalarValue::Float64(Some(-0.0)),
            ScalarValue::Utf8(Some("NULL".into())),
            ScalarValue::Utf8(None),
            ScalarValue::Binary(Some(vec![1; 300])),
            ScalarValue::Binary(Some([vec![1; 299], vec![2]].concat())),
        ];
        for (i, a) in literals.iter().enumerate() {
            for (j, b) in literals.iter().enumerate() {
                let (a, b) = (of_literal(a.clone()), of_literal(b.clone()));
                assert_eq!(a.expect("a literal") == b.expect("a literal"), i == j);
            }
        }
    }
}
