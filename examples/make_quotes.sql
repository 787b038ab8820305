-- Generates examples/data/quotes.parquet: one trading day of five fictitious symbols.
-- Run it from the root of the repository:
--
--     cargo run --bin rmq -- -f examples/make_quotes.sql
--
-- All arithmetic is on integers, so the rows are the same on every machine.

-- Each symbol opens at a price in cents and has a quote every `pace` milliseconds on average.
CREATE TABLE symbols AS VALUES
    (1, 'ACME', 18750, 1700), (2, 'BOLT', 4320, 2300), (3, 'CRUX', 96400, 1200), (4, 'DUNE', 2685, 3100), (5, 'ECHO', 31180, 1900);

-- Three pseudo-random numbers below 1000003 for each quote: cubes modulo that prime.
CREATE VIEW dice AS
SELECT sym, open, pace, n,
       x * x % 1000003 * x % 1000003 AS a,
       y * y % 1000003 * y % 1000003 AS b,
       z * z % 1000003 * z % 1000003 AS c
FROM (SELECT column2 AS sym, column3 AS open, column4 AS pace, n,
             column1 * 190027 + n * 7 + 1 AS x, column1 * 55001 + n * 11 + 2 AS y, column1 * 370009 + n * 13 + 3 AS z
      FROM symbols, (SELECT value AS n FROM generate_series(1, 20000)) AS numbers) AS seeds;

-- Each quote moves the price by up to 0.04 percent of the opening price and follows the previous one after 5 to 195 percent of the pace.
CREATE VIEW walk AS
SELECT sym,
       sum(pace * (5 + a % 191) / 100) OVER so_far AS ms,
       open + sum((b % 9 - 4) * open / 10000) OVER so_far AS cents,
       -- Occasional large blocks.
       CASE WHEN c % 97 = 0 THEN 1000 + c % 40 * 100 ELSE 1 + c % 200 END AS size,
       -- One quote in 150 has no price.
       c % 150 = 0 AS lost
FROM dice
WINDOW so_far AS (PARTITION BY sym ORDER BY n ROWS UNBOUNDED PRECEDING);

-- From 09:30 to 16:00. Trading of DUNE halts from 13:00 to 13:10: quotes continue without prices.
COPY (
    SELECT arrow_cast(to_timestamp_millis(1772443800000 + ms), 'Timestamp(Millisecond, None)') AS ts,
           sym,
           CASE WHEN lost OR sym = 'DUNE' AND ms BETWEEN 12600000 AND 13200000 THEN NULL
                ELSE CAST(cents AS DECIMAL(9, 0)) / 100 END::DECIMAL(9, 2) AS price,
           CAST(size AS INT) AS size
    FROM walk
    WHERE ms < 23400000
    ORDER BY sym, ts
) TO 'examples/data/quotes.parquet' STORED AS PARQUET OPTIONS (
    'compression' 'zstd(9)',
    'encoding::ts' 'delta_binary_packed', 'dictionary_enabled::ts' 'false'
);

SELECT sym, count(*) AS quotes, count(*) - count(price) AS without_price, min(price) AS lowest, max(price) AS highest, min(ts) AS first, max(ts) AS last
FROM 'examples/data/quotes.parquet' GROUP BY sym ORDER BY sym;
