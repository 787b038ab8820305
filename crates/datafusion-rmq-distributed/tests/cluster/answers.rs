//! Queries return what one node returns, ties included, with their joins in several tasks.

use std::sync::Arc;

use datafusion::arrow::array::AsArray;
use datafusion::arrow::compute::{cast, concat_batches};
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use datafusion_distributed::{NetworkBoundaryExt, display_plan_ascii};
use datafusion_rmq::physical_plan::RangeJoinExec;
use datafusion_rmq::{JoinModeChoice, RmqOptions, SessionStateBuilderExt};
use datafusion_rmq_distributed::worker;
use datafusion_rmq_proto::RmqCodec;

use crate::queries::{QUERIES, TABLES};
use crate::support::{
    CLUSTER, Workers, distributed, distributed_in, lines, local, move_to, move_to_files, run, start,
};

#[tokio::test(flavor = "multi_thread")]
async fn workers_return_what_one_node_returns() {
    let one = local();
    for table in TABLES {
        run(&one, table).await;
    }
    move_to_files(&one).await.expect("files");
    let mut several = 0;
    for mode in [JoinModeChoice::Collected, JoinModeChoice::Partitioned] {
        let ctx = distributed(CLUSTER.clone(), mode);
        for name in ["p", "q"] {
            let table = one.table_provider(name).await.expect("a table");
            ctx.register_table(name, table).expect("a new table");
        }
        for ctx in [&one, &ctx] {
            run(ctx, "SET rmq.range_joins = 'always'").await;
        }
        for (sql, _) in QUERIES {
            let frame = datafusion_rmq::sql(&ctx, sql).await.expect(sql);
            let plan = frame.create_physical_plan().await;
            let plan = plan.unwrap_or_else(|e| panic!("{sql}: {e}"));
            several += usize::from(most_tasks_of_joins(&plan, 1) > 1);
            let expected = lines(&one, sql).await.expect(sql);
            let found = lines(&ctx, sql).await;
            let text = || display_plan_ascii(plan.as_ref(), false);
            let found = found.unwrap_or_else(|e| panic!("{mode}: {sql}: {e}\n{}", text()));
            assert!(expected.len() > 4, "{sql} has rows");
            assert!(found == expected, "{mode}: {sql}\n{}\n{found:#?}", text());
        }
    }
    println!("range joins in several tasks: {several}");
    assert!(several >= 15, "{several}");
}

/// The most tasks of a stage with a range join.
pub fn most_tasks_of_joins(plan: &Arc<dyn ExecutionPlan>, tasks: usize) -> usize {
    let boundary = plan.as_network_boundary();
    let tasks = boundary.map_or(tasks, |boundary| boundary.input_stage().task_count());
    let own = if plan.is::<RangeJoinExec>() { tasks } else { 0 };
    let children = plan.children().into_iter();
    let below = children.map(|child| most_tasks_of_joins(child, tasks));
    below.max().unwrap_or(0).max(own)
}

/// Which joins are divided.
#[tokio::test(flavor = "multi_thread")]
async fn plans_show_their_stages() {
    let ctx = distributed(CLUSTER.clone(), JoinModeChoice::Collected);
    for table in TABLES {
        run(&ctx, table).await;
    }
    move_to_files(&ctx).await.expect("files");
    run(&ctx, "SET rmq.range_joins = 'always'").await;
    let plan = |sql: &'static str| {
        let ctx = ctx.clone();
        async move {
            let frame = ctx.sql(sql).await.expect(sql);
            frame.create_physical_plan().await.expect(sql)
        }
    };
    // Each task has the whole searched side.
    let sql =
        "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.g = q.g AND p.k BETWEEN q.k AND q.b) FROM q";
    let text = display_plan_ascii(plan(sql).await.as_ref(), false);
    assert!(text.contains("BroadcastExec"), "{text}");
    for (sql, tasks) in [
        // Rows of the searched side are returned by whether they matched.
        (
            "SELECT q.id, p.id FROM q FULL JOIN p ON p.g = q.g AND p.k BETWEEN q.k AND q.b",
            1,
        ),
        // Which row comes first decides: each task reads them in the order of the files.
        (
            "SELECT q.id, (SELECT p.s FROM p WHERE p.g = q.g AND p.k <= q.k ORDER BY p.k DESC LIMIT 1) FROM q",
            3,
        ),
    ] {
        let plan = plan(sql).await;
        let text = display_plan_ascii(plan.as_ref(), false);
        assert_eq!(most_tasks_of_joins(&plan, 1), tasks, "{text}");
    }
}

