//! Functions that no registry knows by their name alone.

use std::sync::Arc;

use datafusion::common::{Result, not_impl_err, plan_datafusion_err};
use datafusion::execution::{FunctionRegistry, TaskContext};
use datafusion::logical_expr::{AggregateUDF, ScalarUDF};
use datafusion::scalar::ScalarValue;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::logical_plan::from_proto::parse_expr;
use datafusion_proto::logical_plan::to_proto::serialize_expr;
use datafusion_proto::physical_plan::PhysicalExtensionCodec;
use datafusion_proto::protobuf::proto_error;
use datafusion_rmq::logical_plan::accumulator_call::{
    AccumulatorCall, AccumulatorOrder, AccumulatorOutput,
};
use datafusion_rmq::logical_plan::range_join::Unmatched;
use datafusion_rmq::parts::{FunctionParts, IndexSlot, MergedStates};
use datafusion_rmq::{Comparison, RangeFunction};

use crate::messages;
use crate::messages::ScalarFunctionKind as Kind;
use crate::values::{Choice, arrow_type, arrow_types, data_type, data_types, size, wide};

/// The message of a scalar function. `exprs` writes the functions in its expressions.
pub(crate) fn write_scalar(
    parts: &FunctionParts,
    exprs: &dyn LogicalExtensionCodec,
) -> Result<messages::ScalarFunction> {
    let kind = match parts {
        FunctionParts::KeyBound {
            comparison,
            factors: (factor, bound_factor),
            offset,
            opposite,
            key_type,
        } => Kind::KeyBound(messages::KeyBound {
            comparison: comparison.number()?,
            factor: factor.to_le_bytes().to_vec(),
            bound_factor: bound_factor.to_le_bytes().to_vec(),
            offset: offset.to_le_bytes().to_vec(),
            opposite: opposite.map(|opposite| opposite.to_le_bytes().to_vec()),
            key_type: arrow_type(key_type)?,
        }),
        FunctionParts::FloatBound { is_lower, length } => Kind::FloatBound(messages::FloatBound {
            is_lower: *is_lower,
            length: *length,
        }),
        FunctionParts::OrderKey { orders } => {
            let (descending, nulls_first) = orders.iter().copied().unzip();
            Kind::OrderKey(messages::OrderKey {
                descending,
                nulls_first,
            })
        }
        FunctionParts::OrderBound { after } => Kind::OrderBound(messages::OrderBound {
            after: after.map(|values| values as u64),
        }),
        FunctionParts::DecimalAverage { average } => Kind::DecimalAverage(arrow_type(average)?),
        FunctionParts::Fallible {
            is_error,
            expr,
            types,
            data_type,
        } => Kind::Fallible(messages::Fallible {
            is_error: *is_error,
            expr: serialize_expr(expr, exprs).map_err(|e| proto_error(e.to_string()))?,
            types: arrow_types(types)?,
            data_type: arrow_type(data_type)?,
        }),
        FunctionParts::IndexLookup {
            function,
            data_type,
            slot,
        } => Kind::IndexLookup(messages::IndexLookupFunction {
            function: function.number()?,
            data_type: arrow_type(data_type)?,
            slot: slot.id(),
        }),
    };
    let kind = Some(kind);
    Ok(messages::ScalarFunction { kind })
}

/// The scalar function of a message. Functions in its expressions are those of `context` and of `exprs`, and `slot` has
/// the slots of indexes.
pub(crate) fn read_scalar(
    message: &messages::ScalarFunction,
    context: &TaskContext,
    exprs: &dyn LogicalExtensionCodec,
    slot: impl Fn(u64) -> IndexSlot,
) -> Result<ScalarUDF> {
    let parts = match &message.kind {
        Some(Kind::KeyBound(bound)) => {
            let factors = (wide(&bound.factor)?, wide(&bound.bound_factor)?);
            if factors.0 <= 0 || factors.1 <= 0 {
                return Err(proto_error("the factors of a bound are positive"));
            }
            let opposite = bound.opposite.as_deref();
            FunctionParts::KeyBound {
                comparison: Comparison::of_number(bound.comparison)?,
                factors,
                offset: wide(&bound.offset)?,
                opposite: opposite.map(wide).transpose()?,
                key_type: data_type(&bound.key_type)?,
            }
        }
        Some(Kind::FloatBound(bound)) => {
            if !bound.length.is_finite() {
                return Err(proto_error("the length of a bound is a finite number"));
            }
            FunctionParts::FloatBound {
                is_lower: bound.is_lower,
                length: bound.length,
            }
        }
        Some(Kind::OrderKey(key)) => {
            if key.descending.len() != key.nulls_first.len() {
                return Err(proto_error("a value of an order key has two properties"));
            }
            let descending = key.descending.iter().copied();
            let orders = descending.zip(key.nulls_first.iter().copied()).collect();
            FunctionParts::OrderKey { orders }
        }
        Some(Kind::OrderBound(bound)) => FunctionParts::OrderBound {
            after: bound.after.map(size).transpose()?,
        },
        Some(Kind::DecimalAverage(average)) => FunctionParts::DecimalAverage {
            average: data_type(average)?,
        },
        Some(Kind::Fallible(fallible)) => {
            let expr = parse_expr(&fallible.expr, context, exprs);
            FunctionParts::Fallible {
                is_error: fallible.is_error,
                expr: Box::new(expr.map_err(|e| proto_error(e.to_string()))?),
                types: data_types(&fallible.types)?,
                data_type: data_type(&fallible.data_type)?,
            }
        }
        Some(Kind::IndexLookup(lookup)) => FunctionParts::IndexLookup {
            function: RangeFunction::of_number(lookup.function)?,
            data_type: data_type(&lookup.data_type)?,
            slot: slot(lookup.slot),
        },
        None => return Err(proto_error("a function is of a kind")),
    };
    Ok(ScalarUDF::from(parts))
}

