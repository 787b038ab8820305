//! Tables of files that never change, in a store within another, as snapshots of lake tables are: of files that are
//! added, only these are read.

use std::path::Path;
use std::sync::{Arc, Mutex};

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Result, ScalarValue};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::object_store::local::LocalFileSystem;
use datafusion::object_store::prefix::PrefixStore;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use datafusion_rmq::{TableVersion, VersionedTable, register_versioned, scan_of_files};
use tempfile::TempDir;

use crate::appended;
use crate::kept::{explained, settle, write};
use crate::kept_append::{MERGED, WHOLE, answer, rows, tables, without_keeping};
use crate::range_join::{lines, metric};
use crate::support::{run, set};

/// Files of consecutive rows.
#[derive(Debug)]
struct Lake {
    schema: SchemaRef,
    files: Mutex<Vec<LakeFile>>,
    reads_parts: bool,
}

/// A file, by its path in the store.
#[derive(Debug, Clone)]
struct LakeFile {
    path: String,
    bytes: u64,
    first: usize,
    rows: usize,
}

impl Lake {
    fn files(&self) -> Vec<LakeFile> {
        self.files.lock().expect("no panic").clone()
    }
}

#[async_trait::async_trait]
impl TableProvider for Lake {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    /// The files in which `id < n` may be true.
    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let less = filters.iter().find_map(|filter| match filter {
            Expr::BinaryExpr(less) => match less.right.as_ref() {
                Expr::Literal(ScalarValue::Int64(n), _) => *n,
                _ => None,
            },
            _ => None,
        });
        let files = self.files().into_iter();
        let files = files.filter(|file| less.is_none_or(|n| (file.first as i64) < n));
        let files: Vec<_> = files
            .map(|file| PartitionedFile::new(file.path, file.bytes))
            .collect();
        let partitions = session.config().target_partitions();
        let ends: Vec<usize> = (0..=partitions)
            .map(|i| i * files.len() / partitions)
            .collect();
        let groups = ends.windows(2).map(|ends| files[ends[0]..ends[1]].to_vec());
        let groups = groups.map(FileGroup::new).collect();
        let source = Arc::new(ParquetSource::new(self.schema()));
        let scan = FileScanConfigBuilder::new(ObjectStoreUrl::parse("lake://table")?, source)
            .with_file_groups(groups)
            .with_projection_indices(projection.cloned())?;
        Ok(DataSourceExec::from_data_source(scan.build()))
    }
}

impl VersionedTable for Lake {
    fn version(&self) -> Option<TableVersion> {
        let files = self.files().into_iter();
        let version = files.fold(TableVersion::new("lake"), |version, file| {
            version.with_part(file.path, file.rows as u64)
        });
        Some(version)
    }

    fn repeats_order(&self) -> bool {
        true
    }

    fn scan_of_parts(
        &self,
        scan: &Arc<dyn ExecutionPlan>,
        parts: &[&[u8]],
    ) -> Option<Arc<dyn ExecutionPlan>> {
        let scan = scan_of_files(scan, &|path| parts.contains(&path.as_ref().as_bytes()));
        scan.filter(|_| self.reads_parts)
    }
}

/// A store whose files are in a folder of another store.
fn register_store(ctx: &SessionContext, folder: &Path) {
    let prefix = datafusion::object_store::path::Path::from_absolute_path(folder);
    let store = PrefixStore::new(LocalFileSystem::new(), prefix.expect("a path"));
    let url = ObjectStoreUrl::parse("lake://table").expect("a URL");
    ctx.register_object_store(url.as_ref(), Arc::new(store));
}

/// A session with a table `p` of files, and one that keeps nothing.
struct Sessions {
    folder: TempDir,
    ctx: SessionContext,
    plain: SessionContext,
    lake: Arc<Lake>,
}

