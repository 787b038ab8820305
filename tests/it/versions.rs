//! Tables that state their versions: indexes of their columns are kept, extended, and never used for other rows.

use std::sync::{Arc, Mutex};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Result;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use datafusion_rmq::{TableVersion, VersionedTable, register_versioned};
use rmq_testing::{Random, cases};

use crate::appended::{Work, answer, without_keeping};
use crate::kept::{self, explained, joining, named};
use crate::kept_append;
use crate::staleness::numbers;
use crate::support::{bigint, cpu_session, error, run, set};

/// Seeds of cases that failed in the past.
const FAILED: [u64; 0] = [];

/// A table of parts that never change, whose arrays are new for each scan, as if they were read from a store.
#[derive(Debug)]
struct Parts {
    id: String,
    parts: Mutex<Vec<(u64, Vec<i64>)>>,
    partitions: usize,
    /// Whether the version is known.
    is_stated: bool,
    /// Whether scans repeat the order of rows.
    repeats_order: bool,
    /// Whether some parts can be scanned alone.
    reads_parts: bool,
    /// Rows that are stated and do not exist.
    wrong_rows: u64,
}

impl Parts {
    fn new(id: &str, parts: Vec<(u64, Vec<i64>)>) -> Self {
        Self {
            id: id.to_string(),
            parts: Mutex::new(parts),
            partitions: 1,
            is_stated: true,
            repeats_order: true,
            reads_parts: true,
            wrong_rows: 0,
        }
    }

    fn scan_of(
        &self,
        parts: &[(u64, Vec<i64>)],
        projection: Option<Vec<usize>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let batches = parts.iter().map(|(_, values)| {
            let v = numbers(values.iter().copied());
            let w = numbers((0..).take(values.len()));
            RecordBatch::try_new(self.schema(), vec![v, w]).expect("two columns")
        });
        let batches: Vec<_> = batches.collect();
        let most = batches.len().div_ceil(self.partitions).max(1);
        let mut partitions: Vec<_> = batches.chunks(most).map(<[_]>::to_vec).collect();
        partitions.resize(self.partitions.max(partitions.len()), vec![]);
        let scan = MemorySourceConfig::try_new_exec(&partitions, self.schema(), projection)?;
        Ok(scan)
    }

    fn register(self, ctxs: &[&SessionContext]) -> Arc<Self> {
        let table = Arc::new(self);
        for ctx in ctxs {
            ctx.deregister_table("t").expect("a schema");
            let table = Arc::clone(&table);
            ctx.register_table("t", table).expect("no such table");
        }
        table
    }

    fn add(&self, id: u64, values: Vec<i64>) {
        self.parts.lock().unwrap().push((id, values));
    }
}

#[async_trait::async_trait]
impl TableProvider for Parts {
    fn schema(&self) -> SchemaRef {
        let field = |name| Field::new(name, DataType::Int64, true);
        Arc::new(Schema::new(vec![field("v"), field("w")]))
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.scan_of(&self.parts.lock().unwrap(), projection.cloned())
    }
}

impl VersionedTable for Parts {
    fn version(&self) -> Option<TableVersion> {
        let parts = self.parts.lock().unwrap();
        let version = parts.iter().fold(
            TableVersion::new(self.id.as_str()),
            |version, (id, values)| {
                let rows = values.len() as u64 + self.wrong_rows;
                version.with_part(id.to_le_bytes(), rows)
            },
        );
        self.is_stated.then_some(version)
    }

    fn repeats_order(&self) -> bool {
        self.repeats_order
    }

    fn scan_of_parts(
        &self,
        scan: &Arc<dyn ExecutionPlan>,
        ids: &[&[u8]],
    ) -> Option<Arc<dyn ExecutionPlan>> {
        let parts = self.parts.lock().unwrap();
        let part = |id: &&[u8]| parts.iter().find(|(known, _)| known.to_le_bytes() == **id);
        let read: Vec<_> = ids
            .iter()
            .map(|id| part(id).cloned())
            .collect::<Option<_>>()?;
        let schema = scan.schema();
        let columns = schema.fields().iter();
        let columns = columns.map(|field| self.schema().index_of(field.name()));
        let scan = self.scan_of(&read, Some(columns.collect::<Result<_, _>>().ok()?));
        scan.ok().filter(|_| self.reads_parts)
    }
}

