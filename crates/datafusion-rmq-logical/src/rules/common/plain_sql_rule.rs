//! The frame of the rules that make range joins of plain SQL.

/// Declares an optimizer rule that visits nodes from the leaves up, unless `rmq.rewrite` is false. The function returns
/// what replaces a node, `None` to keep it.
macro_rules! plain_sql_rule {
    ($(#[$attribute:meta])* $rule:ident, $name:literal, $replace:expr) => {
        $(#[$attribute])*
        #[derive(Debug, Default)]
        pub struct $rule;

        impl datafusion_optimizer::OptimizerRule for $rule {
            fn name(&self) -> &'static str {
                $name
            }

            fn apply_order(&self) -> Option<datafusion_optimizer::optimizer::ApplyOrder> {
                Some(datafusion_optimizer::optimizer::ApplyOrder::BottomUp)
            }

            fn rewrite(
                &self,
                plan: datafusion_expr::LogicalPlan,
                config: &dyn datafusion_optimizer::OptimizerConfig,
            ) -> datafusion_common::Result<
                datafusion_common::tree_node::Transformed<datafusion_expr::LogicalPlan>,
            > {
                use datafusion_common::tree_node::Transformed;
                if !crate::common::options::RmqOptions::rewrites(&config.options()) {
                    return Ok(Transformed::no(plan));
                }
                Ok(match $replace(&plan, config)? {
                    Some(replaced) => Transformed::yes(replaced),
                    None => Transformed::no(plan),
                })
            }
        }
    };
}

pub(crate) use plain_sql_rule;
