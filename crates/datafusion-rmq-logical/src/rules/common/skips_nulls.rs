//! Aggregates for which a row is as good as none where their argument is NULL.

use datafusion_expr::AggregateUDF;
use datafusion_functions_aggregate::average::Avg;
use datafusion_functions_aggregate::count::Count;
use datafusion_functions_aggregate::min_max::{Max, Min};
use datafusion_functions_aggregate::sum::Sum;

/// Whether an aggregate skips rows whose argument is NULL, so that FILTER may be a CASE of it: COUNT, SUM, AVG, MIN and
/// MAX, also with DISTINCT.
pub fn skips_nulls(function: &AggregateUDF) -> bool {
    let function = function.inner();
    function.is::<Count>()
        || function.is::<Sum>()
        || function.is::<Avg>()
        || function.is::<Min>()
        || function.is::<Max>()
}
