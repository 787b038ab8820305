//! Ties: of rows with equal keys, a range join chooses the first in scan order, whatever the number of threads.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::datasource::MemTable;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_expr::Partitioning;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_rmq::SessionStateBuilderExt;

use crate::range_join::metric;
use crate::spilling::ForRangeJoins;
use crate::support::{bigint, register, run, session_of_pool};

/// A session with this many partitions.
fn session(partitions: usize, batch_size: usize) -> SessionContext {
    let config = config(partitions, batch_size);
    let ctx = SessionContext::new_with_config(config);
    datafusion_rmq::register(&ctx);
    ctx
}

fn config(partitions: usize, batch_size: usize) -> SessionConfig {
    SessionConfig::new()
        .with_target_partitions(partitions)
        .with_batch_size(batch_size)
}

/// Three files whose rows all have one key. The first takes longest to be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_first_row_of_several_files_comes_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let writer = session(1, 8192);
    for (name, rows, v) in [
        ("a", 400_000, "value"),
        ("b", 5, "-value"),
        ("c", 5, "-1000 - value"),
    ] {
        let sql = format!(
            "COPY (SELECT 1 AS k, {v} AS v FROM range(1, {rows} + 1)) TO '{}' STORED AS PARQUET",
            path(&format!("{name}.parquet"))
        );
        run(&writer, &sql).await.expect(&sql);
    }
    for partitions in [1, 2, 4, 8] {
        let ctx = session(partitions, 8192);
        let table = format!(
            "CREATE EXTERNAL TABLE p STORED AS PARQUET LOCATION '{}'",
            path("")
        );
        run(&ctx, &table).await.expect(&table);
        run(
            &ctx,
            "CREATE TABLE q AS SELECT value AS id FROM range(1, 40)",
        )
        .await
        .expect("q");
        let subquery = |chosen: &str, p: &str| {
            format!(
                "SELECT min(m) + max(m) AS m FROM (SELECT (SELECT {chosen} FROM {p} WHERE p.k <= q.id) AS m FROM q)"
            )
        };
        let union = "(SELECT * FROM p WHERE v < 0 UNION ALL SELECT * FROM p) p";
        let filtered = "(SELECT k, v * 3 AS v FROM p WHERE v > 5 OR v < 0) p";
        let prevailing = "SELECT min(m) + max(m) AS m FROM \
            range_join('q', 'p', '', 'p.k > q.id', 'first_value(v ORDER BY k) AS m', 'include prevailing')";
        let queries = [
            (subquery("first_value(p.v ORDER BY p.k)", "p"), 2),
            (subquery("last_value(p.v ORDER BY p.k)", "p"), 2),
            (subquery("first_value(p.v ORDER BY p.v * 0)", "p"), 2),
            (subquery("first_value(p.v ORDER BY p.k)", filtered), 36),
            (subquery("first_value(p.v ORDER BY p.k)", union), -2),
            (prevailing.to_string(), -2010),
        ];
        for (sql, expected) in queries {
            for _ in 0..6 {
                let found = bigint(&ctx, &sql).await;
                assert_eq!(found, Some(expected), "{partitions} partitions: {sql}");
            }
        }
    }
}

/// The rows of the build side in order, and in batches of different lengths in several partitions.
struct Searched {
    /// The range key, another column to order by, and a unique number.
    rows: Vec<[i64; 3]>,
    partitions: Vec<Vec<RecordBatch>>,
}

impl Searched {
    fn new(partitions: usize, rows: usize) -> Self {
        let numbers = |i: i64| [i * 7919 % 23, i * 31 % 5, i];
        let rows: Vec<_> = (0..rows as i64).map(numbers).collect();
        let mut cut = vec![vec![]; partitions];
        let (mut start, mut length) = (0, 7);
        while start < rows.len() {
            let here = &rows[start..rows.len().min(start + length)];
            let columns = ["k", "w", "v"].into_iter().enumerate().map(|(i, name)| {
                let values = here.iter().map(|row| row[i]);
                (
                    name,
                    Arc::new(Int64Array::from_iter_values(values)) as ArrayRef,
                )
            });
            let batch = RecordBatch::try_from_iter(columns).expect("columns of one length");
            cut[start * partitions / rows.len()].push(batch);
            start += length;
            length = length * 5 % 97 + 3;
        }
        Self {
            rows,
            partitions: cut,
        }
    }

