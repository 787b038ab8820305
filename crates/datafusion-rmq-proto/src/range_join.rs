//! Range joins.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::{JoinSide, JoinType, Result, plan_err};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::utils::ColumnIndex;
use datafusion_proto::protobuf::proto_error;
use datafusion_rmq::Comparison;
use datafusion_rmq::logical_plan::nearest_rows::RowLimit;
use datafusion_rmq::logical_plan::range_join::{
    AggregateKind, RangeAggregate, RangeJoinSpec, Unmatched,
};
use datafusion_rmq::parts::{PairDistance, RangeJoinParts, RowJoin, RowThreshold};
use datafusion_rmq::physical_plan::{JoinMode, RangeJoinExec};
use datafusion_rmq::{Extreme, RangeEnd, SharedIndexes};

use crate::convert::{Decoder, Encoder};
use crate::functions::{accumulator_call, read_accumulator_call};
use crate::messages;
use crate::messages::AggregateFunction as Function;
use crate::values::{Choice, arrow_type, data_type, size};

/// The aggregates that have nothing more to tell.
impl Choice for AggregateKind {
    const NAME: &'static str = "aggregate of a range join";
    const ALL: &'static [Self] = &[
        Self::CountRows,
        Self::Count,
        Self::Sum,
        Self::SumLow,
        Self::First,
        Self::Last,
        Self::Rightmost,
        Self::Accumulate,
    ];
}

/// The message of a range join.
///
/// # Errors
/// A planning error for a join that shares its build side; those of its expressions.
pub(crate) fn write(join: &RangeJoinExec, encoder: Encoder) -> Result<messages::RangeJoin> {
    let parts = RangeJoinParts::of(join);
    if parts.mode == JoinMode::Shared {
        return plan_err!(
            "the range join {} shares its searched side among all partitions, so another process, which may execute only some of \
             them, would lose rows: plan the query with SET rmq.join_mode = 'collected' or 'partitioned'",
            join.label()
        );
    }
    let row_join = parts.row_join.as_deref();
    Ok(messages::RangeJoin {
        spec: write_spec(&parts.spec, encoder)?,
        row_join: row_join
            .map(|join| write_row_join(join, encoder))
            .transpose()?,
        label: parts.label,
        mode: parts.mode.number()?,
        is_undivided: parts.is_undivided,
        position: parts.position.map(|column| column as u64),
        fetch: parts.fetch.map(|rows| rows as u64),
        probe_rows: parts.probe_rows.map(|rows| rows as u64),
    })
}

/// The range join of these inputs.
///
/// # Errors
/// A message of the error for parts that do not fit together.
pub(crate) fn read(
    message: &messages::RangeJoin,
    [probe, build]: [Arc<dyn ExecutionPlan>; 2],
    decoder: Decoder,
    indexes: &SharedIndexes,
) -> Result<RangeJoinExec> {
    let schemas = (&*probe.schema(), &*build.schema());
    let spec = read_spec(&message.spec, schemas, decoder)?;
    let num_build_columns = schemas.1.fields().len();
    let position = message
        .position
        .map(|column| index_below(column, num_build_columns));
    let row_join = message.row_join.as_ref();
    let row_join = row_join.map(|join| read_row_join(join, schemas, decoder));
    let parts = RangeJoinParts {
        spec: Arc::new(spec),
        row_join: row_join.transpose()?.map(Arc::new),
        label: message.label.clone(),
        mode: JoinMode::of_number(message.mode)?,
        is_undivided: message.is_undivided,
        position: position.transpose()?,
        fetch: message.fetch.map(size).transpose()?,
        probe_rows: message.probe_rows.map(size).transpose()?,
    };
    let partitions = decoder.context.session_config().target_partitions();
    parts.join((probe, build), indexes, partitions)
}

fn write_spec(
    spec: &RangeJoinSpec<PhysicalExprRef>,
    encoder: Encoder,
) -> Result<messages::RangeJoinSpec> {
    let bounds = spec.bounds.iter().map(|(comparison, bound)| {
        Ok(messages::Bound {
            comparison: comparison.number()?,
            bound: encoder.expr(bound)?,
        })
    });
    let aggregates = spec.aggregates.iter().map(|aggregate| {
        let call = aggregate.call.as_deref();
        Ok(messages::Aggregate {
            function: write_function(aggregate.function)?,
            arguments: encoder.exprs(&aggregate.arguments)?,
            output: aggregate.output.clone(),
            data_type: arrow_type(&aggregate.data_type)?,
            call: call
                .map(|call| accumulator_call(call, encoder.codec))
                .transpose()?,
        })
    });
    Ok(messages::RangeJoinSpec {
        unmatched: spec.unmatched.number()?,
        probe_keys: encoder.exprs(spec.on.iter().map(|(probe, _)| probe))?,
        build_keys: encoder.exprs(spec.on.iter().map(|(_, build)| build))?,
        key: encoder.expr(&spec.key)?,
        bounds: bounds.collect::<Result<_>>()?,
        prevailing: spec.prevailing,
        thresholds: encoder.exprs(&spec.thresholds)?,
        aggregates: aggregates.collect::<Result<_>>()?,
        metadata: spec.metadata.clone(),
    })
}

