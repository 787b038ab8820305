//! The logical node that computes order statistics of groups of ranges.
//!
//! ```text
//!   SELECT q.id, median(p.v) FROM q JOIN p ON p.k BETWEEN q.a AND q.b GROUP BY q.id
//!
//!   Projection: q.id, median(p.v)#3 AS median(p.v)
//!     GroupStatistics: median(p.v)                                        adds the column median(p.v)#3
//!       Aggregate: group by q.id, array_agg(rows of median(p.v)#1) AS #2
//!         RangeJoin: range=p.k in [q.a, q.b], aggs=[rows of median(p.v)]  adds the column rows of median(p.v)#1
//!           q
//!           p
//! ```

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion_common::{DFSchema, DFSchemaRef, Result, TableReference};
use datafusion_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};
use datafusion_physical_expr::aggregate::AggregateFunctionExpr;

use crate::common::inputs::inputs_of;
use crate::logical_plan::accumulator_call::AccumulatorCall;
use crate::logical_plan::node_methods::node_methods;

/// An order statistic of each group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct GroupStatistic {
    /// The column that has a list of the ranges of each group.
    pub ranges: String,
    /// The name of the added column.
    pub output: String,
    /// The aggregate of the rows of these ranges.
    pub call: Arc<AccumulatorCall>,
    /// The types of the call's columns.
    pub types: Vec<DataType>,
}

impl GroupStatistic {
    /// The function of the call.
    ///
    /// # Errors
    /// DataFusion's, if the call does not accept the types.
    pub fn function(&self) -> Result<AggregateFunctionExpr> {
        self.call.physical(&self.types)
    }

    /// The added column.
    ///
    /// # Errors
    /// As [`Self::function`].
    pub fn field(&self) -> Result<Field> {
        let field = self.function()?.field();
        Ok(field.as_ref().clone().with_name(&self.output))
    }
}

/// Adds order statistics of the ranges of each group, one column each after the input's. The ranges are those of a
/// [`RangeJoin`](crate::logical_plan::range_join::RangeJoin) below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStatistics {
    input: LogicalPlan,
    /// What is added, in the order of the columns.
    pub statistics: Vec<GroupStatistic>,
    schema: DFSchemaRef,
}

impl GroupStatistics {
    /// Adds the columns of `statistics` to `input`.
    ///
    /// # Errors
    /// A schema error if the name of an added column is an unqualified column of the input. As
    /// [`GroupStatistic::function`].
    pub fn try_new(input: LogicalPlan, statistics: Vec<GroupStatistic>) -> Result<Self> {
        let schema = input.schema();
        let fields = schema.iter().map(|(q, f)| (q.cloned(), Arc::clone(f)));
        let mut fields: Vec<_> = fields.collect();
        for statistic in &statistics {
            fields.push((None::<TableReference>, Arc::new(statistic.field()?)));
        }
        let dependencies = schema.functional_dependencies().clone();
        let schema = DFSchema::new_with_metadata(fields, schema.metadata().clone())?
            .with_functional_dependencies(dependencies)?;
        Ok(Self {
            input,
            statistics,
            schema: Arc::new(schema),
        })
    }
}

impl UserDefinedLogicalNodeCore for GroupStatistics {
    node_methods!("GroupStatistics", [input]);

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    /// Filters on the input's columns may be pushed down, those on an added column may not.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        let outputs = self.statistics.iter();
        outputs.map(|statistic| statistic.output.clone()).collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls = self.statistics.iter();
        let calls: Vec<&str> = calls
            .map(|statistic| statistic.call.text.as_str())
            .collect();
        write!(f, "GroupStatistics: {}", calls.join(", "))
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let [input] = inputs_of("GroupStatistics", inputs)?;
        Self::try_new(input, self.statistics.clone())
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let schema = self.input.schema();
        let columns = output_columns.iter().copied();
        let columns = columns.filter(|i| *i < schema.fields().len());
        let ranges = self.statistics.iter();
        let ranges = ranges.map(|of| schema.index_of_column_by_name(None, &of.ranges));
        let ranges = ranges.collect::<Option<Vec<usize>>>()?;
        let mut needed: Vec<usize> = columns.chain(ranges).collect();
        needed.sort_unstable();
        needed.dedup();
        Some(vec![needed])
    }
}

impl Hash for GroupStatistics {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.input, &self.statistics).hash(state);
    }
}

impl PartialOrd for GroupStatistics {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (&self.input, &self.statistics).partial_cmp(&(&other.input, &other.statistics))
    }
}
