//! What devices that sort a build side can answer.

use arrow::datatypes::DataType;

use crate::common::ordered_type::{is_ranked, key_layout};
use crate::logical_plan::range_join::AggregateKind;
use rmq_engine::{Addends, Comparison};

/// Whether devices can sort build rows by a key of this type and search bounds that compare so with it.
pub(crate) fn devices_sort(
    range_key: &DataType,
    comparisons: impl Iterator<Item = Comparison>,
    prevailing: bool,
) -> bool {
    let lower_bounds = comparisons.filter(|comparison| comparison.is_lower());
    key_layout(range_key).is_some()
        && !is_ranked(range_key)
        && (!prevailing || lower_bounds.count() == 1)
}

/// Whether devices can answer an aggregate over arguments of these types.
pub(crate) fn devices_answer(function: AggregateKind, arguments: &[DataType]) -> bool {
    let has_order = |i: usize| arguments.get(i).and_then(key_layout).is_some();
    let addends = || arguments.first().and_then(addends);
    match function {
        AggregateKind::Extreme(_) => has_order(0),
        AggregateKind::AtExtreme { .. } => has_order(1),
        AggregateKind::Sum => addends().is_some(),
        AggregateKind::SumLow => addends() == Some(Addends::Floats),
        AggregateKind::CountRows
        | AggregateKind::Count
        | AggregateKind::First
        | AggregateKind::Last
        | AggregateKind::Rightmost => true,
        AggregateKind::AtCrossing { .. }
        | AggregateKind::CountCrossing { .. }
        | AggregateKind::Accumulate => false,
    }
}

/// What devices sum values of a type as; `None` if they can't.
pub(crate) fn addends(data_type: &DataType) -> Option<Addends> {
    match data_type {
        DataType::Int64
        | DataType::Duration(_)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..) => Some(Addends::Signed),
        DataType::UInt64 => Some(Addends::Unsigned),
        DataType::Float64 => Some(Addends::Floats),
        _ => None,
    }
}
