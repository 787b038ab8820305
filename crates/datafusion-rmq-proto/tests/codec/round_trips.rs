//! Each operator and each function is read as it was written.

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::SessionContext;
use datafusion_rmq_proto::{RmqCodec, portable};

use crate::support::{builder, copy};

/// The tables of the queries below.
const TABLES: &[&str] = &[
    "CREATE TABLE p AS SELECT value AS id, value % 7 AS g, value * 37 % 1000 AS k, CASE WHEN value % 11 = 0 THEN NULL \
     ELSE value * 53 % 97 END AS v, (value * 53 % 97) / 7.0 AS f, 's' || (value % 13) AS s, \
     arrow_cast(value * 1000000, 'Timestamp(Millisecond, None)') AS ts, arrow_cast(value % 31, 'Decimal128(9, 2)') AS d \
     FROM generate_series(1, 500) AS t(value)",
    "CREATE TABLE q AS SELECT id, g, k, v, s, ts, k + 40 AS b, CAST(ts AS DATE) AS day FROM p WHERE id % 3 = 0",
];

/// Queries, and an operator or function that is in their plans.
const QUERIES: &[(&str, &str)] = &[
    // Aggregates of ranges.
    (
        "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.g = q.g AND p.k BETWEEN q.k AND q.b) FROM q",
        "min(p.v)",
    ),
    (
        "SELECT q.id, min(p.f), max(p.f), sum(p.f), avg(p.f), count(*) FROM q JOIN p ON p.k BETWEEN q.k AND q.b GROUP BY q.id",
        "RangeJoinExec",
    ),
    (
        "SELECT q.g, avg(p.d), sum(p.d) FROM q JOIN p ON p.g = q.g AND p.k BETWEEN q.k AND q.b GROUP BY q.g",
        "RangeJoinExec",
    ),
    (
        "SELECT q.g, avg(p.f), stddev(p.f) FROM q JOIN p ON p.k BETWEEN q.k AND q.b GROUP BY q.g",
        "state of stddev",
    ),
    (
        "SELECT q.id, first_value(p.s ORDER BY p.v), last_value(p.id ORDER BY p.k) FROM q JOIN p ON p.g = q.g AND p.k >= q.k GROUP BY q.id",
        "RangeJoinExec",
    ),
    (
        "SELECT q.id, (SELECT string_agg(p.s, ',' ORDER BY p.id) FILTER (WHERE p.v > 3) FROM p WHERE p.g = q.g AND p.k BETWEEN q.k AND q.b) FROM q",
        "string_agg",
    ),
    (
        "SELECT q.id, (SELECT sum(1000 / p.v) FROM p WHERE p.g = q.g AND p.k BETWEEN q.k AND q.b AND p.v <> 0) FROM q",
        "RangeJoinExec",
    ),
    (
        "SELECT q.id, (SELECT count(*) FROM p WHERE p.g = q.g AND p.k >= q.k AND p.v < q.v) FROM q",
        "RangeJoinExec",
    ),
    (
        "SELECT q.id, (SELECT min(p.k) FROM p WHERE p.k >= q.k AND p.v < q.v) FROM q",
        "RangeJoinExec",
    ),
    (
        "SELECT * FROM range_join('q', 'p', 'g', $$p.k BETWEEN q.k AND q.b$$, 'min(v) AS m, first_value(s) AS f', 'include prevailing')",
        "prevailing",
    ),
    (
        "SELECT q.id, (SELECT count(*) FROM p WHERE p.ts BETWEEN q.day AND q.ts) FROM q",
        "rmq_lower_bound",
    ),
    // Rows.
    (
        "SELECT q.id, p.id FROM q JOIN p ON p.g = q.g AND p.k BETWEEN q.k AND q.b AND p.v <> q.v",
        "returns=rows",
    ),
    (
        "SELECT q.id, p.id FROM q LEFT JOIN p ON p.g = q.g AND p.k BETWEEN q.k AND q.b AND p.v > q.v",
        "threshold=",
    ),
    (
        "SELECT q.id, p.id FROM q FULL JOIN p ON p.g = q.g AND p.k BETWEEN q.k AND q.b",
        "type=Full",
    ),
    (
        "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.g = q.g AND p.k BETWEEN q.k AND q.b AND p.v > q.v)",
        "RangeJoinExec",
    ),
    (
        "SELECT q.id FROM q WHERE NOT EXISTS (SELECT 1 FROM p WHERE p.g = q.g AND p.k > q.k AND p.s <> q.s)",
        "RangeJoinExec",
    ),
    (
        "SELECT q.id, x.id FROM q, LATERAL (SELECT p.id FROM p WHERE p.g = q.g AND p.k <= q.k ORDER BY p.k DESC, p.id LIMIT 3) x",
        "RangeJoinExec",
    ),
    (
        "SELECT q.id, x.id FROM q, LATERAL (SELECT p.id FROM p WHERE p.g = q.g AND p.k <= q.k ORDER BY p.v DESC LIMIT 2) x",
        "RangeJoinExec",
    ),
    (
        "SELECT q.id, x.id FROM q, LATERAL (SELECT p.id FROM p WHERE p.g = q.g ORDER BY abs(p.k - q.k), p.id LIMIT 2) x",
        "RangeJoinExec",
    ),
    (
        "SELECT q.id, (SELECT x.s FROM (SELECT s, k FROM p UNION ALL SELECT s, k + 1 FROM q) x WHERE x.k <= q.k ORDER BY x.k DESC LIMIT 1) FROM q",
        "OrderedRowsExec",
    ),
    // Range functions.
    (
        "SELECT id, range_min('p.v', k % 400, k % 400 + 20), range_argmax('p.f', 3, k % 400) FROM q",
        "RangeLookupExec",
    ),
    (
        "SELECT id, range_first_at_most('p.v', k % 400, 499, 5), range_smallest('p.v', 0, k % 400, 3) FROM q",
        "RangeLookupExec",
    ),
    (
        "SELECT id, range_max((SELECT v FROM p ORDER BY k, id), 0, k % 400) FROM q",
        "RangeLookupExec",
    ),
    (
        "SELECT q.id, p.id FROM q LEFT JOIN p ON range_min('p.v', q.id, p.id) = 3 AND p.id < 40",
        "PrepareIndexesExec",
    ),
    (
        "SELECT id, frame_min(v, 0, 5) OVER (PARTITION BY g ORDER BY k, id) FROM p",
        "frame_min",
    ),
    // Window frames.
    (
        "SELECT id, min(v) OVER (PARTITION BY g ORDER BY k, id ROWS BETWEEN 40 PRECEDING AND CURRENT ROW) FROM p",
        "WindowFrameExec",
    ),
    (
        "SELECT id, max(f) OVER (ORDER BY k RANGE BETWEEN 100 PRECEDING AND 50 FOLLOWING), first_value(s) OVER (ORDER BY k RANGE BETWEEN 100 PRECEDING AND 50 FOLLOWING) FROM p",
        "WindowFrameExec",
    ),
    // Functions above a join.
    (
        "SELECT q.id, (SELECT count(*) FROM p WHERE p.k > q.k) + abs(q.k - 500) FROM q ORDER BY 2, 1",
        "RangeJoinExec",
    ),
    (
        "SELECT arg_max(x.id, x.n) FROM (SELECT q.id, (SELECT count(*) FROM p WHERE p.k > q.k) AS n FROM q) x",
        "arg_max",
    ),
];

