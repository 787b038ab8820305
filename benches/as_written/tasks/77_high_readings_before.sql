-- How many readings of the six hours before each were positive.
SELECT id, count(*) FILTER (WHERE v > 0) OVER (PARTITION BY s ORDER BY ts RANGE BETWEEN INTERVAL '6 hours' PRECEDING AND CURRENT ROW) AS n
FROM points