/// A session that keeps indexes of such tables, and one that keeps nothing.
fn sessions() -> (SessionContext, SessionContext) {
    let ctx = cpu_session();
    register_versioned::<Parts>(&ctx).expect("range queries are registered");
    (ctx, without_keeping())
}

const LOWEST: &str = "SELECT range_min('t.v', 0, 1000), range_argmin('t.v', 0, 1000)";

/// What a query did, whose answer is that of the session that keeps nothing.
async fn work(ctx: &SessionContext, plain: &SessionContext) -> (usize, usize, usize, usize) {
    let (expected, _) = answer(plain, LOWEST).await;
    let (rows, work) = answer(ctx, LOWEST).await;
    assert_eq!(rows, expected);
    let Work {
        built,
        extended,
        reused,
        added,
    } = work;
    (built, extended, reused, added)
}

#[tokio::test]
async fn indexes_are_kept_while_the_version_is_the_same() {
    let (ctx, plain) = sessions();
    let first = || vec![(1, vec![5, 3, 8, 4, 4, 4, 4, 4, 4]), (2, vec![7])];
    let table = Parts::new("a", first()).register(&[&ctx, &plain]);
    assert_eq!(work(&ctx, &plain).await, (1, 0, 0, 0));
    assert_eq!(work(&ctx, &plain).await, (0, 0, 1, 0));
    // Another object of the same version.
    let table = {
        drop(table);
        Parts::new("a", first()).register(&[&ctx, &plain])
    };
    assert_eq!(work(&ctx, &plain).await, (0, 0, 1, 0));
    // Parts that are added.
    table.add(3, vec![2, 9]);
    assert_eq!(work(&ctx, &plain).await, (0, 1, 0, 2));
    table.add(4, vec![]);
    assert_eq!(work(&ctx, &plain).await, (0, 1, 0, 0));
    assert_eq!(work(&ctx, &plain).await, (0, 0, 1, 0));
    // An index with a name is that of later versions, too.
    run(&ctx, "CREATE INDEX low ON t USING rmq (v)")
        .await
        .unwrap();
    table.add(6, vec![0]);
    assert_eq!(work(&ctx, &plain).await, (0, 1, 0, 3));
    // The index of maxima, which no query has looked for, has a row less.
    let named = "SELECT CAST(sum(rows) AS BIGINT) FROM rmq_indexes() WHERE name = 'low'";
    assert_eq!(bigint(&ctx, named).await, Some(13 + 12));
    // Another part in the place of one.
    table.parts.lock().unwrap()[0] = (5, vec![1, 1, 1]);
    assert_eq!(work(&ctx, &plain).await, (1, 0, 0, 0));
    // Parts are gone.
    table.parts.lock().unwrap().truncate(3);
    assert_eq!(work(&ctx, &plain).await, (1, 0, 0, 0));
    // Another table with parts of the same ids.
    Parts::new("b", vec![(5, vec![6, 6, 6]), (2, vec![0]), (3, vec![6, 6])])
        .register(&[&ctx, &plain]);
    assert_eq!(work(&ctx, &plain).await, (1, 0, 0, 0));
}

/// Range joins that search the table, whose row number decides ties.
const JOINS: [&str; 4] = [
    "SELECT q.id, count(*), sum(t.v) FROM q JOIN t ON t.v BETWEEN q.id - 2 AND q.id GROUP BY q.id",
    "SELECT q.id, t.v FROM q LEFT JOIN t ON t.v > q.id AND t.v <= q.id + 3",
    "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM (SELECT * FROM t WHERE t.v % 3 = 0) t WHERE t.v BETWEEN q.id AND q.id + 1)",
    "SELECT q.id, (SELECT last_value(t.w ORDER BY t.v) FROM t WHERE t.v <= q.id) AS w FROM q",
];