/// The planner divides both sides where the searched one is large, and sends it where it is small.
#[tokio::test(flavor = "multi_thread")]
async fn modes_are_chosen_by_cost() {
    let ctx = distributed(CLUSTER.clone(), JoinModeChoice::Auto);
    for table in [
        "CREATE TABLE large AS SELECT value AS id, value % 7 AS g, value AS k FROM generate_series(1, 20000) AS t(value)",
        "CREATE TABLE small AS SELECT * FROM large WHERE id < 200",
    ] {
        run(&ctx, table).await;
    }
    move_to_files(&ctx).await.expect("files");
    for (streamed, searched, equality, mode) in [
        ("small", "large", "b.g = a.g AND", "mode=Partitioned"),
        ("large", "small", "b.g = a.g AND", "mode=Collected"),
        ("small", "large", "", "mode=Collected"),
    ] {
        let sql = format!(
            "SELECT a.id, (SELECT max(b.id) FROM {searched} b WHERE {equality} b.k BETWEEN a.k AND a.k + 9) FROM {streamed} a"
        );
        for (option, expected) in [("auto", mode), ("collected", "mode=Collected")] {
            run(&ctx, &format!("SET rmq.join_mode = '{option}'")).await;
            let plan = ctx
                .sql(&sql)
                .await
                .expect(&sql)
                .create_physical_plan()
                .await;
            let text = display_plan_ascii(plan.expect(&sql).as_ref(), false);
            assert!(text.contains(expected), "{option}: {sql}\n{text}");
        }
    }
}

/// A worker keeps the sorted side that it has read of files, and finds it for the next query.
#[tokio::test(flavor = "multi_thread")]
async fn searched_sides_of_files_are_kept_on_workers() {
    let codec = RmqCodec::default();
    let workers = (0..2).map(|_| start(worker(&codec, &RmqOptions::default())));
    let ctx = distributed(Workers::new(workers.collect()), JoinModeChoice::Collected);
    for table in TABLES {
        run(&ctx, table).await;
    }
    move_to_files(&ctx).await.expect("files");
    run(&ctx, "SET rmq.range_joins = 'always'").await;
    // Files that were written a moment ago may change unseen.
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    let sql = "SELECT q.id, (SELECT p.s FROM p WHERE p.g = q.g AND p.k <= q.k ORDER BY p.k DESC LIMIT 1) FROM q";
    let builder = SessionStateBuilder::new_with_default_features();
    let state = builder.with_rmq_sharing(codec.indexes()).build();
    let on_worker = SessionContext::new_with_state(state);
    let kept = "SELECT count(*) AS n, sum(hits) > 0 AS found FROM rmq_indexes()";
    let first = lines(&ctx, sql).await.expect(sql);
    assert_eq!(lines(&ctx, sql).await.expect(sql), first);
    let kept = lines(&on_worker, kept).await.expect(kept);
    assert!(kept.contains(&"| 1 | true  |".to_string()), "{kept:#?}");
}

