-- How each reading differs from the first one of the day before it.
SELECT id, v - first_value(v) OVER (PARTITION BY s ORDER BY ts RANGE BETWEEN INTERVAL '1 day' PRECEDING AND CURRENT ROW) AS change
FROM points
WHERE v IS NOT NULL AND id % 1000 <> 7
