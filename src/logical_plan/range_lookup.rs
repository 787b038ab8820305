//! The logical node.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt::{self, Display};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchema, DFSchemaRef, Result, TableReference, internal_err};
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use crate::common::column_ref::ColumnRef;
use crate::common::range_function::RangeFunction;

/// Where the rows stand whose positions a range counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub enum Source {
    /// A column of a registered table, its rows in scan order.
    Table(TableColumn),
    /// The one column of a relation, its rows in the order that the relation states. It is planned on its own
    /// and is no input of the node: its order is its meaning, which no rule may change.
    Query(Arc<LogicalPlan>),
}

/// A column of a registered table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableColumn(pub(crate) ColumnRef);

impl Source {
    /// Whether both are the same rows. Plans that look alike need not be: a scan compares equal to one of
    /// another provider under the same name.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Table(a), Self::Table(b)) => a == b,
            (Self::Query(a), Self::Query(b)) => is_same_plan(a, b),
            _ => false,
        }
    }
}

/// Whether two plans give the same rows of the same tables.
pub(crate) fn is_same_plan(a: &LogicalPlan, b: &LogicalPlan) -> bool {
    let providers = || Some((providers(a)?, providers(b)?));
    a == b
        && providers().is_some_and(|(a, b)| {
            a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| Arc::ptr_eq(a, b))
        })
}

/// The providers of all scans in a plan and its subqueries, or `None` if one can't be told.
fn providers(plan: &LogicalPlan) -> Option<Vec<Arc<dyn TableProvider>>> {
    let mut providers = vec![];
    let visited = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            providers.push(source_as_provider(&scan.source)?);
        }
        Ok(TreeNodeRecursion::Continue)
    });
    visited.ok().map(|_| providers)
}

impl Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(TableColumn(name)) => write!(f, "{name}"),
            Self::Query(plan) => match plan.schema().columns().as_slice() {
                [column] => write!(f, "(subquery of {})", column.name),
                _ => write!(f, "(subquery)"),
            },
        }
    }
}

/// One call of a range function: for each input row, the answer for the rows `left` to `right` of `source`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct RangeCall {
    /// The question.
    pub function: RangeFunction,
    /// The rows that are asked.
    pub source: Source,
    /// The first position, an integer expression over the input.
    pub left: Expr,
    /// The last position, an integer expression over the input.
    pub right: Expr,
    /// The name of the column that the answer becomes.
    pub output: String,
    /// The type of the answer.
    pub data_type: DataType,
}

impl Display for RangeCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            function,
            source,
            left,
            right,
            output,
            ..
        } = self;
        write!(
            f,
            "{}({source}) over rows {left} to {right} AS {output}",
            function.range_name()
        )
    }
}

/// Adds to each input row the answers of range calls, one column a call behind the input's columns. Rows, their order and their
/// number stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeLookup {
    input: LogicalPlan,
    calls: Vec<RangeCall>,
    schema: DFSchemaRef,
}

impl RangeLookup {
    /// # Errors
    /// If an output's name is already a column of the input.
    pub fn try_new(input: LogicalPlan, calls: Vec<RangeCall>) -> Result<Self> {
        let outputs = calls.iter().map(|call| {
            let field = Field::new(&call.output, call.data_type.clone(), true);
            (None::<TableReference>, Arc::new(field))
        });
        let schema = input.schema();
        let fields = schema
            .iter()
            .map(|(q, f)| (q.cloned(), Arc::clone(f)))
            .chain(outputs);
        let dependencies = schema.functional_dependencies().clone();
        let schema = DFSchema::new_with_metadata(fields.collect(), schema.metadata().clone())?
            .with_functional_dependencies(dependencies)?;
        Ok(Self {
            input,
            calls,
            schema: Arc::new(schema),
        })
    }

    /// The calls, one output column each.
    pub fn calls(&self) -> &[RangeCall] {
        &self.calls
    }
}

impl UserDefinedLogicalNodeCore for RangeLookup {
    fn name(&self) -> &'static str {
        "RangeLookup"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        self.calls
            .iter()
            .flat_map(|c| [c.left.clone(), c.right.clone()])
            .collect()
    }

    /// A filter on the input's columns may go below, one on an answer may not.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        self.calls.iter().map(|c| c.output.clone()).collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RangeLookup: ")?;
        for (i, call) in self.calls.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{call}")?;
        }
        Ok(())
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let [input] = <[LogicalPlan; 1]>::try_from(inputs)
            .or_else(|inputs| internal_err!("RangeLookup has one input, not {}", inputs.len()))?;
        if exprs.len() != 2 * self.calls.len() {
            return internal_err!("RangeLookup has two bounds a call, not {}", exprs.len());
        }
        let mut bounds = exprs.into_iter();
        let mut calls = self.calls.clone();
        for call in &mut calls {
            if let (Some(left), Some(right)) = (bounds.next(), bounds.next()) {
                (call.left, call.right) = (left, right);
            }
        }
        Self::try_new(input, calls)
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let schema = self.input.schema();
        let mut needed: Vec<usize> = output_columns
            .iter()
            .copied()
            .filter(|i| *i < schema.fields().len())
            .collect();
        for bound in self.expressions() {
            for column in bound.column_refs() {
                needed.push(schema.maybe_index_of_column(column)?);
            }
        }
        needed.sort_unstable();
        needed.dedup();
        Some(vec![needed])
    }
}

impl Hash for RangeLookup {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.input, &self.calls).hash(state);
    }
}

impl PartialOrd for RangeLookup {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (&self.input, &self.calls).partial_cmp(&(&other.input, &other.calls))
    }
}
