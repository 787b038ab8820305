//! The logical node that adds columns looked up by position.
//!
//! ```text
//!   SELECT w.l, range_min('prices.close', w.l, w.r) FROM windows w
//!
//!   Projection: w.l, range_min(prices.close)#1
//!     RangeLookup: range_min(prices.close) over rows w.l to w.r
//!       TableScan: windows
//! ```
//!
//! The indexed rows, `prices.close`, are no input of the node: their order is their meaning, and rules may change the
//! order of an input.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt::{self, Display};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion_catalog::TableProvider;
use datafusion_catalog::default_table_source::source_as_provider;
use datafusion_common::tree_node::TreeNodeRecursion;
use datafusion_common::{
    DFSchema, DFSchemaRef, ResolvedTableReference, Result, TableReference, internal_err,
};
use datafusion_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use crate::common::column_ref::ColumnRef;
use crate::common::inputs::inputs_of;
use crate::common::sql_text::sql_text;
use crate::logical_plan::node_methods::node_methods;
use rmq_arrow::common::range_function::RangeFunction;

/// The rows that positions refer to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub enum Source {
    /// A column of a registered table, its rows in scan order.
    Table(TableColumn),
    /// The only column of a query, its rows in the order of the query's ORDER BY. It is planned separately and is no
    /// input of the node, because rules may change the order of an input.
    Query(Arc<LogicalPlan>),
}

/// A column of a registered table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableColumn(pub ColumnRef);

impl TableColumn {
    /// Names a column of a table. The names are compared as they are, without case folding.
    #[must_use]
    pub fn new(table: ResolvedTableReference, column: impl Into<String>) -> Self {
        let ResolvedTableReference {
            catalog,
            schema,
            table,
        } = table;
        Self(ColumnRef {
            catalog,
            schema,
            table,
            column: column.into(),
        })
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> ResolvedTableReference {
        self.0.table_reference()
    }

    /// The name of the column.
    #[must_use]
    pub fn column(&self) -> &str {
        &self.0.column
    }
}

impl Source {
    /// Whether both are the same rows. Equal plans need not be: a scan equals a scan of another provider under the same
    /// name.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Table(a), Self::Table(b)) => a == b,
            (Self::Query(a), Self::Query(b)) => is_same_plan(a, b),
            _ => false,
        }
    }
}

/// Whether two plans are equal and scan the same providers.
pub fn is_same_plan(a: &LogicalPlan, b: &LogicalPlan) -> bool {
    let providers = || Some((providers(a)?, providers(b)?));
    a == b
        && providers().is_some_and(|(a, b)| {
            a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| Arc::ptr_eq(a, b))
        })
}

/// The providers of all scans in a plan and its subqueries, or `None` if a scan's provider is unknown.
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

/// One call of a range function: for each input row, the extreme of the rows `left` to `right` of `source`, or its
/// position, or the position of a row that crosses a threshold, or those of several extremes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct RangeCall {
    /// Which extreme, and whether its value or its position.
    pub function: RangeFunction,
    /// The rows that are queried.
    pub source: Source,
    /// The first position, inclusive and counted from 0: an integer expression over the input.
    pub left: Expr,
    /// The last position, inclusive: an integer expression over the input. A range that is empty, or has a NULL bound,
    /// gives NULL.
    pub right: Expr,
    /// The threshold of a function that has one, of a type comparable with the column's, or the number of positions of
    /// one that lists them: an expression over the input. NULL gives NULL.
    pub threshold: Option<Expr>,
    /// The name of the added column.
    pub output: String,
    /// The type of the added column: that of the values, or `Int64` for a position.
    pub data_type: DataType,
}

impl Display for RangeCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            function,
            source,
            left,
            right,
            threshold,
            ..
        } = self;
        write!(f, "{}({source}", function.range_name())?;
        if let Some(threshold) = threshold {
            write!(f, ", {}", sql_text(threshold))?;
        }
        let [left, right] = [left, right].map(sql_text);
        write!(f, ") over rows {left} to {right}")
    }
}

/// Adds to each input row the results of range calls, one nullable column per call after the input's columns. Rows and
/// their order are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeLookup {
    input: LogicalPlan,
    calls: Vec<RangeCall>,
    schema: DFSchemaRef,
}

impl RangeLookup {
    /// Adds the columns of `calls` to `input`.
    ///
    /// # Errors
    /// A schema error if the name of an added column is an unqualified column of the input.
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

    /// The input.
    #[must_use]
    pub fn input(&self) -> &LogicalPlan {
        &self.input
    }

    /// The calls, one added column each, in the order of the columns.
    #[must_use]
    pub fn calls(&self) -> &[RangeCall] {
        &self.calls
    }
}

impl UserDefinedLogicalNodeCore for RangeLookup {
    node_methods!("RangeLookup", [input]);

    fn expressions(&self) -> Vec<Expr> {
        self.calls
            .iter()
            .flat_map(|c| [&c.left, &c.right].into_iter().chain(&c.threshold).cloned())
            .collect()
    }

    /// Filters on the input's columns may be pushed down, those on an added column may not.
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
        let [input] = inputs_of("RangeLookup", inputs)?;
        let mut calls = self.calls.clone();
        let old = calls.iter_mut().flat_map(|c| {
            [&mut c.left, &mut c.right]
                .into_iter()
                .chain(&mut c.threshold)
        });
        let old: Vec<_> = old.collect();
        if exprs.len() != old.len() {
            return internal_err!(
                "RangeLookup has {} expressions, not {}",
                old.len(),
                exprs.len()
            );
        }
        for (old, new) in old.into_iter().zip(exprs) {
            *old = new;
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
