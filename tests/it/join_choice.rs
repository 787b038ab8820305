//! Aggregates over joins of which few rows have equal keys stay as `DataFusion` plans them.

use std::sync::Arc;

use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::physical_plan::displayable;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_rmq::SessionStateBuilderExt;
use rmq_testing::{Random, cases_with_queries, is_usual};

use crate::range_join::{answer, lines};
use crate::support::{run, session_of_pool, set, with_extension};

/// The number of queries, unless `RMQ_CASES` overrides it.
const CASES: usize = 40;

/// Queries of one random number.
const QUERIES: usize = 10;

const TABLES: [&str; 2] = [
    "CREATE TABLE orders AS SELECT value AS id, value % 1000 AS day, value % 7 AS kind, value / 8.0 AS price FROM range(0, 14000)",
    "CREATE TABLE items AS SELECT value AS id, value / 4 AS key, CASE WHEN value % 200 <> 3 THEN value / 4 END AS some_key, \
     value * 37 % 1010 AS day, value % 5 AS n, CASE WHEN value % 50 <> 2 THEN (value % 3) / 4.0 END AS v, CASE value % 5 WHEN 0 THEN 'NaN'::DOUBLE WHEN 1 THEN -0.0 WHEN 2 THEN 0.0 ELSE value END AS w, \
     arrow_cast(value % 3, 'Utf8View') AS s FROM range(0, 56000)",
];

const JOIN: &str = "orders o JOIN items i ON i.key = o.id AND i.day BETWEEN o.day AND o.day + 100";

/// A session with `orders`, one a key, and four `items` of each key.
async fn with_tables(ctx: SessionContext) -> SessionContext {
    for table in TABLES {
        run(&ctx, table).await.expect(table);
    }
    ctx
}

fn config() -> SessionConfig {
    SessionConfig::new()
        .with_target_partitions(2)
        .with_information_schema(true)
}

async fn session() -> SessionContext {
    with_tables(with_extension(SessionContext::new_with_config(config()))).await
}

/// The physical plan as text.
async fn plan(ctx: &SessionContext, sql: &str) -> String {
    let plan = ctx.sql(sql).await.expect(sql).create_physical_plan().await;
    let plan = plan.unwrap_or_else(|error| panic!("{sql}: {error}"));
    displayable(plan.as_ref()).indent(false).to_string()
}

fn pick<'a>(random: &mut Random, from: &[&'a str]) -> &'a str {
    from[random.below(from.len())]
}

