//! Open ends of intervals of the side that is searched, as comparisons of keys in which NULL is the last of all.
//!
//! ```text
//!   p.stop > q.ts OR p.stop IS NULL     rmq_upper_bound(p.stop, p.stop IS NULL) >= q.ts
//! ```
//!
//! A comparison is a bound of the range or a threshold, whichever the other conditions need.

use datafusion::common::DFSchema;
use datafusion::logical_expr::{Expr, binary_expr};

use crate::optimizer::condition::{Open, Sides, operator};
use crate::optimizer::logical::condition_parts::{Constants, conjuncts, sides_of};
use crate::optimizer::rejection::Match;

/// The conjuncts of conditions, with comparisons of keys in place of open ends where these have the same rows.
pub(crate) fn compared_by_keys(
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
    let compared = conjuncts.into_iter().map(|conjunct| {
        let Some(range) = sides.open_end(&conjunct, &excludes_null)? else {
            return Ok(conjunct);
        };
        let (key, comparison, bound) = range.compared;
        let is_same = range.open == Open::Never || range.open == Open::Key && excludes_null(&bound);
        Ok(if is_same {
            binary_expr(key, operator(comparison), bound)
        } else {
            conjunct
        })
    });
    compared.collect()
}
