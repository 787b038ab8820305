//! Texts that begin with a prefix, or match a pattern: the range of texts that has them.
//!
//! ```text
//!   t.number LIKE p.prefix || '%'      rmq_text_bytes(t.number) in [rmq_pattern_start(…), rmq_pattern_end(…))
//!   starts_with(t.number, p.prefix)    rmq_text_bytes(t.number) in [rmq_text_bytes(p.prefix), rmq_prefix_end(p.prefix))
//! ```
//!
//! A pattern may have wildcards before its end, so that it is matched again.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion_common::Result;
use datafusion_expr::ScalarUDF;
use datafusion_functions::string;

use crate::conditions::condition::{Open, Operand, Range, Sides, swapped};
use crate::expr::text_range::{TextRange, TextRangeUdf};
use rmq_arrow::common::ordered_type::value_type;
use rmq_engine::Comparison;

impl<E: Operand + PartialEq> Sides<'_, E> {
    /// The ranges of texts, or of the ends of such ranges, in which both sides have to be for a conjunct to hold, if
    /// that is about a prefix.
    pub fn prefixes(&self, conjunct: &E) -> Result<Vec<Range<E>>> {
        let Some(Prefixed {
            text,
            prefix,
            start,
            end,
        }) = prefixed(conjunct)
        else {
            return Ok(vec![]);
        };
        let text_is_key = (self.is_key)(text) && (self.is_bound)(prefix);
        let prefix_is_key = (self.is_bound)(text) && (self.is_key)(prefix);
        if !text_is_key && !prefix_is_key {
            return Ok(vec![]);
        }
        let (of_text, of_prefix) = if text_is_key {
            (self.keys, self.bounds)
        } else {
            (self.bounds, self.keys)
        };
        let is_text = |data_type: &DataType| {
            let text = value_type(data_type);
            matches!(
                text,
                DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
            )
        };
        if !is_text(&text.data_type(of_text)?) || !is_text(&prefix.data_type(of_prefix)?) {
            return Ok(vec![]);
        }
        let bytes = |range, of: &E, schema| {
            let function = Arc::new(ScalarUDF::from(TextRangeUdf::new(range)));
            E::call(function, vec![of.clone()], schema)
        };
        let mut ranges = vec![];
        // The text is at least the start, and below the end.
        for (range, comparison) in [(start, Comparison::AtLeast), (end, Comparison::Below)] {
            let text = bytes(TextRange::Bytes, text, of_text)?;
            let prefix = bytes(range, prefix, of_prefix)?;
            let compared = if text_is_key {
                (text, comparison, prefix)
            } else {
                (prefix, swapped(comparison), text)
            };
            ranges.push(Range {
                compared,
                open: Open::Implied,
            });
        }
        Ok(ranges)
    }
}

/// A text that begins with a prefix, or with that of a pattern.
struct Prefixed<'e, E> {
    text: &'e E,
    prefix: &'e E,
    start: TextRange,
    end: TextRange,
}

/// Whether a condition is about a prefix.
pub fn is_about_prefix<E: Operand>(condition: &E) -> bool {
    prefixed(condition).is_some()
}

fn prefixed<E: Operand>(conjunct: &E) -> Option<Prefixed<'_, E>> {
    if let Some((text, pattern)) = conjunct.as_like() {
        return Some(Prefixed {
            text,
            prefix: pattern,
            start: TextRange::PatternStart,
            end: TextRange::PatternEnd,
        });
    }
    match conjunct.as_call()? {
        (function, [text, prefix]) if *function == *string::starts_with() => Some(Prefixed {
            text,
            prefix,
            start: TextRange::Bytes,
            end: TextRange::PrefixEnd,
        }),
        _ => None,
    }
}