fn read_spec(
    message: &messages::RangeJoinSpec,
    (probe, build): (&Schema, &Schema),
    decoder: Decoder,
) -> Result<RangeJoinSpec<PhysicalExprRef>> {
    let ours = decoder.exprs(&message.probe_keys, probe)?;
    let theirs = decoder.exprs(&message.build_keys, build)?;
    if ours.len() != theirs.len() {
        return Err(proto_error("equality keys come in pairs"));
    }
    let bounds = message.bounds.iter().map(|bound| {
        let comparison = Comparison::of_number(bound.comparison)?;
        Ok((comparison, decoder.expr(&bound.bound, probe)?))
    });
    let thresholds = decoder.exprs(&message.thresholds, probe)?;
    let aggregates = message.aggregates.iter().map(|aggregate| {
        let call = aggregate.call.as_ref();
        let call = call.map(|call| read_accumulator_call(call, decoder.codec, decoder.context));
        Ok(RangeAggregate {
            function: read_function(&aggregate.function, thresholds.len())?,
            arguments: decoder.exprs(&aggregate.arguments, build)?,
            output: aggregate.output.clone(),
            data_type: data_type(&aggregate.data_type)?,
            call: call.transpose()?.map(Arc::new),
        })
    });
    Ok(RangeJoinSpec {
        unmatched: Unmatched::of_number(message.unmatched)?,
        on: ours.into_iter().zip(theirs).collect(),
        key: decoder.expr(&message.key, build)?,
        bounds: bounds.collect::<Result<_>>()?,
        prevailing: message.prevailing,
        aggregates: aggregates.collect::<Result<_>>()?,
        thresholds,
        metadata: message.metadata.clone(),
    })
}

fn write_function(function: AggregateKind) -> Result<messages::AggregateKind> {
    let function = match function {
        AggregateKind::Extreme(extreme) => Function::Extreme(extreme.number()?),
        AggregateKind::AtExtreme {
            extreme,
            nulls_first,
        } => Function::AtExtreme(messages::AtExtreme {
            extreme: extreme.number()?,
            nulls_first,
        }),
        AggregateKind::AtCrossing {
            end,
            comparison,
            threshold,
        } => Function::AtCrossing(messages::Crossing {
            end: end.number()?,
            comparison: comparison.number()?,
            threshold: threshold as u64,
        }),
        AggregateKind::CountCrossing {
            comparison,
            threshold,
        } => Function::CountCrossing(messages::Crossing {
            end: RangeEnd::First.number()?,
            comparison: comparison.number()?,
            threshold: threshold as u64,
        }),
        plain => Function::Plain(plain.number()?),
    };
    let function = Some(function);
    Ok(messages::AggregateKind { function })
}

fn read_function(message: &messages::AggregateKind, thresholds: usize) -> Result<AggregateKind> {
    let threshold = |index: u64| match size(index)? {
        index if index < thresholds => Ok(index),
        index => Err(proto_error(format!("there is no threshold {index}"))),
    };
    match &message.function {
        Some(Function::Plain(plain)) => AggregateKind::of_number(*plain),
        Some(Function::Extreme(extreme)) => {
            Ok(AggregateKind::Extreme(Extreme::of_number(*extreme)?))
        }
        Some(Function::AtExtreme(at)) => Ok(AggregateKind::AtExtreme {
            extreme: Extreme::of_number(at.extreme)?,
            nulls_first: at.nulls_first,
        }),
        Some(Function::AtCrossing(crossing)) => Ok(AggregateKind::AtCrossing {
            end: RangeEnd::of_number(crossing.end)?,
            comparison: Comparison::of_number(crossing.comparison)?,
            threshold: threshold(crossing.threshold)?,
        }),
        Some(Function::CountCrossing(crossing)) => Ok(AggregateKind::CountCrossing {
            comparison: Comparison::of_number(crossing.comparison)?,
            threshold: threshold(crossing.threshold)?,
        }),
        None => Err(proto_error("an aggregate has a function")),
    }
}

