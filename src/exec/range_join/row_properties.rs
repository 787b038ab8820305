//! The plan properties of a range join that returns rows of both sides.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_expr::projection::ProjectionMapping;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};

use crate::exec::common::added_columns::properties_with;
use crate::exec::range_join::row_join::RowJoin;

/// Whether a join that returns rows of both sides keeps the order of the probe side, whatever memory there is: pairs of
/// spill runs come in no order. Only the order of a probe side without end is kept, as it can't be sorted later; then
/// nothing is spilled.
pub(crate) fn keeps_order(probe: &dyn ExecutionPlan, join: &RowJoin) -> bool {
    probe.boundedness().is_unbounded() && !join.marks_build_rows()
}

/// The properties of an operator that returns rows of both sides. Pairs are in the partitions of the probe side.
pub(crate) fn row_properties(
    probe: &Arc<dyn ExecutionPlan>,
    build: &Arc<dyn ExecutionPlan>,
    join: &RowJoin,
) -> Result<Arc<PlanProperties>> {
    let known = probe.properties();
    let schema = Arc::clone(join.schema());
    let columns = join.column_indices(probe.schema().fields().len());
    let (Some(columns), false) = (columns, join.marks_build_rows()) else {
        let partitions = known.output_partitioning().partition_count();
        return Ok(Arc::new(PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Both,
            known.boundedness,
        )));
    };
    // The columns of the probe side keep their indices among all, so its equivalences remain valid.
    let build_schema = build.schema();
    let build_fields = build_schema.fields().iter().map(|f| f.as_ref().clone());
    let all = properties_with(probe.as_ref(), build_fields, HashMap::new())?;
    let all_schema = all.equivalence_properties().schema();
    let mapping = ProjectionMapping::from_indices(&columns, all_schema)?;
    let mut equivalences = all.equivalence_properties().clone();
    if !keeps_order(probe.as_ref(), join) {
        equivalences.clear_orderings();
    }
    let partitioning = all.output_partitioning().project(&mapping, &equivalences);
    Ok(Arc::new(PlanProperties::new(
        equivalences.project(&mapping, schema),
        partitioning,
        known.emission_type,
        known.boundedness,
    )))
}
