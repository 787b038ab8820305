//! Rows of several plans.

use std::sync::Arc;

use datafusion_common::{Column, Result};
use datafusion_expr::{LogicalPlan, LogicalPlanBuilder, Projection, Union, Values, cast};

use crate::exprs::columns;

/// The rows of several plans, with these columns in place of theirs.
pub(crate) fn union_of(plans: Vec<LogicalPlan>, names: &[Column]) -> Result<LogicalPlan> {
    let renamed = |plan: LogicalPlan| {
        let exprs = columns(plan.schema().columns()).into_iter().zip(names);
        let exprs =
            exprs.map(|(expr, name)| expr.alias_qualified(name.relation.clone(), &name.name));
        let projection = Projection::try_new(exprs.collect(), Arc::new(plan))?;
        Ok(LogicalPlan::Projection(projection))
    };
    let plans = plans.into_iter().map(renamed);
    let mut plans = plans.collect::<Result<Vec<_>>>()?;
    if plans.len() == 1 {
        return Ok(plans.remove(0));
    }
    // A union may drop qualifiers.
    let plans = plans.into_iter().map(Arc::new);
    renamed(LogicalPlan::Union(Union::try_new(plans.collect())?))
}

/// VALUES as a union of its rows.
pub(crate) fn rows_of(values: &Values) -> Result<LogicalPlan> {
    let fields = values.schema.fields();
    let rows = values.values.iter().map(|row| {
        let row = row.iter().zip(fields);
        let row = row.map(|(expr, field)| {
            let typed = cast(expr.clone(), field.data_type().clone());
            typed.alias(field.name())
        });
        LogicalPlanBuilder::empty(true).project(row)?.build()
    });
    union_of(rows.collect::<Result<_>>()?, &values.schema.columns())
}
