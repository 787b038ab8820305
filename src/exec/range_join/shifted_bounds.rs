//! Bounds as columns that constants are added to.
//!
//! Most bounds are a time of the probe side plus or minus a duration. Devices add it to the column, which goes up once
//! for all of its bounds, so that no array of a bound is made. Where a sum is beyond its type, bounds are evaluated as
//! expressions, which tells what that means.

use arrow::datatypes::DataType as T;
use arrow::datatypes::Schema;
use arrow::datatypes::TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
use datafusion::common::ScalarValue as S;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{BinaryExpr, Literal};

use rmq_engine::{Comparison, ProbeBound};

/// The bounds of a join, made of as few columns as possible.
#[derive(Debug)]
pub(crate) struct ShiftedBounds {
    pub(crate) columns: Vec<PhysicalExprRef>,
    pub(crate) bounds: Vec<ProbeBound>,
}

impl ShiftedBounds {
    /// Those of these bounds, of rows of this schema.
    pub(crate) fn new(bounds: &[(Comparison, PhysicalExprRef)], schema: &Schema) -> Self {
        let mut columns: Vec<PhysicalExprRef> = vec![];
        let bounds = bounds.iter().map(|(comparison, bound)| {
            let (column, shift) = shifted(bound, schema).unwrap_or((bound, 0));
            let known = columns.iter().position(|known| known == column);
            let column = known.unwrap_or_else(|| {
                columns.push(PhysicalExprRef::clone(column));
                columns.len() - 1
            });
            ProbeBound {
                comparison: *comparison,
                column,
                shift,
            }
        });
        Self {
            bounds: bounds.collect(),
            columns,
        }
    }
}

/// What a bound is computed of, over rows of this schema, and what is added to its integers. `None` for a bound that is
/// no such sum.
fn shifted<'a>(bound: &'a PhysicalExprRef, schema: &Schema) -> Option<(&'a PhysicalExprRef, i64)> {
    let sum = bound.downcast_ref::<BinaryExpr>()?;
    let shift = sum.right().downcast_ref::<Literal>()?.value();
    let shift = match (sum.left().data_type(schema).ok()?, shift) {
        (T::Timestamp(Second, _) | T::Duration(Second), S::DurationSecond(Some(shift)))
        | (
            T::Timestamp(Millisecond, _) | T::Duration(Millisecond),
            S::DurationMillisecond(Some(shift)),
        )
        | (
            T::Timestamp(Microsecond, _) | T::Duration(Microsecond),
            S::DurationMicrosecond(Some(shift)),
        )
        | (
            T::Timestamp(Nanosecond, _) | T::Duration(Nanosecond),
            S::DurationNanosecond(Some(shift)),
        )
        | (T::Int64, S::Int64(Some(shift))) => *shift,
        (T::Int32, S::Int32(Some(shift))) => i64::from(*shift),
        _ => return None,
    };
    match sum.op() {
        Operator::Plus => Some((sum.left(), shift)),
        Operator::Minus => Some((sum.left(), shift.checked_neg()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::Field;
    use datafusion::physical_expr::expressions::Column;

    use super::*;

    #[test]
    fn bounds_of_one_column_share_it() {
        let column = |name: &str, index| Arc::new(Column::new(name, index)) as PhysicalExprRef;
        let fields = [T::Timestamp(Millisecond, None), T::Int32, T::Int64];
        let fields = fields.into_iter().zip(["ts", "a", "b"]);
        let fields = fields.map(|(data_type, name)| Field::new(name, data_type, true));
        let schema = Schema::new(fields.collect::<Vec<_>>());
        let sum = |column, op, shift| {
            Arc::new(BinaryExpr::new(column, op, Arc::new(Literal::new(shift)))) as PhysicalExprRef
        };
        let (ts, a, b) = (|| column("ts", 0), || column("a", 1), || column("b", 2));
        let (plus, minus) = (Operator::Plus, Operator::Minus);
        let bounds = [
            (sum(ts(), minus, S::DurationMillisecond(Some(5))), 0, -5),
            (ts(), 0, 0),
            (sum(a(), plus, S::Int32(Some(7))), 1, 7),
            (sum(ts(), plus, S::DurationMillisecond(Some(9))), 0, 9),
            // Neither the units nor the operators fit; there is no opposite of the least number.
            (sum(ts(), plus, S::DurationSecond(Some(9))), 2, 0),
            (sum(a(), Operator::Multiply, S::Int32(Some(7))), 3, 0),
            (sum(b(), minus, S::Int64(Some(i64::MIN))), 4, 0),
            (sum(b(), plus, S::Int64(None)), 5, 0),
            (sum(b(), plus, S::Int64(Some(i64::MIN))), 6, i64::MIN),
        ];
        let joined = bounds
            .iter()
            .map(|(bound, ..)| (Comparison::AtMost, Arc::clone(bound)));
        let shifted = ShiftedBounds::new(&joined.collect::<Vec<_>>(), &schema);
        assert_eq!(shifted.columns.len(), 7);
        for (bound, (_, column, shift)) in shifted.bounds.iter().zip(bounds) {
            assert_eq!((bound.column, bound.shift), (column, shift));
        }
    }
}
