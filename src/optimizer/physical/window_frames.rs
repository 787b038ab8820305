//! The rule that answers window functions over frames that slide as ranges. The documentation of
//! [`exec::window_frame`](crate::exec::window_frame) shows the plans.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, InputOrderMode};

use crate::exec::window_frame::bounds::FrameBounds;
use crate::exec::window_frame::call::FrameCall;
use crate::exec::window_frame::exec::WindowFrameExec;
use crate::optimizer::physical::physical_rule::physical_rule;
use datafusion_rmq_logical::common::options::RmqOptions;
use datafusion_rmq_logical::conditions::rejection::{Match, or_log, reject};
use datafusion_rmq_logical::rules::filtered_frames::ends_at_distance;

physical_rule!(
    /// Answers window functions over frames that slide by indexes and prefix sums, and the last value that is not NULL
    /// also over frames that grow. Frames that grow up to a distance from each row's key, too.
    ///
    /// It must run after DataFusion's rules for windows, which know its own operators only. It does nothing if
    /// `rmq.rewrite` is false.
    WindowsToFrames,
    "rmq_windows_to_frames",
    windows_to_frames
);

fn windows_to_frames(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    if !RmqOptions::rewrites(config) {
        return Ok(plan);
    }
    let plan = plan.transform_up(|plan| {
        Ok(match or_log(with_frames(&plan), plan.name()).flatten() {
            Some(frames) => Transformed::yes(frames),
            None => Transformed::no(plan),
        })
    })?;
    Ok(plan.data)
}

/// A window operator of DataFusion.
enum Window<'a> {
    Bounded(&'a BoundedWindowAggExec),
    Whole(&'a WindowAggExec),
}

impl<'a> Window<'a> {
    fn from_plan(plan: &'a Arc<dyn ExecutionPlan>) -> Option<Self> {
        if let Some(window) = plan.downcast_ref::<BoundedWindowAggExec>() {
            // Otherwise the rows of a group do not follow one another; and an observer sees each accumulator.
            let is_sorted = window.input_order_mode == InputOrderMode::Sorted;
            let is_plain = is_sorted && window.state_observer().is_none();
            return is_plain.then_some(Self::Bounded(window));
        }
        plan.downcast_ref().map(Self::Whole)
    }

    fn exprs(&self) -> &'a [Arc<dyn WindowExpr>] {
        match self {
            Self::Bounded(window) => window.window_expr(),
            Self::Whole(window) => window.window_expr(),
        }
    }

    fn input(&self) -> &'a Arc<dyn ExecutionPlan> {
        match self {
            Self::Bounded(window) => window.input(),
            Self::Whole(window) => window.input(),
        }
    }

    /// The operator with some of its functions, above `input`.
    fn with(
        &self,
        exprs: Vec<Arc<dyn WindowExpr>>,
        input: Arc<dyn ExecutionPlan>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(match self {
            Self::Bounded(window) => {
                let can_repartition = !window.partition_keys().is_empty();
                let mode = window.input_order_mode.clone();
                let window = BoundedWindowAggExec::try_new(exprs, input, mode, can_repartition)?;
                Arc::new(window)
            }
            Self::Whole(window) => {
                let can_repartition = !window.partition_keys().is_empty();
                Arc::new(WindowAggExec::try_new(exprs, input, can_repartition)?)
            }
        })
    }
}

/// The plan that answers the frames of a window operator that slide; `None` for another plan, and if none does.
///
/// ```text
///   WindowAggr: min(v) … ROWS 10 PRECEDING, lag(v) …          ProjectionExec                the columns in their order
///                                                               WindowFrameExec: min(v) …
///                                                                 WindowAggr: lag(v) …      what is DataFusion's
/// ```
fn with_frames(plan: &Arc<dyn ExecutionPlan>) -> Match<Option<Arc<dyn ExecutionPlan>>> {
    let Some(window) = Window::from_plan(plan) else {
        return Ok(None);
    };
    let (exprs, input) = (window.exprs(), window.input());
    let schema = input.schema();
    let mut calls = vec![];
    let (mut taken, mut others) = (vec![], vec![]);
    for (i, expr) in exprs.iter().enumerate() {
        match sliding_call(expr, &schema)? {
            Some(call) => {
                calls.push(call);
                taken.push(i);
            }
            None => others.push(i),
        }
    }
    if calls.is_empty() {
        return Ok(None);
    }
    if input.boundedness().is_unbounded() {
        return reject("its input has no end");
    }
    if others.is_empty() {
        return Ok(Some(Arc::new(WindowFrameExec::new(
            Arc::clone(plan),
            calls,
        ))));
    }
    let pick = |indices: &[usize]| indices.iter().map(|i| Arc::clone(&exprs[*i])).collect();
    let below = window.with(pick(&others), Arc::clone(input))?;
    let above = window.with(pick(&taken), below)?;
    let frames = WindowFrameExec::new(above, calls);
    let all = plan.schema();
    // The columns are those of the input, of the other functions, and of these.
    let functions = others.iter().chain(&taken).enumerate();
    let mut columns: Vec<usize> = (0..schema.fields().len()).collect();
    let mut places: Vec<(usize, usize)> = functions.map(|(place, i)| (*i, place)).collect();
    places.sort_unstable();
    columns.extend(
        places
            .iter()
            .map(|(_, place)| schema.fields().len() + place),
    );
    let columns = columns.into_iter().zip(all.fields());
    let columns = columns.map(|(index, field)| {
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(field.name(), index));
        (column, field.name().clone())
    });
    let columns: Vec<_> = columns.collect();
    let projected: Arc<dyn ExecutionPlan> =
        Arc::new(ProjectionExec::try_new(columns, Arc::new(frames))?);
    if let Some(order) = plan.output_ordering()
        && !projected
            .equivalence_properties()
            .ordering_satisfy(order.clone())?
    {
        return reject("its order would be lost");
    }
    Ok(Some(projected))
}

/// The call of a window function over frames that slide; `None` for those that are DataFusion's. A frame that only
/// grows costs it no more than a pass over the rows, except for a first or last value that is not NULL, a median and a
/// percentile. But of one that ends at a distance from the row's key it takes rows with a NULL key for those of a key
/// near the end of its type, and the frame of such a row for final at the end of a batch.
fn sliding_call(expr: &Arc<dyn WindowExpr>, schema: &Schema) -> Match<Option<FrameCall>> {
    let frame = expr.get_window_frame();
    let keys = expr.order_by().iter();
    let keys = keys.map(|key| key.expr.data_type(schema));
    let keys = keys.collect::<Result<Vec<_>>>()?;
    if !FrameBounds::supports(frame, &keys) {
        return Ok(None);
    }
    let call = FrameCall::try_match(expr, schema)?;
    if frame.is_ever_expanding() && !ends_at_distance(frame) {
        return Ok(call.filter(FrameCall::reads_growing_frames));
    }
    Ok(call)
}