    fn register(&self, ctx: &SessionContext) {
        let schema = self.partitions[0][0].schema();
        let table = MemTable::try_new(schema, self.partitions.clone());
        let table = table.expect("batches of one schema");
        ctx.register_table("p", Arc::new(table))
            .expect("a new name");
        let ids = Arc::new(Int64Array::from_iter_values(0..60)) as ArrayRef;
        register(ctx, "q", &[("id", ids)], &[20]);
    }

    /// The rows that each of [`queries`] chooses among those that `keeps` accepts.
    fn expected(&self, id: i64, keeps: impl Fn(i64) -> bool) -> [Option<i64>; 5] {
        let all = || self.rows.iter().filter(|row| keeps(row[2]));
        let (low, high) = window(id);
        let within = || all().filter(|row| (low..=high).contains(&row[0]));
        let v = |row: Option<&[i64; 3]>| row.map(|row| row[2]);
        let first = within().min_by_key(|row| row[0]);
        // The first row with the greatest key.
        let last = within().min_by_key(|row| -row[0]);
        let least = within().min_by_key(|row| (row[1], row[0]));
        let most = within().min_by_key(|row| (-row[1], row[0]));
        // The last row with the greatest key that is not above the bound.
        let before = all().filter(|row| row[0] <= low).max_by_key(|row| row[0]);
        // A row at the lower bound is inside the window.
        let at_bound = within().find(|row| row[0] == low);
        let prevailing = at_bound.or(before).or(first);
        [v(first), v(last), v(least), v(most), v(prevailing)]
    }
}

fn window(id: i64) -> (i64, i64) {
    (id % 20 - 1, id % 20 - 1 + id % 4)
}

/// Values that subqueries choose from `p`, and the prevailing row.
fn queries(p: &str) -> [String; 2] {
    let window = "p.k BETWEEN q.id % 20 - 1 AND q.id % 20 - 1 + q.id % 4";
    let chosen = [
        "first_value(p.v ORDER BY p.k)",
        "last_value(p.v ORDER BY p.k)",
        "first_value(p.v ORDER BY p.w)",
        "first_value(p.v ORDER BY p.w DESC)",
    ];
    let subqueries = chosen.map(|c| format!("(SELECT {c} FROM {p} WHERE {window})"));
    [
        format!(
            "SELECT q.id, {} FROM q ORDER BY q.id",
            subqueries.join(", ")
        ),
        format!(
            "SELECT id, v FROM range_join('q', '{p}', '', '{window}', 'first_value(v ORDER BY k) AS v', 'include prevailing') ORDER BY id"
        ),
    ]
}

/// The rows of a result of BIGINTs.
async fn numbers(ctx: &SessionContext, sql: &str) -> Result<(Vec<Vec<Option<i64>>>, usize)> {
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
    let mut rows = vec![];
    for batch in batches {
        let columns = batch
            .columns()
            .iter()
            .map(|c| c.as_primitive::<Int64Type>());
        let columns: Vec<Vec<_>> = columns.map(|c| c.iter().collect()).collect();
        rows.extend((0..batch.num_rows()).map(|i| columns.iter().map(|c| c[i]).collect()));
    }
    Ok((rows, metric(&plan, "spill_count")))
}

type Keeps = fn(i64) -> bool;

