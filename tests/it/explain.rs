//! What EXPLAIN shows.

use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::SessionContext;

use crate::support::{run, session};

async fn explain(ctx: &SessionContext, sql: &str) -> String {
    let rows: RecordBatch = run(ctx, sql).await.expect(sql);
    pretty_format_batches(&[rows]).expect("text").to_string()
}

async fn quotes() -> SessionContext {
    let ctx = session();
    let quotes = "CREATE TABLE quotes AS SELECT to_timestamp(1704067200 + value) AS ts, value AS bid FROM range(0, 1000)";
    run(&ctx, quotes).await.expect(quotes);
    ctx
}

#[tokio::test]
async fn long_lists_of_constants_are_not_shown() {
    let ctx = quotes().await;
    let windows = "SELECT unnest(generate_series(TIMESTAMP '2024-01-01', TIMESTAMP '2024-03-01', INTERVAL '1 minute')) AS ts, 7 AS x";
    let sql = format!(
        "SELECT w.ts, w.x, min(q.bid) AS low FROM ({windows}) AS w
         LEFT JOIN quotes q ON q.ts >= w.ts AND q.ts < w.ts + INTERVAL '1 minute' GROUP BY w.ts, w.x"
    );
    for format in ["INDENT", "TREE"] {
        let begin = Instant::now();
        let shown = explain(&ctx, &format!("EXPLAIN FORMAT {format} {sql}")).await;
        // Half a minute and longer with the list in the plan, here and where 2 seconds are the limit.
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "{:?}",
            begin.elapsed()
        );
        assert!(shown.len() < 20_000, "{} bytes", shown.len());
        assert!(shown.contains("RangeJoin"), "{shown}");
    }
    // The rows are those of DataFusion.
    let sum =
        format!("SELECT count(*), min(ts), max(ts), sum(x), sum(low), count(low) FROM ({sql})");
    let found = run(&ctx, &sum).await.expect(&sum);
    let alone = SessionContext::new();
    let table = ctx.table_provider("quotes").await.expect("the table");
    alone.register_table("quotes", table).expect("a new name");
    let join = format!(
        "SELECT count(*), min(ts), max(ts), sum(x), sum(low), count(low) FROM (
           SELECT w.ts, w.x, low FROM ({windows}) AS w
           LEFT JOIN (SELECT date_trunc('minute', ts) AS ts, min(bid) AS low FROM quotes GROUP BY 1) q ON q.ts = w.ts)"
    );
    let expected = alone
        .sql(&join)
        .await
        .expect(&join)
        .collect()
        .await
        .expect(&join);
    assert_eq!(found.columns(), expected[0].columns());
    // Short lists, nested ones, and several stay what they are.
    for sql in [
        "SELECT unnest([1, 2, 3]) AS a",
        "SELECT array_length(range(0, 5000)) AS n, range(0, 2000)[2000] AS last, 1 AS one",
        "SELECT unnest(range(0, 1001)) AS a, unnest(range(0, 1002)) AS b ORDER BY b DESC LIMIT 2",
        "SELECT make_array(range(0, 3000), range(0, 2))[1][3000] AS v",
    ] {
        let expected = alone.sql(sql).await.expect(sql).collect().await.expect(sql);
        let found = run(&ctx, sql).await.expect(sql);
        assert_eq!(found.columns(), expected[0].columns(), "{sql}");
    }
}

#[tokio::test]
async fn the_tree_has_a_line_for_each_part_of_a_range_join() {
    let ctx = quotes().await;
    let sql = "SELECT t.ts, min(q.bid), count(*) FROM quotes t LEFT JOIN quotes q
               ON q.bid % 2 = t.bid % 2 AND q.ts BETWEEN t.ts - INTERVAL '1 hour' AND t.ts GROUP BY t.ts";
    let tree = explain(&ctx, &format!("EXPLAIN FORMAT TREE {sql}")).await;
    for part in [
        "type: Left",
        " on:",
        " range:",
        "INTERVAL",
        " aggs:",
        " engine:",
    ] {
        assert!(tree.contains(part), "{part}: {tree}");
    }
    let plan = explain(&ctx, &format!("EXPLAIN FORMAT INDENT {sql}")).await;
    let line = plan
        .lines()
        .find(|line| line.contains("RangeJoinExec"))
        .expect("a range join");
    assert!(
        line.contains("range=q.ts in [t.ts - INTERVAL '1 hour', t.ts]"),
        "{line}"
    );
    assert!(
        !line.contains("Interval") && !line.contains("Int64("),
        "{line}"
    );
}
