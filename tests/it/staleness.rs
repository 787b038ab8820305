//! A cached index is never used for data that have changed.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use datafusion::arrow::array::{ArrayRef, Int64Array};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use datafusion_rmq::physical_plan::RangeLookupExec;

use crate::support::{bigint, cpu_session, error, register, run, session};

pub fn numbers(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

/// Returns the number of cached indexes and the sum of their hits.
async fn hits(ctx: &SessionContext) -> (i64, i64) {
    let count = bigint(ctx, "SELECT count(*) FROM rmq_indexes()").await;
    let hits = bigint(
        ctx,
        "SELECT CAST(coalesce(sum(hits), 0) AS BIGINT) FROM rmq_indexes()",
    )
    .await;
    (count.expect("a count"), hits.expect("a sum"))
}

const ALL: &str = "SELECT range_min('t.v', 0, 1000000)";

#[tokio::test]
async fn a_table_in_memory_is_indexed_once_until_it_changes() {
    let ctx = session();
    register(&ctx, "t", &[("v", numbers([5, 3, 8]))], &[2]);
    assert_eq!(bigint(&ctx, ALL).await, Some(3));
    assert_eq!(hits(&ctx).await, (1, 0));
    assert_eq!(bigint(&ctx, ALL).await, Some(3));
    assert_eq!(hits(&ctx).await, (1, 1));

    run(&ctx, "INSERT INTO t VALUES (1)").await.unwrap();
    assert_eq!(bigint(&ctx, ALL).await, Some(1));
    assert_eq!(hits(&ctx).await, (1, 0), "a changed table has a new index");
    run(&ctx, "DELETE FROM t WHERE v = 1").await.unwrap();
    assert_eq!(bigint(&ctx, ALL).await, Some(3));
    run(&ctx, "UPDATE t SET v = 0 WHERE v = 8").await.unwrap();
    assert_eq!(bigint(&ctx, ALL).await, Some(0));
    assert_eq!(
        bigint(&ctx, "SELECT range_argmin('t.v', 0, 9)").await,
        Some(2)
    );
}

#[tokio::test]
async fn a_dropped_table_leaves_no_index_and_no_answer() {
    let ctx = session();
    register(&ctx, "t", &[("v", numbers([5, 3, 8]))], &[]);
    assert_eq!(bigint(&ctx, ALL).await, Some(3));
    run(&ctx, "DROP TABLE t").await.unwrap();
    assert_eq!(hits(&ctx).await, (0, 0));
    assert!(
        error(&ctx, ALL)
            .await
            .contains("table 'datafusion.public.t' not found")
    );

    register(&ctx, "t", &[("v", numbers([7]))], &[]);
    assert_eq!(bigint(&ctx, ALL).await, Some(7));
    // A different type under the same name.
    run(
        &ctx,
        "CREATE OR REPLACE TABLE t AS SELECT 'b' AS v UNION ALL SELECT 'a'",
    )
    .await
    .unwrap();
    let text = run(&ctx, ALL).await.unwrap();
    let shown = datafusion::arrow::util::display::array_value_to_string(text.column(0), 0).unwrap();
    assert_eq!(shown, "a");
    // An empty table of one type, then an empty one of another.
    for sql_type in ["BIGINT", "VARCHAR"] {
        run(&ctx, &format!("CREATE OR REPLACE TABLE t (v {sql_type})"))
            .await
            .unwrap();
        let nothing = run(&ctx, ALL).await.unwrap();
        assert_eq!(nothing.column(0).null_count(), 1, "{sql_type}");
    }
}

#[tokio::test]
async fn a_repeated_plan_reads_the_same_version_as_its_other_scans() {
    let ctx = session();
    register(&ctx, "t", &[("v", numbers([5, 3, 8]))], &[]);
    let sql = "SELECT range_min('t.v', 0, 9) - (SELECT min(v) FROM t) AS difference";
    let plan = ctx
        .sql(sql)
        .await
        .unwrap()
        .create_physical_plan()
        .await
        .unwrap();
    for value in [2, 1] {
        run(&ctx, &format!("INSERT INTO t VALUES ({value})"))
            .await
            .unwrap();
        let plan = Arc::clone(&plan).reset_state().unwrap();
        let batches = collect(plan, ctx.task_ctx()).await.unwrap();
        assert_eq!(batches[0].column(0).as_ref(), &Int64Array::from(vec![0]));
    }
    assert_eq!(bigint(&ctx, sql).await, Some(0));
}

#[tokio::test]
async fn a_prepared_statement_sees_the_current_table() {
    let ctx = session();
    register(&ctx, "t", &[("v", numbers([5, 3, 8]))], &[]);
    run(
        &ctx,
        "PREPARE p(BIGINT, BIGINT) AS SELECT range_min('t.v', $1, $2)",
    )
    .await
    .unwrap();
    assert_eq!(bigint(&ctx, "EXECUTE p(0, 1)").await, Some(3));
    run(&ctx, "UPDATE t SET v = 4 WHERE v = 3").await.unwrap();
    assert_eq!(bigint(&ctx, "EXECUTE p(0, 1)").await, Some(4));
}

/// A writer inserts decreasing values while readers query. A result is never larger than the value inserted before the
/// query started.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn inserts_are_visible_to_concurrent_queries() {
    let ctx = session();
    register(
        &ctx,
        "t",
        &[("v", numbers((0..50_000).map(|i| 1_000_000 + i % 977)))],
        &[10_000, 7],
    );
    let newest = Arc::new(std::sync::atomic::AtomicI64::new(1_000_000));
    let writer = {
        let (ctx, newest) = (ctx.clone(), Arc::clone(&newest));
        tokio::spawn(async move {
            for value in (0..60).rev() {
                run(&ctx, &format!("INSERT INTO t VALUES ({value})"))
                    .await
                    .unwrap();
                newest.store(value, std::sync::atomic::Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
        })
    };
    let readers = (0..3).map(|_| {
        let (ctx, newest) = (ctx.clone(), Arc::clone(&newest));
        tokio::spawn(async move {
            for _ in 0..40 {
                let before = newest.load(std::sync::atomic::Ordering::SeqCst);
                let sql = "SELECT range_min('t.v', 0, 1000000), range_argmin('t.v', 0, 1000000), \
                           -range_max('t.v', -1, 1), (SELECT count(*) FROM t)";
                let row = run(&ctx, sql).await.unwrap();
                let cell = |i: usize| {
                    use datafusion::arrow::array::AsArray;
                    row.column(i)
                        .as_primitive::<datafusion::arrow::datatypes::Int64Type>()
                        .value(0)
                };
                assert!(
                    cell(0) <= before,
                    "{} after the insert of {before}",
                    cell(0)
                );
                // Value and position belong to one version: the newest value is the last row.
                assert!(cell(0) >= 1_000_000 || cell(1) == 50_000 + 59 - cell(0));
            }
        })
    });
    for reader in readers.collect::<Vec<_>>() {
        reader.await.unwrap();
    }
    writer.await.unwrap();
    assert_eq!(bigint(&ctx, ALL).await, Some(0));
}

/// Writes one column as a Parquet file, last changed `age` ago.
pub async fn write(path: &Path, values: impl IntoIterator<Item = i64>, age: Duration) {
    let ctx = SessionContext::new();
    register(&ctx, "new", &[("v", numbers(values))], &[]);
    // Creates a new file, so that a reader of the old one keeps its open file.
    let _ = std::fs::remove_file(path);
    let sql = format!("COPY new TO '{}' STORED AS PARQUET", path.display());
    run(&ctx, &sql).await.unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
}

pub const OLD: Duration = Duration::from_secs(3600);

/// Waits until recent change times are old enough to be trusted, as they can't be set.
pub fn settle() {
    std::thread::sleep(Duration::from_millis(2100));
}

pub async fn external(ctx: &SessionContext, location: &Path) {
    let sql = format!(
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}'",
        location.display()
    );
    run(ctx, &sql).await.unwrap();
}

#[tokio::test]
async fn an_operator_tells_how_many_rows_were_read_for_its_indexes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.parquet");
    write(&file, [5, 3, 8], OLD).await;
    let ctx = session();
    external(&ctx, &file).await;
    let sql =
        "SELECT range_min('t.v', 0, i), range_max('t.v', 0, i) FROM (VALUES (0), (1)) AS r(i)";
    let plan = ctx.sql(sql).await.unwrap();
    let plan = plan.create_physical_plan().await.unwrap();
    let rows_read = || {
        let mut rows = vec![];
        plan.apply(|node| {
            let lookup = node.downcast_ref::<RangeLookupExec>();
            rows.extend(lookup.map(RangeLookupExec::index_rows_read));
            Ok(TreeNodeRecursion::Continue)
        })
        .unwrap();
        rows
    };
    assert_eq!(rows_read(), [0]);
    collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap();
    assert_eq!(rows_read(), [3]);
}

