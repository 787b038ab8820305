//! Aggregates over wide windows, which merge the states of accumulators after blocks of rows, compared with
//! DataFusion's functions over the pairs of a plain join, and with a function of the tests that minds the order of
//! rows.

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, Int64Type, UInt64Type};
use datafusion::common::{Result, ScalarValue};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility,
};
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use rmq_testing::{Random, runs};

use crate::order_statistics::registered;
use crate::range_join::{lines, metric};
use crate::support::{cpu_session, run, session_of_pool, set};

/// The windows of each query.
const WINDOWS: usize = 60;

/// What is computed of each window, and whether states of blocks are merged for it.
const AGGREGATES: [(&str, bool); 28] = [
    ("stddev(p.v)", true),
    ("stddev_pop(p.i)", true),
    ("var_samp(p.v)", true),
    ("var_pop(p.v) FILTER (WHERE p.k % 3 = 0)", true),
    ("corr(p.v, p.w)", true),
    ("covar_samp(p.v, p.w)", true),
    ("covar_pop(p.i, p.w)", true),
    ("regr_slope(p.v, p.w)", true),
    ("regr_intercept(p.v, p.w)", true),
    ("regr_r2(p.v, p.w)", true),
    ("regr_count(p.v, p.w)", true),
    ("regr_sxy(p.v, p.w)", true),
    ("bit_and(p.i)", true),
    ("bit_or(p.i)", true),
    ("bit_xor(p.i) FILTER (WHERE p.k % 2 = 0)", true),
    ("bool_and(p.b)", true),
    ("bool_or(p.b)", true),
    ("avg(p.v) FILTER (WHERE p.b)", false),
    ("sum(p.i) FILTER (WHERE p.b)", false),
    // Order statistics have it.
    ("count(DISTINCT p.s) FILTER (WHERE p.k > 5)", false),
    ("sum(DISTINCT p.i % 7)", true),
    ("median(DISTINCT p.i % 7)", true),
    ("approx_distinct(p.i)", false),
    ("array_agg(p.b)", false),
    ("string_agg(p.s, ',')", false),
    ("array_agg(p.i ORDER BY p.v, p.k)", false),
    ("stddev(p.n)", true),
    ("corr(p.v, p.n)", true),
];

/// Tables `p`, of rows in groups and in no order, and `q`, of windows: most of them wide, some empty.
async fn tables(ctx: &SessionContext, random: &mut Random) {
    let rows = 1500 + random.below(2000);
    let groups = 1 + random.below(3);
    let reach = rows / 2 + random.below(rows);
    let first = random.below(10_000);
    for sql in [
        format!(
            "CREATE TABLE p AS SELECT n % {groups} AS g, n * 7919 % {rows} AS k,
                CASE WHEN n % 11 = 0 THEN NULL ELSE 100 + (n * 7919 % 211)::DOUBLE / 7 END AS v,
                (n * 31 % 1009)::DOUBLE - 300 AS w, n * 7919 % 5003 AS i, n % 97 <> 0 AS b, concat('s', n * 13 % 5) AS s,
                CAST(NULL AS DOUBLE) AS n
             FROM (SELECT value + {first} AS n FROM range(0, {rows}))"
        ),
        format!(
            "CREATE TABLE q AS SELECT value AS id, nullif(value % {groups}, 7) AS g, value * 13 % {rows} - {reach} / 2 AS a,
                value * 13 % {rows} + value * 31 % {reach} - 5 AS b FROM range(0, {WINDOWS})"
        ),
    ] {
        run(ctx, &sql).await.expect(&sql);
    }
}

/// Numbers and texts by window, in the order of the windows.
async fn answers(ctx: &SessionContext, sql: &str) -> (Vec<Answer>, usize) {
    let plan = ctx.sql(sql).await.expect(sql);
    let plan = plan.create_physical_plan().await.expect(sql);
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await.expect(sql);
    let mut answers = vec![];
    for batch in &batches {
        let ids = batch.column(0).as_primitive::<Int64Type>();
        let values = batch.column(1);
        for (row, id) in ids.values().iter().enumerate() {
            let value = ScalarValue::try_from_array(values, row).expect(sql);
            answers.push(Answer { id: *id, value });
        }
    }
    answers.sort_by_key(|answer| answer.id);
    (answers, metric(&plan, "block_states"))
}

#[derive(Debug, Clone, PartialEq)]
struct Answer {
    id: i64,
    value: ScalarValue,
}

