//! `CREATE INDEX`, which DataFusion's SQL planner knows and its physical planner does not.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchema, Result, internal_err, plan_err};
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{
    CreateIndex as CreateIndexStatement, DdlStatement, Expr, Extension, LogicalPlan,
    LogicalPlanBuilder, SortExpr, UserDefinedLogicalNode, lit,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

use crate::exec::create_index::{CreateIndexExec, expect_rows};
use crate::planner::index_schema::SchemaOfIndexes;
use crate::planner::kept_scans::kept;
use crate::planner::registration::Registration;
use datafusion_rmq_logical::common::column_ref::{ColumnRef, Names};
use datafusion_rmq_logical::common::options::RmqOptions;
use datafusion_rmq_logical::logical_plan::create_index::CreateIndex;
use datafusion_rmq_logical::logical_plan::named_index::NamedIndex;
use datafusion_rmq_logical::logical_plan::range_lookup::{
    RangeCall, RangeLookup, Source, TableColumn,
};
use rmq_arrow::common::ordered_type::check_ordered;
use rmq_arrow::common::range_function::{RangeFunction, RangeResult};
use rmq_engine::Extreme;

/// How the statement is called in errors.
const STATEMENT: &str = "CREATE INDEX";

/// Replaces `CREATE INDEX`, also below EXPLAIN, by a node that this crate plans. Another plan is borrowed.
///
/// # Errors
/// A planning error for what an index can't have: another method, an order, UNIQUE, expressions, an unknown table or
/// column, or a type without an order.
pub(crate) async fn with_create_index<'a>(
    plan: &'a LogicalPlan,
    registration: &Registration,
    session: &dyn Session,
) -> Result<Cow<'a, LogicalPlan>> {
    Ok(match plan {
        LogicalPlan::Ddl(DdlStatement::CreateIndex(statement)) => {
            Cow::Owned(node(statement, registration, session).await?)
        }
        LogicalPlan::Explain(explain) => {
            let LogicalPlan::Ddl(DdlStatement::CreateIndex(statement)) = explain.plan.as_ref()
            else {
                return Ok(Cow::Borrowed(plan));
            };
            let mut explain = explain.clone();
            explain.plan = Arc::new(node(statement, registration, session).await?);
            Cow::Owned(LogicalPlan::Explain(explain))
        }
        LogicalPlan::Analyze(analyze) => {
            let LogicalPlan::Ddl(DdlStatement::CreateIndex(statement)) = analyze.input.as_ref()
            else {
                return Ok(Cow::Borrowed(plan));
            };
            let mut analyze = analyze.clone();
            analyze.input = Arc::new(node(statement, registration, session).await?);
            Cow::Owned(LogicalPlan::Analyze(analyze))
        }
        _ => Cow::Borrowed(plan),
    })
}

/// Notes for each index that a change of its table has left without rows which rows it has now, if the plan reads the
/// table: the query that sorts them first keeps them under the name of the index. Without a note they have no name.
pub(crate) async fn expect_named(
    plan: &LogicalPlan,
    registration: &Registration,
    session: &dyn Session,
) {
    let unbuilt = registration.indexes.unbuilt();
    if unbuilt.is_empty() {
        return;
    }
    let names = registration.names.with_config(session.config_options());
    let mut read = vec![];
    let visited = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            read.push(names.resolve(scan.table_name.clone()));
        }
        Ok(TreeNodeRecursion::Continue)
    });
    let of_read = |index: &&NamedIndex| visited.is_ok() && read.contains(&index.table);
    for index in unbuilt.iter().filter(of_read) {
        // The table of this name may be another one now, or none.
        if let Err(error) = expect(index, &names, registration, session).await {
            log::debug!("the index {} is not built: {error}", index.name);
        }
    }
}

async fn expect(
    index: &NamedIndex,
    names: &Names,
    registration: &Registration,
    session: &dyn Session,
) -> Result<()> {
    let provider = names.find_table(STATEMENT, &index.table).await?;
    let scan = session.optimize(&scan(index, &provider)?)?;
    let scan = kept(scan, &registration.indexes)?;
    let planner = DefaultPhysicalPlanner::default();
    let plan = planner.create_physical_plan(&scan, session).await?;
    expect_rows(&index.name, &plan, &session.task_ctx()).await;
    Ok(())
}

