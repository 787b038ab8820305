//! Build sides over Parquet files that sessions keep while files are added: only these are read and sorted, and answers
//! are those of a session that keeps nothing.

use std::path::Path;

use datafusion::prelude::SessionContext;
use tempfile::TempDir;

use crate::kept::{explained, settle, write};
use crate::kept_append::{MERGED, WHOLE, answer, compare, rows, tables, without_keeping};
use crate::support::{run, set};

/// A folder of Parquet files, a session with a table `p` over it and one `q` in memory, and one that keeps nothing.
struct Files {
    folder: TempDir,
    ctx: SessionContext,
    plain: SessionContext,
}

impl Files {
    async fn new(partitions: usize) -> Self {
        let (folder, ctx) = (
            tempfile::tempdir().expect("a folder"),
            tables(1, partitions).await,
        );
        let plain = without_keeping(&ctx, partitions).await;
        let files = Self { folder, ctx, plain };
        files.write("b.parquet", 0, 4000).await;
        files.write("c.parquet", 4000, 1000).await;
        let p = format!(
            "CREATE EXTERNAL TABLE p STORED AS PARQUET LOCATION '{}'",
            files.folder.path().display()
        );
        for ctx in [&files.ctx, &files.plain] {
            for sql in [
                // DataFusion would go on with the list of files that it has cached.
                "SET datafusion.runtime.list_files_cache_limit = '0K'",
                // Files are read in parts.
                "SET datafusion.optimizer.repartition_file_min_size = 1000",
                "DROP TABLE p",
                &p,
            ] {
                run(ctx, sql).await.expect(sql);
            }
        }
        settle().await;
        files
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    async fn write(&self, name: &str, first: usize, count: usize) {
        write_rows(&self.ctx, &self.path(name), first, count).await;
    }

    /// Runs a query in both sessions. Returns the number of segments and the rows that were sorted.
    async fn compare(&self, what: &str, sql: &str) -> (usize, usize) {
        let told = explained(&self.ctx, "EXPLAIN", sql).await;
        let (expected, ..) = answer(&self.plain, sql).await;
        let (found, segments, built) = answer(&self.ctx, sql).await;
        assert!(found == expected, "{what}, {segments} segments: {sql}");
        assert!(segments == 0 || told == ["kept"], "{what}: {told:?}: {sql}");
        (segments, built)
    }
}

async fn write_rows(ctx: &SessionContext, file: &Path, first: usize, count: usize) {
    // In a file of its own first: a file appears as a whole.
    let part = file.with_extension("part");
    write(ctx, &part, &rows(first, count)).await;
    std::fs::rename(&part, file).expect("a file");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_sort_last_are_sorted_alone() {
    for partitions in [1, 3] {
        let files = Files::new(partitions).await;
        for (_, sql) in MERGED {
            files.compare("the first files", sql).await;
        }
        files.write("d.parquet", 5000, 2100).await;
        settle().await;
        let (segments, built) = files.compare("one more file", MERGED[0].1).await;
        assert_eq!((segments, built), (2, 2100), "{partitions}");
        for (what, sql) in MERGED {
            let (segments, _) = files.compare(what, sql).await;
            assert_eq!(segments, 2, "{partitions} partitions, {what}: {sql}");
            assert_eq!(files.compare(what, sql).await, (2, 0), "{what}: {sql}");
        }
        for (what, sql) in WHOLE {
            assert_eq!(files.compare(what, sql).await.0, 0, "{what}: {sql}");
        }
    }
}

/// Rows of a file that comes before others are theirs in a query for which only the values count.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_sort_between_others_change_the_order() {
    let files = Files::new(1).await;
    let (sums, first) = (MERGED[0].1, MERGED[2].1);
    for sql in [sums, first] {
        files.compare("the first files", sql).await;
    }
    files.write("bb.parquet", 9000, 700).await;
    settle().await;
    assert_eq!(files.compare("sums", sums).await, (2, 700));
    assert_eq!(files.compare("first rows", first).await.0, 0);
    assert_eq!(files.compare("sums again", sums).await, (0, 0));
}

/// What else happens to files has all rows sorted.
#[tokio::test(flavor = "multi_thread")]
async fn other_changes_have_all_files_read() {
    let sql = MERGED[0].1;
    for (what, has_new_file) in [
        ("a removed file", true),
        ("a changed file", true),
        ("a moved file", false),
    ] {
        let files = Files::new(1).await;
        files.compare("the first files", sql).await;
        match what {
            "a removed file" => std::fs::remove_file(files.path("c.parquet")).expect("a file"),
            "a changed file" => files.write("c.parquet", 4001, 1000).await,
            _ => std::fs::rename(files.path("c.parquet"), files.path("a.parquet")).expect("a file"),
        }
        if has_new_file {
            files.write("d.parquet", 5000, 2100).await;
        }
        settle().await;
        assert_eq!(files.compare(what, sql).await.0, 0, "{what}");
        assert_eq!(files.compare(what, sql).await, (0, 0), "{what}");
    }
}

/// Partition columns are values of files.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_of_a_table_are_added() {
    let files = Files::new(1).await;
    for ctx in [&files.ctx, &files.plain] {
        run(ctx, "DROP TABLE p").await.expect("p");
    }
    let day = |day: usize| files.folder.path().join(format!("day={day}"));
    for (i, name) in ["b.parquet", "c.parquet"].into_iter().enumerate() {
        std::fs::create_dir(day(i)).expect("a folder");
        std::fs::rename(files.path(name), day(i).join(name)).expect("a file");
    }
    let p = format!(
        "CREATE EXTERNAL TABLE p STORED AS PARQUET PARTITIONED BY (day) LOCATION '{}'",
        files.folder.path().display()
    );
    for ctx in [&files.ctx, &files.plain] {
        run(ctx, &p).await.expect("p");
    }
    let sql = "SELECT q.id, count(*), min(concat(p.day, p.v)) FROM q JOIN p ON p.day = '1' AND p.t BETWEEN q.a AND q.b GROUP BY q.id";
    let all = sql.replace("p.day = '1' AND", "");
    settle().await;
    assert_eq!(files.compare("one day", sql).await, (0, 1000));
    assert_eq!(files.compare("two days", &all).await, (0, 5000));
    assert_eq!(files.compare("one day", sql).await, (0, 1000));
    std::fs::create_dir(day(2)).expect("a folder");
    write_rows(&files.ctx, &day(2).join("d.parquet"), 5000, 2200).await;
    settle().await;
    assert_eq!(files.compare("another day", sql).await, (0, 0));
    assert_eq!(files.compare("three days", &all).await, (2, 2200));
}

/// Files that are written one after another, some of them few rows.
#[tokio::test(flavor = "multi_thread")]
async fn segments_of_files_are_merged() {
    let files = Files::new(1).await;
    set(&files.ctx, "rmq.index_memory_limit", "1G");
    let mut most = 0;
    for (i, count) in [30, 2500, 40, 50, 2600, 6000].into_iter().enumerate() {
        files
            .write(&format!("d{i}.parquet"), 5000 + 7000 * i, count)
            .await;
        settle().await;
        for (what, sql) in [MERGED[0], MERGED[6], MERGED[12], MERGED[20]] {
            most = most.max(compare(&files.ctx, &files.plain, what, sql).await);
        }
    }
    assert!((2..=4).contains(&most), "{most}");
}
