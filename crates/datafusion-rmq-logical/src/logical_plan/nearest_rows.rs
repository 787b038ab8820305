//! The logical node that returns, for each row, the rows of another relation that are nearest an end of a range.
//!
//! ```text
//!   SELECT q.id, x.price FROM q CROSS JOIN LATERAL (SELECT p.price FROM p WHERE p.sym = q.sym AND p.ts <= q.ts ORDER BY p.ts DESC LIMIT 5) AS x
//!
//!   Projection: q.id, p.price AS x.price
//!     NearestRows: type=Inner, on=[sym], range=p.ts in (-inf, q.ts], order=desc, limit=5     the columns of q, then those of p
//!       q                                                                                    probe side
//!       p                                                                                    build side
//! ```

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion_common::{DFSchema, DFSchemaRef, Result, internal_err};
use datafusion_expr::expr_vec_fmt;
use datafusion_expr::{Expr, LogicalPlan, SortExpr, UserDefinedLogicalNodeCore};

use crate::common::inputs::inputs_of;
use crate::common::sql_text::sql_text;
use crate::expr::range_calls::is_volatile;
use crate::logical_plan::node_methods::node_methods;
use crate::logical_plan::range_join::{RangeJoinSpec, Unmatched};
use rmq_engine::RangeEnd;

/// For each row of the probe side, the rows of the build side that match, in the order of the range key or of other
/// expressions, as many as a limit allows.
///
/// The output is the columns of the probe side, then those of the build side. Probe rows keep their order. One without
/// a row of the build side is dropped, or kept with NULLs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NearestRows {
    probe: LogicalPlan,
    build: LogicalPlan,
    condition: NearestCondition,
    /// A volatile condition on output rows, without columns, which DataFusion has pushed to the inputs.
    output_filter: Option<Expr>,
    schema: DFSchemaRef,
}

/// Which rows match a probe row, and which of them are returned.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct NearestCondition {
    /// The keys and bounds, without aggregates.
    pub spec: RangeJoinSpec<Expr>,
    /// The distance from a point by which the matching rows are ordered first, if that is what they are ordered by.
    pub distance: Option<Distance>,
    /// The order of the matching rows, of those at the same distance if there is one, over the build side; empty for
    /// that of the range key.
    pub order_by: Vec<SortExpr>,
    /// A further condition on pairs of rows. NULL is false.
    pub residual: Option<Expr>,
    /// Which of the rows that meet all conditions are returned.
    pub limit: RowLimit,
}

/// A distance of the range key from a point, which grows from the point on in both directions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct Distance {
    /// The point, over the probe side, of the range key's type.
    pub point: Expr,
    /// The distance, over both sides.
    pub by: Expr,
    /// Whether the distance grows from the point up to a row of the build side, over both sides: the difference of
    /// integers wraps around, and that of infinities is no number. NULL only for a key that is NULL; such rows come
    /// last.
    pub grows: Expr,
}

impl Distance {
    /// Its expressions.
    #[must_use]
    pub fn expressions(&self) -> [&Expr; 3] {
        [&self.point, &self.by, &self.grows]
    }
}

/// Which of the matching rows of a probe row are returned, counted from an end of its range, or of their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash)]
pub struct RowLimit {
    /// Whether rows are counted and returned from the greatest range key down, or as an order stated instead begins; of
    /// equal rows the last in input order first. Else from the least up, of equal rows the first in input order first.
    pub descending: bool,
    /// The number of rows that are left out first.
    pub skip: usize,
    /// The most rows that are returned; `None` for all.
    pub fetch: Option<usize>,
}

impl RowLimit {
    /// The end of a range from which rows are counted.
    pub fn end(self) -> RangeEnd {
        if self.descending {
            RangeEnd::Last
        } else {
            RangeEnd::First
        }
    }

    /// The rows that are left out, and those that are returned.
    pub fn with_skipped(self) -> Self {
        Self {
            skip: 0,
            fetch: self.fetch.map(|fetch| fetch.saturating_add(self.skip)),
            ..self
        }
    }
}

impl NearestRows {
    /// Joins `probe` and `build`. No check is made that types fit; the operator makes it.
    ///
    /// # Errors
    /// A schema error if both sides have a column of the same name; an internal error for a condition with aggregates.
    pub fn try_new(
        probe: LogicalPlan,
        build: LogicalPlan,
        condition: NearestCondition,
    ) -> Result<Self> {
        let spec = &condition.spec;
        if !spec.aggregates.is_empty() || spec.unmatched == Unmatched::Only {
            return internal_err!("a join of nearest rows returns rows, and no aggregates");
        }
        let ours = probe.schema().iter();
        let ours = ours.map(|(qualifier, field)| (qualifier.cloned(), Arc::clone(field)));
        let theirs = build.schema().iter().map(|(qualifier, field)| {
            let nullable = field.is_nullable() || spec.unmatched == Unmatched::Keep;
            let field = field.as_ref().clone().with_nullable(nullable);
            (qualifier.cloned(), Arc::new(field))
        });
        let metadata = spec.metadata.clone().into_iter().collect();
        let schema = DFSchema::new_with_metadata(ours.chain(theirs).collect(), metadata)?;
        Ok(Self {
            probe,
            build,
            condition,
            output_filter: None,
            schema: Arc::new(schema),
        })
    }

    /// The side whose rows are searched for.
    #[must_use]
    pub fn probe(&self) -> &LogicalPlan {
        &self.probe
    }

    /// The side whose rows are found.
    #[must_use]
    pub fn build(&self) -> &LogicalPlan {
        &self.build
    }

