//! The nearest rows of a range: LATERAL and scalar subqueries with ORDER BY and LIMIT, thresholds among them, and ASOF
//! JOIN, compared with a naive loop.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` the queries of one pair of tables; `RMQ_CASES` makes it longer.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::arrow::array::{Array, AsArray, Float64Array, Int64Array};
use datafusion::arrow::datatypes::{Float64Type, Int64Type};
use datafusion::common::Result;
use datafusion::physical_plan::{collect, displayable, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;

use crate::fake::Fake;
use crate::range_join::metric;
use crate::spilling::ForRangeJoins;
use crate::support::{draw_join_mode, error, plan, register, run, session_of_pool, set};
use rmq_testing::{Random, cases_with_queries, is_usual};

/// The number of queries of the random test, unless `RMQ_CASES` overrides it.
const CASES: usize = 900;

/// Seeds of cases that once failed.
const FAILED: [u64; 0] = [];

/// Queries over the same pair of tables.
const QUERIES: usize = 18;

/// A row of `p`; its number is its position.
#[derive(Debug, Clone, Copy)]
struct Searched {
    sym: Option<i64>,
    k: Option<i64>,
    v: Option<f64>,
}

/// A row of `q`; its id is its position.
#[derive(Debug, Clone, Copy)]
struct Outer {
    sym: Option<i64>,
    a: Option<i64>,
    b: Option<i64>,
    x: Option<f64>,
}

struct Tables {
    p: Vec<Searched>,
    q: Vec<Outer>,
}

impl Tables {
    fn new(random: &mut Random, searched: usize, outer: usize) -> Self {
        let spread = [3, 12, 200][random.below(3)];
        let number = |random: &mut Random, spread: usize| {
            (random.below(9) > 0).then(|| random.below(spread) as i64)
        };
        let float = |random: &mut Random| {
            let value = match random.below(14) {
                0 => f64::NAN,
                1 => -0.0,
                2 => 0.0,
                3 => f64::NEG_INFINITY,
                other => other as f64 - 6.5,
            };
            (random.below(9) > 0).then_some(value)
        };
        let mut p: Vec<Searched> = (0..searched)
            .map(|_| Searched {
                sym: number(random, 3),
                k: number(random, spread),
                v: float(random),
            })
            .collect();
        if random.below(2) == 0 {
            p.sort_by_key(|row| row.k);
        }
        let q = (0..outer).map(|_| {
            let a = number(random, spread);
            Outer {
                sym: number(random, 4),
                a,
                b: number(random, spread).map(|b| a.unwrap_or(0) / 2 + b),
                x: float(random),
            }
        });
        Self { q: q.collect(), p }
    }

    fn register(&self, ctx: &SessionContext, batches: usize) {
        let ints = |values: Vec<Option<i64>>| Arc::new(Int64Array::from(values)) as _;
        let floats = |values: Vec<Option<f64>>| Arc::new(Float64Array::from(values)) as _;
        let numbers = |rows: usize| (0..rows as i64).map(Some).collect::<Vec<_>>();
        let (p, q) = (&self.p, &self.q);
        let columns = [
            ("n", ints(numbers(p.len()))),
            ("sym", ints(p.iter().map(|row| row.sym).collect())),
            ("k", ints(p.iter().map(|row| row.k).collect())),
            ("v", floats(p.iter().map(|row| row.v).collect())),
        ];
        register(ctx, "p", &columns, &vec![p.len() / batches; batches - 1]);
        let columns = [
            ("id", ints(numbers(q.len()))),
            ("sym", ints(q.iter().map(|row| row.sym).collect())),
            ("a", ints(q.iter().map(|row| row.a).collect())),
            ("b", ints(q.iter().map(|row| row.b).collect())),
            ("x", floats(q.iter().map(|row| row.x).collect())),
        ];
        register(ctx, "q", &columns, &vec![q.len() / batches; batches - 1]);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Scalar,
    Cross,
    Left,
    Asof,
}

/// A further condition on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Further {
    None,
    AtMost,
    Above,
    Numbers,
    AboveAndNumbers,
}

#[derive(Debug, Clone)]
struct Query {
    form: Form,
    equality: bool,
    /// Whether `k` is compared with `a`, and strictly.
    lower: Option<bool>,
    /// Whether `k` is compared with `b`, and strictly.
    upper: Option<bool>,
    further: Further,
    by_value: bool,
    descending: bool,
    nulls_first: Option<bool>,
    /// Whether the other column comes next in ORDER BY, descending, and with NULLs first.
    then_by: Option<(bool, Option<bool>)>,
    limit: Option<usize>,
    offset: usize,
}

impl Query {
    fn new(random: &mut Random) -> Self {
        let form = [Form::Scalar, Form::Cross, Form::Left, Form::Asof][random.below(4)];
        let bound =
            |random: &mut Random| [None, Some(false), Some(true), Some(false)][random.below(4)];
        let mut query = Self {
            form,
            equality: random.below(3) > 0,
            lower: bound(random),
            upper: bound(random),
            further: [
                Further::None,
                Further::None,
                Further::AtMost,
                Further::Above,
                Further::Numbers,
                Further::AboveAndNumbers,
            ][random.below(6)],
            by_value: random.below(4) == 0,
            descending: random.below(2) == 0,
            nulls_first: [None, Some(false), Some(true)][random.below(3)],
            then_by: [
                None,
                None,
                Some((
                    random.below(2) == 0,
                    [None, Some(true), Some(false)][random.below(3)],
                )),
            ][random.below(3)],
            limit: [Some(0), Some(1), Some(1), Some(2), Some(5), None][random.below(6)],
            offset: [0, 0, 0, 1, 3][random.below(5)],
        };
        let strict = random.below(2) == 0;
        match form {
            Form::Asof => {
                (query.by_value, query.then_by) = (false, None);
                query.lower = (!query.descending).then_some(strict);
                query.upper = query.descending.then_some(strict);
                (query.limit, query.offset) = (Some(1), 0);
            }
            Form::Scalar => {
                query.limit = Some(random.below(5).min(1));
            }
            Form::Cross | Form::Left => {}
        }
        let is_bounded = query.lower.is_some() || query.upper.is_some();
        query.equality |= !is_bounded && query.further == Further::None;
        if query.is_extreme() {
            query.offset = 1;
        }
        query
    }

    /// Whether the first row is one at an extreme value of another column than the range key. Of several such rows, an
    /// index returns the first by the range key.
    fn is_extreme(&self) -> bool {
        let bounds_key = self.lower.is_some() || self.upper.is_some();
        let bounds_value = matches!(self.further, Further::AtMost | Further::Above);
        let is_other = match self.by_value {
            true => bounds_key && !bounds_value,
            false => bounds_value && !bounds_key,
        };
        let is_first = self.limit == Some(1) && self.offset == 0 && self.then_by.is_none();
        let is_plain = !matches!(self.further, Further::Numbers | Further::AboveAndNumbers);
        is_other && is_first && is_plain
    }

    fn conditions(&self) -> Vec<&'static str> {
        let mut parts = vec![];
        if self.equality {
            parts.push("p.sym = q.sym");
        }
        parts.extend(
            self.lower
                .map(|strict| if strict { "p.k > q.a" } else { "q.a <= p.k" }),
        );
        parts.extend(
            self.upper
                .map(|strict| if strict { "p.k < q.b" } else { "p.k <= q.b" }),
        );
        match self.further {
            Further::None => {}
            Further::AtMost => parts.push("p.v <= q.x"),
            Further::Above => parts.push("q.x < p.v"),
            Further::Numbers => parts.push("p.n % 3 <> q.id % 3"),
            Further::AboveAndNumbers => parts.extend(["q.x < p.v", "p.n % 3 <> q.id % 3"]),
        }
        parts
    }

    fn sql(&self) -> String {
        let conditions = self.conditions();
        if self.form == Form::Asof {
            let is_match = |c: &&str| c.contains("p.k");
            let (matching, others): (Vec<_>, Vec<_>) = conditions.into_iter().partition(is_match);
            let on = match others.as_slice() {
                [] => String::new(),
                others => format!(" ON {}", others.join(" AND ")),
            };
            let matching = matching[0];
            return format!(
                "SELECT q.id, p.n, p.v, p.n + q.id FROM q ASOF JOIN p MATCH_CONDITION ({matching}){on}"
            );
        }
        let order = |by_value: bool, descending: bool, nulls_first: Option<bool>| {
            let by = if by_value { "p.v" } else { "p.k" };
            let direction = if descending { " DESC" } else { "" };
            let nulls = match nulls_first {
                None => "",
                Some(true) => " NULLS FIRST",
                Some(false) => " NULLS LAST",
            };
            format!("{by}{direction}{nulls}")
        };
        let first = order(self.by_value, self.descending, self.nulls_first);
        let then_by = self
            .then_by
            .map_or(String::new(), |(descending, nulls_first)| {
                format!(", {}", order(!self.by_value, descending, nulls_first))
            });
        let limit = self.limit.map_or("NULL".to_string(), |n| n.to_string());
        let offset = match self.offset {
            0 => String::new(),
            rows => format!(" OFFSET {rows}"),
        };
        let tail = format!(
            "FROM p WHERE {} ORDER BY {first}{then_by} LIMIT {limit}{offset}",
            conditions.join(" AND ")
        );
        let select = |column: &str| format!("(SELECT {column} {tail})");
        let both = "coalesce(p.n, -1) + q.id";
        match self.form {
            Form::Scalar => format!(
                "SELECT q.id, {}, {}, {} FROM q",
                select("p.n"),
                select("p.v"),
                select(both)
            ),
            Form::Left => format!(
                "SELECT q.id, x.n, x.v, x.e FROM q LEFT JOIN LATERAL {} x ON true",
                select(&format!("p.n, p.v, {both} AS e"))
            ),
            _ => format!(
                "SELECT q.id, x.n, x.v, x.e FROM q CROSS JOIN LATERAL {} x",
                select(&format!("p.n, p.v, {both} AS e"))
            ),
        }
    }

    fn matches(&self, p: &Searched, n: usize, q: &Outer, id: usize) -> bool {
        let equal = || p.sym.is_some() && p.sym == q.sym;
        let compared = |strict: bool, low: Option<i64>, high: Option<i64>| match (low, high) {
            (Some(low), Some(high)) => low < high || !strict && low == high,
            _ => false,
        };
        let lower = || self.lower.is_none_or(|strict| compared(strict, q.a, p.k));
        let upper = || self.upper.is_none_or(|strict| compared(strict, p.k, q.b));
        let further = || match (self.further, p.v, q.x) {
            (Further::None, ..) => true,
            (Further::Numbers, ..) => n % 3 != id % 3,
            (Further::AtMost, Some(v), Some(x)) => without_sign(v, x).is_le(),
            (Further::Above, Some(v), Some(x)) => without_sign(v, x).is_gt(),
            (Further::AboveAndNumbers, Some(v), Some(x)) => {
                without_sign(v, x).is_gt() && n % 3 != id % 3
            }
            _ => false,
        };
        (!self.equality || equal()) && lower() && upper() && further()
    }

    /// The rows of `p` for a row of `q`, in order.
    fn naive(&self, tables: &Tables, q: &Outer, id: usize) -> Vec<usize> {
        let numbers = 0..tables.p.len();
        let matches = |n: &usize| self.matches(&tables.p[*n], *n, q, id);
        let mut rows: Vec<usize> = numbers.filter(matches).collect();
        // Descending order is ascending order from the end on, with NULLs at the other end.
        let nulls_first = self.nulls_first.unwrap_or(self.descending) != self.descending;
        let compare = |a: usize, b: usize, by_value: bool, nulls_first: bool| {
            let (a, b) = (&tables.p[a], &tables.p[b]);
            if by_value {
                with_nulls(a.v, b.v, nulls_first, without_sign)
            } else {
                with_nulls(a.k, b.k, nulls_first, |a, b| a.cmp(&b))
            }
        };
        rows.sort_by(|a, b| {
            let first = compare(*a, *b, self.by_value, nulls_first);
            first.then_with(|| {
                let Some((descending, nulls)) = self.then_by else {
                    return Ordering::Equal;
                };
                let is_reversed = descending != self.descending;
                let nulls_first = nulls.unwrap_or(descending) != self.descending;
                let ordering = compare(*a, *b, !self.by_value, nulls_first != is_reversed);
                if is_reversed {
                    ordering.reverse()
                } else {
                    ordering
                }
            })
        });
        if self.descending {
            rows.reverse();
        }
        let limit = self.limit.unwrap_or(usize::MAX);
        rows.into_iter().skip(self.offset).take(limit).collect()
    }

    /// The expected rows of each id.
    fn expected(&self, tables: &Tables) -> BTreeMap<usize, Vec<String>> {
        let rows = tables.q.iter().enumerate().map(|(id, q)| {
            let found = self.naive(tables, q, id).into_iter();
            let mut lines: Vec<_> = found
                .map(|n| Self::line(Some(n as i64), tables.p[n].v, Some((n + id) as i64)))
                .collect();
            if lines.is_empty() && self.form != Form::Cross {
                lines.push(Self::line(None, None, None));
            }
            (id, lines)
        });
        rows.filter(|(_, lines)| !lines.is_empty()).collect()
    }

    fn line(n: Option<i64>, v: Option<f64>, e: Option<i64>) -> String {
        format!("{n:?} {v:?} {e:?}")
    }

    /// Runs the query, compares its rows, and returns a metric of its range joins.
    async fn compare(&self, ctx: &SessionContext, tables: &Tables, name: &str) -> usize {
        let sql = self.sql();
        let frame = plan(ctx, &sql).await;
        let frame = frame.unwrap_or_else(|e| panic!("{sql}: {e}"));
        let physical = frame.create_physical_plan().await;
        let physical = physical.unwrap_or_else(|e| panic!("{sql}: {e}"));
        let text = displayable(physical.as_ref()).indent(false).to_string();
        let batches = collect(Arc::clone(&physical), ctx.task_ctx()).await;
        let batches = batches.unwrap_or_else(|e| panic!("{sql}: {e}\n{text}"));
        let size = ctx.state().config().batch_size();
        let mut found: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for batch in &batches {
            assert!(batch.num_rows() <= size, "{sql}");
            let int = |column: usize, row: usize| {
                let column = batch.column(column).as_primitive::<Int64Type>();
                column.is_valid(row).then(|| column.value(row))
            };
            let values = batch.column(2).as_primitive::<Float64Type>();
            for row in 0..batch.num_rows() {
                let value = values.is_valid(row).then(|| values.value(row));
                let line = Self::line(int(1, row), value, int(3, row));
                let id = int(0, row).expect("an id");
                found.entry(id as usize).or_default().push(line);
            }
        }
        let mut expected = self.expected(tables);
        if ctx.state().config().target_partitions() > 1 {
            // Operators above the join may redistribute its batches.
            for lines in expected.values_mut().chain(found.values_mut()) {
                lines.sort();
            }
        }
        assert_eq!(found, expected, "{sql}\n{text}");
        metric(&physical, name)
    }
}