/// The number of build sides that a join finds, whose rows are those of the session that keeps nothing.
async fn found(ctx: &SessionContext, plain: &SessionContext, sql: &str) -> usize {
    let told = explained(ctx, "EXPLAIN", sql).await;
    let (expected, _) = kept::answer(plain, sql).await;
    let (rows, found) = kept::answer(ctx, sql).await;
    assert_eq!(rows, expected, "{sql}");
    assert_eq!(told == ["kept"], found == 1, "{sql}");
    found
}

/// Sessions as [`sessions`] whose joins become range joins, with the other side.
async fn joining_sessions() -> (SessionContext, SessionContext) {
    let (ctx, plain) = sessions();
    for ctx in [&ctx, &plain] {
        joining(ctx.clone());
        // So many that their ranges are not compared one by one.
        let q = "CREATE TABLE q AS SELECT value % 20 AS id, value % 7 AS lo FROM range(0, 100)";
        run(ctx, q).await.expect("q");
    }
    (ctx, plain)
}

#[tokio::test(flavor = "multi_thread")]
async fn range_joins_keep_rows_while_the_version_is_the_same() {
    let (ctx, plain) = joining_sessions().await;
    let many = || (0..1000).map(|i| i * 37 % 23).collect();
    let first = || vec![(1, many()), (2, vec![7, 11, 3])];
    for (partitions, repeats_order) in [(1, true), (3, true), (1, false), (2, false)] {
        let table = || Parts {
            partitions,
            repeats_order,
            ..Parts::new(&format!("{partitions} {repeats_order}"), first())
        };
        for sql in JOINS {
            table().register(&[&ctx, &plain]);
            found(&ctx, &plain, sql).await;
            // Another object of the same version.
            let table = table().register(&[&ctx, &plain]);
            let is_kept = repeats_order || !sql.contains("last_value");
            assert_eq!(found(&ctx, &plain, sql).await == 1, is_kept, "{sql}");
            table.add(3, vec![2, 9]);
            assert_eq!(found(&ctx, &plain, sql).await, 0, "{sql}");
            assert_eq!(found(&ctx, &plain, sql).await == 1, is_kept, "{sql}");
            table.parts.lock().unwrap()[0] = (4, vec![1, 1]);
            assert_eq!(found(&ctx, &plain, sql).await, 0, "{sql}");
        }
    }
    // The rows of another filter.
    let join = JOINS[0].replace("JOIN t ON", "JOIN (SELECT * FROM t WHERE v <> 4) t ON");
    assert_eq!(found(&ctx, &plain, JOINS[0]).await, 0);
    for is_found in [0, 1] {
        assert_eq!(found(&ctx, &plain, &join).await, is_found);
    }
}

/// Rows of parts that are added are sorted alone, if these can be scanned alone and rows have an order.
#[tokio::test(flavor = "multi_thread")]
async fn kept_rows_grow_with_their_table() {
    let (ctx, plain) = joining_sessions().await;
    let many = |rows: i64| (0..rows).map(|i| i * 37 % 23).collect::<Vec<_>>();
    for (reads_parts, repeats_order) in [(true, true), (false, true), (true, false)] {
        for (i, sql) in JOINS.iter().enumerate() {
            let partitions = 1 + i % 3;
            let table = Parts {
                partitions,
                repeats_order,
                reads_parts,
                ..Parts::new(
                    &format!("{reads_parts} {i}"),
                    vec![(1, many(4000)), (2, many(1000))],
                )
            };
            let table = table.register(&[&ctx, &plain]);
            found(&ctx, &plain, sql).await;
            table.add(3, many(700));
            let grows = reads_parts && repeats_order;
            let told = explained(&ctx, "EXPLAIN", sql).await;
            assert_eq!(told == ["kept"], grows, "{sql}");
            let (expected, ..) = kept_append::answer(&plain, sql).await;
            let (rows, segments, built) = kept_append::answer(&ctx, sql).await;
            assert_eq!(rows, expected, "{sql}");
            assert_eq!(segments == 2, grows, "{sql}");
            assert_eq!(built <= 700, grows, "{sql}: {built}");
        }
    }
}

