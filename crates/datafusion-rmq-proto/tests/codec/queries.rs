//! Queries with each operator and each function of the project.

/// The tables of the queries below.
pub const TABLES: &[&str] = &[
    "CREATE TABLE p AS SELECT value AS id, value % 7 AS g, value * 37 % 1000 AS k, CASE WHEN value % 11 = 0 THEN NULL \
     ELSE value * 53 % 97 END AS v, (value * 53 % 97) / 7.0 AS f, 's' || (value % 13) AS s, \
     arrow_cast(value * 1000000, 'Timestamp(Millisecond, None)') AS ts, arrow_cast(value % 31, 'Decimal128(9, 2)') AS d \
     FROM generate_series(1, 500) AS t(value)",
    "CREATE TABLE q AS SELECT id, g, k, v, s, ts, k + 40 AS b, CAST(ts AS DATE) AS day FROM p WHERE id % 3 = 0",
];

/// Queries, and an operator or function that is in their plans.
pub const QUERIES: &[(&str, &str)] = &[
    // Aggregates of ranges.
    (
        "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.g = q.g AND p.k BETWEEN q.k AND q.b) FROM q",
        "min(p.v)",
    ),
    (
        "SELECT q.id, min(p.f), max(p.f), sum(p.f), avg(p.f), count(*) FROM q JOIN p ON p.k BETWEEN q.k AND q.b GROUP BY q.id",
        "RangeJoinExec",
    ),
    (
        "SELECT q.g, avg(p.d), sum(p.d) FROM q JOIN p ON p.g = q.g AND p.k BETWEEN q.k AND q.b GROUP BY q.g",
        "RangeJoinExec",
    ),
    (
        "SELECT q.g, round(avg(p.f), 9), round(stddev(p.f), 9) FROM q JOIN p ON p.k BETWEEN q.k AND q.b GROUP BY q.g",
        "state of stddev",
    ),
    (
        "SELECT q.id, first_value(p.s ORDER BY p.v), last_value(p.id ORDER BY p.k) FROM q JOIN p ON p.g = q.g AND p.k >= q.k GROUP BY q.id",
        "RangeJoinExec",
    ),
    (
        "SELECT q.id, (SELECT string_agg(p.s, ',' ORDER BY p.id) FILTER (WHERE p.v > 3) FROM p WHERE p.g = q.g AND p.k BETWEEN q.k AND q.b) FROM q",
        "string_agg",
    ),
    (
        "SELECT q.id, (SELECT sum(1000 / p.v) FROM p WHERE p.g = q.g AND p.k BETWEEN q.k AND q.b AND p.v <> 0) FROM q",
        "RangeJoinExec",
    ),
    (
        "SELECT q.id, (SELECT count(*) FROM p WHERE p.g = q.g AND p.k >= q.k AND p.v < q.v) FROM q",
        "RangeJoinExec",
    ),
    (
        "SELECT q.id, (SELECT min(p.k) FROM p WHERE p.k >= q.k AND p.v < q.v) FROM q",
        "RangeJoinExec",
    ),
    (
        "SELECT * FROM range_join('q', 'p', 'g', $$p.k BETWEEN q.k AND q.b$$, 'min(v) AS m, first_value(s) AS f', 'include prevailing')",
        "prevailing",
    ),
    (
        "SELECT q.id, (SELECT count(*) FROM p WHERE p.ts BETWEEN q.day AND q.ts) FROM q",
        "rmq_lower_bound",
    ),
    // Rows.
    (
        "SELECT q.id, p.id FROM q JOIN p ON p.g = q.g AND p.k BETWEEN q.k AND q.b AND p.v <> q.v",
        "returns=rows",
    ),
    (
        "SELECT q.id, p.id FROM q LEFT JOIN p ON p.g = q.g AND p.k BETWEEN q.k AND q.b AND p.v > q.v",
        "threshold=",
    ),
    (
        "SELECT q.id, p.id FROM q FULL JOIN p ON p.g = q.g AND p.k BETWEEN q.k AND q.b",
        "type=Full",
    ),
    (
        "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.g = q.g AND p.k BETWEEN q.k AND q.b AND p.v > q.v)",
        "RangeJoinExec",
    ),
    (
        "SELECT q.id FROM q WHERE NOT EXISTS (SELECT 1 FROM p WHERE p.g = q.g AND p.k > q.k AND p.s <> q.s)",
        "RangeJoinExec",
    ),
    (
        "SELECT q.id, x.id FROM q, LATERAL (SELECT p.id FROM p WHERE p.g = q.g AND p.k <= q.k ORDER BY p.k DESC, p.id LIMIT 3) x",
        "RangeJoinExec",
    ),
    (
        "SELECT q.id, x.id FROM q, LATERAL (SELECT p.id FROM p WHERE p.g = q.g AND p.k <= q.k ORDER BY p.v DESC LIMIT 2) x",
        "RangeJoinExec",
    ),
    (
        "SELECT q.id, x.id FROM q, LATERAL (SELECT p.id FROM p WHERE p.g = q.g ORDER BY abs(p.k - q.k), p.id LIMIT 2) x",
        "RangeJoinExec",
    ),
    (
        "SELECT q.id, (SELECT x.s FROM (SELECT s, k FROM p UNION ALL SELECT s, k + 1 FROM q) x WHERE x.k <= q.k ORDER BY x.k DESC LIMIT 1) FROM q",
        "OrderedRowsExec",
    ),
    // Range functions.
    (
        "SELECT id, range_min('p.v', k % 400, k % 400 + 20), range_argmax('p.f', 3, k % 400) FROM q",
        "RangeLookupExec",
    ),
    (
        "SELECT id, range_first_at_most('p.v', k % 400, 499, 5), range_smallest('p.v', 0, k % 400, 3) FROM q",
        "RangeLookupExec",
    ),
    (
        "SELECT id, range_quantile('p.v', k % 400, 499, 0.3), range_count_below('p.v', 0, k % 400, k), range_count_distinct('p.f', 7, k) FROM q",
        "RangeLookupExec",
    ),
    (
        "SELECT id, range_max((SELECT v FROM p ORDER BY k, id), 0, k % 400) FROM q",
        "RangeLookupExec",
    ),
    (
        "SELECT q.id, p.id FROM q LEFT JOIN p ON range_min('p.v', q.id, p.id) = 3 AND p.id < 40",
        "PrepareIndexesExec",
    ),
    (
        "SELECT q.id, p.id FROM q LEFT JOIN p ON range_count_distinct('p.v', q.id, p.id) = 3 AND p.id < 40",
        "PrepareIndexesExec",
    ),
    (
        "SELECT id, frame_min(v, 0, 5) OVER (PARTITION BY g ORDER BY k, id) FROM p",
        "frame_min",
    ),
    // Window frames.
    (
        "SELECT id, min(v) OVER (PARTITION BY g ORDER BY k, id ROWS BETWEEN 40 PRECEDING AND CURRENT ROW) FROM p",
        "WindowFrameExec",
    ),
    (
        "SELECT id, max(f) OVER (ORDER BY k RANGE BETWEEN 100 PRECEDING AND 50 FOLLOWING), first_value(s) OVER (ORDER BY k RANGE BETWEEN 100 PRECEDING AND 50 FOLLOWING) FROM p",
        "WindowFrameExec",
    ),
    // Functions above a join.
    (
        "SELECT q.id, (SELECT count(*) FROM p WHERE p.k > q.k) + abs(q.k - 500) FROM q ORDER BY 2, 1",
        "RangeJoinExec",
    ),
    (
        "SELECT arg_max(x.id, x.n) FROM (SELECT q.id, (SELECT count(*) FROM p WHERE p.k > q.k) AS n FROM q) x",
        "arg_max",
    ),
];