#[tokio::test]
async fn files_are_indexed_once_until_they_change() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.parquet");
    write(&file, [5, 3, 8], OLD).await;
    let ctx = session();
    external(&ctx, &file).await;
    assert_eq!(bigint(&ctx, ALL).await, Some(3));
    #[cfg(unix)]
    assert_eq!(hits(&ctx).await, (0, 0), "its change time is too recent");
    settle();
    assert_eq!(bigint(&ctx, ALL).await, Some(3));
    assert_eq!(bigint(&ctx, ALL).await, Some(3));
    assert_eq!(
        hits(&ctx).await.0,
        1,
        "the index of an older file is cached"
    );
    assert!(hits(&ctx).await.1 >= 1);
    // The same size, a different time.
    write(&file, [5, 2, 8], OLD / 2).await;
    assert_eq!(bigint(&ctx, ALL).await, Some(2));
    // A different size.
    write(&file, [5, 2, 8, 1], OLD / 2).await;
    assert_eq!(bigint(&ctx, ALL).await, Some(1));
}

/// New contents of the same size with the old modification time, as by `cp -p`, archives and `touch -d`.
#[cfg(unix)]
#[tokio::test]
async fn a_restored_modification_time_hides_no_change() {
    let folder = tempfile::tempdir().unwrap();
    let (file, other) = (
        folder.path().join("a.parquet"),
        folder.path().join("b.parquet"),
    );
    write(&file, [5, 3, 8], OLD).await;
    write(&other, [5, 2, 8], OLD).await;
    settle();
    let ctx = session();
    external(&ctx, &file).await;
    assert_eq!(bigint(&ctx, ALL).await, Some(3));
    assert_eq!(bigint(&ctx, ALL).await, Some(3));
    assert_eq!(hits(&ctx).await, (1, 1));

    let before = std::fs::metadata(&file).unwrap();
    let contents = std::fs::read(&other).unwrap();
    assert_eq!(contents.len() as u64, before.len());
    // Overwrites the file in place, which keeps the inode.
    let mut writer = std::fs::File::options().write(true).open(&file).unwrap();
    std::io::Write::write_all(&mut writer, &contents).unwrap();
    writer.set_modified(before.modified().unwrap()).unwrap();
    drop(writer);
    assert_eq!(bigint(&ctx, ALL).await, Some(2));
    settle();
    assert_eq!(bigint(&ctx, ALL).await, Some(2));
    assert_eq!(bigint(&ctx, ALL).await, Some(2));
    assert_eq!(hits(&ctx).await, (1, 1));

    // Replaces it by another file of the same time and size.
    write(&other, [5, 1, 8], OLD).await;
    let writer = std::fs::File::options().write(true).open(&other).unwrap();
    writer.set_modified(before.modified().unwrap()).unwrap();
    std::fs::rename(&other, &file).unwrap();
    assert_eq!(bigint(&ctx, ALL).await, Some(1));
}

