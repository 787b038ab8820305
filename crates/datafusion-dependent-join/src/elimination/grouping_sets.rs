//! GROUPING SETS, ROLLUP and CUBE as one aggregate for each set.

use std::sync::Arc;

use datafusion_common::{Result, ScalarValue};
use datafusion_expr::utils::powerset;
use datafusion_expr::{Aggregate, Expr, GroupingSet, LogicalPlan, LogicalPlanBuilder, lit};
use datafusion_functions_aggregate::count::count_all;

use crate::exprs::{columns, named};
use crate::unions::union_of;

/// The rows of an aggregate with several groupings. None if it has one.
pub(super) fn united(aggregate: &Aggregate) -> Result<Option<LogicalPlan>> {
    let [Expr::GroupingSet(sets)] = aggregate.group_expr.as_slice() else {
        return Ok(None);
    };
    let all: Vec<Expr> = sets.distinct_expr().into_iter().cloned().collect();
    let sets: Vec<Vec<Expr>> = match sets {
        GroupingSet::GroupingSets(sets) => sets.clone(),
        GroupingSet::Rollup(exprs) => (0..=exprs.len()).map(|n| exprs[..n].to_vec()).collect(),
        GroupingSet::Cube(exprs) => {
            let sets = powerset(exprs)?.into_iter();
            sets.map(|set| set.into_iter().cloned().collect()).collect()
        }
    };
    let inputs = sets.into_iter().map(|set| {
        let mut aggregates = aggregate.aggr_expr.clone();
        if set.is_empty() && aggregates.is_empty() {
            // DataFusion has no aggregate of neither, which has one row.
            aggregates.push(count_all());
        }
        let grouped = Aggregate::try_new(Arc::clone(&aggregate.input), set.clone(), aggregates)?;
        let mut keys = columns(grouped.schema.columns());
        let mut values = keys.split_off(keys.len() - grouped.aggr_expr.len());
        values.truncate(aggregate.aggr_expr.len());
        let fields = aggregate.schema.fields();
        let mut exprs = vec![];
        let mut is_missing = 0_u64;
        for (expr, field) in all.iter().zip(fields) {
            let position = set.iter().position(|key| key == expr);
            let key = position.and_then(|position| keys.get(position));
            is_missing = is_missing << 1 | u64::from(key.is_none());
            exprs.push(match key {
                Some(key) => key.clone(),
                None => lit(ScalarValue::try_new_null(field.data_type())?),
            });
        }
        // The grouping that a row is of, as grouping() reads it.
        if let Some(field) = fields.get(all.len()) {
            let id = ScalarValue::UInt64(Some(is_missing));
            exprs.push(lit(id.cast_to(field.data_type())?));
        }
        exprs.extend(values);
        let grouped = LogicalPlan::Aggregate(grouped);
        let exprs = named(exprs, &aggregate.schema);
        LogicalPlanBuilder::from(grouped).project(exprs)?.build()
    });
    let names = aggregate.schema.columns();
    Ok(Some(union_of(inputs.collect::<Result<_>>()?, &names)?))
}
