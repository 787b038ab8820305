-- For each session its number of alarms by level.
SELECT s.id, a.level, count(*) AS n
FROM sessions s
JOIN alarms a ON a.s = s.s AND a.ts BETWEEN s.started AND s.ended
GROUP BY s.id, a.level
