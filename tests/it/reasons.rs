//! The debug log says why a rule leaves plain SQL unchanged.

use std::cell::RefCell;
use std::sync::{Mutex, Once};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::execution::SessionStateBuilder;
use datafusion::optimizer::Optimizer;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::ensure_requirements::EnsureRequirements;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::displayable;
use datafusion::prelude::SessionContext;
use datafusion_rmq::SessionStateBuilderExt;
use datafusion_rmq::parts::QuadraticJoin;
use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::support::{run, session, set};

thread_local! {
    /// The extension's log lines on this thread, while a test records them.
    static LINES: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// The extension's warnings of all tests.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(vec![]);

/// A logger that records the extension's lines. Other tests log on other threads.
struct Recorder;

/// Sets the logger, unless another test has.
pub fn record_log() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        log::set_logger(&Recorder).expect("no other logger is set");
        log::set_max_level(LevelFilter::Debug);
    });
}

/// The warnings of all tests so far that contain this text.
pub fn warnings(text: &str) -> Vec<String> {
    let warnings = WARNINGS.lock().expect("a list");
    let warnings = warnings.iter().filter(|line| line.contains(text));
    warnings.cloned().collect()
}

impl Log for Recorder {
    fn enabled(&self, metadata: &Metadata) -> bool {
        metadata.target().starts_with("datafusion_rmq")
            && (metadata.level() == Level::Warn || LINES.with_borrow(Option::is_some))
    }

    fn log(&self, record: &Record) {
        if !self.enabled(record.metadata()) {
            return;
        }
        if record.level() == Level::Warn {
            WARNINGS
                .lock()
                .expect("a list")
                .push(record.args().to_string());
        }
        if LINES.with_borrow(Option::is_some) {
            let line = format!("{}: {}", record.level(), record.args());
            LINES.with_borrow_mut(|lines| lines.get_or_insert_default().push(line));
        }
    }

    fn flush(&self) {}
}

/// The log lines of planning a query, which happens on this thread because the runtime is single-threaded.
async fn log_of(ctx: &SessionContext, sql: &str) -> Vec<String> {
    LINES.set(Some(vec![]));
    let planned = async { ctx.sql(sql).await?.create_physical_plan().await };
    let planned = planned.await;
    let lines = LINES.take().unwrap_or_default();
    // DataFusion may not support the query either.
    if let Err(error) = planned {
        assert!(crate::range_join::is_refusal(&error), "{sql}: {error}");
    }
    lines
}

