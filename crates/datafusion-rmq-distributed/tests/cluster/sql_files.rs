//! The `.slt` files of range joins, whose tables are files that three workers read.

use futures::FutureExt;
use rmq_testing::sql_files::{SqlFiles, writes_results};

use datafusion_rmq::JoinModeChoice;

use crate::support::{CLUSTER, distributed, move_to_files};

/// The files that are run each time. `RMQ_SLT=range_join` runs all, in some minutes.
const FILES: &[&str] = &[
    "range_join/asof_join.slt",
    "range_join/nearest_rows.slt",
    "range_join/nulls.slt",
    "range_join/prevailing.slt",
    "range_join/rows.slt",
    "range_join/semi.slt",
];

/// Parts of statements whose result is another one, or an error, and why.
const UNLIKE: &[(&[&str], &str)] = &[
    (
        &["WITH RECURSIVE"],
        "datafusion-distributed reads each exchange once",
    ),
    (
        &["'Float16'"],
        "DataFusion writes literals of 16 bits as others of 32",
    ),
    (
        &[
            "SELECT (SELECT 1), (SELECT count(*)",
            "EXISTS (SELECT z.id",
            "IN (SELECT z.id",
        ],
        "datafusion-distributed switches plans of such subqueries off",
    ),
    (
        &[
            "JOIN d b ON",
            "FROM d a JOIN fl b",
            "JOIN tp p ON p.x = 10 / q.z",
        ],
        "another row fails first, or one that no other needs",
    ),
    (
        &[
            "ORDER BY w OFFSET 2",
            "first_value(p.k ORDER BY q.w)",
            "FROM q LIMIT 3",
        ],
        "which rows are left out, or come first, is not defined",
    ),
    (
        &["(p JOIN (VALUES ('a', 7.5))"],
        "a join returns equal rows in no defined order",
    ),
    (
        &["stddev(p.v)"],
        "partial results are merged in another order",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn sql_files_pass_on_workers() {
    if writes_results() {
        return;
    }
    let files = SqlFiles {
        root: concat!(env!("CARGO_MANIFEST_DIR"), "/../.."),
        files: FILES,
        session: || distributed(CLUSTER.clone(), JoinModeChoice::Collected),
        plan: |ctx, sql| {
            async move {
                let frame = datafusion_rmq::sql(ctx, sql).await?;
                if sql
                    .trim_start()
                    .to_ascii_uppercase()
                    .starts_with("CREATE TABLE")
                {
                    move_to_files(ctx).await?;
                }
                Ok(frame)
            }
            .boxed()
        },
        labels: &["collected"],
        may_differ: |sql| {
            let parts = UNLIKE.iter();
            let is_plan = sql.to_ascii_uppercase().starts_with("EXPLAIN");
            is_plan
                || parts
                    .flat_map(|(parts, _)| *parts)
                    .any(|part| sql.contains(part))
        },
        in_any_order: true,
    };
    files.pass().await;
}