    /// Which rows match, and which of them are returned.
    #[must_use]
    pub fn condition(&self) -> &NearestCondition {
        &self.condition
    }

    /// A volatile condition on output rows, without columns.
    #[must_use]
    pub fn output_filter(&self) -> Option<&Expr> {
        self.output_filter.as_ref()
    }

    /// Takes a volatile filter without columns, such as `random() < 0.5`, off an input. DataFusion pushes it to all
    /// inputs, but it is about each output row.
    fn unfiltered(before: &LogicalPlan, now: LogicalPlan) -> (LogicalPlan, Option<Expr>) {
        match now {
            LogicalPlan::Filter(filter)
                if is_volatile(&filter.predicate)
                    && filter.predicate.column_refs().is_empty()
                    && *filter.input == *before =>
            {
                (Arc::unwrap_or_clone(filter.input), Some(filter.predicate))
            }
            other => (other, None),
        }
    }
}

impl NearestCondition {
    /// The join as EXPLAIN shows it, with these parts of the residual: what matches, `threshold=p.v > q.v`,
    /// `filter=p.id <> q.id`, `order=desc`, `limit=5`.
    pub fn shown(&self, threshold: Option<&Expr>, filter: Option<&Expr>) -> Vec<String> {
        let mut shown = self.spec.shown_condition();
        shown.extend(threshold.map(|threshold| format!("threshold={}", sql_text(threshold))));
        shown.extend(filter.map(|filter| format!("filter={}", sql_text(filter))));
        let RowLimit {
            descending,
            skip,
            fetch,
        } = self.limit;
        let order_by = &self.order_by;
        shown.push(match &self.distance {
            Some(distance) if order_by.is_empty() => format!("order={}", sql_text(&distance.by)),
            Some(distance) => {
                let (by, order_by) = (sql_text(&distance.by), expr_vec_fmt!(order_by));
                format!("order=[{by}, {order_by}]")
            }
            None if order_by.is_empty() && descending => "order=desc".to_string(),
            None if order_by.is_empty() => "order=asc".to_string(),
            None => format!("order=[{}]", expr_vec_fmt!(order_by)),
        });
        if skip > 0 {
            shown.push(format!("offset={skip}"));
        }
        shown.extend(fetch.map(|rows| format!("limit={rows}")));
        shown
    }
}

/// `type=Inner, on=[sym], range=p.ts in (-inf, q.ts], filter=p.v > q.v, order=desc, limit=5`.
impl Display for NearestCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown(None, self.residual.as_ref()).join(", "))
    }
}

impl UserDefinedLogicalNodeCore for NearestRows {
    node_methods!("NearestRows", [probe, build]);

    fn expressions(&self) -> Vec<Expr> {
        let condition = &self.condition;
        let order_by = condition.order_by.iter().map(|order| &order.expr);
        let distance = condition.distance.iter().flat_map(Distance::expressions);
        let exprs = condition.spec.expressions().chain(order_by);
        let exprs = exprs.chain(distance);
        exprs.chain(&condition.residual).cloned().collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NearestRows: {}", self.condition)
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let [probe, build] = inputs_of("NearestRows", inputs)?;
        let (probe, pushed) = Self::unfiltered(&self.probe, probe);
        let (build, _) = Self::unfiltered(&self.build, build);
        // Rules alias an expression that they change to its old name. Names have no meaning here.
        let mut exprs: Vec<Expr> = exprs.into_iter().map(Expr::unalias).collect();
        let mut condition = self.condition.clone();
        if condition.residual.is_some() {
            condition.residual = exprs.pop();
        }
        if let Some(distance) = &mut condition.distance {
            let Distance { point, by, grows } = distance;
            for part in [grows, by, point] {
                let Some(expr) = exprs.pop() else {
                    return internal_err!("NearestRows lacks an expression of its distance");
                };
                *part = expr;
            }
        }
        let of_spec = exprs.len().saturating_sub(condition.order_by.len());
        let order_by = exprs.split_off(of_spec);
        for (order, expr) in condition.order_by.iter_mut().zip(order_by) {
            order.expr = expr;
        }
        condition.spec = condition.spec.with_expressions(exprs)?;
        let filters = [self.output_filter.clone(), pushed].into_iter().flatten();
        Ok(Self {
            output_filter: filters.reduce(Expr::and),
            ..Self::try_new(probe, build, condition)?
        })
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let probe_columns = self.probe.schema().fields().len();
        let (mut probe, mut build) = (BTreeSet::new(), BTreeSet::new());
        for column in output_columns {
            match column.checked_sub(probe_columns) {
                None => probe.insert(*column),
                Some(column) => build.insert(column),
            };
        }
        let expressions = self.expressions();
        for column in expressions.iter().flat_map(Expr::column_refs) {
            match self.probe.schema().maybe_index_of_column(column) {
                Some(index) => probe.insert(index),
                None => build.insert(self.build.schema().maybe_index_of_column(column)?),
            };
        }
        Some(vec![
            probe.into_iter().collect(),
            build.into_iter().collect(),
        ])
    }
}

impl Hash for NearestRows {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.probe, &self.build).hash(state);
        (&self.condition, &self.output_filter).hash(state);
    }
}

impl PartialOrd for NearestRows {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let parts = (
            &self.probe,
            &self.build,
            &self.condition,
            &self.output_filter,
        );
        parts.partial_cmp(&(
            &other.probe,
            &other.build,
            &other.condition,
            &other.output_filter,
        ))
    }
}
