//! Splits SQL into statements.

use datafusion::common::{DataFusionError, Result};
use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer, TokenizerError};

/// Splits SQL that arrives line by line after each semicolon that ends a statement. Comments belong to the statement
/// that follows.
#[derive(Default)]
pub struct Splitter {
    /// The text after the last complete statement.
    text: String,
    /// The length of a prefix of `text` that consists of whole tokens and has no semicolon. It is not tokenized again,
    /// so that a long statement takes linear time.
    scanned: usize,
    /// The number of lines that end before the end of that prefix.
    scanned_lines: u64,
    /// The line on which the statement in `text` begins, if the prefix contains its first token.
    begin: Option<u64>,
}

/// Where a text ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// After a statement.
    Complete,
    InStatement,
    /// In a string, a quoted name or a comment.
    InToken,
}

/// A statement or its error, with the line on which it begins.
pub type Numbered<T> = (u64, T);

impl Splitter {
    /// Adds a line and returns the statements that it completes.
    pub fn push(&mut self, line: &str, dialect: &dyn Dialect) -> Vec<Numbered<String>> {
        self.text.push_str(line);
        if line.contains(';') {
            // A string or a comment that doesn't end may end on a later line.
            self.scan(dialect).0
        } else {
            vec![]
        }
    }

    /// Returns the number of the next line if no statement has begun.
    pub fn between_statements(&mut self, dialect: &dyn Dialect) -> Option<u64> {
        let (statements, error) = self.scan(dialect);
        debug_assert!(statements.is_empty(), "`push` returns what is complete");
        (error.is_none() && self.begin.is_none()).then_some(self.scanned_lines + 1)
    }

    /// Where in a statement this text ends.
    pub fn ends(text: &str, dialect: &dyn Dialect) -> Ends {
        let mut splitter = Self::default();
        let statements = splitter.push(text, dialect);
        let (_, error) = splitter.scan(dialect);
        if error.is_some() {
            Ends::InToken
        } else if statements.is_empty() || splitter.begin.is_some() {
            Ends::InStatement
        } else {
            Ends::Complete
        }
    }

    /// Skips a line that is not SQL.
    pub fn skip_line(&mut self) {
        self.scanned_lines += 1;
    }

    /// Returns the last statement, which may lack its semicolon.
    ///
    /// # Errors
    /// For text that cannot be tokenized, such as an unterminated string.
    pub fn finish(
        mut self,
        dialect: &dyn Dialect,
    ) -> Result<Option<Numbered<String>>, Numbered<DataFusionError>> {
        let (_, error) = self.scan(dialect);
        if let Some(error) = error {
            let line = self.scanned_lines + error.location.line;
            return Err((line, DataFusionError::SQL(Box::new(error.into()), None)));
        }
        Ok(self.begin.map(|line| (line, self.text.trim().to_string())))
    }

    /// Tokenizes the text after the prefix; returns complete statements, and the error where tokenizing stopped.
    fn scan(&mut self, dialect: &dyn Dialect) -> (Vec<Numbered<String>>, Option<TokenizerError>) {
        let fresh = &self.text[self.scanned..];
        let mut tokens = vec![];
        let error = Tokenizer::new(dialect, fresh)
            .tokenize_with_location_into_buf(&mut tokens)
            .err();

        let newlines = fresh.match_indices('\n').map(|(i, _)| i + 1);
        let lines: Vec<usize> = std::iter::once(0).chain(newlines).collect();

        let mut statements = vec![];
        let (mut start, mut begin, mut passed) = (0, self.begin, 0);
        for token in &tokens {
            match token.token {
                Token::Whitespace(_) => continue,
                Token::SemiColon => {
                    // A location counts lines, and characters in its line, from 1.
                    let [end_line, end_column] =
                        [token.span.end.line, token.span.end.column].map(|n| n as usize - 1);
                    let before = fresh[lines[end_line]..].chars().take(end_column);
                    let end = lines[end_line] + before.map(char::len_utf8).sum::<usize>();
                    let end = self.scanned + end;
                    if let Some(line) = begin.take() {
                        statements.push((line, self.text[start..end].trim().to_string()));
                    }
                    (start, passed) = (end, end_line as u64);
                }
                _ => begin = begin.or(Some(self.scanned_lines + token.span.start.line)),
            }
        }

        if error.is_none() {
            self.scanned_lines += lines.len() as u64 - 1;
            self.scanned = self.text.len() - start;
            self.begin = begin;
        } else if start > 0 {
            self.scanned_lines += passed;
            self.scanned = 0;
            self.begin = None;
        }
        self.text.drain(..start);
        (statements, error)
    }
}
