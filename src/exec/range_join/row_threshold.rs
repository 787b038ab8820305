//! The threshold of a join that returns rows: the further condition on pairs that an index answers.
//!
//! ```text
//!   p.start <= q.stop AND p.stop >= q.start AND p.v <> q.v       build side p, probe side q: intervals that overlap
//!     key, bounds   p.start in (-inf, q.stop]      the candidates are a prefix of the rows sorted by p.start
//!     threshold     p.stop >= q.start              the index of p.stop finds those of the candidates that qualify
//!     rest          p.v <> q.v                     evaluated on the pairs that are left
//! ```
//!
//! The engine lists the rows of a range that meet a threshold (`list_at_most`), many ranges at a time and resumably, so
//! that memory is bounded at any fan-out. Interval trees and partitioned sweeps would need a structure of their own,
//! and either replicate intervals or assume short ones. Limits are evaluated for whole batches; if that fails, the
//! batch takes the whole condition, which may never come to the row that fails.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinSide, Result};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};

use rmq_engine::Comparison;

/// A comparison of a value of the build side with a limit of the probe side.
#[derive(Debug, Clone)]
pub struct RowThreshold {
    /// The value, over columns of the build side. It has no errors.
    pub value: PhysicalExprRef,
    /// Whether its keys are ranks, as of strings, which have to be sorted.
    pub is_ranked: bool,
    /// How the value compares with the limit. NULL does not qualify.
    pub comparison: Comparison,
    /// The limit, over the probe side.
    pub limit: PhysicalExprRef,
    /// The further conditions on pairs without this one.
    pub rest: Option<JoinFilter>,
}

impl RowThreshold {
    /// The same threshold with other numbers of the columns of the build side.
    pub(crate) fn renumbered(&self, number: impl Fn(usize) -> Result<usize>) -> Result<Self> {
        let rest = self.rest.as_ref().map(|rest| renumbered(rest, &number));
        Ok(Self {
            value: with_columns(&self.value, |column| {
                let number = number(column.index())?;
                Ok(Some(Column::new(column.name(), number)))
            })?,
            rest: rest.transpose()?,
            ..self.clone()
        })
    }
}

/// The same filter with other numbers of the columns of the right side, the build side.
pub(crate) fn renumbered(
    filter: &JoinFilter,
    number: impl Fn(usize) -> Result<usize>,
) -> Result<JoinFilter> {
    let columns = filter.column_indices().iter();
    let columns = columns.map(|column| renumbered_column(column, &number));
    Ok(JoinFilter::new(
        Arc::clone(filter.expression()),
        columns.collect::<Result<_>>()?,
        Arc::clone(filter.schema()),
    ))
}

/// The same column with another number if it is of the right side, the build side.
pub(crate) fn renumbered_column(
    column: &ColumnIndex,
    number: impl Fn(usize) -> Result<usize>,
) -> Result<ColumnIndex> {
    let (index, side) = (column.index, column.side);
    let index = match side {
        JoinSide::Right => number(index)?,
        JoinSide::Left | JoinSide::None => index,
    };
    Ok(ColumnIndex { index, side })
}

/// Replaces the columns of an expression.
pub(crate) fn with_columns(
    expr: &PhysicalExprRef,
    replace: impl Fn(&Column) -> Result<Option<Column>>,
) -> Result<PhysicalExprRef> {
    let replaced = Arc::clone(expr).transform_up(|e| {
        let column = e.downcast_ref::<Column>().map(&replace).transpose()?;
        Ok(match column.flatten() {
            Some(column) => Transformed::yes(Arc::new(column) as PhysicalExprRef),
            None => Transformed::no(e),
        })
    });
    replaced.data()
}