/// Compares with NULLs at one end.
fn with_nulls<T>(
    a: Option<T>,
    b: Option<T>,
    nulls_first: bool,
    compare: impl Fn(T, T) -> Ordering,
) -> Ordering {
    let null = if nulls_first {
        Ordering::Less
    } else {
        Ordering::Greater
    };
    match (a, b) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => null,
        (Some(_), None) => null.reverse(),
        (Some(a), Some(b)) => compare(a, b),
    }
}

/// Compares floats in total order, but zeros of both signs as equal.
fn without_sign(a: f64, b: f64) -> Ordering {
    (a + 0.0).total_cmp(&(b + 0.0))
}

#[tokio::test(flavor = "multi_thread")]
async fn nearest_rows_are_those_of_a_naive_loop() {
    let mut by_index = 0;
    for seed in cases_with_queries("nearest rows", &FAILED, CASES, QUERIES) {
        let random = &mut Random::of_case(seed);
        let (searched, outer) = ([0, 1, 9, 80, 900][random.below(5)], random.below(60));
        let tables = Tables::new(random, searched, outer);
        let config = SessionConfig::new()
            .with_target_partitions([1, 4][random.below(2)])
            .with_batch_size([1, 3, 32, 8192][random.below(4)]);
        let ctx = SessionContext::new_with_config(config);
        datafusion_rmq::register(&ctx);
        draw_join_mode(&ctx, random);
        let devices = Fake::real().session(&[("rmq.engine", "cuda")]);
        for ctx in [&ctx, &devices] {
            tables.register(ctx, 1 + random.below(3));
        }
        for i in 0..QUERIES {
            let query = Query::new(random);
            by_index += query.compare(&ctx, &tables, "threshold_rows").await;
            if i % 6 == 0 {
                query.compare(&devices, &tables, "").await;
            }
        }
    }
    assert!(by_index > 50 || !is_usual(), "{by_index} rows by indexes");
}