/// Values are added to rows in the order in which these were sorted, however rules would divide the scan for either
/// join.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_version_have_one_order() {
    let (ctx, plain) = joining_sessions().await;
    let parts = || {
        let sizes = [1000, 5000, 2000, 3000].into_iter().zip(1..);
        let parts = sizes.map(|(rows, id)| (id, (0..rows).map(|i| i * 37 % 23).collect()));
        parts.collect()
    };
    for (i, joins) in [[0, 3], [3, 0], [1, 3], [3, 1]].into_iter().enumerate() {
        Parts::new(&i.to_string(), parts()).register(&[&ctx, &plain]);
        assert_eq!(found(&ctx, &plain, JOINS[joins[0]]).await, 0);
        assert_eq!(found(&ctx, &plain, JOINS[joins[1]]).await, 1);
    }
    Parts::new("named", parts()).register(&[&ctx, &plain]);
    let create = "CREATE INDEX by_v ON t USING rmq (w, v)";
    run(&ctx, create).await.expect(create);
    let sql = "SELECT q.id, (SELECT last_value(t.v * 3 ORDER BY t.v) FROM t WHERE t.w = q.id AND t.v <= q.lo) AS w FROM q";
    assert_eq!(found(&ctx, &plain, sql).await, 1);
    // Another number of partitions.
    set(&ctx, "datafusion.execution.target_partitions", "3");
    assert_eq!(found(&ctx, &plain, sql).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn named_indexes_of_several_columns_are_those_of_versions() {
    let (ctx, plain) = joining_sessions().await;
    let many = (0..1000).map(|i| i % 50).collect();
    let table = Parts::new("a", vec![(1, many), (2, vec![7])]).register(&[&ctx, &plain]);
    let create = "CREATE INDEX by_w ON t USING rmq (w, v)";
    run(&ctx, create).await.expect(create);
    let sql = "SELECT q.id, max(t.v) FROM q JOIN t ON t.w = q.id AND t.v BETWEEN q.lo AND q.lo + 9 GROUP BY q.id";
    assert_eq!(found(&ctx, &plain, sql).await, 1);
    table.add(3, vec![2, 9]);
    assert_eq!(found(&ctx, &plain, sql).await, 0);
    assert_eq!(found(&ctx, &plain, sql).await, 1);
    assert_eq!(named(&ctx).await, ["by_w | w, v | 1003"]);
    // Rows whose order may be another the next time.
    let unordered = Parts {
        repeats_order: false,
        ..Parts::new("b", vec![(1, vec![5, 3, 8])])
    };
    unordered.register(&[&ctx, &plain]);
    run(&ctx, "DROP TABLE rmq.by_w").await.expect("by_w");
    let message = error(&ctx, "CREATE INDEX other ON t USING rmq (w, v)").await;
    assert!(message.contains("order"), "{message}");
}

#[tokio::test]
async fn nothing_is_kept_without_a_version() {
    let (ctx, plain) = sessions();
    let parts = || vec![(1, vec![5, 3, 8])];
    let unknown = Parts {
        is_stated: false,
        ..Parts::new("a", parts())
    };
    unknown.register(&[&ctx, &plain]);
    for _ in 0..2 {
        assert_eq!(work(&ctx, &plain).await.0, 1);
    }
    let kept = "SELECT count(*) FROM rmq_indexes()";
    assert_eq!(bigint(&ctx, kept).await, Some(0));
    // The type is not registered.
    let other = cpu_session();
    Parts::new("a", parts()).register(&[&other]);
    for _ in 0..2 {
        assert_eq!(work(&other, &plain).await.0, 1);
    }
}

#[tokio::test]
async fn a_plan_answers_for_the_version_that_it_was_planned_for() {
    let (ctx, plain) = sessions();
    let table = Parts::new("a", vec![(1, vec![5, 3, 8])]).register(&[&ctx, &plain]);
    let plan = ctx.sql(LOWEST).await.unwrap();
    let planned = plan.create_physical_plan().await.unwrap();
    table.add(2, vec![1, 0]);
    // The present version is indexed meanwhile.
    assert_eq!(work(&ctx, &plain).await, (1, 0, 0, 0));
    for _ in 0..2 {
        let plan = Arc::clone(&planned).reset_state().unwrap();
        let rows = collect(plan, ctx.task_ctx()).await.unwrap();
        assert_eq!(crate::range_join::lines(&rows), ["3 | 1"]);
        assert_eq!(work(&ctx, &plain).await, (0, 0, 1, 0));
    }
}

#[tokio::test]
async fn a_version_of_other_rows_is_an_error() {
    let (ctx, _) = sessions();
    let wrong = Parts {
        wrong_rows: 1,
        ..Parts::new("a", vec![(1, vec![5, 3, 8])])
    };
    wrong.register(&[&ctx]);
    let message = error(&ctx, LOWEST).await;
    assert!(
        message.contains("the scan of t has returned 3 rows, where its version states 4"),
        "{message}"
    );
    let error = register_versioned::<Parts>(&SessionContext::new()).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("call datafusion_rmq::register"),
        "{message}"
    );
}

