//! Indexes of columns to which rows are added: only these are indexed, and the answers are those of a session that
//! keeps nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use datafusion::arrow::array::{
    ArrayRef, Decimal128Array, Float64Array, Int16Array, Int64Array, RecordBatch, StringArray,
};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use rmq_testing::{Random, cases};

use crate::fake::Fake;
use crate::range_join::lines;
use crate::staleness::{OLD, external, numbers, settle, write};
use crate::support::{bigint, cpu_session, engine, register, run, session, set, skipped};
use crate::unique_source::metric;

/// Seeds of cases that failed in the past.
const FAILED: [u64; 0] = [];

/// What a query did for its indexes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    pub built: usize,
    pub extended: usize,
    pub reused: usize,
    /// The rows that were indexed to extend indexes.
    pub added: usize,
}

pub async fn answer(ctx: &SessionContext, sql: &str) -> (Vec<String>, Work) {
    let plan = ctx.sql(sql).await.expect(sql);
    let plan = plan.create_physical_plan().await.expect(sql);
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await;
    let work = Work {
        built: metric(&plan, "indexes_built"),
        extended: metric(&plan, "indexes_extended"),
        reused: metric(&plan, "indexes_reused"),
        added: metric(&plan, "index_rows_added"),
    };
    (lines(&batches.expect(sql)), work)
}

pub fn without_keeping() -> SessionContext {
    let ctx = cpu_session();
    set(&ctx, "rmq.keep_indexes", "false");
    ctx
}

/// The memory of the session is that of the indexes that it lists.
async fn assert_only_listed_memory(ctx: &SessionContext) {
    let listed = "SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM rmq_indexes()";
    let listed = bigint(ctx, listed).await;
    let reserved = ctx.runtime_env().memory_pool.reserved();
    assert_eq!(listed, Some(reserved as i64));
}

const EXTENDED: Work = Work {
    built: 0,
    extended: 1,
    reused: 0,
    added: 0,
};

const LOWEST: &str = "SELECT range_min('t.v', 0, 10000000), range_argmin('t.v', 0, 10000000)";

#[tokio::test]
async fn rows_that_are_added_are_indexed_alone() {
    let (ctx, plain) = (cpu_session(), without_keeping());
    let values = numbers((0..100_000).map(|i| 1_000_000 + i % 977));
    register(&ctx, "t", &[("v", values)], &[40_000, 7]);
    let table = ctx.table_provider("t").await.unwrap();
    plain.register_table("t", table).unwrap();
    let (_, work) = answer(&ctx, LOWEST).await;
    assert_eq!((work.built, work.extended), (1, 0));
    let mut added = 0;
    for value in (0..200).rev() {
        let sql = format!("INSERT INTO t SELECT {value} + value % 2 FROM range(0, 100)");
        run(&ctx, &sql).await.unwrap();
        let (rows, work) = answer(&ctx, LOWEST).await;
        assert_eq!(rows, answer(&plain, LOWEST).await.0);
        assert_eq!(Work { added: 0, ..work }, EXTENDED, "{value}");
        added += work.added;
        assert_only_listed_memory(&ctx).await;
    }
    // Each of the 20,000 rows is indexed a few times, and the 100,000 once.
    assert!((20_000..20_000 * 8).contains(&added), "{added}");
    let listed = "SELECT CAST(sum(rows) AS BIGINT) FROM rmq_indexes()";
    assert_eq!(bigint(&ctx, listed).await, Some(120_000));
    let (_, work) = answer(&ctx, LOWEST).await;
    assert_eq!((work.built, work.extended, work.reused), (0, 0, 1));
    run(&ctx, "DROP TABLE t").await.unwrap();
    plain.deregister_table("t").unwrap();
    assert_only_listed_memory(&ctx).await;
    assert_eq!(ctx.runtime_env().memory_pool.reserved(), 0);
}