impl Sessions {
    async fn new(partitions: usize, reads_parts: bool) -> Self {
        let ctx = tables(1, partitions).await;
        let plain = without_keeping(&ctx, partitions).await;
        let schema = ctx.table_provider("p").await.expect("p").schema();
        let (files, folder) = (Mutex::default(), tempfile::tempdir().expect("a folder"));
        let lake = Arc::new(Lake {
            schema,
            files,
            reads_parts,
        });
        for ctx in [&ctx, &plain] {
            register_store(ctx, folder.path());
            set(ctx, "rmq.pruning", "never");
            register_versioned::<Lake>(ctx).expect("range queries are registered");
            ctx.deregister_table("p").expect("a schema");
            ctx.register_table("p", Arc::clone(&lake) as _).expect("p");
        }
        let sessions = Self {
            folder,
            ctx,
            plain,
            lake,
        };
        sessions.append("b", 0, 4000).await;
        sessions.append("a", 4000, 1000).await;
        sessions
    }

    async fn append(&self, name: &str, first: usize, count: usize) {
        let path = format!("{name}.parquet");
        let file = self.folder.path().join(&path);
        write(&self.ctx, &file, &rows(first, count)).await;
        let bytes = file.metadata().expect("a file").len();
        let file = LakeFile {
            path,
            bytes,
            first,
            rows: count,
        };
        self.lake.files.lock().expect("no panic").push(file);
    }

    /// Moves the first two files away, or back. What is kept of them needs no file.
    fn move_first(&self, from: &str, to: &str) {
        for name in ["a", "b"] {
            let path = |end: &str| self.folder.path().join(format!("{name}.{end}"));
            std::fs::rename(path(from), path(to)).expect("a file");
        }
    }
}

/// Of a further file, queries need this file alone, and the first files for values that none has needed before.
#[tokio::test(flavor = "multi_thread")]
async fn further_files_are_read_alone() {
    let lowest = "SELECT range_min('p.v', 0, 10000), range_argmax('p.f', 3000, 10000)";
    for partitions in [1, 3] {
        let files = Sessions::new(partitions, true).await;
        let (ctx, plain) = (&files.ctx, &files.plain);
        for (_, sql) in MERGED {
            answer(ctx, sql).await;
        }
        appended::answer(ctx, lowest).await;
        files.append("c", 5000, 2100).await;
        let (expected, ..) = answer(plain, MERGED[0].1).await;
        let (expected_lowest, _) = appended::answer(plain, lowest).await;
        files.move_first("parquet", "away");
        assert_eq!(answer(ctx, MERGED[0].1).await, (expected, 2, 2100));
        let (found, work) = appended::answer(ctx, lowest).await;
        assert_eq!(
            (found, work.extended, work.added),
            (expected_lowest, 2, 4200)
        );
        files.move_first("away", "parquet");
        for (what, sql) in MERGED {
            let (expected, ..) = answer(plain, sql).await;
            assert_eq!(explained(ctx, "EXPLAIN", sql).await, ["kept"], "{what}");
            for is_again in [false, true] {
                if is_again {
                    files.move_first("parquet", "away");
                }
                let (found, segments, _) = answer(ctx, sql).await;
                assert!(found == expected, "{partitions} partitions, {what}: {sql}");
                assert_eq!(segments, 2, "{partitions} partitions, {what}: {sql}");
            }
            files.move_first("away", "parquet");
        }
        for (what, sql) in WHOLE {
            let (expected, ..) = answer(plain, sql).await;
            let (found, segments, _) = answer(ctx, sql).await;
            assert!(found == expected && segments == 0, "{what}: {sql}");
        }
    }
}