#[tokio::test]
async fn the_log_has_the_reason_for_each_rejection() {
    record_log();
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
            format!("SELECT q.id, array_agg(10 / p.v) {join} GROUP BY q.id"),
            "all of its aggregates read every row",
        ),
        (
            format!("SELECT q.id, min(p.v) {join} AND p.j < q.b GROUP BY q.id"),
            "there are two range keys",
        ),
        (
            format!("SELECT q.id, min(p.v) {join} AND p.v <> q.a GROUP BY q.id"),
            "is no comparison of the two sides",
        ),
        (
            format!("SELECT q.id, min(p.v * random()) {join} GROUP BY q.id"),
            "another each time",
        ),
        (
            "SELECT q.id, min(p.v) FROM q LEFT JOIN p ON p.j = q.id AND p.k > q.a AND 10 / q.b > 2 GROUP BY q.id".into(),
            "may end in an error",
        ),
        (
            format!("SELECT q.id, array_agg(p.v) {join} GROUP BY q.id"),
            "all of its aggregates read every row: state of array_agg",
        ),
        (
            "SELECT id, (SELECT median(v + q.a) FROM p WHERE k BETWEEN q.a AND q.b) FROM q".into(),
            "not of the columns of one side",
        ),
        (
            "SELECT id, (SELECT v FROM p WHERE k <= q.a LIMIT 1) FROM q".into(),
            "LIMIT without ORDER BY",
        ),
        (
            "SELECT id, (SELECT v FROM p WHERE k <= q.a ORDER BY q.b LIMIT 1) FROM q".into(),
            "is not of the rows that it orders",
        ),
        (
            "SELECT q.id, x.m FROM q CROSS JOIN LATERAL (SELECT median(v + q.a) AS m FROM p WHERE k BETWEEN q.a AND q.b) AS x".into(),
            "not of the columns of one side",
        ),
        // Joins that return rows.
        (
            "SELECT * FROM p x JOIN p ON p.k = x.k AND p.j BETWEEN x.j - 1 AND x.j".into(),
            "only about 1.0 rows have the keys",
        ),
        (
            "SELECT * FROM p x JOIN p ON p.k = x.k AND p.j > x.j".into(),
            "a range with one end",
        ),
        (
            "SELECT * FROM p x JOIN p ON p.k > x.k AND p.v < x.v * random()".into(),
            "another each time",
        ),
        (
            "SELECT * FROM p x JOIN p ON p.k + x.k > 3".into(),
            "k + k > 3 mixes the sides",
        ),
    ];
    for (sql, reason) in &reasons {
        let lines = log_of(&ctx, sql).await;
        let found = lines.iter().any(|line| {
            line.starts_with("DEBUG") && line.contains("stays as it is: ") && line.contains(reason)
        });
        assert!(found, "{sql}: {lines:#?}");
    }
    // A query that matches has no reason, and neither has one for which the rules are switched off.
    let sql = format!("SELECT q.id, min(p.v) {join} GROUP BY q.id");
    assert_eq!(log_of(&ctx, &sql).await, [""; 0]);
    // A range join that can't be partitioned.
    set(&ctx, "rmq.join_mode", "partitioned");
    let nearest =
        "SELECT id, (SELECT v FROM p WHERE j = q.id AND k <= q.a ORDER BY k DESC LIMIT 1) FROM q";
    for (sql, reason) in [
        (&*sql, "it has no equality keys"),
        (
            nearest,
            "its result depends on the order of rows with equal keys, and these are not read from Parquet files",
        ),
    ] {
        let lines = log_of(&ctx, sql).await;
        let found = lines
            .iter()
            .any(|line| line.contains(&format!("is not partitioned: {reason}")));
        assert!(found, "{sql}: {lines:#?}");
    }
    set(&ctx, "rmq.join_mode", "auto");
    set(&ctx, "rmq.rewrite", "false");
    assert_eq!(log_of(&ctx, &reasons[1].0).await, [""; 0]);
    rules_without_a_place();
}

/// Tables of some hundred rows: of fewer, a nested loop is the best plan.
async fn tables() -> SessionContext {
    let ctx = session();
    for sql in [
        "CREATE TABLE prices AS SELECT CAST(value % 3 AS VARCHAR) AS sym, value AS ts, value * 7 % 11 AS close FROM range(0, 100)",
        "CREATE TABLE trades AS SELECT value AS id, CAST(value % 3 AS VARCHAR) AS sym, value * 5 % 13 AS ts FROM range(0, 50)",
    ] {
        run(&ctx, sql).await.expect(sql);
    }
    ctx
}

/// The error of planning a query, or what EXPLAIN shows of it.
async fn planned(ctx: &SessionContext, sql: &str) -> String {
    let explain = format!("EXPLAIN FORMAT INDENT {sql}");
    match run(ctx, &explain).await {
        Ok(rows) => text(rows),
        Err(error) => error.to_string(),
    }
}

fn text(rows: RecordBatch) -> String {
    pretty_format_batches(&[rows]).expect("text").to_string()
}

/// The rows, in an order of their own.
fn sorted(rows: RecordBatch) -> Vec<String> {
    let mut lines: Vec<String> = text(rows).lines().map(ToString::to_string).collect();
    lines.sort_unstable();
    lines
}

#[tokio::test]
async fn the_table_of_what_to_write_instead_is_right() {
    let docs = include_str!("../../docs/sql.md");
    let section = docs.split("### Instead of\n").nth(1).expect("the section");
    let section = section.split("\n#").next().expect("its end");
    let ctx = tables().await;
    let mut checked = 0;
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [instead, write, message] = cells[..] else {
            panic!("{line}");
        };
        let (instead, write) = (instead.trim_matches('`'), write.trim_matches('`'));
        let why = planned(&ctx, instead).await;
        assert!(why.contains(message), "{instead}: {why}");
        let plan = planned(&ctx, write).await;
        let is_ours = ["RangeJoinExec", "frame_min"]
            .iter()
            .any(|ours| plan.contains(ours));
        assert!(is_ours && !plan.contains("NoteExec"), "{write}: {plan}");
        // Where DataFusion has a plan for both, they have the same rows.
        if let Ok(expected) = run(&ctx, instead).await {
            let found = run(&ctx, write).await.expect(write);
            assert_eq!(sorted(found), sorted(expected), "{write}");
        }
        checked += 1;
    }
    assert_eq!(checked, 4);
}

