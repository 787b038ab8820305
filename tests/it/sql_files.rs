//! Runs the `.slt` files of `sql-tests` and its folders, each in a session of its own.
//!
//! `RMQ_SLT=name` runs only the files whose path contains that; `RMQ_SLT_OVERRIDE=1` writes the results into the files.
//! `RMQ_TEST_ENGINE=cuda` sets that engine in each session, and the label `cuda` in the files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::{DataFusionError, Result};
use datafusion::prelude::SessionContext;
use sqllogictest::{AsyncDB, ColumnType, DBOutput, Runner, TestErrorKind, strict_column_validator};

use crate::fake::Fake;
use crate::support::{engine, plan, session, set, skipped};

/// One letter per column, as in DataFusion's files.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Letter {
    Boolean,
    Date,
    Integer,
    Timestamp,
    Real,
    Text,
    Other,
}

impl ColumnType for Letter {
    fn from_char(value: char) -> Option<Self> {
        Some(match value {
            'B' => Self::Boolean,
            'D' => Self::Date,
            'I' => Self::Integer,
            'P' => Self::Timestamp,
            'R' => Self::Real,
            'T' => Self::Text,
            '?' => Self::Other,
            _ => return None,
        })
    }

    fn to_char(&self) -> char {
        match self {
            Self::Boolean => 'B',
            Self::Date => 'D',
            Self::Integer => 'I',
            Self::Timestamp => 'P',
            Self::Real => 'R',
            Self::Text => 'T',
            Self::Other => '?',
        }
    }
}

impl From<&DataType> for Letter {
    fn from(data_type: &DataType) -> Self {
        match data_type {
            DataType::Boolean => Self::Boolean,
            DataType::Date32 | DataType::Date64 => Self::Date,
            t if t.is_integer() => Self::Integer,
            DataType::Timestamp(..) => Self::Timestamp,
            t if t.is_floating() || t.is_decimal() => Self::Real,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Text,
            _ => Self::Other,
        }
    }
}

/// The label of sessions with `rmq.join_mode = 'collected'`.
const COLLECTED: &str = "collected";

struct Session(SessionContext);

#[async_trait]
impl AsyncDB for Session {
    type Error = DataFusionError;
    type ColumnType = Letter;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<Letter>> {
        let frame = plan(&self.0, sql).await?;
        let schema: SchemaRef = frame.schema().inner().clone();
        let batches = frame.collect().await?;
        if schema.fields().is_empty() {
            return Ok(DBOutput::StatementComplete(0));
        }
        let types = schema
            .fields()
            .iter()
            .map(|f| Letter::from(f.data_type()))
            .collect();
        let rows = batches
            .iter()
            .map(rows)
            .collect::<Result<Vec<_>>>()?
            .concat();
        Ok(DBOutput::Rows { types, rows })
    }

    fn engine_name(&self) -> &'static str {
        "datafusion-rmq"
    }

    async fn sleep(duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    async fn shutdown(&mut self) {}
}

/// A batch as text: `NULL` for NULL, `(empty)` for an empty string.
fn rows(batch: &RecordBatch) -> Result<Vec<Vec<String>>> {
    let options = FormatOptions::default().with_null("NULL");
    let columns = batch.columns().iter();
    let columns: Vec<_> = columns
        .map(|c| ArrayFormatter::try_new(c, &options))
        .collect::<Result<_, _>>()?;
    let cell = |column: &ArrayFormatter<'_>, row| match column.value(row).to_string() {
        text if text.is_empty() => "(empty)".to_string(),
        text => text,
    };
    Ok((0..batch.num_rows())
        .map(|row| columns.iter().map(|c| cell(c, row)).collect())
        .collect())
}

fn files() -> Vec<PathBuf> {
    // A binary that was copied to another machine runs in the repository's root.
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = if here.exists() { here } else { Path::new(".") };
    let wanted = std::env::var("RMQ_SLT").unwrap_or_default();
    let mut files = vec![];
    let mut folders = vec![root.join("sql-tests")];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder)
            .unwrap_or_else(|e| panic!("{} is part of the repository: {e}", folder.display()));
        for entry in entries {
            let path = entry.expect("sql-tests is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "slt")
                && path.to_string_lossy().contains(&wanted)
            {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn runner(
    session: fn() -> SessionContext,
    labels: &[&str],
) -> Runner<Session, impl sqllogictest::MakeConnection<Conn = Session>> {
    let mut runner = Runner::new(move || async move { Ok(Session(session())) });
    runner.with_column_validator(strict_column_validator);
    for label in labels {
        runner.add_label(label);
    }
    runner
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_files_pass() {
    if !skipped() {
        pass(session, &[&engine_label()]).await;
    }
}

/// The label of the engine that sessions use.
fn engine_label() -> String {
    let engine = engine().unwrap_or_default();
    if engine == "threads" {
        "cuda".into()
    } else {
        engine
    }
}

/// The same files with devices, which are threads here.
#[tokio::test(flavor = "multi_thread")]
async fn sql_files_pass_on_devices() {
    let on_devices = || Fake::real().session(&[("rmq.engine", "cuda")]);
    pass(on_devices, &["cuda"]).await;
}

/// The same files with build sides in one partition. Plans are made, and run where EXPLAIN ANALYZE does, but differ.
#[tokio::test(flavor = "multi_thread")]
async fn sql_files_pass_with_collected_build_sides() {
    let collected = || {
        let session = session();
        set(&session, "rmq.join_mode", "collected");
        session
    };
    let writes_results = std::env::var_os("RMQ_SLT_OVERRIDE").is_some();
    if !skipped() && !writes_results {
        pass(collected, &[&engine_label(), COLLECTED]).await;
    }
}

async fn pass(session: fn() -> SessionContext, labels: &[&str]) {
    let files = files();
    assert!(!files.is_empty(), "no .slt file matches");
    let is_other_plan = |error: &TestErrorKind| match error {
        TestErrorKind::QueryResultMismatch { sql, .. } => {
            labels.contains(&COLLECTED) && sql.to_ascii_uppercase().starts_with("EXPLAIN")
        }
        _ => false,
    };
    let mut failed = vec![];
    let mut records = 0;
    for file in &files {
        if std::env::var_os("RMQ_SLT_OVERRIDE").is_some() {
            let done = runner(session, labels)
                .update_test_file(
                    file,
                    " ",
                    sqllogictest::default_validator,
                    sqllogictest::default_normalizer,
                    strict_column_validator,
                )
                .await;
            done.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            continue;
        }
        let parsed = sqllogictest::parse_file::<Letter>(file)
            .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let mut runner = runner(session, labels);
        for record in parsed {
            use sqllogictest::Record::{Query, Statement};
            records += usize::from(matches!(record, Query { .. } | Statement { .. }));
            // Go on, to report all failures.
            if let Err(error) = runner.run_async(record).await
                && !is_other_plan(&error.kind())
            {
                failed.push(error.to_string());
            }
        }
    }
    println!("{records} records in {} files", files.len());
    assert!(
        failed.is_empty(),
        "{} records failed:\n{}",
        failed.len(),
        failed.join("\n\n")
    );
}
