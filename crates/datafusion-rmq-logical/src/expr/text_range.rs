//! The bytes between which all texts with a prefix are, and texts as bytes to be compared with them.
//!
//! ```text
//!   t.number LIKE p.prefix || '%'      rmq_pattern_start(p.prefix || '%') <= rmq_text_bytes(t.number),
//!                                      rmq_text_bytes(t.number) < rmq_pattern_end(p.prefix || '%')
//!   starts_with(t.number, p.prefix)    the same with rmq_text_bytes(p.prefix) and rmq_prefix_end(p.prefix)
//! ```
//!
//! Texts are in the order of their bytes. Those that begin with a prefix are from the prefix up to the prefix and a
//! byte 0xFF, which no text has. A pattern begins with the text before its first wildcard or escape.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryViewBuilder};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion_common::{Result, ScalarValue, internal_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility};

/// What is made of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TextRange {
    /// Its bytes.
    Bytes,
    /// What is after all texts that begin with it, and before those after them.
    PrefixEnd,
    /// The bytes with which all texts begin that it matches as a pattern of LIKE.
    PatternStart,
    /// What is after all texts that begin with these.
    PatternEnd,
}

impl TextRange {
    pub const ALL: [Self; 4] = [
        Self::Bytes,
        Self::PrefixEnd,
        Self::PatternStart,
        Self::PatternEnd,
    ];

    /// The bytes of this text.
    fn of(self, text: &str, bytes: &mut Vec<u8>) {
        let wildcard = |c| matches!(c, '%' | '_' | '\\');
        let length = match self {
            Self::Bytes | Self::PrefixEnd => text.len(),
            Self::PatternStart | Self::PatternEnd => text.find(wildcard).unwrap_or(text.len()),
        };
        bytes.clear();
        bytes.extend_from_slice(&text.as_bytes()[..length]);
        if matches!(self, Self::PrefixEnd | Self::PatternEnd) {
            bytes.push(u8::MAX);
        }
    }
}

/// The function of a text that returns these bytes of it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct TextRangeUdf {
    range: TextRange,
    signature: Signature,
}

impl TextRangeUdf {
    pub fn new(range: TextRange) -> Self {
        Self {
            range,
            signature: Signature::any(1, Volatility::Immutable),
        }
    }
}

impl ScalarUDFImpl for TextRangeUdf {
    fn name(&self) -> &'static str {
        match self.range {
            TextRange::Bytes => "rmq_text_bytes",
            TextRange::PrefixEnd => "rmq_prefix_end",
            TextRange::PatternStart => "rmq_pattern_start",
            TextRange::PatternEnd => "rmq_pattern_end",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::BinaryView)
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [text] = args.args.as_slice() else {
            return internal_err!("{} takes one argument", self.name());
        };
        let texts = ColumnarValue::values_to_arrays(std::slice::from_ref(text))?;
        let texts = cast(&texts[0], &DataType::Utf8View)?;
        let bytes = self.bytes(&texts)?;
        Ok(match text {
            ColumnarValue::Array(_) => ColumnarValue::Array(bytes),
            ColumnarValue::Scalar(_) => {
                let scalar = ScalarValue::try_from_array(&bytes, 0)?;
                ColumnarValue::Scalar(scalar)
            }
        })
    }
}

impl TextRangeUdf {
    fn bytes(&self, texts: &ArrayRef) -> Result<ArrayRef> {
        if self.range == TextRange::Bytes {
            return Ok(cast(texts, &DataType::BinaryView)?);
        }
        let mut built = BinaryViewBuilder::with_capacity(texts.len());
        let mut bytes = vec![];
        for text in texts.as_string_view() {
            match text {
                Some(text) => {
                    self.range.of(text, &mut bytes);
                    built.append_value(&bytes);
                }
                None => built.append_null(),
            }
        }
        Ok(Arc::new(built.finish()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_with_a_prefix_are_between_its_bytes_and_its_end() {
        let bytes = |range: TextRange, text: &str| {
            let mut bytes = vec![];
            range.of(text, &mut bytes);
            bytes
        };
        let texts = [
            "",
            "a",
            "a\u{10FFFF}\u{10FFFF}",
            "ab",
            "b",
            "\u{10FFFF}",
            "\u{10FFFF}a",
            "é",
        ];
        for prefix in texts {
            for text in texts {
                let key = bytes(TextRange::Bytes, text);
                let is_between = bytes(TextRange::Bytes, prefix) <= key
                    && key < bytes(TextRange::PrefixEnd, prefix);
                assert_eq!(is_between, text.starts_with(prefix), "{prefix:?} {text:?}");
            }
        }
        for (pattern, start) in [
            ("a%", "a"),
            ("ab_c", "ab"),
            ("%", ""),
            ("a\\%b", "a"),
            ("é", "é"),
        ] {
            assert_eq!(bytes(TextRange::PatternStart, pattern), start.as_bytes());
            assert_eq!(
                bytes(TextRange::PatternEnd, pattern),
                bytes(TextRange::PrefixEnd, start)
            );
        }
    }
}
