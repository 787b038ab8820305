//! Runs the `.slt` files of `sql-tests` and its folders, each in a session of its own.
//!
//! `RMQ_SLT=name` runs only the files whose path contains that; `RMQ_SLT_OVERRIDE=1` writes the results into the files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::{DataFusionError, Result};
use datafusion::prelude::{DataFrame, SessionContext};
use futures::future::BoxFuture;
use sqllogictest::{
    AsyncDB, ColumnType, DBOutput, Normalizer, Runner, TestErrorKind, strict_column_validator,
};

/// Plans a statement.
pub type Plan = for<'a> fn(&'a SessionContext, &'a str) -> BoxFuture<'a, Result<DataFrame>>;

/// Makes the session of a file.
pub type NewSession = fn() -> SessionContext;

/// The files, and how they are run.
pub struct SqlFiles<'a> {
    /// The root of the repository. A binary that was copied to another machine runs there.
    pub root: &'a str,
    /// The files that are run unless `RMQ_SLT` says which, as the ends of their paths; all if there are none.
    pub files: &'a [&'a str],
    /// Makes the session of each file.
    pub session: NewSession,
    /// Plans each statement.
    pub plan: Plan,
    /// What `onlyif` and `skipif` in the files refer to.
    pub labels: &'a [&'a str],
    /// Whether another result of a statement, or an error, is not a failure.
    pub may_differ: fn(&str) -> bool,
    /// Whether rows may come in any order.
    pub in_any_order: bool,
}

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

struct Session {
    ctx: SessionContext,
    plan: Plan,
}

#[async_trait]
impl AsyncDB for Session {
    type Error = DataFusionError;
    type ColumnType = Letter;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<Letter>> {
        let frame = (self.plan)(&self.ctx, sql).await?;
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

/// A batch as text: `NULL` for NULL, `(empty)` for an empty string. Build sides are those of a session that has kept
/// none: whether one was kept may depend on which batch came first.
fn rows(batch: &RecordBatch) -> Result<Vec<Vec<String>>> {
    let options = FormatOptions::default().with_null("NULL");
    let columns = batch.columns().iter();
    let columns: Vec<_> = columns
        .map(|c| ArrayFormatter::try_new(c, &options))
        .collect::<Result<_, _>>()?;
    let cell = |column: &ArrayFormatter<'_>, row| match column.value(row).to_string() {
        text if text.is_empty() => "(empty)".to_string(),
        text => text.replace("index=kept", "index=built"),
    };
    Ok((0..batch.num_rows())
        .map(|row| columns.iter().map(|c| cell(c, row)).collect())
        .collect())
}

impl SqlFiles<'_> {
    /// Runs all files, and fails with all records that fail.
    ///
    /// # Panics
    /// If a record fails, and if there is no file.
    pub async fn pass(&self) {
        let files = self.files();
        assert!(!files.is_empty(), "no .slt file matches");
        let is_other = |error: &TestErrorKind| match error {
            TestErrorKind::QueryResultMismatch { sql, .. }
            | TestErrorKind::ErrorMismatch { sql, .. }
            | TestErrorKind::Fail { sql, .. } => (self.may_differ)(sql),
            _ => false,
        };
        let mut failed = vec![];
        let mut records = 0;
        for file in &files {
            if writes_results() {
                self.update(file).await;
                continue;
            }
            let parsed = sqllogictest::parse_file::<Letter>(file)
                .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            let mut runner = self.runner();
            for record in parsed {
                use sqllogictest::Record::{Query, Statement};
                records += usize::from(matches!(record, Query { .. } | Statement { .. }));
                // Go on, to report all failures.
                if let Err(error) = runner.run_async(record).await
                    && !is_other(&error.kind())
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

    async fn update(&self, file: &Path) {
        let done = self
            .runner()
            .update_test_file(
                file,
                " ",
                sqllogictest::default_validator,
                sqllogictest::default_normalizer,
                strict_column_validator,
            )
            .await;
        done.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }

    fn runner(&self) -> Runner<Session, impl sqllogictest::MakeConnection<Conn = Session>> {
        let (session, plan) = (self.session, self.plan);
        let connect = move || async move {
            let ctx = session();
            Ok(Session { ctx, plan })
        };
        let mut runner = Runner::new(connect);
        runner.with_column_validator(strict_column_validator);
        if self.in_any_order {
            runner.with_validator(same_rows);
        }
        for label in self.labels {
            runner.add_label(label);
        }
        runner
    }

    fn files(&self) -> Vec<PathBuf> {
        let here = Path::new(self.root);
        let root = if here.exists() { here } else { Path::new(".") };
        let part = std::env::var("RMQ_SLT").ok();
        let is_run = |path: &Path| match &part {
            Some(part) => path.to_string_lossy().contains(part),
            None => self.files.is_empty() || self.files.iter().any(|file| path.ends_with(file)),
        };
        let mut files = vec![];
        let mut folders = vec![root.join("sql-tests")];
        while let Some(folder) = folders.pop() {
            let entries = std::fs::read_dir(&folder)
                .unwrap_or_else(|e| panic!("{} is part of the repository: {e}", folder.display()));
            for entry in entries {
                let path = entry.expect("sql-tests is readable").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| e == "slt") && is_run(&path) {
                    files.push(path);
                }
            }
        }
        files.sort();
        files
    }
}

/// Whether the rows are the expected ones, in any order.
fn same_rows(normalizer: Normalizer, actual: &[Vec<String>], expected: &[String]) -> bool {
    let mut actual: Vec<String> = actual.iter().map(|row| row.join(" ")).collect();
    let mut expected = expected.to_vec();
    for rows in [&mut actual, &mut expected] {
        for row in rows.iter_mut() {
            *row = normalizer(row);
        }
        rows.sort();
    }
    actual == expected
}

/// Whether results are written into the files.
pub fn writes_results() -> bool {
    std::env::var_os("RMQ_SLT_OVERRIDE").is_some()
}