/// An aggregate over a join, somewhere in a query.
fn query(random: &mut Random) -> String {
    let join = pick(random, &["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN"]);
    let key = pick(random, &["key", "some_key"]);
    let range = pick(
        random,
        &[
            "i.day BETWEEN o.day AND o.day + 100",
            "i.day > o.day",
            "i.day < o.day + 50 AND i.n <> 2",
            "i.day >= o.day AND i.day < o.day + (SELECT max(n) FROM items)",
        ],
    );
    let (left, right) = match random.below(3) {
        0 => ("items i", "orders o"),
        _ => ("orders o", "items i"),
    };
    let groups: Vec<_> = (0..random.below(3))
        .map(|_| {
            let group = [
                "o.id",
                "o.kind",
                "i.key",
                "i.some_key",
                "o.price",
                "o.id % 10",
            ];
            pick(random, &group)
        })
        .collect();
    let aggregates: Vec<_> = (0..=random.below(3))
        .map(|place| {
            let call = [
                "count(*)",
                "sum(i.n)",
                "min(i.v)",
                "max(i.v)",
                "avg(i.n)",
                "min(i.s)",
                "count(i.v) FILTER (WHERE i.n > 1)",
                "max(o.price)",
                "count(DISTINCT i.n)",
                "min(DISTINCT i.v)",
                "sum(i.n + 1)",
                "bit_or(i.n)",
            ];
            format!("{} AS a{place}", pick(random, &call))
        })
        .collect();
    let named = groups.iter().enumerate();
    let named = named.map(|(place, group)| format!("{group} AS g{place}"));
    let columns: Vec<_> = named.chain(aggregates).collect();
    let by = match (groups.is_empty(), random.below(8)) {
        (true, _) => String::new(),
        (_, 0) => format!(" GROUP BY ROLLUP ({})", groups.join(", ")),
        _ => format!(" GROUP BY {}", groups.join(", ")),
    };
    let having = pick(random, &["", "", "", " HAVING count(*) > 1"]);
    let sql = format!(
        "SELECT {} FROM {left} {join} {right} ON i.{key} = o.id AND {range}{by}{having}",
        columns.join(", ")
    );
    match random.below(8) {
        0 => format!("SELECT count(*), min(a0) FROM ({sql})"),
        1 => {
            format!("WITH w AS ({sql}) SELECT * FROM w UNION ALL SELECT * FROM w WHERE a0 IS NULL")
        }
        2 => format!("SELECT x.a0, o.kind FROM ({sql}) x JOIN orders o ON o.id = x.a0"),
        3 => format!("SELECT a0, count(*) OVER (PARTITION BY a0) FROM ({sql})"),
        4 => format!("SELECT * FROM ({sql}) WHERE random() < -1"),
        5 => format!(
            "SELECT i.n, sum(x.a0) FROM items i JOIN (SELECT {key} AS k, count(*) AS a0 FROM {JOIN} GROUP BY {key}) x ON x.k = i.key AND i.day > x.a0 GROUP BY i.n"
        ),
        _ => sql,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_queries_return_what_datafusion_returns() {
    let (with, always, without) = (session().await, session().await, session().await);
    set(&always, "rmq.range_joins", "always");
    set(&without, "rmq.rewrite", "false");
    let (mut asked, mut left) = (0, 0);
    for seed in cases_with_queries("choices of joins", &[], CASES, QUERIES) {
        let random = &mut Random::of_case(seed);
        for _ in 0..QUERIES {
            let sql = query(random);
            let Ok((expected, _)) = answer(&without, &sql).await else {
                continue;
            };
            let (ranged, is_range_join) = answer(&always, &sql)
                .await
                .unwrap_or_else(|error| panic!("seed {seed}: {sql}: {error}"));
            assert_eq!(ranged, expected, "seed {seed}: {sql}");
            // In a table, the schema that was planned must be that of the rows.
            let stored = format!("CREATE OR REPLACE TABLE stored AS SELECT * FROM ({sql})");
            if sql.starts_with("SELECT") && !sql.contains("random") && random.below(4) == 0 {
                run(&with, &stored)
                    .await
                    .unwrap_or_else(|error| panic!("seed {seed}: {sql}: {error}"));
            }
            let (found, is_left) = answer(&with, &sql)
                .await
                .unwrap_or_else(|error| panic!("seed {seed}: {sql}: {error}"));
            assert_eq!(found, expected, "seed {seed}: {sql}");
            asked += 1;
            left += usize::from(is_range_join && !is_left);
        }
    }
    println!("choices of joins: {left} of {asked} queries were left to DataFusion");
    assert!(!is_usual() || left * 4 > asked, "{left} of {asked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn few_rows_with_equal_keys_are_left_to_datafusion() {
    let (with, without) = (session().await, session().await);
    set(&without, "rmq.rewrite", "false");
    for sql in [
        format!("SELECT count(*), sum(i.n) FROM {JOIN}"),
        format!("SELECT o.id, min(i.n) AS least, avg(i.n) FROM {JOIN} GROUP BY o.id"),
        format!("SELECT o.id, count(DISTINCT i.n) FROM {JOIN} GROUP BY o.id"),
        format!(
            "SELECT kind, sum(n) FROM (SELECT o.kind, min(i.n) AS n FROM {JOIN} GROUP BY o.id, o.kind) GROUP BY kind"
        ),
        format!("SELECT sum(i.n) FROM {JOIN} HAVING max(i.n) > (SELECT min(n) FROM items)"),
    ] {
        let text = plan(&with, &sql).await;
        assert!(text.contains("HashJoinExec"), "{sql}\n{text}");
        // Each of them is planned once.
        let subqueries = sql.matches("(SELECT min(n)").count();
        assert_eq!(
            text.matches("ScalarSubqueryExec").count(),
            subqueries,
            "{sql}\n{text}"
        );
        let (expected, _) = answer(&without, &sql).await.expect(&sql);
        assert_eq!(
            answer(&with, &sql).await.expect(&sql),
            (expected, false),
            "{sql}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_joins_are_range_joins() {
    let ctx = session().await;
    let sql = format!("SELECT o.kind, sum(i.n) FROM {JOIN} GROUP BY o.kind");
    let (expected, is_range_join) = answer(&ctx, &sql).await.expect(&sql);
    assert!(!is_range_join, "{sql}");
    for sql in [
        sql.replace("i.key = o.id", "i.key % 10 = o.kind"),
        sql.replace("items i", "(SELECT * FROM items LIMIT 100) i"),
        // Of ties, any row would do for DataFusion.
        sql.replace("sum(i.n)", "first_value(i.id ORDER BY i.n)"),
    ] {
        let text = plan(&ctx, &sql).await;
        assert!(text.contains("RangeJoinExec"), "{sql}\n{text}");
    }
    set(&ctx, "rmq.range_joins", "always");
    assert_eq!(answer(&ctx, &sql).await.expect(&sql), (expected, true));
}

/// Many rows have equal days although each has another time.
#[tokio::test(flavor = "multi_thread")]
async fn keys_are_sampled_as_they_are_compared() {
    let (with, without) = (session().await, session().await);
    set(&without, "rmq.rewrite", "false");
    for ctx in [&with, &without] {
        let points = "CREATE TABLE points AS SELECT value AS id, arrow_cast(value * 60, 'Timestamp(Second, None)') AS ts FROM range(0, 4000)";
        run(ctx, points).await.expect(points);
    }
    for (key, table, is_range_join) in [
        ("CAST(p.ts AS DATE) = CAST(q.ts AS DATE)", "points", true),
        (
            "date_trunc('day', p.ts) = date_trunc('day', q.ts)",
            "points",
            true,
        ),
        ("p.id / 1000 = q.id / 1000", "points", true),
        ("p.id / 4 = q.id / 4", "items", false),
        (
            "date_trunc('minute', to_timestamp_seconds(p.id * 30)) = date_trunc('minute', to_timestamp_seconds(q.id * 30))",
            "items",
            false,
        ),
    ] {
        let sql = format!(
            "SELECT q.id, count(*), max(p.id) FROM {table} q JOIN {table} p ON {key} AND p.id <= q.id GROUP BY q.id"
        );
        let (expected, _) = answer(&without, &sql).await.expect(&sql);
        let (found, with_range_join) = answer(&with, &sql).await.expect(&sql);
        assert!(found == expected, "{sql}");
        assert_eq!(with_range_join, is_range_join, "{sql}");
    }
}

/// NaNs and zeros of both signs are in total order in either plan.
#[tokio::test(flavor = "multi_thread")]
async fn extremes_of_floats_do_not_depend_on_the_choice() {
    let (with, always) = (session().await, session().await);
    set(&always, "rmq.range_joins", "always");
    let extremes = "min(i.w), max(i.w), max(arrow_cast(i.w, 'Dictionary(Int32, Float64)'))";
    for (groups, by) in [
        ("", ""),
        ("o.kind, ", " GROUP BY o.kind"),
        ("o.id, ", " GROUP BY o.id"),
    ] {
        let sql = format!("SELECT {groups}{extremes} FROM {JOIN}{by}");
        let (expected, is_range_join) = answer(&always, &sql).await.expect(&sql);
        assert!(is_range_join, "{sql}");
        assert_eq!(
            answer(&with, &sql).await.expect(&sql),
            (expected, false),
            "{sql}"
        );
    }
}

/// A hash join cannot spill.
#[tokio::test(flavor = "multi_thread")]
async fn joins_that_exceed_the_memory_limit_are_range_joins() {
    let sql = format!("SELECT o.kind, sum(i.n), count(*) FROM {JOIN} GROUP BY o.kind");
    let (expected, _) = answer(&session().await, &sql).await.expect(&sql);
    for (limit, is_range_join) in [(1 << 20, true), (64 << 20, false)] {
        let pool = Arc::new(GreedyMemoryPool::new(limit));
        let ctx = with_tables(session_of_pool(config(), pool)).await;
        let found = answer(&ctx, &sql).await.expect(&sql);
        assert_eq!(found, (expected.clone(), is_range_join), "{limit} bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prepared_statements_sort_merge_joins_and_sessions_of_a_builder_work() -> Result<()> {
    // A builder's session creates its default catalog when it is built.
    let builder = SessionStateBuilder::new_with_default_features().with_config(config());
    let ctx = SessionContext::new_with_state(builder.with_rmq().build());
    let ctx = with_tables(ctx).await;
    let sql = format!("SELECT o.kind, sum(i.n) FROM {JOIN} WHERE o.kind > 2 GROUP BY o.kind");
    let (expected, is_range_join) = answer(&ctx, &sql).await?;
    assert!(!is_range_join);
    assert_eq!(answer(&ctx, &sql).await?.0, expected);
    let statement = sql.replace("> 2", "> $1");
    run(&ctx, &format!("PREPARE p AS {statement}")).await?;
    assert_eq!(lines(&[run(&ctx, "EXECUTE p(2)").await?]), expected);
    let explained = lines(&[run(&ctx, &format!("EXPLAIN {sql}")).await?]).join("\n");
    assert!(
        explained.contains("Inner Join: ") && explained.contains("HashJoinExec"),
        "{explained}"
    );
    set(&ctx, "datafusion.optimizer.prefer_hash_join", "false");
    assert!(plan(&ctx, &sql).await.contains("SortMergeJoinExec"));
    assert_eq!(answer(&ctx, &sql).await?.0, expected);
    Ok(())
}

/// Differences of integers are ranges of a join with GROUP BY where the statistics of files show that they can't wrap.
#[tokio::test(flavor = "multi_thread")]
async fn differences_are_ranges_where_statistics_show_that_they_do_not_wrap() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let ctx = session().await;
    set(&ctx, "rmq.range_joins", "always");
    let near = i64::MAX - 29;
    for (name, last) in [("small", 7), ("large", near)] {
        let file = path(&format!("{name}.parquet"));
        for sql in [
            format!(
                "COPY (SELECT id, kind, arrow_cast(id, 'Int32') AS narrow, arrow_cast(id, 'UInt64') AS unsigned, \
                 arrow_cast(id, 'Decimal128(20, 2)') AS price FROM orders WHERE id < 2000 \
                 UNION ALL SELECT {last}, 7, 3, arrow_cast(3, 'UInt64'), arrow_cast(3.5, 'Decimal128(20, 2)')) TO '{file}' STORED AS PARQUET"
            ),
            format!("CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{file}'"),
            format!("CREATE TABLE {name}_in_memory AS SELECT * FROM {name}"),
        ] {
            run(&ctx, &sql).await.expect(&sql);
        }
    }
    for (table, condition, is_range) in [
        ("small", "abs(b.id - a.id) <= 30", true),
        ("small", "b.id - a.id BETWEEN -2 AND 30", true),
        ("small", "abs(b.narrow - a.narrow) < 30", true),
        ("small", "abs(b.unsigned - a.unsigned) < 30", false),
        // Decimals have room for their difference.
        ("small", "abs(b.price - a.price) < 30", true),
        ("small", "b.id - a.id >= -2", false),
        ("large", "abs(b.id - a.id) <= 30", false),
        ("large", "abs(b.id - a.id) <= 29", true),
        ("large", "30 >= a.id - b.id AND a.id - b.id > -30", false),
    ] {
        for (table, filter) in [
            (table.to_string(), "true"),
            (table.to_string(), "a.id % 5 = 0"),
            (format!("{table}_in_memory"), "a.id % 5 = 0"),
        ] {
            let of = |join: &str| {
                format!(
                    "SELECT a.kind, count(*), max(b.id), sum(b.kind) FROM {table} a {join} {table} b ON b.kind = a.kind AND {condition} \
                     WHERE {filter} GROUP BY a.kind"
                )
            };
            for sql in [of("JOIN"), of("LEFT JOIN")] {
                let text = plan(&ctx, &sql).await;
                assert_eq!(text.contains("aggs=["), is_range, "{sql}: {text}");
                set(&ctx, "rmq.rewrite", "false");
                let (expected, _) = answer(&ctx, &sql).await.expect(&sql);
                set(&ctx, "rmq.rewrite", "true");
                let (found, _) = answer(&ctx, &sql).await.expect(&sql);
                assert_eq!(found, expected, "{sql}");
            }
        }
    }
}

/// Each level of nesting is planned once more, not twice as often.
#[tokio::test(flavor = "multi_thread")]
async fn nested_choices_are_planned_in_proportion_to_their_depth() {
    let ctx = session().await;
    let mut sql = "SELECT id, day, kind FROM orders".to_owned();
    for _ in 0..12 {
        sql = format!(
            "SELECT o.id, max(o.day) AS day, min(i.n) AS kind FROM ({sql}) o JOIN items i ON i.key = o.id AND i.day BETWEEN o.day AND o.day + 100 GROUP BY o.id"
        );
    }
    let text = plan(&ctx, &sql).await;
    assert_eq!(
        text.matches("HashJoinExec").count() + text.matches("RangeJoinExec").count(),
        12,
        "{text}"
    );
}
