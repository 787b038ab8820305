//! Wrong answers and errors of `DataFusion` 55.2 without the extension, which random queries meet. Where a test fails,
//! `DataFusion` has mended it: remove it here, from the exceptions of random queries and from `docs/limits.md`.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{Result, ScalarValue};
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};

use super::value::lines;
use crate::support::{context_of_pool, run, set};

/// A fault: options, a query, the rows it should have, and what it has, rows or a part of an error.
struct Fault {
    options: &'static [(&'static str, &'static str)],
    sql: &'static str,
    right: &'static [&'static str],
    wrong: &'static [&'static str],
}

const FAULTS: &[Fault] = &[
    // A condition that is known to be false, or NULL, is moved below an aggregate without GROUP BY.
    Fault {
        options: &[],
        sql: "SELECT n FROM (SELECT count(*) AS n, true AS c FROM t) WHERE NOT c",
        right: &[],
        wrong: &["0"],
    },
    Fault {
        options: &[],
        sql: "SELECT n FROM (SELECT count(*) AS n FROM t) WHERE n NOT IN (-1, 2, NULL)",
        right: &[],
        wrong: &["0"],
    },
    // Sums wrap around, also those that means of durations are computed from.
    Fault {
        options: &[],
        sql: "SELECT sum(v) FROM (VALUES (9223372036854775807), (1)) AS x(v)",
        right: &["9223372036854775808"],
        wrong: &["-9223372036854775808"],
    },
    Fault {
        options: &[],
        sql: "SELECT arrow_cast(avg(arrow_cast(v, 'Duration(ns)')), 'Int64') FROM (VALUES (9223372036854775807), (1)) AS x(v)",
        right: &["4611686018427387904"],
        wrong: &["-4611686018427387904"],
    },
    // The sum of a constant column over no rows is computed from statistics.
    Fault {
        options: &[],
        sql: "SELECT sum(c) FROM (SELECT 7 AS c FROM empty)",
        right: &["NULL"],
        wrong: &["0"],
    },
    // A constant of the side of an outer join that has NULLs is taken for one in all rows, which need no order.
    Fault {
        options: &[],
        sql: "SELECT t.id, row_number() OVER (ORDER BY x.c DESC NULLS LAST, t.id) FROM t LEFT JOIN (SELECT 7 AS c, id FROM t WHERE v = 6) AS x ON t.id = x.id",
        right: &["1 | 2", "2 | 1"],
        wrong: &["1 | 1", "2 | 2"],
    },
    // The NULL that `x <> x` is where `x` is NULL is lost beside another condition.
    Fault {
        options: &[],
        sql: "SELECT b FROM (SELECT max(v) > 0 AS b, sum(v) AS s FROM u) WHERE NOT (b = b) AND s IS NULL",
        right: &[],
        wrong: &["NULL"],
    },
    // A condition on the outer row that names columns of the same name in two tables of the subquery compares one with
    // itself.
    Fault {
        options: &[],
        sql: "SELECT t.id FROM t WHERE EXISTS (SELECT 1 FROM t AS a CROSS JOIN t AS b WHERE b.id = a.id + t.v - 4 AND b.v <> a.v)",
        right: &["1"],
        wrong: &[],
    },
    // Of columns that are one by USING, the one whose table comes first by name is that of `*`.
    Fault {
        options: &[],
        sql: "SELECT id FROM (SELECT * FROM u LEFT JOIN t USING (id))",
        right: &["0"],
        wrong: &["NULL"],
    },
    Fault {
        options: &[],
        sql: "SELECT t.v FROM t JOIN u USING (id) WHERE id = 0",
        right: &[],
        wrong: &["Ambiguous reference to unqualified field id"],
    },
    Fault {
        options: &[],
        sql: "SELECT id FROM t JOIN t AS r USING (id) JOIN t AS s USING (id)",
        right: &["1", "2"],
        wrong: &["Ambiguous reference to unqualified field id"],
    },
    // The value of an uncorrelated subquery is taken for NOT NULL if its column is.
    Fault {
        options: &[],
        sql: "SELECT id FROM t WHERE (SELECT 1 FROM t AS e WHERE e.id > 5 LIMIT 1) IS NULL",
        right: &["1", "2"],
        wrong: &[],
    },
    Fault {
        options: &[],
        sql: "SELECT (SELECT 1 FROM t AS e WHERE e.id > 5 LIMIT 1) AS one FROM t",
        right: &["NULL", "NULL"],
        wrong: &["non-nullable but contains null"],
    },
    // The null-aware anti join of NOT IN does not apply the further condition to NULLs.
    Fault {
        options: &[],
        sql: "SELECT id FROM t WHERE v NOT IN (SELECT u.v FROM u WHERE u.id > t.id)",
        right: &["1", "2"],
        wrong: &[],
    },
    // A piecewise merge join with an empty side loses rows.
    Fault {
        options: &[("datafusion.optimizer.enable_piecewise_merge_join", "true")],
        sql: "SELECT t.id FROM t FULL JOIN empty AS e ON e.f < t.f",
        right: &["1", "2"],
        wrong: &[],
    },
    // It loses the order of a constant in partitions of another join.
    Fault {
        options: &[("datafusion.optimizer.enable_piecewise_merge_join", "true")],
        sql: "SELECT a.id FROM (SELECT y.c FROM t JOIN (SELECT 7 AS c, h FROM (SELECT value AS h, count(*) \
              FROM generate_series(1, 9) GROUP BY value)) AS y ON y.h = t.v) AS x JOIN t AS a ON x.c >= a.id",
        right: &["1", "1", "2", "2"],
        wrong: &["does not satisfy order requirements"],
    },
    // A sort-merge join makes batches of columns that are NOT NULL for a condition, with NULLs.
    Fault {
        options: &[("datafusion.optimizer.prefer_hash_join", "false")],
        sql: "SELECT u.id FROM u LEFT JOIN t AS o ON o.v = u.v AND o.id + u.id > 0",
        right: &["0"],
        wrong: &["non-nullable but contains null"],
    },
    // A sort-merge join takes a condition that is NULL for one that is met.
    Fault {
        options: &[("datafusion.optimizer.prefer_hash_join", "false")],
        sql: "SELECT count(*) FROM t AS a FULL JOIN t AS b ON a.v = b.v AND a.id = CAST(NULL AS BIGINT)",
        right: &["4"],
        wrong: &["2"],
    },
    // A projection goes below a filter that has a projection of its own, and reads columns of the other table.
    Fault {
        options: &[],
        sql: "SELECT r.v AS w, r.id + r.f AS s FROM t AS l RIGHT JOIN t AS r ON l.id = r.id + 1 WHERE l.v IS NULL",
        right: &["6 | 3.5"],
        wrong: &["Input field name"],
    },
    // IS TRUE of such a comparison.
    Fault {
        options: &[],
        sql: "SELECT DISTINCT (v <> v) IS TRUE AS c FROM u",
        right: &["false"],
        wrong: &["Physical input schema should be the same"],
    },
    // A condition on the side of an outer join that has the NULLs.
    Fault {
        options: &[],
        sql: "SELECT 1 FROM t AS l RIGHT JOIN t AS r ON l.id = r.id AND l.f > r.f WHERE l.id = l.id",
        right: &[],
        wrong: &["1", "1"],
    },
    Fault {
        options: &[],
        sql: "SELECT o.id FROM (SELECT * FROM t WHERE id > 5) AS e FULL JOIN t AS o ON e.v = o.v WHERE o.f <> o.f + 1 AND e.id IS NULL",
        right: &["1", "2"],
        wrong: &[],
    },
    // A window function in a lateral join is computed before its condition.
    Fault {
        options: &[],
        sql: "SELECT x.n FROM t CROSS JOIN LATERAL (SELECT row_number() OVER (ORDER BY o.id) AS n FROM t AS o WHERE o.v = t.v) AS x",
        right: &["1", "1"],
        wrong: &["1", "2"],
    },
    // NOT IN of a constant does not see NULLs of the subquery.
    Fault {
        options: &[],
        sql: "SELECT id FROM t WHERE 7 NOT IN (SELECT v FROM u)",
        right: &[],
        wrong: &["1", "2"],
    },
    // How often a row is on the right side makes no difference.
    Fault {
        options: &[],
        sql: "SELECT x FROM (VALUES (1), (1), (1)) a(x) INTERSECT ALL SELECT x FROM (VALUES (1)) b(x)",
        right: &["1"],
        wrong: &["1", "1", "1"],
    },
    Fault {
        options: &[],
        sql: "SELECT x FROM (VALUES (1), (1), (1)) a(x) EXCEPT ALL SELECT x FROM (VALUES (1)) b(x)",
        right: &["1", "1"],
        wrong: &[],
    },
    // A subquery of several tables without SELECT has no columns.
    Fault {
        options: &[],
        sql: "SELECT * FROM (FROM t, u) JOIN s ON true WHERE s.id = 1",
        right: &[
            "1 | 5 | 0.5 | 0 | NULL | 1 | 2s | 0s",
            "2 | 6 | 1.5 | 0 | NULL | 1 | 2s | 0s",
        ],
        wrong: &["1 | 2s | 0s", "1 | 2s | 0s"],
    },
    // IN within another expression takes NULL for FALSE.
    Fault {
        options: &[],
        sql: "SELECT id FROM t WHERE (id + 5 IN (SELECT v FROM u)) IS FALSE",
        right: &[],
        wrong: &["1", "2"],
    },
    // A literal is cut to the unit of the column it is compared with.
    Fault {
        options: &[],
        sql: "SELECT id FROM s WHERE ts >= TIMESTAMP '1970-01-01T00:00:02.5'",
        right: &[],
        wrong: &["1"],
    },
    // The type of an outer column is that before its expression got a common type.
    Fault {
        options: &[],
        sql: "SELECT id FROM (SELECT id, CASE WHEN id > 5 THEN ts ELSE d END AS k FROM s) AS q \
              WHERE EXISTS (SELECT 1 FROM s AS p WHERE p.id = q.id AND p.ts > q.k)",
        right: &["1"],
        wrong: &["Invalid comparison operation"],
    },
    // Two scalar subqueries in arguments of the same aggregate get one name.
    Fault {
        options: &[],
        sql: "SELECT sum((SELECT count(*) AS n FROM t)) + 0, sum((SELECT max(id) AS n FROM t)) + 1 FROM u",
        right: &["2 | 3"],
        wrong: &["duplicate unqualified field name"],
    },
    // A condition in a derived table on the outer row, with a range, finds no column.
    Fault {
        options: &[],
        sql: "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM (SELECT u.v FROM u WHERE u.id < t.id) AS d WHERE d.v > 100)",
        right: &[],
        wrong: &["No field named"],
    },
    // A difference of times and an interval are compared by the days alone.
    Fault {
        options: &[],
        sql: "SELECT TIMESTAMP '2020-02-01T00:00:00' - TIMESTAMP '2020-01-01T00:00:00' <= INTERVAL '7 days'",
        right: &["false"],
        wrong: &["true"],
    },
    // A bound beyond the type's end, beside a NULL.
    Fault {
        options: &[],
        sql: "SELECT count(*) OVER (ORDER BY k RANGE BETWEEN CURRENT ROW AND 10 FOLLOWING) \
              FROM (SELECT CASE WHEN id = 1 THEN 9223372036854775807 END AS k FROM t)",
        right: &["1", "1"],
        wrong: &["1", "2"],
    },
    // A frame that ends before rows with NULL keys ends with their batch.
    Fault {
        options: &[("datafusion.execution.batch_size", "2")],
        sql: "SELECT count(*) OVER (ORDER BY k RANGE BETWEEN UNBOUNDED PRECEDING AND 5 PRECEDING) \
              FROM (SELECT nullif(value, value) AS k FROM generate_series(1, 3))",
        right: &["3", "3", "3"],
        wrong: &["2", "2", "3"],
    },
    // A window that begins with another one is not that one.
    Fault {
        options: &[],
        sql: "SELECT sum(v) OVER (w ROWS UNBOUNDED PRECEDING) FROM t WINDOW w AS (PARTITION BY id)",
        right: &["5", "6"],
        wrong: &["11", "5"],
    },
    Fault {
        options: &[],
        sql: "SELECT sum(v) OVER (nosuch) FROM t",
        right: &[],
        wrong: &["11", "11"],
    },
    // Times have no frames.
    Fault {
        options: &[],
        sql: "SELECT count(*) OVER (ORDER BY ts::TIME) FROM s",
        right: &["1"],
        wrong: &["Cannot run range queries on datatype"],
    },
    // The deviation of equal values that follow others.
    Fault {
        options: &[],
        sql: "SELECT s = 0 FROM (SELECT i, stddev(x) OVER (ORDER BY i ROWS 2 PRECEDING) AS s \
              FROM (VALUES (1, 1e3), (2, 0.1), (3, 0.1), (4, 0.1), (5, 0.1)) AS v(i, x)) WHERE i = 5",
        right: &["true"],
        wrong: &["false"],
    },
    // A window that is ordered by a comparison of an expression with a part of it.
    Fault {
        options: &[],
        sql: "SELECT row_number() OVER (PARTITION BY id ORDER BY v <= 2 * v) FROM t",
        right: &["1", "1"],
        wrong: &["does not satisfy order requirements"],
    },
    // Partitions that are merged in such an order.
    Fault {
        options: &[],
        sql: "SELECT id FROM (SELECT id, v FROM t UNION ALL SELECT id, v FROM t) ORDER BY v <= 2 * v, id",
        right: &["1", "1", "2", "2"],
        wrong: &["does not satisfy order requirements"],
    },
    // The name of a subquery in a SELECT list.
    Fault {
        options: &[],
        sql: "SELECT t.id, (SELECT u.id FROM u) FROM t",
        right: &["1 | 0", "2 | 0"],
        wrong: &["ambiguous"],
    },
    Fault {
        options: &[],
        sql: "SELECT (SELECT u.id FROM u), (SELECT u.id FROM u) FROM u",
        right: &["0 | 0"],
        wrong: &["unique expression names"],
    },
    // A name that a column of ORDER BY has, too.
    Fault {
        options: &[],
        sql: "SELECT v AS id FROM t ORDER BY t.id",
        right: &["5", "6"],
        wrong: &["ambiguous"],
    },
    // A count that is decorrelated below a union.
    Fault {
        options: &[],
        sql: "SELECT (SELECT count(*) FROM u WHERE u.id = t.id) AS n FROM t UNION SELECT 0",
        right: &["0"],
        wrong: &["field nullability"],
    },
    // A float is compared with a decimal as one with 15 digits after the point.
    Fault {
        options: &[],
        sql: "SELECT CAST('133.52' AS DOUBLE) <= CAST('133.52' AS DECIMAL(10, 2))",
        right: &["true"],
        wrong: &["false"],
    },
    // The weight of a percentile has six digits.
    Fault {
        options: &[],
        sql: "SELECT percentile_cont(0.95) WITHIN GROUP (ORDER BY column1) FROM (VALUES (1.0), (2.0), (3.0))",
        right: &["2.9"],
        wrong: &["2.899999"],
    },
    // The least of infinities by groups.
    Fault {
        options: &[],
        sql: "SELECT min(f / 0) = CAST('inf' AS DOUBLE) FROM t GROUP BY id",
        right: &["true", "true"],
        wrong: &["false", "false"],
    },
    // An equality in WHERE becomes a key of a join whose NULLs are equal.
    Fault {
        options: &[],
        sql: "SELECT a.id FROM u AS a JOIN u AS b ON a.v IS NOT DISTINCT FROM b.v WHERE nullif(a.id, 0) = nullif(b.id, 0)",
        right: &[],
        wrong: &["0"],
    },
    // IS NOT DISTINCT FROM binds less than AND.
    Fault {
        options: &[],
        sql: "SELECT id FROM t WHERE (id = 9) IS NOT DISTINCT FROM false AND v = 6",
        right: &["2"],
        wrong: &["1", "2"],
    },
    // The columns of an array are looked for in the query next to it.
    Fault {
        options: &[],
        sql: "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE cardinality([t.id]) = 1 AND u.id < t.id)",
        right: &["1", "2"],
        wrong: &["No field named t.id"],
    },
    // The fraction of a difference of more than 2.1 seconds is lost.
    Fault {
        options: &[],
        sql: "SELECT extract(epoch FROM TIMESTAMP '2020-01-01T00:00:10.25' - TIMESTAMP '2020-01-01T00:00:00')",
        right: &["10.25"],
        wrong: &["10"],
    },
];

