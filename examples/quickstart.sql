-- One trading day of five symbols: a row is a quote, sorted by symbol and time.
CREATE EXTERNAL TABLE quotes STORED AS PARQUET LOCATION 'examples/data/quotes.parquet';

SELECT sym, count(*) AS quotes, count(price) AS with_price, min(price) AS lowest, max(price) AS highest
FROM quotes GROUP BY sym ORDER BY sym;

-- Positions count the rows of `quotes` from 0. This is the position of each quote,
CREATE TABLE numbered AS
SELECT row_number() OVER (ORDER BY sym, ts)::BIGINT - 1 AS pos, sym, ts FROM quotes;

-- and the position at which each minute of each symbol begins. A time window is then two look-ups.
CREATE TABLE clock AS
SELECT sym, date_trunc('minute', ts) AS minute, min(pos) AS pos FROM numbered GROUP BY 1, 2;

-- Some windows. l and r are their first and last positions.
CREATE TABLE windows AS
SELECT what, day.sym, s.minute AS start, e.minute AS stop, s.pos AS l, e.pos - 1 AS r
FROM (VALUES ('news',      'ACME', '09:45', '10:00'),
             ('same news', 'ECHO', '09:45', '10:05'),
             ('lunch',     'CRUX', '12:00', '13:00'),
             ('halt',      'DUNE', '13:02', '13:08'),
             ('auction',   'BOLT', '15:30', '15:55')) AS day(what, sym, a, b)
JOIN clock AS s ON s.sym = day.sym AND s.minute::TIME = a::TIME
JOIN clock AS e ON e.sym = day.sym AND e.minute::TIME = b::TIME;

-- The lowest and the highest price in each window, and their times. NULL prices are skipped; the halt has no others.
SELECT what, w.sym, l, r, lowest, low.ts::TIME AS low_at, highest, high.ts::TIME AS high_at
FROM (SELECT *, range_min('quotes.price', l, r) AS lowest,  range_argmin('quotes.price', l, r) AS low_pos,
                range_max('quotes.price', l, r) AS highest, range_argmax('quotes.price', l, r) AS high_pos
      FROM windows) AS w
LEFT JOIN numbered AS low  ON low.pos  = low_pos
LEFT JOIN numbered AS high ON high.pos = high_pos
ORDER BY w.start, w.sym;

-- A long range costs no more than a short one. So take every window of the day that begins and ends on a minute:
CREATE TABLE every_window AS
SELECT s.sym, s.minute AS start, e.minute AS stop, s.pos AS l, e.pos - 1 AS r
FROM clock AS s JOIN clock AS e ON s.sym = e.sym AND s.minute < e.minute;

-- How far does a price move on average within 5 minutes, half an hour, three hours?
SELECT sym, count(*) AS windows, sum(r - l + 1) AS quotes_in_them,
       avg(move) FILTER (WHERE length = INTERVAL '5 minutes')::DECIMAL(9, 3) AS "5 min",
       avg(move) FILTER (WHERE length = INTERVAL '30 minutes')::DECIMAL(9, 3) AS "30 min",
       avg(move) FILTER (WHERE length = INTERVAL '3 hours')::DECIMAL(9, 3) AS "3 h"
FROM (SELECT sym, l, r, stop - start AS length,
             range_max('quotes.price', l, r) - range_min('quotes.price', l, r) AS move
      FROM every_window) AS w
GROUP BY sym ORDER BY sym;

-- The half hour in which each symbol moved least.
SELECT DISTINCT ON (sym) sym, start::TIME AS start, stop::TIME AS stop, low, high, high - low AS move
FROM (SELECT *, range_min('quotes.price', l, r) AS low, range_max('quotes.price', l, r) AS high
      FROM every_window WHERE stop = start + INTERVAL '30 minutes') AS w
ORDER BY sym, move, start;

-- Window functions: frames whose bounds differ from row to row, with positions counted within PARTITION BY. At the last quote
-- of each symbol: the lowest price since the last block of at least 4800 shares.
WITH counted AS (
    SELECT *, row_number() OVER (PARTITION BY sym ORDER BY ts)::BIGINT - 1 AS r FROM quotes
), blocks AS (
    SELECT *, max(CASE WHEN size >= 4800 THEN r END) OVER (PARTITION BY sym ORDER BY ts) AS block FROM counted
)
SELECT sym, ts::TIME AS at, price, r - block AS quotes_since,
       frame_min(price, block, r) OVER (PARTITION BY sym ORDER BY ts) AS lowest_since
FROM blocks
QUALIFY lead(ts) OVER (PARTITION BY sym ORDER BY ts) IS NULL
ORDER BY sym;

-- The table function adds the value and its position to a table of windows.
SELECT * FROM range_max('quotes.price', 'windows', 'l', 'r') ORDER BY start, sym;

-- The plan of a query,
EXPLAIN SELECT what, range_min('quotes.price', l, r) AS lowest, range_argmin('quotes.price', l, r) AS low_pos FROM windows;

-- and the indexes that this session now holds.
SELECT * FROM rmq_indexes();