/// Rows that meet a threshold are few, many or neighbours, and the rest of the condition is met by all of them or by
/// few.
#[tokio::test(flavor = "multi_thread")]
async fn a_threshold_leads_from_one_nearest_row_to_the_next() {
    for mut random in rmq_testing::runs("thresholds of nearest rows", &[]) {
        let random = &mut random;
        let tables = Tables::new(random, 0, 40);
        let distance = [2, 40, 700][random.below(3)];
        let dense = random.below(3_000)..random.below(5_000);
        let p = (0..4_000).map(|n| Searched {
            sym: Some(n % 2),
            k: Some(n / 3),
            v: Some(if n % distance == 0 || dense.contains(&(n as usize)) {
                random.below(9) as f64
            } else {
                -100.0
            }),
        });
        let p: Vec<Searched> = p.collect();
        let q = tables.q.into_iter().map(|q| Outer {
            a: Some(random.below(1_400) as i64),
            b: Some(random.below(1_400) as i64),
            ..q
        });
        let tables = Tables { q: q.collect(), p };
        let config = SessionConfig::new().with_batch_size([7, 8192][random.below(2)]);
        let ctx = SessionContext::new_with_config(config.with_target_partitions(1));
        datafusion_rmq::register(&ctx);
        tables.register(&ctx, 1);
        let mut by_index = 0;
        for further in [Further::Above, Further::AboveAndNumbers] {
            for descending in [false, true] {
                let query = Query {
                    form: [Form::Cross, Form::Left][random.below(2)],
                    equality: random.below(2) == 0,
                    lower: (!descending).then_some(false),
                    upper: descending.then_some(true),
                    further,
                    by_value: false,
                    descending,
                    nulls_first: None,
                    then_by: None,
                    limit: [Some(2), Some(5), Some(300), None][random.below(4)],
                    offset: random.below(3),
                };
                by_index += query.compare(&ctx, &tables, "threshold_rows").await;
            }
        }
        assert!(by_index > 0, "no index");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn few_rows_find_the_nearest_of_an_unsorted_table() {
    for mut random in rmq_testing::runs("nearest of few rows", &[]) {
        let random = &mut random;
        let tables = Tables::new(random, 66_500, 9);
        let ctx = SessionContext::new();
        datafusion_rmq::register(&ctx);
        set(&ctx, "rmq.pruning", "always");
        tables.register(&ctx, 4);
        let mut compared = 0;
        for _ in 0..5 {
            compared += Query::new(random)
                .compare(&ctx, &tables, "rows_scanned")
                .await;
        }
        assert!(compared > 0, "all rows were sorted");
    }
}

/// Each of 2,000 rows has 500 nearest rows, and another condition that most rows fail: a million rows in 1.5 MB.
#[tokio::test(flavor = "multi_thread")]
async fn many_nearest_rows_need_little_memory() -> Result<()> {
    let config = SessionConfig::new()
        .with_target_partitions(2)
        .with_batch_size(1000);
    let ctx = session_of_pool(config, ForRangeJoins::new(3 << 19));
    for sql in [
        "CREATE TABLE p AS SELECT value AS k, value * 7 AS v FROM range(0, 20000)",
        "CREATE TABLE q AS SELECT value * 10 AS k, value AS v FROM range(0, 2000)",
    ] {
        run(&ctx, sql).await?;
    }
    for (residual, step) in [("", 1), (" AND p.v % 5 = q.v % 2 * 0", 5)] {
        let sql = format!(
            "SELECT count(*), sum(x.k), min(q.v) FROM q CROSS JOIN LATERAL \
             (SELECT p.k FROM p WHERE p.k <= q.k{residual} ORDER BY p.k DESC LIMIT 500) x(k)"
        );
        let found = run(&ctx, &sql).await?;
        let rows = (0..2000_i64).flat_map(|q| {
            let below = (0..=10 * q).rev().filter(|k| 7 * k % step == 0);
            below.take(500)
        });
        let (count, sum) = rows.fold((0, 0), |(count, sum), k| (count + 1, sum + k));
        let column = |i: usize| found.column(i).as_primitive::<Int64Type>().value(0);
        assert_eq!((column(0), column(1)), (count, sum), "{sql}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_side_larger_than_memory_is_an_error_that_says_why() -> Result<()> {
    let ctx = session_of_pool(SessionConfig::new(), ForRangeJoins::new(1 << 20));
    let sql = "CREATE TABLE p AS SELECT value * 7919 % 100003 AS k FROM range(0, 200000)";
    run(&ctx, sql).await?;
    let sql = "SELECT * FROM range(0, 1000) q CROSS JOIN LATERAL (SELECT p.k FROM p WHERE p.k <= q.value ORDER BY p.k DESC LIMIT 2) x";
    let message = error(&ctx, sql).await;
    let expected = "returns the nearest rows is not written to disk";
    assert!(message.contains(expected), "{message}");
    Ok(())
}

/// A query that is dropped after its first batch does not go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_query_ends() -> Result<()> {
    let ctx = SessionContext::new();
    datafusion_rmq::register(&ctx);
    run(
        &ctx,
        "CREATE TABLE p AS SELECT value AS k FROM range(0, 200000)",
    )
    .await?;
    let sql = "SELECT * FROM p q CROSS JOIN LATERAL (SELECT p.k AS n FROM p WHERE p.k <= q.k AND (p.k + q.k) % 2 = 0 ORDER BY p.k DESC LIMIT 100000) x";
    let physical = ctx.sql(sql).await?.create_physical_plan().await?;
    let mut stream = execute_stream(physical, ctx.task_ctx())?;
    assert!(stream.next().await.expect("a batch")?.num_rows() > 0);
    Ok(())
}

/// `ctx.sql` plans ASOF joins in parentheses, and in subqueries in FROM, after registering twice, too.
#[tokio::test]
async fn asof_joins_in_parentheses_need_no_other_function() -> Result<()> {
    let ctx = SessionContext::new();
    datafusion_rmq::register(&ctx);
    datafusion_rmq::register(&ctx);
    for sql in [
        "CREATE TABLE p AS SELECT value * 2 AS k FROM range(0, 5)",
        "CREATE TABLE q AS SELECT value AS a FROM range(0, 5)",
    ] {
        ctx.sql(sql).await?.collect().await?;
    }
    for from in [
        "(q ASOF JOIN p MATCH_CONDITION (q.a > p.k))",
        "(q ASOF JOIN p MATCH_CONDITION (q.a > p.k) ASOF JOIN (SELECT k AS l FROM p) r MATCH_CONDITION (q.a <= l))",
        "(SELECT * FROM q ASOF JOIN p MATCH_CONDITION (q.a > p.k))",
    ] {
        let sql = format!("SELECT sum(a), sum(k), count(k) FROM {from}");
        let batches = ctx.sql(&sql).await?.collect().await?;
        let column = |i: usize| batches[0].column(i).as_primitive::<Int64Type>().value(0);
        assert_eq!((column(0), column(1), column(2)), (10, 4, 4), "{sql}");
    }
    let plain = ctx
        .sql("SELECT * FROM q ASOF JOIN p MATCH_CONDITION (q.a > p.k)")
        .await;
    let message = plain.expect_err("DataFusion does not plan it").to_string();
    assert!(message.contains("Unsupported JOIN operator"), "{message}");
    Ok(())
}
