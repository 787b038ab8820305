//! What range joins devices can run.

use arrow::datatypes::{DataType, Schema};
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExprRef;

use crate::exec::range_join::aggregate_table::{AggregateEntry, Structure};
use datafusion_rmq_logical::logical_plan::range_join::{RangeAggregate, RangeJoinSpec};
use rmq_arrow::common::ordered_type::{is_ranked, key_layout};
use rmq_engine::Addends;

/// Why devices can't run a join, in a few words; `None` if they can. They run it as a whole: they sort the build rows,
/// and answer all aggregates.
pub(crate) fn why_not_on_devices(
    spec: &RangeJoinSpec<PhysicalExprRef>,
    build: &Schema,
) -> Result<Option<String>> {
    let key = spec.key.data_type(build)?;
    if key_layout(&key).is_none() || is_ranked(&key) {
        return Ok(Some(format!("devices do not sort by {key}")));
    }
    let lower_bounds = spec.bounds.iter().filter(|(c, _)| c.is_lower()).count();
    if spec.prevailing && lower_bounds != 1 {
        let why = "devices need one lower bound for prevailing rows";
        return Ok(Some(why.to_string()));
    }
    for aggregate in &spec.aggregates {
        if let Some(lacking) = lacking(aggregate, &argument_types(aggregate, build)?) {
            return Ok(Some(format!("devices do not compute {lacking}")));
        }
    }
    Ok(None)
}

/// The types of an aggregate's arguments.
pub(crate) fn argument_types(
    aggregate: &RangeAggregate<PhysicalExprRef>,
    build: &Schema,
) -> Result<Vec<DataType>> {
    let arguments = aggregate.arguments.iter();
    arguments
        .map(|argument| argument.data_type(build))
        .collect()
}

/// The name of an aggregate over arguments of these types that devices can't compute.
fn lacking(aggregate: &RangeAggregate<PhysicalExprRef>, arguments: &[DataType]) -> Option<String> {
    let entry = AggregateEntry::new(aggregate.function, arguments.len(), None);
    let can_build = |(argument, structure): &(usize, Structure)| {
        let data_type = arguments.get(*argument);
        data_type.is_some_and(|data_type| is_on_devices(*structure, data_type))
    };
    if entry.on_devices && entry.needs.iter().all(can_build) {
        return None;
    }
    Some(match &aggregate.call {
        Some(call) => call.text.clone(),
        None if !entry.on_devices => "aggregates by thresholds".to_string(),
        None => {
            let types: Vec<String> = arguments.iter().map(ToString::to_string).collect();
            format!("an aggregate of {}", types.join(", "))
        }
    })
}

/// Whether devices can build a structure of values of this type, or the host takes the values for them.
fn is_on_devices(structure: Structure, data_type: &DataType) -> bool {
    match structure {
        Structure::Counts | Structure::Values => true,
        Structure::Sums => addends(data_type).is_some(),
        Structure::Index { .. } => key_layout(data_type).is_some(),
        Structure::Array | Structure::OrderStatistics(_) | Structure::Rows => false,
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
