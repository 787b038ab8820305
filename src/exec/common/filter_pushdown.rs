//! Which filters of the operators above may be evaluated in an input.
//!
//! DataFusion finds the columns of a filter in an input by name, so a column stays above if an earlier one has its
//! name. So do volatile filters. What the input may not evaluate for other reasons, `guards` keep from it.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter_pushdown::ChildFilterDescription;

/// Describes which filters on the output may go to an input: those of `columns` only, pairs of an index into the output
/// and one into the input. None goes if one is volatile, as it has a value for each output row. Columns whose name
/// another one before them has are left out.
pub(crate) fn filters_of_columns(
    filters: &[PhysicalExprRef],
    columns: impl IntoIterator<Item = (usize, usize)>,
    output: &dyn ExecutionPlan,
    input: &Arc<dyn ExecutionPlan>,
) -> Result<ChildFilterDescription> {
    if filters.iter().any(is_volatile) {
        return Ok(ChildFilterDescription::all_unsupported(filters));
    }
    let (names, known) = (output.schema(), input.schema());
    let is_found = |(output, input): &(usize, usize)| {
        let found = known.index_of(names.field(*output).name());
        found.is_ok_and(|index| index == *input)
    };
    let allowed = columns.into_iter().filter(is_found).map(|(index, _)| index);
    let allowed: HashSet<usize> = allowed.collect();
    ChildFilterDescription::from_child_with_allowed_indices(filters, allowed, input)
}
