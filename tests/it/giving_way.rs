//! Indexes that are kept give their memory to whatever operator needs it, and to lower limits.

use std::sync::Arc;

use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryPool, MemoryReservation,
};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;

use crate::range_join::answer;
use crate::support::{bigint, cpu_session, plan, register, run, session_of_pool, set};

const POOL: usize = 2_000_000;

/// Indexes over `a` and `b`, each of which owns a copy of its column: 800 kB each.
async fn with_indexes(pool: Arc<dyn MemoryPool>) -> SessionContext {
    let ctx = session_of_pool(SessionConfig::new().with_target_partitions(1), pool);
    set(&ctx, "rmq.engine", "cpu");
    for name in ["a", "b"] {
        let numbers = Arc::new(datafusion::arrow::array::Int64Array::from_iter_values(
            0..100_000,
        ));
        register(&ctx, name, &[("v", numbers)], &[50_000]);
        index(&ctx, name).await;
    }
    assert_eq!(kept(&ctx).await, 2);
    ctx
}

async fn index(ctx: &SessionContext, table: &str) {
    let sql = format!("SELECT range_max('{table}.v', 5, 9)");
    assert_eq!(bigint(ctx, &sql).await, Some(9));
}

async fn kept(ctx: &SessionContext) -> i64 {
    let count = bigint(ctx, "SELECT count(*) FROM rmq_indexes()").await;
    count.expect("a number")
}

/// Another operator's memory.
fn other(ctx: &SessionContext, spills: bool) -> MemoryReservation {
    let consumer = MemoryConsumer::new("another operator").with_can_spill(spills);
    consumer.register(&ctx.runtime_env().memory_pool)
}

#[tokio::test]
async fn operators_get_the_memory_of_indexes() {
    let pools: [Arc<dyn MemoryPool>; 2] = [
        Arc::new(GreedyMemoryPool::new(POOL)),
        Arc::new(FairSpillPool::new(POOL)),
    ];
    for pool in pools {
        let ctx = with_indexes(Arc::clone(&pool)).await;
        index(&ctx, "a").await;
        for spills in [false, true] {
            // Only as many give way as have to: that which was used last stays.
            let memory = other(&ctx, spills);
            memory.try_grow(POOL / 2).expect("memory of one index");
            assert_eq!(kept(&ctx).await, 1);
            drop(memory);
            index(&ctx, "b").await;
            index(&ctx, "a").await;
            // None gives way to what can't be had anyway.
            let memory = other(&ctx, spills);
            memory.try_grow(POOL + 1).expect_err("more than the pool");
            memory.try_grow(10).expect("a few bytes");
            memory.try_grow(POOL - 5).expect_err("more than the rest");
            assert_eq!(kept(&ctx).await, 2);
            memory.try_grow(POOL - 10).expect("all memory");
            assert_eq!((kept(&ctx).await, pool.reserved()), (0, POOL));
            drop(memory);
            index(&ctx, "b").await;
            index(&ctx, "a").await;
        }
        assert!(pool.reserved() > 0);
        // Indexes end with their session.
        drop(ctx);
        assert_eq!(pool.reserved(), 0);
    }
}

/// The rows of range joins are kept in a limited pool, too, and do not count among the operators that share it.
#[tokio::test]
async fn operators_get_the_memory_of_the_rows_of_range_joins() {
    let pools: [Arc<dyn MemoryPool>; 2] = [
        Arc::new(GreedyMemoryPool::new(POOL)),
        Arc::new(FairSpillPool::new(POOL)),
    ];
    let join = "SELECT (SELECT min(p.v) FROM p WHERE p.k BETWEEN q.k - 9 AND q.k) AS v FROM p AS q";
    for pool in pools {
        let ctx = session_of_pool(SessionConfig::new(), Arc::clone(&pool));
        set(&ctx, "rmq.engine", "cpu");
        let table =
            "CREATE TABLE p AS SELECT value * 7 % 5003 AS k, value % 97 AS v FROM range(0, 5000)";
        run(&ctx, table).await.expect(table);
        for spills in [false, true] {
            let mut rows = vec![];
            for found in [0, 1] {
                let (lines, kept) = crate::kept::answer(&ctx, join).await;
                rows.push(lines);
                assert_eq!(kept, found, "{spills}");
            }
            assert_eq!(rows[0], rows[1]);
            let used = pool.reserved();
            assert!(used > 0 && used < POOL / 4, "{used}");
            let memory = other(&ctx, spills);
            memory.try_grow(POOL - used).expect("what is free");
            assert_eq!(kept(&ctx).await, 1);
            memory.try_grow(used).expect("all memory");
            assert_eq!((kept(&ctx).await, pool.reserved()), (0, POOL));
        }
    }
}