/// Equal, or floats that differ by their rounding: DataFusion's accumulators of groups subtract sums of squares.
fn is_close(found: &Answer, expected: &Answer) -> bool {
    let number = |answer: &Answer| match answer.value {
        ScalarValue::Float64(number) => number,
        _ => None,
    };
    match (number(found), number(expected)) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-7 * a.abs().max(b.abs()).max(1.0),
        _ => found == expected,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn aggregates_are_those_of_datafusion() {
    for mut random in runs("block_states", &[]) {
        let ctx = cpu_session();
        set(&ctx, "rmq.range_joins", "always");
        tables(&ctx, &mut random).await;
        let plain = SessionContext::new();
        for table in ["p", "q"] {
            let provider = ctx.table_provider(table).await.expect(table);
            plain.register_table(table, provider).expect(table);
        }
        for (aggregate, merges) in AGGREGATES {
            for on in [
                "p.k BETWEEN q.a AND q.b",
                "p.g = q.g AND p.k >= q.a AND p.k < q.b",
            ] {
                // An order for what lists rows: that of the range key.
                let ordered = match aggregate {
                    "array_agg(p.b)" => "array_agg(p.b ORDER BY p.k)",
                    "string_agg(p.s, ',')" => "string_agg(p.s, ',' ORDER BY p.k)",
                    other => other,
                };
                let joined = |join: &str, aggregate: &str| {
                    format!(
                        "SELECT q.id, {aggregate} AS a FROM q {join} JOIN p ON {on} GROUP BY q.id"
                    )
                };
                let subquery =
                    format!("SELECT q.id, (SELECT {aggregate} FROM p WHERE {on}) FROM q");
                for (sql, join) in [(subquery, "LEFT"), (joined("", aggregate), "")] {
                    // Of a left join also the NULL of a window without rows.
                    if !join.is_empty() && aggregate.starts_with("array_agg") {
                        continue;
                    }
                    let (expected, _) = answers(&plain, &joined(join, ordered)).await;
                    let (found, merged) = answers(&ctx, &sql).await;
                    assert_eq!(found.len(), expected.len(), "{sql}");
                    for (found, expected) in found.iter().zip(&expected) {
                        assert!(
                            is_close(found, expected),
                            "{sql}: {found:?}, not {expected:?}"
                        );
                    }
                    // States that list values make a join of pairs.
                    let is_pairs = join.is_empty() && aggregate.contains("DISTINCT");
                    assert_eq!(merged > 0, merges && !is_pairs, "{sql}: {merged}");
                }
            }
        }
    }
}

/// The states of a call are kept with the rows, registered, and dropped with them.
#[tokio::test(flavor = "multi_thread")]
async fn states_of_kept_rows_are_kept() {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 30));
    let ctx = session_of_pool(SessionConfig::new(), Arc::clone(&pool));
    set(&ctx, "rmq.range_joins", "always");
    for sql in [
        "CREATE TABLE p AS SELECT value * 7919 % 20000 AS k, (value * 31 % 5003)::DOUBLE AS v FROM range(0, 20000)",
        "CREATE TABLE q AS SELECT value AS id, value * 130 AS a, value * 130 + 3000 AS b FROM range(0, 130)",
    ] {
        run(&ctx, sql).await.expect(sql);
    }
    let bytes = "SELECT sum(bytes) FROM rmq_indexes()";
    let window = |aggregate: &str| {
        format!(
            "SELECT q.id, (SELECT {aggregate} FROM p WHERE p.k BETWEEN q.a AND q.b) FROM q WHERE q.id = 7"
        )
    };
    let (first, merged) = answers(&ctx, &window("stddev(p.v)")).await;
    assert_eq!(merged, 0, "one window has fewer rows than the table");
    let before = lines(&[run(&ctx, bytes).await.expect(bytes)]);
    let all = window("stddev(p.v)").replace("= 7", ">= 0");
    let (_, merged) = answers(&ctx, &all).await;
    assert_eq!(merged, 130);
    let after = lines(&[run(&ctx, bytes).await.expect(bytes)]);
    let added: Vec<usize> = [&after[0], &before[0]]
        .iter()
        .map(|bytes| bytes.parse().expect("a number"))
        .collect();
    // States of 24 bytes after every 8 rows, and those of the nodes above.
    let added = added[0] - added[1];
    assert!((90_000..180_000).contains(&added), "{added}");
    let (again, merged) = answers(&ctx, &window("stddev(p.v)")).await;
    assert_eq!((again, merged), (first, 1));
    // States that GROUP BY merges are those of the same call.
    let grouped = "SELECT q.id, stddev(p.v) AS s FROM q JOIN p ON p.k BETWEEN q.a AND q.b WHERE q.id = 9 GROUP BY q.id";
    assert_eq!(answers(&ctx, grouped).await.1, 1);
    for other in [
        "stddev_pop(p.v)",
        "stddev(p.v) FILTER (WHERE p.k % 2 = 0)",
        "stddev(p.v + 1)",
    ] {
        assert_eq!(answers(&ctx, &window(other)).await.1, 0, "{other}");
    }
    set(&ctx, "rmq.keep_indexes", "false");
    registered(&pool, 0).await;
}