#[test]
fn changes_in_any_order_leave_no_stale_answer() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (mut extended, mut joined) = (0, 0);
    for case in cases("stated versions", &FAILED, 10) {
        let random = &mut Random::of_case(case);
        let mut next_id = 0_u64;
        let mut part = |random: &mut Random| {
            next_id += 1;
            let rows = [0, 1, 2, 30, 300, 2500][random.below(6)];
            let values = (0..rows).map(|_| random.below(50) as i64);
            (next_id, values.collect::<Vec<_>>())
        };
        runtime.block_on(async {
            let (ctx, plain) = joining_sessions().await;
            let reads_parts = random.below(4) > 0;
            let table = Parts {
                reads_parts,
                ..Parts::new("0", vec![])
            };
            let mut table = table.register(&[&ctx, &plain]);
            for step in 0..40 {
                match random.below(8) {
                    0..4 => {
                        let (id, values) = part(random);
                        table.add(id, values);
                    }
                    4 => drop(table.parts.lock().unwrap().pop()),
                    5 => {
                        let mut parts = table.parts.lock().unwrap();
                        let at = random.below(parts.len() + 1);
                        parts.insert(at, part(random));
                    }
                    6 => {
                        // Another object, in other partitions, of the same table or of another one.
                        let parts = table.parts.lock().unwrap().clone();
                        let id = [table.id.clone(), step.to_string()][random.below(2)].clone();
                        let copy = Parts {
                            partitions: 1 + random.below(3),
                            repeats_order: random.below(2) == 0,
                            reads_parts,
                            ..Parts::new(&id, parts)
                        };
                        table = copy.register(&[&ctx, &plain]);
                    }
                    _ => {}
                }
                let (left, right) = (random.below(400), random.below(1_500));
                let sql = format!(
                    "SELECT range_min('t.v', {left}, {right}), range_argmax('t.v', {left}, {right}), \
                     range_smallest('t.v', 3, {right}, 5), range_last_at_least('t.v', 0, {right}, 40), \
                     range_quantile('t.v', {left}, {right}, 0.5), range_count_distinct('t.v', 0, {right})"
                );
                let (expected, _) = answer(&plain, &sql).await;
                let (rows, work) = answer(&ctx, &sql).await;
                assert_eq!(rows, expected, "{sql}");
                extended += work.extended;
                joined += found(&ctx, &plain, JOINS[random.below(JOINS.len())]).await;
            }
        });
    }
    assert!(extended > 0, "no index was extended");
    assert!(joined > 0, "no join has found rows");
}
