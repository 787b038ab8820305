//! Range joins and range functions over a Delta table. What a session keeps of it (sorted rows, indexes) grows with the
//! table: of a commit that appends, only the new files are read.
//!
//! ```sh
//! cargo run --manifest-path examples/lake/Cargo.toml
//! ```

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::ops::Range;
use std::sync::{Arc, RwLock};

use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::object_store::path::Path;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_rmq::{TableVersion, VersionedTable, scan_of_files};
use deltalake_core::{DeltaResult, DeltaTable, ensure_table_uri};
use tempfile::TempDir;

/// A Delta table in the snapshot that was loaded last.
#[derive(Debug)]
struct Lake(RwLock<Snapshot>);

/// A snapshot, which never changes.
#[derive(Debug, Clone)]
struct Snapshot {
    /// deltalake's provider of it.
    provider: Arc<dyn TableProvider>,
    /// Its files in the order in which they were added, which is that of the rows.
    files: Arc<HashMap<Path, usize>>,
    /// `None` if rows of files are deleted, or it is not known how many rows a file has.
    version: Option<TableVersion>,
}

impl Snapshot {
    async fn of(table: &DeltaTable) -> DeltaResult<Self> {
        let state = table.snapshot()?;
        let mut files: Vec<_> = state.log_data().iter().collect();
        files.sort_by_cached_key(|file| (file.modification_time(), file.path().into_owned()));
        let root = Path::from_url_path(table.table_url().path())?;
        let path =
            |relative: &str| Path::from_iter(root.parts().chain(Path::from(relative).parts()));
        let paths: Vec<Path> = files.iter().map(|file| path(&file.path())).collect();
        let version = files.iter().zip(&paths).try_fold(
            TableVersion::new(state.metadata().id()),
            |version, (file, path)| {
                let is_whole = file.deletion_vector_descriptor().is_none();
                let rows = file.num_records().filter(|_| is_whole)?;
                Some(version.with_part(path.as_ref(), rows as u64))
            },
        );
        Ok(Self {
            provider: table.table_provider().await?,
            files: Arc::new(paths.into_iter().zip(0..).collect()),
            version,
        })
    }

    /// The scan with its files in their order, always in this many partitions, which follow one another. The log tells
    /// of the latest files first.
    fn in_order(
        &self,
        scan: Arc<dyn ExecutionPlan>,
        partitions: usize,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let ordered = scan.transform_up(|operator| {
            let source = operator.downcast_ref::<DataSourceExec>();
            let Some(scan) = source.and_then(|s| s.data_source().downcast_ref::<FileScanConfig>())
            else {
                return Ok(Transformed::no(operator));
            };
            let mut files: Vec<_> = scan
                .file_groups
                .iter()
                .flat_map(FileGroup::iter)
                .cloned()
                .collect();
            files.sort_by_key(|file| self.files.get(&file.object_meta.location));
            let ends: Vec<usize> = (0..=partitions)
                .map(|i| i * files.len() / partitions)
                .collect();
            let groups = ends.windows(2).map(|ends| files[ends[0]..ends[1]].to_vec());
            let groups = groups.map(FileGroup::new).collect();
            let scan = FileScanConfigBuilder::from(scan.clone()).with_file_groups(groups);
            Ok(Transformed::yes(DataSourceExec::from_data_source(
                scan.build(),
            )))
        });
        ordered.data()
    }
}

impl Lake {
    fn snapshot(&self) -> Snapshot {
        self.0.read().expect("no writer panics").clone()
    }

    /// Loads the latest snapshot.
    async fn refresh(&self, table: &DeltaTable) -> DeltaResult<()> {
        let latest = Snapshot::of(table).await?;
        *self.0.write().expect("no writer panics") = latest;
        Ok(())
    }
}

#[async_trait]
impl TableProvider for Lake {
    fn schema(&self) -> SchemaRef {
        self.snapshot().provider.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        self.snapshot().provider.supports_filters_pushdown(filters)
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let snapshot = self.snapshot();
        let scan = snapshot
            .provider
            .scan(session, projection, filters, limit)
            .await?;
        match &snapshot.version {
            Some(_) => snapshot.in_order(scan, session.config().target_partitions()),
            None => Ok(scan),
        }
    }
}

impl VersionedTable for Lake {
    fn version(&self) -> Option<TableVersion> {
        self.snapshot().version
    }

    fn repeats_order(&self) -> bool {
        true
    }

    fn scan_of_parts(
        &self,
        scan: &Arc<dyn ExecutionPlan>,
        parts: &[&[u8]],
    ) -> Option<Arc<dyn ExecutionPlan>> {
        scan_of_files(scan, &|path| parts.contains(&path.as_ref().as_bytes()))
    }
}

