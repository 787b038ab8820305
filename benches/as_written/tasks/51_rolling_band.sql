-- High, mean, sum and number of the last 1,000 readings.
SELECT id, max(v) OVER w AS high, avg(v) OVER w AS mean, sum(v) OVER w AS total, count(v) OVER w AS n
FROM points
WINDOW w AS (PARTITION BY s ORDER BY ts, id ROWS BETWEEN 999 PRECEDING AND CURRENT ROW)
