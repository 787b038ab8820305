//! Equality keys in the filter of a physical join: `IS NOT DISTINCT FROM`, which DataFusion evaluates on each pair of
//! rows where the join has other equality keys.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::utils::{conjunction_opt, split_conjunction};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::joins::utils::JoinFilter;

use crate::optimizer::physical::join_filter::{over_side, sides_of, with_its_columns};
use datafusion_rmq_logical::conditions::infallible::is_infallible;
use datafusion_rmq_logical::conditions::null_safe_keys::null_safe_keys;

/// A pair of equality keys, over the probe side and over the build side.
pub(super) type Keys = (PhysicalExprRef, PhysicalExprRef);

/// Splits a filter, whose left side is the probe side, into pairs of equality keys and what is left.
pub(super) fn take_null_safe_keys(
    filter: &JoinFilter,
    (probe, build): (&Schema, &Schema),
) -> Result<(Vec<Keys>, Option<JoinFilter>)> {
    let (mut keys, mut rest) = (vec![], vec![]);
    for conjunct in split_conjunction(filter.expression()) {
        let compared = sides_of(filter, |sides| {
            sides
                .operands(conjunct)
                .map(|(theirs, op, ours)| (ours.clone(), op, theirs.clone()))
        });
        let found = match compared {
            Some((ours, Some(Operator::IsNotDistinctFrom), theirs)) => {
                let (ours, theirs) = (over_side(&ours, filter)?, over_side(&theirs, filter)?);
                // They are evaluated for all rows, the filter for rows whose other keys are equal.
                let is_safe = is_infallible(&ours, probe)?
                    && is_infallible(&theirs, build)?
                    && !is_volatile(&ours)
                    && !is_volatile(&theirs);
                let found = null_safe_keys((&ours, probe), (&theirs, build))?;
                found.filter(|_| is_safe)
            }
            _ => None,
        };
        match found {
            Some(found) => keys.extend(found),
            None => rest.push(Arc::clone(conjunct)),
        }
    }
    if keys.is_empty() {
        return Ok((keys, Some(filter.clone())));
    }
    let rest = conjunction_opt(rest);
    let rest = rest.map(|rest| with_its_columns(&rest, filter));
    Ok((keys, rest.transpose()?))
}