/// A worker keeps the indexes of range functions over files, and builds them anew when a file has changed.
#[tokio::test(flavor = "multi_thread")]
async fn indexes_of_files_are_kept_on_workers() {
    let codec = RmqCodec::default();
    let workers = (0..2).map(|_| start(worker(&codec, &RmqOptions::default())));
    let ctx = distributed(Workers::new(workers.collect()), JoinModeChoice::Auto);
    let folder = tempfile::tempdir().expect("a folder");
    let write = |values: &'static str| {
        let file = folder.path().join("0.parquet");
        let copy = format!(
            "COPY (SELECT {values} AS v FROM generate_series(1, 3000) AS t(value)) TO '{}' STORED AS PARQUET",
            file.display()
        );
        async move {
            run(&SessionContext::new(), &copy).await;
            // Files that were written a moment ago may change unseen.
            tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
        }
    };
    write("value").await;
    let table = format!(
        "CREATE EXTERNAL TABLE p STORED AS PARQUET LOCATION '{}/'",
        folder.path().display()
    );
    run(&ctx, &table).await;
    run(
        &ctx,
        TABLES[1]
            .replace(
                "FROM p",
                "FROM (SELECT v AS id, v AS g, v AS k, v, 's' AS s, to_timestamp(v) AS ts FROM p)",
            )
            .as_str(),
    )
    .await;
    move_to_files(&ctx).await.expect("files");
    let builder = SessionStateBuilder::new_with_default_features();
    let state = builder.with_rmq_sharing(codec.indexes()).build();
    let on_worker = SessionContext::new_with_state(state);
    let kept = || async {
        let kept = "SELECT \"table\", \"column\", kind, rows, hits, arrow_cast(age, 'Int64') AS ms FROM rmq_indexes()";
        let batches = on_worker
            .sql(kept)
            .await
            .expect(kept)
            .collect()
            .await
            .expect(kept);
        let text = pretty_format_batches(&batches).expect("text").to_string();
        let batch = concat_batches(&batches[0].schema(), &batches).expect("one schema");
        let column = |name: &str| {
            let column =
                cast(batch.column_by_name(name).expect(name), &DataType::Int64).expect(name);
            column.as_primitive::<Int64Type>().values().to_vec()
        };
        (column("hits"), column("ms"), text)
    };
    let sql = "SELECT q.id, range_min('p.v', q.id % 300, q.id % 300 + 20), range_max('p.v', 0, q.id % 300) FROM q";
    let first = lines(&ctx, sql).await.expect(sql);
    let (hits, ages, text) = kept().await;
    assert_eq!(hits.len(), 2, "minima and maxima\n{text}");
    assert!(text.contains("| p "), "{text}");
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(lines(&ctx, sql).await.expect(sql), first);
    let (again, older, text) = kept().await;
    assert_eq!(again.len(), 2, "none is built\n{text}");
    let found = again.iter().zip(&hits).all(|(again, hits)| again > hits);
    let same = older
        .iter()
        .zip(&ages)
        .all(|(older, age)| *older >= age + 300);
    assert!(found && same, "{hits:?} {ages:?}\n{text}");

    write("4000 - value").await;
    let changed = lines(&ctx, sql).await.expect(sql);
    assert_ne!(changed, first);
    let (_, _, text) = kept().await;
    let one = local();
    for name in ["p", "q"] {
        let table = ctx.table_provider(name).await.expect("a table");
        one.register_table(name, table).expect("a new table");
    }
    assert_eq!(changed, lines(&one, sql).await.expect(sql));
    let (_, younger, _) = kept().await;
    assert_eq!(younger.len(), 2, "of the new file alone\n{text}");
}

/// Workers with a directory find the columns of files that earlier workers have read.
#[tokio::test(flavor = "multi_thread")]
async fn columns_of_files_are_found_by_the_next_workers() {
    let indexes = tempfile::tempdir().expect("a folder");
    let folder = tempfile::tempdir().expect("a folder");
    let one = local();
    for (file, values) in [(0, "value * 7919 % 1000"), (1, "value * 31 % 97 - 40")] {
        let file = folder.path().join(format!("{file}.parquet"));
        let copy = format!(
            "COPY (SELECT {values} AS v FROM generate_series(1, 3000) AS t(value)) TO '{}' STORED AS PARQUET",
            file.display()
        );
        run(&one, &copy).await;
    }
    // Files that were written a moment ago may change unseen.
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    let mut options = RmqOptions::default();
    options.index_directory = indexes.path().display().to_string();
    let sql = "SELECT q.id, range_min('p.v', q.id, q.id + 20), range_argmax('p.v', 0, q.id) FROM q";
    let tables = async |ctx: &SessionContext| {
        let table = format!(
            "CREATE EXTERNAL TABLE p STORED AS PARQUET LOCATION '{}/'",
            folder.path().display()
        );
        run(ctx, &table).await;
        run(
            ctx,
            "CREATE TABLE q AS SELECT value AS id FROM generate_series(1, 6000) AS t(value)",
        )
        .await;
        move_to_files(ctx).await.expect("files");
    };
    tables(&one).await;
    let expected = lines(&one, sql).await.expect(sql);
    for state in ["written", "loaded"] {
        let codec = RmqCodec::default();
        let workers = (0..2).map(|_| start(worker(&codec, &options)));
        let ctx = distributed(Workers::new(workers.collect()), JoinModeChoice::Auto);
        tables(&ctx).await;
        assert_eq!(lines(&ctx, sql).await.expect(sql), expected);
        let builder = SessionStateBuilder::new_with_default_features();
        let on_worker = builder.with_rmq_sharing(codec.indexes()).build();
        let on_worker = SessionContext::new_with_state(on_worker);
        let disk = "SELECT DISTINCT disk FROM rmq_indexes()";
        let mut shown = lines(&on_worker, disk).await.expect(disk).join("");
        while shown.contains("writing") {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            shown = lines(&on_worker, disk).await.expect(disk).join("");
        }
        assert!(shown.contains(state), "{shown}");
    }
}

