//! NEAREST joins, as DuckDB and Spark write them: for each row of the left side the nearest rows of the right side.
//!
//! ```text
//!   FROM q LEFT JOIN p NEAREST 2 BY DISTANCE abs(p.ts - q.ts)
//!
//!   FROM q LEFT JOIN LATERAL (SELECT * FROM p WHERE (abs(p.ts - q.ts)) IS NOT NULL
//!                             ORDER BY (abs(p.ts - q.ts)) ASC NULLS LAST LIMIT 2) AS p ON true
//! ```
//!
//! SIMILARITY orders from the greatest on, the number is 1 by default, and EXACT and APPROX change nothing. sqlparser
//! does not read it, so the text is changed before it is parsed.

use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::planner::tokens::{Edit, is_word, offset};

/// Words that no ranking has outside of parentheses.
const ENDS: [&str; 21] = [
    "WHERE",
    "GROUP",
    "HAVING",
    "ORDER",
    "LIMIT",
    "OFFSET",
    "FETCH",
    "WINDOW",
    "QUALIFY",
    "UNION",
    "EXCEPT",
    "INTERSECT",
    "JOIN",
    "CROSS",
    "INNER",
    "LEFT",
    "RIGHT",
    "FULL",
    "NATURAL",
    "ASOF",
    "ON",
];

/// What to replace in the text so that the INNER or LEFT JOIN that the token at `at` is, if it is one, with NEAREST is
/// a lateral join. Its right side needs a name.
pub(super) fn edits_of_nearest(
    tokens: &[TokenWithSpan],
    at: usize,
    sql: &str,
) -> Option<[Edit; 2]> {
    let is = |i: usize, word: &str| is_word(tokens.get(i), word);
    let is_any = |i: usize, words: &[&str]| words.iter().any(|word| is(i, word));
    let others = ["RIGHT", "FULL", "CROSS", "NATURAL", "SEMI", "ANTI", "ASOF"];
    let before = |i: usize| at.checked_sub(i).is_some_and(|i| is_any(i, &others));
    if !is(at, "JOIN") || before(1) || before(2) {
        return None;
    }
    let ranking_of = |nearest: usize| {
        let has_number = matches!(tokens.get(nearest + 1)?.token, Token::Number(..));
        let by = nearest + 1 + usize::from(has_number);
        let ranks = is(by, "BY") && is_any(by + 1, &["DISTANCE", "SIMILARITY"]);
        ranks.then_some(by + 2)
    };
    let begin = at + 1;
    let limit = end_of(tokens, begin, |i| is_any(i, &ENDS) || is(i, "USING"));
    let nearest = end_of(&tokens[..limit], begin, |i| {
        is(i, "NEAREST") && ranking_of(i).is_some()
    });
    let ranking = ranking_of(nearest).filter(|_| nearest < limit)?;
    let is_hinted = nearest > begin + 1 && is_any(nearest - 1, &["APPROX", "EXACT"]);
    let target = begin..nearest - usize::from(is_hinted);
    let name = name_of(tokens.get(target.clone())?)?;
    let is_call = |i: usize| matches!(tokens.get(i + 1), Some(next) if next.token == Token::LParen);
    let end = end_of(tokens, ranking, |i| {
        is_any(i, &ENDS) && !(is_any(i, &["LEFT", "RIGHT"]) && is_call(i))
    });
    let is_joined = |i: usize| is_any(i, &["NEAREST", "ASOF"]);
    if ranking == end || (ranking..end).any(is_joined) {
        return None;
    }

    let start = |i: usize| offset(sql, tokens[i].span.start);
    let stop = |i: usize| offset(sql, tokens[i - 1].span.end);
    let by = &sql[start(ranking)..stop(end)];
    let order = if is(ranking - 1, "DISTANCE") {
        "ASC"
    } else {
        "DESC"
    };
    let rows = match &tokens[nearest + 1].token {
        Token::Number(rows, _) => rows,
        _ => "1",
    };
    let rest = format!(
        " WHERE ({by}) IS NOT NULL ORDER BY ({by}) {order} NULLS LAST LIMIT {rows}) AS {name} ON true"
    );
    let begin = start(target.start);
    Some([
        (begin..begin, "LATERAL (SELECT * FROM ".to_string()),
        (stop(target.end)..stop(end), rest),
    ])
}

/// The first token from `begin` on, outside of parentheses that begin there, that `is_end` holds for, or that ends the
/// join in any case.
fn end_of(tokens: &[TokenWithSpan], begin: usize, is_end: impl Fn(usize) -> bool) -> usize {
    let mut depth = 0_usize;
    for (i, token) in tokens.iter().enumerate().skip(begin) {
        match token.token {
            Token::LParen | Token::LBracket => depth += 1,
            Token::RParen | Token::RBracket if depth > 0 => depth -= 1,
            Token::RParen | Token::RBracket | Token::SemiColon => return i,
            Token::Comma if depth == 0 => return i,
            _ if depth == 0 && is_end(i) => return i,
            _ => {}
        }
    }
    tokens.len()
}

/// The parenthesis that the last token closes.
fn begin_of(tokens: &[TokenWithSpan]) -> Option<usize> {
    let mut depth = 0_usize;
    tokens.iter().rposition(|token| {
        match token.token {
            Token::RParen => depth += 1,
            Token::LParen => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    })
}

/// The name of a relation in FROM: its alias, without the names of columns, or that of its table.
fn name_of(relation: &[TokenWithSpan]) -> Option<String> {
    let mut last = relation.len().checked_sub(1)?;
    if relation[last].token == Token::RParen {
        let begin = begin_of(relation)?;
        // Otherwise it is a subquery, or the call of a function.
        last = begin.checked_sub(1).filter(|last| *last > 0)?;
    }
    match &relation[last].token {
        Token::Word(word) => Some(word.to_string()),
        _ => None,
    }
}
