//! The logical node that builds indexes for expressions of the node above.
//!
//! A call of a range function normally becomes a column of a `RangeLookup`. In the ON of an outer join whose bounds
//! need both sides it cannot: no node below the join has both columns, and the condition must stay in the join. There
//! the call becomes an expression, [`IndexLookupUdf`], that queries an index which a node below the join has built:
//!
//! ```text
//!   LEFT JOIN ON a.x = range_min('t.v', a.l, b.r)      LEFT JOIN ON a.x = range_min(run, a.l, b.r)
//!     a                                            →     PrepareIndexes: range_min(t.v)
//!     b                                                    a
//!                                                        b
//! ```

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::Field;
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, DFSchemaRef, Result};
use datafusion_expr::{Expr, Extension, LogicalPlan, ScalarUDF, UserDefinedLogicalNodeCore};

use crate::common::inputs::inputs_of;
use crate::expr::index_lookup::{IndexLookupUdf, IndexSlot, RunId};
use crate::logical_plan::node_methods::node_methods;
use crate::logical_plan::range_lookup::Source;
use rmq_arrow::common::range_function::RangeFunction;

/// An index, and the expression that queries it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IndexLookup {
    /// The function that the expression computes.
    pub function: RangeFunction,
    /// The rows that are indexed.
    pub source: Source,
    /// The slot from which the [`IndexLookupUdf`] of this call takes the index.
    pub slot: IndexSlot,
}

/// Builds indexes before it returns the first row of its input.
///
/// The output is the input and one more column, the number of the execution, by which the expressions find their index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrepareIndexes {
    input: LogicalPlan,
    lookups: Vec<IndexLookup>,
    run: String,
    schema: DFSchemaRef,
}

impl PrepareIndexes {
    /// Builds the indexes of `lookups` before `input` returns rows. `run` is the name of the added column.
    ///
    /// # Errors
    /// A schema error if the input has an unqualified column of this name.
    pub fn try_new(input: LogicalPlan, lookups: Vec<IndexLookup>, run: String) -> Result<Self> {
        let old = input.schema();
        let field = Arc::new(Field::new(&run, RunId::data_type(), false));
        let fields = old.iter().map(|(q, f)| (q.cloned(), Arc::clone(f)));
        let fields = fields.chain([(None, field)]).collect();
        let dependencies = old.functional_dependencies().clone();
        let schema = DFSchema::new_with_metadata(fields, old.metadata().clone())?
            .with_functional_dependencies(dependencies)?;
        Ok(Self {
            input,
            lookups,
            run,
            schema: Arc::new(schema),
        })
    }

    /// The input.
    #[must_use]
    pub fn input(&self) -> &LogicalPlan {
        &self.input
    }

    /// The name of the added column, the number of the execution.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }

    /// The indexes, each with its slot. Two lookups have equal slots only if they are one.
    #[must_use]
    pub fn lookups(&self) -> &[IndexLookup] {
        &self.lookups
    }
}

impl UserDefinedLogicalNodeCore for PrepareIndexes {
    node_methods!("PrepareIndexes", [input]);

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    fn prevent_predicate_push_down_columns(&self) -> std::collections::HashSet<String> {
        std::collections::HashSet::from([self.run.clone()])
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self
            .lookups
            .iter()
            .map(|l| format!("{}({})", l.function.range_name(), l.source));
        write!(
            f,
            "PrepareIndexes: {}",
            names.collect::<Vec<_>>().join(", ")
        )
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let [input] = inputs_of("PrepareIndexes", inputs)?;
        Self::try_new(input, self.lookups.clone(), self.run.clone())
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let columns = self.input.schema().fields().len();
        let of_input = output_columns.iter().copied().filter(|i| *i < columns);
        Some(vec![of_input.collect()])
    }
}

impl Hash for PrepareIndexes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.input, &self.lookups, &self.run).hash(state);
    }
}

/// Slots have no order.
impl PartialOrd for PrepareIndexes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self == other).then_some(Ordering::Equal)
    }
}

/// Gives the plan slots of its own. A prepared statement's logical plan is planned again for each execution; with
/// shared slots, one execution could find the index of another. A plan without [`PrepareIndexes`] is borrowed.
pub fn with_fresh_slots(plan: &LogicalPlan) -> Result<Cow<'_, LogicalPlan>> {
    let is_prepare = |node: &LogicalPlan| match node {
        LogicalPlan::Extension(e) => e.node.as_any().is::<PrepareIndexes>(),
        _ => false,
    };
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found |= is_prepare(node);
        Ok(TreeNodeRecursion::Continue)
    })?;
    if !found {
        return Ok(Cow::Borrowed(plan));
    }
    let mut fresh: Vec<(IndexSlot, IndexSlot)> = vec![];
    let mut renew = |slot: &IndexSlot| match fresh.iter().find(|(old, _)| old == slot) {
        Some((_, new)) => new.clone(),
        None => {
            let new = IndexSlot::default();
            fresh.push((slot.clone(), new.clone()));
            new
        }
    };
    let plan = plan.clone().transform_up_with_subqueries(|node| {
        if let LogicalPlan::Extension(extension) = &node
            && let Some(prepare) = extension.node.as_any().downcast_ref::<PrepareIndexes>()
        {
            let mut prepare = prepare.clone();
            for lookup in &mut prepare.lookups {
                lookup.slot = renew(&lookup.slot);
            }
            let node = Arc::new(prepare);
            return Ok(Transformed::yes(LogicalPlan::Extension(Extension { node })));
        }
        node.map_expressions(|expr| {
            expr.transform_up(|expr| {
                let Expr::ScalarFunction(call) = &expr else {
                    return Ok(Transformed::no(expr));
                };
                let Some(udf) = call.func.inner().downcast_ref::<IndexLookupUdf>() else {
                    return Ok(Transformed::no(expr));
                };
                let udf = ScalarUDF::from(udf.with_slot(renew(udf.slot())));
                Ok(Transformed::yes(udf.call(call.args.clone())))
            })
        })
    })?;
    Ok(Cow::Owned(plan.data))
}
