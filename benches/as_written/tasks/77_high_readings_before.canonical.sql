-- How many readings of the six hours before each were positive.
SELECT id, count(CASE WHEN v > 0 THEN 1 END) OVER (PARTITION BY s ORDER BY ts RANGE BETWEEN INTERVAL '6 hours' PRECEDING AND CURRENT ROW) AS n
FROM points
