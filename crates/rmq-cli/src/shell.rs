//! Runs statements and prints their results, in scripts and at the prompt.

use std::borrow::Cow;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::instant::Instant;
use datafusion::common::{
    DataFusionError, Result, TableReference, exec_datafusion_err, plan_datafusion_err, plan_err,
};
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::spill::get_record_batch_memory_size;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlanProperties, execute_stream};
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::{DFParser, Statement};
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::dialect::{Dialect, dialect_from_str};
use datafusion_cli::exec;
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::{MaxRows, PrintOptions};
use datafusion_rmq::parts::Stop;
use futures::StreamExt;

use crate::functions::functions_as_sql;
use crate::progress::Watch;
use crate::results::{Expanded, Printer, Terminal};
use crate::suggestions::tables_like;
use crate::text_columns::TextColumns;

/// A session, and how its results are printed.
#[derive(Clone)]
pub struct Shell {
    pub ctx: SessionContext,
    pub print: PrintOptions,
    /// The most rows that a table shows.
    maxrows: MaxRows,
    /// What NULL is in CSV and TSV, instead of an empty field.
    pub null: Option<String>,
    pub watch: Watch,
    pub expanded: Expanded,
    /// That of the prompt.
    pub terminal: Option<Terminal>,
    /// The request to stop what runs.
    pub stop: Stop,
}

impl Shell {
    pub fn new(
        ctx: SessionContext,
        print: PrintOptions,
        null: Option<String>,
        watch: Watch,
    ) -> Self {
        let maxrows = print.maxrows;
        let mut shell = Self {
            ctx,
            print,
            maxrows,
            null,
            watch,
            expanded: Expanded::Off,
            terminal: None,
            stop: Stop::default(),
        };
        shell.limit_rows();
        shell
    }

    /// The SQL dialect of the session.
    ///
    /// # Errors
    /// If there is none of its name.
    pub fn dialect(&self) -> Result<Box<dyn Dialect>> {
        let name = self.ctx.state().config_options().sql_parser.dialect;
        dialect_from_str(name)
            .ok_or_else(|| plan_datafusion_err!("there is no SQL dialect '{name}'"))
    }

    /// Changes the format of results.
    pub fn set_format(&mut self, format: PrintFormat) {
        self.print.format = format;
        self.limit_rows();
    }

    /// Changes the most rows that a table shows.
    pub fn set_maxrows(&mut self, maxrows: MaxRows) {
        self.maxrows = maxrows;
        self.limit_rows();
    }

    /// Limits rows in tables only, which print a note: rows of other formats would be dropped silently.
    fn limit_rows(&mut self) {
        self.print.maxrows = match self.print.format {
            PrintFormat::Table | PrintFormat::Automatic => self.maxrows,
            _ => MaxRows::Unlimited,
        };
    }

    /// Runs the statements of this text and prints their results.
    ///
    /// # Errors
    /// That of the first statement that fails.
    pub async fn run(&self, sql: &str) -> Result<()> {
        let dialect = self.dialect()?;
        let parse = |sql: &str| DFParser::parse_sql_with_dialect(sql, &*dialect);
        let mut text = Cow::Borrowed(sql);
        let statements = match parse(sql) {
            Ok(statements) => statements,
            Err(error) => {
                let known = datafusion_rmq::parts::with_known_joins(sql, &*dialect);
                text = Cow::Owned(known.ok_or(error)?);
                parse(&text)?
            }
        };
        for mut statement in statements {
            datafusion_rmq::follow_memory_limit(&self.ctx);
            let state = self.ctx.state();
            let config = state.config_options();
            let is_new = datafusion_rmq::parts::prepare_statement(&mut statement, config)?;
            let done = match &statement {
                // DataFusion's shell registers object stores for these.
                Statement::CreateExternalTable(_) | Statement::CopyTo(_) => {
                    let text = if is_new {
                        as_text(statement)
                    } else {
                        text.to_string()
                    };
                    exec::exec_from_commands(&self.ctx, vec![text], &self.print).await
                }
                Statement::Statement(sql)
                    if let ast::Statement::ShowFunctions { filter } = &**sql =>
                {
                    let condition = match filter {
                        Some(filter) => format!("name {filter}"),
                        None => "true".to_string(),
                    };
                    Box::pin(self.run(&functions_as_sql("*", &condition))).await
                }
                _ => self.execute(statement).await,
            };
            done.map_err(|error| self.explain_missing_table(error))?;
        }
        Ok(())
    }

    async fn execute(&self, statement: Statement) -> Result<()> {
        let begin = Instant::now();
        let is_show = matches!(
            &statement,
            Statement::Statement(sql) if matches!(**sql, ast::Statement::ShowVariable { .. })
        );
        let plan = datafusion_rmq::parts::plan_statement(&self.ctx.state(), statement).await?;
        let mut print = self.print.clone();
        let shows_all = matches!(
            plan,
            LogicalPlan::Explain(_) | LogicalPlan::DescribeTable(_) | LogicalPlan::Analyze(_)
        );
        if shows_all || is_show {
            print.maxrows = MaxRows::Unlimited;
        }
        let created = match &plan {
            LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) => Some(create.name.clone()),
            _ => None,
        };
        let frame = self.ctx.execute_logical_plan(plan).await?;
        let plan = frame.create_physical_plan().await?;
        let task = self.ctx.task_ctx();
        let format = &task.session_config().options().format;
        let text = TextColumns::new(&print, self.null.clone(), format);
        let schema = text.schema(&plan.schema());

