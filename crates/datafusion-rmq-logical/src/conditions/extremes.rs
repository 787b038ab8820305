//! Comparisons of extremes of both sides: the ranges that they imply.
//!
//! ```text
//!   greatest(p.start, q.start) < least(p.stop, q.stop)        p.start < q.stop, p.stop > q.start
//! ```
//!
//! The extremes skip operands that are NULL, so that such a key, or bound, is one that compares as stated with all
//! others. Ranges are only what the comparison implies, which is evaluated again.

use datafusion_common::Result;
use datafusion_expr::{Operator, ScalarUDF};
use datafusion_functions::core;

use crate::conditions::condition::{Open, Operand, Range, Sides, comparison, opened, swapped};
use crate::expr::key_bound::integer_limits;
use rmq_engine::Comparison;

impl<E: Operand + PartialEq> Sides<'_, E> {
    /// The ranges of keys that a comparison implies of which an operand is the greatest, or the least, of several.
    pub fn of_extremes(&self, left: &E, op: Operator, right: &E) -> Result<Vec<Range<E>>> {
        let (less, below, greater) = match comparison(op) {
            Some(above) if above.is_lower() => (right, swapped(above), left),
            Some(below) => (left, below, right),
            None => return Ok(vec![]),
        };
        let (of_less, of_greater) = (
            operands_of(less, &core::greatest()),
            operands_of(greater, &core::least()),
        );
        if of_less.is_none() && of_greater.is_none() {
            return Ok(vec![]);
        }
        let mut ranges = vec![];
        for less in of_less.unwrap_or(std::slice::from_ref(less)) {
            for greater in of_greater.unwrap_or(std::slice::from_ref(greater)) {
                let compared = if (self.is_key)(less) && (self.is_bound)(greater) {
                    (less, below, greater)
                } else if (self.is_bound)(less) && (self.is_key)(greater) {
                    (greater, swapped(below), less)
                } else {
                    continue;
                };
                ranges.extend(self.implied(compared)?);
            }
        }
        Ok(ranges)
    }

    /// The range that a comparison of operands implies of which each that is NULL is skipped.
    fn implied(&self, (key, comparison, bound): (&E, Comparison, &E)) -> Result<Option<Range<E>>> {
        let key_type = key.data_type(self.keys)?;
        // Extremes have another order of floats than comparisons.
        if key_type.is_floating() || key_type != bound.data_type(self.bounds)? {
            return Ok(None);
        }
        let (key_is_null, bound_is_null) =
            (key.may_be_null(self.keys)?, bound.may_be_null(self.bounds)?);
        let (mut key, mut bound) = (key.clone(), bound.clone());
        let mut relaxed = comparison;
        if key_is_null || bound_is_null {
            if integer_limits(&key_type).is_none() {
                return Ok(None);
            }
            let (of_bound, of_key) = if comparison.is_lower() {
                (Comparison::AtLeast, Comparison::AtMost)
            } else {
                (Comparison::AtMost, Comparison::AtLeast)
            };
            if key_is_null {
                (key, _) = opened(key.clone(), key, of_key, key_type.clone(), self.keys)?;
            }
            if bound_is_null {
                (bound, _) = opened(bound.clone(), bound, of_bound, key_type, self.bounds)?;
            }
            relaxed = of_bound;
        }
        Ok(Some(Range {
            compared: (key, relaxed, bound),
            open: Open::Implied,
        }))
    }
}

/// The arguments of a call of this function, if it is one.
fn operands_of<'e, E: Operand>(expr: &'e E, function: &ScalarUDF) -> Option<&'e [E]> {
    let (called, arguments) = expr.as_call()?;
    (called == function).then_some(arguments)
}
