-- The lowest reading of the day before each reading.
SELECT id, min(v) OVER (PARTITION BY s ORDER BY ts RANGE BETWEEN INTERVAL '1 day' PRECEDING AND CURRENT ROW) AS low
FROM points
