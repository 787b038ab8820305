//! DataFusion's joins with a filter, whatever their operator.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::{JoinType, NullEquality, Result};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{
    HashJoinExec, NestedLoopJoinExec, PiecewiseMergeJoinExec, SortMergeJoinExec,
};

use crate::exec::range_join::row_threshold::with_columns;

/// A join with a filter, of any operator.
#[expect(clippy::struct_field_names, reason = "the type of a join is called so")]
pub(super) struct Join<'a> {
    pub(super) plan: &'a Arc<dyn ExecutionPlan>,
    pub(super) left: &'a Arc<dyn ExecutionPlan>,
    pub(super) right: &'a Arc<dyn ExecutionPlan>,
    pub(super) on: &'a [(PhysicalExprRef, PhysicalExprRef)],
    pub(super) filter: Cow<'a, JoinFilter>,
    pub(super) join_type: JoinType,
    pub(super) projection: Option<&'a [usize]>,
    /// Whether a NULL decides about all rows.
    pub(super) is_null_aware: bool,
    /// Whether an equality key that is NULL equals another.
    pub(super) nulls_are_equal: bool,
}

impl<'a> Join<'a> {
    pub(super) fn from_plan(plan: &'a Arc<dyn ExecutionPlan>) -> Result<Option<Self>> {
        if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
            return Ok(join.filter().map(|filter| Self {
                plan,
                left: join.left(),
                right: join.right(),
                on: join.on(),
                filter: Cow::Borrowed(filter),
                join_type: *join.join_type(),
                projection: join.projection.as_deref(),
                is_null_aware: join.null_aware,
                nulls_are_equal: join.null_equality() == NullEquality::NullEqualsNull,
            }));
        }
        if let Some(join) = plan.downcast_ref::<SortMergeJoinExec>() {
            return Ok(join.filter().as_ref().map(|filter| Self {
                plan,
                left: join.left(),
                right: join.right(),
                on: join.on(),
                filter: Cow::Borrowed(filter),
                join_type: join.join_type(),
                projection: None,
                is_null_aware: false,
                nulls_are_equal: join.null_equality() == NullEquality::NullEqualsNull,
            }));
        }
        if let Some(join) = plan.downcast_ref::<PiecewiseMergeJoinExec>() {
            return Ok(Some(Self {
                plan,
                left: join.buffered(),
                right: join.streamed(),
                on: &[],
                filter: Cow::Owned(filter_of(join)?),
                join_type: join.join_type(),
                projection: None,
                is_null_aware: false,
                nulls_are_equal: false,
            }));
        }
        let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() else {
            return Ok(None);
        };
        Ok(join.filter().map(|filter| Self {
            plan,
            left: join.left(),
            right: join.right(),
            on: &[],
            filter: Cow::Borrowed(filter),
            join_type: *join.join_type(),
            projection: join.projection().as_deref(),
            is_null_aware: false,
            nulls_are_equal: false,
        }))
    }
}

/// The only condition of a merge join without equality keys, over the columns of both sides.
fn filter_of(join: &PiecewiseMergeJoinExec) -> Result<JoinFilter> {
    let (left, right) = (join.buffered().schema(), join.streamed().schema());
    let left_columns = left.fields().len();
    let on_right = with_columns(&join.on.1, |column| {
        let index = left_columns + column.index();
        Ok(Some(Column::new(column.name(), index)))
    })?;
    let on_left = Arc::clone(&join.on.0);
    let condition = Arc::new(BinaryExpr::new(on_left, join.operator, on_right));
    let indices = (0..left_columns).collect();
    let columns = JoinFilter::build_column_indices(indices, (0..right.fields().len()).collect());
    let fields = left.fields().iter().chain(right.fields()).cloned();
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    Ok(JoinFilter::new(condition, columns, schema))
}
