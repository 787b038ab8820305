//! The numbers of a table's rows: those of the order in which one thread reads it.
//!
//! The join functions order their rows as those of the left table, which `row_number() OVER ()` numbers if it has a
//! name. `DataFusion` reads a table by several threads, and numbers the rows as they come.
//!
//! ```text
//!   BoundedWindowAggExec: row_number()          BoundedWindowAggExec: row_number()
//!     DataSourceExec                     ──▶      OrderedRowsExec
//!                                                   DataSourceExec, in one partition
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::window::{StandardWindowExpr, WindowExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowUDFExpr};
use datafusion_rmq::parts::rows_in_order;

/// Has `row_number() OVER ()` number the rows of a table in their order. It runs before rules that divide scans.
#[derive(Debug)]
pub struct NumberRowsInOrder;

impl PhysicalOptimizerRule for NumberRowsInOrder {
    fn name(&self) -> &'static str {
        "number_rows_in_order"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let ordered = plan.transform_down(|plan| {
            let numbers = plan.downcast_ref::<BoundedWindowAggExec>();
            let numbers = numbers.filter(|window| window.window_expr().iter().all(is_row_number));
            let Some(input) = numbers.map(BoundedWindowAggExec::input) else {
                return Ok(Transformed::no(plan));
            };
            let Some(rows) = rows_in_order(input, config)? else {
                return Ok(Transformed::no(plan));
            };
            let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            let plan = plan.replace_children(vec![rows], options)?;
            Ok(Transformed::new(plan, true, TreeNodeRecursion::Jump))
        })?;
        Ok(ordered.data)
    }
}

/// Whether a window function numbers all rows as they come.
fn is_row_number(expr: &Arc<dyn WindowExpr>) -> bool {
    let standard = expr.as_any().downcast_ref::<StandardWindowExpr>();
    let function = standard.map(StandardWindowExpr::get_standard_func_expr);
    let udf = function.and_then(|function| function.as_any().downcast_ref::<WindowUDFExpr>());
    let is_number = udf.is_some_and(|udf| udf.fun().name() == "row_number");
    is_number && expr.partition_by().is_empty() && expr.order_by().is_empty()
}
