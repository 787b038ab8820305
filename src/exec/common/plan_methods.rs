//! Methods that operators have in common.

use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::{ExecutionPlan, displayable};

/// `ExecutionPlan::with_new_children`, which is deprecated, by `replace_children`.
macro_rules! with_new_children {
    () => {
        fn with_new_children(
            self: std::sync::Arc<Self>,
            children: Vec<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>>,
        ) -> datafusion::common::Result<
            std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>,
        > {
            use datafusion::physical_plan::execution_plan::{
                ChildrenPropertiesMode, ReplaceChildrenOptions,
            };
            let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            self.replace_children(children, options)
        }
    };
}

/// `ExecutionPlan::apply_expressions` of an operator without expressions.
macro_rules! no_expressions {
    () => {
        fn apply_expressions(
            &self,
            _f: &mut dyn FnMut(
                &datafusion::physical_expr::PhysicalExprRef,
            ) -> datafusion::common::Result<
                datafusion::common::tree_node::TreeNodeRecursion,
            >,
        ) -> datafusion::common::Result<datafusion::common::tree_node::TreeNodeRecursion> {
            Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
        }
    };
}

/// The methods of an operator that returns a row for each row of its only child, the field `input`, in their order.
macro_rules! row_for_row {
    () => {
        fn children(&self) -> Vec<&std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
            vec![&self.input]
        }

        fn maintains_input_order(&self) -> Vec<bool> {
            vec![true]
        }

        fn cardinality_effect(
            &self,
        ) -> datafusion::physical_plan::execution_plan::CardinalityEffect {
            datafusion::physical_plan::execution_plan::CardinalityEffect::Equal
        }

        fn child_stats_requests(
            &self,
            partition: Option<usize>,
        ) -> Vec<datafusion::physical_plan::statistics::ChildStats> {
            vec![datafusion::physical_plan::statistics::ChildStats::At(
                partition,
            )]
        }
    };
}

/// The methods of an operator that returns the rows of its only child, the field `input`, in its batches.
macro_rules! rows_of_input {
    () => {
        fn properties(&self) -> &std::sync::Arc<datafusion::physical_plan::PlanProperties> {
            self.input.properties()
        }

        $crate::exec::common::plan_methods::row_for_row!();

        fn benefits_from_input_partitioning(&self) -> Vec<bool> {
            vec![false]
        }

        fn statistics_from_inputs(
            &self,
            inputs: &[std::sync::Arc<datafusion::common::Statistics>],
            _args: &datafusion::physical_plan::statistics::StatisticsArgs,
        ) -> datafusion::common::Result<std::sync::Arc<datafusion::common::Statistics>> {
            let [input] =
                datafusion_rmq_logical::common::inputs::inputs_of(self.name(), inputs.to_vec())?;
            Ok(input)
        }
    };
}

/// `ExecutionPlan::replace_children` of an operator with one child: what it is over another one.
macro_rules! replace_input {
    (|$this:ident, $input:ident| $replaced:expr) => {
        fn replace_children(
            self: std::sync::Arc<Self>,
            children: Vec<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>>,
            _options: datafusion::physical_plan::execution_plan::ReplaceChildrenOptions,
        ) -> datafusion::common::Result<
            std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>,
        > {
            let $this = self;
            let [$input] = datafusion_rmq_logical::common::inputs::inputs_of($this.name(), children)?;
            Ok(std::sync::Arc::new($replaced))
        }

        $crate::exec::common::plan_methods::with_new_children!();
    };
}

/// The inputs of an operator that hides the plan whose rows it returns: none, so that no rule looks into that plan.
macro_rules! no_inputs {
    () => {
        fn children(&self) -> Vec<&std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
            vec![]
        }

        fn replace_children(
            self: std::sync::Arc<Self>,
            children: Vec<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>>,
            _options: datafusion::physical_plan::execution_plan::ReplaceChildrenOptions,
        ) -> datafusion::common::Result<
            std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>,
        > {
            let [] = datafusion_rmq_logical::common::inputs::inputs_of(self.name(), children)?;
            Ok(self)
        }

        $crate::exec::common::plan_methods::with_new_children!();
    };
}

/// `ExecutionPlan::apply_expressions` of an operator with these expressions.
pub(crate) fn visit_all<'a>(
    expressions: impl IntoIterator<Item = &'a PhysicalExprRef>,
    f: &mut dyn FnMut(&PhysicalExprRef) -> Result<TreeNodeRecursion>,
) -> Result<TreeNodeRecursion> {
    let mut expressions = expressions.into_iter();
    expressions.try_fold(TreeNodeRecursion::Continue, |next, expression| {
        next.visit_sibling(|| f(expression))
    })
}

/// The operators of a hidden plan, as EXPLAIN shows them.
pub(crate) fn operators_text(plan: &dyn ExecutionPlan) -> String {
    let operators = displayable(plan).indent(false).to_string();
    let operators: Vec<_> = operators.lines().map(str::trim).collect();
    operators.join(" of ")
}

pub(crate) use {
    no_expressions, no_inputs, replace_input, row_for_row, rows_of_input, with_new_children,
};
