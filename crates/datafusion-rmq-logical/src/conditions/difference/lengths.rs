//! Differences that are compared with a length that comes with the bound: `q.id - p.id <= q.n`.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion_common::Result;
use datafusion_expr::{Operator, ScalarUDF};

use crate::conditions::condition::{Open, Operand, Range, Sides, comparison, swapped};
use crate::conditions::difference::{Difference, Ends};
use crate::expr::length_bound::{End, LengthBoundUdf, shown};
use rmq_engine::Comparison;

impl<E: Operand + PartialEq> Sides<'_, E> {
    /// The ranges of a difference of integers, or of dates, that is compared with a length of the bound's side.
    pub fn difference_and_length(
        &self,
        left: &E,
        op: Operator,
        right: &E,
    ) -> Result<Vec<Range<E>>> {
        let (compared, op, length) = if (self.is_bound)(right) {
            (left, Some(op), right)
        } else if (self.is_bound)(left) {
            (right, op.swap(), left)
        } else {
            return Ok(vec![]);
        };
        let stated = op.and_then(comparison).zip(Difference::of(compared));
        let Some((comparison, difference)) = stated.filter(|(_, found)| found.scales.is_none())
        else {
            return Ok(vec![]);
        };
        let is_integer = length.data_type(self.bounds)?.is_integer();
        let Some(ends) = self.ends(&difference)?.filter(|_| is_integer) else {
            return Ok(vec![]);
        };
        // The number of days between two dates does not wrap around.
        let is_date = ends.data_type == DataType::Date32;
        let open = match (is_date, difference.is_absolute) {
            (true, _) => Open::Never,
            (false, true) => Open::Implied,
            (false, false) => Open::Wrapping,
        };
        if !is_date && !ends.data_type.is_integer() {
            return Ok(vec![]);
        }
        let range = |comparison, is_added| {
            let end = match (is_added, open) {
                (_, Open::Implied) => End::Distance,
                (true, _) => End::Plus,
                (false, _) => End::Minus,
            };
            self.bounded(&ends, comparison, end, length, open)
        };
        // key - bound < c is key < bound + c, and bound - key < c is key > bound - c.
        Ok(match (difference.is_absolute, ends.is_of_bound) {
            (true, _) if comparison.is_lower() => vec![],
            (true, _) => vec![range(comparison, true)?, range(swapped(comparison), false)?],
            (false, true) => vec![range(comparison, true)?],
            (false, false) => vec![range(swapped(comparison), false)?],
        })
    }

    /// The range of keys that compare as stated with an end.
    fn bounded(
        &self,
        ends: &Ends<'_, E>,
        comparison: Comparison,
        end: End,
        length: &E,
        open: Open,
    ) -> Result<Range<E>> {
        let function = Arc::new(ScalarUDF::from(LengthBoundUdf::new(end)));
        let arguments = vec![
            E::constant(shown(comparison)),
            ends.bound.clone(),
            length.clone(),
        ];
        let bound = E::call(function, arguments, self.bounds)?;
        let comparison = if comparison.is_lower() {
            Comparison::AtLeast
        } else {
            Comparison::AtMost
        };
        Ok(Range {
            compared: (ends.key.clone(), comparison, bound),
            open,
        })
    }
}
