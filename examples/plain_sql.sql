-- Windows in plain SQL, over generated data. No function of this extension is called: its optimizer rules turn these joins and subqueries into
-- range joins. Run it from the root of the repository:
--
--     cargo run --bin rmq -- -f examples/plain_sql.sql

-- A machine's temperature every five minutes, with gaps, and some readings sent twice.
CREATE TABLE readings AS
SELECT to_timestamp(1700000000 + 300 * i) AS at, round(70 + 10 * sin(i / 40.0) - CASE WHEN i % 997 BETWEEN 500 AND 504 THEN 45 ELSE 0 END, 2) AS temperature
FROM (SELECT value AS i FROM range(0, 4000) UNION ALL SELECT value * 331 FROM range(0, 12)) AS numbers
WHERE i % 700 NOT BETWEEN 300 AND 330;

CREATE TABLE alarms AS SELECT column1 AS alarm, to_timestamp(column2) AS at FROM (VALUES
  ('pump', '2023-11-16T16:10:00'), ('valve', '2023-11-20T03:00:00'), ('fan', '2023-11-27T00:00:00'), ('late', '2024-03-01T00:00:00'));

-- Around each alarm: the lowest temperature, its time, and the number of readings. The last alarm has none.
SELECT alarm, x.* FROM alarms CROSS JOIN LATERAL (
  SELECT min(r.temperature) AS lowest, first_value(r.at ORDER BY r.temperature) AS lowest_at, count(*) AS readings FROM readings r
  WHERE r.at BETWEEN alarms.at - INTERVAL '6 hours' AND alarms.at + INTERVAL '6 hours') AS x
ORDER BY alarm;

-- The number of mentions of each symbol, every five minutes.
CREATE TABLE mentions AS
SELECT sym, to_timestamp(1700000000 + 300 * i) AS at, (i * 7919 + length(sym) * 31 * i) % 97 + CASE WHEN i % 211 = 17 * length(sym) THEN 400 ELSE 0 END AS n
FROM (VALUES ('A'), ('BB'), ('CCC')) AS symbols(sym), (SELECT value AS i FROM range(0, 2000)) AS numbers;

-- The first six peaks, with no higher count within twelve hours, and the lowest count in the hour before and in the hour after each.
SELECT sym, at, n,
  (SELECT min(m.n) FROM mentions m WHERE m.sym = p.sym AND m.at >= p.at - INTERVAL '1 hour' AND m.at < p.at) AS before,
  (SELECT min(m.n) FROM mentions m WHERE m.sym = p.sym AND m.at > p.at AND m.at <= p.at + INTERVAL '1 hour') AS after
FROM mentions p
WHERE n > 300
  AND n = (SELECT max(m.n) FROM mentions m WHERE m.sym = p.sym AND m.at BETWEEN p.at - INTERVAL '12 hours' AND p.at + INTERVAL '12 hours')
ORDER BY at, sym LIMIT 6;

-- The worst loss after a purchase at a day's close: the lowest low of the next 250 trading days, by day number.
CREATE TABLE days AS
SELECT DATE '2000-01-03' + CAST(i * 7 / 5 AS INT) AS day, i AS n, 100 + i % 400 / 4.0 + 20 * sin(i / 60.0) AS close, 99 + i % 400 / 4.0 + 20 * sin(i / 60.0) AS low
FROM (SELECT value AS i FROM range(0, 3000)) AS numbers;

SELECT d.day, round(d.close, 2) AS close, round(min(f.low), 2) AS lowest, first_value(f.day ORDER BY f.low) AS on_day, round(min(f.low) / d.close - 1, 3) AS drawdown
FROM days d JOIN days f ON f.n BETWEEN d.n + 1 AND d.n + 250
GROUP BY d.day, d.close
ORDER BY drawdown, d.day LIMIT 3;

EXPLAIN SELECT d.day, min(f.low) FROM days d JOIN days f ON f.n BETWEEN d.n + 1 AND d.n + 250 GROUP BY d.day;