async fn answer(ctx: &SessionContext, sql: &str) -> Result<Vec<String>> {
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    let mut lines = lines(&collect(plan, ctx.task_ctx()).await?)?;
    lines.sort_unstable();
    Ok(lines)
}

/// Statistics of a file leave NaN out.
#[tokio::test(flavor = "multi_thread")]
async fn nan_in_a_file_is_still_read_as_the_other_value() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("nan.parquet");
    let ctx = SessionContext::new();
    let rows = "SELECT * FROM (VALUES ('NaN'::DOUBLE), (1.5)) AS t(v)";
    let copy = format!("COPY ({rows}) TO '{}' STORED AS PARQUET", file.display());
    run(&ctx, &copy).await.expect("a file");
    let table = format!(
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}'",
        file.display()
    );
    run(&ctx, &table).await.expect("a table");
    let found = answer(&ctx, "SELECT v FROM t").await.expect("rows");
    assert_eq!(found, ["1.5", "1.5"]);
}

/// The filter that a hash join makes of the values of one side tells 0.0 from -0.0.
#[tokio::test(flavor = "multi_thread")]
async fn zeros_of_a_file_are_still_lost_in_a_hash_join() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("zeros.parquet");
    let ctx = SessionContext::new();
    set(
        &ctx,
        "datafusion.execution.parquet.pushdown_filters",
        "true",
    );
    for sql in [
        format!(
            "COPY (SELECT CASE value % 2 WHEN 0 THEN -0.0::DOUBLE ELSE 0.0::DOUBLE END AS f FROM generate_series(1, 1000)) TO '{}' STORED AS PARQUET",
            file.display()
        ),
        format!(
            "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}'",
            file.display()
        ),
        "CREATE TABLE q AS SELECT 0.0::DOUBLE AS f".to_string(),
    ] {
        run(&ctx, &sql).await.expect(&sql);
    }
    let query = "SELECT count(*) FROM q JOIN t ON t.f = q.f";
    assert_eq!(answer(&ctx, query).await.expect("a count"), ["500"]);
    let filters = "datafusion.optimizer.enable_join_dynamic_filter_pushdown";
    set(&ctx, filters, "false");
    assert_eq!(answer(&ctx, query).await.expect("a count"), ["1000"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_datafusion_are_still_there() {
    let mut changed = vec![];
    for fault in FAULTS {
        let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
        for (name, value) in fault.options {
            set(&ctx, name, value);
        }
        let tables = [
            "CREATE TABLE t (id BIGINT NOT NULL, v BIGINT NOT NULL, f DOUBLE) AS VALUES (1, 5, 0.5), (2, 6, 1.5)",
            "CREATE TABLE u (id BIGINT NOT NULL, v BIGINT) AS VALUES (0, NULL)",
            "CREATE TABLE empty (id BIGINT, f DOUBLE)",
            "CREATE TABLE s (id BIGINT, ts TIMESTAMP(0), d DATE) AS VALUES (1, '1970-01-01T00:00:02', '1970-01-01')",
        ];
        for sql in tables {
            run(&ctx, sql).await.expect("a table");
        }
        let is_as_documented = match answer(&ctx, fault.sql).await {
            Ok(found) => found != fault.right && found == fault.wrong,
            Err(error) => error
                .to_string()
                .contains(fault.wrong.first().copied().unwrap_or("no error")),
        };
        if !is_as_documented {
            changed.push(format!(
                "{}: {:?}",
                fault.sql,
                answer(&ctx, fault.sql).await
            ));
        }
    }
    assert!(changed.is_empty(), "{changed:#?}");
}

/// A parameter that stands alone among the values of an INSERT is stored without a cast. In parentheses it gets one.
#[tokio::test]
async fn a_parameter_of_an_insert_is_stored_without_a_cast() -> Result<()> {
    for (second, is_readable) in [("(($1))", true), ("($1)", false)] {
        let ctx = SessionContext::new();
        run(&ctx, "CREATE TABLE words (word VARCHAR) AS VALUES ('a')").await?;
        let insert = format!("INSERT INTO words VALUES {second}");
        let insert = ctx.sql(&insert).await?;
        let insert = insert.with_param_values(vec![ScalarValue::from("b")])?;
        insert.collect().await?;
        let sorted = run(&ctx, "SELECT * FROM words ORDER BY word").await;
        assert_eq!(sorted.is_ok(), is_readable, "{second}: {sorted:?}");
    }
    Ok(())
}

/// A parameter that is a new value of an UPDATE gets no cast either. In CAST it does.
#[tokio::test]
async fn a_parameter_of_an_update_gets_no_cast() -> Result<()> {
    for (value, is_updated) in [("CAST($1 AS VARCHAR)", true), ("$1", false)] {
        let ctx = SessionContext::new();
        run(&ctx, "CREATE TABLE words (word VARCHAR) AS VALUES ('a')").await?;
        let update = ctx.sql(&format!("UPDATE words SET word = {value}")).await?;
        let update = update.with_param_values(vec![ScalarValue::from("b")])?;
        let updated = update.collect().await;
        assert_eq!(updated.is_ok(), is_updated, "{value}: {updated:?}");
    }
    Ok(())
}

/// The list of a folder's files is kept for as long as the table lives.
#[tokio::test]
async fn files_that_are_added_to_a_folder_are_not_seen() -> Result<()> {
    for (limit, expected) in [("1M", "2"), ("0K", "4")] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().display();
        let ctx = SessionContext::new();
        run(
            &ctx,
            &format!("SET datafusion.runtime.list_files_cache_limit = '{limit}'"),
        )
        .await?;
        let copy = format!("COPY (VALUES (1), (2)) TO '{path}/a.parquet'");
        run(&ctx, &copy).await?;
        let create = format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{path}'");
        run(&ctx, &create).await?;
        let count = "SELECT count(*) FROM t";
        assert_eq!(answer(&ctx, count).await?, ["2"]);
        run(&ctx, &copy.replace("a.parquet", "b.parquet")).await?;
        assert_eq!(answer(&ctx, count).await?, [expected], "{limit}");
    }
    Ok(())
}

/// The nested loop join takes its first side in parts where memory is short, and returns rows without a match once for
/// each partition of the second side.
#[tokio::test(flavor = "multi_thread")]
async fn a_nested_loop_join_with_little_memory_returns_rows_several_times() -> Result<()> {
    let ctx = context_of_pool(
        SessionConfig::new().with_target_partitions(4),
        Arc::new(GreedyMemoryPool::new(20_000)),
    );
    let schema = Arc::new(Schema::new(vec![Field::new("v", DataType::Int64, true)]));
    let row: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let row = RecordBatch::try_new(Arc::clone(&schema), vec![row])?;
    let table = MemTable::try_new(schema, vec![vec![row], vec![], vec![]])?;
    ctx.register_table("t", Arc::new(table))?;
    let sql = "SELECT b.v FROM t AS a FULL JOIN t AS b ON b.v < a.v WHERE b.v IS NOT NULL";
    assert_eq!(answer(&ctx, sql).await?, ["1", "1", "1"]);
    Ok(())
}
