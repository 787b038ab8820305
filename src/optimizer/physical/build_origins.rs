//! Tells the range joins of a plan of EXPLAIN whether their build sides are kept.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::range_join::exec::RangeJoinExec;
use crate::kept::catalog::IndexCatalog;

/// Makes range joins show where their build sides come from. One of the last rules of plans of EXPLAIN and EXPLAIN
/// ANALYZE.
#[derive(Debug)]
pub(crate) struct ShowBuildOrigins {
    pub(crate) catalog: Arc<IndexCatalog>,
    /// Whether queries of the session keep build sides.
    pub(crate) keeps: bool,
}

impl PhysicalOptimizerRule for ShowBuildOrigins {
    fn name(&self) -> &'static str {
        "rmq_show_build_origins"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let shown = plan.transform_up(|plan| match plan.downcast_ref::<RangeJoinExec>() {
            Some(join) => {
                let shown = join.with_origin(&self.catalog, self.keeps, config)?;
                Ok(Transformed::yes(Arc::new(shown) as _))
            }
            None => Ok(Transformed::no(plan)),
        });
        shown.data()
    }
}