/// Devices index rows that are added alone, too. With `RMQ_TEST_ENGINE=cuda` a GPU does, otherwise threads.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_added_go_up_alone() {
    if skipped() {
        return;
    }
    let (fake, plain) = (Fake::real(), without_keeping());
    let is_real = engine().as_deref() == Some("cuda");
    let ctx = if is_real {
        session()
    } else {
        fake.session(&[("rmq.engine", "cuda")])
    };
    // Each partition would count the indexes.
    set(&ctx, "datafusion.execution.target_partitions", "1");
    let rows = |from: i64, to: i64| {
        let values = (from..to).map(|i| (i % 7 > 0).then_some((i * 7919 % 100_003) as f64 / 8.0));
        let floats: ArrayRef = Arc::new(Float64Array::from(values.collect::<Vec<_>>()));
        floats
    };
    register(&ctx, "t", &[("v", rows(0, 50_000))], &[40_000, 7]);
    let table = ctx.table_provider("t").await.unwrap();
    plain.register_table("t", table).unwrap();
    let ranges = "FROM (SELECT value * 97 % 53000 AS l, value * 31 % 9000 AS w FROM range(0, 700))";
    let sql = format!("SELECT range_max('t.v', l, l + w), range_argmax('t.v', l, l + w) {ranges}");
    let sql = sql.as_str();
    let thresholds = format!("SELECT range_last_at_least('t.v', l, l + w, 9000.0e0) {ranges}");
    let first = answer(&ctx, sql).await;
    assert_eq!(first.0, answer(&plain, sql).await.0);
    let before = fake.rows_built.load(Relaxed);
    let mut added = 0;
    for step in 0..30 {
        let insert = format!(
            "INSERT INTO t SELECT CASE WHEN value % 5 > 0 THEN (value * 7919 % 10007)::double / {} END \
             FROM range({step} * 100, {step} * 100 + 100)",
            1 + step % 7
        );
        run(&ctx, &insert).await.unwrap();
        let (rows, work) = answer(&ctx, sql).await;
        assert_eq!(rows, answer(&plain, sql).await.0, "{step}");
        assert_eq!((work.built, work.extended), (0, 1), "{step}");
        added += work.added;
        let (rows, work) = answer(&ctx, &thresholds).await;
        assert_eq!(rows, answer(&plain, &thresholds).await.0, "{step}");
        assert_eq!(work.reused, 1, "{step}");
    }
    assert!((3000..3000 * 8).contains(&added), "{added}");
    let listed = "SELECT CAST(sum(rows) AS BIGINT) FROM rmq_indexes()";
    assert_eq!(bigint(&ctx, listed).await, Some(53_000));
    if is_real {
        return;
    }
    assert_eq!(fake.rows_built.load(Relaxed) - before, added);
    let on_device = "SELECT CAST(sum(device_bytes) AS BIGINT) FROM rmq_indexes()";
    let held = fake.held.load(Relaxed) as i64;
    assert_eq!(bigint(&ctx, on_device).await, Some(held));
    // Devices without room for what is added: the CPU indexes all, and answers.
    set(&ctx, "rmq.engine", "auto");
    run(&ctx, "INSERT INTO t VALUES (-5.0e0)").await.unwrap();
    fake.build_fails_at.store(1, Relaxed);
    let (rows, work) = answer(&ctx, sql).await;
    assert_eq!(rows, answer(&plain, sql).await.0);
    assert_eq!((work.built, work.extended), (1, 0));
}

#[tokio::test]
async fn few_rows_are_indexed_again_with_those_that_are_added() {
    let ctx = cpu_session();
    register(
        &ctx,
        "t",
        &[("v", numbers([5, 3, 8, 7, 7, 7, 7, 7, 7]))],
        &[],
    );
    answer(&ctx, LOWEST).await;
    for (inserted, built, added) in [(1, 0, 1), (1, 0, 2), (1, 0, 3), (2, 1, 0), (4, 0, 4)] {
        let sql = format!("INSERT INTO t SELECT 9 FROM range(0, {inserted})");
        run(&ctx, &sql).await.unwrap();
        let (rows, work) = answer(&ctx, LOWEST).await;
        assert_eq!(rows, ["3 | 1"]);
        assert_eq!((work.built, work.added), (built, added), "{inserted} rows");
    }
}

#[tokio::test]
async fn ranks_are_built_anew() {
    let (ctx, plain) = (cpu_session(), without_keeping());
    let text: ArrayRef = Arc::new(StringArray::from(vec!["m", "x", "c", "z", "q", "p"]));
    register(&ctx, "t", &[("v", text)], &[2]);
    let table = ctx.table_provider("t").await.unwrap();
    plain.register_table("t", table).unwrap();
    for text in ["b", "y", "a"] {
        answer(&ctx, LOWEST).await;
        run(&ctx, &format!("INSERT INTO t VALUES ('{text}')"))
            .await
            .unwrap();
        let (rows, work) = answer(&ctx, LOWEST).await;
        assert_eq!(rows, answer(&plain, LOWEST).await.0);
        assert_eq!((work.built, work.extended), (1, 0));
    }
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("i", DataType::Int64, true),
        Field::new("u", DataType::Int64, false),
        Field::new("f", DataType::Float64, true),
        Field::new("n", DataType::Int16, true),
        Field::new("d", DataType::Decimal128(30, 2), true),
        Field::new("s", DataType::Utf8, true),
    ]))
}