#[tokio::test]
async fn reasons_have_neither_casts_nor_columns_that_the_query_has_not() {
    let ctx = tables().await;
    for (sql, reason) in [
        (
            "SELECT count(*) FROM trades t JOIN prices p ON p.ts + t.ts <= 4.5",
            "compares every pair of rows: p.ts + t.ts <= 4.5 mixes the sides",
        ),
        // DataFusion computes operands below the join.
        (
            "SELECT count(*) FROM trades t JOIN prices p ON p.ts <= t.ts + 0.5 OR p.close >= t.id",
            "compares every pair of rows: p.ts <= t.ts + 0.5 OR p.close >= t.id is an OR",
        ),
        // Conditions that differ by the names of tables only.
        (
            "SELECT count(*) FROM trades t JOIN prices p ON p.ts + t.ts <= 4 JOIN prices r ON r.ts + t.ts <= 4",
            "compares every pair of rows: ts + ts <= 4 mixes the sides",
        ),
        // DataFusion names the tables of subqueries anew.
        (
            "SELECT t.id FROM trades t WHERE EXISTS (SELECT 1 FROM prices p WHERE p.ts + t.ts < 4)",
            "compares every pair of rows: p.ts + t.ts < 4 mixes the sides",
        ),
    ] {
        let shown = planned(&ctx, sql).await;
        assert!(shown.contains(reason), "{sql}: {shown}");
    }
}

#[tokio::test]
async fn a_join_of_all_pairs_has_a_note_in_explain() {
    let ctx = tables().await;
    let sql = "SELECT count(*) FROM trades t JOIN prices p ON p.ts + t.ts <= 4";
    let note = "NoteExec: compares every pair of rows: p.ts + t.ts <= 4 mixes the sides";
    for explain in ["EXPLAIN FORMAT INDENT", "EXPLAIN ANALYZE"] {
        let shown = run(&ctx, &format!("{explain} {sql}")).await.expect(sql);
        let shown = text(shown);
        assert_eq!(shown.matches(note).count(), 1, "{shown}");
    }
    let tree = run(&ctx, &format!("EXPLAIN FORMAT TREE {sql}")).await;
    let tree = text(tree.expect(sql));
    assert!(
        tree.contains("NoteExec") && tree.contains("at most"),
        "{tree}"
    );
    let other = "SELECT count(*) FROM trades t JOIN prices p ON p.sym || t.sym || 'Übung, die sehr, sehr lang ist, noch länger' < 'ä'";
    let tree = run(&ctx, &format!("EXPLAIN FORMAT TREE {other}")).await;
    assert!(text(tree.expect(other)).contains("NoteExec"));
    // The plan that runs has none, nor has one without a rejection.
    let frame = ctx.sql(sql).await.expect(sql);
    let query = frame.clone().into_optimized_plan().expect(sql);
    let plan = frame.create_physical_plan().await.expect(sql);
    assert!(
        !displayable(plan.as_ref())
            .indent(false)
            .to_string()
            .contains("NoteExec")
    );
    for other in [
        "SELECT count(*) FROM trades t JOIN prices p ON p.ts <= t.ts",
        "SELECT count(*) FROM trades t JOIN (SELECT * FROM prices LIMIT 5) p ON p.ts + t.ts <= 4",
        "SELECT count(*) FROM trades t CROSS JOIN prices p",
    ] {
        let shown = planned(&ctx, other).await;
        assert!(!shown.contains("NoteExec"), "{other}: {shown}");
    }
    let found = QuadraticJoin::all_in(&plan, &query, ctx.copied_config().options());
    assert_eq!(found.len(), 1);
    assert!(found[0].reason.starts_with("p.ts + t.ts <= 4 mixes"));
    assert_eq!(found[0].pairs, Some(50 * 100));
    set(&ctx, "rmq.rewrite", "false");
    let shown = planned(&ctx, sql).await;
    assert!(!shown.contains("NoteExec"), "{shown}");
}