/// Build sides made from `p`, and which of its rows they have.
const TABLES: [(&str, Keeps); 5] = [
    ("p", |_| true),
    ("(SELECT * FROM p WHERE v % 3 <> 0) AS p", |v| v % 3 != 0),
    (
        "(SELECT k + 0 AS k, w, v FROM p WHERE v % 7 <> 1 AND w + v > 40) AS p",
        |v| v % 7 != 1 && v * 31 % 5 + v > 40,
    ),
    (
        "(SELECT * FROM p WHERE v < 900 UNION ALL SELECT * FROM p WHERE v >= 900) AS p",
        |_| true,
    ),
    (
        "(SELECT * FROM (SELECT v, w, k FROM p UNION ALL SELECT * FROM (SELECT v, w, k FROM p) WHERE v % 2 = 0) WHERE v % 5 > 0) AS p",
        |v| v % 5 > 0,
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_first_row_of_a_table_in_memory_comes_first() {
    for partitions in [1, 2, 9] {
        let searched = Searched::new(partitions, 2000);
        for target in [1, 3, 8] {
            let ctx = session(target, 50);
            searched.register(&ctx);
            for (p, keeps) in TABLES {
                let expected: Vec<_> = (0..60).map(|id| searched.expected(id, keeps)).collect();
                let [chosen, prevailing] = queries(p);
                let what = format!("{partitions} partitions of {target}");
                for _ in 0..2 {
                    let (found, _) = numbers(&ctx, &chosen).await.expect(&chosen);
                    for (id, expected) in expected.iter().enumerate() {
                        assert_eq!(
                            found[id][1..],
                            expected[..4],
                            "{what}: row {id} of {chosen}"
                        );
                    }
                    if p.contains("v % 2 = 0") {
                        // Of duplicated rows the last differs.
                        continue;
                    }
                    let (found, _) = numbers(&ctx, &prevailing).await.expect(&prevailing);
                    for (id, expected) in expected.iter().enumerate() {
                        assert_eq!(
                            found[id][1], expected[4],
                            "{what}: row {id} of {prevailing}"
                        );
                    }
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_first_row_comes_first_from_disk() {
    for (partitions, target) in [(1, 4), (3, 3), (5, 2)] {
        let searched = Searched::new(partitions, 12_000);
        for (p, keeps) in TABLES {
            let expected: Vec<_> = (0..60).map(|id| searched.expected(id, keeps)).collect();
            let [chosen, _] = queries(p);
            // More and more memory until it suffices.
            let mut limit = 32 << 10;
            loop {
                let pool = ForRangeJoins::new(limit);
                let ctx = session_of_pool(config(target, 50), pool);
                searched.register(&ctx);
                match numbers(&ctx, &chosen).await {
                    Ok((found, files)) => {
                        for (id, expected) in expected.iter().enumerate() {
                            let what =
                                format!("{partitions} partitions of {target}, {files} files");
                            assert_eq!(
                                found[id][1..],
                                expected[..4],
                                "{what}: row {id} of {chosen}"
                            );
                        }
                        assert!(files > 4, "{files} files: {chosen}");
                        break;
                    }
                    Err(error) => {
                        let root = error.find_root();
                        let exhausted = matches!(root, DataFusionError::ResourcesExhausted(_));
                        assert!(exhausted && limit < 4 << 20, "{chosen}: {error}");
                    }
                }
                limit *= 2;
            }
        }
    }
}

/// A rule that distributes the rows of the build side over three partitions, as other extensions may do.
#[derive(Debug)]
struct Deal;

impl PhysicalOptimizerRule for Deal {
    fn name(&self) -> &'static str {
        "deal"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = plan.transform_up(|plan| {
            let inputs: Vec<_> = plan.children().into_iter().cloned().collect();
            let [probe, build] = inputs.as_slice() else {
                return Ok(Transformed::no(plan));
            };
            let dealt = Partitioning::RoundRobinBatch(3);
            let dealt = Arc::new(RepartitionExec::try_new(Arc::clone(build), dealt)?);
            let children = vec![Arc::clone(probe), dealt as _];
            let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            Ok(Transformed::yes(plan.replace_children(children, options)?))
        })?;
        Ok(plan.data)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_side_in_several_partitions_is_read_to_its_end() {
    let state = SessionStateBuilder::new()
        .with_config(config(1, 50))
        .with_default_features()
        .with_rmq()
        .with_physical_optimizer_rule(Arc::new(Deal))
        .build();
    let ctx = SessionContext::new_with_state(state);
    let searched = Searched::new(2, 2000);
    searched.register(&ctx);
    let sql = "SELECT q.id, (SELECT count(*) FROM p WHERE p.k <= q.id) AS n, (SELECT max(p.v) FROM p WHERE p.k <= q.id AND p.k > 3) AS m \
        FROM q ORDER BY q.id";
    let plan = ctx
        .sql(sql)
        .await
        .expect(sql)
        .create_physical_plan()
        .await
        .expect(sql);
    let plan = datafusion::physical_plan::displayable(plan.as_ref())
        .indent(false)
        .to_string();
    assert!(plan.contains("RoundRobinBatch(3)"), "{plan}");
    let (found, _) = numbers(&ctx, sql).await.expect(sql);
    for (id, row) in (0..).zip(found) {
        let matching = searched.rows.iter().filter(|row| row[0] <= id);
        let greatest = matching
            .clone()
            .filter(|row| row[0] > 3)
            .map(|row| row[2])
            .max();
        let expected = [Some(id), Some(matching.count() as i64), greatest];
        assert_eq!(row, expected, "{sql}");
    }
}
