//! Tables in files with statistics, of which windows reach little.

use std::path::Path;

use datafusion::prelude::SessionContext;
use tempfile::TempDir;

use crate::files::run;

/// Rows of the searched side, whose keys are their numbers.
pub const ROWS: usize = 100_000;

/// Files of each table, whose names are not in the order of their keys.
pub const FILES: usize = 10;

/// Writes the result of a query in the order of `k`, in files with statistics and small row groups.
pub async fn write(rows: usize, select: &str, files: usize, folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder");
    let ctx = SessionContext::new();
    for file in 0..files {
        let [begin, end] = [file, file + 1].map(|i| i * rows / files);
        let path = folder.join(format!("{}.parquet", file * 13 % files));
        let copy = format!(
            "COPY (SELECT * FROM (SELECT {select} FROM generate_series({begin}, {end} - 1) AS t(i)) ORDER BY k) TO '{}' \
             STORED AS PARQUET OPTIONS (max_row_group_size 1000)",
            path.display()
        );
        run(&ctx, &copy).await;
    }
}

pub async fn register(ctx: &SessionContext, name: &str, folder: &Path) {
    let table = format!(
        "CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{}/'",
        folder.join(name).display()
    );
    run(ctx, &table).await;
}

/// The searched side `p`, a probe side `q` within 3 % of its keys, and `w` over all of them.
pub async fn tables() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let p = "i AS id, i % 7 AS g, i AS k, i * 7919 % 1000 AS v";
    write(ROWS, p, FILES, &folder.path().join("p")).await;
    let q =
        "i AS id, i % 7 AS g, 50000 + i AS k, CASE WHEN i % 11 > 0 THEN 50000 + i - 40 END AS a";
    write(3000, q, FILES, &folder.path().join("q")).await;
    let w = "i AS id, i % 7 AS g, i * 33 AS k";
    write(3000, w, FILES, &folder.path().join("w")).await;
    folder
}

/// Registers the tables.
pub async fn with_tables(ctx: &SessionContext, folder: &TempDir) {
    for name in ["p", "q", "w"] {
        register(ctx, name, folder.path()).await;
    }
    run(ctx, "SET rmq.range_joins = 'always'").await;
}

/// Queries of the small slice. The last [`WHOLE`] need all rows of the searched side.
pub const QUERIES: [&str; 10] = [
    "SELECT q.id, min(p.v) FROM q LEFT JOIN p ON p.g = q.g AND p.k BETWEEN q.k - 50 AND q.k GROUP BY q.id",
    "SELECT q.id, count(*) FROM q JOIN p ON p.k BETWEEN q.a AND q.k GROUP BY q.id",
    "SELECT q.id, sum(p.v) FROM q LEFT JOIN p ON p.g = q.g AND p.k > q.k - 30 AND p.k < q.k GROUP BY q.id",
    "SELECT q.id, p.id FROM q JOIN p ON p.g = q.g AND p.k BETWEEN q.k - 9 AND q.k",
    "SELECT q.id, p.id FROM q LEFT JOIN p ON p.g = q.g AND p.k BETWEEN q.a AND q.a + 9 AND p.v < q.k",
    "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.g = q.g AND p.v = 7 AND p.k BETWEEN q.k - 500 AND q.k)",
    "SELECT q.id, first_value(p.id ORDER BY p.k), last_value(p.id ORDER BY p.k) FROM q JOIN p ON p.g = q.g AND p.k BETWEEN q.k - 50 AND q.k GROUP BY q.id",
    "SELECT q.id, max(p.v) FROM q JOIN (SELECT k, v * 2 AS v, g FROM p WHERE v > 100) p ON p.g = q.g AND p.k BETWEEN q.k - 50 AND q.k WHERE q.id % 3 = 0 GROUP BY q.id",
    "SELECT p.id, q.id FROM q RIGHT JOIN p ON p.g = q.g AND p.k BETWEEN q.k - 9 AND q.k",
    "SELECT p.id FROM p WHERE p.v = 3 AND NOT EXISTS (SELECT 1 FROM q WHERE p.g = q.g AND p.k BETWEEN q.k - 9 AND q.k)",
];

/// Queries that return rows of the searched side by whether any window has them.
pub const WHOLE: usize = 2;
