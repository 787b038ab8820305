//! Alternatives: the range that has all ranges of an OR.
//!
//! ```text
//!   p.ts BETWEEN q.a AND q.b OR p.ts BETWEEN q.c AND q.d        p.ts in [least(q.a, q.c), greatest(q.b, q.d)]
//! ```
//!
//! It may have keys of none of them, so the OR is evaluated again.

use datafusion_common::Result;
use datafusion_expr::Operator;
use datafusion_functions::core;

use crate::conditions::condition::{Compared, Open, Operand, Range, Sides};
use rmq_engine::Comparison;

impl<E: Operand + PartialEq> Sides<'_, E> {
    /// The ranges of keys that each operand of an OR bounds.
    pub fn alternatives(&self, disjunction: &E) -> Result<Vec<Range<E>>> {
        let mut alternatives: Vec<Vec<Compared<E>>> = vec![];
        for alternative in operands_of(disjunction, Operator::Or) {
            let mut stated = vec![];
            for conjunct in operands_of(alternative, Operator::And) {
                stated.extend(self.bounds_of(conjunct)?);
            }
            alternatives.push(stated);
        }
        let Some((first, others)) = alternatives.split_first() else {
            return Ok(vec![]);
        };
        let mut ranges: Vec<Range<E>> = vec![];
        for (key, comparison, bound) in first {
            let is_lower = comparison.is_lower();
            let is_same = |(other, c, _): &&Compared<E>| other == key && c.is_lower() == is_lower;
            let is_known = |range: &Range<E>| is_same(&&range.compared);
            let bounds = others.iter().map(|stated| stated.iter().find(is_same));
            let bounds: Option<Vec<&Compared<E>>> = bounds.collect();
            let Some(bounds) = bounds.filter(|_| !ranges.iter().any(is_known)) else {
                continue;
            };
            let bound_type = bound.data_type(self.bounds)?;
            let mut is_of_type = true;
            for (.., other) in &bounds {
                is_of_type &= other.data_type(self.bounds)? == bound_type;
            }
            // The functions have another order of floats than comparisons. They skip a NULL, for which its alternative
            // holds for no key.
            if !is_of_type || bound_type.is_floating() {
                continue;
            }
            let bounds = bounds.into_iter().map(|(.., other)| other.clone());
            let bounds = std::iter::once(bound.clone()).chain(bounds).collect();
            let (function, comparison) = if is_lower {
                (core::least(), Comparison::AtLeast)
            } else {
                (core::greatest(), Comparison::AtMost)
            };
            let bound = E::call(function, bounds, self.bounds)?;
            ranges.push(Range {
                compared: (key.clone(), comparison, bound),
                open: Open::Implied,
            });
        }
        Ok(ranges)
    }

    /// The comparisons that a conjunct makes, or implies, which do not hold for a NULL.
    fn bounds_of(&self, conjunct: &E) -> Result<Vec<Compared<E>>> {
        if let Some(compared) = self.compared(conjunct)? {
            return Ok(vec![compared]);
        }
        if let Some((key, Some(Operator::Eq), bound)) = self.operands(conjunct) {
            let ends = [Comparison::AtLeast, Comparison::AtMost];
            return Ok(ends.map(|end| (key.clone(), end, bound.clone())).into());
        }
        let ranges = self.ranges(conjunct)?.into_iter();
        let closed = ranges.filter(|range| matches!(range.open, Open::Never | Open::Implied));
        Ok(closed.map(|range| range.compared).collect())
    }
}

/// The operands of an operator that is associative, from left to right.
pub fn operands_of<E: Operand>(expr: &E, operator: Operator) -> Vec<&E> {
    match expr.as_binary() {
        Some((left, op, right)) if op == operator => {
            let mut all = operands_of(left, operator);
            all.extend(operands_of(right, operator));
            all
        }
        _ => vec![expr],
    }
}
