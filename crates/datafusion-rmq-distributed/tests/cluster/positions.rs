//! Joins whose result depends on which of several rows with equal keys comes first are divided by the equality keys,
//! and return what one node returns.

use std::sync::{Arc, Mutex};

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use datafusion_distributed::display_plan_ascii;
use datafusion_rmq::JoinModeChoice;
use log::{LevelFilter, Log, Metadata, Record};
use rmq_testing::{Random, runs};

use crate::answers::most_tasks_of_joins;
use crate::support::{CLUSTER, distributed_with, lines, local, move_to, run};

/// Files of each table.
const FILES: usize = 9;

/// Registers a table in files whose keys `k` are few, so that most rows have the same as others.
async fn register(ctx: &SessionContext, name: &str, rows: usize, random: &mut Random) {
    let mut numbers = |limit: usize| -> ArrayRef {
        let number = |_| (random.below(20) > 0).then(|| random.below(limit) as i64);
        Arc::new((0..rows).map(number).collect::<Int64Array>())
    };
    let id = Arc::new(Int64Array::from_iter_values(0..rows as i64)) as ArrayRef;
    let columns = [
        ("id", id),
        ("g", numbers(7)),
        ("h", numbers(2)),
        ("k", numbers(12)),
        ("v", numbers(4)),
    ];
    let batch = RecordBatch::try_from_iter(columns).expect("columns of one length");
    let table = MemTable::try_new(batch.schema(), vec![vec![batch]]).expect("a table");
    ctx.register_table(name, Arc::new(table))
        .expect("a new table");
}

/// The searched sides.
const SEARCHED: &[&str] = &[
    "p",
    "(SELECT * FROM p WHERE v > 0) p",
    "(SELECT v - 1 AS v, k, g, h, id FROM p) p",
    "(SELECT id, g, h, k + 1 AS k, v FROM p WHERE id % 5 > 0) p",
];

/// `$p` is the searched side.
const QUERIES: &[&str] = &[
    "SELECT q.id AS a, (SELECT p.id FROM $p WHERE p.g = q.g AND p.k <= q.k ORDER BY p.k DESC LIMIT 1) AS b FROM q",
    "SELECT q.id, p.id, p.v FROM q ASOF JOIN $p MATCH_CONDITION (q.k >= p.k) ON p.g = q.g",
    "SELECT q.id, p.id FROM q ASOF JOIN $p MATCH_CONDITION (q.k < p.k) ON p.g = q.g AND p.h = q.h",
    "SELECT q.id, p.id FROM q ASOF JOIN $p ON p.g = q.g AND q.k >= p.k",
    "SELECT q.id, p.id FROM q ASOF LEFT JOIN $p ON p.g = q.g AND q.k > p.k",
    "SELECT q.id, first_value(p.id ORDER BY p.k), last_value(p.id ORDER BY p.k) FROM q JOIN $p ON p.g = q.g AND p.k >= q.k GROUP BY q.id",
    "SELECT q.id, first_value(p.id ORDER BY p.v DESC), last_value(p.id ORDER BY p.v) FROM q LEFT JOIN $p ON p.g = q.g AND p.k BETWEEN q.k AND q.k + 3 GROUP BY q.id",
    "SELECT q.id, x.id FROM q, LATERAL (SELECT p.id FROM $p WHERE p.g = q.g AND p.k <= q.k ORDER BY p.k DESC LIMIT 3) x",
    "SELECT q.id, x.id FROM q LEFT JOIN LATERAL (SELECT p.id FROM $p WHERE p.g = q.g AND p.k > q.k ORDER BY p.k LIMIT 2) x ON true",
    "SELECT q.id, x.id FROM q, LATERAL (SELECT p.id FROM $p WHERE p.g = q.g AND p.k <= q.k ORDER BY p.v LIMIT 2) x",
    "SELECT q.id, x.id FROM q, LATERAL (SELECT p.id FROM $p WHERE p.g = q.g ORDER BY abs(p.k - q.k) LIMIT 3) x",
];

/// Prevailing rows, of tables only.
const OF_TABLES: &[&str] = &[
    "SELECT id, m, n FROM range_join('q', 'p', 'g', $$p.k BETWEEN q.k - 2 AND q.k$$, 'first_value(id) AS m, count(*) AS n', 'include prevailing')",
    "SELECT id, m, n FROM range_join('q', 'p', 'g,h', $$p.k > q.k AND p.k < q.k + 2$$, 'last_value(id) AS m, sum(v) AS n', 'include prevailing')",
    "SELECT id, m, n FROM range_join('q', 'p', 'g', $$p.k BETWEEN q.k AND q.k + 1$$, 'first_value(id) AS m, last_value(id) AS n')",
];

/// Each query over one searched side.
fn queries(random: &mut Random) -> Vec<String> {
    let mut over = |sql: &&str| sql.replace("$p", SEARCHED[random.below(SEARCHED.len())]);
    let queries = QUERIES.iter().map(&mut over);
    queries
        .chain(OF_TABLES.iter().map(|sql| (*sql).to_string()))
        .collect()
}

