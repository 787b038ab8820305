//! The frame of the rules for physical plans.

/// Declares an optimizer rule that keeps a plan's schema. The function takes a plan and the session's options, and
/// returns the plan with the rule applied.
macro_rules! physical_rule {
    ($(#[$attribute:meta])* $rule:ident, $name:literal, $optimize:expr) => {
        $(#[$attribute])*
        #[derive(Debug, Default)]
        pub struct $rule;

        impl datafusion::physical_optimizer::PhysicalOptimizerRule for $rule {
            fn name(&self) -> &'static str {
                $name
            }

            fn schema_check(&self) -> bool {
                true
            }

            fn optimize(
                &self,
                plan: std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>,
                config: &datafusion::common::config::ConfigOptions,
            ) -> datafusion::common::Result<
                std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>,
            > {
                $optimize(plan, config)
            }
        }
    };
}

pub(crate) use physical_rule;