/// A scan whose filter leaves no row of the further files reads none of them.
#[tokio::test(flavor = "multi_thread")]
async fn further_files_that_are_pruned_are_not_read() {
    let sql = "SELECT q.id, count(*), sum(p.v) FROM q JOIN (SELECT * FROM p WHERE id < 4500) p \
               ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id";
    for partitions in [1, 3] {
        let files = Sessions::new(partitions, true).await;
        let (expected, ..) = answer(&files.plain, sql).await;
        assert_eq!(answer(&files.ctx, sql).await, (expected.clone(), 0, 4500));
        files.append("c", 5000, 2100).await;
        files.move_first("parquet", "away");
        std::fs::remove_file(files.folder.path().join("c.parquet")).expect("a file");
        for _ in 0..2 {
            assert_eq!(answer(&files.ctx, sql).await, (expected.clone(), 2, 0));
        }
    }
}

/// Few windows read what they reach of the files.
#[tokio::test(flavor = "multi_thread")]
async fn few_windows_read_what_they_reach() {
    let sql =
        "SELECT q.id, count(*), sum(p.v) FROM q JOIN p ON p.id BETWEEN q.a AND q.b GROUP BY q.id";
    for partitions in [1, 3] {
        let files = Sessions::new(partitions, true).await;
        let (ctx, plain) = (&files.ctx, &files.plain);
        for i in 0..3 {
            files.append(&format!("c{i}"), 5000 + i * 1000, 1000).await;
        }
        let (expected, ..) = answer(plain, sql).await;
        set(ctx, "rmq.pruning", "always");
        assert_eq!(explained(ctx, "EXPLAIN", sql).await, ["pruned"]);
        let plan = ctx.sql(sql).await.expect(sql);
        let plan = plan.create_physical_plan().await.expect(sql);
        let found = collect(Arc::clone(&plan), ctx.task_ctx()).await;
        assert_eq!(lines(&found.expect(sql)), expected);
        assert_eq!(metric(&plan, "rows_scanned"), 4000);
    }
}

/// Without scans of some files, and where a file has another's place, all are read.
#[tokio::test(flavor = "multi_thread")]
async fn other_versions_are_read_as_a_whole() {
    let sql = MERGED[0].1;
    for (reads_parts, is_replaced) in [(false, false), (true, true)] {
        let files = Sessions::new(1, reads_parts).await;
        answer(&files.ctx, sql).await;
        files.append("c", 5000, 2100).await;
        if is_replaced {
            files.lake.files.lock().expect("no panic").remove(0);
        }
        let all = if is_replaced { 3100 } else { 7100 };
        let (expected, ..) = answer(&files.plain, sql).await;
        assert_eq!(explained(&files.ctx, "EXPLAIN", sql).await, ["built"]);
        assert_eq!(answer(&files.ctx, sql).await, (expected, 0, all));
    }
}

/// A table of files without a version, whose store answers with other paths than those that it lists.
#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_store_within_another_are_kept() {
    let (folder, sql) = (tempfile::tempdir().expect("a folder"), MERGED[0].1);
    let ctx = tables(1, 1).await;
    let plain = without_keeping(&ctx, 1).await;
    let file = |name: &str| folder.path().join(name);
    write(&ctx, &file("a.parquet"), &rows(0, 4000)).await;
    for ctx in [&ctx, &plain] {
        register_store(ctx, folder.path());
        for sql in [
            "SET datafusion.runtime.list_files_cache_limit = '0K'",
            "DROP TABLE p",
            "CREATE EXTERNAL TABLE p STORED AS PARQUET LOCATION 'lake://table/'",
        ] {
            run(ctx, sql).await.expect(sql);
        }
    }
    for (name, first, segments, built) in
        [("b.parquet", 4000, 0, 5000), ("c.parquet", 5000, 2, 1000)]
    {
        write(&ctx, &file(name), &rows(first, 1000)).await;
        settle().await;
        let (expected, ..) = answer(&plain, sql).await;
        assert_eq!(answer(&ctx, sql).await, (expected.clone(), segments, built));
        assert_eq!(explained(&ctx, "EXPLAIN", sql).await, ["kept"]);
        assert_eq!(answer(&ctx, sql).await, (expected, segments, 0));
    }
}
