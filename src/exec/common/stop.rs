//! The request to stop a statement, and plans whose joins look out for it.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::{PhysicalExpr, PhysicalExprRef};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, HashJoinExecBuilder, NestedLoopJoinExec,
    NestedLoopJoinExecBuilder, SortMergeJoinExec,
};

/// Whether a statement was cancelled. Its clones are one request.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks the statement to stop.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the statement is to stop.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// # Errors
    /// If the statement was cancelled.
    pub fn check(&self) -> Result<()> {
        if self.is_requested() {
            return exec_err!("the statement was cancelled");
        }
        Ok(())
    }

    /// The plan with joins of `DataFusion` that end soon after the request. By themselves they make or compare all
    /// pairs of a batch, which may be billions, before they look up. With `is_shown` the plan has no further operators.
    ///
    /// # Errors
    /// If a join is not made again.
    pub fn watch_joins(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        is_shown: bool,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let watched = plan.transform_up(|plan| {
            let watched: Arc<dyn ExecutionPlan> =
                if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
                    let filter = join.filter().map(|filter| self.watch(filter));
                    HashJoinExecBuilder::from(join)
                        .with_filter(filter)
                        .build_exec()?
                } else if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
                    let filter = join.filter().map(|filter| self.watch(filter));
                    let join = NestedLoopJoinExecBuilder::from(join).with_filter(filter);
                    Arc::new(join.build()?)
                } else if let Some(join) = plan.downcast_ref::<SortMergeJoinExec>() {
                    let filter = join.filter().as_ref().map(|filter| self.watch(filter));
                    Arc::new(SortMergeJoinExec::try_new(
                        Arc::clone(join.left()),
                        Arc::clone(join.right()),
                        join.on().to_vec(),
                        filter,
                        join.join_type(),
                        join.sort_options().to_vec(),
                        join.null_equality(),
                    )?)
                } else if plan.is::<CrossJoinExec>() {
                    Arc::clone(&plan)
                } else {
                    return Ok(Transformed::no(plan));
                };
            Ok(Transformed::yes(if is_shown {
                watched
            } else {
                Arc::new(CooperativeExec::new(watched)) as Arc<dyn ExecutionPlan>
            }))
        });
        watched.data()
    }

    fn watch(&self, filter: &JoinFilter) -> JoinFilter {
        let watched = Watched {
            expr: Arc::clone(filter.expression()),
            stop: self.clone(),
        };
        JoinFilter::new(
            Arc::new(watched),
            filter.column_indices().to_vec(),
            Arc::clone(filter.schema()),
        )
    }
}

/// An expression that fails once the statement was cancelled.
#[derive(Debug)]
struct Watched {
    expr: PhysicalExprRef,
    stop: Stop,
}

impl PartialEq for Watched {
    fn eq(&self, other: &Self) -> bool {
        self.expr.eq(&other.expr)
    }
}

impl Eq for Watched {}

impl Hash for Watched {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.expr.hash(state);
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.expr.fmt(f)
    }
}

impl PhysicalExpr for Watched {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.expr.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.expr.nullable(schema)
    }

    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.expr.return_field(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.stop.check()?;
        self.expr.evaluate(batch)
    }

    fn children(&self) -> Vec<&PhysicalExprRef> {
        vec![&self.expr]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<PhysicalExprRef>,
    ) -> Result<PhysicalExprRef> {
        let expr = children.pop().unwrap_or_else(|| Arc::clone(&self.expr));
        let stop = self.stop.clone();
        Ok(Arc::new(Self { expr, stop }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.expr.fmt_sql(f)
    }
}