#[tokio::test]
async fn a_join_of_very_many_pairs_with_equal_keys_has_a_note_in_explain() {
    let ctx = session();
    for sql in [
        "CREATE TABLE many AS SELECT value % 2 AS sym, value AS ts FROM range(0, 60000)",
        "CREATE TABLE keyed AS SELECT value AS sym, value AS ts FROM range(0, 60000)",
    ] {
        run(&ctx, sql).await.expect(sql);
    }
    let of = |table: &str| {
        format!(
            "SELECT count(*) FROM {table} a JOIN {table} b ON a.sym = b.sym AND a.ts + b.ts <= 4"
        )
    };
    let note =
        "NoteExec: compares every pair of rows with equal keys: a.ts + b.ts <= 4 mixes the sides";
    for prefer_hash_join in ["true", "false"] {
        let name = "datafusion.optimizer.prefer_hash_join";
        set(&ctx, name, prefer_hash_join);
        let shown = planned(&ctx, &of("many")).await;
        assert_eq!(shown.matches(note).count(), 1, "{shown}");
        let shown = planned(&ctx, &of("keyed")).await;
        assert!(!shown.contains("NoteExec"), "{shown}");
    }
}

#[tokio::test]
async fn a_join_with_equal_keys_that_takes_more_than_a_second_has_a_note_in_explain() {
    let ctx = session();
    for sql in [
        // 2 * 10^8 pairs, 8 * 10^7, and 2 * 10^7.
        "CREATE TABLE many AS SELECT value % 2 AS sym, value AS ts, CAST(value AS VARCHAR) AS txt FROM range(0, 20000)",
        "CREATE TABLE some AS SELECT value % 5 AS sym, value AS ts, CAST(value AS VARCHAR) AS txt FROM range(0, 20000)",
        "CREATE TABLE few AS SELECT value % 20 AS sym, value AS ts, CAST(value AS VARCHAR) AS txt FROM range(0, 20000)",
    ] {
        run(&ctx, sql).await.expect(sql);
    }
    let conditions = [
        ("a.ts * b.ts <= 4", "mixes the sides: write the columns"),
        ("(a.ts <= b.ts - 4 OR a.ts >= b.ts + 4)", "is an OR"),
        (
            "least(a.ts, b.ts) - greatest(a.ts, b.ts) > 4",
            "mixes the sides: write a comparison of each two columns",
        ),
    ];
    for (condition, reason) in conditions {
        let of = |table: &str| {
            format!(
                "SELECT count(*) FROM {table} a JOIN {table} b ON a.sym = b.sym AND {condition}"
            )
        };
        // The more a condition computes, the fewer pairs take a second.
        for table in ["many", "some"] {
            let shown = planned(&ctx, &of(table)).await;
            let note = "NoteExec: compares every pair of rows with equal keys: ";
            assert_eq!(shown.matches(note).count(), 1, "{shown}");
            assert!(shown.contains(reason), "{shown}");
        }
        let shown = planned(&ctx, &of("few")).await;
        assert!(!shown.contains("NoteExec"), "{shown}");
    }
}

#[tokio::test]
async fn a_range_that_has_all_alternatives_has_a_note_in_explain() {
    let ctx = session();
    let create = "CREATE TABLE many AS SELECT value % 2 AS sym, value AS ts FROM range(0, 20000)";
    run(&ctx, create).await.expect(create);
    let join = |condition: &str| {
        format!("SELECT a.ts, b.ts FROM many a JOIN many b ON a.sym = b.sym AND {condition}")
    };
    let (one, other) = (
        "b.ts BETWEEN a.ts AND a.ts + 10",
        "b.ts BETWEEN a.ts - 15000 AND a.ts - 14990",
    );
    let shown = planned(&ctx, &join(&format!("({one} OR {other})"))).await;
    let note = "NoteExec: compares every pair of rows in its range: b.ts >= a.ts AND b.ts <= a.ts + 10 OR ";
    assert_eq!(shown.matches(note).count(), 1, "{shown}");
    assert!(shown.contains("write UNION ALL of a join ON a"), "{shown}");
    assert!(shown.contains("RangeJoinExec"), "{shown}");
    let union = format!("{} UNION ALL {}", join(one), join(other));
    let near = join(&format!("({one} OR b.ts BETWEEN a.ts - 30 AND a.ts - 20)"));
    for quick in [union, near] {
        let shown = planned(&ctx, &quick).await;
        assert!(!shown.contains("NoteExec"), "{quick}: {shown}");
    }
}