async fn session(codec: &RmqCodec) -> SessionContext {
    let ctx = SessionContext::new_with_state(builder(codec).build());
    for table in TABLES {
        run(&ctx, table).await;
    }
    run(&ctx, "SET rmq.range_joins = 'always'").await;
    ctx
}

async fn run(ctx: &SessionContext, sql: &str) {
    let frame = datafusion_rmq::sql(ctx, sql).await;
    let rows = frame
        .unwrap_or_else(|e| panic!("{sql}: {e}"))
        .collect()
        .await;
    rows.unwrap_or_else(|e| panic!("{sql}: {e}"));
}

/// What DataFusion would lose.
#[tokio::test(flavor = "multi_thread")]
async fn clauses_of_windows_that_are_not_written_are_an_error() {
    let codec = RmqCodec::default();
    let ctx = session(&codec).await;
    for (sql, clause) in [
        (
            "SELECT sum(v) FILTER (WHERE k > 3) OVER (ORDER BY id) FROM p",
            "FILTER of",
        ),
        (
            "SELECT last_value(v) IGNORE NULLS OVER (ORDER BY id) FROM p",
            "IGNORE NULLS of",
        ),
        (
            "SELECT last_value(v) IGNORE NULLS OVER (ORDER BY id ROWS 50 PRECEDING) FROM p",
            "IGNORE NULLS of",
        ),
    ] {
        let plan = ctx
            .sql(sql)
            .await
            .expect(sql)
            .create_physical_plan()
            .await
            .expect(sql);
        let error = portable(plan).expect_err(sql).to_string();
        assert!(
            error.contains(clause) && error.contains("can't be sent"),
            "{sql}: {error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_are_read_as_they_were_written() {
    let codec = RmqCodec::default();
    let ctx = session(&codec).await;
    for mode in ["collected", "partitioned"] {
        run(&ctx, &format!("SET rmq.join_mode = '{mode}'")).await;
        for (sql, shown) in QUERIES {
            let frame = datafusion_rmq::sql(&ctx, sql).await;
            let plan = frame.unwrap_or_else(|e| panic!("{sql}: {e}"));
            let plan = plan.create_physical_plan().await;
            let plan = plan.unwrap_or_else(|e| panic!("{sql}: {e}"));
            let text = displayable(plan.as_ref()).indent(false).to_string();
            assert!(text.contains(shown), "no {shown}: {sql}\n{text}");
            let copied = copy(plan.clone(), &codec, &ctx.state());
            let copied = copied.unwrap_or_else(|e| panic!("{sql}: {e}\n{text}"));
            let read = displayable(copied.as_ref()).indent(false).to_string();
            assert_eq!(without_engines(&read), without_engines(&text), "{sql}");
            let mut rows = vec![];
            for plan in [plan, copied] {
                let schema = plan.schema();
                let batches = collect(plan, ctx.task_ctx()).await;
                let batches = batches.unwrap_or_else(|e| panic!("{sql}: {e}\n{text}"));
                assert!(batches.iter().all(|b| b.schema() == schema), "{sql}");
                let text = pretty_format_batches(&batches).expect("text").to_string();
                let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
                lines.sort();
                rows.push(lines);
            }
            assert!(rows[0].len() > 4, "{sql} has rows");
            assert_eq!(rows[0], rows[1], "{sql}");
        }
    }
}

/// The plan without what each process chooses for itself.
fn without_engines(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let (plan, _) = line.split_once(", engine=").unwrap_or((line, ""));
        plan.to_string() + "\n"
    });
    lines.collect()
}
