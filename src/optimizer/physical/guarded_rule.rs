//! Rules of DataFusion that move filters, projections and orders, with guards (`exec::common::guards`) against the
//! mistakes that they would make.

use std::any::Any;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::common::guards::{
    Guard, against_filters, against_orders, against_projections, optimize_guarded,
};

/// A rule of DataFusion that runs on plans with guards.
#[derive(Debug)]
pub(crate) struct GuardedRule {
    rule: Arc<dyn PhysicalOptimizerRule + Send + Sync>,
    guard: fn(&Arc<dyn ExecutionPlan>) -> Option<Guard>,
}

impl GuardedRule {
    /// The rule itself, or with guards if it needs them.
    pub(crate) fn around(
        rule: Arc<dyn PhysicalOptimizerRule + Send + Sync>,
    ) -> Arc<dyn PhysicalOptimizerRule + Send + Sync> {
        if (rule.as_ref() as &dyn Any).is::<Self>() {
            return rule;
        }
        let guard = match rule.name() {
            "FilterPushdown" | "FilterPushdown(Post)" => against_filters,
            "ProjectionPushdown" => against_projections,
            "PushdownSort" => against_orders,
            _ => return rule,
        };
        Arc::new(Self { rule, guard })
    }
}

impl PhysicalOptimizerRule for GuardedRule {
    fn name(&self) -> &str {
        self.rule.name()
    }

    fn schema_check(&self) -> bool {
        self.rule.schema_check()
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        optimize_guarded(self.rule.as_ref(), self.guard, plan, config)
    }
}
