//! Memory limits, faults, cancelling, and calls from outside SQL.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::{FunctionRegistry, SessionStateBuilder};
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlanProperties, collect};
use datafusion::prelude::{SessionConfig, SessionContext, col, lit};
use datafusion_rmq::SessionStateBuilderExt;
use futures::StreamExt;

use crate::range_join::register_partitions;
use crate::support::{bigint, cpu_session, error, register, run, session, session_of_pool};

fn numbers(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

#[tokio::test]
async fn a_call_that_no_rule_rewrote_is_an_error() {
    let ctx = session();
    register(&ctx, "t", &[("v", numbers([1]))], &[]);
    let call = ctx
        .udf("range_min")
        .unwrap()
        .call(vec![lit("t.v"), lit(0_i64), lit(1_i64)]);
    let expr = ctx.create_physical_expr(call, &DFSchema::empty()).unwrap();
    let batch = run(&ctx, "SELECT 1").await.unwrap();
    let message = expr.evaluate(&batch).unwrap_err().to_string();
    assert!(
        message.contains("range_min was not planned as a range query"),
        "{message}"
    );
}

#[tokio::test]
async fn the_dataframe_api_takes_the_functions() {
    let ctx = session();
    register(&ctx, "t", &[("v", numbers([5, 3, 8]))], &[]);
    register(
        &ctx,
        "q",
        &[("l", numbers([0, 1])), ("r", numbers([1, 2]))],
        &[],
    );
    let range_max = ctx.udf("range_max").unwrap();
    let call = range_max.call(vec![lit("t.v"), col("l"), col("r")]);
    let frame = ctx.table("q").await.unwrap();
    let frame = frame.filter(call.clone().gt(lit(5_i64))).unwrap();
    let frame = frame.select(vec![call.alias("m")]).unwrap();
    let batches = frame.collect().await.unwrap();
    let values: Vec<_> = batches
        .iter()
        .flat_map(|b| b.column(0).as_primitive::<Int64Type>().values().to_vec())
        .collect();
    assert_eq!(values, [8]);
}

#[tokio::test]
async fn a_builder_registers_as_well_as_a_context() {
    let config = SessionConfig::new();
    let builder = SessionStateBuilder::new()
        .with_config(config)
        .with_default_features()
        .with_rmq();
    let ctx = SessionContext::new_with_state(builder.build());
    register(&ctx, "t", &[("v", numbers([5, 3, 8]))], &[]);
    assert_eq!(
        bigint(&ctx, "SELECT range_argmax('t.v', 0, 2)").await,
        Some(2)
    );
    // Registering twice is harmless, and adds no rule twice.
    let once = rules(&ctx);
    datafusion_rmq::register(&ctx);
    datafusion_rmq::register(&ctx);
    assert_eq!(rules(&ctx), once);
    assert_eq!(
        bigint(&ctx, "SELECT range_argmax('t.v', 0, 2)").await,
        Some(2)
    );
}

/// The names of all rules of a session, in their order.
fn rules(ctx: &SessionContext) -> Vec<String> {
    let state = ctx.state();
    let analyzers = state.analyzer().rules.iter().map(|rule| rule.name());
    let logical = state.optimizers().iter().map(|rule| rule.name());
    let physical = state.physical_optimizers().iter().map(|rule| rule.name());
    let all = analyzers.chain(logical).chain(physical);
    all.map(ToString::to_string).collect()
}

/// DataFusion's `date_trunc` keeps its alias when another function takes its name, so the session has both functions.
#[tokio::test]
async fn functions_that_replaced_others_are_kept() {
    let answer = |_: &[ColumnarValue]| Ok(ColumnarValue::Scalar(ScalarValue::from(42_i64)));
    let ours = create_udf(
        "date_trunc",
        vec![DataType::Int64],
        DataType::Int64,
        Volatility::Immutable,
        Arc::new(answer),
    );
    // The order in which functions are registered again differs between runs.
    for _ in 0..16 {
        let ctx = SessionContext::new();
        ctx.register_udf(ours.clone());
        datafusion_rmq::register(&ctx);
        let sql = "SELECT date_trunc(1), datetrunc('year', DATE '2024-05-06')::DATE::VARCHAR";
        let batch = run(&ctx, sql).await.expect(sql);
        assert_eq!(batch.column(0).as_primitive::<Int64Type>().value(0), 42);
        let year = ScalarValue::try_from_array(batch.column(1), 0).expect("a value");
        assert_eq!(year.to_string(), "2024-01-01");
    }
}

/// A session's own `abs`, such as Spark's, and its own `first`.
#[tokio::test]
async fn functions_of_the_session_are_not_replaced() {
    let answer = |_: &[ColumnarValue]| Ok(ColumnarValue::Scalar(ScalarValue::from(42_i64)));
    let abs = create_udf(
        "abs",
        vec![DataType::Int64],
        DataType::Int64,
        Volatility::Immutable,
        Arc::new(answer),
    );
    let ctx = SessionContext::new();
    ctx.register_udf(abs);
    let first = datafusion::functions_aggregate::sum::sum_udaf();
    ctx.register_udaf(first.as_ref().clone().with_aliases(["first"]));
    for _ in 0..3 {
        datafusion_rmq::register(&ctx);
        assert_eq!(bigint(&ctx, "SELECT abs(-1)").await, Some(42));
        let sum = "SELECT first(value) FROM generate_series(1, 3)";
        assert_eq!(bigint(&ctx, sum).await, Some(6));
    }
}

#[tokio::test]
async fn a_default_schema_set_later_is_used() {
    let ctx = session();
    register(&ctx, "t", &[("v", numbers([5]))], &[]);
    run(&ctx, "CREATE SCHEMA other").await.unwrap();
    run(&ctx, "CREATE TABLE other.t AS SELECT 'x' AS v")
        .await
        .unwrap();
    assert_eq!(bigint(&ctx, "SELECT range_max('t.v', 0, 0)").await, Some(5));
    run(&ctx, "SET datafusion.catalog.default_schema = 'other'")
        .await
        .unwrap();
    let batch = run(&ctx, "SELECT arrow_cast(range_max('t.v', 0, 0), 'Utf8')")
        .await
        .unwrap();
    assert_eq!(batch.column(0).as_string::<i32>().value(0), "x");
    assert_eq!(
        bigint(&ctx, "SELECT range_max('public.t.v', 0, 0)").await,
        Some(5)
    );
}

#[tokio::test]
async fn over_the_limit_the_least_recently_used_indexes_are_evicted() {
    let ctx = cpu_session();
    for name in ["a", "b", "c"] {
        register(&ctx, name, &[("v", numbers(0..100_000))], &[]);
    }
    let ask = |name: &str| format!("SELECT range_min('{name}.v', 5, 9)");
    bigint(&ctx, &ask("a")).await;
    let bytes = bigint(&ctx, "SELECT CAST(max(bytes) AS BIGINT) FROM rmq_indexes()")
        .await
        .unwrap();
    // The limit fits two indexes, while a third is built with an estimate that may be too high.
    run(
        &ctx,
        &format!("SET rmq.index_memory_limit = '{}'", bytes * 5 / 2),
    )
    .await
    .unwrap();
    bigint(&ctx, &ask("b")).await;
    bigint(&ctx, &ask("a")).await;
    bigint(&ctx, &ask("c")).await;
    let held = run(&ctx, "SELECT \"table\" FROM rmq_indexes() ORDER BY 1")
        .await
        .unwrap();
    let expected = StringArray::from(vec!["datafusion.public.a", "datafusion.public.c"]);
    assert_eq!(held.column(0).as_ref(), &expected);
}

#[tokio::test]
async fn a_column_over_the_limit_is_an_error_that_names_the_option() {
    let ctx = cpu_session();
    register(&ctx, "t", &[("v", numbers(0..100_000))], &[50_000]);
    run(&ctx, "SET rmq.index_memory_limit = '100K'")
        .await
        .unwrap();
    let message = error(&ctx, "SELECT range_min('t.v', 5, 9)").await;
    assert!(message.contains("Resources exhausted"), "{message}");
    assert!(message.contains("the index of t.v needs"), "{message}");
    assert!(
        message.contains("rmq.index_memory_limit = '100K'"),
        "{message}"
    );
    run(&ctx, "SET rmq.index_memory_limit = '100M'")
        .await
        .unwrap();
    assert_eq!(bigint(&ctx, "SELECT range_min('t.v', 5, 9)").await, Some(5));
}

#[tokio::test]
async fn the_memory_pool_limits_indexes_and_cached_ones_are_evicted() {
    let pool = Arc::new(GreedyMemoryPool::new(3_000_000));
    let ctx = session_of_pool(SessionConfig::new(), pool);
    // With two batches, each index owns a copy of 1.6 MB.
    for name in ["a", "b"] {
        register(&ctx, name, &[("v", numbers(0..200_000))], &[100_000]);
        let sql = format!("SELECT range_max('{name}.v', 5, 9)");
        assert_eq!(bigint(&ctx, &sql).await, Some(9));
    }
    assert_eq!(
        bigint(&ctx, "SELECT count(*) FROM rmq_indexes()").await,
        Some(1)
    );
    register(&ctx, "big", &[("v", numbers(0..2_000_000))], &[1_000_000]);
    let message = error(&ctx, "SELECT range_max('big.v', 5, 9)").await;
    assert!(message.contains("Resources exhausted"), "{message}");
    assert!(message.contains("memory pool"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_stops_and_frees() {
    let ctx = session();
    register(&ctx, "t", &[("v", numbers(0..100_000))], &[]);
    let sql = "SELECT range_min('t.v', value, value + 1000) FROM range(0, 1000000000)";
    let mut stream = ctx.sql(sql).await.unwrap().execute_stream().await.unwrap();
    assert!(stream.next().await.unwrap().unwrap().num_rows() > 0);
    let started = std::time::Instant::now();
    drop(stream);
    drop(ctx.deregister_table("t").unwrap());
    run(&ctx, "SELECT * FROM rmq_indexes()").await.unwrap();
    // Other threads may still process a batch.
    while ctx.runtime_env().memory_pool.reserved() > 0 {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "memory is still held"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
        run(&ctx, "SELECT * FROM rmq_indexes()").await.unwrap();
    }
}

/// One partition's stream is dropped while it collects the build side for all partitions. The build side's plan can be
/// executed only once.
#[tokio::test(flavor = "multi_thread")]
async fn other_partitions_continue_when_one_is_dropped() {
    let ctx = session();
    register(&ctx, "p", &[("k", numbers(0..200_000))], &[50_000; 3]);
    register_partitions(&ctx, "q", &[("a", numbers(0..4_000))], &[1_000; 3]);
    // A hash repartition divides the rows of the build side.
    let sql = "SELECT q.a, x.m FROM q CROSS JOIN LATERAL (
                   SELECT max(p.v) AS m FROM (SELECT k, max(k) AS v FROM p GROUP BY k) AS p WHERE p.k BETWEEN q.a AND q.a + 7
               ) AS x";
    for waits in [0, 1, 5, 20] {
        let plan = ctx.sql(sql).await.unwrap();
        let plan = plan.create_physical_plan().await.unwrap();
        let partitions = plan.output_partitioning().partition_count();
        assert!(partitions > 1, "{partitions}");
        let context = ctx.task_ctx();
        let streams = (0..partitions).map(|i| plan.execute(i, Arc::clone(&context)).unwrap());
        let mut streams = streams.collect::<Vec<_>>().into_iter();
        let mut first = streams.next().unwrap();
        for _ in 0..=waits {
            let _ = futures::poll!(first.next());
            tokio::time::sleep(Duration::from_millis(waits)).await;
        }
        drop(first);
        let mut rows = 0;
        for mut stream in streams {
            while let Some(batch) = stream.next().await {
                let batch = batch.unwrap();
                let column = |i: usize| batch.column(i).as_primitive::<Int64Type>().clone();
                for (a, m) in column(0).iter().zip(&column(1)) {
                    assert_eq!(m, a.map(|a| a + 7));
                    rows += 1;
                }
            }
        }
        assert!(rows >= 3_000, "{waits}: {rows}");
    }
}

#[tokio::test]
async fn without_input_rows_no_index_is_built() {
    let ctx = session();
    register(&ctx, "t", &[("v", numbers([5, 3, 8]))], &[]);
    register(
        &ctx,
        "q",
        &[("l", numbers([])), ("r", numbers([]))],
        &[0, 0],
    );
    let none = run(&ctx, "SELECT range_min('t.v', l, r) FROM q")
        .await
        .unwrap();
    assert_eq!(none.num_rows(), 0);
    let none = run(
        &ctx,
        "SELECT min, argmin FROM range_min('t.v', 'q', 'l', 'r')",
    )
    .await
    .unwrap();
    assert_eq!(none.num_rows(), 0);
    assert_eq!(
        bigint(&ctx, "SELECT count(*) FROM rmq_indexes()").await,
        Some(0)
    );
}

#[tokio::test]
async fn a_subquerys_order_holds_over_many_partitions() {
    let ctx = session();
    let keys: Vec<i64> = (0..40_000).map(|i| i * 7919 % 40_009).collect();
    let rows: Vec<usize> = vec![5000; 7];
    register(
        &ctx,
        "t",
        &[("k", numbers(keys.clone())), ("v", numbers(0..40_000))],
        &rows,
    );
    run(&ctx, "CREATE VIEW ordered AS SELECT v, k FROM t ORDER BY k")
        .await
        .unwrap();
    let mut sorted: Vec<_> = keys.iter().zip(0_i64..).collect();
    sorted.sort_unstable();
    for source in [
        "'ordered.v'",
        "(SELECT v FROM t ORDER BY k)",
        "(SELECT v FROM ordered ORDER BY k)",
        // Rows that are computed or filtered above the sort.
        "(SELECT v + 0 FROM t ORDER BY k)",
        "(SELECT abs(v) FROM (SELECT v, k FROM t ORDER BY k LIMIT 40000) AS s WHERE v >= 0)",
    ] {
        let sql = format!(
            "SELECT i, range_min({source}, i, i) AS v FROM (SELECT value AS i FROM range(0, 40000)) ORDER BY i"
        );
        let got = run(&ctx, &sql).await.unwrap();
        let got = got.column(1).as_primitive::<Int64Type>();
        assert_eq!(got.null_count(), 0);
        assert!(
            got.values()
                .iter()
                .zip(&sorted)
                .all(|(got, (_, v))| got == v),
            "{source}"
        );
    }
}

/// The first partition is dropped while it reads a subquery's rows. Later ones in the same run read them again.
#[tokio::test(flavor = "multi_thread")]
async fn a_subquery_whose_reader_is_dropped_is_read_again() {
    let ctx = session();
    let values = numbers((0..400_000).map(|i| i * 7919 % 300_007));
    register(&ctx, "t", &[("v", values)], &[100_000, 100_000]);
    let sql = "SELECT range_argmax((SELECT v FROM t GROUP BY v ORDER BY v LIMIT 4000), i, i + 5000) \
               FROM (SELECT value AS i FROM range(0, 3))";
    let plan = ctx.sql(sql).await.unwrap();
    let plan = plan.create_physical_plan().await.unwrap();
    let task = ctx.task_ctx();
    // A new plan around the same relation, because its operators can be executed only once.
    let again = || reset_plan_states(Arc::clone(&plan)).unwrap();
    for given_up in 0..4 {
        let mut stream = again().execute(0, Arc::clone(&task)).unwrap();
        let next = tokio::time::timeout(Duration::from_millis(3 * given_up), stream.next());
        drop(next.await);
        drop(stream);
    }
    let batches = collect(again(), task).await.unwrap();
    let rows: Vec<_> = batches
        .iter()
        .flat_map(|b| b.column(0).as_primitive::<Int64Type>().values().to_vec())
        .collect();
    assert_eq!(rows, [3999; 3]);
}
