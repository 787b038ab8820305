//! Tells whether two plans over tables in memory return the same rows in the same order: if what they compute and the
//! versions of their tables are the same.
//!
//! Only operators and expressions that are known to repeat their results are compared. Any other, such as a join, a
//! volatile function or a filter that changes while the query runs, makes a plan incomparable.

use std::sync::Arc;

use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::logical_expr::Volatility;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr,
    Literal, NegativeExpr, NotExpr, TryCastExpr,
};
use datafusion::physical_expr::{PhysicalExpr, PhysicalExprRef, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::union::UnionExec;

use crate::index::version::Version;

/// What a plan computes of tables in memory.
#[derive(Debug, PartialEq)]
pub(crate) struct PlanKey(Vec<Operator>);

/// An operator, without its inputs, which follow it.
#[derive(Debug, PartialEq)]
enum Operator {
    Scan(Vec<usize>),
    Filter {
        predicate: PhysicalExprRef,
        columns: Option<Vec<usize>>,
    },
    Projection(Vec<PhysicalExprRef>),
    Repartition(usize),
    Union(usize),
}

impl PlanKey {
    /// The key of a plan, and the version of the columns that it reads. `None` if the plan can't be compared, or reads
    /// no batch.
    pub(crate) fn of(plan: &Arc<dyn ExecutionPlan>) -> Option<(Self, Version)> {
        let (mut operators, mut scans) = (vec![], vec![]);
        add(plan, &mut operators, &mut scans)?;
        let batches = scans.iter().flat_map(|(memory, columns)| {
            let batches = memory.partitions().iter().flatten();
            batches.map(|batch| (batch, columns.as_slice()))
        });
        let version = Version::from_batches(batches)?;
        Some((Self(operators), version))
    }
}

/// A table, and the columns of it that are read.
type Scan<'a> = (&'a MemorySourceConfig, Vec<usize>);

/// Adds a plan and its inputs.
fn add<'a>(
    plan: &'a Arc<dyn ExecutionPlan>,
    operators: &mut Vec<Operator>,
    scans: &mut Vec<Scan<'a>>,
) -> Option<()> {
    if plan.fetch().is_some() {
        // Which rows these are depends on the partitions.
        return None;
    }
    if let Some(scan) = plan.downcast_ref::<DataSourceExec>() {
        let memory = scan.data_source().downcast_ref::<MemorySourceConfig>()?;
        let all = || (0..memory.original_schema().fields().len()).collect();
        let columns = memory.projection().clone().unwrap_or_else(all);
        operators.push(Operator::Scan(columns.clone()));
        scans.push((memory, columns));
        return Some(());
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        operators.push(Operator::Filter {
            predicate: repeatable(filter.predicate())?,
            columns: filter.projection().as_ref().map(|columns| columns.to_vec()),
        });
    } else if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let exprs = projection.expr().iter();
        let exprs = exprs.map(|projected| repeatable(&projected.expr));
        operators.push(Operator::Projection(exprs.collect::<Option<_>>()?));
    } else if plan.is::<RepartitionExec>() {
        let partitions = plan.properties().output_partitioning().partition_count();
        operators.push(Operator::Repartition(partitions));
    } else if plan.is::<UnionExec>() {
        operators.push(Operator::Union(plan.children().len()));
    } else if !plan.is::<CooperativeExec>() {
        return None;
    }
    let mut children = plan.children().into_iter();
    children.try_for_each(|child| add(child, operators, scans))
}

/// The expression, if it has the same value for the same row each time.
fn repeatable(expr: &PhysicalExprRef) -> Option<PhysicalExprRef> {
    is_repeatable(expr.as_ref()).then(|| Arc::clone(expr))
}

/// Whether an expression has the same value for the same row each time.
pub(crate) fn is_repeatable(expr: &dyn PhysicalExpr) -> bool {
    let is_known = match expr.downcast_ref::<ScalarFunctionExpr>() {
        Some(call) => call.fun().signature().volatility == Volatility::Immutable,
        None => {
            expr.is::<BinaryExpr>()
                || expr.is::<CaseExpr>()
                || expr.is::<CastExpr>()
                || expr.is::<Column>()
                || expr.is::<InListExpr>()
                || expr.is::<IsNotNullExpr>()
                || expr.is::<IsNullExpr>()
                || expr.is::<LikeExpr>()
                || expr.is::<Literal>()
                || expr.is::<NegativeExpr>()
                || expr.is::<NotExpr>()
                || expr.is::<TryCastExpr>()
        }
    };
    is_known && expr.children().iter().all(|child| is_repeatable(child.as_ref()))
}