        if plan.boundedness().is_unbounded() {
            if plan.pipeline_behavior() == EmissionType::Final {
                return plan_err!(
                    "the query has no result before its source ends, which it never does"
                );
            }
            let batches = execute_stream(plan, task.clone())?;
            let batches = batches.map(move |batch| text.convert(&batch?));
            let batches = Box::pin(RecordBatchStreamAdapter::new(schema, batches));
            self.watch.finish();
            return print.print_stream(batches, begin, format).await;
        }
        let memory = MemoryConsumer::new("rmq").register(task.memory_pool());
        let most = match print.maxrows {
            MaxRows::Unlimited => usize::MAX,
            MaxRows::Limited(rows) => rows,
        };
        let mut batches = execute_stream(plan, task.clone())?;
        let (mut kept, mut rows) = (vec![], 0_usize);
        while let Some(batch) = batches.next().await {
            self.stop.check()?;
            let batch = batch?;
            if rows <= most {
                memory.try_grow(get_record_batch_memory_size(&batch))?;
                kept.push(text.convert(&batch)?);
            }
            rows += batch.num_rows();
        }
        if let Some(table) = created {
            rows = self.rows_of(table).await?;
        }
        self.stop.check()?;
        self.watch.finish();
        let printer = Printer {
            print: &print,
            format,
            expanded: self.expanded,
            terminal: self.terminal,
            watch: &self.watch,
            stop: &self.stop,
        };
        printer.print(&schema, &kept, rows, begin)
    }

    /// The rows of a table in memory.
    async fn rows_of(&self, table: TableReference) -> Result<usize> {
        let table = self.ctx.table_provider(table).await?;
        let Some(table) = table.downcast_ref::<MemTable>() else {
            return Ok(0);
        };
        let mut rows = 0;
        for partition in &table.batches {
            let batches = partition.read().await;
            rows += batches.iter().map(RecordBatch::num_rows).sum::<usize>();
        }
        Ok(rows)
    }

    /// Says that a file is missing, instead of that there is no table of its name, and which tables have names like
    /// that of one that is missing.
    pub fn explain_missing_table(&self, error: DataFusionError) -> DataFusionError {
        let text = error.strip_backtrace();
        let missing = missing_table(&text);
        match missing.or_else(|| dropped_table(&text)) {
            Some(name)
                if missing.is_some() && is_path(name) && !std::path::Path::new(name).exists() =>
            {
                let directory = std::env::current_dir().unwrap_or_default();
                exec_datafusion_err!("no such file: '{name}' (in {})", directory.display())
            }
            Some(name) => match tables_like(&self.ctx, name) {
                tables if tables.is_empty() => error,
                tables => plan_datafusion_err!("there is no table '{name}'{tables}"),
            },
            None => error,
        }
    }
}

/// The name of the table that an error misses. Without quotes, the part of the name of a file before the dot is that of
/// a schema.
fn missing_table(error: &str) -> Option<&str> {
    let (_, name) = error.split_once("table 'datafusion.")?;
    let (name, _) = name.split_once("' not found")?;
    Some(name.strip_prefix("public.").unwrap_or(name))
}

/// The name of the table or view that DROP misses.
fn dropped_table(error: &str) -> Option<&str> {
    let kinds = ["Table '", "View '"].into_iter();
    let (_, name) = kinds.filter_map(|kind| error.split_once(kind)).next()?;
    Some(name.split_once("' doesn't exist")?.0)
}

/// Whether the name of a table looks like that of a file.
fn is_path(name: &str) -> bool {
    const ENDINGS: [&str; 19] = [
        "arrow", "avro", "bz2", "csv", "dat", "feather", "gz", "ipc", "json", "jsonl", "log",
        "ndjson", "orc", "parquet", "tsv", "txt", "xlsx", "xz", "zst",
    ];
    let ending = name
        .rsplit_once('.')
        .map(|(_, ending)| ending.to_ascii_lowercase());
    name.contains('/') || ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str()))
}

/// The text of a statement. DataFusion prints the path of COPY without quotes.
fn as_text(mut statement: Statement) -> String {
    if let Statement::CopyTo(copy) = &mut statement {
        copy.target = format!("'{}'", copy.target.replace('\'', "''"));
    }
    statement.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_told_from_a_missing_table() {
        for (table, is_file) in [
            ("public.nosuch.txt", true),
            ("nosuch.parquet", true),
            ("public.data/nosuch", true),
            ("public.Q.CSV", true),
            ("public.quotes", false),
            ("live.quotes", false),
        ] {
            let error = exec_datafusion_err!("table 'datafusion.{table}' not found");
            let error = error.context("argument 1").to_string();
            let name = missing_table(&error).unwrap();
            assert_eq!(is_path(name), is_file, "{name}");
        }
    }
}