/// A batch with ties, NULLs, the greatest values, NaN and both zeros; with rows or without.
fn batch(random: &mut Random) -> RecordBatch {
    let rows = [0, 1, 3, 40, 400][random.below(5)];
    let nulls = [0, 3, 10][random.below(3)];
    let mut values = |of: &dyn Fn(usize) -> i64| -> Vec<Option<i64>> {
        let values = (0..rows).map(|_| {
            let is_null = random.below(10) < nulls;
            let value = of(random.below(30));
            (!is_null).then_some(value)
        });
        values.collect()
    };
    let i = values(&|n| if n == 0 { i64::MAX } else { n as i64 - 9 });
    let u = values(&|n| n as i64 / 3);
    let f = values(&|n| n as i64);
    let n = values(&|n| {
        if n == 0 {
            i64::from(i16::MAX)
        } else {
            n as i64
        }
    });
    let d = values(&|n| n as i64 - 20);
    let s = values(&|n| n as i64);
    let floats = [f64::NAN, -f64::NAN, 0.0, -0.0, f64::INFINITY];
    let float = |n: i64| floats.get(n as usize).copied().unwrap_or(n as f64);
    let d: Decimal128Array = d.into_iter().map(|v| v.map(i128::from)).collect();
    let s = s.into_iter().map(|v| v.map(|v| format!("s{v}")));
    let n = n.into_iter().map(|v| v.map(|v| v as i16));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(i)),
        Arc::new(Int64Array::from_iter_values(
            u.into_iter().map(Option::unwrap_or_default),
        )),
        Arc::new(
            f.into_iter()
                .map(|v| v.map(float))
                .collect::<Float64Array>(),
        ),
        Arc::new(n.collect::<Int16Array>()),
        Arc::new(d.with_precision_and_scale(30, 2).expect("two digits")),
        Arc::new(s.collect::<StringArray>()),
    ];
    RecordBatch::try_new(schema(), columns).expect("columns of the schema")
}

/// The table in two sessions.
struct Shared {
    ctx: SessionContext,
    plain: SessionContext,
    table: Arc<MemTable>,
}

impl Shared {
    fn new(random: &mut Random) -> Self {
        let table = new_table(random);
        let this = Self {
            ctx: cpu_session(),
            plain: without_keeping(),
            table,
        };
        this.register();
        this
    }

    fn register(&self) {
        for ctx in [&self.ctx, &self.plain] {
            ctx.deregister_table("t").expect("a schema");
            let table = Arc::clone(&self.table);
            ctx.register_table("t", table).expect("no such table");
        }
    }

    /// Changes the table, and returns what was done.
    async fn change(&mut self, random: &mut Random) -> &'static str {
        let partition = random.below(self.table.batches.len());
        let last = self.table.batches.len() - 1;
        let some_or_last = [partition, last][random.below(2)];
        match random.below(12) {
            0..3 => {
                for _ in 0..1 + random.below(3) {
                    self.table.batches[last].write().await.push(batch(random));
                }
                "added batches at the end"
            }
            3..5 => {
                let sql = "INSERT INTO t VALUES (1, 2, 3.5, 4, 5.25, 'six'), (NULL, -2, NULL, NULL, NULL, NULL)";
                run(&self.ctx, sql).await.expect("an INSERT");
                "inserted values"
            }
            5 => {
                let sql = "INSERT INTO t SELECT * FROM t WHERE u < 5";
                run(&self.ctx, sql).await.expect("an INSERT");
                "inserted rows of its own"
            }
            6 => {
                let batches = &self.table.batches[some_or_last];
                batches.write().await.push(batch(random));
                "added a batch to a partition"
            }
            7 => {
                let mut batches = self.table.batches[some_or_last].write().await;
                let again = batches.first().cloned();
                batches.extend(again);
                "added a batch that is there already"
            }
            8 => {
                let mut batches = self.table.batches[some_or_last].write().await;
                batches.pop();
                if random.below(2) == 0 {
                    batches.push(batch(random));
                }
                "took a batch away, or replaced it"
            }
            9 => {
                let sql = "DELETE FROM t WHERE i = 3 OR n = 2";
                run(&self.ctx, sql).await.expect("a DELETE");
                "deleted rows"
            }
            10 => {
                run(&self.ctx, "UPDATE t SET u = u + 1 WHERE u = 4")
                    .await
                    .expect("an UPDATE");
                "updated rows"
            }
            _ => {
                // Some tables begin with the same arrays.
                let table = new_table(random);
                if random.below(2) == 0 {
                    let first = self.table.batches[0].read().await.clone();
                    *table.batches[0].write().await = first;
                }
                self.table = table;
                self.register();
                "replaced the table"
            }
        }
    }
}

fn new_table(random: &mut Random) -> Arc<MemTable> {
    let partitions = [1, 1, 1, 3][random.below(4)];
    let partitions = (0..partitions).map(|_| {
        let batches = (0..random.below(4)).map(|_| batch(random));
        batches.collect()
    });
    let partitions = partitions.collect();
    Arc::new(MemTable::try_new(schema(), partitions).expect("batches of the schema"))
}

