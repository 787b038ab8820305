//! The `.slt` files of range joins, whose tables are files that executors read.

use datafusion_rmq::JoinModeChoice;
use futures::FutureExt;
use rmq_testing::sql_files::{SqlFiles, writes_results};

use crate::files::move_to_files;
use crate::support::{CLUSTER, on_executors};

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
        &["(p JOIN (VALUES ('a', 7.5))"],
        "a join returns equal rows in no defined order",
    ),
    (
        &["stddev(p.v)"],
        "partial results are merged in another order",
    ),
    (
        &[
            "ORDER BY id LIMIT 3) q JOIN p",
            "ORDER BY ts, v LIMIT 4) p",
            "count(v) FROM (SELECT q.id, p.v FROM q",
            "q.v NOT IN (SELECT p.v FROM p",
            "q.v IN (SELECT p.v FROM p WHERE q.k > 3)",
        ],
        "refused, as Ballista would change them",
    ),
    (
        &[
            "FROM fl a JOIN d b",
            "FROM d a JOIN fl b",
            "(3, 'zz')) a(id, s)",
            "10 / (q.id - 1)",
            "q.a + 1 / 0",
            "WITH joined AS",
        ],
        "Ballista writes errors of tasks in another form",
    ),
    (
        &["JOIN tp p ON p.x = 10 / q.z"],
        "a row fails that no other needs",
    ),
    (
        &[
            "SELECT (SELECT 1), (SELECT count(*)",
            "EXISTS (SELECT z.id",
            "IN (SELECT z.id",
        ],
        "Ballista switches plans of such subqueries off",
    ),
    (&["ROLLUP(q.sym, p.sym)"], "an exchange of Ballista panics"),
];

#[tokio::test(flavor = "multi_thread")]
async fn sql_files_pass_on_executors() {
    if writes_results() {
        return;
    }
    let files = SqlFiles {
        root: concat!(env!("CARGO_MANIFEST_DIR"), "/../.."),
        files: FILES,
        session: || on_executors(&CLUSTER, JoinModeChoice::Collected),
        plan: |ctx, sql| {
            async move {
                let frame = datafusion_rmq::sql(ctx, sql).await?;
                let text = sql.trim_start().to_ascii_uppercase();
                if text.starts_with("CREATE TABLE") {
                    move_to_files(ctx).await?;
                }
                Ok(frame)
            }
            .boxed()
        },
        labels: &["collected"],
        may_differ: |sql| {
            let is_plan = sql.to_ascii_uppercase().starts_with("EXPLAIN");
            let mut parts = UNLIKE.iter().flat_map(|(parts, _)| *parts);
            is_plan || parts.any(|part| sql.contains(part))
        },
        in_any_order: true,
    };
    files.pass().await;
}
