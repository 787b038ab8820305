//! Plans of another library inside ours: scans of the owner's tables, and INSERT into them.
//!
//! Across `DataFusion`'s foreign function interface a plan shows its inputs, but not what it needs of them. A rule
//! would divide the input of a LIMIT into partitions, for example, and the LIMIT then reads one of them. So such a plan
//! is hidden from the rules of our session by an operator without inputs, or, if its inputs are ours, by one that needs
//! each in one partition: that of an INSERT.

use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, InputDistributionRequirements,
    PlanProperties,
};
use datafusion_ffi::execution_plan::ForeignExecutionPlan;

/// The first rule of a session: hides plans of other libraries.
#[derive(Debug)]
pub struct HideForeignPlans;

impl PhysicalOptimizerRule for HideForeignPlans {
    fn name(&self) -> &'static str {
        "hide_foreign_plans"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let hidden = plan.transform_down(|plan| {
            if !plan.is::<ForeignExecutionPlan>() {
                return Ok(Transformed::no(plan));
            }
            let hidden: Arc<dyn ExecutionPlan> = Arc::new(ForeignExec::try_new(plan)?);
            Ok(Transformed::yes(hidden))
        })?;
        Ok(hidden.data)
    }
}

/// A plan of another library.
#[derive(Debug)]
pub struct ForeignExec {
    plan: Arc<dyn ExecutionPlan>,
    /// Its inputs, if they are ours.
    inputs: Vec<Arc<dyn ExecutionPlan>>,
}

impl ForeignExec {
    fn try_new(plan: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let is_foreign = |plan: &Arc<dyn ExecutionPlan>| plan.is::<ForeignExecutionPlan>();
        let inputs: Vec<_> = plan.children().into_iter().cloned().collect();
        if !inputs.is_empty() && !inputs.iter().any(is_foreign) {
            return Ok(Self { plan, inputs });
        }
        if plan.exists(|part| Ok(!is_foreign(part)))? {
            return internal_err!(
                "{} of another library has an input of this one below its own",
                plan.name()
            );
        }
        Ok(Self {
            plan,
            inputs: vec![],
        })
    }
}

impl DisplayAs for ForeignExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => write!(f, "plan={}", self.plan.name()),
            _ => write!(f, "ForeignExec: {}", self.plan.name()),
        }
    }
}

impl ExecutionPlan for ForeignExec {
    fn name(&self) -> &'static str {
        "ForeignExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.plan.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        self.input_distribution_requirements().into_per_child()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![Distribution::SinglePartition; self.inputs.len()])
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.inputs.len()]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if children.len() != self.inputs.len() {
            return internal_err!("{} has {} inputs", self.plan.name(), self.inputs.len());
        }
        if children.is_empty() {
            return Ok(self);
        }
        let plan = Arc::clone(&self.plan).replace_children(children.clone(), options)?;
        Ok(Arc::new(Self {
            plan,
            inputs: children,
        }))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.plan.execute(partition, context)
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.plan.statistics_from_inputs(inputs, args)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.plan.metrics()
    }
}
