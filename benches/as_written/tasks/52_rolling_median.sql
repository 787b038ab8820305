-- The median reading of the six hours before each reading.
SELECT id, median(v) OVER (PARTITION BY s ORDER BY ts RANGE BETWEEN INTERVAL '6 hours' PRECEDING AND CURRENT ROW) AS mid
FROM points
