//! Open ends of intervals of the side that is searched, as comparisons of keys in which NULL is the last of all, and
//! comparisons of differences, as those of keys.
//!
//! ```text
//!   p.stop > q.ts OR p.stop IS NULL                        rmq_upper_bound(p.stop, p.stop IS NULL) >= q.ts
//!   extract(epoch FROM q.ts - p.ts) BETWEEN 0 AND 3600     p.ts <= rmq_upper_bound(q.ts),
//!                                                          p.ts >= rmq_lower_bound(q.ts, -3601 seconds + 1 ns)
//!   abs(p.id - q.id) <= 30                                 p.id >= rmq_lower_bound(q.id, -30),
//!                                                          p.id <= rmq_upper_bound(q.id, 30)
//! ```
//!
//! A comparison is a bound of the range or a threshold, whichever the other conditions need. That of a difference of
//! integers is the same only where the difference can't wrap around.

use datafusion_common::{DFSchema, Result};
use datafusion_expr::Expr;

use crate::conditions::condition::{Open, Operand, Range, Sides, conversion};
use crate::conditions::rejection::Match;
use crate::rules::condition_parts::{Constants, conjuncts, sides_of};

/// The conjuncts of conditions, with comparisons of keys in place of open ends, and of the seconds between two times,
/// where these have the same rows.
pub fn compared_by_keys(
    conditions: Vec<Expr>,
    constants: Constants,
    probe: &DFSchema,
    build: &DFSchema,
) -> Match<Vec<Expr>> {
    // With a row in force before the range, the bound itself matters, not only which keys it includes.
    if constants == Constants::Bound {
        return Ok(conditions);
    }
    sides_of(probe, build, |sides| {
        without_nulls(conjuncts(conditions), sides)
    })
}

/// The same conjuncts, without the open ends of bounds that another excludes from being NULL.
fn without_nulls(conjuncts: Vec<Expr>, sides: &Sides<'_, Expr>) -> Match<Vec<Expr>> {
    let closed = conjuncts.iter().filter_map(|c| sides.stated(c));
    let closed: Vec<Expr> = closed.map(|(.., bound)| bound).collect();
    // Such a comparison does not hold for a bound that is NULL.
    let excludes_null = |bound: &Expr| closed.contains(bound);
    let mut compared = vec![];
    for conjunct in conjuncts {
        if let Some(ranges) = sides.seconds(&conjunct)? {
            compared.extend(ranges.map(as_comparison));
            continue;
        }
        let range = sides.open_end(&conjunct, &excludes_null)?;
        let range = range.filter(|range| {
            let (.., bound) = &range.compared;
            range.open == Open::Never || range.open == Open::Key && excludes_null(bound)
        });
        compared.push(range.map_or(conjunct, as_comparison));
    }
    Ok(compared)
}

/// The conjuncts with comparisons of keys in place of those of differences of integers, and whether there are any. The
/// comparisons are the same only where the differences can't wrap around.
pub fn without_differences(
    conjuncts: Vec<Expr>,
    probe: &DFSchema,
    build: &DFSchema,
) -> Result<(Vec<Expr>, bool)> {
    sides_of(probe, build, |sides| {
        let (mut compared, mut others) = (vec![], vec![]);
        for conjunct in conjuncts {
            let ranges = sides.ranges(&conjunct)?;
            if !ranges.is_empty() && ranges.iter().all(is_of_difference) {
                compared.extend(ranges.into_iter().map(as_comparison));
            } else {
                others.push(conjunct);
            }
        }
        let mut rest: Vec<Expr> = vec![];
        for conjunct in others {
            let mut ends = None;
            for (i, other) in rest.iter().enumerate() {
                let ranges = sides.between(other, &conjunct)?;
                if let Some(ranges) = ranges.filter(|ranges| ranges.iter().all(is_of_difference)) {
                    ends = Some((i, ranges));
                    break;
                }
            }
            match ends {
                Some((other, ranges)) => {
                    rest.remove(other);
                    compared.extend(ranges.map(as_comparison));
                }
                None => rest.push(conjunct),
            }
        }
        let are_any = !compared.is_empty();
        rest.append(&mut compared);
        Ok((rest, are_any))
    })
}

/// Whether a range has the keys for which a comparison of a difference holds, unless it wraps around. The difference of
/// unsigned integers has no other sign.
fn is_of_difference(range: &Range<Expr>) -> bool {
    let conversion = conversion(&range.compared.2);
    conversion.is_some_and(|(bound, _)| {
        bound.wraps_at().is_some() && bound.key_type().is_signed_integer()
    })
}

/// The comparison of a range.
pub fn as_comparison(range: Range<Expr>) -> Expr {
    Expr::comparing(range.compared)
}