#[tokio::test]
async fn a_test_of_keys_that_very_many_rows_have_has_a_note_in_explain() {
    let ctx = session();
    for sql in [
        // 2 * 10^8 pairs, and 2 * 10^7.
        "CREATE TABLE many AS SELECT value % 2 AS sym, value AS ts FROM range(0, 20000)",
        "CREATE TABLE few AS SELECT value % 20 AS sym, value AS ts FROM range(0, 20000)",
    ] {
        run(&ctx, sql).await.expect(sql);
    }
    let queries = |table: &str, rows: &str| {
        [
            format!("SELECT ts FROM {table} a WHERE sym IN (SELECT sym FROM {rows} b)"),
            format!(
                "SELECT ts, sym IN (SELECT sym FROM {rows} b WHERE sym IS NOT NULL) FROM {table} a"
            ),
            format!(
                "SELECT ts FROM {table} a WHERE NOT EXISTS (SELECT 1 FROM {rows} b WHERE b.sym = a.sym)"
            ),
        ]
    };
    let note = "NoteExec: compares every pair of rows with equal keys: it looks for one row of each key among all that \
                have it: write IN (SELECT DISTINCT …)";
    for query in queries("many", "many") {
        let shown = planned(&ctx, &query).await;
        assert_eq!(shown.matches(note).count(), 1, "{query}: {shown}");
    }
    let distinct = queries("many", "(SELECT DISTINCT sym FROM many)");
    for query in distinct.into_iter().chain(queries("few", "few")) {
        let shown = planned(&ctx, &query).await;
        assert!(!shown.contains(note), "{query}: {shown}");
    }
}

#[tokio::test]
async fn a_join_with_equal_keys_of_an_unknown_number_has_a_note_if_it_compares_otherwise() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows: String = (0..2000)
        .map(|row| format!("{},{row}\n", row % 2))
        .collect();
    let file = folder.path().join("p.csv");
    std::fs::write(&file, format!("sym,ts\n{rows}")).expect("a file");
    let ctx = session();
    let create = format!(
        "CREATE EXTERNAL TABLE p (sym BIGINT, ts BIGINT) STORED AS CSV LOCATION '{}' OPTIONS ('format.has_header' 'true')",
        file.display()
    );
    run(&ctx, &create).await.expect("a table");
    let on = |condition: &str| {
        format!("SELECT count(*) FROM p a JOIN p b ON a.sym = b.sym AND {condition}")
    };
    let shown = planned(&ctx, &on("a.ts + b.ts <= 4")).await;
    let note =
        "NoteExec: compares every pair of rows with equal keys: a.ts + b.ts <= 4 mixes the sides";
    assert_eq!(shown.matches(note).count(), 1, "{shown}");
    for other in ["a.ts <> b.ts", "a.ts % 7 <> b.ts % 3"] {
        let shown = planned(&ctx, &on(other)).await;
        assert!(!shown.contains("NoteExec"), "{other}: {shown}");
    }
    // So has one without any condition.
    let shown = planned(&ctx, "SELECT a.ts, b.ts FROM p a CROSS JOIN p b").await;
    let note = "NoteExec: compares every pair of rows: it has no condition";
    assert_eq!(shown.matches(note).count(), 1, "{shown}");
}