/// The message of an aggregate of states.
pub(crate) fn write_merged(
    states: &MergedStates,
    codec: &dyn PhysicalExtensionCodec,
) -> Result<messages::MergedStates> {
    Ok(messages::MergedStates {
        call: accumulator_call(&states.call, codec)?,
        types: arrow_types(&states.types)?,
        unmatched: states.unmatched.number()?,
    })
}

/// The aggregate of states of a message.
pub(crate) fn read_merged(
    message: &messages::MergedStates,
    codec: &dyn PhysicalExtensionCodec,
    context: &TaskContext,
) -> Result<AggregateUDF> {
    let call = read_accumulator_call(&message.call, codec, context)?;
    let states = MergedStates {
        call: Arc::new(call),
        types: data_types(&message.types)?,
        unmatched: Unmatched::of_number(message.unmatched)?,
    };
    states.aggregate()
}

/// The message of an aggregate that its own accumulator computes.
pub(crate) fn accumulator_call(
    call: &AccumulatorCall,
    codec: &dyn PhysicalExtensionCodec,
) -> Result<messages::AccumulatorCall> {
    let returns_state = match call.output {
        AccumulatorOutput::Value => false,
        AccumulatorOutput::State => true,
        AccumulatorOutput::Range => {
            return not_impl_err!(
                "a plan with {} above GROUP BY over a range join can't be sent: plan it with rmq.join_mode = \
                 'collected'",
                call.text
            );
        }
    };
    let mut definition = vec![];
    codec.try_encode_udaf(&call.function, &mut definition)?;
    let literals = call.literals.iter().map(|literal| {
        let value = literal.as_ref().map(TryInto::try_into).transpose()?;
        Ok(messages::Literal { value })
    });
    let order_by = call.order_by.iter();
    let order_by = order_by.map(|order| messages::AccumulatorOrder {
        argument: order.argument as u64,
        ascending: order.ascending,
        nulls_first: order.nulls_first,
    });
    Ok(messages::AccumulatorCall {
        name: call.function.name().to_string(),
        definition,
        literals: literals.collect::<Result<_>>()?,
        order_by: order_by.collect(),
        is_filtered: call.is_filtered,
        is_distinct: call.is_distinct,
        ignores_nulls: call.ignores_nulls,
        returns_state,
        text: call.text.clone(),
    })
}

/// The aggregate of a message. The function is one of `context` or of `codec`.
pub(crate) fn read_accumulator_call(
    message: &messages::AccumulatorCall,
    codec: &dyn PhysicalExtensionCodec,
    context: &TaskContext,
) -> Result<AccumulatorCall> {
    let (name, definition) = (&message.name, &message.definition);
    let known = || context.udaf(name).ok().filter(|_| definition.is_empty());
    let function = match known() {
        Some(function) => function,
        None => codec.try_decode_udaf(name, definition).map_err(|error| {
            plan_datafusion_err!("the aggregate function {name} is unknown here: {error}")
        })?,
    };
    let literals = message.literals.iter().map(|literal| {
        let value = literal.value.as_ref();
        Ok(value.map(ScalarValue::try_from).transpose()?)
    });
    let order_by = message.order_by.iter().map(|order| {
        Ok(AccumulatorOrder {
            argument: size(order.argument)?,
            ascending: order.ascending,
            nulls_first: order.nulls_first,
        })
    });
    Ok(AccumulatorCall {
        function,
        literals: literals.collect::<Result<_>>()?,
        order_by: order_by.collect::<Result<_>>()?,
        is_filtered: message.is_filtered,
        is_distinct: message.is_distinct,
        ignores_nulls: message.ignores_nulls,
        output: if message.returns_state {
            AccumulatorOutput::State
        } else {
            AccumulatorOutput::Value
        },
        text: message.text.clone(),
    })
}
