//! ASOF JOIN as DuckDB writes it, whose condition has the comparison, too.
//!
//! ```text
//!   FROM q ASOF LEFT JOIN p ON p.sym = q.sym AND q.ts >= p.ts
//!
//!   FROM q ASOF      JOIN p MATCH_CONDITION ('left') ON p.sym = q.sym AND q.ts >= p.ts
//! ```
//!
//! RIGHT, FULL, SEMI and ANTI likewise. sqlparser does not read it, so the text is changed before it is parsed. The
//! `MATCH_CONDITION` only says which join it is; `asof_join` finds the comparison in the condition.

use datafusion::sql::sqlparser::ast::{Expr, Value};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::planner::tokens::{Edit, is_word, offset};

/// Which rows an ASOF JOIN without `MATCH_CONDITION` returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Rows of the left side with a match.
    Matched,
    /// All rows of the left side.
    Left,
    /// Rows of the left side with a match, and the rows of the right side that are none.
    Right,
    /// All rows of both sides.
    Full,
    /// Rows of the left side with a match, alone.
    Semi,
    /// Rows of the left side without a match, alone.
    Anti,
}

impl Kept {
    const ALL: [Self; 6] = [
        Self::Matched,
        Self::Left,
        Self::Right,
        Self::Full,
        Self::Semi,
        Self::Anti,
    ];

    /// The word before JOIN, in lower case.
    fn condition(self) -> &'static str {
        match self {
            Self::Matched => "inner",
            Self::Left => "left",
            Self::Right => "right",
            Self::Full => "full",
            Self::Semi => "semi",
            Self::Anti => "anti",
        }
    }

    /// Whether all rows of the right side are returned.
    pub(crate) fn keeps_right(self) -> bool {
        matches!(self, Self::Right | Self::Full)
    }

    /// What a `MATCH_CONDITION` says that was added; `None` for one that was written.
    pub(crate) fn of_condition(condition: &Expr) -> Option<Self> {
        let Expr::Value(value) = condition else {
            return None;
        };
        let Value::SingleQuotedString(text) = &value.value else {
            return None;
        };
        Self::ALL.into_iter().find(|kind| kind.condition() == text)
    }
}

/// What to replace in the text so that the join that these tokens begin with, if they do, has a `MATCH_CONDITION`.
pub(super) fn edits_of_asof(tokens: &[TokenWithSpan], sql: &str) -> Vec<Edit> {
    if !is_word(tokens.first(), "ASOF") {
        return vec![];
    }
    let named = |kept: &Kept| is_word(tokens.get(1), kept.condition());
    let named = Kept::ALL.into_iter().find(named);
    let is_outer = matches!(named, Some(Kept::Left | Kept::Right | Kept::Full))
        && is_word(tokens.get(2), "OUTER");
    let words = usize::from(named.is_some()) + usize::from(is_outer);
    let (kind, mut rest) = tokens[1..].split_at(words);
    if !is_word(rest.first(), "JOIN") {
        return vec![];
    }
    rest = &rest[1..];
    let kept = named.unwrap_or(Kept::Matched);
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