#[tokio::test]
async fn an_aggregate_of_very_many_pairs_has_a_note_in_explain() {
    let ctx = session();
    for sql in [
        "CREATE TABLE many AS SELECT value AS id, value % 2 AS sym, value AS ts, value * 7 % 80000 AS v FROM range(0, 80000)",
        "CREATE TABLE keyed AS SELECT value AS id, value AS sym, value AS ts, value AS v FROM range(0, 80000)",
    ] {
        run(&ctx, sql).await.expect(sql);
    }
    let of = |table: &str, condition: &str, calls: &str| {
        format!(
            "SELECT a.id, (SELECT {calls} FROM {table} b WHERE b.sym = a.sym AND {condition}) AS x FROM {table} a"
        )
    };
    let long = "b.ts BETWEEN a.ts - 40000 AND a.ts AND b.v + a.v <> 3";
    let short = "b.ts BETWEEN a.ts - 400 AND a.ts AND b.v + a.v <> 3";
    for (sql, pairs) in [
        // Three of eight rows, on average: the ranges of the first half begin before the first row.
        (of("many", long, "sum(b.v)"), Some(1.2e9)),
        (of("many", "true", "sum(b.v * a.v)"), Some(3.2e9)),
        (of("many", short, "sum(b.v)"), None),
        (of("many", "b.ts <= a.ts", "sum(b.v)"), None),
        (of("keyed", "true", "sum(b.v * a.v)"), None),
    ] {
        let shown = planned(&ctx, &sql).await;
        let note = shown.split("NoteExec: aggregates about ").nth(1);
        let found = note.and_then(|note| note.split(' ').next()?.parse::<f64>().ok());
        let is_close = match (found, pairs) {
            (Some(found), Some(pairs)) => (found / pairs - 1.0).abs() < 0.1,
            (found, pairs) => found.is_none() && pairs.is_none(),
        };
        assert!(is_close, "{sql}: {shown}");
    }
    // EXPLAIN shows how many rows of a range are compared.
    let shown = planned(&ctx, &of("many", long, "sum(b.v)")).await;
    let rows = shown.split("(row by row, ~").nth(1);
    let rows = rows.and_then(|rows| rows.split(' ').next()?.parse::<f64>().ok());
    assert!(
        rows.is_some_and(|rows| (rows / 15_000.0 - 1.0).abs() < 0.1),
        "{shown}"
    );
}

/// A session without the rules of DataFusion beside which ours stand gets a warning for each place.
fn rules_without_a_place() {
    LINES.set(Some(vec![]));
    let without = |names: &[&str]| {
        let mut rules = Optimizer::new().rules;
        rules.retain(|rule| !names.contains(&rule.name()));
        let mut physical = PhysicalOptimizer::new().rules;
        physical.retain(|rule| !names.contains(&rule.name()));
        SessionStateBuilder::new_with_default_features()
            .with_optimizer_rules(rules)
            .with_physical_optimizer_rules(physical)
            .with_rmq()
            .build()
    };
    without(&[]);
    assert_eq!(LINES.take(), Some(vec![]), "of a session with all rules");
    let missing = [
        (
            "single_distinct_aggregation_to_group_by",
            "rmq_distinct_grouped_join",
        ),
        (EnsureRequirements::new().name(), "rmq_keep_row_order"),
        (EnsureRequirements::new().name(), "rmq_show_row_order"),
    ]
    .map(|(theirs, ours)| (theirs.to_string(), ours));
    LINES.set(Some(vec![]));
    without(&missing.each_ref().map(|(theirs, _)| theirs.as_str()));
    let lines = LINES.take().unwrap_or_default();
    assert_eq!(lines.len(), missing.len(), "{lines:#?}");
    for (theirs, ours) in missing {
        let found = |line: &String| line.contains(&theirs) && line.contains(ours);
        assert!(lines.iter().any(found), "{theirs}, {ours}: {lines:#?}");
    }
}

#[tokio::test]
async fn the_tree_of_explain_has_the_whole_range() {
    let ctx = tables().await;
    let aggregates = (0..20).map(|i| format!("min(p.close + {i}) AS low_of_many_{i}"));
    let aggregates = aggregates.collect::<Vec<_>>().join(", ");
    let sql = format!(
        "SELECT t.id, {aggregates} FROM trades t JOIN prices p ON p.ts BETWEEN t.ts - 123456 AND t.ts + 654321 GROUP BY t.id"
    );
    let tree = run(&ctx, &format!("EXPLAIN FORMAT TREE {sql}")).await;
    let tree = text(tree.expect(&sql));
    assert!(tree.contains("RangeJoinExec"), "{tree}");
    assert!(tree.contains("123456") && tree.contains("654321"), "{tree}");
}
