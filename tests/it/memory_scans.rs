//! Scans of tables in memory that plans share while the tables have the same batches, and not after.

use std::sync::{Arc, Weak};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::catalog::MemTable;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;

use crate::support::{bigint, cpu_session, run, set};

const ROWS: i64 = 100;

/// A batch of [`ROWS`] rows whose keys are consecutive, from `first` on, and whose values are those of keys plus `add`.
fn batch(first: i64, add: i64) -> RecordBatch {
    let keys: Int64Array = (first..first + ROWS).collect::<Vec<_>>().into();
    let values: Int64Array = (first + add..first + add + ROWS).collect::<Vec<_>>().into();
    let columns: [(&str, ArrayRef); 2] = [("k", Arc::new(keys)), ("v", Arc::new(values))];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// A session with a table `p` of batches in two partitions, and `q` of ten windows. Returns the table, too.
async fn session() -> (SessionContext, Arc<MemTable>) {
    let ctx = cpu_session();
    let parts = [0, 10].map(|part| (part..part + 10).map(|i| batch(i * ROWS, 0)).collect());
    let table = MemTable::try_new(batch(0, 0).schema(), parts.to_vec()).unwrap();
    let table = Arc::new(table);
    ctx.register_table("p", Arc::clone(&table) as _).unwrap();
    let windows = "CREATE TABLE q AS SELECT value AS id, value * 150 AS a FROM range(0, 10)";
    run(&ctx, windows).await.unwrap();
    (ctx, table)
}

const QUERY: &str = "SELECT sum(m) FROM (SELECT q.id, (SELECT max(p.v) FROM p WHERE p.k BETWEEN q.a AND q.a + 120) AS m FROM q)";

/// The answer, and the scans of a plan of the query.
async fn ask(ctx: &SessionContext) -> (Option<i64>, Vec<Arc<dyn ExecutionPlan>>) {
    let plan = ctx.sql(QUERY).await.unwrap();
    let plan = plan.create_physical_plan().await.unwrap();
    let mut scans = vec![];
    leaves(&plan, &mut scans);
    (bigint(ctx, QUERY).await, scans)
}

fn leaves(plan: &Arc<dyn ExecutionPlan>, found: &mut Vec<Arc<dyn ExecutionPlan>>) {
    if plan.children().is_empty() {
        found.push(Arc::clone(plan));
    }
    for child in plan.children() {
        leaves(child, found);
    }
}

/// What the query answers, by a loop.
async fn expected(table: &MemTable) -> Option<i64> {
    let mut rows = vec![];
    for part in &table.batches {
        for batch in part.read().await.iter() {
            let column = |i: usize| {
                batch
                    .column(i)
                    .as_primitive::<Int64Type>()
                    .values()
                    .to_vec()
            };
            rows.extend(column(0).into_iter().zip(column(1)));
        }
    }
    let windows = (0..10).map(|id| id * 150..=id * 150 + 120);
    let highest = windows.filter_map(|window| {
        let within = rows.iter().filter(|(k, _)| window.contains(k));
        within.map(|(_, v)| *v).max()
    });
    highest.reduce(|a, b| a + b)
}

/// How many scans of the second plan are those of the first.
fn shared(first: &[Arc<dyn ExecutionPlan>], second: &[Arc<dyn ExecutionPlan>]) -> usize {
    let same = |a: &Arc<dyn ExecutionPlan>| second.iter().any(|b| Arc::ptr_eq(a, b));
    first.iter().filter(|scan| same(scan)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn scans_are_shared_until_a_table_has_other_batches() {
    let (ctx, table) = session().await;
    let (answer, first) = ask(&ctx).await;
    assert_eq!((answer, first.len()), (expected(&table).await, 2));
    let (again, second) = ask(&ctx).await;
    assert_eq!((again, shared(&first, &second)), (answer, 2));
    // A batch takes the place of another one with as many rows, one is appended, two change places, some go.
    for change in 0..4 {
        {
            let mut part = table.batches[change % 2].write().await;
            match change {
                0 => part[4] = batch(4 * ROWS, 7),
                1 => part.push(batch(30 * ROWS, 5)),
                2 => part.swap(2, 3),
                _ => part.truncate(3),
            }
        }
        let before = ask(&ctx).await;
        assert_eq!(before.0, expected(&table).await, "change {change}");
        assert_eq!(
            shared(&second, &before.1),
            1,
            "change {change}: q is as it was"
        );
        let after = ask(&ctx).await;
        assert_eq!((after.0, shared(&before.1, &after.1)), (before.0, 2));
    }
    for statement in [
        "INSERT INTO p VALUES (151, 100000)",
        "UPDATE p SET v = v + 1 WHERE k % 3 = 0",
        "DELETE FROM p WHERE k % 7 = 1",
    ] {
        let before = ask(&ctx).await;
        run(&ctx, statement).await.unwrap();
        let after = ask(&ctx).await;
        assert_eq!(after.0, expected(&table).await, "{statement}");
        assert_ne!(after.0, before.0, "{statement}");
        assert_eq!(shared(&before.1, &after.1), 1, "{statement}");
    }
    set(&ctx, "rmq.keep_indexes", "false");
    let (first, second) = (ask(&ctx).await, ask(&ctx).await);
    assert_eq!((first.0, shared(&first.1, &second.1)), (second.0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_a_table_is_freed_with_it() {
    let (ctx, table) = session().await;
    let weak = |batch: &RecordBatch| Arc::downgrade(batch.column(1));
    let arrays = || async {
        let mut arrays: Vec<Weak<dyn Array>> = vec![];
        for part in &table.batches {
            arrays.extend(part.read().await.iter().map(weak));
        }
        arrays
    };
    let alive = |arrays: &[Weak<dyn Array>]| arrays.iter().filter(|a| a.strong_count() > 0).count();
    ask(&ctx).await;
    let before = arrays().await;
    assert_eq!(alive(&before), 20);
    // Not the query that scans the table next: any.
    let look = "SELECT count(*) FROM q";
    run(&ctx, "UPDATE p SET v = v + 1").await.unwrap();
    run(&ctx, look).await.unwrap();
    assert_eq!(alive(&before), 0);
    ask(&ctx).await;
    let after = arrays().await;
    run(&ctx, "DROP TABLE p").await.unwrap();
    drop(table);
    run(&ctx, look).await.unwrap();
    assert_eq!(alive(&after), 0);
}