async fn planned(ctx: &SessionContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    let frame = datafusion_rmq::sql(ctx, sql).await.expect(sql);
    let plan = frame.create_physical_plan().await;
    plan.unwrap_or_else(|e| panic!("{sql}: {e}"))
}

/// A session of several workers with the tables of another, of whose searched sides nothing is sent.
async fn like(one: &SessionContext, workers: usize, mode: JoinModeChoice) -> SessionContext {
    let ctx = distributed_with(3, CLUSTER.first(workers), mode, 1);
    for name in ["p", "q"] {
        let table = one.table_provider(name).await.expect("a table");
        ctx.register_table(name, table).expect("a new table");
    }
    run(&ctx, "SET rmq.range_joins = 'always'").await;
    ctx
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_in_partitions_are_in_the_order_of_one_node() {
    for mut random in runs("rows in partitions", &[]) {
        let one = local();
        let rows = [300 + random.below(900), 100 + random.below(200)];
        for (name, rows) in ["p", "q"].into_iter().zip(rows) {
            register(&one, name, rows, &mut random).await;
        }
        move_to(FILES, &one).await.expect("files");
        run(&one, "SET rmq.range_joins = 'always'").await;
        for (workers, mode) in [(2, JoinModeChoice::Partitioned), (3, JoinModeChoice::Auto)] {
            let ctx = like(&one, workers, mode).await;
            for sql in queries(&mut random) {
                let plan = planned(&ctx, &sql).await;
                let text = display_plan_ascii(plan.as_ref(), false);
                assert!(text.contains("mode=Partitioned"), "{sql}\n{text}");
                assert!(text.contains("RowPositionsExec: files=9"), "{sql}\n{text}");
                assert!(most_tasks_of_joins(&plan, 1) >= 2, "{sql}\n{text}");
                let expected = lines(&one, &sql).await.expect(&sql);
                assert!(expected.len() > 50, "{sql} has rows");
                let found = lines(&ctx, &sql).await;
                let found =
                    found.unwrap_or_else(|e| panic!("{workers} workers: {sql}: {e}\n{text}"));
                assert!(found == expected, "{workers} workers: {sql}\n{text}");
            }
        }
    }
}

/// The lines of the log about joins that are not divided.
static LINES: Mutex<Vec<String>> = Mutex::new(vec![]);

struct Recorder;

impl Log for Recorder {
    fn enabled(&self, metadata: &Metadata) -> bool {
        metadata.target().starts_with("datafusion_rmq_distributed")
    }

    fn log(&self, record: &Record) {
        if self.enabled(record.metadata()) {
            LINES.lock().expect("lines").push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Rows that have no position stay in one task, and the log says why.
#[tokio::test(flavor = "multi_thread")]
async fn rows_without_a_position_are_in_one_task() {
    log::set_logger(&Recorder).expect("no other logger is set");
    log::set_max_level(LevelFilter::Debug);
    let random = &mut Random::from_seed(7);
    let one = local();
    for (name, rows) in [("p", 600), ("q", 150)] {
        register(&one, name, rows, random).await;
    }
    move_to(FILES, &one).await.expect("files");
    run(&one, "SET rmq.range_joins = 'always'").await;
    let ctx = like(&one, 3, JoinModeChoice::Auto).await;
    // The rows of a union come in the order of its inputs, those of groups in none.
    for (p, operator) in [
        ("(SELECT * FROM p UNION ALL SELECT * FROM q) p", "UnionExec"),
        (
            "(SELECT max(id) AS id, g, k, v FROM p GROUP BY g, k, v) p",
            "AggregateExec",
        ),
    ] {
        let sql = QUERIES[0].replace("$p", p);
        let plan = planned(&ctx, &sql).await;
        let text = display_plan_ascii(plan.as_ref(), false);
        assert!(!text.contains("mode=Partitioned"), "{sql}\n{text}");
        assert_eq!(most_tasks_of_joins(&plan, 1), 1, "{sql}\n{text}");
        let expected = lines(&one, &sql).await.expect(&sql);
        // Which of several groups comes first is not defined.
        let found = lines(&ctx, &sql).await.expect(&sql);
        assert!(p.contains("GROUP BY") || found == expected, "{sql}\n{text}");
        let reason = format!(
            "its result depends on the order of rows with equal keys, and these are not read from Parquet files but of {operator}"
        );
        let lines = LINES.lock().expect("lines");
        let says = |what: &str| {
            lines
                .iter()
                .any(|line| line.contains(&format!("{what} {reason}")))
        };
        assert!(says("is not partitioned:"), "{lines:#?}");
        // One task runs it in any case where rows have no order.
        assert!(
            operator == "AggregateExec" || says("so one task runs it, as"),
            "{lines:#?}"
        );
    }
}
