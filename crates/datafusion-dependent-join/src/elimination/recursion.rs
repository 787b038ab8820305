//! The domain in both parts of a recursive query.
//!
//! The first part has it, and so the work table, from which the other one takes it. A row of the domain for which there
//! are no more rows has none from then on, while others go on: so the repeated part must have no rows without those of
//! the work table.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion_catalog::cte_worktable::CteWorkTable;
use datafusion_catalog::default_table_source::provider_as_source;
use datafusion_common::tree_node::TreeNode;
use datafusion_common::{JoinType, Result, TableReference};
use datafusion_expr::logical_plan::RecursiveQuery;
use datafusion_expr::{LogicalPlan, LogicalPlanBuilder, TableScan};

use crate::elimination::Elimination;
use crate::exprs::{columns, has_grouping_sets};
use crate::outer::lateral;
use crate::refusal::{Found, refuse};
use crate::work_tables::{WorkTable, is_work_table};

impl Elimination<'_> {
    pub(super) fn push_recursive(&self, query: &RecursiveQuery) -> Found<LogicalPlan> {
        if !is_empty_without(&query.name, &query.recursive_term)? {
            return refuse(format!(
                "the part that its WITH RECURSIVE {0} repeats may have rows where {0} has none, as UNION, an outer join \
                 and an aggregate without GROUP BY do",
                query.name
            ));
        }
        let first = self.push(&query.static_term)?;
        let name = self.fresh(&query.name);
        // What is repeated may have NULL where the first rows have none.
        let fields = first.schema().fields().iter();
        let fields = fields.map(|field| Field::clone(field).with_nullable(true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let table = provider_as_source(Arc::new(CteWorkTable::new(&name, schema)));
        let scan =
            LogicalPlanBuilder::scan(TableReference::bare(name.clone()), table, None)?.build()?;
        let mut within = self.clone();
        within.work_tables.push(WorkTable {
            name: query.name.clone(),
            scan,
        });
        let repeated = within.push(&query.recursive_term)?;
        let query =
            RecursiveQuery::try_new(name, Arc::new(first), Arc::new(repeated), query.is_distinct)?;
        Ok(LogicalPlan::RecursiveQuery(query))
    }

    /// The work table with the domain.
    pub(super) fn push_work_table(&self, scan: &TableScan) -> Found<LogicalPlan> {
        let mut around = self.work_tables.iter().rev();
        let Some(table) = around.find(|table| is_work_table(&table.name, scan)) else {
            return refuse(format!(
                "it refers to outer columns in the scan of {}",
                scan.table_name
            ));
        };
        let mut all = table.scan.schema().columns();
        let domain = self.domain_of(&table.scan);
        all.truncate(all.len() - domain.len());
        if let Some(projection) = &scan.projection {
            all = projection.iter().map(|i| all[*i].clone()).collect();
        }
        let rows = table.scan.clone();
        self.with_names(rows, columns(all), domain, &scan.projected_schema)
    }

    /// Whether a plan has rows of a work table with the domain.
    pub(super) fn reads_work_table(&self, plan: &LogicalPlan) -> Result<bool> {
        match self.work_tables.is_empty() {
            true => Ok(false),
            false => plan.exists(|node| {
                let mut tables = self.work_tables.iter();
                Ok(match node {
                    LogicalPlan::TableScan(scan) => tables.any(|t| is_work_table(&t.name, scan)),
                    _ => false,
                })
            }),
        }
    }
}

/// Whether a plan has no rows where the work table with this name has none.
fn is_empty_without(name: &str, plan: &LogicalPlan) -> Result<bool> {
    let is_empty = |plan: &LogicalPlan| is_empty_without(name, plan);
    Ok(match plan {
        LogicalPlan::TableScan(scan) => is_work_table(name, scan),
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Distinct(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::Repartition(_)
        | LogicalPlan::Unnest(_) => plan
            .inputs()
            .into_iter()
            .all(|input| is_empty(input).unwrap_or(false)),
        LogicalPlan::Aggregate(aggregate) => {
            !aggregate.group_expr.is_empty()
                && !has_grouping_sets(aggregate)
                && is_empty(&aggregate.input)?
        }
        LogicalPlan::Join(join) => {
            let (left, right) = (is_empty(&join.left)?, is_empty(&join.right)?);
            match join.join_type {
                // The right side of a lateral join has the domain of the left one.
                JoinType::Inner | JoinType::LeftSemi => {
                    left || right && lateral(&join.right).is_none()
                }
                JoinType::RightSemi => left || right,
                JoinType::Left | JoinType::LeftAnti | JoinType::LeftMark => left,
                JoinType::Right | JoinType::RightAnti | JoinType::RightMark => right,
                JoinType::Full => false,
            }
        }
        _ => false,
    })
}
