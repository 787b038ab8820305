//! Groups that the table of the probe side shows to be single rows before any row is read: duplicates anywhere in the
//! table are found, nothing is held, and rows are returned as they are joined. Compared with the same queries without
//! range joins.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` one table; `RMQ_CASES` makes it longer.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::{StreamExt, TryStreamExt};

use crate::range_join::register_partitions;
use crate::support::set;
use crate::unique_groups::{answer, found, plain_answer, planned};
use rmq_testing::{Random, cases};

/// The default number of random tables; `RMQ_CASES` sets another.
const CASES: usize = 8;

/// Seeds of cases that failed in the past.
const FAILED: [u64; 0] = [];

/// Rows that one task looks at before it yields: tables have more.
const STEP: usize = 1 << 16;

const LOWEST: &str = "SELECT q.id, min(p.v), count(*) FROM q LEFT JOIN p ON p.k BETWEEN q.k AND q.k + 70 GROUP BY q.id";

/// Where the ids of a table break the pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Break {
    No,
    /// The last row of the table has the first one's id.
    LastRow,
    /// The last row of a random batch has the id of a random row.
    RowOfAnotherBatch,
    /// Two rows in succession have one id.
    Pair,
    /// One id is NULL.
    Null,
    /// Two ids are NULL.
    Nulls,
    /// One id falls, and is in no other row.
    Descent,
}

const BREAKS: [Break; 7] = [
    Break::No,
    Break::LastRow,
    Break::RowOfAnotherBatch,
    Break::Pair,
    Break::Null,
    Break::Nulls,
    Break::Descent,
];

/// Random ids with this break, in batches of random sizes in any order.
fn batches(random: &mut Random, kind: Break) -> Vec<Vec<Option<i64>>> {
    let is_large = random.below(8) == 0;
    let rows = 1000 + random.below(if is_large { 2 * STEP } else { 2000 });
    let mut ids: Vec<Option<i64>> = (0..rows as i64).map(|i| Some(i * 3 - 500)).collect();
    let at = 1 + random.below(rows - 2);
    let mut of_batch = match random.below(3) {
        0 => vec![ids.len()],
        _ => (0..1 + random.below(30))
            .map(|_| random.below(rows / 4))
            .collect(),
    };
    of_batch.push(rows);
    match kind {
        Break::Pair => ids[at] = ids[at - 1],
        Break::Null => ids[at] = None,
        Break::Nulls => ids[at - 1..=at].fill(None),
        Break::Descent => ids[at] = ids[at - 1].map(|id| id - 1),
        Break::No | Break::LastRow | Break::RowOfAnotherBatch => {}
    }
    let mut rest = ids.as_slice();
    let mut batches = vec![];
    for rows in of_batch {
        let (batch, more) = rest.split_at(rows.min(rest.len()));
        batches.push(batch.to_vec());
        rest = more;
    }
    if random.below(2) == 0 {
        for i in 1..batches.len() {
            batches.swap(i, random.below(i + 1));
        }
    }
    batches.retain(|batch| !batch.is_empty());
    let first = batches[0][0];
    let last = batches.len() - 1;
    match kind {
        Break::LastRow => *batches[last].last_mut().expect("it has rows") = first,
        Break::RowOfAnotherBatch => {
            let from = random.below(batches.len());
            let id = batches[from][random.below(batches[from].len())];
            let to = (from + 1 + random.below(batches.len())) % batches.len();
            let to = &mut batches[to];
            let row = to.len() - 1;
            to[row] = id;
        }
        _ => {}
    }
    batches
}

/// Registers these ids as `q`, in this number of partitions, and a small `p`.
fn register(ctx: &SessionContext, ids: &[Vec<Option<i64>>], partitions: usize) {
    let batch = |ids: &Vec<Option<i64>>| {
        let ids = Int64Array::from(ids.clone());
        let k: Int64Array = ids.iter().map(|id| id.map(|id| id % 1000)).collect();
        let columns: [(_, ArrayRef, _); 2] =
            [("id", Arc::new(ids), true), ("k", Arc::new(k), true)];
        RecordBatch::try_from_iter_with_nullable(columns).expect("two columns")
    };
    let share = ids.len().div_ceil(partitions);
    let parts = ids.chunks(share).map(|ids| ids.iter().map(batch).collect());
    let parts: Vec<Vec<RecordBatch>> = parts.collect();
    let table = MemTable::try_new(parts[0][0].schema(), parts).expect("one schema");
    ctx.register_table("q", Arc::new(table)).expect("it is new");
    let numbers = |numbers: Vec<i64>| Arc::new(Int64Array::from(numbers)) as ArrayRef;
    let columns = [
        ("k", numbers((0..20).map(|i| i * 50).collect())),
        ("v", numbers((0..20).map(|i| i * 7919 % 1000).collect())),
    ];
    // DataFusion's plan compares all pairs of rows.
    register_partitions(ctx, "p", &columns, &[7]);
}

fn session(partitions: usize) -> SessionContext {
    let config = SessionConfig::new().with_target_partitions(partitions);
    let ctx = SessionContext::new_with_config(config);
    datafusion_rmq::register(&ctx);
    ctx
}

/// The rows that a plan's operators with this metric counted.
pub fn metric(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let below = plan.children().into_iter().map(|p| metric(p, name));
    let own = plan.metrics().and_then(|m| m.sum_by_name(name));
    own.map_or(0, |value| value.as_usize()) + below.sum::<usize>()
}