/// Queries whose inputs have operators that need all rows, or only some of all.
const OF_ALL_ROWS: &[&str] = &[
    "SELECT q.id, (SELECT count(*) FROM (SELECT g, k FROM p GROUP BY g, k) b WHERE b.g = q.g AND b.k BETWEEN q.k AND q.b) FROM q",
    "SELECT q.id, (SELECT sum(b.n) FROM (SELECT g, max(k) AS k, count(*) AS n FROM p GROUP BY g) b WHERE b.g = q.g AND b.k >= q.k) FROM q",
    "SELECT q.id, (SELECT count(*) FROM (SELECT * FROM p ORDER BY id LIMIT 40) b WHERE b.k BETWEEN q.k AND q.k + 300) FROM q",
    "SELECT q.id, p.id FROM (SELECT * FROM q ORDER BY id LIMIT 10) q JOIN p ON p.g = q.g AND p.k BETWEEN q.k AND q.b",
    "SELECT count(*) FROM (SELECT * FROM q LIMIT 10) q LEFT JOIN p ON p.g = q.g AND p.k = q.k AND p.v BETWEEN q.k AND q.k",
    "SELECT q.n, q.id, p.id FROM (SELECT *, row_number() OVER (ORDER BY id) AS n FROM q) q JOIN p ON p.g = q.g AND p.k BETWEEN q.k AND q.b",
    "SELECT q.n, (SELECT min(p.v) FROM p WHERE p.k >= q.m) FROM (SELECT count(*) AS n, min(k) + 30 AS m FROM q) q",
    "SELECT q.id, q.s, (SELECT min(p.v) FROM p WHERE p.k >= q.s) FROM (SELECT id, sum(v) OVER (PARTITION BY g ORDER BY id ROWS 3 PRECEDING) AS s FROM q) q",
    "SELECT g, count(*), sum(n) FROM (SELECT q.g, (SELECT count(*) FROM p WHERE p.k >= q.k) AS n FROM q) GROUP BY g",
    "SELECT DISTINCT (SELECT min(p.v) FROM p WHERE p.g = q.g AND p.k >= q.k) FROM q",
];

/// Where a task has one partition, or a table has one file, DataFusion leaves out the exchanges at which a plan is
/// divided.
#[tokio::test(flavor = "multi_thread")]
async fn operators_of_all_rows_see_all_rows() {
    for (files_of_p, partitions) in [(5, 1), (5, 4), (1, 4)] {
        let one = local();
        run(&one, TABLES[0]).await;
        move_to(files_of_p, &one).await.expect("files");
        run(&one, TABLES[1]).await;
        move_to_files(&one).await.expect("files");
        run(&one, "SET rmq.range_joins = 'always'").await;
        for mode in [JoinModeChoice::Collected, JoinModeChoice::Partitioned] {
            let ctx = distributed_in(partitions, CLUSTER.clone(), mode);
            for name in ["p", "q"] {
                let table = one.table_provider(name).await.expect("a table");
                ctx.register_table(name, table).expect("a new table");
            }
            run(&ctx, "SET rmq.range_joins = 'always'").await;
            let of_codec = QUERIES.iter().map(|(sql, _)| sql);
            let of_codec = of_codec.filter(|_| (files_of_p, partitions) != (5, 4));
            for sql in OF_ALL_ROWS.iter().chain(of_codec) {
                let expected = lines(&one, sql).await.expect(sql);
                let found = lines(&ctx, sql).await;
                let found = found.unwrap_or_else(|e| panic!("{mode}: {sql}: {e}"));
                let case = format!("{files_of_p} files, {partitions} partitions, {mode}");
                assert!(found == expected, "{case}: {sql}\n{found:#?}");
            }
        }
    }
}
