//! Hints of key search.

/// Goes.
#[derive(Debug, Default)]
pub struct SearchHints;
