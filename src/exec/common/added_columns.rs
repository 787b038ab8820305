//! The plan properties of an operator that appends columns to its input.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion::common::Result;
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};

/// The properties of an operator whose output has the input's columns, then `added`, with the input's order and
/// partitions.
pub(crate) fn properties_with(
    input: &dyn ExecutionPlan,
    added: impl IntoIterator<Item = Field>,
    metadata: HashMap<String, String>,
) -> Result<Arc<PlanProperties>> {
    let old = input.schema();
    let fields = old.fields().iter().cloned();
    let fields = fields.chain(added.into_iter().map(Arc::new));
    let schema = Schema::new_with_metadata(fields.collect::<Vec<_>>(), metadata);
    // The input's columns keep their indices, so its equivalences remain valid.
    let known = input.properties();
    let equivalences = EquivalenceProperties::new(Arc::new(schema))
        .extend(known.equivalence_properties().clone())?;
    Ok(Arc::new(PlanProperties::new(
        equivalences,
        known.output_partitioning().clone(),
        known.emission_type,
        known.boundedness,
    )))
}
