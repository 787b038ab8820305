//! Why plain SQL stays as DataFusion plans it: the log says, at debug level.

use std::cell::RefCell;

use log::{LevelFilter, Log, Metadata, Record};

use crate::support::{run, session, set};

thread_local! {
    /// What this thread's plans made the extension say, where a test wants to know.
    static SAID: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Keeps what the extension says. Other tests say things on other threads.
struct Listener;

impl Log for Listener {
    fn enabled(&self, metadata: &Metadata) -> bool {
        metadata.target().starts_with("datafusion_rmq") && SAID.with_borrow(Option::is_some)
    }

    fn log(&self, record: &Record) {
        if self.enabled(record.metadata()) {
            let line = format!("{}: {}", record.level(), record.args());
            SAID.with_borrow_mut(|said| said.get_or_insert_default().push(line));
        }
    }

    fn flush(&self) {}
}

/// The lines of the log while a query is planned: on this thread, as the runtime has no other.
async fn said(ctx: &datafusion::prelude::SessionContext, sql: &str) -> Vec<String> {
    SAID.set(Some(vec![]));
    let planned = async { ctx.sql(sql).await?.create_physical_plan().await };
    let planned = planned.await;
    let said = SAID.take().unwrap_or_default();
    // What DataFusion does not take either is an error of its own.
    if let Err(error) = planned {
        assert!(crate::range_join::is_refusal(&error), "{sql}: {error}");
    }
    said
}

#[tokio::test]
async fn the_log_says_why_a_query_stays_as_it_is() {
    log::set_logger(&Listener).expect("nobody else listens");
    log::set_max_level(LevelFilter::Debug);
    let ctx = session();
    for sql in [
        "CREATE TABLE p AS SELECT value AS k, value * 2 AS j, value AS v FROM range(0, 100)",
        "CREATE TABLE q AS SELECT value AS id, value AS a, value + 5 AS b FROM range(0, 10)",
    ] {
        run(&ctx, sql).await.expect(sql);
    }
    let join = "FROM q JOIN p ON p.k BETWEEN q.a AND q.b";
    let reasons = [
        (format!("SELECT q.id, min(p.v + q.a) {join} GROUP BY q.id"), "q.a"),
        (
            format!("SELECT q.id, min(p.v) {join} AND p.j < q.b GROUP BY q.id"),
            "there are two range keys",
        ),
        (
            format!("SELECT q.id, min(p.v) {join} AND p.v <> q.a GROUP BY q.id"),
            "compared by other than",
        ),
        (
            format!("SELECT q.id, min(p.v * random()) {join} GROUP BY q.id"),
            "another each time",
        ),
        (
            format!("SELECT q.id, min(10 / p.v) {join} GROUP BY q.id"),
            "10",
        ),
        (
            format!("SELECT q.id, stddev(p.v) {join} GROUP BY q.id"),
            "stddev",
        ),
        (
            "SELECT id, (SELECT median(v) FROM p WHERE k BETWEEN q.a AND q.b) FROM q".into(),
            "median",
        ),
        (
            "SELECT q.id, x.m FROM q CROSS JOIN LATERAL (SELECT median(v) AS m FROM p WHERE k BETWEEN q.a AND q.b) AS x".into(),
            "median",
        ),
    ];
    for (sql, reason) in &reasons {
        let said = said(&ctx, sql).await;
        let found = said.iter().any(|line| {
            line.starts_with("DEBUG") && line.contains("stays as it is: ") && line.contains(reason)
        });
        assert!(found, "{sql}: {said:#?}");
    }
    // What becomes a range join needs no reason, and who switched the rules off wants none.
    let sql = format!("SELECT q.id, min(p.v) {join} GROUP BY q.id");
    assert_eq!(said(&ctx, &sql).await, [""; 0]);
    set(&ctx, "rmq.rewrite", "false");
    assert_eq!(said(&ctx, &reasons[1].0).await, [""; 0]);
    log::set_max_level(LevelFilter::Off);
}
