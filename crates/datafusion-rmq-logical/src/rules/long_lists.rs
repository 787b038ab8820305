//! Long lists of constants become tables.
//!
//! ```text
//!   SELECT unnest(generate_series(TIMESTAMP '2024-01-01', TIMESTAMP '2024-12-31', INTERVAL '1 minute')) AS ts
//!
//!   before                                                after
//!   Unnest                                                Unnest
//!     Projection: generate_series(…)                        Projection: constants_1.list_1
//!       EmptyRelation: rows=1                                 TableScan: constants_1 projection=[list_1]
//! ```
//!
//! DataFusion evaluates such a call while it optimizes a query, and the list is a literal of the plan then. EXPLAIN
//! prints the plan after each rule, for which half a million values take minutes, and shows them all. So this rule
//! evaluates the call first, where there is no other input than one row.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema};
use datafusion_catalog::{MemTable, default_table_source::provider_as_source};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{Column, DFSchema, Result, ScalarValue, TableReference};
use datafusion_expr::simplify::SimplifyContext;
use datafusion_expr::{EmptyRelation, Expr, LogicalPlan, LogicalPlanBuilder, Projection};
use datafusion_optimizer::OptimizerConfig;
use datafusion_optimizer::simplify_expressions::ExprSimplifier;

use crate::rules::common::plain_sql_rule::plain_sql_rule;
use crate::rules::common::plans::projected;

/// Lists of more values become tables.
const MAX_VALUES: i32 = 1000;

plain_sql_rule!(
    /// Puts long lists of constants into tables in memory of one row. Does nothing if `rmq.rewrite` is false.
    ///
    /// It must run before the rule that evaluates constants. Only sessions that plan with this crate's query planner
    /// have it: others may send their logical plans elsewhere, and have no codec for tables in memory.
    LongListsToTables,
    "rmq_long_lists_to_tables",
    replace
);

fn replace(plan: &LogicalPlan, config: &dyn OptimizerConfig) -> Result<Option<LogicalPlan>> {
    let LogicalPlan::Projection(Projection {
        expr,
        input,
        schema,
        ..
    }) = plan
    else {
        return Ok(None);
    };
    let one_row = EmptyRelation {
        produce_one_row: true,
        schema: Arc::clone(input.schema()),
    };
    if **input != LogicalPlan::EmptyRelation(one_row) {
        return Ok(None);
    }
    let table = TableReference::bare(config.alias_generator().next("constants"));
    let mut lists: Vec<(Field, ArrayRef)> = vec![];
    let mut columns = vec![];
    for (expr, (qualifier, field)) in expr.iter().zip(schema.iter()) {
        let constant = evaluated(expr.clone().unalias(), config)?;
        let replaced = constant.transform_up(|e| {
            let Expr::Literal(value, None) = &e else {
                return Ok(Transformed::no(e));
            };
            if !is_long(value) {
                return Ok(Transformed::no(e));
            }
            let name = format!("list_{}", lists.len() + 1);
            let list = value.to_array()?;
            // The schema knows a call, which may be NULL, and not its value.
            let is_nullable = field.is_nullable();
            lists.push((
                Field::new(&name, list.data_type().clone(), is_nullable),
                list,
            ));
            let column = Column::new(Some(table.clone()), name);
            Ok(Transformed::yes(Expr::Column(column)))
        })?;
        columns.push(
            replaced
                .data
                .alias_qualified(qualifier.cloned(), field.name()),
        );
    }
    if lists.is_empty() {
        return Ok(None);
    }
    let (fields, arrays): (Vec<_>, Vec<_>) = lists.into_iter().unzip();
    let rows = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?;
    let rows = MemTable::try_new(rows.schema(), vec![vec![rows]])?;
    let scan = LogicalPlanBuilder::scan(table, provider_as_source(Arc::new(rows)), None)?;
    let replaced = projected(scan.build()?, columns)?;
    // An alias may have metadata of its own.
    Ok((replaced.schema() == schema).then_some(replaced))
}

/// The expression, evaluated as far as it is constant. `DataFusion` does not report its errors here, either.
fn evaluated(expr: Expr, config: &dyn OptimizerConfig) -> Result<Expr> {
    let has_call = expr.exists(|e| Ok(matches!(e, Expr::ScalarFunction(_))))?;
    if !has_call {
        return Ok(expr);
    }
    let context = SimplifyContext::builder()
        .with_schema(Arc::new(DFSchema::empty()))
        .with_config_options(config.options())
        .with_query_execution_start_time(config.query_execution_start_time())
        .build();
    let simplified = ExprSimplifier::new(context).simplify(expr.clone());
    Ok(simplified.unwrap_or(expr))
}

fn is_long(value: &ScalarValue) -> bool {
    match value {
        ScalarValue::List(list) => list.value_length(0) > MAX_VALUES,
        ScalarValue::LargeList(list) => list.value_length(0) > i64::from(MAX_VALUES),
        _ => false,
    }
}
