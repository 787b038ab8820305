//! Runs the `.slt` files of `sql-tests`.
//!
//! `RMQ_TEST_ENGINE=cuda` sets that engine in each session, and the label `cuda` in the files.

use futures::FutureExt;
use rmq_testing::sql_files::{NewSession, SqlFiles, writes_results};

use crate::fake::Fake;
use crate::support::{engine, plan, session, set, skipped};

/// The label of sessions with `rmq.join_mode = 'collected'`.
const COLLECTED: &str = "collected";

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
    if !skipped() && !writes_results() {
        pass(collected, &[&engine_label(), COLLECTED]).await;
    }
}

async fn pass(session: NewSession, labels: &[&str]) {
    let may_differ = if labels.contains(&COLLECTED) {
        |sql: &str| sql.to_ascii_uppercase().starts_with("EXPLAIN")
    } else {
        |_: &str| false
    };
    let files = SqlFiles {
        root: env!("CARGO_MANIFEST_DIR"),
        files: &[],
        session,
        plan: |ctx, sql| plan(ctx, sql).boxed(),
        labels,
        may_differ,
        in_any_order: false,
    };
    files.pass().await;
}
