-- How many alarms of each level went off in sessions of their sensor.
SELECT a.level, count(*) AS n
FROM alarms a
JOIN sessions s ON s.s = a.s AND a.ts BETWEEN s.started AND s.ended
GROUP BY a.level
