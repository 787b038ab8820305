//! Range lookups, and the relations that they share.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{Result, plan_err};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::protobuf::proto_error;
use datafusion_rmq::parts::{
    CallParts, LookupParts, RelationParts, RequiredIndexParts, SharedRelation, prepare_indexes,
    range_lookup,
};
use datafusion_rmq::physical_plan::{PrepareIndexesExec, RangeLookupExec};
use datafusion_rmq::{IndexKind, RangeFunction, RmqOptions};

use crate::convert::{Decoder, Encoder};
use crate::messages;
use crate::shared_parts::SharedParts;
use crate::values::{Choice, arrow_type, data_type, size};

/// The most bytes of a table in memory that are sent with a plan.
const MAX_MEMORY_BYTES: usize = 16 << 20;

/// The message of a range lookup.
pub(crate) fn write(lookup: &RangeLookupExec, encoder: Encoder) -> Result<messages::RangeLookup> {
    let calls = lookup.calls().iter().map(|call| {
        let threshold = call.threshold.as_ref();
        Ok(messages::RangeCall {
            function: call.function.number()?,
            relation: SharedRelation::of_call(call).id(),
            column: call.column.clone(),
            left: encoder.expr(&call.left)?,
            right: encoder.expr(&call.right)?,
            threshold: threshold.map(|e| encoder.expr(e)).transpose()?,
            output: call.output.clone(),
            data_type: arrow_type(&call.data_type)?,
            volatile: call.volatile,
        })
    });
    let relations = lookup.calls().iter().map(SharedRelation::of_call);
    Ok(messages::RangeLookup {
        calls: calls.collect::<Result<_>>()?,
        relations: write_relations(relations, encoder)?,
    })
}

/// The range lookup of a message.
pub(crate) fn read(
    message: &messages::RangeLookup,
    [input]: [Arc<dyn ExecutionPlan>; 1],
    decoder: Decoder,
    shared: &SharedParts,
) -> Result<RangeLookupExec> {
    let schema = input.schema();
    let relations = Relations::read(&message.relations, decoder, shared)?;
    let calls = message.calls.iter().map(|call| {
        let threshold = call.threshold.as_ref();
        Ok(CallParts {
            function: RangeFunction::of_number(call.function)?,
            relation: relations.get(call.relation)?,
            column: call.column.clone(),
            left: decoder.expr(&call.left, &schema)?,
            right: decoder.expr(&call.right, &schema)?,
            threshold: threshold.map(|e| decoder.expr(e, &schema)).transpose()?,
            output: call.output.clone(),
            data_type: data_type(&call.data_type)?,
            volatile: call.volatile,
        })
    });
    let calls = calls.collect::<Result<_>>()?;
    range_lookup(input, calls)
}

/// The message of an operator that prepares indexes.
pub(crate) fn write_prepare(
    prepare: &PrepareIndexesExec,
    encoder: Encoder,
) -> Result<messages::PrepareIndexes> {
    let lookups = prepare.lookups().iter().map(|lookup| {
        Ok(messages::IndexLookup {
            function: lookup.function.number()?,
            relation: SharedRelation::of_lookup(lookup).id(),
            column: lookup.column.clone(),
            slot: lookup.slot.id(),
        })
    });
    let relations = prepare.lookups().iter().map(SharedRelation::of_lookup);
    Ok(messages::PrepareIndexes {
        relations: write_relations(relations, encoder)?,
        lookups: lookups.collect::<Result<_>>()?,
        run: prepare.run().to_string(),
        is_collected: prepare.is_collected(),
    })
}

/// The operator of a message that prepares indexes.
pub(crate) fn read_prepare(
    message: &messages::PrepareIndexes,
    [input]: [Arc<dyn ExecutionPlan>; 1],
    decoder: Decoder,
    shared: &SharedParts,
) -> Result<PrepareIndexesExec> {
    let relations = Relations::read(&message.relations, decoder, shared)?;
    let lookups = message.lookups.iter().map(|lookup| {
        let function = RangeFunction::of_number(lookup.function)?;
        let relation = relations.get(lookup.relation)?;
        let slot = shared.slot(lookup.slot);
        Ok((function, relation, lookup.column.clone(), slot))
    });
    let lookups: Vec<LookupParts> = lookups.collect::<Result<_>>()?;
    prepare_indexes(input, lookups, &message.run, message.is_collected)
}

