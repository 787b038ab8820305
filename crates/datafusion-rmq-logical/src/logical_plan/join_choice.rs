//! The logical node that leaves the choice between a range join and `DataFusion`'s join to the planner.
//!
//! ```text
//!   SELECT q.id, min(p.v) FROM q JOIN p ON p.sym = q.sym AND p.k BETWEEN q.a AND q.b GROUP BY q.id
//!
//!   JoinChoice: a range join, or a hash join where few rows have equal keys
//!     Projection: …
//!       Aggregate: …
//!         RangeJoin: …
//! ```
//!
//! The range join may be one of a difference of integers, such as `abs(p.id - q.id) <= 30`, whose range is the same
//! only where `q.id - 30` and `q.id + 30` are integers of the type, for all rows.
//!
//! Only physical plans have the statistics to choose by. The plan as it was written is no input: no rule rewrites it
//! again, and it is planned only where it is taken. So it must not contain what is replaced in inputs alone, such as
//! placeholders.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion_common::{DFSchema, DFSchemaRef, Result};
use datafusion_expr::{Expr, Filter, LogicalPlan, Projection, UserDefinedLogicalNodeCore};

use crate::common::inputs::inputs_of;
use crate::logical_plan::node_methods::node_methods;

/// Two plans of the same rows: an aggregate over a range join, and over a join as it was written. The one follows from
/// the other, so nodes are compared by the first alone.
#[derive(Debug, Clone)]
pub struct JoinChoice {
    range_join: LogicalPlan,
    as_written: LogicalPlan,
    has_differences: bool,
    schema: DFSchemaRef,
}

impl JoinChoice {
    /// Offers two plans. A column is nullable if it is so in either of them.
    ///
    /// # Errors
    /// A planning error if the names or types of the columns differ.
    pub fn try_new(range_join: LogicalPlan, as_written: LogicalPlan) -> Result<Self> {
        let (ours, theirs) = (range_join.schema(), as_written.schema());
        ours.has_equivalent_names_and_types(theirs)?;
        let fields = ours.iter().zip(theirs.fields());
        let fields = fields.map(|((qualifier, field), other)| {
            let nullable = field.is_nullable() || other.is_nullable();
            let field = field.as_ref().clone().with_nullable(nullable);
            (qualifier.cloned(), Arc::new(field))
        });
        let schema = DFSchema::new_with_metadata(fields.collect(), ours.metadata().clone())?;
        Ok(Self {
            schema: Arc::new(schema),
            range_join,
            as_written,
            has_differences: false,
        })
    }

    /// The same, where the range join may have the same rows only if differences of integers don't wrap around.
    #[must_use]
    pub fn with_differences(self, has_differences: bool) -> Self {
        Self {
            has_differences,
            ..self
        }
    }

    /// Whether the range join has the same rows only if differences of integers don't wrap around.
    #[must_use]
    pub fn has_differences(&self) -> bool {
        self.has_differences
    }

    /// The plan over a range join.
    #[must_use]
    pub fn range_join(&self) -> &LogicalPlan {
        &self.range_join
    }

    /// The plan over a join as it was written.
    #[must_use]
    pub fn as_written(&self) -> &LogicalPlan {
        &self.as_written
    }
}

impl UserDefinedLogicalNodeCore for JoinChoice {
    node_methods!("JoinChoice", [range_join]);

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinChoice: a range join, or a hash join where few rows have equal keys")
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let [range_join] = inputs_of("JoinChoice", inputs)?;
        let mut as_written = self.as_written.clone();
        // Rules push conditions without columns, such as `random() < 0.5`, to the inputs of all nodes.
        if let LogicalPlan::Filter(filter) = &range_join
            && *filter.input == self.range_join
        {
            let filter = Filter::try_new(filter.predicate.clone(), Arc::new(as_written))?;
            as_written = LogicalPlan::Filter(filter);
        }
        let columns = range_join.schema().columns();
        if columns != as_written.schema().columns() {
            let columns = columns.into_iter().map(Expr::Column).collect();
            let projection = Projection::try_new(columns, Arc::new(as_written))?;
            as_written = LogicalPlan::Projection(projection);
        }
        let has_differences = self.has_differences;
        Ok(Self::try_new(range_join, as_written)?.with_differences(has_differences))
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![output_columns.to_vec()])
    }
}

impl PartialEq for JoinChoice {
    fn eq(&self, other: &Self) -> bool {
        self.range_join == other.range_join
    }
}

impl Eq for JoinChoice {}

impl PartialOrd for JoinChoice {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.range_join.partial_cmp(&other.range_join)
    }
}

impl Hash for JoinChoice {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.range_join.hash(state);
    }
}