#[tokio::test]
async fn a_recently_changed_file_is_not_cached() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.parquet");
    let ctx = session();
    write(&file, [100, 3], Duration::ZERO).await;
    external(&ctx, &file).await;
    for value in (0..20).rev() {
        write(&file, [100, value], Duration::ZERO).await;
        assert_eq!(bigint(&ctx, ALL).await, Some(value));
        assert_eq!(hits(&ctx).await, (0, 0));
    }
    // Neither is a file with a modification time in the future, from another clock.
    let later = std::fs::File::options().write(true).open(&file).unwrap();
    later.set_modified(SystemTime::now() + OLD).unwrap();
    assert_eq!(bigint(&ctx, ALL).await, Some(0));
    assert_eq!(hits(&ctx).await, (0, 0));
}

#[tokio::test]
async fn added_and_removed_files_of_a_directory_are_seen() {
    let folder = tempfile::tempdir().unwrap();
    for (name, value) in [("b", 20), ("a", 10), ("d", 40)] {
        write(
            &folder.path().join(format!("{name}.parquet")),
            [value, value + 1],
            OLD,
        )
        .await;
    }
    settle();
    let ctx = session();
    external(&ctx, folder.path()).await;
    // Positions follow the paths: a, b, d.
    for (position, value) in [10, 11, 20, 21, 40, 41].into_iter().enumerate() {
        let sql = format!("SELECT range_min('t.v', {position}, {position})");
        assert_eq!(bigint(&ctx, &sql).await, Some(value));
    }
    write(&folder.path().join("c.parquet"), [5], OLD).await;
    assert_eq!(
        bigint(&ctx, "SELECT range_argmin('t.v', 0, 99)").await,
        Some(4)
    );
    std::fs::remove_file(folder.path().join("a.parquet")).unwrap();
    settle();
    assert_eq!(
        bigint(&ctx, "SELECT range_argmin('t.v', 0, 99)").await,
        Some(2)
    );
    assert_eq!(
        bigint(&ctx, "SELECT range_argmin('t.v', 0, 99)").await,
        Some(2)
    );
    assert_eq!(hits(&ctx).await, (1, 1));
}