/// The messages of these relations, each once.
fn write_relations(
    relations: impl Iterator<Item = SharedRelation>,
    encoder: Encoder,
) -> Result<Vec<messages::Relation>> {
    let mut messages: Vec<messages::Relation> = vec![];
    for relation in relations {
        if messages.iter().all(|known| known.id != relation.id()) {
            messages.push(write_relation(&relation, encoder)?);
        }
    }
    Ok(messages)
}

/// The relations of an operator.
struct Relations(HashMap<u64, SharedRelation>);

impl Relations {
    fn read(
        messages: &[messages::Relation],
        decoder: Decoder,
        shared: &SharedParts,
    ) -> Result<Self> {
        let relations = messages.iter().map(|message| {
            let relation = read_relation(message, decoder, shared)?;
            Ok((message.id, relation))
        });
        Ok(Self(relations.collect::<Result<_>>()?))
    }

    /// The relation of this id.
    fn get(&self, id: u64) -> Result<SharedRelation> {
        let relation = self.0.get(&id).cloned();
        relation.ok_or_else(|| proto_error(format!("there is no relation {id}")))
    }
}

fn write_relation(relation: &SharedRelation, encoder: Encoder) -> Result<messages::Relation> {
    let parts = relation.parts()?;
    check_memory(&parts.label, &parts.plan)?;
    let indexes = parts.indexes.iter().map(|index| {
        Ok(messages::RequiredIndex {
            column: index.column.clone(),
            kind: index.kind.number()?,
            ranges: index.ranges.map(|ranges| ranges as u64),
            in_expression: index.in_expression,
        })
    });
    Ok(messages::Relation {
        id: relation.id(),
        label: parts.label,
        is_subquery: parts.is_subquery,
        plan: encoder.plan(&parts.plan)?,
        indexes: indexes.collect::<Result<_>>()?,
    })
}

fn read_relation(
    message: &messages::Relation,
    decoder: Decoder,
    shared: &SharedParts,
) -> Result<SharedRelation> {
    let make = || {
        let indexes = message.indexes.iter().map(|index| {
            Ok(RequiredIndexParts {
                column: index.column.clone(),
                kind: IndexKind::of_number(index.kind)?,
                ranges: index.ranges.map(size).transpose()?,
                in_expression: index.in_expression,
            })
        });
        let parts = RelationParts {
            label: message.label.clone(),
            is_subquery: message.is_subquery,
            plan: decoder.plan(&message.plan)?,
            indexes: indexes.collect::<Result<_>>()?,
        };
        let options = RmqOptions::of(decoder.context.session_config().options());
        parts.relation(options.engine, shared.indexes())
    };
    shared.relation(message.id, make)
}

/// Checks the size of the tables in memory that a plan reads, which are sent with it.
///
/// # Errors
/// A planning error for more than [`MAX_MEMORY_BYTES`].
pub(crate) fn check_memory(what: &str, plan: &Arc<dyn ExecutionPlan>) -> Result<()> {
    let bytes = memory_bytes(plan);
    if bytes > MAX_MEMORY_BYTES {
        return plan_err!(
            "the rows of {what} are in memory, {bytes} bytes, and a plan that is sent to another process may have \
             {MAX_MEMORY_BYTES} bytes of rows: write the table to files that all processes can read"
        );
    }
    Ok(())
}

/// Bytes of tables in memory that a plan reads, which are sent with it.
fn memory_bytes(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let source = plan.downcast_ref::<DataSourceExec>();
    let memory = source.and_then(|s| s.data_source().downcast_ref::<MemorySourceConfig>());
    let batches = memory
        .into_iter()
        .flat_map(|memory| memory.partitions().iter().flatten());
    let bytes: usize = batches.map(RecordBatch::get_array_memory_size).sum();
    let inputs = plan.children().into_iter().map(memory_bytes);
    bytes + inputs.sum::<usize>()
}