/// The node of a statement.
async fn node(
    statement: &CreateIndexStatement,
    registration: &Registration,
    session: &dyn Session,
) -> Result<LogicalPlan> {
    let method = statement.using.as_deref().unwrap_or("rmq");
    if !method.eq_ignore_ascii_case("rmq") {
        return plan_err!("{STATEMENT}: there is no method {method}; write USING rmq");
    }
    if statement.unique {
        return plan_err!("{STATEMENT}: an index can't be UNIQUE, as tables don't enforce it");
    }
    let columns = statement.columns.iter().map(column_name);
    let columns: Vec<String> = columns.collect::<Result<_>>()?;
    let names = registration.names.with_config(session.config_options());
    let table = names.resolve(statement.table.clone());
    let index = NamedIndex {
        name: match &statement.name {
            Some(name) => unqualified(name)?.to_string(),
            None => format!("{}_{}_idx", table.table, columns.join("_")),
        },
        table,
        columns,
    };
    let provider = names.find_table(STATEMENT, &index.table).await?;
    let input = match index.columns.as_slice() {
        [] => return plan_err!("{STATEMENT}: an index needs a column"),
        [column] => lookup(&index, column, provider.as_ref())?,
        _ => session.optimize(&scan(&index, &provider)?)?,
    };
    Ok(LogicalPlan::Extension(Extension {
        node: Arc::new(CreateIndex {
            index,
            if_not_exists: statement.if_not_exists,
            input,
            schema: Arc::new(DFSchema::empty()),
        }),
    }))
}

/// The name of the column.
fn column_name(column: &SortExpr) -> Result<String> {
    let Expr::Column(name) = &column.expr else {
        return plan_err!(
            "{STATEMENT}: {} is no column; index a column, or a view that computes one",
            column.expr
        );
    };
    if !column.asc || column.nulls_first {
        return plan_err!(
            "{STATEMENT}: the order of {} can't be chosen, as ranges have none: leave DESC and NULLS FIRST out",
            name.name
        );
    }
    Ok(name.name.clone())
}

/// The name without quotes. Indexes have a schema of their own.
fn unqualified(name: &str) -> Result<&str> {
    let quoted = name
        .strip_prefix('"')
        .and_then(|name| name.strip_suffix('"'));
    match quoted {
        Some(quoted) => Ok(quoted),
        None if name.contains('.') => plan_err!(
            "{STATEMENT}: the name {name} is qualified, but all indexes are in the schema rmq.index_schema: write the last part"
        ),
        None => Ok(name),
    }
}

/// A lookup for which the indexes of one column are built.
fn lookup(index: &NamedIndex, column: &str, provider: &dyn TableProvider) -> Result<LogicalPlan> {
    let schema = provider.schema();
    let field = schema.field_with_name(column)?;
    check_ordered(STATEMENT, column, field.data_type())?;
    let of_column = ColumnRef {
        catalog: Arc::clone(&index.table.catalog),
        schema: Arc::clone(&index.table.schema),
        table: Arc::clone(&index.table.table),
        column: column.to_string(),
    };
    let calls = [Extreme::Min, Extreme::Max].map(|extreme| {
        let function = RangeFunction::extreme(extreme, RangeResult::Value);
        RangeCall {
            function,
            source: Source::Table(TableColumn(of_column.clone())),
            left: lit(0_i64),
            right: lit(0_i64),
            threshold: None,
            output: function.range_name().to_string(),
            data_type: function.result_type(field.data_type()),
        }
    });
    let row = LogicalPlanBuilder::empty(true).build()?;
    let node = RangeLookup::try_new(row, calls.to_vec())?;
    Ok(LogicalPlan::Extension(Extension {
        node: Arc::new(node),
    }))
}

/// A scan of the columns of an index, in their order.
fn scan(index: &NamedIndex, provider: &Arc<dyn TableProvider>) -> Result<LogicalPlan> {
    let schema = provider.schema();
    let numbers = index.columns.iter().map(|name| schema.index_of(name));
    let numbers: Vec<usize> = numbers.collect::<Result<_, _>>()?;
    for (i, number) in numbers.iter().enumerate() {
        let field = schema.field(*number);
        check_ordered(STATEMENT, field.name(), field.data_type())?;
        if numbers[..i].contains(number) {
            return plan_err!("{STATEMENT}: the column {} is named twice", field.name());
        }
    }
    let source = provider_as_source(Arc::clone(provider));
    LogicalPlanBuilder::scan(index.table.clone(), source, Some(numbers))?.build()
}

/// Plans [`CreateIndex`].
#[derive(Debug)]
pub(crate) struct CreateIndexPlanner {
    pub(crate) registration: Registration,
}

#[async_trait]
impl ExtensionPlanner for CreateIndexPlanner {
    async fn plan_extension(
        &self,
        _planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _logical_inputs: &[&LogicalPlan],
        physical_inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
        _planning_ctx: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(node) = node.as_any().downcast_ref::<CreateIndex>() else {
            return Ok(None);
        };
        let [input] = physical_inputs else {
            return internal_err!("CreateIndex has one input");
        };
        let config = session.config_options();
        let names = &self.registration.names;
        let publisher = SchemaOfIndexes {
            catalogs: names.catalogs()?,
            catalog: config.catalog.default_catalog.clone(),
            schema: RmqOptions::of(config).index_schema,
            indexes: Arc::clone(&self.registration.indexes),
        };
        Ok(Some(Arc::new(CreateIndexExec::new(
            Arc::clone(input),
            (node.index.clone(), node.if_not_exists),
            Arc::clone(&self.registration.indexes),
            Arc::new(publisher),
        ))))
    }
}