#[tokio::test]
async fn a_file_removed_or_truncated_between_planning_and_execution_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.parquet");
    write(&file, 0..1000, OLD).await;
    let ctx = session();
    external(&ctx, &file).await;
    let plan = || async {
        ctx.sql(ALL)
            .await
            .unwrap()
            .create_physical_plan()
            .await
            .unwrap()
    };

    let planned = plan().await;
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let message = collect(planned, ctx.task_ctx())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("a.parquet of table 't' changed"),
        "{message}"
    );

    std::fs::write(&file, &whole).unwrap();
    let planned = plan().await;
    std::fs::remove_file(&file).unwrap();
    let message = collect(planned, ctx.task_ctx())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("a.parquet of table 't' can't be read any more"),
        "{message}"
    );
}

#[tokio::test]
async fn one_query_sees_one_version_of_a_table() {
    let ctx = session();
    register(
        &ctx,
        "t",
        &[("v", numbers([5, 3, 8])), ("w", numbers([1, 2, 3]))],
        &[],
    );
    // Three calls, two columns, minimum and maximum, in different plan nodes.
    let sql = "SELECT range_min('t.v', 0, 2) + range_max('t.w', 0, 2) FROM (VALUES (1)) \
               WHERE range_argmin('t.v', 0, 2) = 1";
    assert_eq!(bigint(&ctx, sql).await, Some(6));
    assert_eq!(hits(&ctx).await.0, 2);
}

#[tokio::test]
async fn index_caching_can_be_disabled() {
    let ctx = session();
    register(&ctx, "t", &[("v", numbers([5, 3, 8]))], &[]);
    run(&ctx, "SET rmq.keep_indexes = false").await.unwrap();
    assert_eq!(bigint(&ctx, ALL).await, Some(3));
    assert_eq!(hits(&ctx).await, (0, 0));
}

#[tokio::test]
async fn memory_of_a_replaced_table_is_released() {
    let ctx = cpu_session();
    let pool = Arc::clone(&ctx.runtime_env().memory_pool);
    assert_eq!(pool.reserved(), 0);
    for round in 0..5 {
        drop(ctx.deregister_table("t").unwrap());
        let values = numbers((0..100_000).map(|i| i + round));
        register(&ctx, "t", &[("v", values)], &[40_000]);
        assert_eq!(bigint(&ctx, ALL).await, Some(round));
    }
    let one = pool.reserved();
    assert!(
        one > 100_000 * 8 && one < 2 * 100_000 * 8,
        "{one} bytes for one copy and its index"
    );
    drop(ctx.deregister_table("t").unwrap());
    assert_eq!(hits(&ctx).await, (0, 0));
    assert_eq!(pool.reserved(), 0);
}
