//! The tokens of a statement, and changes of its text.

use std::ops::Range;

use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan};

/// A part of the text, and what takes its place.
pub(super) type Edit = (Range<usize>, String);

/// Whether a token is this word, in any case and without quotes.
pub(super) fn is_word(token: Option<&TokenWithSpan>, word: &str) -> bool {
    matches!(
        token.map(|token| &token.token),
        Some(Token::Word(found)) if found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word)
    )
}

/// The offset of a location in the text, which counts lines, and characters in its line, from 1.
pub(super) fn offset(text: &str, location: Location) -> usize {
    let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).saturating_sub(1);
    let lines = text.split_inclusive('\n').take(number(location.line));
    let line: usize = lines.map(str::len).sum();
    let before = text[line..].chars().take(number(location.column));
    line + before.map(char::len_utf8).sum::<usize>()
}
