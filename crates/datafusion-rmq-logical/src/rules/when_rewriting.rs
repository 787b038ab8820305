//! Rules of other crates that `rmq.rewrite = false` switches off, as it does those of this one.

use datafusion_common::Result;
use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::Transformed;
use datafusion_expr::LogicalPlan;
use datafusion_optimizer::optimizer::ApplyOrder;
use datafusion_optimizer::{AnalyzerRule, OptimizerConfig, OptimizerRule};

use crate::common::options::RmqOptions;

/// A rule that does nothing if `rmq.rewrite` is false.
#[derive(Debug, Default)]
pub struct WhenRewriting<R>(pub R);

impl<R: AnalyzerRule> AnalyzerRule for WhenRewriting<R> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        if !RmqOptions::rewrites(config) {
            return Ok(plan);
        }
        self.0.analyze(plan, config)
    }
}

impl<R: OptimizerRule> OptimizerRule for WhenRewriting<R> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        if !RmqOptions::rewrites(&config.options()) {
            return Ok(Transformed::no(plan));
        }
        self.0.rewrite(plan, config)
    }
}
