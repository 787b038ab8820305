//! The least and the greatest integer of a column, as far as a plan proves them: a table in memory by its rows, files
//! by their statistics.

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::compute::{cast, max, min};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::Result;
use datafusion::common::stats::Precision;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;

use crate::optimizer::cost::equal_rows::integer;
use crate::optimizer::cost::sources::{source_of, table_of};
use datafusion_rmq_logical::expr::key_bound::integer_limits;

/// Whether both of these ends can be added to an expression over a plan, for all of its rows, in an integer type.
/// `false` if nothing shows it.
pub(crate) fn has_room(
    plan: &Arc<dyn ExecutionPlan>,
    expr: &PhysicalExprRef,
    (low, high): (i128, i128),
    data_type: &DataType,
) -> Result<bool> {
    let Some((least, greatest)) = integer_limits(data_type).filter(|_| data_type.is_integer())
    else {
        return Ok(false);
    };
    let is_key = |end: Option<i128>| end.is_some_and(|end| least <= end && end <= greatest);
    let fits = |(first, last): (i128, i128)| {
        is_key(first.checked_add(low)) && is_key(last.checked_add(high))
    };
    let Some((source, exprs)) = source_of(plan, &[expr])? else {
        return Ok(false);
    };
    if let Some((memory, exprs)) = table_of(source, exprs.clone())? {
        let of_rows = extremes_of_rows(memory, &exprs[0]);
        return Ok(of_rows.is_some_and(fits));
    }
    let of_files = match exprs[0].downcast_ref::<Column>() {
        Some(column) => extremes_of_files(source, column.index())?,
        None => None,
    };
    Ok(of_files.is_some_and(fits))
}

/// The least and the greatest value in the rows of a table. `None` if there is none, or the expression can't be
/// evaluated on them.
fn extremes_of_rows(table: &MemorySourceConfig, expr: &PhysicalExprRef) -> Option<(i128, i128)> {
    let mut extremes: Option<(i128, i128)> = None;
    for batch in table.partitions().iter().flatten() {
        let values = expr
            .evaluate(batch)
            .ok()?
            .into_array(batch.num_rows())
            .ok()?;
        // An unsigned one that is too large would be NULL.
        if !values.data_type().is_signed_integer() {
            return None;
        }
        let values = cast(&values, &DataType::Int64).ok()?;
        let values = values.as_primitive::<Int64Type>();
        let (Some(first), Some(last)) = (min(values), max(values)) else {
            continue;
        };
        extremes = Some(widened(extremes, (i128::from(first), i128::from(last))));
    }
    extremes
}

/// The extremes of values of which these are the known ones, and of further ones.
fn widened(known: Option<(i128, i128)>, further: (i128, i128)) -> (i128, i128) {
    known.map_or(further, |known| {
        (known.0.min(further.0), known.1.max(further.1))
    })
}

/// The least and the greatest value of a column of the files of a scan, from the exact statistics of each.
fn extremes_of_files(
    source: &Arc<dyn ExecutionPlan>,
    column: usize,
) -> Result<Option<(i128, i128)>> {
    let schema = source.schema();
    let source = source.downcast_ref::<DataSourceExec>();
    let Some(scan) = source.and_then(|s| s.data_source().downcast_ref::<FileScanConfig>()) else {
        return Ok(None);
    };
    let mut extremes: Option<(i128, i128)> = None;
    for file in scan.file_groups.iter().flat_map(FileGroup::iter) {
        let Some(statistics) = &file.statistics else {
            return Ok(None);
        };
        let mut statistics = statistics.as_ref().clone();
        if let Some(projection) = scan.file_source().projection() {
            statistics = projection.project_statistics(statistics, &schema)?;
        }
        let Some(of_column) = statistics.column_statistics.get(column) else {
            return Ok(None);
        };
        let (Precision::Exact(first), Precision::Exact(last)) =
            (&of_column.min_value, &of_column.max_value)
        else {
            return Ok(None);
        };
        let (Some(first), Some(last)) = (integer(first), integer(last)) else {
            return Ok(None);
        };
        extremes = Some(widened(extremes, (first, last)));
    }
    Ok(extremes)
}