fn write_row_join(join: &RowJoin, encoder: Encoder) -> Result<messages::RowJoin> {
    let columns = join.columns.iter().map(|column| {
        Ok(messages::OutputColumn {
            index: column.index as u64,
            side: column.side.number()?,
        })
    });
    let (residual, threshold) = (join.residual.as_ref(), join.threshold.as_ref());
    let (distance, order) = (join.distance.as_ref(), join.order.as_ref());
    let build_columns = join.build_columns.iter();
    Ok(messages::RowJoin {
        join_type: join.join_type.number()?,
        residual: residual.map(|f| encoder.filter(f)).transpose()?,
        threshold: threshold.map(|t| write_threshold(t, encoder)).transpose()?,
        build_columns: build_columns.map(|index| *index as u64).collect(),
        columns: columns.collect::<Result<_>>()?,
        schema: join.schema.as_ref().try_into()?,
        limit: join.limit.map(|limit| messages::RowLimit {
            descending: limit.descending,
            skip: limit.skip as u64,
            fetch: limit.fetch.map(|rows| rows as u64),
        }),
        distance: distance.map(|d| write_distance(d, encoder)).transpose()?,
        order: order.map(|e| encoder.expr(e)).transpose()?,
    })
}

fn read_row_join(
    message: &messages::RowJoin,
    (probe, build): (&Schema, &Schema),
    decoder: Decoder,
) -> Result<RowJoin> {
    let num_build_columns = build.fields().len();
    let build_columns = message.build_columns.iter();
    let build_columns = build_columns.map(|index| index_below(*index, num_build_columns));
    let build_columns = build_columns.collect::<Result<Vec<_>>>()?;
    // A threshold's value is over the columns that are taken of the build side.
    let taken = build.project(&build_columns)?;
    let schema = Schema::try_from(&message.schema)?;
    let columns = message.columns.iter().map(|column| {
        let side = JoinSide::of_number(column.side)?;
        let num_columns = match side {
            JoinSide::Left => probe.fields().len(),
            JoinSide::Right => build_columns.len(),
            JoinSide::None => usize::MAX,
        };
        let index = index_below(column.index, num_columns)?;
        Ok(ColumnIndex { index, side })
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    if columns.len() != schema.fields().len() {
        return Err(proto_error("a join has a field for each column"));
    }
    let (residual, threshold) = (message.residual.as_ref(), message.threshold.as_ref());
    let (distance, order) = (message.distance.as_ref(), message.order.as_ref());
    let threshold = threshold.map(|t| read_threshold(t, (probe, &taken), decoder));
    Ok(RowJoin {
        join_type: JoinType::of_number(message.join_type)?,
        residual: residual.map(|f| decoder.filter(f)).transpose()?,
        threshold: threshold.transpose()?,
        columns,
        schema: Arc::new(schema),
        limit: message.limit.as_ref().map(read_limit).transpose()?,
        distance: distance
            .map(|d| read_distance(d, probe, decoder))
            .transpose()?,
        order: order.map(|e| decoder.expr(e, build)).transpose()?,
        build_columns,
    })
}

/// The index of one of `columns` columns.
fn index_below(index: u64, columns: usize) -> Result<usize> {
    match size(index)? {
        index if index < columns => Ok(index),
        index => Err(proto_error(format!(
            "a join has no column {index} of {columns}"
        ))),
    }
}

fn read_limit(message: &messages::RowLimit) -> Result<RowLimit> {
    Ok(RowLimit {
        descending: message.descending,
        skip: size(message.skip)?,
        fetch: message.fetch.map(size).transpose()?,
    })
}

fn write_threshold(threshold: &RowThreshold, encoder: Encoder) -> Result<messages::RowThreshold> {
    let rest = threshold.rest.as_ref();
    Ok(messages::RowThreshold {
        value: encoder.expr(&threshold.value)?,
        is_ranked: threshold.is_ranked,
        comparison: threshold.comparison.number()?,
        limit: encoder.expr(&threshold.limit)?,
        rest: rest.map(|f| encoder.filter(f)).transpose()?,
    })
}

fn read_threshold(
    message: &messages::RowThreshold,
    (probe, build): (&Schema, &Schema),
    decoder: Decoder,
) -> Result<RowThreshold> {
    let rest = message.rest.as_ref();
    Ok(RowThreshold {
        value: decoder.expr(&message.value, build)?,
        is_ranked: message.is_ranked,
        comparison: Comparison::of_number(message.comparison)?,
        limit: decoder.expr(&message.limit, probe)?,
        rest: rest.map(|f| decoder.filter(f)).transpose()?,
    })
}

fn write_distance(distance: &PairDistance, encoder: Encoder) -> Result<messages::PairDistance> {
    Ok(messages::PairDistance {
        point: encoder.expr(&distance.point)?,
        by: encoder.filter(&distance.by)?,
        grows: encoder.filter(&distance.grows)?,
    })
}

fn read_distance(
    message: &messages::PairDistance,
    probe: &Schema,
    decoder: Decoder,
) -> Result<PairDistance> {
    Ok(PairDistance {
        point: decoder.expr(&message.point, probe)?,
        by: decoder.filter(&message.by)?,
        grows: decoder.filter(&message.grows)?,
    })
}