#[test]
fn duplicates_anywhere_in_the_table_are_found() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for case in cases("unique source", &FAILED, CASES) {
        let mut random = Random::of_case(case);
        for kind in BREAKS {
            let ids = batches(&mut random, kind);
            let ctx = session([1, 2, 3, 16][random.below(4)]);
            register(&ctx, &ids, 1 + random.below(5));
            let expected = runtime.block_on(plain_answer(&ctx, LOWEST));
            let given = runtime.block_on(answer(&ctx, LOWEST));
            let (given, plan) = given.expect(LOWEST);
            assert_eq!(given.len(), expected.len(), "{kind:?}");
            assert!(given == expected, "{kind:?}");
            let mut all: Vec<_> = ids.iter().flatten().collect();
            all.sort_unstable();
            all.dedup();
            let is_unique = all.len() == ids.iter().map(Vec::len).sum::<usize>();
            let [Some(found)] = found(&plan)[..] else {
                panic!("{kind:?}: the operator is executed");
            };
            assert!(is_unique || !found, "{kind:?}");
            // A RowOfAnotherBatch may be the row itself.
            assert!(found || kind != Break::No, "{kind:?}");
        }
    }
}

#[tokio::test]
async fn groups_are_returned_as_rows_are_joined() {
    let ctx = session(4);
    let ids: Vec<Vec<_>> = (0..40)
        .map(|batch| (0..5000).map(|i| Some(batch * 5000 + i)).collect())
        .collect();
    register(&ctx, &ids, 4);
    let plan = planned(&ctx, LOWEST).await.expect("a plan");
    let task = ctx.task_ctx();
    let mut stream = plan.execute(1, task).expect("a stream");
    let first = stream.next().await.expect("a batch").expect("rows");
    assert!(first.num_rows() > 0);
    let joined = metric(&plan, "probe_rows");
    assert!(
        joined <= 20_000,
        "{joined} of 200000 rows before the first group"
    );
    drop(stream);
}

#[tokio::test]
async fn a_column_that_a_filter_makes_unique_is_found_by_reading() {
    let ctx = session(3);
    // Ids start again each day.
    let ids: Vec<Vec<_>> = (0..6).map(|_| (0..1000).map(Some).collect()).collect();
    register(&ctx, &ids, 6);
    set(&ctx, "datafusion.optimizer.repartition_file_scans", "false");
    let day = "SELECT d.id, min(p.v) FROM (SELECT id, k, row_number() OVER () AS row FROM q) d LEFT JOIN p ON p.k BETWEEN d.k AND d.k + 70 \
               WHERE d.row <= 1000 GROUP BY d.id";
    let (rows, plan) = answer(&ctx, day).await.expect(day);
    assert_eq!(rows, plain_answer(&ctx, day).await);
    assert_eq!(rows.len(), 1000);
    assert_eq!(found(&plan).len(), 1);
    // A filter on a column of the table.
    let half = "SELECT q.id, min(p.v) FROM q LEFT JOIN p ON p.k BETWEEN q.k AND q.k + 70 WHERE q.id < 0 GROUP BY q.id";
    let (rows, plan) = answer(&ctx, half).await.expect(half);
    assert!(rows.is_empty());
    assert_eq!(found(&plan).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_search_for_duplicates_ends() {
    let ctx = session(4);
    let expected = 300_000;
    // As many partitions as the session has: DataFusion's repartitioning runs once per plan.
    let ids: Vec<Vec<_>> = (0..4)
        .map(|batch| (0..75_000).map(|i| Some(batch * 75_000 + i)).collect())
        .collect();
    register(&ctx, &ids, 4);
    for micros in [0, 100, 500, 1000, 3000, 10_000] {
        let plan = planned(&ctx, LOWEST).await.expect("a plan");
        let query = datafusion::physical_plan::collect(Arc::clone(&plan), ctx.task_ctx());
        let _ = tokio::time::timeout(Duration::from_micros(micros), query).await;
        if micros == 1000 {
            // The plan can run again after it was cancelled, in another context or partition by partition.
            let mut rows = 0;
            for partition in 0..4 {
                let stream = plan.execute(partition, ctx.task_ctx()).expect("a stream");
                let batches = stream.try_collect::<Vec<_>>().await.expect("rows");
                rows += batches.iter().map(RecordBatch::num_rows).sum::<usize>();
            }
            assert_eq!(rows, expected);
        }
    }
}

#[tokio::test]
async fn an_error_of_one_partition_ends_that_partition() {
    let ctx = session(4);
    let ids: Vec<Vec<_>> = (0..4)
        .map(|batch| (0..1000).map(|i| Some(batch * 1000 + i)).collect())
        .collect();
    register(&ctx, &ids, 4);
    let sql = LOWEST.replace(
        "FROM q ",
        "FROM (SELECT id, k + 7 / (id - 2345) AS k FROM q) q ",
    );
    let plan = planned(&ctx, &sql).await.expect("a plan");
    let task = ctx.task_ctx();
    let streams = (0..4).map(|i| plan.execute(i, Arc::clone(&task)).expect("a stream"));
    let mut errors = 0;
    for stream in streams.collect::<Vec<_>>() {
        let rows = tokio::time::timeout(Duration::from_secs(60), stream.try_collect::<Vec<_>>());
        if let Err(error) = rows.await.expect("no partition waits forever") {
            assert!(error.to_string().contains("Divide by zero"), "{error}");
            errors += 1;
        }
    }
    assert_eq!(errors, 1);
    assert_eq!(found(&plan), [Some(true)]);
}