/// What is asked: the lowest bid within ten seconds before each trade, the same with the quotes of a day, whose files
/// are those of a partition, and the lowest bid of each thousand rows.
const QUESTIONS: [(&str, &str); 3] = [
    (
        "join",
        "SELECT count(*), sum(low) FROM (SELECT t.id, min(q.bid) AS low FROM trades t JOIN quotes q \
         ON q.sym = t.sym AND q.ts BETWEEN t.ts - INTERVAL '10 seconds' AND t.ts GROUP BY t.id)",
    ),
    (
        "join of a day",
        "SELECT count(*), sum(low) FROM (SELECT t.id, min(q.bid) AS low FROM trades t JOIN quotes q \
         ON q.sym = t.sym AND q.ts BETWEEN t.ts - INTERVAL '10 seconds' AND t.ts \
         WHERE q.date = DATE '2026-03-03' GROUP BY t.id)",
    ),
    (
        "positions",
        "SELECT count(low), sum(low) FROM \
         (SELECT range_min('quotes.bid', value * 1000, value * 1000 + 999) AS low FROM range(0, 20))",
    ),
];

/// The metrics that tell what was done for an answer.
const METRICS: [&str; 7] = [
    "count_files_scanned",
    "build_rows",
    "index_segments",
    "indexes_built",
    "indexes_extended",
    "index_rows_added",
    "indexes_reused",
];

/// Asks all questions, and prints the answers and what was done for them.
async fn ask(ctx: &SessionContext, when: &str) -> Result<()> {
    println!("{when}");
    for (what, sql) in QUESTIONS {
        let plan = ctx.sql(sql).await?.create_physical_plan().await?;
        let answer = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
        let value = |column: usize| array_value_to_string(answer[0].column(column), 0);
        let mut done = BTreeMap::new();
        plan.apply(|operator| {
            let metrics = operator.metrics().unwrap_or_default();
            for name in METRICS {
                let found = metrics
                    .sum_by_name(name)
                    .map_or(0, |metric| metric.as_usize());
                *done.entry(name).or_insert(0) += found;
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        done.retain(|_, number| *number > 0);
        println!("{what}: {} rows, sum {}; {done:?}", value(0)?, value(1)?);
    }
    Ok(())
}

/// Quotes of a day, one each second.
async fn quotes(ctx: &SessionContext, day: u32, seconds: Range<u32>) -> Result<Vec<RecordBatch>> {
    let sql = format!(
        "SELECT DATE '2026-03-{day:02}' AS date, arrow_cast(concat('S', value % 5), 'Utf8') AS sym, \
         arrow_cast(TIMESTAMP '2026-03-{day:02} 09:30:00' + value * INTERVAL '1 second', \
                    'Timestamp(Microsecond, Some(\"UTC\"))') AS ts, \
         CAST(1000 + {day} - value * 37 % 101 AS DOUBLE) AS bid FROM range({}, {})",
        seconds.start, seconds.end
    );
    ctx.sql(&sql).await?.collect().await
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn Error>> {
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
    datafusion_rmq::register(&ctx);
    datafusion_rmq::register_versioned::<Lake>(&ctx)?;
    let trades = "CREATE TABLE trades AS SELECT value AS id, concat('S', value % 5) AS sym, \
         arrow_cast(TIMESTAMP '2026-03-02 09:30:00' + value % 2 * INTERVAL '1 day' + value * INTERVAL '1 second', \
                    'Timestamp(Microsecond, Some(\"UTC\"))') AS ts FROM range(0, 6000)";
    ctx.sql(trades).await?.collect().await?;

    let folder = TempDir::new()?;
    let url = ensure_table_uri(folder.path().to_string_lossy())?;
    let mut table = DeltaTable::try_from_url(url).await?;
    let first = table.write(quotes(&ctx, 2, 0..10_000).await?);
    table = first.with_partition_columns(["date"]).await?;
    table = table.write(quotes(&ctx, 3, 0..5_000).await?).await?;
    let lake = Arc::new(Lake(RwLock::new(Snapshot::of(&table).await?)));
    ctx.register_table("quotes", Arc::clone(&lake) as _)?;
    ask(&ctx, "Two commits:").await?;
    ask(&ctx, "The same:").await?;

    table = table.write(quotes(&ctx, 3, 5_000..6_000).await?).await?;
    lake.refresh(&table).await?;
    ask(&ctx, "A commit that appends:").await?;
    ask(&ctx, "The same:").await?;

    let deleted = table.delete();
    let deleted = deleted.with_predicate("date = '2026-03-03' AND ts < '2026-03-03T09:40:00Z'");
    (table, _) = deleted.await?;
    lake.refresh(&table).await?;
    ask(&ctx, "A commit that writes a file anew:").await?;
    Ok(())
}