/// A polynomial of the values in the order of rows: a function that no engine knows, and whose states merge in one
/// order.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Polynomial(Signature);

const BASE: u64 = 1_000_003;

impl AggregateUDFImpl for Polynomial {
    fn name(&self) -> &'static str {
        "polynomial"
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::UInt64)
    }

    fn accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(PolynomialOf { value: 0, rows: 0 }))
    }

    fn state_fields(&self, _: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let field = |name| Arc::new(Field::new(name, DataType::UInt64, false));
        Ok(vec![field("value"), field("rows")])
    }
}

#[derive(Debug)]
struct PolynomialOf {
    value: u64,
    rows: u64,
}

impl PolynomialOf {
    fn append(&mut self, value: u64, rows: u64) {
        let exponent = u32::try_from(rows).expect("few rows");
        self.value = self.value.wrapping_mul(BASE.wrapping_pow(exponent));
        self.value = self.value.wrapping_add(value);
        self.rows += rows;
    }
}

impl Accumulator for PolynomialOf {
    fn update_batch(&mut self, values: &[Arc<dyn Array>]) -> Result<()> {
        let values = values[0].as_primitive::<Int64Type>();
        values
            .values()
            .iter()
            .for_each(|value| self.append(value.cast_unsigned(), 1));
        Ok(())
    }

    fn merge_batch(&mut self, states: &[Arc<dyn Array>]) -> Result<()> {
        let of = |field: usize| states[field].as_primitive::<UInt64Type>().values();
        let states = of(0).iter().zip(of(1));
        states.for_each(|(value, rows)| self.append(*value, *rows));
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.value.into(), self.rows.into()])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(self.value.into())
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_of_ones_own_sees_states_in_the_order_of_rows() {
    for mut random in runs("polynomials", &[]) {
        let ctx = cpu_session();
        set(&ctx, "rmq.range_joins", "always");
        let signature = Signature::exact(vec![DataType::Int64], Volatility::Immutable);
        ctx.register_udaf(AggregateUDF::new_from_impl(Polynomial(signature)));
        let rows = 2000 + random.below(4000);
        let create = format!(
            "CREATE TABLE p AS SELECT value * 7919 % {rows} AS k, value * 7919 % {rows} * 31 % 1009 AS v FROM range(0, {rows})"
        );
        run(&ctx, &create).await.expect(&create);
        let create = format!(
            "CREATE TABLE q AS SELECT value AS id, value * 37 % {rows} AS a, value * 37 % {rows} + value * 101 % {rows} AS b
             FROM range(0, {WINDOWS})"
        );
        run(&ctx, &create).await.expect(&create);
        let on = "p.k BETWEEN q.a AND q.b";
        for sql in [
            format!("SELECT q.id, (SELECT polynomial(p.v) FROM p WHERE {on}) FROM q"),
            format!("SELECT q.id, polynomial(p.v) FROM q JOIN p ON {on} GROUP BY q.id"),
        ] {
            let (found, merged) = answers(&ctx, &sql).await;
            assert_eq!(found.len(), WINDOWS);
            assert!(merged > WINDOWS / 2, "{merged}");
            for Answer { id, value } in found {
                let a = id * 37 % rows as i64;
                let b = a + id * 101 % rows as i64;
                let mut expected = PolynomialOf { value: 0, rows: 0 };
                // Keys are a permutation where 7919, a prime, does not divide their number.
                let has_key = |k: &i64| (0..rows as i64).contains(k);
                for k in (a..=b).filter(has_key) {
                    expected.append((k * 31 % 1009).cast_unsigned(), 1);
                }
                assert_eq!(value, expected.value.into(), "{sql}, window {id}");
            }
        }
    }
}

