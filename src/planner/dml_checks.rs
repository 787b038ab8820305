//! Rejects DELETE and UPDATE statements whose conditions DataFusion would drop.
//!
//! DataFusion runs neither statement's input. It collects the filters on the table's own columns from the input's plan
//! and passes them to [`TableProvider::delete_from`] or [`TableProvider::update`]. Conditions of any other form are
//! dropped without an error, and the statement then changes rows that its WHERE excludes: those that the optimizer made
//! joins (IN and EXISTS with a subquery, correlated subqueries), LIMIT, and a WHERE that holds for no row, which leaves
//! an empty relation without a filter.
//!
//! MERGE passes all of its expressions to the table; INSERT, COPY and CREATE TABLE … AS run their input. None of these
//! is checked.
//!
//! [`TableProvider::delete_from`]: datafusion::catalog::TableProvider::delete_from
//! [`TableProvider::update`]: datafusion::catalog::TableProvider::update

use std::borrow::Cow;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, TableReference, plan_err};
use datafusion::logical_expr::{DmlStatement, Filter, LogicalPlan, WriteOp, lit};

use datafusion_rmq_logical::logical_plan::nearest_rows::NearestRows;
use datafusion_rmq_logical::logical_plan::prepare_indexes::PrepareIndexes;
use datafusion_rmq_logical::logical_plan::range_join::RangeJoin;
use datafusion_rmq_logical::logical_plan::range_lookup::RangeLookup;

/// Checks that DELETE and UPDATE statements change exactly the rows that they name. A plan without such statements is
/// borrowed.
///
/// The input of a statement that names no row gets the filter `false`, because the table would otherwise change all
/// rows.
///
/// # Errors
/// A planning error if a statement has a condition that DataFusion would drop, or needs a range join.
pub(crate) fn with_checked_statements(plan: &LogicalPlan) -> Result<Cow<'_, LogicalPlan>> {
    let mut found = false;
    plan.apply(|node| {
        found |= checked_name(node).is_some();
        Ok(TreeNodeRecursion::Continue)
    })?;
    if !found {
        return Ok(Cow::Borrowed(plan));
    }
    let checked = plan.clone().transform_down(|node| {
        let (Some(name), LogicalPlan::Dml(statement)) = (checked_name(&node), &node) else {
            return Ok(Transformed::no(node));
        };
        check_no_range_join(name, statement)?;
        if !check_conditions(name, statement)? {
            return Ok(Transformed::no(node));
        }
        let filter = Filter::try_new(lit(false), Arc::clone(&statement.input))?;
        let statement = DmlStatement {
            input: Arc::new(LogicalPlan::Filter(filter)),
            ..statement.clone()
        };
        Ok(Transformed::new(
            LogicalPlan::Dml(statement),
            true,
            TreeNodeRecursion::Jump,
        ))
    })?;
    Ok(Cow::Owned(checked.data))
}

/// The name of a statement that must be checked; `None` for others.
fn checked_name(plan: &LogicalPlan) -> Option<&'static str> {
    match plan {
        LogicalPlan::Dml(statement) => match statement.op {
            WriteOp::Delete => Some("DELETE"),
            WriteOp::Update => Some("UPDATE"),
            _ => None,
        },
        _ => None,
    }
}

/// The alternative that the error messages name.
const INSTEAD: &str =
    "write the rows as they are to be into another table, with CREATE TABLE … AS SELECT";

/// Checks that no part of a statement, subqueries in its expressions included, needs the operators of this crate.
fn check_no_range_join(name: &str, statement: &DmlStatement) -> Result<()> {
    statement.input.apply_with_subqueries(|node| {
        let LogicalPlan::Extension(extension) = node else {
            return Ok(TreeNodeRecursion::Continue);
        };
        let any = extension.node.as_any();
        let refused = if any.is::<RangeJoin>() || any.is::<NearestRows>() {
            "range joins, such as a correlated subquery over a range or range_join, do"
        } else if any.is::<RangeLookup>() || any.is::<PrepareIndexes>() {
            "range functions (range_min and its like) do"
        } else {
            return Ok(TreeNodeRecursion::Continue);
        };
        plan_err!(
            "{refused} not work in {name}, whose conditions and values a table evaluates by itself; {INSTEAD}"
        )
    })?;
    Ok(())
}

/// Checks that DataFusion passes every condition of a statement to its table. Returns whether no row meets the
/// conditions.
fn check_conditions(name: &str, statement: &DmlStatement) -> Result<bool> {
    let table = &statement.table_name;
    let lost = |what: &str| {
        plan_err!(
            "{name} of {table}: DataFusion passes a table only conditions on the table's own columns, and drops {what}, so that more rows \
             would change than the statement names; {INSTEAD}"
        )
    };
    let mut filters: Vec<&Filter> = vec![];
    let mut known: Vec<TableReference> = vec![table.clone()];
    let mut plan = statement.input.as_ref();
    loop {
        plan = match plan {
            LogicalPlan::Filter(filter) => {
                filters.push(filter);
                &filter.input
            }
            LogicalPlan::Projection(projection) => &projection.input,
            LogicalPlan::SubqueryAlias(alias) => {
                if matches!(alias.input.as_ref(), LogicalPlan::TableScan(_)) {
                    known.push(TableReference::bare(alias.alias.to_string()));
                }
                &alias.input
            }
            LogicalPlan::TableScan(scan) => {
                if scan.fetch.is_some() {
                    return lost("LIMIT");
                }
                if !scan.table_name.resolved_eq(table)
                    && let Some(filter) = scan.filters.first()
                {
                    return lost(&format!("the condition {filter}"));
                }
                break;
            }
            LogicalPlan::EmptyRelation(empty) if !empty.produce_one_row => return Ok(true),
            LogicalPlan::Limit(_) => return lost("LIMIT"),
            LogicalPlan::Join(_) => {
                return lost(&format!(
                    "those that need another table or a subquery ({})",
                    plan.display()
                ));
            }
            other => return lost(&format!("what needs another plan ({})", other.display())),
        };
    }
    for filter in filters {
        for column in filter.predicate.column_refs() {
            let is_known = |relation| known.iter().any(|table| table.resolved_eq(relation));
            if !column.relation.as_ref().is_none_or(is_known) {
                return lost(&format!("the condition {}", filter.predicate));
            }
        }
    }
    Ok(false)
}
