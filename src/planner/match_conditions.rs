//! ASOF JOIN as DuckDB writes it, whose condition has the comparison, too.
//!
//! ```text
//!   FROM q ASOF LEFT JOIN p ON p.sym = q.sym AND q.ts >= p.ts
//!
//!   FROM q ASOF      JOIN p MATCH_CONDITION ('left') ON p.sym = q.sym AND q.ts >= p.ts
//! ```
//!
//! sqlparser does not read it, so the text is changed before it is parsed. The `MATCH_CONDITION` only says which join
//! it is; `asof_join` finds the comparison in the condition.

use std::ops::Range;

use datafusion::sql::sqlparser::ast::{Expr, Value};
use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer};

/// Which rows of the left side an ASOF JOIN without `MATCH_CONDITION` keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Those with a match.
    Matched,
    All,
}

impl Kept {
    fn condition(self) -> &'static str {
        match self {
            Self::Matched => "inner",
            Self::All => "left",
        }
    }

    /// What a `MATCH_CONDITION` says that was added; `None` for one that was written.
    pub(crate) fn of_condition(condition: &Expr) -> Option<Self> {
        let Expr::Value(value) = condition else {
            return None;
        };
        let Value::SingleQuotedString(text) = &value.value else {
            return None;
        };
        let kinds = [Self::Matched, Self::All];
        kinds.into_iter().find(|kind| kind.condition() == text)
    }
}

/// The text with a `MATCH_CONDITION` in each `ASOF [LEFT] JOIN … ON` and `… USING` that has none, as DuckDB writes it,
/// for a parser that wants one. `None` if there is no such join.
///
/// ```
/// use datafusion::sql::sqlparser::dialect::GenericDialect;
///
/// let sql = "SELECT * FROM q ASOF LEFT JOIN p ON p.sym = q.sym AND q.ts >= p.ts";
/// assert!(datafusion_rmq::with_match_conditions(sql, &GenericDialect {}).is_some());
/// ```
#[must_use]
pub fn with_match_conditions(sql: &str, dialect: &dyn Dialect) -> Option<String> {
    let tokens = Tokenizer::new(dialect, sql).tokenize_with_location().ok()?;
    let mut tokens: Vec<TokenWithSpan> = tokens;
    tokens.retain(|token| !matches!(token.token, Token::Whitespace(_)));
    let mut edits = vec![];
    for at in 0..tokens.len() {
        edits.extend(edits_of_join(&tokens[at..], sql));
    }
    if edits.is_empty() {
        return None;
    }
    edits.sort_by_key(|(range, _)| range.start);
    let mut text = sql.to_string();
    for (range, with) in edits.into_iter().rev() {
        text.replace_range(range, &with);
    }
    Some(text)
}

/// What to replace in the text so that the join that these tokens begin with, if they do, has a `MATCH_CONDITION`.
fn edits_of_join(tokens: &[TokenWithSpan], sql: &str) -> Vec<(Range<usize>, String)> {
    if !is_word(tokens.first(), "ASOF") {
        return vec![];
    }
    let kind: Vec<_> = tokens[1..]
        .iter()
        .take_while(|token| {
            ["LEFT", "OUTER", "INNER"]
                .iter()
                .any(|word| is_word(Some(token), word))
        })
        .collect();
    let mut rest = &tokens[1 + kind.len()..];
    if !is_word(rest.first(), "JOIN") {
        return vec![];
    }
    rest = &rest[1..];
    let kept = if kind
        .first()
        .is_some_and(|token| is_word(Some(token), "LEFT"))
    {
        Kept::All
    } else {
        Kept::Matched
    };
    let mut depth = 0_usize;
    for token in rest {
        match &token.token {
            Token::LParen => depth += 1,
            Token::RParen if depth == 0 => break,
            Token::RParen => depth -= 1,
            Token::SemiColon => break,
            _ if depth > 0 => {}
            _ if is_word(Some(token), "MATCH_CONDITION") || is_word(Some(token), "JOIN") => break,
            _ if is_word(Some(token), "ON") || is_word(Some(token), "USING") => {
                let at = offset(sql, token.span.start);
                let condition = format!("MATCH_CONDITION ('{}') ", kept.condition());
                let words = kind.iter().map(|token| {
                    let range = offset(sql, token.span.start)..offset(sql, token.span.end);
                    (range, String::new())
                });
                return words.chain([(at..at, condition)]).collect();
            }
            _ => {}
        }
    }
    vec![]
}

fn is_word(token: Option<&TokenWithSpan>, word: &str) -> bool {
    matches!(
        token.map(|token| &token.token),
        Some(Token::Word(found)) if found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word)
    )
}

/// The offset of a location in the text, which counts lines, and characters in its line, from 1.
fn offset(text: &str, location: Location) -> usize {
    let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).saturating_sub(1);
    let lines = text.split_inclusive('\n').take(number(location.line));
    let line: usize = lines.map(str::len).sum();
    let before = text[line..].chars().take(number(location.column));
    line + before.map(char::len_utf8).sum::<usize>()
}