/// Sketches take long blocks.
#[tokio::test(flavor = "multi_thread")]
async fn sketches_are_merged() {
    let ctx = cpu_session();
    set(&ctx, "rmq.range_joins", "always");
    let rows = 200_000;
    for sql in [
        format!("CREATE TABLE p AS SELECT value * 7919 % {rows} AS k, (value * 31 % 50021)::DOUBLE AS v, value * 31 % 50021 AS i FROM range(0, {rows})"),
        "CREATE TABLE q AS SELECT value AS id, value * 1300 AS a, value * 1300 + 70000 AS b FROM range(0, 100)".to_owned(),
    ] {
        run(&ctx, &sql).await.expect(&sql);
    }
    let plain = SessionContext::new();
    for table in ["p", "q"] {
        let provider = ctx.table_provider(table).await.expect(table);
        plain.register_table(table, provider).expect(table);
    }
    let on = "p.k BETWEEN q.a AND q.b";
    let query =
        |aggregate: &str| format!("SELECT q.id, {aggregate} FROM q JOIN p ON {on} GROUP BY q.id");
    let (found, merged) = answers(&ctx, &query("approx_distinct(p.i)")).await;
    assert!(merged > 0);
    assert_eq!(
        found,
        answers(&plain, &query("approx_distinct(p.i)")).await.0
    );
    for percentile in [0.1, 0.5, 0.99] {
        let sql = query(&format!("approx_percentile_cont(p.v, {percentile})"));
        let (found, merged) = answers(&ctx, &sql).await;
        assert!(merged > 0, "{sql}");
        let exact = query(&format!("percentile_cont(p.v, {percentile})"));
        let (exact, _) = answers(&plain, &exact).await;
        for (found, exact) in found.iter().zip(&exact) {
            let number = |answer: &Answer| {
                answer
                    .value
                    .to_array()
                    .expect("a number")
                    .as_primitive::<Float64Type>()
                    .value(0)
            };
            // A hundredth of the rank, of values that are spread evenly.
            assert!(
                (number(found) - number(exact)).abs() < 500.0,
                "{sql}: {found:?}, {exact:?}"
            );
        }
    }
}

/// Frames whose aggregates DataFusion refuses, because their accumulators can't let a row go.
#[tokio::test(flavor = "multi_thread")]
async fn frames_are_merged() {
    let ctx = cpu_session();
    let create = "CREATE TABLE p AS SELECT value * 7919 % 1500 AS k, value % 701 <> 0 AS b,
         CASE WHEN value % 11 > 0 THEN value * 31 % 5003 END AS i FROM range(0, 1500)";
    run(&ctx, create).await.expect(create);
    let plain = SessionContext::new();
    let provider = ctx.table_provider("p").await.expect("p");
    plain.register_table("p", provider).expect("p");
    for aggregate in [
        "bool_or(p.b)",
        "bool_and(p.b)",
        "bit_and(p.i)",
        "approx_distinct(p.i)",
    ] {
        let frames = format!(
            "SELECT p.k, {aggregate} OVER (ORDER BY p.k RANGE BETWEEN 500 PRECEDING AND 100 FOLLOWING) FROM p"
        );
        let pairs = format!(
            "SELECT a.k, {aggregate} FROM p AS a JOIN p ON p.k BETWEEN a.k - 500 AND a.k + 100 GROUP BY a.k"
        );
        let (found, _) = answers(&ctx, &frames).await;
        assert_eq!(found, answers(&plain, &pairs).await.0, "{frames}");
    }
}

/// A join with GROUP BY of narrow windows, or of aggregates whose states list values, stays a join of pairs.
#[tokio::test(flavor = "multi_thread")]
async fn joins_of_few_pairs_stay() {
    let ctx = cpu_session();
    for sql in [
        "CREATE TABLE p AS SELECT value * 7919 % 100000 AS k, value % 7 AS s, (value * 31 % 1009)::DOUBLE AS v FROM range(0, 100000)",
        "CREATE TABLE q AS SELECT value AS id, value % 7 AS s, value * 90 AS a FROM range(0, 1000)",
    ] {
        run(&ctx, sql).await.expect(sql);
    }
    for on in ["", "p.s = q.s AND "] {
        for (width, aggregate, merges) in [
            (10, "stddev(p.v)", false),
            (30_000, "stddev(p.v)", true),
            (30_000, "approx_median(p.v)", true),
            (30_000, "count(DISTINCT p.v)", false),
            (10, "min(p.v), stddev(p.v)", true),
        ] {
            let sql = format!(
                "SELECT q.id, {aggregate} FROM q JOIN p ON {on}p.k BETWEEN q.a AND q.a + {width} GROUP BY q.id"
            );
            let plan = ctx.sql(&sql).await.expect(&sql);
            let plan = plan.create_physical_plan().await.expect(&sql);
            let text = displayable(plan.as_ref()).indent(false).to_string();
            assert_eq!(text.contains("state of"), merges, "{sql}: {text}");
        }
    }
}