/// The functions of ranges, without `range_`.
pub const FUNCTIONS: [&str; 10] = [
    "min",
    "max",
    "argmin",
    "argmax",
    "smallest",
    "largest",
    "first_at_most",
    "last_at_most",
    "first_at_least",
    "last_at_least",
];

/// Random calls of these functions over random ranges of these columns of `t`. Strings are in `s`.
pub fn query(random: &mut Random, columns: &[&str], functions: &[&str]) -> String {
    let calls = (0..1 + random.below(4)).map(|call| {
        let column = columns[random.below(columns.len())];
        let function = functions[random.below(functions.len())];
        let last = match function {
            "smallest" | "largest" => ", 4",
            _ if function.contains("_at_") && column == "s" => ", 's15'",
            _ if function.contains("_at_") => ", 4",
            _ => "",
        };
        format!("range_{function}('t.{column}', l, r{last}) AS c{call}")
    });
    let calls: Vec<_> = calls.collect();
    let ranges = (0..20).map(|_| {
        let scale = [3, 60, 3_000][random.below(3)];
        let left = random.below(scale) as i64 - 2;
        let right = left + random.below(scale) as i64 - 1;
        format!("({left}, {right})")
    });
    let ranges: Vec<_> = ranges.chain(["(0, 1000000)".to_string()]).collect();
    let (calls, ranges) = (calls.join(", "), ranges.join(", "));
    format!("SELECT l, r, {calls} FROM (VALUES {ranges}) AS q(l, r)")
}

#[test]
fn changes_in_any_order_leave_no_stale_answer() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut extended = 0;
    for case in cases("appended rows", &FAILED, 10) {
        let random = &mut Random::of_case(case);
        let mut shared = Shared::new(random);
        let view = "CREATE VIEW w AS SELECT * FROM t WHERE u > 1 ORDER BY u, i, n, d, s";
        runtime.block_on(async {
            for ctx in [&shared.ctx, &shared.plain] {
                run(ctx, view).await.expect(view);
            }
            let mut done = vec![];
            for _ in 0..25 {
                done.push(shared.change(random).await);
                if random.below(4) == 0 {
                    continue;
                }
                let mut sql = query(random, &["i", "u", "f", "n", "d", "s"], &FUNCTIONS);
                if random.below(8) == 0 {
                    sql = sql.replace("'t.", "'w.");
                }
                let (expected, _) = answer(&shared.plain, &sql).await;
                let (rows, work) = answer(&shared.ctx, &sql).await;
                assert!(
                    rows == expected,
                    "{done:?}\n{sql}\n{rows:#?}\n{expected:#?}"
                );
                extended += work.extended;
                assert_only_listed_memory(&shared.ctx).await;
            }
        });
    }
    assert!(extended > 0, "no index was extended");
}

#[tokio::test]
async fn files_that_sort_last_are_indexed_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(format!("{name}.parquet"));
    write(
        &file("a"),
        (0..20_000).map(|i| 1000 + i * 7919 % 20_011),
        OLD,
    )
    .await;
    settle();
    let (ctx, plain) = (cpu_session(), without_keeping());
    external(&ctx, folder.path()).await;
    external(&plain, folder.path()).await;
    let check = async |what: &str| {
        let (rows, work) = answer(&ctx, LOWEST).await;
        assert_eq!(rows, answer(&plain, LOWEST).await.0, "{what}");
        (work.built, work.extended, work.reused, work.added)
    };
    assert_eq!(check("first").await, (1, 0, 0, 0));

    write(&file("b"), [900, 901], OLD).await;
    // It may change again without a trace, so the longer index is not kept.
    #[cfg(unix)]
    assert_eq!(check("added, too recent").await, (0, 1, 0, 2));
    settle();
    assert_eq!(check("added").await, (0, 1, 0, 2));
    assert_eq!(check("again").await, (0, 0, 1, 0));
    assert_only_listed_memory(&ctx).await;

    write(&file("c"), [800], OLD).await;
    write(&file("d"), [801, 802, 799], OLD).await;
    settle();
    // The small files are indexed together.
    assert_eq!(check("two files").await, (0, 1, 0, 6));

    write(&file("0"), [700], OLD).await;
    settle();
    assert_eq!(check("sorted first").await, (1, 0, 0, 0));
    write(&file("e"), [600], OLD).await;
    write(&file("b"), [500, 501], OLD).await;
    settle();
    assert_eq!(check("one replaced").await, (1, 0, 0, 0));
    std::fs::remove_file(file("e")).unwrap();
    assert_eq!(check("one removed").await, (1, 0, 0, 0));
    assert_eq!(check("again").await, (0, 0, 1, 0));
    assert_only_listed_memory(&ctx).await;
}
