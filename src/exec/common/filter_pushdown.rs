//! Which filters of the operators above may be evaluated in an input.
//!
//! DataFusion finds the columns of a filter in an input by name, so a column stays above if an earlier one has its
//! name. So do volatile filters, and all filters where the input has a limit: DataFusion 55 may filter a file before
//! its limit (a `TopK` above a LIMIT over an ordered Parquet file returns wrong rows without this extension, too).

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::common::tree_node::TreeNode;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter_pushdown::ChildFilterDescription;
use datafusion::physical_plan::union::UnionExec;

/// Describes which filters on the output may go to an input: those of `columns` only, pairs of an index into the output
/// and one into the input. None goes if one is volatile, as it has a value for each output row, or if the input has a
/// limit: DataFusion 55 may filter before the limit then.
///
/// DataFusion finds the column of the input by its name, so columns whose name another one before them has are left
/// out. Its joins and projections do the same, so nothing goes into an input with such an operator whose columns have
/// the same name.
pub(crate) fn filters_of_columns(
    filters: &[PhysicalExprRef],
    columns: impl IntoIterator<Item = (usize, usize)>,
    output: &dyn ExecutionPlan,
    input: &Arc<dyn ExecutionPlan>,
) -> Result<ChildFilterDescription> {
    let has_obstacle = || input.exists(|plan| Ok(plan.fetch().is_some() || is_ambiguous(plan)));
    if filters.iter().any(is_volatile) || has_obstacle()? {
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

/// Whether columns of an operator, or of its inputs, have the same name, or those of a union another one than in an
/// input. It is no matter in a range join, whose filters all go to one input, and stay above where an earlier column
/// has the name.
fn is_ambiguous(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if plan.name() == "RangeJoinExec" {
        return false;
    }
    let inputs: Vec<_> = plan.children().iter().map(|input| input.schema()).collect();
    if plan.is::<UnionExec>() {
        // Its columns are those of each input at the same place.
        let (schema, names) = (plan.schema(), |schema: &SchemaRef| -> Vec<_> {
            let fields = schema.fields().iter();
            fields.map(|field| field.name().clone()).collect()
        });
        let is_other = |input: &SchemaRef| names(input) != names(&schema);
        return has_equal_names(&[Arc::clone(&schema)]) || inputs.iter().any(is_other);
    }
    has_equal_names(&[plan.schema()]) || inputs.len() > 1 && has_equal_names(&inputs)
}

fn has_equal_names(schemas: &[SchemaRef]) -> bool {
    let mut known = HashSet::new();
    let mut fields = schemas.iter().flat_map(|schema| schema.fields());
    fields.any(|field| !known.insert(field.name()))
}