/// A query that finds rows, or a part of what it needs, can spill as one that finds nothing does. Where nothing can be
/// spilled, the rows that it has found give way.
#[tokio::test(flavor = "multi_thread")]
async fn kept_rows_need_no_more_memory_than_none() {
    let tables = [
        "CREATE TABLE p AS SELECT value AS id, value % 50 AS g, value * 7919 % 100003 AS k,
             value * 104729 % 65537 AS v, value * 31 % 1009 AS w FROM range(0, 20000)",
        "CREATE TABLE q AS SELECT id AS id, g, k, v FROM p WHERE id % 4 = 0",
    ];
    let statements = [
        "SELECT count(*), sum(m) FROM (SELECT (SELECT count(p.w) FROM p WHERE p.g = q.g AND p.k BETWEEN q.k - 90 AND q.k) AS m FROM q)",
        "SELECT count(*), sum(m) FROM (SELECT (SELECT min(p.v) FROM p WHERE p.g = q.g AND p.k BETWEEN q.k - 90 AND q.k) AS m FROM q)",
        "SELECT count(*), sum(m) FROM (SELECT (SELECT count(DISTINCT p.v) FROM p WHERE p.k BETWEEN q.k - 90 AND q.k) AS m FROM q)",
        "SELECT count(*), sum(m) FROM (SELECT (SELECT median(p.v) FROM p WHERE p.k BETWEEN q.k - 90 AND q.k) AS m FROM q)",
        "SELECT count(*), sum(p.w), sum(p.v) FROM q JOIN p ON p.g = q.g AND p.k BETWEEN q.k - 90 AND q.k AND p.v > q.v",
        "INSERT INTO p SELECT value + 20000, value % 50, value, value, value FROM range(0, 6000)",
        "SELECT count(*), sum(m) FROM (SELECT (SELECT max(p.w) FROM p WHERE p.g = q.g AND p.k BETWEEN q.k - 90 AND q.k) AS m FROM q)",
    ];
    let session = async |limit: usize| {
        let pool = Arc::new(GreedyMemoryPool::new(limit));
        let config = SessionConfig::new()
            .with_target_partitions(1)
            .with_batch_size(1024);
        let ctx = session_of_pool(config, pool);
        set(&ctx, "rmq.engine", "cpu");
        set(&ctx, "rmq.range_joins", "always");
        for sql in tables {
            run(&ctx, sql).await.expect(sql);
        }
        ctx
    };
    let (mut answered, mut failed) = (0, vec![]);
    for limit in (300_000..2_600_000).step_by(250_000) {
        let [long, fresh] = [session(limit).await, session(limit).await];
        for sql in statements.iter().chain(&statements) {
            set(&fresh, "rmq.keep_indexes", "false");
            set(&fresh, "rmq.keep_indexes", "true");
            let Ok((expected, _)) = answer(&fresh, sql).await else {
                continue;
            };
            answered += 1;
            match answer(&long, sql).await {
                Ok((rows, _)) => assert_eq!(rows, expected, "{limit}: {sql}"),
                Err(error) => failed.push(format!("{limit}: {sql}: {error}")),
            }
        }
        println!("{limit}: {:?} are kept", kept(&long).await);
    }
    assert!(answered > 50, "{answered}");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Rows that are buffered or returned are not registered above the limit of the pool, where all other operators would
/// fail for it.
#[tokio::test(flavor = "multi_thread")]
async fn two_partitions_join_in_little_memory() {
    let tables = [
        "CREATE TABLE t AS SELECT value AS id, value % 50 AS s, value * 7919 % 100003 AS k,
             value * 104729 % 65537 AS v FROM range(0, 20000)",
        "CREATE TABLE q AS SELECT value AS id, value % 50 AS s, value * 104729 % 100003 AS k,
             value * 7919 % 65537 AS v FROM range(0, 20000)",
    ];
    let queries = [
        "SELECT count(*), sum(m) FROM (SELECT t.id, (SELECT min(q.v) FROM q WHERE q.s = t.s AND q.k <= t.k) AS m FROM t)",
        "SELECT count(*), sum(q.v) FROM t JOIN q ON q.s = t.s AND q.k BETWEEN t.k - 50 AND t.k",
        "SELECT count(*), sum(q.v) FROM t JOIN q ON q.k BETWEEN t.k - 5 AND t.k",
        "SELECT count(*), sum(t.v) FROM t FULL JOIN q ON q.s = t.s AND q.k BETWEEN t.k - 50 AND t.k AND q.v > t.v",
        "SELECT count(*), sum(x.v) FROM t CROSS JOIN LATERAL (SELECT q.v FROM q WHERE q.s = t.s AND q.k <= t.k ORDER BY q.k DESC LIMIT 2) x",
    ];
    let session = async |limit: usize| {
        let config = SessionConfig::new()
            .with_target_partitions(2)
            .with_batch_size(1024);
        let ctx = session_of_pool(config, Arc::new(GreedyMemoryPool::new(limit)));
        set(&ctx, "rmq.engine", "cpu");
        set(&ctx, "rmq.join_mode", "shared");
        set(&ctx, "rmq.range_joins", "always");
        for sql in tables {
            run(&ctx, sql).await.expect(sql);
        }
        ctx
    };
    let large = session(1 << 30).await;
    let mut failed = vec![];
    for sql in queries {
        let (expected, is_range_join) = answer(&large, sql).await.expect(sql);
        assert!(is_range_join, "{sql}");
        for limit in [500_000, 600_000, 800_000, 1_000_000] {
            match answer(&session(limit).await, sql).await {
                Ok((rows, _)) => assert_eq!(rows, expected, "{limit}: {sql}"),
                Err(error) => failed.push(format!("{limit}: {sql}: {error}")),
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// What a query reads, and what has a name, stays.
#[tokio::test]
async fn indexes_in_use_and_named_ones_stay() {
    let pool = Arc::new(GreedyMemoryPool::new(3_000_000));
    let ctx = with_indexes(pool).await;
    // For minima, too.
    run(&ctx, "CREATE INDEX i ON b (v)").await.unwrap();
    assert_eq!(kept(&ctx).await, 3);
    let sql = "SELECT range_max('a.v', value, value + 4) FROM range(0, 1000000)";
    let mut stream = ctx.sql(sql).await.unwrap().execute_stream().await.unwrap();
    assert!(stream.next().await.unwrap().unwrap().num_rows() > 0);
    let memory = other(&ctx, true);
    memory.try_grow(1_000_000).expect_err("all are in use");
    assert_eq!(kept(&ctx).await, 3);
    drop(stream);
    // Other threads may still process a batch.
    while memory.try_grow(1_000_000).is_err() {
        tokio::task::yield_now().await;
    }
    assert_eq!(kept(&ctx).await, 2);
    memory
        .try_grow(1_000_000)
        .expect_err("the others are named");
    run(&ctx, "DROP INDEX i").await.unwrap();
    memory.try_grow(1_000_000).expect("none has a name");
    assert_eq!(kept(&ctx).await, 1);
}

#[tokio::test]
async fn lower_options_release_at_once() {
    let pool = Arc::new(GreedyMemoryPool::new(2 * POOL));
    let ctx = with_indexes(Arc::clone(&pool) as _).await;
    let both = pool.reserved();
    let sql = "SET rmq.index_memory_limit = '1M'";
    ctx.sql(sql).await.unwrap();
    assert!(pool.reserved() > 0 && pool.reserved() < both);
    ctx.sql("SET rmq.index_memory_limit = '0'").await.unwrap();
    assert_eq!(pool.reserved(), 0);
    ctx.sql("SET rmq.index_memory_limit = '1G'").await.unwrap();
    index(&ctx, "a").await;
    run(&ctx, "CREATE INDEX i ON b (v)").await.unwrap();
    let both = pool.reserved();
    ctx.sql("SET rmq.keep_indexes = 'maybe'").await.unwrap_err();
    ctx.sql("SET rmq.keep_indexes = true").await.unwrap();
    ctx.sql("SET rmq.rewrite = true").await.unwrap();
    assert_eq!(pool.reserved(), both);
    ctx.sql("SET rmq.keep_indexes = false").await.unwrap();
    // Those with a name stay.
    assert!(pool.reserved() > 0 && pool.reserved() < both);
    assert_eq!(kept(&ctx).await, 2);

    // Also the rows of range joins, in a pool without a limit.
    let ctx = cpu_session();
    for sql in [
        "CREATE TABLE p AS SELECT value AS k FROM range(0, 5000)",
        "SELECT (SELECT count(*) FROM p WHERE p.k BETWEEN q.k - 9 AND q.k) FROM p AS q",
    ] {
        run(&ctx, sql).await.expect(sql);
    }
    assert_eq!(kept(&ctx).await, 1);
    set(&ctx, "rmq.keep_indexes", "false");
    assert_eq!(kept(&ctx).await, 0);
}

/// A limit that is set later, or raised, or lowered, is that of a new pool.
#[tokio::test]
async fn indexes_give_way_in_a_pool_that_is_set_later() {
    let ctx = cpu_session();
    let numbers = Arc::new(datafusion::arrow::array::Int64Array::from_iter_values(
        0..100_000,
    ));
    register(&ctx, "a", &[("v", numbers)], &[50_000]);
    for limit in ["2M", "1500K", "1900K"] {
        let sql = format!("SET datafusion.runtime.memory_limit = '{limit}'");
        plan(&ctx, &sql).await.expect(&sql);
        // Those in the pool before would not give anything to this one.
        assert_eq!(kept(&ctx).await, 0, "{limit}");
        index(&ctx, "a").await;
        assert_eq!(kept(&ctx).await, 1, "{limit}");
        let memory = other(&ctx, true);
        memory.try_grow(1_400_000).expect(limit);
        assert_eq!(kept(&ctx).await, 0, "{limit}");
        drop(memory);
        index(&ctx, "a").await;
    }
    // Registered once more, the pool asks the new catalog.
    datafusion_rmq::register(&ctx);
    index(&ctx, "a").await;
    let memory = other(&ctx, true);
    memory.try_grow(1_400_000).expect("memory of the index");
    assert_eq!(kept(&ctx).await, 0);
}

/// Queries of all kinds that spill in a session of their own do so in a long one, too.
#[tokio::test(flavor = "multi_thread")]
async fn long_sessions_have_as_much_memory_as_fresh_ones() {
    let tables = [
        "CREATE TABLE t AS SELECT value AS id, value % 50 AS s, value * 7919 % 100003 AS k,
             value * 104729 % 65537 AS v FROM range(0, 20000)",
        "CREATE TABLE q AS SELECT value AS id, value % 50 AS s, value * 104729 % 100003 AS k,
             value * 7919 % 65537 AS v FROM range(0, 20000)",
        "CREATE TABLE w AS SELECT value * 3 AS l, value * 3 + 100 AS r FROM range(0, 1000)",
    ];
    let queries = [
        "SELECT sum(range_min('q.v', l, r)), sum(range_max('q.k', l, r)) FROM w",
        "SELECT count(*), sum(v), sum(c) FROM (SELECT id, v, count(*) AS c FROM t GROUP BY id, v)",
        "SELECT count(*), sum(k) FROM (SELECT DISTINCT id, k FROM q)",
        "SELECT sum(n * v) FROM (SELECT v, row_number() OVER (ORDER BY v, id) AS n FROM t)",
        "SELECT count(*), sum(m) FROM (SELECT t.id, (SELECT min(q.v) FROM q WHERE q.s = t.s AND q.k <= t.k) AS m FROM t)",
        "SELECT count(*), sum(q.v) FROM t JOIN q ON q.s = t.s AND q.k BETWEEN t.k - 50 AND t.k",
        "SELECT sum(m) FROM (SELECT min(v) OVER (ORDER BY k, id ROWS BETWEEN 500 PRECEDING AND CURRENT ROW) AS m FROM t)",
    ];
    let session = async |limit: usize| {
        let pool = Arc::new(GreedyMemoryPool::new(limit));
        let config = SessionConfig::new()
            .with_target_partitions(1)
            .with_batch_size(1024)
            .with_sort_spill_reservation_bytes(32 << 10);
        let ctx = session_of_pool(config, pool);
        set(&ctx, "rmq.engine", "cpu");
        for sql in tables {
            run(&ctx, sql).await.expect(sql);
        }
        ctx
    };
    let (mut compared, mut failed) = (0, vec![]);
    for limit in [450_000, 600_000, 1_000_000] {
        let mut expected = vec![];
        for sql in queries {
            let fresh = session(limit).await;
            expected.push(answer(&fresh, sql).await.ok().map(|(rows, _)| rows));
        }
        let long = session(limit).await;
        for round in 0..2 {
            for (sql, expected) in queries.iter().zip(&expected) {
                let Some(expected) = expected else { continue };
                compared += 1;
                // Whatever came before, there are indexes.
                run(&long, queries[0]).await.expect("indexes");
                match answer(&long, sql).await {
                    Ok((rows, _)) => assert_eq!(&rows, expected, "{sql}"),
                    Err(error) => failed.push(format!("{limit}, round {round}: {sql}: {error}")),
                }
            }
        }
    }
    assert!(compared >= 30, "{compared}");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
